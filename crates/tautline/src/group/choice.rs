//! Which algorithm carries out a collective, by its length and the number of members: one table, which a
//! program or [`CHOICES`] may replace.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, Result};

/// The environment variable with lines for the table of new groups, the same at all ranks: `tautline bench
/// --tune` measures and prints them. Each has the name of a collective, the most bytes, the most members and
/// the name of an algorithm; lines end with a line break or a semicolon.
pub const CHOICES: &str = "TAUTLINE_CHOICES";

/// Collectives for which there is a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// [`super::Call::Barrier`]
    Barrier,
    /// [`super::Call::Broadcast`]
    Broadcast,
    /// [`super::Call::Gather`]
    Gather,
    /// [`super::Call::Scatter`]
    Scatter,
    /// [`super::Call::AllGather`] and [`super::Call::AllGatherVaried`], by the bytes of all members.
    AllGather,
    /// [`super::Call::Reduce`]
    Reduce,
    /// [`super::Call::AllReduce`]
    AllReduce,
    /// [`super::Call::AllToAll`], by the bytes of a part.
    AllToAll,
    /// [`super::Call::ReduceScatter`], by the bytes of all parts.
    ReduceScatter,
}

/// An algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Memory that all members share, if they are processes of one host, at most 64, and no member has more
    /// than 64 KiB for the others: barrier, broadcast, all-gather, reduce, all-reduce, all-to-all,
    /// reduce-scatter. Otherwise the next line of the table that applies decides.
    Shared,
    /// Two levels, if the members are processes of several hosts, at most 64 of each: memory that those of a
    /// host share, and messages between one member of each host. Barrier; broadcast; reduce and all-reduce
    /// of commutative operations, up to 64 KiB. Otherwise the next line that applies decides.
    Hosts,
    /// Log2(n) rounds of signals: barrier.
    Dissemination,
    /// A binomial tree: broadcast, gather, scatter, reduce.
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
    /// A message to each other member, to several at a time: all-to-all.
    Pairwise,
    /// A message to each other member, all at once: reduce-scatter.
    Direct,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 9] = [
        Kind::Barrier,
        Kind::Broadcast,
        Kind::Gather,
        Kind::Scatter,
        Kind::AllGather,
        Kind::Reduce,
        Kind::AllReduce,
        Kind::AllToAll,
        Kind::ReduceScatter,
    ];

    /// The name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Barrier => "barrier",
            Kind::Broadcast => "broadcast",
            Kind::Gather => "gather",
            Kind::Scatter => "scatter",
            Kind::AllGather => "all-gather",
            Kind::Reduce => "reduce",
            Kind::AllReduce => "all-reduce",
            Kind::AllToAll => "all-to-all",
            Kind::ReduceScatter => "reduce-scatter",
        }
    }

    /// The algorithms that it has.
    pub fn algorithms(self) -> &'static [Algorithm] {
        match self {
            Kind::Barrier => &[Algorithm::Dissemination, Algorithm::Shared, Algorithm::Hosts],
            Kind::Broadcast => {
                &[Algorithm::Binomial, Algorithm::ScatterAllGather, Algorithm::Shared, Algorithm::Hosts]
            }
            Kind::Gather | Kind::Scatter => &[Algorithm::Binomial, Algorithm::Linear],
            Kind::AllGather => &[Algorithm::Bruck, Algorithm::Ring, Algorithm::Shared],
            Kind::Reduce => &[Algorithm::Binomial, Algorithm::Shared, Algorithm::Hosts],
            Kind::AllReduce => &[
                Algorithm::RecursiveDoubling,
                Algorithm::HalvingDoubling,
                Algorithm::Ring,
                Algorithm::Shared,
                Algorithm::Hosts,
            ],
            Kind::AllToAll => &[Algorithm::Pairwise, Algorithm::Shared],
            Kind::ReduceScatter => &[Algorithm::Direct, Algorithm::Shared],
        }
    }
}

impl Algorithm {
    /// The name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Shared => "shared",
            Algorithm::Hosts => "hosts",
            Algorithm::Dissemination => "dissemination",
            Algorithm::Binomial => "binomial",
            Algorithm::ScatterAllGather => "scatter-all-gather",
            Algorithm::Linear => "linear",
            Algorithm::Bruck => "bruck",
            Algorithm::Ring => "ring",
            Algorithm::RecursiveDoubling => "recursive-doubling",
            Algorithm::HalvingDoubling => "halving-doubling",
            Algorithm::Pairwise => "pairwise",
            Algorithm::Direct => "direct",
        }
    }
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

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = |number: usize| if number == ALL { "all".to_owned() } else { number.to_string() };
        let Choice { kind, bytes, members, algorithm } = *self;
        write!(f, "{} {} {} {}", kind.name(), most(bytes), most(members), algorithm.name())
    }
}

