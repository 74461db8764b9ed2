//! One live channel: its state, and what the other files' verbs share.

use std::collections::VecDeque;

use tautline_wire::frame::{HEADER_LEN, LEAST_FRAME, flags};
use tautline_wire::handshake::MAX_CREDIT;
use tautline_wire::{Handshake, Seq};

use crate::congestion::Congestion;
use crate::path::Path;
use crate::queue::SendQueue;
use crate::recv::Receiver;
use crate::rtt::Rtt;
use crate::seal::Seal;
use crate::{Config, Nanos, SEAL_LEN, Token};

/// Something that happened to a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer closed the channel in good order; everything it sent has been received.
    PeerClosed,
    /// Our own close was answered.
    Closed,
    /// The channel is dead. Nothing more will be sent or accepted.
    Died(Death),
    /// Frames on the path may now have at most this many bytes.
    PathChanged(usize),
    /// The peer takes raw Ethernet frames from now on, or no more (D-12).
    Raw(bool),
}

/// Why a channel died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Death {
    /// Nothing was heard for the configured time.
    Silence,
    /// The peer came back under a new epoch.
    Restarted,
    /// The peer broke the protocol in a frame that carried its authentication.
    Violation,
}

impl std::fmt::Display for Death {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Death::Silence => "nothing was heard from it",
            Death::Restarted => "it was restarted",
            Death::Violation => "it broke the protocol",
        })
    }
}

/// What a link counted; all of it only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames made, of all sorts.
    pub frames_sent: u64,
    /// Frames accepted.
    pub frames_accepted: u64,
    /// Slots sent for the first time.
    pub slots_sent: u64,
    /// Slots sent again.
    pub slots_resent: u64,
    /// Slots accepted for the first time.
    pub slots_accepted: u64,
    /// Slots that arrived although they were there already.
    pub slots_repeated: u64,
    /// Slots that arrived ahead of a gap.
    pub slots_ahead: u64,
    /// Slots found lost by evidence.
    pub losses_by_evidence: u64,
    /// Expirations of the retransmission timer.
    pub timeouts: u64,
    /// Frames dropped because their tag or seal was wrong.
    pub bad_tag: u64,
    /// Frames dropped because their packet number was seen before or is too old.
    pub replayed: u64,
    /// Frames dropped because they made no sense.
    pub malformed: u64,
    /// Times that sending stopped for want of credit.
    pub credit_stalls: u64,
    /// Times that the path's limit was lowered because large frames vanished.
    pub black_holes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Open,
    /// We want to close: first everything is acknowledged, then close frames are sent until one is answered.
    Closing,
    /// The peer closed; we only answer.
    PeerClosed,
    /// We closed and were answered.
    Closed,
    Dead,
}

/// One live channel. See the crate's head for the order of calls.
#[derive(Debug)]
pub struct Link {
    pub(crate) config: Config,
    pub(crate) peer: Handshake,
    pub(crate) my_channel: u32,
    pub(crate) higher: bool,
    pub(crate) seal: Seal,
    pub(crate) state: State,
    pub(crate) next_packet: u64,
    pub(crate) sent_times: Box<[Nanos]>,
    pub(crate) tx: SendQueue,
    pub(crate) rx: Receiver,
    pub(crate) rtt: Rtt,
    pub(crate) congestion: Congestion,
    pub(crate) path: Path,
    /// Packets that must overtake one before it counts as lost; grows when that proves wrong.
    pub(crate) reorder: u64,
    pub(crate) largest_echo: u64,
    pub(crate) peer_repeats: u32,
    /// Flags of every frame of ours, and what the peer's newest one said of the same.
    pub(crate) says: u8,
    pub(crate) peer_says: u8,
    pub(crate) clocks: Clocks,
    pub(crate) events: VecDeque<Event>,
    pub(crate) freed: Vec<Token>,
    pub(crate) counters: Counters,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    /// When a frame of the peer's was last accepted.
    pub(crate) heard: Nanos,
    /// When time was last told to us.
    pub(crate) tick: Nanos,
    /// From when the retransmission timer counts.
    pub(crate) progress: Nanos,
    pub(crate) backoff: u32,
    /// The oldest slot, and how often in a row it was lost while later frames arrived: found by the timer, and in all.
    pub(crate) stuck: Option<(Seq, u32, u32)>,
    /// A small frame shall go out behind the large slot that is sent again.
    pub(crate) witness: bool,
    /// When we last asked for an answer without data.
    pub(crate) asked: Nanos,
    /// A frame with the ask flag shall go out.
    pub(crate) ask: bool,
    /// Slots that may be sent beyond the congestion window, as probes.
    pub(crate) probes: u32,
    /// A frame of the peer's has been accepted at all.
    pub(crate) confirmed: bool,
    /// A close frame, or the answer to one, shall go out.
    pub(crate) close_due: bool,
}

