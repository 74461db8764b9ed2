//! Our side of a measurement of calls: one client, one server, raw or typed.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use tautline::rpc::{Call, Rpc, TypedCall};
use tautline::{Config, Endpoint, Handler, Rank};
use tautline_baseline::content::{Pattern, is_sabotaged, make_words, read_words};
use tautline_baseline::cpu::Stopwatch;
use tautline_baseline::{Measured, Setup, Side};

use super::case::{Device, Style};
use super::memory::other;
use super::taut::{job, wait_for_direct_route};

/// A client or a server.
pub struct Calls {
    endpoint: Endpoint,
    peer: Rank,
    typed: bool,
    rpc: Rpc,
    raw: Handler,
    echo: Handler,
    served: Rc<Cell<u64>>,
    pattern: Rc<Pattern>,
    /// The next call's number.
    next: u64,
    request: Vec<u8>,
}

/// The content of typed calls: words, as in the typed calls of every system here.
type Words = Vec<u64>;

/// A call in progress.
enum PendingCall {
    Raw(Call),
    Typed(TypedCall<Words>),
}

impl Calls {
    /// Joins a fresh job with the other side, for calls of `bytes`.
    pub fn open(setup: &mut Setup<'_>, device: Device, style: Style, bytes: usize) -> io::Result<Calls> {
        let (rpc, served) = (Rpc::new(), Rc::new(Cell::new(0)));
        let (raw, typed) = (served.clone(), served.clone());
        let pattern = Rc::new(Pattern::new(bytes));
        let (reader, buffer) = (pattern.clone(), RefCell::new(vec![0; bytes]));
        let builder = Endpoint::builder().with(&rpc).with(rpc.serve_raw("raw", move |_, request, answer| {
            let number = raw.replace(raw.get() + 1);
            // A request that is not what was sent has no answer, which the client detects.
            if reader.check(number, request).is_ok() {
                let mut buffer = buffer.borrow_mut();
                reader.write(number, &mut buffer);
                answer.extend_from_slice(&buffer);
            }
        }));
        let builder = builder.with(rpc.serve("echo", move |_, words: Words| {
            typed.set(typed.get() + 1);
            let answer = read_words(&words).map_or(Words::new(), |number| make_words(number, words.len()));
            std::future::ready(Ok::<Words, ()>(answer))
        }));
        let endpoint = builder
            .config(Config::with(|config| config.device = Some(device.device())))
            .waiting(style.waiting().waiting())
            .join_job(job(setup)?)
            .map_err(other)?;
        let peer = 1 - endpoint.rank();
        if device.is_xdp() {
            // Neighbours are found with the first frames.
            endpoint.barrier().map_err(other)?;
            wait_for_direct_route(&endpoint, peer, device)?;
        }
        Ok(Calls {
            peer,
            typed: style == Style::TypedRpc,
            rpc,
            raw: endpoint.handler("raw").map_err(other)?,
            echo: endpoint.handler("echo").map_err(other)?,
            served,
            pattern,
            next: 0,
            request: vec![0; bytes],
            endpoint,
        })
    }

    /// Closes in good order.
    pub fn close(self, setup: &mut Setup<'_>) -> io::Result<()> {
        setup.barrier()?;
        self.endpoint.close().map_err(other)
    }

    /// Side A calls, with up to `window` calls in progress; side B serves.
    pub fn run(&mut self, side: Side, count: u64, window: u64) -> io::Result<Measured> {
        let bytes = self.request.len() as u64;
        let watch = Stopwatch::start();
        match side {
            Side::A => self.ask(count, window)?,
            Side::B => {
                self.next += count;
                self.endpoint.run_until(|| self.served.get() >= self.next).map_err(other)?;
            }
        }
        Ok(watch.stop(count, count * bytes, 0))
    }

    fn ask(&mut self, count: u64, window: u64) -> io::Result<()> {
        // With many calls in progress they share frames; before a wait they are sent.
        let far = !self.endpoint.node().is_local(self.peer);
        let endpoint = self.endpoint.clone();
        let _together = (window > 1 && far).then(|| endpoint.batch());
        let mut calls = VecDeque::with_capacity(window as usize);
        let (first, mut begun) = (self.next, self.next);
        self.next += count;
        for number in first..first + count {
            while begun < self.next.min(number + window) {
                calls.push_back(self.begin(begun)?);
                begun += 1;
            }
            let call = calls.pop_front().ok_or_else(|| other("no call"))?;
            if !self.end(call, number)? {
                return Err(other("the answer is not that of the request"));
            }
        }
        Ok(())
    }

    #[inline]
    fn begin(&mut self, number: u64) -> io::Result<PendingCall> {
        if self.typed {
            let words = make_words(number, self.request.len() / 8);
            return self
                .rpc
                .call(&self.endpoint, self.peer, self.echo, &words)
                .map(PendingCall::Typed)
                .map_err(other);
        }
        self.pattern.write(number, &mut self.request);
        self.rpc
            .call_raw(&self.endpoint, self.peer, self.raw, &self.request)
            .map(PendingCall::Raw)
            .map_err(other)
    }

    #[inline]
    fn end(&self, call: PendingCall, number: u64) -> io::Result<bool> {
        match call {
            PendingCall::Raw(call) => {
                call.wait_with(|answer| self.pattern.check(number, answer).is_ok()).map_err(other)
            }
            PendingCall::Typed(call) => {
                let words = call.wait().map_err(other)?;
                let right = read_words(&words) == Some(number) && words.len() == self.request.len() / 8;
                Ok(right || is_sabotaged())
            }
        }
    }
}
