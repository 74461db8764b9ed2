//! A world for memory: one node owns it, others put, get, swap, add and notify, under every fault of the
//! network, and all of them crash and restart.
//!
//! Every requester has an aperture of its own at the owner, new for every pair of incarnations. It writes to
//! random places, and after each put it writes the number of the put to a word. Since the operations of a
//! pair take effect once and in order, that word says how many puts have taken effect, and with it how often
//! every tripwire on it must have fired, whenever it was armed and disarmed. What gets and swaps return is
//! compared with what the requester had put before. Each notice must come once, with its place and value.

mod lists;
mod notices;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tautline::memory::{Access, Failure, MemoryEvent, Rights, Test, WireId};
use tautline::{Aperture, Builder, Cookie, Endpoint, Event, Remote, Short, Tripwire};

use crate::harness::{self, Harness};
use crate::{Hosts, Nanos};
use notices::Notices;

const NODES: u32 = 3;
const REGION: u64 = 64 * 1024;
/// Words at the start of a region: the sum of the additions, the number of the last put, and a word that is
/// swapped.
const SUM: u64 = 0;
const NUMBER: u64 = 8;
const SWAPPED: u64 = 16;
const BYTES: u64 = 64;
/// The kind of step whose comparison fails.
const UNEQUAL: u64 = 5;
/// Faults end at this time.
const HORIZON: Nanos = 3_000_000_000;
/// The most faults of a seed.
const FAULTS: u64 = 12;

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
    /// One swap writes another value than it should.
    SwapOther,
    /// One get reads from another place than it should.
    GetElsewhere,
    /// One notice is for another place than it should.
    NoticeElsewhere,
    /// One notice is sent twice.
    NoticeTwice,
    /// One notice is left out.
    DropNotice,
    /// One piece of a list is left out.
    DropPiece,
}

/// The results of a seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Operations that completed.
    pub complete: u64,
    /// Of those, gets and operations on words whose results were compared.
    pub compared: u64,
    /// Notices that arrived.
    pub notices: u64,
    /// Requesters that have done all their operations on lists with one incarnation of the owner.
    pub listed: u64,
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

impl Summary {
    /// Adds the results of another seed.
    pub fn add(&mut self, more: &Summary) {
        self.complete += more.complete;
        self.compared += more.compared;
        self.notices += more.notices;
        self.listed += more.listed;
        self.failed += more.failed;
        self.fires += more.fires;
        self.incarnations += more.incarnations;
        self.placed_ahead += more.placed_ahead;
        self.local_frames += more.local_frames;
        self.local_crashes += more.local_crashes;
        self.hash ^= more.hash;
    }
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
    swapped: u64,
}

/// What an operation must return.
enum Due {
    Nothing,
    /// The former value of a word.
    Value(u64),
    /// Bytes in an aperture of the requester.
    Bytes(Aperture, Vec<u8>),
}

#[derive(Default)]
struct Incarnation {
    given: Rc<RefCell<Option<Cookie>>>,
    /// The owner's regions, by requester.
    regions: BTreeMap<u32, Region>,
    /// A requester's remote.
    remote: Option<Remote>,
    expected: ExpectedRegion,
    waiting: HashMap<u64, Due>,
    left: u64,
    gone_names: HashSet<WireId>,
    /// Operations on lists, until they are done or their channel has ended.
    lists: Option<lists::Task>,
    lists_done: bool,
}

struct World {
    incarnations: Vec<Incarnation>,
    ops: u64,
    tags: u64,
    sum: Summary,
    notices: Notices,
    mistake: Mistake,
    // Dropped last.
    harness: Harness,
}

/// Runs one seed, with `ops` operations for every incarnation of a requester.
pub fn run(seed: u64, ops: u64, hosts: Hosts, mistake: Mistake) -> Result<Summary, String> {
    let harness = Harness::new(seed, 0x6d65_6d6f, (NODES, hosts), (HORIZON, FAULTS));
    let incarnations = (0..NODES).map(|_| Incarnation::default()).collect();
    let (sum, notices) = (Summary::default(), Notices::default());
    let mut world = World { incarnations, ops, tags: 0, sum, notices, mistake, harness };
    harness::run(&mut world).map_err(|why| format!("memory seed {seed}: {why}"))?;
    let World { mut sum, harness, .. } = world;
    for ep in harness.endpoints() {
        sum.local_frames += ep.counters().local.frames_sent;
    }
    (sum.incarnations, sum.local_crashes) = (harness.incarnations, harness.local_crashes);
    sum.hash = crate::rng::mix(sum.hash ^ harness.now());
    Ok(sum)
}

