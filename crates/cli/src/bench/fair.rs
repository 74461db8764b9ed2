//! Whether a row did the work of a user: the sender rewrote its buffer for each message, and the receiver
//! read every byte of it. Decided by the accounts of both processes, which count what they wrote and read.

use super::case::{Account, Outcome, System, Touch, Work};
use super::plan::Cell;

/// Returns why the row is unfair, if it is.
pub fn fault(cell: &Cell, [a, b]: &[Outcome; 2]) -> Option<String> {
    if !is_accountable(cell) {
        return None;
    }
    let (Some(ours), Some(theirs)) = (a.account, b.account) else {
        return Some("the system does not say what was written and read".into());
    };
    let bytes = cell.work.bytes() as u64;
    match cell.work {
        Work::PingPong { count, .. } | Work::Paced { count, .. } | Work::Calls { count, .. } => {
            one_way("A to B", &ours, &theirs, count * bytes)
                .or_else(|| one_way("B to A", &theirs, &ours, count * bytes))
        }
        Work::Requests { count, .. } => one_way("A to B", &ours, &theirs, 8 * count)
            .or_else(|| one_way("B to A", &theirs, &ours, 8 * count)),
        Work::Stream { touch: Touch::Unread, .. } => missing("A wrote", ours.written.0, a.bytes),
        // Frames may be lost. Those that arrive are read.
        Work::Stream { .. } if matches!(cell.system, System::Bare { .. }) => {
            missing("A wrote", ours.written.0, a.bytes)
                .or_else(|| missing("B read", theirs.read.0, b.bytes))
                .or_else(|| {
                    let lost = ours.written.0 != theirs.read.0;
                    (!lost && ours.written != theirs.read).then(|| "B did not read what A wrote".into())
                })
        }
        Work::Stream { .. } | Work::Lossy { .. } | Work::Flood { .. } => {
            one_way("A to B", &ours, &theirs, a.bytes.max(b.bytes))
        }
        Work::Polls { count, hit: true } => one_way("B to A", &theirs, &ours, 8 * count),
        Work::Tune { .. }
        | Work::Idle { .. }
        | Work::Matching { .. }
        | Work::Polls { .. }
        | Work::Copies { .. }
        | Work::Many { .. } => None,
    }
}

/// Whether a row promises the work of a user. Its name or a note says so if it does not.
fn is_accountable(cell: &Cell) -> bool {
    let copies = matches!(cell.system, System::Shared { limit: super::case::Shared::Memcpy });
    // The last of many puts is read.
    let unread = matches!(cell.system, System::Memory { style: super::case::Style::PutUnread, .. });
    // The ranks of a job compare every word with what it must be.
    let checked = matches!(cell.work, Work::Many { .. });
    !(cell.warm || copies || unread || checked || cell.work.bytes() == 0)
}

fn one_way(direction: &str, from: &Account, to: &Account, bytes: u64) -> Option<String> {
    missing("the sender wrote", from.written.0, bytes)
        .or_else(|| missing("the receiver read", to.read.0, bytes))
        .map(|text| format!("{direction}: {text}"))
        .or_else(|| {
            (from.written != to.read).then(|| {
                format!(
                    "{direction}: {} bytes were written with the sum {:x}, and {} bytes were read with the sum {:x}",
                    from.written.0, from.written.1, to.read.0, to.read.1
                )
            })
        })
}

fn missing(who: &str, done: u64, bytes: u64) -> Option<String> {
    (done < bytes).then(|| format!("{who} {done} bytes where {bytes} were moved"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::only::Only;
    use crate::bench::plan::{Extent, Here, cells};

    fn outcome(written: (u64, u64), read: (u64, u64)) -> Outcome {
        Outcome { account: Some(Account { written, read }), ..Outcome::default() }
    }

    #[test]
    fn a_sender_and_a_receiver_that_do_less_are_detected() {
        let only: Only = "latency,64,tautline".parse().unwrap();
        let cell = cells(Extent::Smoke, false, &only, &Here::default())[0];
        let all = cell.work.count() * 64;
        let fair = [outcome((all, 5), (all, 7)), outcome((all, 7), (all, 5))];
        assert_eq!(fault(&cell, &fair), None);
        for unfair in [
            [outcome((all, 5), (all, 7)), outcome((all, 7), (all, 6))],
            [outcome((all, 5), (all, 7)), outcome((all, 7), (0, 0))],
            [outcome((all, 5), (0, 0)), outcome((all, 7), (all, 5))],
            [outcome((0, 0), (0, 0)), outcome((0, 0), (0, 0))],
            [Outcome::default(), Outcome::default()],
        ] {
            assert!(fault(&cell, &unfair).is_some(), "{unfair:?}");
        }
    }
}
