//! A world for memory: one node owns it, others put, add and notify, under every fault of the network, and
//! all of them crash and restart.
//!
//! Every requester has an aperture of its own at the owner, new for every pair of incarnations. It writes to
//! random places, and after each put it writes the number of the put to a word. Since the operations of a
//! pair take effect once and in order, that word says how many puts have taken effect, and with it how often
//! every tripwire on it must have fired, whenever it was armed and disarmed.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use tautline::memory::{Access, Failure, MemoryEvent, Rights, Test, WireId};
use tautline::{Aperture, Clock, Cookie, Endpoint, Environment, Event, Job, Member, Remote, Short, Tripwire};
use tautline_link::JobKey;

use crate::device::{SharedNet, SimDevice, lock};
use crate::hosts::{self, WorldHosts};
use crate::net::{Net, PathOptions, What, address};
use crate::places::Places;
use crate::rng::Rng;
use crate::{Hosts, Nanos};

const NODES: u32 = 3;
const MAX_FRAME: usize = 1_472;
const REGION: u64 = 64 * 1024;
/// Words at the start of a region: the sum of the additions, and the number of the last put.
const SUM: u64 = 0;
const NUMBER: u64 = 8;
const BYTES: u64 = 64;
/// Faults end at this time.
const HORIZON: Nanos = 3_000_000_000;
/// Everything must be done by this time.
const LONGEST: Nanos = 120_000_000_000;

/// A deliberate mistake, to show that it is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// None.
    None,
    /// One put is left out.
    DropPut,
    /// One addition is made twice.
    AddTwice,
    /// The check expects one fire more.
    Overcount,
}

/// The results of a seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Operations that completed.
    pub complete: u64,
    /// Operations that ended with their peer.
    pub failed: u64,
    /// Fires of tripwires that were counted and correct.
    pub fires: u64,
    /// Incarnations of nodes.
    pub incarnations: u64,
    /// Parts of puts that were placed before gaps were repaired.
    pub placed_ahead: u64,
    /// Frames sent through shared memory.
    pub local_frames: u64,
    /// Crashes of nodes that shared memory with a peer.
    pub local_crashes: u64,
    /// A hash of all of it.
    pub hash: u64,
}

/// An aperture for one incarnation of a requester.
struct Region {
    aperture: Aperture,
    every: Tripwire,
    odd: Tripwire,
    /// Tripwires that come and go: the number of puts when they were armed, and the number from which on they
    /// fire.
    passing: Vec<(Tripwire, u64, u64)>,
    cookie: Cookie,
    sent: bool,
}

/// What a requester expects of its region, and what it waits for.
#[derive(Default)]
struct ExpectedRegion {
    memory: Vec<u8>,
    number: u64,
    sum: u64,
}

struct Incarnation {
    ep: Endpoint,
    given: Rc<RefCell<Option<Cookie>>>,
    /// The owner's regions, by requester.
    regions: BTreeMap<u32, Region>,
    /// A requester's remote.
    remote: Option<Remote>,
    expected: ExpectedRegion,
    waiting: HashSet<u64>,
    left: u64,
    busy_until: Nanos,
    gone_names: HashSet<WireId>,
}

struct World {
    net: SharedNet,
    hosts: WorldHosts,
    rng: Rng,
    incarnations: Vec<Option<Incarnation>>,
    ops: u64,
    tags: u64,
    sum: Summary,
    mistake: Mistake,
}

/// Runs one seed, with `ops` operations for every incarnation of a requester.
pub fn run(seed: u64, ops: u64, hosts: Hosts, mistake: Mistake) -> Result<Summary, String> {
    let mut rng = Rng::new(seed, 0x6d65_6d6f);
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
    let net: SharedNet =
        Arc::new(Mutex::new(Net::new(Places::single(NODES), seed, options, MAX_FRAME, 256 * 1024)));
    let incarnations = (0..NODES).map(|_| None).collect();
    let drawn = hosts::draw(seed, NODES as usize, hosts);
    let hosts = WorldHosts::new(drawn.clone(), Places::single(NODES));
    let mut world = World { net, hosts, rng, incarnations, ops, tags: 0, sum: Summary::default(), mistake };
    (0..NODES).for_each(|node| world.start(node));
    world.plan();
    world
        .run_events(seed)
        .map_err(|why| format!("memory seed {seed}: {why}; {options:?}, hosts {drawn:?}"))?;
    if world.hosts.failures() > 0 {
        return Err("this machine has too few descriptors or too little memory".into());
    }
    for incarnation in world.incarnations.iter().flatten() {
        world.sum.local_frames += incarnation.ep.counters().local.frames_sent;
    }
    world.sum.hash = crate::rng::mix(world.sum.hash ^ lock(&world.net).now());
    Ok(world.sum)
}