/// What both sides told each other, from which a link is made.
pub(crate) struct Agreed {
    pub(crate) peer: Handshake,
    pub(crate) my_channel: u32,
    pub(crate) my_epoch: u64,
    pub(crate) my_rank: u32,
    pub(crate) seal: Seal,
    pub(crate) max_frame: usize,
}

pub(crate) const SENT_TIMES: usize = 2048;

impl Link {
    pub(crate) fn new(now: Nanos, config: &Config, agreed: Agreed) -> Link {
        let Agreed { peer, my_channel, my_epoch, my_rank, seal, max_frame } = agreed;
        // Sequence numbers start where the epochs say, so that wrap-around is everyday life (L-1).
        let tx = SendQueue::new(Seq(my_epoch as u32), peer.credit);
        let rx = Receiver::new(Seq(peer.epoch as u32), config.credit_slots.clamp(1, MAX_CREDIT));
        let limit = max_frame.min(peer.max_frame as usize);
        Link {
            config: config.clone(),
            congestion: Congestion::new(config, peer.buffer / 4 * 3),
            peer,
            my_channel,
            higher: my_rank > peer.from,
            seal,
            state: State::Open,
            next_packet: 1,
            sent_times: vec![0; SENT_TIMES].into_boxed_slice(),
            tx,
            rx,
            rtt: Rtt::default(),
            path: Path::new(now, limit),
            reorder: crate::recovery::REORDER_MIN,
            largest_echo: 0,
            peer_repeats: 0,
            says: if config.raw_frames { flags::RAW } else { 0 },
            peer_says: 0,
            clocks: Clocks {
                heard: now,
                tick: now,
                progress: now,
                backoff: 0,
                stuck: None,
                witness: false,
                asked: now,
                ask: true,
                probes: 0,
                confirmed: false,
                close_due: false,
            },
            events: VecDeque::new(),
            freed: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Adds a slot of payload to be sent; its bytes must stay as they are until the token is freed.
    ///
    /// # Panics
    /// If the link is not open, or the slot is empty: the caller asks [`Link::is_open`] first.
    pub fn push(&mut self, token: Token, len: u32) -> Seq {
        assert!(self.is_open() && len > 0, "push on a link that is not open, or of nothing");
        self.tx.push(token, len)
    }

    /// As [`Link::push`], in front of slots that wait to be sent for the first time, which get later numbers: for what the other side
    /// waits for. Every other slot at most overtakes (W-6).
    ///
    /// # Panics
    /// As [`Link::push`].
    pub fn push_ahead(&mut self, token: Token, len: u32) -> Seq {
        assert!(self.is_open() && len > 0, "push on a link that is not open, or of nothing");
        self.tx.push_ahead(token, len)
    }

    /// Payload bytes that a slot can have now so that it fits one frame (L-20).
    #[inline]
    pub fn slot_capacity(&self) -> usize {
        self.payload_of(self.path.max_frame())
    }

    #[inline]
    fn payload_of(&self, frame: usize) -> usize {
        let sealed = if self.seal.is_sealed() { SEAL_LEN } else { 0 };
        frame - HEADER_LEN - sealed
    }

    /// Payload bytes that a slot may have: as many as ever fitted one frame of this link. One that does not fit now goes in fragments (L-19).
    #[inline]
    pub fn slot_limit(&self) -> usize {
        self.payload_of(self.path.widest())
    }

    /// Slots pushed that have not been acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.tx.len()
    }

    /// Slots pushed that have never been sent.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.tx.waiting()
    }

