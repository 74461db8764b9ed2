//! Frames to and from peers on this host, and sleeping while they may send.

use tautline_device::Channel;
use tautline_device::shm::{LINE_FRAME, LINE_WORDS};
use tautline_link::Death;
use tautline_wire::record::{self, LONG_LEN, SHORT_LEN};

use crate::delivery::{Item, Place};
use crate::interface::Interface;
use crate::peer::{Key, SHORT_ONLY, UNKNOWN};
use crate::{Down, Rank};

/// How often frames are looked for at the datagram device while there is other work: every so many polls.
const FAR_EVERY: u32 = 64;
/// Looks at shared memory for each at the clock.
const LOOKS: u32 = 64;
/// Small frames that are taken, and vain looks for them, before everything else has its turn.
const LINES_AT_ONCE: u32 = 64;

/// Bytes that are taken out in one go: they stay in the first cache, or near it, until they are read.
const AT_ONCE: usize = 64 << 10;
/// Bytes of a long piece that are shown to the receiver at a time: it copies them out while the next ones are copied in.
const PART: usize = 16 << 10;

/// What there is of small frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// One, from a peer, of so many bytes.
    From(Rank, usize),
    /// None, and nothing else either.
    Nothing,
    /// None that may be taken now; everything else is to be looked at.
    Rest,
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
    pub(crate) fn looks(&self) -> u32 {
        if self.near_up.is_empty() { 1 } else { LOOKS }
    }

    /// Takes a frame that `frame` has room for, if nothing that came before waits.
    #[inline]
    pub(crate) fn take_line(&mut self, frame: &mut [u8]) -> Line {
        let (line, _) = frame.split_first_chunk_mut().expect("room for a line at least");
        if !self.ready.is_empty() || self.near_asleep || self.near_lines == 0 {
            self.near_lines = LINES_AT_ONCE;
            return Line::Rest;
        }
        self.near_lines -= 1;
        for i in 0..self.near_up.len() {
            let rank = self.near_up[i];
            let Some(near) = &mut self.peers[rank as usize].near else { continue };
            if let Some(len) = near.shm.pop_line(line) {
                return Line::From(rank, len);
            }
            if near.shm.has_news() {
                return match near.shm.peek() {
                    Some(len) if len <= frame.len() => {
                        near.shm.take(&mut frame[..len]);
                        Line::From(rank, len)
                    }
                    _ => Line::Rest,
                };
            }
        }
        if self.near_up.is_empty() || !self.events.is_empty() { Line::Rest } else { Line::Nothing }
    }

    /// What was taken is delivered as any other slot.
    #[cold]
    pub(crate) fn put_back(&mut self, rank: Rank, line: &[u8]) {
        let Some(near) = &mut self.peers[rank as usize].near else { return };
        near.pending += 1;
        self.activity += 1;
        if Interface::is_control(line) {
            return self.obey(rank, line);
        }
        let mut bytes = self.buffers.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(line);
        let incarnation = self.peers[rank as usize].incarnation;
        self.ready.push_back(Item { peer: rank, incarnation, place: Place::Held(bytes) });
    }

    /// Takes what peers on this host have sent, as much as a batch holds. Returns how many frames.
    pub(crate) fn receive_near(&mut self) -> usize {
        let mut batch = self.batch.take().unwrap_or_else(|| Box::new(Interface::fresh_batch()));
        batch.clear();
        let (mut count, mut bytes) = (0, 0);
        let limit = self.config.link.credit_slots as usize;
        for i in 0..self.near_up.len() {
            let rank = self.near_up[i];
            let Some(near) = &mut self.peers[rank as usize].near else { continue };
            if near.stalled && near.shm.is_clear() {
                near.stalled = false;
                self.activity += 1;
            }
            while let Some(near) = &mut self.peers[rank as usize].near
                && near.pending < limit
                && bytes < AT_ONCE
                && let Some(len) = near.shm.peek()
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
                self.part(rank, Down::Died(Death::Violation));
            } else if near.shm.has_ended() {
                self.part(rank, Down::Closed);
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
    #[inline]
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
            if LONG_LEN + data.len() > near.shm.max_frame().min(self.device.arena_ref().payload_len()) {
                return false;
            }
            let mut head = [0; HEAD];
            record::write::short(&mut head, number & !SHORT_ONLY, data.len());
            let sent = near.shm.push(&head, data).is_ok();
            near.shm.flush();
            return sent;
        }
        let mut bytes = [0; LINE_FRAME];
        let head = record::write::short(&mut bytes, number & !SHORT_ONLY, data.len());
        bytes[head..head + data.len()].copy_from_slice(data);
        let mut words = [0; LINE_WORDS];
        for (word, part) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(part.try_into().expect("eight bytes"));
        }
        near.shm.push_line(&words, len)
    }

    /// Sends bytes of a message to a peer on this host, from where they are to where the peer finds them, part by part. Returns how many; nothing if
    /// the peer is not on this host.
    pub(crate) fn near_piece(
        &mut self,
        (rank, message): (Rank, u32),
        offset: u64,
        bytes: &[u8],
    ) -> Option<usize> {
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
        let room = self.near_up.iter().any(|rank| {
            self.peers[*rank as usize].near.as_mut().is_some_and(|near| near.stalled && near.shm.is_clear())
        });
        if room || self.near_news() {
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
