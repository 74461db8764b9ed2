//! The count of fires that tripwires and tripsets share, and the ways to wait for it.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tautline_node::memory::{Wakeup, WireCell};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::waiters::Waiter;
use crate::waiting::{OnDrop, wait_until};

/// How often a tripwire has fired, or a tripset was ready, and how much of that its holder has taken.
#[derive(Debug)]
pub(super) struct FireCounter {
    core: Rc<Core>,
    cell: Arc<WireCell>,
    taken: u64,
    /// What the node reports when it counts: a tripwire or a tripset.
    what: Wakeup,
    /// Why it counts no more, once it does not.
    disarmed: &'static str,
    /// Woken when a peer goes down.
    peers: Waiter,
}

impl FireCounter {
    pub(super) fn new(
        core: Rc<Core>,
        cell: Arc<WireCell>,
        what: Wakeup,
        disarmed: &'static str,
    ) -> FireCounter {
        FireCounter { core, cell, taken: 0, what, disarmed, peers: Waiter::default() }
    }

    pub(super) fn core(&self) -> &Core {
        &self.core
    }

    /// Fires since the beginning.
    #[inline]
    pub(super) fn count(&self) -> u64 {
        self.cell.fires()
    }

    /// Whether it counts no more.
    pub(super) fn is_over(&self) -> bool {
        self.cell.is_over()
    }

    /// Fires since the last call.
    #[inline]
    pub(super) fn take(&mut self) -> u64 {
        let count = self.cell.fires();
        count - std::mem::replace(&mut self.taken, count)
    }

    /// Extracts and waits until there are fires to take, or `timeout` has passed. Without a timeout, the loss
    /// of the last reachable peer is an error, once. If nothing more will be counted, that is an error every
    /// time.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> Result<u64> {
        let core = &self.core;
        let fired = || self.cell.fires() > self.taken;
        // Messages that have not been taken, and unfinished handlers, may still cause a fire.
        let last_peer_lost = || {
            timeout.is_none()
                && core.extraction.unfinished() == 0
                && core.peer_loss.unreported().is_some()
                && core.node.has_slots().is_ok_and(|slots| !slots)
        };
        if !last_peer_lost() {
            wait_until(core, timeout, || fired() || self.cell.is_over(), last_peer_lost)?;
        }
        if fired() {
            return Ok(self.take());
        }
        if self.cell.is_over() {
            return Err(Error::Disarmed(self.disarmed));
        }
        if last_peer_lost()
            && let Some(lost) = core.peer_loss.take_unreported()
        {
            return Err(lost.into());
        }
        Ok(self.take())
    }

    /// As [`FireCounter::wait`], suspended. The loss of the last reachable peer is an error for every waiter.
    pub(super) async fn fired(&mut self) -> Result<u64> {
        let losses = self.core.peer_loss.count();
        let waiting = OnDrop(|| self.stop_waiting());
        poll_fn(|context| self.poll_fired(losses, context)).await?;
        drop(waiting);
        Ok(self.take())
    }

    fn poll_fired(&self, losses: u64, context: &Context<'_>) -> Poll<Result<()>> {
        if let Some(result) = self.result(losses) {
            return Poll::Ready(result);
        }
        if let Err(error) = self.register(context) {
            return Poll::Ready(Err(error));
        }
        // It may have fired just before it was registered.
        self.result(losses).map_or(Poll::Pending, Poll::Ready)
    }

    /// Whether waiting is over. `losses`: how often the last reachable peer had gone when the wait began.
    fn result(&self, losses: u64) -> Option<Result<()>> {
        if self.cell.fires() > self.taken {
            return Some(Ok(()));
        }
        if self.cell.is_over() {
            return Some(Err(Error::Disarmed(self.disarmed)));
        }
        if let Err(closed) = self.core.check_open() {
            return Some(Err(closed.into()));
        }
        let lost = self.core.peer_loss.since(losses)?;
        // A peer may have come back since.
        self.core.node.all_peers_lost().then(|| Err(lost.into()))
    }

    /// Wakes `context` at the next fire, and when a peer goes down.
    pub(super) fn register(&self, context: &Context<'_>) -> Result<()> {
        match self.what {
            Wakeup::Wire(wire) => self.core.node.await_wire(wire)?,
            Wakeup::Set(set) => self.core.node.await_set(set)?,
            Wakeup::Op(_) => {}
        }
        self.core.waits.register_memory(self.what, context);
        self.core.waits.peers.register(&self.peers, context);
        Ok(())
    }

    fn stop_waiting(&self) {
        self.core.waits.peers.remove(&self.peers);
        self.core.waits.remove_memory(self.what);
    }
}

impl Drop for FireCounter {
    fn drop(&mut self) {
        self.stop_waiting();
    }
}
