//! Our side of a measurement of messages with tags.

use std::collections::VecDeque;
use std::io;

use tautline::tags::{Receive, Send, Tags};
use tautline::{Config, Endpoint};
use tautline_baseline::content::Pattern;
use tautline_baseline::cpu::Stopwatch;
use tautline_baseline::{Measured, Setup, Side};

use super::case::{Device, Policy, Style};
use super::memory::other;
use super::taut::{job, wait_for_direct_route};

/// The tag of the messages that are measured, and of answers.
const TAG: u32 = 7;
const ANSWER: u32 = 8;
/// The first tag of receives that nothing matches.
const NEVER: u32 = 1 << 20;
/// How many of those there are in the long queues.
pub const QUEUED: u32 = 10_000;
/// The most messages under way in a stream, and the most bytes of them; but three in any case.
const AHEAD: usize = 64;
const SLOT_BYTES: usize = 512 << 10;
/// Messages from this length on are started and waited for; shorter ones are sent by blocking calls.
const LONG: usize = 4096;

/// One side of a pair of endpoints that send each other messages with tags.
pub struct TaggedSide {
    endpoint: Endpoint,
    tags: Tags,
    peer: u32,
    pattern: Pattern,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// Receives that no message matches, in front of those that are measured.
    _posted: Vec<Receive>,
}

impl TaggedSide {
    /// Joins a fresh job with the other side, and connects.
    pub fn open(setup: &mut Setup<'_>, device: Device, style: Style, bytes: usize) -> io::Result<TaggedSide> {
        let endpoint = Endpoint::builder()
            .config(Config::with(|config| config.device = Some(device.device())))
            .waiting(Policy::Spin.waiting())
            .join_job(job(setup)?)
            .map_err(other)?;
        let peer = 1 - endpoint.rank();
        let tags = endpoint.tags(0);
        // The first message opens the channel.
        tags.send(peer, ANSWER, b"").map_err(other)?;
        tags.receive(peer, ANSWER, &mut Vec::new()).map_err(other)?;
        wait_for_direct_route(&endpoint, peer, device)?;
        let queued = if style == Style::TagQueues { QUEUED } else { 0 };
        for tag in 0..queued {
            tags.send(peer, NEVER + QUEUED + tag, b"").map_err(other)?;
        }
        let post = |tag| tags.start_receive(peer, NEVER + tag, Vec::new()).map_err(other);
        let posted = (0..queued).map(post).collect::<io::Result<Vec<_>>>()?;
        setup.barrier()?;
        let (pattern, outgoing, incoming) = (Pattern::new(bytes), vec![0; bytes], vec![0; bytes]);
        Ok(TaggedSide { endpoint, tags, peer, pattern, outgoing, incoming, _posted: posted })
    }

    /// Closes in good order.
    pub fn close(self, setup: &mut Setup<'_>) -> io::Result<()> {
        setup.barrier()?;
        self.endpoint.close().map_err(other)
    }

    /// Rewrites the buffer, and sends it.
    fn send(&mut self, number: u64) -> io::Result<()> {
        self.pattern.write(number, &mut self.outgoing);
        self.tags.send(self.peer, TAG, &self.outgoing).map_err(other)
    }

    /// Receives a message, and reads every byte of it.
    fn receive(&mut self, number: u64) -> io::Result<()> {
        self.tags.receive(self.peer, TAG, &mut self.incoming).map_err(other)?;
        self.pattern.check(number, &self.incoming)
    }

    /// Back and forth; round trips in nanoseconds on side A.
    pub fn ping_pong(&mut self, side: Side, from: u64, count: u64) -> io::Result<Vec<u64>> {
        let mut round_trips = Vec::with_capacity(count as usize);
        for number in from + 1..=from + count {
            let started = std::time::Instant::now();
            match side {
                Side::A => self.send(number).and_then(|()| self.receive(number))?,
                Side::B => self.receive(number).and_then(|()| self.send(number))?,
            }
            round_trips.push(started.elapsed().as_nanos() as u64);
        }
        Ok(if side == Side::A { round_trips } else { Vec::new() })
    }

    /// One way, with the calls of the rivals' stream (`rivals/team.c`).
    pub fn stream(&mut self, side: Side, count: u64, window: Option<u64>) -> io::Result<Measured> {
        if self.outgoing.len() < LONG {
            self.stream_short(side, count, window)
        } else {
            self.stream_long(side, count)
        }
    }

    /// By blocking calls, with an answer after each window and at the end.
    fn stream_short(&mut self, side: Side, count: u64, window: Option<u64>) -> io::Result<Measured> {
        let watch = Stopwatch::start();
        for number in 1..=count {
            match side {
                Side::A => self.send(number)?,
                Side::B => self.receive(number)?,
            }
            if number == count || window.is_some_and(|window| number.is_multiple_of(window)) {
                match side {
                    Side::A => drop(self.tags.receive(self.peer, ANSWER, &mut Vec::new()).map_err(other)?),
                    Side::B => self.tags.send(self.peer, ANSWER, b"").map_err(other)?,
                }
            }
        }
        Ok(watch.stop(count, count * self.outgoing.len() as u64, 0))
    }

    /// With several sends and receives under way, and an answer at the end: each buffer is rewritten, or read
    /// and posted again, as soon as it is free.
    fn stream_long(&mut self, side: Side, count: u64) -> io::Result<Measured> {
        let bytes = self.outgoing.len();
        let slots = (SLOT_BYTES / bytes).clamp(3, AHEAD).min(count as usize);
        let mut spare: Vec<Vec<u8>> = (0..slots).map(|_| vec![1; bytes]).collect();
        let mut receives = VecDeque::with_capacity(slots);
        if side == Side::B {
            for buffer in spare.drain(..) {
                receives.push_back(self.tags.start_receive(self.peer, TAG, buffer).map_err(other)?);
            }
            self.tags.send(self.peer, ANSWER, b"").map_err(other)?;
        } else {
            self.tags.receive(self.peer, ANSWER, &mut Vec::new()).map_err(other)?;
        }
        let watch = Stopwatch::start();
        match side {
            Side::A => {
                self.start_sends(spare, count)?;
                self.tags.receive(self.peer, ANSWER, &mut Vec::new()).map_err(other)?;
            }
            Side::B => {
                for number in 1..=count {
                    let Some(receive) = receives.pop_front() else { break };
                    let (_, buffer) = receive.wait().map_err(other)?;
                    self.pattern.check(number, &buffer)?;
                    if number + slots as u64 <= count {
                        let next = self.tags.start_receive(self.peer, TAG, buffer).map_err(other)?;
                        receives.push_back(next);
                    }
                }
                self.tags.send(self.peer, ANSWER, b"").map_err(other)?;
            }
        }
        Ok(watch.stop(count, count * bytes as u64, 0))
    }

    /// Sends `count` messages from the given buffers in turn.
    fn start_sends(&mut self, mut spare: Vec<Vec<u8>>, count: u64) -> io::Result<()> {
        let mut sends = VecDeque::with_capacity(spare.len());
        for number in 1..=count {
            let mut buffer = match spare.pop() {
                Some(buffer) => buffer,
                None => {
                    let first: Send = sends.pop_front().ok_or_else(|| other("no send is under way"))?;
                    first.wait().map_err(other)?
                }
            };
            self.pattern.write(number, &mut buffer);
            sends.push_back(self.tags.start_send(self.peer, TAG, buffer).map_err(other)?);
        }
        sends.into_iter().try_for_each(|send| send.wait().map(drop).map_err(other))
    }
}
