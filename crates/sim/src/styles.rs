//! A world for calls, queues and streams: a server and a client under every fault of the network, which crash
//! and restart.
//!
//! The server makes a queue and a stream for each incarnation of its client, and serves calls. The client
//! fills both and calls. The world knows how often each call was executed: once if it was answered, and never
//! twice. Entries and bytes arrive in order and once, up to the end of those that were sent.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tautline::queue::{self, AsyncSender};
use tautline::rpc::{Answer, Call, CallError, Rpc};
use tautline::stream::{self, AsyncWriter};
use tautline::{Builder, Cookie, Endpoint, Error, Event, Result, Short};

use crate::harness::{self, Harness};
use crate::{Hosts, Nanos};

const SERVER: u32 = 0;
const CLIENT: u32 = 1;
/// Faults end at this time.
const HORIZON: Nanos = 2_000_000_000;
/// The most faults of a seed.
const FAULTS: u64 = 8;
/// Calls in progress at once.
const CALLS: usize = 8;

/// A deliberate mistake, to show that it is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// None.
    None,
    /// The service runs twice for one call.
    RunTwice,
    /// An entry of the queue is left out.
    DropEntry,
    /// A byte of the stream is changed.
    AlterByte,
    /// A byte of a long request is changed.
    AlterRequest,
    /// The service runs twice for a call that may be cancelled.
    RunCancelled,
}

/// The results of a seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that ended with an error, because a channel ended.
    pub failed: u64,
    /// Calls that were cancelled.
    pub cancelled: u64,
    /// Requests of which the service got only a part, since their calls were cancelled.
    pub given_up: u64,
    /// Of the calls that were answered, those with requests of more than a frame.
    pub long: u64,
    /// Entries of queues that were taken.
    pub entries: u64,
    /// Bytes of streams that were read.
    pub bytes: u64,
    /// Incarnations of both nodes.
    pub incarnations: u64,
    /// Incarnations of the client that sent everything to one of the server.
    pub finished: u64,
    /// A hash of all of it.
    pub hash: u64,
}

/// How often each call was executed, by its number.
type Executed = Rc<RefCell<HashMap<u64, u32>>>;
/// The cookies that the client was given.
type Offered = Rc<RefCell<Option<(Cookie, Cookie)>>>;
type Opening = Pin<Box<dyn Future<Output = Result<(AsyncSender, AsyncWriter)>>>>;

/// What the server has for the present client.
struct Serving {
    entries: queue::Receiver,
    bytes: stream::Reader,
    cookies: Vec<u8>,
    offered: bool,
    taken: u64,
    read: u64,
}

/// What the client sends to the present server.
struct Sending {
    entries: AsyncSender,
    bytes: AsyncWriter,
    pushed: u64,
    written: u64,
    ended: bool,
}

#[derive(Default)]
struct Incarnation {
    serving: Option<Serving>,
    opening: Option<Opening>,
    sending: Option<Sending>,
    calls: Vec<(u64, Call)>,
    called: u64,
    offered: Offered,
}

struct World {
    nodes: [Incarnation; 2],
    executed: Executed,
    /// The number of the next call.
    next_call: u64,
    /// Calls, entries and, times 100, bytes of each pair of incarnations.
    wanted: u64,
    mistake: Mistake,
    sum: Summary,
    // Dropped last.
    harness: Harness,
}

/// Runs one seed, with `wanted` calls and entries for each pair of incarnations.
pub fn run(seed: u64, wanted: u64, hosts: Hosts, mistake: Mistake) -> std::result::Result<Summary, String> {
    let mut world = World {
        nodes: Default::default(),
        executed: Executed::default(),
        next_call: 0,
        wanted,
        mistake,
        sum: Summary::default(),
        harness: Harness::new(seed, 0x7374_796c, (2, hosts), (HORIZON, FAULTS)),
    };
    harness::run(&mut world).map_err(|why| format!("styles seed {seed}: {why}"))?;
    Ok(Summary { incarnations: world.harness.incarnations, ..world.sum })
}

