//! Whole messages from peers on this host, from the memory that is shared with them straight to their handlers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use tautline_node::wire::{Record, Records, Where, as_short};
use tautline_node::{FastPoll, FrameBatch};

use super::dispatch::{call, violation};
use super::handlers::{Registered, StreamHandler};
use super::incoming::Short;
use super::loan::{Held, Lent};
use super::tasks::{begin, panic_told, poll_task, run_whole, start_task};
use crate::Rank;
use crate::core::Core;

/// Bytes of a message up to which copying it once more costs less than the long way.
const COPIED: usize = 1 << 10;

/// Runs the handlers of whole messages from peers on this host as they are found, up to `limit` bytes. Whatever takes more than that is left to the long way. Returns how many bytes were taken; nothing if everything else is to be looked at.
#[inline]
pub(crate) fn frames(core: &Rc<Core>, limit: usize) -> crate::Result<Option<usize>> {
    // Nobody else has it: extraction is not entered twice.
    let mut taken = core.taken.borrow_mut();
    let mut bytes = 0;
    while bytes < limit {
        match core.node.take_frames(limit - bytes, &mut taken)? {
            FastPoll::Frames => {}
            FastPoll::Empty => return Ok(Some(bytes)),
            FastPoll::SlowPath => break,
        }
        let mut handled = 0;
        for frame in taken.small() {
            // What is lent counts as if it were there (M-8).
            if bytes >= limit {
                break;
            }
            let Some(took) = whole(core, &taken, frame) else { break };
            bytes = bytes.saturating_add(took);
            handled += 1;
        }
        if let Some(frame) = taken.long()
            && let Some(took) = whole(core, &taken, frame)
        {
            bytes += took;
            handled += 1;
        }
        if handled < taken.count() {
            core.node.put_back(&taken, handled)?;
            return Ok((bytes > 0).then_some(bytes));
        }
        if !taken.has_more() {
            // Looking again costs, and would find nothing.
            return Ok(Some(bytes));
        }
    }
    Ok((bytes > 0).then_some(bytes))
}

/// Runs the handler of a frame that is one whole message, and returns its bytes. Nothing if it is not, or is to be left to the long way.
#[inline]
fn whole(core: &Rc<Core>, taken: &FrameBatch, frame: &[u8]) -> Option<usize> {
    let Some((handler, data)) = as_short(frame) else { return other(core, taken, frame) };
    let from = taken.from().rank;
    match core.handlers.get(usize::from(handler)) {
        Some(Registered::Short(function)) => {
            call(core, handler.into(), function, Short { core, from, data });
            Some(frame.len())
        }
        Some(Registered::Whole(pool)) => {
            run_whole(core, handler.into(), pool, Short { core, from, data });
            Some(frame.len())
        }
        Some(Registered::Stream(pool)) if data.len() <= COPIED => {
            copied(core, handler.into(), pool, (from, data));
            Some(frame.len())
        }
        _ => None,
    }
}

/// Starts a handler with a message that is short enough to be copied for it: it may wait before it has taken all of it.
#[inline(never)]
fn copied(core: &Rc<Core>, handler: usize, pool: &StreamHandler, (from, data): (Rank, &[u8])) {
    let slot = begin(core, handler, pool, (from, None, data.len() as u64));
    pool.with(|p| p.stream(slot).borrow_mut().arrive_copied(data));
    start_task(core, handler, pool, slot);
    poll_task(core, handler, slot);
}

#[inline(never)]
fn other(core: &Rc<Core>, taken: &FrameBatch, frame: &[u8]) -> Option<usize> {
    match Records::new(frame, 0).next() {
        Some(Ok(Record::Lend { handler, number, at, len })) => {
            whole_lent(core, taken, handler.into(), (number, at, len))
                .then(|| frame.len().saturating_add(len as usize))
        }
        _ => None,
    }
}

/// Runs the handler of a frame that lends a message. False if it is to be left to the long way.
#[inline]
fn whole_lent(
    core: &Rc<Core>,
    taken: &FrameBatch,
    handler: usize,
    (number, at, len): (u32, Where, u64),
) -> bool {
    if core.handlers.get(handler).is_none_or(|registered| registered.stream().is_none()) {
        return false;
    }
    let Some(lease) = core.node.borrow_loan(taken.from(), number, at, len) else { return false };
    lent(core, handler, Held::new(core, taken.from().rank, lease));
    true
}

/// Hands a lent message to its handler.
pub(super) fn lent(core: &Rc<Core>, handler: usize, message: Held) {
    let from = message.from();
    if !message.can_be_read() {
        // Nobody has heard of it, so its sender may send it in another way.
        return message.refuse();
    }
    match core.handlers.get(handler) {
        Some(Registered::Lent(function, _)) if message.is_mapped() && !message.is_wanted_back() => {
            let message = Lent::shared(message);
            let result = catch_unwind(AssertUnwindSafe(|| (function.borrow_mut())(message)));
            core.handled.set(core.handled.get() + 1);
            if let Err(panic) = result {
                core.fail(handler, from, panic_told(panic), true);
            }
        }
        Some(Registered::Stream(pool) | Registered::Whole(pool) | Registered::Lent(_, pool)) => {
            let slot = begin(core, handler, pool, (from, None, message.len()));
            pool.with(|p| p.stream(slot).borrow_mut().arrive_whole(message));
            start_task(core, handler, pool, slot);
            poll_task(core, handler, slot);
            pool.with(|p| p.stream(slot).borrow_mut().settle());
        }
        // No correct peer lends to a handler that takes only short messages.
        Some(Registered::Short(_)) | None => violation(core, message.lender()),
    }
}
