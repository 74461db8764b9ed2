//! What is received: proof, replay window, exactly-once acceptance, and the state that acknowledgements are made of.

use std::ops::Range;

use tautline_wire::ext::{Ext, Extensions, MAX_SACK_BYTES};
use tautline_wire::frame::flags;
use tautline_wire::{Frame, Kind, Seq};

use crate::link::State;
use crate::{Death, Event, Link, Nanos};

/// Packet numbers that the replay window reaches back (L-3).
pub(crate) const REPLAY_WINDOW: u64 = 4096;

/// Why a frame was dropped. Counted, never answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refused {
    /// Its shape or a field is wrong.
    Malformed,
    /// Its tag or seal is wrong.
    BadTag,
    /// Its packet number was seen before or is too old.
    Replayed,
    /// The link is over.
    Over,
}

/// A slot in an accepted frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The slot that was due. `released` further slots that had arrived ahead of it are now due, too.
    Next {
        /// Slots that follow it without a gap.
        released: u32,
    },
    /// A slot ahead of a gap, to be kept until it is due: `distance` after the one that is due now.
    Ahead {
        /// How far ahead.
        distance: u32,
    },
    /// Nothing new.
    Repeat,
    /// Part of a slot. When it is whole, the caller says so with [`Link::slot_complete`].
    Fragment {
        /// The slot.
        seq: Seq,
        /// Where in the slot the payload belongs.
        offset: u32,
        /// Bytes of the whole slot.
        total: u32,
    },
}

/// The receiving half of a link.
#[derive(Debug)]
pub(crate) struct Receiver {
    next: Seq,
    /// One bit per slot from `next` on, addressed by sequence number; a ring.
    ahead: Box<[u64]>,
    ahead_count: u32,
    /// One past the farthest slot that has arrived.
    farthest: Seq,
    consumed: Seq,
    capacity: u32,
    advertised: Seq,
    largest: u64,
    replay: Box<[u64; (REPLAY_WINDOW / 64) as usize]>,
    largest_at: Nanos,
    repeats: u32,
    unacked: u32,
    unacked_bytes: u32,
    ack_now: bool,
    ack_at: Nanos,
}

impl Receiver {
    pub(crate) fn new(start: Seq, capacity: u32) -> Receiver {
        let words = (capacity.next_power_of_two().max(64) / 64) as usize;
        Receiver {
            next: start,
            ahead: vec![0; words].into_boxed_slice(),
            ahead_count: 0,
            farthest: start,
            consumed: start,
            capacity,
            advertised: start.ahead(capacity),
            largest: 0,
            replay: Box::new([0; (REPLAY_WINDOW / 64) as usize]),
            largest_at: 0,
            repeats: 0,
            unacked: 0,
            unacked_bytes: 0,
            ack_now: false,
            ack_at: Nanos::MAX,
        }
    }

    #[inline]
    pub(crate) fn next(&self) -> Seq {
        self.next
    }

    #[inline]
    pub(crate) fn has_ahead(&self) -> bool {
        self.ahead_count > 0
    }

    pub(crate) fn repeats(&self) -> u32 {
        self.repeats
    }

    #[inline]
    pub(crate) fn ack_due(&self, now: Nanos) -> bool {
        self.ack_now || self.ack_at <= now
    }

