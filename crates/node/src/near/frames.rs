//! Frames from peers on this host, and sleeping while they may send.

use tautline_device::Channel;
use tautline_device::shm::{self, Slip};
use tautline_link::Death;
use tautline_wire::record;

use crate::delivery::{Item, Place};
use crate::interface::Interface;
use crate::near::Near;
use crate::{Down, PeerId, Rank};

/// How often frames are looked for at the datagram device while there is other work: every so many polls.
const FAR_EVERY: u32 = 64;
/// Looks at shared memory for each at the clock.
const LOOKS: u32 = 64;
/// The same, where looking for datagrams costs as little.
const FAR_LOOKS: u32 = 48;
/// Small frames that are taken, and vain looks for them, before everything else has its turn.
const LINES_AT_ONCE: u32 = 256;

/// Finds in close succession that make a burst.
const STREAK: u32 = 8;
/// How long a receiver that has caught up with a burst looks away.
const BREATH: u32 = 3;
/// Small frames that are taken out in one go.
const SMALL: usize = 16;
/// Bytes that are taken out in one go: they stay in the first cache, or near it, until they are read.
const AT_ONCE: usize = 64 << 10;

/// Lets a sender that is sending one small frame after the other get ahead. Whoever looks all the time at the line that is being written makes it
/// travel to and fro for every word.
#[inline]
fn breathe() {
    for _ in 0..BREATH {
        std::hint::spin_loop();
    }
}

/// What was found of frames from peers on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPoll {
    /// Some, from one peer: they are in [`FrameBatch`].
    Frames,
    /// None, and nothing else either.
    Empty,
    /// None that may be taken now; everything else is to be looked at.
    SlowPath,
}

/// Where frames from a peer on this host are read: small ones, or one that is longer.
#[derive(Debug)]
pub struct FrameBatch {
    from: Rank,
    incarnation: u32,
    slips: [Slip; SMALL],
    small: usize,
    frame: Box<[u8]>,
    long: Option<usize>,
    more: bool,
}

impl Default for FrameBatch {
    fn default() -> FrameBatch {
        FrameBatch {
            from: 0,
            incarnation: 0,
            slips: [Slip::EMPTY; SMALL],
            small: 0,
            frame: vec![0; shm::MAX_FRAME].into_boxed_slice(),
            long: None,
            more: false,
        }
    }
}

impl FrameBatch {
    /// Who sent them.
    #[inline]
    pub fn from(&self) -> PeerId {
        PeerId::new(self.from, self.incarnation)
    }

    /// The small frames, in order; if there are none, there is a longer one.
    #[inline]
    pub fn small(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.slips[..self.small].iter().map(Slip::frame)
    }

    /// How many frames there are.
    #[inline]
    pub fn count(&self) -> usize {
        self.small + usize::from(self.long.is_some())
    }

    /// The longer frame, if there is one.
    #[inline]
    pub fn long(&self) -> Option<&[u8]> {
        self.long.map(|len| &self.frame[..len])
    }

    /// The frames, in order.
    pub fn frames(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        let slips = self.slips[..self.small].iter().map(Slip::frame);
        slips.chain(self.long())
    }

    /// Whether there may be more.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.more
    }
}

impl Interface {
    /// Whether a peer on this host has sent something, or closed.
    #[inline(always)]
    pub(crate) fn near_news(&self) -> bool {
        self.near_up.iter().any(|rank| match &self.peers[*rank as usize].near {
            Some(near) => near.shm.has_news(),
            None => false,
        })
    }

    /// Whether a peer on this host has made room that somebody found missing: [`Interface::receive_near`] tells.
    #[inline]
    pub(crate) fn has_near_room(&mut self) -> bool {
        self.near_up.iter().any(|rank| {
            let near = self.peers[*rank as usize].near.as_mut();
            near.is_some_and(|near| near.stalled && near.shm.is_clear() || near.has_wanted())
        })
    }

    /// How often a waiting program looks before it reads the clock.
    #[inline]
    pub(crate) fn looks(&mut self) -> u32 {
        if !self.near_up.is_empty() {
            LOOKS
        } else if self.device.is_quiet() {
            FAR_LOOKS
        } else {
            1
        }
    }

