//! The pair and its operations.

use std::collections::VecDeque;

use tautline_link::{Arrival, Config, Fresh, JobKey, Link, Outcome, Peering, Policy, Reassembly, Who};
use tautline_wire::frame::{MAX_FRAME, channel_of};
use tautline_wire::handshake::{HANDSHAKE_LEN, Security};
use tautline_wire::{Handshake, Header, Kind, Seq};

const MILLI: u64 = 1_000_000;
/// Frames under way, per direction; slots pushed and not yet acknowledged.
const MAX_QUEUE: usize = 256;

/// The fuzzer's bytes, read from the front.
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
struct Books {
    /// The channel that these books are about.
    channel: u32,
    /// Lengths of slots pushed on it; a token is a place here.
    pushed: Vec<u32>,
    freed: Vec<bool>,
    delivered: u32,
    unconsumed: u32,
    ahead: VecDeque<Option<Vec<u8>>>,
    parts: Vec<(Seq, Reassembly)>,
}

struct Side {
    peering: Peering,
    books: Books,
    /// Frames on their way to the other side.
    out: VecDeque<Vec<u8>>,
}

pub struct Pair {
    now: u64,
    fresh: u64,
    sides: [Side; 2],
    config: Config,
    /// Nothing was injected or altered so far, no side was restarted.
    honest: bool,
}

fn who(rank: u32, max_frame: usize) -> Who {
    Who { key: JobKey::new([7; 32]), me: rank, peer: 1 - rank, endpoint: 0, peer_endpoint: 0, max_frame }
}

fn content(channel: u32, number: u32, len: u32) -> impl Iterator<Item = u8> {
    (0..len).map(move |i| {
        (channel ^ number.wrapping_mul(0x9e37_79b9) ^ i.wrapping_mul(0x85eb_ca6b)).to_le_bytes()[2]
    })
}

impl Pair {
    pub fn new(program: &mut Program<'_>) -> Pair {
        let bits = program.small();
        let config = Config {
            security: [Security::Fabric, Security::Open, Security::Sealed][bits % 3],
            recovery: [Policy::SelectiveRepeat, Policy::GoBackN][bits / 4 % 2],
            credit_slots: [1, 16, 64, 256][bits / 8 % 4],
            ..Config::default()
        };
        let max_frame = [1232, 1472, 4000, 9000][bits / 32 % 4];
        let side = |rank| Side {
            peering: Peering::new(who(rank, max_frame), config.clone()),
            books: Books::default(),
            out: VecDeque::new(),
        };
        let mut pair =
            Pair { now: 1, fresh: 0, sides: [side(0), side(1)], config: config.clone(), honest: true };
        if bits & 128 == 0 {
            let fresh = pair.fresh();
            pair.sides[0].peering.connect(1, fresh);
            pair.exchange(6);
        }
        pair
    }

