//! The owner's half of a put: from a record, from the words of a small frame, or from memory that the peer
//! lends (A-5, S-24).

use std::sync::Arc;

use tautline_link::Nanos;
use tautline_mem::ApertureMemory;
use tautline_mem::ring::LINE_DATA_WORDS;
use tautline_wire::memory::{ExtentRef, MemoryRecord as Message, PUT_HEAD, Target, parse_put};
use tautline_wire::record::{Record, Records};

use super::super::Memory;
use super::super::apertures::{Apertures, Handle};
use super::super::cookie::Rights;
use super::super::tripwires::{Access, Touch, Tripwires};
use super::super::writer::LentParts;
use crate::PeerId;

/// Words of a put's data in a small frame.
const INLINE_DATA: usize = LINE_DATA_WORDS - PUT_HEAD / 8;

/// A part of a put whose bytes are in place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedPart {
    target: Target,
    rest: u64,
    len: u64,
    flags: u8,
}

/// What is known of the word that a peer put last. A flag is put again and again, and its place and its
/// tripwire stay the same.
#[derive(Debug, Default)]
pub(crate) struct WordCache {
    /// Its handle and place.
    place: (u32, u64),
    target: Option<WordTarget>,
    /// The version of the apertures for which `target` was looked up.
    looked_up: Option<u64>,
}

impl WordCache {
    /// Releases the memory that it refers to.
    pub(in super::super) fn clear(&mut self) {
        self.target = None;
    }
}

/// A word with a tripwire of its own that a peer may put to while the version of the apertures stays the
/// same.
#[derive(Debug)]
struct WordTarget {
    version: u64,
    expires: Nanos,
    memory: Arc<ApertureMemory>,
    place: usize,
    wire: u32,
}

impl WordTarget {
    /// Looks up the target of a word. None if putting it is not allowed, or needs more than a store and one
    /// polled tripwire.
    #[inline(never)]
    fn look_up(
        apertures: &Apertures,
        tripwires: &Tripwires,
        handles: &[Handle],
        place: (u32, u64),
    ) -> Option<WordTarget> {
        let (granted, at) =
            apertures.access(handles, place, 8, Rights::WRITE).ok().filter(|(_, at)| at.is_multiple_of(8))?;
        let (memory, expires) = (granted.memory.clone(), granted.expires);
        let wire = tripwires.only_wire(apertures, granted.aperture, (at, at + 8))?;
        Some(WordTarget { version: apertures.version(), expires, memory, place: at as usize, wire })
    }
}

/// Returns the bytes of words.
#[inline(always)]
fn bytes_of<const N: usize, const B: usize>(words: &[u64; N]) -> [u8; B] {
    const { assert!(8 * N == B) };
    let mut bytes = [0; B];
    for (part, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *part = word.to_le_bytes();
    }
    bytes
}

impl Memory {
    /// Handles a memory frame of `len` bytes that fits the words of a line. False if no correct peer sends
    /// it.
    #[inline]
    pub(crate) fn handle_words(
        &mut self,
        from: PeerId,
        lent: &mut impl LentParts,
        len: usize,
        words: &[u64; LINE_DATA_WORDS],
    ) -> bool {
        let [first, second, third, data @ ..] = *words;
        match parse_put([first, second, third], len) {
            Some((target, flags, bytes)) => {
                self.served += 1;
                self.serve_put_words(from, (target, flags), &data, bytes)
            }
            None => self.handle_line(from, lent, len, words),
        }
    }

    // A call, so that puts do not pay for its registers.
    #[inline(never)]
    fn handle_line(
        &mut self,
        from: PeerId,
        lent: &mut impl LentParts,
        len: usize,
        words: &[u64; LINE_DATA_WORDS],
    ) -> bool {
        self.handle_records(from, lent, &bytes_of::<LINE_DATA_WORDS, { 8 * LINE_DATA_WORDS }>(words)[..len])
    }

    #[inline]
    fn serve_put_words(
        &mut self,
        from: PeerId,
        (target, flags): (Target, u8),
        data: &[u64; INLINE_DATA],
        bytes: usize,
    ) -> bool {
        if bytes == 8 {
            return self.serve_word(from, (target, flags), data[0]);
        }
        self.serve_whole(from, (target, flags), bytes as u64, |memory, at| {
            // A cookie never extends beyond its aperture.
            let _ = memory.write(at, &bytes_of::<INLINE_DATA, { 8 * INLINE_DATA }>(data)[..bytes]);
        })
    }

