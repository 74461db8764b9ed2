//! One live channel. `transmit` sends frames, `receive` handles them, `timeout` handles time.

mod receive;
mod timeout;
mod train;
mod transmit;

pub use receive::FrameError;
pub use train::{FrameOfTrain, TrainTags};
pub use transmit::{SlotRef, Transmit};

use std::sync::Arc;

use tautline_wire::frame::{HEADER_LEN, SMALLEST_FRAME, flags};
use tautline_wire::{Handshake, Seq};

use crate::liveness::Liveness;
use crate::queue::SendQueue;
use crate::receiver::Receiver;
use crate::report::Reports;
use crate::seal::{SEAL_LEN, Seal};
use crate::sender::Sender;
use crate::shared::{Quiet, Shared};
use crate::{Counters, Death, Event, Nanos, Token};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// We are closing: first all slots are acknowledged, then close frames are sent until one is answered.
    Closing,
    /// The peer closed. We repeat our reply until it is confirmed, and answer further close frames.
    PeerClosed,
    /// The peer answered our close. We confirm its replies.
    Closed,
    Dead,
}

/// One live channel. The crate's documentation gives the order of calls.
#[derive(Debug)]
pub struct Link {
    config: Arc<Shared>,
    peer: PeerTerms,
    channel: u32,
    seal: Seal,
    state: State,
    sender: Sender,
    receiver: Receiver,
    liveness: Liveness,
    raw: RawFrames,
    /// A frame that requests an acknowledgement is to be sent.
    request_due: bool,
    /// A close frame or a reply to one is to be sent.
    close_due: bool,
    /// Until when the reply to the peer's close is repeated; zero once it is confirmed.
    reply_until: Nanos,
    /// The link is quiet (L-45).
    quiet: Option<Quiet>,
    reports: Reports,
}

/// What a link keeps of the peer's handshake frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerTerms {
    /// Its epoch.
    pub epoch: u64,
    /// Its number for the channel, which our frames carry.
    pub channel: u32,
    /// The longest frame that it accepts.
    pub max_frame: u32,
    /// Bytes of one message that we may send before its handler has consumed any.
    pub message_window: u32,
    /// How long it delays acknowledgements, at most.
    pub ack_delay_us: u32,
}

impl PeerTerms {
    fn new(handshake: &Handshake) -> PeerTerms {
        let Handshake { epoch, channel, max_frame, message_window, ack_delay_us, .. } = *handshake;
        PeerTerms { epoch, channel, max_frame, message_window, ack_delay_us }
    }
}

/// Which side accepts raw Ethernet frames (D-21), as frame flags: our own, and those of the peer's newest
/// frame.
#[derive(Clone, Copy, Debug)]
struct RawFrames {
    ours: u8,
    peer: u8,
}

/// The result of a handshake, from which a link is made.
pub(crate) struct Negotiated {
    pub(crate) peer: Handshake,
    pub(crate) my_channel: u32,
    pub(crate) my_epoch: u64,
    pub(crate) my_rank: u32,
    pub(crate) seal: Seal,
    pub(crate) max_frame: usize,
    /// The peer's credit at first.
    pub(crate) first_credit: u32,
    /// Whether this side accepts raw frames.
    pub(crate) raw_frames: bool,
}

fn raw_flag(accepts: bool) -> u8 {
    if accepts { flags::RAW } else { 0 }
}

impl Link {
    pub(crate) fn new(now: Nanos, config: &Arc<Shared>, negotiated: Negotiated) -> Link {
        let Negotiated { peer, my_channel, my_epoch, my_rank, seal, max_frame, .. } = negotiated;
        // Sequence numbers start at the low half of the epochs, so that they often wrap around (L-1).
        let queue = SendQueue::new(Seq(my_epoch as u32), peer.credit);
        let receiver = Receiver::new(Seq(peer.epoch as u32), negotiated.first_credit, config.most_credit());
        let limit = max_frame.min(peer.max_frame as usize);
        Link {
            config: config.clone(),
            peer: PeerTerms::new(&peer),
            channel: my_channel,
            seal,
            state: State::Open,
            sender: Sender::new(now, config, queue, peer.buffer / 4 * 3, limit),
            receiver,
            liveness: Liveness::new(now, my_rank > peer.from, config.timer_seed(my_epoch as u32)),
            raw: RawFrames { ours: raw_flag(negotiated.raw_frames), peer: 0 },
            request_due: true,
            close_due: false,
            reply_until: 0,
            quiet: None,
            reports: Reports::default(),
        }
    }