    fn fresh(&mut self) -> Fresh {
        self.fresh += 1;
        // Sequence numbers begin near the wrap.
        Fresh { epoch: self.fresh << 32 | 0xffff_fff0, channel: self.fresh as u32 }
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
            _ => self.inject_shake(i, program),
        }
    }

    fn push(&mut self, i: usize, len: u32) {
        let side = &mut self.sides[i];
        side.track();
        let Some(link) = side.peering.link_mut().filter(|l| l.is_open()) else { return };
        if link.unacknowledged() < MAX_QUEUE {
            let len = len.min(link.slot_capacity() as u32);
            link.push(side.books.pushed.len() as u32, len);
            side.books.pushed.push(len);
            side.books.freed.push(false);
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
                let len = side.books.pushed[slot.token as usize];
                let bytes = content(side.books.channel, slot.token, len);
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
            let freed = &mut side.books.freed[token as usize];
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
            let Ok(shake) = Handshake::parse(&frame) else { return };
            let bytes = frame[..HANDSHAKE_LEN].try_into().expect("parse checked the length");
            if self.sides[to].peering.is_authentic(bytes, &shake) {
                self.handshake(to, &shake);
            }
            return;
        }
        let Ok(channel) = channel_of(&frame) else { return };
        let now = self.now;
        let side = &mut self.sides[to];
        let Ok((arrival, payload)) = side.peering.handle_frame(now, channel, &mut frame) else { return };
        side.track();
        let peer_channel = side.peering.link().map_or(0, |l| l.peer().channel);
        let slots = side.take(now, arrival, &frame[payload]);
        let first = side.books.delivered - slots.len() as u32;
        // A sealed payload stays enciphered here, because its seal is waived.
        if self.honest && self.config.security != Security::Sealed {
            let sender = &self.sides[1 - to].books;
            assert_eq!(sender.channel, peer_channel);
            for (number, slot) in (first..).zip(&slots) {
                let len = sender.pushed[number as usize];
                assert!(slot.iter().copied().eq(content(peer_channel, number, len)), "slot {number}");
            }
        }
    }

    fn handshake(&mut self, to: usize, shake: &Handshake) {
        let fresh = self.fresh();
        let side = &mut self.sides[to];
        if let Outcome::Reply(reply) = side.peering.handle_handshake(self.now, shake, fresh) {
            side.out.push_back(reply.to_vec());
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
        let slots = std::mem::take(&mut side.books.unconsumed);
        if let Some(link) = side.peering.link_mut() {
            link.consumed(slots);
        }
    }

    fn connect(&mut self, i: usize) {
        let (now, fresh) = (self.now, self.fresh());
        self.sides[i].peering.connect(now, fresh);
        self.sides[i].track();
    }

    fn close(&mut self, i: usize, program: &mut Program<'_>) {
        let now = self.now;
        let choice = program.small() % 4;
        let side = &mut self.sides[i];
        match choice {
            0 => {
                // A restart: the other side's slots end at whatever came before.
                self.honest = false;
                side.peering = Peering::new(who(i as u32, 1472), self.config.clone());
                side.books = Books::default();
            }
            1 => side.peering.give_up(),
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

    /// A frame with this link's channel number and near-by numbers, else as the fuzzer likes.
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
            repeats: program.small() as u32,
            tag: 0,
        };
        let body = ext_len + program.small();
        let mut frame = vec![0; tautline_wire::frame::HEADER_LEN];
        header.write(&mut frame);
        frame.extend_from_slice(program.bytes(body));
        self.deliver(to, frame);
    }

    fn inject_shake(&mut self, to: usize, program: &mut Program<'_>) {
        self.honest = false;
        if let Ok(shake) = Handshake::parse(program.bytes(HANDSHAKE_LEN)) {
            self.handshake(to, &shake);
        }
    }

    /// Without enemies, a healed network delivers everything that is still wanted.
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
    /// Begins new books when another link is live than before.
    fn track(&mut self) {
        // What the former link frees concerns nobody any more.
        self.peering.take_former();
        let Some(link) = self.peering.link() else { return };
        if link.channel() != self.books.channel {
            self.books = Books { channel: link.channel(), ..Books::default() };
        }
    }

    /// What a node does with an arrival; returns the slots that are due now.
    fn take(&mut self, now: u64, arrival: Option<Arrival>, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut due = Vec::new();
        match arrival {
            Some(Arrival::Next { released }) => {
                due.push(bytes.to_vec());
                for _ in 0..released {
                    due.push(self.books.ahead.pop_front().flatten().expect("a released slot was kept"));
                }
                self.books.ahead.pop_front();
            }
            Some(Arrival::Ahead { distance }) => {
                let at = distance as usize - 1;
                if self.books.ahead.len() <= at {
                    self.books.ahead.resize(at + 1, None);
                }
                assert!(self.books.ahead[at].replace(bytes.to_vec()).is_none(), "two slots in one place");
            }
            Some(Arrival::Fragment { seq, offset, total }) => {
                return self.fragment(now, (seq, offset, total), bytes);
            }
            Some(Arrival::Repeat) | None => {}
        }
        self.books.delivered += due.len() as u32;
        self.books.unconsumed += due.len() as u32;
        due
    }

    fn fragment(&mut self, now: u64, (seq, offset, total): (Seq, u32, u32), bytes: &[u8]) -> Vec<Vec<u8>> {
        let parts = &mut self.books.parts;
        let at = parts.iter().position(|(s, _)| *s == seq).or_else(|| {
            let fresh = Reassembly::new(total, MAX_FRAME).filter(|_| parts.len() < 8)?;
            parts.push((seq, fresh));
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
