//! A collective under way at one member: through shared memory if the group has some and the table chooses
//! it, by messages otherwise.

use tautline_node::{Awaited, TagRequest};

use super::hosts_op::HostsOp;
use super::plan::{Plan, SharedKind};
use super::reduction::Reduction;
use super::run::{Planned, Run, Wires, check_input};
use super::shared_op::SharedOp;
use super::sharing::{Board, Decision, Numbers, Sharing};
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
    /// It goes through memory that all members share, unless the group turns out to have none.
    shared: Option<SharedOp>,
    /// It goes in two levels, unless the group turns out not to be on several hosts.
    hosts: Option<Box<HostsOp>>,
}

impl Execution {
    /// Begins with the member's input.
    pub(super) fn new(plan: Planned, input: Vec<u8>) -> Result<Execution> {
        Ok(Execution { run: Run::new(plan, input)?, shared: None, hosts: None })
    }

    /// As [`Execution::new`], with a copy of the input, for one that may have begun in memory of all members,
    /// or have a number among those that go in two levels.
    pub(super) fn begun(
        plan: Planned,
        input: &[u8],
        (shared, hosts): (Option<SharedOp>, Option<u64>),
    ) -> Result<Execution> {
        let hosts = hosts.map(|number| Box::new(HostsOp::new(number)));
        Ok(Execution { run: Run::copied(plan, input)?, shared, hosts })
    }

    /// Gives it its places among those that go through shared memory, if it has some.
    pub(super) fn share(&mut self, numbers: Numbers) {
        self.shared = numbers.memory.map(SharedOp::new);
        self.hosts = numbers.hosts.map(|number| Box::new(HostsOp::new(number)));
    }

    pub(super) fn plan(&self) -> &Plan {
        self.run.plan()
    }

    /// Whether it waits in shared memory, as far as is known.
    pub(super) fn is_shared(&self) -> bool {
        self.shared.is_some() || self.hosts.as_ref().is_some_and(|hosts| !hosts.exchanges())
    }

    /// Does all that can be done now. True if that was all.
    pub(super) fn advance(&mut self, wires: Wires<'_>, sharing: &Sharing) -> Result<bool> {
        if self.shared.is_none() && self.hosts.is_none() {
            return self.run.advance(wires);
        }
        let Some(decision) = sharing.decide(wires)? else { return Ok(false) };
        match (decision, &mut self.shared, &mut self.hosts) {
            (Decision::Memory(board), Some(shared), _) => {
                self.hosts = None;
                let done = advance_shared(&mut self.run, wires, board, shared)?;
                if done {
                    wake_later(wires, sharing.has_later(shared.number()))?;
                }
                Ok(done)
            }
            (Decision::Hosts(board), _, Some(hosts)) => {
                self.shared = None;
                let done = hosts.advance(&mut self.run, wires, (board, &sharing.choices))?;
                if done {
                    wake_later(wires, sharing.has_later_by_hosts(hosts.number()))?;
                }
                Ok(done)
            }
            _ => {
                (self.shared, self.hosts) = (None, None);
                self.run.advance(wires)
            }
        }
    }

    /// Has the lane wait for what it needs of others in shared memory.
    pub(super) fn register(&mut self, wires: Wires<'_>, sharing: &Sharing) -> Result<()> {
        let Some(board) = sharing.any_board() else { return Ok(()) };
        match (&mut self.shared, &mut self.hosts) {
            (Some(shared), _) => shared.register(wires, board),
            (None, Some(hosts)) => hosts.register(wires, board),
            (None, None) => Ok(()),
        }
    }

    /// What it waits for in shared memory.
    fn awaited(&self) -> Option<Awaited> {
        match &self.shared {
            Some(shared) => shared.awaited(),
            None => self.hosts.as_ref()?.awaited(),
        }
    }

    /// Watches the members that it waits for in shared memory: all of them if a member is lost, and otherwise
    /// as far as others may not.
    pub(super) fn watch(&self, wires: Wires<'_>, board: &Board, is_one_lost: bool) -> Result<()> {
        match self.awaited() {
            None | Some(Awaited::Turn(_)) => Ok(()),
            Some(Awaited::Entered(_) | Awaited::Published(_) | Awaited::Result(_)) if !is_one_lost => Ok(()),
            Some(awaited) => board.watch_for(board.wires(wires), awaited),
        }
    }

