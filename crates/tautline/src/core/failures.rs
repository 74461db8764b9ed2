//! Handlers that failed.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::HandlerFailure;

/// Failures that are kept; further ones replace the oldest.
const MAX_FAILURES: usize = 1024;

/// A program's function that takes failures; see [`crate::Builder::on_failure`].
pub(crate) type OnFailure = Box<dyn FnMut(HandlerFailure)>;

/// Failures that the program has not read (M-15).
#[derive(Default)]
pub(crate) struct Failures {
    unread: RefCell<VecDeque<Unread>>,
    /// Those among them that end a wait.
    ending: Cell<usize>,
    /// The number of unread failures, from the latest back, that were not logged.
    unlogged: Cell<usize>,
    /// Takes the failures instead, if the program registered it.
    taker: RefCell<Option<OnFailure>>,
    /// Handlers that tell their senders of failures.
    telling: Vec<String>,
}

struct Unread {
    failure: HandlerFailure,
    ends_wait: bool,
}

impl Failures {
    /// `telling`: handlers that tell their senders of failures.
    pub(crate) fn new(taker: Option<OnFailure>, telling: Vec<String>) -> Failures {
        Failures { taker: RefCell::new(taker), telling, ..Failures::default() }
    }

    #[cold]
    pub(crate) fn push(&self, failure: HandlerFailure) {
        // A taker that is running, and causes another failure, does not get that one.
        if let Ok(mut taker) = self.taker.try_borrow_mut()
            && let Some(take) = &mut *taker
        {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| take(failure))) {
                tracing::error!("the function given to on_failure panicked");
                // Dropping it runs code of the program, which may panic again.
                std::mem::forget(panic);
            }
            return;
        }
        if self.unread.borrow().len() == MAX_FAILURES {
            self.log_unread();
            self.pop();
        }
        // If its sender was not told, the program may wait for what the handler should have done.
        let ends_wait = !self.telling.contains(&failure.handler);
        self.unread.borrow_mut().push_back(Unread { failure, ends_wait });
        self.unlogged.set(self.unlogged.get() + 1);
        self.ending.set(self.ending.get() + usize::from(ends_wait));
    }

    /// Takes the oldest unread failure.
    pub(crate) fn pop(&self) -> Option<HandlerFailure> {
        self.take(0)
    }

    /// Takes the oldest unread failure that ends a wait.
    pub(super) fn take_ending(&self) -> Option<HandlerFailure> {
        let at = self.unread.borrow().iter().position(|unread| unread.ends_wait)?;
        self.take(at)
    }

    fn take(&self, at: usize) -> Option<HandlerFailure> {
        let mut unread = self.unread.borrow_mut();
        let Unread { failure, ends_wait } = unread.remove(at)?;
        self.ending.set(self.ending.get() - usize::from(ends_wait));
        // The unlogged ones are the last; this was one of them if it had fewer behind it.
        let (unlogged, behind) = (self.unlogged.get(), unread.len() - at);
        self.unlogged.set(unlogged - usize::from(behind < unlogged));
        Some(failure)
    }

    /// Whether there are unread failures that end a wait.
    #[inline]
    pub(crate) fn end_waits(&self) -> bool {
        self.ending.get() > 0
    }

    /// Logs the unread failures, each once: the program is about to sleep, or closes the endpoint.
    #[inline]
    pub(crate) fn log_unread(&self) {
        if self.unlogged.get() > 0 {
            self.log();
        }
    }

    #[cold]
    fn log(&self) {
        let unread = self.unread.borrow();
        for Unread { failure, .. } in unread.iter().skip(unread.len() - self.unlogged.take()) {
            let HandlerFailure { handler, from, .. } = failure;
            tracing::error!(%handler, from, "{failure}");
        }
    }

    /// Drops the program's function, with all it holds.
    pub(super) fn drop_taker(&self) {
        if let Ok(mut taker) = self.taker.try_borrow_mut()
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(taker.take())))
        {
            std::mem::forget(panic);
        }
    }
}
