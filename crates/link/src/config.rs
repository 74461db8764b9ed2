//! The configuration of a link.

use tautline_wire::handshake::{MAX_CREDIT, Security};

use crate::{MICRO, MILLI, Nanos};

/// How lost slots are recovered (L-11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum RecoveryPolicy {
    /// Keeps slots that arrive ahead of a gap, and resends only the missing ones.
    #[default]
    SelectiveRepeat,
    /// Drops slots that arrive ahead of a gap, and resends everything from the gap on.
    GoBackN,
}

impl RecoveryPolicy {
    /// Returns the policy's name in configuration, reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            RecoveryPolicy::SelectiveRepeat => "selective-repeat",
            RecoveryPolicy::GoBackN => "go-back-n",
        }
    }
}

impl std::str::FromStr for RecoveryPolicy {
    type Err = String;

    fn from_str(name: &str) -> Result<RecoveryPolicy, String> {
        match name {
            "selective-repeat" => Ok(RecoveryPolicy::SelectiveRepeat),
            "go-back-n" => Ok(RecoveryPolicy::GoBackN),
            other => Err(format!("unknown recovery policy \"{other}\"; use selective-repeat or go-back-n")),
        }
    }
}

/// The configuration of a link. The two sides of a channel may differ in everything but [`Config::security`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Protection of frames.
    pub security: Security,
    /// Recovery of lost slots.
    pub recovery: RecoveryPolicy,
    /// Slots that this side accepts before the program has consumed any; a node needs at least two (L-35).
    pub credit_slots: u32,
    /// The credit in slots that the peer has at first, if that is less; [`crate::Link::set_share`] changes it
    /// (L-41).
    pub credit_initial: u32,
    /// Bytes of receive buffer for this channel; the peer keeps less than this in flight.
    pub receive_buffer: u32,
    /// Bytes of one message that the peer may send before its handler has consumed any.
    pub message_window: u32,
    /// A peer from which nothing arrives for this long is dead.
    pub silence: Nanos,
    /// How long an acknowledgement waits, at most, for a frame to be piggybacked on.
    pub ack_delay: Nanos,
    /// Unacknowledged slots after which an acknowledgement is sent at once.
    pub ack_every: u32,
    /// The shortest interval of the retransmission timer.
    pub rto_min: Nanos,
    /// The longest interval of the retransmission timer.
    pub rto_max: Nanos,
    /// The interval of the timer before the first round-trip sample.
    pub rto_initial: Nanos,
    /// A round trip that exceeds the shortest one by more than this counts as congestion.
    pub delay_target: Nanos,
    /// Whether there is a congestion window. Otherwise only credit and the peer's buffer limit sending.
    pub congestion: bool,
    /// The initial congestion window, in bytes.
    pub window_initial: u32,
    /// A hello is repeated after this time, which doubles with each repetition.
    pub hello_interval: Nanos,
    /// Whether timers of links that this side has with many peers are kept from expiring together (L-39).
    pub spread_timers: bool,
    /// In how many groups, at different times, links send their heartbeats; one per 256 peers is enough.
    pub heartbeat_groups: u32,
    /// Whether this side accepts raw Ethernet frames at first; every frame says so (D-22).
    pub raw_frames: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            security: Security::Fabric,
            recovery: RecoveryPolicy::SelectiveRepeat,
            credit_slots: 512,
            credit_initial: u32::MAX,
            receive_buffer: 212_992,
            message_window: 512 * 1024,
            silence: 1_000 * MILLI,
            ack_delay: 1_500 * MICRO,
            ack_every: 24,
            rto_min: 3 * MILLI,
            rto_max: 200 * MILLI,
            rto_initial: 20 * MILLI,
            delay_target: 1_000 * MICRO,
            congestion: true,
            window_initial: 128 * 1024,
            hello_interval: 10 * MILLI,
            spread_timers: false,
            heartbeat_groups: 1,
            raw_frames: false,
        }
    }
}

impl Config {
    /// Returns the default configuration, as `change` changes it.
    pub fn with(change: impl FnOnce(&mut Config)) -> Config {
        let mut config = Config::default();
        change(&mut config);
        config
    }

    /// Returns the most slots of credit that the peer may have.
    pub(crate) fn most_credit(&self) -> u32 {
        self.credit_slots.clamp(1, MAX_CREDIT)
    }

    /// Returns the credit that the peer has at first.
    pub(crate) fn first_credit(&self) -> u32 {
        self.credit_initial.clamp(1, self.most_credit())
    }

    /// Returns the seed of a link's timers, from a number that differs between links; zero if they are not
    /// spread.
    pub(crate) fn timer_seed(&self, number: u32) -> u32 {
        if self.spread_timers { number | 1 } else { 0 }
    }

    /// Returns the heartbeat interval of an idle link. The higher rank of a pair waits a little longer, so
    /// that one exchange serves both (L-17).
    pub(crate) fn heartbeat(&self, higher: bool) -> Nanos {
        if higher { self.silence / 3 + self.silence / 16 } else { self.silence / 3 }
    }
}
