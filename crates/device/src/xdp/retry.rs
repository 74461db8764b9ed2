//! How long to wait for other processes and for the kernel. Opening may take seconds; reopening happens
//! within a poll, so it waits for nothing and is tried again later (D-4).

use std::time::Duration;

/// Limits on waiting.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryLimits {
    /// Attempts, with pauses between them, at a program that is still attached, and at a queue that another
    /// process may have. A closed device's program stays attached until children that were just being forked
    /// have closed their inherited descriptors.
    pub attempts: u32,
    /// Attempts at a queue that no other process can have: the kernel releases it with a delay.
    pub release_attempts: u32,
    /// Requests to the process that has the program attached.
    pub requests: u32,
    /// Whether fewer queues than wanted are accepted.
    pub accept_fewer: bool,
}

/// How long opening waits for each answer of another process, and for all of them together. A node that
/// computes answers when its watchdog polls.
pub(super) const ANSWER_TIMEOUTS: (Duration, Duration) =
    (Duration::from_millis(300), Duration::from_secs(60));

/// The length of one pause.
const PAUSE: Duration = Duration::from_millis(2);

/// Returns the numbers of the attempts, with a pause before each but the first.
pub(super) fn with_pauses(attempts: u32) -> impl Iterator<Item = u32> {
    (0..attempts).inspect(|attempt| {
        if *attempt > 0 {
            std::thread::sleep(PAUSE);
        }
    })
}

impl RetryLimits {
    /// For opening a device.
    pub(super) const OPEN: RetryLimits =
        RetryLimits { attempts: 100, release_attempts: 1_500, requests: 3, accept_fewer: true };

    /// For one of many attempts to reopen.
    pub(super) const REOPEN: RetryLimits =
        RetryLimits { attempts: 1, release_attempts: 1, requests: 1, accept_fewer: false };
}
