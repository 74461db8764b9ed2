//! Our side of a measurement of memory: puts that tripwires notice, stores through a mapping, and calls.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use tautline::memory::{Cookie, MapCookie, Mapped, Rights, Share};
use tautline::rpc::Rpc;
use tautline::{Aperture, Config, Endpoint, Rank, Remote, Short, Tripwire};
use tautline_baseline::cpu::Stopwatch;
use tautline_baseline::{Measured, Setup, Side};

use super::case::{Device, Policy, Style};
use super::content::{Pattern, is_right};
use super::taut::job;

fn other<E: Into<Box<dyn std::error::Error + Send + Sync>>>(error: E) -> io::Error {
    io::Error::other(error)
}

/// One side of a pair of endpoints whose memories are open to each other.
pub struct Memory {
    endpoint: Endpoint,
    peer: Rank,
    style: Style,
    rpc: Rpc,
    served: Rc<Cell<u64>>,
    aperture: Aperture,
    _share: Share,
    remote: Remote,
    /// The peer's memory, mapped.
    mapped: Option<Mapped>,
    /// The last bytes of what is put.
    arrived: Tripwire,
    pattern: Pattern,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

/// What each tells the other: a cookie, and how to map.
type Mail = Rc<RefCell<Option<(Cookie, MapCookie)>>>;

impl Memory {
    /// Joins a fresh job with the other side, for puts of `bytes`, and connects.
    pub fn open(setup: &mut Setup<'_>, device: Device, style: Style, bytes: usize) -> io::Result<Memory> {
        let (rpc, served, mail) = (Rpc::new(), Rc::new(Cell::new(0)), Mail::default());
        let (counter, inbox) = (served.clone(), mail.clone());
        let builder = rpc.install(Endpoint::builder()).on_short("mail", move |m: Short<'_>| {
            let (cookie, map) = m.data().split_at(Cookie::LEN);
            let cookies = cookie.try_into().ok().zip(map.try_into().ok());
            *inbox.borrow_mut() =
                cookies.map(|(cookie, map)| (Cookie::from_bytes(cookie), MapCookie::from_bytes(map)));
        });
        let builder = rpc.serve_raw(builder, "echo", move |_, request, answer| {
            counter.set(counter.get() + 1);
            answer.extend_from_slice(request);
        });
        let endpoint = builder
            .config(Config { device: Some(device.device()), ..Config::default() })
            .waiting(Policy::Spin.waiting())
            .join_job(job(setup)?)
            .map_err(other)?;
        let peer = 1 - endpoint.rank();
        let bytes = bytes.max(8);
        let aperture = endpoint.aperture(bytes.next_multiple_of(8)).map_err(other)?;
        let share = aperture.share(Rights::ALL).map_err(other)?;
        let cookie = aperture.cookie(.., Rights::ALL).map_err(other)?;
        let arrived = aperture.tripwire(bytes as u64 - 8..).arm().map_err(other)?;
        let letter = [cookie.to_bytes(), share.cookie().to_bytes()].concat();
        endpoint.send(peer, "mail", &letter).map_err(other)?;
        endpoint.run_until(|| mail.borrow().is_some()).map_err(other)?;
        let (cookie, map) = mail.borrow().ok_or_else(|| other("no cookie came"))?;
        let remote = endpoint.remote(&cookie);
        let mapped = match style {
            Style::Mapped => Some(endpoint.map(&map).map_err(other)?),
            Style::Put | Style::Rpc => None,
        };
        let pattern = Pattern::new(bytes);
        let outgoing = vec![0; bytes];
        setup.barrier()?;
        let incoming = vec![0; bytes];
        Ok(Memory {
            _share: share,
            incoming,
            endpoint,
            peer,
            style,
            rpc,
            served,
            aperture,
            remote,
            mapped,
            arrived,
            pattern,
            outgoing,
        })
    }

    /// Leaves in good order.
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
        if is_right(number, &self.incoming) { Ok(()) } else { Err(other("not what was put")) }
    }

    fn store(&self, number: u64) -> io::Result<()> {
        self.mapped.as_ref().ok_or_else(|| other("not mapped"))?.write_u64(0, number).map_err(other)
    }

    fn watch(&self, number: u64) -> io::Result<()> {
        // Bounded, in case that the other side is gone.
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
        if self.style == Style::Rpc && side == Side::B {
            self.serve(count)?;
            return Ok(Vec::new());
        }
        let mut round_trips = Vec::with_capacity(count as usize);
        for number in from + 1..=from + count {
            let started = std::time::Instant::now();
            match (self.style, side) {
                (Style::Put, Side::A) => self.put(number).and_then(|()| self.arrive(number))?,
                (Style::Put, Side::B) => self.arrive(number).and_then(|()| self.put(number))?,
                (Style::Mapped, Side::A) => self.store(number).and_then(|()| self.watch(number))?,
                (Style::Mapped, Side::B) => self.watch(number).and_then(|()| self.store(number))?,
                (Style::Rpc, _) => self.call(1, 1)?,
            }
            round_trips.push(started.elapsed().as_nanos() as u64);
        }
        Ok(if side == Side::A { round_trips } else { Vec::new() })
    }

    fn serve(&self, count: u64) -> io::Result<()> {
        self.endpoint.run_until(|| self.served.get() >= count).map_err(other)?;
        self.served.set(self.served.get() - count);
        Ok(())
    }

    /// So many calls, so many of them at once.
    fn call(&self, count: u64, window: u64) -> io::Result<()> {
        let service = self.endpoint.handler("echo").map_err(other)?;
        let begin = || self.rpc.call_raw(&self.endpoint, self.peer, service, &self.outgoing).map_err(other);
        // Whoever has many to make lets them share frames; whoever waits lets them leave.
        let far = !self.endpoint.node().is_near(self.peer);
        let _together = (window > 1 && far).then(|| self.endpoint.batch());
        let mut calls = std::collections::VecDeque::with_capacity(window as usize);
        for done in 0..count {
            while (calls.len() as u64) < window.min(count - done) {
                calls.push_back(begin()?);
            }
            let call = calls.pop_front().ok_or_else(|| other("no call"))?;
            let right = call.wait_with(|answer| answer.len() == self.outgoing.len()).map_err(other)?;
            if !right {
                return Err(other("not what was asked"));
            }
        }
        Ok(())
    }

    /// One way, then an answer; of calls, so many at once.
    pub fn stream(&mut self, side: Side, count: u64, window: Option<u64>) -> io::Result<Measured> {
        let bytes = self.outgoing.len() as u64;
        let watch = Stopwatch::start();
        match (self.style, side) {
            (Style::Rpc, Side::A) => self.call(count, window.unwrap_or(1))?,
            (Style::Rpc, Side::B) => self.serve(count)?,
            (_, Side::A) => {
                // Rewritten by being written where it is sent from, as messages are.
                let (pattern, len) = (&self.pattern, self.outgoing.len());
                for number in 1..=count {
                    self.remote.fill(0, len, |at, room| pattern.write(number, at, room)).map_err(other)?;
                }
                self.arrived.wait().map_err(other)?;
            }
            (_, Side::B) => {
                let mut came = 0;
                while came < count {
                    came += self.arrived.wait().map_err(other)?;
                }
                self.put(1)?;
            }
        }
        Ok(watch.stop(count, count * bytes, 0))
    }
}
