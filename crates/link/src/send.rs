//! What is sent: the choice of the next frame, and its making.

use std::ops::Range;

use tautline_wire::ext::{self, FRAGMENT_LEN};
use tautline_wire::frame::{HEADER_LEN, flags, put_tag};
use tautline_wire::{Header, Kind, Seq};

use crate::link::{SENT_TIMES, State};
use crate::queue::{SlotState, charge};
use crate::{Link, Nanos, SEAL_LEN, Token};

/// Acknowledged slots that may wait to be given back while there is nothing else to do.
const FREED_BEHIND: usize = 16;

/// The payload of a frame: part or all of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRef {
    /// The slot's token.
    pub token: Token,
    /// The bytes of it that the frame carries.
    pub range: Range<usize>,
    seq: Seq,
    /// Bytes of the whole slot if the frame carries only part of it.
    fragment_of: Option<u32>,
}

impl SlotRef {
    /// Whether the frame carries the whole slot.
    pub fn is_whole(&self) -> bool {
        self.fragment_of.is_none()
    }
}

/// A frame to be sent. Build it with [`Link::finish`] or, if [`Transmit::sealed`], with [`Link::finish_sealed`].
#[derive(Clone, Debug)]
pub struct Transmit {
    /// What the frame carries, if it carries anything.
    pub slot: Option<SlotRef>,
    /// The payload must be enciphered in a copy.
    pub sealed: bool,
    kind: Kind,
    flags: u8,
    packet: u64,
    ext_len: usize,
    with_sack: bool,
    pad: usize,
}

impl Transmit {
    /// Bytes of header and extensions.
    #[inline]
    pub fn head_len(&self) -> usize {
        HEADER_LEN + self.ext_len
    }

    /// Bytes behind the payload.
    pub fn tail_len(&self) -> usize {
        if self.sealed { SEAL_LEN } else { 0 }
    }

    /// Bytes of padding that make up the frame's extensions; only probes have any.
    pub fn is_probe(&self) -> bool {
        self.pad > 0
    }
}

impl Link {
    /// The next frame to be sent now, if any. Whoever takes it must send it: packet numbers are used up.
    #[inline]
    pub fn poll_transmit(&mut self, now: Nanos) -> Option<Transmit> {
        if !self.tx.is_idle()
            && (self.state == State::Open || self.state == State::Closing)
            && let Some(transmit) = self.poll_slot(now)
        {
            return Some(transmit);
        }
        if self.rx.ack_due(now)
            || self.clocks.ask
            || self.clocks.close_due
            || self.clocks.witness
            || self.path.probe_deadline().is_some()
        {
            return self.poll_control(now);
        }
        None
    }

    /// Whether a slot of `len` bytes pushed now could leave at once, alone in its frame, with nothing to be said or done beside it.
    #[inline]
    pub fn is_clear(&self, len: usize) -> bool {
        self.state == State::Open
            && self.tx.is_idle()
            && self.tx.in_flight < self.congestion.window()
            && self.tx.next.before(self.tx.room)
            && len <= self.slot_capacity()
            && !(self.rx.has_ahead() || self.seal.is_sealed())
            && self.events.is_empty()
            && self.freed.len() < FREED_BEHIND
    }

    /// Pushes a slot and takes its frame in one step; only when [`Link::is_clear`].
    #[inline]
    pub fn push_clear(&mut self, now: Nanos, token: Token, len: u32) -> Transmit {
        let seq = self.tx.push(token, len);
        self.tx.next = seq.next();
        self.counters.slots_sent += 1;
        self.slot_frame(now, seq)
    }

    #[inline]
    fn poll_slot(&mut self, now: Nanos) -> Option<Transmit> {
        let window_open = self.tx.in_flight < self.congestion.window();
        if !(window_open || self.clocks.probes > 0 || self.tx.fragmenting.is_some()) {
            return None;
        }
        if (self.tx.fragmenting.is_some() || !self.tx.lost.is_empty())
            && let Some(transmit) = self.poll_repair(now)
        {
            return Some(transmit);
        }
        let seq = self.tx.next;
        if seq == self.tx.end() || !window_open {
            return None;
        }
        if !seq.before(self.tx.room) && !self.tx.find_ahead() {
            self.counters.credit_stalls += 1;
            return None;
        }
        self.tx.next = seq.next();
        self.tx.waiting_ahead -= u32::from(self.tx.slot_mut(seq).ahead);
        self.counters.slots_sent += 1;
        Some(self.slot_frame(now, seq))
    }

