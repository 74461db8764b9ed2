//! Collectives that move bytes: trees, rings and exchanges.

use super::Channel;
use crate::constants::ERR_TRUNCATE;
use crate::error::{Result, ensure};

/// Blocks up to this size in all are gathered in ⌈log₂ n⌉ steps, longer ones in a ring.
const SHORT: usize = 32 << 10;

/// Fails unless a message has as many bytes as its receiver expects.
pub fn expect(bytes: &[u8], len: usize) -> Result<()> {
    ensure(bytes.len() == len, ERR_TRUNCATE, || {
        format!("{} bytes were sent where {len} are expected", bytes.len())
    })
}

/// `MPI_Barrier`, by dissemination.
pub async fn barrier(channel: &Channel) -> Result<()> {
    let (rank, size) = (channel.rank, channel.size);
    let mut distance = 1;
    while distance < size {
        channel.exchange((rank + distance) % size, &[], (rank + size - distance) % size, 0).await?;
        distance *= 2;
    }
    Ok(())
}

/// `MPI_Bcast`. Only the root's `bytes` are read; all members have them afterwards.
pub async fn broadcast(channel: &Channel, root: usize, bytes: &mut Vec<u8>) -> Result<()> {
    let size = channel.size;
    let relative = (channel.rank + size - root) % size;
    broadcast_among(channel, (relative, size), &|number| (number + root) % size, bytes).await
}

/// A broadcast of the first of `size` members to the others, along a binomial tree; this process is member
/// `relative`, and `rank_of` gives their ranks.
pub async fn broadcast_among(
    channel: &Channel,
    (relative, size): (usize, usize),
    rank_of: &(dyn Fn(usize) -> usize + Sync),
    bytes: &mut Vec<u8>,
) -> Result<()> {
    let mut mask = 1;
    while mask < size {
        if relative & mask != 0 {
            let received = channel.receive(rank_of(relative - mask), bytes.len()).await?;
            expect(&received, bytes.len())?;
            *bytes = received;
            break;
        }
        mask *= 2;
    }
    let mut sends = Vec::new();
    while mask > 1 {
        mask /= 2;
        if relative + mask < size {
            sends.push(channel.send(rank_of(relative + mask), bytes));
        }
    }
    for send in sends {
        send.await?;
    }
    Ok(())
}

/// `MPI_Gatherv`: the root gets the bytes of all members, those of rank `i` at most `lens[i]`.
pub async fn gather(
    channel: &Channel,
    root: usize,
    own: Vec<u8>,
    lens: &[usize],
) -> Result<Option<Vec<Vec<u8>>>> {
    if channel.rank != root {
        channel.send_owned(root, own).await?;
        return Ok(None);
    }
    let receives: Vec<_> = (0..channel.size)
        .map(|from| (from != root).then(|| channel.receive(from, lens[from])))
        .collect();
    let mut all = Vec::with_capacity(channel.size);
    let mut own = Some(own);
    for receive in receives {
        all.push(match receive {
            Some(receive) => receive.await?,
            None => own.take().unwrap_or_default(),
        });
    }
    Ok(Some(all))
}

/// `MPI_Scatterv`: the root sends each member its part; a member has room for `len` bytes.
pub async fn scatter(
    channel: &Channel,
    root: usize,
    parts: Option<Vec<Vec<u8>>>,
    len: usize,
) -> Result<Vec<u8>> {
    let Some(parts) = parts else { return channel.receive(root, len).await };
    let (mut own, mut sends) = (Vec::new(), Vec::new());
    for (to, part) in parts.into_iter().enumerate() {
        if to == root {
            own = part;
        } else {
            sends.push(channel.send_owned(to, part));
        }
    }
    for send in sends {
        send.await?;
    }
    Ok(own)
}

/// `MPI_Allgatherv`: all members get the bytes of all; rank `i` has `lens[i]`, which all members know.
pub async fn gather_all(channel: &Channel, own: Vec<u8>, lens: &[usize]) -> Result<Vec<Vec<u8>>> {
    let (rank, size) = (channel.rank, channel.size);
    let mut all: Vec<Vec<u8>> = vec![Vec::new(); size];
    all[rank] = own;
    if lens.iter().sum::<usize>() <= SHORT {
        // After each step this member has the blocks of `held` members from its own on.
        let mut held = 1;
        while held < size {
            let more = held.min(size - held);
            let mut block = Vec::new();
            for offset in 0..more {
                block.extend_from_slice(&all[(rank + offset) % size]);
            }
            let theirs = (0..more).map(|offset| lens[(rank + held + offset) % size]);
            let len = theirs.clone().sum();
            let (to, from) = ((rank + size - held) % size, (rank + held) % size);
            let received = channel.exchange(to, &block, from, len).await?;
            expect(&received, len)?;
            let mut at = 0;
            for (offset, len) in theirs.enumerate() {
                all[(rank + held + offset) % size] = received[at..at + len].to_vec();
                at += len;
            }
            held += more;
        }
        return Ok(all);
    }
    let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
    for step in 0..size - 1 {
        let (send, receive) = ((rank + size - step) % size, (rank + 2 * size - step - 1) % size);
        let received = channel.exchange(to, &all[send], from, lens[receive]).await?;
        expect(&received, lens[receive])?;
        all[receive] = received;
    }
    Ok(all)
}

/// `MPI_Alltoallw`: part `i` goes to rank `i`; from rank `i` come at most `lens[i]` bytes.
pub async fn exchange_all(
    channel: &Channel,
    mut parts: Vec<Vec<u8>>,
    lens: &[usize],
) -> Result<Vec<Vec<u8>>> {
    let (rank, size) = (channel.rank, channel.size);
    let mut all: Vec<Vec<u8>> = vec![Vec::new(); size];
    all[rank] = std::mem::take(&mut parts[rank]);
    let receives: Vec<_> = (1..size)
        .map(|distance| (rank + size - distance) % size)
        .map(|from| (from, channel.receive(from, lens[from])))
        .collect();
    let mut sends = Vec::with_capacity(size);
    for distance in 1..size {
        let to = (rank + distance) % size;
        sends.push(channel.send_owned(to, std::mem::take(&mut parts[to])));
    }
    for (from, receive) in receives {
        all[from] = receive.await?;
    }
    for send in sends {
        send.await?;
    }
    Ok(all)
}
