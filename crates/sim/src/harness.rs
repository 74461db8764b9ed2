//! What the worlds of memory and of calls share: endpoints on a network that is drawn from a seed, its
//! faults, crashes, and the turns of the programs.

use std::sync::{Arc, Mutex};

use tautline::{Builder, Clock, Endpoint, Environment, Job, Member};
use tautline_link::JobKey;

use crate::device::{SharedNet, SimDevice, lock};
use crate::hosts::{self, WorldHosts};
use crate::net::{Net, PathOptions, What, address};
use crate::places::Places;
use crate::rng::Rng;
use crate::{Hosts, Nanos};

const MAX_FRAME: usize = 1_472;
/// The most events of a run.
const MAX_EVENTS: u64 = 20_000_000;
/// Everything must be done by this time.
const LONGEST: Nanos = 120_000_000_000;
/// A program has a turn at least this often, as if a watchdog polled for it.
const TICK: Nanos = 1_000_000;
/// The time that a turn takes.
const TURN: Nanos = 2_000;
/// The time in which a doorbell wakes a program.
const WAKE_UP: Nanos = 1_000;

/// What programs do with their endpoints.
pub(crate) trait World {
    fn harness(&mut self) -> &mut Harness;

    /// A node starts: its program and its handlers.
    fn start(&mut self, node: u32) -> Builder;

    /// A node has crashed: its program is gone. Its endpoint sends nothing any more, but has its counters.
    fn crash(&mut self, node: u32);

    /// The turn of a program that does not compute.
    fn turn(&mut self, node: u32, now: Nanos) -> Result<(), String>;

    /// Whether everything is done that can be, once there are no faults any more.
    fn is_done(&self) -> bool;

    /// Compares what was done with what should have been.
    fn compare(&mut self) -> Result<(), String>;

    /// What is left to do, for a report.
    fn state(&self) -> String;
}

/// The endpoints of a world, and what is around them.
pub(crate) struct Harness {
    /// By node.
    endpoints: Vec<Option<Endpoint>>,
    /// Until when each program computes.
    busy_until: Vec<Nanos>,
    pub(crate) rng: Rng,
    /// Endpoints that were started.
    pub(crate) incarnations: u64,
    /// Crashes of nodes that shared memory with a peer.
    pub(crate) local_crashes: u64,
    net: SharedNet,
    hosts: WorldHosts,
    /// Faults end at this time.
    horizon: Nanos,
    options: PathOptions,
    host_of: Vec<u32>,
}

impl Harness {
    /// Draws a network, and up to `faults` faults before the `horizon`. Worlds have streams of their own.
    pub(crate) fn new(
        seed: u64,
        stream: u64,
        (nodes, hosts): (u32, Hosts),
        (horizon, faults): (Nanos, u64),
    ) -> Harness {
        let mut rng = Rng::new(seed, stream);
        let options = PathOptions {
            mbps: rng.pick(&[0, 100, 1_000]),
            delay_ns: rng.range(5_000, 300_000),
            jitter_ns: rng.below(50_000),
            queue_bytes: 1 << 20,
            loss_ppm: rng.pick(&[0, 1_000, 20_000, 100_000]),
            duplicate_ppm: rng.pick(&[0, 10_000, 200_000]),
            reorder_ppm: rng.pick(&[0, 10_000, 100_000]),
            reorder_by: rng.range(1, 40),
            corrupt_ppm: rng.pick(&[0, 1_000, 20_000]),
        };
        let places = Places::single(nodes);
        let mut net = Net::new(places, seed, options, MAX_FRAME, 256 * 1024);
        for _ in 0..rng.range(1, faults) {
            let (at, index) = (rng.below(horizon), rng.next() as u32 >> 1);
            net.schedule(at, What::Fault { index });
        }
        let host_of = hosts::draw(seed, nodes as usize, hosts);
        Harness {
            endpoints: (0..nodes).map(|_| None).collect(),
            busy_until: vec![0; nodes as usize],
            rng,
            incarnations: 0,
            local_crashes: 0,
            net: Arc::new(Mutex::new(net)),
            hosts: WorldHosts::new(host_of.clone(), places),
            horizon,
            options,
            host_of,
        }
    }

    fn nodes(&self) -> u32 {
        self.endpoints.len() as u32
    }

    /// The endpoint of a node; there is always one but while a node starts.
    pub(crate) fn endpoint(&self, node: u32) -> &Endpoint {
        self.endpoints[node as usize].as_ref().expect("every node is started")
    }

