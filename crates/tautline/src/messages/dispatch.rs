//! From the records of a delivery to running handlers.

use std::cell::RefCell;
use std::rc::Rc;

use tautline_node::wire::{LONG_LEN, LoanLocation, Record, Records, as_more};
use tautline_node::{Delivery, MessageId, PeerId};

use super::borrowed::LoanGuard;
use super::handlers::Registered;
use super::incoming::Short;
use super::incoming_bytes::{End, IncomingBytes};
use super::open_messages::{OpenMessage, TaskId};
use super::runner::{NewMessage, Runner};
use crate::core::Charge;

/// Hands out the records of one delivery, in order.
pub(super) struct Dispatcher<'a> {
    runner: Runner<'a>,
    /// Nothing while a handler that reads in place has it.
    delivery: Option<Box<Delivery>>,
    due: Option<Due>,
}

/// The handler whose message has got bytes of this delivery and that was not polled since.
struct Due {
    task: TaskId,
    bytes: Rc<RefCell<IncomingBytes>>,
    /// The message, if more of it is to arrive.
    message: Option<MessageId>,
}

/// Where a record's data lies in the delivery.
#[derive(Clone, Copy)]
struct Data {
    item: usize,
    slot: usize,
    start: usize,
    end: usize,
}

impl Data {
    fn len(self) -> usize {
        self.end - self.start
    }
}

/// A record without its data, which stays in the delivery.
enum Step {
    Short { handler: usize },
    First { handler: usize, message: u32, total: u64 },
    More { message: u32, offset: u64 },
    Abort { message: u32 },
    Lend { handler: usize, number: u32, at: LoanLocation, len: u64 },
    LendMore { message: u32, offset: u64, number: u32, at: u64, len: u32 },
    Bad,
}

/// Bytes of a message, as a record names them.
#[derive(Clone, Copy)]
struct Part {
    message: MessageId,
    offset: u64,
}

