//! Runs handlers: starts them, polls them, finishes them, and grants their senders room (M-5, M-7).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::task::Poll;

use tautline_node::limits::MAX_RUNNING;
use tautline_node::{MessageId, PeerId};

use super::borrowed::{Borrowed, LoanGuard};
use super::handlers::{Registered, ShortHandler, StreamHandler, TaskSlots};
use super::inbox::Inbox;
use super::incoming::Short;
use super::incoming_bytes::End;
use super::open_messages::{OpenMessage, TaskId};
use super::panics::into_panic_text;
use crate::Rank;
use crate::core::{Core, WindowGrant};
use crate::error::HandlerFailure;

/// What running handlers needs.
#[derive(Clone, Copy)]
pub(super) struct Runner<'a> {
    pub(super) core: &'a Rc<Core>,
    pub(super) inbox: &'a Inbox,
}

/// A message for which an `async` handler is started.
#[derive(Clone, Copy)]
pub(super) struct NewMessage {
    pub(super) from: Rank,
    /// Nothing if no more of it is to arrive.
    pub(super) id: Option<MessageId>,
    pub(super) total: u64,
}

/// Why a handler failed.
struct TaskFailure {
    reason: String,
    panicked: bool,
}

impl<'a> Runner<'a> {
    #[inline]
    pub(super) fn handler(self, handler: usize) -> Option<&'a Registered> {
        self.inbox.handlers.get(handler)
    }

    /// The `async` handler of a task.
    #[inline]
    pub(super) fn stream_handler(self, handler: usize) -> Option<&'a StreamHandler> {
        self.inbox.handlers[handler].as_stream()
    }

    /// A peer sent, authenticated, what no correct peer sends: its channel is closed.
    pub(super) fn violation(self, from: PeerId) {
        let _ = self.core.node.report_violation(from);
    }

    #[cold]
    #[inline(never)]
    pub(super) fn fail(self, handler: usize, from: Rank, reason: String, panicked: bool) {
        let handler = self.inbox.names[handler].clone();
        self.core.failures.push(HandlerFailure { handler, from, reason, panicked });
    }

    /// Calls a plain handler; a panic is a failure of that message alone (M-7).
    // The message is built where the handler reads it: a copy would be read before it has left the store
    // buffer.
    #[inline(always)]
    pub(super) fn call(self, handler: usize, function: &ShortHandler, message: Short<'_>) {
        let from = message.from;
        let result = catch_unwind(AssertUnwindSafe(|| (function.borrow_mut())(message)));
        self.core.extraction.count_handled();
        if let Err(panic) = result {
            self.fail(handler, from, into_panic_text(panic), true);
        }
    }

    /// Claims a slot for a message.
    pub(super) fn claim(self, handler: usize, stream: &StreamHandler, message: NewMessage) -> TaskId {
        self.core.extraction.handler_started();
        let NewMessage { from, id, total } = message;
        stream.with(|slots| {
            let (slot, bytes) = slots.claim(handler, self.core);
            bytes.borrow_mut().restart(from, id, total, self.window(from, total));
            TaskId { handler, slot }
        })
    }

    /// Makes the handler's future. Its code runs at the first poll, but making it may run code and panic,
    /// too.
    pub(super) fn start(self, stream: &StreamHandler, task: TaskId) {
        self.start_with(stream, task, |slots, overload| slots.begin(task.slot, self.core, overload));
    }

    #[inline]
    fn start_with(self, stream: &StreamHandler, task: TaskId, start: impl FnOnce(&mut dyn TaskSlots, bool)) {
        let overload = self.core.extraction.unfinished() > MAX_RUNNING;
        if overload && !stream.with(|slots| slots.handles_overload()) {
            let reason = format!("more than {MAX_RUNNING} handlers are suspended; the message was dropped");
            return self.finish(task, Err(TaskFailure { reason, panicked: false }));
        }
        let result = stream.with(|slots| catch_unwind(AssertUnwindSafe(|| start(slots, overload))));
        if let Err(panic) = result {
            self.finish(task, Err(TaskFailure { reason: into_panic_text(panic), panicked: true }));
        }
    }

    /// Runs an `async` handler on a whole message in place, as far as it gets.
    pub(super) fn run_whole(self, handler: usize, stream: &StreamHandler, message: Short<'_>) {
        // The message lies outside the slot, so that there is nothing of it to wait for or to discard.
        let task = self.claim(handler, stream, NewMessage { from: message.from, id: None, total: 0 });
        self.start_with(stream, task, |slots, overload| slots.begin_whole(task.slot, message, overload));
        self.poll(task);
    }

    /// Runs the handler of a message that was lent.
    pub(super) fn run_loan(self, handler: usize, message: LoanGuard) {
        let from = message.from();
        if !message.is_readable() {
            // No handler has seen it, so its sender may send it in another way.
            return message.refuse();
        }
        match self.handler(handler) {
            Some(Registered::Loan(function, _)) if message.is_mapped() && !message.is_wanted_back() => {
                let message = Borrowed::shared(message);
                let result = catch_unwind(AssertUnwindSafe(|| (function.borrow_mut())(message)));
                self.core.extraction.count_handled();
                if let Err(panic) = result {
                    self.fail(handler, from, into_panic_text(panic), true);
                }
            }
            Some(Registered::Stream(stream) | Registered::Whole(stream) | Registered::Loan(_, stream)) => {
                let task = self.claim(handler, stream, NewMessage { from, id: None, total: message.len() });
                stream.with(|slots| slots.bytes(task.slot).borrow_mut().arrive_whole(message));
                self.start(stream, task);
                self.poll(task);
                stream.with(|slots| slots.bytes(task.slot).borrow_mut().settle(&self.core.budgets));
            }
            // No correct peer lends to a handler that takes only short messages.
            Some(Registered::Short(_)) | None => self.violation(message.lender()),
        }
    }

    /// Polls one handler.
    pub(super) fn poll(self, task: TaskId) {
        let Some(stream) = self.stream_handler(task.handler) else { return };
        let result = stream.with(|slots| catch_unwind(AssertUnwindSafe(|| slots.poll(task.slot))));
        let failure = |reason, panicked| Err(TaskFailure { reason, panicked });
        match result {
            Ok(None) => {}
            Ok(Some(Poll::Pending)) => {
                let due = stream.with(|slots| {
                    let mut bytes = slots.bytes(task.slot).borrow_mut();
                    bytes.release_taken();
                    bytes.window_due(false)
                });
                if let Some(due) = due {
                    self.grant(due);
                }
            }
            Ok(Some(Poll::Ready(Ok(())))) => self.finish(task, Ok(())),
            Ok(Some(Poll::Ready(Err(error)))) => self.finish(task, failure(error.to_string(), false)),
            Err(panic) => self.finish(task, failure(into_panic_text(panic), true)),
        }
    }

    /// A handler has finished; the rest of its message, if any, is discarded (M-7).
    fn finish(self, task: TaskId, result: Result<(), TaskFailure>) {
        let Some(stream) = self.stream_handler(task.handler) else { return };
        let (from, rest) = stream.with(|slots| {
            let mut bytes = slots.bytes(task.slot).borrow_mut();
            (bytes.from, bytes.finish())
        });
        // Dropping the future runs code of the program, too.
        let dropped = stream.with(|slots| catch_unwind(AssertUnwindSafe(|| slots.free(task.slot))));
        self.core.extraction.count_handled();
        self.core.extraction.handler_finished();
        if let Some(mut rest) = rest
            && let Some(id) = rest.message
        {
            let due = rest.window_due(true);
            self.keep_open(id, OpenMessage::Discard(Box::new(rest)));
            if let Some(due) = due {
                self.grant(due);
            }
        }
        if let Err(failure) = result {
            self.fail(task.handler, from, failure.reason, failure.panicked);
        } else if let Err(panic) = dropped {
            self.fail(task.handler, from, into_panic_text(panic), true);
        }
    }

    /// More of a message is to arrive (M-10).
    pub(super) fn keep_open(self, id: MessageId, state: OpenMessage) {
        let allowed = self.inbox.open.borrow_mut().insert(id, state);
        if !allowed {
            self.violation(id.peer);
        }
    }

    /// No more bytes of a message will arrive; its handler learns of it when it reads them.
    pub(super) fn end_message(self, id: MessageId, end: End) {
        let state = self.inbox.open.borrow_mut().remove(id);
        if let Some(OpenMessage::Task(task)) = state {
            let Some(stream) = self.stream_handler(task.handler) else { return };
            stream.with(|slots| slots.bytes(task.slot).borrow_mut().end = Some(end));
            self.poll(task);
        }
    }

    /// Bytes of a message that its sender may send before more is granted.
    fn window(self, from: Rank, total: u64) -> u64 {
        let config = self.core.node.config();
        let least = u64::from(config.link.message_window.min(config.local_window));
        if total <= least {
            return least;
        }
        self.core.node.first_window(from).unwrap_or(least)
    }

    /// Grants a window, or keeps it for the next extraction if there is no slot to say so.
    pub(super) fn grant(self, grant: WindowGrant) {
        let refused = || matches!(self.core.node.grant_window(grant.message, grant.limit), Ok(false));
        if !refused() {
            return;
        }
        let Ok(seen) = self.core.node.activity() else { return };
        if refused() {
            self.core.waits.tried(seen);
            self.core.outbox.push_grant(grant);
        }
    }
}