    /// Takes frames of up to `limit` bytes in all, rounded up, if nothing that came before waits: small ones of one peer, or a longer one that holds
    /// a whole message.
    #[inline]
    pub(crate) fn take_frames(&mut self, limit: usize, taken: &mut FrameBatch) -> FastPoll {
        if !self.ready.is_empty() || self.near_asleep || self.near_lines == 0 {
            self.near_lines = LINES_AT_ONCE;
            return FastPoll::SlowPath;
        }
        self.near_lines -= 1;
        let mut found = self.find_frames(limit, taken);
        if found == FastPoll::Empty && self.near_streak > STREAK {
            breathe();
            found = self.find_frames(limit, taken);
        }
        if found == FastPoll::Empty {
            self.near_vain = self.near_vain.saturating_add(1);
        } else {
            let close_by = self.near_vain <= 2;
            self.near_streak = if close_by { self.near_streak.saturating_add(1) } else { 0 };
            self.near_vain = 0;
        }
        found
    }

    /// The place of the peer that is looked at after `i` others.
    #[inline(always)]
    fn turn(&self, i: usize) -> usize {
        let count = self.near_up.len();
        // It may be the turn of one past the last, and peers may have gone since.
        let first = if self.near_turn < count { self.near_turn } else { 0 };
        if first + i < count { first + i } else { (first + i).saturating_sub(count) }
    }

    #[inline]
    fn find_frames(&mut self, limit: usize, taken: &mut FrameBatch) -> FastPoll {
        let count = self.near_up.len();
        for i in 0..count {
            // Whoever was found last is looked at last.
            let turn = self.turn(i);
            let peer = &mut self.peers[self.near_up[turn] as usize];
            let Some(near) = &mut peer.near else { continue };
            let (small, more) = near.shm.pop_slips(&mut taken.slips, limit, record::is_whole);
            if small > 0 {
                (taken.small, taken.long) = (small, None);
                (taken.from, taken.incarnation) = (peer.rank, peer.incarnation);
                taken.more = more || count > 1;
                self.near_turn = turn + 1;
                return FastPoll::Frames;
            }
            if more {
                return self.find_long(turn, taken);
            }
        }
        self.found_nothing()
    }

    /// What a peer has sent next is no small message: it may be a longer one, or something asked of memory.
    #[inline(never)]
    fn find_long(&mut self, turn: usize, taken: &mut FrameBatch) -> FastPoll {
        let peer = &mut self.peers[self.near_up[turn] as usize];
        let Some(near) = &mut peer.near else { return FastPoll::SlowPath };
        let head = near.shm.head();
        match near.shm.peek() {
            Some(len) if record::is_whole(head) => {
                near.shm.take(&mut taken.frame[..len]);
                (taken.small, taken.long) = (0, Some(len));
                (taken.from, taken.incarnation) = (peer.rank, peer.incarnation);
                taken.more = near.shm.has_news() || self.near_up.len() > 1;
                self.near_turn = turn + 1;
                FastPoll::Frames
            }
            Some(_) if record::is_memory(head) => {
                self.glance();
                self.found_nothing()
            }
            // The end, or part of a message: not for here.
            _ => FastPoll::SlowPath,
        }
    }

    #[inline]
    fn found_nothing(&self) -> FastPoll {
        if self.near_up.is_empty() || self.has_events() { FastPoll::SlowPath } else { FastPoll::Empty }
    }

    /// What was taken, but for the first `handled`, is delivered as any other slot, before whatever has been taken out since.
    #[cold]
    pub(crate) fn put_back(&mut self, taken: &FrameBatch, handled: usize) {
        let (rank, incarnation) = (taken.from, taken.incarnation);
        self.activity += 1;
        for control in taken.frames().skip(handled).filter(|frame| Interface::is_control(frame)) {
            let peer = &mut self.peers[rank as usize];
            if let Some(near) = peer.near.as_mut().filter(|_| peer.incarnation == incarnation) {
                near.pending += 1;
                self.obey(rank, control);
            }
        }
        let count = taken.frames().count() - handled;
        for frame in taken.frames().rev().take(count).filter(|frame| !Interface::is_control(frame)) {
            let peer = &mut self.peers[rank as usize];
            // If the peer is gone by now, what it sent whole still counts (S-6).
            if let Some(near) = peer.near.as_mut().filter(|_| peer.incarnation == incarnation) {
                near.pending += 1;
            }
            let bytes = self.copy(frame);
            self.ready.push_front(Item { peer: rank, incarnation, place: Place::Held(bytes) });
        }
    }