    /// One past the newest slot pushed.
    #[inline]
    pub fn end(&self) -> Seq {
        self.tx.end()
    }

    /// One past the newest slot that was sent at all.
    #[inline]
    pub fn sent_to(&self) -> Seq {
        self.tx.next
    }

    /// One past the newest slot up to which everything is acknowledged.
    #[inline]
    pub fn acknowledged_to(&self) -> Seq {
        self.tx.base
    }

    /// Whether nothing need be sent at once: no data waits, no repair, no answer that was asked for, no news.
    #[inline]
    pub fn is_calm(&self) -> bool {
        self.state == State::Open
            && self.tx.is_idle()
            && !(self.rx.is_asked() || self.clocks.ask || self.clocks.close_due)
            && self.events.is_empty()
    }

    /// Whether slots can be pushed.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Whether the link has come to its end, in whatever way.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Dead | State::Closed | State::PeerClosed)
    }

    /// Starts an orderly close (L-18): what was pushed is delivered first.
    pub fn close(&mut self, now: Nanos) {
        if self.state == State::Open {
            self.state = State::Closing;
            self.clocks.progress = now;
            self.clocks.close_due = true;
        }
    }

    /// Gives up at once.
    pub fn kill(&mut self, why: Death) {
        if self.is_over() {
            return;
        }
        self.state = State::Dead;
        self.release_all();
        self.events.push_back(Event::Died(why));
    }

    pub(crate) fn release_all(&mut self) {
        let freed = &mut self.freed;
        self.tx.drain(|token| freed.push(token));
    }

    /// The next token whose slot is no longer needed: it was acknowledged, or the link is over.
    #[inline]
    pub fn poll_freed(&mut self) -> Option<Token> {
        self.freed.pop()
    }

    /// The next thing that happened.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Our number for the channel: frames that carry it belong to this link.
    pub fn channel(&self) -> u32 {
        self.my_channel
    }

    /// What the peer told in the handshake.
    pub fn peer(&self) -> &Handshake {
        &self.peer
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The smoothed round trip, less the time in the peer's host; `None` before the first sample.
    pub fn round_trip(&self) -> Option<Nanos> {
        self.rtt.smoothed()
    }

    /// The congestion window, in bytes.
    pub fn window(&self) -> u32 {
        self.congestion.window()
    }

    /// Whether a frame of the peer's has been accepted on this link: the handshake is complete on both sides.
    pub fn is_confirmed(&self) -> bool {
        self.clocks.confirmed
    }

    /// Whether the peer takes raw Ethernet frames, by its newest frame; false before there was any (D-12).
    pub fn peer_takes_raw(&self) -> bool {
        self.peer_says & flags::RAW != 0
    }

    /// This side takes raw Ethernet frames from now on, or no more: a frame says so at once, and every later one does.
    pub(crate) fn set_raw_frames(&mut self, takes: bool) {
        let says = if takes { flags::RAW } else { 0 };
        if std::mem::replace(&mut self.says, says) != says {
            self.clocks.ask = true;
        }
    }

    /// Tells the link what the device now knows of the path (L-20). Below [`LEAST_FRAME`] it is not lowered.
    pub fn set_path_limit(&mut self, now: Nanos, max_frame: usize) {
        let limit = max_frame.min(self.peer.max_frame as usize).max(LEAST_FRAME);
        if self.path.set_device_limit(now, limit) {
            self.events.push_back(Event::PathChanged(self.path.max_frame()));
        }
    }
}
