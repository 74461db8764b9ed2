//! The checkers: exactly once, in order, unaltered; nothing of a former incarnation; lost only with a peer
//! whose end was reported; no false death, no unreported one; progress after healing.
//!
//! A *flow* is what one node sends to another. Each channel that carries it is a *generation*, identified by
//! the sender's incarnation and channel number. The sender notes each message that it begins; a handler must
//! start with the next message of its generation. The first message of a generation shows its key, so that
//! the receiver's position is never ambiguous.

mod deaths;
mod faults;
mod flow;

pub(crate) use deaths::Deaths;
use faults::ActiveFaults;
use flow::{Abandoned, Flow, Flows, GenId, Generation};
pub(crate) use flow::{BegunMessage, Intent};

use std::collections::{BTreeMap, BTreeSet};

use tautline_node::ChannelNumbers;

use crate::Nanos;
use crate::handlers::Kind;
use crate::rng::mix;
use crate::trace::time;

/// A node that runs reports an end within this time: the bound of silence, and what a report may take beyond
/// it.
const REPORTED_WITHIN: Nanos = 2_700_000_000;

/// How a handler ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It read every byte.
    Complete,
    /// It got the error that the sender abandoned the message.
    Aborted,
    /// It got the error that the sender is gone.
    PeerGone,
    /// It returned early.
    Quit,
}

/// A message whose handler runs.
#[derive(Clone, Copy, Debug)]
struct Open {
    from: u32,
    to: u32,
    to_incarnation: u64,
    generation: GenId,
    kind: Kind,
    key: u64,
    intent: Intent,
}

/// What a handler needs to check its message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub(crate) token: u64,
    pub(crate) key: u64,
}

#[derive(Debug)]
pub(crate) struct Check {
    flows: Flows,
    running: RunningHandlers,
    ends: GenerationEnds,
    pub(crate) deaths: Deaths,
    pub(crate) now: Nanos,
    pub(crate) counts: MessageCounts,
    violations: Violations,
    pub(crate) faults: ActiveFaults,
    /// The nodes close in good order: reports of closed peers are expected.
    pub(crate) closing: bool,
}

impl Check {
    pub(crate) fn new(nodes: u32) -> Check {
        Check {
            flows: Flows::new(nodes),
            running: RunningHandlers::default(),
            ends: GenerationEnds::default(),
            deaths: Deaths::new(nodes),
            now: 0,
            counts: MessageCounts::default(),
            violations: Violations::default(),
            faults: ActiveFaults::new(nodes),
            closing: false,
        }
    }

    pub(crate) fn violation(&mut self, what: impl AsRef<str>) {
        self.violations.count += 1;
        if self.violations.kept.len() < KEPT {
            self.violations.kept.push(format!("{} {}", time(self.now), what.as_ref()));
        }
    }

    pub(crate) fn has_violations(&self) -> bool {
        self.violations.count > 0
    }

    pub(crate) fn take_violations(&mut self) -> (u64, Vec<String>) {
        (self.violations.count, std::mem::take(&mut self.violations.kept))
    }

    /// A sender has begun a message; `networked` says that it does not go through memory.
    pub(crate) fn message_begun(
        &mut self,
        (from, to, networked): (u32, u32, bool),
        (generation, incarnation): (GenId, Option<u32>),
        message: BegunMessage,
    ) {
        let now = self.now;
        self.counts.under_faults += u64::from(self.faults.affect((from, to), networked, now));
        let flow = self.flows.get_mut(from, to);
        if flow.generations.back().is_none_or(|g| g.id != generation) {
            flow.generations.push_back(Generation::new(generation, incarnation, now));
        }
        flow.generations.back_mut().expect("there is one now").expected.push_back(message);
        flow.progress = now;
    }

    /// A handler was called for a message; `head` is the key, if the message shows it at once.
    pub(crate) fn handler_started(
        &mut self,
        (to, to_incarnation, born): (u32, u64, Nanos),
        from: u32,
        (kind, len, head): (Kind, u64, Option<u64>),
    ) -> Option<Expected> {
        let now = self.now;
        let flow = self.flows.get_mut(from, to);
        flow.progress = now;
        let found = flow.next(kind, len, head);
        let Some((generation, message, dropped)) = found else {
            let why = self.flows.get_mut(from, to).explain(kind, len, head);
            self.violation(format!("order {from} → {to}: {why}"));
            return None;
        };
        let Generation { began, receiver, id, .. } = *generation;
        generation.receiver = Some(to_incarnation);
        self.counts.lost += dropped;
        if began < born || receiver.is_some_and(|incarnation| incarnation != to_incarnation) {
            self.violation(format!(
                "former incarnation {from} → {to}: a message of {id:?} reached a restarted node"
            ));
        }
        self.counts.started += 1;
        self.counts.digest =
            mix(self.counts.digest ^ now ^ message.key ^ u64::from(from) << 48 ^ u64::from(to) << 56);
        let open =
            Open { from, to, to_incarnation, generation: id, kind, key: message.key, intent: message.intent };
        let token = self.running.insert(open);
        Some(Expected { token, key: message.key })
    }

