//! Our side of a measurement: an endpoint, its handlers, and the drivers that use them.
//!
//! The drivers do what `tautline_baseline::drive` does over a transport: buffers are rewritten, and every
//! byte is read. They are separate because a handler reads straight into the final buffer, while a
//! transport of the baseline is given the caller's buffer.

use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tautline::node::device::Transport;
use tautline::node::device::fault::Faults;
use tautline::node::device::xdp::Framing;
use tautline::node::link::{JobKey, RecoveryPolicy};
use tautline::{Config, Endpoint, Event, Handler, Job, Member, Message, Rank, Short};
use tautline_baseline::content::Pattern;
use tautline_baseline::cpu::Stopwatch;
use tautline_baseline::drive::Pace;
use tautline_baseline::transport::SILENCE;
use tautline_baseline::{Measured, Setup, Side};

use super::case::{Device, Mode, Policy, Touch};

/// How long one wait lasts before the silence is counted.
const WAIT_TIME: Duration = Duration::from_secs(1);

/// What arrives, and where it is stored.
struct Sink {
    arrived: Cell<u64>,
    answers: Cell<u64>,
    wrong: Cell<bool>,
    /// The final buffer of a message. Taken out while a handler writes to it.
    place: Cell<Vec<u8>>,
    reading: Cell<Reading>,
    pattern: Pattern,
}

/// What is read of a message that has arrived in its final buffer.
#[derive(Clone, Copy, PartialEq)]
enum Reading {
    /// Every byte, as a user would.
    All,
    /// Both ends.
    Ends,
    /// Nothing: the sender has not rewritten it.
    Nothing,
    /// Every byte, of pieces in places of their own.
    Pieces,
}

/// The pieces in which a scattered message is taken, after a header of this size; and the distance that
/// keeps their places apart.
const PIECES: usize = 4;
const HEADER: usize = 64;

impl Sink {
    #[inline]
    fn store(&self, message: &[u8]) {
        let number = self.arrived.get();
        let read = match self.reading.get() {
            Reading::All => self.pattern.check(number, message),
            Reading::Ends => self.pattern.check_ends(number, message),
            Reading::Nothing => Ok(()),
            Reading::Pieces => {
                self.pattern.read_part(message);
                self.pattern.check_ends(number, message)
            }
        };
        if read.is_err() {
            self.wrong.set(true);
        }
        self.arrived.set(number + 1);
    }

