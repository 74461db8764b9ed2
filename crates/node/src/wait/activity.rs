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
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
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
    /// The watchdog's timer, and its time after the program has left the library.
    timer: Option<(OwnedFd, Duration)>,
}

impl PollActivity {
    /// `tick`: the time of the watchdog's timer, if there is a watchdog.
    pub(crate) fn new(tick: Option<Duration>) -> io::Result<PollActivity> {
        let timer = match tick {
            Some(tick) => {
                let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
                Some((timerfd_create(TimerfdClockId::Monotonic, flags)?, tick))
            }
            None => None,
        };
        let [polls, seen] = [0; 2].map(AtomicU64::new);
        Ok(PollActivity { polls, seen, parked: AtomicU32::new(0), timer })
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

    /// Arms the timer; zero disarms it. In whatever order program and watchdog do this, the timer may expire
    /// for nothing, but never fails to expire: a program that leaves arms it after it has said so.
    pub(crate) fn arm_timer(&self, after: Duration) {
        let Some((timer, _)) = &self.timer else { return };
        let spec = Itimerspec { it_interval: timespec(0), it_value: timespec(after.as_nanos() as u64) };
        // Only an invalid time could be refused.
        let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &spec);
    }

    /// For the watchdog: readable when the timer has expired.
    pub(crate) fn timer(&self) -> Option<&OwnedFd> {
        self.timer.as_ref().map(|(timer, _)| timer)
    }

    /// For the watchdog: whether the timer has expired since the last call.
    pub(crate) fn has_expired(&self) -> bool {
        self.timer().is_some_and(|timer| rustix::io::read(timer, &mut [0; 8]).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use rustix::event::{PollFd, PollFlags, poll};

    /// Whether the timer expires within some time.
    fn expires(activity: &PollActivity, within: Duration) -> bool {
        let timer = activity.timer().unwrap();
        let within = timespec(within.as_nanos() as u64);
        let ready = poll(&mut [PollFd::new(timer, PollFlags::IN)], Some(&within)).unwrap();
        ready > 0 && activity.has_expired()
    }

    /// N-6: whatever the order of parking and leaving, the timer expires after a leave, and not while the
    /// program is parked.
    #[test]
    fn the_timer_expires_after_leave() {
        let activity = PollActivity::new(Some(Duration::from_millis(1))).unwrap();
        for _ in 0..100 {
            activity.park();
            activity.unpark();
            assert!(expires(&activity, Duration::from_secs(10)));
            assert!(!activity.has_expired(), "once");
        }
        // Two threads: the first that leaves is not the last.
        activity.park();
        activity.park();
        activity.unpark();
        assert!(!expires(&activity, Duration::from_millis(50)), "expired while a thread is parked");
        activity.unpark();
        assert!(expires(&activity, Duration::from_secs(10)));
    }
}
