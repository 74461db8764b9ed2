//! What peers on this host ask of memory, from what is shared with them straight to its place; and parts of puts that are lent to them (A-5, S-8).

use tautline_device::shm::{LINE_WORDS, Lack, Line};
use tautline_link::Death;
use tautline_wire::memory::{LENT_LEN, Memory as Message, PUT_HEAD, Piece, Target, put_of};
use tautline_wire::record;

use super::send::{filled, line_of};
use crate::interface::Interface;
use crate::memory::{Access, Rights};
use crate::{Down, Rank};

/// Memory frames of one peer that are served before everything else has its turn.
const MAX_GLANCE: u32 = 256;
/// Words of a put's data that lie in its line.
const INLINE_DATA: usize = LINE_WORDS - PUT_HEAD / 8;

/// The bytes of words.
#[inline(always)]
fn bytes_of<const N: usize, const B: usize>(words: &[u64; N]) -> [u8; B] {
    const { assert!(8 * N == B) };
    let mut bytes = [0; B];
    for (part, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *part = word.to_le_bytes();
    }
    bytes
}

impl Interface {
    /// Serves what peers on this host ask of memory, as far as no message stands before it: for whoever waits for a tripwire.
    /// It is told the time before if it wants to know ([`Interface::wants_time`]).
    #[inline]
    pub fn glance(&mut self) {
        if self.near_asleep {
            return;
        }
        let mut i = 0;
        while let Some(&rank) = self.near_up.get(i) {
            i += 1;
            let Some(near) = &mut self.peers[rank as usize].near else { continue };
            match near.shm.pop_words(record::is_memory) {
                Line::Empty => {}
                line => self.glance_at(rank, line),
            }
        }
    }

    /// There is something from a peer, of which a first small frame of memory has been taken.
    #[inline(never)]
    fn glance_at(&mut self, rank: Rank, mut line: Line) {
        let mut frames = 0;
        loop {
            match line {
                Line::Empty => break,
                Line::Words(len, words) => self.obey_words(rank, len, &words),
                Line::Other if self.serve_long(rank) => {}
                Line::Other => break,
            }
            frames += 1;
            match &mut self.peers[rank as usize].near {
                Some(near) if frames < MAX_GLANCE => line = near.shm.pop_words(record::is_memory),
                _ => break,
            }
        }
        if frames > 0 {
            self.activity += 1;
            if !self.memory.busy.is_empty() {
                self.pump();
            }
        }
    }

    /// A memory frame from a peer on this host that came by itself.
    #[inline]
    pub(super) fn obey_words(&mut self, rank: Rank, len: usize, words: &[u64; LINE_WORDS]) {
        let [first, second, third, data @ ..] = *words;
        let good = match put_of([first, second, third], len) {
            Some((target, flags, bytes)) => {
                self.memory.served += 1;
                self.serve_put_words(rank, (target, flags), &data, bytes)
            }
            None => self.obey_memory(rank, &bytes_of::<LINE_WORDS, { 8 * LINE_WORDS }>(words)[..len]),
        };
        if !good {
            self.take_down(rank, Down::Died(Death::Violation));
        }
    }

    /// A put whose bytes lie in words.
    #[inline]
    fn serve_put_words(
        &mut self,
        rank: Rank,
        (target, flags): (Target, u8),
        data: &[u64; INLINE_DATA],
        bytes: usize,
    ) -> bool {
        if bytes == 8 {
            return self.serve_word(rank, (target, flags), data[0]);
        }
        self.serve_whole(rank, (target, flags), bytes as u64, |memory, at| {
            // A cookie never reaches beyond its aperture.
            let _ = memory.write(at, &bytes_of::<INLINE_DATA, { 8 * INLINE_DATA }>(data)[..bytes]);
        })
    }

    /// A put of eight bytes. A flag that somebody waits for is put again and again: where it lies, and which tripwire watches it, is known from the last time.
    #[inline]
    fn serve_word(&mut self, rank: Rank, (target, flags): (Target, u8), word: u64) -> bool {
        let Interface { peers, memory, .. } = self;
        let peer = &mut peers[rank as usize].memory;
        let place = (target.handle, target.at);
        if let Some(flag) = &peer.flag
            && place == peer.last
            && flag.version == memory.version
            && memory.now < flag.expires
        {
            let (wire, place, to) = (flag.wire, flag.place, &flag.memory);
            if target.id != peer.seen.wrapping_add(1) {
                return false;
            }
            // A cookie never reaches beyond its aperture, and the place is that of a word.
            let _ = to.write_u64(place, word);
            memory.counters.puts += 1;
            memory.counters.bytes_put += 8;
            peer.count(target.id);
            self.fire_hit(rank, wire);
            return self.done(rank, target.id, flags);
        }
        if place != peer.last {
            (peer.last, peer.tried, peer.flag) = (place, None, None);
        } else if peer.tried != Some(memory.version) {
            // Twice in succession, if not more often.
            (peer.tried, peer.flag) = (Some(memory.version), memory.flag(&peer.handles, place));
        }
        self.serve_whole(rank, (target, flags), 8, |memory, at| {
            // A cookie never reaches beyond its aperture.
            let _ = memory.write_u64(at, word).or_else(|_| memory.write(at, &word.to_le_bytes()));
        })
    }

