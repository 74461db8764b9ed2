//! What is known of members: facts, their order, and a table that holds what differs from the beginning.

use std::collections::BTreeMap;

use crate::Rank;

/// What has become of an incarnation of a member. Later ones replace earlier ones (B-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// It runs, as far as is known.
    Alive,
    /// It was lost: its channel fell silent, or its process ended.
    Died,
    /// It closed in good order.
    Left,
}

/// What is known of a member. Of two facts the greater one holds: that of the later incarnation and, within
/// one, the end before life (B-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fact {
    /// Counts the lives of the member, from zero.
    pub incarnation: u32,
    /// What has become of it.
    pub status: Status,
}

impl Fact {
    /// What every member of the beginning is taken for.
    pub(crate) const FIRST: Fact = Fact { incarnation: 0, status: Status::Alive };

    pub(crate) fn alive(incarnation: u32) -> Fact {
        Fact { incarnation, status: Status::Alive }
    }

    /// Whether the member runs.
    pub fn is_alive(self) -> bool {
        self.status == Status::Alive
    }
}

/// The facts about all members. Those of which nothing happened cost nothing.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// How many members there were in the beginning.
    first: u32,
    known: BTreeMap<Rank, Fact>,
}

impl Table {
    pub(crate) fn new(first: u32) -> Table {
        Table { first, known: BTreeMap::new() }
    }

    /// What is known of a member; nothing if there is no such member.
    pub(crate) fn get(&self, rank: Rank) -> Option<Fact> {
        self.known.get(&rank).copied().or_else(|| (rank < self.first).then_some(Fact::FIRST))
    }

    /// Numbers of members are below this.
    pub(crate) fn end(&self) -> u32 {
        self.known.last_key_value().map_or(self.first, |(rank, _)| self.first.max(rank + 1))
    }

    /// Whether something was said of the member.
    pub(crate) fn has(&self, rank: Rank) -> bool {
        self.known.contains_key(&rank)
    }

    pub(crate) fn set(&mut self, rank: Rank, fact: Fact) {
        self.known.insert(rank, fact);
    }

    /// All that was said.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Rank, Fact)> {
        self.known.iter().map(|(rank, fact)| (*rank, *fact))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B-1: the later incarnation counts, and within one the end.
    #[test]
    fn facts_are_ordered() {
        let fact = |incarnation, status| Fact { incarnation, status };
        let order = [
            fact(0, Status::Alive),
            fact(0, Status::Died),
            fact(0, Status::Left),
            fact(1, Status::Alive),
            fact(1, Status::Died),
        ];
        assert!(order.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn a_table_holds_what_happened() {
        let mut table = Table::new(3);
        assert_eq!((table.get(2), table.get(3), table.end()), (Some(Fact::FIRST), None, 3));
        table.set(7, Fact::alive(0));
        assert_eq!((table.get(5), table.get(7), table.end()), (None, Some(Fact::FIRST), 8));
        assert_eq!(table.iter().collect::<Vec<_>>(), [(7, Fact::FIRST)]);
        assert!(table.has(7) && !table.has(0));
    }
}
