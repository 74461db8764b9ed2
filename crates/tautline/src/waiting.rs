//! Ways to wait: for room, blocking or as a future; for a peer to serve requests; for anything, extracting or
//! as a future.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tautline_node::WaitFor;

use crate::blocking::Step;
use crate::core::Core;
use crate::error::Result;
use crate::waiters::Waiter;
use crate::{Address, PeerState, Rank, SendError};

/// A blocking call that has waited this long for room logs a warning.
pub(crate) const STALL: Duration = Duration::from_secs(3);

/// Repeats `attempt` until it does not block; in between, waits for the network and runs no handlers. In a
/// handler it would stop extraction, so that is an error; and so is a message to oneself for which only
/// extraction makes room.
pub(crate) fn block_until_room<T>(core: &Core, peer: Rank, attempt: impl FnMut() -> Result<T>) -> Result<T> {
    block_or_warn(core, peer, attempt, || {
        tracing::warn!(
            rank = core.node.rank(),
            peer,
            "a blocking call has found no room for {STALL:?}: {} does not extract, or waits for this rank to \
             extract",
            Address::from(peer)
        );
    })
}

/// As [`block_until_room`]; calls `warn` once if the peer is connected and there is no room for some seconds.
pub(crate) fn block_or_warn<T>(
    core: &Core,
    peer: Rank,
    mut attempt: impl FnMut() -> Result<T>,
    warn: impl FnOnce(),
) -> Result<T> {
    let mut warn = Some(warn);
    let mut since = None;
    loop {
        let seen = core.node.activity()?;
        match attempt() {
            Err(error) if error.is_would_block() => {
                if core.node.is_virtual() {
                    return Err(error);
                }
                if core.node.waits_for_extraction(peer)? {
                    // Slots may have become free since the attempt.
                    if core.node.activity()? == seen {
                        return Err(error);
                    }
                    continue;
                }
                core.check_not_in_handler()?;
            }
            result => return result,
        }
        core.failures.log_unread();
        let now = core.node.now();
        let mut waited = Duration::from_nanos(now.saturating_sub(*since.get_or_insert(now)));
        if waited >= STALL && core.node.peer_state(peer) != Some(PeerState::Up) {
            // It waits for the connection, which has a time limit of its own.
            (since, waited) = (Some(now), Duration::ZERO);
        }
        if waited >= STALL
            && let Some(warn) = warn.take()
        {
            warn();
        }
        let until_warning = warn.is_some().then(|| STALL.saturating_sub(waited));
        core.node.wait_for_activity(seen, until_warning)?;
    }
}

/// As [`block_until_room`], for requests to a node's memory. Requests to one's own are served as the node
/// polls. If answers are queued behind messages that this program has to extract first, that is an error
///
pub(crate) fn block_until_served<T>(
    core: &Core,
    owner: Rank,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    loop {
        let seen = core.node.activity()?;
        let result = block_until_room(core, owner, || match attempt() {
            Err(error) if error.is_would_block() && core.node.is_clogged(owner) => {
                Err(SendError::Unextracted(owner).into())
            }
            result => result,
        });
        let own = owner == core.node.number() && !core.node.is_virtual();
        match result {
            Err(error) if own && error.is_would_block() => {
                core.node.progress()?;
                // Messages to oneself are queued before it.
                if core.node.activity()? == seen {
                    return Err(error);
                }
            }
            result => return result,
        }
    }
}

/// Repeats `attempt` until it does not block; in between, the handler is suspended.
pub(crate) async fn until_room<T>(core: &Core, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let waiter = RoomWaiter { core, waiter: Waiter::default() };
    poll_fn(|context| poll_room(core, &waiter.waiter, context, &mut attempt)).await
}

/// One step of [`until_room`]: if `attempt` blocks, `context` is woken when it may succeed.
pub(crate) fn poll_room<T>(
    core: &Core,
    waiter: &Waiter,
    context: &Context<'_>,
    attempt: impl FnOnce() -> Result<T>,
) -> Poll<Result<T>> {
    let seen = match core.node.activity() {
        Ok(seen) => seen,
        Err(error) => return Poll::Ready(Err(error.into())),
    };
    match attempt() {
        Err(error) if error.is_would_block() => {
            core.waits.tried(seen);
            core.waits.room.register(waiter, context);
            Poll::Pending
        }
        result => Poll::Ready(result),
    }
}

/// As [`extract_until`](crate::blocking::extract_until), for a task: something else extracts, and the task is
/// suspended meanwhile.
pub(crate) async fn suspend_until<T>(
    core: &Core,
    mut step: impl FnMut(usize) -> Result<Step<T>>,
) -> Result<T> {
    let suspended =
        Suspended { core, turn: Waiter::default(), peers: Waiter::default(), room: Waiter::default() };
    poll_fn(|context| suspended.poll(context, &mut step)).await
}

/// What a suspended task waits for. Leaves all lists when it is dropped.
struct Suspended<'a> {
    core: &'a Core,
    turn: Waiter,
    peers: Waiter,
    room: Waiter,
}

impl Suspended<'_> {
    fn poll<T>(
        &self,
        context: &Context<'_>,
        step: &mut impl FnMut(usize) -> Result<Step<T>>,
    ) -> Poll<Result<T>> {
        let Suspended { core, turn, peers, room } = self;
        core.check_open()?;
        let seen = core.node.activity()?;
        let wants_room = match step(0)? {
            Step::Done(value) => return Poll::Ready(Ok(value)),
            Step::Wait => false,
            Step::WaitForRoom => true,
        };
        core.register_turn(turn, context);
        core.waits.peers.register(peers, context);
        if wants_room {
            core.waits.tried(seen);
            core.waits.room.register(room, context);
        }
        Poll::Pending
    }
}

impl Drop for Suspended<'_> {
    fn drop(&mut self) {
        self.core.remove_turn(&self.turn);
        self.core.waits.peers.remove(&self.peers);
        self.core.waits.room.remove(&self.room);
    }
}

/// Leaves the list of those who wait for room when it is dropped.
struct RoomWaiter<'a> {
    core: &'a Core,
    waiter: Waiter,
}

impl Drop for RoomWaiter<'_> {
    fn drop(&mut self) {
        self.core.waits.room.remove(&self.waiter);
    }
}

/// Extracts and waits until `done` returns true, or `timeout` has passed. `done` reads memory that peers
/// write: it is called after every request that was served. `over` is called when anything else has happened.
pub(crate) fn wait_until(
    core: &Rc<Core>,
    timeout: Option<Duration>,
    done: impl Fn() -> bool,
    over: impl Fn() -> bool,
) -> Result<()> {
    core.check_not_in_handler()?;
    core.check_open()?;
    let nanos = |timeout: Duration| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    let deadline = timeout.map(|timeout| core.node.now().saturating_add(nanos(timeout)));
    loop {
        let left = deadline.map(|at| Duration::from_nanos(at.saturating_sub(core.node.now())));
        core.node.clear_signal();
        let served = core.node.memory_activity()?;
        if done() {
            return Ok(());
        }
        if !core.has_work() {
            core.failures.log_unread();
            let wanted = WaitFor { activity: core.blocked_since(), memory: Some(served) };
            let more = core.node.wait(left, wanted)?;
            if done() || !more {
                return Ok(());
            }
        }
        core.extract(usize::MAX)?;
        if done() || over() {
            return Ok(());
        }
    }
}

/// Runs a function when it is dropped: a future uses it to leave the lists that it is on.
pub(crate) struct OnDrop<F: Fn()>(pub(crate) F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
