//! The pair and its operations.

use std::collections::VecDeque;

use tautline_link::{
    Arrival, ChannelIds, Config, HandshakeOutcome, JobKey, Link, Peering, PeeringParams, Reassembly,
    RecoveryPolicy,
};
use tautline_wire::frame::{MAX_FRAME, channel_of};
use tautline_wire::handshake::{HANDSHAKE_LEN, Security};
use tautline_wire::{Handshake, Header, Kind, Seq};

const MILLI: u64 = 1_000_000;
/// The most frames under way per direction, and the most unacknowledged slots.
const MAX_QUEUE: usize = 256;

/// The fuzzer's input, read from the front.
pub struct Program<'a>(&'a [u8]);

impl<'a> Program<'a> {
    pub fn new(data: &'a [u8]) -> Program<'a> {
        Program(data)
    }

    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn small(&mut self) -> usize {
        usize::from(self.byte().unwrap_or(0))
    }

    fn wide(&mut self) -> u64 {
        (0..8).fold(0, |acc, _| acc << 8 | self.small() as u64)
    }

    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

#[derive(Default)]
struct Tracker {
    /// The channel that is tracked.
    channel: u32,
    /// Lengths of the slots pushed on it; a token is an index here.
    pushed: Vec<u32>,
    freed: Vec<bool>,
    delivered: u32,
    unconsumed: u32,
    ahead: VecDeque<Option<Vec<u8>>>,
    parts: Vec<(Seq, Reassembly)>,
}

struct Side {
    peering: Peering,
    tracker: Tracker,
    /// Frames under way to the other side.
    out: VecDeque<Vec<u8>>,
}

pub struct Pair {
    now: u64,
    next_id: u64,
    sides: [Side; 2],
    config: Config,
    /// No frame was injected or altered so far, and no side was restarted.
    honest: bool,
}

fn params(rank: u32, max_frame: usize) -> PeeringParams {
    PeeringParams {
        key: JobKey::new([7; 32]),
        me: rank,
        peer: 1 - rank,
        lane: 0,
        peer_lane: 0,
        port: 0,
        max_frame,
    }
}

fn content(channel: u32, number: u32, len: u32) -> impl Iterator<Item = u8> {
    (0..len).map(move |i| {
        (channel ^ number.wrapping_mul(0x9e37_79b9) ^ i.wrapping_mul(0x85eb_ca6b)).to_le_bytes()[2]
    })
}

impl Pair {
    pub fn new(program: &mut Program<'_>) -> Pair {
        let bits = program.small();
        let config = Config::with(|config| {
            config.security = [Security::Fabric, Security::Open, Security::Sealed][bits % 3];
            config.recovery = [RecoveryPolicy::SelectiveRepeat, RecoveryPolicy::GoBackN][bits / 4 % 2];
            config.credit_slots = [1, 16, 64, 256][bits / 8 % 4];
        });
        let max_frame = [1232, 1472, 4000, 9000][bits / 32 % 4];
        let side = |rank| Side {
            peering: Peering::without_authentication(params(rank, max_frame), config.clone()),
            tracker: Tracker::default(),
            out: VecDeque::new(),
        };
        let mut pair =
            Pair { now: 1, next_id: 0, sides: [side(0), side(1)], config: config.clone(), honest: true };
        if bits & 128 == 0 {
            let ids = pair.new_ids();
            pair.sides[0].peering.connect(1, ids);
            pair.exchange(6);
        }
        pair
    }

    fn new_ids(&mut self) -> ChannelIds {
        self.next_id += 1;
        // Sequence numbers begin shortly before they wrap around.
        ChannelIds { epoch: self.next_id << 32 | 0xffff_fff0, channel: self.next_id as u32 }
    }

    fn exchange(&mut self, rounds: usize) {
        for _ in 0..rounds {
            for i in 0..2 {
                self.pump(i);
                while let Some(frame) = self.sides[i].out.pop_front() {
                    self.deliver(1 - i, frame);
                }
            }
        }
    }

    pub fn step(&mut self, op: u8, program: &mut Program<'_>) {
        let i = usize::from(op & 1);
        match op / 2 % 18 {
            0 => self.push(i, 1 + program.small() as u32 * 7),
            1 => (0..1 + program.small() % 40).for_each(|n| self.push(i, 1 + 100 * n as u32)),
            2 => self.pump(i),
            3 => self.deliver_next(i),
            4 => drop(self.sides[i].out.pop_front()),
            5 => self.reorder(i, program.small()),
            6 => self.duplicate(i),
            7 => self.now += 1 + program.small() as u64 * 10_000,
            8 => self.now += program.small() as u64 * 10 * MILLI,
            9 => self.exchange(1 + program.small() % 8),
            10 => self.consume(i),
            11 => self.connect(i),
            12 => self.close(i, program),
            13 => self.sides[i].peering.set_path_limit(self.now, 1232 + program.small() * 256),
            14 => self.alter(i, program),
            15 => {
                self.honest = false;
                let len = program.small();
                let frame = program.bytes(len).to_vec();
                self.deliver(i, frame);
            }
            16 => self.inject_frame(i, program),
            _ => self.inject_handshake(i, program),
        }
    }

    fn push(&mut self, i: usize, len: u32) {
        let side = &mut self.sides[i];
        side.track();
        let Some(link) = side.peering.link_mut().filter(|l| l.is_open()) else { return };
        if link.unacknowledged() < MAX_QUEUE {
            let len = len.min(link.slot_capacity() as u32);
            link.push(side.tracker.pushed.len() as u32, len);
            side.tracker.pushed.push(len);
            side.tracker.freed.push(false);
        }
    }

    fn pump(&mut self, i: usize) {
        let now = self.now;
        let side = &mut self.sides[i];
        side.peering.handle_timeout(now);
        side.out.extend(side.peering.poll_hello(now).map(|h| h.to_vec()));
        side.track();
        let Some(link) = side.peering.link_mut() else { return };
        while side.out.len() < MAX_QUEUE {
            let Some(transmit) = link.poll_transmit(now) else { break };
            let mut frame = vec![0; transmit.head_len()];
            if let Some(slot) = &transmit.slot {
                let len = side.tracker.pushed[slot.token as usize];
                let bytes = content(side.tracker.channel, slot.token, len);
                frame.extend(bytes.skip(slot.range.start).take(slot.range.len()));
            }
            frame.resize(frame.len() + transmit.tail_len(), 0);
            assert!(frame.len() <= MAX_FRAME);
            if transmit.sealed {
                link.finish_sealed(&transmit, now, &mut frame);
            } else {
                link.finish(&transmit, now, &mut frame);
            }
            side.out.push_back(frame);
        }
        while let Some(token) = link.poll_freed() {
            let freed = &mut side.tracker.freed[token as usize];
            assert!(!*freed, "freed twice");
            *freed = true;
        }
        while link.poll_event().is_some() {}
        let _ = link.next_deadline();
    }

    fn deliver_next(&mut self, from: usize) {
        if let Some(frame) = self.sides[from].out.pop_front() {
            self.deliver(1 - from, frame);
        }
    }

    fn deliver(&mut self, to: usize, mut frame: Vec<u8>) {
        if !matches!(Kind::of(&frame), Ok(Kind::Data | Kind::Close)) {
            let Ok(handshake) = Handshake::parse(&frame) else { return };
            let bytes = frame[..HANDSHAKE_LEN].try_into().expect("parse checked the length");
            if self.sides[to].peering.is_authentic(bytes, &handshake) {
                self.handshake(to, &handshake);
            }
            return;
        }
        let Ok(channel) = channel_of(&frame) else { return };
        let now = self.now;
        let side = &mut self.sides[to];
        let Ok((arrival, payload)) = side.peering.handle_frame(now, channel, &mut frame, None) else { return };
        side.track();
        let peer_channel = side.peering.link().map_or(0, |l| l.peer().channel);
        let slots = side.take(now, arrival, &frame[payload]);
        let first = side.tracker.delivered - slots.len() as u32;
        // A sealed payload stays enciphered, because authentication is waived.
        if self.honest && self.config.security != Security::Sealed {
            let sender = &self.sides[1 - to].tracker;
            assert_eq!(sender.channel, peer_channel);
            for (number, slot) in (first..).zip(&slots) {
                let len = sender.pushed[number as usize];
                assert!(slot.iter().copied().eq(content(peer_channel, number, len)), "slot {number}");
            }
        }
    }

    fn handshake(&mut self, to: usize, handshake: &Handshake) {
        let ids = self.new_ids();
        let side = &mut self.sides[to];
        match side.peering.handle_handshake(self.now, handshake, ids) {
            HandshakeOutcome::Reply(reply) | HandshakeOutcome::Welcome(reply) => {
                side.out.push_back(reply.to_vec());
            }
            _ => {}
        }
        side.track();
    }

    fn reorder(&mut self, i: usize, by: usize) {
        let out = &mut self.sides[i].out;
        if let Some(frame) = out.pop_front() {
            let at = by.min(out.len());
            out.insert(at, frame);
        }
    }

    fn duplicate(&mut self, i: usize) {
        let out = &mut self.sides[i].out;
        if let Some(frame) = out.front().cloned().filter(|_| out.len() < MAX_QUEUE) {
            out.push_back(frame);
        }
    }

    fn consume(&mut self, i: usize) {
        let side = &mut self.sides[i];
        let slots = std::mem::take(&mut side.tracker.unconsumed);
        if let Some(link) = side.peering.link_mut() {
            link.consumed(slots);
        }
    }

    fn connect(&mut self, i: usize) {
        let (now, ids) = (self.now, self.new_ids());
        self.sides[i].peering.connect(now, ids);
        self.sides[i].track();
    }

    fn close(&mut self, i: usize, program: &mut Program<'_>) {
        let now = self.now;
        let choice = program.small() % 4;
        let side = &mut self.sides[i];
        match choice {
            0 => {
                // A restart: slots under way from the other side are lost.
                self.honest = false;
                side.peering = Peering::without_authentication(params(i as u32, 1472), self.config.clone());
                side.tracker = Tracker::default();
            }
            1 => side.peering.stop_connecting(),
            2 => {
                if let Some(link) = side.peering.link_mut() {
                    link.violation();
                }
            }
            _ => {
                if let Some(link) = side.peering.link_mut() {
                    link.close(now);
                }
            }
        }
    }

    fn alter(&mut self, i: usize, program: &mut Program<'_>) {
        let (at, value) = (program.small() * 256 + program.small(), program.small() as u8);
        if let Some(frame) = self.sides[i].out.front_mut().filter(|f| !f.is_empty()) {
            self.honest = false;
            let at = at % frame.len().min(96);
            frame[at] ^= value;
        }
    }

    /// Injects a frame with the link's channel number, plausible sequence numbers, and fuzzer input.
    fn inject_frame(&mut self, to: usize, program: &mut Program<'_>) {
        self.honest = false;
        let Some(channel) = self.sides[to].peering.link().map(Link::channel) else { return };
        let start = self.sides[to].peering.link().map_or(0, |l| l.peer().epoch as u32);
        let mine = self.sides[to].peering.link().map_or(0, |_| 0xffff_fff0u32);
        let ext_len = program.small() % 64 * 4;
        let header = Header {
            kind: if program.small() % 8 == 0 { Kind::Close } else { Kind::Data },
            flags: program.small() as u8,
            ext_len: ext_len as u16,
            channel,
            packet: if program.small() % 8 == 0 { program.wide() } else { program.small() as u64 * 16 },
            slot: Seq(start.wrapping_add(program.small() as u32)),
            ack: Seq(mine.wrapping_add(program.small() as u32)),
            credit: Seq(mine.wrapping_add(program.small() as u32 * 64)),
            echo: program.small() as u32,
            residence_ns: program.small() as u32 * 10_000,
            duplicates: program.small() as u32,
            tag: 0,
        };
        let body = ext_len + program.small();
        let mut frame = vec![0; tautline_wire::frame::HEADER_LEN];
        header.write(&mut frame);
        frame.extend_from_slice(program.bytes(body));
        self.deliver(to, frame);
    }

    fn inject_handshake(&mut self, to: usize, program: &mut Program<'_>) {
        self.honest = false;
        if let Ok(handshake) = Handshake::parse(program.bytes(HANDSHAKE_LEN)) {
            self.handshake(to, &handshake);
        }
    }

    /// Exchanges frames without faults, if nothing was injected.
    pub fn settle(&mut self) {
        if !self.honest {
            return;
        }
        for _ in 0..12 {
            self.now += MILLI / 2;
            self.exchange(2);
            self.consume(0);
            self.consume(1);
        }
    }
}

impl Side {
    /// Starts a new tracker if a new link is live.
    fn track(&mut self) {
        // Tokens of the superseded link are no longer needed.
        self.peering.take_superseded();
        let Some(link) = self.peering.link() else { return };
        if link.channel() != self.tracker.channel {
            self.tracker = Tracker { channel: link.channel(), ..Tracker::default() };
        }
    }

    /// Handles an arrival as a node does. Returns the slots that are delivered now.
    fn take(&mut self, now: u64, arrival: Option<Arrival>, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut delivered = Vec::new();
        match arrival {
            Some(Arrival::Next { released }) => {
                delivered.push(bytes.to_vec());
                for _ in 0..released {
                    delivered
                        .push(self.tracker.ahead.pop_front().flatten().expect("a released slot was kept"));
                }
                self.tracker.ahead.pop_front();
            }
            Some(Arrival::Ahead { distance }) => {
                let at = distance as usize - 1;
                if self.tracker.ahead.len() <= at {
                    self.tracker.ahead.resize(at + 1, None);
                }
                assert!(self.tracker.ahead[at].replace(bytes.to_vec()).is_none(), "two slots in one place");
            }
            Some(Arrival::Fragment { seq, offset, total }) => {
                return self.fragment(now, (seq, offset, total), bytes);
            }
            Some(Arrival::Duplicate) | None => {}
        }
        self.tracker.delivered += delivered.len() as u32;
        self.tracker.unconsumed += delivered.len() as u32;
        delivered
    }

    fn fragment(&mut self, now: u64, (seq, offset, total): (Seq, u32, u32), bytes: &[u8]) -> Vec<Vec<u8>> {
        let parts = &mut self.tracker.parts;
        let at = parts.iter().position(|(s, _)| *s == seq).or_else(|| {
            let reassembly = Reassembly::new(total, MAX_FRAME).filter(|_| parts.len() < 8)?;
            parts.push((seq, reassembly));
            Some(parts.len() - 1)
        });
        let Some(at) = at else { return Vec::new() };
        if !parts[at].1.add(offset, total, bytes) {
            return Vec::new();
        }
        let (_, whole) = parts.swap_remove(at);
        let Some(link) = self.peering.link_mut() else { return Vec::new() };
        let arrival = link.slot_complete(now, seq, total as usize);
        if matches!(arrival, Arrival::Fragment { .. }) {
            return Vec::new();
        }
        self.take(now, Some(arrival), &whole.into_bytes())
    }
}