    /// Adds a slot to be sent. Its bytes must not change until the token is freed.
    ///
    /// # Panics
    /// If the link is not open, or the slot is empty. The caller checks [`Link::is_open`] first.
    pub fn push(&mut self, token: Token, len: u32) -> Seq {
        assert!(self.is_open() && len > 0, "the link is not open, or the slot is empty");
        self.wake();
        self.sender.queue.push(token, len)
    }

    /// Adds a slot in front of the unsent ones, which get later sequence numbers. At most every other slot
    /// has priority (W-12).
    ///
    /// # Panics
    /// As [`Link::push`].
    pub fn push_priority(&mut self, token: Token, len: u32) -> Seq {
        assert!(self.is_open() && len > 0, "the link is not open, or the slot is empty");
        self.wake();
        self.sender.queue.push_priority(token, len)
    }

    /// Returns whether the link is idle, and keeps only what it needs then (N-27).
    pub(crate) fn is_resting(&self) -> bool {
        self.seal.is_resting()
    }

    /// Makes an idle link one with traffic.
    #[inline]
    fn wake(&mut self) {
        if self.seal.is_resting() {
            self.seal.wake();
        }
    }

    /// Gives memory back, if the link is idle (N-27): nothing waits to be sent or acknowledged, and nothing
    /// arrived ahead of a gap. What traffic needs is allocated again when there is some.
    fn rest(&mut self) {
        self.sender.shrink();
        if self.state == State::Open && self.sender.queue.is_empty() && !self.receiver.has_ahead() {
            self.receiver.shrink();
            self.seal.rest();
            self.reports.events.shrink_to_fit();
        }
    }

    /// Returns how many slots there were in both directions together, modulo 2³².
    fn slots(&self) -> u32 {
        self.sender.queue.end().0.wrapping_add(self.receiver.next().0)
    }

    /// Handles a heartbeat or the answer to one, whose sender's pace is `peer_pace`.
    #[cold]
    fn on_heartbeat(&mut self, now: Nanos, peer_pace: u16) {
        self.rest();
        let quiet = self.liveness.on_heartbeat(self.slots());
        if !quiet || self.state != State::Open || !self.sender.queue.is_empty() {
            self.quiet = None;
            return;
        }
        if self.quiet.is_none() {
            self.quiet = Some(Quiet::new(&self.config));
        }
        self.liveness.postpone(now, &self.config, self.config.pace().max(peer_pace));
    }

    /// Has the peer of a quiet link say that it is alive, within the silence bound from now on: somebody says
    /// that it is not (L-45). Returns whether a frame is to be sent.
    pub fn probe(&mut self, now: Nanos) -> bool {
        let quiet = self.quiet.take().is_some();
        if quiet {
            self.liveness.hasten(now);
            self.request_due = true;
        }
        quiet
    }

    /// Returns the largest slot that fits one frame now (L-20).
    #[inline]
    pub fn slot_capacity(&self) -> usize {
        self.payload_of(self.sender.path.max_frame())
    }

    #[inline]
    fn payload_of(&self, frame: usize) -> usize {
        let sealed = if self.seal.is_sealed() { SEAL_LEN } else { 0 };
        frame - HEADER_LEN - sealed
    }

    /// Returns the largest slot allowed: the largest that ever fitted one frame of this link. If it does not
    /// fit now, it is sent in fragments (L-19, L-31).
    #[inline]
    pub fn slot_limit(&self) -> usize {
        self.payload_of(self.sender.path.widest())
    }

