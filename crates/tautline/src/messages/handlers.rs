//! Handlers, and the slots in which their futures live: made once, and reused by `Pin::set` for message after
//! message.

use std::cell::RefCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::borrowed::Borrowed;
use super::incoming::{Message, Short};
use super::incoming_bytes::IncomingBytes;
use super::panics::panic_text;
use crate::Rank;
use crate::core::{Core, SlotWaker};
use crate::error::Result;

/// A plain function of whole messages.
pub(super) type ShortHandler = RefCell<Box<dyn FnMut(Short<'_>)>>;

/// A plain function of whole messages that may have been lent.
pub(super) type LoanHandler = Rc<RefCell<Box<dyn FnMut(Borrowed)>>>;

/// A registered handler.
pub(crate) enum Registered {
    Short(ShortHandler),
    Stream(StreamHandler),
    /// An `async` handler that takes messages of one frame whole and in place, and all others as they arrive.
    Whole(StreamHandler),
    /// The function for loans, and the handler that collects all other messages for it.
    Loan(LoanHandler, StreamHandler),
}

/// A handler that panicked while it was dropped.
pub(super) struct DropPanic {
    /// The sender of its message.
    pub(super) from: Rank,
    pub(super) text: String,
}

impl Registered {
    /// A handler of messages that fit one frame.
    pub(crate) fn short(handler: impl FnMut(Short<'_>) + 'static) -> Registered {
        Registered::Short(RefCell::new(Box::new(handler)))
    }

    /// An `async` handler of messages as they arrive.
    pub(crate) fn stream<H, F>(handler: H) -> Registered
    where
        H: Fn(Message) -> F + 'static,
        F: Future<Output = Result<()>> + 'static,
    {
        Registered::Stream(StreamHandler::new(handler))
    }

    /// A handler of whole messages that may have been lent.
    pub(crate) fn loan(handler: impl FnMut(Borrowed) + 'static) -> Registered {
        let handler: LoanHandler = Rc::new(RefCell::new(Box::new(handler)));
        let collect = {
            let handler = handler.clone();
            move |mut message: Message| {
                let handler = handler.clone();
                async move {
                    let message = message.collect().await?;
                    (handler.borrow_mut())(message);
                    Ok(())
                }
            }
        };
        Registered::Loan(handler, StreamHandler::new(collect))
    }

    /// An `async` handler that is started by `whole` if the message arrived in one frame, and by `handler`
    /// otherwise. Both are told whether the limit of unfinished handlers is exceeded.
    pub(crate) fn whole<H, W, F>(handler: H, whole: W) -> Registered
    where
        H: Fn(Message, bool) -> F + 'static,
        W: Fn(Short<'_>, bool) -> F + 'static,
        F: Future<Output = Result<()>> + 'static,
    {
        let slots = Slots { handler, whole, handles_overload: true, slots: Vec::new(), free: Vec::new() };
        Registered::Whole(StreamHandler(RefCell::new(Box::new(slots))))
    }

    /// Whether it takes only messages that fit one frame.
    pub(crate) fn is_short(&self) -> bool {
        matches!(self, Registered::Short(_))
    }

    /// The `async` handler in it, if any.
    #[inline]
    pub(super) fn as_stream(&self) -> Option<&StreamHandler> {
        match self {
            Registered::Short(_) => None,
            Registered::Stream(it) | Registered::Whole(it) | Registered::Loan(_, it) => Some(it),
        }
    }

    /// Drops the program's code with all it holds; further messages are ignored. Not while it runs.
    ///
    /// Dropping runs code of the program, which may panic: that affects no other handler, and is told to
    /// `panicked`.
    pub(super) fn clear(&self, mut panicked: impl FnMut(DropPanic)) {
        if let Some(StreamHandler(slots)) = self.as_stream() {
            let StreamHandler(empty) = StreamHandler::new(|_: Message| std::future::pending::<Result<()>>());
            let mut slots = slots.replace(empty.into_inner());
            slots.clear().into_iter().for_each(&mut panicked);
            let _ = catch_unwind(AssertUnwindSafe(|| drop(slots)));
        }
        let code: Box<dyn std::any::Any> = match self {
            Registered::Short(function) => Box::new(function.replace(Box::new(|_| ()))),
            Registered::Loan(function, _) => Box::new(function.replace(Box::new(|_| ()))),
            Registered::Stream(_) | Registered::Whole(_) => return,
        };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(code)));
    }
}

/// An `async` handler with its slots.
pub(crate) struct StreamHandler(RefCell<Box<dyn TaskSlots>>);

impl StreamHandler {
    fn new<H, F>(handler: H) -> StreamHandler
    where
        H: Fn(Message) -> F + 'static,
        F: Future<Output = Result<()>> + 'static,
    {
        let whole = |_: Short<'_>, _| -> F { unreachable!("only `Registered::whole` gets whole messages") };
        let handler = move |message, _| handler(message);
        let slots = Slots { handler, whole, handles_overload: false, slots: Vec::new(), free: Vec::new() };
        StreamHandler(RefCell::new(Box::new(slots)))
    }

    /// Runs `work` on the slots. The handler's own code may run inside, but cannot reach the slots.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut dyn TaskSlots) -> T) -> T {
        work(&mut **self.0.borrow_mut())
    }
}

