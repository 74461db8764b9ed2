//! Our side of a measurement: an endpoint, its handlers, and the drivers that use them.
//!
//! The drivers do what `tautline_baseline::drive` does over a transport, except that in streams they do not
//! read each message once more after it was copied to its final buffer and its number was checked. They are
//! separate because a handler reads straight into the final buffer, while a transport of the baseline is
//! given the caller's buffer.

use std::cell::Cell;
use std::io;
use std::net::UdpSocket;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tautline::node::device::Transport;
use tautline::node::device::xdp::Framing;
use tautline::node::link::JobKey;
use tautline::{Config, Endpoint, Event, Handler, Job, Member, Message, Rank, Short};
use tautline_baseline::cpu::Stopwatch;
use tautline_baseline::drive::Pace;
use tautline_baseline::transport::SILENCE;
use tautline_baseline::{Measured, Setup, Side};

use super::case::{Device, Mode, Policy};
use super::content::{Pattern, is_intact, read_out};

/// How long one wait lasts before the silence is counted.
const WAIT_TIME: Duration = Duration::from_secs(1);

/// What arrives, and where it is stored.
struct Sink {
    arrived: Cell<u64>,
    wrong: Cell<bool>,
    /// The final buffer of a message. Taken out while a handler writes to it.
    place: Cell<Vec<u8>>,
    /// Whether every byte is read once more, as a user would; not in streams.
    read: Cell<bool>,
    /// Whether the content is checked at all.
    check: Cell<bool>,
}

impl Sink {
    #[inline]
    fn store(&self, message: &[u8]) {
        let number = self.arrived.get();
        if self.check.get() {
            if !is_intact(number, message) {
                self.wrong.set(true);
            }
            if self.read.get() {
                read_out(message);
            }
        }
        self.arrived.set(number + 1);
    }

    #[inline]
    fn short(&self, message: &[u8]) {
        if let Ok(word) = <[u8; 8]>::try_from(message) {
            // Eight bytes are taken by value; their place is a register.
            let number = self.arrived.get();
            if u64::from_le_bytes(word) != number && self.check.get() {
                self.wrong.set(true);
            }
            self.arrived.set(number + 1);
            return;
        }
        let mut place = self.place.take();
        if place.len() < message.len() {
            place.resize(message.len(), 0);
        }
        place[..message.len()].copy_from_slice(message);
        self.store(&place[..message.len()]);
        self.place.set(place);
    }
}

async fn long(sink: Rc<Sink>, mut message: Message) -> tautline::Result<()> {
    let len = message.len() as usize;
    let mut place = sink.place.take();
    if place.len() < len {
        place.resize(len, 0);
    }
    message.read_into(&mut place[..len]).await?;
    sink.store(&place[..len]);
    sink.place.set(place);
    Ok(())
}

/// How a message is made.
#[derive(Clone, Copy, PartialEq)]
enum Preparation {
    /// It is not: the same buffer is sent every time.
    Untouched,
    /// Written to a buffer of the program's, and then sent from there.
    Buffered,
    /// Written straight into the slots from which it is sent.
    InPlace,
}

/// One side of a pair of endpoints.
pub struct Taut {
    endpoint: Endpoint,
    peer: Rank,
    short: Handler,
    long: Handler,
    /// Bytes of the longest message that a short handler takes.
    short_max: usize,
    sink: Rc<Sink>,
    pattern: Pattern,
    outgoing: Vec<u8>,
    sent: u64,
    preparation: Preparation,
}

