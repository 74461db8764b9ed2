//! Whether an extraction is running, and what extractions have done so far.

use std::cell::Cell;

/// State of [`super::Core::extract`].
#[derive(Default)]
pub(crate) struct Extraction {
    running: Cell<bool>,
    /// A batch is open, which ends with the extraction.
    batching: Cell<bool>,
    /// Messages whose handlers have finished, successfully or not.
    handled: Cell<u64>,
    /// `async` handlers that have started and not finished.
    unfinished: Cell<usize>,
}

impl Extraction {
    /// Whether handlers are running: the caller is one of them.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.running.get()
    }

    /// Marks the extraction as running; false if it was.
    #[inline]
    pub(super) fn begin(&self) -> bool {
        !self.running.replace(true)
    }

    /// Marks the extraction as ended; true if a batch is to be closed.
    #[inline]
    pub(super) fn end(&self) -> bool {
        self.running.set(false);
        self.batching.replace(false)
    }

    /// Notes that a batch is opened for the rest of the extraction; false if one is open or nothing is
    /// extracted.
    pub(super) fn begin_batch(&self) -> bool {
        self.running.get() && !self.batching.replace(true)
    }

    pub(crate) fn handled(&self) -> u64 {
        self.handled.get()
    }

    /// Counts a message whose handler has finished.
    #[inline]
    pub(crate) fn count_handled(&self) {
        self.handled.set(self.handled.get() + 1);
    }

    pub(crate) fn unfinished(&self) -> usize {
        self.unfinished.get()
    }

    #[inline]
    pub(crate) fn handler_started(&self) {
        self.unfinished.set(self.unfinished.get() + 1);
    }

    #[inline]
    pub(crate) fn handler_finished(&self) {
        self.unfinished.set(self.unfinished.get().saturating_sub(1));
    }

    /// All handlers were dropped.
    pub(super) fn no_handlers(&self) {
        self.unfinished.set(0);
    }
}
