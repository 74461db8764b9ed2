//! What a node counted.

/// Frames through shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalCounters {
    /// Frames sent.
    pub frames_sent: u64,
    /// Frames received.
    pub frames_received: u64,
    /// How often a peer had to be woken: a system call each.
    pub rings: u64,
}

impl LocalCounters {
    pub(crate) fn add(&mut self, [sent, received, rings]: [u64; 3]) {
        self.frames_sent += sent;
        self.frames_received += received;
        self.rings += rings;
    }
}

/// Counters of a node; all of them only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Frames through memory that is shared with peers on this host.
    pub local: LocalCounters,
    /// Of the device.
    pub device: tautline_device::Counters,
    /// Sums over all links, live and past.
    pub links: tautline_link::Counters,
    /// Frames for nobody here, and malformed ones.
    pub strays: u64,
    /// Frames for channels that no longer exist, mostly of former incarnations.
    pub stale: u64,
    /// Handshake frames that were not authentic.
    pub forged_handshakes: u64,
    /// Hellos answered with a request for proof that they are recent.
    pub retries: u64,
    /// Hellos that were not answered, because they came too often.
    pub hellos_dropped: u64,
    /// Frames that had to be copied because the program was not extracting.
    pub frames_held: u64,
    /// Polls made by the watchdog.
    pub watchdog_polls: u64,
    /// Times that a waiting program went to sleep. An idle program sleeps once, and long.
    pub sleeps: u64,
    /// Events that were dropped because the program did not read them.
    pub events_lost: u64,
}

impl Counters {
    /// Adds the counters of a link.
    pub(crate) fn add_link(&mut self, link: &tautline_link::Counters) {
        let sum = &mut self.links;
        sum.frames_sent += link.frames_sent;
        sum.frames_accepted += link.frames_accepted;
        sum.slots_sent += link.slots_sent;
        sum.slots_resent += link.slots_resent;
        sum.slots_accepted += link.slots_accepted;
        sum.slots_duplicate += link.slots_duplicate;
        sum.slots_ahead += link.slots_ahead;
        sum.losses_by_evidence += link.losses_by_evidence;
        sum.timeouts += link.timeouts;
        sum.bad_tag += link.bad_tag;
        sum.replayed += link.replayed;
        sum.malformed += link.malformed;
        sum.credit_stalls += link.credit_stalls;
        sum.black_holes += link.black_holes;
    }
}