impl<'a> Dispatcher<'a> {
    pub(super) fn new(runner: Runner<'a>, delivery: Box<Delivery>) -> Dispatcher<'a> {
        Dispatcher { runner, delivery: Some(delivery), due: None }
    }

    /// Runs the handlers of all records. Returns the number of items that were consumed, and their bytes.
    pub(super) fn run(&mut self) -> (usize, usize) {
        let count = self.delivery().items().len();
        let mut bytes = 0;
        for item in 0..count {
            bytes = self.run_item(item).saturating_add(bytes);
        }
        self.flush();
        (count, bytes)
    }

    /// Ends the dispatch.
    pub(super) fn into_delivery(self) -> Box<Delivery> {
        self.delivery.expect("handlers give it back")
    }

    #[inline]
    fn delivery(&self) -> &Delivery {
        self.delivery.as_ref().expect("no handler has it between records")
    }

    #[inline]
    fn bytes(&self, data: Data) -> &[u8] {
        &self.delivery().slot(data.item, data.slot)[data.start..data.end]
    }

    /// Handles the slots of an item, and returns their bytes and what they lend.
    #[inline]
    fn run_item(&mut self, item: usize) -> usize {
        let (mut slot, mut bytes) = (0, 0_usize);
        loop {
            if let Some(rest) = self.continue_message(item, slot) {
                return bytes.saturating_add(rest);
            }
            bytes = self.run_records((item, slot)).saturating_add(bytes);
            slot += 1;
            if slot == self.delivery().items()[item].slots() {
                return bytes;
            }
        }
    }

    /// Handles the slots of an item from `slot` on, if they do nothing but continue the message of the slot
    /// before them, as most slots of a long message do. Returns their bytes.
    #[inline]
    fn continue_message(&mut self, item: usize, slot: usize) -> Option<usize> {
        let due = self.due.as_mut().filter(|due| due.message.is_some())?;
        let delivery = self.delivery.as_ref().expect("no handler has it between records");
        let (message, offset, data) = as_more(delivery.slot(item, slot))?;
        let train = &delivery.items()[item];
        let (slots, len) = (train.slots() - slot, train.bytes_from(slot));
        let message = train.from().message(message);
        let total = len - slots * LONG_LEN;
        let mut bytes = due.bytes.borrow_mut();
        if due.message != Some(message) || !bytes.continues(offset, total) {
            return None;
        }
        bytes.arrive_train((item, slot), slots, data.len(), total);
        if bytes.is_complete() {
            due.message = None;
            self.runner.inbox.open.borrow_mut().remove(message);
        }
        Some(len)
    }

    fn run_records(&mut self, (item, slot): (usize, usize)) -> usize {
        let runner = self.runner;
        let (from, len) = (self.delivery().items()[item].from(), self.delivery().slot(item, slot).len());
        let (mut at, mut lent) = (0, 0_usize);
        while at < len {
            let (step, start, end) = read_step(self.delivery().slot(item, slot), at);
            let data = Data { item, slot, start, end };
            at = end;
            match step {
                Step::Short { handler } => self.short(from, handler, data),
                Step::First { handler, message, total } => {
                    self.first(from.message(message), handler, total, data);
                }
                Step::More { message, offset } => {
                    self.more(Part { message: from.message(message), offset }, data);
                }
                Step::Abort { message } => self.abort(from.message(message)),
                Step::Lend { handler, number, at, len } => {
                    lent = lent.saturating_add(len as usize);
                    self.flush();
                    match runner.core.node.borrow_loan(from, number, at, len) {
                        Some(loan) => {
                            runner.run_loan(handler, LoanGuard::new(runner.core, from.rank, loan));
                        }
                        None => runner.violation(from),
                    }
                }
                Step::LendMore { message, offset, number, at, len } => {
                    lent = lent.saturating_add(len as usize);
                    match runner.core.node.borrow_loan(from, number, LoanLocation::Pool(at), len.into()) {
                        Some(loan) => {
                            let loan = LoanGuard::new(runner.core, from.rank, loan);
                            self.more_lent(Part { message: from.message(message), offset }, loan);
                        }
                        None => runner.violation(from),
                    }
                }
                Step::Bad => {
                    self.flush();
                    runner.violation(from);
                    break;
                }
            }
        }
        len.saturating_add(lent)
    }

    /// A message of one frame.
    #[inline]
    fn short(&mut self, from: PeerId, handler: usize, data: Data) {
        let runner = self.runner;
        let core = runner.core;
        match runner.handler(handler) {
            Some(Registered::Short(function)) => {
                if self.due.is_some() {
                    self.flush();
                }
                let data = self.bytes(data);
                runner.call(handler, function, Short { core, from: from.rank, data });
            }
            Some(Registered::Whole(stream)) => {
                self.flush();
                let data = self.bytes(data);
                runner.run_whole(handler, stream, Short { core, from: from.rank, data });
            }
            Some(Registered::Stream(stream) | Registered::Loan(_, stream)) => {
                self.flush();
                let message = NewMessage { from: from.rank, id: None, total: data.len() as u64 };
                let task = runner.claim(handler, stream, message);
                let bytes = stream.with(|slots| slots.bytes(task.slot).clone());
                bytes.borrow_mut().arrive((data.item, data.slot), data.start, data.len());
                self.due = Some(Due { task, bytes, message: None });
                runner.start(stream, task);
                self.flush();
            }
            None => runner.violation(from),
        }
    }

    /// The first part of a message.
    fn first(&mut self, id: MessageId, handler: usize, total: u64, data: Data) {
        self.flush();
        let runner = self.runner;
        if runner.inbox.open.borrow().get(id).is_some() {
            return runner.violation(id.peer);
        }
        let whole = data.len() as u64 == total;
        match runner.handler(handler) {
            Some(Registered::Short(function)) => {
                let data = self.bytes(data);
                if whole {
                    let message = Short { core: runner.core, from: id.peer.rank, data };
                    runner.call(handler, function, message);
                } else if total <= tautline_node::limits::MAX_SHORT as u64 {
                    let (bytes, charge) = (Vec::new(), Charge::default());
                    runner.keep_open(id, OpenMessage::Collect { handler, bytes, total, charge });
                    let part = Part { message: id, offset: 0 };
                    self.more_without_task(part, data.len(), |to| copy_slice(to, data));
                } else {
                    runner.violation(id.peer);
                }
            }
            Some(Registered::Stream(stream) | Registered::Whole(stream) | Registered::Loan(_, stream)) => {
                let message = NewMessage { from: id.peer.rank, id: Some(id), total };
                let task = runner.claim(handler, stream, message);
                let bytes = stream.with(|slots| slots.bytes(task.slot).clone());
                bytes.borrow_mut().arrive((data.item, data.slot), data.start, data.len());
                if !whole {
                    runner.keep_open(id, OpenMessage::Task(task));
                }
                runner.start(stream, task);
                // What follows looks the message up: making the future may have finished it.
                self.due = Some(Due { task, bytes, message: None });
            }
            None => runner.violation(id.peer),
        }
    }

    /// A further part of a message.
    fn more(&mut self, part: Part, data: Data) {
        let runner = self.runner;
        let task = match runner.inbox.open.borrow().get(part.message) {
            Some(OpenMessage::Task(task)) => Some(*task),
            Some(_) => None,
            None => return runner.violation(part.message.peer),
        };
        let Some(task) = task else {
            self.flush();
            let data = self.bytes(data);
            return self.more_without_task(part, data.len(), |to| copy_slice(to, data));
        };
        if !self.is_due(task) {
            self.flush();
            // The handler may have finished in there.
            if !matches!(runner.inbox.open.borrow().get(part.message), Some(OpenMessage::Task(_))) {
                let data = self.bytes(data);
                return self.more_without_task(part, data.len(), |to| copy_slice(to, data));
            }
        }
        let Some(stream) = runner.stream_handler(task.handler) else { return };
        let bytes = stream.with(|slots| slots.bytes(task.slot).clone());
        let good = bytes.borrow().continues(part.offset, data.len());
        if good {
            bytes.borrow_mut().arrive((data.item, data.slot), data.start, data.len());
        }
        self.part_arrived(part, task, good, bytes);
    }

    fn is_due(&self, task: TaskId) -> bool {
        self.due.as_ref().is_some_and(|due| due.task == task)
    }

    /// As [`Dispatcher::more`], for bytes that stay in the sender's memory until the handler takes them.
    fn more_lent(&mut self, part: Part, loan: LoanGuard) {
        let runner = self.runner;
        let find_task = || match runner.inbox.open.borrow().get(part.message) {
            Some(OpenMessage::Task(task)) => Some(*task),
            _ => None,
        };
        // The handler is to take what lies in the delivery first; it may finish meanwhile.
        let has_delivered = |task: TaskId| {
            let stream = runner.stream_handler(task.handler);
            stream.is_some_and(|it| it.with(|slots| slots.bytes(task.slot).borrow().has_delivered()))
        };
        let mut task = find_task();
        if task.is_none_or(|task| !self.is_due(task) || has_delivered(task)) {
            self.flush();
            task = find_task();
        }
        let Some(task) = task else {
            if runner.inbox.open.borrow().get(part.message).is_none() {
                return runner.violation(part.message.peer);
            }
            let len = loan.len() as usize;
            return self.more_without_task(part, len, |to| {
                let start = to.len();
                to.resize(start + len, 0);
                loan.copy_to(0, &mut to[start..])
            });
        };
        let Some(stream) = runner.stream_handler(task.handler) else { return };
        let bytes = stream.with(|slots| slots.bytes(task.slot).clone());
        let good = bytes.borrow().continues(part.offset, loan.len() as usize);
        if good {
            bytes.borrow_mut().arrive_borrowed(loan);
        }
        self.part_arrived(part, task, good, bytes);
    }

    #[inline]
    fn part_arrived(&mut self, part: Part, task: TaskId, good: bool, bytes: Rc<RefCell<IncomingBytes>>) {
        if !good {
            return self.runner.violation(part.message.peer);
        }
        let complete = bytes.borrow().is_complete();
        if complete {
            self.runner.inbox.open.borrow_mut().remove(part.message);
        }
        self.due = Some(Due { task, bytes, message: (!complete).then_some(part.message) });
    }

    /// A further part of a message that no `async` handler reads; `copy` appends its `len` bytes, if they can
    /// be read.
    #[cold]
    fn more_without_task(&self, part: Part, len: usize, copy: impl FnOnce(&mut Vec<u8>) -> bool) {
        let runner = self.runner;
        let Part { message: id, offset } = part;
        let end = offset.saturating_add(len as u64);
        let mut open = runner.inbox.open.borrow_mut();
        match open.get_mut(id) {
            Some(OpenMessage::Discard(bytes)) => {
                if offset != bytes.arrived || end > bytes.total {
                    drop(open);
                    return runner.violation(id.peer);
                }
                bytes.arrived = end;
                let due = bytes.window_due(true);
                if bytes.arrived == bytes.total {
                    open.remove(id);
                }
                drop(open);
                if let Some(due) = due {
                    runner.grant(due);
                }
            }
            Some(OpenMessage::Collect { handler, bytes, total, charge }) => {
                if offset != bytes.len() as u64 || end > *total {
                    drop(open);
                    return runner.violation(id.peer);
                }
                let handler = *handler;
                if let Err(error) = charge.set(&runner.core.budgets, id.peer.rank, end) {
                    let rest = IncomingBytes::discarded(id, *total, end);
                    open.insert(id, OpenMessage::Discard(Box::new(rest)));
                    drop(open);
                    return runner.fail(handler, id.peer.rank, error.to_string(), false);
                }
                if copy(bytes) && end == *total {
                    let bytes = std::mem::take(bytes);
                    open.remove(id);
                    drop(open);
                    if let Some(Registered::Short(function)) = runner.handler(handler) {
                        let message = Short { core: runner.core, from: id.peer.rank, data: &bytes };
                        runner.call(handler, function, message);
                    }
                }
            }
            _ => {}
        }
    }

    #[cold]
    fn abort(&mut self, id: MessageId) {
        self.flush();
        self.runner.end_message(id, End::Aborted);
    }

    /// Polls the handler whose message has got bytes of this delivery, and lends it the delivery meanwhile.
    #[inline]
    fn flush(&mut self) {
        let Some(Due { task, bytes, .. }) = self.due.take() else { return };
        bytes.borrow_mut().lend(self.delivery.take().expect("no handler has it between records"));
        self.runner.poll(task);
        self.delivery = Some(bytes.borrow_mut().reclaim(&self.runner.core.budgets));
    }
}

fn copy_slice(to: &mut Vec<u8>, bytes: &[u8]) -> bool {
    to.extend_from_slice(bytes);
    true
}

/// Reads the record at `at`; returns it with the start and the end of its data.
#[inline]
fn read_step(bytes: &[u8], at: usize) -> (Step, usize, usize) {
    let mut records = Records::new(bytes, at);
    let (step, len) = match records.next() {
        Some(Ok(Record::Short { handler, data })) => (Step::Short { handler: handler.into() }, data.len()),
        Some(Ok(Record::First { handler, message, total, data })) => {
            (Step::First { handler: handler.into(), message, total }, data.len())
        }
        Some(Ok(Record::More { message, offset, data })) => (Step::More { message, offset }, data.len()),
        Some(Ok(Record::Abort { message })) => (Step::Abort { message }, 0),
        Some(Ok(Record::Loan { handler, number, at, len })) => {
            (Step::Lend { handler: handler.into(), number, at, len }, 0)
        }
        Some(Ok(Record::LoanMore { message, offset, number, at, len })) => {
            (Step::LendMore { message, offset, number, at, len }, 0)
        }
        _ => (Step::Bad, 0),
    };
    let end = records.position();
    (step, end - len, end)
}
