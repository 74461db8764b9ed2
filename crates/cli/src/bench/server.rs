//! The CLAN paper's server: many endpoints, each a word in the server's memory with a tripwire and a word in
//! the client's for the answer, and one event queue for all of them. Every endpoint has cookies of its own.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tautline::memory::{Cookie, MemoryEvent, Rights};
use tautline::{Aperture, Config, Endpoint, Event, Message, Rank, Remote, Tripwire};
use tautline_baseline::content::{Pattern, is_sabotaged};
use tautline_baseline::cpu::Stopwatch;
use tautline_baseline::transport::SILENCE;
use tautline_baseline::{Measured, Setup, Side};

use super::case::{Device, Policy, Style};
use super::memory::other;
use super::taut::{job, wait_for_direct_route};

/// The distance between the words of two endpoints: each has a cache line.
const APART: u64 = 64;
/// How long one wait lasts before the silence is counted.
const WAIT_TIME: Duration = Duration::from_secs(1);

/// The client of all endpoints, or their server.
pub struct Server {
    endpoint: Endpoint,
    peer: Rank,
    aperture: Aperture,
    /// One for each endpoint: the other side's word.
    remotes: Vec<Remote>,
    /// One for each endpoint, which reports by events.
    _wires: Vec<Tripwire>,
    /// A client with one request in progress watches all words by one tripwire instead.
    any: Option<Tripwire>,
    state: u64,
    number: u64,
    pattern: Pattern,
}

impl Server {
    /// Joins a fresh job with the other side, with `endpoints` endpoints.
    pub fn open(
        setup: &mut Setup<'_>,
        device: Device,
        style: Style,
        endpoints: u64,
        together: bool,
    ) -> io::Result<Server> {
        let mail = Rc::new(RefCell::new(None));
        let inbox = mail.clone();
        let waiting = if setup.side == Side::A { Policy::Spin } else { style.waiting() };
        let endpoint = Endpoint::builder()
            .on("cookies", move |mut m: Message| {
                let inbox = inbox.clone();
                async move {
                    *inbox.borrow_mut() = Some(m.read_to_end().await?);
                    Ok(())
                }
            })
            .config(Config::with(|config| config.device = Some(device.device())))
            .waiting(waiting.waiting())
            .join_job(job(setup)?)
            .map_err(other)?;
        let peer = 1 - endpoint.rank();
        let aperture = endpoint.aperture((endpoints * APART) as usize).map_err(other)?;
        let one = setup.side == Side::A && !together;
        let any = if one { Some(aperture.tripwire(..).arm().map_err(other)?) } else { None };
        let (mut wires, mut bytes) = (Vec::new(), Vec::new());
        for i in 0..endpoints {
            let word = i * APART..i * APART + 8;
            bytes.extend_from_slice(&aperture.cookie(word.clone(), Rights::WRITE).map_err(other)?.to_bytes());
            if !one {
                wires.push(aperture.tripwire(word).event(i).arm().map_err(other)?);
            }
        }
        endpoint.send(peer, "cookies", &bytes).map_err(other)?;
        endpoint.run_until(|| mail.borrow().is_some()).map_err(other)?;
        let bytes = mail.take().ok_or_else(|| other("no cookies arrived"))?;
        let (cookies, _) = bytes.as_chunks::<{ Cookie::LEN }>();
        let remotes: Vec<_> =
            cookies.iter().map(|cookie| endpoint.remote(&Cookie::from_bytes(cookie))).collect();
        if remotes.len() as u64 != endpoints {
            return Err(other("the other side has another number of endpoints"));
        }
        wait_for_direct_route(&endpoint, peer, device)?;
        setup.barrier()?;
        let pattern = Pattern::new(8);
        Ok(Server { endpoint, peer, aperture, remotes, _wires: wires, any, state: 1, number: 0, pattern })
    }

    /// Closes in good order.
    pub fn close(self, setup: &mut Setup<'_>) -> io::Result<()> {
        setup.barrier()?;
        self.endpoint.close().map_err(other)
    }

    /// Uses every endpoint once, so that its cookie is known.
    pub fn warm_up(&mut self, side: Side) -> io::Result<()> {
        let endpoints = self.remotes.len() as u64;
        match side {
            Side::B => self.serve(endpoints),
            Side::A if self.any.is_none() => self.ask_all(endpoints),
            Side::A => (0..endpoints).try_for_each(|i| self.ask(i as usize).map(drop)),
        }
    }

