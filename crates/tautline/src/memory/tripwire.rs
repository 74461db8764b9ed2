//! Tripwires and tripsets.

use std::collections::HashSet;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tautline_node::memory::{Trip, Wakeup, WireCell};
use tautline_node::{PeerId, WaitFor};

use super::completion::wait_for;
use super::{Access, Aperture, Condition, Report, SetId, Test, WireId};
use crate::core::Core;
use crate::waits::Place;
use crate::{Endpoint, Error, Result};

/// A tripwire that is being described; [`TripwireBuilder::arm`] arms it. By default it watches for writes, fires every time, and is polled.
#[derive(Debug)]
#[must_use = "a tripwire watches nothing until it is armed"]
pub struct TripwireBuilder<'a> {
    aperture: &'a Aperture,
    span: Result<(u64, u64)>,
    trip: Trip,
}

impl<'a> TripwireBuilder<'a> {
    pub(crate) fn new(aperture: &'a Aperture, span: Result<(u64, u64)>) -> TripwireBuilder<'a> {
        let trip = Trip {
            start: 0,
            len: 0,
            on: Access::WRITE,
            condition: None,
            once: false,
            report: Report::Poll,
            tag: 0,
        };
        TripwireBuilder { aperture, span, trip }
    }

    /// Watches for these accesses.
    pub fn on(mut self, access: Access) -> TripwireBuilder<'a> {
        self.trip.on = access;
        self
    }

    /// Fires only if the word of eight bytes at the start of the range passes, once the bytes are in place.
    pub fn when(mut self, test: Test) -> TripwireBuilder<'a> {
        let at = self.span.as_ref().map_or(0, |(start, _)| *start);
        self.trip.condition = Some(Condition { at, width: 8, test });
        self
    }

    /// Fires only if this holds, once the bytes are in place.
    pub fn condition(mut self, condition: Condition) -> TripwireBuilder<'a> {
        self.trip.condition = Some(condition);
        self
    }

    /// Disarms itself at the first fire; [`Tripwire::rearm`] arms it again.
    pub fn once(mut self) -> TripwireBuilder<'a> {
        self.trip.once = true;
        self
    }

    /// Tells of fires by events with this tag; while one waits to be read, further fires are counted with it.
    pub fn event(mut self, tag: u64) -> TripwireBuilder<'a> {
        (self.trip.report, self.trip.tag) = (Report::Once, tag);
        self
    }

    /// Tells of every fire by an event with this tag, as long as the queue is not full.
    pub fn each_event(mut self, tag: u64) -> TripwireBuilder<'a> {
        (self.trip.report, self.trip.tag) = (Report::Each, tag);
        self
    }

    /// Arms it: from now on it fires.
    pub fn arm(self) -> Result<Tripwire> {
        let (start, len) = self.span?;
        let trip = Trip { start, len, ..self.trip };
        let core = self.aperture.core().clone();
        let armed = core.node.arm_wire(self.aperture.id(), trip)?;
        let (id, cell) = armed.ok_or_else(|| {
            if trip.len == 0 {
                return Error::other("a tripwire watches at least one byte");
            }
            match trip.condition {
                Some(it) if !it.is_sound(self.aperture.len()) => Error::other(
                    "a condition looks at an aligned word of 1, 2, 4 or 8 bytes within the aperture",
                ),
                _ => Error::TooMany("tripwires"),
            }
        })?;
        Ok(Tripwire { core, id, cell, seen: 0, peers: Place::default() })
    }
}

/// An armed tripwire: it counts its fires, and testing it costs a load. Dropping it disarms it: when that returns, nothing of it comes any more (T-2).
///
/// Closing its aperture disarms it, too. What it has counted by then can still be taken; whoever waits for more gets [`Error::Disarmed`].
#[derive(Debug)]
pub struct Tripwire {
    core: Rc<Core>,
    id: WireId,
    cell: Arc<WireCell>,
    seen: u64,
    peers: Place,
}

/// Why a tripwire waits in vain.
const CLOSED: &str = "the tripwire's aperture was closed";
/// The same, of a tripset.
const TOO_FEW: &str = "too few of the set's tripwires are left";

impl Tripwire {
    /// Which tripwire events mean.
    pub fn id(&self) -> WireId {
        self.id
    }

    /// How often it has fired since it was armed.
    #[inline]
    pub fn fires(&self) -> u64 {
        self.cell.fires()
    }

    /// How often it has fired since this was last asked, or waited for.
    #[inline]
    pub fn take(&mut self) -> u64 {
        let fires = self.cell.fires();
        fires - std::mem::replace(&mut self.seen, fires)
    }

