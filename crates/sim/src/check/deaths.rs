//! Which peers may be reported dead, and which must be.

use tautline_link::Death;
use tautline_node::Down;

use crate::Nanos;

/// After a report, the other side detects the end by itself, and then both connect again.
const AFTERMATH: Nanos = 3_000_000_000;

/// A death that must be reported.
#[derive(Clone, Copy, Debug)]
struct Owed {
    who: u32,
    peer: u32,
    until: Nanos,
}

#[derive(Debug)]
pub(crate) struct Deaths {
    nodes: u32,
    /// Until when a report of one node about the other is excused.
    excused: Vec<Nanos>,
    owed: Vec<Owed>,
    /// Nodes that have crashed.
    crashed: Vec<bool>,
    /// No excuse is valid after this.
    last_excuse: Nanos,
    pub(crate) reports: u64,
}

impl Deaths {
    pub(crate) fn new(nodes: u32) -> Deaths {
        Deaths {
            nodes,
            excused: vec![0; (nodes * nodes) as usize],
            owed: Vec::new(),
            crashed: vec![false; nodes as usize],
            last_excuse: Nanos::MAX,
            reports: 0,
        }
    }

    fn at(&mut self, a: u32, b: u32) -> &mut Nanos {
        &mut self.excused[(a.min(b) * self.nodes + a.max(b)) as usize]
    }

    /// Excuses reports of `a` about `b`, and the other way round, until `until`.
    pub(crate) fn excuse(&mut self, a: u32, b: u32, until: Nanos) {
        let at = self.at(a, b);
        *at = until.max(*at);
    }

    /// The last fault is over; no report is excused after `until`.
    pub(crate) fn healed(&mut self, until: Nanos) {
        self.last_excuse = until;
    }

    /// `who` must report `peer` dead before `until`.
    pub(crate) fn owe(&mut self, who: u32, peer: u32, until: Nanos) {
        if !self.owed.iter().any(|o| o.who == who && o.peer == peer) {
            self.owed.push(Owed { who, peer, until });
        }
    }

    /// `who` did not receive for a while: its reports may be later by as much.
    pub(crate) fn defer(&mut self, who: u32, by: Nanos) {
        self.owed.iter_mut().filter(|o| o.who == who).for_each(|o| o.until += by);
    }

    /// A crashed node owes no report.
    pub(crate) fn crashed(&mut self, node: u32) {
        self.crashed[node as usize] = true;
        self.owed.retain(|o| o.who != node);
    }

    /// Takes a report; returns an error if there was no reason for it. `local` says that the two shared
    /// memory: then only a crash is a reason.
    pub(crate) fn report(
        &mut self,
        now: Nanos,
        (who, peer): (u32, u32),
        why: Down,
        local: bool,
    ) -> Result<(), String> {
        self.reports += 1;
        self.owed.retain(|o| o.who != who || o.peer != peer);
        let excused = now <= (*self.at(who, peer)).min(self.last_excuse);
        let never = match why {
            Down::Died(Death::Violation) | Down::Refused(_) => true,
            Down::Exited | Down::Died(Death::Restarted) if local => !self.crashed[peer as usize],
            _ => local || why == Down::Exited,
        };
        if never || !excused {
            return Err(format!("false death: {who} reported that {peer} is gone ({why})"));
        }
        self.excuse(who, peer, now.saturating_add(AFTERMATH));
        Ok(())
    }

    /// Returns a death that `who` should have reported by now.
    pub(crate) fn overdue(&mut self, now: Nanos, who: u32) -> Option<String> {
        let at = self.owed.iter().position(|o| o.who == who && o.until < now)?;
        let owed = self.owed.swap_remove(at);
        Some(format!("unreported death: {who} did not report in time that {} is gone", owed.peer))
    }
}
