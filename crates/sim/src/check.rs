//! The checkers: exactly once, in order, unaltered; nothing of a former life; lost only with a peer whose end was
//! reported; no false death, no unreported one; progress after healing.
//!
//! A *flow* is what one node sends to another. Each channel that carries it is a *generation*, known by the sender's life
//! and channel number. What is begun is noted here by the sender; whatever a handler starts with must be the next of its
//! generation. The first message of a generation shows its key, so that the receiver's place is never in doubt.

mod deaths;
mod flow;

pub(crate) use deaths::Deaths;
pub(crate) use flow::{Begun, Fate, Flow, GenId, Generation};

use std::collections::{BTreeMap, BTreeSet};

use crate::Nanos;
use crate::handlers::Kind;
use crate::trace::time;

/// How a handler came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It saw every byte.
    Complete,
    /// It was told that the sender gave the message up.
    Aborted,
    /// It was told that the sender is gone.
    PeerGone,
    /// It wanted no more.
    Quit,
}

/// A deliberate mistake, to show that the checkers notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sabotage {
    /// None.
    #[default]
    None,
    /// A message is handed to the checkers a second time.
    Repeat,
    /// A message is kept from the checkers.
    Skip,
    /// The network damages frames although nothing protects them.
    Damage,
    /// After healing, one program never extracts again.
    Stall,
    /// A peer that only computes looks dead, because nothing makes progress for it.
    Deaf,
    /// A slot is taken and never given back.
    Leak,
}

/// A message whose handler runs.
#[derive(Clone, Copy, Debug)]
struct Open {
    from: u32,
    to: u32,
    to_life: u64,
    generation: GenId,
    kind: Kind,
    key: u64,
    fate: Fate,
}

/// What a handler must know to check its message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub(crate) token: u64,
    pub(crate) key: u64,
}

/// Violations that are kept; more are only counted.
const KEPT: usize = 20;

#[derive(Debug)]
pub(crate) struct Check {
    nodes: u32,
    flows: Vec<Flow>,
    open: BTreeMap<u64, Open>,
    tokens: u64,
    /// Generations whose end somebody reported or brought about.
    ended: BTreeSet<GenId>,
    /// Handlers that were told of an end which nobody has reported yet.
    doubts: Vec<(GenId, String)>,
    pub(crate) deaths: Deaths,
    pub(crate) now: Nanos,
    pub(crate) begun: u64,
    pub(crate) started: u64,
    pub(crate) completed: u64,
    pub(crate) bytes: u64,
    pub(crate) lost: u64,
    violations: Vec<String>,
    violation_count: u64,
    pub(crate) sabotage: Sabotage,
    /// The nodes close in good order: reports of that are expected.
    pub(crate) closing: bool,
}

impl Check {
    pub(crate) fn new(nodes: u32, sabotage: Sabotage) -> Check {
        Check {
            nodes,
            flows: (0..nodes * nodes).map(|_| Flow::default()).collect(),
            open: BTreeMap::new(),
            tokens: 0,
            ended: BTreeSet::new(),
            doubts: Vec::new(),
            deaths: Deaths::new(nodes),
            now: 0,
            begun: 0,
            started: 0,
            completed: 0,
            bytes: 0,
            lost: 0,
            violations: Vec::new(),
            violation_count: 0,
            sabotage,
            closing: false,
        }
    }

    pub(crate) fn violation(&mut self, what: impl AsRef<str>) {
        self.violation_count += 1;
        if self.violations.len() < KEPT {
            self.violations.push(format!("{} {}", time(self.now), what.as_ref()));
        }
    }

    pub(crate) fn has_violations(&self) -> bool {
        self.violation_count > 0
    }

    pub(crate) fn take_violations(&mut self) -> (u64, Vec<String>) {
        (self.violation_count, std::mem::take(&mut self.violations))
    }

    fn flow_mut(&mut self, from: u32, to: u32) -> &mut Flow {
        &mut self.flows[(from * self.nodes + to) as usize]
    }

    /// A sender has begun a message.
    pub(crate) fn begun(&mut self, (from, to): (u32, u32), generation: GenId, message: Begun) {
        self.begun += 1;
        let now = self.now;
        let flow = self.flow_mut(from, to);
        if flow.generations.back().is_none_or(|g| g.id != generation) {
            flow.generations.push_back(Generation::new(generation, now));
        }
        flow.generations.back_mut().expect("there is one now").expected.push_back(message);
        flow.progress = now;
    }

    /// A handler was called for a message; `head` is its key, if it shows it at once.
    pub(crate) fn started(
        &mut self,
        (to, to_life, born): (u32, u64, Nanos),
        from: u32,
        (kind, len, head): (Kind, u64, Option<u64>),
    ) -> Option<Expected> {
        if self.sabotage == Sabotage::Skip && self.started > 100 {
            self.sabotage = Sabotage::None;
            self.flow_mut(from, to).next(kind, len, head);
        }
        let now = self.now;
        let flow = self.flow_mut(from, to);
        flow.progress = now;
        let found = flow.next(kind, len, head);
        let Some((generation, message, dropped)) = found else {
            let why = self.flow_mut(from, to).explain(kind, len, head);
            self.violation(format!("order {from} → {to}: {why}"));
            return None;
        };
        let Generation { began, receiver, id, .. } = *generation;
        generation.receiver = Some(to_life);
        self.lost += dropped;
        if began < born || receiver.is_some_and(|life| life != to_life) {
            self.violation(format!(
                "former life {from} → {to}: a message of {id:?} reached a restarted node"
            ));
        }
        if self.sabotage == Sabotage::Repeat && self.started > 100 {
            self.sabotage = Sabotage::None;
            self.started((to, to_life, born), from, (kind, len, head));
        }
        self.started += 1;
        self.tokens += 1;
        let token = self.tokens;
        let open = Open { from, to, to_life, generation: id, kind, key: message.key, fate: message.fate };
        self.open.insert(token, open);
        Some(Expected { token, key: message.key })
    }

