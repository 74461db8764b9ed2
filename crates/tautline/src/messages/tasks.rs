//! Handlers under way: begun, polled, finished, and the room that they grant (M-5, M-7).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::task::Poll;

use tautline_node::limits::MAX_RUNNING;

use super::begun::Running;
use super::dispatch::keep;
use super::handlers::{Pool, StreamHandler};
use super::incoming::Short;
use crate::Rank;
use tautline_node::MessageId;

use crate::core::Core;

pub(super) fn begin(
    core: &Rc<Core>,
    handler: usize,
    pool: &StreamHandler,
    (from, incoming, total): (Rank, Option<MessageId>, u64),
) -> usize {
    core.live.set(core.live.get() + 1);
    pool.with(|p| {
        let (slot, stream) = p.claim(handler, core);
        stream.borrow_mut().restart(from, incoming, total, window(core, from, total));
        slot
    })
}

/// Makes the handler's future; its code runs at the first poll, but making it may run code, too, and so may panic.
pub(super) fn start_task(core: &Rc<Core>, handler: usize, pool: &StreamHandler, slot: usize) {
    start_with(core, handler, pool, slot, |p, crowded| p.begin(slot, core, crowded));
}

#[inline]
fn start_with(
    core: &Rc<Core>,
    handler: usize,
    pool: &StreamHandler,
    slot: usize,
    start: impl FnOnce(&mut dyn Pool, bool),
) {
    let crowded = core.live.get() > MAX_RUNNING;
    if crowded && !pool.with(|p| p.tells()) {
        let why = format!("more than {MAX_RUNNING} handlers are suspended; the message was dropped");
        return finish(core, handler, slot, Err((why, false)));
    }
    let result = pool.with(|p| catch_unwind(AssertUnwindSafe(|| start(p, crowded))));
    if let Err(panic) = result {
        finish(core, handler, slot, Err((panic_told(panic), true)));
    }
}

/// Runs a handler on a message that is there as a whole, where it lies, as far as it gets.
pub(super) fn run_whole(core: &Rc<Core>, handler: usize, pool: &StreamHandler, message: Short<'_>) {
    // The message is not the slot's, so there is nothing of it to wait for or to pass over.
    let slot = begin(core, handler, pool, (message.from, None, 0));
    start_with(core, handler, pool, slot, |p, crowded| p.begin_whole(slot, message, crowded));
    poll_task(core, handler, slot);
}

/// Polls one handler.
pub(crate) fn poll_task(core: &Rc<Core>, handler: usize, slot: usize) {
    let Some(pool) = core.handlers[handler].stream() else { return };
    let result = pool.with(|p| catch_unwind(AssertUnwindSafe(|| p.poll(slot))));
    match result {
        Ok(None) => {}
        Ok(Some(Poll::Pending)) => {
            let due = pool.with(|p| p.stream(slot).borrow_mut().window_due(false));
            if let Some((incoming, limit)) = due {
                grant(core, incoming, limit);
            }
        }
        Ok(Some(Poll::Ready(Ok(())))) => finish(core, handler, slot, Ok(())),
        Ok(Some(Poll::Ready(Err(error)))) => finish(core, handler, slot, Err((error.to_string(), false))),
        Err(panic) => finish(core, handler, slot, Err((panic_told(panic), true))),
    }
}

/// A handler has come to its end, in whatever way; the rest of its message, if any, is passed over (M-7).
fn finish(core: &Rc<Core>, handler: usize, slot: usize, result: Result<(), (String, bool)>) {
    let Some(pool) = core.handlers[handler].stream() else { return };
    let (from, rest) = pool.with(|p| {
        let mut stream = p.stream(slot).borrow_mut();
        let from = stream.from;
        let incomplete = stream.arrived < stream.total && stream.end.is_none();
        let rest = stream.incoming.filter(|_| incomplete).map(|incoming| (incoming, stream.rest()));
        stream.generation += 1;
        stream.drop_held();
        (from, rest)
    });
    // Dropping the future runs the program's code, too.
    let dropped = pool.with(|p| catch_unwind(AssertUnwindSafe(|| p.free(slot))));
    core.handled.set(core.handled.get() + 1);
    core.live.set(core.live.get().saturating_sub(1));
    if let Some((incoming, mut rest)) = rest {
        let due = rest.window_due(true);
        keep(core, incoming, Running::Discard(Box::new(rest)));
        if let Some((incoming, limit)) = due {
            grant(core, incoming, limit);
        }
    }
    if let Err((reason, panicked)) = result {
        core.fail(handler, from, reason, panicked);
    } else if let Err(panic) = dropped {
        core.fail(handler, from, panic_told(panic), true);
    }
}

/// Bytes of a message that its sender may send before more is granted.
fn window(core: &Core, from: Rank, total: u64) -> u64 {
    let config = core.node.config();
    let least = u64::from(config.link.message_window.min(config.local_window));
    if total <= least {
        return least;
    }
    core.node.first_window(from).unwrap_or(least)
}

pub(super) fn grant(core: &Core, incoming: MessageId, limit: u64) {
    let refused = || matches!(core.node.grant_window(incoming, limit), Ok(false));
    if !refused() {
        return;
    }
    let Ok(seen) = core.node.activity() else { return };
    if refused() {
        core.tried(seen);
        core.grants.borrow_mut().push((incoming, limit));
    }
}

/// Tries again what there was no slot for.
pub(crate) fn retry_grants(core: &Core) {
    if !core.grants.borrow().is_empty() {
        let grants = std::mem::take(&mut *core.grants.borrow_mut());
        for (incoming, limit) in grants {
            grant(core, incoming, limit);
        }
    }
}

/// What a panic said. Dropping what it was raised with runs the program's code, too.
#[cold]
pub(crate) fn panic_told(panic: Box<dyn std::any::Any + Send>) -> String {
    let text = panic_text(&*panic);
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        // Enough is enough.
        std::mem::forget(another);
    }
    text
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panicked".to_owned())
}
