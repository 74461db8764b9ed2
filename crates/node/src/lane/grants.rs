//! Who may send how much: the receive buffer of the lane's device is granted, as credit, to the peers that
//! use up what they have (D-6, L-41 … L-43).
//!
//! Every peer starts with a few slots of credit, which it gets back as they are consumed. A peer that uses
//! them up has more to send. As long as few peers do, they share the buffer. When there are more, each in its
//! turn gets a fixed number of slots, so that all together have no more in flight than the buffer holds, and
//! an acknowledgement serves many slots.

use std::collections::VecDeque;

use tautline_link::{Link, Nanos};

use super::Lane;
use crate::Rank;

/// Slots of credit that a peer has while it does not use them up.
pub(super) const BASE_SHARE: u32 = 8;
/// The same of a peer that connected while many others did, at first and once it has used them up.
const CROWDED_SHARE: u32 = 2;
const SMALL_SHARE: u32 = 3;
/// Slots of credit of one turn, at the least.
const TURN: u32 = 24;
/// Peers that may connect within a millisecond before that counts as many.
const FEW: u32 = 8;
const MILLISECOND: Nanos = 1_000_000;
/// A turn ends when nothing came for this long, and two round trips.
const IDLE: Nanos = 200_000;

/// The peers that have more credit than the others, and those that wait for it.
#[derive(Debug)]
pub(super) struct Grants {
    /// Bytes of the device's buffer that may be granted.
    buffer: u32,
    turns: Vec<Turn>,
    waiting: VecDeque<Rank>,
    /// Hellos of the millisecond that began at this time.
    hellos: (Nanos, u32),
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    rank: Rank,
    since: Nanos,
}

impl Grants {
    /// What a device with so many bytes of receive buffer has to grant.
    pub(super) fn new(buffer: u32) -> Grants {
        // As much as a sender alone may use (L-13).
        Grants { buffer: buffer / 4 * 3, turns: Vec::new(), waiting: VecDeque::new(), hellos: (0, 0) }
    }

    /// The first credit of a peer whose hello arrived now (L-42).
    pub(super) fn first_credit(&mut self, now: Nanos) -> u32 {
        let (began, count) = &mut self.hellos;
        if now >= *began + MILLISECOND {
            (*began, *count) = (now, 0);
        }
        *count += 1;
        if *count <= FEW { BASE_SHARE } else { CROWDED_SHARE }
    }

    /// How many peers that send slots of this size may have their turns at the same time.
    fn places(&self, charge: u32) -> usize {
        (self.buffer / charge.saturating_mul(TURN)).max(1) as usize
    }

    /// The slots of a turn.
    fn turn(&self, charge: u32) -> u32 {
        TURN.min(self.buffer / charge).max(SMALL_SHARE)
    }

    /// The share of each of those that have their turns.
    fn share(&self, charge: u32) -> u32 {
        match self.turns.len() as u32 {
            0 | 1 => u32::MAX,
            turns => (self.buffer / charge / turns).max(self.turn(charge)),
        }
    }

    /// A peer has used up its credit; `waits` if it waits for its turn already.
    fn wish(&mut self, now: Nanos, rank: Rank, waits: bool) {
        let Grants { turns, waiting, .. } = self;
        match turns.iter().position(|turn| turn.rank == rank) {
            Some(at) if waiting.is_empty() => turns[at].since = now,
            Some(at) => {
                // Others wait: it is their turn now.
                turns.remove(at);
                waiting.push_back(rank);
            }
            None if waits => {}
            None => waiting.push_back(rank),
        }
    }

    /// Gives the places for senders of slots of this size to those that have waited longest.
    fn fill_places(&mut self, now: Nanos, charge: u32) {
        let places = self.places(charge);
        while self.turns.len() < places
            && let Some(rank) = self.waiting.pop_front()
        {
            if !self.has_turn(rank) {
                self.turns.push(Turn { rank, since: now });
            }
        }
    }

    fn has_turn(&self, rank: Rank) -> bool {
        self.turns.iter().any(|turn| turn.rank == rank)
    }
}

/// The lane, as it grants credit.
pub(super) struct Granting<'a>(pub(super) &'a mut Lane);

