//! Which algorithm carries out a collective, by its length and the number of members: one table, which a
//! program may replace.

/// Collectives for which there is a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// [`super::Call::Broadcast`]
    Broadcast,
    /// [`super::Call::Gather`]
    Gather,
    /// [`super::Call::Scatter`]
    Scatter,
    /// [`super::Call::AllGather`] and [`super::Call::AllGatherVaried`], by the bytes of all members.
    AllGather,
    /// [`super::Call::AllReduce`]
    AllReduce,
}

/// An algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// A binomial tree: broadcast, gather, scatter.
    Binomial,
    /// A scatter and an all-gather around a ring: broadcast.
    ScatterAllGather,
    /// The root and each other member: gather, scatter.
    Linear,
    /// Log2(n) rounds for any number of members: all-gather.
    Bruck,
    /// A ring: all-gather, all-reduce of commutative operations.
    Ring,
    /// Log2(n) rounds of pairs: all-reduce.
    RecursiveDoubling,
    /// Recursive halving, then doubling: all-reduce of commutative operations.
    HalvingDoubling,
}

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The collective.
    pub kind: Kind,
    /// Up to this many bytes; where the collective has one length for each member, of one of them.
    pub bytes: usize,
    /// Up to this many members.
    pub members: usize,
    /// What is chosen.
    pub algorithm: Algorithm,
}

const ALL: usize = usize::MAX;

const fn choice(kind: Kind, bytes: usize, members: usize, algorithm: Algorithm) -> Choice {
    Choice { kind, bytes, members, algorithm }
}

/// The table that groups start with.
pub const DEFAULT_CHOICES: &[Choice] = &[
    choice(Kind::Broadcast, 64 << 10, ALL, Algorithm::Binomial),
    choice(Kind::Broadcast, ALL, 3, Algorithm::Binomial),
    choice(Kind::Broadcast, ALL, ALL, Algorithm::ScatterAllGather),
    choice(Kind::Gather, 16 << 10, ALL, Algorithm::Binomial),
    choice(Kind::Gather, ALL, ALL, Algorithm::Linear),
    choice(Kind::Scatter, 16 << 10, ALL, Algorithm::Binomial),
    choice(Kind::Scatter, ALL, ALL, Algorithm::Linear),
    choice(Kind::AllGather, 64 << 10, ALL, Algorithm::Bruck),
    choice(Kind::AllGather, ALL, ALL, Algorithm::Ring),
    choice(Kind::AllReduce, 8 << 10, ALL, Algorithm::RecursiveDoubling),
    choice(Kind::AllReduce, ALL, 2, Algorithm::HalvingDoubling),
    choice(Kind::AllReduce, 256 << 10, ALL, Algorithm::HalvingDoubling),
    choice(Kind::AllReduce, ALL, ALL, Algorithm::Ring),
];

/// A table of choices. The first line that applies decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choices(Vec<Choice>);

impl Default for Choices {
    fn default() -> Choices {
        Choices(DEFAULT_CHOICES.to_vec())
    }
}

impl Choices {
    /// A table whose lines come before those of the default.
    pub fn with(lines: impl IntoIterator<Item = Choice>) -> Choices {
        Choices(lines.into_iter().chain(DEFAULT_CHOICES.iter().copied()).collect())
    }

    /// The lines, in order.
    pub fn lines(&self) -> &[Choice] {
        &self.0
    }

    /// What is chosen for a collective of so many bytes and members. An algorithm that the collective does
    /// not have, or that the operation does not allow, gives way to the one for short messages.
    pub fn algorithm(&self, kind: Kind, bytes: usize, members: usize) -> Algorithm {
        let applies = |line: &&Choice| line.kind == kind && bytes <= line.bytes && members <= line.members;
        self.0.iter().find(applies).map_or(Algorithm::Binomial, |line| line.algorithm)
    }
}
