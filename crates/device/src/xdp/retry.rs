//! How long to wait for other processes and for the kernel. Opening may take seconds; reopening happens
//! within a poll, so it gives up quickly and is tried again later.

use std::time::Duration;

/// Limits on waiting.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryLimits {
    /// Pauses for a program that is still attached, and for a queue that another process may have. A closed
    /// device's program stays attached until children that were just being forked have closed their inherited
    /// descriptors.
    pub attempts: u32,
    /// Pauses for a queue that no other process can have: the kernel releases it with a delay.
    pub release_attempts: u32,
    /// Requests to the process that has the program attached.
    pub requests: u32,
    /// How long to wait for each answer. A node that computes answers when its watchdog polls.
    pub answer_timeout: Duration,
    /// How long to wait for all answers together.
    pub total_timeout: Duration,
    /// Whether fewer queues than wanted are accepted.
    pub accept_fewer: bool,
}

/// The length of one pause.
pub(super) const PAUSE: Duration = Duration::from_millis(2);

impl RetryLimits {
    /// For opening a device.
    pub(super) const OPEN: RetryLimits = RetryLimits {
        attempts: 100,
        release_attempts: 1_500,
        requests: 3,
        answer_timeout: Duration::from_millis(300),
        total_timeout: Duration::from_secs(60),
        accept_fewer: true,
    };

    /// For one of many attempts to reopen.
    pub(super) const REOPEN: RetryLimits = RetryLimits {
        attempts: 3,
        release_attempts: 3,
        requests: 1,
        answer_timeout: Duration::from_millis(20),
        total_timeout: Duration::from_millis(20),
        accept_fewer: false,
    };
}
