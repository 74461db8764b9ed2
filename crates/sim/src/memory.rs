//! A world for memory: one node owns it, others put, add and tell, under every fault the network has, and all of them crash and come back.
//!
//! Every requester has an aperture of its own at the owner, new for every pair of lives. It writes to random places, and after each put its number to a
//! word. As the operations of a pair take effect once and in order, that word tells how far its owner has come, and with it how often every
//! tripwire on it must have fired, whenever it was armed and disarmed.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use tautline::memory::{Access, Failure, MemoryEvent, Rights, Test, WireId};
use tautline::{Aperture, Clock, Config, Cookie, Endpoint, Event, Job, Member, Remote, Short, Tripwire};
use tautline_link::JobKey;

use crate::Nanos;
use crate::device::{SharedNet, SimDevice, lock};
use crate::net::{Net, PathOptions, What, address};
use crate::rng::Rng;

const NODES: u32 = 3;
const MAX_FRAME: usize = 1_472;
const REGION: u64 = 64 * 1024;
/// Words at the start of a region: additions, and the number of the last put.
const SUM: u64 = 0;
const NUMBER: u64 = 8;
const BYTES: u64 = 64;
/// Faults end here.
const HORIZON: Nanos = 3_000_000_000;
/// Everything must be done by then.
const LONGEST: Nanos = 120_000_000_000;

/// A deliberate mistake, to show that it is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// None.
    None,
    /// One put is left out.
    LoseAPut,
    /// One addition is made twice.
    AddTwice,
    /// Tripwires are believed to have fired once more.
    Overcount,
}

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Operations that were complete.
    pub complete: u64,
    /// Operations that ended with a peer.
    pub failed: u64,
    /// Fires of tripwires that were counted and right.
    pub fires: u64,
    /// Lives of nodes.
    pub lives: u64,
    /// Parts of puts placed before gaps were repaired.
    pub placed_ahead: u64,
    /// A number that depends on all of it.
    pub hash: u64,
}

/// An aperture for one requester's life.
struct Region {
    aperture: Aperture,
    every: Tripwire,
    odd: Tripwire,
    /// Tripwires that come and go: how far the region had come when they were armed, and from which number on they fire.
    passing: Vec<(Tripwire, u64, u64)>,
    cookie: Cookie,
    sent: bool,
}

/// What a requester believes of its region, and what it waits for.
#[derive(Default)]
struct Belief {
    memory: Vec<u8>,
    number: u64,
    sum: u64,
}

struct Liveness {
    ep: Endpoint,
    given: Rc<RefCell<Option<Cookie>>>,
    /// The owner's: by requester.
    regions: BTreeMap<u32, Region>,
    /// A requester's.
    remote: Option<Remote>,
    belief: Belief,
    waiting: HashSet<u64>,
    left: u64,
    busy_until: Nanos,
    gone_names: HashSet<WireId>,
}

struct World {
    net: SharedNet,
    rng: Rng,
    lives: Vec<Option<Liveness>>,
    ops: u64,
    tags: u64,
    sum: Summary,
    mistake: Mistake,
}

/// Runs one seed, with so many operations for every life of a requester.
pub fn run(seed: u64, ops: u64, mistake: Mistake) -> Result<Summary, String> {
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
    let net: SharedNet = Arc::new(Mutex::new(Net::new(NODES, seed, options, MAX_FRAME, 256 * 1024)));
    let lives = (0..NODES).map(|_| None).collect();
    let mut world = World { net, rng, lives, ops, tags: 0, sum: Summary::default(), mistake };
    (0..NODES).for_each(|node| world.start(node));
    world.plan();
    world.go(seed).map_err(|why| format!("memory seed {seed}: {why}; {options:?}"))?;
    world.sum.hash = crate::rng::mix(world.sum.hash ^ lock(&world.net).now());
    Ok(world.sum)
}

