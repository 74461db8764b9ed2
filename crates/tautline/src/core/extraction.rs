//! Whether an extraction is running, and what extractions have done so far.

use std::cell::{Cell, RefCell};
use std::task::Waker;

/// Wakers that are kept until the end of an extraction.
const MAX_WAKERS: usize = 64;

/// State of [`super::Core::extract`].
#[derive(Default)]
pub(crate) struct Extraction {
    running: Cell<bool>,
    /// A batch is open, which ends with the extraction.
    batching: Cell<bool>,
    /// Wakers that are woken when the extraction ends. Answers arrive together: whoever is woken for the
    /// first one finds the others, too.
    wakers: RefCell<Vec<Waker>>,
    /// There is a batch, there are wakers, or somebody waits for an extraction that takes or runs something.
    at_end: Cell<bool>,
    /// Something was taken, or a suspended handler ran, since this was last asked.
    progress: Cell<bool>,
    /// Messages whose handlers have finished, successfully or not.
    handled: Cell<u64>,
    /// Of those, messages that were the library's own, not the program's.
    own: Cell<u64>,
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

    /// Marks the extraction as ended; true if [`Extraction::take_batch`] and [`Extraction::wake`] are due.
    #[inline]
    pub(super) fn end(&self) -> bool {
        self.running.set(false);
        self.at_end.replace(false)
    }

    /// Something was taken, or a suspended handler ran.
    #[inline]
    pub(crate) fn note_progress(&self) {
        // Without anybody who waits for it, nobody asks.
        if self.at_end.get() {
            self.progress.set(true);
        }
    }

    /// Whether there was progress since the last call.
    pub(super) fn take_progress(&self) -> bool {
        self.progress.replace(false)
    }

    /// There is something to do at the end of this extraction, or of the next one.
    pub(super) fn watch_end(&self) {
        self.at_end.set(true);
    }

    /// Whether a batch is to be closed.
    pub(super) fn take_batch(&self) -> bool {
        self.batching.replace(false)
    }

    /// Wakes `waker` when the running extraction ends, and now if there is none.
    pub(crate) fn wake_at_end(&self, waker: Waker) {
        self.wakers.borrow_mut().push(waker);
        self.at_end.set(true);
        if !self.running.get() || self.wakers.borrow().len() >= MAX_WAKERS {
            self.wake();
        }
    }

    pub(super) fn wake(&self) {
        self.wakers.take().into_iter().for_each(Waker::wake);
    }

    /// Notes that a batch is opened for the rest of the extraction; false if one is open or nothing is
    /// extracted.
    pub(super) fn begin_batch(&self) -> bool {
        if !self.running.get() || self.batching.replace(true) {
            return false;
        }
        self.at_end.set(true);
        true
    }

    /// Messages of the program whose handlers have finished.
    pub(crate) fn handled(&self) -> u64 {
        self.handled.get().saturating_sub(self.own.get())
    }

    /// A handler that is about to finish was the library's own.
    pub(crate) fn not_of_the_program(&self) {
        self.own.set(self.own.get() + 1);
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
