//! Two nodes on one virtual clock, joined by queues of frames that a fuzz target may alter; or on one
//! simulated host, where they share memory.
#![allow(dead_code)]

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tautline_node::SimulatedHost;
use tautline::node::link::JobKey;
use tautline::{Builder, Clock, Config, Endpoint, Environment, Job, Member, PeerState, Security};
use tautline_device::{Arena, Counters, Datagram, DeviceEvent, RouteId, RxBatch, SlotId};

const MAX_FRAME: usize = 1_472;
/// Frames under way per direction, at most; further ones are lost.
const MAX_QUEUE: usize = 256;
const MILLI: u64 = 1_000_000;

/// The fuzzer's input, read from the front.
pub struct Program<'a>(&'a [u8]);

impl<'a> Program<'a> {
    pub fn new(data: &'a [u8]) -> Program<'a> {
        Program(data)
    }

    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub fn small(&mut self) -> usize {
        usize::from(self.byte().unwrap_or(0))
    }

    pub fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, at| word | (self.small() as u64) << (8 * at))
    }

    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// Frames under way, by receiver.
pub type Queues = Arc<Mutex<[VecDeque<Vec<u8>>; 2]>>;

fn lock(queues: &Queues) -> MutexGuard<'_, [VecDeque<Vec<u8>>; 2]> {
    queues.lock().unwrap_or_else(PoisonError::into_inner)
}

fn address(rank: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 7_000 + rank as u16))
}

/// One end of the queues.
struct Wire {
    rank: usize,
    queues: Queues,
    arena: Arena,
}

impl Datagram for Wire {
    fn name(&self) -> &'static str {
        "queue"
    }

    fn local_addr(&self) -> SocketAddr {
        address(self.rank)
    }

    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }

    fn arena_ref(&self) -> &Arena {
        &self.arena
    }

    fn route(&mut self, _: SocketAddr) -> io::Result<RouteId> {
        Ok(RouteId(0))
    }

    fn max_frame(&self, _: RouteId) -> usize {
        MAX_FRAME
    }

    fn send(&mut self, _: RouteId, slot: SlotId, range: Range<usize>) {
        let queue = &mut lock(&self.queues)[1 - self.rank];
        if queue.len() < MAX_QUEUE {
            queue.push_back(self.arena.bytes(slot, range).to_vec());
        }
    }

    fn flush(&mut self) {}

    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<usize> {
        batch.clear();
        let queue = &mut lock(&self.queues)[self.rank];
        while batch.has_room() {
            let Some(frame) = queue.pop_front() else { break };
            batch.push(address(1 - self.rank), &frame);
        }
        Ok(batch.frames().len())
    }

    fn receive_buffer(&self) -> usize {
        1 << 20
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        None
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// Rank 0, whose frames are altered, and rank 1, which must survive them.
pub struct Pair {
    pub ends: [Endpoint; 2],
    queues: Queues,
    clock: Arc<AtomicU64>,
    /// Frames that are held back from rank 1, so that they can be altered.
    pub held: VecDeque<Vec<u8>>,
}

impl Pair {
    /// Two nodes that are connected. Without tags, so that altered frames reach what is behind the link.
    pub fn new(build: impl Fn(u32) -> Builder, local: bool) -> Pair {
        let (queues, clock) = (Queues::default(), Arc::new(AtomicU64::new(1)));
        let host = local.then(SimulatedHost::new);
        let join = |rank: u32| {
            let job = Job::new(rank, JobKey::new([7; 32]), (0..2).map(|n| Member::new(address(n))).collect());
            let config = Config::with(|config| {
                config.link.security = Security::Open;
                config.link.credit_slots = 64;
                config.loan_pool = 1 << 20;
            });
            let arena = Arena::new(128, MAX_FRAME);
            let wire = Wire { rank: rank as usize, queues: queues.clone(), arena };
            let environment =
                Environment::new(Box::new(wire), Clock::Virtual(clock.clone()), [rank as u8 + 1; 32]);
            build(rank).config(config).join_in(&job, environment.on_host(host.clone())).unwrap()
        };
        let ends = [join(0), join(1)];
        let mut pair = Pair { ends, queues, clock, held: VecDeque::new() };
        pair.ends[0].connect(1).unwrap();
        let up = |pair: &Pair| {
            (0..2).all(|rank| pair.ends[rank].peer_state(1 - rank as u32) == Some(PeerState::Up))
        };
        for _ in 0..400 {
            if up(&pair) {
                return pair;
            }
            pair.advance(MILLI / 4);
        }
        panic!("the nodes do not connect");
    }

    /// Lets time pass, and both nodes run. Handlers that fail may; none may panic.
    pub fn advance(&mut self, nanos: u64) {
        self.clock.fetch_add(nanos, Ordering::Relaxed);
        for end in &self.ends {
            let _ = end.node().progress_woken();
            let _ = end.extract(usize::MAX);
            while let Some(failure) = end.poll_failure() {
                assert!(!failure.panicked, "{failure:?}");
            }
            while end.poll_event().is_some() {}
        }
    }

    /// Takes what is under way to rank 1 into [`Pair::held`].
    pub fn hold(&mut self) {
        self.held.extend(lock(&self.queues)[1].drain(..));
        self.held.truncate(MAX_QUEUE);
    }

    /// Delivers a frame to rank 1.
    pub fn deliver(&mut self, frame: Vec<u8>) {
        lock(&self.queues)[1].push_back(frame);
    }

    /// Delivers what was held back.
    pub fn release(&mut self) {
        let held = std::mem::take(&mut self.held);
        held.into_iter().for_each(|frame| self.deliver(frame));
    }

    /// Writes bytes of the program over the next frame that is held back, and delivers it.
    pub fn alter(&mut self, program: &mut Program<'_>) {
        let Some(mut frame) = self.held.pop_front() else { return };
        for _ in 0..1 + program.small() % 4 {
            let (at, len) =
                (program.small() * 6 % frame.len().max(1) + program.small() % 6, program.small() % 16);
            for (to, from) in frame.iter_mut().skip(at).zip(program.bytes(len)) {
                *to = *from;
            }
        }
        if program.small() % 8 == 0 {
            frame.truncate(program.small() * 6);
        }
        self.deliver(frame);
    }
}