    /// Serves a put of eight bytes, from the cache if the same word was put before.
    #[inline]
    fn serve_word(&mut self, from: PeerId, (target, flags): (Target, u8), word: u64) -> bool {
        let Memory { peers, apertures, tripwires, events, counters, .. } = self;
        let Some(peer) = peers.get_mut(from.rank) else { return false };
        let served = &mut peer.served;
        let place = (target.handle, target.at);
        if let Some(known) = &served.word.target
            && place == served.word.place
            && known.version == apertures.version()
            && apertures.now() < known.expires
        {
            if !served.order.count(target.id) {
                return false;
            }
            // A cookie never extends beyond its aperture, and the place is aligned.
            let _ = known.memory.write_u64(known.place, word);
            let wire = known.wire;
            counters.puts += 1;
            counters.bytes_put += 8;
            tripwires.fire(apertures, events, from, wire);
            return self.done(from.rank, target.id, flags);
        }
        let cache = &mut served.word;
        if place != cache.place {
            *cache = WordCache { place, target: None, looked_up: None };
        } else if cache.looked_up != Some(apertures.version()) {
            // It was put at least twice in succession.
            cache.looked_up = Some(apertures.version());
            cache.target = WordTarget::look_up(apertures, tripwires, &served.handles, place);
        }
        self.serve_whole(from, (target, flags), 8, |memory, at| {
            // A cookie never extends beyond its aperture.
            let _ = memory.write_u64(at, word).or_else(|_| memory.write(at, &word.to_le_bytes()));
        })
    }

    /// Serves a frame of `len` bytes, which is longer than a line and starts with `words`, if it is a whole
    /// put to an aligned place that is allowed. `take_rest` copies the bytes behind the words from the ring
    /// to their place. Some(false) if no correct peer sends it; None, with nothing done, if the frame needs
    /// more.
    #[inline]
    pub(crate) fn place_long(
        &mut self,
        from: PeerId,
        words: &[u64; LINE_DATA_WORDS],
        len: usize,
        take_rest: impl FnOnce(&ApertureMemory, usize),
    ) -> Option<bool> {
        let [first, second, third, data @ ..] = *words;
        let (target, flags, bytes) = parse_put([first, second, third], len)?;
        if len <= 8 * LINE_DATA_WORDS {
            return None;
        }
        let Memory { peers, apertures, counters, .. } = self;
        let served = &mut peers.get_mut(from.rank)?.served;
        let place = (target.handle, target.at);
        let reached = apertures.access(&served.handles, place, bytes as u64, Rights::WRITE);
        let (granted, start) = reached.ok().filter(|(_, at)| at.is_multiple_of(8))?;
        if !served.order.count(target.id) {
            return Some(false);
        }
        let at = start as usize;
        for (i, word) in data.iter().enumerate() {
            // A cookie never extends beyond its aperture.
            let _ = granted.memory.write_u64(at + 8 * i, *word);
        }
        take_rest(&granted.memory, at + 8 * INLINE_DATA);
        let (aperture, end) = (granted.aperture, start + bytes as u64);
        counters.puts += 1;
        counters.bytes_put += bytes as u64;
        self.served += 1;
        self.touch(Touch { by: from, aperture, on: Access::WRITE, start, end, whole: end });
        Some(self.done(from.rank, target.id, flags))
    }

    #[inline]
    pub(in super::super) fn serve_put(
        &mut self,
        from: PeerId,
        target: Target,
        data: &[u8],
        flags: u8,
    ) -> bool {
        self.serve_whole(from, (target, flags), data.len() as u64, |memory, at| {
            // A cookie never extends beyond its aperture.
            let _ = memory.write(at, data);
        })
    }

    /// Serves a whole put of `len` bytes, which `write` writes to their place if that is allowed.
    #[inline]
    fn serve_whole(
        &mut self,
        from: PeerId,
        (target, flags): (Target, u8),
        len: u64,
        write: impl FnOnce(&ApertureMemory, usize),
    ) -> bool {
        let Memory { peers, apertures, counters, .. } = self;
        let Some(peer) = peers.get_mut(from.rank) else { return false };
        if !peer.served.order.count(target.id) {
            return false;
        }
        match apertures.access(&peer.served.handles, (target.handle, target.at), len, Rights::WRITE) {
            Ok((granted, start)) => {
                let aperture = granted.aperture;
                write(&granted.memory, start as usize);
                counters.puts += 1;
                counters.bytes_put += len;
                let end = start + len;
                self.touch(Touch { by: from, aperture, on: Access::WRITE, start, end, whole: end });
            }
            Err(why) => {
                if !self.refuse(from.rank, target.id, why) {
                    return false;
                }
            }
        }
        self.done(from.rank, target.id, flags)
    }

