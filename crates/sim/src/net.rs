//! The virtual network: paths with bandwidth, delay, queues and every kind of fault, and the heap of future
//! events.
//!
//! All of it is ordered by (time, sequence), so that a seed decides everything. What does not live here:
//! nodes and what their programs do.

mod paths;
mod switch;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tautline::Address;

use crate::Nanos;
use crate::places::Places;
use crate::rng::Rng;
use crate::trace::Trace;
use paths::{Held, Paths};
pub use switch::NetworkModel;
use switch::Switch;

/// A path without temporary faults. Shares are in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathOptions {
    /// Bandwidth in megabits per second; zero for unlimited.
    pub mbps: u64,
    /// One-way delay in nanoseconds.
    pub delay_ns: Nanos,
    /// Additional delay of up to this, drawn for each frame; does not change the order.
    pub jitter_ns: Nanos,
    /// Bytes that may wait to be put on the wire; more are dropped at the tail. Zero for unlimited.
    pub queue_bytes: u64,
    /// Share of frames that vanish.
    pub loss_ppm: u32,
    /// Share of frames that arrive twice, the copy sometimes much later.
    pub duplicate_ppm: u32,
    /// Share of frames that are held back.
    pub reorder_ppm: u32,
    /// Frames that may overtake one that is held back, at most.
    pub reorder_by: u64,
    /// Share of frames that are damaged: bits flipped, or truncated.
    pub corrupt_ppm: u32,
}

impl PathOptions {
    pub(crate) fn has_chance_faults(&self) -> bool {
        [self.loss_ppm, self.duplicate_ppm, self.reorder_ppm, self.corrupt_ppm].iter().any(|share| *share > 0)
    }
}

/// Bytes around a frame on the wire: UDP, IP, Ethernet.
const OVERHEAD: u64 = 66;
/// What a frame costs the receiver's buffer beside its bytes.
const CHARGE: usize = 256;
/// The share of frames that a burst drops.
const BURST_PPM: u32 = 950_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    Arrive { to: u32, frame: u32 },
    Release { path: u32, id: u64 },
    Run { node: u32 },
    Fault { index: u32 },
}

/// One node's plug.
#[derive(Debug)]
pub(crate) struct Port {
    /// Which incarnation of the node is plugged in; zero for none.
    pub(crate) incarnation: u64,
    pub(crate) rx: VecDeque<u32>,
    rx_bytes: usize,
    pub(crate) rx_limit: usize,
    /// Limits of paths that its device has not reported yet: to where, and the longest frame.
    pub(crate) path_limits: VecDeque<(SocketAddr, usize)>,
    /// When the node runs next; `Nanos::MAX` if nothing is planned.
    run_at: Nanos,
    /// It does not run before this.
    pub(crate) not_before: Nanos,
    /// How long after a frame's arrival the node polls.
    pub(crate) latency: Nanos,
}

/// Counters of the network; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetCounters {
    /// Frames handed to the network.
    pub sent: u64,
    /// Frames that reached a node's buffer.
    pub delivered: u64,
    /// Bytes of those.
    pub delivered_bytes: u64,
    /// Lost by chance or in a burst.
    pub lost: u64,
    /// Lost in a black hole or partition.
    pub blocked: u64,
    /// Dropped at the tail of a queue.
    pub tail_dropped: u64,
    /// Dropped because a node's buffer was full.
    pub overflowed: u64,
    /// Too large for the path.
    pub too_large: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Held back so that others overtook them.
    pub reordered: u64,
    /// Damaged.
    pub corrupted: u64,
    /// For or from a node that had crashed.
    pub unplugged: u64,
}

/// A frame in transit.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    pub(crate) from: u32,
    pub(crate) bytes: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Net {
    clock: Arc<AtomicU64>,
    heap: BinaryHeap<Reverse<(Nanos, u64, What)>>,
    sequence: u64,
    places: Places,
    pub(crate) ports: Vec<Port>,
    pub(crate) paths: Paths,
    /// If there is one, frames pass it instead of the paths, and without their faults.
    switch: Option<Switch>,
    frames: Vec<Frame>,
    free: Vec<u32>,
    rng: Rng,
    pub(crate) hash: u64,
    pub(crate) counters: NetCounters,
    pub(crate) trace: Option<Trace>,
    /// The next device that sends leaks a slot: see [`crate::Sabotage::LeakLate`].
    pub(crate) leaks: bool,
}

/// The port of lane 0; the other lanes have the next ones.
const FIRST_PORT: u16 = 7_000;

/// The address of lane 0 of a rank.
pub(crate) fn address(rank: u32) -> SocketAddr {
    let [_, high, middle, low] = (rank + 1).to_be_bytes();
    SocketAddr::from(([10, high, middle, low], FIRST_PORT))
}

