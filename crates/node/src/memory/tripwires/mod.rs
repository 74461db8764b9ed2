//! Tripwires: they count and report the accesses to a range of an aperture (T-1, T-2, T-4, T-5).

mod sets;
mod trip;

use std::sync::Arc;

pub use trip::{Access, Condition, Report, Test, Trip, WireCell};

use super::apertures::Apertures;
use super::events::{EventQueue, MemoryEvent, Wakeup};
use super::ids::{ApertureId, WireId};
use super::index::{Index, Places, Watched};
use super::slab::Slab;
use crate::PeerId;
use crate::limits::{MAX_SETS, MAX_WIRES};
use sets::{Membership, Set};

/// A tripwire. The fields that a fire needs come first, so that they share a cache line.
#[derive(Debug)]
#[repr(C)]
struct Wire {
    cell: Arc<WireCell>,
    tag: u64,
    /// Fires that events have reported, or that the event being read reports.
    reported: u64,
    /// Events in the queue.
    queued: usize,
    /// The peer whose access fired it last.
    by: Option<PeerId>,
    effects: Effects,
    report: Report,
    aperture: ApertureId,
    trip: Trip,
    /// Its index among its aperture's tripwires.
    place: u32,
    sets: Vec<Membership>,
}

const _: () = assert!(std::mem::offset_of!(Wire, aperture) <= 56);

/// What a fire does beside being counted. Most tripwires are polled, and have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Effects(u8);

impl Effects {
    const NONE: Effects = Effects(0);
    /// It depends on a condition.
    const CONDITION: Effects = Effects(1);
    /// It disarms the tripwire.
    const ONCE: Effects = Effects(2);
    /// It counts in tripsets.
    const SETS: Effects = Effects(4);
    /// It wakes a future.
    const WAKE: Effects = Effects(8);
    /// It may be reported by an event.
    const EVENT: Effects = Effects(16);

    fn has(self, effect: Effects) -> bool {
        self.0 & effect.0 != 0
    }

    fn set(&mut self, effect: Effects, wanted: bool) {
        self.0 = if wanted { self.0 | effect.0 } else { self.0 & !effect.0 };
    }
}

/// An access to bytes `start..end` of an aperture, which are the next ones of an access that ends at `whole`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    pub(crate) by: PeerId,
    pub(crate) aperture: ApertureId,
    pub(crate) on: Access,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) whole: u64,
}

/// All tripwires and tripsets of a node.
#[derive(Debug)]
pub(crate) struct Tripwires {
    wires: Slab<Wire>,
    /// The range of each tripwire, by its index in `wires`: what every access reads.
    ranges: Vec<Watched>,
    /// The nodes of each tripwire in its aperture's index.
    places: Vec<Places>,
    sets: Slab<Set>,
    hits: Vec<u32>,
    fires: u64,
}

impl Default for Tripwires {
    fn default() -> Tripwires {
        Tripwires {
            wires: Slab::new(MAX_WIRES),
            ranges: Vec::new(),
            places: Vec::new(),
            sets: Slab::new(MAX_SETS),
            hits: Vec::new(),
            fires: 0,
        }
    }
}

impl Tripwires {
    /// Returns how often tripwires fired.
    pub(super) fn fires(&self) -> u64 {
        self.fires
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.wires.len()
    }

    /// Arms a tripwire (T-1, T-7). None if the aperture is closed, it lacks the range or the condition's
    /// word, or there are too many tripwires.
    pub(super) fn arm(
        &mut self,
        apertures: &mut Apertures,
        aperture: ApertureId,
        trip: Trip,
    ) -> Option<(WireId, Arc<WireCell>)> {
        apertures.note_change();
        let it = apertures.get_mut(aperture)?;
        let len = it.memory.len() as u64;
        let end = trip.start.checked_add(trip.len).filter(|end| *end <= len && trip.len > 0)?;
        if trip.condition.is_some_and(|condition| !condition.is_sound(len)) {
            return None;
        }
        let cell = Arc::new(WireCell::default());
        let index = it.index.get_or_insert_with(|| Box::new(Index::new()));
        let mut effects = Effects::NONE;
        effects.set(Effects::CONDITION, trip.condition.is_some());
        effects.set(Effects::ONCE, trip.once);
        effects.set(Effects::EVENT, trip.report != Report::Poll);
        let wire = Wire {
            cell: cell.clone(),
            tag: trip.tag,
            reported: 0,
            queued: 0,
            by: None,
            effects,
            report: trip.report,
            aperture,
            trip,
            place: index.wires.len() as u32,
            sets: Vec::new(),
        };
        let name = self.wires.insert(wire)?;
        let at = name.index as usize;
        if self.ranges.len() <= at {
            self.ranges.resize(at + 1, Watched::default());
            self.places.resize(at + 1, Places::default());
        }
        self.ranges[at] = Watched { start: trip.start, end, on: trip.on.0 };
        index.insert(name.index, &self.ranges, &mut self.places);
        index.wires.push(name);
        it.watched |= trip.on.0;
        Some((WireId(name), cell))
    }

