//! Frames to and from peers on this host, and sleeping while they may send.

use tautline_device::Channel;
use tautline_device::shm::{self, LINE_FRAME, LINE_WORDS, Lack};
use tautline_link::Death;
use tautline_wire::record::{self, LEND_MORE_LEN, LONG_LEN, SHORT_LEN};

use crate::delivery::{Item, Place};
use crate::interface::Interface;
use crate::near::Near;
use crate::peer::{Key, SHORT_ONLY, UNKNOWN};
use crate::{Down, Rank};

/// How often frames are looked for at the datagram device while there is other work: every so many polls.
const FAR_EVERY: u32 = 64;
/// Looks at shared memory for each at the clock.
const LOOKS: u32 = 64;
/// The same, where looking for datagrams costs as little.
const FAR_LOOKS: u32 = 16;
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
/// Bytes of a long piece that are shown to the receiver at a time: it copies them out while the next ones are copied in.
const PART: usize = 16 << 10;
/// The same, when they are lent.
const LENT_PART: usize = 32 << 10;
/// A piece that is so long goes in longer parts.
const MANY_PARTS: usize = 512 << 10;

/// Lets a sender that is sending one small frame after the other get ahead. Whoever looks all the time at the line that is being written makes it
/// travel to and fro for every word.
#[inline]
fn breathe() {
    for _ in 0..BREATH {
        std::hint::spin_loop();
    }
}

/// Whether a frame that starts with this byte is dealt with as it is found: a whole message, or something asked of memory.
#[inline(always)]
fn is_for_here(first: u8) -> bool {
    record::is_whole(first) || record::is_memory(first)
}

/// The words of a small frame.
#[inline]
pub(super) fn line_of<const N: usize>(bytes: &[u8; N]) -> [u64; LINE_WORDS] {
    let mut words = [0; LINE_WORDS];
    for (word, part) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*part);
    }
    words
}

/// What was found of frames from peers on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Some, from one peer: they are in [`Taken`].
    Frames,
    /// None, and nothing else either.
    Nothing,
    /// None that may be taken now; everything else is to be looked at.
    Rest,
}

/// A frame that moved one cache line.
#[derive(Clone, Copy, Debug)]
struct Small {
    bytes: [u8; LINE_FRAME],
    len: usize,
}

/// Where frames from a peer on this host are read: small ones, or one that is longer.
#[derive(Debug)]
pub struct Taken {
    from: Rank,
    incarnation: u32,
    lines: [Small; SMALL],
    small: usize,
    frame: Box<[u8]>,
    long: Option<usize>,
    more: bool,
}

impl Default for Taken {
    fn default() -> Taken {
        Taken {
            from: 0,
            incarnation: 0,
            lines: [Small { bytes: [0; LINE_FRAME], len: 0 }; SMALL],
            small: 0,
            frame: vec![0; shm::MAX_FRAME].into_boxed_slice(),
            long: None,
            more: false,
        }
    }
}

impl Taken {
    /// Who sent them.
    #[inline]
    pub fn from(&self) -> Rank {
        self.from
    }

