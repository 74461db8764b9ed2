//! Who shall move frames to the rings, the kernel or the caller: both are tried on the first traffic, in turns, and the faster one stays.
//!
//! What is measured is the time from a doorbell to the next frame, as long as that is short: who sleeps gains nothing either way. It costs two looks
//! at the clock for each of the first some hundred frames, and nothing from then on.

use super::config::Receive;
use super::{BUSY_FRAMES, BUSY_US, Xdp};
use crate::{DeviceEvent, RouteId, Way, monotonic_now};

/// Times that are taken before the other one has its turn, and turns of both.
const TURN: usize = 32;
const TURNS: usize = 4;
/// A longer time tells of something else, in nanoseconds.
const LONGEST: u64 = 50_000;
/// Frames after which it is given up: there were too few short times among them.
const FRAMES_MAX: u32 = 2_000;
/// The caller's system calls must gain this much, in percent.
const GAIN: u64 = 10;

/// A measurement under way.
#[derive(Debug, Default)]
pub(super) struct Trial {
    rang: Option<u64>,
    /// In nanoseconds: of the kernel, of the caller.
    times: [Vec<u64>; 2],
    frames: u32,
}

impl Trial {
    pub(super) fn rang(&mut self) {
        self.rang = Some(monotonic_now());
    }

    /// A frame has come, moved by the caller or not. Whether the other one has its turn now.
    fn came(&mut self, busy: bool) -> bool {
        self.frames += 1;
        let Some(time) = self.rang.take().map(|rang| monotonic_now().saturating_sub(rang)) else {
            return false;
        };
        let times = &mut self.times[usize::from(busy)];
        if time <= LONGEST {
            times.push(time);
        }
        time <= LONGEST && times.len().is_multiple_of(TURN)
    }

    fn is_over(&self) -> bool {
        self.frames >= FRAMES_MAX || self.times.iter().all(|times| times.len() >= TURN * TURNS / 2)
    }

    /// What a quarter of the times stay below: the noise of the machine makes the others longer.
    fn quarters(&mut self) -> Option<[u64; 2]> {
        let enough = self.times.iter().all(|times| times.len() >= TURN);
        self.times.iter_mut().for_each(|times| times.sort_unstable());
        enough.then(|| [0, 1].map(|who| self.times[who][self.times[who].len() / 4]))
    }
}

/// Whether the caller is worth its system calls.
fn is_better([kernel, caller]: [u64; 2]) -> bool {
    caller * 100 < kernel * (100 - GAIN)
}

impl Xdp {
    /// The measurement at the start, if one is asked for.
    pub(super) fn trial_for(receive: Receive) -> Option<Box<Trial>> {
        (receive == Receive::Measured).then(Box::default)
    }

    /// Whether it is still open who moves frames.
    pub fn is_measuring(&self) -> bool {
        self.trial.is_some()
    }

    /// A frame has come during the measurement.
    #[cold]
    pub(super) fn frame_came(&mut self) {
        let Some(mut trial) = self.trial.take() else { return };
        let turns = trial.came(self.busy);
        if trial.is_over() {
            let quarters = trial.quarters();
            self.let_caller_move(quarters.is_some_and(is_better));
            if let Some([kernel, caller]) = quarters.filter(|_| self.busy) {
                self.tell_busy(kernel, caller);
            }
            return;
        }
        // Refused busy polling ends it.
        if turns && !self.let_caller_move(!self.busy) {
            return;
        }
        self.trial = Some(trial);
    }

    /// Makes the caller or the kernel move frames. False if the system does not let us.
    fn let_caller_move(&mut self, caller: bool) -> bool {
        if caller == self.busy {
            return true;
        }
        let (time_us, frames) = if caller { (BUSY_US, BUSY_FRAMES) } else { (0, 0) };
        let done = self.queues.prefer_busy_poll(caller, time_us, frames).is_ok();
        self.busy = caller && done;
        done
    }

    fn tell_busy(&mut self, kernel: u64, caller: u64) {
        for id in (0..self.routes.len() as u32).map(RouteId) {
            let route = &self.routes[id.0 as usize];
            if route.told && route.way == Way::Xdp {
                let why = format!(
                    "busy polled from now on, which is faster here: an answer takes {caller} ns, and {kernel} ns if the kernel moves frames"
                );
                self.tell(DeviceEvent::Way { route: id, way: Way::Xdp, why });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The caller must be faster by more than its system calls are worth, and without enough short times nothing is said.
    #[test]
    fn the_faster_one_stays() {
        assert!(is_better([1_000, 899]) && !is_better([1_000, 900]) && !is_better([1_000, 2_000]));
        let mut trial = Trial { times: [vec![5; TURN], vec![4; TURN - 1]], ..Trial::default() };
        assert_eq!(trial.quarters(), None);
        trial.times[1].push(9);
        assert_eq!(trial.quarters(), Some([5, 4]));
        assert!(!trial.is_over());
        trial.frames = FRAMES_MAX;
        assert!(trial.is_over(), "it ends, whatever comes");
    }

    /// Times without a doorbell, and long ones, do not count; turns change after so many that do.
    #[test]
    fn turns_change() {
        let mut trial = Trial::default();
        assert!(!trial.came(false), "nobody rang");
        trial.rang = Some(0);
        assert!(!trial.came(false) && trial.times[0].is_empty(), "since for ever");
        let mut turns = 0;
        for _ in 0..10 * TURN {
            trial.rang();
            turns += usize::from(trial.came(turns % 2 == 1));
        }
        assert!(trial.is_over() && turns >= TURNS, "{turns} turns");
    }
}