    /// Disarms a tripwire: when this returns it fires no more, and none of its events is left (T-2, T-8).
    /// Futures that wait for it, or for a set that now has too few tripwires, are woken.
    pub(super) fn disarm(&mut self, apertures: &mut Apertures, events: &mut EventQueue, id: WireId) -> bool {
        self.unhook(apertures, id);
        let Some(wire) = self.wires.remove(id.0) else { return false };
        if let Some(index) = apertures.get_mut(wire.aperture).and_then(|it| it.index.as_mut()) {
            index.wires.swap_remove(wire.place as usize);
            // The last one has moved to its index.
            if let Some(moved) = index.wires.get(wire.place as usize)
                && let Some(moved) = self.wires.get_mut(*moved)
            {
                moved.place = wire.place;
            }
        }
        wire.cell.end();
        if wire.effects.has(Effects::WAKE) {
            events.wake(Wakeup::Wire(id));
        }
        for membership in wire.sets {
            self.leave(membership, events);
        }
        events.note_stale(wire.queued, |event| self.is_current(event));
        true
    }

    /// Removes a tripwire's range from its aperture's index. Its name and its events stay.
    fn unhook(&mut self, apertures: &mut Apertures, id: WireId) {
        apertures.note_change();
        let Some(wire) = self.wires.get(id.0) else { return };
        let range = std::mem::take(&mut self.ranges[id.0.index as usize]);
        if range.on != 0
            && let Some(aperture) = apertures.get_mut(wire.aperture)
            && let Some(index) = &mut aperture.index
        {
            index.remove(id.0.index, (range.start, range.end), self.places[id.0.index as usize]);
        }
    }

    /// Arms a tripwire again that disarmed itself at its fire.
    pub(super) fn rearm(&mut self, apertures: &mut Apertures, id: WireId) -> bool {
        apertures.note_change();
        let Some(wire) = self.wires.get(id.0) else { return false };
        let range = &mut self.ranges[id.0.index as usize];
        if range.on == 0
            && let Some(aperture) = apertures.get_mut(wire.aperture)
            && let Some(index) = &mut aperture.index
        {
            let Trip { start, len, on, .. } = wire.trip;
            *range = Watched { start, end: start + len, on: on.0 };
            index.insert(id.0.index, &self.ranges, &mut self.places);
        }
        true
    }

    /// Requests a wake-up for the next fire.
    pub(super) fn await_fire(&mut self, id: WireId) {
        if let Some(wire) = self.wires.get_mut(id.0) {
            wire.effects.set(Effects::WAKE, true);
        }
    }

    /// Returns the peer that fired a tripwire last.
    pub(super) fn fired_by(&self, id: WireId) -> Option<PeerId> {
        self.wires.get(id.0)?.by
    }

    /// Returns how many fires an event reports that is being read. None if the tripwire is gone.
    pub(super) fn read_event(&mut self, id: WireId, fires: u64) -> Option<u64> {
        let wire = self.wires.get_mut(id.0)?;
        wire.queued -= 1;
        // The last event in the queue reports all fires so far.
        let fires = if wire.queued == 0 { wire.cell.fires() } else { fires };
        Some(fires - std::mem::replace(&mut wire.reported, fires))
    }

    /// Returns whether the tripwire or tripset of an event still exists.
    fn is_current(&self, event: &MemoryEvent) -> bool {
        match event {
            MemoryEvent::Tripwire { wire, .. } => self.wires.get(wire.0).is_some(),
            MemoryEvent::Tripset { set, .. } => self.sets.get(set.0).is_some(),
            _ => true,
        }
    }