    /// A handler took bytes; `good` says whether they are as they were sent.
    pub(crate) fn handler_read(&mut self, expected: Expected, offset: u64, len: usize, good: bool) {
        self.counts.bytes += len as u64;
        let now = self.now;
        let Some(open) = self.running.open.get(&expected.token).copied() else { return };
        self.flows.get_mut(open.from, open.to).progress = now;
        if !good {
            let (from, to, kind) = (open.from, open.to, open.kind);
            self.violation(format!("altered {from} → {to}: {kind:?} message, {len} bytes at {offset}"));
        }
    }

    /// A handler ended.
    pub(crate) fn handler_finished(&mut self, expected: Expected, outcome: Outcome) {
        let now = self.now;
        let Some(open) = self.running.open.remove(&expected.token) else { return };
        let Open { from, to, generation, kind, key, intent, .. } = open;
        self.flows.get_mut(from, to).progress = now;
        let text = || {
            format!(
                "outcome {from} → {to}: {kind:?} message {key:016x} of intent {intent:?} ended as {outcome:?}"
            )
        };
        match (intent, outcome) {
            (Intent::Whole, Outcome::Complete) => self.counts.completed += 1,
            (_, Outcome::Quit) | (Intent::Abandon, Outcome::Aborted) => {}
            (_, Outcome::PeerGone) => {
                let text = text();
                self.ends.unreported.push(UnreportedEnd { generation, to, since: now, text });
            }
            (Intent::Whole, Outcome::Aborted) | (Intent::Abandon, Outcome::Complete) => {
                self.violation(text());
            }
        }
    }

    /// `who` got the report that an incarnation of `peer` is gone; `live` is a channel of the two that goes
    /// on nevertheless, if any, by the number that its sender gave it, in both directions. The report is one
    /// of that incarnation only: what was lost with another one needs a report of its own.
    pub(crate) fn peer_down(
        &mut self,
        who: u32,
        (peer, incarnation): (u32, u32),
        live: Option<ChannelNumbers>,
    ) {
        let (mine, theirs) = (live.map(|live| live.ours), live.map(|live| live.theirs));
        let flow = self.flows.get_mut(who, peer);
        flow.generations.iter_mut().filter(|g| g.ends_with(incarnation)).for_each(|g| g.end_reported = true);
        self.end(who, peer, mine);
        self.end(peer, who, theirs);
        self.flows.get_mut(who, peer).abandoned.retain(|it| !it.generation.ends_with(incarnation));
    }

    /// A node has run, and has reported what it knows. What it should have reported [`REPORTED_WITHIN`] ago,
    /// and did not, is a violation. A later report, perhaps of another death, is no excuse.
    pub(crate) fn reports_taken(&mut self, node: u32) {
        let now = self.now;
        let reported = &self.ends.reported;
        self.ends.unreported.retain(|end| !reported.contains(&end.generation));
        let is_late = |end: &UnreportedEnd| end.to == node && end.since + REPORTED_WITHIN < now;
        let mut late: Vec<String> =
            self.ends.unreported.extract_if(.., |end| is_late(end)).map(UnreportedEnd::into_text).collect();
        for other in 0..self.flows.nodes() {
            let abandoned = &mut self.flows.get_mut(node, other).abandoned;
            late.extend(abandoned.extract_if(.., |it| it.since + REPORTED_WITHIN < now).map(|it| it.text()));
        }
        late.iter().for_each(|what| self.violation(what));
    }

    fn end(&mut self, from: u32, to: u32, except: Option<u32>) {
        let flow = self.flows.get(from, to);
        let over = flow.generations.iter().map(|g| g.id).filter(|id| Some(id.1) != except);
        self.ends.reported.extend(over.chain(flow.abandoned.iter().map(|it| it.generation.id)));
    }

    /// A node is about to crash that shares memory with `to`: what it has sent whole still arrives (S-6).
    pub(crate) fn survives(&mut self, from: u32, to: u32, generation: GenId) {
        let flow = self.flows.get_mut(from, to);
        flow.generations.iter_mut().filter(|g| g.id == generation).for_each(|g| g.survives = true);
    }

