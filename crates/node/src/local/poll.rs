//! Which rings of local peers are polled, in which order, and how often (S-38 … S-40).

use std::sync::Arc;

use tautline_device::shm::{LanePages, RingNumber};
use tautline_link::Nanos;

use crate::Rank;

/// The datagram device is polled once for so many polls of the rings that found something.
const DEVICE_EVERY: u32 = 64;
/// Polls of the fast path before everything else has its turn.
const FAST_POLLS: u32 = 256;
/// Fast polls before one that looks for rings that are not polled yet, though others have frames.
const NEW_EVERY: u32 = 16;
/// Fast polls while a message waits for its receiver's window.
const FEW_FAST_POLLS: u32 = 8;
/// Finds in close succession that make a burst.
const BURST: u32 = 8;
/// Spins of a receiver that has caught up with a burst.
const PAUSE: u32 = 3;

/// Whole polls between two searches for rings that are idle.
const RETIRE_EVERY: u32 = 64;
/// So many idle rings may stay among those that are polled: a barrier costs more than polling them.
const IDLE_RINGS: usize = 4;
/// With so many rings at most, all are checked before every sleep.
const FEW_RINGS: usize = 8;
/// All rings are checked at least so often, in case that a peer has cleared bits of others (S-40).
const SWEEP_NS: Nanos = 10_000_000;

/// In place of the number of vain polls: not all rings were checked before the last sleep, and nothing was
/// found since it ended.
const UNCHECKED: u32 = u32::MAX;

/// A ring that is polled.
#[derive(Clone, Copy, Debug)]
struct ActiveRing {
    rank: Rank,
    number: u32,
    /// Frames taken when the ring was last found busy: the low bits, so that a ring takes 16 bytes here.
    taken: u32,
    /// The place of the peer in the table of peers.
    peer: u16,
    /// Its bit was cleared; it is polled no more if it is still idle after the barrier.
    leaving: bool,
}

const _: () = assert!(size_of::<ActiveRing>() == 16);

/// The polling state of a lane's rings.
#[derive(Debug, Default)]
pub(crate) struct ShmPoll {
    /// Where senders announce their frames, and this lane its sleep; none before the first peer.
    pages: Option<Arc<LanePages>>,
    /// Peers that memory is shared with.
    peers: Vec<Rank>,
    /// Rings that are polled: those whose bits were seen, and that have not been idle for long.
    active: Vec<ActiveRing>,
    /// The peers by the numbers of their rings, and their places in the table of peers.
    owners: Vec<Option<(Rank, u16)>>,
    /// The bits that were seen, or are ignored because no peer has the number: 64 rings in each word.
    known: Vec<u64>,
    /// The place in `active` that is polled first.
    turn: usize,
    /// Polls until the datagram device is polled again.
    until_device: u32,
    /// Fast polls until everything else has its turn.
    budget: u32,
    /// Polls for memory records in a row that found some.
    finds: u32,
    /// Whole polls until idle rings are searched for.
    until_retire: u32,
    /// Finds in close succession, and vain polls since the last one; [`UNCHECKED`] after a sleep before which
    /// not all rings were checked.
    burst: u32,
    vain: u32,
    /// Peers have been told that this node sleeps.
    pub(crate) asleep: bool,
    /// A peer has rung since the last poll.
    rung: bool,
    /// When all rings were last checked.
    swept: Nanos,
    /// All rings were checked after this sleep was announced: whoever sends from then on rings.
    checked: bool,
}

