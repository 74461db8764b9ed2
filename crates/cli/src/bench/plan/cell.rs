//! One line of the result, and what it is compared with.

use super::super::case::{System, Touch, Work};
use super::{Load, Test};

/// What a figure is compared with: usually another system that was measured under the same circumstances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    pub system: System,
    /// A true limit: a result that beats it shows that it is wrong. Otherwise a rival, or the layer below.
    pub hard: bool,
    /// Where the limit is measured, if not under the same circumstances.
    at: Option<Place>,
    /// How often the limit's work is contained in ours.
    pub times: f64,
}

/// The circumstances of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    test: Test,
    bytes: usize,
    window: Option<u64>,
    many: Option<u64>,
}

impl Limit {
    /// A limit that nothing beats.
    pub fn hard(system: System) -> Limit {
        Limit { system, hard: true, at: None, times: 1.0 }
    }

    /// A system to compare with.
    pub const fn soft(system: System) -> Limit {
        Limit { system, hard: false, at: None, times: 1.0 }
    }

    pub fn new(system: System, hard: bool) -> Limit {
        Limit { hard, ..Limit::soft(system) }
    }

    /// Measured by this test with messages of this size, `window` in progress.
    pub fn at(self, test: Test, bytes: usize, window: Option<u64>) -> Limit {
        Limit { at: Some(Place { test, bytes, window, many: None }), ..self }
    }

    /// Measured by this test with this number of tripwires.
    pub fn at_many(self, test: Test, bytes: usize, many: u64) -> Limit {
        Limit { at: Some(Place { test, bytes, window: None, many: Some(many) }), ..self }
    }

    /// Contained `times` times in what is measured.
    pub fn times(self, times: f64) -> Limit {
        Limit { times, ..self }
    }
}

/// One line of the result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    pub test: Test,
    pub system: System,
    pub bytes: usize,
    pub window: Option<u64>,
    /// The number of endpoints, clients or tripwires, where that is varied.
    pub many: Option<u64>,
    pub load: Load,
    pub warm: bool,
    pub batch: bool,
    pub touch: Touch,
    pub work: Work,
    pub limit: Option<Limit>,
}

impl Cell {
    /// The name in tables. Messages that share frames are another system than those that do not, and so are
    /// those that are written in place or not read.
    pub fn name(&self) -> &'static str {
        match (self.system.name(), self.touch) {
            (_, Touch::Both) if self.batch => "tautline-batch",
            ("tautline", Touch::InPlace) => "tautline-in-place",
            ("tautline", Touch::Unread) => "tautline-unread",
            ("tautline", Touch::Scattered) => "tautline-scattered",
            ("two-copy-stream", Touch::InPlace) => "two-copy-in-place",
            ("two-copy-stream", Touch::Unread) => "two-copy-unread",
            ("udp-gso", Touch::InPlace) => "udp-gso-in-place",
            ("udp-gso", Touch::Unread) => "udp-gso-unread",
            (name, _) => name,
        }
    }

    /// Whether two cells were measured under the same circumstances.
    pub fn is_beside(&self, other: &Cell) -> bool {
        (self.test, self.bytes, self.window, self.many, self.load, self.warm, self.touch)
            == (other.test, other.bytes, other.window, other.many, other.load, other.warm, other.touch)
    }

    /// Whether `other` is what this cell is compared with.
    pub fn is_limited_by(&self, other: &Cell) -> bool {
        let Some(limit) = self.limit.filter(|limit| limit.system == other.system) else { return false };
        match limit.at {
            None => self.is_beside(other) && !other.batch,
            Some(place) => {
                let theirs =
                    Place { test: other.test, bytes: other.bytes, window: other.window, many: other.many };
                place == theirs
                    && (other.load, other.warm, other.batch) == (Load::Idle, false, false)
                    && other.touch == Touch::Both
            }
        }
    }
}
