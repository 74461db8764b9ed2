//! Collectives and multicasts of many nodes on one switch: how long each takes with open channels, beside the
//! bound of the network model.

use std::sync::{Arc, Mutex};

use tautline::group::{Call, Collective, Group, Reduction};
use tautline::{Clock, Config, Endpoint, Environment, Job, Member};
use tautline_link::JobKey;
use tautline_node::multicast::{MulticastOptions, MulticastReceiveId, Shape};
use tautline_node::tags::Buffer;

use super::{LONGEST, MAX_FRAME, RECEIVE_BUFFER, SLOTS, barrier_steps};
use crate::Nanos;
use crate::device::{SharedNet, SimDevice, lock};
use crate::net::{Net, NetworkModel, What, address};
use crate::places::Places;
use crate::rng::Rng;

/// The id of the group that sends multicasts.
const GROUP: u32 = 1;

/// What all nodes do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    /// No node goes on before all have called it.
    Barrier,
    /// Every node gets the sum of the values of all.
    AllReduce,
    /// Every node gets the message of the first, which programs forward.
    Broadcast,
    /// Every node gets the message of the first, which nodes forward.
    Multicast,
    /// Every node gets the messages of all others, which nodes forward, with windows of this many bytes and
    /// so many roots at once.
    AllMulticast {
        /// Bytes of a window.
        window: u64,
        /// Roots at once.
        roots: usize,
    },
}

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collectives {
    /// How many nodes.
    pub nodes: u32,
    /// What they do.
    pub together: Together,
    /// How often; channels are opened in the first round.
    pub rounds: u32,
    /// Bytes of a message: a multiple of eight.
    pub bytes: usize,
    /// Decides what is drawn.
    pub seed: u64,
    /// The network.
    pub model: NetworkModel,
}

/// What a run took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectivesReport {
    /// The first round, in which channels are opened.
    pub first_ns: Nanos,
    /// The median of the other rounds, from the start at all nodes to the end at the last one; zero if there
    /// was only one round.
    pub round_ns: Nanos,
    /// ⌈log₂ n⌉ steps, each a frame on an idle network to an idle node.
    pub bound_ns: Nanos,
    /// Frames that the network carried.
    pub frames: u64,
    /// Frames that a full queue or buffer dropped.
    pub dropped: u64,
    /// Peers that were reported as lost: false deaths, since nobody dies.
    pub deaths: u64,
    /// A digest of everything that the network carried.
    pub trace_hash: u64,
}

/// What a node waits for in a round.
enum Waiting {
    Nothing,
    Collective(Collective),
    /// Messages of these roots, with the receive of the next one.
    Messages(Vec<u32>, Option<MulticastReceiveId>),
}

struct Node {
    ep: Endpoint,
    world: Group,
    waiting: Waiting,
    /// Rounds that it has begun.
    begun: u32,
}

impl Collectives {
    /// Runs it.
    ///
    /// # Errors
    /// If it cannot be run, if a result is wrong, or if it does not end.
    pub fn run(&self) -> Result<CollectivesReport, String> {
        self.run_with(|_| {})
    }

    /// As [`Collectives::run`]; tells how many rounds are over, of how many.
    pub fn run_with(&self, mut progress: impl FnMut((u64, u64))) -> Result<CollectivesReport, String> {
        self.check()?;
        let places = Places::single(self.nodes);
        let net: SharedNet =
            Arc::new(Mutex::new(Net::switched(places, self.model, MAX_FRAME, RECEIVE_BUFFER)));
        let members: Arc<[Member]> = (0..self.nodes).map(|rank| Member::new(address(rank))).collect();
        let mut nodes = (0..self.nodes)
            .map(|rank| self.join(&net, rank, &members))
            .collect::<Result<Vec<_>, String>>()?;
        let mut times = Vec::new();
        for round in 0..self.rounds {
            let start = lock(&net).now();
            for rank in 0..self.nodes {
                lock(&net).wake(rank, start);
            }
            times.push(self.run_round(&net, &mut nodes, round)? - start);
            progress((u64::from(round) + 1, self.rounds.into()));
        }
        let first_ns = times.remove(0);
        times.sort_unstable();
        let mut deaths = 0;
        for node in &nodes {
            while let Some(event) = node.ep.poll_event() {
                deaths += u64::from(matches!(event, tautline::Event::PeerDown { .. }));
            }
        }
        let net = lock(&net);
        Ok(CollectivesReport {
            first_ns,
            round_ns: times.get(times.len() / 2).copied().unwrap_or(0),
            bound_ns: self.bound_ns(),
            frames: net.counters.sent,
            dropped: net.counters.tail_dropped + net.counters.overflowed,
            deaths,
            trace_hash: net.hash,
        })
    }