    /// Takes what peers on this host have sent, as much as a batch holds. Returns how many frames.
    pub(crate) fn receive_near(&mut self) -> usize {
        let mut batch = self.batch.take().unwrap_or_else(|| Box::new(Interface::fresh_batch()));
        batch.clear();
        let (mut count, mut bytes) = (0, 0);
        let limit = self.config.link.credit_slots as usize;
        self.near_turn = self.turn(1);
        for i in 0..self.near_up.len() {
            // What they send may end their channels.
            let Some(&rank) = self.near_up.get(self.turn(i)) else { continue };
            let Some(near) = &mut self.peers[rank as usize].near else { continue };
            if near.stalled && near.shm.is_clear() {
                near.stalled = false;
                self.activity += 1;
            }
            if near.has_wanted() {
                near.wanting = None;
                self.activity += 1;
            }
            // What is asked of memory, or answered, is obeyed at once, however much is left untaken.
            while let Some(near) = &mut self.peers[rank as usize].near
                && bytes < AT_ONCE
                && let Some(len) = near.shm.peek()
                && (near.pending < limit || record::is_memory(near.shm.head()))
                && let Some(frame) = batch.append(len, |room| near.shm.take(room))
            {
                near.pending += 1;
                count += 1;
                bytes += len;
                self.deliver(rank, &batch, Place::Batch(frame));
            }
        }
        self.batch = Some(batch);
        self.activity += count as u64;
        self.look_for_ends();
        count
    }

    #[inline]
    fn look_for_ends(&mut self) {
        for i in (0..self.near_up.len()).rev() {
            let rank = self.near_up[i];
            let Some(near) = &self.peers[rank as usize].near else { continue };
            if near.shm.is_corrupt() {
                self.take_down(rank, Down::Died(Death::Violation));
            } else if near.shm.has_ended() {
                self.take_down(rank, Down::Closed);
            }
        }
    }

    /// Whether frames are to be looked for at the datagram device now.
    #[inline]
    pub(crate) fn far_is_due(&mut self, found: usize) -> bool {
        let due = self.near_polls == 0 || found == 0 && self.has_links;
        self.near_polls = if due { FAR_EVERY } else { self.near_polls - 1 };
        due
    }

    /// Whether there is news that may be taken out: not of a peer that has sent as much as the program leaves untaken.
    fn near_takeable(&self) -> bool {
        self.near_up.iter().any(|rank| match &self.peers[*rank as usize].near {
            Some(near) => near.shm.has_news() && !self.is_clogged_near(near),
            None => false,
        })
    }

    /// Whether the next frame of a peer on this host has to wait until the program takes what has come before.
    pub(crate) fn is_clogged_near(&self, near: &Near) -> bool {
        near.pending >= self.config.link.credit_slots as usize
            && near.shm.has_news()
            && !record::is_memory(near.shm.head())
    }

    /// Says to all peers on this host that this node is about to sleep, and looks again: false if it should not.
    pub(crate) fn say_asleep(&mut self) -> bool {
        let mut barrier = None;
        for i in 0..self.near_up.len() {
            let rank = self.near_up[i] as usize;
            if let Some(near) = &mut self.peers[rank].near {
                near.shm.say_asleep();
                self.near_asleep = true;
                barrier = Some(rank);
            }
        }
        if let Some(near) = barrier.and_then(|rank| self.peers[rank].near.as_ref()) {
            near.shm.barrier();
        }
        // Nor does it sleep on memory that turns out to be spoilt: nobody might wake it for that.
        let room = self.has_near_room();
        let spoilt = self
            .near_up
            .iter()
            .any(|rank| self.peers[*rank as usize].near.as_ref().is_some_and(|near| near.shm.is_corrupt()));
        if room || spoilt || self.memory.more || self.near_takeable() {
            self.say_awake();
            return false;
        }
        true
    }

    /// Says that this node is awake again.
    pub(crate) fn say_awake(&mut self) {
        if std::mem::take(&mut self.near_asleep) {
            for rank in &self.near_up {
                if let Some(near) = &self.peers[*rank as usize].near {
                    near.shm.say_awake();
                }
            }
        }
    }

    /// Says goodbye to all peers on this host: what was sent stays where they find it.
    pub(crate) fn close_near(&mut self) {
        for rank in std::mem::take(&mut self.near_up) {
            if let Some(mut near) = self.peers[rank as usize].near.take() {
                near.shm.close();
                self.counters.near.add(near.shm.counts());
            }
        }
        self.hood = None;
    }
}