/// Whether a call has a request, and an answer, of several frames.
fn is_long(number: u64) -> bool {
    number % 4 == 2
}

/// Whether a long call is cancelled soon.
fn is_cancelled(number: u64) -> bool {
    number % 12 == 6
}

/// The bytes of a long request: its number, and up to some ten frames.
fn long_request(number: u64) -> Vec<u8> {
    let len = 2_000 + number * 37 % 13_000;
    let bytes = (0..len).map(|at| byte(at + number));
    number.to_le_bytes().into_iter().chain(bytes).collect()
}

fn long_answer(number: u64) -> Vec<u8> {
    long_request(number).into_iter().rev().collect()
}

/// The byte of a stream at a position.
fn byte(at: u64) -> u8 {
    (at ^ at >> 7) as u8
}

impl harness::World for World {
    fn harness(&mut self) -> &mut Harness {
        &mut self.harness
    }

    fn start(&mut self, node: u32) -> Builder {
        let it = Incarnation::default();
        let (slot, executed, mistake) = (it.offered.clone(), self.executed.clone(), self.mistake);
        self.nodes[node as usize] = it;
        let rpc = Rpc::new();
        let service = rpc.serve_raw("count", move |_, request: &[u8], answer: &mut Answer| {
            let number = u64::from_le_bytes(request.try_into().expect("the number of the call"));
            let times = if mistake == Mistake::RunTwice && number == 20 { 2 } else { 1 };
            *executed.borrow_mut().entry(number).or_default() += times;
            answer.extend_from_slice(&number.wrapping_mul(3).to_le_bytes());
        });
        let offer = move |message: Short<'_>| {
            let cookies: Vec<_> =
                message.data().chunks(Cookie::LEN).filter_map(|cookie| cookie.try_into().ok()).collect();
            let [entries, bytes] = cookies[..] else { return };
            *slot.borrow_mut() = Some((Cookie::from_bytes(entries), Cookie::from_bytes(bytes)));
        };
        let (executed, long_mistake) = (self.executed.clone(), mistake);
        let long = rpc.serve_bytes("long", move |_, request: Vec<u8>| {
            let number = request.first_chunk().map_or(u64::MAX, |number| u64::from_le_bytes(*number));
            let again = long_mistake == Mistake::RunCancelled && is_cancelled(number) && number > 20;
            *executed.borrow_mut().entry(number).or_default() += 1 + u32::from(again);
            // It waits once, so that a call can be cancelled while it runs.
            let mut waited = false;
            std::future::poll_fn(move |context| {
                if !std::mem::replace(&mut waited, true) {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                let right = request == long_request(number);
                Poll::Ready(if right { Ok(long_answer(number)) } else { Err(b"other bytes".into()) })
            })
        });
        Endpoint::builder().with(&rpc).with(service).with(long).on_short("offer", offer)
    }

    fn crash(&mut self, node: u32) {
        // What it called may have been executed, or not.
        self.sum.failed += self.nodes[node as usize].calls.len() as u64;
        self.nodes[node as usize] = Incarnation::default();
    }

    fn turn(&mut self, node: u32, _now: Nanos) -> std::result::Result<(), String> {
        self.take_events(node)?;
        if node == SERVER { self.serve() } else { self.send() }
    }

    /// Whether the client that lives now has sent everything to the server that lives now.
    fn is_done(&self) -> bool {
        let [server, client] = &self.nodes;
        let (Some(serving), Some(sending)) = (&server.serving, &client.sending) else { return false };
        sending.ended
            && client.called == self.wanted
            && client.calls.is_empty()
            && serving.entries.is_over().unwrap_or(false)
            && serving.read == 100 * self.wanted
    }

    fn compare(&mut self) -> std::result::Result<(), String> {
        let taken = self.nodes[SERVER as usize].serving.as_ref().map_or(0, |it| it.taken);
        if taken != self.wanted {
            return Err(format!("the queue ended after {taken} of {} entries", self.wanted));
        }
        if let Some((number, times)) = self.executed.borrow().iter().find(|(_, times)| **times > 1) {
            return Err(format!("call {number} was executed {times} times"));
        }
        self.sum.finished += 1;
        Ok(())
    }

