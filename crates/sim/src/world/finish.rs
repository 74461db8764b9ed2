//! The end of a run: everything owed has arrived, every slot is free, every channel closes in good order.

use super::{World, at, finish_trace, progress};
use crate::device::lock;
use crate::net::What;
use crate::report::Report;
use crate::{Nanos, Sabotage};

const MILLI: Nanos = 1_000_000;
/// No run takes longer than this after healing. Every flow must make progress all the while;
/// this ends worlds that never finish. The slowest that the swarm draws have two slots of credit and a round
/// trip of several milliseconds: a hundred thousand slots take minutes.
const LONGEST: Nanos = 2_000_000 * MILLI;

impl World {
    /// Checks whether everything is done, and whether something that should make progress does not.
    pub(super) fn check_completion(&mut self, now: Nanos) {
        // The check is expensive; one step in 64 is enough.
        if !self.totals.steps.is_multiple_of(64) {
            return;
        }
        let healed = self.phase.healed_at.unwrap_or(now);
        let pending = self.check.borrow().pending();
        let sending = self.lanes.iter().any(|n| n.up.as_ref().is_some_and(|up| up.program.left() > 0));
        if pending.is_none() && !sending {
            // The rest, such as closing, is checked without loss in every world.
            lock(&self.net).end_chance_faults();
            self.check.borrow_mut().faults.set_chance(false);
            self.phase.stop = true;
            return;
        }
        if let Some((from, to, moved)) = pending {
            let paths = self.chance_faults();
            let since = moved.max(healed + progress::reconnect(&paths));
            if now > since + progress::bound(&paths) {
                let open = self.check.borrow().describe_open();
                self.violation(format!("no progress {from} → {to} since {}; open: {open}", at(moved)));
                self.phase.stop = true;
            }
        }
        if now > healed + LONGEST {
            self.violation("not finished long after healing");
            self.phase.stop = true;
        }
    }

    /// Runs without new messages.
    fn idle(&mut self, until: impl Fn(&World) -> bool, most: Nanos) -> bool {
        let end = self.now() + most;
        while !until(self) {
            let next = lock(&self.net).advance();
            let Some((now, what)) = next else { return until(self) };
            if now > end {
                return until(self);
            }
            self.check.borrow_mut().now = now;
            if let What::Run { node } = what {
                self.step(node, now);
            }
        }
        true
    }

    pub(super) fn finish(mut self) -> Report {
        if !self.check.borrow().has_violations() {
            self.settle();
        }
        let end = self.now();
        let hash = {
            let mut net = lock(&self.net);
            net.note(end, self.check.borrow().counts.completed);
            net.note(self.check.borrow().counts.digest, self.totals.local_crashes);
            net.hash
        };
        if self.hosts.failures() > 0 {
            self.violation(
                "this machine has too few descriptors, or too little memory, for what the seed decided",
            );
        }
        let lanes = std::mem::take(&mut self.lanes);
        // Lane 0 lives as long as the node.
        for up in lanes.into_iter().rev().filter_map(|node| node.up) {
            self.totals.add(&up.ep.counters());
            self.totals.refused += up.program.refused;
            self.drop_endpoint(up);
        }
        finish_trace(&self.net);
        let mut check = self.check.borrow_mut();
        let (violation_count, violations) = check.take_violations();
        let net = lock(&self.net).counters;
        Report {
            seed: self.seed,
            per_seed: self.options.messages,
            options: self.swarm.to_string(),
            messages: check.counts.started,
            completed: check.counts.completed,
            bytes: check.counts.bytes,
            lost: check.counts.lost,
            under_faults: check.counts.under_faults,
            deaths: check.deaths.reports,
            frames: net.delivered,
            pairs: self.pairs.count(),
            virtual_ns: end,
            violation_count,
            violations,
            trace_hash: hash,
            lost_after_healing: self.phase.healed_at.map_or(0, |_| net.lost - self.phase.lost_before),
            net,
            totals: self.totals,
        }
    }

    /// All slots are free; then an orderly close; then all slots are free again.
    fn settle(&mut self) {
        if !self.idle(World::is_quiet, progress::BOUND) {
            let text = self.describe_slots();
            self.violation(format!("slots are not free although everything has arrived: {text}"));
            return;
        }
        self.check.borrow_mut().settle();
        if self.check.borrow().has_violations() {
            return;
        }
        self.check.borrow_mut().closing = true;
        lock(&self.net).leaks = self.saboteur.is(Sabotage::LeakLate);
        for node in self.lanes.iter().rev().filter_map(|n| n.up.as_ref()) {
            if let Err(error) = node.ep.node().close() {
                self.check.borrow_mut().violation(format!("closing failed: {error}"));
            }
        }
        if !self.idle(World::is_closed, progress::BOUND) {
            self.violation("a node did not close in time");
        } else if !self.idle(World::is_quiet, progress::BOUND) {
            let text = self.describe_slots();
            self.violation(format!("slots are not free after closing: {text}"));
        }
    }

    fn is_closed(&self) -> bool {
        self.lanes.iter().filter_map(|n| n.up.as_ref()).all(|up| up.ep.node().is_closed().unwrap_or(true))
    }

    /// Whether all slots of all nodes are free.
    fn is_quiet(&self) -> bool {
        self.slots().all(|(free, all)| free == all)
    }

    fn slots(&self) -> impl Iterator<Item = (usize, usize)> {
        self.lanes
            .iter()
            .filter_map(|n| n.up.as_ref())
            .map(|up| up.ep.node().send_slots().unwrap_or_default())
    }

    fn describe_slots(&self) -> String {
        self.slots().map(|(free, all)| format!("{free} of {all} ")).collect()
    }
}