    /// Returns the tripwire that watches exactly these bytes for writes and is polled. None if there is none,
    /// or another one watches any of these bytes.
    pub(super) fn only_wire(
        &self,
        apertures: &Apertures,
        aperture: ApertureId,
        (start, end): (u64, u64),
    ) -> Option<u32> {
        let index = apertures.get(aperture)?.index.as_ref()?;
        let (mut hits, mut last) = (0, 0);
        index.touched(start, end, Access::WRITE.0, &self.ranges, |wire| {
            (hits, last) = (hits + 1, wire);
        });
        let range = self.ranges.get(last as usize).filter(|_| hits == 1)?;
        let (_, wire) = self.wires.at(last)?;
        let alone = (range.start, range.end) == (start, end) && wire.report == Report::Poll;
        alone.then_some(last)
    }

    /// Fires the tripwires that an access touches. A tripwire whose range the rest of the access touches
    /// waits for the rest (T-5).
    #[inline]
    pub(super) fn touch(&mut self, apertures: &mut Apertures, events: &mut EventQueue, touch: Touch) {
        let Touch { by, aperture, on, start, end, whole } = touch;
        let Some(it) = apertures.get(aperture) else { return };
        if it.watched & on.0 == 0 || start == end {
            return;
        }
        let Some(index) = &it.index else { return };
        let (ranges, hits) = (&self.ranges, &mut self.hits);
        // Most accesses touch at most one, which needs no list.
        let (mut count, mut only) = (0, 0);
        index.touched(start, end, on.0, ranges, |wire| {
            if end >= ranges[wire as usize].end.min(whole) {
                if count == 1 {
                    hits.push(only);
                }
                if count > 0 {
                    hits.push(wire);
                }
                (count, only) = (count + 1, wire);
            }
        });
        match count {
            0 => {}
            1 => self.fire(apertures, events, by, only),
            _ => self.fire_hits(apertures, events, by),
        }
    }

    #[inline(never)]
    fn fire_hits(&mut self, apertures: &mut Apertures, events: &mut EventQueue, by: PeerId) {
        let mut hits = std::mem::take(&mut self.hits);
        // In the order of their names, so that the same traffic causes the same events.
        hits.sort_unstable();
        for index in &hits {
            self.fire(apertures, events, by, *index);
        }
        hits.clear();
        self.hits = hits;
    }

    /// Fires a tripwire of whose range an access has touched all that it will, if its condition holds.
    #[inline]
    pub(super) fn fire(
        &mut self,
        apertures: &mut Apertures,
        events: &mut EventQueue,
        by: PeerId,
        index: u32,
    ) {
        let Some((_, wire)) = self.wires.at_mut(index) else { return };
        if wire.effects != Effects::NONE {
            return self.fire_with_effects(apertures, events, by, index);
        }
        self.fires += 1;
        wire.count(by);
    }

    #[inline(never)]
    fn fire_with_effects(
        &mut self,
        apertures: &mut Apertures,
        events: &mut EventQueue,
        by: PeerId,
        index: u32,
    ) {
        let Some((name, wire)) = self.wires.at_mut(index) else { return };
        let (id, effects) = (WireId(name), wire.effects);
        if effects.has(Effects::CONDITION) {
            let memory = apertures.get(wire.aperture).map(|it| &it.memory);
            let holds = |condition: Condition| memory.is_some_and(|memory| condition.holds(memory));
            if !wire.trip.condition.is_none_or(holds) {
                return;
            }
        }
        self.fires += 1;
        let fires = wire.count(by);
        if effects.has(Effects::WAKE) {
            wire.effects.set(Effects::WAKE, false);
            events.wake(Wakeup::Wire(id));
        }
        if effects.has(Effects::EVENT) && wire.wants_event(events) {
            wire.queued += 1;
            events.push(MemoryEvent::Tripwire { wire: id, tag: wire.tag, fires });
        }
        if effects.has(Effects::ONCE) {
            self.unhook(apertures, id);
        }
        if effects.has(Effects::SETS) {
            self.fire_sets(events, id);
        }
    }
}

impl Wire {
    /// Counts a fire. Returns how many there were.
    #[inline]
    fn count(&mut self, by: PeerId) -> u64 {
        // Before the count: a thread that sees the count may ask for the peer.
        self.by = Some(by);
        self.cell.add()
    }

    /// Returns whether a fire has an event of its own.
    #[inline]
    fn wants_event(&self, events: &EventQueue) -> bool {
        match self.report {
            Report::Poll => false,
            Report::Once => self.queued == 0,
            Report::Each => self.queued == 0 || events.has_room(),
        }
    }
}
