//! What one member does in a collective: steps over blocks of memory. Algorithms write plans, a
//! [`super::run::Run`] carries them out.

use std::ops::Range;

/// A block of memory of a collective, by number.
pub(super) type Block = u32;

/// A step of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Starts to send the bytes of some blocks, in one message.
    Send { to: usize, blocks: Range<Block> },
    /// Starts to receive a message into some blocks, which it fills.
    Receive { from: usize, blocks: Range<Block> },
    /// Waits for all sends and receives that were started.
    Wait,
    /// Reduces two runs of `count` blocks. `lower` has the operands of lower members. The result takes the
    /// place of `upper`, and `lower` stays; or that of `lower`, and the content of `upper` is undefined.
    Fold { lower: Block, upper: Block, count: u32, into: Into },
    /// Copies a block over another of the same size.
    Copy { from: Block, to: Block },
}

/// Where the result of a reduction goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Into {
    Lower,
    Upper,
}

/// What a member does in a collective through shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    pub(super) kind: SharedKind,
    /// The bytes of the call: the same at all members.
    pub(super) bytes: usize,
}

/// A collective that can go through shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SharedKind {
    Barrier,
    Broadcast {
        root: usize,
    },
    Reduce {
        root: usize,
    },
    AllReduce,
    AllGather,
    /// This member's output is what follows the first `skip` bytes of each input.
    AllToAll {
        skip: usize,
    },
    /// This member's part follows the first `skip` bytes of each input.
    ReduceScatter {
        skip: usize,
    },
    /// Nothing. It has its number among the operations.
    Pass,
}

impl Shared {
    /// A number that is the same at members whose calls agree, and most likely not at others.
    pub(super) fn signature(self) -> u16 {
        let (kind, root) = match self.kind {
            SharedKind::Barrier => (0, 0),
            SharedKind::Broadcast { root } => (1, root),
            SharedKind::Reduce { root } => (2, root),
            SharedKind::AllReduce => (3, 0),
            SharedKind::AllGather => (4, 0),
            SharedKind::AllToAll { .. } => (5, 0),
            SharedKind::ReduceScatter { .. } => (6, 0),
            SharedKind::Pass => (7, 0),
        };
        let call = (self.bytes as u64) << 16 | (root as u64) << 3 | kind;
        (call.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48) as u16
    }
}

/// All that one member does in a collective.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    /// Bytes of each block.
    pub(super) sizes: Vec<usize>,
    /// The blocks that the member's input fills, in order.
    pub(super) input: Vec<Block>,
    /// The blocks that make the member's output, in order.
    pub(super) output: Vec<Block>,
    pub(super) steps: Vec<Step>,
    /// What it is through shared memory, if the group has some and the table chooses it.
    pub(super) shared: Option<Shared>,
    /// What it is in two levels, if the members are on several hosts and the table chooses it.
    pub(super) hosts: Option<Shared>,
}

impl Plan {
    /// Bytes of some blocks.
    pub(super) fn bytes(&self, blocks: &Range<Block>) -> usize {
        self.sizes[blocks.start as usize..blocks.end as usize].iter().sum()
    }

    /// Bytes of the input.
    pub(super) fn input_len(&self) -> usize {
        self.input.iter().map(|block| self.sizes[*block as usize]).sum()
    }

    /// Bytes of the output.
    pub(super) fn output_len(&self) -> usize {
        self.output.iter().map(|block| self.sizes[*block as usize]).sum()
    }
}

/// A plan while it is written, for member `me` of `members`.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) me: usize,
    pub(super) members: usize,
    pub(super) plan: Plan,
}

impl Draft {
    pub(super) fn new(me: usize, members: usize) -> Draft {
        Draft { me, members, plan: Plan::default() }
    }

    /// The member at a distance after this one, in a circle.
    pub(super) fn after(&self, distance: usize) -> usize {
        (self.me + distance) % self.members
    }

    /// The member at a distance before this one, in a circle.
    pub(super) fn before(&self, distance: usize) -> usize {
        (self.me + self.members - distance % self.members) % self.members
    }

    /// Adds a block.
    pub(super) fn block(&mut self, size: usize) -> Block {
        self.plan.sizes.push(size);
        (self.plan.sizes.len() - 1) as Block
    }

    /// Adds blocks, and returns the number of the first.
    pub(super) fn blocks(&mut self, sizes: impl IntoIterator<Item = usize>) -> Block {
        let first = self.plan.sizes.len() as Block;
        self.plan.sizes.extend(sizes);
        first
    }

    /// Sends blocks. Nothing is sent if they are empty, and their receiver does not expect it.
    pub(super) fn send(&mut self, to: usize, blocks: Range<Block>) {
        if self.plan.bytes(&blocks) > 0 {
            self.plan.steps.push(Step::Send { to, blocks });
        }
    }

    /// Receives blocks that [`Draft::send`] sends.
    pub(super) fn receive(&mut self, from: usize, blocks: Range<Block>) {
        if self.plan.bytes(&blocks) > 0 {
            self.plan.steps.push(Step::Receive { from, blocks });
        }
    }

    /// Sends a message without bytes.
    pub(super) fn signal(&mut self, to: usize) {
        self.plan.steps.push(Step::Send { to, blocks: 0..0 });
    }

    /// Receives a message without bytes.
    pub(super) fn await_signal(&mut self, from: usize) {
        self.plan.steps.push(Step::Receive { from, blocks: 0..0 });
    }

    /// Waits for all sends and receives so far.
    pub(super) fn wait(&mut self) {
        if !matches!(self.plan.steps.last(), None | Some(Step::Wait)) {
            self.plan.steps.push(Step::Wait);
        }
    }

    /// Reduces blocks; see [`Step::Fold`].
    pub(super) fn fold(&mut self, lower: Block, upper: Block, count: u32, into: Into) {
        if self.plan.bytes(&(lower..lower + count)) == 0 {
            return;
        }
        self.plan.steps.push(Step::Fold { lower, upper, count, into });
    }

    /// Reduces a block with one that came from another member, in the order of members (G-5). The result
    /// stays in `own`.
    pub(super) fn fold_from(&mut self, member: usize, own: Block, theirs: Block, count: u32) {
        if member < self.me {
            self.fold(theirs, own, count, Into::Upper);
        } else {
            self.fold(own, theirs, count, Into::Lower);
        }
    }

    /// Copies a block.
    pub(super) fn copy(&mut self, from: Block, to: Block) {
        self.plan.steps.push(Step::Copy { from, to });
    }
}

/// Cuts `len` bytes into `parts` that differ by one unit at most.
pub(super) fn cut(len: usize, unit: usize, parts: usize) -> Vec<usize> {
    let unit = unit.max(1);
    let (units, rest) = (len / unit, len % unit);
    let mut sizes: Vec<_> =
        (0..parts).map(|part| (units / parts + usize::from(part < units % parts)) * unit).collect();
    if let Some(last) = sizes.last_mut() {
        *last += rest;
    }
    sizes
}

/// The lowest set bit of a number relative to the root of a binomial tree; for the root, the first power of
/// two that is not below `members`.
pub(super) fn low_bit(relative: usize, members: usize) -> usize {
    match relative {
        0 => members.next_power_of_two(),
        _ => 1 << relative.trailing_zeros(),
    }
}
