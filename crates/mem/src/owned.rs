//! The owner word: who may touch the interface now.
//!
//! One thread is at home: it takes the value all the time, and pays a store and a load for it, with no locked instruction and no fence. Others,
//! the watchdog above all, come rarely: they take a word among themselves, make every core that runs a thread of this process issue a
//! barrier, and then wait until whoever is at home is outside. Nobody is ever woken through it: whoever finds it taken tries again.

use std::ops::{Deref, DerefMut};

use crate::Barrier;
use crate::sync::{AtomicBool, AtomicUsize, Ordering, UnsafeCell, relax};

/// A value with one owner at a time.
#[derive(Debug)]
pub struct Owned<T> {
    /// The thread that is at home; zero until there is one.
    home: AtomicUsize,
    /// Whoever is at home has the value, or is about to look whether it may.
    inside: AtomicBool,
    /// Somebody else has the value, or waits for it.
    taken: AtomicBool,
    barrier: Barrier,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only by whoever owns it, one thread at a time; so it moves between threads.
unsafe impl<T: Send> Sync for Owned<T> {}
// SAFETY: an owned value is as free to move as the value itself.
unsafe impl<T: Send> Send for Owned<T> {}

/// What tells this thread from all others that live.
#[inline(always)]
fn here() -> usize {
    #[cfg(not(loom))]
    {
        thread_local! {
            static HERE: u8 = const { 0 };
        }
        HERE.with(|here| std::ptr::from_ref(here).addr())
    }
    #[cfg(loom)]
    {
        loom::thread_local! {
            static HERE: Box<u8> = Box::new(0);
        }
        HERE.with(|here| std::ptr::from_ref::<u8>(here).addr())
    }
}

impl<T> Owned<T> {
    /// Wraps a value that nobody owns yet.
    pub fn new(value: T) -> Owned<T> {
        Owned {
            home: AtomicUsize::new(0),
            inside: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            #[cfg(not(loom))]
            barrier: Barrier::between_threads(),
            #[cfg(loom)]
            barrier: Barrier::symmetric(),
            value: UnsafeCell::new(value),
        }
    }

    /// Becomes the owner; tries until the present one is done. The first thread to call this is at home.
    #[inline]
    pub fn own(&self) -> Owner<'_, T> {
        let here = here();
        if self.home.load(Ordering::Relaxed) == here
            && let Some(owner) = self.enter()
        {
            return owner;
        }
        self.own_slowly(here)
    }

    /// Becomes the owner, as somebody who comes rarely.
    fn visit(&self) -> Owner<'_, T> {
        loop {
            match self.try_visit() {
                Some(owner) => return owner,
                None => self.wait(),
            }
        }
    }

    #[cold]
    fn own_slowly(&self, here: usize) -> Owner<'_, T> {
        let nobody = self.home.compare_exchange(0, here, Ordering::Relaxed, Ordering::Relaxed);
        if nobody.is_err_and(|home| home != here) {
            return self.visit();
        }
        loop {
            match self.enter() {
                Some(owner) => return owner,
                None => self.wait(),
            }
        }
    }

    /// The one who is at home goes in, unless somebody else is there.
    #[inline(always)]
    fn enter(&self) -> Option<Owner<'_, T>> {
        // Nobody else sets it. Without this, a thread that asks again while it is the owner would own it twice.
        assert!(!self.inside.load(Ordering::Relaxed), "this thread is the owner already");
        self.inside.store(true, Ordering::Relaxed);
        self.barrier.light();
        if self.taken.load(Ordering::Acquire) {
            self.inside.store(false, Ordering::Release);
            return None;
        }
        Some(Owner { of: self, word: &self.inside })
    }

    /// Somebody else goes in, unless another one is there already; waits until whoever is at home is outside.
    fn try_visit(&self) -> Option<Owner<'_, T>> {
        self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).ok()?;
        self.barrier.heavy();
        let mut tries = 0;
        while self.inside.load(Ordering::Acquire) {
            relax(tries);
            tries += 1;
        }
        Some(Owner { of: self, word: &self.taken })
    }

    #[cold]
    fn wait(&self) {
        let mut tries = 0;
        while self.taken.load(Ordering::Relaxed) {
            relax(tries);
            tries += 1;
        }
    }
}

/// The owner's hold on the value; dropping it lets the next one in.
#[derive(Debug)]
pub struct Owner<'a, T> {
    of: &'a Owned<T>,
    word: &'a AtomicBool,
}

impl<T> Deref for Owner<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the one owner, so no exclusive reference to the value exists elsewhere.
        unsafe { self.of.value.get_ref() }
    }
}

impl<T> DerefMut for Owner<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the one owner, and it is borrowed exclusively.
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
    fn one_owner_at_a_time() {
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

    /// One thread never owns it twice at a time.
    #[test]
    #[should_panic = "the owner already"]
    fn never_owned_twice() {
        let owned = Owned::new(1);
        let _first = owned.own();
        let _second = owned.own();
    }

    #[test]
    fn given_back_on_panic() {
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

    /// N-5: program and watchdog never touch the interface at once, and each sees what the other did.
    #[test]
    fn loom_owners_exclude_each_other() {
        model(|| {
            let value = Arc::new(Owned::new(0u32));
            *value.own() += 1;
            let dog = {
                let value = value.clone();
                thread::spawn(move || *value.visit() += 1)
            };
            *value.own() += 1;
            dog.join().unwrap();
            assert_eq!(*value.own(), 3);
        });
    }

    /// N-5: the same for two who come rarely.
    #[test]
    fn loom_visitors_exclude_each_other() {
        model(|| {
            let value = Arc::new(Owned::new(0u32));
            let other = value.clone();
            let thread = thread::spawn(move || *other.visit() += 1);
            *value.visit() += 1;
            thread.join().unwrap();
            assert_eq!(*value.visit(), 2);
        });
    }

    /// N-6, T-6: the event queue is a value like this. What a visitor queues while whoever is at home goes to sleep is taken, in order, or the bell has rung by then: it is silenced before the look, and rung
    /// after what it tells of.
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
                        queue.visit().push_back(event);
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
            // Whoever sleeps is woken if there is anything to wake for.
            if asleep && got < 2 {
                assert!(bell.load(Ordering::Acquire), "asleep with {got} of 2 taken");
            }
        });
    }
}
