//! Tripsets: groups of tripwires that are ready when a number of them have fired (T-4).
//!
//! A set knows where each of its tripwires refers to it, and a tripwire its index in each of its sets. So a
//! tripwire leaves at a cost that does not depend on the number of tripwires and sets.

use std::sync::Arc;

use super::super::events::{EventQueue, MemoryEvent, Wakeup};
use super::super::ids::{SetId, WireId};
use super::trip::{Report, WireCell};
use super::{Effects, Tripwires};

/// A tripwire's reference to one of its sets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Membership {
    set: SetId,
    /// The tripwire's index among the set's members.
    at: u32,
}

#[derive(Debug)]
struct Member {
    wire: WireId,
    /// The index of the set among the tripwire's sets.
    at: u32,
    /// The turn in which it fired last; zero if in none.
    fired: u64,
}

#[derive(Debug)]
pub(super) struct Set {
    members: Vec<Member>,
    /// A turn ends when the set is ready; turns count from one.
    turn: u64,
    /// Members that fired in this turn.
    fired: usize,
    need: usize,
    cell: Arc<WireCell>,
    tag: u64,
    report: Report,
    /// Whether an event is in the queue.
    queued: bool,
    awaited: bool,
}

/// Returns whether no tripwire is named twice.
fn are_distinct(wires: &[WireId]) -> bool {
    let mut names: Vec<u64> = wires.iter().map(|it| it.0.to_u64()).collect();
    names.sort_unstable();
    names.windows(2).all(|two| two[0] != two[1])
}

impl Tripwires {
    /// Groups tripwires: the set is ready when `need` of them have fired. None if there are fewer, if one is
    /// gone or named twice, or there are too many sets.
    pub(in super::super) fn make_set(
        &mut self,
        wires: &[WireId],
        need: usize,
        report: Report,
        tag: u64,
    ) -> Option<(SetId, Arc<WireCell>)> {
        if need == 0 || need > wires.len() || !are_distinct(wires) {
            return None;
        }
        let member = |wire: &WireId| {
            let at = self.wires.get(wire.0)?.sets.len() as u32;
            Some(Member { wire: *wire, at, fired: 0 })
        };
        let members = wires.iter().map(member).collect::<Option<Vec<_>>>()?;
        let cell = Arc::new(WireCell::default());
        let set = Set {
            members,
            turn: 1,
            fired: 0,
            need,
            cell: cell.clone(),
            tag,
            report,
            queued: false,
            awaited: false,
        };
        let id = SetId(self.sets.insert(set)?);
        for (at, wire) in wires.iter().enumerate() {
            let wire = self.wires.get_mut(wire.0)?;
            wire.sets.push(Membership { set: id, at: at as u32 });
            wire.effects.set(Effects::SETS, true);
        }
        Some((id, cell))
    }

    /// Dissolves a set; its tripwires stay.
    pub(in super::super) fn dissolve(&mut self, events: &mut EventQueue, id: SetId) -> bool {
        let Some(set) = self.sets.remove(id.0) else { return false };
        for Member { wire, at, .. } in set.members {
            let Some(wire) = self.wires.get_mut(wire.0) else { continue };
            wire.sets.swap_remove(at as usize);
            wire.effects.set(Effects::SETS, !wire.sets.is_empty());
            // The last one has moved to its index.
            if let Some(moved) = wire.sets.get(at as usize)
                && let Some(set) = self.sets.get_mut(moved.set.0)
            {
                set.members[moved.at as usize].at = at;
            }
        }
        events.note_stale(usize::from(set.queued), |event| self.is_current(event));
        true
    }

    /// Requests a wake-up when the set is ready.
    pub(in super::super) fn await_set(&mut self, id: SetId) {
        if let Some(set) = self.sets.get_mut(id.0) {
            set.awaited = true;
        }
    }

    /// Returns how often a tripset has been ready, for an event of it that is being read. None if the set is
    /// gone.
    pub(in super::super) fn read_set_event(&mut self, id: SetId) -> Option<u64> {
        let set = self.sets.get_mut(id.0)?;
        set.queued = false;
        Some(set.cell.fires())
    }

    /// Removes a disarmed tripwire from a set. A future that waits for the set is woken if it now has too few
    /// tripwires.
    pub(super) fn leave(&mut self, Membership { set: id, at }: Membership, events: &mut EventQueue) {
        let Some(set) = self.sets.get_mut(id.0) else { return };
        let removed = set.members.swap_remove(at as usize);
        set.fired -= usize::from(removed.fired == set.turn);
        // The last one has moved to its index.
        if let Some(moved) = set.members.get(at as usize)
            && let Some(wire) = self.wires.get_mut(moved.wire.0)
        {
            wire.sets[moved.at as usize].at = at;
        }
        if set.members.len() < set.need {
            set.cell.end();
            if std::mem::take(&mut set.awaited) {
                events.wake(Wakeup::Set(id));
            }
        }
    }

    /// Counts a fire of a tripwire in its sets.
    #[cold]
    pub(super) fn fire_sets(&mut self, events: &mut EventQueue, id: WireId) {
        let Some(wire) = self.wires.get(id.0) else { return };
        for Membership { set: id, at } in &wire.sets {
            let Some(set) = self.sets.get_mut(id.0) else { continue };
            let fired = &mut set.members[*at as usize].fired;
            set.fired += usize::from(*fired != set.turn);
            *fired = set.turn;
            if set.fired < set.need {
                continue;
            }
            (set.turn, set.fired) = (set.turn + 1, 0);
            let times = set.cell.add();
            if std::mem::take(&mut set.awaited) {
                events.wake(Wakeup::Set(*id));
            }
            if set.report != Report::Poll && !std::mem::replace(&mut set.queued, true) {
                events.push(MemoryEvent::Tripset { set: *id, tag: set.tag, times });
            }
        }
    }
}
