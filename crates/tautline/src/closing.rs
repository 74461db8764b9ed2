//! Closing from a task: a thread of its own waits for the node, and the task is suspended meanwhile.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::core::Core;
use crate::error::Result;
use crate::waiters::Waiter;
use crate::{SendError, Undelivered};

/// As [`crate::Endpoint::close_within`], for tasks of an executor. Something has to extract until the first
/// poll after everything that was started is sent.
pub(crate) async fn close(core: &Rc<Core>, time: Duration) -> Result<()> {
    core.check_not_in_handler()?;
    if core.is_closed() || core.node.is_virtual() {
        return core.close(time);
    }
    let progress = Arc::new(Progress::default());
    let (thread, node) = (progress.clone(), core.node.clone());
    let until = Instant::now().checked_add(time);
    let run = move || thread.run(&node, until);
    if std::thread::Builder::new().name("tautline-close".into()).spawn(run).is_err() {
        return core.close(time);
    }
    let close = Close { core, progress, unsent: Vec::new(), begun: false, waiter: Waiter::default() };
    close.await
}

#[derive(Default)]
struct Progress {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    phase: Phase,
    waker: Option<Waker>,
}

#[derive(Default)]
enum Phase {
    /// The task waits until everything that was started is sent.
    #[default]
    Sending,
    /// The time for that is over.
    Due,
    /// The node is being closed.
    Closing,
    Closed(Result<Vec<Undelivered>, SendError>),
    /// The task is no longer there.
    Dropped,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the thread does.
    fn run(&self, node: &tautline_node::Endpoint, until: Option<Instant>) {
        let left = || until.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        let sending = |state: &mut State| matches!(state.phase, Phase::Sending);
        let waited = self.changed.wait_timeout_while(self.lock(), left(), sending);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if matches!(state.phase, Phase::Sending) {
            state.phase = Phase::Due;
            state.waker.take().into_iter().for_each(Waker::wake);
        }
        let due = |state: &mut State| matches!(state.phase, Phase::Due);
        let state = self.changed.wait_while(state, due).unwrap_or_else(PoisonError::into_inner);
        if matches!(state.phase, Phase::Dropped) {
            return;
        }
        drop(state);
        let closed = node.close_within(left());
        let mut state = self.lock();
        state.phase = Phase::Closed(closed);
        state.waker.take().into_iter().for_each(Waker::wake);
    }

    fn set(&self, phase: Phase) {
        self.lock().phase = phase;
        self.changed.notify_one();
    }
}

struct Close<'a> {
    core: &'a Rc<Core>,
    progress: Arc<Progress>,
    unsent: Vec<Undelivered>,
    /// The endpoint is closed, and the node may be.
    begun: bool,
    waiter: Waiter,
}

impl Future for Close<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        let mut state = this.progress.lock();
        state.waker = Some(context.waker().clone());
        if !this.begun {
            if matches!(state.phase, Phase::Sending) {
                // Registered before the question: what is sent afterwards wakes.
                this.core.outbox.emptied.register(&this.waiter, context);
                this.core.shared.set_closing(Some(context.waker()));
                if this.core.has_unsent() {
                    return Poll::Pending;
                }
            }
            drop(state);
            this.begun = true;
            this.unsent = this.core.begin_close();
            this.progress.set(Phase::Closing);
            return Poll::Pending;
        }
        if !matches!(state.phase, Phase::Closed(_)) {
            return Poll::Pending;
        }
        let Phase::Closed(closed) = std::mem::replace(&mut state.phase, Phase::Dropped) else {
            unreachable!()
        };
        drop(state);
        Poll::Ready(this.core.end_close(std::mem::take(&mut this.unsent), closed))
    }
}

impl Drop for Close<'_> {
    /// A close that was not awaited to its end: before the node began to close, the endpoint stays open;
    /// afterwards the thread goes on, and nobody learns how it ended.
    fn drop(&mut self) {
        self.core.outbox.emptied.remove(&self.waiter);
        let finished = matches!(self.progress.lock().phase, Phase::Dropped);
        if !self.begun {
            self.progress.set(Phase::Dropped);
        } else if !finished {
            let _ = self.core.end_close(Vec::new(), Ok(Vec::new()));
        }
    }
}
