//! Many nodes of the real code on one switch, without faults: how long a pattern of messages takes, and what
//! a node costs. The network is a model ([`NetworkModel`]); the time is virtual.

pub mod collectives;
mod idle;

pub use idle::Idle;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use tautline::{Clock, Config, Endpoint, Environment, Error, Job, Member, SendError, Short};
use tautline_link::JobKey;

use crate::Nanos;
use crate::device::{SharedNet, SimDevice, lock};
use crate::net::{Net, NetworkModel, What, address};
use crate::places::Places;
use crate::rng::Rng;

/// The largest frame of the network.
const MAX_FRAME: usize = 1_472;
/// The receive buffer of a node, as Linux grants it by default.
const RECEIVE_BUFFER: usize = 212_992;
/// Slots of a node's arena.
const SLOTS: usize = 1_024;
/// Bytes at the head of each message: when it was sent, its round, and its number among those to the same
/// node.
const HEAD: usize = 16;
/// The longest message: it fits a frame.
pub const MAX_BYTES: usize = 1_024;
/// How many messages there may be in all: the time of each is kept.
pub const MAX_MESSAGES: u64 = 100_000_000;
/// No pattern takes longer than this.
const LONGEST: Nanos = 600_000_000_000;
/// How soon a node that would block tries again if nothing arrives.
const RETRY: Nanos = 1_000_000;

/// Who sends to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Every node sends to this many others, drawn by the seed, as fast as it can.
    Random {
        /// How many others.
        peers: u32,
    },
    /// All nodes send to the first, as fast as they can.
    Incast,
    /// All nodes send to the first, which answers each message; a node sends the next one when it has the
    /// answer. Only what the first node receives is counted and timed.
    Requests,
    /// Every node sends to the next one, and waits for the one before it in each round.
    Ring,
    /// A dissemination barrier in each round: ⌈log₂ n⌉ steps, each a message to and from another node.
    Barrier,
}

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// How many nodes.
    pub nodes: u32,
    /// Who sends to whom.
    pub pattern: Pattern,
    /// Rounds of the pattern: messages to each peer.
    pub rounds: u32,
    /// Bytes of each message, from 16 to [`MAX_BYTES`].
    pub bytes: usize,
    /// Decides what is drawn.
    pub seed: u64,
    /// The network.
    pub model: NetworkModel,
}

/// What a run took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterReport {
    /// Messages that arrived, all in order and unaltered.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Virtual time until every node was done; channels are opened within it.
    pub virtual_ns: Nanos,
    /// Virtual time of the first round, in which channels are opened; zero if nodes do not keep in step.
    pub first_round_ns: Nanos,
    /// From the start of a send to the handler.
    pub median_ns: Nanos,
    /// The same, exceeded by one message in a hundred.
    pub p99_ns: Nanos,
    /// Frames that the network carried.
    pub frames: u64,
    /// Frames that a full queue or buffer dropped.
    pub dropped: u64,
    /// Slots that were sent again.
    pub resent: u64,
    /// Peers that were reported as lost: false deaths, since nobody dies.
    pub deaths: u64,
    /// A digest of everything that the network carried: the same for the same cluster, everywhere.
    pub trace_hash: u64,
}

/// What one node knows of its messages.
struct Inbox {
    clock: Clock,
    /// The next number from each node that has sent.
    next: HashMap<u32, u32>,
    /// Messages of each step that have arrived, for nodes that keep in step.
    steps: Vec<u32>,
    received: u64,
    /// Whom to answer, and which step of it, if the node answers.
    answers: Option<VecDeque<(u32, u32)>>,
    /// Whether messages are timed.
    is_timed: bool,
    latencies: Vec<u64>,
    violation: Option<String>,
}

