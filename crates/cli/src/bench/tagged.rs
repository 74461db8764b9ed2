//! Our side of a measurement of messages with tags.

use std::io;

use tautline::tags::{Receive, Tags};
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
/// Receives that are posted ahead.
const AHEAD: u64 = 64;

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

    /// One way, with receives posted ahead, and an answer at the end.
    pub fn stream(&mut self, side: Side, count: u64) -> io::Result<Measured> {
        let bytes = self.outgoing.len();
        let post = |tags: &Tags, peer| tags.start_receive(peer, TAG, vec![0; bytes]).map_err(other);
        let mut ahead = std::collections::VecDeque::new();
        if side == Side::B {
            for _ in 0..count.min(AHEAD) {
                ahead.push_back(post(&self.tags, self.peer)?);
            }
            self.tags.send(self.peer, ANSWER, b"").map_err(other)?;
        } else {
            self.tags.receive(self.peer, ANSWER, &mut Vec::new()).map_err(other)?;
        }
        let watch = Stopwatch::start();
        match side {
            Side::A => {
                (1..=count).try_for_each(|number| self.send(number))?;
                self.tags.receive(self.peer, ANSWER, &mut Vec::new()).map_err(other)?;
            }
            Side::B => {
                for number in 1..=count {
                    let Some(receive) = ahead.pop_front() else { break };
                    let (_, buffer) = receive.wait().map_err(other)?;
                    self.pattern.check(number, &buffer)?;
                    if number + AHEAD <= count {
                        let next = self.tags.start_receive(self.peer, TAG, buffer).map_err(other)?;
                        ahead.push_back(next);
                    }
                }
                self.tags.send(self.peer, ANSWER, b"").map_err(other)?;
            }
        }
        Ok(watch.stop(count, count * bytes as u64, 0))
    }
}
