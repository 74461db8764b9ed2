//! Options drawn from a seed: every seed is a different world.

use tautline::Security;
use tautline_link::RecoveryPolicy;

use crate::hosts;
use crate::net::PathOptions;
use crate::places::Places;
use crate::rng::Rng;
use crate::sabotage::LONG_HORIZON;
use crate::schedule::{self, Planned, draw as draw_faults};
use crate::{Hosts, Nanos, Options, Sabotage};

/// The most nodes that a seed draws.
const MANY: u64 = 64;

/// The options of one node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeOptions {
    pub(crate) recovery: RecoveryPolicy,
    pub(crate) credit_slots: u32,
    pub(crate) message_window: u32,
    pub(crate) window_initial: u32,
    pub(crate) congestion: bool,
    pub(crate) ack_every: u32,
    pub(crate) ack_delay: Nanos,
    pub(crate) share_frames: bool,
    pub(crate) tx_slots: usize,
    /// Bytes extracted at a time.
    pub(crate) extract: usize,
    /// How often a step extracts.
    pub(crate) rounds: u32,
    /// The program extracts only this often, and only sends in the meantime.
    pub(crate) extract_gap_ns: Nanos,
    /// How long a step takes.
    pub(crate) step_ns: Nanos,
    /// The time from a frame's arrival to the program's poll.
    pub(crate) latency_ns: Nanos,
    pub(crate) batch_ppm: u32,
    pub(crate) give_up_ppm: u32,
    pub(crate) burst: u64,
    pub(crate) gap_ns: Nanos,
    /// Bytes of the longest message.
    pub(crate) largest: u64,
    /// Share of messages that stay below 1,000 bytes.
    pub(crate) small_ppm: u32,
    /// Bytes of the longest message that is sent whole.
    pub(crate) short: u64,
    /// Bytes that each peer on its host can be lent.
    pub(crate) loan_pool: usize,
    /// Bytes of a message from a peer on its host before more are granted.
    pub(crate) local_window: u32,
}

/// Everything that a seed decides beforehand.
#[derive(Clone, Debug)]
pub(crate) struct Swarm {
    pub(crate) security: Security,
    pub(crate) max_frame: usize,
    pub(crate) rx_limit: usize,
    pub(crate) path: PathOptions,
    pub(crate) nodes: Vec<NodeOptions>,
    /// The lanes of all nodes.
    pub(crate) places: Places,
    /// The host of each node; nodes of one host share memory.
    pub(crate) hosts: Vec<u32>,
    pub(crate) messages: u64,
    pub(crate) horizon: Nanos,
    pub(crate) faults: Vec<Planned>,
    /// Loss, repetition, reordering and damage go on until everything has arrived.
    pub(crate) lasting: bool,
}