    #[inline]
    fn short(&self, message: &[u8]) {
        if let Ok(word) = <[u8; 8]>::try_from(message) {
            // Eight bytes are taken by value; their place is a register.
            let number = self.arrived.get();
            if self.reading.get() != Reading::Nothing
                && self.pattern.check_word(number, u64::from_le_bytes(word)).is_err()
            {
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
    if sink.reading.get() == Reading::Pieces && len > HEADER {
        place = scattered(&sink, message, place).await?;
        sink.place.set(place);
        sink.arrived.set(sink.arrived.get() + 1);
        return Ok(());
    }
    if place.len() < len {
        place.resize(len, 0);
    }
    message.read_into(&mut place[..len]).await?;
    sink.store(&place[..len]);
    sink.place.set(place);
    Ok(())
}

/// Takes a message in pieces, each into a place of its own, and reads them.
async fn scattered(sink: &Sink, mut message: Message, mut place: Vec<u8>) -> tautline::Result<Vec<u8>> {
    let len = message.len() as usize;
    let each = ((len - HEADER) / PIECES).next_multiple_of(8);
    place.resize(len + (PIECES + 1) * HEADER, 0);
    let (mut taken, mut at) = (0, 0);
    while taken < len {
        let piece = if taken == 0 { HEADER } else { each.min(len - taken) };
        let room = &mut place[at..at + piece];
        message.read_into(room).await?;
        sink.pattern.read_part(room);
        taken += piece;
        at += piece + HEADER;
    }
    Ok(place)
}

/// Counts an answer, whose content is the number of those before it.
fn answered(sink: &Sink, message: &[u8]) {
    let number = sink.answers.get();
    if message != number.to_le_bytes() {
        sink.wrong.set(true);
    }
    sink.answers.set(number + 1);
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
    answer: Handler,
    /// Bytes of the longest message that a short handler takes.
    short_max: usize,
    sink: Rc<Sink>,
    outgoing: Vec<u8>,
    /// Messages and answers sent.
    sent: u64,
    answered: u64,
    /// Messages and answers that the drivers have waited for. More may already have arrived.
    awaited: u64,
    awaited_answers: u64,
    preparation: Preparation,
    /// Where the other side receives datagrams.
    address: SocketAddr,
}

/// What an endpoint is opened with, beside its device.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub security: Mode,
    pub waiting: Policy,
    /// The receiver may copy messages of so many bytes and more out of the sender's process.
    pub single_copy: Option<usize>,
    /// Frames of a thousand that are lost, and how they are recovered.
    pub loss_per_mille: u64,
    pub go_back_n: bool,
}

impl Options {
    pub fn new(security: Mode, waiting: Policy) -> Options {
        Options { security, waiting, single_copy: None, loss_per_mille: 0, go_back_n: false }
    }

    fn apply(&self, config: &mut Config, device: Device) {
        config.device = Some(device.device());
        config.xdp_framing = if device == Device::XdpRaw { Framing::Raw } else { Framing::Udp };
        config.single_copy = self.single_copy;
        if self.go_back_n {
            config.link.recovery = RecoveryPolicy::GoBackN;
        }
        if self.loss_per_mille > 0 {
            let loss = self.loss_per_mille as f64 / 1e3;
            config.fault = Some((SEED, Faults::with(|faults| faults.loss = loss)));
        }
    }
}

/// Of the faults that are injected: the same in every run.
const SEED: u64 = 7;

impl Taut {
    /// Joins a fresh job with the other side, for messages of `bytes`, and connects.
    pub fn open(setup: &mut Setup<'_>, device: Device, options: &Options, bytes: usize) -> io::Result<Taut> {
        let (job, address) = job_and_peer(setup)?;
        let sink = Rc::new(Sink {
            arrived: Cell::new(0),
            answers: Cell::new(0),
            wrong: Cell::new(false),
            place: Cell::new(vec![0; bytes]),
            reading: Cell::new(Reading::All),
            pattern: Pattern::new(bytes),
        });
        let (by_short, by_long, by_answer) = (sink.clone(), sink.clone(), sink.clone());
        let endpoint = Endpoint::builder()
            .on_short("short", move |message: Short<'_>| by_short.short(message.data()))
            .on("long", move |message| long(by_long.clone(), message))
            .on_short("answer", move |message: Short<'_>| answered(&by_answer, message.data()))
            .config(Config::with(|config| options.apply(config, device)))
            .security(options.security.security())
            .waiting(options.waiting.waiting())
            .join_job(job)
            .map_err(io::Error::other)?;
        let peer = 1 - endpoint.rank();
        let mut taut = Taut {
            peer,
            short: endpoint.handler("short").map_err(io::Error::other)?,
            long: endpoint.handler("long").map_err(io::Error::other)?,
            answer: endpoint.handler("answer").map_err(io::Error::other)?,
            short_max: 0,
            sink,
            outgoing: vec![0; bytes],
            sent: 0,
            answered: 0,
            awaited: 0,
            awaited_answers: 1,
            preparation: Preparation::Buffered,
            address,
            endpoint,
        };
        taut.exchange_first_messages(setup.side)?;
        wait_for_direct_route(&taut.endpoint, peer, device)?;
        taut.sink.pattern.prime(&mut taut.outgoing);
        Ok(taut)
    }

    /// Exchanges the first messages, so that each side has received from the other.
    fn exchange_first_messages(&mut self, side: Side) -> io::Result<()> {
        if side == Side::A {
            self.answer()?;
        }
        self.until_answered(1)?;
        if side == Side::B {
            self.answer()?;
        }
        self.short_max = self.endpoint.node().short_limit(self.peer);
        self.drain()
    }

    /// Where the other side receives datagrams.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes in good order.
    pub fn close(self, setup: &mut Setup<'_>) -> io::Result<()> {
        setup.barrier()?;
        self.endpoint.close().map_err(io::Error::other)
    }

    /// Sends eight bytes: the number of answers before this one.
    fn answer(&mut self) -> io::Result<()> {
        let number = self.answered.to_le_bytes();
        self.answered += 1;
        self.endpoint.send(self.peer, self.answer, &number).map_err(io::Error::other)
    }

    /// Makes and sends the next message.
    #[inline]
    fn send(&mut self) -> io::Result<()> {
        let number = self.sent;
        self.sent += 1;
        if self.outgoing.len() <= self.short_max {
            if self.preparation != Preparation::Untouched {
                self.sink.pattern.write(number, &mut self.outgoing);
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
                self.sink.pattern.write(number, &mut self.outgoing);
            }
            return self.endpoint.send(self.peer, self.long, &self.outgoing);
        }
        let mut message = self.endpoint.begin(self.peer, self.long, len as u64)?;
        match self.preparation {
            Preparation::Untouched => message.piece(&self.outgoing)?,
            Preparation::Buffered => {
                self.sink.pattern.write(number, &mut self.outgoing);
                message.piece(&self.outgoing)?;
            }
            // Rewritten by being written where it is sent from.
            Preparation::InPlace => {
                message.fill(len, |at, room| self.sink.pattern.write_part(number, at, room))?;
            }
        }
        message.end()
    }

    /// Runs handlers until `arrived` messages have arrived.
    #[inline]
    fn until(&self, arrived: u64) -> io::Result<()> {
        self.until_count(&self.sink.arrived, arrived)
    }

    /// Runs handlers until `answers` answers have arrived.
    fn until_answered(&self, answers: u64) -> io::Result<()> {
        self.until_count(&self.sink.answers, answers)
    }

    #[inline]
    fn until_count(&self, counter: &Cell<u64>, count: u64) -> io::Result<()> {
        let (mut woken, mut silent) = (false, 0);
        loop {
            let taken = self.endpoint.extract(usize::MAX).map_err(io::Error::other)?;
            if counter.get() >= count {
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
        self.sink.reading.set(if warm { Reading::Nothing } else { Reading::All });
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
        touch: Touch,
    ) -> io::Result<Measured> {
        let window = window.unwrap_or(count).max(1);
        let bytes = self.outgoing.len() as u64;
        self.sink.reading.set(match touch {
            Touch::Unread => Reading::Ends,
            Touch::Scattered => Reading::Pieces,
            Touch::Both | Touch::InPlace => Reading::All,
        });
        self.preparation = if touch == Touch::InPlace { Preparation::InPlace } else { Preparation::Buffered };
        let (arrived, answers) = (self.awaited, self.awaited_answers);
        match side {
            Side::A => self.awaited_answers += count.div_ceil(window),
            Side::B => self.awaited += count,
        }
        let mut watch = Stopwatch::start();
        let mut done = 0;
        while done < count {
            let next = (count - done).min(window);
            match side {
                Side::A => {
                    self.send_many(next, batch)?;
                    self.until_answered(answers + done / window + 1)?;
                }
                Side::B => {
                    if done == 0 {
                        self.until(arrived + 1)?;
                        watch = Stopwatch::start();
                    }
                    self.until(arrived + done + next)?;
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

    /// What side A's polls cost: those that find nothing, or for each message that they find. Messages are
    /// there before the clock starts.
    pub fn polls(&mut self, setup: &mut Setup<'_>, count: u64, hit: bool) -> io::Result<Measured> {
        const TOGETHER: u64 = 64;
        let mut total = Measured::default();
        // Nothing is sent before the other side has done whatever opening it needs.
        setup.barrier()?;
        for _ in 0..if hit { count / TOGETHER } else { 1 } {
            if hit && setup.side == Side::B {
                (0..TOGETHER).try_for_each(|_| self.send())?;
            }
            setup.barrier()?;
            if setup.side == Side::A {
                self.awaited += TOGETHER;
                let watch = Stopwatch::start();
                let polls = if hit {
                    self.until(self.awaited)?;
                    TOGETHER
                } else {
                    for _ in 0..count {
                        self.endpoint.extract(usize::MAX).map_err(io::Error::other)?;
                    }
                    count
                };
                let once = watch.stop(polls, 0, 0);
                total.elapsed_ns += once.elapsed_ns;
                total.messages += once.messages;
            }
            setup.barrier()?;
        }
        Ok(total)
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

/// Over AF_XDP, extracts until frames to the other side bypass the kernel, which they cannot before its
/// neighbour is known.
pub(super) fn wait_for_direct_route(endpoint: &Endpoint, peer: Rank, device: Device) -> io::Result<()> {
    let started = Instant::now();
    while device.is_xdp() {
        let (transport, why) = endpoint.node().transport(peer).map_err(io::Error::other)?;
        if transport == Some(Transport::Xdp) {
            break;
        }
        if started.elapsed() > SILENCE {
            return Err(io::Error::other(format!(
                "frames to the other side do not bypass the kernel: {why}"
            )));
        }
        endpoint.wait(Some(Duration::from_millis(1))).map_err(io::Error::other)?;
        endpoint.extract(usize::MAX).map_err(io::Error::other)?;
        while endpoint.poll_event().is_some() {}
    }
    Ok(())
}

/// A job of two, made over the control stream: side A is rank 0 and makes the key.
pub(super) fn job(setup: &mut Setup<'_>) -> io::Result<Job> {
    job_and_peer(setup).map(|(job, _)| job)
}

/// The same, and the address of the other side.
fn job_and_peer(setup: &mut Setup<'_>) -> io::Result<(Job, SocketAddr)> {
    let socket = UdpSocket::bind((setup.local, 0))?;
    let ours = socket.local_addr()?;
    let mut key = [0; 32];
    if setup.side == Side::A {
        rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
    }
    let theirs = setup.exchange(&key)?;
    let key = if setup.side == Side::A { key } else { theirs };
    let port = u16::from_le_bytes(setup.exchange(&ours.port().to_le_bytes())?);
    let peer = SocketAddr::new(setup.remote, port);
    let ours = Member::new(ours);
    let theirs = Member::new(peer);
    let (rank, members) = match setup.side {
        Side::A => (0, vec![ours, theirs]),
        Side::B => (1, vec![theirs, ours]),
    };
    Ok((Job::new(rank, JobKey::new(key), members).with_socket(socket), peer))
}
