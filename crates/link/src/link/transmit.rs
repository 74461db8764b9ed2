//! Sending: what the next frame carries, and how it is written.

use std::ops::Range;

use tautline_wire::ext::{self, FRAGMENT_LEN, PACE_LEN};
use tautline_wire::frame::{HEADER_LEN, flags, put_tag};
use tautline_wire::{Header, Kind, Seq};

use super::{Link, State};
use crate::queue::Fragmenting;
use crate::seal::SEAL_LEN;
use crate::sender::Repair;
use crate::{Nanos, Token};

/// Freed tokens that may wait for the caller while [`Link::send_now`] keeps it from polling.
const MAX_FREED: usize = 16;

/// The payload of a frame: a slot, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRef {
    /// The slot's token.
    pub token: Token,
    /// The bytes of the slot that the frame carries.
    pub range: Range<usize>,
    seq: Seq,
    /// Length of the whole slot, if the frame carries only a part of it.
    fragment_of: Option<u32>,
}

impl SlotRef {
    /// Returns whether the frame carries the whole slot.
    pub fn is_whole(&self) -> bool {
        self.fragment_of.is_none()
    }
}

/// A frame to send. [`Link::finish`] writes it or, if [`Transmit::sealed`], [`Link::finish_sealed`].
#[derive(Clone, Debug)]
pub struct Transmit {
    /// The payload, if the frame has any.
    pub slot: Option<SlotRef>,
    /// The payload is enciphered in a copy: the slot itself may have to be resent.
    pub sealed: bool,
    kind: Kind,
    flags: u8,
    packet: u64,
    ext_len: usize,
    with_sack: bool,
    /// This side's pace, to be told; 1 is not told.
    pace: u16,
    pad: usize,
}

impl Transmit {
    /// Returns the length of header and extensions.
    #[inline]
    pub fn head_len(&self) -> usize {
        HEADER_LEN + self.ext_len
    }

    /// Returns the length of the seal, which follows the payload.
    pub fn tail_len(&self) -> usize {
        if self.sealed { SEAL_LEN } else { 0 }
    }
}

impl Link {
    /// Returns the next frame to send now, if any. The caller must send it: its packet number is used up.
    #[inline]
    pub fn poll_transmit(&mut self, now: Nanos) -> Option<Transmit> {
        if !self.sender.queue.is_idle() && (self.state == State::Open || self.state == State::Closing) {
            if self.sender.has_repairs()
                && let Some(transmit) = self.poll_repair(now)
            {
                return Some(transmit);
            }
            if let Some(seq) = self.sender.next_unsent(&mut self.reports.counters) {
                return Some(self.slot_frame(now, seq));
            }
        }
        if self.receiver.ack.is_due(now)
            || self.request_due
            || self.close_due
            || self.sender.path.wants_small_probe()
            || self.sender.path.probe_deadline().is_some()
        {
            return self.poll_control(now);
        }
        None
    }

    /// Returns whether a slot of `len` bytes can be sent at once, with [`Link::send_whole`]: it fits one
    /// frame, no other slot is unsent, window and credit have room, no selective acknowledgement is needed,
    /// the link is neither sealed nor idle, and the caller has neither events nor many freed tokens to poll.
    #[inline]
    pub fn can_send_now(&self, len: usize) -> bool {
        self.state == State::Open
            && self.sender.queue.is_idle()
            && self.sender.has_room()
            && len <= self.slot_capacity()
            && self.seal.can_tag()
            && !self.receiver.has_ahead()
            && self.reports.events.is_empty()
            && self.sender.queue.freed_len() < MAX_FREED
    }

    /// Pushes a slot and writes the header of its frame, which is all that precedes the payload. Only if
    /// [`Link::can_send_now`].
    #[inline]
    pub fn send_whole(&mut self, now: Nanos, token: Token, frame: &mut [u8]) {
        let packet = self.send_untagged(now, token, frame);
        self.tag_frame(packet, frame);
    }

    /// As [`Link::send_whole`], without the tag, which [`Link::tags`] or [`Link::tag_frame`] computes before
    /// the frame leaves. Returns the packet number.
    #[inline(always)]
    pub fn send_untagged(&mut self, now: Nanos, token: Token, frame: &mut [u8]) -> u64 {
        let packet = self.take_packet(now);
        let slot = self.sender.send_pushed(now, (token, (frame.len() - HEADER_LEN) as u32), packet);
        self.reports.counters.slots_sent += 1;
        let flags = self.slot_flags();
        self.receiver.ack.reset();
        self.request_due = false;
        let header = self.header((Kind::Data, flags), packet, slot, now);
        header.write(&mut frame[..HEADER_LEN]);
        packet
    }

