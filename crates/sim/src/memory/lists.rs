//! Lists, pieces, notices and flushes: operations that wait for room, in a task of each requester. They use
//! memory of their own behind that of the other operations.

use std::future::Future;
use std::pin::Pin;

use tautline::Error;
use tautline::memory::AsyncRemote;

use super::notices::Notices;

/// Bytes of a part of the memory.
const PART: u64 = 4_000;
/// Bytes of this memory.
pub(super) const LEN: u64 = 3 * PART;
/// How often all of it is written and compared.
const ROUNDS: u64 = 6;
/// The values of its notices begin here.
const FIRST_VALUE: u64 = 1 << 32;

/// A task that ends when all rounds are done: true, or false if a channel ended. An error says what is wrong.
pub(super) type Task = Pin<Box<dyn Future<Output = Result<bool, String>>>>;

/// Which operation is to be left out; see [`super::Mistake`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Omit {
    pub(super) piece: bool,
    pub(super) notice: bool,
}

/// Writes to the memory from `base` on, `ROUNDS` times, and compares what is there.
pub(super) fn start(remote: AsyncRemote, base: u64, notices: Notices, omit: Omit) -> Task {
    Box::pin(async move {
        for round in 0..ROUNDS {
            match write_and_compare(&remote, base, &notices, (round, omit)).await {
                Ok(true) => {}
                Ok(false) => {
                    return Err(format!("round {round}: a get returned something else than was listed"));
                }
                Err(Error::PeerGone(..) | Error::Send(_) | Error::Operation(_)) => return Ok(false),
                Err(other) => return Err(format!("round {round} of lists: {other}")),
            }
        }
        Ok(true)
    })
}

async fn write_and_compare(
    remote: &AsyncRemote,
    base: u64,
    notices: &Notices,
    (round, omit): (u64, Omit),
) -> Result<bool, Error> {
    let bytes: Vec<u8> = (0..LEN).map(|at| (at / 3 + 7 * (round + 1)) as u8).collect();
    let (first, rest) = bytes.split_at(PART as usize);
    let (second, third) = rest.split_at(PART as usize);
    // The list is in the other order.
    let list = [(base + PART, second), (base, first)];
    remote.put_list(if omit.piece && round == 2 { &list[..1] } else { &list }).await?;
    // More than a frame takes, and less.
    let cuts = [&third[..1 + 500 * round as usize], &third[1 + 500 * round as usize..]];
    remote.put_pieces(base + 2 * PART, &cuts).await?;
    let value = FIRST_VALUE + round;
    notices.send(remote.cookie(), value, (base, 100));
    if !(omit.notice && round == 2) {
        remote.put_notice(base, &bytes[..100], value).await?;
    }
    remote.flush().await?;
    Ok(remote.get(base, LEN as usize).await? == bytes)
}