    /// Extracts and waits until it fires; returns how often it has. If meanwhile the last reachable peer goes, that is an error, once, as of
    /// [`Endpoint::run_until`]; if its aperture is closed, that is one, too. Not in handlers: there, [`Tripwire::fired`].
    pub fn wait(&mut self) -> Result<u64> {
        wait_cell(&self.core, &self.cell, self.seen, None, CLOSED)?;
        Ok(self.take())
    }

    /// As [`Tripwire::wait`], for a while; zero if nothing happened, whoever is gone.
    pub fn wait_for(&mut self, timeout: Duration) -> Result<u64> {
        wait_cell(&self.core, &self.cell, self.seen, Some(timeout), CLOSED)?;
        Ok(self.take())
    }

    /// Whoever polls is woken at the next fire, and when a peer goes.
    pub(crate) fn register(&self, context: &Context<'_>) -> Result<()> {
        self.core.node.await_wire(self.id)?;
        wait_for(&self.core, Wakeup::Wire(self.id), context);
        self.core.peer_waits.register(&self.peers, context);
        Ok(())
    }

    /// Nobody waits for it any more.
    pub(crate) fn leave(&self) {
        self.core.peer_waits.leave(&self.peers);
        self.core.memory_waits.borrow_mut().remove(&Wakeup::Wire(self.id));
    }

    /// Who fired it last, and in which of its lives.
    pub(crate) fn by(&self) -> Option<PeerId> {
        self.core.node.fired_by(self.id)
    }

    /// Waits until it fires; returns how often it has. An error if the last reachable peer goes, which is told to all who wait, if the aperture is closed, or the endpoint.
    pub async fn fired(&mut self) -> Result<u64> {
        let before = self.core.desertions.get().0;
        let looks = Looks { core: &self.core, cell: &self.cell, seen: self.seen, before, vain: CLOSED };
        let waits = Leaving(|| self.leave());
        poll_fn(|context| looks.poll(|| self.register(context))).await?;
        drop(waits);
        Ok(self.take())
    }

    /// Arms it again if it was to fire once and did.
    pub fn rearm(&self) -> Result<()> {
        self.core.node.rearm_wire(self.id)?;
        Ok(())
    }

    /// Disarms it, as dropping it does.
    pub fn disarm(self) {}
}

impl Drop for Tripwire {
    fn drop(&mut self) {
        self.leave();
        let _ = self.core.node.disarm_wire(self.id);
    }
}

/// What a future does when it has come to its end, or is dropped before.
pub(crate) struct Leaving<F: Fn()>(pub(crate) F);

impl<F: Fn()> Drop for Leaving<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// What a future that waits for a fire looks at.
struct Looks<'a> {
    core: &'a Core,
    cell: &'a WireCell,
    seen: u64,
    /// How often the last reachable peer had gone when it began to wait.
    before: u64,
    vain: &'static str,
}

impl Looks<'_> {
    fn look(&self) -> Option<Result<()>> {
        if self.cell.fires() > self.seen {
            return Some(Ok(()));
        }
        if self.cell.is_over() {
            return Some(Err(Error::Disarmed(self.vain)));
        }
        if let Err(closed) = self.core.check_open() {
            return Some(Err(closed.into()));
        }
        let (times, last) = self.core.desertions.get();
        let gone = last.filter(|_| times != self.before || self.core.deserted.get().is_some())?;
        // Somebody may have come back since.
        self.core.node.all_peers_lost().then_some(Err(Error::PeerGone(gone.0, gone.1)))
    }

    fn poll(&self, register: impl FnOnce() -> Result<()>) -> Poll<Result<()>> {
        if let Some(result) = self.look() {
            return Poll::Ready(result);
        }
        if let Err(error) = register() {
            return Poll::Ready(Err(error));
        }
        // It may have fired just before.
        self.look().map_or(Poll::Pending, Poll::Ready)
    }
}

/// Extracts and waits until a cell has counted beyond `seen`, or the time is over. Whoever waits for ever is told, once, that nobody is left to wait for; and whoever waits in
/// vain, always.
fn wait_cell(
    core: &Rc<Core>,
    cell: &WireCell,
    seen: u64,
    timeout: Option<Duration>,
    vain: &'static str,
) -> Result<()> {
    let fired = || cell.fires() > seen;
    // Handlers that are under way may still bring it about.
    let deserted = || timeout.is_none() && core.live.get() == 0 && core.deserted.get().is_some();
    if !deserted() {
        wait_on(core, timeout, || fired() || cell.is_over(), deserted)?;
    }
    if fired() {
        return Ok(());
    }
    if cell.is_over() {
        return Err(Error::Disarmed(vain));
    }
    if deserted()
        && let Some((peer, why)) = core.deserted.take()
    {
        return Err(Error::PeerGone(peer, why));
    }
    Ok(())
}

