//! From delivered slots to running handlers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use tautline_node::wire::{Record, Records, Where};
use tautline_node::{Delivery, MessageId, PeerId};

use super::begun::Running;
use super::handlers::{Plain, Registered};
use super::incoming::Short;
use super::loan::Held;
use super::stream::End;
use super::tasks::{begin, grant, panic_told, poll_task, run_whole, start_task};
use super::whole::lent;
use crate::core::Core;

/// A handler's slot whose message has got new bytes in the current delivery.
type Run = Option<(usize, usize)>;

/// One record without its data, which stays where it is: `start` and `len` say where.
enum Step {
    Short { handler: usize },
    First { handler: usize, message: u32, total: u64 },
    More { message: u32, offset: u64 },
    Abort { message: u32 },
    Lend { handler: usize, number: u32, at: Where, len: u64 },
    LendMore { message: u32, offset: u64, number: u32, at: u64, len: u32 },
    Bad,
}

/// Runs the handlers of all records in a delivery, in order. Returns how many slots were dealt with, and their bytes.
pub(crate) fn dispatch(core: &Rc<Core>, delivery: &mut Option<Box<Delivery>>) -> (usize, usize) {
    let count = delivery.as_ref().map_or(0, |d| d.items().len());
    let mut bytes = 0;
    let mut run = None;
    for item in 0..count {
        bytes = dispatch_slot(core, delivery, item, &mut run).saturating_add(bytes);
    }
    flush(core, delivery, &mut run);
    (count, bytes)
}

fn dispatch_slot(core: &Rc<Core>, delivery: &mut Option<Box<Delivery>>, item: usize, run: &mut Run) -> usize {
    let (from, len) = {
        let delivery = delivery.as_ref().expect("at rest between records");
        let it = &delivery.items()[item];
        (it.from(), delivery.bytes(item).len())
    };
    let (mut at, mut lent_bytes) = (0, 0_usize);
    while at < len {
        let (step, start, end) = {
            let bytes = delivery.as_ref().expect("at rest between records").bytes(item);
            read_step(bytes, at)
        };
        at = end;
        match step {
            Step::Short { handler } => {
                short(core, delivery, run, (from, handler), (item, start, end));
            }
            Step::First { handler, message, total } => {
                let incoming = from.message(message);
                first(core, delivery, run, (incoming, handler, total), (item, start, end));
            }
            Step::More { message, offset } => {
                let incoming = from.message(message);
                more(core, delivery, run, (incoming, offset), (item, start, end));
            }
            Step::Abort { message } => abort(core, delivery, run, from.message(message)),
            Step::Lend { handler, number, at, len } => {
                lent_bytes = lent_bytes.saturating_add(len as usize);
                flush(core, delivery, run);
                if let Some(lease) = core.node.borrow_loan(from, number, at, len) {
                    lent(core, handler, Held::new(core, from.rank, lease));
                } else {
                    violation(core, from);
                }
            }
            Step::LendMore { message, offset, number, at, len } => {
                lent_bytes = lent_bytes.saturating_add(len as usize);
                match core.node.borrow_loan(from, number, Where::Pool(at), len.into()) {
                    Some(lease) => {
                        let held = Held::new(core, from.rank, lease);
                        more_lent(core, delivery, run, (from.message(message), offset), held);
                    }
                    None => violation(core, from),
                }
            }
            Step::Bad => {
                flush(core, delivery, run);
                violation(core, from);
                break;
            }
        }
    }
    len.saturating_add(lent_bytes)
}

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
        Some(Ok(Record::Lend { handler, number, at, len })) => {
            (Step::Lend { handler: handler.into(), number, at, len }, 0)
        }
        Some(Ok(Record::LendMore { message, offset, number, at, len })) => {
            (Step::LendMore { message, offset, number, at, len }, 0)
        }
        _ => (Step::Bad, 0),
    };
    let end = records.position();
    (step, end - len, end)
}

/// A peer sent, under its own authentication, what no correct peer sends: its channel ends.
pub(super) fn violation(core: &Core, from: PeerId) {
    let _ = core.node.report_violation(from);
}