    /// An acknowledgement is due at once.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.ack_now
    }

    pub(crate) fn ack_deadline(&self) -> Nanos {
        if self.ack_now { 0 } else { self.ack_at }
    }

    /// An acknowledgement is on its way.
    #[inline]
    pub(crate) fn acked(&mut self) {
        self.unacked = 0;
        self.unacked_bytes = 0;
        self.ack_now = false;
        self.ack_at = Nanos::MAX;
    }

    /// The credit to be told, which is thereby told.
    #[inline]
    pub(crate) fn advertise(&mut self) -> Seq {
        self.advertised = self.consumed.ahead(self.capacity);
        self.advertised
    }

    #[inline]
    pub(crate) fn echo(&self, now: Nanos) -> (u32, u32) {
        let waited = now.saturating_sub(self.largest_at).min(u64::from(u32::MAX));
        (self.largest as u32, waited as u32)
    }

    /// The program has consumed `slots` more; a sender that may be waiting for that is told (L-12).
    #[inline]
    pub(crate) fn consume(&mut self, slots: u32) {
        self.consumed = self.consumed.ahead(slots);
        debug_assert!(!self.next.before(self.consumed), "more consumed than received");
        let told = self.advertised.distance(self.next);
        let little = (self.capacity / 2).max(1) as i32;
        let fresh = self.consumed.ahead(self.capacity).distance(self.advertised);
        if told < little && fresh >= (self.capacity / 4).max(1) as i32 {
            self.ack_now = true;
        }
    }

    fn bit(&self, seq: Seq) -> (usize, u64) {
        let bits = self.ahead.len() as u32 * 64;
        let at = seq.0 & (bits - 1);
        ((at / 64) as usize, 1 << (at % 64))
    }

    /// Whether this packet number is new; does not mark it.
    #[inline]
    fn is_fresh(&self, packet: u64) -> bool {
        if packet > self.largest {
            return true;
        }
        self.largest - packet < REPLAY_WINDOW && {
            let at = packet % REPLAY_WINDOW;
            self.replay[(at / 64) as usize] & (1 << (at % 64)) == 0
        }
    }

    #[inline]
    fn mark_packet(&mut self, now: Nanos, packet: u64) {
        if packet > self.largest {
            if packet - self.largest == 1 {
                let at = packet % REPLAY_WINDOW;
                self.replay[(at / 64) as usize] &= !(1 << (at % 64));
            } else {
                self.skip_packets(packet);
            }
            self.largest = packet;
            self.largest_at = now;
        }
        let at = packet % REPLAY_WINDOW;
        self.replay[(at / 64) as usize] |= 1 << (at % 64);
    }

    #[cold]
    fn skip_packets(&mut self, packet: u64) {
        let gap = packet - self.largest;
        if gap >= REPLAY_WINDOW {
            self.replay.fill(0);
        } else {
            for number in self.largest + 1..=packet {
                let at = number % REPLAY_WINDOW;
                self.replay[(at / 64) as usize] &= !(1 << (at % 64));
            }
        }
    }

    /// Takes a whole slot (L-4, L-6). `None` if it lies outside what was ever granted.
    #[inline]
    pub(crate) fn take(&mut self, seq: Seq, keeps_ahead: bool) -> Option<Arrival> {
        let distance = seq.distance(self.next);
        if distance < 0 {
            self.repeats = self.repeats.wrapping_add(1);
            self.ack_now = true;
            return Some(Arrival::Repeat);
        }
        if !seq.before(self.consumed.ahead(self.capacity)) {
            return None;
        }
        if distance == 0 {
            self.next = seq.next();
            let released = if self.ahead_count > 0 { self.release() } else { 0 };
            if self.farthest.before(self.next) {
                self.farthest = self.next;
            }
            return Some(Arrival::Next { released });
        }
        self.take_ahead(seq, distance as u32, keeps_ahead)
    }

    #[cold]
    fn take_ahead(&mut self, seq: Seq, distance: u32, keeps_ahead: bool) -> Option<Arrival> {
        // A gap is news for the sender.
        self.ack_now = true;
        if !keeps_ahead {
            return Some(Arrival::Repeat);
        }
        let (word, bit) = self.bit(seq);
        if self.ahead[word] & bit != 0 {
            self.repeats = self.repeats.wrapping_add(1);
            return Some(Arrival::Repeat);
        }
        self.ahead[word] |= bit;
        self.ahead_count += 1;
        if self.farthest.before(seq.next()) {
            self.farthest = seq.next();
        }
        Some(Arrival::Ahead { distance })
    }

    #[cold]
    fn release(&mut self) -> u32 {
        let mut released = 0;
        loop {
            let (word, bit) = self.bit(self.next);
            if self.ahead_count == 0 || self.ahead[word] & bit == 0 {
                return released;
            }
            self.ahead[word] &= !bit;
            self.ahead_count -= 1;
            self.next = self.next.next();
            released += 1;
        }
    }

    /// Bytes that the selective acknowledgement takes as an extension.
    #[cold]
    pub(crate) fn sack_len(&self) -> usize {
        (tautline_wire::ext::EXT_HEADER + self.sack_bytes()).next_multiple_of(4)
    }

    fn sack_bytes(&self) -> usize {
        let span = self.farthest.distance(self.next.next()).max(0) as usize;
        span.div_ceil(8).min(MAX_SACK_BYTES)
    }

    /// The bitmap of slots after the one that is due.
    #[cold]
    pub(crate) fn sack(&self) -> Sack {
        let mut sack = Sack { bytes: [0; MAX_SACK_BYTES], len: self.sack_bytes() };
        for i in 0..sack.len as u32 * 8 {
            let seq = self.next.ahead(1 + i);
            if !seq.before(self.farthest) {
                break;
            }
            let (word, bit) = self.bit(seq);
            if self.ahead[word] & bit != 0 {
                sack.bytes[i as usize / 8] |= 1 << (i % 8);
            }
        }
        sack
    }
}