impl harness::World for World {
    fn harness(&mut self) -> &mut Harness {
        &mut self.harness
    }

    fn start(&mut self, node: u32) -> Builder {
        let it = Incarnation { left: self.ops, ..Incarnation::default() };
        let given = it.given.clone();
        self.incarnations[node as usize] = it;
        Endpoint::builder().on_short("cookie", move |m: Short<'_>| {
            *given.borrow_mut() = m.data().try_into().ok().map(Cookie::from_bytes);
        })
    }

    fn crash(&mut self, node: u32) {
        let ep = self.harness.endpoint(node);
        self.sum.placed_ahead += ep.memory_counters().placed_ahead;
        self.sum.local_frames += ep.counters().local.frames_sent;
        self.incarnations[node as usize] = Incarnation::default();
    }

    fn turn(&mut self, node: u32, now: Nanos) -> Result<(), String> {
        self.take_events(node)?;
        if node == 0 { self.step_owner(now) } else { self.step_requester(node) }
    }

    /// Whether every requester has done all its operations with the owner that lives now.
    fn is_done(&self) -> bool {
        let owner = &self.incarnations[0];
        (1..NODES).all(|node| {
            let incarnation = &self.incarnations[node as usize];
            let (theirs, ours) = (owner.regions.get(&node), incarnation.remote.as_ref());
            let same = theirs.map(|region| &region.cookie) == ours.map(Remote::cookie);
            let done = incarnation.left == 0 && incarnation.waiting.is_empty() && incarnation.lists_done;
            same && ours.is_some() && done
        })
    }

    /// At the end every region is what its requester expects.
    fn compare(&mut self) -> Result<(), String> {
        self.take_events(0)?;
        let owner = &self.incarnations[0];
        for (node, incarnation) in self.incarnations.iter().enumerate().skip(1) {
            let region = owner.regions.get(&(node as u32)).ok_or("there is no region")?;
            self.notices.finish(&region.cookie)?;
            let mut memory = vec![0; REGION as usize];
            region.aperture.read(0, &mut memory).map_err(|e| e.to_string())?;
            check(
                "the last number",
                region.aperture.read_u64(NUMBER).unwrap_or(0),
                incarnation.expected.number,
            )?;
            check("the sum", region.aperture.read_u64(SUM).unwrap_or(0), incarnation.expected.sum)?;
            let swapped = region.aperture.read_u64(SWAPPED).unwrap_or(0);
            check("the swapped word", swapped, incarnation.expected.swapped)?;
            if memory[BYTES as usize..] != incarnation.expected.memory[BYTES as usize..] {
                return Err(format!("node {node}: the memory is not what was put"));
            }
            self.sum.fires += region.every.fires() + region.odd.fires();
        }
        self.sum.placed_ahead += self.harness.endpoint(0).memory_counters().placed_ahead;
        Ok(())
    }

    fn state(&self) -> String {
        let each = self.incarnations.iter().map(|it| (it.left, it.waiting.len()));
        format!("(operations to begin, to end) {:?}", each.collect::<Vec<_>>())
    }
}

