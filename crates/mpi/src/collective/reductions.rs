//! Collectives that combine values. Operands are combined in the order of ranks, so that operations need not
//! commute; those that do may use algorithms that change the order.

use super::algorithms::{expect, gather_all};
use super::{Channel, Reducer};
use crate::error::Result;

/// From this size on, values are reduced in parts by a ring.
const LONG: usize = 64 << 10;

/// `MPI_Reduce`: the root gets the result. Along a binomial tree, in the order of ranks unless the operation
/// commutes.
pub async fn reduce(
    channel: &Channel,
    reducer: &Reducer,
    root: usize,
    mut value: Vec<u8>,
) -> Result<Option<Vec<u8>>> {
    let (rank, size) = (channel.rank, channel.size);
    let top = if reducer.operation.commutes() { root } else { 0 };
    let relative = (rank + size - top) % size;
    let mut mask = 1;
    while mask < size {
        if relative & mask != 0 {
            let to = (relative - mask + top) % size;
            channel.send(to, &value).await?;
            break;
        }
        if relative + mask < size {
            let mut higher = channel.receive((relative + mask + top) % size, value.len()).await?;
            expect(&higher, value.len())?;
            reducer.combine(&value, &mut higher)?;
            value = higher;
        }
        mask *= 2;
    }
    if top != root {
        if rank == top {
            channel.send_owned(root, value).await?;
            return Ok(None);
        }
        if rank == root {
            let len = value.len();
            let result = channel.receive(top, len).await?;
            return Ok(Some(result));
        }
    }
    Ok((rank == root).then_some(value))
}

/// `MPI_Allreduce`: by recursive doubling, or by a ring if the values are long and the operation commutes.
pub async fn reduce_all(channel: &Channel, reducer: &Reducer, value: Vec<u8>) -> Result<Vec<u8>> {
    let (rank, size) = (channel.rank, channel.size);
    let len = value.len();
    if len >= LONG && reducer.operation.commutes() && len / reducer.element().max(1) >= size && size > 2 {
        let lens = parts(len, reducer.element(), size);
        let own = reduce_parts(channel, reducer, &lens, value).await?;
        return Ok(gather_all(channel, own, &lens).await?.concat());
    }
    // Pairs of neighbours among the first ranks become one each, so that a power of two remains.
    let power = if size.is_power_of_two() { size } else { size.next_power_of_two() / 2 };
    let extra = size - power;
    let mut value = value;
    if rank < 2 * extra && rank.is_multiple_of(2) {
        channel.send(rank + 1, &value).await?;
        let result = channel.receive(rank + 1, len).await?;
        expect(&result, len)?;
        return Ok(result);
    }
    let number = if rank < 2 * extra {
        let lower = channel.receive(rank - 1, len).await?;
        expect(&lower, len)?;
        reducer.combine(&lower, &mut value)?;
        rank / 2
    } else {
        rank - extra
    };
    let rank_of = |number: usize| if number < extra { 2 * number + 1 } else { number + extra };
    let mut mask = 1;
    while mask < power {
        let peer = rank_of(number ^ mask);
        let mut theirs = channel.exchange(peer, &value, peer, len).await?;
        expect(&theirs, len)?;
        if peer < rank {
            reducer.combine(&theirs, &mut value)?;
        } else {
            reducer.combine(&value, &mut theirs)?;
            value = theirs;
        }
        mask *= 2;
    }
    if rank < 2 * extra {
        channel.send(rank - 1, &value).await?;
    }
    Ok(value)
}

/// Divides `len` bytes into one part for each member, at the borders of elements.
fn parts(len: usize, element: usize, size: usize) -> Vec<usize> {
    let elements = len / element.max(1);
    (0..size).map(|rank| (elements / size + usize::from(rank < elements % size)) * element).collect()
}

/// Each member gets its part of the result of an operation that commutes: rank `i` one of `lens[i]` bytes.
async fn reduce_parts(
    channel: &Channel,
    reducer: &Reducer,
    lens: &[usize],
    value: Vec<u8>,
) -> Result<Vec<u8>> {
    let (rank, size) = (channel.rank, channel.size);
    let starts: Vec<usize> = (0..size).map(|part| lens[..part].iter().sum()).collect();
    let part = |number: usize| &value[starts[number]..starts[number] + lens[number]];
    let mut own = part(rank).to_vec();
    for distance in 1..size {
        let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
        let theirs = channel.exchange(to, part(to), from, own.len()).await?;
        expect(&theirs, own.len())?;
        reducer.combine(&theirs, &mut own)?;
    }
    Ok(own)
}

/// `MPI_Reduce_scatter`: rank `i` gets its `lens[i]` bytes of the result.
pub async fn reduce_scatter(
    channel: &Channel,
    reducer: &Reducer,
    lens: &[usize],
    value: Vec<u8>,
) -> Result<Vec<u8>> {
    if reducer.operation.commutes() {
        return reduce_parts(channel, reducer, lens, value).await;
    }
    let result = reduce(channel, reducer, 0, value).await?;
    let parts = result.map(|result| {
        let starts = (0..channel.size).map(|part| lens[..part].iter().sum::<usize>());
        starts.zip(lens).map(|(start, len)| result[start..start + len].to_vec()).collect()
    });
    super::algorithms::scatter(channel, 0, parts, lens[channel.rank]).await
}

/// `MPI_Scan` and `MPI_Exscan`: the values of lower ranks and, if `inclusive`, of this one. `None` for the
/// first rank of an exclusive one.
pub async fn scan(
    channel: &Channel,
    reducer: &Reducer,
    value: Vec<u8>,
    inclusive: bool,
) -> Result<Option<Vec<u8>>> {
    let (rank, size, len) = (channel.rank, channel.size, value.len());
    // `sum` covers the ranks from `rank - distance + 1` to this one, `before` the same without this one.
    let (mut sum, mut before): (Vec<u8>, Option<Vec<u8>>) = (value, None);
    let mut distance = 1;
    while distance < size {
        let sent = (rank + distance < size).then(|| channel.send(rank + distance, &sum));
        if rank >= distance {
            let lower = channel.receive(rank - distance, len).await?;
            expect(&lower, len)?;
            reducer.combine(&lower, &mut sum)?;
            before = Some(match before {
                Some(mut before) => {
                    reducer.combine(&lower, &mut before)?;
                    before
                }
                None => lower,
            });
        }
        if let Some(sent) = sent {
            sent.await?;
        }
        distance *= 2;
    }
    Ok(if inclusive { Some(sum) } else { before })
}
