//! The world: nodes that run, pause, compute, crash and restart, on a virtual clock, in one thread. Each of
//! their lanes has a program of its own.

mod faults;
mod finish;
mod pairs;
mod progress;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

use tautline::{Clock, Config, Endpoint, Environment, Event, Job, Member};
use tautline_link::JobKey;
use tautline_node::ChannelNumbers;

use crate::check::Check;
use crate::device::{SharedNet, SimDevice, lock};
use crate::handlers::{Incarnation, Kind, register};
use crate::hosts::WorldHosts;
use crate::net::{Net, What, address};
use crate::places::Places;
use crate::program::Program;
use crate::report::{Report, Totals};
use crate::rng::Rng;
use crate::sabotage::{CRASHING, Saboteur};
use crate::swarm::{NodeOptions, Swarm};
use crate::trace::{Trace, time};
use crate::{Nanos, Options, Sabotage};
use pairs::PairLog;

/// How often the watchdog polls while a program computes.
const WATCHDOG: Nanos = 1_000_000;

/// A running lane with its program.
struct RunningLane {
    // Fields are dropped in this order: half-sent messages before the endpoint.
    program: Program,
    incarnation: Rc<Incarnation>,
    ep: Endpoint,
}

/// A lane, running or crashed.
struct LaneState {
    up: Option<RunningLane>,
    computing_until: Nanos,
    next_extract: Nanos,
    /// It tries to send so often that its watchdog sees it poll.
    sends_often: bool,
    /// Messages that its program is to send after a restart.
    messages: u64,
}

pub(crate) struct World {
    seed: u64,
    options: Options,
    swarm: Swarm,
    net: SharedNet,
    clock: Arc<AtomicU64>,
    check: Rc<RefCell<Check>>,
    saboteur: Rc<Saboteur>,
    lanes: Vec<LaneState>,
    incarnations: Incarnations,
    hosts: WorldHosts,
    pairs: PairLog,
    phase: Phase,
    totals: Totals,
}

/// What the next incarnation of a node gets.
struct Incarnations {
    /// The number of the last one.
    last: u64,
    entropy: Rng,
}

/// How far the run is.
#[derive(Default)]
struct Phase {
    healed_at: Option<Nanos>,
    /// When the last of the planned faults so far has ended.
    calm_at: Nanos,
    /// Frames that had been lost when all had.
    lost_before: u64,
    /// Frames in shared memory were dropped or repeated.
    sabotaged: bool,
    /// Everything is done, or never will be.
    stop: bool,
}

impl World {
    pub(crate) fn new(seed: u64, options: &Options, trace: Option<Trace>) -> World {
        let swarm = Swarm::draw(seed, options);
        let places = swarm.places;
        let mut net = Net::new(places, seed, swarm.path, swarm.max_frame, swarm.rx_limit);
        net.trace = trace;
        let clock = net.clock();
        for (index, planned) in swarm.faults.iter().enumerate() {
            net.schedule(planned.at, What::Fault { index: index as u32 });
        }
        net.schedule(swarm.horizon, What::Fault { index: u32::MAX });
        let count = places.count();
        let messages = swarm.messages / u64::from(count) + 1;
        let mut world = World {
            seed,
            options: options.clone(),
            net: Arc::new(Mutex::new(net)),
            clock,
            check: Rc::new(RefCell::new(Check::new(count))),
            saboteur: Rc::new(Saboteur::new(options.sabotage)),
            lanes: (0..count)
                .map(|_| LaneState {
                    up: None,
                    computing_until: 0,
                    next_extract: 0,
                    sends_often: false,
                    messages,
                })
                .collect(),
            incarnations: Incarnations { last: 0, entropy: Rng::new(seed, 0x656e_7472) },
            hosts: WorldHosts::new(swarm.hosts.clone(), places),
            pairs: PairLog::new(count),
            phase: Phase::default(),
            totals: Totals::default(),
            swarm,
        };
        world.check.borrow_mut().faults.set_chance(world.swarm.path.has_chance_faults());
        (0..places.ranks).for_each(|node| world.start(node));
        world
    }

    fn places(&self) -> Places {
        self.swarm.places
    }

    /// The options of a place's node.
    fn node_options(&self, place: u32) -> NodeOptions {
        self.swarm.nodes[self.places().rank(place) as usize]
    }

