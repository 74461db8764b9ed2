//! The owner word: exclusive access to a value that one thread uses almost all the time.
//!
//! The usual thread pays a store and a load for it, with no locked instruction and no fence. Other threads,
//! mainly the watchdog, pay more: they take a word among themselves, make every core that runs a thread of
//! this process issue a barrier, and then wait until the usual thread has released the value. Nobody is
//! woken: a thread that finds the value taken tries again.

use std::ops::{Deref, DerefMut};

use crate::Barrier;
use crate::sync::{AtomicBool, AtomicUsize, Ordering, UnsafeCell, backoff};

/// A value with one owner at a time.
#[derive(Debug)]
pub struct Owned<T> {
    /// The usual thread; zero until there is one.
    usual: AtomicUsize,
    /// The usual thread owns the value, or is about to check whether it may.
    usual_owns: AtomicBool,
    /// Another thread owns the value, or waits for it.
    other_owns: AtomicBool,
    barrier: Barrier,
    value: UnsafeCell<T>,
}

// SAFETY: only the owner accesses the value, one thread at a time; so the value effectively moves between
// threads.
unsafe impl<T: Send> Sync for Owned<T> {}
// SAFETY: an `Owned` may move wherever its value may.
unsafe impl<T: Send> Send for Owned<T> {}

/// Returns an address that differs for all living threads.
#[inline(always)]
fn thread_address() -> usize {
    #[cfg(not(loom))]
    {
        thread_local! {
            static ANCHOR: u8 = const { 0 };
        }
        ANCHOR.with(|thread| std::ptr::from_ref(thread).addr())
    }
    #[cfg(loom)]
    {
        loom::thread_local! {
            static ANCHOR: Box<u8> = Box::new(0);
        }
        ANCHOR.with(|thread| std::ptr::from_ref::<u8>(thread).addr())
    }
}

impl<T> Owned<T> {
    /// Wraps a value that nobody owns yet.
    pub fn new(value: T) -> Owned<T> {
        Owned {
            usual: AtomicUsize::new(0),
            usual_owns: AtomicBool::new(false),
            other_owns: AtomicBool::new(false),
            #[cfg(not(loom))]
            barrier: Barrier::between_threads(),
            #[cfg(loom)]
            barrier: Barrier::symmetric(),
            value: UnsafeCell::new(value),
        }
    }

    /// Becomes the owner; waits until the present owner is done. The first thread that calls this is the
    /// usual one.
    #[inline]
    pub fn own(&self) -> Owner<'_, T> {
        let thread = thread_address();
        if self.usual.load(Ordering::Relaxed) == thread
            && let Some(owner) = self.own_as_usual()
        {
            return owner;
        }
        self.own_slowly(thread)
    }

    /// Becomes the owner on another than the usual thread.
    fn own_as_other(&self) -> Owner<'_, T> {
        loop {
            match self.try_own_as_other() {
                Some(owner) => return owner,
                None => self.wait(),
            }
        }
    }

    #[cold]
    fn own_slowly(&self, thread: usize) -> Owner<'_, T> {
        let claimed = self.usual.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed);
        if claimed.is_err_and(|usual| usual != thread) {
            return self.own_as_other();
        }
        loop {
            match self.own_as_usual() {
                Some(owner) => return owner,
                None => self.wait(),
            }
        }
    }

    /// Becomes the owner on the usual thread, unless another thread owns the value.
    #[inline(always)]
    fn own_as_usual(&self) -> Option<Owner<'_, T>> {
        // Only the usual thread sets it. Without this check, a thread that is the owner could become the
        // owner twice.
        assert!(!self.usual_owns.load(Ordering::Relaxed), "this thread is the owner already");
        self.usual_owns.store(true, Ordering::Relaxed);
        self.barrier.light();
        if self.other_owns.load(Ordering::Acquire) {
            self.usual_owns.store(false, Ordering::Release);
            return None;
        }
        Some(Owner { of: self, word: &self.usual_owns })
    }

    /// Becomes the owner on another thread, unless a third one is the owner; waits for the usual thread to be
    /// done.
    fn try_own_as_other(&self) -> Option<Owner<'_, T>> {
        self.other_owns.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).ok()?;
        self.barrier.heavy();
        let mut tries = 0;
        while self.usual_owns.load(Ordering::Acquire) {
            backoff(tries);
            tries += 1;
        }
        Some(Owner { of: self, word: &self.other_owns })
    }

    #[cold]
    fn wait(&self) {
        let mut tries = 0;
        while self.other_owns.load(Ordering::Relaxed) {
            backoff(tries);
            tries += 1;
        }
    }
}

