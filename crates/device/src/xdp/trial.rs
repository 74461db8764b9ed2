//! Who shall move frames to the rings, the kernel or the caller: both are tried on the first traffic, in turns, and the kernel stays unless the caller is clearly faster, twice.
//!
//! What is measured is the time from a doorbell to the next frame, if the caller did nothing but look for it meanwhile: who sleeps, or does something else, gains nothing either
//! way. Of many such times the lowest tell of the way, and the others of the machine's mood. It costs some looks at the clock around the first some hundred frames, and nothing
//! from then on.

use super::config::Receive;
use super::{BUSY_FRAMES, BUSY_US, Xdp};
use crate::{DeviceEvent, RouteId, Transport, monotonic_now};

/// Times that are taken before the other one has its turn, and those of each in one trial.
const TURN: usize = 32;
const TIMES: usize = 3 * TURN;
/// Trials that the caller must win, one after the other.
const WINS: u32 = 2;
/// A longer time tells of something else, in nanoseconds.
const LONGEST: u64 = 50_000;
/// Who does something else between two looks for so long does not poll.
const BREAK: u64 = 3_000;
/// Frames after which it is given up: there were too few times among them.
const FRAMES_MAX: u32 = 3_000;
/// The caller's system calls must gain this much, in percent.
const GAIN: u64 = 20;

/// A measurement under way.
#[derive(Debug)]
pub(super) struct Trial {
    /// When the doorbell was rung, and the end of the last look since then.
    rang: Option<u64>,
    looked: u64,
    /// In nanoseconds: of the kernel, of the caller.
    times: [[u64; TIMES]; 2],
    taken: [usize; 2],
    wins: u32,
    frames: u32,
}

impl Default for Trial {
    fn default() -> Trial {
        Trial { rang: None, looked: 0, times: [[0; TIMES]; 2], taken: [0; 2], wins: 0, frames: 0 }
    }
}

/// What came of a trial.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The kernel goes on as it did.
    Kernel,
    /// The caller was faster: how long an answer took with each.
    Caller([u64; 2]),
    /// Not known yet.
    Open,
}

impl Trial {
    pub(super) fn rang(&mut self) {
        self.ring_at(monotonic_now());
    }

    fn ring_at(&mut self, now: u64) {
        (self.rang, self.looked) = (Some(now), now);
    }

    /// A look for frames begins.
    pub(super) fn look(&mut self) {
        if self.rang.is_some() {
            self.check_gap(monotonic_now());
        }
    }

    /// What was waited for with breaks, or for long, does not count.
    fn check_gap(&mut self, now: u64) {
        if self.rang.is_some_and(|rang| now - rang > LONGEST) || now - self.looked > BREAK {
            self.rang = None;
        }
    }

    /// It found nothing.
    pub(super) fn found_nothing(&mut self) {
        if self.rang.is_some() {
            self.looked = monotonic_now();
        }
    }

    /// It found a frame, moved by the caller or not. Whether the other one has its turn now.
    fn came_at(&mut self, now: u64, busy: bool) -> bool {
        self.frames += 1;
        let who = usize::from(busy);
        let Some(time) = self.rang.take().map(|rang| now - rang).filter(|time| *time <= LONGEST) else {
            return false;
        };
        if self.taken[who] == TIMES {
            return true;
        }
        self.times[who][self.taken[who]] = time;
        self.taken[who] += 1;
        self.taken[who].is_multiple_of(TURN)
    }

    /// What a tenth of the times stay below, if there are enough.
    fn tenths(&mut self) -> Option<[u64; 2]> {
        (self.taken == [TIMES; 2]).then(|| {
            self.times.iter_mut().for_each(|times| times.sort_unstable());
            self.times.map(|times| times[TIMES / 10])
        })
    }