impl Taut {
    /// Joins a fresh job with the other side, for messages of `bytes`, and connects.
    pub fn open(
        setup: &mut Setup<'_>,
        device: Device,
        security: Mode,
        waiting: Policy,
        bytes: usize,
        single_copy: Option<usize>,
    ) -> io::Result<Taut> {
        let sink = Rc::new(Sink {
            arrived: Cell::new(0),
            wrong: Cell::new(false),
            place: Cell::new(vec![0; bytes]),
            read: Cell::new(true),
            check: Cell::new(true),
        });
        let (by_short, by_long) = (sink.clone(), sink.clone());
        let endpoint = Endpoint::builder()
            .on_short("short", move |message: Short<'_>| by_short.short(message.data()))
            .on("long", move |message| long(by_long.clone(), message))
            .config(Config::with(|config| {
                config.device = Some(device.device());
                config.xdp_framing = if device == Device::XdpRaw { Framing::Raw } else { Framing::Udp };
                config.single_copy = single_copy;
            }))
            .security(security.security())
            .waiting(waiting.waiting())
            .join_job(job(setup)?)
            .map_err(io::Error::other)?;
        let peer = 1 - endpoint.rank();
        let mut taut = Taut {
            peer,
            short: endpoint.handler("short").map_err(io::Error::other)?,
            long: endpoint.handler("long").map_err(io::Error::other)?,
            short_max: 0,
            sink,
            pattern: Pattern::new(bytes.max(8)),
            outgoing: vec![0; bytes],
            sent: 0,
            preparation: Preparation::Buffered,
            endpoint,
        };
        taut.exchange_first_messages(setup.side)?;
        if matches!(device, Device::Xdp | Device::XdpRaw) {
            taut.wait_for_direct_route()?;
        }
        taut.pattern = Pattern::new(bytes);
        taut.pattern.write(0, 0, &mut taut.outgoing);
        Ok(taut)
    }

    /// Exchanges the first messages, so that each side has received from the other.
    fn exchange_first_messages(&mut self, side: Side) -> io::Result<()> {
        if side == Side::A {
            self.answer()?;
        }
        self.until(1)?;
        if side == Side::B {
            self.answer()?;
        }
        self.short_max = self.endpoint.node().short_limit(self.peer);
        (self.sent, _) = (0, self.sink.arrived.replace(0));
        self.drain()
    }

    /// Exchanges messages until frames to the other side bypass the kernel, which they cannot before its
    /// neighbour is known.
    fn wait_for_direct_route(&mut self) -> io::Result<()> {
        let started = Instant::now();
        loop {
            let (transport, why) = self.endpoint.node().transport(self.peer).map_err(io::Error::other)?;
            if transport == Some(Transport::Xdp) {
                return Ok(());
            }
            if started.elapsed() > SILENCE {
                return Err(io::Error::other(format!(
                    "frames to the other side do not bypass the kernel: {why}"
                )));
            }
            self.endpoint.wait(Some(Duration::from_millis(1))).map_err(io::Error::other)?;
            self.endpoint.extract(usize::MAX).map_err(io::Error::other)?;
            while self.endpoint.poll_event().is_some() {}
        }
    }

    /// Closes in good order.
    pub fn close(self, setup: &mut Setup<'_>) -> io::Result<()> {
        setup.barrier()?;
        self.endpoint.close().map_err(io::Error::other)
    }

    /// Sends eight bytes: the next number.
    fn answer(&mut self) -> io::Result<()> {
        let number = self.sent.to_le_bytes();
        self.sent += 1;
        self.endpoint.send(self.peer, self.short, &number).map_err(io::Error::other)
    }

    /// Makes and sends the next message.
    #[inline]
    fn send(&mut self) -> io::Result<()> {
        let number = self.sent;
        self.sent += 1;
        if self.outgoing.len() == 8 {
            return self
                .endpoint
                .send(self.peer, self.short, &number.to_le_bytes())
                .map_err(io::Error::other);
        }
        if self.outgoing.len() <= self.short_max {
            if self.preparation != Preparation::Untouched {
                self.pattern.write(number, 0, &mut self.outgoing);
            }
            return self.endpoint.send(self.peer, self.short, &self.outgoing).map_err(io::Error::other);
        }
        self.send_long(number).map_err(io::Error::other)
    }

    fn send_long(&mut self, number: u64) -> tautline::Result<()> {
        let len = self.outgoing.len();
        if self.endpoint.node().config().single_copy.is_some() {
            // The receiver copies only a message that is sent in one call.
            if self.preparation != Preparation::Untouched {
                self.pattern.write(number, 0, &mut self.outgoing);
            }
            return self.endpoint.send(self.peer, self.long, &self.outgoing);
        }
        let mut message = self.endpoint.begin(self.peer, self.long, len as u64)?;
        match self.preparation {
            Preparation::Untouched => message.piece(&self.outgoing)?,
            Preparation::Buffered => {
                self.pattern.write(number, 0, &mut self.outgoing);
                message.piece(&self.outgoing)?;
            }
            // Rewritten by being written where it is sent from.
            Preparation::InPlace => message.fill(len, |at, room| self.pattern.write(number, at, room))?,
        }
        message.end()
    }

    /// Runs handlers until `arrived` messages have arrived.
    #[inline]
    fn until(&self, arrived: u64) -> io::Result<()> {
        let (mut woken, mut silent) = (false, 0);
        loop {
            let taken = self.endpoint.extract(usize::MAX).map_err(io::Error::other)?;
            if self.sink.arrived.get() >= arrived {
                return self.verdict();
            }
            if taken == 0 && woken {
                self.drain()?;
            }
            // No clock is read here: its cost would count as ours.
            woken = self.endpoint.wait(Some(WAIT_TIME)).map_err(io::Error::other)?;
            silent = if woken { 0 } else { silent + 1 };
            if WAIT_TIME * silent > SILENCE {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the other side is silent"));
            }
        }
    }

    /// Reads events: until they are read, waiting does not sleep.
    fn drain(&self) -> io::Result<()> {
        while let Some(event) = self.endpoint.poll_event() {
            if let Event::PeerDown { why, .. } = event {
                let counters = self.endpoint.counters();
                return Err(io::Error::other(format!("the other side is gone: {why}; {counters:?}")));
            }
        }
        self.verdict()
    }

    fn verdict(&self) -> io::Result<()> {
        if let Some(failure) = self.endpoint.poll_failure() {
            return Err(io::Error::other(format!("handler {}: {}", failure.handler, failure.reason)));
        }
        if self.sink.wrong.get() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is not what was sent"));
        }
        Ok(())
    }