/// Access to the value. Dropping it releases the value.
#[derive(Debug)]
pub struct Owner<'a, T> {
    of: &'a Owned<T>,
    word: &'a AtomicBool,
}

impl<T> Deref for Owner<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only owner, so no exclusive reference to the value exists elsewhere.
        unsafe { self.of.value.get_ref() }
    }
}

impl<T> DerefMut for Owner<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only owner, and it is borrowed exclusively.
        unsafe { self.of.value.get_mut() }
    }
}

impl<T> Drop for Owner<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.word.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn owners_exclude_each_other() {
        let counter = Owned::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let mut owner = counter.own();
                        let seen = *owner;
                        std::hint::black_box(seen);
                        *owner = seen + 1;
                    }
                });
            }
        });
        assert_eq!(*counter.own(), 40_000);
    }

    /// A thread never owns the value twice at a time.
    #[test]
    #[should_panic = "the owner already"]
    fn owning_twice_panics() {
        let owned = Owned::new(1);
        let _first = owned.own();
        let _second = owned.own();
    }

    #[test]
    fn released_on_panic() {
        let value = Owned::new(1);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _owner = value.own();
            panic!("while owning");
        }));
        assert!(result.is_err());
        assert_eq!(*value.own(), 1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::sync::{Arc, thread};

    fn model(run: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(run);
    }

    /// N-5: program and watchdog never access the value at once, and each sees the changes of the other.
    #[test]
    fn loom_owners_exclude_each_other() {
        model(|| {
            let value = Arc::new(Owned::new(0u32));
            *value.own() += 1;
            let dog = {
                let value = value.clone();
                thread::spawn(move || *value.own_as_other() += 1)
            };
            *value.own() += 1;
            dog.join().unwrap();
            assert_eq!(*value.own(), 3);
        });
    }

    /// N-5: the same for two other threads.
    #[test]
    fn loom_other_threads_exclude_each_other() {
        model(|| {
            let value = Arc::new(Owned::new(0u32));
            let other = value.clone();
            let thread = thread::spawn(move || *other.own_as_other() += 1);
            *value.own_as_other() += 1;
            thread.join().unwrap();
            assert_eq!(*value.own_as_other(), 2);
        });
    }

    /// N-6, T-6: the event queue is such a value. What another thread queues while the usual thread goes to
    /// sleep is taken, in order, or the bell has rung: it is cleared before the check, and rung after the
    /// event is queued.
    #[test]
    fn loom_events_are_not_slept_through() {
        model(|| {
            let queue = Arc::new(Owned::new(VecDeque::new()));
            let bell = Arc::new(AtomicBool::new(false));
            drop(queue.own());
            let dog = {
                let (queue, bell) = (queue.clone(), bell.clone());
                thread::spawn(move || {
                    for event in 0..2 {
                        queue.own_as_other().push_back(event);
                        bell.store(true, Ordering::Release);
                    }
                })
            };
            let (mut got, mut asleep) = (0, false);
            for _ in 0..2 {
                bell.swap(false, Ordering::AcqRel);
                while let Some(event) = queue.own().pop_front() {
                    assert_eq!(event, got);
                    got += 1;
                }
                asleep = !bell.load(Ordering::Acquire);
                if asleep {
                    break;
                }
            }
            dog.join().unwrap();
            // A sleeping thread with something left to take has been rung for.
            if asleep && got < 2 {
                assert!(bell.load(Ordering::Acquire), "asleep with {got} of 2 taken");
            }
        });
    }
}
