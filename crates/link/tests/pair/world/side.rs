//! One side: a peering, a program that pushes and consumes slots, and what a node does between the two.

use std::collections::VecDeque;

use tautline_link::{Arrival, ChannelIds, Config, Event, HandshakeOutcome, JobKey, Link, Nanos, Peering};
use tautline_link::{HandshakeFrame, PeeringParams, Reassembly, Transmit};
use tautline_wire::frame::{MAX_FRAME, channel_of};
use tautline_wire::handshake::HANDSHAKE_LEN;
use tautline_wire::{Handshake, Seq};

use super::{Rng, Stream};

/// When the program consumes delivered slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consume {
    AtOnce,
    Never,
}

/// The slots that the program pushes.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub left: usize,
    /// The most slots that are unacknowledged at a time.
    pub queue: usize,
    /// Length of a slot; if zero, a random one.
    pub len: usize,
}

pub struct Side {
    pub rank: u32,
    pub config: Config,
    pub peering: Peering,
    pub streams: Vec<Stream>,
    pub events: Vec<(Nanos, Event)>,
    pub outcomes: Vec<HandshakeOutcome>,
    pub consume: Consume,
    pub load: Load,
    pub unconsumed: u32,
    /// The side does nothing before this time, as a stopped process.
    pub paused_until: Nanos,
    /// The interval between two polls of the network.
    pub every: Nanos,
    pub refused: u64,
    /// Frames are tried as the next of a train first, as a node does.
    pub trains: bool,
    /// Frames that were.
    pub in_train: u64,
    rng: Rng,
    tracked: u32,
    peer_channel: u32,
    ahead: VecDeque<Option<Vec<u8>>>,
    parts: Vec<(Seq, Reassembly)>,
    polled: Nanos,
}

pub const KEY: [u8; 32] = [42; 32];

pub fn params(rank: u32, max_frame: usize) -> PeeringParams {
    PeeringParams {
        key: JobKey::new(KEY),
        me: rank,
        peer: 1 - rank,
        lane: 0,
        peer_lane: 0,
        port: 0,
        max_frame,
    }
}

impl Side {
    pub fn new(rank: usize, config: Config, seed: u64) -> Side {
        Side {
            rank: rank as u32,
            peering: Peering::new(params(rank as u32, 1472), config.clone()),
            config,
            streams: Vec::new(),
            events: Vec::new(),
            outcomes: Vec::new(),
            consume: Consume::AtOnce,
            load: Load { left: 0, queue: 200, len: 0 },
            unconsumed: 0,
            paused_until: 0,
            every: 0,
            refused: 0,
            trains: true,
            in_train: 0,
            rng: Rng(seed),
            tracked: 0,
            peer_channel: 0,
            ahead: VecDeque::new(),
            parts: Vec::new(),
            polled: 0,
        }
    }

    pub fn connect(&mut self, now: Nanos) {
        let ids = self.new_ids();
        self.peering.connect(now, ids);
    }

    /// Draws the numbers of a channel. Half of all epochs make sequence numbers wrap around soon (L-1).
    pub fn new_ids(&mut self) -> ChannelIds {
        let (high, low) = (self.rng.next() << 32, self.rng.next() as u32);
        let low = if low & 1 == 0 { u32::MAX - (low >> 1) % 300 } else { low };
        ChannelIds { epoch: high | u64::from(low), channel: self.rng.next() as u32 | 1 }
    }

    pub fn awake_at(&self) -> Nanos {
        self.paused_until.max(if self.every > 0 { self.polled + self.every } else { 0 })
    }

    pub fn next_deadline(&self, now: Nanos) -> Option<Nanos> {
        self.peering.next_deadline().map(|at| at.max(now))
    }

    pub fn handle_handshake(
        &mut self,
        now: Nanos,
        frame: &[u8],
        handshake: &Handshake,
    ) -> Option<HandshakeFrame> {
        let bytes: &HandshakeFrame = frame[..HANDSHAKE_LEN].try_into().expect("parse checked the length");
        if !self.peering.is_authentic(bytes, handshake) {
            self.refused += 1;
            return None;
        }
        let ids = self.new_ids();
        let outcome = self.peering.handle_handshake(now, handshake, ids);
        let reply = match &outcome {
            HandshakeOutcome::Reply(reply) | HandshakeOutcome::Welcome(reply) => Some(*reply),
            _ => None,
        };
        self.outcomes.push(outcome);
        reply
    }

