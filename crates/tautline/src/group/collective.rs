//! Collectives under way: blocking, started and persistent.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tautline_node::TagRequest;
use tautline_node::link::Nanos;

use super::context::Started;
use super::execution::{Bytes, Execution, advance_in_place};
use super::plan::Plan;
use super::reduction::Reduction;
use super::run::{Planned, Wires};
use super::shared_op::SharedOp;
use super::{Group, Inner};
use crate::SendError;
use crate::error::{Error, Result};

/// Set in the tags of persistent collectives, which have numbers of their own.
const PERSISTENT: u32 = 1 << 31;

/// How long a member waits for one before it watches all those that it will wait for. One of them may be lost
/// while another one computes.
const PATIENCE: Duration = Duration::from_millis(50);

/// The number in a tag. Agreements set another bit.
const NUMBER: u32 = (1 << 30) - 1;

/// The number and the tag of a collective (G-3).
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    number: u64,
    tag: u32,
}

impl Ticket {
    /// The `number`th collective of a group.
    pub(super) fn once(number: u64) -> Ticket {
        Ticket { number, tag: number as u32 & NUMBER }
    }

    /// The `number`th persistent collective of a group.
    pub(super) fn persistent(number: u32) -> Ticket {
        // It fails when any collective of the group fails.
        Ticket { number: u64::MAX - 1, tag: number & NUMBER | PERSISTENT }
    }

    /// The number of the first collective that fails if this one does.
    fn failing(self) -> u64 {
        if self.tag & PERSISTENT == 0 { self.number } else { 0 }
    }
}

impl Inner {
    fn wires(&self, ticket: Ticket) -> Wires<'_> {
        let Inner { collective, members, me, .. } = self;
        Wires { tags: collective, tag: ticket.tag, members, me: *me }
    }

    /// Does what can be done now of a collective. True if that was all.
    fn advance(&self, ticket: Ticket, run: &mut Execution) -> Result<bool> {
        self.failures.check(ticket.number)?;
        match run.advance(self.wires(ticket), &self.sharing) {
            Ok(false) if run.is_shared() => {
                let done = self.check_shared(ticket, run)?;
                if !done {
                    self.or_fail(ticket, run.register(self.wires(ticket), &self.sharing))?;
                }
                Ok(done)
            }
            Ok(false) if self.members.len() > 1 => {
                self.take_notices()?;
                self.failures.check(ticket.number)?;
                self.or_fail(ticket, run.check_watched(self.wires(ticket), &self.sharing))?;
                Ok(false)
            }
            Ok(done) => Ok(done),
            Err(error) => {
                // Why it has failed elsewhere says more than the end of a member that has given up (G-25).
                self.take_notices()?;
                self.failures.check(ticket.number)?;
                Err(self.fail(ticket.failing(), error))
            }
        }
    }

    /// Calls `carry_out`, which may call an operation of the program. If that unwinds, the collective fails,
    /// here and at the other members (G-6).
    fn or_fail_unwinding<T>(&self, ticket: Ticket, carry_out: impl FnOnce() -> T) -> T {
        let unwinding = Unwinding { group: self, ticket };
        let result = carry_out();
        std::mem::forget(unwinding);
        result
    }

    /// An error fails the collective, here and at the other members.
    fn or_fail<T>(&self, ticket: Ticket, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.fail(ticket.failing(), error))
    }

    /// A collective that waits in shared memory fails if a notice says so, or a member is lost that it waits
    /// for (G-20).
    fn check_shared(&self, ticket: Ticket, run: &mut Execution) -> Result<bool> {
        let (tagged, wires) = (self.collective.node().tagged(), self.wires(ticket));
        let board = self.sharing.any_board();
        if let Some(board) = board {
            self.or_fail(ticket, run.watch(wires, board, false))?;
            // Notices and losses end receives. Those that are known may matter for a later collective.
            if !board.has_news(tagged.request_activity()?) && !self.failures.any() {
                return Ok(false);
            }
        }
        if let Some(notice) = self.notice_request()
            && tagged.has_ended(notice)?
        {
            self.take_notices()?;
            self.failures.check(ticket.number)?;
        }
        let Some(board) = board else {
            self.or_fail(ticket, run.check_watched(wires, &self.sharing))?;
            return Ok(false);
        };
        let mut lost = board.losses(board.wires(wires))?;
        let here = |(member, cause)| Some((board.placement.number_here(member)?, cause));
        lost.extend(self.lost_by_notice().into_iter().filter_map(here));
        if lost.is_empty() {
            return Ok(false);
        }
        // What they wrote before their end counts.
        match run.advance(wires, &self.sharing) {
            Ok(true) => Ok(true),
            Ok(false) => match lost.into_iter().find(|(member, _)| run.needs(board, *member)) {
                Some((_, cause)) => Err(self.fail(ticket.failing(), cause.error())),
                // Whoever watched the others may be among the lost.
                None => self.or_fail(ticket, run.watch(wires, board, true)).map(|()| false),
            },
            Err(error) => Err(self.fail(ticket.failing(), error)),
        }
    }

    /// Changes with the losses and notices that this member knows of.
    fn changes(&self) -> u64 {
        self.failures.changes() + self.sharing.any_board().map_or(0, |board| board.changes())
    }

    /// Carries out a collective through shared memory, in the memory of the program, as far as it goes
    /// without a long wait. True if that was all.
    pub(super) fn drive_in_place(
        &self,
        ticket: Ticket,
        op: &mut SharedOp,
        with: (&Plan, Option<&Reduction>),
        bytes: &mut Bytes<'_>,
    ) -> Result<bool> {
        self.failures.check(ticket.number)?;
        let done = self.or_fail_unwinding(ticket, || {
            advance_in_place(self.wires(ticket), &self.sharing, op, with, bytes)
        });
        if done.is_err() { self.or_fail(ticket, done) } else { done }
    }

    /// Appends what ends the wait for a collective, whatever it waits for itself.
    fn interruptions(&self, run: &Execution, ids: &mut Vec<TagRequest>) {
        ids.extend(self.notice_request());
        run.interruptions(&self.sharing, ids);
        if let Some(board) = self.sharing.any_board().filter(|_| run.is_shared()) {
            board.interruptions(ids);
        }
    }

    /// Carries out a collective, and whatever else was started meanwhile.
    pub(super) fn drive(&self, ticket: Ticket, run: &mut Execution) -> Result<()> {
        // Also an operation of another collective may unwind, which is advanced meanwhile.
        self.or_fail_unwinding(ticket, || self.drive_all(ticket, run))
    }

    fn drive_all(&self, ticket: Ticket, run: &mut Execution) -> Result<()> {
        let (mut own, mut unless) = (Vec::new(), Vec::new());
        let (tagged, groups) = (self.collective.node().tagged(), self.groups());
        loop {
            let (before, started) = (self.changes(), groups.started());
            if self.advance(ticket, run)? {
                return Ok(());
            }
            if self.collective.node().is_virtual() {
                return Err(SendError::WouldBlock.into());
            }
            own.clear();
            run.requests(&self.sharing, &mut own);
            unless.clear();
            self.interruptions(run, &mut unless);
            groups.advance_all(None, &mut unless);
            let patience = (!run.is_watching(&self.sharing)).then_some(PATIENCE);
            // Another thread may have taken what would end the wait.
            let stop = || groups.started() != started || self.changes() != before;
            if !stop() && !tagged.wait_tagged_unless(&own, &unless, patience, stop)? {
                self.or_fail(ticket, run.watch_later(self.wires(ticket), &self.sharing))?;
            }
        }
    }
}

