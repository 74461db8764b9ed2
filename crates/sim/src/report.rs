//! The result of a run.

use tautline::Counters;

use crate::Nanos;
use crate::net::NetCounters;

/// Sums over all nodes and all their incarnations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Steps of the world.
    pub steps: u64,
    /// Slots sent for the first time.
    pub slots_sent: u64,
    /// Slots sent again.
    pub slots_resent: u64,
    /// Expirations of retransmission timers.
    pub timeouts: u64,
    /// Frames dropped because their tag or seal was wrong.
    pub bad_tag: u64,
    /// Frames dropped because they had been seen.
    pub replayed: u64,
    /// Frames dropped because they were malformed, or strays.
    pub malformed: u64,
    /// Frames of channels that had ended.
    pub stale: u64,
    /// Handshake frames that were not authentic.
    pub forged: u64,
    /// Path limits lowered because large frames vanished.
    pub black_holes: u64,
    /// How often sending stopped for lack of credit.
    pub credit_stalls: u64,
    /// Sends refused because the peer was gone.
    pub refused: u64,
    /// Frames sent through shared memory.
    pub local_frames: u64,
    /// Crashes of nodes that shared memory with a peer.
    pub local_crashes: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, counters: &Counters) {
        self.slots_sent += counters.links.slots_sent;
        self.slots_resent += counters.links.slots_resent;
        self.timeouts += counters.links.timeouts;
        self.bad_tag += counters.links.bad_tag;
        self.replayed += counters.links.replayed;
        self.malformed += counters.links.malformed + counters.strays;
        self.stale += counters.stale;
        self.forged += counters.forged_handshakes;
        self.black_holes += counters.links.black_holes;
        self.credit_stalls += counters.links.credit_stalls;
        self.local_frames += counters.local.frames_sent;
    }
}

/// How many pairs of nodes had a channel of each kind; a pair may have had both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pairs {
    /// Pairs that shared memory.
    pub shm: usize,
    /// Pairs that had a link.
    pub link: usize,
}

/// The result of one seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// [`crate::Options::messages`] of the run: the same seed with another value is another world.
    pub per_seed: u64,
    /// Everything that the seed drew, as text.
    pub options: String,
    /// Messages that reached a handler.
    pub messages: u64,
    /// Messages that a handler read to the end.
    pub completed: u64,
    /// Bytes that handlers read, all of them compared with what was sent.
    pub bytes: u64,
    /// Messages that were lost with a peer whose end was reported.
    pub lost: u64,
    /// Messages that were begun while their path lost, repeated, held back or damaged frames by chance, was
    /// blocked or in a burst, or one of its ends was paused or had crashed.
    pub under_faults: u64,
    /// Frames that were lost after the last of the planned faults.
    pub lost_after_healing: u64,
    /// Reports that a peer is gone.
    pub deaths: u64,
    /// Frames that the network delivered.
    pub frames: u64,
    /// Pairs of nodes, by kind of channel.
    pub pairs: Pairs,
    /// Duration on the virtual clock.
    pub virtual_ns: Nanos,
    /// How often a promise was broken.
    pub violation_count: u64,
    /// The first violations, with their times.
    pub violations: Vec<String>,
    /// The same for the same seed, always.
    pub trace_hash: u64,
    /// What the network did.
    pub net: NetCounters,
    /// What the nodes counted.
    pub totals: Totals,
}

impl Report {
    /// Whether every promise was kept.
    pub fn is_good(&self) -> bool {
        self.violation_count == 0
    }

    /// Returns the command that shows this run again.
    pub fn replay_command(&self) -> String {
        let usual = self.per_seed == crate::Options::default().messages;
        let messages = if usual { String::new() } else { format!(" --per-seed {}", self.per_seed) };
        format!("tautline sim --seed {}{messages} --replay", self.seed)
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "seed {}: {} messages ({} read to the end, {} lost with their peers, {} begun under faults), {} frames, \
             {} through shared memory, \
             {} pairs over shm, {} over links, {} ms, hash {:016x}",
            self.seed,
            self.messages,
            self.completed,
            self.lost,
            self.under_faults,
            self.frames,
            self.totals.local_frames,
            self.pairs.shm,
            self.pairs.link,
            self.virtual_ns / 1_000_000,
            self.trace_hash
        )?;
        if self.is_good() {
            return Ok(());
        }
        write!(f, "{}", self.options)?;
        writeln!(f, "{:?}\n{:?}", self.net, self.totals)?;
        for violation in &self.violations {
            writeln!(f, "VIOLATION {violation}")?;
        }
        writeln!(f, "{} violations; see them again with: {}", self.violation_count, self.replay_command())
    }
}