impl Inbox {
    fn take(&mut self, from: u32, data: &[u8], bytes: usize) {
        let word = |at: usize| u32::from_le_bytes(data[at..at + 4].try_into().expect("four bytes"));
        if data.len() != bytes || data[HEAD..].iter().any(|byte| *byte != from as u8) {
            self.violation.get_or_insert_with(|| format!("a message from node {from} was altered"));
            return;
        }
        let sent = u64::from(word(0)) | u64::from(word(4)) << 32;
        let (step, number) = (word(8), word(12));
        let next = self.next.entry(from).or_default();
        if *next != number {
            let (want, got) = (*next, number);
            self.violation
                .get_or_insert_with(|| format!("node {from}: message {got} came instead of {want}"));
        }
        *next += 1;
        if let Some(count) = self.steps.get_mut(step as usize) {
            *count += 1;
        }
        self.received += 1;
        if let Some(answers) = &mut self.answers {
            answers.push_back((from, step));
        }
        if self.is_timed {
            self.latencies.push(self.clock.now() - sent);
        }
    }
}

/// One node and what it still has to do.
struct Node {
    ep: Endpoint,
    inbox: Rc<RefCell<Inbox>>,
    plan: Plan,
    /// The step or message that is sent next.
    at: u32,
    /// When the message that is being sent was first tried.
    begun: Option<Nanos>,
    /// Messages sent to each peer.
    sent: HashMap<u32, u32>,
    buffer: Vec<u8>,
}

/// What a node sends, and what it waits for.
enum Plan {
    /// Sends `rounds` messages to each of these without waiting for any, and receives `expected`.
    Free { peers: Vec<u32>, rounds: u32, expected: u64 },
    /// Answers `expected` messages.
    Answering { expected: u64 },
    /// In each step sends one message to a node, and waits for one. The distances repeat.
    InStep { distances: Vec<u32>, steps: u32 },
}

impl Node {
    /// The receiver of the next message, if there is one to send.
    fn next_peer(&self, me: u32, nodes: u32) -> Option<u32> {
        match &self.plan {
            Plan::Free { peers, rounds, .. } => {
                let total = peers.len() as u32 * rounds;
                (self.at < total).then(|| peers[self.at as usize % peers.len()])
            }
            Plan::Answering { .. } => self.next_answer().map(|(peer, _)| peer),
            Plan::InStep { distances, steps } => {
                let arrived = |step: u32| self.inbox.borrow().steps[step as usize] > 0;
                let may = self.at < *steps && (self.at == 0 || arrived(self.at - 1));
                may.then(|| (me + distances[self.at as usize % distances.len()]) % nodes)
            }
        }
    }

    fn next_answer(&self) -> Option<(u32, u32)> {
        self.inbox.borrow().answers.as_ref()?.front().copied()
    }

    fn is_done(&self) -> bool {
        match &self.plan {
            Plan::Answering { expected } => u64::from(self.at) == *expected,
            Plan::Free { peers, rounds, expected } => {
                self.at == peers.len() as u32 * rounds && self.inbox.borrow().received == *expected
            }
            Plan::InStep { steps, .. } => {
                self.at == *steps && self.inbox.borrow().steps.last().is_none_or(|count| *count > 0)
            }
        }
    }