    pub(in super::super) fn serve_part(
        &mut self,
        from: PeerId,
        (target, rest): (Target, u64),
        data: &[u8],
        flags: u8,
    ) -> bool {
        let part = PlacedPart { target, rest, len: data.len() as u64, flags };
        self.take_part(from, part, |memory, at| {
            // A cookie never extends beyond its aperture.
            let _ = memory.write(at, data);
        })
    }

    /// Serves a part that the peer has lent: copies it to its place, if that is allowed, and returns it.
    /// False if no correct peer lends it.
    pub(in super::super) fn serve_lent(
        &mut self,
        from: PeerId,
        lent: &mut impl LentParts,
        (target, rest): (Target, u64),
        extent: ExtentRef,
        flags: u8,
    ) -> bool {
        if !lent.is_sound(extent) {
            return false;
        }
        let part = PlacedPart { target, rest, len: extent.len.into(), flags };
        let good = self.take_part(from, part, |memory, at| {
            // The extent was checked above, and a cookie never extends beyond its aperture.
            lent.copy_part(extent, memory, at);
        });
        lent.return_part(extent);
        good
    }

    /// Handles a part whose turn has come and whose bytes are in place. False if no correct peer sends
    /// it.
    pub(crate) fn settle_placed(&mut self, from: PeerId, part: PlacedPart) -> bool {
        self.served += 1;
        self.take_part(from, part, |_, _| {})
    }

    /// Serves a part of a put, whose bytes `write` writes to their place if that is allowed.
    fn take_part(
        &mut self,
        from: PeerId,
        part: PlacedPart,
        write: impl FnOnce(&ApertureMemory, usize),
    ) -> bool {
        let PlacedPart { target, rest, len, flags } = part;
        let Memory { peers, apertures, counters, .. } = self;
        let Some(peer) = peers.get_mut(from.rank) else { return false };
        let served = &mut peer.served;
        let continues =
            served.order.current_put == Some(target.id) || served.order.refused_put == Some(target.id);
        if !continues && !served.order.count(target.id) {
            return false;
        }
        if served.order.refused_put != Some(target.id) {
            let place = (target.handle, target.at);
            match apertures.access(&served.handles, place, len + rest, Rights::WRITE) {
                Ok((granted, start)) => {
                    let aperture = granted.aperture;
                    write(&granted.memory, start as usize);
                    counters.bytes_put += len;
                    counters.puts += u64::from(rest == 0);
                    served.order.current_put = Some(target.id);
                    let (end, whole) = (start + len, start + len + rest);
                    self.touch(Touch { by: from, aperture, on: Access::WRITE, start, end, whole });
                }
                Err(why) => {
                    (served.order.current_put, served.order.refused_put) = (None, Some(target.id));
                    if !self.refuse(from.rank, target.id, why) {
                        return false;
                    }
                }
            }
        }
        if rest > 0 {
            return true;
        }
        if let Some(peer) = self.peers.get_mut(from.rank) {
            (peer.served.order.current_put, peer.served.order.refused_put) = (None, None);
        }
        self.done(from.rank, target.id, flags)
    }

    /// Places a part that arrived ahead of a gap, if it belongs to the put whose parts are due: it then
    /// overtakes no other request. Its tripwires and its answer wait for its turn, at
    /// [`Memory::settle_placed`].
    #[cold]
    pub(crate) fn place_ahead(&mut self, from: PeerId, bytes: &[u8]) -> Option<PlacedPart> {
        let served = &self.peers.get(from.rank)?.served;
        let current = served.order.current_put?;
        let mut records = Records::new(bytes, 0);
        let record = records.next()?.ok()?;
        let Record::Memory { flags, .. } = record else { return None };
        let Ok(Message::Part(target, rest, data)) = Message::parse(&record) else { return None };
        if target.id != current || records.next().is_some() {
            return None;
        }
        let (len, place) = (data.len() as u64, (target.handle, target.at));
        let (granted, at) = self.apertures.access(&served.handles, place, len + rest, Rights::WRITE).ok()?;
        granted.memory.write(at as usize, data).ok()?;
        self.counters.placed_ahead += 1;
        Some(PlacedPart { target, rest, len, flags })
    }
}
