//! Who is to be woken when something happens that many may wait for.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::task::{Context, Waker};

/// Wakers of those who wait for one sort of thing, each at its place, the first to wait first.
#[derive(Default)]
pub(crate) struct Waits {
    wakers: RefCell<BTreeMap<u64, Waker>>,
    /// The last place that was given.
    last: Cell<u64>,
}

/// A place among those who wait; whoever has it gives it up with [`Waits::leave`]. It belongs to one [`Waits`].
#[derive(Debug, Default)]
pub(crate) struct Place(Cell<u64>);

impl Waits {
    /// Whoever polls is woken. It has one place, however often it asks, and what that costs hardly depends on how many wait.
    pub(crate) fn register(&self, place: &Place, context: &Context<'_>) {
        if place.0.get() == 0 {
            self.last.set(self.last.get() + 1);
            place.0.set(self.last.get());
        }
        self.wakers.borrow_mut().insert(place.0.get(), context.waker().clone());
    }

    /// Whoever has that place waits no more.
    pub(crate) fn leave(&self, place: &Place) {
        let place = place.0.take();
        if place != 0 {
            self.wakers.borrow_mut().remove(&place);
        }
    }

    /// It has happened: all who wait look again.
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

    /// Whoever waits has one place, however often it asks, and none when it leaves or was woken.
    #[test]
    fn one_place_per_wait() {
        let waits = Waits::default();
        let context = Context::from_waker(Waker::noop());
        let places: Vec<Place> = (0..100).map(|_| Place::default()).collect();
        for _ in 0..3 {
            places.iter().for_each(|place| waits.register(place, &context));
        }
        assert_eq!(waits.len(), 100);
        places[1..].iter().for_each(|place| waits.leave(place));
        assert_eq!(waits.len(), 1);
        waits.wake();
        assert!(waits.is_empty());
        waits.leave(&places[0]);
        waits.register(&places[0], &context);
        assert!(!waits.is_empty());
    }
}