impl Granting<'_> {
    /// Grants credit to peers that have used up theirs.
    #[cold]
    pub(super) fn serve_wishes(&mut self, now: Nanos) {
        while let Some(rank) = self.0.port.pop_wish() {
            let crowded = !self.0.grants.turns.is_empty();
            let Some(link) = self.open_link(rank) else { continue };
            if !link.take_wants_more_credit() {
                continue;
            }
            if link.share() == CROWDED_SHARE && !crowded {
                // It may have no more than a message at a time.
                self.set_share(rank, SMALL_SHARE);
                self.announce_credit(rank);
                continue;
            }
            let (charge, waits) = (link.slot_charge(), link.share() == 0);
            self.end_idle_turns(now);
            self.0.grants.wish(now, rank, waits);
            self.begin_turns(now, charge);
        }
    }

    /// Ends the turns of peers that have stopped to send, and begins others (L-43).
    #[cold]
    pub(super) fn serve_grants(&mut self, now: Nanos) {
        self.end_idle_turns(now);
        if let Some(&rank) = self.0.grants.waiting.front() {
            let charge = self.open_link(rank).map_or(1, |link| link.slot_charge());
            self.begin_turns(now, charge);
        }
    }

    /// When a turn may end because nothing comes.
    pub(super) fn next_grant(&self) -> Nanos {
        if self.0.grants.waiting.is_empty() {
            return Nanos::MAX;
        }
        self.0.grants.turns.iter().map(|turn| self.idle_at(*turn)).min().unwrap_or(Nanos::MAX)
    }

    fn idle_at(&self, turn: Turn) -> Nanos {
        let link = self.0.peers.get(turn.rank).and_then(|peer| peer.channel.link.link());
        let Some(link) = link.filter(|link| link.is_open()) else { return 0 };
        turn.since.max(link.heard_at()) + IDLE + 2 * link.round_trip().unwrap_or(0)
    }

    fn end_idle_turns(&mut self, now: Nanos) {
        let mut turns = std::mem::take(&mut self.0.grants.turns);
        turns.retain(|turn| {
            let idle = self.idle_at(*turn) <= now;
            if idle {
                self.set_share(turn.rank, BASE_SHARE);
            }
            !idle
        });
        self.0.grants.turns = turns;
    }

    /// Gives turns to those that wait, as far as there are places for senders of slots of this size.
    fn begin_turns(&mut self, now: Nanos, charge: u32) {
        let before = self.0.grants.turns.len();
        self.0.grants.fill_places(now, charge);
        let crowded = !self.0.grants.waiting.is_empty();
        let share = if crowded { self.0.grants.turn(charge) } else { self.0.grants.share(charge) };
        for i in 0..self.0.grants.turns.len() {
            let rank = self.0.grants.turns[i].rank;
            if !crowded || i >= before {
                self.set_share(rank, share);
                self.announce_credit(rank);
            }
            if crowded {
                // What is granted is not granted again before the next turn.
                self.set_share(rank, 0);
            }
        }
        // The others were told before.
        if let Some(&last) = self.0.grants.waiting.back() {
            self.set_share(last, 0);
            self.0.port.note_deadline(now + IDLE);
        }
    }

    fn set_share(&mut self, rank: Rank, slots: u32) {
        if let Some(link) = self.open_link(rank) {
            link.set_share(slots);
        }
    }

    fn announce_credit(&mut self, rank: Rank) {
        if self.open_link(rank).is_some_and(Link::announce_credit) {
            let (peer, port) = self.0.channel(rank);
            peer.channel.mark_dirty(port);
        }
    }

    fn open_link(&mut self, rank: Rank) -> Option<&mut Link> {
        let link = self.0.peers.get_mut(rank)?.channel.link.peering.link_mut()?;
        link.is_open().then_some(link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHARGE: u32 = 1_000;

    /// L-43: whoever has had its turn, or asks for the first time, waits for all that asked before: of many
    /// peers that always want more, each one has a turn before any has a second one.
    #[test]
    fn peers_have_their_turns_in_the_order_in_which_they_asked() {
        for (places, peers) in [(1, 2), (1, 7), (3, 7), (8, 100)] {
            let mut grants = Grants::new(places * TURN * CHARGE / 3 * 4);
            assert_eq!(grants.places(CHARGE), places as usize);
            for rank in 0..peers {
                grants.wish(0, rank, false);
                grants.fill_places(0, CHARGE);
            }
            let mut began: Vec<Rank> = grants.turns.iter().map(|turn| turn.rank).collect();
            for now in 1..1_000 {
                // Each in its turn uses up its credit; others that wait ask again.
                let waiting = grants.waiting.front().copied();
                waiting.into_iter().for_each(|rank| grants.wish(now, rank, true));
                let done = grants.turns[now as usize % grants.turns.len()].rank;
                grants.wish(now, done, false);
                grants.fill_places(now, CHARGE);
                began.extend(grants.turns.iter().filter(|turn| turn.since == now).map(|turn| turn.rank));
            }
            assert_eq!(began.len(), places as usize + 999, "one turn begins when one ends");
            assert!(began[..peers as usize].iter().copied().eq(0..peers), "{began:?}");
            for (at, rank) in began.iter().enumerate() {
                let others = began[at + 1..].iter().position(|other| other == rank);
                assert!(
                    others.is_none_or(|others| others as u32 >= peers - places),
                    "{peers} peers, {places} places: rank {rank} again after {others:?} turns of others"
                );
            }
        }
    }
}
