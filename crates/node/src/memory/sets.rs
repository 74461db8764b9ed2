//! Tripsets: several tripwires, of which so many are waited for (T-4).
//!
//! A set knows where each of its tripwires names it, and a tripwire where it stands in each of its sets: so one leaves at a price that does not depend on how
//! many there are.

use std::sync::Arc;

use super::news::{MemoryEvent, News, Wakeup};
use super::slab::Name;
use super::wires::{Report, WireCell, WireId, Wires};
use crate::lane::Lane;

/// A tripset of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SetId(pub(crate) Name);

/// That a tripwire is in a set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    set: SetId,
    /// Where among the set's members.
    at: u32,
}

#[derive(Debug)]
struct Member {
    wire: WireId,
    /// Where among the tripwire's sets.
    at: u32,
    /// The turn in which it fired last; zero if in none.
    fired: u64,
}

#[derive(Debug)]
pub(crate) struct Set {
    members: Vec<Member>,
    /// A turn ends when the set is ready; counted from one.
    turn: u64,
    /// Members that fired in this turn.
    fired: usize,
    need: usize,
    cell: Arc<WireCell>,
    tag: u64,
    report: Report,
    /// An event waits in the queue.
    queued: bool,
    awaited: bool,
}

impl Wires {
    /// An event of a tripset is read: how often it has been ready. Nothing if the set is gone.
    pub(crate) fn read_set(&mut self, id: SetId) -> Option<u64> {
        let set = self.sets.get_mut(id.0)?;
        set.queued = false;
        Some(set.cell.fires())
    }

    /// A tripwire that is no more leaves a set; whoever waits for it is told if it now has too few.
    pub(super) fn leave(&mut self, Named { set: id, at }: Named, news: &mut News) {
        let Some(set) = self.sets.get_mut(id.0) else { return };
        let gone = set.members.swap_remove(at as usize);
        set.fired -= usize::from(gone.fired == set.turn);
        // The last one has taken its place.
        if let Some(moved) = set.members.get(at as usize)
            && let Some(wire) = self.all.get_mut(moved.wire.0)
        {
            wire.sets[moved.at as usize].at = at;
        }
        if set.members.len() < set.need {
            set.cell.end();
            if std::mem::take(&mut set.awaited) {
                news.wake(Wakeup::Set(id));
            }
        }
    }
}

/// Whether none of them is named twice.
fn are_distinct(wires: &[WireId]) -> bool {
    let mut names: Vec<u64> = wires.iter().map(|it| it.0.to_u64()).collect();
    names.sort_unstable();
    names.windows(2).all(|two| two[0] != two[1])
}

impl Lane {
    /// Groups tripwires: the set is ready when `need` of them have fired. None if there are not so many, if one is gone or named twice, or there are too many sets.
    pub(crate) fn make_set(
        &mut self,
        wires: &[WireId],
        need: usize,
        report: Report,
        tag: u64,
    ) -> Option<(SetId, Arc<WireCell>)> {
        if need == 0 || need > wires.len() || !are_distinct(wires) {
            return None;
        }
        let all = &mut self.memory.wires.all;
        let member = |wire: &WireId| {
            let at = all.get(wire.0)?.sets.len() as u32;
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
        let id = SetId(self.memory.wires.sets.insert(set)?);
        for (at, wire) in wires.iter().enumerate() {
            let wire = all.get_mut(wire.0)?;
            wire.sets.push(Named { set: id, at: at as u32 });
            wire.in_sets = true;
        }
        Some((id, cell))
    }

    /// Dissolves a set; its tripwires stay.
    pub(crate) fn dissolve(&mut self, id: SetId) -> bool {
        let super::Memory { news, wires, .. } = &mut *self.memory;
        let Some(set) = wires.sets.remove(id.0) else { return false };
        for Member { wire, at, .. } in set.members {
            let Some(wire) = wires.all.get_mut(wire.0) else { continue };
            wire.sets.swap_remove(at as usize);
            wire.in_sets = !wire.sets.is_empty();
            // The last one has taken its place.
            if let Some(moved) = wire.sets.get(at as usize)
                && let Some(set) = wires.sets.get_mut(moved.set.0)
            {
                set.members[moved.at as usize].at = at;
            }
        }
        news.abandon(usize::from(set.queued), |event| wires.has_cause(event));
        true
    }

    /// A future waits for the set to be ready.
    pub(crate) fn await_set(&mut self, id: SetId) {
        if let Some(set) = self.memory.wires.sets.get_mut(id.0) {
            set.awaited = true;
        }
    }

    /// A tripwire of some sets fired.
    #[cold]
    pub(super) fn fire_sets(&mut self, id: WireId) {
        let super::Memory { news, wires, .. } = &mut *self.memory;
        let Some(wire) = wires.all.get(id.0) else { return };
        for Named { set: id, at } in &wire.sets {
            let Some(set) = wires.sets.get_mut(id.0) else { continue };
            let fired = &mut set.members[*at as usize].fired;
            set.fired += usize::from(*fired != set.turn);
            *fired = set.turn;
            if set.fired < set.need {
                continue;
            }
            (set.turn, set.fired) = (set.turn + 1, 0);
            let times = set.cell.add();
            if std::mem::take(&mut set.awaited) {
                news.wake(Wakeup::Set(*id));
            }
            if set.report != Report::Poll && !std::mem::replace(&mut set.queued, true) {
                news.push(MemoryEvent::Tripset { set: *id, tag: set.tag, times });
            }
        }
    }
}
