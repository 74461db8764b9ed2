//! One side: a peering, the program that pushes and consumes, and what a node does between the two.

use std::collections::VecDeque;

use tautline_link::{Arrival, Config, Doorkeeper, Event, Fresh, JobKey, Link, Nanos, Outcome, Peering};
use tautline_link::{Reassembly, ShakeFrame, Transmit, Who};
use tautline_wire::frame::{MAX_FRAME, channel_of};
use tautline_wire::handshake::HANDSHAKE_LEN;
use tautline_wire::{Handshake, Kind, Seq};

use super::{Rng, Stream};

/// What the program does with slots that were delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consume {
    AtOnce,
    Never,
}

/// What the program pushes.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub left: usize,
    /// Slots pushed and not yet acknowledged, at most.
    pub queue: usize,
    /// Length of a slot; zero draws from one byte to a full frame.
    pub len: usize,
}

pub struct Side {
    pub rank: u32,
    pub config: Config,
    pub peering: Peering,
    pub streams: Vec<Stream>,
    pub events: Vec<(Nanos, Event)>,
    pub outcomes: Vec<Outcome>,
    pub consume: Consume,
    pub load: Load,
    pub unconsumed: u32,
    pub doorkeeper: Option<Doorkeeper>,
    /// The side does nothing before this time, like a stopped process.
    pub paused_until: Nanos,
    /// It looks at the network only this often.
    pub every: Nanos,
    pub refused: u64,
    rng: Rng,
    tracked: u32,
    peer_channel: u32,
    ahead: VecDeque<Option<Vec<u8>>>,
    parts: Vec<(Seq, Reassembly)>,
    looked: Nanos,
}

pub const KEY: [u8; 32] = [42; 32];

pub fn who(rank: u32, max_frame: usize) -> Who {
    Who { key: JobKey::new(KEY), me: rank, peer: 1 - rank, endpoint: 0, peer_endpoint: 0, max_frame }
}

impl Side {
    pub fn new(rank: usize, config: Config, seed: u64) -> Side {
        Side {
            rank: rank as u32,
            peering: Peering::new(who(rank as u32, 1472), config.clone()),
            config,
            streams: Vec::new(),
            events: Vec::new(),
            outcomes: Vec::new(),
            consume: Consume::AtOnce,
            load: Load { left: 0, queue: 200, len: 0 },
            unconsumed: 0,
            doorkeeper: None,
            paused_until: 0,
            every: 0,
            refused: 0,
            rng: Rng(seed),
            tracked: 0,
            peer_channel: 0,
            ahead: VecDeque::new(),
            parts: Vec::new(),
            looked: 0,
        }
    }

    pub fn connect(&mut self, now: Nanos) {
        let fresh = self.fresh();
        self.peering.connect(now, fresh);
    }

    /// L-1: half of all epochs begin just before the sequence numbers wrap around.
    pub fn fresh(&mut self) -> Fresh {
        let (high, low) = (self.rng.next() << 32, self.rng.next() as u32);
        let low = if low & 1 == 0 { u32::MAX - (low >> 1) % 300 } else { low };
        Fresh { epoch: high | u64::from(low), channel: self.rng.next() as u32 | 1 }
    }

    pub fn awake_at(&self) -> Nanos {
        self.paused_until.max(if self.every > 0 { self.looked + self.every } else { 0 })
    }

    pub fn next_deadline(&self, now: Nanos) -> Option<Nanos> {
        self.peering.next_deadline().map(|at| at.max(now))
    }

    pub fn handle_handshake(&mut self, now: Nanos, frame: &[u8], shake: &Handshake) -> Option<ShakeFrame> {
        let bytes: &ShakeFrame = frame[..HANDSHAKE_LEN].try_into().expect("parse checked the length");
        if !self.peering.is_authentic(bytes, shake) {
            self.refused += 1;
            return None;
        }
        if let (Some(keeper), Kind::Hello) = (&mut self.doorkeeper, shake.kind)
            && keeper.wants_proof(now, b"there", shake.epoch, &shake.cookie)
        {
            return Some(self.peering.retry(shake, keeper.cookie(b"there", shake.epoch)));
        }
        let fresh = self.fresh();
        let outcome = self.peering.handle_handshake(now, shake, fresh);
        let reply = if let Outcome::Reply(reply) = &outcome { Some(*reply) } else { None };
        self.outcomes.push(outcome);
        reply
    }

    pub fn handle_frame(&mut self, now: Nanos, frame: &mut [u8], other: &mut Side) {
        let Ok(channel) = channel_of(frame) else { return self.refused += 1 };
        let Ok((arrival, payload)) = self.peering.handle_frame(now, channel, frame) else {
            return self.refused += 1;
        };
        self.track();
        let bytes = &frame[payload];
        let stream = other.streams.iter_mut().find(|s| s.channel == self.peer_channel);
        match (arrival, stream) {
            (None | Some(Arrival::Repeat), _) => {}
            (Some(Arrival::Fragment { seq, offset, total }), Some(stream)) => {
                let at = self.parts.iter().position(|(s, _)| *s == seq).unwrap_or_else(|| {
                    let fresh = Reassembly::new(total, MAX_FRAME).expect("no slot is longer than a frame");
                    self.parts.push((seq, fresh));
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
            (Some(_), None) => panic!("a slot of a channel on which nothing was pushed"),
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
                // The place of the slot that is due now.
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
            Arrival::Repeat | Arrival::Fragment { .. } => {}
        }
    }

    /// Notices that another link is live than before.
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

    /// What a node does in one round: the program pushes and consumes, timers, frames, freed tokens, events.
    pub fn pump(&mut self, now: Nanos, frames: &mut Vec<Vec<u8>>) {
        self.looked = now;
        self.peering.handle_timeout(now);
        frames.extend(self.peering.poll_hello(now).map(|hello| hello.to_vec()));
        self.track();
        self.push_load();
        if let Some(mut former) = self.peering.take_former() {
            drain(&mut self.streams, &mut self.events, now, &mut former);
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
            assert!(at > now, "a deadline is left after everything due was done");
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

/// Takes back tokens and takes note of events.
fn drain(streams: &mut [Stream], events: &mut Vec<(Nanos, Event)>, now: Nanos, link: &mut Link) {
    let stream = streams.iter_mut().find(|s| s.channel == link.channel()).expect("tracked");
    while let Some(token) = link.poll_freed() {
        stream.free(token, link.is_over());
    }
    while let Some(event) = link.poll_event() {
        events.push((now, event));
    }
}

/// Makes the frame that `transmit` stands for.
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
