//! Calls that extract while they wait.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake};
use std::thread::ThreadId;

use tautline_node::WaitFor;

use crate::core::{Core, Wakes};
use crate::error::Result;

/// What a step of [`extract_until`] has found.
pub(crate) enum Step<T> {
    Done(T),
    /// Extract and call again when something has happened.
    Wait,
    /// The same; room to send is something that happens.
    WaitForRoom,
}

/// Extracts and waits until `step` is done. It is called after every extraction, with the number of bytes
/// that were taken.
pub(crate) fn extract_until<T>(core: &Rc<Core>, mut step: impl FnMut(usize) -> Result<Step<T>>) -> Result<T> {
    core.check_not_in_handler()?;
    core.check_open()?;
    loop {
        core.node.clear_signal();
        let taken = core.extract(usize::MAX)?;
        // Read before the step: what happens after its attempts is reason to try again.
        let seen = core.node.activity()?;
        let wants_room = match step(taken)? {
            Step::Done(value) => return Ok(value),
            Step::Wait => false,
            Step::WaitForRoom => true,
        };
        if taken > 0 || core.has_work() {
            continue;
        }
        core.failures.log_unread();
        let blocked = wants_room.then_some(seen);
        let activity =
            core.blocked_since().map_or(blocked, |since| Some(blocked.map_or(since, |b| b.min(since))));
        core.node.wait(None, WaitFor { activity, memory: None })?;
    }
}

/// Polls a future, extracts and waits until it is ready.
pub(crate) fn block_on<F: Future>(core: &Rc<Core>, future: F) -> Result<F::Output> {
    core.check_not_in_handler()?;
    core.check_open()?;
    let mut future = pin!(future);
    let signal = Arc::new(Signal {
        woken: AtomicBool::new(true),
        home: std::thread::current().id(),
        wakes: core.wakes.clone(),
    });
    let waker = signal.clone().into();
    loop {
        // Cleared before the poll: a wake-up from now on leads to another one.
        if signal.woken.swap(false, Ordering::AcqRel)
            && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker))
        {
            return Ok(output);
        }
        let taken = core.extract(usize::MAX)?;
        if taken > 0 || signal.woken.load(Ordering::Acquire) {
            continue;
        }
        if core.failures.end_waits() {
            core.check_failures()?;
        }
        // Another thread that wakes the future leaves work behind, or ends this.
        core.sleep(None)?;
    }
}

/// Wakes the future of a [`block_on`].
struct Signal {
    woken: AtomicBool,
    home: ThreadId,
    wakes: Arc<Wakes>,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        // The endpoint's thread reads `woken` before it sleeps.
        if std::thread::current().id() != self.home {
            self.wakes.wake_program();
        }
    }
}