    /// The endpoints of all nodes.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter().flatten()
    }

    pub(crate) fn now(&self) -> Nanos {
        lock(&self.net).now()
    }

    fn join(&mut self, node: u32, builder: Builder) {
        self.incarnations += 1;
        self.busy_until[node as usize] = 0;
        let members = (0..self.nodes()).map(|n| Member::new(address(n))).collect();
        let job = Job::new(node, JobKey::new([9; 32]), members);
        let device = SimDevice::plug(&self.net, node, self.incarnations, 256, MAX_FRAME);
        let clock = Clock::Virtual(lock(&self.net).clock());
        let environment = Environment::new(Box::new(device), clock, self.rng.bytes());
        let environment = environment.on_host(self.hosts.shared(node).cloned());
        let ep = builder.join_in(&job, environment).expect("a simulated node joins");
        self.endpoints[node as usize] = Some(ep);
        let mut net = lock(&self.net);
        let now = net.now();
        net.wake(node, now);
    }

    /// A program computes for a while.
    fn compute(&mut self, node: u32, now: Nanos) {
        self.busy_until[node as usize] = now + self.rng.range(1_000_000, 400_000_000);
    }

    /// A path is cut for a while, in one direction or both.
    fn cut(&mut self, node: u32, now: Nanos) {
        let until = now + self.rng.range(100_000, 400_000_000);
        let other = (node + 1 + self.rng.below(u64::from(self.nodes()) - 1) as u32) % self.nodes();
        let both = self.rng.chance(500_000);
        let mut net = lock(&self.net);
        net.path_mut(node, other).blocked_until = until;
        if both {
            net.path_mut(other, node).blocked_until = until;
        }
    }

    /// Extracts, or does what a watchdog does; whether the program has a turn.
    fn poll(&self, node: u32, now: Nanos) -> tautline::Result<bool> {
        let ep = self.endpoint(node);
        let computing = now < self.busy_until[node as usize];
        // On a real host the device wakes the program, or its watchdog polls.
        if self.hosts.shared(node).is_some() && !lock(&self.net).ports[node as usize].rx.is_empty() {
            let _ = ep.node().progress_woken();
        }
        for _ in 0..64 {
            let more = if computing { ep.node().progress().unwrap_or(0) } else { ep.extract(usize::MAX)? };
            if more == 0 {
                break;
            }
        }
        Ok(!computing)
    }

    /// Plans the next turn of a node, and of those to which it has sent through shared memory.
    fn plan(&self, node: u32, now: Nanos) {
        let deadline = self.endpoint(node).node().next_deadline().ok().flatten();
        let next = deadline.unwrap_or(Nanos::MAX).min(now + TICK).max(now + TURN);
        let mut net = lock(&self.net);
        net.ports[node as usize].not_before = now + TURN;
        net.wake(node, next);
        for other in self.hosts.neighbours(node) {
            // On a real host a doorbell wakes it; nobody rings for a program that computes, but its watchdog
            // polls.
            let computing = now < self.busy_until[other as usize];
            if !computing && self.endpoint(other).node().has_local_work().unwrap_or(false) {
                net.wake(other, now + WAKE_UP);
            }
        }
    }
}

/// Runs a world until everything is done. An error says what went wrong, and in which network.
pub(crate) fn run(world: &mut impl World) -> Result<(), String> {
    for node in 0..world.harness().nodes() {
        let builder = world.start(node);
        world.harness().join(node, builder);
    }
    let ended = run_events(world);
    let it = world.harness();
    ended.map_err(|why| format!("{why}; {:?}, hosts {:?}", it.options, it.host_of))?;
    if it.hosts.failures() > 0 {
        return Err("this machine has too few descriptors or too little memory".into());
    }
    Ok(())
}

fn run_events(world: &mut impl World) -> Result<(), String> {
    for _ in 0..MAX_EVENTS {
        let it = world.harness();
        let next = lock(&it.net).advance();
        let Some((now, what)) = next else {
            return Err(format!("nothing happens any more, and not everything is done: {}", world.state()));
        };
        if now > LONGEST {
            return Err(format!("not done after {LONGEST} ns: {}", world.state()));
        }
        match what {
            What::Run { node } => {
                if it.poll(node, now).map_err(|e| e.to_string())? {
                    world.turn(node, now)?;
                }
                let it = world.harness();
                it.plan(node, now);
                if now > it.horizon && world.is_done() {
                    return world.compare();
                }
            }
            What::Fault { index } => {
                let node = index % it.nodes();
                match index / it.nodes() % 4 {
                    0 => restart(world, node),
                    1 => it.compute(node, now),
                    _ => it.cut(node, now),
                }
            }
            _ => {}
        }
    }
    Err(format!("it never ends: {}", world.state()))
}

/// A node crashes, and starts again at once.
fn restart(world: &mut impl World, node: u32) {
    let it = world.harness();
    lock(&it.net).unplug(node);
    let local = (0..it.nodes()).any(|peer| it.endpoint(node).node().is_local(peer));
    it.local_crashes += u64::from(local);
    it.endpoint(node).node().kill();
    world.crash(node);
    world.harness().endpoints[node as usize] = None;
    let builder = world.start(node);
    world.harness().join(node, builder);
}