    /// Which incarnation of it.
    #[inline]
    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// The frames, in order.
    #[inline]
    pub fn frames(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        let lines = self.lines[..self.small].iter().map(|line| &line.bytes[..line.len]);
        lines.chain(self.long.iter().map(|len| &self.frame[..*len]))
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
    pub(crate) fn take_frames(&mut self, limit: usize, taken: &mut Taken) -> Found {
        if !self.ready.is_empty() || self.near_asleep || self.near_lines == 0 {
            self.near_lines = LINES_AT_ONCE;
            return Found::Rest;
        }
        self.near_lines -= 1;
        let mut found = self.find_frames(limit, taken);
        if found == Found::Nothing && self.near_streak > STREAK {
            breathe();
            found = self.find_frames(limit, taken);
        }
        if found == Found::Nothing {
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
    fn find_frames(&mut self, limit: usize, taken: &mut Taken) -> Found {
        (taken.small, taken.long) = (0, None);
        for i in 0..self.near_up.len() {
            // Whoever was found last is looked at last.
            let turn = self.turn(i);
            let peer = &mut self.peers[self.near_up[turn] as usize];
            let Some(near) = &mut peer.near else { continue };
            let mut bytes = 0;
            // Many at a time, so that the processor can fetch them at a time.
            while bytes < limit
                && let Some(line) = taken.lines.get_mut(taken.small)
                && let Some(len) = near.shm.pop_line(&mut line.bytes, is_for_here)
            {
                line.len = len;
                if record::is_memory(line.bytes[0]) {
                    return self.serve_found(turn, taken);
                }
                bytes += len;
                taken.small += 1;
            }
            taken.more = near.shm.has_news();
            if taken.small == 0 && taken.more {
                match near.shm.peek().filter(|_| record::is_whole(near.shm.head())) {
                    Some(len) => {
                        near.shm.take(&mut taken.frame[..len]);
                        taken.long = Some(len);
                        taken.more = near.shm.has_news();
                    }
                    None if record::is_memory(near.shm.head()) => {
                        self.glance();
                        return self.found_nothing();
                    }
                    // The end, or part of a message: not for here.
                    None => return Found::Rest,
                }
            }
            if taken.small > 0 || taken.long.is_some() {
                (taken.from, taken.incarnation) = (peer.rank, peer.incarnation);
                taken.more |= self.near_up.len() > 1;
                self.near_turn = turn + 1;
                return Found::Frames;
            }
        }
        self.found_nothing()
    }

    #[inline]
    fn found_nothing(&self) -> Found {
        if self.near_up.is_empty() || self.has_events() { Found::Rest } else { Found::Nothing }
    }

    /// Behind the small frames that were taken stood one of memory, which is out already: it is obeyed, and so are those behind it.
    #[inline(never)]
    fn serve_found(&mut self, turn: usize, taken: &mut Taken) -> Found {
        let rank = self.near_up[turn];
        let incarnation = self.peers[rank as usize].incarnation;
        let Small { bytes, len } = taken.lines[taken.small];
        self.obey_words(rank, len, &line_of(&bytes));
        self.activity += 1;
        self.glance();
        if !self.memory.busy.is_empty() {
            self.pump();
        }
        if taken.small == 0 {
            return self.found_nothing();
        }
        (taken.from, taken.incarnation, taken.more) = (rank, incarnation, true);
        self.near_turn = turn + 1;
        Found::Frames
    }

    /// What was taken, but for the first `handled`, is delivered as any other slot, before whatever has been taken out since.
    #[cold]
    pub(crate) fn put_back(&mut self, taken: &Taken, handled: usize) {
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

    /// A whole small message through shared memory, as one line: all that happens to most of them. False, with nothing done, if it takes
    /// more than that.
    #[inline(never)]
    pub(crate) fn near_short(&mut self, rank: Rank, key: Key, data: &[u8]) -> bool {
        const HEAD: usize = SHORT_LEN;
        let Some(peer) = self.peers.get_mut(rank as usize) else { return false };
        let number = peer.numbers.get(key.0 as usize).copied().unwrap_or(UNKNOWN);
        let Some(near) = &mut peer.near else { return false };
        if number == UNKNOWN || peer.open.is_some() || self.batch_depth > 0 || self.closed {
            return false;
        }
        let len = HEAD + data.len();
        if len > LINE_FRAME {
            return self.near_frame(rank, number & !SHORT_ONLY, data);
        }
        let mut head = [0; HEAD];
        record::write::short(&mut head, number & !SHORT_ONLY, data.len());
        near.shm.push_short(u64::from_le_bytes(head), data)
    }

    /// A whole message that does not fit a line, but one frame.
    fn near_frame(&mut self, rank: Rank, number: u16, data: &[u8]) -> bool {
        let Some(near) = &mut self.peers[rank as usize].near else { return false };
        if LONG_LEN + data.len() > near.shm.max_frame().min(self.device.arena_ref().payload_len()) {
            return false;
        }
        let mut head = [0; SHORT_LEN];
        record::write::short(&mut head, number, data.len());
        near.shm.push_long(u64::from_le_bytes(head), data)
    }

    /// Sends bytes of a message to a peer on this host, part by part; `fill` writes each where the peer reads it. Returns how many; nothing if the peer is not on this host, or
    /// nothing can be lent to it now.
    pub(crate) fn near_fill(
        &mut self,
        (rank, message): (Rank, u32),
        offset: u64,
        len: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Option<usize> {
        self.peers[rank as usize].near.as_ref()?;
        self.close_slot(rank);
        let peer = &mut self.peers[rank as usize];
        let near = peer.near.as_mut()?;
        let limit = peer.windows.get(&message).map_or(u64::MAX, |limit| limit.saturating_sub(offset));
        let len = (len as u64).min(limit) as usize;
        // Short parts for the sake of latency; long ones are worth it when there are many.
        let part = if len < MANY_PARTS { LENT_PART } else { 2 * LENT_PART };
        let mut done = 0;
        while done < len {
            if !near.shm.is_clear() {
                near.stalled = true;
                break;
            }
            let mut piece = match near.shm.loan_part(part.min(len - done)) {
                Ok(piece) => piece,
                Err(Lack::Now) => {
                    near.want();
                    break;
                }
                // What was written so far is on its way; the rest finds another one.
                Err(_) => return (done > 0).then_some(done),
            };
            fill(done, &mut piece);
            let (number, at, size) = piece.place();
            let mut bytes = [0; LEND_MORE_LEN];
            record::write::lend_more(&mut bytes, message, offset + done as u64, (number, at, size as u32));
            near.shm.push_line(&line_of(&bytes), LEND_MORE_LEN);
            near.shm.lent(piece);
            done += size as usize;
        }
        Some(done)
    }

    /// Sends bytes of a message to a peer on this host, from where they are to where the peer finds them, part by part. Returns how many; nothing if
    /// the peer is not on this host.
    pub(crate) fn near_piece(&mut self, to: (Rank, u32), offset: u64, bytes: &[u8]) -> Option<usize> {
        let copy = |at: usize, room: &mut [u8]| room.copy_from_slice(&bytes[at..at + room.len()]);
        self.near_fill(to, offset, bytes.len(), copy).or_else(|| self.near_copy(to, offset, bytes))
    }

    /// As [`Interface::near_piece`], through the ring, which has room when there is nothing to lend.
    fn near_copy(&mut self, (rank, message): (Rank, u32), offset: u64, bytes: &[u8]) -> Option<usize> {
        self.peers[rank as usize].near.as_ref()?;
        self.close_slot(rank);
        let peer = &mut self.peers[rank as usize];
        let near = peer.near.as_mut()?;
        let limit = peer.windows.get(&message).map_or(u64::MAX, |limit| limit.saturating_sub(offset));
        let bytes = &bytes[..(bytes.len() as u64).min(limit) as usize];
        let mut done = 0;
        for part in bytes.chunks(PART) {
            let mut head = [0; LONG_LEN];
            record::write::more(&mut head, message, offset + done as u64, part.len());
            if near.shm.push(&head, part).is_err() {
                near.stalled = true;
                break;
            }
            near.shm.flush();
            done += part.len();
        }
        Some(done)
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
        let room = self.near_up.iter().any(|rank| {
            let near = self.peers[*rank as usize].near.as_mut();
            near.is_some_and(|near| {
                near.stalled && near.shm.is_clear() || near.has_wanted() || near.shm.is_corrupt()
            })
        });
        if room || self.memory.more || self.near_takeable() {
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