    #[cold]
    fn poll_repair(&mut self, now: Nanos) -> Option<Transmit> {
        if let Some((seq, offset)) = self.tx.fragmenting.take() {
            let alive = !seq.before(self.tx.base) && self.tx.slot_mut(seq).state == SlotState::Flying;
            if alive {
                // The whole slot has been charged to the window, so the rest of it may follow whatever the window says.
                return Some(self.fragment_frame(now, seq, offset));
            }
            if self.clocks.probes == 0 && self.tx.in_flight >= self.congestion.window() {
                return None;
            }
        }
        let seq = self.tx.next_lost()?;
        self.tx.lost.pop_front();
        self.counters.slots_resent += 1;
        self.tx.slot_mut(seq).resent = true;
        Some(self.slot_frame(now, seq))
    }

    #[inline]
    fn slot_frame(&mut self, now: Nanos, seq: Seq) -> Transmit {
        if !self.tx.flying() {
            self.clocks.progress = now;
        }
        let slot = *self.tx.slot_mut(seq);
        self.tx.in_flight += charge(slot.len);
        if slot.len as usize > self.slot_capacity() {
            self.tx.slot_mut(seq).state = SlotState::Flying;
            return self.fragment_frame(now, seq, 0);
        }
        let packet = self.take_packet(now);
        let slot = self.tx.slot_mut(seq);
        slot.packet = packet;
        slot.state = SlotState::Flying;
        let range = 0..slot.len as usize;
        let (token, len) = (slot.token, slot.len as usize);
        let spare = self.slot_capacity() - len;
        self.frame(SlotRef { token, range, seq, fragment_of: None }, packet, spare)
    }

    /// L-19: the part of the slot from `offset` on, as much as the path takes.
    #[cold]
    fn fragment_frame(&mut self, now: Nanos, seq: Seq, offset: u32) -> Transmit {
        let room = (self.slot_capacity() - FRAGMENT_LEN) as u32;
        let packet = self.take_packet(now);
        let slot = self.tx.slot_mut(seq);
        slot.packet = packet;
        let (token, len) = (slot.token, slot.len);
        let end = len.min(offset + room);
        self.tx.fragmenting = (end < len).then_some((seq, end));
        let part = SlotRef { token, range: offset as usize..end as usize, seq, fragment_of: Some(len) };
        let mut transmit = self.frame(part, packet, 0);
        transmit.ext_len += FRAGMENT_LEN;
        transmit
    }

    #[inline]
    fn frame(&mut self, slot: SlotRef, packet: u64, spare: usize) -> Transmit {
        let mut flags = flags::SLOT;
        let full = self.tx.in_flight >= self.congestion.window() || !self.tx.next.before(self.tx.room);
        if full || self.clocks.probes > 0 {
            // L-5: whoever cannot go on asks for an answer at once.
            flags |= flags::ASK;
            self.clocks.probes = self.clocks.probes.saturating_sub(1);
        }
        let sack = if self.rx.has_ahead() { self.rx.sack_len() } else { 0 };
        let with_sack = sack > 0 && sack <= spare;
        if sack == 0 || with_sack {
            self.rx.acked();
        }
        self.clocks.ask = false;
        Transmit {
            slot: Some(slot),
            sealed: self.seal.is_sealed(),
            kind: Kind::Data,
            flags,
            packet,
            ext_len: if with_sack { sack } else { 0 },
            with_sack,
            pad: 0,
        }
    }

