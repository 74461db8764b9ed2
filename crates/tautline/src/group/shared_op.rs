//! A short collective through the memory that the members share: each member writes its bytes once, and reads
//! the result once (G-15 … G-17).

use tautline_node::{Asleep, Awaited, GroupFault, GroupMemory, GroupWaitId, TagRequest};

use super::plan::{Plan, Shared, SharedKind};
use super::reduction::Reduction;
use super::run::{Wires, mismatch};
use super::sharing::Board;
use crate::error::{Error, Result};
use crate::tags::Tags;

/// Groups of so many members compute results at each member: nobody waits for the one that computes.
const EACH_COMPUTES: usize = 2;
/// Operands up to this length are read to the stack.
const SHORT: usize = 256;

/// Memory for a short operand. Functions of programs may need any alignment that an allocation has.
#[repr(align(64))]
struct Short([u8; SHORT]);

/// One operation at one member.
#[derive(Debug)]
pub(super) struct SharedOp {
    number: u64,
    entered: bool,
    awaited: Option<Awaited>,
    wait: Option<Wait>,
}

/// The lane waits for something in the memory, until this is dropped.
#[derive(Debug)]
struct Wait {
    tags: Tags,
    awaited: Awaited,
    id: GroupWaitId,
}

impl Drop for Wait {
    fn drop(&mut self) {
        let _ = self.tags.node().tagged().forget_group_wait(self.id);
    }
}

fn fault(fault: GroupFault) -> Error {
    match fault {
        GroupFault::OtherCall => mismatch(),
        GroupFault::Corrupt => Error::other(
            "the memory that the members of a group share was overwritten by a process of this user; set \
             TAUTLINE_CHOICES to algorithms that send messages, and look for stray writes",
        ),
    }
}

impl SharedOp {
    /// The `number`th operation of a group.
    pub(super) fn new(number: u64) -> SharedOp {
        SharedOp { number, entered: false, awaited: None, wait: None }
    }

    /// What it waits for in the memory.
    pub(super) fn awaited(&self) -> Option<Awaited> {
        self.awaited
    }

    /// The request that ends when it is there, after [`SharedOp::register`].
    pub(super) fn request(&self) -> Option<TagRequest> {
        self.wait.as_ref().map(|wait| TagRequest::Group(wait.id))
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn has_entered(&self) -> bool {
        self.entered
    }

    /// Has the lane wait for what is awaited.
    #[inline]
    pub(super) fn register(&mut self, wires: Wires<'_>, board: &Board) -> Result<()> {
        let registered = self.wait.as_ref().map(|wait| wait.awaited);
        if registered != self.awaited {
            self.wait = None;
            if let Some(awaited) = self.awaited {
                let id = wires.tags.node().tagged().await_group(&board.memory, awaited)?;
                self.wait = Some(Wait { tags: wires.tags.clone(), awaited, id });
            }
        }
        Ok(())
    }

    /// Waits for something. False, or an error if it must have been there.
    fn wait_for(&mut self, board: &Board, awaited: Awaited) -> Result<bool> {
        if self.wait.is_some() && board.memory.is_overwritten(awaited) {
            return Err(fault(GroupFault::Corrupt));
        }
        self.awaited = Some(awaited);
        Ok(false)
    }

    /// Enters with this member's bytes, if it is its turn.
    pub(super) fn enter(
        &mut self,
        wires: Wires<'_>,
        board: &Board,
        call: Shared,
        input: &[u8],
    ) -> Result<bool> {
        let (memory, number) = (&*board.memory, self.number);
        wires.tags.node().tagged().enter_group()?;
        if memory.turn() != number {
            return self.wait_for(board, Awaited::Turn(number));
        }
        if !memory.has_room(number) {
            return self.wait_for(board, Awaited::Room(number));
        }
        if !matches!(call.kind, SharedKind::Barrier | SharedKind::Broadcast { .. } | SharedKind::Pass) {
            memory.contribute(number, input);
        }
        memory.enter(number, call.signature());
        self.entered = true;
        if call.kind == (SharedKind::Broadcast { root: wires.me }) {
            memory.publish(number, input);
        }
        board.wake(wires.members, Asleep::ForAny)?;
        Ok(true)
    }

    /// Finishes what was entered, and writes the output, if it can. True if it could.
    pub(super) fn finish(
        &mut self,
        wires: Wires<'_>,
        board: &Board,
        (call, plan, reduction): (Shared, &Plan, Option<&Reduction>),
        output: &mut [u8],
    ) -> Result<bool> {
        let (memory, number) = (&*board.memory, self.number);
        let mut wakes = true;
        match call.kind {
            SharedKind::Pass => {}
            SharedKind::Broadcast { root } if root == wires.me => {}
            SharedKind::Broadcast { root } => {
                if !memory.has_result(number).map_err(fault)? {
                    return self.wait_for(board, Awaited::From(number, root as u32));
                }
                memory.check_call(number, root).map_err(fault)?;
                memory.result(number, output);
            }
            SharedKind::Reduce { root } if root != wires.me => {
                wakes = memory.has_all(number).map_err(fault)?;
            }
            SharedKind::AllReduce if memory.members() > EACH_COMPUTES => {
                if memory.has_result(number).map_err(fault)? {
                    memory.result(number, output);
                } else if !memory.has_all(number).map_err(fault)? {
                    return self.wait_for(board, Awaited::Result(number));
                } else if memory.claim(number).map_err(fault)? {
                    fold(memory, (number, 0), reduction, output);
                    memory.publish(number, output);
                } else {
                    return self.wait_for(board, Awaited::Published(number));
                }
            }
            kind => {
                if !memory.has_all(number).map_err(fault)? {
                    let alone = matches!(kind, SharedKind::Reduce { .. });
                    let awaited = if alone { Awaited::Operands(number) } else { Awaited::Entered(number) };
                    return self.wait_for(board, awaited);
                }
                match kind {
                    SharedKind::AllGather => read_parts(memory, (number, 0), plan, output),
                    SharedKind::AllToAll { skip } => read_parts(memory, (number, skip), plan, output),
                    SharedKind::ReduceScatter { skip } => fold(memory, (number, skip), reduction, output),
                    _ => fold(memory, (number, 0), reduction, output),
                }
            }
        }
        (self.awaited, self.wait) = (None, None);
        memory.leave(number);
        if wakes {
            board.wake(wires.members, Asleep::ForAll)?;
        }
        Ok(true)
    }
}

/// Copies a part from the slot of each member. The parts are the blocks of the plan's output.
fn read_parts(memory: &GroupMemory, (number, skip): (u64, usize), plan: &Plan, output: &mut [u8]) {
    let mut rest = output;
    for (member, block) in plan.output.iter().enumerate() {
        let (part, after) = rest.split_at_mut(plan.sizes[*block as usize]);
        memory.read(number, member, skip, part);
        rest = after;
    }
}

/// Reduces the operands of all members, in their order (G-5): the same at every member that has the same
/// part.
fn fold(
    memory: &GroupMemory,
    (number, skip): (u64, usize),
    reduction: Option<&Reduction>,
    result: &mut [u8],
) {
    let Some(reduction) = reduction else { return };
    let last = memory.members() - 1;
    memory.read(number, last, skip, result);
    let (mut short, mut long) = (Short([0; SHORT]), Vec::new());
    let lower = match short.0.get_mut(..result.len()) {
        Some(short) => short,
        None => {
            long.resize(result.len(), 0);
            &mut long[..]
        }
    };
    for member in (0..last).rev() {
        memory.read(number, member, skip, lower);
        reduction.apply(lower, result);
    }
}