    /// Takes what has arrived and sends what can be sent. Returns whether it waits for room.
    fn run(&mut self, me: u32, nodes: u32, now: Nanos) -> Result<bool, Error> {
        loop {
            while self.ep.extract(usize::MAX)? > 0 {}
            let Some(peer) = self.next_peer(me, nodes) else { return Ok(false) };
            let begun = *self.begun.get_or_insert(now);
            self.buffer[..8].copy_from_slice(&begun.to_le_bytes());
            let step = self.next_answer().map_or(self.at, |(_, step)| step);
            self.buffer[8..12].copy_from_slice(&step.to_le_bytes());
            let number = self.sent.entry(peer).or_default();
            self.buffer[12..16].copy_from_slice(&number.to_le_bytes());
            match self.ep.try_send(peer, "step", &self.buffer) {
                Ok(()) => {
                    *number += 1;
                    self.at += 1;
                    self.begun = None;
                    if let Some(answers) = &mut self.inbox.borrow_mut().answers {
                        answers.pop_front();
                    }
                }
                Err(Error::Send(SendError::WouldBlock)) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Cluster {
    /// Runs it.
    ///
    /// # Errors
    /// If it cannot be run, if a promise was broken, or if it does not end.
    pub fn run(&self) -> Result<ClusterReport, String> {
        self.run_with(|_| {})
    }

    /// As [`Cluster::run`]; tells from time to time how many messages have arrived, of how many.
    pub fn run_with(&self, progress: impl FnMut((u64, u64))) -> Result<ClusterReport, String> {
        let mut run = self.start()?;
        run.until_done(progress)?;
        run.report()
    }

    /// As [`Cluster::run`]; then nothing is sent for `idle_ns`. Calls `watch` when all nodes have joined and
    /// nothing was sent yet, and again at the end, when all channels are idle.
    ///
    /// # Errors
    /// As [`Cluster::run`].
    pub fn run_idle(&self, idle_ns: Nanos, mut watch: impl FnMut()) -> Result<ClusterReport, String> {
        let mut run = self.start()?;
        watch();
        run.until_done(|_| {})?;
        let report = run.report()?;
        let end = lock(&run.net).now() + idle_ns;
        while lock(&run.net).now() < end {
            run.step()?;
        }
        // What the network keeps is no memory of the nodes.
        lock(&run.net).shrink();
        watch();
        Ok(ClusterReport { deaths: run.deaths, ..report })
    }

    fn start(&self) -> Result<Run, String> {
        self.check()?;
        let places = Places::single(self.nodes);
        let net: SharedNet =
            Arc::new(Mutex::new(Net::switched(places, self.model, MAX_FRAME, RECEIVE_BUFFER)));
        let members: Arc<[Member]> = (0..self.nodes).map(|rank| Member::new(address(rank))).collect();
        let plans = self.plans();
        let total = plans.iter().map(Plan::messages).sum();
        let mut nodes = Vec::with_capacity(self.nodes as usize);
        for (rank, plan) in (0..).zip(plans) {
            nodes.push(self.join(&net, rank, &members, plan)?);
            lock(&net).wake(rank, 0);
        }
        let first_step = nodes.first().and_then(|node| node.plan.first_round());
        Ok(Run {
            cluster: *self,
            net,
            nodes,
            total,
            left: self.nodes,
            done: vec![false; self.nodes as usize],
            first_step,
            first_left: first_step.map_or(0, |_| self.nodes),
            opened: vec![false; self.nodes as usize],
            first_round_ns: 0,
            arrived: 0,
            deaths: 0,
            last_death: (0, 0),
        })
    }

    /// Messages of all nodes in one round.
    fn messages_per_round(&self) -> u64 {
        let each = match self.pattern {
            Pattern::Random { peers } => peers,
            Pattern::Incast | Pattern::Requests | Pattern::Ring => 1,
            Pattern::Barrier => barrier_steps(self.nodes),
        };
        u64::from(self.nodes) * u64::from(each)
    }

    fn check(&self) -> Result<(), String> {
        let most = tautline_node::limits::MAX_PEERS;
        if self.nodes < 2 || self.nodes as usize > most {
            return Err(format!("{} nodes: there must be 2 to {most}", self.nodes));
        }
        if self.bytes < HEAD || self.bytes > MAX_BYTES {
            return Err(format!("messages of {} bytes: they must have {HEAD} to {MAX_BYTES}", self.bytes));
        }
        if self.rounds == 0 {
            return Err("no rounds: there must be at least 1".to_owned());
        }
        let messages = self.messages_per_round().saturating_mul(self.rounds.into());
        if messages > MAX_MESSAGES {
            return Err(format!(
                "{messages} messages in all: at most {MAX_MESSAGES} are simulated\ngive fewer nodes or rounds"
            ));
        }
        if self.model.mbps == 0 {
            return Err("cables of 0 Mb/s carry nothing".to_owned());
        }
        match self.pattern {
            Pattern::Random { peers } if peers == 0 || peers >= self.nodes => {
                Err(format!("{peers} peers of each node: there must be 1 to {}", self.nodes - 1))
            }
            _ => Ok(()),
        }
    }

    /// What each node does.
    fn plans(&self) -> Vec<Plan> {
        let nodes = self.nodes;
        let in_step = |distances: Vec<u32>| {
            let steps = distances.len() as u32 * self.rounds;
            (0..nodes).map(|_| Plan::InStep { distances: distances.clone(), steps }).collect()
        };
        match self.pattern {
            Pattern::Ring => in_step(vec![1]),
            Pattern::Barrier => in_step((0..barrier_steps(nodes)).map(|step| 1 << step).collect()),
            Pattern::Incast => {
                let send = |rank| if rank == 0 { Vec::new() } else { vec![0] };
                self.free((0..nodes).map(send).collect())
            }
            Pattern::Requests => {
                let expected = u64::from(nodes - 1) * u64::from(self.rounds);
                let call = |rank| Plan::InStep { distances: vec![nodes - rank], steps: self.rounds };
                std::iter::once(Plan::Answering { expected }).chain((1..nodes).map(call)).collect()
            }
            Pattern::Random { peers } => {
                let mut rng = Rng::new(self.seed, 0x636c_7573);
                let mut draw = |me: u32| {
                    let mut drawn: Vec<u32> = Vec::new();
                    while drawn.len() < peers as usize {
                        let peer = rng.below(u64::from(nodes)) as u32;
                        if peer != me && !drawn.contains(&peer) {
                            drawn.push(peer);
                        }
                    }
                    drawn
                };
                self.free((0..nodes).map(&mut draw).collect())
            }
        }
    }

    fn free(&self, peers: Vec<Vec<u32>>) -> Vec<Plan> {
        let mut expected = vec![0_u64; self.nodes as usize];
        peers.iter().flatten().for_each(|peer| expected[*peer as usize] += u64::from(self.rounds));
        let plan = |(peers, expected)| Plan::Free { peers, rounds: self.rounds, expected };
        peers.into_iter().zip(expected).map(plan).collect()
    }

    fn join(&self, net: &SharedNet, rank: u32, members: &Arc<[Member]>, plan: Plan) -> Result<Node, String> {
        let device = SimDevice::plug(net, rank, u64::from(rank) + 1, SLOTS, MAX_FRAME);
        let clock = Clock::Virtual(lock(net).clock());
        let steps = if let Plan::InStep { steps, .. } = plan { steps as usize } else { 0 };
        let inbox = Rc::new(RefCell::new(Inbox {
            clock: clock.clone(),
            next: HashMap::new(),
            steps: vec![0; steps],
            received: 0,
            answers: matches!(plan, Plan::Answering { .. }).then(VecDeque::new),
            is_timed: rank == 0 || self.pattern != Pattern::Requests,
            latencies: Vec::with_capacity(plan.expected() as usize),
            violation: None,
        }));
        let (taken, bytes) = (inbox.clone(), self.bytes);
        let take = move |message: Short<'_>| taken.borrow_mut().take(message.from(), message.data(), bytes);
        let mut entropy = [0; 32];
        let mut rng = Rng::new(self.seed, 0x656e_7472 ^ u64::from(rank) << 32);
        entropy.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.next().to_le_bytes()));
        let job = Job::with_shared_members(rank, JobKey::new([9; 32]), members.clone());
        let ep = Endpoint::builder()
            .config(Config::default())
            .on_short("step", take)
            .join_in(&job, Environment::new(Box::new(device), clock, entropy))
            .map_err(|why| format!("node {rank} cannot join: {why}"))?;
        let mut buffer = vec![rank as u8; self.bytes];
        buffer[..HEAD].fill(0);
        Ok(Node { ep, inbox, plan, at: 0, begun: None, sent: HashMap::new(), buffer })
    }
}

/// A cluster that runs.
struct Run {
    cluster: Cluster,
    net: SharedNet,
    nodes: Vec<Node>,
    /// Messages of all nodes.
    total: u64,
    /// Nodes that are not done.
    left: u32,
    done: Vec<bool>,
    /// The last step of the first round, nodes that have not sent it, and those that have.
    first_step: Option<u32>,
    first_left: u32,
    opened: Vec<bool>,
    first_round_ns: Nanos,
    arrived: u64,
    deaths: u64,
    /// The newest death that a node reported, and when.
    last_death: (u32, Nanos),
}

impl Run {
    fn until_done(&mut self, mut progress: impl FnMut((u64, u64))) -> Result<(), String> {
        let mut runs = 0_u64;
        while self.left > 0 {
            self.step()?;
            runs += 1;
            if runs.is_multiple_of(4_096) {
                progress((self.arrived, self.total));
            }
        }
        Ok(())
    }

    /// Advances the time until a node runs, and lets it run.
    fn step(&mut self) -> Result<(), String> {
        let nodes = self.cluster.nodes;
        let Some((now, What::Run { node })) = lock(&self.net).advance() else {
            return Err(format!("{} nodes wait for messages that nobody sends", self.left));
        };
        if now > LONGEST {
            return Err(format!("{} of {nodes} nodes are not done after 600 s", self.left));
        }
        lock(&self.net).begin_run(node);
        let this = &mut self.nodes[node as usize];
        let before = this.inbox.borrow().latencies.len();
        let blocked = this.run(node, nodes, now).map_err(|why| format!("node {node}: {why}"))?;
        self.arrived += (this.inbox.borrow().latencies.len() - before) as u64;
        if let Some(why) = this.inbox.borrow_mut().violation.take() {
            return Err(format!("node {node}: {why}"));
        }
        while let Some(event) = this.ep.poll_event() {
            if let tautline::Event::PeerDown { peer, .. } = event {
                self.deaths += 1;
                self.last_death = (peer, now);
            }
        }
        if self.first_step.is_some_and(|step| this.at > step) && !self.opened[node as usize] {
            self.opened[node as usize] = true;
            self.first_left -= 1;
            self.first_round_ns = if self.first_left == 0 { now } else { 0 };
        }
        if !self.done[node as usize] && this.is_done() {
            self.done[node as usize] = true;
            self.left -= 1;
        }
        let deadline = this.ep.node().next_deadline().ok().flatten().unwrap_or(Nanos::MAX);
        let retry = if blocked { now + RETRY } else { Nanos::MAX };
        lock(&self.net).end_run(node, deadline.min(retry));
        Ok(())
    }

    fn report(&self) -> Result<ClusterReport, String> {
        let messages = self.total;
        let mut latencies: Vec<u64> = Vec::with_capacity(messages as usize);
        let mut resent = 0;
        for node in &self.nodes {
            latencies.extend_from_slice(&node.inbox.borrow().latencies);
            let counters = node.ep.node().counters();
            resent += counters.links.slots_resent;
        }
        if latencies.len() as u64 != messages {
            return Err(format!("{} messages arrived, and {messages} were sent", latencies.len()));
        }
        latencies.sort_unstable();
        let at = |share: usize| latencies.get(latencies.len() * share / 100).copied().unwrap_or(0);
        let net = lock(&self.net);
        Ok(ClusterReport {
            messages,
            bytes: messages * self.cluster.bytes as u64,
            virtual_ns: net.now(),
            first_round_ns: self.first_round_ns,
            median_ns: at(50),
            p99_ns: at(99),
            frames: net.counters.sent,
            dropped: net.counters.tail_dropped + net.counters.overflowed,
            resent,
            deaths: self.deaths,
            trace_hash: net.hash,
        })
    }
}

/// Steps of a dissemination barrier.
fn barrier_steps(nodes: u32) -> u32 {
    nodes.next_power_of_two().ilog2()
}

impl Plan {
    /// How many messages the node sends.
    fn messages(&self) -> u64 {
        match self {
            Plan::Free { peers, rounds, .. } => peers.len() as u64 * u64::from(*rounds),
            Plan::Answering { .. } => 0,
            Plan::InStep { steps, .. } => u64::from(*steps),
        }
    }

    /// How many messages the node receives.
    fn expected(&self) -> u64 {
        match self {
            Plan::Free { expected, .. } | Plan::Answering { expected } => *expected,
            Plan::InStep { steps, .. } => u64::from(*steps),
        }
    }

    /// The last step of the first round.
    fn first_round(&self) -> Option<u32> {
        match self {
            Plan::Free { .. } | Plan::Answering { .. } => None,
            Plan::InStep { distances, .. } => Some(distances.len() as u32 - 1),
        }
    }
}