    pub fn handle_frame(&mut self, now: Nanos, frame: &mut [u8], other: &mut Side) {
        let Ok(channel) = channel_of(frame) else { return self.refused += 1 };
        let next = self
            .peering
            .link_mut()
            .filter(|_| self.trains)
            .and_then(|link| link.handle_next(now, frame, None));
        self.in_train += u64::from(next.is_some());
        let handled = match next {
            Some(next) => next.map(|payload| (Some(Arrival::Next { released: 0 }), payload)),
            None => self.peering.handle_frame(now, channel, frame, None),
        };
        let Ok((arrival, payload)) = handled else { return self.refused += 1 };
        self.track();
        let bytes = &frame[payload];
        let stream = other.streams.iter_mut().find(|s| s.channel == self.peer_channel);
        match (arrival, stream) {
            (None | Some(Arrival::Duplicate), _) => {}
            (Some(Arrival::Fragment { seq, offset, total }), Some(stream)) => {
                let at = self.parts.iter().position(|(s, _)| *s == seq).unwrap_or_else(|| {
                    let reassembly =
                        Reassembly::new(total, MAX_FRAME).expect("no slot is longer than a frame");
                    self.parts.push((seq, reassembly));
                    self.parts.len() - 1
                });
                if self.parts[at].1.add(offset, total, bytes) {
                    let (_, whole) = self.parts.swap_remove(at);
                    let arrival =
                        self.peering.link_mut().expect("live").slot_complete(now, seq, total as usize);
                    self.take(arrival, &whole.into_bytes(), stream);
                }
            }
            (Some(arrival), Some(stream)) => self.take(arrival, bytes, stream),
            (Some(_), None) => panic!("a slot arrived on a channel without a stream"),
        }
    }

    fn take(&mut self, arrival: Arrival, bytes: &[u8], stream: &mut Stream) {
        match arrival {
            Arrival::Next { released } => {
                stream.accept(stream.delivered);
                stream.deliver(bytes);
                for _ in 0..released {
                    let held = self.ahead.pop_front().flatten().expect("a released slot was kept");
                    stream.deliver(&held);
                }
                // The place of the slot that is now the next one in order.
                self.ahead.pop_front();
                self.unconsumed += 1 + released;
            }
            Arrival::Ahead { distance } => {
                stream.accept(stream.delivered + distance as usize);
                let at = distance as usize - 1;
                if self.ahead.len() <= at {
                    self.ahead.resize(at + 1, None);
                }
                assert!(self.ahead[at].replace(bytes.to_vec()).is_none(), "two slots in one place");
            }
            Arrival::Duplicate | Arrival::Fragment { .. } => {}
        }
    }

    /// Detects that a new link is live.
    fn track(&mut self) {
        let Some(link) = self.peering.link() else { return };
        if link.channel() == self.tracked {
            return;
        }
        self.tracked = link.channel();
        self.peer_channel = link.peer().channel;
        self.streams.push(Stream::new(self.tracked));
        self.ahead.clear();
        self.parts.clear();
        self.unconsumed = 0;
    }

    /// Does one round of a node: the program's slots, timers, frames, freed tokens, events.
    pub fn pump(&mut self, now: Nanos, frames: &mut Vec<Vec<u8>>) {
        self.polled = now;
        self.peering.handle_timeout(now);
        frames.extend(self.peering.poll_hello(now).map(|hello| hello.to_vec()));
        self.track();
        self.push_load();
        if let Some(mut superseded) = self.peering.take_superseded() {
            drain(&mut self.streams, &mut self.events, now, &mut superseded);
        }
        let Some(link) = self.peering.link_mut() else { return };
        if self.consume == Consume::AtOnce && self.unconsumed > 0 {
            link.consumed(std::mem::take(&mut self.unconsumed));
        }
        let stream = self.streams.last().expect("tracked");
        while let Some(transmit) = link.poll_transmit(now) {
            frames.push(build(link, &transmit, now, stream));
        }
        drain(&mut self.streams, &mut self.events, now, link);
        if let Some(at) = link.next_deadline() {
            assert!(at > now, "a deadline is due although everything was handled");
        }
    }

    fn push_load(&mut self) {
        let Some(link) = self.peering.link_mut() else { return };
        let stream = self.streams.last_mut().expect("tracked");
        while self.load.left > 0 && link.is_open() && link.unacknowledged() < self.load.queue {
            let full = link.slot_capacity();
            let len = match (self.load.len, self.rng.below(4)) {
                (0, 0) => full,
                (0, 1) => 1 + self.rng.below(full as u64) as usize,
                (0, _) => 1 + self.rng.below(100) as usize,
                (fixed, _) => fixed.min(full),
            };
            let token = stream.add(len);
            link.push(token, len as u32);
            self.load.left -= 1;
        }
    }
}

/// Polls freed tokens and events.
fn drain(streams: &mut [Stream], events: &mut Vec<(Nanos, Event)>, now: Nanos, link: &mut Link) {
    let stream = streams.iter_mut().find(|s| s.channel == link.channel()).expect("tracked");
    while let Some(token) = link.poll_freed() {
        stream.free(token, link.is_over());
    }
    while let Some(event) = link.poll_event() {
        events.push((now, event));
    }
}

/// Writes the frame of `transmit`.
fn build(link: &mut Link, transmit: &Transmit, now: Nanos, stream: &Stream) -> Vec<u8> {
    let mut frame = vec![0; transmit.head_len()];
    if let Some(slot) = &transmit.slot {
        frame.extend_from_slice(&stream.slots[slot.token as usize].bytes[slot.range.clone()]);
    }
    frame.resize(frame.len() + transmit.tail_len(), 0);
    if transmit.sealed {
        link.finish_sealed(transmit, now, &mut frame);
    } else {
        link.finish(transmit, now, &mut frame);
    }
    frame
}
