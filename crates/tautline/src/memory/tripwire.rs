//! Tripwires.

use std::ops::RangeBounds;
use std::task::Context;
use std::time::Duration;

use tautline_node::PeerId;
use tautline_node::memory::{Access, Condition, Report, Test, Trip, Wakeup, WireId};

use super::aperture::{Aperture, Span};
use super::fire_counter::FireCounter;
use crate::error::{Error, Result};

/// Why a tripwire that is over fires no more.
pub(super) const CLOSED: &str = "the tripwire's aperture was closed";

/// Describes a tripwire; [`TripwireBuilder::arm`] arms it. By default it watches for writes, fires every
/// time, and is polled.
#[derive(Debug)]
#[must_use = "a tripwire watches nothing until it is armed"]
pub struct TripwireBuilder<'a> {
    aperture: &'a Aperture,
    span: Result<Span>,
    trip: Trip,
}

impl Aperture {
    /// Describes a tripwire on a range.
    pub fn tripwire(&self, range: impl RangeBounds<u64>) -> TripwireBuilder<'_> {
        TripwireBuilder { aperture: self, span: Span::new(&range, self.len()), trip: Trip::new(0, 0) }
    }
}

impl<'a> TripwireBuilder<'a> {
    /// Watches for these accesses.
    pub fn on(mut self, access: Access) -> TripwireBuilder<'a> {
        self.trip.on = access;
        self
    }

    /// Fires only if the word of eight bytes at the start of the range passes the test once the bytes are in
    /// place.
    pub fn when(mut self, test: Test) -> TripwireBuilder<'a> {
        let at = self.span.as_ref().map_or(0, |span| span.start);
        self.trip.condition = Some(Condition::new(at, 8, test));
        self
    }

    /// Fires only if the condition holds once the bytes are in place.
    pub fn condition(mut self, condition: Condition) -> TripwireBuilder<'a> {
        self.trip.condition = Some(condition);
        self
    }

    /// Disarms itself when it fires; [`Tripwire::rearm`] arms it again.
    pub fn once(mut self) -> TripwireBuilder<'a> {
        self.trip.once = true;
        self
    }

    /// Reports fires by events with this tag. Fires while an event is unread are counted in it.
    pub fn event(mut self, tag: u64) -> TripwireBuilder<'a> {
        (self.trip.report, self.trip.tag) = (Report::Once, tag);
        self
    }

    /// Reports every fire by an event with this tag, as long as the queue is not full.
    pub fn each_event(mut self, tag: u64) -> TripwireBuilder<'a> {
        (self.trip.report, self.trip.tag) = (Report::Each, tag);
        self
    }

    /// Arms it: from now on it fires.
    pub fn arm(self) -> Result<Tripwire> {
        let Span { start, len } = self.span?;
        let mut trip = self.trip;
        (trip.start, trip.len) = (start, len);
        let core = self.aperture.core().clone();
        let armed = core.node.arm_wire(self.aperture.id(), trip)?;
        let (id, cell) = armed.ok_or_else(|| {
            if trip.len == 0 {
                return Error::other("a tripwire watches at least one byte");
            }
            match trip.condition {
                Some(it) if !it.is_sound(self.aperture.len()) => Error::other(
                    "a condition tests an aligned word of 1, 2, 4 or 8 bytes within the aperture",
                ),
                _ => Error::TooMany("tripwires"),
            }
        })?;
        Ok(Tripwire { id, fires: FireCounter::new(core, cell, Wakeup::Wire(id), CLOSED) })
    }
}

/// An armed tripwire. It counts its fires; testing it costs a load. Dropping it disarms it: once that has
/// returned, nothing more is reported (T-2).
///
/// Closing its aperture disarms it, too. Fires that were counted before can still be taken; waiting for more
/// is [`Error::Disarmed`].
#[derive(Debug)]
pub struct Tripwire {
    id: WireId,
    fires: FireCounter,
}

impl Tripwire {
    /// The number of this tripwire in events.
    pub fn id(&self) -> WireId {
        self.id
    }

    /// The number of fires since it was armed.
    #[inline]
    pub fn fires(&self) -> u64 {
        self.fires.count()
    }

    /// The number of fires since the last call of this or of a wait.
    #[inline]
    pub fn take(&mut self) -> u64 {
        self.fires.take()
    }

    /// Extracts and waits until it fires; returns the number of fires. If the last reachable peer goes down
    /// meanwhile, that is an error, once, as in [`crate::Endpoint::run_until`]. If its aperture is closed,
    /// that is one, too. Not in handlers: use [`Tripwire::fired`] there.
    pub fn wait(&mut self) -> Result<u64> {
        self.fires.wait(None)
    }

    /// As [`Tripwire::wait`], for at most `timeout`; zero if it did not fire. The loss of a peer is no error.
    pub fn wait_for(&mut self, timeout: Duration) -> Result<u64> {
        self.fires.wait(Some(timeout))
    }

    /// Waits until it fires; returns the number of fires. An error if the last reachable peer goes down, for
    /// everybody who waits, or if the aperture or the endpoint is closed.
    pub async fn fired(&mut self) -> Result<u64> {
        self.fires.fired().await
    }

    /// Wakes `context` at the next fire, and when a peer goes down.
    pub(super) fn register(&self, context: &Context<'_>) -> Result<()> {
        self.fires.register(context)
    }

    /// The peer whose access fired it last.
    pub(super) fn fired_by(&self) -> Option<PeerId> {
        self.fires.core().node.fired_by(self.id)
    }

    pub(super) fn is_over(&self) -> bool {
        self.fires.is_over()
    }

    /// Arms it again, if it was to fire once and did.
    pub fn rearm(&self) -> Result<()> {
        self.fires.core().node.rearm_wire(self.id)?;
        Ok(())
    }

    /// Disarms it, as dropping it does.
    pub fn disarm(self) {}
}

impl Drop for Tripwire {
    fn drop(&mut self) {
        let _ = self.fires.core().node.disarm_wire(self.id);
    }
}