    /// Obeys the next frame, which is longer than a line, if it is one of memory. False if it is not, or there is none.
    fn serve_long(&mut self, rank: Rank) -> bool {
        let Some(near) = &mut self.peers[rank as usize].near else { return false };
        let Some(len) = near.shm.peek() else { return false };
        let words = near.shm.words();
        if !record::is_memory(words[0] as u8) {
            return false;
        }
        let [first, second, third, data @ ..] = words;
        let placed = put_of([first, second, third], len)
            .filter(|_| len > 8 * LINE_WORDS)
            .and_then(|(target, flags, bytes)| self.place_long(rank, (target, flags), len, (&data, bytes)));
        let good = placed.unwrap_or_else(|| {
            let Some(near) = &mut self.peers[rank as usize].near else { return false };
            let mut bytes = std::mem::take(&mut self.memory.scratch);
            bytes.resize(len.max(bytes.len()), 0);
            near.shm.take(&mut bytes[..len]);
            let good = self.obey_memory(rank, &bytes[..len]);
            self.memory.scratch = bytes;
            good
        });
        if !good {
            self.take_down(rank, Down::Died(Death::Violation));
        }
        true
    }

    /// A long put from the ring to its place, if that is at a word and the put is allowed: false if no correct peer sends it. Nothing, with nothing done, if it takes more than that.
    #[inline]
    fn place_long(
        &mut self,
        rank: Rank,
        (target, flags): (Target, u8),
        len: usize,
        (first, bytes): (&[u64; INLINE_DATA], usize),
    ) -> Option<bool> {
        let Interface { peers, memory, .. } = self;
        let peer = &mut peers[rank as usize];
        let reached =
            memory.access(&peer.memory.handles, (target.handle, target.at), bytes as u64, Rights::WRITE);
        let (granted, at) = reached.ok().filter(|(_, at)| at.is_multiple_of(8))?;
        let near = peer.near.as_mut()?;
        if !peer.memory.count(target.id) {
            return Some(false);
        }
        let place = at as usize;
        for (i, word) in first.iter().enumerate() {
            // A cookie never reaches beyond its aperture.
            let _ = granted.memory.write_u64(place + 8 * i, *word);
        }
        let _ = near.shm.take_rest(len, (&granted.memory, place + 8 * INLINE_DATA));
        let (aperture, end) = (granted.aperture, at + bytes as u64);
        memory.counters.puts += 1;
        memory.counters.bytes_put += bytes as u64;
        memory.served += 1;
        self.trip((rank, aperture), Access::WRITE, (at, end), end);
        Some(self.done(rank, target.id, flags))
    }

    /// A part of a put that a peer has lent: from where it lies to its place, and back. False if no correct peer lends it.
    pub(crate) fn serve_lent(
        &mut self,
        rank: Rank,
        (target, rest): (Target, u64),
        piece: Piece,
        flags: u8,
    ) -> bool {
        let view = self.peers[rank as usize].near.as_mut().and_then(|near| near.shm.hold_view());
        // Read once, and now checked: what lies there may be anything, but it lies there.
        let Some(view) = view.filter(|view| view.has(piece.at, piece.len.into())) else { return false };
        let good = self.take_lent(rank, (target, rest, flags), piece.len.into(), |memory, at| {
            // A cookie never reaches beyond its aperture.
            let _ = view.copy_to(piece.at as usize, piece.len as usize, (memory, at));
        });
        if let Some(near) = &mut self.peers[rank as usize].near {
            near.shm.give_back(piece.number, tautline_device::shm::Back::Read);
            near.shm.let_go(view);
        }
        good
    }

    /// Sends part of a put to a peer on this host from memory that the peer reads in place; `fill` writes it there. False for want of room; nothing if nothing can be lent.
    pub(crate) fn lend_part(
        &mut self,
        rank: Rank,
        (target, rest, flags): (Target, u64, u8),
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<bool> {
        self.close_slot(rank);
        let near = self.peers[rank as usize].near.as_mut()?;
        if !near.shm.is_clear() {
            near.stalled = true;
            return Some(false);
        }
        let piece = match near.shm.loan_part(len) {
            Ok(piece) => piece,
            Err(Lack::Now) => {
                near.want();
                return Some(false);
            }
            Err(_) => return None,
        };
        let piece = filled(&mut near.shm, piece, fill);
        let (number, at, _) = piece.place();
        let mut bytes = [0; LENT_LEN];
        Message::Lent(target, rest, Piece { number, len: len as u32, at }).write(&mut bytes, flags, 0);
        near.shm.push_line(&line_of(&bytes), LENT_LEN);
        near.shm.lent(piece);
        Some(true)
    }
}
