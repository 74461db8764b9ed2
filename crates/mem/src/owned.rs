//! The owner word: who may touch the interface now.
//!
//! Taking it is one compare-and-exchange and giving it back a plain store, half of what a mutex costs, because nobody is ever woken
//! through it: the other party is a watchdog that comes once in a while, and whoever finds it taken tries again.

use std::ops::{Deref, DerefMut};

use crate::sync::{AtomicBool, Ordering, UnsafeCell, relax};

/// A value with one owner at a time.
#[derive(Debug)]
pub struct Owned<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only by whoever holds the owner word, one thread at a time; so it moves between threads.
unsafe impl<T: Send> Sync for Owned<T> {}
// SAFETY: an owned value is as free to move as the value itself.
unsafe impl<T: Send> Send for Owned<T> {}

impl<T> Owned<T> {
    /// Wraps a value that nobody owns yet.
    pub fn new(value: T) -> Owned<T> {
        Owned { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Becomes the owner; tries until the present one is done.
    #[inline]
    pub fn own(&self) -> Owner<'_, T> {
        loop {
            match self.try_own() {
                Some(owner) => return owner,
                None => self.wait(),
            }
        }
    }

    /// Becomes the owner if nobody is.
    #[inline]
    pub fn try_own(&self) -> Option<Owner<'_, T>> {
        let free = self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        free.then(|| Owner { of: self })
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
        self.of.taken.store(false, Ordering::Release);
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
    use super::*;
    use crate::sync::{Arc, thread};

    /// N-5: program and watchdog never touch the interface at once, and each sees what the other did. (Loom cannot follow a
    /// loop that waits for another thread, so each tries a few times.)
    #[test]
    fn loom_owners_exclude_each_other() {
        loom::model(|| {
            let value = Arc::new(Owned::new(0u32));
            let add = |value: &Owned<u32>| {
                let mut added = 0;
                for _ in 0..2 {
                    if let Some(mut owner) = value.try_own() {
                        *owner += 1;
                        added += 1;
                    }
                }
                added
            };
            let dog = {
                let value = value.clone();
                thread::spawn(move || add(&value))
            };
            let mine = add(&value);
            let theirs = dog.join().unwrap();
            assert_eq!(*value.try_own().expect("nobody owns it now"), mine + theirs);
            assert!(mine + theirs >= 2, "whoever tries alone succeeds");
        });
    }
}