impl ShmPoll {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// Rings that are polled.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.active.len()
    }

    /// The peers whose rings are polled.
    #[inline]
    pub(crate) fn active(&self) -> impl Iterator<Item = Rank> {
        self.active.iter().map(|ring| ring.rank)
    }

    /// The peers that memory is shared with.
    #[cfg(test)]
    pub(crate) fn peers(&self) -> &[Rank] {
        &self.peers
    }

    /// Memory is shared with a peer, who has a place in the table of peers, and whose ring has a number on
    /// this lane's pages.
    pub(crate) fn add(&mut self, (rank, peer): (Rank, u16), number: &RingNumber) {
        let (at, number) = (number.get() as usize, number);
        self.pages.get_or_insert_with(|| number.pages().clone());
        self.peers.push(rank);
        if self.owners.len() <= at {
            self.owners.resize(at + 1, None);
            self.known.resize(at / 64 + 1, u64::MAX);
        }
        self.owners[at] = Some((rank, peer));
        // Its bit was ignored so far.
        self.known[at / 64] &= !(1 << (at % 64));
        self.activate(number.get());
    }

    pub(crate) fn remove(&mut self, rank: Rank) {
        self.peers.retain(|peer| *peer != rank);
        self.active.retain(|ring| ring.rank != rank);
        for (number, owner) in self.owners.iter_mut().enumerate() {
            if owner.take_if(|(owner, _)| *owner == rank).is_some() {
                // Its bit may stay set: it is ignored until another peer has the number.
                self.known[number / 64] |= 1 << (number % 64);
            }
        }
    }

    pub(crate) fn take_all(&mut self) -> Vec<Rank> {
        self.active.clear();
        self.owners.clear();
        self.known.clear();
        std::mem::take(&mut self.peers)
    }

    /// Whether a ring has frames that is not polled.
    #[inline(always)]
    pub(crate) fn has_new(&self) -> bool {
        let (Some(pages), [known, more @ ..]) = (&self.pages, &*self.known) else { return false };
        pages.bits(0) & !known != 0 || !more.is_empty() && self.has_new_beyond()
    }

    /// The same of rings that are not among the first 64.
    #[inline(never)]
    fn has_new_beyond(&self) -> bool {
        let Some(pages) = &self.pages else { return false };
        self.known.iter().enumerate().any(|(index, known)| pages.bits(index) & !known != 0)
    }

    /// Polls the rings that [`ShmPoll::has_new`] found from now on. Returns whether there were any.
    pub(crate) fn find_new(&mut self) -> bool {
        let new = self.has_new();
        if new {
            self.activate_new();
        }
        new
    }

    /// The same, unless rings that are polled had something, and this was done lately.
    #[inline]
    pub(crate) fn find_new_unless(&mut self, found: bool) -> bool {
        self.finds = if found { self.finds.wrapping_add(1) } else { 0 };
        self.finds.is_multiple_of(NEW_EVERY) && self.find_new()
    }

    #[cold]
    fn activate_new(&mut self) {
        let Some(pages) = self.pages.clone() else { return };
        for index in 0..self.known.len() {
            let mut new = pages.bits(index) & !self.known[index];
            while new != 0 {
                self.activate((64 * index) as u32 + new.trailing_zeros());
                new &= new - 1;
            }
        }
    }

    /// A ring is polled from now on. The bit of a number that nobody has is ignored.
    fn activate(&mut self, number: u32) {
        let at = number as usize;
        let (index, mask) = (at / 64, 1 << (at % 64));
        if self.known[index] & mask != 0 {
            return;
        }
        self.known[index] |= mask;
        if let Some((rank, peer)) = self.owners.get(at).copied().flatten() {
            self.active.push(ActiveRing { rank, number, taken: u32::MAX, peer, leaving: false });
        }
    }

    /// Polls the rings of peers that are busy, although no bit says so, from now on. Returns whether there
    /// are any.
    pub(crate) fn sweep(&mut self, now: Nanos, is_busy: impl Fn(Rank) -> bool) -> bool {
        self.swept = now;
        let mut found = false;
        for number in 0..self.owners.len() {
            let known = self.known[number / 64] >> (number % 64) & 1 != 0;
            if !known && self.owners[number].is_some_and(|(rank, _)| is_busy(rank)) {
                self.activate(number as u32);
                found = true;
            }
        }
        found
    }

    /// Whether all rings are to be checked before a sleep: there are few, it was not done for a while, or
    /// nothing came during a sleep before which it was not done.
    pub(crate) fn is_sweep_due(&self, now: Nanos) -> bool {
        self.peers.len() <= FEW_RINGS || self.vain == UNCHECKED || now >= self.swept + SWEEP_NS
    }

    /// All rings were checked after the sleep was announced.
    pub(crate) fn note_checked(&mut self) {
        self.checked = true;
    }

    /// Whether all rings are to be checked by a lane that does not sleep.
    pub(crate) fn is_sweep_overdue(&self, now: Nanos) -> bool {
        self.active.len() < self.peers.len() && now >= self.swept + SWEEP_NS
    }

    /// Until when a lane may sleep before all rings are checked; none if that was done when it fell asleep.
    pub(crate) fn sweep_at(&self) -> Option<Nanos> {
        (self.asleep && !self.checked).then_some(self.swept + SWEEP_NS)
    }

    /// A peer has rung.
    pub(crate) fn note_ring(&mut self) {
        self.rung = true;
    }

    /// Whether a peer has rung since the last call.
    pub(crate) fn take_rung(&mut self) -> bool {
        std::mem::take(&mut self.rung)
    }

    /// Clears a bit, as a hostile peer could.
    #[cfg(test)]
    pub(crate) fn clear_bit(&self, number: u32) {
        self.pages.iter().for_each(|pages| pages.clear(number));
    }

    // Rings that are idle.

    /// Whether it is time to search for idle rings.
    #[inline]
    pub(crate) fn is_retire_due(&mut self) -> bool {
        if self.active.len() <= IDLE_RINGS {
            return false;
        }
        self.until_retire = self.until_retire.checked_sub(1).unwrap_or(RETIRE_EVERY);
        self.until_retire == 0
    }

    /// Clears the bits of rings that are idle, and were when this was last called; `taken` tells the frames
    /// taken from a ring that is idle now. Then a barrier, and [`ShmPoll::end_retire`]. Returns how many
    /// there are.
    pub(crate) fn begin_retire(&mut self, mut taken: impl FnMut(Rank) -> (u32, bool)) -> usize {
        let Some(pages) = &self.pages else { return 0 };
        let mut leaving = 0;
        for ring in &mut self.active {
            let (frames, idle) = taken(ring.rank);
            ring.leaving = idle && std::mem::replace(&mut ring.taken, frames) == frames;
            if ring.leaving {
                pages.clear(ring.number);
                leaving += 1;
            }
        }
        leaving
    }

    /// Polls the rings no more whose bits were cleared, and which are still idle after the barrier.
    pub(crate) fn end_retire(&mut self, is_idle: impl Fn(Rank) -> bool) {
        let Some(pages) = &self.pages else { return };
        let known = &mut self.known;
        self.active.retain_mut(|ring| {
            if !std::mem::take(&mut ring.leaving) {
                return true;
            }
            if is_idle(ring.rank) {
                known[ring.number as usize / 64] &= !(1 << (ring.number % 64));
                return false;
            }
            pages.set(ring.number);
            true
        });
    }

    // Sleeping.

    /// Tells peers that this lane sleeps: one line, however many there are.
    pub(crate) fn announce_sleep(&mut self) {
        if let Some(pages) = self.pages.as_ref().filter(|_| !self.peers.is_empty()) {
            pages.announce_sleep();
            (self.asleep, self.checked) = (true, false);
        }
    }

    /// Tells peers that this lane is awake.
    pub(crate) fn announce_wake(&mut self) {
        if let Some(pages) = self.pages.as_ref().filter(|_| self.asleep) {
            pages.announce_wake();
            if !self.checked {
                self.vain = UNCHECKED;
            }
        }
        self.asleep = false;
    }

    // Turns.

    /// The place of the ring that is polled first.
    #[inline(always)]
    pub(crate) fn first(&self) -> usize {
        // The turn may be one past the last, and peers may have gone since.
        if self.turn < self.active.len() { self.turn } else { 0 }
    }

    /// The place of the ring that is polled after the one at `place`.
    #[inline(always)]
    pub(crate) fn after(&self, place: usize) -> usize {
        if place + 1 < self.active.len() { place + 1 } else { 0 }
    }

    /// The peer at a place; peers may have gone since the place was worked out.
    #[inline(always)]
    pub(crate) fn at(&self, place: usize) -> Option<Rank> {
        self.active.get(place).map(|ring| ring.rank)
    }

    /// The place of that peer in the table of peers.
    #[inline(always)]
    pub(crate) fn peer_at(&self, place: usize) -> Option<usize> {
        self.active.get(place).map(|ring| usize::from(ring.peer))
    }

    /// The peer at `place` was found last, and is polled last.
    #[inline]
    pub(crate) fn found_at(&mut self, place: usize) {
        self.turn = place + 1;
    }

    /// Something was found.
    #[inline]
    pub(crate) fn note_found(&mut self) {
        self.vain = self.vain.min(UNCHECKED - 1);
    }

    /// The next peer is polled first.
    #[inline]
    pub(crate) fn next_turn(&mut self) {
        self.turn = self.after(self.first());
    }

    /// Whether the fast path may poll. If not, everything else has its turn first.
    #[inline]
    pub(crate) fn may_poll_fast(&mut self, others_wait: bool) -> bool {
        if others_wait || self.asleep || self.budget == 0 {
            self.budget = FAST_POLLS;
            return false;
        }
        self.budget -= 1;
        if self.budget.is_multiple_of(NEW_EVERY) {
            self.find_new();
        }
        true
    }

    /// A message waits for its receiver's window, which the fast path does not look for.
    pub(crate) fn poll_slowly_soon(&mut self) {
        self.budget = self.budget.min(FEW_FAST_POLLS);
    }

    /// Waits a moment for a sender that is sending one small frame after the other, if that is so. A receiver
    /// that reads the line all the time that is being written makes it travel to and fro for every word.
    #[inline]
    pub(crate) fn spin_pause(&self) -> bool {
        let bursting = self.burst > BURST;
        if bursting {
            for _ in 0..PAUSE {
                std::hint::spin_loop();
            }
        }
        bursting
    }

    /// A poll found frames, or did not.
    #[inline]
    pub(crate) fn note(&mut self, found: bool) {
        if found {
            self.burst = if self.vain <= 2 { self.burst.saturating_add(1) } else { 0 };
            self.vain = 0;
        } else {
            self.note_vain();
        }
    }

    /// A poll found nothing.
    #[inline]
    pub(crate) fn note_vain(&mut self) {
        self.vain = self.vain.saturating_add(1);
    }

    /// Whether the datagram device is polled now, after `found` frames were found in rings.
    #[inline]
    pub(crate) fn is_device_due(&mut self, found: usize, has_links: bool) -> bool {
        let due = self.until_device == 0 || found == 0 && has_links;
        self.until_device = if due { DEVICE_EVERY } else { self.until_device - 1 };
        due
    }

    /// The next poll that is not a fast one polls the datagram device.
    pub(crate) fn poll_device_soon(&mut self) {
        self.until_device = 0;
    }

    /// The next poll is not a fast one, and polls the datagram device.
    pub(crate) fn poll_device_next(&mut self) {
        self.until_device = 0;
        self.budget = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each peer is polled once per round, the one found last comes last, and peers that go do not disturb
    /// that.
    #[test]
    fn turns_are_fair() {
        let (mut poll, pages) = (ShmPoll::default(), LanePages::create().unwrap());
        let numbers = [5, 6, 7].map(|rank| (rank, pages.take_number().unwrap()));
        numbers.iter().for_each(|(rank, number)| poll.add((*rank, 0), number));
        let round = |poll: &ShmPoll| {
            let places = std::iter::successors(Some(poll.first()), |place| Some(poll.after(*place)));
            places.take(poll.len()).filter_map(|place| poll.at(place)).collect::<Vec<_>>()
        };
        assert_eq!(round(&poll), [5, 6, 7]);
        poll.found_at(0);
        assert_eq!(round(&poll), [6, 7, 5]);
        poll.found_at(2);
        assert_eq!(round(&poll), [5, 6, 7]);
        poll.found_at(1);
        poll.remove(7);
        assert_eq!(round(&poll), [5, 6]);
        poll.remove(5);
        poll.remove(6);
        assert_eq!(round(&poll), []);
    }

    /// S-39: of many rings only those with frames are polled, and few that are idle; a ring that gets a frame
    /// while it is being retired stays.
    #[test]
    fn idle_rings_are_not_polled() {
        const RINGS: u32 = 200;
        let (mut poll, pages) = (ShmPoll::default(), LanePages::create().unwrap());
        let numbers: Vec<_> = (0..RINGS).map(|_| pages.take_number().unwrap()).collect();
        (0..RINGS).for_each(|rank| poll.add((rank, 0), &numbers[rank as usize]));
        assert_eq!((poll.len(), poll.has_new()), (RINGS as usize, false));
        // The first search notes what was taken, the second one finds them idle; rank 9 is busy.
        for round in 0..2 {
            let leaving = poll.begin_retire(|rank| (if rank == 9 { round } else { 0 }, true));
            assert_eq!(leaving, round as usize * (RINGS as usize - 1));
            poll.end_retire(|rank| rank != 77);
        }
        assert_eq!(poll.active().collect::<Vec<_>>(), [9, 77]);
        assert!(!poll.has_new());
        assert_eq!(pages.bits(77 / 64) >> (77 % 64) & 1, 1, "it is polled, so its bit is set");
        numbers[130].peer_pages().announce_frames(tautline_mem::Barrier::symmetric());
        assert!(poll.has_new());
        poll.find_new();
        assert_eq!(poll.active().collect::<Vec<_>>(), [9, 77, 130]);
        assert!(!poll.has_new());
        // A bit that a peer cleared: the ring is found when all are checked.
        assert!(poll.sweep(1, |rank| rank == 150) && !poll.sweep(2, |rank| rank == 150));
        assert_eq!(poll.active().collect::<Vec<_>>(), [9, 77, 130, 150]);
        assert_eq!(pages.bits(130 / 64) >> (130 % 64) & 1, 1);
        poll.remove(130);
        assert_eq!((poll.len(), poll.peers().len(), poll.has_new()), (3, RINGS as usize - 1, false));
        // Nobody has this ring any more, or nobody yet: its bit is ignored until somebody has it.
        [130, RINGS].into_iter().for_each(|number| pages.set(number));
        assert!(!poll.has_new());
        poll.find_new();
        assert_eq!((poll.len(), poll.has_new()), (3, false));
        poll.add((130, 0), &numbers[130]);
        assert_eq!((poll.len(), poll.has_new()), (4, false));
    }

    /// N-3: however busy the rings are, everything else has its turn.
    #[test]
    fn the_fast_path_yields() {
        let mut poll = ShmPoll::default();
        poll.add((1, 0), &LanePages::create().unwrap().take_number().unwrap());
        assert!(!poll.may_poll_fast(false), "the first poll is a whole one");
        assert_eq!((0..).take_while(|_| poll.may_poll_fast(false)).count(), FAST_POLLS as usize);
        assert!(!poll.may_poll_fast(true));
        assert!(poll.is_device_due(1, true), "the first poll");
        assert_eq!((0..).take_while(|_| !poll.is_device_due(1, true)).count(), DEVICE_EVERY as usize);
        assert!(poll.is_device_due(0, true));
        assert!(!poll.is_device_due(0, false));
        assert!(poll.may_poll_fast(false));
        poll.poll_device_next();
        assert!(!poll.may_poll_fast(false) && poll.is_device_due(0, false));
        poll.poll_slowly_soon();
        assert_eq!((0..).take_while(|_| poll.may_poll_fast(false)).count(), FEW_FAST_POLLS as usize);
    }
}