    /// Runs until every node has ended the round; returns when the last one has.
    fn run_round(&self, net: &SharedNet, nodes: &mut [Node], round: u32) -> Result<Nanos, String> {
        let mut left = self.nodes;
        let mut done = vec![false; self.nodes as usize];
        loop {
            let Some((now, What::Run { node })) = lock(net).advance() else {
                return Err(format!("{left} nodes wait for messages that nobody sends"));
            };
            if now > LONGEST {
                return Err(format!("{left} of {} nodes are not done after 600 s", self.nodes));
            }
            lock(net).begin_run(node);
            let this = &mut nodes[node as usize];
            let ended = self.step(this, node, round).map_err(|why| format!("node {node}: {why}"))?;
            if ended && !std::mem::replace(&mut done[node as usize], true) {
                left -= 1;
            }
            let deadline = this.ep.node().next_deadline().ok().flatten().unwrap_or(Nanos::MAX);
            lock(net).end_run(node, deadline);
            if left == 0 {
                return Ok(now);
            }
        }
    }

    /// Begins the round, unless that was done, and goes on with it. True if the node has ended it.
    fn step(&self, node: &mut Node, me: u32, round: u32) -> Result<bool, String> {
        let say = |why: tautline::Error| why.to_string();
        if node.begun == round {
            node.begun += 1;
            node.waiting = self.begin(node, me, round)?;
        }
        node.ep.node().tagged().poll().map_err(|why| why.to_string())?;
        match &mut node.waiting {
            Waiting::Nothing => {}
            Waiting::Collective(collective) => {
                if !collective.test() {
                    return Ok(false);
                }
                let Waiting::Collective(ended) = std::mem::replace(&mut node.waiting, Waiting::Nothing)
                else {
                    return Ok(true);
                };
                let output = ended.wait().map_err(say)?;
                if output != self.expected(round) {
                    return Err(format!("a wrong result in round {round}"));
                }
            }
            Waiting::Messages(roots, receive) => {
                while !roots.is_empty() {
                    let multicast = node.ep.node().multicast();
                    let id = match *receive {
                        Some(id) => id,
                        None => {
                            let room = Buffer::Whole(vec![0; self.bytes]);
                            let id = multicast.start_receive(GROUP, None, room);
                            *receive.insert(id.map_err(|why| why.to_string())?)
                        }
                    };
                    let Some((result, buffer)) =
                        multicast.take_received(id).map_err(|why| why.to_string())?
                    else {
                        return Ok(false);
                    };
                    *receive = None;
                    let root = result.map_err(|why| why.to_string())?.source;
                    let Some(at) = roots.iter().position(|other| *other == root) else {
                        return Err(format!("a second message of node {root} in round {round}"));
                    };
                    roots.swap_remove(at);
                    if buffer != Buffer::Whole(self.content(root, round)) {
                        return Err(format!("a wrong message of node {root} in round {round}"));
                    }
                }
                node.waiting = Waiting::Nothing;
            }
        }
        Ok(true)
    }

    fn begin(&self, node: &Node, me: u32, round: u32) -> Result<Waiting, String> {
        let len = self.bytes;
        let start = |call: Call, input: Vec<u8>| {
            node.world.start(&call, input).map(Waiting::Collective).map_err(|why| why.to_string())
        };
        let roots = match self.together {
            Together::Barrier => return start(Call::Barrier, Vec::new()),
            Together::AllReduce => {
                return start(
                    Call::AllReduce { len, with: Reduction::new(8, true, add) },
                    self.content(me, round),
                );
            }
            Together::Broadcast => {
                let input = if me == 0 { self.content(0, round) } else { Vec::new() };
                return start(Call::Broadcast { root: 0, len }, input);
            }
            Together::Multicast => vec![0],
            Together::AllMulticast { .. } => (0..self.nodes).collect(),
        };
        if roots.contains(&me) {
            let multicast = node.ep.node().multicast();
            let send = multicast.start_send(GROUP, Arc::new(self.content(me, round)));
            let send = send.and_then(|send| multicast.forget_send(send));
            send.map_err(|why| why.to_string())?;
        }
        let others = roots.into_iter().filter(|root| *root != me).collect();
        Ok(Waiting::Messages(others, None))
    }