#[inline]
fn short(
    core: &Rc<Core>,
    delivery: &mut Option<Box<Delivery>>,
    run: &mut Run,
    (from, handler): (PeerId, usize),
    (item, start, end): (usize, usize, usize),
) {
    match core.handlers.get(handler) {
        Some(Registered::Short(function)) => {
            if run.is_some() {
                flush(core, delivery, run);
            }
            let data = &delivery.as_ref().expect("at rest between records").bytes(item)[start..end];
            call(core, handler, function, Short { core, from: from.rank, data });
        }
        Some(Registered::Whole(pool)) => {
            flush(core, delivery, run);
            let data = &delivery.as_ref().expect("at rest between records").bytes(item)[start..end];
            run_whole(core, handler, pool, Short { core, from: from.rank, data });
        }
        Some(Registered::Stream(pool) | Registered::Lent(_, pool)) => {
            flush(core, delivery, run);
            let slot = begin(core, handler, pool, (from.rank, None, (end - start) as u64));
            pool.with(|p| p.stream(slot).borrow_mut().arrive(item, start, end - start));
            *run = Some((handler, slot));
            start_task(core, handler, pool, slot);
            flush(core, delivery, run);
        }
        None => violation(core, from),
    }
}

/// Calls a plain handler; a panic is a failure of that message alone (M-7).
// The message is made where the handler finds it: copied, it would be read before it is through the store buffer.
#[inline(always)]
pub(super) fn call(core: &Core, handler: usize, function: &Plain, message: Short<'_>) {
    let from = message.from;
    let result = catch_unwind(AssertUnwindSafe(|| (function.borrow_mut())(message)));
    core.handled.set(core.handled.get() + 1);
    if let Err(panic) = result {
        core.fail(handler, from, panic_told(panic), true);
    }
}

fn first(
    core: &Rc<Core>,
    delivery: &mut Option<Box<Delivery>>,
    run: &mut Run,
    (incoming, handler, total): (MessageId, usize, u64),
    (item, start, end): (usize, usize, usize),
) {
    flush(core, delivery, run);
    if core.running.borrow().get(incoming).is_some() {
        return violation(core, incoming.peer);
    }
    let whole = (end - start) as u64 == total;
    match core.handlers.get(handler) {
        Some(Registered::Short(function)) => {
            let data = &delivery.as_ref().expect("at rest between records").bytes(item)[start..end];
            if whole {
                call(core, handler, function, Short { core, from: incoming.peer.rank, data });
            } else if total <= tautline_node::limits::MAX_SHORT as u64 {
                let bytes = data.to_vec();
                keep(core, incoming, Running::Collect { handler, bytes, total });
            } else {
                violation(core, incoming.peer);
            }
        }
        Some(Registered::Stream(pool) | Registered::Whole(pool) | Registered::Lent(_, pool)) => {
            let slot = begin(core, handler, pool, (incoming.peer.rank, Some(incoming), total));
            pool.with(|p| p.stream(slot).borrow_mut().arrive(item, start, end - start));
            if !whole {
                keep(core, incoming, Running::Task { handler, slot });
            }
            start_task(core, handler, pool, slot);
            *run = Some((handler, slot));
        }
        None => violation(core, incoming.peer),
    }
}

/// The rest of a message is to come (M-10).
pub(super) fn keep(core: &Core, incoming: MessageId, running: Running) {
    let good = core.running.borrow_mut().insert(incoming, running);
    if !good {
        violation(core, incoming.peer);
    }
}

#[inline]
fn more(
    core: &Rc<Core>,
    delivery: &mut Option<Box<Delivery>>,
    run: &mut Run,
    (incoming, offset): (MessageId, u64),
    (item, start, end): (usize, usize, usize),
) {
    let len = end - start;
    let target = match core.running.borrow().get(incoming) {
        Some(Running::Task { handler, slot }) => Some((*handler, *slot)),
        Some(_) => None,
        None => return violation(core, incoming.peer),
    };
    let Some((handler, slot)) = target else {
        flush(core, delivery, run);
        let data = &delivery.as_ref().expect("at rest between records").bytes(item)[start..end];
        return more_without_task(core, incoming, offset, data);
    };
    if *run != Some((handler, slot)) {
        flush(core, delivery, run);
        // The handler may have ended in there.
        if !matches!(core.running.borrow().get(incoming), Some(Running::Task { .. })) {
            let data = &delivery.as_ref().expect("at rest between records").bytes(item)[start..end];
            return more_without_task(core, incoming, offset, data);
        }
    }
    let Some(pool) = core.handlers[handler].stream() else { return };
    let (good, complete) = pool.with(|p| {
        let mut stream = p.stream(slot).borrow_mut();
        let good = offset == stream.arrived && offset + len as u64 <= stream.total;
        if good {
            stream.arrive(item, start, len);
        }
        (good, stream.arrived == stream.total)
    });
    if !good {
        return violation(core, incoming.peer);
    }
    if complete {
        core.running.borrow_mut().remove(incoming);
    }
    *run = Some((handler, slot));
}