    /// Writes the tag of a frame, whose tag field is zero.
    #[inline(always)]
    pub fn tag_frame(&mut self, packet: u64, frame: &mut [u8]) {
        let tag = self.seal.tag(packet, frame);
        put_tag(frame, tag);
    }

    #[cold]
    fn poll_repair(&mut self, now: Nanos) -> Option<Transmit> {
        Some(match self.sender.next_repair(&mut self.reports.counters)? {
            Repair::Slot(seq) => self.slot_frame(now, seq),
            Repair::Fragment(rest) => {
                let packet = self.take_packet(now);
                self.fragment_frame(rest, packet)
            }
        })
    }

    #[inline]
    fn slot_frame(&mut self, now: Nanos, seq: Seq) -> Transmit {
        let packet = self.take_packet(now);
        let (token, len) = self.sender.charge(now, seq, packet);
        let (len, capacity) = (len as usize, self.slot_capacity());
        if len > capacity {
            let rest = self.sender.queue.begin_fragments(seq, (capacity - FRAGMENT_LEN) as u32);
            return self.fragment_frame(rest, packet);
        }
        self.frame(SlotRef { token, range: 0..len, seq, fragment_of: None }, packet, capacity - len)
    }

    /// Returns a frame with the next part of a slot that fits (L-19).
    #[cold]
    fn fragment_frame(&mut self, rest: Fragmenting, packet: u64) -> Transmit {
        let (seq, room) = (rest.seq, (self.slot_capacity() - FRAGMENT_LEN) as u32);
        let slot = self.sender.queue.slot_mut(seq);
        slot.packet = packet;
        let (token, len) = (slot.token, slot.len);
        let part = self.sender.queue.next_fragment(rest, room);
        let range = part.start as usize..part.end as usize;
        let part = SlotRef { token, range, seq, fragment_of: Some(len) };
        let mut transmit = self.frame(part, packet, 0);
        transmit.ext_len += FRAGMENT_LEN;
        transmit
    }

    /// Returns the frame of a slot or fragment. `spare` is the room for a selective acknowledgement.
    #[inline]
    fn frame(&mut self, slot: SlotRef, packet: u64, spare: usize) -> Transmit {
        let flags = self.slot_flags();
        let sack = if self.receiver.has_ahead() { self.receiver.sack_len() } else { 0 };
        let with_sack = sack > 0 && sack <= spare;
        if sack == 0 || with_sack {
            self.receiver.ack.reset();
        }
        self.request_due = false;
        Transmit {
            slot: Some(slot),
            sealed: self.seal.is_sealed(),
            kind: Kind::Data,
            flags,
            packet,
            ext_len: if with_sack { sack } else { 0 },
            with_sack,
            pace: 1,
            pad: 0,
        }
    }

    /// Returns the flags of a frame with a slot, which has been charged.
    #[inline]
    fn slot_flags(&mut self) -> u8 {
        if self.sender.has_room() && !self.sender.timer.has_probes() {
            return flags::SLOT;
        }
        // L-24: a sender that cannot send more needs an acknowledgement at once.
        self.sender.timer.use_probe();
        flags::SLOT | flags::ACK_REQUESTED
    }

    #[inline]
    fn take_packet(&mut self, now: Nanos) -> u64 {
        self.sender.take_packet(now, &mut self.reports.counters)
    }

