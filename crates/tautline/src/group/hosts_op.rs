//! A collective of members on several hosts, in two levels (G-23): those of a host meet in the memory that
//! they share, and one of each host, its head, exchanges messages with the others.

use std::sync::Arc;

use tautline_node::{Awaited, TagRequest};

use super::call::Call;
use super::choice::Choices;
use super::plan::{Plan, Shared, SharedKind};
use super::reduction::Reduction;
use super::run::{Run, Wires};
use super::shared_op::SharedOp;
use super::sharing::Board;
use crate::Rank;
use crate::error::Result;

/// One collective at one member. It takes two numbers of operations in memory.
#[derive(Debug)]
pub(super) struct HostsOp {
    number: u64,
    stage: Stage,
    /// The operation in memory of this stage.
    op: SharedOp,
    /// What this member brings to the next stage, or its output.
    values: Vec<u8>,
    between: Option<Between>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The head of a host gets what its members bring.
    Gather,
    /// The heads exchange messages.
    Exchange,
    /// The members of a host get the result from their head.
    Spread,
}

/// The messages of a head.
#[derive(Debug)]
struct Between {
    run: Run,
    heads: Vec<Rank>,
    me: usize,
}

impl Between {
    fn parts<'a>(&'a mut self, wires: Wires<'a>) -> (&'a mut Run, Wires<'a>) {
        (&mut self.run, Wires { members: &self.heads, me: self.me, ..wires })
    }
}

/// The root of a call, if it has one.
fn root(call: Shared) -> Option<usize> {
    match call.kind {
        SharedKind::Broadcast { root } | SharedKind::Reduce { root } => Some(root),
        _ => None,
    }
}

impl HostsOp {
    /// The `number`th collective of a group that may go in two levels.
    pub(super) fn new(number: u64) -> HostsOp {
        let op = SharedOp::new(2 * number);
        HostsOp { number, stage: Stage::Gather, op, values: Vec::new(), between: None }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Whether it waits for messages now, and not in memory.
    pub(super) fn exchanges(&self) -> bool {
        self.stage == Stage::Exchange
    }

    /// What it waits for in the memory.
    pub(super) fn awaited(&self) -> Option<Awaited> {
        self.op.awaited().filter(|_| !self.exchanges())
    }

    /// Appends what it waits for, once it is registered.
    pub(super) fn requests(&self, ids: &mut Vec<TagRequest>) {
        match &self.between {
            Some(between) if self.exchanges() => between.run.requests(ids),
            _ => ids.extend(self.op.request()),
        }
    }

    /// Has the lane wait for what it needs of others in memory.
    pub(super) fn register(&mut self, wires: Wires<'_>, board: &Board) -> Result<()> {
        if self.exchanges() { Ok(()) } else { self.op.register(board.wires(wires), board) }
    }

    /// The messages under way, with the wires that they use.
    pub(super) fn messages<'a>(&'a mut self, wires: Wires<'a>) -> Option<(&'a mut Run, Wires<'a>)> {
        Some(self.between.as_mut()?.parts(wires))
    }

    /// Whether the heads are watched whose messages it will wait for, or there are none now.
    pub(super) fn is_watching(&self) -> bool {
        self.between.as_ref().is_none_or(|between| between.run.is_watching())
    }

    /// Appends the requests that end when a head is lost that is watched.
    pub(super) fn interruptions(&self, ids: &mut Vec<TagRequest>) {
        if let Some(between) = &self.between {
            between.run.interruptions(ids);
        }
    }

