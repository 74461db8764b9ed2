//! Receiving: checks a frame, then handles its acknowledgement and the slot it carries.

use std::ops::Range;

use tautline_wire::ext::{Ext, Extensions};
use tautline_wire::frame::{HEADER_LEN, flags};
use tautline_wire::{Frame, Header, Kind, Seq};

use super::{FrameOfTrain, Link, State};
use crate::queue::charge;
use crate::seal::Seal;
use crate::shared::accept_pace;
use crate::{Arrival, Death, Event, Nanos};

/// For how long the reply to a close is repeated at most (L-18).
const REPLIES_FOR: Nanos = 250_000_000;

/// Why a frame was dropped. Such frames are counted and never answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameError {
    /// Its layout or a field is wrong, or its slot is beyond the credit.
    Malformed,
    /// Its tag or seal is wrong.
    BadTag,
    /// Its packet number was seen before or is too old.
    Replayed,
    /// The link is over.
    Over,
}

impl Link {
    /// Handles a frame with this link's channel number. Returns the slot it carries, if any, and the range of
    /// its payload in `bytes`, deciphered in place on a sealed link.
    #[inline]
    pub fn handle_frame(
        &mut self,
        now: Nanos,
        bytes: &mut [u8],
    ) -> Result<(Option<Arrival>, Range<usize>), FrameError> {
        self.handle_frame_of_train(now, bytes, None)
    }

    /// As [`Link::handle_frame`]; `tags` are those for which [`Link::train_tags`] was given this very frame.
    #[inline(always)]
    pub fn handle_frame_of_train(
        &mut self,
        now: Nanos,
        bytes: &mut [u8],
        tags: FrameOfTrain<'_>,
    ) -> Result<(Option<Arrival>, Range<usize>), FrameError> {
        let (header, payload) = match Frame::parse(bytes) {
            Ok(frame) => (frame.header, frame.payload_at()..bytes.len()),
            Err(_) => return self.drop_frame(FrameError::Malformed),
        };
        if header.channel != self.channel {
            return self.drop_frame(FrameError::Malformed);
        }
        if self.state == State::Dead {
            return Err(FrameError::Over);
        }
        if !self.receiver.replay.is_fresh(header.packet) {
            return self.drop_frame(FrameError::Replayed);
        }
        let Some(payload) = authenticate(&mut self.seal, (&header, tags), bytes, payload) else {
            return self.drop_frame(FrameError::BadTag);
        };
        // From here on the frame is authenticated.
        if (header.flags ^ self.raw.peer) & flags::RAW != 0 {
            self.update_peer_raw(header.packet, header.flags);
        }
        self.receiver.replay.mark(now, header.packet);
        self.reports.counters.frames_accepted += 1;
        let heartbeat = self.liveness.is_heartbeat(now, &self.config);
        self.liveness.on_frame(now);
        if header.flags & flags::ACK_REQUESTED != 0 {
            self.receiver.on_request(header.has_slot());
        }
        let Ok(ext) = payload_ext(bytes, header.ext_len) else {
            return self.drop_frame(FrameError::Malformed);
        };
        self.sender.handle_ack(now, &header, ext.sack, &mut self.reports);
        if header.kind == Kind::Close {
            self.handle_close(now, &header);
            return Ok((None, payload));
        }
        if !header.has_slot() {
            if heartbeat {
                self.on_heartbeat(now, ext.pace);
            }
            return Ok((None, payload));
        }
        self.wake();
        if let Some((offset, total)) = ext.fragment {
            let keeps = self.config.recovery.rules().keeps_ahead();
            let arrival = self.receiver.accept_fragment(header.slot, offset, total, keeps);
            return Ok((Some(arrival), payload));
        }
        self.take_slot(now, header.slot, payload.len()).map(|arrival| (Some(arrival), payload))
    }

