//! Who looks after the network now: the program or its watchdog.
//!
//! The program counts its polls in one word, which costs it a store. The watchdog compares the count over a rest; as
//! long as it moves, the program is there. When the program parks inside the library it says so; a watchdog that finds it
//! parked and still sleeps deeply, without waking up at all until the program leaves (N-6). Only then does leaving cost a wake-up:
//! a program that parks and leaves a thousand times a second does not drag its watchdog along.

use std::time::Duration;

use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering};

/// What the watchdog should do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// The program is running its own code; watch the poll count.
    Watch,
    /// The node is being closed; the watchdog ends.
    Leave,
}

#[derive(Debug, Default)]
struct State {
    parked: bool,
    /// The watchdog waits to be told when the program leaves.
    deep: bool,
    closing: bool,
}

/// The meeting place of a program and its watchdog.
#[derive(Debug)]
pub struct Presence {
    polls: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

impl Presence {
    /// Makes the meeting place; the program is taken to be running.
    pub fn new() -> Presence {
        Presence { polls: AtomicU64::new(0), state: Mutex::new(State::default()), changed: Condvar::new() }
    }

    /// The program polled.
    #[inline]
    pub fn polled(&self) {
        // A single writer at a time (the interface's owner), so no read-modify-write is needed.
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// How often the program has polled.
    pub fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// The program is about to sleep inside the library, and will look after the network itself when it wakes.
    pub fn park(&self) {
        self.lock().parked = true;
    }

    /// The program has woken up.
    pub fn unpark(&self) {
        let mut state = self.lock();
        state.parked = false;
        if state.deep {
            self.changed.notify_one();
        }
    }

    /// Tells the watchdog to leave.
    pub fn close(&self) {
        self.lock().closing = true;
        self.changed.notify_one();
    }

    /// For the watchdog: sleeps deeply while the program is parked, then says what to do.
    pub fn await_duty(&self) -> Duty {
        let mut state = self.lock();
        state.deep = true;
        while state.parked && !state.closing {
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        state.deep = false;
        duty(&state)
    }

    /// For the watchdog: sleeps for a while, whatever the program does meanwhile, then says what to do.
    pub fn rest(&self, pause: Duration) -> Duty {
        let state = self.lock();
        if state.closing {
            return Duty::Leave;
        }
        // A wake-up for nothing only makes the rest shorter.
        let (state, _) =
            self.changed.wait_timeout(state, pause).unwrap_or_else(std::sync::PoisonError::into_inner);
        duty(&state)
    }

    /// Whether the program is parked inside the library.
    pub fn is_parked(&self) -> bool {
        self.lock().parked
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn duty(state: &State) -> Duty {
    if state.closing { Duty::Leave } else { Duty::Watch }
}

impl Default for Presence {
    fn default() -> Presence {
        Presence::new()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{Arc, thread};

    /// N-6: a watchdog that sleeps because the program parked is always woken by the program's return.
    #[test]
    fn loom_unpark_is_never_lost() {
        loom::model(|| {
            let presence = Arc::new(Presence::new());
            let dog = {
                let presence = presence.clone();
                thread::spawn(move || presence.await_duty())
            };
            presence.park();
            presence.polled();
            presence.unpark();
            assert_eq!(dog.join().unwrap(), Duty::Watch);
        });
    }

    /// N-6: closing wakes the watchdog whatever the program did last.
    #[test]
    fn loom_close_is_never_lost() {
        loom::model(|| {
            let presence = Arc::new(Presence::new());
            presence.park();
            let dog = {
                let presence = presence.clone();
                thread::spawn(move || presence.await_duty())
            };
            presence.close();
            assert_eq!(dog.join().unwrap(), Duty::Leave);
        });
    }

    /// N-6: a poll that happened before the park is seen by a watchdog that learns of the park's end.
    #[test]
    fn loom_polls_are_seen_after_unpark() {
        loom::model(|| {
            let presence = Arc::new(Presence::new());
            presence.park();
            let dog = {
                let presence = presence.clone();
                thread::spawn(move || {
                    presence.await_duty();
                    presence.polls()
                })
            };
            presence.polled();
            presence.unpark();
            assert_eq!(dog.join().unwrap(), 1);
        });
    }
}
