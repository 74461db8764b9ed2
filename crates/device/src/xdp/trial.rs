//! Who moves frames to the rings, the kernel or the caller (busy polling). Both are tried in turn on the
//! first traffic, and the kernel stays unless the caller is clearly faster in two trials.
//!
//! What is measured is the time from a doorbell to the next frame, if the caller only polled meanwhile: a
//! caller that sleeps or works gains nothing from either. The lowest times show the cost; the others
//! show how busy the machine is. A trial costs some clock reads around the first few hundred frames,
//! and nothing afterwards.

use super::config::Receive;
use crate::monotonic_now;
use crate::sys::{Errno, Queues};

/// How long, and for how many frames, the kernel polls the card when the caller asks it to.
const BUSY_US: u32 = 20;
const BUSY_FRAMES: u32 = 64;

/// Samples before it is the other one's turn, and samples of each in one trial.
const TURN: usize = 32;
const SAMPLES: usize = 3 * TURN;
/// Consecutive trials that the caller must win.
const WINS: u32 = 2;
/// A longer time measures something else, in nanoseconds.
const LONGEST: u64 = 50_000;
/// A caller that is away from polling for longer than this does not only poll, in nanoseconds.
const MAX_GAP: u64 = 3_000;
/// Frames after which the measurement ends without a result: too few of them gave a sample.
const FRAMES_MAX: u32 = 3_000;
/// The gain that justifies the caller's system calls, in percent.
const GAIN: u64 = 20;

/// How the rings are polled.
#[derive(Debug)]
pub(super) struct Polling {
    /// The caller moves frames to the rings.
    pub busy: bool,
    trial: Option<Box<Trial>>,
    /// Frames received lately, less some for each doorbell: high while others stream to us.
    pub streak: u32,
}

impl Polling {
    pub(super) fn new(receive: Receive) -> Polling {
        Polling {
            busy: receive == Receive::BusyPoll,
            trial: (receive == Receive::Measured).then(Box::default),
            streak: 0,
        }
    }

    /// Whether the measurement is still under way.
    #[inline]
    pub(super) fn is_measuring(&self) -> bool {
        self.trial.is_some()
    }

    /// Notes a doorbell.
    #[inline]
    pub(super) fn doorbell(&mut self) {
        if let Some(trial) = &mut self.trial {
            trial.ring_at(monotonic_now());
        }
    }

    /// Notes that a poll of the rings begins.
    #[inline]
    pub(super) fn poll_begins(&mut self) {
        if let Some(trial) = &mut self.trial
            && trial.rang.is_some()
        {
            trial.check_gap(monotonic_now());
        }
    }

    /// Notes that a poll found nothing.
    #[inline]
    pub(super) fn found_nothing(&mut self) {
        if let Some(trial) = &mut self.trial
            && trial.rang.is_some()
        {
            trial.polled_at = monotonic_now();
        }
    }

    /// Notes a received frame during the measurement. Returns the times of kernel and caller if that ended it
    /// in favour of the caller.
    #[cold]
    pub(super) fn frame_received(&mut self, queues: &Queues) -> Option<[u64; 2]> {
        let mut trial = self.trial.take()?;
        let switch = trial.receive_at(monotonic_now(), self.busy);
        match trial.judge() {
            Verdict::Open => {}
            Verdict::Kernel => {
                self.set_busy(queues, false);
                return None;
            }
            Verdict::Caller(times) => return self.set_busy(queues, true).then_some(times),
        }
        // If the system refuses busy polling, that ends the measurement.
        if !switch || self.set_busy(queues, !self.busy) {
            self.trial = Some(trial);
        }
        None
    }

    /// Makes the caller or the kernel move frames. Returns false if the system refuses.
    fn set_busy(&mut self, queues: &Queues, busy: bool) -> bool {
        if busy == self.busy {
            return true;
        }
        let (time_us, frames) = if busy { (BUSY_US, BUSY_FRAMES) } else { (0, 0) };
        let done = queues.prefer_busy_poll(busy, time_us, frames).is_ok();
        self.busy = busy && done;
        done
    }
}

/// Configures new sockets for busy polling, if it is wanted.
pub(super) fn configure(queues: &Queues, receive: Receive) -> Result<(), Errno> {
    match receive {
        Receive::Kernel | Receive::Measured => Ok(()),
        Receive::BusyPoll => queues.prefer_busy_poll(true, BUSY_US, BUSY_FRAMES),
    }
}

/// A measurement under way.
#[derive(Debug)]
struct Trial {
    /// When the doorbell was rung, and when the last poll since then ended.
    rang: Option<u64>,
    polled_at: u64,
    /// In nanoseconds: of the kernel, of the caller.
    times: [[u64; SAMPLES]; 2],
    taken: [usize; 2],
    wins: u32,
    frames: u32,
}

impl Default for Trial {
    fn default() -> Trial {
        Trial { rang: None, polled_at: 0, times: [[0; SAMPLES]; 2], taken: [0; 2], wins: 0, frames: 0 }
    }
}

/// The result of a trial.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The kernel goes on.
    Kernel,
    /// The caller was faster: the time of an answer with each.
    Caller([u64; 2]),
    /// Not known yet.
    Open,
}

