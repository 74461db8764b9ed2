//! Handlers and the slots that their futures live in: made once, used for message after message by `Pin::set`.

use std::cell::RefCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::incoming::{Message, Short};
use super::loan::Lent;
use super::stream::Stream;
use super::tasks::panic_text;
use crate::core::{Core, SlotWaker};
use crate::{Rank, Result};

/// A handler of messages that come whole.
pub(crate) type Plain = RefCell<Box<dyn FnMut(Short<'_>)>>;

/// A registered handler.
pub(crate) enum Registered {
    Short(Plain),
    Stream(StreamHandler),
    /// An `async` handler that takes messages of one frame whole, where they lie, and all others as they arrive.
    Whole(StreamHandler),
    /// What takes lent messages, and what collects the others.
    Lent(LentHandler, StreamHandler),
}

/// Who sent the message whose handler panicked when it was dropped, and the panic's text.
pub(crate) type Dropped = (Rank, String);

/// A handler of lent messages.
pub(crate) type LentHandler = Rc<RefCell<Box<dyn FnMut(Lent)>>>;

impl Registered {
    /// A handler of whole messages that may have been lent.
    pub(crate) fn lent(handler: impl FnMut(Lent) + 'static) -> Registered {
        let handler: LentHandler = Rc::new(RefCell::new(Box::new(handler)));
        let collect = {
            let handler = handler.clone();
            move |mut message: Message| {
                let handler = handler.clone();
                async move {
                    let lent = message.collect().await?;
                    (handler.borrow_mut())(lent);
                    Ok(())
                }
            }
        };
        Registered::Lent(handler, streamed(collect))
    }

    /// A handler of messages that is begun by `whole` if the message came in one frame, and by `handler` if not. Both are told whether so many handlers are under
    /// way that all they may do is to say so.
    pub(crate) fn whole<H, W, F>(handler: H, whole: W) -> Registered
    where
        H: Fn(Message, bool) -> F + 'static,
        W: Fn(Short<'_>, bool) -> F + 'static,
        F: Future<Output = Result<()>> + 'static,
    {
        let tasks = Tasks { handler, whole, tells: true, slots: Vec::new(), free: Vec::new() };
        Registered::Whole(Box::new(tasks).into())
    }

    /// What takes messages as they arrive, if it is such a handler.
    #[inline]
    pub(crate) fn stream(&self) -> Option<&StreamHandler> {
        match self {
            Registered::Short(_) => None,
            Registered::Stream(pool) | Registered::Whole(pool) | Registered::Lent(_, pool) => Some(pool),
        }
    }

    /// Lets go of the program's code and of what it holds; what is left takes messages, and does nothing. Not while it runs.
    ///
    /// Dropping runs the program's code, too: whatever panics does so for itself, and is told to `panicked`.
    pub(crate) fn let_go(&self, mut panicked: impl FnMut(Dropped)) {
        if let Some(StreamHandler(pool)) = self.stream() {
            let StreamHandler(ended) = streamed(|_: Message| std::future::pending::<Result<()>>());
            let mut pool = pool.replace(ended.into_inner());
            pool.clear().into_iter().for_each(&mut panicked);
            let _ = catch_unwind(AssertUnwindSafe(|| drop(pool)));
        }
        let code: Box<dyn std::any::Any> = match self {
            Registered::Short(plain) => Box::new(plain.replace(Box::new(|_| ()))),
            Registered::Lent(lent, _) => Box::new(lent.replace(Box::new(|_| ()))),
            Registered::Stream(_) | Registered::Whole(_) => return,
        };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(code)));
    }
}

/// An `async` handler with its slots.
pub(crate) struct StreamHandler(RefCell<Box<dyn Pool>>);

impl From<Box<dyn Pool>> for StreamHandler {
    fn from(pool: Box<dyn Pool>) -> StreamHandler {
        StreamHandler(RefCell::new(pool))
    }
}

impl<P: Pool + 'static> From<Box<P>> for StreamHandler {
    fn from(pool: Box<P>) -> StreamHandler {
        StreamHandler(RefCell::new(pool))
    }
}

