//! Who looks after the network now: the program or its watchdog (N-5, N-6).
//!
//! The program counts its polls in one word, which costs it a store. The watchdog sleeps on an alarm, and when it goes off
//! compares the count; as long as that moves, the program is there. A program that parks inside the library switches the alarm off, and one
//! that leaves sets it again: the watchdog does not wake while its program sleeps, nor when its program comes and goes a thousand times a
//! second. (On a core that others want, too, a watchdog that wakes costs the program far more than two short system calls: whoever
//! gets the core after it may keep it for a while.)

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::descriptors::timespec;

/// The meeting place of a program and its watchdog.
#[derive(Debug)]
pub(crate) struct PollActivity {
    polls: AtomicU64,
    /// The count that the watchdog compares with.
    seen: AtomicU64,
    parked: AtomicBool,
    closing: AtomicBool,
    /// The watchdog's alarm, and how long after the program's leaving it goes off.
    alarm: Option<(OwnedFd, Duration)>,
}

impl PollActivity {
    /// The meeting place; `tick` if there is a watchdog.
    pub(crate) fn new(tick: Option<Duration>) -> io::Result<PollActivity> {
        let alarm = match tick {
            Some(tick) => Some((timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?, tick)),
            None => None,
        };
        let (parked, closing) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(PollActivity { polls: AtomicU64::new(0), seen: AtomicU64::new(0), parked, closing, alarm })
    }

    /// The program polled.
    #[inline]
    pub(crate) fn polled(&self) {
        // A single writer at a time (the interface's owner), so no read-modify-write is needed.
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// How often the program has polled.
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// For the watchdog: whether the program has polled since the last look, or since it left.
    pub(crate) fn has_moved(&self) -> bool {
        let polls = self.polls();
        self.seen.swap(polls, Ordering::Relaxed) != polls
    }

    /// The program is about to sleep inside the library, and will look after the network itself when it wakes.
    pub(crate) fn park(&self) {
        self.parked.store(true, Ordering::SeqCst);
        self.set_alarm(Duration::ZERO);
    }

    /// The program leaves.
    pub(crate) fn unpark(&self) {
        self.parked.store(false, Ordering::SeqCst);
        self.seen.store(self.polls(), Ordering::Relaxed);
        if let Some((_, tick)) = self.alarm {
            self.set_alarm(tick);
        }
    }

    /// Whether the program is parked inside the library.
    pub(crate) fn is_parked(&self) -> bool {
        self.parked.load(Ordering::SeqCst)
    }

    /// Tells the watchdog to leave.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.set_alarm(Duration::ZERO);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Sets the alarm; zero switches it off. Whatever order program and watchdog do this in, an alarm may go off for nothing, and
    /// none is missing: whoever leaves sets it after saying so, and after a close it goes off at once.
    pub(crate) fn set_alarm(&self, after: Duration) {
        let Some((alarm, _)) = &self.alarm else { return };
        let set = |nanos| {
            let spec = Itimerspec { it_interval: timespec(0), it_value: timespec(nanos) };
            // Only a wrong time could be refused.
            let _ = timerfd_settime(alarm, TimerfdTimerFlags::empty(), &spec);
        };
        set(after.as_nanos() as u64);
        if self.is_closing() {
            set(1);
        }
    }

    /// For the watchdog: sleeps until the alarm goes off.
    pub(crate) fn await_alarm(&self) {
        if let Some((alarm, _)) = &self.alarm {
            let _ = rustix::io::read(alarm, &mut [0; 8]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    /// N-6: whatever the order of parking, leaving and closing, the alarm goes off after a leave and after a close.
    #[test]
    fn the_alarm_goes_off() {
        let activity = Arc::new(PollActivity::new(Some(Duration::from_millis(1))).unwrap());
        for _ in 0..100 {
            activity.park();
            activity.unpark();
            activity.await_alarm();
        }
        activity.park();
        let (told, dog) = channel();
        let asleep = activity.clone();
        let thread = std::thread::spawn(move || {
            asleep.await_alarm();
            told.send(asleep.is_closing()).unwrap();
        });
        assert!(dog.recv_timeout(Duration::from_millis(50)).is_err(), "woken while the program is parked");
        activity.close();
        activity.park();
        assert_eq!(dog.recv_timeout(Duration::from_secs(10)), Ok(true));
        thread.join().unwrap();
    }
}