/// As [`more`], for bytes that stay where they are until the handler takes them.
fn more_lent(
    core: &Rc<Core>,
    delivery: &mut Option<Box<Delivery>>,
    run: &mut Run,
    (incoming, offset): (MessageId, u64),
    held: Held,
) {
    let task = || match core.running.borrow().get(incoming) {
        Some(Running::Task { handler, slot }) => Some((*handler, *slot)),
        _ => None,
    };
    // What waits in the delivery comes first; polling the handler may end it.
    let waits = |(handler, slot): (usize, usize)| {
        core.handlers[handler]
            .stream()
            .is_some_and(|pool| pool.with(|p| p.stream(slot).borrow().has_ranges()))
    };
    let mut target = task();
    if *run != target || target.is_some_and(waits) {
        flush(core, delivery, run);
        target = task();
    }
    let Some((handler, slot)) = target else {
        if core.running.borrow().get(incoming).is_none() {
            return violation(core, incoming.peer);
        }
        let mut bytes = vec![0; held.len() as usize];
        if held.copy_to(0, &mut bytes) {
            more_without_task(core, incoming, offset, &bytes);
        }
        return;
    };
    let Some(pool) = core.handlers[handler].stream() else { return };
    let (good, complete) = pool.with(|p| {
        let mut stream = p.stream(slot).borrow_mut();
        let good = offset == stream.arrived && offset + held.len() <= stream.total;
        if good {
            stream.arrive_held(held);
        }
        (good, stream.arrived == stream.total)
    });
    if !good {
        return violation(core, incoming.peer);
    }
    if complete {
        core.running.borrow_mut().remove(incoming);
    }
    *run = Some((handler, slot));
}

#[cold]
fn more_without_task(core: &Rc<Core>, incoming: MessageId, offset: u64, data: &[u8]) {
    let mut running = core.running.borrow_mut();
    match running.get_mut(incoming) {
        Some(Running::Discard(stream)) => {
            if offset != stream.arrived || offset + data.len() as u64 > stream.total {
                drop(running);
                return violation(core, incoming.peer);
            }
            stream.arrived += data.len() as u64;
            let due = stream.window_due(true);
            if stream.arrived == stream.total {
                running.remove(incoming);
            }
            drop(running);
            if let Some((incoming, limit)) = due {
                grant(core, incoming, limit);
            }
        }
        Some(Running::Collect { handler, bytes, total }) => {
            if offset != bytes.len() as u64 || offset + data.len() as u64 > *total {
                drop(running);
                return violation(core, incoming.peer);
            }
            bytes.extend_from_slice(data);
            if bytes.len() as u64 == *total {
                let (handler, bytes) = (*handler, std::mem::take(bytes));
                running.remove(incoming);
                drop(running);
                if let Registered::Short(function) = &core.handlers[handler] {
                    call(core, handler, function, Short { core, from: incoming.peer.rank, data: &bytes });
                }
            }
        }
        _ => {}
    }
}

#[cold]
fn abort(core: &Rc<Core>, delivery: &mut Option<Box<Delivery>>, run: &mut Run, incoming: MessageId) {
    flush(core, delivery, run);
    end_message(core, incoming, End::Aborted);
}

/// No more bytes of a message will come; its handler is told when it asks for them.
pub(super) fn end_message(core: &Rc<Core>, incoming: MessageId, end: End) {
    let running = core.running.borrow_mut().remove(incoming);
    if let Some(Running::Task { handler, slot }) = running {
        let Some(pool) = core.handlers[handler].stream() else { return };
        pool.with(|p| p.stream(slot).borrow_mut().end = Some(end));
        poll_task(core, handler, slot);
    }
}

/// Polls the handler whose message has got bytes in this delivery, with the delivery lent to it.
#[inline]
fn flush(core: &Rc<Core>, delivery: &mut Option<Box<Delivery>>, run: &mut Run) {
    let Some((handler, slot)) = run.take() else { return };
    let Some(pool) = core.handlers[handler].stream() else { return };
    let stream = pool.with(|p| p.stream(slot).clone());
    stream.borrow_mut().lend(delivery.take().expect("at rest between records"));
    poll_task(core, handler, slot);
    *delivery = Some(stream.borrow_mut().reclaim());
}
