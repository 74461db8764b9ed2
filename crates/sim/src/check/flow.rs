//! What one node sends to another.

use std::collections::VecDeque;

use crate::Nanos;
use crate::handlers::Kind;

/// A channel, by its sender's incarnation and the number that its sender gave it.
pub(crate) type GenId = (u64, u32);

/// What the sender intends to do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// Send all of it.
    Whole,
    /// Abandon it half-way.
    Abandon,
}

/// A message that was begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BegunMessage {
    pub(crate) key: u64,
    pub(crate) len: u64,
    pub(crate) kind: Kind,
    pub(crate) intent: Intent,
    /// All of it was sent when it was begun.
    pub(crate) sent: bool,
}

/// The messages of a flow on one channel.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) id: GenId,
    /// The number of the channel in its sender's events; none if it ended before that was known.
    pub(crate) incarnation: Option<u32>,
    pub(crate) began: Nanos,
    /// The incarnation that receives its messages.
    pub(crate) receiver: Option<u64>,
    /// Begun, and not yet seen by a handler.
    pub(crate) expected: VecDeque<BegunMessage>,
    /// The sender got the report of its end, or has crashed.
    pub(crate) end_reported: bool,
    /// The sender crashed and shared memory with the receiver: what it had sent still arrives (S-6).
    pub(crate) survives: bool,
}

impl Generation {
    pub(crate) fn new(id: GenId, incarnation: Option<u32>, began: Nanos) -> Generation {
        Generation {
            id,
            incarnation,
            began,
            receiver: None,
            expected: VecDeque::new(),
            end_reported: false,
            survives: false,
        }
    }

    /// Whether a report of that incarnation's end is the report of this one's.
    pub(crate) fn ends_with(&self, incarnation: u32) -> bool {
        self.incarnation.is_none_or(|it| it == incarnation)
    }

    /// Messages that must still arrive although the sender crashed.
    pub(crate) fn surviving(&self) -> usize {
        if self.survives { self.expected.iter().filter(|message| message.sent).count() } else { 0 }
    }
}

/// The flows between all nodes.
#[derive(Debug)]
pub(crate) struct Flows {
    nodes: u32,
    flows: Vec<Flow>,
}

impl Flows {
    pub(crate) fn new(nodes: u32) -> Flows {
        Flows { nodes, flows: (0..nodes * nodes).map(|_| Flow::default()).collect() }
    }

    pub(crate) fn nodes(&self) -> u32 {
        self.nodes
    }

    pub(crate) fn get(&self, from: u32, to: u32) -> &Flow {
        &self.flows[(from * self.nodes + to) as usize]
    }

    pub(crate) fn get_mut(&mut self, from: u32, to: u32) -> &mut Flow {
        &mut self.flows[(from * self.nodes + to) as usize]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Flow> {
        self.flows.iter()
    }
}

/// A generation that lost messages before its sender got the report.
#[derive(Debug)]
pub(crate) struct Abandoned {
    pub(crate) generation: Generation,
    /// When a message of a later generation arrived.
    pub(crate) since: Nanos,
}

impl Abandoned {
    pub(crate) fn text(&self) -> String {
        let (incarnation, channel) = self.generation.id;
        format!(
            "loss: messages of incarnation {incarnation} on channel {channel:08x} were lost without a report to \
             their sender"
        )
    }
}

#[derive(Debug, Default)]
pub(crate) struct Flow {
    pub(crate) generations: VecDeque<Generation>,
    /// Losses that are still to be reported.
    pub(crate) abandoned: Vec<Abandoned>,
    /// Messages that should have survived their sender, and did not arrive.
    pub(crate) perished: usize,
    /// When the flow last made progress.
    pub(crate) progress: Nanos,
}

impl Flow {
    /// Returns the expected message if it is this one, with its generation and the number of messages lost
    /// before it.
    pub(crate) fn next(
        &mut self,
        kind: Kind,
        len: u64,
        head: Option<u64>,
    ) -> Option<(&mut Generation, BegunMessage, u64)> {
        let is_next = |g: &Generation| {
            let same =
                |b: &BegunMessage| b.kind == kind && b.len == len && head.is_none_or(|key| key == b.key);
            g.expected.front().is_some_and(same)
        };
        let mut at = 0;
        if !is_next(self.generations.front()?) {
            // A message that shows its key may open a new generation; any other may only if the present one
            // has ended. That is rare: a channel that is replaced within the very call that sends.
            if head.is_none() && !self.generations[0].end_reported {
                return None;
            }
            at = (1..self.generations.len()).find(|i| is_next(&self.generations[*i]))?;
        }
        let mut lost = 0;
        for former in self.generations.drain(..at) {
            lost += former.expected.len() as u64;
            self.perished += former.surviving();
            if !former.end_reported && !former.expected.is_empty() {
                self.abandoned.push(Abandoned { generation: former, since: self.progress });
            }
        }
        let generation = self.generations.front_mut()?;
        let message = generation.expected.pop_front()?;
        Some((generation, message, lost))
    }

    /// Whether messages are in progress that neither arrived nor were reported lost.
    pub(crate) fn owes(&self) -> bool {
        self.generations.iter().any(|g| !g.end_reported && !g.expected.is_empty())
    }

    /// Says what was expected instead.
    #[cold]
    pub(crate) fn explain(&self, kind: Kind, len: u64, head: Option<u64>) -> String {
        let got = format!("got {kind:?} of {len} bytes, key {:016x}", head.unwrap_or(0));
        let place = self.generations.iter().enumerate().find_map(|(g, generation)| {
            let at = generation.expected.iter().position(|b| b.kind == kind && b.len == len)?;
            Some(format!("; one like it is number {at} of generation {g}"))
        });
        let expected = match self.generations.front() {
            None => "nothing".to_owned(),
            Some(g) => format!(
                "{:?} (end_reported {}, {} more)",
                g.expected.front(),
                g.end_reported,
                g.expected.len()
            ),
        };
        format!("{got}; expected {expected}{}", place.unwrap_or_default())
    }
}