/// Slots of one handler.
pub(super) trait TaskSlots {
    /// Takes a free slot, or makes one. Its bytes must be restarted before [`TaskSlots::begin`].
    fn claim(&mut self, handler: usize, core: &Core) -> (usize, Rc<RefCell<IncomingBytes>>);
    /// Whether the handler itself answers messages that exceed the limit of unfinished handlers.
    fn handles_overload(&self) -> bool;
    /// Calls the handler on the slot's message. The handler's code before its first `await` runs at the first
    /// poll.
    fn begin(&mut self, slot: usize, core: &Rc<Core>, overload: bool);
    /// Calls the handler on a whole message that lies outside the slot.
    fn begin_whole(&mut self, slot: usize, message: Short<'_>, overload: bool);
    /// Polls the slot's future; nothing if the slot is free.
    fn poll(&mut self, slot: usize) -> Option<Poll<Result<()>>>;
    /// Drops the slot's future and frees the slot.
    fn free(&mut self, slot: usize);
    /// Frees all slots, also if futures panic while they are dropped.
    fn clear(&mut self) -> Vec<DropPanic>;
    /// The bytes of the slot's message.
    fn bytes(&self, slot: usize) -> &Rc<RefCell<IncomingBytes>>;
}

struct Slot<F> {
    future: Pin<Box<Option<F>>>,
    bytes: Rc<RefCell<IncomingBytes>>,
    waker: Waker,
    used: bool,
}

struct Slots<H, W, F> {
    handler: H,
    whole: W,
    handles_overload: bool,
    slots: Vec<Slot<F>>,
    free: Vec<usize>,
}

impl<H, W, F> TaskSlots for Slots<H, W, F>
where
    H: Fn(Message, bool) -> F,
    W: Fn(Short<'_>, bool) -> F,
    F: Future<Output = Result<()>>,
{
    fn claim(&mut self, handler: usize, core: &Core) -> (usize, Rc<RefCell<IncomingBytes>>) {
        let slot = self.free.pop().unwrap_or_else(|| {
            let slot = self.slots.len();
            let waker = Arc::new(SlotWaker::new(handler, slot, core.wakes.clone()));
            self.slots.push(Slot {
                future: Box::pin(None),
                bytes: Rc::default(),
                waker: Waker::from(waker),
                used: false,
            });
            slot
        });
        self.slots[slot].used = true;
        (slot, self.slots[slot].bytes.clone())
    }

    fn handles_overload(&self) -> bool {
        self.handles_overload
    }

    fn begin(&mut self, slot: usize, core: &Rc<Core>, overload: bool) {
        let message = Message::new(&self.slots[slot].bytes, core);
        let future = (self.handler)(message, overload);
        self.slots[slot].future.as_mut().set(Some(future));
    }

    fn begin_whole(&mut self, slot: usize, message: Short<'_>, overload: bool) {
        let future = (self.whole)(message, overload);
        self.slots[slot].future.as_mut().set(Some(future));
    }

    fn poll(&mut self, slot: usize) -> Option<Poll<Result<()>>> {
        let slot = &mut self.slots[slot];
        let mut context = Context::from_waker(&slot.waker);
        slot.future.as_mut().as_pin_mut().map(|future| future.poll(&mut context))
    }

    fn free(&mut self, slot: usize) {
        if std::mem::replace(&mut self.slots[slot].used, false) {
            self.free.push(slot);
            self.slots[slot].future.as_mut().set(None);
        }
    }

    fn clear(&mut self) -> Vec<DropPanic> {
        let mut panics = Vec::new();
        for slot in 0..self.slots.len() {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.free(slot))) {
                let from = self.slots[slot].bytes.borrow().from;
                panics.push(DropPanic { from, text: panic_text(&*panic) });
            }
        }
        panics
    }

    fn bytes(&self, slot: usize) -> &Rc<RefCell<IncomingBytes>> {
        &self.slots[slot].bytes
    }
}