    /// Handles a frame that carries nothing new but its payload, as most frames of a train do (L-38): it has
    /// the next packet number and the next slot, and acknowledges what is acknowledged already. Returns the
    /// range of its payload, as [`Link::handle_frame`] does. `None`, with nothing changed, for another frame.
    ///
    /// `tags` are those for which [`Link::train_tags`] was given this very frame.
    #[inline]
    pub fn handle_next(
        &mut self,
        now: Nanos,
        bytes: &mut [u8],
        tags: FrameOfTrain<'_>,
    ) -> Option<Result<Range<usize>, FrameError>> {
        let Link { sender, receiver, .. } = self;
        if self.state != State::Open || !receiver.takes_next() || self.seal.is_resting() {
            return None;
        }
        let sealed = if self.seal.is_sealed() { flags::SEALED } else { 0 };
        let mut header = Header {
            kind: Kind::Data,
            flags: flags::SLOT | self.raw.peer | sealed,
            ext_len: 0,
            channel: self.channel,
            // Beyond the last number there is none.
            packet: receiver.replay.largest().checked_add(1)?,
            slot: receiver.next(),
            ack: sender.queue.base(),
            credit: sender.queue.credit(),
            echo: sender.packets.largest_echo() as u32,
            residence_ns: 0,
            duplicates: sender.peer_duplicates(),
            tag: 0,
        };
        header.tag = header.tag_of(bytes)?;
        let payload = authenticate(&mut self.seal, (&header, tags), bytes, HEADER_LEN..bytes.len());
        let Some(payload) = payload else {
            return Some(self.drop_frame(FrameError::BadTag));
        };
        // From here on the frame is authenticated.
        receiver.replay.mark(now, header.packet);
        self.liveness.on_frame(now);
        sender.find_losses(now, &mut self.reports);
        receiver.take_next();
        receiver.ack.on_slot(now, payload.len(), &self.config);
        self.reports.counters.frames_accepted += 1;
        self.reports.counters.slots_accepted += 1;
        Some(Ok(payload))
    }

    /// D-21: the frame with the largest packet number counts, not the one that arrives last.
    #[cold]
    fn update_peer_raw(&mut self, packet: u64, frame_flags: u8) {
        if packet > self.receiver.replay.largest() {
            self.raw.peer = frame_flags & flags::RAW;
            self.reports.events.push_back(Event::PeerAcceptsRaw(self.peer_accepts_raw()));
        }
    }

    #[inline]
    fn take_slot(&mut self, now: Nanos, seq: Seq, len: usize) -> Result<Arrival, FrameError> {
        let keeps = self.config.recovery.rules().keeps_ahead();
        let Some(arrival) = self.receiver.accept(seq, keeps) else {
            return self.drop_frame(FrameError::Malformed);
        };
        match arrival {
            Arrival::Next { .. } => self.reports.counters.slots_accepted += 1,
            Arrival::Ahead { .. } => {
                self.reports.counters.slots_accepted += 1;
                self.reports.counters.slots_ahead += 1;
            }
            _ => {
                self.reports.counters.slots_duplicate += 1;
                return Ok(arrival);
            }
        }
        self.receiver.ack.on_slot(now, len, &self.config);
        Ok(arrival)
    }

    /// Accepts a slot of `len` bytes of which all fragments have arrived.
    pub fn slot_complete(&mut self, now: Nanos, seq: Seq, len: usize) -> Arrival {
        self.take_slot(now, seq, len).unwrap_or(Arrival::Duplicate)
    }

    /// Records that the program has consumed the next `slots` slots, which grants the peer credit for as
    /// many within its share. Returns whether to send it now, with [`Link::poll_transmit`], or
    /// [`Link::wants_more_credit`] has become true.
    #[inline]
    pub fn consumed(&mut self, slots: u32) -> bool {
        self.receiver.consume(slots);
        self.receiver.ack.is_immediate() || self.receiver.wants_more()
    }

    /// Returns whether the peer has used up its credit, and may have more to send.
    #[inline]
    pub fn wants_more_credit(&self) -> bool {
        self.receiver.wants_more()
    }

    /// As [`Link::wants_more_credit`], once.
    pub fn take_wants_more_credit(&mut self) -> bool {
        self.receiver.take_wants_more()
    }

    /// Returns how many slots the peer may send beyond those consumed.
    pub fn share(&self) -> u32 {
        self.receiver.share()
    }

    /// Changes how many slots the peer may send beyond those consumed, up to [`crate::Config::credit_slots`]
    /// (L-41). It hears of it with the next frame.
    pub fn set_share(&mut self, slots: u32) {
        self.receiver.set_share(slots.min(self.config.most_credit()));
    }

    /// Has a frame sent at once if the peer may send more than it knows. Returns whether it does.
    pub fn announce_credit(&mut self) -> bool {
        let fresh = self.receiver.has_unannounced_credit();
        if fresh {
            self.receiver.ack.request();
        }
        fresh
    }

