//! Wakes futures at their deadlines: one sleeping thread, started with the first deadline that is awaited.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

/// The deadline of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Alarm {
    pub(super) at: Instant,
    /// The number of the call.
    pub(super) call: u64,
}

#[derive(Default)]
struct Shared {
    alarms: Mutex<Alarms>,
    changed: Condvar,
}

#[derive(Default)]
struct Alarms {
    wakers: BTreeMap<Alarm, Waker>,
    /// The thread is to end.
    stopped: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Alarms> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread; it ends when this is dropped.
pub(super) struct Timer(Arc<Shared>);

impl Timer {
    pub(super) fn start() -> Timer {
        let shared = Arc::new(Shared::default());
        let thread = shared.clone();
        // Without the thread, a deadline is noticed when something else happens.
        let _ = std::thread::Builder::new().name("tautline-deadlines".into()).spawn(move || run(&thread));
        Timer(shared)
    }

    /// Sets an alarm. A further call for the same alarm replaces the waker.
    pub(super) fn set(&self, alarm: Alarm, waker: &Waker) {
        let mut alarms = self.0.lock();
        let is_first = alarms.wakers.keys().next().is_none_or(|first| alarm < *first);
        let entry = alarms.wakers.entry(alarm);
        entry.and_modify(|former| former.clone_from(waker)).or_insert_with(|| waker.clone());
        if is_first {
            self.0.changed.notify_one();
        }
    }

    /// Removes an alarm.
    pub(super) fn cancel(&self, alarm: Alarm) {
        self.0.lock().wakers.remove(&alarm);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.lock().wakers.len()
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.lock().stopped = true;
        self.0.changed.notify_one();
    }
}

fn run(shared: &Shared) {
    let mut alarms = shared.lock();
    while !alarms.stopped {
        let now = Instant::now();
        if let Some(due) = alarms.wakers.first_entry().filter(|first| first.key().at <= now) {
            let waker = due.remove();
            // The woken future may set another alarm.
            drop(alarms);
            waker.wake();
            alarms = shared.lock();
            continue;
        }
        let next = alarms.wakers.keys().next().map(|alarm| alarm.at.saturating_duration_since(now));
        alarms = match next {
            Some(left) => shared.changed.wait_timeout(alarms, left).unwrap_or_else(PoisonError::into_inner).0,
            None => shared.changed.wait(alarms).unwrap_or_else(PoisonError::into_inner),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::Wake;
    use std::time::Duration;

    use super::*;

    struct Bell(Mutex<mpsc::Sender<u8>>, u8);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            let _ = self.0.lock().unwrap().send(self.1);
        }
    }

    /// A call has one alarm, however often it is polled. The alarm wakes the last waker once, and not at all
    /// after it was cancelled.
    #[test]
    fn one_alarm_per_call() {
        // A thread that has no core for so long changes its alarms too late: it has to try again.
        let mut delays = (0..10).map(|doubled| Duration::from_millis(20 << doubled));
        assert!(delays.any(is_one_alarm_per_call), "alarms were due before they could be changed");
    }

    /// With alarms that are due after `delay`. False if they were due before all changes were made.
    fn is_one_alarm_per_call(delay: Duration) -> bool {
        let (rings, rung) = mpsc::channel();
        let bell = |name| Waker::from(Arc::new(Bell(Mutex::new(rings.clone()), name)));
        let timer = Timer::start();
        let far = Instant::now() + Duration::from_secs(3600);
        for _ in 0..1000 {
            timer.set(Alarm { at: far, call: 1 }, &bell(1));
        }
        assert_eq!(timer.len(), 1);
        timer.cancel(Alarm { at: far, call: 1 });
        assert_eq!(timer.len(), 0);
        let soon = Instant::now() + delay;
        timer.set(Alarm { at: soon, call: 2 }, &bell(2));
        timer.set(Alarm { at: soon, call: 2 }, &bell(3));
        timer.set(Alarm { at: soon, call: 4 }, &bell(4));
        timer.cancel(Alarm { at: soon, call: 4 });
        if Instant::now() >= soon {
            return false;
        }
        assert_eq!(rung.recv_timeout(delay + Duration::from_secs(10)), Ok(3));
        assert!(Instant::now() >= soon);
        assert!(rung.recv_timeout(Duration::from_millis(50)).is_err());
        assert_eq!(timer.len(), 0);
        true
    }
}