impl World {
    fn take_events(&mut self, node: u32) -> Result<(), String> {
        let (ep, incarnation) = (self.harness.endpoint(node), &mut self.incarnations[node as usize]);
        while let Some(event) = ep.poll_event() {
            match event {
                Event::PeerUp { peer, .. } if node == 0 => {
                    let region = open(ep).map_err(|e| e.to_string())?;
                    incarnation.regions.insert(peer, region);
                }
                Event::PeerDown { peer: 0, .. } if node != 0 => {
                    // Whatever follows is for another incarnation of one of the two.
                    (incarnation.remote, *incarnation.given.borrow_mut()) = (None, None);
                }
                Event::Memory(MemoryEvent::Completed { tag, result, .. }) => {
                    let Some(due) = incarnation.waiting.remove(&tag) else {
                        return Err(format!("operation {tag} ended twice, or was never begun"));
                    };
                    match result {
                        Ok(value) => {
                            self.sum.complete += 1;
                            self.sum.compared += u64::from(due.is_returned(value)?);
                        }
                        Err(Failure::PeerGone(..) | Failure::Before | Failure::Closed) => {
                            self.sum.failed += 1;
                        }
                        // A cookie may be used after the channel that it came by has ended; its owner's next
                        // incarnation does not know it.
                        Err(Failure::Refused(tautline::memory::Refusal::Stale)) => self.sum.failed += 1,
                        Err(other) => return Err(format!("operation {tag}: {other}")),
                    }
                }
                Event::Memory(MemoryEvent::Notice { peer, aperture, at, len, value }) => {
                    let region = incarnation.regions.get(&peer);
                    let region = region.filter(|region| region.aperture.id() == aperture);
                    let cookie = &region.ok_or("a notice for an aperture that is gone")?.cookie;
                    self.notices.receive(cookie, value, (at, len))?;
                    self.sum.notices += 1;
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
        let (mistake, incarnation) = (self.mistake, &mut self.incarnations[0]);
        for (peer, region) in &mut incarnation.regions {
            if !region.sent {
                region.sent =
                    self.harness.endpoint(0).try_send(*peer, "cookie", &region.cookie.to_bytes()).is_ok();
            }
            let number = region.aperture.read_u64(NUMBER).map_err(|e| e.to_string())?;
            check("every time", region.every.fires() + u64::from(mistake == Mistake::Overcount), number)?;
            check("odd ones", region.odd.fires(), number.div_ceil(2))?;
            self.sum.hash = crate::rng::mix(self.sum.hash ^ number ^ now);
            let rng = &mut self.harness.rng;
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

    /// Takes a new cookie of the owner, and goes on with the lists.
    fn step_lists(&mut self, node: u32) -> Result<(), String> {
        let incarnation = &mut self.incarnations[node as usize];
        let _ = self.harness.endpoint(node).connect(0);
        let given = incarnation.given.borrow_mut().take();
        if let Some(cookie) = given {
            incarnation.remote = Some(self.harness.endpoint(node).remote(&cookie));
            incarnation.expected =
                ExpectedRegion { memory: vec![0; REGION as usize], ..ExpectedRegion::default() };
            incarnation.left = self.ops;
            let omit = lists::Omit {
                piece: self.mistake == Mistake::DropPiece,
                notice: self.mistake == Mistake::DropNotice,
            };
            let remote = incarnation.remote.as_ref().expect("it was just made").to_async();
            incarnation.lists = Some(lists::start(remote, REGION, self.notices.clone(), omit));
            incarnation.lists_done = false;
        }
        let mut context = Context::from_waker(Waker::noop());
        if let Some(Poll::Ready(ended)) = incarnation.lists.as_mut().map(|it| it.as_mut().poll(&mut context))
        {
            incarnation.lists = None;
            incarnation.lists_done = ended?;
            self.sum.listed += u64::from(incarnation.lists_done);
        }
        Ok(())
    }

    /// The mistake of a requester's next operations.
    fn mistake_now(&self, node: u32) -> Mistake {
        let number = self.incarnations[node as usize].expected.number;
        let is_time = match self.mistake {
            // Only some puts have notices.
            Mistake::NoticeElsewhere | Mistake::NoticeTwice => number > 5,
            _ => number == 5,
        };
        if is_time { self.mistake } else { Mistake::None }
    }

    /// A requester's turn: a few operations, if the owner is reachable.
    fn step_requester(&mut self, node: u32) -> Result<(), String> {
        self.step_lists(node)?;
        let Some(remote) = self.incarnations[node as usize].remote.clone() else { return Ok(()) };
        for _ in 0..self.harness.rng.below(6) {
            let mistake = self.mistake_now(node);
            let incarnation = &mut self.incarnations[node as usize];
            if incarnation.left == 0 {
                break;
            }
            let skip = mistake == Mistake::DropPut;
            let len = self.harness.rng.magnitude(1, 20_000) as usize;
            let at = BYTES + self.harness.rng.below(REGION - BYTES - len as u64);
            let bytes: Vec<u8> = (0..len).map(|i| (self.tags as usize + i / 3) as u8).collect();
            let number = incarnation.expected.number + 1;
            let (mut kind, wanted) = (self.harness.rng.below(8), self.harness.rng.below(REGION - BYTES));
            if mistake == Mistake::SwapOther {
                kind = kind.min(UNEQUAL - 1);
            }
            let (ep, expected) = (self.harness.endpoint(node), &incarnation.expected);
            let all = (|| {
                let from = ep.adopt(bytes.clone())?;
                let word = ep.adopt(number.to_le_bytes().to_vec())?;
                let mut ops = Vec::new();
                if !skip {
                    let put = remote.put_from(at, &from, ..)?;
                    if kind == 0 {
                        self.notices.send(remote.cookie(), number, (at, len as u64));
                        let wrong = u64::from(mistake == Mistake::NoticeElsewhere);
                        for _ in 0..1 + u32::from(mistake == Mistake::NoticeTwice) {
                            let notice = remote.after(&put).notice(at + wrong, len as u64 - wrong, number)?;
                            ops.push((notice, Due::Nothing));
                        }
                    }
                    ops.push((put, Due::Nothing));
                }
                ops.push((remote.put_from(NUMBER, &word, ..)?, Due::Nothing));
                ops.push((remote.fetch_add(SUM, number)?, Due::Value(expected.sum)));
                if mistake == Mistake::AddTwice {
                    ops.push((remote.fetch_add(SUM, number)?, Due::Nothing));
                }
                let new = number + u64::from(mistake == Mistake::SwapOther);
                let swap = match kind {
                    2 => remote.compare_swap(SWAPPED, expected.swapped, new)?,
                    // It has another value, and keeps it.
                    UNEQUAL => remote.compare_swap(SWAPPED, expected.swapped + 1, new)?,
                    _ => remote.swap(SWAPPED, new)?,
                };
                ops.push((swap, Due::Value(expected.swapped)));
                if [3, 4].contains(&kind) || mistake == Mistake::GetElsewhere {
                    let place = BYTES + wanted;
                    let read = place + u64::from(mistake == Mistake::GetElsewhere);
                    let most = (REGION - read).min(9_000);
                    let into = ep.aperture(most as usize)?;
                    let mut bytes_due = expected.memory.clone();
                    bytes_due[at as usize..at as usize + len].copy_from_slice(&bytes);
                    let bytes_due = bytes_due[place as usize..(place + most) as usize].to_vec();
                    let get = match kind {
                        4 => {
                            let first = most / 3;
                            // In the other order.
                            let pieces = [(read + first, first..most), (read, 0..first)];
                            remote.get_list_into(&into, &pieces)?
                        }
                        _ => remote.get_into(read, &into, ..)?,
                    };
                    ops.push((get, Due::Bytes(into, bytes_due)));
                    // Without it, a long get may read what is put later.
                    ops.push((remote.fence()?, Due::Nothing));
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
            for (op, due) in ops {
                self.tags += 1;
                incarnation.waiting.insert(self.tags, due);
                op.into_event(self.tags).map_err(|e| e.to_string())?;
            }
            incarnation.expected.memory[at as usize..at as usize + len].copy_from_slice(&bytes);
            incarnation.expected.number = number;
            incarnation.expected.sum += number;
            if kind != UNEQUAL {
                incarnation.expected.swapped = number;
            }
            incarnation.left -= 1;
        }
        Ok(())
    }
}

impl Due {
    /// Whether there was something to compare; an error if it is something else.
    fn is_returned(&self, value: u64) -> Result<bool, String> {
        match self {
            Due::Nothing => Ok(false),
            Due::Value(due) => check("the former value", value, *due).map(|()| true),
            Due::Bytes(aperture, due) => {
                let mut got = vec![0; due.len()];
                aperture.read(0, &mut got).map_err(|e| e.to_string())?;
                match got == *due {
                    true => Ok(true),
                    false => Err("a get returned something else than was put".into()),
                }
            }
        }
    }
}

fn open(ep: &Endpoint) -> tautline::Result<Region> {
    let aperture = ep.aperture((REGION + lists::LEN) as usize)?;
    let every = aperture.tripwire(NUMBER..NUMBER + 8).on(Access::WRITE).arm()?;
    let odd = aperture.tripwire(NUMBER..NUMBER + 1).when(Test::Masked(1, 1)).event(2).arm()?;
    let cookie = aperture.cookie(.., Rights::ALL)?;
    Ok(Region { aperture, every, odd, passing: Vec::new(), cookie, sent: false })
}

fn check(what: &str, got: u64, want: u64) -> Result<(), String> {
    if got == want { Ok(()) } else { Err(format!("{what}: {got}, and should be {want}")) }
}
