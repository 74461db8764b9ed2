//! How long is waited for others: opening may take its time, reopening happens within a poll and comes back later instead.

use std::time::Duration;

/// How often and how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryLimits {
    /// A former device lets go of its program when children that it was just starting have closed what they inherited; so often is waited
    /// for that, and for a queue that another process may have.
    pub waits: u32,
    /// Pauses for a queue that nobody else can have: the kernel lets go of it when it finds the time.
    pub release_waits: u32,
    /// So many times is waited for an answer of whoever has the program there.
    pub asks: u32,
    /// How long, for each of them: a node that computes answers when its watchdog polls.
    pub answer: Duration,
    /// How long for all of them together.
    pub answers: Duration,
    /// Fewer queues than wanted will do.
    pub fewer: bool,
}

/// One pause.
pub(super) const PAUSE: Duration = Duration::from_millis(2);

impl RetryLimits {
    /// For opening.
    pub(super) const LONG: RetryLimits = RetryLimits {
        waits: 100,
        release_waits: 1_500,
        asks: 3,
        answer: Duration::from_millis(300),
        answers: Duration::from_secs(60),
        fewer: true,
    };

    /// For one look of many.
    pub(super) const SHORT: RetryLimits = RetryLimits {
        waits: 3,
        release_waits: 3,
        asks: 1,
        answer: Duration::from_millis(20),
        answers: Duration::from_millis(20),
        fewer: false,
    };
}