/// Fails a collective when it is dropped.
struct Unwinding<'a> {
    group: &'a Inner,
    ticket: Ticket,
}

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        let _ = self.group.fail(self.ticket.failing(), Error::other("an operation of the program panicked"));
    }
}

/// A collective that was started.
#[derive(Debug)]
pub(super) struct Operation {
    group: Arc<Inner>,
    ticket: Ticket,
    /// When it was started, by the clock of the node.
    since: Nanos,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Running(Execution),
    Ended(Result<Execution>),
    Taken,
}

impl Operation {
    fn start(group: &Arc<Inner>, ticket: Ticket, run: Execution) -> Arc<Operation> {
        let state = Mutex::new(State::Running(run));
        let since = group.collective.node().now();
        let operation = Arc::new(Operation { group: group.clone(), ticket, since, state });
        let ended = operation.advance(&mut operation.lock());
        if !ended {
            group.groups().add(operation.clone());
            // A closed lane ends the wait for it.
            let _ = group.collective.node().tagged().note_started();
        }
        operation
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what can be done now. True if it has ended.
    fn advance(&self, state: &mut State) -> bool {
        let State::Running(run) = state else { return true };
        let advance = || self.group.advance(self.ticket, run);
        let advanced = self.group.or_fail_unwinding(self.ticket, advance).and_then(|done| {
            if !done {
                self.watch_later(run)?;
            }
            Ok(done)
        });
        let result = match advanced {
            Ok(false) => return false,
            Ok(true) => Ok(()),
            Err(error) => Err(error),
        };
        if let State::Running(run) = std::mem::replace(state, State::Taken) {
            *state = State::Ended(result.map(|()| run));
        }
        true
    }

    /// Watches all members that it will wait for, if it was started some time ago (G-22): whoever tests it
    /// does not wait here.
    fn watch_later(&self, run: &mut Execution) -> Result<()> {
        let (group, now) = (&*self.group, self.group.collective.node().now());
        let since = now.saturating_sub(self.since);
        if run.is_watching(&group.sharing) || since < PATIENCE.as_nanos() as Nanos {
            return Ok(());
        }
        group.or_fail(self.ticket, run.watch_later(group.wires(self.ticket), &group.sharing))
    }

    fn test(self: &Arc<Self>) -> bool {
        let groups = self.group.groups();
        groups.advance_all(Some(&**self), &mut Vec::new());
        let ended = self.advance(&mut self.lock());
        if ended {
            groups.remove(&**self);
        } else {
            self.poll_for_shared();
        }
        ended
    }

    /// A collective that waits in shared memory has not polled. An error is that of the next call.
    fn poll_for_shared(&self) {
        if matches!(&*self.lock(), State::Running(run) if run.is_shared()) {
            let _ = self.group.collective.node().tagged().poll();
        }
    }

    fn wait(self: &Arc<Self>) -> Result<Execution> {
        let (mut own, mut unless) = (Vec::new(), Vec::new());
        let (tagged, groups) = (self.group.collective.node().tagged(), self.group.groups());
        loop {
            let mut patience = None;
            let (before, started) = (self.group.changes(), groups.started());
            if self.test() {
                break;
            }
            if self.group.collective.node().is_virtual() {
                return Err(SendError::WouldBlock.into());
            }
            own.clear();
            unless.clear();
            if let State::Running(run) = &*self.lock() {
                run.requests(&self.group.sharing, &mut own);
                self.group.interruptions(run, &mut unless);
                patience = (!run.is_watching(&self.group.sharing)).then_some(PATIENCE);
            }
            groups.advance_all(Some(&**self), &mut unless);
            let stop = || groups.started() != started || self.group.changes() != before;
            if !stop() {
                tagged.wait_tagged_unless(&own, &unless, patience, stop)?;
            }
        }
        match std::mem::replace(&mut *self.lock(), State::Taken) {
            State::Ended(result) => result,
            _ => Err(Error::Stale),
        }
    }
}

impl Started for Operation {
    fn advance_started(&self, waits: &mut Vec<TagRequest>) -> bool {
        // A thread that is advancing it may not wait for it afterwards; this one does (G-21).
        let mut state = self.lock();
        if self.advance(&mut state) {
            return true;
        }
        if let State::Running(run) = &*state {
            run.requests(&self.group.sharing, waits);
            self.group.interruptions(run, waits);
        }
        false
    }
}

/// A collective that was started. `Send` and `Sync`. Dropped, it goes on: whenever a thread of this rank
/// waits for a collective or tests one, all that were started make progress.
#[derive(Debug)]
#[must_use = "a collective ends when it is waited for"]
pub struct Collective(Arc<Operation>);

impl Collective {
    pub(super) fn start(group: &Group, ticket: Ticket, run: Execution) -> Collective {
        Collective(Operation::start(&group.0, ticket, run))
    }

