//! A collective under way at one member: through shared memory if the group has some and the table chooses
//! it, by messages otherwise.

use tautline_node::{Awaited, TagRequest};

use super::plan::{Plan, SharedKind};
use super::reduction::Reduction;
use super::run::{Planned, Run, Wires, check_input};
use super::shared_op::SharedOp;
use super::sharing::{Board, Sharing};
use crate::error::{Error, Result};

/// The program's memory for a collective.
#[derive(Debug)]
pub(super) enum Bytes<'a> {
    /// Input and output.
    Apart(&'a [u8], &'a mut [u8]),
    /// The output takes the place of the input.
    InPlace(&'a mut [u8]),
}

impl Bytes<'_> {
    pub(super) fn input(&self) -> &[u8] {
        match self {
            Bytes::Apart(input, _) => input,
            Bytes::InPlace(values) => values,
        }
    }

    pub(super) fn output(&mut self) -> &mut [u8] {
        match self {
            Bytes::Apart(_, output) => output,
            Bytes::InPlace(values) => values,
        }
    }

    /// An error unless the lengths are those of the plan. The root of a broadcast need not have an output.
    #[inline]
    pub(super) fn check(&mut self, plan: &Plan, is_root: bool) -> Result<()> {
        check_input(plan, self.input().len())?;
        let (len, wanted) = (self.output().len(), plan.output_len());
        if len == wanted || is_root && len == 0 {
            return Ok(());
        }
        Err(Error::other(format!("a collective's output has room for {len} bytes, not {wanted}")))
    }

    /// Writes the output of the root of a broadcast, if it has one.
    fn copy_root(&mut self) {
        if let Bytes::Apart(input, output) = self
            && !output.is_empty()
        {
            output.copy_from_slice(input);
        }
    }
}

/// A collective under way at one member.
#[derive(Debug)]
pub(super) struct Execution {
    run: Run,
    /// It goes through shared memory, unless the group turns out to have none.
    shared: Option<SharedOp>,
}

impl Execution {
    /// Begins with the member's input.
    pub(super) fn new(plan: Planned, input: Vec<u8>) -> Result<Execution> {
        Ok(Execution { run: Run::new(plan, input)?, shared: None })
    }

    /// As [`Execution::new`], with a copy of the input, for one that may have begun in shared memory.
    pub(super) fn begun(plan: Planned, input: &[u8], shared: Option<SharedOp>) -> Result<Execution> {
        Ok(Execution { run: Run::copied(plan, input)?, shared })
    }

    /// Gives it its place among those that go through shared memory, if it has one.
    pub(super) fn share(&mut self, shared: Option<SharedOp>) {
        self.shared = shared;
    }

    pub(super) fn plan(&self) -> &Plan {
        self.run.plan()
    }

    /// Whether it goes through shared memory, as far as is known.
    pub(super) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Does all that can be done now. True if that was all.
    pub(super) fn advance(&mut self, wires: Wires<'_>, sharing: &Sharing) -> Result<bool> {
        let Some(shared) = &mut self.shared else { return self.run.advance(wires) };
        match sharing.decide(wires)? {
            None => Ok(false),
            Some(Some(board)) => {
                let done = advance_shared(&mut self.run, wires, board, shared)?;
                if done {
                    wake_later(wires, sharing, shared)?;
                }
                Ok(done)
            }
            Some(None) => {
                self.shared = None;
                self.run.advance(wires)
            }
        }
    }

    /// Has the lane wait for what it needs of others in shared memory.
    pub(super) fn register(&mut self, wires: Wires<'_>, sharing: &Sharing) -> Result<()> {
        match (&mut self.shared, sharing.board()) {
            (Some(shared), Some(board)) => shared.register(wires, board),
            _ => Ok(()),
        }
    }

    /// Watches the members that it waits for in shared memory: all of them if a member is lost, and otherwise
    /// as far as others may not.
    pub(super) fn watch(&self, wires: Wires<'_>, board: &Board, is_one_lost: bool) -> Result<()> {
        match self.shared.as_ref().and_then(SharedOp::awaited) {
            None | Some(Awaited::Turn(_)) => Ok(()),
            Some(Awaited::Entered(_) | Awaited::Published(_) | Awaited::Result(_)) if !is_one_lost => Ok(()),
            Some(awaited) => board.watch_for(wires, awaited),
        }
    }