    fn round_trip(&mut self) -> io::Result<u64> {
        let started = Instant::now();
        self.send()?;
        self.until(self.sent)?;
        Ok(started.elapsed().as_nanos() as u64)
    }

    fn echo(&mut self, count: u64) -> io::Result<Vec<u64>> {
        for _ in 0..count {
            self.until(self.sent + 1)?;
            self.send()?;
        }
        Ok(Vec::new())
    }

    /// Back and forth; round trips in nanoseconds on side A.
    pub fn ping_pong(&mut self, side: Side, count: u64, warm: bool) -> io::Result<Vec<u64>> {
        self.preparation = if warm { Preparation::Untouched } else { Preparation::Buffered };
        self.sink.check.set(!warm);
        match side {
            Side::A => (0..count).map(|_| self.round_trip()).collect(),
            Side::B => self.echo(count),
        }
    }

    /// One message per period; side A sleeps in between if `blocking`, and spins otherwise.
    pub fn paced(
        &mut self,
        side: Side,
        count: u64,
        period: Duration,
        blocking: bool,
    ) -> io::Result<Vec<u64>> {
        if side == Side::B {
            return self.echo(count);
        }
        let mut pace = Pace::new(period, blocking);
        let mut round_trips = Vec::with_capacity(count as usize);
        for _ in 0..count {
            pace.wait();
            self.round_trip()?;
            pace.record(&mut round_trips);
        }
        round_trips.truncate(count as usize);
        Ok(round_trips)
    }

    /// One way: with a window, that many messages and then an answer; without, one answer at the end. With
    /// `batch`, messages share frames until the sender waits for an answer.
    pub fn stream(
        &mut self,
        side: Side,
        count: u64,
        window: Option<u64>,
        batch: bool,
    ) -> io::Result<Measured> {
        let window = window.unwrap_or(count).max(1);
        let bytes = self.outgoing.len() as u64;
        self.sink.read.set(false);
        self.preparation = Preparation::InPlace;
        let mut watch = Stopwatch::start();
        let mut done = 0;
        while done < count {
            let next = (count - done).min(window);
            match side {
                Side::A => {
                    self.send_many(next, batch)?;
                    self.until(done / window + 1)?;
                }
                Side::B => {
                    if done == 0 {
                        self.until(1)?;
                        watch = Stopwatch::start();
                    }
                    self.until(done + next)?;
                    self.answer()?;
                }
            }
            done += next;
        }
        Ok(watch.stop(count, count * bytes, 0))
    }

    fn send_many(&mut self, count: u64, batch: bool) -> io::Result<()> {
        let endpoint = self.endpoint.clone();
        let _shared = batch.then(|| endpoint.batch());
        (0..count).try_for_each(|_| self.send())
    }

    /// Connected, with nothing to do.
    pub fn idle(&self, time: Duration) -> io::Result<()> {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            self.endpoint.wait(Some(left)).map_err(io::Error::other)?;
            self.endpoint.extract(usize::MAX).map_err(io::Error::other)?;
            self.drain()?;
        }
        Ok(())
    }
}

/// A job of two, made over the control stream: side A is rank 0 and makes the key.
pub(super) fn job(setup: &mut Setup<'_>) -> io::Result<Job> {
    let socket = UdpSocket::bind((setup.local, 0))?;
    let ours = socket.local_addr()?;
    let mut key = [0; 32];
    if setup.side == Side::A {
        rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
    }
    let theirs = setup.exchange(&key)?;
    let key = if setup.side == Side::A { key } else { theirs };
    let port = u16::from_le_bytes(setup.exchange(&ours.port().to_le_bytes())?);
    let ours = Member::new(ours);
    let theirs = Member::new((setup.remote, port).into());
    let (rank, members) = match setup.side {
        Side::A => (0, vec![ours, theirs]),
        Side::B => (1, vec![theirs, ours]),
    };
    Ok(Job::new(rank, JobKey::new(key), members).with_socket(socket))
}