pub(crate) struct Sack {
    bytes: [u8; MAX_SACK_BYTES],
    len: usize,
}

impl Sack {
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Link {
    /// Takes a frame that carries this link's channel number. On success returns the slot it carries, if any, and
    /// where in `bytes` its payload lies (deciphered in place on a sealed link).
    #[inline]
    pub fn handle_frame(
        &mut self,
        now: Nanos,
        bytes: &mut [u8],
    ) -> Result<(Option<Arrival>, Range<usize>), Refused> {
        let (header, payload) = match Frame::parse(bytes) {
            Ok(frame) => (frame.header, frame.payload_at()..bytes.len()),
            Err(_) => return self.refuse(Refused::Malformed),
        };
        if header.channel != self.my_channel {
            return self.refuse(Refused::Malformed);
        }
        if self.state == State::Dead {
            return Err(Refused::Over);
        }
        if !self.rx.is_fresh(header.packet) {
            return self.refuse(Refused::Replayed);
        }
        let Some(payload) = self.seal.open(&header, bytes, payload) else {
            return self.refuse(Refused::BadTag);
        };
        // From here on the frame is the peer's own word.
        if (header.flags ^ self.peer_says) & flags::RAW != 0 {
            self.hear_raw(header.packet, header.flags);
        }
        self.rx.mark_packet(now, header.packet);
        self.counters.frames_accepted += 1;
        self.clocks.heard = now;
        self.clocks.tick = now;
        self.clocks.confirmed = true;
        if header.flags & flags::ASK != 0 {
            self.rx.ack_now = true;
        }
        let Ok(ext) = payload_ext(bytes, header.ext_len) else {
            return self.refuse(Refused::Malformed);
        };
        self.handle_ack(now, &header, ext.sack.map(|range| &bytes[range]));
        if header.kind == Kind::Close {
            self.handle_close(&header);
            return Ok((None, payload));
        }
        if header.flags & flags::SLOT == 0 {
            return Ok((None, payload));
        }
        if let Some((offset, total)) = ext.fragment {
            return Ok((Some(self.handle_fragment(header.slot, offset, total)), payload));
        }
        self.take_slot(now, header.slot, payload.len()).map(|arrival| (Some(arrival), payload))
    }

    /// D-12: the newest frame counts, whichever came last.
    #[cold]
    fn hear_raw(&mut self, packet: u64, says: u8) {
        if packet > self.rx.largest {
            self.peer_says = says & flags::RAW;
            self.events.push_back(Event::Raw(self.peer_takes_raw()));
        }
    }

    #[inline]
    fn take_slot(&mut self, now: Nanos, seq: Seq, len: usize) -> Result<Arrival, Refused> {
        let keeps = self.config.recovery.rules().keeps_ahead();
        let Some(arrival) = self.rx.take(seq, keeps) else {
            return self.refuse(Refused::Malformed);
        };
        match arrival {
            Arrival::Next { .. } => self.counters.slots_accepted += 1,
            Arrival::Ahead { .. } => {
                self.counters.slots_accepted += 1;
                self.counters.slots_ahead += 1;
            }
            _ => {
                self.counters.slots_repeated += 1;
                return Ok(arrival);
            }
        }
        self.rx.unacked += 1;
        self.rx.unacked_bytes += len as u32;
        if self.rx.unacked >= self.config.ack_every || self.rx.unacked_bytes >= self.config.receive_buffer / 6
        {
            self.rx.ack_now = true;
        } else if self.rx.ack_at == Nanos::MAX {
            self.rx.ack_at = now + self.config.ack_delay;
        }
        Ok(arrival)
    }

    #[cold]
    fn handle_fragment(&mut self, seq: Seq, offset: u32, total: u32) -> Arrival {
        let distance = seq.distance(self.rx.next);
        let granted = seq.before(self.rx.consumed.ahead(self.rx.capacity));
        let (word, bit) = self.rx.bit(seq);
        let there = distance > 0 && self.rx.ahead[word] & bit != 0;
        let kept = distance == 0 || self.config.recovery.rules().keeps_ahead();
        if distance < 0 || !granted || there || !kept {
            self.rx.ack_now = true;
            return Arrival::Repeat;
        }
        Arrival::Fragment { seq, offset, total }
    }

    /// All fragments of a slot of `len` bytes are there: it counts as arrived now.
    pub fn slot_complete(&mut self, now: Nanos, seq: Seq, len: usize) -> Arrival {
        self.take_slot(now, seq, len).unwrap_or(Arrival::Repeat)
    }

    /// The program is done with `slots` slots, in order; their room is granted to the peer again. True if the peer should
    /// be told now: call [`Link::poll_transmit`].
    #[inline]
    pub fn consumed(&mut self, slots: u32) -> bool {
        self.rx.consume(slots);
        self.rx.ack_now
    }

    /// Whether the peer has used all its credit for what the program has not consumed: nothing more can come before it does, but for what overtakes.
    pub fn is_full(&self) -> bool {
        let room = self.rx.capacity - crate::queue::kept(self.rx.capacity);
        !self.rx.next.before(self.rx.consumed.ahead(room))
    }

    /// The slot that is due next.
    pub fn due(&self) -> Seq {
        self.rx.next
    }

    /// The authenticated peer sent what no correct peer sends.
    pub fn violation(&mut self) {
        self.kill(Death::Violation);
    }

    fn handle_close(&mut self, header: &tautline_wire::Header) {
        let answered = header.flags & flags::CLOSE_REPLY != 0;
        match self.state {
            State::Closing if answered => self.finish_close(State::Closed, Event::Closed),
            State::Open | State::Closing if !answered && header.slot == self.rx.next => {
                self.clocks.close_due = true;
                self.finish_close(State::PeerClosed, Event::PeerClosed);
            }
            // A repeated close: our answer was lost.
            State::PeerClosed | State::Closed if !answered => self.clocks.close_due = true,
            _ => {}
        }
    }

    fn finish_close(&mut self, state: State, event: Event) {
        self.state = state;
        self.release_all();
        self.events.push_back(event);
    }

    #[cold]
    fn refuse<T>(&mut self, why: Refused) -> Result<T, Refused> {
        match why {
            Refused::Malformed => self.counters.malformed += 1,
            Refused::BadTag => self.counters.bad_tag += 1,
            Refused::Replayed => self.counters.replayed += 1,
            Refused::Over => {}
        }
        Err(why)
    }
}

#[derive(Default)]
struct Exts {
    sack: Option<Range<usize>>,
    fragment: Option<(u32, u32)>,
}

#[inline]
fn payload_ext(bytes: &[u8], ext_len: u16) -> Result<Exts, Refused> {
    if ext_len == 0 { Ok(Exts::default()) } else { read_ext(bytes, ext_len) }
}

#[cold]
fn read_ext(bytes: &[u8], ext_len: u16) -> Result<Exts, Refused> {
    let start = tautline_wire::frame::HEADER_LEN;
    let area = &bytes[start..start + usize::from(ext_len)];
    let mut exts = Exts::default();
    for ext in Extensions::new(area) {
        match ext.map_err(|_| Refused::Malformed)? {
            Ext::Sack(bits) => {
                let at = start + (bits.as_ptr() as usize - area.as_ptr() as usize);
                exts.sack = Some(at..at + bits.len());
            }
            Ext::Fragment { offset, total } => exts.fragment = Some((offset, total)),
            Ext::Pad(_) => {}
        }
    }
    Ok(exts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver() -> Receiver {
        Receiver::new(Seq(u32::MAX - 2), 64)
    }

    /// L-4: each slot is accepted once, whatever the order, across the wrap.
    #[test]
    fn exactly_once() {
        let mut rx = receiver();
        let s = |i: u32| Seq(u32::MAX - 2).ahead(i);
        assert_eq!(rx.take(s(1), true), Some(Arrival::Ahead { distance: 1 }));
        assert_eq!(rx.take(s(1), true), Some(Arrival::Repeat));
        assert_eq!(rx.take(s(3), true), Some(Arrival::Ahead { distance: 3 }));
        assert_eq!(rx.sack().as_slice(), [0b101]);
        assert_eq!(rx.take(s(0), true), Some(Arrival::Next { released: 1 }));
        assert_eq!(rx.take(s(0), true), Some(Arrival::Repeat));
        assert_eq!(rx.sack().as_slice(), [0b1]);
        assert_eq!(rx.take(s(2), true), Some(Arrival::Next { released: 1 }));
        assert!(!rx.has_ahead());
        assert_eq!(rx.repeats(), 2);
    }

    /// L-12: nothing beyond the granted credit is accepted, and consuming grants more.
    #[test]
    fn credit_is_a_limit() {
        let mut rx = receiver();
        let s = |i: u32| Seq(u32::MAX - 2).ahead(i);
        assert_eq!(rx.take(s(64), true), None);
        assert_eq!(rx.take(s(0), true), Some(Arrival::Next { released: 0 }));
        rx.consume(1);
        assert_eq!(rx.take(s(64), true), Some(Arrival::Ahead { distance: 63 }));
        assert_eq!(rx.take(s(65), true), None);
    }

    /// L-3: a packet number is accepted once, and never when it is older than the window.
    #[test]
    fn replay_window() {
        let mut rx = receiver();
        for packet in [1, 2, 5, 4, 1 << 20] {
            assert!(rx.is_fresh(packet), "{packet}");
            rx.mark_packet(0, packet);
            assert!(!rx.is_fresh(packet), "{packet}");
        }
        assert!(!rx.is_fresh(3));
        assert!(rx.is_fresh((1 << 20) - REPLAY_WINDOW + 1));
        assert!(!rx.is_fresh((1 << 20) - REPLAY_WINDOW));
    }

    /// L-11: go-back-n keeps nothing ahead of a gap.
    #[test]
    fn go_back_n_drops_ahead() {
        let mut rx = receiver();
        assert_eq!(rx.take(Seq(u32::MAX - 1), false), Some(Arrival::Repeat));
        assert!(!rx.has_ahead() && rx.ack_now);
    }
}