    /// What a node contributes to a round.
    fn content(&self, node: u32, round: u32) -> Vec<u8> {
        let word = u64::from(node) << 32 | u64::from(round);
        (0..self.bytes as u64 / 8).flat_map(|at| word.wrapping_mul(at * 2 + 1).to_le_bytes()).collect()
    }

    /// What every node gets in a round of a collective.
    fn expected(&self, round: u32) -> Vec<u8> {
        match self.together {
            Together::Barrier => return Vec::new(),
            Together::Broadcast => return self.content(0, round),
            _ => {}
        }
        let zero = vec![0; self.bytes];
        (0..self.nodes).fold(zero, |mut sum, node| {
            add(&self.content(node, round), &mut sum);
            sum
        })
    }

    /// The time of ⌈log₂ n⌉ steps on an idle network, each to an idle node.
    fn bound_ns(&self) -> Nanos {
        let NetworkModel { mbps, latency_ns, send_ns, receive_ns, wake_ns, .. } = self.model;
        let bytes = if self.together == Together::Barrier { 0 } else { self.bytes as u64 };
        let cable = bytes * 8_000 / mbps;
        u64::from(barrier_steps(self.nodes)) * (latency_ns + cable + send_ns + receive_ns + wake_ns)
    }

    fn check(&self) -> Result<(), String> {
        let most = tautline_node::limits::MAX_PEERS;
        if self.nodes < 2 || self.nodes as usize > most {
            return Err(format!("{} nodes: there must be 2 to {most}", self.nodes));
        }
        if self.bytes == 0 || !self.bytes.is_multiple_of(8) || self.bytes > MAX_LEN {
            return Err(format!("{} bytes: there must be a multiple of 8, up to {MAX_LEN}", self.bytes));
        }
        if self.rounds == 0 {
            return Err("no rounds: there must be at least 1".to_owned());
        }
        if self.model.mbps == 0 {
            return Err("cables of 0 Mb/s carry nothing".to_owned());
        }
        Ok(())
    }

    fn join(&self, net: &SharedNet, rank: u32, members: &Arc<[Member]>) -> Result<Node, String> {
        let device = SimDevice::plug(net, rank, u64::from(rank) + 1, SLOTS, MAX_FRAME);
        let clock = Clock::Virtual(lock(net).clock());
        let mut entropy = [0; 32];
        let mut rng = Rng::new(self.seed, 0x636f_6c6c ^ u64::from(rank) << 32);
        entropy.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.next().to_le_bytes()));
        let job = Job::with_shared_members(rank, JobKey::new([9; 32]), members.clone());
        let ep = Endpoint::builder()
            .config(Config::default())
            .join_in(&job, Environment::new(Box::new(device), clock, entropy))
            .map_err(|why| format!("node {rank} cannot join: {why}"))?;
        let world = ep.world().map_err(|why| format!("node {rank}: {why}"))?;
        let options = match self.together {
            Together::Barrier | Together::AllReduce | Together::Broadcast => None,
            Together::Multicast => Some((256 << 10, 4)),
            Together::AllMulticast { window, roots } => Some((window, roots)),
        };
        if let Some((window, roots)) = options {
            let ranks: Vec<u32> = (0..self.nodes).collect();
            let options = MulticastOptions { shape: Shape::Binomial, window, roots };
            let opened = ep.node().multicast().open(GROUP, &ranks, rank as usize, options);
            opened.map_err(|why| format!("node {rank}: {why}"))?;
        }
        Ok(Node { ep, world, waiting: Waiting::Nothing, begun: 0 })
    }
}

/// The longest message.
pub const MAX_LEN: usize = 1 << 20;

/// Adds numbers of eight bytes.
fn add(lower: &[u8], upper: &mut [u8]) {
    for (lower, upper) in lower.as_chunks::<8>().0.iter().zip(upper.as_chunks_mut::<8>().0) {
        *upper = u64::from_le_bytes(*lower).wrapping_add(u64::from_le_bytes(*upper)).to_le_bytes();
    }
}