    fn state(&self) -> String {
        format!("{:?}", self.sum)
    }
}

impl World {
    fn take_events(&mut self, node: u32) -> std::result::Result<(), String> {
        let (ep, it) = (self.harness.endpoint(node), &mut self.nodes[node as usize]);
        while let Some(event) = ep.poll_event() {
            match event {
                Event::PeerUp { .. } if node == SERVER => {
                    let (entries, queue) = queue::pair(ep, 4_096).map_err(|e| e.to_string())?;
                    let (bytes, stream) = stream::pair(ep, 4_096).map_err(|e| e.to_string())?;
                    let cookies = [queue.to_bytes(), stream.to_bytes()].concat();
                    it.serving = Some(Serving { entries, bytes, cookies, offered: false, taken: 0, read: 0 });
                }
                Event::PeerDown { .. } if node == CLIENT => {
                    (it.opening, it.sending, it.called) = (None, None, 0);
                }
                _ => {}
            }
        }
        while let Some(failure) = ep.poll_failure() {
            // A long request, or its answer, of which a channel carried only a part.
            let long = failure.handler == "long" || failure.handler.ends_with(".long");
            let half_way = long && failure.reason.contains("is gone");
            // Or of which a call that was cancelled has sent only a part.
            let given_up = long && node == SERVER && failure.reason.contains("aborted it");
            self.sum.given_up += u64::from(given_up);
            let expected = half_way || given_up && self.sum.given_up <= self.sum.cancelled;
            if failure.panicked || !expected {
                return Err(format!("{failure:?}"));
            }
        }
        Ok(())
    }

    /// Takes what has arrived.
    fn serve(&mut self) -> std::result::Result<(), String> {
        let ep = self.harness.endpoint(SERVER);
        let Some(serving) = &mut self.nodes[SERVER as usize].serving else { return Ok(()) };
        if !serving.offered {
            serving.offered = ep.try_send(CLIENT, "offer", &serving.cookies).is_ok();
        }
        while let Ok(Some(entry)) = serving.entries.try_pop() {
            let number = entry.first_chunk().map(|word| u64::from_le_bytes(*word));
            let right = number == Some(serving.taken) && entry.len() as u64 == 8 + serving.taken % 90;
            if !right {
                return Err(format!("entry {number:?} of {} bytes after {}", entry.len(), serving.taken));
            }
            serving.taken += 1;
            self.sum.entries += 1;
        }
        let mut buffer = [0; 700];
        while let Ok(len @ 1..) = serving.bytes.try_read(&mut buffer) {
            let right = buffer[..len].iter().zip(serving.read..).all(|(got, at)| *got == byte(at));
            if !right {
                return Err(format!("other bytes than were written from {} on", serving.read));
            }
            serving.read += len as u64;
            self.sum.bytes += len as u64;
        }
        self.sum.hash = crate::rng::mix(self.sum.hash ^ serving.taken ^ serving.read << 32);
        Ok(())
    }