    /// Returns about how much a slot of the peer takes up in a socket buffer.
    pub fn slot_charge(&self) -> u32 {
        let limit = self.sender.path.max_frame();
        charge(self.receiver.ack.mean_slot().unwrap_or(limit as u32))
    }

    /// Returns when the last frame of the peer arrived.
    pub fn heard_at(&self) -> Nanos {
        self.liveness.heard_at()
    }

    /// Returns whether slots that the program has not consumed use up the peer's credit. Only priority slots
    /// can arrive until it consumes some.
    pub fn is_credit_used_up(&self) -> bool {
        self.receiver.is_credit_used_up()
    }

    /// Returns the sequence number of the next slot in order.
    pub fn next_expected(&self) -> Seq {
        self.receiver.next()
    }

    /// Ends the link because an authenticated frame broke the protocol.
    pub fn violation(&mut self) {
        self.kill(Death::Violation);
    }

    fn handle_close(&mut self, now: Nanos, header: &Header) {
        let reply = header.flags & flags::CLOSE_REPLY != 0;
        // A reply that requests something is to be confirmed: the peer may wait for that before it ends.
        let confirm = reply && header.flags & flags::ACK_REQUESTED != 0;
        match self.state {
            State::Closing if reply => {
                self.close_due = confirm;
                self.finish_close(State::Closed, Event::Closed);
            }
            State::Open | State::Closing if !reply && header.slot == self.receiver.next() => {
                self.close_due = true;
                self.reply_until = now + REPLIES_FOR.min(self.config.silence / 4);
                self.sender.timer.restart(now);
                self.finish_close(State::PeerClosed, Event::PeerClosed);
            }
            State::PeerClosed | State::Closed if reply => {
                self.reply_until = 0;
                self.close_due |= confirm;
            }
            // A repeated close: our reply was lost.
            State::PeerClosed | State::Closed => self.close_due = true,
            _ => {}
        }
    }

    fn finish_close(&mut self, state: State, event: Event) {
        self.state = state;
        self.sender.queue.clear();
        self.reports.events.push_back(event);
    }

    #[cold]
    fn drop_frame<T>(&mut self, why: FrameError) -> Result<T, FrameError> {
        match why {
            FrameError::Malformed => self.reports.counters.malformed += 1,
            FrameError::BadTag => self.reports.counters.bad_tag += 1,
            FrameError::Replayed => self.reports.counters.replayed += 1,
            FrameError::Over => {}
        }
        Err(why)
    }
}

/// Checks a frame by its tag, if that is known already, or computes the tag or deciphers the frame. Returns
/// the range of the payload, or `None` if the frame is not authentic.
#[inline(always)]
fn authenticate(
    seal: &mut Seal,
    (header, tags): (&Header, FrameOfTrain<'_>),
    bytes: &mut [u8],
    payload: Range<usize>,
) -> Option<Range<usize>> {
    match tags.and_then(|(tags, place)| tags.tag(header, place)) {
        Some(tag) => (tag == header.tag && header.flags & flags::SEALED == 0).then_some(payload),
        None => seal.open(header, bytes, payload),
    }
}

struct Exts<'a> {
    sack: Option<&'a [u8]>,
    fragment: Option<(u32, u32)>,
    /// The peer's pace (L-45).
    pace: u16,
}

impl Exts<'_> {
    const NONE: Self = Exts { sack: None, fragment: None, pace: 1 };
}

#[inline]
fn payload_ext(bytes: &[u8], ext_len: u16) -> Result<Exts<'_>, FrameError> {
    if ext_len == 0 { Ok(Exts::NONE) } else { read_ext(bytes, ext_len) }
}

#[cold]
fn read_ext(bytes: &[u8], ext_len: u16) -> Result<Exts<'_>, FrameError> {
    let area = &bytes[HEADER_LEN..HEADER_LEN + usize::from(ext_len)];
    let mut exts = Exts::NONE;
    for ext in Extensions::new(area) {
        match ext.map_err(|_| FrameError::Malformed)? {
            Ext::Sack(bits) => exts.sack = Some(bits),
            Ext::Fragment { offset, total } => exts.fragment = Some((offset, total)),
            Ext::Pace(pace) => exts.pace = accept_pace(pace),
            Ext::Pad(_) => {}
        }
    }
    Ok(exts)
}
