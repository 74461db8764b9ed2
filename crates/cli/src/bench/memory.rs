//! Our side of a measurement of memory: puts that fire tripwires, stores through a mapping, and entries of a
//! queue.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use tautline::memory::{Cookie, MapCookie, Mapped, Rights, Share, Test};
use tautline::queue::{self, Receiver, Sender};
use tautline::{Aperture, Config, Endpoint, Remote, Short, Tripwire};
use tautline_baseline::cpu::Stopwatch;
use tautline_baseline::{Measured, Setup, Side};

use super::case::{Device, Policy, Style};
use super::content::{Pattern, is_intact};
use super::taut::job;

pub(super) fn other<E: Into<Box<dyn std::error::Error + Send + Sync>>>(error: E) -> io::Error {
    io::Error::other(error)
}

/// One side of a pair of endpoints that can reach each other's memory.
pub struct MemorySide {
    endpoint: Endpoint,
    style: Style,
    aperture: Aperture,
    _share: Share,
    remote: Remote,
    /// The peer's memory, mapped.
    mapped: Option<Mapped>,
    /// The end of our queue to take from, and the end of the peer's to fill.
    queue: Receiver,
    into: Sender,
    /// Bytes of the longest message that a short handler takes.
    short: usize,
    /// Watches the last bytes of a put.
    arrived: Tripwire,
    pattern: Pattern,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

/// The cookies that each side sends the other: for its memory, for its queue, and for a mapping.
type Mailbox = Rc<RefCell<Option<(Cookie, Cookie, MapCookie)>>>;

/// Bytes that a queue holds at least, and how many of its entries.
const QUEUE: usize = 256 << 10;
const ENTRIES: usize = 4;

fn parse_cookies(data: &[u8]) -> Option<(Cookie, Cookie, MapCookie)> {
    let (memory, rest) = data.split_at_checked(Cookie::LEN)?;
    let (queue, map) = rest.split_at_checked(Cookie::LEN)?;
    let cookie = |bytes: &[u8]| bytes.try_into().ok().map(Cookie::from_bytes);
    Some((cookie(memory)?, cookie(queue)?, map.try_into().ok().map(MapCookie::from_bytes)?))
}

impl MemorySide {
    /// Joins a fresh job with the other side, for puts of `bytes`, and connects.
    pub fn open(setup: &mut Setup<'_>, device: Device, style: Style, bytes: usize) -> io::Result<MemorySide> {
        let mail = Mailbox::default();
        let inbox = mail.clone();
        let builder = Endpoint::builder()
            .on_short("cookies", move |m: Short<'_>| *inbox.borrow_mut() = parse_cookies(m.data()));
        let endpoint = builder
            .config(Config::with(|config| config.device = Some(device.device())))
            .waiting(Policy::Spin.waiting())
            .join_job(job(setup)?)
            .map_err(other)?;
        let peer = 1 - endpoint.rank();
        let bytes = bytes.max(8);
        let aperture = endpoint.aperture(bytes.next_multiple_of(8)).map_err(other)?;
        let share = aperture.share(Rights::ALL).map_err(other)?;
        let cookie = aperture.cookie(.., Rights::ALL).map_err(other)?;
        let arrived = aperture.tripwire(bytes as u64 - 8..).arm().map_err(other)?;
        let (queue, fill) = queue::pair(&endpoint, QUEUE.max(ENTRIES * bytes)).map_err(other)?;
        let cookies = [cookie.to_bytes(), fill.to_bytes(), share.cookie().to_bytes()].concat();
        endpoint.send(peer, "cookies", &cookies).map_err(other)?;
        endpoint.run_until(|| mail.borrow().is_some()).map_err(other)?;
        let (cookie, fill, map) = mail.borrow().ok_or_else(|| other("no cookie arrived"))?;
        let remote = endpoint.remote(&cookie);
        let into = Sender::new(&endpoint, &fill).map_err(other)?;
        let mapped = match style {
            Style::Mapped => Some(endpoint.map(&map).map_err(other)?),
            _ => None,
        };
        let pattern = Pattern::new(bytes);
        let outgoing = vec![0; bytes];
        setup.barrier()?;
        let incoming = vec![0; bytes];
        Ok(MemorySide {
            _share: share,
            incoming,
            style,
            aperture,
            remote,
            mapped,
            queue,
            into,
            short: endpoint.node().short_limit(peer),
            arrived,
            pattern,
            outgoing,
            endpoint,
        })
    }

    /// Closes in good order.
    pub fn close(self, setup: &mut Setup<'_>) -> io::Result<()> {
        setup.barrier()?;
        self.endpoint.close().map_err(other)
    }

    fn put(&mut self, number: u64) -> io::Result<()> {
        if self.outgoing.len() == 8 {
            return self.remote.put(0, &number.to_le_bytes()).map_err(other);
        }
        self.pattern.write(number, 0, &mut self.outgoing);
        self.remote.put(0, &self.outgoing).map_err(other)
    }

    fn arrive(&mut self, number: u64) -> io::Result<()> {
        self.arrived.wait().map_err(other)?;
        if self.incoming.len() == 8 {
            let word = self.aperture.read_u64(0).map_err(other)?;
            return if word == number { Ok(()) } else { Err(other("not what was put")) };
        }
        self.aperture.read(0, &mut self.incoming).map_err(other)?;
        if is_intact(number, &self.incoming) { Ok(()) } else { Err(other("not what was put")) }
    }

    fn store(&self, number: u64) -> io::Result<()> {
        self.mapped.as_ref().ok_or_else(|| other("not mapped"))?.write_u64(0, number).map_err(other)
    }

    fn watch(&self, number: u64) -> io::Result<()> {
        // Bounded, in case the other side is gone.
        for _ in 0..20_000_000_000u64 {
            if self.aperture.read_u64(0).map_err(other)? == number {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Back and forth; round trips in nanoseconds on side A.
    pub fn ping_pong(&mut self, side: Side, from: u64, count: u64) -> io::Result<Vec<u64>> {
        let mut round_trips = Vec::with_capacity(count as usize);
        for number in from + 1..=from + count {
            let started = std::time::Instant::now();
            match (self.style, side) {
                (Style::Mapped, Side::A) => self.store(number).and_then(|()| self.watch(number))?,
                (Style::Mapped, Side::B) => self.watch(number).and_then(|()| self.store(number))?,
                (_, Side::A) => self.put(number).and_then(|()| self.arrive(number))?,
                (_, Side::B) => self.arrive(number).and_then(|()| self.put(number))?,
            }
            round_trips.push(started.elapsed().as_nanos() as u64);
        }
        Ok(if side == Side::A { round_trips } else { Vec::new() })
    }

    /// Takes the next entry of the queue.
    fn take(&mut self, number: u64) -> io::Result<()> {
        if !self.queue.try_pop_into(&mut self.incoming).map_err(other)? {
            let entry = self.queue.pop().map_err(other)?;
            self.incoming = entry.ok_or(io::ErrorKind::UnexpectedEof)?;
        }
        let right = self.incoming.len() == self.outgoing.len() && is_intact(number, &self.incoming);
        if right { Ok(()) } else { Err(other("an entry is not what was put into the queue")) }
    }

    /// Puts a rewritten block, as messages are rewritten: short ones in the buffer, long ones where they are
    /// sent from.
    fn put_block(&mut self, number: u64) -> io::Result<()> {
        if self.outgoing.len() <= self.short {
            return self.put(number);
        }
        let pattern = &self.pattern;
        self.remote.fill(0, self.outgoing.len(), |at, room| pattern.write(number, at, room)).map_err(other)
    }

    /// Waits for the put of this number, and for none before it; all of them must have arrived.
    fn last(&mut self, number: u64) -> io::Result<()> {
        let end = self.outgoing.len() as u64;
        let mut wire = self.aperture.tripwire(end - 8..).when(Test::Equal(number)).arm().map_err(other)?;
        // It may have arrived before this was armed.
        if self.arrived.fires() < number {
            wire.wait().map_err(other)?;
        }
        if self.arrived.take() != number {
            return Err(other("not all puts arrived"));
        }
        self.aperture.read(0, &mut self.incoming).map_err(other)?;
        if is_intact(number, &self.incoming) { Ok(()) } else { Err(other("not what was put")) }
    }

    /// One way, then an answer.
    pub fn stream(&mut self, side: Side, count: u64) -> io::Result<Measured> {
        let bytes = self.outgoing.len() as u64;
        let watch = Stopwatch::start();
        match (self.style, side) {
            (Style::Queue, Side::A) => {
                for number in 1..=count {
                    self.pattern.write(number, 0, &mut self.outgoing);
                    self.into.push(&self.outgoing).map_err(other)?;
                }
                self.arrived.wait().map_err(other)?;
            }
            (Style::Queue, Side::B) => {
                (1..=count).try_for_each(|number| self.take(number))?;
                self.put(1)?;
            }
            (_, Side::A) => {
                (1..=count).try_for_each(|number| self.put_block(number))?;
                self.arrived.wait().map_err(other)?;
            }
            (_, Side::B) => {
                self.last(count)?;
                self.put(1)?;
            }
        }
        Ok(watch.stop(count, count * bytes, 0))
    }
}
