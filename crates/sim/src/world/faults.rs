//! Applies faults when their time has come.

use tautline::PeerState;

use super::{World, progress};
use crate::device::lock;
use crate::net::What;
use crate::schedule::Fault;
use crate::{Nanos, Sabotage};

const MILLI: Nanos = 1_000_000;
/// Silence after which a peer is dead.
const SILENCE: Nanos = 1_000 * MILLI;
/// What a node may need beyond that to report it: frames in transit, and its own steps.
const SLACK: Nanos = 1_700 * MILLI;
/// The time within which a node sees that a process of its host has exited.
const EXIT_SEEN: Nanos = 20 * MILLI;
/// Shorter faults must not kill a link by themselves.
const HARMLESS: Nanos = 250 * MILLI;

impl World {
    pub(super) fn fault(&mut self, index: u32, now: Nanos) {
        let fault = match self.swarm.faults.get(index as usize) {
            Some(planned) => planned.fault,
            None if index == u32::MAX => Fault::Heal,
            None => Fault::Restart { node: index - (1 << 16) },
        };
        self.trace_line(|| format!("{fault:?}"));
        lock(&self.net).note(now ^ 0xfa17, u64::from(index));
        if self.phase.healed_at.is_some() {
            return;
        }
        self.phase.calm_at = self.phase.calm_at.max(now + fault.duration());
        match fault {
            Fault::Burst { from, to, for_ns } => {
                for (from, to) in self.paths(from, to) {
                    lock(&self.net).path_mut(from, to).burst_until = now + for_ns;
                    self.check.borrow_mut().faults.path(from, to, now + for_ns);
                }
            }
            Fault::BlackHole { from, to, both, for_ns } => {
                self.block_path(from, to, now, for_ns);
                if both {
                    self.block_path(to, from, now, for_ns);
                }
            }
            Fault::Partition { mask, both, for_ns } => self.partition(mask, both, now, for_ns),
            Fault::Pause { node, for_ns } => self.pause(node, now, for_ns),
            Fault::Compute { place, for_ns } => {
                let computing = &mut self.lanes[place as usize].computing_until;
                *computing = (now + for_ns).max(*computing);
            }
            Fault::SendOnly { place, for_ns } => {
                let extract = &mut self.lanes[place as usize].next_extract;
                *extract = (now + for_ns).max(*extract);
                self.lanes[place as usize].sends_often = true;
            }
            Fault::Crash { node, back_after } => self.crash_node(node, now, back_after),
            Fault::Restart { node } => self.restart_node(node, now),
            Fault::Mtu { a, b, mtu, reports_mtu } => {
                self.set_mtu(a, b, mtu, reports_mtu);
                self.set_mtu(b, a, mtu, reports_mtu);
            }
            Fault::Heal => self.heal(now),
        }
    }

    /// A fault affects a pair: silence is excused if the fault lasts, or follows soon upon another.
    fn disturb(&mut self, a: u32, b: u32, now: Nanos, for_ns: Nanos, harmless: Nanos) {
        let last = self.pairs.disturbed_at(a, b);
        let again = *last > 0 && now < *last + 2 * SILENCE;
        *last = (now + for_ns).max(*last);
        if for_ns > harmless || again {
            self.check.borrow_mut().deaths.excuse(a, b, now + for_ns + SILENCE + SLACK);
        }
    }

    /// The paths from the lanes of one node to those of another.
    fn paths(&self, from: u32, to: u32) -> Vec<(u32, u32)> {
        let places = self.places();
        places.of(from).flat_map(|from| places.of(to).map(move |to| (from, to))).collect()
    }

    fn block_path(&mut self, from: u32, to: u32, now: Nanos, for_ns: Nanos) {
        for (from, to) in self.paths(from, to) {
            {
                let mut net = lock(&self.net);
                let path = net.path_mut(from, to);
                path.blocked_until = path.blocked_until.max(now + for_ns);
            }
            self.check.borrow_mut().faults.path(from, to, now + for_ns);
            self.disturb(from, to, now, for_ns, HARMLESS);
        }
    }

    fn partition(&mut self, mask: u64, both: bool, now: Nanos, for_ns: Nanos) {
        let inside = |node: u32| mask & (1 << node) != 0;
        for from in 0..self.places().ranks {
            for to in 0..self.places().ranks {
                if inside(from) != inside(to) && (inside(from) || both) {
                    self.block_path(from, to, now, for_ns);
                }
            }
        }
    }