    /// One request at a time, each of an endpoint chosen at random, after a pause; round trips in nanoseconds
    /// on side A.
    pub fn one_by_one(&mut self, side: Side, count: u64, pause: Duration) -> io::Result<Vec<u64>> {
        if side == Side::B {
            return self.serve(count).map(|()| Vec::new());
        }
        let mut round_trips = Vec::with_capacity(count as usize);
        for _ in 0..count {
            if !pause.is_zero() {
                let until = Instant::now() + pause;
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
            }
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let which = (self.state >> 33) % self.remotes.len() as u64;
            round_trips.push(self.ask(which as usize)?);
        }
        Ok(round_trips)
    }

    /// Every endpoint has a client with one request in progress, until `count` were answered.
    pub fn together(&mut self, side: Side, count: u64) -> io::Result<Measured> {
        let watch = Stopwatch::start();
        match side {
            Side::A => self.ask_all(count)?,
            Side::B => self.serve(count)?,
        }
        Ok(watch.stop(count, 8 * count, 0))
    }

    fn ask(&mut self, which: usize) -> io::Result<u64> {
        self.number += 1;
        let started = Instant::now();
        self.remotes[which].put(0, &self.pattern.word(self.number).to_le_bytes()).map_err(other)?;
        let answered = self.any.as_mut().ok_or_else(|| other("not made for one request at a time"))?;
        answered.wait().map_err(other)?;
        let answer = self.aperture.read_u64(which as u64 * APART).map_err(other)?;
        self.pattern.check_word(self.number, answer)?;
        Ok(started.elapsed().as_nanos() as u64)
    }

    fn ask_all(&mut self, count: u64) -> io::Result<()> {
        let clients = self.remotes.len() as u64;
        let first = self.number;
        self.number += 1;
        let mut sent = clients.min(count);
        let put = |which: usize, number: u64| {
            self.remotes[which].put(0, &self.pattern.word(number).to_le_bytes()).map_err(other)
        };
        self.sharing(|| (0..sent).try_for_each(|i| put(i as usize, self.number)))?;
        let mut answered = 0;
        while answered < count {
            answered += self.events(|server, which| {
                let answer = server.aperture.read_u64(which * APART).map_err(other)?;
                server.pattern.read_word(answer);
                if answer <= first && !is_sabotaged() {
                    return Err(other("the answer is not that of the request"));
                }
                if sent == count {
                    return Ok(());
                }
                sent += 1;
                put(which as usize, answer + 1)
            })?;
        }
        self.number += count;
        Ok(())
    }

    /// The event loop: a word that was put goes back.
    fn serve(&mut self, count: u64) -> io::Result<()> {
        let mut served = 0;
        while served < count {
            served += self.events(|server, which| {
                let request = server.aperture.read_u64(which * APART).map_err(other)?;
                server.pattern.read_word(request);
                let answer = server.pattern.word(request);
                server.remotes[which as usize].put(0, &answer.to_le_bytes()).map_err(other)
            })?;
        }
        Ok(())
    }

    /// Waits for events and handles all that are there; returns how many requests or answers they were.
    #[inline]
    fn events(&self, mut deal: impl FnMut(&Server, u64) -> io::Result<()>) -> io::Result<u64> {
        let mut silent = 0;
        loop {
            self.endpoint.extract(usize::MAX).map_err(other)?;
            let came = self.sharing(|| {
                let mut came = 0;
                while let Some(event) = self.endpoint.poll_event() {
                    match event {
                        Event::Memory(MemoryEvent::Tripwire { tag, .. }) => {
                            came += 1;
                            deal(self, tag)?;
                        }
                        Event::Memory(MemoryEvent::Refused { .. }) | Event::PeerDown { .. } => {
                            return Err(other(format!("unexpected: {event:?}")));
                        }
                        _ => {}
                    }
                }
                Ok(came)
            })?;
            if came > 0 {
                return Ok(came);
            }
            let woken = self.endpoint.wait(Some(WAIT_TIME)).map_err(other)?;
            silent = if woken { 0 } else { silent + 1 };
            if WAIT_TIME * silent > SILENCE {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the other side is silent"));
            }
        }
    }

    /// Between hosts, puts inside `run` share frames.
    #[inline]
    fn sharing<T>(&self, run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let _together = (!self.endpoint.node().is_local(self.peer)).then(|| self.endpoint.batch());
        run()
    }
}