    /// Watches the members whose messages it will wait for, if it goes by messages.
    pub(super) fn watch_later(&mut self, wires: Wires<'_>) -> Result<()> {
        if self.is_shared() { Ok(()) } else { self.run.watch(wires) }
    }

    /// An error if one of these is lost, and its messages have not arrived.
    pub(super) fn check_watched(&mut self, wires: Wires<'_>) -> Result<()> {
        self.run.check_watched(wires)
    }

    /// Appends the requests that end when one of these is lost.
    pub(super) fn interruptions(&self, ids: &mut Vec<TagRequest>) {
        self.run.interruptions(ids);
    }

    /// Whether what it waits for in shared memory cannot come if a member is gone.
    pub(super) fn needs(&self, board: &Board, member: usize) -> bool {
        let awaited = self.shared.as_ref().and_then(SharedOp::awaited);
        awaited.is_some_and(|awaited| board.memory.needs(awaited, member))
    }

    /// Appends what it waits for: in shared memory, until there is some, or messages.
    pub(super) fn requests(&self, sharing: &Sharing, ids: &mut Vec<TagRequest>) {
        match self.shared.as_ref().map(SharedOp::request) {
            Some(Some(request)) => ids.push(request),
            Some(None) => sharing.requests(ids),
            None => self.run.requests(ids),
        }
    }

    /// The output, once it is done.
    pub(super) fn into_output(self) -> Vec<u8> {
        self.run.into_output()
    }

    /// Copies the output, once it is done.
    pub(super) fn copy_output(&self, output: &mut [u8]) {
        self.run.copy_output(output);
    }
}

fn advance_shared(run: &mut Run, wires: Wires<'_>, board: &Board, shared: &mut SharedOp) -> Result<bool> {
    let plan = run.plan();
    let Some(call) = plan.shared else { return Ok(true) };
    if !shared.has_entered() && !shared.enter(wires, board, call, run.input())? {
        return Ok(false);
    }
    let mut output = run.take_output();
    let done = shared.finish(wires, board, (call, run.plan(), run.reduction()), &mut output);
    run.put_output(output);
    done
}

/// Carries out a collective through shared memory, in the memory of the program, as far as it goes without a
/// long wait. True if that was all.
#[inline]
pub(super) fn advance_in_place(
    wires: Wires<'_>,
    sharing: &Sharing,
    shared: &mut SharedOp,
    (plan, reduction): (&Plan, Option<&Reduction>),
    bytes: &mut Bytes<'_>,
) -> Result<bool> {
    let (Some(board), Some(call)) = (sharing.board(), plan.shared) else { return Ok(false) };
    loop {
        let is_in = shared.has_entered() || shared.enter(wires, board, call, bytes.input())?;
        if is_in && shared.finish(wires, board, (call, plan, reduction), bytes.output())? {
            if call.kind == (SharedKind::Broadcast { root: wires.me }) {
                bytes.copy_root();
            }
            return wake_later(wires, sharing, shared).map(|()| true);
        }
        if !await_shortly(wires, board, shared) {
            return Ok(false);
        }
    }
}

/// After the end of an operation: one of another thread may wait for its turn.
#[inline]
fn wake_later(wires: Wires<'_>, sharing: &Sharing, shared: &SharedOp) -> Result<()> {
    if sharing.has_later(shared.number()) { Ok(wires.tags.node().tagged().poll_groups()?) } else { Ok(()) }
}

/// Waits for a short time for what an operation needs of others. True if that is there.
fn await_shortly(wires: Wires<'_>, board: &Board, shared: &SharedOp) -> bool {
    match shared.awaited() {
        // This member has to do something itself.
        None | Some(Awaited::Turn(_)) => false,
        Some(awaited) => wires.tags.node().tagged().await_group_shortly(&board.memory, awaited),
    }
}
