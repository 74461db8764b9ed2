//! Tripwires: what the owner of memory wants to know of (T-1, T-2, T-4, T-5).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tautline_mem::ApertureMemory;

use super::index::{Index, Places, Watched};
use super::news::MemoryEvent;
use super::sets::{Named, Set};
use super::slab::{Name, Slab};
use super::tables::ApertureId;
use crate::lane::Lane;
use crate::limits::{MAX_SETS, MAX_WIRES};
use crate::{PeerId, Rank};

/// A tripwire of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WireId(pub(crate) Name);

/// What a tripwire watches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access(pub(crate) u8);

impl Access {
    /// A peer writes: a put, or a word that is changed.
    pub const WRITE: Access = Access(1);
    /// A peer reads: a get, or a word's former value.
    pub const READ: Access = Access(2);
    /// An operation that this node asked for is complete, and its local side touches the range: what was got has been placed here, or what
    /// is here has been put.
    pub const COMPLETE: Access = Access(4);

    /// This or that.
    pub const fn or(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// How a value is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Test {
    /// It is this.
    Equal(u64),
    /// It is not this.
    NotEqual(u64),
    /// It is at least this.
    AtLeast(u64),
    /// Those of its bits that the first names are those of the second.
    Masked(u64, u64),
}

/// A condition on a word of memory, looked at when everything is in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Condition {
    /// Where the word is; a multiple of its width.
    pub at: u64,
    /// Bytes of it: 1, 2, 4 or 8.
    pub width: u8,
    /// What it is compared with.
    pub test: Test,
}

impl Condition {
    /// Whether the word is in a memory of `len` bytes, and whole.
    pub fn is_sound(&self, len: u64) -> bool {
        matches!(self.width, 1 | 2 | 4 | 8)
            && self.at.is_multiple_of(self.width.into())
            && self.at.checked_add(self.width.into()).is_some_and(|end| end <= len)
    }

    fn holds(&self, memory: &ApertureMemory) -> bool {
        let mut word = [0; 8];
        if memory.read(self.at as usize, &mut word[..usize::from(self.width)]).is_err() {
            return false;
        }
        let value = u64::from_le_bytes(word);
        match self.test {
            Test::Equal(it) => value == it,
            Test::NotEqual(it) => value != it,
            Test::AtLeast(it) => value >= it,
            Test::Masked(mask, it) => value & mask == it & mask,
        }
    }
}

/// How the program is told that a tripwire fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Report {
    /// Not at all: it looks.
    Poll,
    /// By an event; while one waits to be read, further fires are counted with it.
    Once,
    /// By an event for each fire. When the queue is full, as with [`Report::Once`].
    Each,
}

/// What a tripwire shall do.
#[derive(Clone, Copy, Debug)]
pub struct Trip {
    /// The first byte that is watched.
    pub start: u64,
    /// How many, at least one.
    pub len: u64,
    /// What for.
    pub on: Access,
    /// Fire only if this holds.
    pub condition: Option<Condition>,
    /// Disarm at the first fire.
    pub once: bool,
    /// How to tell.
    pub report: Report,
    /// What the event shall say, beside which tripwire it was.
    pub tag: u64,
}

/// How often a tripwire fired: what the program looks at, for the price of a load (T-4).
#[derive(Debug, Default)]
pub struct WireCell {
    fires: AtomicU64,
    over: AtomicBool,
}

impl WireCell {
    /// How often it fired. Whoever sees a fire sees the bytes that caused it.
    #[inline]
    pub fn fires(&self) -> u64 {
        self.fires.load(Ordering::Acquire)
    }

    /// Whether it will never count again: the tripwire is disarmed, or too few of the set's are left.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// It will never count again.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    #[inline]
    pub(super) fn add(&self) -> u64 {
        // A single writer: the interface's owner.
        let fires = self.fires.load(Ordering::Relaxed) + 1;
        self.fires.store(fires, Ordering::Release);
        fires
    }
}

/// A tripwire. What a fire needs comes first, so that it is one cache line.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Wire {
    cell: Arc<WireCell>,
    pub(crate) tag: u64,
    /// Fires that the program has been told of, or is about to be.
    pub(crate) told: u64,
    /// Events that wait in the queue.
    pub(crate) queued: usize,
    /// Whose access fired it last, and in which of its lives.
    by: Option<PeerId>,
    pub(crate) report: Report,
    once: bool,
    has_condition: bool,
    pub(super) in_sets: bool,
    /// A future waits for the next fire.
    pub(crate) awaited: bool,
    pub(crate) aperture: ApertureId,
    pub(crate) trip: Trip,
    /// Where among its aperture's tripwires it is.
    place: u32,
    pub(super) sets: Vec<Named>,
}

const _: () = assert!(std::mem::offset_of!(Wire, aperture) <= 56);