impl World {
    fn start(&mut self, node: u32) {
        self.sum.incarnations += 1;
        let job = Job::new(node, JobKey::new([9; 32]), (0..NODES).map(|n| Member::new(address(n))).collect());
        let device = SimDevice::plug(&self.net, node, self.sum.incarnations, 256, MAX_FRAME);
        let clock = Clock::Virtual(lock(&self.net).clock());
        let environment = Environment::new(Box::new(device), clock, self.rng.bytes());
        let environment = environment.on_host(self.hosts.shared(node).cloned());
        let given = Rc::new(RefCell::new(None));
        let got = given.clone();
        let ep = Endpoint::builder()
            .on_short("cookie", move |m: Short<'_>| {
                *got.borrow_mut() = m.data().try_into().ok().map(Cookie::from_bytes);
            })
            .join_in(&job, environment)
            .expect("a simulated node joins");
        self.incarnations[node as usize] = Some(Incarnation {
            ep,
            given,
            regions: BTreeMap::new(),
            remote: None,
            expected: ExpectedRegion::default(),
            waiting: HashSet::new(),
            left: self.ops,
            busy_until: 0,
            gone_names: HashSet::new(),
        });
        let now = lock(&self.net).now();
        lock(&self.net).wake(node, now);
    }

    /// Draws the faults and their times.
    fn plan(&mut self) {
        for _ in 0..self.rng.range(2, 12) {
            let at = self.rng.below(HORIZON);
            let index = self.rng.next() as u32 >> 1;
            lock(&self.net).schedule(at, What::Fault { index });
        }
    }

    fn fault(&mut self, index: u32, now: Nanos) {
        let node = index % NODES;
        match index / NODES % 4 {
            0 => {
                lock(&self.net).unplug(node);
                if let Some(incarnation) = self.incarnations[node as usize].take() {
                    self.sum.placed_ahead += incarnation.ep.memory_counters().placed_ahead;
                    let node = incarnation.ep.node();
                    self.sum.local_crashes += u64::from((0..NODES).any(|peer| node.is_local(peer)));
                    node.kill();
                    self.sum.local_frames += incarnation.ep.counters().local.frames_sent;
                    drop(incarnation);
                }
                self.start(node);
            }
            1 => {
                if let Some(incarnation) = &mut self.incarnations[node as usize] {
                    incarnation.busy_until = now + self.rng.range(1_000_000, 400_000_000);
                }
            }
            _ => {
                let until = now + self.rng.range(100_000, 400_000_000);
                let other = (node + 1 + self.rng.below(2) as u32) % NODES;
                let both = self.rng.chance(500_000);
                let mut net = lock(&self.net);
                net.path_mut(node, other).blocked_until = until;
                if both {
                    net.path_mut(other, node).blocked_until = until;
                }
            }
        }
    }

    fn run_events(&mut self, seed: u64) -> Result<(), String> {
        for _ in 0..20_000_000u64 {
            let next = lock(&self.net).advance();
            let Some((now, what)) = next else {
                return Err("nothing is left to do, and not everything is done".into());
            };
            if now > LONGEST {
                return Err(format!("not done after {LONGEST} ns: {:?}", self.state()));
            }
            match what {
                What::Run { node } => {
                    self.step(node, now)?;
                    if now > HORIZON && self.is_done() {
                        return self.compare();
                    }
                }
                What::Fault { index } => self.fault(index, now),
                _ => {}
            }
        }
        Err(format!("seed {seed} never ends"))
    }

    fn state(&self) -> Vec<(u64, usize)> {
        self.incarnations
            .iter()
            .flatten()
            .map(|incarnation| (incarnation.left, incarnation.waiting.len()))
            .collect()
    }

    fn step(&mut self, node: u32, now: Nanos) -> Result<(), String> {
        let Some(incarnation) = &mut self.incarnations[node as usize] else { return Ok(()) };
        let computing = now < incarnation.busy_until;
        // On a real host the device wakes the program, or its watchdog polls.
        if self.hosts.shared(node).is_some() && !lock(&self.net).ports[node as usize].rx.is_empty() {
            let _ = incarnation.ep.node().progress_woken();
        }
        for _ in 0..64 {
            // What the watchdog does, or the program.
            let more = if computing {
                incarnation.ep.node().progress().unwrap_or(0)
            } else {
                incarnation.ep.extract(usize::MAX).map_err(|e| e.to_string())?
            };
            if more == 0 {
                break;
            }
        }
        if !computing {
            self.take_events(node)?;
            if node == 0 { self.step_owner(now)? } else { self.step_requester(node)? }
        }
        let Some(incarnation) = &self.incarnations[node as usize] else { return Ok(()) };
        let deadline = incarnation.ep.node().next_deadline().ok().flatten();
        let next = deadline.unwrap_or(Nanos::MAX).min(now + 2_000_000).max(now + 2_000);
        let mut net = lock(&self.net);
        net.ports[node as usize].not_before = now + 2_000;
        net.wake(node, next);
        for other in self.hosts.neighbours(node) {
            let Some(incarnation) = &self.incarnations[other as usize] else { continue };
            // On a real host a doorbell wakes it; nobody rings for a program that computes, but its watchdog
            // polls.
            if now >= incarnation.busy_until && incarnation.ep.node().has_local_work().unwrap_or(false) {
                net.wake(other, now + 1_000);
            }
        }
        Ok(())
    }

    fn take_events(&mut self, node: u32) -> Result<(), String> {
        let Some(incarnation) = &mut self.incarnations[node as usize] else { return Ok(()) };
        while let Some(event) = incarnation.ep.poll_event() {
            match event {
                Event::PeerUp { peer, .. } if node == 0 => {
                    let region = open(&incarnation.ep).map_err(|e| e.to_string())?;
                    incarnation.regions.insert(peer, region);
                }
                Event::PeerDown { peer: 0, .. } if node != 0 => {
                    // Whatever follows is for another incarnation of one of the two.
                    (incarnation.remote, *incarnation.given.borrow_mut()) = (None, None);
                }
                Event::Memory(MemoryEvent::Completed { tag, result, .. }) => {
                    if !incarnation.waiting.remove(&tag) {
                        return Err(format!("operation {tag} ended twice, or was never begun"));
                    }
                    match result {
                        Ok(_) => self.sum.complete += 1,
                        Err(Failure::PeerGone(..) | Failure::Before | Failure::Closed) => {
                            self.sum.failed += 1;
                        }
                        // A cookie may be used after the channel that it came by has ended; its owner's next
                        // incarnation does not know it.
                        Err(Failure::Refused(tautline::memory::Refusal::Stale)) => self.sum.failed += 1,
                        Err(other) => return Err(format!("operation {tag}: {other}")),
                    }
                }
                Event::Memory(MemoryEvent::Tripwire { wire, .. })
                    if incarnation.gone_names.contains(&wire) =>
                {
                    return Err("an event of a tripwire that was disarmed".into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The owner's turn: cookies, tripwires that come and go, and a check of those that stay.
    fn step_owner(&mut self, now: Nanos) -> Result<(), String> {
        let (rng, mistake) = (&mut self.rng, self.mistake);
        let Some(incarnation) = &mut self.incarnations[0] else { return Ok(()) };
        for (peer, region) in &mut incarnation.regions {
            if !region.sent {
                region.sent = incarnation.ep.try_send(*peer, "cookie", &region.cookie.to_bytes()).is_ok();
            }
            let number = region.aperture.read_u64(NUMBER).map_err(|e| e.to_string())?;
            check("every time", region.every.fires() + u64::from(mistake == Mistake::Overcount), number)?;
            check("odd ones", region.odd.fires(), number.div_ceil(2))?;
            self.sum.hash = crate::rng::mix(self.sum.hash ^ number ^ now);
            if rng.chance(100_000) && region.passing.len() < 8 {
                let from = number + rng.below(20);
                let wire =
                    region.aperture.tripwire(NUMBER..NUMBER + 8).when(Test::AtLeast(from)).each_event(1);
                region.passing.push((wire.arm().map_err(|e| e.to_string())?, number, from));
            }
            if rng.chance(100_000) && !region.passing.is_empty() {
                let at = rng.below(region.passing.len() as u64) as usize;
                let (wire, armed_at, from) = region.passing.swap_remove(at);
                check("at least", wire.fires(), number.saturating_sub(armed_at.max(from.saturating_sub(1))))?;
                self.sum.fires += wire.fires();
                incarnation.gone_names.insert(wire.id());
                wire.disarm();
            }
        }
        Ok(())
    }

    /// A requester's turn: a few operations, if the owner is reachable.
    fn step_requester(&mut self, node: u32) -> Result<(), String> {
        let Some(incarnation) = &mut self.incarnations[node as usize] else { return Ok(()) };
        let _ = incarnation.ep.connect(0);
        let given = incarnation.given.borrow_mut().take();
        if let Some(cookie) = given {
            incarnation.remote = Some(incarnation.ep.remote(&cookie));
            incarnation.expected = ExpectedRegion { memory: vec![0; REGION as usize], number: 0, sum: 0 };
            incarnation.left = self.ops;
        }
        let Some(remote) = incarnation.remote.clone() else { return Ok(()) };
        for _ in 0..self.rng.below(6) {
            if incarnation.left == 0 {
                break;
            }
            let skip = self.mistake == Mistake::DropPut && incarnation.expected.number == 5;
            let twice = self.mistake == Mistake::AddTwice && incarnation.expected.number == 5;
            let len = self.rng.magnitude(1, 20_000) as usize;
            let at = BYTES + self.rng.below(REGION - BYTES - len as u64);
            let bytes: Vec<u8> = (0..len).map(|i| (self.tags as usize + i / 3) as u8).collect();
            let number = incarnation.expected.number + 1;
            let all = (|| {
                let from = incarnation.ep.adopt(bytes.clone())?;
                let word = incarnation.ep.adopt(number.to_le_bytes().to_vec())?;
                let mut ops = Vec::new();
                if !skip {
                    ops.push(remote.put_from(at, &from, ..)?);
                }
                ops.push(remote.put_from(NUMBER, &word, ..)?);
                ops.push(remote.fetch_add(SUM, number)?);
                if twice {
                    ops.push(remote.fetch_add(SUM, number)?);
                }
                Ok::<_, tautline::Error>(ops)
            })();
            let ops = match all {
                Ok(ops) => ops,
                Err(tautline::Error::Send(_) | tautline::Error::PeerGone(..)) => {
                    // It may have been sent in part; the next incarnation does not rely on it.
                    incarnation.remote = None;
                    break;
                }
                Err(other) => return Err(other.to_string()),
            };
            for op in ops {
                self.tags += 1;
                incarnation.waiting.insert(self.tags);
                op.into_event(self.tags).map_err(|e| e.to_string())?;
            }
            incarnation.expected.memory[at as usize..at as usize + len].copy_from_slice(&bytes);
            incarnation.expected.number = number;
            incarnation.expected.sum += number;
            incarnation.left -= 1;
        }
        Ok(())
    }

    /// Whether every requester has done all its operations with the owner that lives now.
    fn is_done(&self) -> bool {
        let Some(owner) = &self.incarnations[0] else { return false };
        (1..NODES).all(|node| {
            let Some(incarnation) = &self.incarnations[node as usize] else { return false };
            let (theirs, ours) = (owner.regions.get(&node), incarnation.remote.as_ref());
            let same = theirs.map(|region| &region.cookie) == ours.map(Remote::cookie);
            same && ours.is_some() && incarnation.left == 0 && incarnation.waiting.is_empty()
        })
    }

    /// At the end every region is what its requester expects.
    fn compare(&mut self) -> Result<(), String> {
        let owner = self.incarnations[0].as_ref().ok_or("there is no owner")?;
        for (node, incarnation) in self.incarnations.iter().enumerate().skip(1) {
            let incarnation = incarnation.as_ref().ok_or("there is no requester")?;
            let region = owner.regions.get(&(node as u32)).ok_or("there is no region")?;
            let mut memory = vec![0; REGION as usize];
            region.aperture.read(0, &mut memory).map_err(|e| e.to_string())?;
            check(
                "the last number",
                region.aperture.read_u64(NUMBER).unwrap_or(0),
                incarnation.expected.number,
            )?;
            check("the sum", region.aperture.read_u64(SUM).unwrap_or(0), incarnation.expected.sum)?;
            if memory[BYTES as usize..] != incarnation.expected.memory[BYTES as usize..] {
                return Err(format!("node {node}: the memory is not what was put"));
            }
            self.sum.fires += region.every.fires() + region.odd.fires();
        }
        self.sum.placed_ahead += owner.ep.memory_counters().placed_ahead;
        Ok(())
    }
}

fn open(ep: &Endpoint) -> tautline::Result<Region> {
    let aperture = ep.aperture(REGION as usize)?;
    let every = aperture.tripwire(NUMBER..NUMBER + 8).on(Access::WRITE).arm()?;
    let odd = aperture.tripwire(NUMBER..NUMBER + 1).when(Test::Masked(1, 1)).event(2).arm()?;
    let cookie = aperture.cookie(.., Rights::ALL)?;
    Ok(Region { aperture, every, odd, passing: Vec::new(), cookie, sent: false })
}

fn check(what: &str, got: u64, want: u64) -> Result<(), String> {
    if got == want { Ok(()) } else { Err(format!("{what}: {got}, and should be {want}")) }
}
