//! What peers on this host ask of memory, from what is shared with them straight to its place; and parts of puts that are lent to them (A-5, S-8).

use tautline_device::shm::LINE_WORDS;
use tautline_wire::memory::{PUT_HEAD, Piece, Target, put_of};

use crate::Rank;
use crate::lane::Lane;
use crate::memory::{Access, Rights};

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

impl Lane {
    /// A memory frame from a peer on this host that came by itself.
    #[inline]
    pub(crate) fn handle_words(&mut self, rank: Rank, len: usize, words: &[u64; LINE_WORDS]) -> bool {
        let [first, second, third, data @ ..] = *words;
        match put_of([first, second, third], len) {
            Some((target, flags, bytes)) => {
                self.memory.served += 1;
                self.serve_put_words(rank, (target, flags), &data, bytes)
            }
            None => self.handle_memory(rank, &bytes_of::<LINE_WORDS, { 8 * LINE_WORDS }>(words)[..len]),
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
        let Lane { peers, memory, .. } = self;
        let peer = &mut peers.member_mut(rank).memory;
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

    /// A long put from the ring to its place, if that is at a word and the put is allowed: false if no correct peer sends it. Nothing, with nothing done, if it takes more than that.
    #[inline]
    pub(crate) fn place_long(&mut self, rank: Rank, words: &[u64; LINE_WORDS], len: usize) -> Option<bool> {
        let [first, second, third, data @ ..] = *words;
        let (target, flags, bytes) = put_of([first, second, third], len).filter(|_| len > 8 * LINE_WORDS)?;
        let Lane { peers, memory, .. } = self;
        let peer = peers.member_mut(rank);
        let reached =
            memory.access(&peer.memory.handles, (target.handle, target.at), bytes as u64, Rights::WRITE);
        let (granted, at) = reached.ok().filter(|(_, at)| at.is_multiple_of(8))?;
        let shm = peer.channel.shm_mut()?;
        if !peer.memory.count(target.id) {
            return Some(false);
        }
        let place = at as usize;
        for (i, word) in data.iter().enumerate() {
            // A cookie never reaches beyond its aperture.
            let _ = granted.memory.write_u64(place + 8 * i, *word);
        }
        shm.take_rest(len, (&granted.memory, place + 8 * INLINE_DATA));
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
        // Read once, and now checked: what lies there may be anything, but it lies there.
        if !self.writer(rank).has_extent(&piece) {
            return false;
        }
        let peer = self.peers.member_mut(rank);
        let view = peer.channel.shm().and_then(crate::channel::ShmChannel::loan_memory);
        let Some(view) = view else { return false };
        let good = self.take_lent(rank, (target, rest, flags), piece.len.into(), |memory, at| {
            // A cookie never reaches beyond its aperture.
            let _ = view.copy_to(piece.at as usize, piece.len as usize, (memory, at));
        });
        self.writer(rank).return_extent(&piece);
        good
    }
}