/// All tripwires of a node.
#[derive(Debug)]
pub(crate) struct Wires {
    pub(crate) all: Slab<Wire>,
    /// The ranges, by place in `all`: what is looked at for every access.
    ranges: Vec<Watched>,
    /// Where they stand in their aperture's index.
    places: Vec<Places>,
    pub(super) sets: Slab<Set>,
    hits: Vec<u32>,
}

impl Default for Wires {
    fn default() -> Wires {
        let (all, sets) = (Slab::new(MAX_WIRES), Slab::new(MAX_SETS));
        Wires { all, ranges: Vec::new(), places: Vec::new(), sets, hits: Vec::new() }
    }
}

impl Wires {
    /// An event of a tripwire is read: how many fires it tells of. Nothing if the tripwire is gone.
    pub(crate) fn read(&mut self, id: WireId, fires: u64) -> Option<u64> {
        let wire = self.all.get_mut(id.0)?;
        wire.queued -= 1;
        // The last one that waits tells of all there were.
        let fires = if wire.queued == 0 { wire.cell.fires() } else { fires };
        Some(fires - std::mem::replace(&mut wire.told, fires))
    }

    pub(super) fn has_cause(&self, event: &MemoryEvent) -> bool {
        match event {
            MemoryEvent::Tripwire { wire, .. } => self.all.get(wire.0).is_some(),
            MemoryEvent::Tripset { set, .. } => self.sets.get(set.0).is_some(),
            _ => true,
        }
    }
}

impl super::Memory {
    /// One of the tripwires of an aperture, if it has any.
    pub(crate) fn last_wire(&self, aperture: ApertureId) -> Option<WireId> {
        self.apertures.get(aperture.0)?.index.as_ref()?.wires.last().copied()
    }

    /// The tripwire that watches exactly these bytes for writes, and is looked at; nothing if there is none, or another one watches any of them, too.
    pub(crate) fn flag_wire(&self, aperture: ApertureId, (start, end): (u64, u64)) -> Option<u32> {
        let index = self.apertures.get(aperture.0)?.index.as_ref()?;
        let (mut hits, mut last) = (0, 0);
        index.touched(start, end, Access::WRITE.0, &self.wires.ranges, |wire| {
            (hits, last) = (hits + 1, wire);
        });
        let range = self.wires.ranges.get(last as usize).filter(|_| hits == 1)?;
        let (_, wire) = self.wires.all.at(last)?;
        let alone = (range.start, range.end) == (start, end) && wire.report == Report::Poll;
        alone.then_some(last)
    }
}

impl Lane {
    /// Arms a tripwire (T-1). None if the aperture is closed, the range or the condition's word is not in it, or there are too many.
    pub(crate) fn arm_wire(&mut self, aperture: ApertureId, trip: Trip) -> Option<(WireId, Arc<WireCell>)> {
        self.memory.version += 1;
        let it = self.memory.apertures.get_mut(aperture.0)?;
        let len = it.memory.len() as u64;
        let end = trip.start.checked_add(trip.len).filter(|end| *end <= len && trip.len > 0)?;
        if trip.condition.is_some_and(|condition| !condition.is_sound(len)) {
            return None;
        }
        let cell = Arc::new(WireCell::default());
        let index = it.index.get_or_insert_with(|| Box::new(Index::new()));
        let wire = Wire {
            cell: cell.clone(),
            tag: trip.tag,
            told: 0,
            queued: 0,
            by: None,
            report: trip.report,
            once: trip.once,
            has_condition: trip.condition.is_some(),
            in_sets: false,
            awaited: false,
            aperture,
            trip,
            place: index.wires.len() as u32,
            sets: Vec::new(),
        };
        let wires = &mut self.memory.wires;
        let name = wires.all.insert(wire)?;
        let at = name.index as usize;
        if wires.ranges.len() <= at {
            wires.ranges.resize(at + 1, Watched::default());
            wires.places.resize(at + 1, Places::default());
        }
        wires.ranges[at] = Watched { start: trip.start, end, on: trip.on.0 };
        index.insert(name.index, &wires.ranges, &mut wires.places);
        index.wires.push(WireId(name));
        it.watched |= trip.on.0;
        Some((WireId(name), cell))
    }

    /// Disarms a tripwire: when this returns it fires no more, and no event of it is left (T-2). Whoever waits for it, or for a set that now has too few, is told.
    pub(crate) fn disarm(&mut self, id: WireId) -> bool {
        self.unhook(id);
        let super::Memory { news, wires, apertures, .. } = &mut *self.memory;
        let Some(wire) = wires.all.remove(id.0) else { return false };
        if let Some(index) = apertures.get_mut(wire.aperture.0).and_then(|it| it.index.as_mut()) {
            index.wires.swap_remove(wire.place as usize);
            // The last one has taken its place.
            if let Some(moved) = index.wires.get(wire.place as usize)
                && let Some(moved) = wires.all.get_mut(moved.0)
            {
                moved.place = wire.place;
            }
        }
        wire.cell.end();
        if wire.awaited {
            news.wake(super::Wakeup::Wire(id));
        }
        for named in wire.sets {
            wires.leave(named, news);
        }
        self.port.activity += 1;
        news.abandon(wire.queued, |event| wires.has_cause(event));
        true
    }

