//! Handlers that failed.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::Rank;

/// A handler that returned an error or panicked; see [`crate::Endpoint::poll_failure`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandlerFailure {
    /// The handler's name.
    pub handler: String,
    /// The sender of the message.
    pub from: Rank,
    /// The text of the error or of the panic.
    pub reason: String,
    /// Whether the handler panicked.
    pub panicked: bool,
}

/// Failures that are kept; further ones replace the oldest.
const MAX_FAILURES: usize = 1024;

/// Failures that the program has not read.
#[derive(Default)]
pub(crate) struct Failures(RefCell<VecDeque<HandlerFailure>>);

impl Failures {
    pub(crate) fn push(&self, handler: &str, from: Rank, reason: String, panicked: bool) {
        let mut failures = self.0.borrow_mut();
        if failures.len() == MAX_FAILURES {
            failures.pop_front();
        }
        failures.push_back(HandlerFailure { handler: handler.to_owned(), from, reason, panicked });
    }

    pub(crate) fn pop(&self) -> Option<HandlerFailure> {
        self.0.borrow_mut().pop_front()
    }
}