    /// The messages by which it goes, with the wires that they use.
    fn messages<'a>(&'a mut self, wires: Wires<'a>) -> (&'a mut Run, Wires<'a>) {
        match self.hosts.as_mut().and_then(|hosts| hosts.messages(wires)) {
            Some(messages) => messages,
            None => (&mut self.run, wires),
        }
    }

    /// Whether it waits until the members have agreed on shared memory.
    fn sets_up(&self, sharing: &Sharing) -> bool {
        (self.shared.is_some() || self.hosts.is_some()) && sharing.decision().is_none()
    }

    /// Whether the members are watched whose messages it will wait for, or there are none now.
    pub(super) fn is_watching(&self, sharing: &Sharing) -> bool {
        match &self.hosts {
            _ if self.sets_up(sharing) => sharing.is_watching(),
            _ if self.is_shared() => true,
            Some(hosts) => hosts.is_watching(),
            None => self.run.is_watching(),
        }
    }

    /// Watches the members whose messages it will wait for, if it waits for messages now (G-22).
    pub(super) fn watch_later(&mut self, wires: Wires<'_>, sharing: &Sharing) -> Result<()> {
        if self.sets_up(sharing) {
            return sharing.watch_later(wires);
        }
        if self.is_shared() {
            return Ok(());
        }
        let (run, wires) = self.messages(wires);
        run.watch(wires)
    }

    /// An error if one of these is lost, and its messages have not arrived.
    pub(super) fn check_watched(&mut self, wires: Wires<'_>, sharing: &Sharing) -> Result<()> {
        if self.sets_up(sharing) {
            return sharing.check_watched(wires);
        }
        let (run, wires) = self.messages(wires);
        run.check_watched(wires)
    }

    /// Appends the requests that end when one of these is lost.
    pub(super) fn interruptions(&self, sharing: &Sharing, ids: &mut Vec<TagRequest>) {
        match &self.hosts {
            _ if self.sets_up(sharing) => sharing.interruptions(ids),
            Some(hosts) => hosts.interruptions(ids),
            None => self.run.interruptions(ids),
        }
    }

    /// Whether what it waits for in shared memory cannot come if a member of it is gone.
    pub(super) fn needs(&self, board: &Board, member: usize) -> bool {
        self.awaited().is_some_and(|awaited| board.memory.needs(awaited, member))
    }

    /// Appends what it waits for: in shared memory, until there is some, or messages.
    pub(super) fn requests(&self, sharing: &Sharing, ids: &mut Vec<TagRequest>) {
        match (&self.shared, &self.hosts) {
            (None, None) => self.run.requests(ids),
            _ if sharing.decision().is_none() => sharing.requests(ids),
            (Some(shared), _) => ids.extend(shared.request()),
            (None, Some(hosts)) => hosts.requests(ids),
        }
    }

    /// Takes the output, once it is done.
    #[inline]
    pub(super) fn take_result(&mut self) -> Vec<u8> {
        self.run.take_result()
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
            return wake_later(wires, sharing.has_later(shared.number())).map(|()| true);
        }
        if !await_shortly(wires, board, shared) {
            return Ok(false);
        }
    }
}

/// After the end of an operation: one of another thread may wait for its turn.
#[inline]
fn wake_later(wires: Wires<'_>, has_later: bool) -> Result<()> {
    if has_later { Ok(wires.tags.node().tagged().poll_groups()?) } else { Ok(()) }
}

/// Waits for a short time for what an operation needs of others. True if that is there.
fn await_shortly(wires: Wires<'_>, board: &Board, shared: &SharedOp) -> bool {
    match shared.awaited() {
        // This member has to do something itself.
        None | Some(Awaited::Turn(_)) => false,
        Some(awaited) => wires.tags.node().tagged().await_group_shortly(&board.memory, awaited),
    }
}
