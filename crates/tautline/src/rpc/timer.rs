//! Wakes futures at their deadlines: one sleeping thread, started with the first deadline that is awaited.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Waker;
use std::time::Instant;

struct Alarm(Instant, Waker);

impl PartialEq for Alarm {
    fn eq(&self, other: &Alarm) -> bool {
        self.0 == other.0
    }
}

impl Eq for Alarm {}

impl PartialOrd for Alarm {
    fn partial_cmp(&self, other: &Alarm) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Alarm {
    fn cmp(&self, other: &Alarm) -> Ordering {
        self.0.cmp(&other.0)
    }
}

#[derive(Default)]
struct Alarms {
    waiting: Mutex<(BinaryHeap<Reverse<Alarm>>, bool)>,
    changed: Condvar,
}

/// The thread; it ends with this.
pub(super) struct Timer(Arc<Alarms>);

impl Timer {
    pub(super) fn start() -> Timer {
        let alarms = Arc::new(Alarms::default());
        let theirs = alarms.clone();
        // Without the thread deadlines are noticed when something else happens.
        let _ = std::thread::Builder::new().name("tautline-deadlines".into()).spawn(move || run(&theirs));
        Timer(alarms)
    }

    /// Wakes somebody at a time.
    pub(super) fn at(&self, time: Instant, waker: Waker) {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner).0.push(Reverse(Alarm(time, waker)));
        self.0.changed.notify_one();
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.0.changed.notify_one();
    }
}

fn run(alarms: &Alarms) {
    let mut waiting = alarms.waiting.lock().unwrap_or_else(PoisonError::into_inner);
    while !waiting.1 {
        let now = Instant::now();
        while waiting.0.peek().is_some_and(|Reverse(alarm)| alarm.0 <= now) {
            if let Some(Reverse(alarm)) = waiting.0.pop() {
                alarm.1.wake();
            }
        }
        let next = waiting.0.peek().map(|Reverse(alarm)| alarm.0.saturating_duration_since(now));
        waiting = match next {
            Some(left) => {
                alarms.changed.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0
            }
            None => alarms.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
        };
    }
}