impl Net {
    pub(crate) fn new(places: Places, seed: u64, options: PathOptions, mtu: usize, rx_limit: usize) -> Net {
        let port = |_| Port {
            incarnation: 0,
            rx: VecDeque::new(),
            rx_bytes: 0,
            rx_limit,
            path_limits: VecDeque::new(),
            run_at: Nanos::MAX,
            not_before: 0,
            latency: 1_000,
        };
        Net {
            clock: Arc::default(),
            heap: BinaryHeap::new(),
            sequence: 0,
            places,
            ports: (0..places.count()).map(port).collect(),
            paths: Paths::new(options, mtu),
            switch: None,
            frames: Vec::new(),
            free: Vec::new(),
            rng: Rng::new(seed, 0x6e65_7477),
            hash: 0xcbf2_9ce4_8422_2325,
            counters: NetCounters::default(),
            trace: None,
            leaks: false,
        }
    }

    /// A network of one switch, without faults.
    pub(crate) fn switched(places: Places, model: NetworkModel, mtu: usize, rx_limit: usize) -> Net {
        let mut net = Net::new(places, 0, PathOptions::default(), mtu, rx_limit);
        net.ports.iter_mut().for_each(|port| port.latency = model.wake_ns);
        net.switch = Some(Switch::new(model, places.count()));
        net
    }

    /// A node begins to run.
    pub(crate) fn begin_run(&mut self, node: u32) {
        let now = self.now();
        if let Some(switch) = &mut self.switch {
            switch.begin_run(now, node);
        }
    }

    /// A node has run: it does not run again before its processor is free, and at the latest at `at`.
    pub(crate) fn end_run(&mut self, node: u32, at: Nanos) {
        if let Some(switch) = &self.switch {
            self.ports[node as usize].not_before = switch.busy_until(node);
        }
        self.wake(node, at);
    }