    /// A handler took bytes; they were as they should be, or not.
    pub(crate) fn took(&mut self, expected: Expected, offset: u64, len: usize, good: bool) {
        self.bytes += len as u64;
        let now = self.now;
        let Some(open) = self.open.get(&expected.token).copied() else { return };
        self.flow_mut(open.from, open.to).progress = now;
        if !good {
            let (from, to, kind) = (open.from, open.to, open.kind);
            self.violation(format!("altered {from} → {to}: {kind:?} message, {len} bytes at {offset}"));
        }
    }

    /// A handler has come to its end.
    pub(crate) fn finished(&mut self, expected: Expected, outcome: Outcome) {
        let now = self.now;
        let Some(open) = self.open.remove(&expected.token) else { return };
        let Open { from, to, generation, kind, key, fate, .. } = open;
        self.flow_mut(from, to).progress = now;
        let text = || {
            format!(
                "outcome {from} → {to}: {kind:?} message {key:016x} that was {fate:?} ended as {outcome:?}"
            )
        };
        match (fate, outcome) {
            (Fate::Whole, Outcome::Complete) => self.completed += 1,
            (_, Outcome::Quit) | (Fate::GivenUp, Outcome::Aborted) => {}
            (_, Outcome::PeerGone) => self.doubts.push((generation, text())),
            (Fate::Whole, Outcome::Aborted) | (Fate::GivenUp, Outcome::Complete) => self.violation(text()),
        }
    }

    /// `who` was told that `peer` is gone; `live` is the channel of theirs that goes on nevertheless, if any, by the
    /// number that its sender gave it, in both directions.
    pub(crate) fn down(&mut self, who: u32, peer: u32, live: Option<(u32, u32)>) {
        let (mine, theirs) = live.unzip();
        for g in self.flow_mut(who, peer).generations.iter_mut().filter(|g| Some(g.id.1) != mine) {
            g.told = true;
        }
        self.end(who, peer, mine);
        self.end(peer, who, theirs);
        let flow = self.flow_mut(who, peer);
        flow.abandoned.clear();
    }

    fn end(&mut self, from: u32, to: u32, except: Option<u32>) {
        let flow = &self.flows[(from * self.nodes + to) as usize];
        let over = flow.generations.iter().map(|g| g.id).filter(|id| Some(id.1) != except);
        self.ended.extend(over.chain(flow.abandoned.iter().copied()));
    }

    /// A node is no more.
    pub(crate) fn crashed(&mut self, node: u32) {
        self.open.retain(|_, open| open.to != node);
        for other in 0..self.nodes {
            self.end(node, other, None);
            self.end(other, node, None);
            let flow = self.flow_mut(node, other);
            flow.generations.iter_mut().for_each(|g| g.told = true);
            flow.abandoned.clear();
        }
        self.deaths.forget(node);
    }

    /// What is still owed after healing: flows with messages that neither arrived nor were reported lost, with the time of
    /// their last progress.
    pub(crate) fn pending(&self) -> Option<(u32, u32, Nanos)> {
        let mut oldest: Option<(u32, u32, Nanos)> = None;
        let mut consider = |from, to, at| {
            if oldest.is_none_or(|(_, _, o)| at < o) {
                oldest = Some((from, to, at));
            }
        };
        for from in 0..self.nodes {
            for to in 0..self.nodes {
                let flow = &self.flows[(from * self.nodes + to) as usize];
                if flow.owes() {
                    consider(from, to, flow.progress);
                }
            }
        }
        for open in self.open.values() {
            consider(open.from, open.to, self.flows[(open.from * self.nodes + open.to) as usize].progress);
        }
        oldest
    }

    /// Names handlers that never came to an end, for a report.
    pub(crate) fn describe_open(&self) -> String {
        let names = self
            .open
            .values()
            .take(5)
            .map(|o| format!("{:?} {} → {} of life {} ({:?})", o.kind, o.from, o.to, o.to_life, o.fate));
        names.collect::<Vec<_>>().join(", ")
    }

    /// After everything: what remains must have been reported.
    pub(crate) fn settle(&mut self) {
        for (generation, text) in std::mem::take(&mut self.doubts) {
            if !self.ended.contains(&generation) {
                self.violation(format!("{text}, but nobody reported an end"));
            }
        }
        let mut unreported = Vec::new();
        for flow in &self.flows {
            unreported.extend(flow.abandoned.iter().copied());
        }
        for (life, channel) in unreported {
            self.violation(format!(
                "loss: messages of life {life} on channel {channel:08x} were lost without a report to their sender"
            ));
        }
        let lost: usize =
            self.flows.iter().flat_map(|f| &f.generations).filter(|g| g.told).map(|g| g.expected.len()).sum();
        self.lost += lost as u64;
    }
}
