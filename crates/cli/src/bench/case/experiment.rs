//! What the ranks of a job do together.

use serde::{Deserialize, Serialize};

/// An experiment of a job of many ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Experiment {
    /// From the start of the launcher until every rank has joined.
    Start,
    /// The first message from the first rank to the last, and its answer.
    First,
    /// Back and forth between two ranks, while the others wait for a message.
    Beside,
    /// Rows of a grid exchanged with two neighbours, and a step of a stencil.
    Halo,
    /// Everyone waits.
    Asleep,
    Barrier,
    Broadcast,
    Reduce,
    AllReduce,
    Gather,
    Scatter,
    AllGather,
    AllToAll,
    ReduceScatter,
    Scan,
    ExclusiveScan,
    /// Those with parts of different lengths: [`part_words`].
    GatherVaried,
    ScatterVaried,
    AllGatherVaried,
    AllToAllVaried,
    /// Words for both neighbours on a ring, and theirs.
    Neighbours,
    /// Words of the first rank for all others, forwarded by nodes, and an answer of the last.
    Multicast,
    /// The same, sent to each rank by the first one's node.
    MultiSend,
    /// The same, sent to one rank after the other.
    RepeatedSend,
    /// A started all-reduce during a computation.
    Overlap,
}

impl Experiment {
    pub const ALL: [Experiment; 25] = [
        Experiment::Start,
        Experiment::First,
        Experiment::Beside,
        Experiment::Halo,
        Experiment::Asleep,
        Experiment::Barrier,
        Experiment::Broadcast,
        Experiment::Reduce,
        Experiment::AllReduce,
        Experiment::Gather,
        Experiment::Scatter,
        Experiment::AllGather,
        Experiment::AllToAll,
        Experiment::ReduceScatter,
        Experiment::Scan,
        Experiment::ExclusiveScan,
        Experiment::GatherVaried,
        Experiment::ScatterVaried,
        Experiment::AllGatherVaried,
        Experiment::AllToAllVaried,
        Experiment::Neighbours,
        Experiment::Multicast,
        Experiment::MultiSend,
        Experiment::RepeatedSend,
        Experiment::Overlap,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Experiment::Start => "start",
            Experiment::First => "first",
            Experiment::Beside => "beside",
            Experiment::Halo => "halo",
            Experiment::Asleep => "asleep",
            Experiment::Barrier => "barrier",
            Experiment::Broadcast => "broadcast",
            Experiment::Reduce => "reduce",
            Experiment::AllReduce => "all-reduce",
            Experiment::Gather => "gather",
            Experiment::Scatter => "scatter",
            Experiment::AllGather => "all-gather",
            Experiment::AllToAll => "all-to-all",
            Experiment::ReduceScatter => "reduce-scatter",
            Experiment::Scan => "scan",
            Experiment::ExclusiveScan => "exclusive-scan",
            Experiment::GatherVaried => "gather-varied",
            Experiment::ScatterVaried => "scatter-varied",
            Experiment::AllGatherVaried => "all-gather-varied",
            Experiment::AllToAllVaried => "all-to-all-varied",
            Experiment::Neighbours => "neighbours",
            Experiment::Multicast => "multicast",
            Experiment::MultiSend => "multi-send",
            Experiment::RepeatedSend => "repeated-send",
            Experiment::Overlap => "overlap",
        }
    }

    /// Whether every rank takes part, with words that all others may get.
    pub const fn is_collective(self) -> bool {
        !matches!(
            self,
            Experiment::Start
                | Experiment::First
                | Experiment::Beside
                | Experiment::Halo
                | Experiment::Asleep
        )
    }

    /// Words that all ranks together read and compare in a step, with `words` of each rank or pair of ranks.
    pub fn words_read(self, ranks: u64, words: u64) -> u64 {
        let part = |rank: u64| part_words(rank as usize, words as usize) as u64;
        match self {
            Experiment::Start | Experiment::Halo | Experiment::Asleep | Experiment::Barrier => 0,
            Experiment::First | Experiment::Beside => 2,
            Experiment::Reduce => words,
            Experiment::Broadcast
            | Experiment::AllReduce
            | Experiment::Gather
            | Experiment::Scatter
            | Experiment::ReduceScatter
            | Experiment::Scan
            | Experiment::Overlap => ranks * words,
            Experiment::Multicast
            | Experiment::MultiSend
            | Experiment::RepeatedSend
            | Experiment::ExclusiveScan => (ranks - 1) * words,
            Experiment::GatherVaried | Experiment::ScatterVaried => (0..ranks).map(part).sum(),
            Experiment::AllGatherVaried => ranks * (0..ranks).map(part).sum::<u64>(),
            Experiment::AllToAllVaried => {
                (0..ranks).flat_map(|from| (0..ranks).map(move |to| part(from + to))).sum()
            }
            Experiment::Neighbours => 2 * ranks * words,
            Experiment::AllGather | Experiment::AllToAll => ranks * ranks * words,
        }
    }
}

/// Words of a rank where parts have different lengths: every other rank has half as many.
pub fn part_words(rank: usize, words: usize) -> usize {
    if rank.is_multiple_of(2) { words } else { words.div_ceil(2) }
}