    /// Returns the next frame without a slot: acknowledgement, request for one, close, or path probe.
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
            pace: 1,
            pad: 0,
        };
        if self.close_due && self.ready_to_close() {
            self.close_due = false;
            transmit.kind = Kind::Close;
            transmit.flags = match self.state {
                // L-18: it is to be confirmed.
                State::PeerClosed if self.repeats_reply() => flags::CLOSE_REPLY | flags::ACK_REQUESTED,
                State::PeerClosed | State::Closed => flags::CLOSE_REPLY,
                _ => flags::ACK_REQUESTED,
            };
        } else if self.receiver.ack.is_due(now) || self.request_due || self.sender.path.wants_small_probe() {
            if self.sender.path.take_small_probe() || self.request_due {
                transmit.flags |= flags::ACK_REQUESTED;
                self.liveness.on_request(now);
            }
        } else if let Some(size) = self.sender.path.take_probe(now, self.sender.packets.next()) {
            transmit.flags |= flags::ACK_REQUESTED;
            let fixed = HEADER_LEN + transmit.tail_len();
            transmit.pad = (size - fixed) & !3;
            transmit.ext_len = transmit.pad;
        } else {
            return None;
        }
        if transmit.pad == 0 && self.receiver.has_ahead() {
            transmit.with_sack = true;
            transmit.ext_len = self.receiver.sack_len();
        }
        if transmit.pad == 0 && self.quiet.is_some() {
            transmit.pace = self.config.pace();
            transmit.ext_len += if transmit.pace > 1 { PACE_LEN } else { 0 };
        }
        self.receiver.ack.reset();
        self.request_due = false;
        transmit.packet = self.take_packet(now);
        Some(transmit)
    }

    fn ready_to_close(&self) -> bool {
        self.state != State::Closing || self.sender.queue.is_empty()
    }

    /// Writes header, extensions and tag into the first [`Transmit::head_len`] bytes of `frame`; the payload
    /// follows them.
    #[inline]
    pub fn finish(&mut self, transmit: &Transmit, now: Nanos, frame: &mut [u8]) {
        let packet = self.finish_untagged(transmit, now, frame);
        self.tag_frame(packet, frame);
    }

    /// As [`Link::finish`], without the tag, which [`Link::tags`] or [`Link::tag_frame`] computes before the
    /// frame leaves. Returns the packet number.
    #[inline(always)]
    pub fn finish_untagged(&mut self, transmit: &Transmit, now: Nanos, frame: &mut [u8]) -> u64 {
        self.write_head(transmit, now, &mut frame[..transmit.head_len()]);
        transmit.packet
    }

    /// Writes header and extensions, and enciphers the payload in place. `frame` is the head, the payload and
    /// [`Transmit::tail_len`] spare bytes for the seal.
    pub fn finish_sealed(&mut self, transmit: &Transmit, now: Nanos, frame: &mut [u8]) {
        let (head, rest) = frame.split_at_mut(transmit.head_len());
        self.write_head(transmit, now, head);
        self.seal.encipher(transmit.packet, head, rest);
    }

    #[inline]
    fn write_head(&mut self, transmit: &Transmit, now: Nanos, head: &mut [u8]) {
        let sealed = if transmit.sealed { flags::SEALED } else { 0 };
        let slot = transmit.slot.as_ref().map_or(self.sender.queue.next(), |s| s.seq);
        let mut header = self.header((transmit.kind, transmit.flags | sealed), transmit.packet, slot, now);
        header.ext_len = transmit.ext_len as u16;
        header.write(head);
        if transmit.ext_len > 0 {
            self.write_ext(transmit, &mut head[HEADER_LEN..]);
        }
    }

    /// Returns the header of a frame without extensions, still without its tag.
    #[inline(always)]
    fn header(&mut self, (kind, flags): (Kind, u8), packet: u64, slot: Seq, now: Nanos) -> Header {
        let (echo, residence_ns) = self.receiver.replay.echo(now);
        Header {
            kind,
            flags: flags | self.raw.ours,
            ext_len: 0,
            channel: self.peer.channel,
            packet,
            slot,
            ack: self.receiver.next(),
            credit: self.receiver.advertise(),
            echo,
            residence_ns,
            duplicates: self.receiver.duplicates(),
            tag: 0,
        }
    }

    #[cold]
    fn write_ext(&self, transmit: &Transmit, mut area: &mut [u8]) {
        if transmit.with_sack {
            let used = ext::put_sack(area, self.receiver.sack().as_slice());
            area = &mut area[used..];
        }
        if let Some(SlotRef { fragment_of: Some(total), range, .. }) = &transmit.slot {
            let used = ext::put_fragment(area, range.start as u32, *total);
            area = &mut area[used..];
        }
        if transmit.pace > 1 {
            let used = ext::put_pace(area, transmit.pace);
            area = &mut area[used..];
        }
        while !area.is_empty() {
            // The length is a multiple of four, so that never less than four bytes remain.
            let used = ext::put_pad(area, area.len().min(256));
            area = &mut area[used..];
        }
    }
}