    /// Looks at what there is; a trial that the caller has won is followed by another.
    fn judge(&mut self) -> Verdict {
        match self.tenths() {
            Some(tenths) if !is_better(tenths) => Verdict::Kernel,
            Some(tenths) => {
                self.wins += 1;
                self.taken = [0; 2];
                if self.wins == WINS { Verdict::Caller(tenths) } else { Verdict::Open }
            }
            None if self.frames >= FRAMES_MAX => Verdict::Kernel,
            None => Verdict::Open,
        }
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
        let turns = trial.came_at(monotonic_now(), self.busy);
        match trial.judge() {
            Verdict::Open => {}
            Verdict::Kernel => {
                self.let_caller_move(false);
                return;
            }
            Verdict::Caller([kernel, caller]) => {
                if self.let_caller_move(true) {
                    self.tell_busy(kernel, caller);
                }
                return;
            }
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
            if route.told && route.transport == Transport::Xdp {
                let why = format!(
                    "busy polled from now on, which is faster here: an answer takes {caller} ns, and {kernel} ns if the kernel moves frames"
                );
                self.tell(DeviceEvent::Transport { route: id, transport: Transport::Xdp, why });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a trial with answers after the times that `time` gives for each of the two; returns the verdict.
    fn play(mut time: impl FnMut(bool, u32) -> u64) -> (Verdict, u32) {
        let (mut trial, mut busy, mut now) = (Trial::default(), false, 0);
        for frame in 0.. {
            now += 1_000_000;
            trial.ring_at(now);
            let answer = now + time(busy, frame);
            // Looks without a break.
            while now + 1_000 < answer {
                now += 1_000;
                trial.check_gap(now);
                trial.looked = now;
            }
            now = answer;
            trial.check_gap(now);
            let turns = trial.came_at(now, busy);
            let verdict = trial.judge();
            if verdict != Verdict::Open {
                return (verdict, frame + 1);
            }
            busy ^= turns;
        }
        unreachable!("it ends")
    }

    /// The caller must be faster by more than its system calls are worth.
    #[test]
    fn the_faster_one_stays() {
        assert!(is_better([1_000, 799]) && !is_better([1_000, 800]) && !is_better([1_000, 2_000]));
        assert_eq!(play(|busy, _| if busy { 3_000 } else { 5_000 }).0, Verdict::Caller([5_000, 3_000]));
        assert_eq!(play(|busy, _| if busy { 4_500 } else { 5_000 }).0, Verdict::Kernel);
        assert_eq!(play(|busy, _| if busy { 5_000 } else { 3_000 }).0, Verdict::Kernel);
    }

    /// However rough the machine is, noise decides nothing: neither to make a way that is not faster look so, nor to hide one that is.
    #[test]
    fn noise_decides_nothing() {
        for seed in 1..200u64 {
            let mut state = seed;
            let mut noise = |_: u32| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // Three in four are late, by up to 40 us; all differ by up to a tenth.
                if state.is_multiple_of(4) { state % 300 } else { state % 40_000 }
            };
            let same = play(|_, frame| 3_000 + noise(frame)).0;
            assert_eq!(same, Verdict::Kernel, "seed {seed}");
            let faster = play(|busy, frame| if busy { 2_000 + noise(frame) } else { 3_500 + noise(frame) }).0;
            assert!(matches!(faster, Verdict::Caller(_)), "seed {seed}: {faster:?}");
        }
    }

    /// What was good once is tried again.
    #[test]
    fn one_trial_is_not_enough() {
        let first = 2 * TIMES as u32;
        let (verdict, frames) = play(|busy, frame| if busy && frame < first { 1_000 } else { 5_000 });
        assert_eq!((verdict, frames), (Verdict::Kernel, 2 * first));
    }

    /// Answers that were waited for with a break do not count, nor do those that took long, nor frames that nobody asked for; and it ends.
    #[test]
    fn it_is_polled_without_a_break() {
        let mut trial = Trial::default();
        assert!(!trial.came_at(5, false) && trial.taken == [0; 2], "nobody rang");
        trial.ring_at(10_000);
        trial.check_gap(10_000 + BREAK + 1);
        assert!(!trial.came_at(10_000 + BREAK + 2, false) && trial.taken == [0; 2], "the caller was away");
        trial.ring_at(100_000);
        trial.check_gap(100_000 + BREAK);
        trial.came_at(100_000 + BREAK, false);
        assert_eq!(trial.taken, [1, 0]);
        let (verdict, frames) = play(|_, _| LONGEST + 1);
        assert_eq!((verdict, frames), (Verdict::Kernel, FRAMES_MAX));
    }
}