    pub(crate) fn clock(&self) -> Arc<AtomicU64> {
        self.clock.clone()
    }

    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        self.clock.load(Ordering::Relaxed)
    }

    /// The address of a place.
    pub(crate) fn address(&self, place: u32) -> SocketAddr {
        let mut address = address(self.places.rank(place));
        address.set_port(FIRST_PORT + self.places.lane(place));
        address
    }

    fn place_of(&self, addr: SocketAddr) -> Option<u32> {
        let SocketAddr::V4(addr) = addr else { return None };
        let [10, high, middle, low] = addr.ip().octets() else { return None };
        let rank = u32::from_be_bytes([0, high, middle, low]).checked_sub(1)?;
        let lane = addr.port().checked_sub(FIRST_PORT)?;
        let exists = rank < self.places.ranks && u32::from(lane) < self.places.lanes;
        exists.then(|| self.places.at(Address::new(rank, lane).into()))
    }

    /// When the last frame from one node reaches the other, not counting repetitions by the network of what
    /// has arrived intact.
    pub(crate) fn last_heard(&self, from: u32, to: u32) -> Nanos {
        self.paths.get(from, to).last_heard
    }

    pub(crate) fn path_mut(&mut self, from: u32, to: u32) -> &mut paths::Path {
        let number = self.paths.number(from, to);
        self.paths.at(number)
    }

    /// Adds an event to the hash of the trace.
    #[inline]
    pub(crate) fn note(&mut self, a: u64, b: u64) {
        self.hash = (self.hash ^ a).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        self.hash = (self.hash ^ b).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    pub(crate) fn schedule(&mut self, at: Nanos, what: What) {
        self.sequence += 1;
        self.heap.push(Reverse((at.max(self.now()), self.sequence, what)));
    }

    /// Schedules the node to run at `at`, or earlier if that is planned already.
    pub(crate) fn wake(&mut self, node: u32, at: Nanos) {
        let at = at.max(self.ports[node as usize].not_before).max(self.now());
        if at < self.ports[node as usize].run_at {
            self.ports[node as usize].run_at = at;
            self.schedule(at, What::Run { node });
        }
    }

    /// Whether a run is planned for this time; if so, it begins.
    fn take_run(&mut self, node: u32, at: Nanos) -> bool {
        let port = &mut self.ports[node as usize];
        if port.run_at != at {
            return false;
        }
        port.run_at = Nanos::MAX;
        if port.not_before > at {
            let later = port.not_before;
            self.wake(node, later);
            return false;
        }
        true
    }

    /// Runs the network until a node is to run or a fault is due; advances the clock.
    pub(crate) fn advance(&mut self) -> Option<(Nanos, What)> {
        while let Some(Reverse((at, _, what))) = self.heap.pop() {
            self.clock.store(at, Ordering::Relaxed);
            match what {
                What::Arrive { to, frame } => self.arrive(at, to, frame),
                What::Release { path, id } => self.release(at, path, id),
                What::Run { node } if !self.take_run(node, at) => {}
                What::Run { .. } | What::Fault { .. } => return Some((at, what)),
            }
        }
        None
    }

    fn arrive(&mut self, at: Nanos, to: u32, frame: u32) {
        let len = self.frames[frame as usize].bytes.len();
        let digest = digest(&self.frames[frame as usize].bytes);
        self.note(at ^ u64::from(to) << 56, digest);
        let port = &mut self.ports[to as usize];
        let verdict = if port.incarnation == 0 {
            self.counters.unplugged += 1;
            "no node"
        } else if port.rx_bytes + len + CHARGE > port.rx_limit {
            self.counters.overflowed += 1;
            "buffer full"
        } else {
            port.rx_bytes += len + CHARGE;
            port.rx.push_back(frame);
            self.counters.delivered += 1;
            self.counters.delivered_bytes += len as u64;
            let latency = port.latency;
            self.wake(to, at + latency);
            ""
        };
        let from = self.frames[frame as usize].from;
        let addresses = (self.address(from), self.address(to));
        if let Some(trace) = &mut self.trace {
            trace.frame(at, (from, to), addresses, &self.frames[frame as usize].bytes, verdict);
        }
        if !verdict.is_empty() {
            self.recycle(frame);
        }
    }

    fn release(&mut self, at: Nanos, path: u32, id: u64) {
        let path = self.paths.at(path);
        let to = path.to;
        if let Some(i) = path.held.iter().position(|h| h.id == id) {
            let frame = path.held.remove(i).frame;
            self.schedule(at, What::Arrive { to, frame });
        }
    }

    /// Takes the next frame out of a node's buffer.
    pub(crate) fn receive(&mut self, node: u32) -> Option<u32> {
        let port = &mut self.ports[node as usize];
        let frame = port.rx.pop_front()?;
        port.rx_bytes -= self.frames[frame as usize].bytes.len() + CHARGE;
        if let Some(switch) = &mut self.switch {
            switch.received(node);
        }
        Some(frame)
    }

    pub(crate) fn frame(&self, frame: u32) -> &Frame {
        &self.frames[frame as usize]
    }

    pub(crate) fn recycle(&mut self, frame: u32) {
        self.free.push(frame);
    }

    /// From now on no path loses, repeats, reorders or damages frames by chance.
    pub(crate) fn end_chance_faults(&mut self) {
        self.paths.change_all(|path| {
            path.options.loss_ppm = 0;
            path.options.duplicate_ppm = 0;
            path.options.reorder_ppm = 0;
            path.options.corrupt_ppm = 0;
        });
    }

    /// The node has crashed: frames that wait for it are dropped.
    pub(crate) fn unplug(&mut self, node: u32) {
        while let Some(frame) = self.receive(node) {
            self.recycle(frame);
        }
        let port = &mut self.ports[node as usize];
        port.incarnation = 0;
        port.path_limits.clear();
        port.run_at = Nanos::MAX;
    }

    /// Sends a frame through the faults that the head of this file lists.
    pub(crate) fn transmit(&mut self, from: u32, to: SocketAddr, bytes: &[u8]) {
        self.counters.sent += 1;
        let now = self.now();
        let Some(to) = self.place_of(to) else {
            self.counters.unplugged += 1;
            return;
        };
        if let Some(switch) = &mut self.switch {
            let Some(arrival) = switch.pass(from, to, bytes.len() as u64 + OVERHEAD) else {
                self.counters.tail_dropped += 1;
                return self.trace_line(now, from, to, bytes, "queue full");
            };
            let frame = self.keep(from, bytes);
            return self.schedule(arrival, What::Arrive { to, frame });
        }
        let index = self.paths.number(from, to);
        let path = self.paths.at(index);
        if bytes.len() > path.mtu {
            self.counters.too_large += 1;
            // A router reports it, but not for every frame.
            if path.reports_mtu && now >= path.reported_at {
                path.reported_at = now + 1_000_000;
                let limit = (self.address(to), self.paths.at(index).mtu);
                self.ports[from as usize].path_limits.push_back(limit);
            }
            return self.trace_line(now, from, to, bytes, "too large");
        }
        let options = path.options;
        let start = path.busy_until.max(now);
        let waiting = ((start - now) * options.mbps) / 8_000;
        if options.queue_bytes > 0 && waiting > options.queue_bytes {
            self.counters.tail_dropped += 1;
            return self.trace_line(now, from, to, bytes, "queue full");
        }
        let time = (bytes.len() as u64 + OVERHEAD) * 8_000;
        path.busy_until = start + time.checked_div(options.mbps).unwrap_or(0);
        if now < path.blocked_until {
            self.counters.blocked += 1;
            return self.trace_line(now, from, to, bytes, "dark");
        }
        let loss = if now < path.burst_until { BURST_PPM } else { options.loss_ppm };
        if self.rng.chance(loss) {
            self.counters.lost += 1;
            return self.trace_line(now, from, to, bytes, "lost");
        }
        let jitter = if options.jitter_ns > 0 { self.rng.below(options.jitter_ns) } else { 0 };
        let arrival = (path.busy_until + options.delay_ns + jitter).max(path.last_arrival);
        path.last_arrival = arrival;
        path.last_heard = path.last_heard.max(arrival);
        let intact = self.copy(index, (from, to), arrival, bytes);
        if self.rng.chance(options.duplicate_ppm) {
            self.counters.duplicated += 1;
            let late = if self.rng.chance(60_000) { self.rng.magnitude(1_000, 1_500_000_000) } else { 0 };
            if !intact {
                let path = self.paths.at(index);
                path.last_heard = path.last_heard.max(arrival + late);
            }
            self.copy(index, (from, to), arrival + late, bytes);
        }
        self.pass_held(index, to, arrival);
    }

    #[inline]
    fn trace_line(&mut self, now: Nanos, from: u32, to: u32, bytes: &[u8], verdict: &str) {
        let addresses = (self.address(from), self.address(to));
        if let Some(trace) = &mut self.trace {
            trace.frame(now, (from, to), addresses, bytes, verdict);
        }
    }

    /// Gives the memory of frames and events back that are not under way.
    pub(crate) fn shrink(&mut self) {
        self.free.sort_unstable();
        for frame in &self.free {
            self.frames[*frame as usize].bytes.clear();
        }
        while self.free.last().is_some_and(|last| *last as usize + 1 == self.frames.len()) {
            self.free.pop();
            self.frames.pop();
        }
        self.frames.iter_mut().for_each(|frame| frame.bytes.shrink_to_fit());
        self.frames.shrink_to_fit();
        self.free.shrink_to_fit();
        self.heap.shrink_to_fit();
    }

    /// Copies a frame.
    fn keep(&mut self, from: u32, bytes: &[u8]) -> u32 {
        let frame = self.free.pop().unwrap_or_else(|| {
            self.frames.push(Frame::default());
            self.frames.len() as u32 - 1
        });
        let copy = &mut self.frames[frame as usize];
        copy.from = from;
        copy.bytes.clear();
        copy.bytes.extend_from_slice(bytes);
        frame
    }

    /// Sends one copy of a frame. Returns whether it is intact.
    fn copy(&mut self, index: u32, (from, to): (u32, u32), arrival: Nanos, bytes: &[u8]) -> bool {
        let options = self.paths.at(index).options;
        let frame = self.keep(from, bytes);
        let damaged = self.rng.chance(options.corrupt_ppm);
        if damaged {
            self.counters.corrupted += 1;
            damage(&mut self.rng, &mut self.frames[frame as usize].bytes);
        }
        if !self.rng.chance(options.reorder_ppm) {
            self.schedule(arrival, What::Arrive { to, frame });
            return !damaged;
        }
        self.counters.reordered += 1;
        let left = self.rng.range(1, options.reorder_by.max(1));
        self.sequence += 1;
        let id = self.sequence;
        // It overtakes itself first.
        self.paths.at(index).held.push(Held { id, frame, left: left + 1 });
        self.schedule(arrival + left * 20_000, What::Release { path: index, id });
        !damaged
    }

    /// A later frame overtakes those that are held back.
    fn pass_held(&mut self, index: u32, to: u32, arrival: Nanos) {
        let mut i = 0;
        while let Some(held) = self.paths.at(index).held.get_mut(i) {
            held.left -= 1;
            if held.left == 0 {
                let frame = self.paths.at(index).held.remove(i).frame;
                self.schedule(arrival, What::Arrive { to, frame });
            } else {
                i += 1;
            }
        }
    }
}

/// Flips a few bits, or truncates.
fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    if rng.chance(125_000) {
        let len = rng.below(bytes.len() as u64) as usize;
        return bytes.truncate(len);
    }
    for _ in 0..rng.range(1, 8) {
        let bit = rng.below(bytes.len() as u64 * 8) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

/// A digest of a frame's bytes.
fn digest(bytes: &[u8]) -> u64 {
    let mut hash = bytes.len() as u64;
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
    }
    for byte in words.remainder() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}