/// Extracts and waits until `done` says so, or the time is over. `done` looks at memory that peers write: it is
/// asked whenever a request of a peer was served. `over` is asked whenever something else happened.
pub(crate) fn wait_on(
    core: &Rc<Core>,
    timeout: Option<Duration>,
    done: impl Fn() -> bool,
    over: impl Fn() -> bool,
) -> Result<()> {
    if core.extracting.get() {
        return Err(Error::Reentrant);
    }
    core.check_open()?;
    let endpoint = Endpoint::inner(core.clone());
    let nanos = |timeout: Duration| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    let until = timeout.map(|timeout| core.node.now().saturating_add(nanos(timeout)));
    loop {
        let left = until.map(|at| Duration::from_nanos(at.saturating_sub(core.node.now())));
        core.node.clear_signal();
        let served = core.node.memory_activity()?;
        if done() {
            return Ok(());
        }
        if !core.has_work() {
            let wanted = WaitFor { activity: core.may_retry(), memory: Some(served) };
            let more = core.node.wait(left, wanted)?;
            if done() || !more {
                return Ok(());
            }
        }
        endpoint.extract(usize::MAX)?;
        if done() || over() {
            return Ok(());
        }
    }
}

/// Several tripwires, of which any, or so many, are waited for. Each counts once until the set is ready; then all begin anew.
///
/// It does not keep its tripwires: those that are dropped, or whose aperture is closed, leave it. When fewer are left than it needs, whoever waits for it gets [`Error::Disarmed`].
#[derive(Debug)]
pub struct Tripset {
    core: Rc<Core>,
    id: SetId,
    cell: Arc<WireCell>,
    seen: u64,
    peers: Place,
}

impl Endpoint {
    /// Groups tripwires: ready when `need` of them have fired. With a tag, that is an event, too. No tripwire may be named twice: it would count once.
    pub fn tripset(&self, wires: &[&Tripwire], need: usize, tag: Option<u64>) -> Result<Tripset> {
        let members: Vec<WireId> = wires.iter().map(|wire| wire.id).collect();
        if members.iter().collect::<HashSet<_>>().len() < members.len() {
            return Err(Error::other("a tripwire is named twice in one set, where it would count once"));
        }
        if need == 0 || need > members.len() {
            let why = format!("a set of {} tripwires cannot wait for {need} of them", members.len());
            return Err(Error::other(why));
        }
        if wires.iter().any(|wire| wire.cell.is_over()) {
            return Err(Error::Disarmed(CLOSED));
        }
        let report = if tag.is_some() { Report::Once } else { Report::Poll };
        let made = self.core.node.make_set(&members, need, report, tag.unwrap_or(0))?;
        let (id, cell) = made.ok_or(Error::TooMany("tripsets"))?;
        Ok(Tripset { core: self.core.clone(), id, cell, seen: 0, peers: Place::default() })
    }
}

impl Tripset {
    /// Which set events mean.
    pub fn id(&self) -> SetId {
        self.id
    }

    /// How often it has been ready since this was last asked, or waited for.
    pub fn take(&mut self) -> u64 {
        let times = self.cell.fires();
        times - std::mem::replace(&mut self.seen, times)
    }

    /// Extracts and waits until it is ready; returns how often it has been. Errors are those of [`Tripwire::wait`]. Not in handlers: there, [`Tripset::ready`].
    pub fn wait(&mut self) -> Result<u64> {
        wait_cell(&self.core, &self.cell, self.seen, None, TOO_FEW)?;
        Ok(self.take())
    }

    /// As [`Tripset::wait`], for a while; zero if nothing happened, whoever is gone.
    pub fn wait_for(&mut self, timeout: Duration) -> Result<u64> {
        wait_cell(&self.core, &self.cell, self.seen, Some(timeout), TOO_FEW)?;
        Ok(self.take())
    }

    fn register(&self, context: &Context<'_>) -> Result<()> {
        self.core.node.await_set(self.id)?;
        wait_for(&self.core, Wakeup::Set(self.id), context);
        self.core.peer_waits.register(&self.peers, context);
        Ok(())
    }

    fn leave(&self) {
        self.core.peer_waits.leave(&self.peers);
        self.core.memory_waits.borrow_mut().remove(&Wakeup::Set(self.id));
    }

    /// Waits until it is ready; returns how often it has been. Errors are those of [`Tripwire::fired`].
    pub async fn ready(&mut self) -> Result<u64> {
        let before = self.core.desertions.get().0;
        let looks = Looks { core: &self.core, cell: &self.cell, seen: self.seen, before, vain: TOO_FEW };
        let waits = Leaving(|| self.leave());
        poll_fn(|context| looks.poll(|| self.register(context))).await?;
        drop(waits);
        Ok(self.take())
    }
}

impl Drop for Tripset {
    fn drop(&mut self) {
        self.leave();
        let _ = self.core.node.dissolve_set(self.id);
    }
}