impl Swarm {
    pub(crate) fn draw(seed: u64, options: &Options) -> Swarm {
        let mut rng = Rng::new(seed, 0x5377_6172);
        let sabotage = options.sabotage;
        let nodes = draw_count(rng.pick(&[2, 2, 2, 3, 3, 4, 5, 6, 8]), seed, options);
        let security = match rng.below(20) {
            _ if sabotage == Sabotage::Damage => Security::Open,
            0..=11 => Security::Fabric,
            12..=16 => Security::Open,
            _ => Security::Sealed,
        };
        let mut path = draw_path(&mut rng);
        // Without protection, damage would go undetected: that is what open mode means.
        if security == Security::Open {
            path.corrupt_ppm = if sabotage == Sabotage::Damage { 50_000 } else { 0 };
        }
        let shortest = rng.pick(&[10_000_000, 10_000_000, 1_000_000_000]);
        let horizon = rng.magnitude(shortest, 5_000_000_000);
        // A missing watchdog is noticed only after a long computation.
        let horizon = match sabotage {
            Sabotage::NoWatchdog => 5_000_000_000,
            Sabotage::HideLosses | Sabotage::HideThenCrash | Sabotage::StallEarly => LONG_HORIZON,
            _ => horizon,
        };
        let messages = rng.range(options.messages / 2, options.messages + options.messages / 2).max(1);
        let per_node = messages / nodes + 1;
        let largest = if rng.chance(300_000) { 1 << 20 } else { rng.magnitude(1_000, 100_000) };
        let hosts = hosts::draw(seed, nodes as usize, options.hosts);
        let places = Places::draw(seed, &hosts, options.lanes);
        let draw_node = |rng: &mut Rng| draw_node(rng, per_node, horizon, largest);
        let mut swarm = Swarm {
            security,
            max_frame: rng.pick(&[1_232, 1_472, 1_472, 1_472, 4_000, 8_972]),
            rx_limit: rng.pick(&[48, 128, 208, 208, 1_024]) * 1_024,
            path,
            nodes: (0..nodes).map(|_| draw_node(&mut rng)).collect(),
            places,
            hosts,
            messages,
            horizon,
            faults: Vec::new(),
            lasting: false,
        };
        draw_local(&mut Rng::new(seed, 0x6c6f_636c), &mut swarm.nodes);
        swarm.draw_rare(&mut Rng::new(seed, 0x7261_7265));
        swarm.faults = draw_faults(&mut rng, &swarm, sabotage);
        schedule::spread_over_lanes(&mut Rng::new(seed, 0x6661_756c), &mut swarm.faults, places);
        swarm
    }

    /// Draws what few worlds have, from a stream of its own.
    fn draw_rare(&mut self, rng: &mut Rng) {
        if rng.chance(100_000) {
            // Of interfaces whose MTU is below what IPv6 requires (L-20).
            self.max_frame = rng.pick(&[512, 700, 1_000]);
            let short = self.max_frame as u64 - 200;
            self.nodes.iter_mut().for_each(|node| node.short = node.short.min(short));
        }
        self.lasting = rng.chance(150_000);
        let drops_tail = self.path.mbps > 0 && self.path.queue_bytes > 0;
        if drops_tail {
            // Without a congestion window, a queue that drops its tail collapses: the window exists to
            // prevent that. In some worlds it does, and everything arrives nevertheless.
            let congestion = !rng.chance(200_000);
            self.nodes.iter_mut().for_each(|node| node.congestion = congestion);
            if !congestion {
                // Windows of credit that exceed the queue, or it would never be full.
                (self.path.mbps, self.path.queue_bytes) = (100, 32 * 1_024);
                self.nodes.iter_mut().for_each(|node| node.credit_slots = node.credit_slots.max(64));
            }
        }
    }
}

/// How many nodes there are: `few`, or up to [`MANY`] in one world of sixteen. From a stream of its own.
fn draw_count(few: u64, seed: u64, options: &Options) -> u64 {
    let mut rng = Rng::new(seed, 0x6d61_6e79);
    // Nodes of one host, and lanes, have a dozen descriptors for each other.
    let plain =
        options.sabotage == Sabotage::None && options.hosts != Hosts::Single && options.lanes.is_none();
    let many = plain && rng.chance(62_500);
    if many { rng.range(9, MANY) } else { few }
}

fn share(rng: &mut Rng, chance_ppm: u32, most_ppm: u64) -> u32 {
    if !rng.chance(chance_ppm) {
        return 0;
    }
    // Often little, sometimes very much.
    (if rng.chance(500_000) { rng.magnitude(100, most_ppm) } else { rng.below(most_ppm) }) as u32
}

fn draw_path(rng: &mut Rng) -> PathOptions {
    PathOptions {
        mbps: rng.pick(&[100, 1_000, 1_000, 10_000, 0]),
        delay_ns: rng.magnitude(500, 2_000_000),
        jitter_ns: if rng.chance(500_000) { rng.magnitude(100, 500_000) } else { 0 },
        queue_bytes: rng.pick(&[0, 64 * 1_024, 256 * 1_024, 1 << 20]),
        loss_ppm: share(rng, 600_000, 300_000),
        duplicate_ppm: share(rng, 400_000, 500_000),
        reorder_ppm: share(rng, 400_000, 300_000),
        reorder_by: rng.magnitude(1, 64),
        corrupt_ppm: share(rng, 400_000, 100_000),
    }
}