impl Trial {
    fn ring_at(&mut self, now: u64) {
        (self.rang, self.polled_at) = (Some(now), now);
    }

    /// Discards the sample if the caller was away, or the answer takes too long.
    fn check_gap(&mut self, now: u64) {
        if self.rang.is_some_and(|rang| now - rang > LONGEST) || now - self.polled_at > MAX_GAP {
            self.rang = None;
        }
    }

    /// Takes a sample. Returns whether it is the other one's turn now.
    fn receive_at(&mut self, now: u64, busy: bool) -> bool {
        self.frames += 1;
        let who = usize::from(busy);
        let Some(time) = self.rang.take().map(|rang| now - rang).filter(|time| *time <= LONGEST) else {
            return false;
        };
        if self.taken[who] == SAMPLES {
            return true;
        }
        self.times[who][self.taken[who]] = time;
        self.taken[who] += 1;
        self.taken[who].is_multiple_of(TURN)
    }

    /// Returns the tenth percentile of each, once there are enough samples.
    fn tenth_percentiles(&mut self) -> Option<[u64; 2]> {
        (self.taken == [SAMPLES; 2]).then(|| {
            self.times.iter_mut().for_each(|times| times.sort_unstable());
            self.times.map(|times| times[SAMPLES / 10])
        })
    }

    /// Judges the samples so far. A trial that the caller won is followed by another one.
    fn judge(&mut self) -> Verdict {
        match self.tenth_percentiles() {
            Some(times) if !is_better(times) => Verdict::Kernel,
            Some(times) => {
                self.wins += 1;
                self.taken = [0; 2];
                if self.wins == WINS { Verdict::Caller(times) } else { Verdict::Open }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a trial in which answers take the times that `time` returns for each of the two. Returns the
    /// verdict.
    fn run(mut time: impl FnMut(bool, u32) -> u64) -> (Verdict, u32) {
        let (mut trial, mut busy, mut now) = (Trial::default(), false, 0);
        for frame in 0.. {
            now += 1_000_000;
            trial.ring_at(now);
            let answer = now + time(busy, frame);
            // Polls without a gap.
            while now + 1_000 < answer {
                now += 1_000;
                trial.check_gap(now);
                trial.polled_at = now;
            }
            now = answer;
            trial.check_gap(now);
            let switch = trial.receive_at(now, busy);
            let verdict = trial.judge();
            if verdict != Verdict::Open {
                return (verdict, frame + 1);
            }
            busy ^= switch;
        }
        unreachable!("a trial ends")
    }

    /// The caller must be faster by more than its system calls are worth.
    #[test]
    fn the_faster_one_stays() {
        assert!(is_better([1_000, 799]) && !is_better([1_000, 800]) && !is_better([1_000, 2_000]));
        assert_eq!(run(|busy, _| if busy { 3_000 } else { 5_000 }).0, Verdict::Caller([5_000, 3_000]));
        assert_eq!(run(|busy, _| if busy { 4_500 } else { 5_000 }).0, Verdict::Kernel);
        assert_eq!(run(|busy, _| if busy { 5_000 } else { 3_000 }).0, Verdict::Kernel);
    }

    /// Noise neither makes the slower one seem faster nor hides the faster one.
    #[test]
    fn noise_decides_nothing() {
        for seed in 1..200u64 {
            let mut state = seed;
            let mut noise = |_: u32| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // Three of four samples are late by up to 40 us; the others differ by up to a tenth.
                if state.is_multiple_of(4) { state % 300 } else { state % 40_000 }
            };
            let same = run(|_, frame| 3_000 + noise(frame)).0;
            assert_eq!(same, Verdict::Kernel, "seed {seed}");
            let faster = run(|busy, frame| if busy { 2_000 + noise(frame) } else { 3_500 + noise(frame) }).0;
            assert!(matches!(faster, Verdict::Caller(_)), "seed {seed}: {faster:?}");
        }
    }

    /// A caller that won one trial must win a second one.
    #[test]
    fn one_trial_is_not_enough() {
        let first = 2 * SAMPLES as u32;
        let (verdict, frames) = run(|busy, frame| if busy && frame < first { 1_000 } else { 5_000 });
        assert_eq!((verdict, frames), (Verdict::Kernel, 2 * first));
    }

    /// Answers with a gap between polls do not count, nor long ones, nor frames without a doorbell; and the
    /// trial ends.
    #[test]
    fn only_uninterrupted_polls_are_measured() {
        let mut trial = Trial::default();
        assert!(!trial.receive_at(5, false) && trial.taken == [0; 2], "no doorbell");
        trial.ring_at(10_000);
        trial.check_gap(10_000 + MAX_GAP + 1);
        assert!(
            !trial.receive_at(10_000 + MAX_GAP + 2, false) && trial.taken == [0; 2],
            "the caller was away"
        );
        trial.ring_at(100_000);
        trial.check_gap(100_000 + MAX_GAP);
        trial.receive_at(100_000 + MAX_GAP, false);
        assert_eq!(trial.taken, [1, 0]);
        let (verdict, frames) = run(|_, _| LONGEST + 1);
        assert_eq!((verdict, frames), (Verdict::Kernel, FRAMES_MAX));
    }
}
