//! Which collective is called, and the plan for it.

use tautline_node::{MAX_GROUP_BYTES, MAX_GROUP_MEMBERS};

use super::algorithms::{
    all_gather, all_reduce, all_to_all, barrier, broadcast, gather, reduce, reduce_scatter, scan, scatter,
};
use super::choice::{Algorithm, Choices, Kind};
use super::plan::{Draft, Plan, Shared, SharedKind};
use super::reduction::Reduction;
use crate::error::{Error, Result};

/// A collective, with what all members must agree on. Lengths are in bytes, members are numbered from zero in
/// their group.
///
/// Each member gives an input and gets an output. Unless said otherwise, all members name the same root,
/// lengths and reduction.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Call {
    /// Ends when all members have called it. No input, no output.
    Barrier,
    /// The root's input is everybody's output. The others have no input.
    Broadcast {
        /// Who has the input.
        root: usize,
        /// Bytes of it.
        len: usize,
    },
    /// The root's output is all members' inputs, in order. The others have no output.
    Gather {
        /// Who has the output.
        root: usize,
        /// Bytes of each input.
        len: usize,
    },
    /// As [`Call::Gather`], with inputs of different lengths.
    GatherVaried {
        /// Who has the output.
        root: usize,
        /// Bytes of this member's input.
        len: usize,
        /// Bytes of each member's input. Only the root's list is read.
        lens: Vec<usize>,
    },
    /// Each member's output is a part of the root's input, in order. The others have no input.
    Scatter {
        /// Who has the input.
        root: usize,
        /// Bytes of each part.
        len: usize,
    },
    /// As [`Call::Scatter`], with parts of different lengths.
    ScatterVaried {
        /// Who has the input.
        root: usize,
        /// Bytes of this member's output.
        len: usize,
        /// Bytes of each member's part. Only the root's list is read.
        lens: Vec<usize>,
    },
    /// Everybody's output is all members' inputs, in order.
    AllGather {
        /// Bytes of each input.
        len: usize,
    },
    /// As [`Call::AllGather`], with inputs of different lengths.
    AllGatherVaried {
        /// Bytes of each member's input.
        lens: Vec<usize>,
    },
    /// Each member's input has a part for each member; the outputs are the parts from each member.
    AllToAll {
        /// Bytes of each part.
        len: usize,
    },
    /// As [`Call::AllToAll`], with parts of different lengths. What a member sends to another one has the
    /// length that the other one says it receives.
    AllToAllVaried {
        /// Bytes for each member.
        send: Vec<usize>,
        /// Bytes from each member.
        receive: Vec<usize>,
    },
    /// The root's output is the reduction of all inputs. The others have no output.
    Reduce {
        /// Who has the output.
        root: usize,
        /// Bytes of each input.
        len: usize,
        /// How elements are combined.
        with: Reduction,
    },
    /// Everybody's output is the reduction of all inputs.
    AllReduce {
        /// Bytes of each input.
        len: usize,
        /// How elements are combined.
        with: Reduction,
    },
    /// Each member's output is a part of the reduction of all inputs.
    ReduceScatter {
        /// Bytes of each member's part.
        lens: Vec<usize>,
        /// How elements are combined.
        with: Reduction,
    },
    /// Each member's output is the reduction of the inputs up to its own.
    Scan {
        /// Bytes of each input.
        len: usize,
        /// How elements are combined.
        with: Reduction,
    },
    /// Each member's output is the reduction of the inputs before its own. The first has no output.
    ExclusiveScan {
        /// Bytes of each input.
        len: usize,
        /// How elements are combined.
        with: Reduction,
    },
    /// Sends the input to all destinations. The output is what the sources send, in order. Members call it
    /// with lists of their own: who is a destination of another must have it as a source, as often.
    NeighbourGather {
        /// Members, with the bytes that they send.
        sources: Vec<(usize, usize)>,
        /// Members. The same one may be there several times.
        destinations: Vec<usize>,
        /// Bytes of the input.
        len: usize,
    },
    /// Sends a part of the input to each destination; otherwise as [`Call::NeighbourGather`]. What one member
    /// sends another several times arrives in the order of both lists.
    NeighbourAllToAll {
        /// Members, with the bytes that they send.
        sources: Vec<(usize, usize)>,
        /// Members, with the bytes for them.
        destinations: Vec<(usize, usize)>,
    },
}

