//! Wakes futures at their deadlines: one sleeping thread, started with the first deadline that is awaited.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

/// When, and for which call: each has one alarm, and none when it is over.
type Alarm = (Instant, u64);

#[derive(Default)]
struct Alarms {
    waiting: Mutex<(BTreeMap<Alarm, Waker>, bool)>,
    changed: Condvar,
}

impl Alarms {
    fn lock(&self) -> MutexGuard<'_, (BTreeMap<Alarm, Waker>, bool)> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

    /// Wakes whoever waits for a call at a time: whoever asked last.
    pub(super) fn at(&self, alarm: Alarm, waker: &Waker) {
        let mut waiting = self.0.lock();
        let sooner = waiting.0.keys().next().is_none_or(|first| alarm < *first);
        waiting.0.entry(alarm).and_modify(|former| former.clone_from(waker)).or_insert_with(|| waker.clone());
        if sooner {
            self.0.changed.notify_one();
        }
    }

    /// The call is over.
    pub(super) fn forget(&self, alarm: Alarm) {
        self.0.lock().0.remove(&alarm);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.lock().0.len()
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.lock().1 = true;
        self.0.changed.notify_one();
    }
}

fn run(alarms: &Alarms) {
    let mut waiting = alarms.lock();
    while !waiting.1 {
        let now = Instant::now();
        if let Some(due) = waiting.0.first_entry().filter(|first| first.key().0 <= now) {
            let waker = due.remove();
            // Whoever is woken may ask for another alarm.
            drop(waiting);
            waker.wake();
            waiting = alarms.lock();
            continue;
        }
        let next = waiting.0.keys().next().map(|(at, _)| at.saturating_duration_since(now));
        waiting = match next {
            Some(left) => {
                alarms.changed.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0
            }
            None => alarms.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
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

    /// However often a call is polled, it has one alarm, for whoever asked last; it rings once, and not at all when the call is over.
    #[test]
    fn one_alarm_per_call() {
        let (rings, heard) = mpsc::channel();
        let bell = |name| Waker::from(Arc::new(Bell(Mutex::new(rings.clone()), name)));
        let timer = Timer::start();
        let far = Instant::now() + Duration::from_secs(3600);
        for _ in 0..1000 {
            timer.at((far, 1), &bell(1));
        }
        assert_eq!(timer.len(), 1);
        timer.forget((far, 1));
        assert_eq!(timer.len(), 0);
        let soon = Instant::now() + Duration::from_millis(20);
        timer.at((soon, 2), &bell(2));
        timer.at((soon, 2), &bell(3));
        timer.at((soon, 4), &bell(4));
        timer.forget((soon, 4));
        assert_eq!(heard.recv_timeout(Duration::from_secs(10)), Ok(3));
        assert!(Instant::now() >= soon);
        assert!(heard.recv_timeout(Duration::from_millis(50)).is_err());
        assert_eq!(timer.len(), 0);
    }
}