impl StreamHandler {
    /// Runs `work` on the slots; the handler's own code may run inside, but never reaches the pool again.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut dyn Pool) -> T) -> T {
        work(&mut **self.0.borrow_mut())
    }
}

/// Slots of one handler.
pub(crate) trait Pool {
    /// Takes a free slot, or makes one; its stream is to be restarted before [`Pool::begin`].
    fn claim(&mut self, handler: usize, core: &Rc<Core>) -> (usize, Rc<RefCell<Stream>>);
    /// Whether the handler itself tells of messages that it cannot run for.
    fn tells(&self) -> bool;
    /// Calls the handler on the slot's message. The handler's code before its first `await` runs with the first poll.
    fn begin(&mut self, slot: usize, core: &Rc<Core>, crowded: bool);
    /// The same on a message that is not the slot's, but lies there whole.
    fn begin_whole(&mut self, slot: usize, message: Short<'_>, crowded: bool);
    /// Polls the slot's future; nothing if the slot is free.
    fn poll(&mut self, slot: usize) -> Option<Poll<Result<()>>>;
    /// Drops the slot's future and frees the slot.
    fn free(&mut self, slot: usize);
    /// Frees all slots, also when futures panic as they are dropped.
    fn clear(&mut self) -> Vec<Dropped>;
    /// The slot's stream.
    fn stream(&self, slot: usize) -> &Rc<RefCell<Stream>>;
}

struct Slot<F> {
    future: Pin<Box<Option<F>>>,
    stream: Rc<RefCell<Stream>>,
    waker: Waker,
    used: bool,
}

pub(crate) struct Tasks<H, W, F> {
    handler: H,
    whole: W,
    tells: bool,
    slots: Vec<Slot<F>>,
    free: Vec<usize>,
}

/// Slots of a handler that takes messages as they arrive.
pub(crate) fn streamed<H, F>(handler: H) -> StreamHandler
where
    H: Fn(Message) -> F + 'static,
    F: Future<Output = Result<()>> + 'static,
{
    let whole = |_: Short<'_>, _| -> F { unreachable!("only those registered for whole messages get any") };
    let handler = move |message, _| handler(message);
    Box::new(Tasks { handler, whole, tells: false, slots: Vec::new(), free: Vec::new() }).into()
}

impl<H, W, F> Pool for Tasks<H, W, F>
where
    H: Fn(Message, bool) -> F,
    W: Fn(Short<'_>, bool) -> F,
    F: Future<Output = Result<()>>,
{
    fn claim(&mut self, handler: usize, core: &Rc<Core>) -> (usize, Rc<RefCell<Stream>>) {
        let slot = self.free.pop().unwrap_or_else(|| {
            let slot = self.slots.len();
            let waker = Arc::new(SlotWaker::new(handler, slot, core.wakes.clone()));
            self.slots.push(Slot {
                future: Box::pin(None),
                stream: Rc::default(),
                waker: Waker::from(waker),
                used: false,
            });
            slot
        });
        self.slots[slot].used = true;
        (slot, self.slots[slot].stream.clone())
    }

    fn tells(&self) -> bool {
        self.tells
    }

    fn begin(&mut self, slot: usize, core: &Rc<Core>, crowded: bool) {
        let message = Message::new(&self.slots[slot].stream, core);
        let future = (self.handler)(message, crowded);
        self.slots[slot].future.as_mut().set(Some(future));
    }

    fn begin_whole(&mut self, slot: usize, message: Short<'_>, crowded: bool) {
        let future = (self.whole)(message, crowded);
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

    fn clear(&mut self) -> Vec<Dropped> {
        let mut dropped = Vec::new();
        for slot in 0..self.slots.len() {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.free(slot))) {
                dropped.push((self.slots[slot].stream.borrow().from, panic_text(&*panic)));
            }
        }
        dropped
    }

    fn stream(&self, slot: usize) -> &Rc<RefCell<Stream>> {
        &self.slots[slot].stream
    }
}