impl Call {
    /// An error if the call makes no sense in a group of `members`, of whom this is `me`.
    pub(super) fn check(&self, me: usize, members: usize) -> Result<()> {
        let member = |member: usize| match member < members {
            true => Ok(()),
            false => Err(Error::other(format!("a group of {members} has no member {member}"))),
        };
        let list = |lens: &[usize]| match lens.len() == members {
            true => Ok(()),
            false => Err(Error::other(format!("{} lengths for {members} members", lens.len()))),
        };
        let fits = |bytes: usize| match isize::try_from(bytes) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::other("the lengths of a collective add up to more bytes than memory has")),
        };
        let units = |len: usize, with: &Reduction| match len.is_multiple_of(with.unit()) {
            true => Ok(()),
            false => {
                Err(Error::other(format!("{len} bytes are not whole elements of {} bytes", with.unit())))
            }
        };
        match self {
            Call::Barrier => Ok(()),
            Call::AllGather { len } | Call::AllToAll { len } => fits(len.saturating_mul(members)),
            Call::Broadcast { root, .. } => member(*root),
            Call::Gather { root, len } | Call::Scatter { root, len } => {
                member(*root).and_then(|()| fits(len.saturating_mul(members)))
            }
            Call::GatherVaried { root, lens, .. } | Call::ScatterVaried { root, lens, .. } => {
                member(*root)?;
                if me == *root { list(lens).and_then(|()| fits(total(lens))) } else { Ok(()) }
            }
            Call::AllGatherVaried { lens } => list(lens).and_then(|()| fits(total(lens))),
            Call::AllToAllVaried { send, receive } => {
                [send, receive].into_iter().try_for_each(|lens| list(lens).and_then(|()| fits(total(lens))))
            }
            Call::Reduce { root, len, with } => member(*root).and_then(|()| units(*len, with)),
            Call::AllReduce { len, with } | Call::Scan { len, with } | Call::ExclusiveScan { len, with } => {
                units(*len, with)
            }
            Call::ReduceScatter { lens, with } => {
                list(lens).and_then(|()| fits(total(lens)))?;
                lens.iter().try_for_each(|len| units(*len, with))
            }
            Call::NeighbourGather { sources, destinations, .. } => {
                sources.iter().try_for_each(|(from, _)| member(*from))?;
                destinations.iter().try_for_each(|to| member(*to))?;
                fits(total_of(sources))
            }
            Call::NeighbourAllToAll { sources, destinations } => {
                sources.iter().chain(destinations).try_for_each(|(other, _)| member(*other))?;
                fits(total_of(sources)).and_then(|()| fits(total_of(destinations)))
            }
        }
    }

    /// What a member of a group of `members` does. The call has been checked.
    pub(super) fn plan(&self, me: usize, members: usize, choices: &Choices) -> Plan {
        let mut draft = Draft::new(me, members);
        self.write(&mut draft, choices);
        draft.plan
    }

    /// What the plan depends on; none if that is long.
    pub(super) fn shape(&self) -> Option<Shape> {
        let reduction = |with: &Reduction| (with.unit(), with.is_commutative());
        let (kind, root, len, reduction) = match self {
            Call::Barrier => (0, 0, 0, (0, false)),
            Call::Broadcast { root, len } => (1, *root, *len, (0, false)),
            Call::Gather { root, len } => (2, *root, *len, (0, false)),
            Call::Scatter { root, len } => (3, *root, *len, (0, false)),
            Call::AllGather { len } => (4, 0, *len, (0, false)),
            Call::AllToAll { len } => (5, 0, *len, (0, false)),
            Call::Reduce { root, len, with } => (6, *root, *len, reduction(with)),
            Call::AllReduce { len, with } => (7, 0, *len, reduction(with)),
            Call::Scan { len, with } => (8, 0, *len, reduction(with)),
            Call::ExclusiveScan { len, with } => (9, 0, *len, reduction(with)),
            _ => return None,
        };
        Some(Shape { kind, root, len, reduction })
    }

    /// What a table of choices decides by, in a group of `members`: the kind of collective, and bytes. None
    /// if there is no choice.
    pub fn choice(&self, members: usize) -> Option<(Kind, usize)> {
        Some(match self {
            Call::Barrier => (Kind::Barrier, 0),
            Call::Broadcast { len, .. } => (Kind::Broadcast, *len),
            Call::Gather { len, .. } => (Kind::Gather, *len),
            Call::Scatter { len, .. } => (Kind::Scatter, *len),
            Call::AllGather { len } => (Kind::AllGather, len.saturating_mul(members)),
            Call::AllGatherVaried { lens } => (Kind::AllGather, total(lens)),
            Call::AllToAll { len } => (Kind::AllToAll, *len),
            Call::Reduce { len, .. } => (Kind::Reduce, *len),
            Call::AllReduce { len, .. } => (Kind::AllReduce, *len),
            Call::ReduceScatter { lens, .. } => (Kind::ReduceScatter, total(lens)),
            _ => return None,
        })
    }

    /// Whether it can go through memory that `members` share.
    pub fn fits_shared_memory(&self, members: usize) -> bool {
        // The most bytes that a member has for others. Where they have none, nobody need wait.
        let slot = match self {
            Call::Barrier => return members <= MAX_GROUP_MEMBERS,
            Call::Broadcast { len, .. } | Call::Reduce { len, .. } => *len,
            Call::AllReduce { len, .. } | Call::AllGather { len } => *len,
            Call::AllGatherVaried { lens } => lens.iter().copied().max().unwrap_or(0),
            Call::AllToAll { len } => len.saturating_mul(members),
            Call::ReduceScatter { lens, .. } => total(lens),
            _ => return false,
        };
        members <= MAX_GROUP_MEMBERS && (1..=MAX_GROUP_BYTES).contains(&slot)
    }

    /// What it is through shared memory, if that is chosen.
    fn shared(&self, me: usize, members: usize, choices: &Choices) -> Option<Shared> {
        let (kind, bytes) = self.choice(members)?;
        let chosen = choices.algorithm(kind, bytes, members) == Algorithm::Shared;
        if members < 2 || !chosen || !self.fits_shared_memory(members) {
            return None;
        }
        let kind = match self {
            Call::Barrier => SharedKind::Barrier,
            Call::Broadcast { root, .. } => SharedKind::Broadcast { root: *root },
            Call::Reduce { root, .. } => SharedKind::Reduce { root: *root },
            Call::AllReduce { .. } => SharedKind::AllReduce,
            Call::AllGather { .. } | Call::AllGatherVaried { .. } => SharedKind::AllGather,
            Call::AllToAll { len } => SharedKind::AllToAll { skip: me * len },
            Call::ReduceScatter { lens, .. } => SharedKind::ReduceScatter { skip: total(&lens[..me]) },
            _ => return None,
        };
        Some(Shared { kind, bytes })
    }

    /// What it is in two levels, if that is chosen (G-23).
    fn hosts(&self, members: usize, choices: &Choices) -> Option<Shared> {
        let (kind, bytes) = self.choice(members)?;
        let chosen = choices.between_hosts(kind, bytes, members) == Algorithm::Hosts;
        if members < 3 || !chosen || bytes > MAX_GROUP_BYTES || bytes == 0 && kind != Kind::Barrier {
            return None;
        }
        let kind = match self {
            Call::Barrier => SharedKind::Barrier,
            Call::Broadcast { root, .. } => SharedKind::Broadcast { root: *root },
            Call::Reduce { root, with, .. } if with.is_commutative() => SharedKind::Reduce { root: *root },
            Call::AllReduce { with, .. } if with.is_commutative() => SharedKind::AllReduce,
            _ => return None,
        };
        Some(Shared { kind, bytes })
    }

    /// The algorithm by messages, if there is a choice. That for short messages gives way to none.
    pub(super) fn by_messages(&self, members: usize, choices: &Choices) -> Option<Algorithm> {
        let (kind, bytes) = self.choice(members)?;
        let chosen = choices.by_messages(kind, bytes, members);
        let in_order = self.reduction().is_some_and(|with| !with.is_commutative());
        Some(match kind {
            Kind::AllReduce if in_order => Algorithm::RecursiveDoubling,
            _ => chosen,
        })
    }

    fn write(&self, draft: &mut Draft, choices: &Choices) {
        let members = draft.members;
        let algorithm = self.by_messages(members, choices);
        draft.plan.shared = self.shared(draft.me, members, choices);
        draft.plan.hosts = self.hosts(members, choices);
        match self {
            Call::Barrier => barrier::dissemination(draft),
            Call::Broadcast { root, len } => match algorithm {
                Some(Algorithm::ScatterAllGather) => broadcast::scatter_all_gather(draft, *root, *len),
                _ => broadcast::binomial(draft, *root, *len),
            },
            Call::Gather { root, len } => match algorithm {
                Some(Algorithm::Linear) => gather::linear(draft, *root, &vec![*len; members], *len),
                _ => gather::binomial(draft, *root, *len),
            },
            Call::GatherVaried { root, len, lens } => gather::linear(draft, *root, lens, *len),
            Call::Scatter { root, len } => match algorithm {
                Some(Algorithm::Linear) => scatter::linear(draft, *root, &vec![*len; members], *len),
                _ => scatter::binomial(draft, *root, *len),
            },
            Call::ScatterVaried { root, len, lens } => scatter::linear(draft, *root, lens, *len),
            Call::AllGather { len } => write_all_gather(draft, &vec![*len; members], algorithm),
            Call::AllGatherVaried { lens } => write_all_gather(draft, lens, algorithm),
            Call::AllToAll { len } => {
                all_to_all::pairwise(draft, &vec![*len; members], &vec![*len; members]);
            }
            Call::AllToAllVaried { send, receive } => all_to_all::pairwise(draft, send, receive),
            Call::Reduce { root, len, with } => {
                reduce::binomial(draft, *root, *len, with.is_commutative());
            }
            Call::AllReduce { len, with } => match algorithm {
                Some(Algorithm::HalvingDoubling) => {
                    all_reduce::halving_doubling(draft, *len, with.unit());
                }
                Some(Algorithm::Ring) => all_reduce::ring(draft, *len, with.unit()),
                _ => all_reduce::recursive_doubling(draft, *len),
            },
            Call::ReduceScatter { lens, .. } => reduce_scatter::direct(draft, lens),
            Call::Scan { len, .. } => scan::recursive_doubling(draft, *len, true),
            Call::ExclusiveScan { len, .. } => scan::recursive_doubling(draft, *len, false),
            Call::NeighbourGather { sources, destinations, len } => {
                all_to_all::neighbours_gather(draft, sources, destinations, *len);
            }
            Call::NeighbourAllToAll { sources, destinations } => {
                all_to_all::neighbours(draft, sources, destinations);
            }
        }
    }

    pub(super) fn reduction(&self) -> Option<&Reduction> {
        match self {
            Call::Reduce { with, .. }
            | Call::AllReduce { with, .. }
            | Call::ReduceScatter { with, .. }
            | Call::Scan { with, .. }
            | Call::ExclusiveScan { with, .. } => Some(with),
            _ => None,
        }
    }
}

/// What the plan of a call depends on, besides the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    kind: u8,
    root: usize,
    len: usize,
    /// The size of an element, and whether operands may be exchanged.
    reduction: (usize, bool),
}

/// The sum of lengths, or the greatest number.
pub(super) fn total(lens: &[usize]) -> usize {
    lens.iter().fold(0, |sum: usize, len| sum.saturating_add(*len))
}

/// The same of members with their lengths.
fn total_of(lens: &[(usize, usize)]) -> usize {
    lens.iter().fold(0, |sum: usize, (_, len)| sum.saturating_add(*len))
}

fn write_all_gather(draft: &mut Draft, lens: &[usize], algorithm: Option<Algorithm>) {
    match algorithm {
        Some(Algorithm::Ring) => all_gather::ring(draft, lens),
        _ => all_gather::bruck(draft, lens),
    }
}