impl FromStr for Choice {
    type Err = Error;

    fn from_str(line: &str) -> Result<Choice> {
        let wrong = |what: &str| Error::other(format!("{CHOICES}: {what} in the line \"{line}\""));
        let words: Vec<&str> = line.split_whitespace().collect();
        let [kind, bytes, members, algorithm] = words[..] else {
            return Err(wrong("not a collective, a number of bytes, a number of members and an algorithm"));
        };
        let most = |word: &str| if word == "all" { Ok(ALL) } else { word.parse() };
        let found = Kind::ALL.into_iter().find(|it| it.name() == kind);
        let kind = found.ok_or_else(|| wrong("an unknown collective"))?;
        let found = kind.algorithms().iter().find(|it| it.name() == algorithm);
        let names = kind.algorithms().iter().map(|it| it.name()).collect::<Vec<_>>().join(", ");
        let missing = || wrong(&format!("an algorithm that {} does not have ({names})", kind.name()));
        let algorithm = *found.ok_or_else(missing)?;
        let bytes = most(bytes).map_err(|_| wrong("no number of bytes"))?;
        let members = most(members).map_err(|_| wrong("no number of members"))?;
        Ok(Choice { kind, bytes, members, algorithm })
    }
}

const ALL: usize = usize::MAX;

const fn choice(kind: Kind, bytes: usize, members: usize, algorithm: Algorithm) -> Choice {
    Choice { kind, bytes, members, algorithm }
}

/// The table that groups start with.
pub const DEFAULT_CHOICES: &[Choice] = &[
    choice(Kind::Barrier, ALL, ALL, Algorithm::Shared),
    choice(Kind::Barrier, ALL, ALL, Algorithm::Hosts),
    choice(Kind::Barrier, ALL, ALL, Algorithm::Dissemination),
    choice(Kind::Broadcast, 64 << 10, ALL, Algorithm::Binomial),
    choice(Kind::Broadcast, ALL, 3, Algorithm::Binomial),
    choice(Kind::Broadcast, ALL, ALL, Algorithm::ScatterAllGather),
    choice(Kind::Gather, 16 << 10, ALL, Algorithm::Binomial),
    choice(Kind::Gather, ALL, ALL, Algorithm::Linear),
    choice(Kind::Scatter, 16 << 10, ALL, Algorithm::Binomial),
    choice(Kind::Scatter, ALL, ALL, Algorithm::Linear),
    choice(Kind::AllGather, 256 << 10, ALL, Algorithm::Shared),
    choice(Kind::AllGather, 64 << 10, ALL, Algorithm::Bruck),
    choice(Kind::AllGather, ALL, ALL, Algorithm::Ring),
    choice(Kind::Reduce, ALL, ALL, Algorithm::Binomial),
    choice(Kind::AllReduce, 4 << 10, ALL, Algorithm::Shared),
    choice(Kind::AllReduce, 64 << 10, ALL, Algorithm::Hosts),
    choice(Kind::AllReduce, 8 << 10, ALL, Algorithm::RecursiveDoubling),
    choice(Kind::AllReduce, ALL, 2, Algorithm::HalvingDoubling),
    choice(Kind::AllReduce, 256 << 10, ALL, Algorithm::HalvingDoubling),
    choice(Kind::AllReduce, ALL, ALL, Algorithm::Ring),
    choice(Kind::AllToAll, ALL, ALL, Algorithm::Shared),
    choice(Kind::AllToAll, ALL, ALL, Algorithm::Pairwise),
    choice(Kind::ReduceScatter, ALL, ALL, Algorithm::Shared),
    choice(Kind::ReduceScatter, ALL, ALL, Algorithm::Direct),
];

/// A table of choices. The first line that applies decides; [`Algorithm::Shared`] applies to members on one
/// host, and [`Algorithm::Hosts`] to members on several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choices(Arc<[Choice]>);

impl Default for Choices {
    fn default() -> Choices {
        Choices(DEFAULT_CHOICES.into())
    }
}

