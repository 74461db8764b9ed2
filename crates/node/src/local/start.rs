//! Opening a node's listener when it joins, or later, and saying why that is not possible.

use std::io;

use tautline_link::Nanos;

use super::discovery::Discovery;
use crate::limits::SHORTAGE_PAUSE;
use crate::{Config, DeviceName, Job, Member, PassedOver};

/// Opens this node's listener, so that peers on this host are reached through shared memory; or says why not,
/// and whether it was wanted.
pub(crate) fn start(job: &Job, config: &Config) -> Result<Discovery, (PassedOver, bool)> {
    let not = |reason: String, wanted: bool| Err((PassedOver { device: "shm", reason }, wanted));
    if config.device == Some(DeviceName::Udp) {
        return not("udp was asked for".to_owned(), false);
    }
    if job.size() < 2 && !job.may_grow {
        return not("there is nobody else in the job".to_owned(), false);
    }
    let (own, by_address) = (&job.members[job.rank as usize], config.device == Some(DeviceName::Xdp));
    let is_reached = |(rank, member): (usize, &Member)| {
        let same_ip = member.addr.ip() == own.addr.ip();
        rank != job.rank as usize && own.may_share_with(member) && (!by_address || same_ip)
    };
    if !job.may_grow && !job.members.iter().enumerate().any(is_reached) {
        let why = if by_address {
            "xdp was asked for, and no other rank has this one's address"
        } else {
            "no other rank is on this host"
        };
        return not(why.to_owned(), false);
    }
    if config.fault.is_some() || config.pcap.is_some() || config.trace {
        return not("faults, captures and traces show datagrams".to_owned(), false);
    }
    Discovery::new(job, config).map_err(|error| unavailable(job, &error))
}

/// Opens the listener of a node that could not open it when it joined, for want of descriptors perhaps.
#[derive(Debug)]
pub(crate) struct Reopen {
    job: Job,
    next_try: Nanos,
}

impl Reopen {
    pub(crate) fn new(job: &Job) -> Reopen {
        Reopen { job: job.without_socket(), next_try: 0 }
    }

    /// Tries once, if the last time was long enough ago.
    pub(crate) fn try_open(&mut self, now: Nanos, config: &Config) -> Option<Discovery> {
        if now < self.next_try {
            return None;
        }
        self.next_try = now + SHORTAGE_PAUSE;
        Discovery::new(&self.job, config).ok()
    }
}

/// Shared memory was wanted and cannot be had.
pub(crate) fn unavailable(job: &Job, error: &io::Error) -> (PassedOver, bool) {
    let reason = explain(error);
    tracing::warn!(rank = job.rank, %reason, "no shared memory");
    (PassedOver { device: "shm", reason }, true)
}

/// Why no memory is shared with a process on this host.
pub(crate) fn explain(error: &io::Error) -> String {
    format!("on this host, and no memory can be shared: {}", crate::shortage::explain(error))
}
