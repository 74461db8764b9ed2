//! How long something that is owed may go without progress. The bounds follow from how many frames the paths
//! lose.

use super::{World, at};
use crate::Nanos;
use crate::net::PathOptions;

const MILLI: Nanos = 1_000_000;
/// The longest retransmission timeout (G3).
const TIMEOUT: Nanos = 200 * MILLI;
/// A flow that owes something makes progress within this many timeouts, if nothing is lost.
const TIMEOUTS: u64 = 10;
/// Until channels are open again after healing, nothing makes progress: silence, then hellos at their longest
/// interval.
const RECONNECT: Nanos = 2_500 * MILLI;
/// The longest time between two hellos (H-18).
const HELLO: Nanos = 480 * MILLI;
/// A series of losses that is rarer than one in this many does not happen.
const NEVER: u64 = 1_000_000_000;

/// How many exchanges in a row, a frame and its answer, may fail while the faults of a path last.
fn failures(path: &PathOptions) -> u64 {
    const WHOLE: u64 = 1_000_000;
    let arrive = |share: u32| WHOLE - u64::from(share);
    let frame = arrive(path.loss_ppm) * arrive(path.corrupt_ppm) / WHOLE;
    let fail = WHOLE - frame * frame / WHOLE;
    let (mut chance, mut count) = (WHOLE * NEVER, 0);
    while chance > WHOLE {
        chance = (u128::from(chance) * u128::from(fail) / u128::from(WHOLE)) as u64;
        count += 1;
    }
    count
}

/// A flow that owes something must make progress within this time while frames are lost like this.
pub(super) fn bound(path: &PathOptions) -> Nanos {
    failures(path).max(TIMEOUTS) * TIMEOUT
}

/// The same without loss.
pub(super) const BOUND: Nanos = TIMEOUTS * TIMEOUT;

/// All channels are open again within this time after the last fault, while frames are lost like this.
pub(super) fn reconnect(path: &PathOptions) -> Nanos {
    RECONNECT.max(1_000 * MILLI + failures(path) * HELLO)
}

impl World {
    /// The paths' faults by chance that go on now.
    pub(super) fn chance_faults(&self) -> PathOptions {
        let last = self.phase.healed_at.is_none() || self.swarm.lasting;
        if last { self.swarm.path } else { PathOptions::default() }
    }

    /// Checks whether something that should make progress does not, while a fault may still come.
    pub(super) fn check_progress(&mut self, now: Nanos) {
        let (paths, calm_at) = (self.chance_faults(), self.phase.calm_at);
        let calm_at = if calm_at > 0 { calm_at + reconnect(&paths) } else { 0 };
        let within = bound(&paths);
        if !self.totals.steps.is_multiple_of(64) || now < calm_at + within {
            return;
        }
        let stalled = self.check.borrow().pending_flows().find(|(from, to, moved)| {
            // A program that extracts rarely, perhaps a byte at a time, lets its peers wait.
            let polls = |place: &u32| self.node_options(*place).extract_gap_ns == 0;
            polls(from) && polls(to) && now > calm_at.max(*moved) + within
        });
        if let Some((from, to, moved)) = stalled {
            let open = self.check.borrow().describe_open();
            self.violation(format!(
                "no progress {from} → {to} since {}, before healing; open: {open}",
                at(moved)
            ));
            self.phase.stop = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bounds grow with the loss, and without loss they are those of the timers.
    #[test]
    fn bounds_follow_from_the_loss() {
        let path = |loss_ppm, corrupt_ppm| PathOptions { loss_ppm, corrupt_ppm, ..PathOptions::default() };
        assert_eq!((bound(&path(0, 0)), reconnect(&path(0, 0))), (BOUND, RECONNECT));
        assert_eq!(bound(&path(100_000, 0)), 13 * TIMEOUT);
        assert_eq!(bound(&path(300_000, 0)), 31 * TIMEOUT);
        assert_eq!(bound(&path(200_000, 125_000)), bound(&path(300_000, 0)));
        assert!(bound(&path(300_000, 100_000)) < 10_000 * MILLI);
    }
}