impl World {
    fn start(&mut self, node: u32) {
        self.sum.lives += 1;
        let job = Job {
            rank: node,
            key: JobKey::new([9; 32]),
            members: (0..NODES).map(|n| Member { addr: address(n) }).collect(),
            security: None,
            device: None,
            socket: None,
        };
        let device = SimDevice::plug(&self.net, node, self.sum.lives, 256, MAX_FRAME);
        let clock = Clock::Virtual(lock(&self.net).clock());
        let given = Rc::new(RefCell::new(None));
        let got = given.clone();
        let ep = Endpoint::builder()
            .config(Config::default())
            .on_short("cookie", move |m: Short<'_>| {
                *got.borrow_mut() = m.data().try_into().ok().map(Cookie::from_bytes);
            })
            .join_over(&job, Box::new(device), clock, self.rng.bytes())
            .expect("a simulated node joins");
        self.lives[node as usize] = Some(Liveness {
            ep,
            given,
            regions: BTreeMap::new(),
            remote: None,
            belief: Belief::default(),
            waiting: HashSet::new(),
            left: self.ops,
            busy_until: 0,
            gone_names: HashSet::new(),
        });
        let now = lock(&self.net).now();
        lock(&self.net).wake(node, now);
    }

    /// Draws what goes wrong, and when.
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
                if let Some(life) = self.lives[node as usize].take() {
                    self.sum.placed_ahead += life.ep.memory_counters().placed_ahead;
                    drop(life);
                }
                self.start(node);
            }
            1 => {
                if let Some(life) = &mut self.lives[node as usize] {
                    life.busy_until = now + self.rng.range(1_000_000, 400_000_000);
                }
            }
            _ => {
                let until = now + self.rng.range(100_000, 400_000_000);
                let other = (node + 1 + self.rng.below(2) as u32) % NODES;
                let both = self.rng.chance(500_000);
                let mut net = lock(&self.net);
                net.path_mut(node, other).dark_until = until;
                if both {
                    net.path_mut(other, node).dark_until = until;
                }
            }
        }
    }

    fn go(&mut self, seed: u64) -> Result<(), String> {
        for _ in 0..20_000_000u64 {
            let next = lock(&self.net).advance();
            let Some((now, what)) = next else { return Err("the world stands still".into()) };
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
        self.lives.iter().flatten().map(|life| (life.left, life.waiting.len())).collect()
    }

    fn step(&mut self, node: u32, now: Nanos) -> Result<(), String> {
        let Some(life) = &mut self.lives[node as usize] else { return Ok(()) };
        let computing = now < life.busy_until;
        for _ in 0..64 {
            // What the watchdog does, or the program.
            let more = if computing {
                life.ep.node().progress().unwrap_or(0)
            } else {
                life.ep.extract(usize::MAX).map_err(|e| e.to_string())?
            };
            if more == 0 {
                break;
            }
        }
        if !computing {
            self.take_events(node)?;
            if node == 0 { self.own(now)? } else { self.request(node)? }
        }
        let Some(life) = &self.lives[node as usize] else { return Ok(()) };
        let deadline = life.ep.node().next_deadline().ok().flatten();
        let next = deadline.unwrap_or(Nanos::MAX).min(now + 2_000_000).max(now + 2_000);
        let mut net = lock(&self.net);
        net.ports[node as usize].not_before = now + 2_000;
        net.wake(node, next);
        Ok(())
    }

    fn take_events(&mut self, node: u32) -> Result<(), String> {
        let Some(life) = &mut self.lives[node as usize] else { return Ok(()) };
        while let Some(event) = life.ep.poll_event() {
            match event {
                Event::PeerUp { peer, .. } if node == 0 => {
                    let region = open(&life.ep).map_err(|e| e.to_string())?;
                    life.regions.insert(peer, region);
                }
                Event::PeerDown { peer: 0, .. } if node != 0 => {
                    // Whatever comes next is for another life of one of the two.
                    (life.remote, *life.given.borrow_mut()) = (None, None);
                }
                Event::Memory(MemoryEvent::Completed { tag, result, .. }) => {
                    if !life.waiting.remove(&tag) {
                        return Err(format!("operation {tag} ended twice, or never began"));
                    }
                    match result {
                        Ok(_) => self.sum.complete += 1,
                        Err(Failure::PeerGone(..) | Failure::Before | Failure::Closed) => {
                            self.sum.failed += 1;
                        }
                        // A cookie may outlive the channel it came by; its owner's next life knows nothing of it.
                        Err(Failure::Refused(tautline::memory::Refusal::Stale)) => self.sum.failed += 1,
                        Err(other) => return Err(format!("operation {tag}: {other}")),
                    }
                }
                Event::Memory(MemoryEvent::Tripwire { wire, .. }) if life.gone_names.contains(&wire) => {
                    return Err("an event of a tripwire that was disarmed".into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The owner's turn: cookies, tripwires that come and go, and a look at those that stay.
    fn own(&mut self, now: Nanos) -> Result<(), String> {
        let (rng, mistake) = (&mut self.rng, self.mistake);
        let Some(life) = &mut self.lives[0] else { return Ok(()) };
        for (peer, region) in &mut life.regions {
            if !region.sent {
                region.sent = life.ep.try_send(*peer, "cookie", &region.cookie.to_bytes()).is_ok();
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
                life.gone_names.insert(wire.id());
                wire.disarm();
            }
        }
        Ok(())
    }

    /// A requester's turn: a few operations, if the owner can be reached.
    fn request(&mut self, node: u32) -> Result<(), String> {
        let Some(life) = &mut self.lives[node as usize] else { return Ok(()) };
        let _ = life.ep.connect(0);
        let given = life.given.borrow_mut().take();
        if let Some(cookie) = given {
            life.remote = Some(life.ep.remote(&cookie));
            life.belief = Belief { memory: vec![0; REGION as usize], number: 0, sum: 0 };
            life.left = self.ops;
        }
        let Some(remote) = life.remote.clone() else { return Ok(()) };
        for _ in 0..self.rng.below(6) {
            if life.left == 0 {
                break;
            }
            let skip = self.mistake == Mistake::LoseAPut && life.belief.number == 5;
            let twice = self.mistake == Mistake::AddTwice && life.belief.number == 5;
            let len = self.rng.magnitude(1, 20_000) as usize;
            let at = BYTES + self.rng.below(REGION - BYTES - len as u64);
            let bytes: Vec<u8> = (0..len).map(|i| (self.tags as usize + i / 3) as u8).collect();
            let number = life.belief.number + 1;
            let all = (|| {
                let from = life.ep.adopt(bytes.clone())?;
                let word = life.ep.adopt(number.to_le_bytes().to_vec())?;
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
                Err(tautline::Error::Send(_)) => {
                    // Begun in part, perhaps; what the owner has is for the next life to forget.
                    life.remote = None;
                    break;
                }
                Err(other) => return Err(other.to_string()),
            };
            for op in ops {
                self.tags += 1;
                life.waiting.insert(self.tags);
                op.into_event(self.tags).map_err(|e| e.to_string())?;
            }
            life.belief.memory[at as usize..at as usize + len].copy_from_slice(&bytes);
            life.belief.number = number;
            life.belief.sum += number;
            life.left -= 1;
        }
        Ok(())
    }

    /// Whether every requester has done all it wanted with the owner that lives now.
    fn is_done(&self) -> bool {
        let Some(owner) = &self.lives[0] else { return false };
        (1..NODES).all(|node| {
            let Some(life) = &self.lives[node as usize] else { return false };
            let (theirs, ours) = (owner.regions.get(&node), life.remote.as_ref());
            let same = theirs.map(|region| &region.cookie) == ours.map(Remote::cookie);
            same && ours.is_some() && life.left == 0 && life.waiting.is_empty()
        })
    }

    /// At the end every region is what its requester believes.
    fn compare(&mut self) -> Result<(), String> {
        let owner = self.lives[0].as_ref().ok_or("there is no owner")?;
        for (node, life) in self.lives.iter().enumerate().skip(1) {
            let life = life.as_ref().ok_or("there is no requester")?;
            let region = owner.regions.get(&(node as u32)).ok_or("there is no region")?;
            let mut memory = vec![0; REGION as usize];
            region.aperture.read(0, &mut memory).map_err(|e| e.to_string())?;
            check("the last number", region.aperture.read_u64(NUMBER).unwrap_or(0), life.belief.number)?;
            check("the sum", region.aperture.read_u64(SUM).unwrap_or(0), life.belief.sum)?;
            if memory[BYTES as usize..] != life.belief.memory[BYTES as usize..] {
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