    /// A process does not run, with all its lanes.
    fn pause(&mut self, node: u32, now: Nanos, for_ns: Nanos) {
        let places = self.places();
        for place in places.of(node) {
            {
                let mut net = lock(&self.net);
                let port = &mut net.ports[place as usize];
                port.not_before = port.not_before.max(now + for_ns);
            }
            self.check.borrow_mut().deaths.defer(place, for_ns + SILENCE);
            self.check.borrow_mut().faults.end(place, now + for_ns);
            for other in (0..places.count()).filter(|other| *other != place) {
                self.disturb(place, other, now, for_ns, 500 * MILLI);
            }
        }
    }

    pub(super) fn crash_node(&mut self, node: u32, now: Nanos, back_after: Nanos) {
        let places = self.places();
        if self.lanes[node as usize].up.is_none() {
            return;
        }
        for place in places.of(node) {
            places.beside(node).for_each(|other| self.owe_report(other, place, now));
            self.excuse_all(place, now + back_after + SILENCE + SLACK);
            self.check.borrow_mut().faults.end(place, now + back_after);
        }
        self.crash(node);
        places.of(node).for_each(|place| self.wake_neighbours(place, now));
        lock(&self.net).schedule(now + back_after, What::Fault { index: node + (1 << 16) });
    }

    /// `gone` is about to crash, and `other` must report it, if the two have a channel.
    fn owe_report(&mut self, other: u32, gone: u32, now: Nanos) {
        let number = self.places().number(gone);
        let paused = lock(&self.net).ports[other as usize].not_before.saturating_sub(now);
        let Some(up) = &self.lanes[other as usize].up else { return };
        if up.ep.peer_state(number) != Some(PeerState::Up) {
            return;
        }
        // Frames of the crashed node that are still in transit arrive; repetitions by the network do not
        // count.
        let heard = lock(&self.net).last_heard(gone, other).max(now);
        let mut until = heard + SILENCE + 200 * MILLI;
        if up.ep.node().is_local(number) && self.polls_always(other) {
            until = now + EXIT_SEEN;
        }
        // Frames in the buffer of a node that polls rarely count when they are read.
        if self.lanes[other as usize].next_extract > now {
            until += SILENCE;
        }
        if paused > MILLI {
            until += paused + SILENCE;
        }
        self.check.borrow_mut().deaths.owe(other, gone, until);
    }

    /// Whether a lane's program never leaves out polls for long, paused or not.
    fn polls_always(&self, place: u32) -> bool {
        let sends_only = |fault: &Fault| matches!(fault, Fault::SendOnly { place: at, .. } if *at == place);
        self.node_options(place).extract_gap_ns == 0
            && !self.swarm.faults.iter().any(|planned| sends_only(&planned.fault))
    }

    fn restart_node(&mut self, node: u32, now: Nanos) {
        if self.lanes[node as usize].up.is_none() {
            for place in self.places().of(node) {
                self.excuse_all(place, now + SILENCE + SLACK);
            }
            self.start(node);
        }
    }

    fn excuse_all(&mut self, place: u32, until: Nanos) {
        let mut check = self.check.borrow_mut();
        for other in (0..self.places().count()).filter(|other| *other != place) {
            check.deaths.excuse(place, other, until);
        }
    }

    fn set_mtu(&mut self, from: u32, to: u32, mtu: usize, reports_mtu: bool) {
        for (from, to) in self.paths(from, to) {
            let mut net = lock(&self.net);
            let path = net.path_mut(from, to);
            let raised = mtu > path.mtu;
            path.mtu = mtu;
            path.reports_mtu = reports_mtu;
            if raised && reports_mtu {
                let limit = (net.address(to), mtu);
                net.ports[from as usize].path_limits.push_back(limit);
            }
        }
    }

    /// The last fault is over.
    fn heal(&mut self, now: Nanos) {
        {
            let mut net = lock(&self.net);
            net.paths.change_all(|path| {
                path.burst_until = 0;
                path.blocked_until = 0;
            });
            if !self.swarm.lasting {
                net.end_chance_faults();
            }
            for place in 0..self.lanes.len() as u32 {
                let port = &mut net.ports[place as usize];
                port.not_before = port.not_before.min(now);
                net.wake(place, now);
            }
        }
        for node in &mut self.lanes {
            node.computing_until = 0;
            node.next_extract = 0;
        }
        if self.saboteur.is(Sabotage::Stall) {
            self.lanes[1].computing_until = Nanos::MAX;
        }
        let mut check = self.check.borrow_mut();
        check.faults.heal();
        check.faults.set_chance(self.swarm.lasting && self.swarm.path.has_chance_faults());
        (self.phase.healed_at, self.phase.lost_before) = (Some(now), lock(&self.net).counters.lost);
        // No loss that is drawn silences a peer for long; it only delays the first frames of a channel.
        let reconnected = now + progress::reconnect(&self.chance_faults());
        check.deaths.healed(reconnected + 2 * SLACK);
        drop(check);
        (0..self.places().ranks).for_each(|node| self.restart_node(node, now));
    }
}