impl Choices {
    /// A table whose lines come before those of the default.
    pub fn with(lines: impl IntoIterator<Item = Choice>) -> Choices {
        Choices(lines.into_iter().chain(DEFAULT_CHOICES.iter().copied()).collect())
    }

    /// The table that new groups have: that of [`CHOICES`], if it is set, before the default.
    pub fn from_environment() -> Result<Choices> {
        let Some(text) = std::env::var_os(CHOICES) else { return Ok(Choices::default()) };
        let text = text.into_string().map_err(|_| Error::other(format!("{CHOICES} is not text")))?;
        let lines = text.split(['\n', ';']).map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::parse);
        Ok(Choices::with(lines.collect::<Result<Vec<Choice>>>()?))
    }

    /// The lines, in order.
    pub fn lines(&self) -> &[Choice] {
        &self.0
    }

    /// What is chosen for a collective of so many bytes and members, if these are processes of one host.
    /// An algorithm that the collective does not have, or that the operation does not allow, gives way to the
    /// one for short messages.
    pub fn algorithm(&self, kind: Kind, bytes: usize, members: usize) -> Algorithm {
        let mut algorithms = self.algorithms(kind, bytes, members);
        algorithms.find(|algorithm| *algorithm != Algorithm::Hosts).unwrap_or(Algorithm::Binomial)
    }

    /// As [`Choices::algorithm`], if the members are processes of several hosts.
    pub fn between_hosts(&self, kind: Kind, bytes: usize, members: usize) -> Algorithm {
        let mut algorithms = self.algorithms(kind, bytes, members);
        algorithms.find(|algorithm| *algorithm != Algorithm::Shared).unwrap_or(Algorithm::Binomial)
    }

    /// What is chosen among the algorithms that only send messages.
    pub(super) fn by_messages(&self, kind: Kind, bytes: usize, members: usize) -> Algorithm {
        let mut algorithms = self.algorithms(kind, bytes, members);
        let messages = |algorithm: &Algorithm| !matches!(algorithm, Algorithm::Shared | Algorithm::Hosts);
        algorithms.find(messages).unwrap_or(Algorithm::Binomial)
    }

    /// The algorithms of all lines that apply, in order.
    fn algorithms(&self, kind: Kind, bytes: usize, members: usize) -> impl Iterator<Item = Algorithm> {
        let applies =
            move |line: &&Choice| line.kind == kind && bytes <= line.bytes && members <= line.members;
        self.0.iter().filter(applies).map(|line| line.algorithm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where memory cannot be shared, the first line with another algorithm decides.
    #[test]
    fn lines_by_messages() {
        let choices = Choices::with([choice(Kind::AllGather, ALL, ALL, Algorithm::Shared)]);
        for (kind, bytes, algorithm) in [
            (Kind::AllGather, 64 << 10, Algorithm::Bruck),
            (Kind::AllGather, 1 << 20, Algorithm::Ring),
            (Kind::AllReduce, 8, Algorithm::RecursiveDoubling),
            (Kind::AllToAll, 8, Algorithm::Pairwise),
        ] {
            assert_eq!(choices.by_messages(kind, bytes, 4), algorithm, "{kind:?} of {bytes}");
        }
        for kind in Kind::ALL {
            let by_messages = choices.by_messages(kind, ALL, ALL);
            assert!(!matches!(by_messages, Algorithm::Shared | Algorithm::Hosts), "{kind:?}");
        }
        // Each has lines for one host and for several, in any order.
        let first = Choices::with([choice(Kind::AllReduce, ALL, ALL, Algorithm::Hosts)]);
        for choices in [choices, first] {
            assert_eq!(choices.between_hosts(Kind::AllReduce, 8, 4), Algorithm::Hosts);
            assert_eq!(choices.algorithm(Kind::AllReduce, 8, 4), Algorithm::Shared);
        }
    }

    #[test]
    fn lines_survive_text() {
        for line in DEFAULT_CHOICES {
            assert_eq!(line.to_string().parse::<Choice>().unwrap(), *line);
        }
        for (bad, why) in [
            ("broadcast 8 2", "not a collective, a number of bytes"),
            ("scan 8 2 ring", "an unknown collective"),
            ("broadcast 8 2 ring", "an algorithm that broadcast does not have (binomial"),
            ("broadcast many 2 binomial", "no number of bytes"),
            ("broadcast 8 -1 binomial", "no number of members"),
        ] {
            let error = bad.parse::<Choice>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(bad), "{error}");
        }
    }
}