    /// The tripwire watches no more, but its name and what it has to tell stay.
    fn unhook(&mut self, id: WireId) {
        self.memory.version += 1;
        let wires = &mut self.memory.wires;
        let Some(wire) = wires.all.get(id.0) else { return };
        let range = std::mem::take(&mut wires.ranges[id.0.index as usize]);
        if range.on != 0
            && let Some(aperture) = self.memory.apertures.get_mut(wire.aperture.0)
            && let Some(index) = &mut aperture.index
        {
            index.remove(id.0.index, (range.start, range.end), wires.places[id.0.index as usize]);
        }
    }

    /// Arms a tripwire again that disarmed itself at its fire.
    pub(crate) fn rearm(&mut self, id: WireId) -> bool {
        self.memory.version += 1;
        let wires = &mut self.memory.wires;
        let Some(wire) = wires.all.get(id.0) else { return false };
        let range = &mut wires.ranges[id.0.index as usize];
        if range.on == 0
            && let Some(aperture) = self.memory.apertures.get_mut(wire.aperture.0)
            && let Some(index) = &mut aperture.index
        {
            let Trip { start, len, on, .. } = wire.trip;
            *range = Watched { start, end: start + len, on: on.0 };
            index.insert(id.0.index, &wires.ranges, &mut wires.places);
        }
        true
    }

    /// A future waits for the next fire.
    pub(crate) fn await_wire(&mut self, id: WireId) {
        if let Some(wire) = self.memory.wires.all.get_mut(id.0) {
            wire.awaited = true;
        }
    }

    /// Who fired a tripwire last, and in which of its lives.
    pub(crate) fn fired_by(&self, id: WireId) -> Option<PeerId> {
        self.memory.wires.all.get(id.0)?.by
    }

    /// Bytes `start..end` of an aperture were written or read by somebody, the last of an access that goes on to `whole`. Fires what watches them: a
    /// tripwire whose range the access goes on in waits for the rest (T-5).
    #[inline]
    pub(crate) fn trip(
        &mut self,
        (by, aperture): (Rank, ApertureId),
        on: Access,
        (start, end): (u64, u64),
        whole: u64,
    ) {
        let super::Memory { apertures, wires, .. } = &mut *self.memory;
        let Some(it) = apertures.get(aperture.0) else { return };
        if it.watched & on.0 == 0 || start == end {
            return;
        }
        let Some(index) = &it.index else { return };
        let (ranges, hits) = (&wires.ranges, &mut wires.hits);
        // Most accesses touch one at most, and that needs no list.
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
            1 => self.fire_hit(by, only),
            _ => self.fire_hits(by),
        }
    }

    #[inline(never)]
    fn fire_hits(&mut self, by: Rank) {
        let mut hits = std::mem::take(&mut self.memory.wires.hits);
        // In order of names, so that the same traffic gives the same events.
        hits.sort_unstable();
        for index in &hits {
            self.fire_hit(by, *index);
        }
        hits.clear();
        self.memory.wires.hits = hits;
    }

    /// An access has touched all that it will of a tripwire's range.
    #[inline]
    pub(crate) fn fire_hit(&mut self, by: Rank, index: u32) {
        let incarnation = self.peers.member(by).incarnation;
        let super::Memory { wires, news, counters, apertures, .. } = &mut *self.memory;
        let Some((name, wire)) = wires.all.at_mut(index) else { return };
        if wire.has_condition {
            let memory = apertures.get(wire.aperture.0).map(|it| &it.memory);
            let holds = |condition: Condition| memory.is_some_and(|memory| condition.holds(memory));
            if !wire.trip.condition.is_none_or(holds) {
                return;
            }
        }
        let id = WireId(name);
        counters.fires += 1;
        // Before it is counted: whoever sees the count may ask.
        wire.by = Some(PeerId::new(by, incarnation));
        let fires = wire.cell.add();
        let (once, in_sets) = (wire.once, wire.in_sets);
        if wire.awaited {
            wire.awaited = false;
            news.wake(super::Wakeup::Wire(id));
        }
        if wire.report != Report::Poll {
            news.wire_fired(id, wire, fires);
        }
        if once {
            self.unhook(id);
        }
        if in_sets {
            self.fire_sets(id);
        }
    }
}
