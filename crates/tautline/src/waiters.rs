//! Wakers of everybody who waits for the same thing.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::task::{Context, Waker};

/// Wakers in the order in which they were first registered.
#[derive(Default)]
pub(crate) struct Waiters {
    wakers: RefCell<BTreeMap<u64, Waker>>,
    /// The last number that was given to a [`Waiter`].
    last: Cell<u64>,
}

/// One entry of a [`Waiters`] list. The future that owns it must call [`Waiters::remove`] when it ends or is
/// dropped.
#[derive(Debug, Default)]
pub(crate) struct Waiter(Cell<u64>);

impl Waiters {
    /// Registers the waker of `context`. A waiter has one entry, however often it registers, and the cost
    /// hardly depends on the number of entries.
    pub(crate) fn register(&self, waiter: &Waiter, context: &Context<'_>) {
        if waiter.0.get() == 0 {
            self.last.set(self.last.get() + 1);
            waiter.0.set(self.last.get());
        }
        self.wakers.borrow_mut().insert(waiter.0.get(), context.waker().clone());
    }

    /// Removes the entry of a waiter, if it has one.
    pub(crate) fn remove(&self, waiter: &Waiter) {
        let number = waiter.0.take();
        if number != 0 {
            self.wakers.borrow_mut().remove(&number);
        }
    }

    /// Wakes and removes all entries.
    pub(crate) fn wake(&self) {
        self.wakers.take().into_values().for_each(Waker::wake);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.wakers.borrow().len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.wakers.borrow().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A waiter has one entry, however often it registers, and none once it was removed or woken.
    #[test]
    fn one_entry_per_waiter() {
        let waiters = Waiters::default();
        let context = Context::from_waker(Waker::noop());
        let all: Vec<Waiter> = (0..100).map(|_| Waiter::default()).collect();
        for _ in 0..3 {
            all.iter().for_each(|waiter| waiters.register(waiter, &context));
        }
        assert_eq!(waiters.len(), 100);
        all[1..].iter().for_each(|waiter| waiters.remove(waiter));
        assert_eq!(waiters.len(), 1);
        waiters.wake();
        assert!(waiters.is_empty());
        waiters.remove(&all[0]);
        waiters.register(&all[0], &context);
        assert!(!waiters.is_empty());
    }
}
