//! Loans, back and forth. Only the time between sending a loan and its arrival is measured: it is filled
//! before, and read after.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Instant;

use tautline::{Borrowed, Config, DeviceName, Endpoint, Handler, Loan, Rank, Waiting};
use tautline_baseline::content::Pattern;
use tautline_baseline::transport::SILENCE;
use tautline_baseline::{Setup, Side};

use super::taut::job;

/// How often each side says that it is ready before a measurement.
const READY: u64 = 3;

/// What has arrived, and how often the other side has said that it is ready.
#[derive(Default)]
struct Inbox {
    message: RefCell<Option<Borrowed>>,
    ready: Cell<u64>,
}

/// One side of a pair that sends loans.
pub struct Lender {
    endpoint: Endpoint,
    peer: Rank,
    lent: Handler,
    ready: Handler,
    inbox: Rc<Inbox>,
    pattern: Pattern,
    bytes: usize,
    place: Vec<u8>,
    count: u64,
}

impl Lender {
    /// Joins a fresh job with the other side, for messages of `bytes`.
    pub fn open(setup: &mut Setup<'_>, bytes: usize) -> io::Result<Lender> {
        let inbox = Rc::new(Inbox::default());
        let (messages, calls) = (inbox.clone(), inbox.clone());
        let endpoint = Endpoint::builder()
            .on_loan("lent", move |message| drop(messages.message.replace(Some(message))))
            .on_loan("ready", move |_| calls.ready.set(calls.ready.get() + 1))
            .config(Config::with(|config| config.device = Some(DeviceName::Shm)))
            .waiting(Waiting::Spin)
            .join_job(job(setup)?)
            .map_err(io::Error::other)?;
        Ok(Lender {
            peer: 1 - endpoint.rank(),
            lent: endpoint.handler("lent").map_err(io::Error::other)?,
            ready: endpoint.handler("ready").map_err(io::Error::other)?,
            endpoint,
            inbox,
            pattern: Pattern::new(bytes),
            bytes,
            place: vec![0; bytes],
            count: 0,
        })
    }

    /// Closes in good order.
    pub fn close(self, setup: &mut Setup<'_>) -> io::Result<()> {
        setup.barrier()?;
        drop(self.inbox.message.take());
        self.endpoint.close().map_err(io::Error::other)
    }

    /// Round trips in nanoseconds on side A.
    pub fn ping_pong(&mut self, side: Side, count: u64) -> io::Result<Vec<u64>> {
        let mut round_trips = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let loan = self.filled()?;
            let took = match side {
                Side::A => {
                    // The other side has filled its answer too. It says so by loans, so that filling and
                    // reading have not evicted the measured code and data from the caches.
                    for _ in 0..READY {
                        let due = self.inbox.ready.get() + 1;
                        self.say_ready()?;
                        self.until(|inbox| inbox.ready.get() >= due)?;
                    }
                    let started = Instant::now();
                    loan.send(self.lent).map_err(io::Error::other)?;
                    self.until(|inbox| inbox.message.borrow().is_some())?;
                    let took = started.elapsed();
                    // The other side reads only now: its copying would slow down what is measured here.
                    self.say_ready()?;
                    took
                }
                Side::B => {
                    let started = Instant::now();
                    for i in 0..READY {
                        self.until(|inbox| inbox.ready.get() > self.count * (READY + 1) + i)?;
                        self.say_ready()?;
                    }
                    self.until(|inbox| inbox.message.borrow().is_some())?;
                    loan.send(self.lent).map_err(io::Error::other)?;
                    self.until(|inbox| inbox.ready.get() > self.count * (READY + 1) + READY)?;
                    started.elapsed()
                }
            };
            self.read()?;
            if side == Side::A {
                round_trips.push(took.as_nanos() as u64);
            }
        }
        Ok(round_trips)
    }

    fn say_ready(&self) -> io::Result<()> {
        let loan = self.endpoint.loan(self.peer, 8).map_err(io::Error::other)?;
        loan.send(self.ready).map_err(io::Error::other)
    }

    /// Returns the next message, written where the other side will read it.
    fn filled(&mut self) -> io::Result<Loan> {
        let mut loan = self.endpoint.loan(self.peer, self.bytes).map_err(io::Error::other)?;
        if !loan.is_shared() {
            return Err(io::Error::other("nothing can be lent to the other side"));
        }
        self.pattern.write(self.count, &mut loan);
        Ok(loan)
    }

    /// Reads what has arrived, and returns it.
    fn read(&mut self) -> io::Result<()> {
        let message = self.inbox.message.take().ok_or(io::ErrorKind::UnexpectedEof)?;
        message.copy_to(0, &mut self.place);
        let number = self.count;
        self.count += 1;
        self.pattern.check(number, &self.place)
    }

    #[inline]
    fn until(&self, done: impl Fn(&Inbox) -> bool) -> io::Result<()> {
        loop {
            self.endpoint.extract(usize::MAX).map_err(io::Error::other)?;
            if done(&self.inbox) {
                return Ok(());
            }
            if !self.endpoint.wait(Some(SILENCE)).map_err(io::Error::other)? {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the other side is silent"));
            }
            while self.endpoint.poll_event().is_some() {}
        }
    }
}
