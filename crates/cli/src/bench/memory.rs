//! Our side of a measurement of memory: puts that fire tripwires, stores through a mapping, entries of a
//! queue, and bytes of a stream.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use tautline::memory::{Cookie, MapCookie, Mapped, Rights, Share, Test};
use tautline::queue::{self, Receiver, Sender};
use tautline::stream::{self, Reader, Writer};
use tautline::{Aperture, Config, Endpoint, Remote, Short, Tripwire};
use tautline_baseline::content::{Pattern, is_sabotaged};
use tautline_baseline::cpu::{self, Stopwatch};
use tautline_baseline::{Measured, Setup, Side};

use super::case::{Device, Policy, Style};
use super::taut::{job, wait_for_direct_route};

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
    /// The halves of a stream in each direction.
    stream: Option<(Reader, Writer)>,
    /// One for each place to put to: watches the last bytes of a put.
    arrived: Vec<Tripwire>,
    /// One for each part of the first place: watches its last bytes.
    parts: Vec<Tripwire>,
    /// Watches the word for answers.
    answered: Tripwire,
    /// The distance between two places.
    stride: usize,
    pattern: Pattern,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// The word that a mapping last showed.
    seen: u64,
}

/// The cookies that each side sends the other: for its memory, for its queue and its stream, and for a
/// mapping.
type Cookies = (Cookie, Cookie, Cookie, MapCookie);
type Mailbox = Rc<RefCell<Option<Cookies>>>;

/// Puts of a stream go to several places in turn, so that each can be read before the next one comes there:
/// at most this many places, and at most this many bytes but for two places.
const PLACES: usize = 64;
const PLACED: usize = 1 << 20;
/// Where the first place lies, behind the words for answers and for stored blocks.
const FIRST: usize = 64;
/// How many blocks were stored through a mapping.
const STORED: u64 = 8;

/// Parts of a put that is taken as it arrives.
const PARTS: usize = 8;

/// Bytes that a queue holds at least, and how many of its entries.
const QUEUE: usize = 256 << 10;
const ENTRIES: usize = 4;

fn parse_cookies(data: &[u8]) -> Option<Cookies> {
    let (memory, rest) = data.split_at_checked(Cookie::LEN)?;
    let (queue, rest) = rest.split_at_checked(Cookie::LEN)?;
    let (stream, map) = rest.split_at_checked(Cookie::LEN)?;
    let cookie = |bytes: &[u8]| bytes.try_into().ok().map(Cookie::from_bytes);
    let map = map.try_into().ok().map(MapCookie::from_bytes)?;
    Some((cookie(memory)?, cookie(queue)?, cookie(stream)?, map))
}

