//! Whether the program polls, or its watchdog has to (N-5, N-6).
//!
//! The program counts its polls in one word, which costs it a store. The watchdog sleeps on a timer and
//! compares the count when it expires; while the count moves, the program is polling. A program that parks
//! inside the library disarms the timer, and arms it again when it returns: the watchdog does not wake while
//! its program sleeps, nor when its program parks a thousand times a second. (On a shared core a watchdog
//! that wakes costs the program far more than two short system calls: the next thread may keep the core for a
//! while.)

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::descriptors::timespec;

/// What a program and its watchdog know of each other.
#[derive(Debug)]
pub(crate) struct PollActivity {
    polls: AtomicU64,
    /// The count that the watchdog compares with.
    seen: AtomicU64,
    /// Threads of the program that are parked inside the library.
    parked: AtomicU32,
    closing: AtomicBool,
    /// The watchdog's timer, and its time after the program has left the library.
    timer: Option<(OwnedFd, Duration)>,
}

impl PollActivity {
    /// `tick`: the time of the watchdog's timer, if there is a watchdog.
    pub(crate) fn new(tick: Option<Duration>) -> io::Result<PollActivity> {
        let timer = match tick {
            Some(tick) => Some((timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?, tick)),
            None => None,
        };
        let (parked, closing) = (AtomicU32::new(0), AtomicBool::new(false));
        Ok(PollActivity { polls: AtomicU64::new(0), seen: AtomicU64::new(0), parked, closing, timer })
    }

    /// Counts a poll of the program.
    #[inline]
    pub(crate) fn polled(&self) {
        // A single writer at a time (the lane's owner), so no read-modify-write is needed.
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Returns how often the program has polled.
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// For the watchdog: returns whether the program has polled since the last call, or since it left the
    /// library.
    pub(crate) fn has_moved(&self) -> bool {
        let polls = self.polls();
        self.seen.swap(polls, Ordering::Relaxed) != polls
    }

    /// A thread of the program is about to sleep inside the library, and polls by itself when it wakes.
    pub(crate) fn park(&self) {
        if self.parked.fetch_add(1, Ordering::SeqCst) == 0 {
            self.arm_timer(Duration::ZERO);
        }
    }

    /// The thread leaves the library.
    pub(crate) fn unpark(&self) {
        if self.parked.fetch_sub(1, Ordering::SeqCst) > 1 {
            // Another thread looks after the network.
            return;
        }
        self.seen.store(self.polls(), Ordering::Relaxed);
        if let Some((_, tick)) = self.timer {
            self.arm_timer(tick);
        }
    }

    /// Whether a thread of the program is parked inside the library.
    pub(crate) fn is_parked(&self) -> bool {
        self.parked.load(Ordering::SeqCst) > 0
    }

    /// Ends the watchdog.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.arm_timer(Duration::ZERO);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Arms the timer; zero disarms it. In whatever order program and watchdog do this, the timer may expire
    /// for nothing, but never fails to expire: a program that leaves arms it after it has said so, and after
    /// a close it expires at once.
    pub(crate) fn arm_timer(&self, after: Duration) {
        let Some((timer, _)) = &self.timer else { return };
        let set = |nanos| {
            let spec = Itimerspec { it_interval: timespec(0), it_value: timespec(nanos) };
            // Only an invalid time could be refused.
            let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &spec);
        };
        set(after.as_nanos() as u64);
        if self.is_closing() {
            set(1);
        }
    }

    /// For the watchdog: sleeps until the timer expires.
    pub(crate) fn await_timer(&self) {
        if let Some((timer, _)) = &self.timer {
            let _ = rustix::io::read(timer, &mut [0; 8]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    /// N-6: whatever the order of parking, leaving and closing, the timer expires after a leave and after a
    /// close.
    #[test]
    fn the_timer_expires_after_leave_and_close() {
        let activity = Arc::new(PollActivity::new(Some(Duration::from_millis(1))).unwrap());
        for _ in 0..100 {
            activity.park();
            activity.unpark();
            activity.await_timer();
        }
        activity.park();
        let (told, dog) = channel();
        let asleep = activity.clone();
        let thread = std::thread::spawn(move || {
            asleep.await_timer();
            told.send(asleep.is_closing()).unwrap();
        });
        assert!(dog.recv_timeout(Duration::from_millis(50)).is_err(), "woken while the program is parked");
        activity.close();
        assert_eq!(dog.recv_timeout(Duration::from_secs(10)), Ok(true));
        thread.join().unwrap();
    }
}