fn draw_node(rng: &mut Rng, messages: u64, horizon: Nanos, largest: u64) -> NodeOptions {
    let burst = rng.magnitude(1, 500).min(messages);
    let bursts = messages / (burst / 4 + 1) + 1;
    let mut extract_gap_ns = 0;
    let mut extract = if rng.chance(800_000) { usize::MAX } else { rng.magnitude(1, 65_536) as usize };
    if rng.chance(150_000) {
        extract_gap_ns = rng.pick(&[20_000, 300_000, 3_000_000, 10_000_000, 25_000_000]);
        extract = rng.pick(&[1, 1, 5_000, usize::MAX]);
    }
    NodeOptions {
        recovery: if rng.chance(250_000) { RecoveryPolicy::GoBackN } else { RecoveryPolicy::SelectiveRepeat },
        credit_slots: rng.pick(&[2, 8, 64, 256, 256, 256, 1_024]),
        message_window: rng.pick(&[2_000, 16 * 1_024, 64 * 1_024, 512 * 1_024, 512 * 1_024]),
        window_initial: rng.pick(&[8, 32, 128, 128]) * 1_024,
        congestion: !rng.chance(100_000),
        ack_every: rng.pick(&[1, 8, 24, 24]),
        ack_delay: rng.pick(&[50_000, 500_000, 500_000, 2_000_000]),
        share_frames: rng.chance(300_000),
        tx_slots: rng.pick(&[64, 256, 512]),
        extract,
        rounds: if extract_gap_ns > 0 { 1 } else { rng.pick(&[1, 8, 32, 32]) },
        extract_gap_ns,
        step_ns: rng.magnitude(500, 20_000),
        latency_ns: rng.magnitude(200, 50_000),
        batch_ppm: rng.pick(&[0, 100_000, 900_000]),
        give_up_ppm: rng.pick(&[0, 20_000, 100_000]),
        burst,
        gap_ns: horizon / bursts,
        largest,
        small_ppm: rng.pick(&[700_000, 950_000, 990_000]),
        short: 1_000,
        loan_pool: 0,
        local_window: 0,
    }
}

/// Draws what matters only for shared memory, from a stream of its own.
fn draw_local(rng: &mut Rng, nodes: &mut [NodeOptions]) {
    for node in nodes {
        node.loan_pool = rng.pick(&[0, 64 << 10, 1 << 20, 16 << 20]);
        node.local_window = rng.pick(&[2_000, 64 << 10, 2 << 20, 2 << 20]);
    }
}

impl std::fmt::Display for Swarm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} nodes, {} messages over {} ms, {:?}, frames of {} bytes, buffers of {} bytes",
            self.nodes.len(),
            self.messages,
            self.horizon / 1_000_000,
            self.security,
            self.max_frame,
            self.rx_limit
        )?;
        writeln!(f, "hosts of the nodes: {:?}", self.hosts)?;
        let Places { ranks, lanes } = self.places;
        if lanes > 1 {
            writeln!(f, "{lanes} lanes of each node: number n is lane n / {ranks} of node n % {ranks}")?;
        }
        writeln!(f, "{:?}", self.path)?;
        for (rank, node) in self.nodes.iter().enumerate() {
            writeln!(f, "node {rank}: {node:?}")?;
        }
        if self.lasting {
            writeln!(f, "loss, repetition, reordering and damage last until everything has arrived")?;
        }
        for planned in &self.faults {
            writeln!(f, "at {} us: {:?}", planned.at / 1_000, planned.fault)?;
        }
        Ok(())
    }
}