/// Where a part of a put of this size lies. All but the last are multiples of eight bytes.
fn part_of(bytes: usize, part: usize) -> std::ops::Range<usize> {
    let each = (bytes / PARTS).next_multiple_of(8);
    (part * each).min(bytes)..if part + 1 == PARTS { bytes } else { ((part + 1) * each).min(bytes) }
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
        let stride = bytes.next_multiple_of(64);
        let places = match style {
            Style::PutUnread | Style::PutOne | Style::PutEarly => 1,
            _ => (PLACED / stride).clamp(2, PLACES),
        };
        let aperture = endpoint.aperture(FIRST + places * stride).map_err(other)?;
        let share = aperture.share(Rights::ALL).map_err(other)?;
        let cookie = aperture.cookie(.., Rights::ALL).map_err(other)?;
        let watch = |place: usize| {
            let end = (FIRST + place * stride + bytes) as u64;
            aperture.tripwire(end - 8..end).arm().map_err(other)
        };
        let arrived = (0..places).map(watch).collect::<io::Result<Vec<_>>>()?;
        let early = if style == Style::PutEarly { PARTS } else { 0 };
        let part = |number: usize| {
            let end = (FIRST + part_of(bytes, number).end) as u64;
            aperture.tripwire(end - 8..end).arm().map_err(other)
        };
        let parts = (0..early).map(part).collect::<io::Result<Vec<_>>>()?;
        let answered = aperture.tripwire(..8).arm().map_err(other)?;
        let (queue, fill) = queue::pair(&endpoint, QUEUE.max(ENTRIES * bytes)).map_err(other)?;
        let (reader, write) = match style {
            Style::Stream => {
                let (reader, cookie) = stream::pair(&endpoint, QUEUE.max(ENTRIES * bytes)).map_err(other)?;
                (Some(reader), cookie)
            }
            _ => (None, fill),
        };
        let cookies =
            [cookie.to_bytes(), fill.to_bytes(), write.to_bytes(), share.cookie().to_bytes()].concat();
        endpoint.send(peer, "cookies", &cookies).map_err(other)?;
        endpoint.run_until(|| mail.borrow().is_some()).map_err(other)?;
        let (cookie, fill, write, map) = mail.borrow().ok_or_else(|| other("no cookie arrived"))?;
        let remote = endpoint.remote(&cookie);
        let into = Sender::new(&endpoint, &fill).map_err(other)?;
        let stream = match reader {
            Some(reader) => Some((reader, Writer::new(&endpoint, &write).map_err(other)?)),
            None => None,
        };
        wait_for_direct_route(&endpoint, peer, device)?;
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
            seen: 0,
            style,
            aperture,
            remote,
            mapped,
            queue,
            into,
            stream,
            arrived,
            parts,
            answered,
            stride,
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

    /// Where put `number` goes, and which place that is. Numbers begin with one.
    fn place(&self, number: u64) -> (u64, usize) {
        let place = (number - 1) as usize % self.arrived.len();
        ((FIRST + place * self.stride) as u64, place)
    }

    /// Rewrites the buffer and puts it.
    fn put(&mut self, number: u64) -> io::Result<()> {
        let (at, _) = self.place(number);
        self.pattern.write(number, &mut self.outgoing);
        self.remote.put(at, &self.outgoing).map_err(other)
    }

    /// Reads every part of a put as soon as it is there, while the rest is on its way.
    fn arrive_in_parts(&mut self, number: u64) -> io::Result<()> {
        for (i, wire) in self.parts.iter_mut().enumerate() {
            let range = part_of(self.incoming.len(), i);
            wire.wait().map_err(other)?;
            let part = &mut self.incoming[range.clone()];
            self.aperture.read((FIRST + range.start) as u64, part).map_err(other)?;
            self.pattern.read_part(part);
        }
        self.pattern.check_ends(number, &self.incoming)
    }

    /// Waits for a put, and reads every byte of it in a buffer of our own.
    fn arrive(&mut self, number: u64) -> io::Result<()> {
        if self.style == Style::PutEarly {
            return self.arrive_in_parts(number);
        }
        let (at, place) = self.place(number);
        if self.style == Style::Mapped {
            self.poll_word(STORED, number)?;
        } else {
            self.arrived[place].wait().map_err(other)?;
        }
        if self.incoming.len() == 8 {
            let word = self.aperture.read_u64(at).map_err(other)?;
            return self.pattern.check_word(number, word);
        }
        self.aperture.read(at, &mut self.incoming).map_err(other)?;
        self.pattern.check(number, &self.incoming)
    }

    fn store(&self, number: u64) -> io::Result<()> {
        let mapped = self.mapped.as_ref().ok_or_else(|| other("not mapped"))?;
        mapped.write_u64(FIRST as u64, self.pattern.word(number)).map_err(other)
    }

    fn watch(&mut self, number: u64) -> io::Result<()> {
        // Bounded, in case the other side is gone.
        for turn in 1..20_000_000_000u64 {
            let word = self.aperture.read_u64(FIRST as u64).map_err(other)?;
            if word != self.seen {
                self.seen = word;
                return self.pattern.check_word(number, word);
            }
            cpu::spin(turn as u32);
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Polls a word of our memory until it is at least this.
    fn poll_word(&self, at: u64, least: u64) -> io::Result<()> {
        // Bounded, in case the other side is gone.
        for turn in 1..20_000_000_000u64 {
            if self.aperture.read_u64(at).map_err(other)? >= least {
                return Ok(());
            }
            cpu::spin(turn as u32);
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
                (Style::Queue | Style::Stream, Side::A) => {
                    self.push(number).and_then(|()| self.take(number))?;
                }
                (Style::Queue | Style::Stream, Side::B) => {
                    self.take(number).and_then(|()| self.push(number))?;
                }
                (_, Side::A) => self.put(number).and_then(|()| self.arrive(number))?,
                (_, Side::B) => self.arrive(number).and_then(|()| self.put(number))?,
            }
            round_trips.push(started.elapsed().as_nanos() as u64);
        }
        Ok(if side == Side::A { round_trips } else { Vec::new() })
    }

    /// Rewrites the buffer, and sends it through the queue or the stream.
    fn push(&mut self, number: u64) -> io::Result<()> {
        self.pattern.write(number, &mut self.outgoing);
        match &mut self.stream {
            Some((_, writer)) => writer.write_all(&self.outgoing).map_err(other),
            None => self.into.push(&self.outgoing).map_err(other),
        }
    }

    /// Takes the next entry of the queue, or as many bytes of the stream.
    fn take(&mut self, number: u64) -> io::Result<()> {
        if let Some((reader, _)) = &mut self.stream {
            reader.read_exact(&mut self.incoming).map_err(other)?;
        } else if !self.queue.try_pop_into(&mut self.incoming).map_err(other)? {
            let entry = self.queue.pop().map_err(other)?;
            self.incoming = entry.ok_or(io::ErrorKind::UnexpectedEof)?;
        }
        self.pattern.check(number, &self.incoming)
    }

    /// Puts a block, once there is a place for it.
    fn put_block(&mut self, number: u64) -> io::Result<()> {
        if self.style != Style::PutUnread {
            self.until_answered(number.saturating_sub(self.arrived.len() as u64))?;
        }
        if !matches!(self.style, Style::PutInPlace | Style::Mapped) {
            return self.put(number);
        }
        let (at, _) = self.place(number);
        if self.style == Style::Mapped {
            let mapped = self.mapped.as_ref().ok_or_else(|| other("not mapped"))?;
            self.pattern.write(number, &mut self.outgoing);
            mapped.write(at, &self.outgoing).map_err(other)?;
            return mapped.write_u64(STORED, number).map_err(other);
        }
        let pattern = &self.pattern;
        let write = |from: usize, room: &mut [u8]| pattern.write_part(number, from, room);
        self.remote.fill(at, self.outgoing.len(), write).map_err(other)
    }

    /// Puts the number of blocks that were read.
    fn answer(&self, number: u64) -> io::Result<()> {
        if let Some(mapped) = &self.mapped {
            return mapped.write_u64(0, number).map_err(other);
        }
        self.remote.put(0, &number.to_le_bytes()).map_err(other)
    }

    /// Waits until the other side has read this many blocks.
    fn until_answered(&mut self, number: u64) -> io::Result<()> {
        if self.style == Style::Mapped {
            return self.poll_word(0, number);
        }
        while self.aperture.read_u64(0).map_err(other)? < number {
            self.answered.wait().map_err(other)?;
        }
        Ok(())
    }

    /// Waits for the put of this number, and for none before it; all of them must have arrived.
    fn last(&mut self, number: u64) -> io::Result<()> {
        let end = (FIRST + self.outgoing.len()) as u64;
        let last = if is_sabotaged() { Test::AtLeast(0) } else { Test::Equal(number) };
        let mut wire = self.aperture.tripwire(end - 8..end).when(last).arm().map_err(other)?;
        // It may have arrived before this was armed.
        while self.arrived[0].fires() < number {
            wire.wait().map_err(other)?;
        }
        if self.arrived[0].take() != number {
            return Err(other("not all puts arrived"));
        }
        self.aperture.read(FIRST as u64, &mut self.incoming).map_err(other)?;
        self.pattern.check_ends(number, &self.incoming)
    }

    /// One way, with answers as places become free, and at the end.
    pub fn stream(&mut self, side: Side, count: u64) -> io::Result<Measured> {
        let bytes = self.outgoing.len() as u64;
        // A sender waits for a free place, so half of them at once is soon enough.
        let step = (self.arrived.len() as u64 / 2).max(1);
        let watch = Stopwatch::start();
        match (self.style, side) {
            (Style::Queue | Style::Stream, Side::A) => {
                (1..=count).try_for_each(|number| self.push(number))?;
                self.until_answered(count)?;
            }
            (Style::Queue | Style::Stream, Side::B) => {
                (1..=count).try_for_each(|number| self.take(number))?;
                self.answer(count)?;
            }
            (_, Side::A) => {
                (1..=count).try_for_each(|number| self.put_block(number))?;
                self.until_answered(count)?;
            }
            (Style::PutUnread, Side::B) => {
                self.last(count)?;
                self.answer(count)?;
            }
            (_, Side::B) => {
                for number in 1..=count {
                    self.arrive(number)?;
                    if number.is_multiple_of(step) || number == count {
                        self.answer(number)?;
                    }
                }
            }
        }
        Ok(watch.stop(count, count * bytes, 0))
    }
}