    /// A frame without a slot: acknowledgement, question, close, or path probe.
    #[cold]
    fn poll_control(&mut self, now: Nanos) -> Option<Transmit> {
        if self.state == State::Dead {
            return None;
        }
        let mut transmit = Transmit {
            slot: None,
            sealed: self.seal.is_sealed(),
            kind: Kind::Data,
            flags: 0,
            packet: 0,
            ext_len: 0,
            with_sack: false,
            pad: 0,
        };
        if self.clocks.close_due && self.ready_to_close() {
            self.clocks.close_due = false;
            transmit.kind = Kind::Close;
            transmit.flags = if matches!(self.state, State::PeerClosed | State::Closed) {
                flags::CLOSE_REPLY
            } else {
                flags::ASK
            };
        } else if self.rx.ack_due(now) || self.clocks.ask || self.clocks.witness {
            if std::mem::take(&mut self.clocks.witness) || self.clocks.ask {
                transmit.flags |= flags::ASK;
                self.clocks.asked = now;
            }
        } else if let Some(size) = self.path.take_probe(now, self.next_packet) {
            transmit.flags |= flags::ASK;
            let fixed = HEADER_LEN + transmit.tail_len();
            transmit.pad = (size - fixed) & !3;
            transmit.ext_len = transmit.pad;
        } else {
            return None;
        }
        if transmit.pad == 0 && self.rx.has_ahead() {
            transmit.with_sack = true;
            transmit.ext_len = self.rx.sack_len();
        }
        self.rx.acked();
        self.clocks.ask = false;
        transmit.packet = self.take_packet(now);
        Some(transmit)
    }

    fn ready_to_close(&self) -> bool {
        self.state != State::Closing || self.tx.slots.is_empty()
    }

    #[inline]
    fn take_packet(&mut self, now: Nanos) -> u64 {
        let packet = self.next_packet;
        self.next_packet += 1;
        self.sent_times[packet as usize % SENT_TIMES] = now;
        self.counters.frames_sent += 1;
        packet
    }

    /// Writes header, extensions and tag into the first [`Transmit::head_len`] bytes of `frame`; the payload is behind them.
    #[inline]
    pub fn finish(&mut self, transmit: &Transmit, now: Nanos, frame: &mut [u8]) {
        self.write_head(transmit, now, &mut frame[..transmit.head_len()]);
        let tag = self.seal.tag(transmit.packet, frame);
        put_tag(frame, tag);
    }

    /// The same for a sealed link: `frame` is head, payload and [`SEAL_LEN`] spare bytes; the payload is enciphered in place.
    pub fn finish_sealed(&mut self, transmit: &Transmit, now: Nanos, frame: &mut [u8]) {
        let (head, rest) = frame.split_at_mut(transmit.head_len());
        self.write_head(transmit, now, head);
        self.seal.encipher(transmit.packet, head, rest);
    }

    #[inline]
    fn write_head(&mut self, transmit: &Transmit, now: Nanos, head: &mut [u8]) {
        let (echo, residence_ns) = self.rx.echo(now);
        let sealed = if transmit.sealed { flags::SEALED } else { 0 };
        let header = Header {
            kind: transmit.kind,
            flags: transmit.flags | sealed | self.says,
            ext_len: transmit.ext_len as u16,
            channel: self.peer.channel,
            packet: transmit.packet,
            slot: transmit.slot.as_ref().map_or(self.tx.next, |s| s.seq),
            ack: self.rx.next(),
            credit: self.rx.advertise(),
            echo,
            residence_ns,
            repeats: self.rx.repeats(),
            tag: 0,
        };
        header.write(head);
        if transmit.ext_len > 0 {
            self.write_ext(transmit, &mut head[HEADER_LEN..]);
        }
    }

    #[cold]
    fn write_ext(&self, transmit: &Transmit, mut area: &mut [u8]) {
        if transmit.with_sack {
            let used = ext::put_sack(area, self.rx.sack().as_slice());
            area = &mut area[used..];
        }
        if let Some(SlotRef { fragment_of: Some(total), range, .. }) = &transmit.slot {
            let used = ext::put_fragment(area, range.start as u32, *total);
            area = &mut area[used..];
        }
        while !area.is_empty() {
            // What remains is a multiple of four; no piece may leave less than four behind.
            let used = ext::put_pad(area, area.len().min(256));
            area = &mut area[used..];
        }
    }
}