    /// Does all that can be done now. True if that was all, and the output is in `run`.
    pub(super) fn advance(
        &mut self,
        run: &mut Run,
        wires: Wires<'_>,
        (board, choices): (&Board, &Choices),
    ) -> Result<bool> {
        let Some(call) = run.plan().hosts else { return Ok(true) };
        let head = board.placement.head_here(root(call));
        let is_head = head == board.placement.me();
        loop {
            match self.stage {
                Stage::Gather => {
                    let part = match call.kind {
                        SharedKind::Broadcast { .. } => SharedKind::Pass,
                        _ => SharedKind::Reduce { root: head },
                    };
                    if is_head && self.values.is_empty() {
                        self.values = first_values(call, run, wires.me);
                    }
                    let part = Shared { kind: part, ..call };
                    if !self.meet(wires, board, (part, run.plan(), run.reduction()), run.input())? {
                        return Ok(false);
                    }
                    if is_head {
                        self.between = Some(self.begin_exchange(run, wires, call, (board, choices))?);
                    }
                    self.stage = Stage::Exchange;
                }
                Stage::Exchange => {
                    if let Some((messages, heads)) = self.messages(wires)
                        && !messages.advance(heads)?
                    {
                        return Ok(false);
                    }
                    self.values = match self.between.take() {
                        Some(mut between) => between.run.take_result(),
                        None => vec![0; run.output_len()],
                    };
                    (self.stage, self.op) = (Stage::Spread, SharedOp::new(2 * self.number + 1));
                }
                Stage::Spread => {
                    let part = match call.kind {
                        SharedKind::Reduce { .. } => SharedKind::Pass,
                        _ => SharedKind::Broadcast { root: head },
                    };
                    let part = Shared { kind: part, ..call };
                    let input = if is_head { std::mem::take(&mut self.values) } else { Vec::new() };
                    let met = self.meet(wires, board, (part, run.plan(), None), &input);
                    if is_head {
                        self.values = input;
                    }
                    if met? {
                        run.put_output(std::mem::take(&mut self.values));
                        return Ok(true);
                    }
                    return Ok(false);
                }
            }
        }
    }

    /// Carries out this stage's operation in memory, as far as it goes.
    fn meet(
        &mut self,
        wires: Wires<'_>,
        board: &Board,
        with: (Shared, &Plan, Option<&Reduction>),
        input: &[u8],
    ) -> Result<bool> {
        let wires = board.wires(wires);
        if !self.op.has_entered() && !self.op.enter(wires, board, with.0, input)? {
            return Ok(false);
        }
        self.op.finish(wires, board, with, &mut self.values)
    }

    fn begin_exchange(
        &mut self,
        run: &Run,
        wires: Wires<'_>,
        call: Shared,
        (board, choices): (&Board, &Choices),
    ) -> Result<Between> {
        let placement = &board.placement;
        let len = call.bytes;
        let (host_of, with) = (|root| placement.host_of(root), run.reduction().cloned());
        let between = match (call.kind, &with) {
            (SharedKind::Broadcast { root }, _) => Call::Broadcast { root: host_of(root), len },
            (SharedKind::Reduce { root }, Some(with)) => {
                Call::Reduce { root: host_of(root), len, with: with.clone() }
            }
            (SharedKind::AllReduce, Some(with)) => Call::AllReduce { len, with: with.clone() },
            _ => Call::Barrier,
        };
        let heads: Vec<Rank> = placement.heads(root(call)).map(|member| wires.members[member]).collect();
        let plan = Arc::new(between.plan(placement.host(), heads.len(), choices));
        let values = std::mem::take(&mut self.values);
        let is_other = matches!(call.kind, SharedKind::Broadcast { root } if root != wires.me);
        let input = if is_other { Vec::new() } else { values };
        Ok(Between { run: Run::new((plan, with), input)?, heads, me: placement.host() })
    }
}

/// What a head has before it gets what its members bring: room for it, or what it is to spread.
fn first_values(call: Shared, run: &Run, me: usize) -> Vec<u8> {
    match call.kind {
        SharedKind::Broadcast { root } if root == me => run.input().to_vec(),
        SharedKind::Broadcast { .. } => Vec::new(),
        _ => vec![0; call.bytes],
    }
}
