//! Threads that wait for the same thing: one sleeps, and the others wait for it.
//!
//! The thing is readable by one thread at a time, such as a descriptor whose events are consumed by whoever
//! reads them. The first thread that comes *leads*: it sleeps on the thing itself. The others *follow*: they
//! sleep until the leader has woken. Then everybody checks what it waits for, and the first that has to sleep
//! again leads.

use std::time::Duration;

use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering};

/// Whose turn it is to sleep on the thing.
#[derive(Debug, Default)]
pub struct Turns {
    state: Mutex<State>,
    woken: Condvar,
    /// Counts how often a leader has woken; changed under the lock.
    turn: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// A thread sleeps on the thing.
    led: bool,
    followers: u32,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, State> {
        #[cfg(not(loom))]
        return self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        #[cfg(loom)]
        return self.state.lock().unwrap();
    }

    /// The number of the turn. A thread reads it before it checks for the last time what it waits for: what a
    /// leader was woken by, and has consumed, that check finds, or [`Turns::wait`] does not sleep.
    #[inline]
    pub fn current(&self) -> u64 {
        self.turn.load(Ordering::Acquire)
    }

    /// Sleeps, unless a leader has woken since the turn `seen`: by calling `sleep` if nobody leads, otherwise
    /// until the leader has woken or `timeout` has passed.
    pub fn wait(&self, seen: u64, timeout: Option<Duration>, sleep: impl FnOnce()) {
        let mut state = self.lock();
        if self.current() != seen {
            return;
        }
        if state.led {
            state.followers += 1;
            state = self.follow(state, seen, timeout);
            state.followers -= 1;
            return;
        }
        state.led = true;
        drop(state);
        sleep();
        let mut state = self.lock();
        state.led = false;
        self.turn.fetch_add(1, Ordering::Release);
        if state.followers > 0 {
            self.woken.notify_all();
        }
    }

    #[cfg(not(loom))]
    fn follow<'a>(
        &self,
        state: MutexGuard<'a, State>,
        seen: u64,
        timeout: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        let unchanged = |_: &mut State| self.current() == seen;
        match timeout {
            // One wake-up is enough: a caller that was woken for nothing checks, and comes back.
            Some(timeout) => {
                let waited = self.woken.wait_timeout_while(state, timeout, unchanged);
                waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
            }
            None => {
                let waited = self.woken.wait_while(state, unchanged);
                waited.unwrap_or_else(std::sync::PoisonError::into_inner)
            }
        }
    }

    #[cfg(loom)]
    fn follow<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        seen: u64,
        _: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        while self.current() == seen {
            state = self.woken.wait(state).unwrap();
        }
        state
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// N-6: a thread that checked before a leader woke does not sleep; one without a leader sleeps itself.
    #[test]
    fn old_turns_do_not_sleep() {
        let (turns, mut slept) = (Turns::default(), 0);
        let seen = turns.current();
        turns.wait(seen, None, || slept += 1);
        turns.wait(seen, None, || slept += 1);
        assert_eq!((slept, turns.current()), (1, seen + 1));
    }

    /// N-6: a follower sleeps until the leader has woken.
    #[test]
    fn followers_wait_for_the_leader() {
        let (turns, leads) = (Turns::default(), std::sync::Barrier::new(2));
        let seen = turns.current();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                turns.wait(seen, None, || {
                    leads.wait();
                    while turns.lock().followers == 0 {
                        std::thread::yield_now();
                    }
                });
            });
            leads.wait();
            turns.wait(seen, None, || panic!("there is a leader"));
        });
        assert_eq!(turns.current(), seen + 1);
    }

    /// A follower keeps its timeout.
    #[test]
    fn followers_time_out() {
        let (turns, leads) = (Turns::default(), std::sync::Barrier::new(2));
        let seen = turns.current();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                turns.wait(seen, None, || {
                    leads.wait();
                    leads.wait();
                });
            });
            leads.wait();
            turns.wait(seen, Some(Duration::from_millis(1)), || panic!("there is a leader"));
            assert_eq!(turns.current(), seen, "it still sleeps");
            leads.wait();
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{Arc, AtomicBool, AtomicU32, thread};

    /// A bell that one thread hears and silences, a count of things that happened, and a signal that is set
    /// without the lane's lock; as a lane has them.
    #[derive(Default)]
    struct Lane {
        turns: Turns,
        happened: Mutex<(u32, u32)>,
        signal: AtomicBool,
        bell: Mutex<bool>,
        rung: Condvar,
        heard: AtomicU32,
    }

    impl Lane {
        /// Something happens: whoever sleeps, or is about to, is rung for.
        fn happen(&self) {
            let sleepers = {
                let mut happened = self.happened.lock().unwrap();
                happened.0 += 1;
                happened.1
            };
            if sleepers > 0 {
                self.ring();
            }
        }

        fn ring(&self) {
            *self.bell.lock().unwrap() = true;
            self.rung.notify_one();
        }

        /// Everybody is to return.
        fn wake(&self) {
            self.signal.store(true, Ordering::SeqCst);
            self.ring();
        }

        /// Waits until something has happened.
        fn wait(&self) {
            loop {
                let seen = self.turns.current();
                let checked = {
                    let happened = self.happened.lock().unwrap();
                    if happened.0 > 0 || self.signal.load(Ordering::SeqCst) {
                        break;
                    }
                    happened.0
                };
                {
                    let mut happened = self.happened.lock().unwrap();
                    if happened.0 != checked {
                        continue;
                    }
                    happened.1 += 1;
                }
                self.turns.wait(seen, None, || {
                    let mut bell = self.bell.lock().unwrap();
                    while !*bell {
                        bell = self.rung.wait(bell).unwrap();
                    }
                    *bell = false;
                });
                self.happened.lock().unwrap().1 -= 1;
            }
            self.heard.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// N-6: two threads wait on one lane, and a third one makes happen what both wait for: both return.
    #[test]
    fn loom_every_waiter_is_woken() {
        check(Lane::happen);
    }

    /// N-6: the same for a waker.
    #[test]
    fn loom_every_waiter_is_woken_by_a_waker() {
        check(Lane::wake);
    }

    fn check(wake: fn(&Lane)) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(move || {
            let lane = Arc::new(Lane::default());
            let waiters: Vec<_> = (0..2)
                .map(|_| {
                    let lane = lane.clone();
                    thread::spawn(move || lane.wait())
                })
                .collect();
            wake(&lane);
            waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
            assert_eq!(lane.heard.load(Ordering::SeqCst), 2);
        });
    }
}