    /// Calls, and fills the queue and the stream of the present server.
    fn send(&mut self) -> std::result::Result<(), String> {
        let (ep, it) = (self.harness.endpoint(CLIENT), &mut self.nodes[CLIENT as usize]);
        let _ = ep.connect(SERVER);
        let mut context = Context::from_waker(Waker::noop());
        if let Some((entries, bytes)) = it.offered.borrow_mut().take() {
            let ep = ep.to_async();
            it.opening = Some(Box::pin(async move {
                Ok((AsyncSender::new(&ep, &entries).await?, AsyncWriter::new(&ep, &bytes).await?))
            }));
        }
        if let Some(Poll::Ready(opened)) = it.opening.as_mut().map(|it| it.as_mut().poll(&mut context)) {
            it.opening = None;
            // An offer of a server that is gone is of no use.
            if let Ok((entries, bytes)) = opened {
                it.sending = Some(Sending { entries, bytes, pushed: 0, written: 0, ended: false });
            }
        }
        while it.sending.is_some() && it.called < self.wanted && it.calls.len() < CALLS {
            let number = self.next_call;
            let started = if is_long(number) {
                let mut request = long_request(number);
                let alters = self.mistake == Mistake::AlterRequest && number > 20;
                request[1_000] ^= u8::from(alters);
                ep.to_async().start_call_raw(SERVER, "long", &request, None)
            } else {
                ep.to_async().start_call_raw(SERVER, "count", &number.to_le_bytes(), None)
            };
            match started {
                Ok(call) => it.calls.push((number, call)),
                Err(_) => break,
            }
            (self.next_call, it.called) = (number + 1, it.called + 1);
        }
        let mut ended = Ok(());
        let rng = &mut self.harness.rng;
        it.calls.retain_mut(|(number, call)| match Pin::new(call).poll(&mut context) {
            // Dropped here, it is cancelled.
            Poll::Pending if is_cancelled(*number) && rng.chance(300_000) => {
                self.sum.cancelled += 1;
                false
            }
            Poll::Pending => true,
            Poll::Ready(answer) => {
                ended = ended.clone().and(self.sum.note(*number, answer, &self.executed));
                false
            }
        });
        ended?;
        if it.sending.as_mut().is_some_and(|sending| sending.fill(self.wanted, self.mistake).is_err()) {
            it.sending = None;
        }
        Ok(())
    }
}

impl Summary {
    /// Adds the results of another seed.
    pub fn add(&mut self, more: &Summary) {
        self.answered += more.answered;
        self.failed += more.failed;
        self.cancelled += more.cancelled;
        self.given_up += more.given_up;
        self.long += more.long;
        self.entries += more.entries;
        self.bytes += more.bytes;
        self.incarnations += more.incarnations;
        self.finished += more.finished;
        self.hash ^= more.hash;
    }

    /// A call has ended.
    fn note(
        &mut self,
        number: u64,
        answer: std::result::Result<Vec<u8>, CallError>,
        executed: &Executed,
    ) -> std::result::Result<(), String> {
        let times = executed.borrow().get(&number).copied().unwrap_or(0);
        match answer {
            Ok(_) if times != 1 => return Err(format!("call {number} was executed {times} times")),
            Ok(answer) if is_long(number) && answer == long_answer(number) => {
                (self.answered, self.long) = (self.answered + 1, self.long + 1);
            }
            Ok(answer) if !is_long(number) && answer == number.wrapping_mul(3).to_le_bytes() => {
                self.answered += 1;
            }
            Ok(answer) => {
                return Err(format!("call {number} was answered with {} wrong bytes", answer.len()));
            }
            Err(CallError::Endpoint(Error::PeerGone(..) | Error::Send(_))) => self.failed += 1,
            Err(other) => return Err(format!("call {number}: {other}")),
        }
        Ok(())
    }
}

impl Sending {
    /// Pushes and writes as much as there is room for.
    fn fill(&mut self, wanted: u64, mistake: Mistake) -> Result<()> {
        while self.pushed < wanted {
            let number = self.pushed + u64::from(mistake == Mistake::DropEntry && self.pushed >= 20);
            let mut entry = vec![7; 8 + (number % 90) as usize];
            entry[..8].copy_from_slice(&number.to_le_bytes());
            if !self.entries.try_push(&entry)? {
                break;
            }
            self.pushed += 1;
        }
        while self.written < 100 * wanted {
            let len = (100 * wanted - self.written).min(333);
            let mut bytes: Vec<u8> = (self.written..self.written + len).map(byte).collect();
            if mistake == Mistake::AlterByte && self.written >= 1_000 {
                bytes[0] ^= 1;
            }
            match self.bytes.try_write(&bytes) {
                Ok(some) => self.written += some as u64,
                Err(error) if error.is_would_block() => break,
                Err(error) => return Err(error),
            }
        }
        if self.pushed == wanted && self.written == 100 * wanted && !self.ended {
            self.entries.end()?;
            self.bytes.close()?;
            self.ended = true;
        }
        Ok(())
    }
}