    /// Makes progress; whether it has ended, well or not. Never blocks.
    pub fn test(&self) -> bool {
        self.0.test()
    }

    /// Waits for its end, and returns this member's output.
    pub fn wait(self) -> Result<Vec<u8>> {
        self.0.wait().map(|mut run| run.take_result())
    }
}

/// A collective that can be started again and again. Made by [`Group::prepare`].
#[derive(Debug)]
pub struct Persistent {
    group: Group,
    plan: Planned,
    ticket: Ticket,
    running: Option<Collective>,
}

impl Persistent {
    pub(super) fn new(group: &Group, plan: Planned, ticket: Ticket) -> Persistent {
        Persistent { group: group.clone(), plan, ticket, running: None }
    }

    /// Starts it with this member's input. [`Error::TooMany`] if it was started and not waited for, and the
    /// cause if collectives of the group fail.
    pub fn start(&mut self, input: Vec<u8>) -> Result<()> {
        if self.running.is_some() {
            return Err(Error::TooMany("starts of a collective that nobody has waited for"));
        }
        self.group.0.failures.check(self.ticket.number)?;
        let run = Execution::new(self.plan.clone(), input)?;
        self.running = Some(Collective::start(&self.group, self.ticket, run));
        Ok(())
    }

    /// Makes progress; whether it has ended or was not started. Never blocks.
    pub fn test(&self) -> bool {
        self.running.as_ref().is_none_or(Collective::test)
    }

    /// Waits for the end of what was started, and returns this member's output.
    pub fn wait(&mut self) -> Result<Vec<u8>> {
        self.running.take().ok_or(Error::Stale)?.wait()
    }
}

#[cfg(test)]
mod tests;