    fn now(&self) -> Nanos {
        self.clock.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn trace_line(&self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut lock(&self.net).trace {
            trace.line(self.now(), &line());
        }
    }

    fn violation(&self, what: impl AsRef<str>) {
        self.trace_line(|| format!("VIOLATION {}", what.as_ref()));
        self.check.borrow_mut().violation(what);
    }

    /// Starts a node with all its lanes.
    fn start(&mut self, node: u32) {
        self.places().of(node).for_each(|place| self.start_lane(place));
    }

    /// Starts a lane, with fresh entropy and so under a new epoch.
    fn start_lane(&mut self, place: u32) {
        self.incarnations.last += 1;
        let (now, places, number) = (self.now(), self.places(), self.incarnations.last);
        let options = self.node_options(place);
        let incarnation =
            Incarnation::new((place, number, now), places, self.clock.clone(), self.observers(), self.seed);
        let mut device = SimDevice::plug(&self.net, place, number, options.tx_slots, self.swarm.max_frame);
        device.leaks_after = self.saboteur.is(Sabotage::Leak).then_some(100);
        let clock = Clock::Virtual(self.clock.clone());
        let environment = Environment::new(Box::new(device), clock, self.incarnations.entropy.bytes());
        let builder = register(Endpoint::builder(), &incarnation);
        let joined = match places.lane(place) {
            0 => {
                let job = self.job(place);
                let environment = environment.on_host(self.hosts.shared(place).cloned());
                builder.config(self.config(&options)).join_in(&job, environment)
            }
            _ => {
                let first = self.lanes[places.rank(place) as usize].up.as_ref().expect("lane 0 runs");
                first.ep.lanes().open_in(builder, environment)
            }
        };
        let ep = joined.expect("a simulated lane opens");
        assert_eq!(ep.lane(), places.lane(place), "lanes are numbered in the order in which they are opened");
        let messages = self.lanes[place as usize].messages;
        let program = Program::new(self.seed, number, options, messages);
        self.lanes[place as usize].up = Some(RunningLane { program, incarnation, ep });
        self.trace_line(|| format!("node {place} starts, incarnation {number}"));
        let mut net = lock(&self.net);
        net.ports[place as usize].latency = options.latency_ns;
        net.note(now, u64::from(place) << 32 | number);
        net.wake(place, now);
    }

    fn observers(&self) -> (Rc<RefCell<Check>>, Rc<Saboteur>) {
        (self.check.clone(), self.saboteur.clone())
    }

    fn job(&self, rank: u32) -> Job {
        let key = JobKey::new(Rng::new(self.seed, 0x006b_6579).bytes());
        Job::new(rank, key, (0..self.places().ranks).map(|n| Member::new(address(n))).collect())
    }

    fn config(&self, options: &NodeOptions) -> Config {
        let mut config = Config::with(|config| config.share_frames = options.share_frames);
        config.loan_pool = options.loan_pool;
        config.local_window = options.local_window;
        config.link.security = self.swarm.security;
        config.link.recovery = options.recovery;
        config.link.credit_slots = options.credit_slots;
        config.link.message_window = options.message_window;
        config.link.window_initial = options.window_initial;
        config.link.congestion = options.congestion;
        config.link.ack_every = options.ack_every;
        config.link.ack_delay = options.ack_delay;
        config
    }

    /// Runs to the end: faults until the horizon, then healing, then everything owed must arrive.
    pub(crate) fn run(mut self) -> Report {
        while !self.phase.stop {
            let next = lock(&self.net).advance();
            let Some((now, what)) = next else {
                // No node has anything to do: either all is done, or it never will be.
                self.totals.steps = 0;
                self.check_completion(self.now());
                if !self.phase.stop {
                    let owing = self.check.borrow().describe_pending();
                    self.violation(format!("nothing is left to do, and not everything is done: {owing}"));
                }
                break;
            };
            self.check.borrow_mut().now = now;
            match what {
                What::Run { node } => self.step(node, now),
                What::Fault { index } => self.fault(index, now),
                _ => {}
            }
            match self.phase.healed_at {
                Some(_) => self.check_completion(now),
                None => self.check_progress(now),
            }
            self.totals.steps += 1;
            if self.check.borrow().has_violations() && self.options.stop_at_violation {
                break;
            }
        }
        self.finish()
    }

    /// One step of a lane's program.
    fn step(&mut self, index: u32, now: Nanos) {
        let options = self.node_options(index);
        if index == 1 && self.check.borrow().closing && self.saboteur.is(Sabotage::NoClose) {
            return;
        }
        let node = &mut self.lanes[index as usize];
        if self.saboteur.stalls(index, now) {
            node.computing_until = Nanos::MAX;
        }
        let Some(up) = &mut node.up else { return };
        let mut next = Nanos::MAX;
        let computing = now < node.computing_until;
        let extracts = !computing && now >= node.next_extract;
        // On a real host a descriptor wakes the program, or its watchdog polls.
        let woken = self.hosts.shared(index).is_some()
            && (!lock(&self.net).ports[index as usize].rx.is_empty()
                || up.ep.node().next_deadline().ok().flatten().is_some_and(|at| at <= now));
        if woken && (extracts || computing && !self.saboteur.is(Sabotage::NoWatchdog)) {
            let _ = up.ep.node().progress_woken();
        }
        if computing {
            next = node.computing_until;
            if !self.saboteur.is(Sabotage::NoWatchdog) {
                watch(up, options.rounds);
            }
        } else if now < node.next_extract {
            next = if node.sends_often { now + 300_000 } else { node.next_extract };
        } else {
            node.sends_often = false;
            if options.extract_gap_ns > 0 && self.phase.healed_at.is_none() {
                node.next_extract = now + options.extract_gap_ns;
                next = node.next_extract;
            }
            next = next.min(up.incarnation.wake_sleepers());
            if !self.phase.sabotaged {
                self.phase.sabotaged = self.saboteur.meddle(up.ep.node(), self.totals.steps);
            }
            if let Err(error) = extract(up, options.extract, options.rounds) {
                self.violation(format!("extracting failed: {error}"));
                return;
            }
        }
        self.take_events(index, now);
        let Some(up) = &mut self.lanes[index as usize].up else { return };
        if !computing {
            next = next
                .min(up.program.step(&up.incarnation, &up.ep.to_async()))
                .min(up.incarnation.wake_sleepers());
        }
        let lazy = now < self.lanes[index as usize].next_extract;
        let Some(up) = &mut self.lanes[index as usize].up else { return };
        let deadline = up.ep.node().next_deadline().ok().flatten().unwrap_or(Nanos::MAX);
        let node = up.ep.node();
        let waits = node.has_slots().unwrap_or(false) || node.has_local_work().unwrap_or(false);
        let more = waits && !computing && !lazy;
        // A program that only sends now and then does not know of deadlines; its watchdog would, if it were
        // allowed to run.
        if deadline != Nanos::MAX && !(computing && self.saboteur.is(Sabotage::NoWatchdog)) {
            next = next.min(deadline);
        }
        let mut net = lock(&self.net);
        let port = &mut net.ports[index as usize];
        let soon = now + options.step_ns;
        port.not_before = port.not_before.max(soon);
        if more || !lazy && !port.rx.is_empty() {
            next = soon;
        }
        if next != Nanos::MAX {
            net.wake(index, next);
        }
        drop(net);
        self.wake_neighbours(index, now);
        self.sabotage_crash(index, now);
    }

    /// A node crashes when a node of its host has not taken yet what it sent, if that is the sabotage.
    fn sabotage_crash(&mut self, index: u32, now: Nanos) {
        let crashes = self.saboteur.is(Sabotage::LoseWithSender) && index == CRASHING;
        if !crashes || self.phase.sabotaged || self.phase.healed_at.is_some() || self.totals.steps < 500 {
            return;
        }
        let waits = |other: u32| {
            let up = self.lanes[other as usize].up.as_ref();
            up.is_some_and(|up| up.ep.node().has_local_work().unwrap_or(false))
        };
        if self.hosts.neighbours(index).any(waits) {
            self.phase.sabotaged = true;
            self.crash_node(CRASHING, now, 1_000_000);
        }
    }

    /// A node has run: the nodes of its host that it sent frames to or made room for run soon. On a real host
    /// a doorbell wakes them.
    fn wake_neighbours(&mut self, index: u32, now: Nanos) {
        for other in self.hosts.neighbours(index) {
            let node = &self.lanes[other as usize];
            let Some(up) = &node.up else { continue };
            let computing = now < node.computing_until;
            if computing && self.saboteur.is(Sabotage::NoWatchdog) {
                continue;
            }
            let mut at = up.ep.node().next_deadline().ok().flatten().unwrap_or(Nanos::MAX);
            // A program that extracts rarely runs when its time has come.
            if (computing || now >= node.next_extract) && up.ep.node().has_local_work().unwrap_or(false) {
                at = now;
            }
            if at != Nanos::MAX {
                let mut net = lock(&self.net);
                let latency = if computing { WATCHDOG } else { net.ports[other as usize].latency };
                net.wake(other, at.max(now + latency));
            }
        }
    }

    /// Takes the events and failures that a node reports.
    fn take_events(&mut self, index: u32, now: Nanos) {
        let places = self.places();
        loop {
            let Some(up) = &self.lanes[index as usize].up else { return };
            let Some(event) = up.ep.poll_event() else { break };
            self.trace_line(|| format!("node {index}: {event:?}"));
            if self.saboteur.hides(&event, now) {
                continue;
            }
            lock(&self.net).note(now ^ 0xe7e7, u64::from(index));
            match event {
                Event::Transport { peer, device, .. } => {
                    self.pairs.transport_changed(index, places.at(peer), device == "shm");
                }
                Event::PeerUp { peer, .. } => self.pairs.peer_up(index, places.at(peer)),
                _ => {}
            }
            if let Event::PeerDown { peer, incarnation, why } = event {
                let live = up.ep.node().channel_numbers(peer);
                let peer = places.at(peer);
                let mut check = self.check.borrow_mut();
                check.peer_down(index, (peer, incarnation), live);
                let expected = check.closing && why == tautline::Down::Closed;
                let local = self.pairs.peer_down(index, peer);
                let report = check.deaths.report(now, (index, peer), why, local);
                if let (false, Err(wrong)) = (expected, report) {
                    drop(check);
                    self.violation(wrong);
                }
            }
        }
        self.check.borrow_mut().reports_taken(index);
        let overdue = self.check.borrow_mut().deaths.overdue(now, index);
        if let Some(overdue) = overdue {
            self.violation(overdue);
        }
        let Some(up) = &self.lanes[index as usize].up else { return };
        while let Some(failure) = up.ep.poll_failure() {
            if failure.panicked && !Kind::panics(&failure.handler) {
                self.violation(format!("handler {} panicked: {}", failure.handler, failure.reason));
            }
        }
    }

    /// A node crashes with all its lanes: their devices are unplugged before their endpoints are dropped, so
    /// that no frame of the teardown gets out.
    fn crash(&mut self, node: u32) {
        let places = self.places();
        for place in places.of(node) {
            lock(&self.net).unplug(place);
            self.note_survivors(place);
            for other in self.hosts.neighbours(place) {
                if let Some(up) = &self.lanes[other as usize].up {
                    self.saboteur.lose(up.ep.node(), places.number(place));
                }
            }
            self.pairs.node_crashed(place);
        }
        if let Some(first) = &self.lanes[node as usize].up {
            first.ep.node().kill();
        }
        for place in places.of(node) {
            self.check.borrow_mut().node_crashed(place);
        }
        // Lane 0 lives as long as the node.
        for place in places.of(node).rev() {
            let lane = &mut self.lanes[place as usize];
            let Some(up) = lane.up.take() else { continue };
            lane.messages = up.program.left();
            lane.computing_until = 0;
            self.totals.add(&up.ep.counters());
            self.drop_endpoint(up);
        }
    }

    /// What a lane that is about to crash has sent through shared memory still arrives.
    fn note_survivors(&mut self, place: u32) {
        let places = self.places();
        let Some(up) = &self.lanes[place as usize].up else { return };
        let node = up.ep.node();
        let local = |peer: &u32| node.is_local(places.number(*peer));
        self.totals.local_crashes += u64::from(places.beside(places.rank(place)).any(|peer| local(&peer)));
        for peer in self.hosts.neighbours(place).filter(local) {
            let (own, other) = (node.channel_numbers(places.number(peer)), &self.lanes[peer as usize].up);
            // The peer may have crashed before, unseen by this node.
            let same = |own: &ChannelNumbers| {
                let number = places.number(place);
                let theirs = other.as_ref().and_then(|other| other.ep.node().channel_numbers(number));
                theirs == Some(ChannelNumbers { ours: own.theirs, theirs: own.ours })
            };
            if let Some(numbers) = own.filter(same) {
                self.check.borrow_mut().survives(place, peer, (up.incarnation.number, numbers.ours));
            }
        }
    }

    /// Drops an endpoint for good: suspended handlers may hold it.
    fn drop_endpoint(&self, up: RunningLane) {
        let RunningLane { program, incarnation, ep } = up;
        incarnation.over.set(true);
        drop(program);
        let _ = ep.node().close();
        incarnation.wake_sleepers();
        let _ = ep.extract(usize::MAX);
        let _ = ep.extract(usize::MAX);
    }
}

fn extract(up: &RunningLane, limit: usize, rounds: u32) -> tautline::Result<()> {
    for _ in 0..rounds {
        if up.ep.extract(limit)? == 0 {
            break;
        }
    }
    Ok(())
}

/// What the watchdog does while the program computes.
fn watch(up: &RunningLane, rounds: u32) {
    for _ in 0..rounds {
        if up.ep.node().progress().unwrap_or(0) == 0 {
            break;
        }
    }
}

/// Ends a trace, whoever still holds the network.
fn finish_trace(net: &SharedNet) {
    if let Some(trace) = &mut net.lock().unwrap_or_else(PoisonError::into_inner).trace {
        trace.finish();
    }
}

/// Formats a time, for messages.
fn at(now: Nanos) -> String {
    time(now)
}