    /// Returns how many slots have not been acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.sender.queue.len()
    }

    /// Iterates over the tokens and lengths of the slots that the peer has not acknowledged, or had not when
    /// the link ended (L-18).
    pub fn unacknowledged_slots(&self) -> impl Iterator<Item = (Token, u32)> {
        self.sender.queue.unacknowledged()
    }

    /// Returns how many slots have never been sent.
    #[inline]
    pub fn unsent(&self) -> usize {
        self.sender.queue.unsent()
    }

    /// Returns the sequence number after the newest slot.
    #[inline]
    pub fn pushed_to(&self) -> Seq {
        self.sender.queue.end()
    }

    /// Returns the sequence number after the newest slot that was sent.
    #[inline]
    pub fn sent_to(&self) -> Seq {
        self.sender.queue.next()
    }

    /// Returns the sequence number before which all slots are acknowledged.
    #[inline]
    pub fn acknowledged_to(&self) -> Seq {
        self.sender.queue.base()
    }

    /// Returns whether nothing has to be done before the next deadline: no slot to send or resend, no
    /// acknowledgement requested by either side, no close, and no event.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.state == State::Open
            && self.sender.queue.is_idle()
            && !(self.receiver.ack.is_immediate() || self.request_due || self.close_due)
            && self.reports.events.is_empty()
    }

    /// Returns whether slots can be pushed.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Returns whether the link is closed or dead.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Dead | State::Closed | State::PeerClosed)
    }

    /// Returns whether the link is over and the peer knows it, as far as this can be found out: no reply to a
    /// close waits to be confirmed.
    pub fn is_settled(&self) -> bool {
        self.is_over() && !self.repeats_reply()
    }

    /// Returns whether the reply to the peer's close is repeated until it is confirmed.
    fn repeats_reply(&self) -> bool {
        self.state == State::PeerClosed && self.reply_until > 0
    }

    /// Starts an orderly close: slots already pushed are delivered first (L-18).
    pub fn close(&mut self, now: Nanos) {
        if self.state == State::Open {
            self.state = State::Closing;
            self.sender.timer.restart(now);
            self.close_due = true;
        }
    }

    /// Ends the link at once.
    pub(crate) fn kill(&mut self, why: Death) {
        if self.is_over() {
            return;
        }
        self.state = State::Dead;
        self.quiet = None;
        self.seal.erase();
        self.sender.queue.clear();
        self.reports.events.push_back(Event::Died(why));
    }

    /// Returns the next token whose slot is no longer needed: it was acknowledged, or the link is over.
    #[inline]
    pub fn poll_freed(&mut self) -> Option<Token> {
        self.sender.queue.poll_freed()
    }

    /// Returns the next event.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.reports.events.pop_front()
    }

    /// Returns our number for the channel. The peer's frames for this link carry it.
    pub fn channel(&self) -> u32 {
        self.channel
    }

    /// Returns what the peer announced in its handshake frame.
    pub fn peer(&self) -> &PeerTerms {
        &self.peer
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.reports.counters
    }

    /// Returns the smoothed round-trip time, without the time in the peer's host, once there is a sample.
    pub fn round_trip(&self) -> Option<Nanos> {
        self.sender.rtt.smoothed()
    }

    /// Returns the congestion window, in bytes.
    pub fn congestion_window(&self) -> u32 {
        self.sender.congestion.window()
    }

    /// Returns whether a frame has been accepted on this link: the handshake is complete on both sides.
    pub fn is_confirmed(&self) -> bool {
        self.liveness.is_confirmed()
    }

    /// Returns whether the peer accepts raw Ethernet frames, according to its newest frame; false before the
    /// first (D-21).
    pub fn peer_accepts_raw(&self) -> bool {
        self.raw.peer & flags::RAW != 0
    }

    /// Sets whether this side accepts raw Ethernet frames. A frame that says so is sent at once (D-22).
    pub(crate) fn set_raw_frames(&mut self, accepts: bool) {
        let ours = raw_flag(accepts);
        if std::mem::replace(&mut self.raw.ours, ours) != ours {
            self.request_due = true;
        }
    }

    /// Sets the device's limit for frames on the path, at least [`SMALLEST_FRAME`] (L-20).
    pub fn set_path_limit(&mut self, now: Nanos, max_frame: usize) {
        let limit = max_frame.min(self.peer.max_frame as usize).max(SMALLEST_FRAME);
        if self.sender.path.set_device_limit(now, limit) {
            self.reports.events.push_back(Event::PathChanged(self.sender.path.max_frame()));
        }
    }
}