    /// A node crashed.
    pub(crate) fn node_crashed(&mut self, node: u32) {
        self.running.open.retain(|_, open| open.to != node);
        for other in 0..self.flows.nodes() {
            self.end(node, other, None);
            self.end(other, node, None);
            let flow = self.flows.get_mut(node, other);
            flow.generations.iter_mut().for_each(|g| g.end_reported = true);
            flow.abandoned.clear();
            // It receives nothing more.
            self.flows.get_mut(other, node).generations.iter_mut().for_each(|g| g.survives = false);
        }
        self.deaths.crashed(node);
    }

    /// A flow with messages that neither arrived nor were reported lost, with the time of its last progress.
    pub(crate) fn pending(&self) -> Option<(u32, u32, Nanos)> {
        self.pending_flows().min_by_key(|(_, _, progress)| *progress)
    }

    /// All flows with such messages.
    pub(crate) fn pending_flows(&self) -> impl Iterator<Item = (u32, u32, Nanos)> {
        let all = (0..self.flows.nodes()).flat_map(|from| (0..self.flows.nodes()).map(move |to| (from, to)));
        let owing = all.filter(|(from, to)| self.flows.get(*from, *to).owes());
        let open = self.running.open.values().map(|open| (open.from, open.to));
        owing.chain(open).map(|(from, to)| (from, to, self.flows.get(from, to).progress))
    }

    /// Names the flow that has been waiting for longest, and the handlers that never ended, for a report.
    pub(crate) fn describe_pending(&self) -> String {
        let flow = self.pending().map(|(from, to, moved)| format!("{from} → {to} since {}", time(moved)));
        format!("{}; open: {}", flow.unwrap_or_default(), self.describe_open())
    }

    /// Names handlers that never ended, for a report.
    pub(crate) fn describe_open(&self) -> String {
        let names = self.running.open.values().take(5).map(|o| {
            format!("{:?} {} → {} of incarnation {} ({:?})", o.kind, o.from, o.to, o.to_incarnation, o.intent)
        });
        names.collect::<Vec<_>>().join(", ")
    }

    /// At the end: whatever is missing must have been reported.
    pub(crate) fn settle(&mut self) {
        for end in std::mem::take(&mut self.ends.unreported) {
            if !self.ends.reported.contains(&end.generation) {
                self.violation(end.into_text());
            }
        }
        let left = |flow: &Flow| flow.generations.iter().map(Generation::surviving).sum::<usize>();
        let perished: usize = self.flows.iter().map(|flow| flow.perished + left(flow)).sum();
        if perished > 0 {
            self.violation(format!("loss: {perished} messages in shared memory were lost with their sender"));
        }
        let unreported: Vec<_> =
            self.flows.iter().flat_map(|flow| &flow.abandoned).map(Abandoned::text).collect();
        unreported.iter().for_each(|what| self.violation(what));
        let lost: usize = self
            .flows
            .iter()
            .flat_map(|f| &f.generations)
            .filter(|g| g.end_reported)
            .map(|g| g.expected.len())
            .sum();
        self.counts.lost += lost as u64;
    }
}

/// The handlers that run, by their tokens.
#[derive(Debug, Default)]
struct RunningHandlers {
    open: BTreeMap<u64, Open>,
    /// The last token.
    tokens: u64,
}

impl RunningHandlers {
    fn insert(&mut self, open: Open) -> u64 {
        self.tokens += 1;
        self.open.insert(self.tokens, open);
        self.tokens
    }
}

/// The ends of generations, as nodes and handlers saw them.
#[derive(Debug, Default)]
struct GenerationEnds {
    /// Generations whose end a node reported or caused.
    reported: BTreeSet<GenId>,
    /// Handlers that got an error of an end that nobody has reported yet.
    unreported: Vec<UnreportedEnd>,
}

/// A handler that got an error of an end that nobody has reported yet.
#[derive(Debug)]
struct UnreportedEnd {
    generation: GenId,
    /// Where it ran.
    to: u32,
    since: Nanos,
    text: String,
}

impl UnreportedEnd {
    fn into_text(self) -> String {
        format!("{}, but nobody reported an end", self.text)
    }
}

/// What the handlers received, for the report.
#[derive(Debug, Default)]
pub(crate) struct MessageCounts {
    pub(crate) started: u64,
    pub(crate) completed: u64,
    pub(crate) bytes: u64,
    pub(crate) lost: u64,
    /// Messages that were begun while a fault affected their way, or an end of it.
    pub(crate) under_faults: u64,
    /// A hash of the handlers that were called, and when.
    pub(crate) digest: u64,
}

/// Violations that are kept; more are only counted.
const KEPT: usize = 20;

#[derive(Debug, Default)]
struct Violations {
    kept: Vec<String>,
    count: u64,
}
