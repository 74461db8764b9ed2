//! Every knob of a link, with its default and its reason.

use crate::{MICRO, MILLI, Nanos};
use tautline_wire::handshake::Security;

/// How lost slots are repaired (L-11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// Slots that arrive ahead of a gap are kept; only what is missing is sent again.
    #[default]
    SelectiveRepeat,
    /// Slots that arrive ahead of a gap are dropped; everything from the gap on is sent again.
    GoBackN,
}

impl Policy {
    /// The policy's name in configuration, reports and the command line.
    pub fn name(self) -> &'static str {
        match self {
            Policy::SelectiveRepeat => "selective-repeat",
            Policy::GoBackN => "go-back-n",
        }
    }
}

impl std::str::FromStr for Policy {
    type Err = String;

    fn from_str(name: &str) -> Result<Policy, String> {
        match name {
            "selective-repeat" => Ok(Policy::SelectiveRepeat),
            "go-back-n" => Ok(Policy::GoBackN),
            other => Err(format!("unknown recovery policy \"{other}\"; use selective-repeat or go-back-n")),
        }
    }
}

/// The knobs of a link. Both sides of a channel may differ in all but [`Config::security`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Protection of frames.
    pub security: Security,
    /// Repair of losses.
    pub recovery: Policy,
    /// Slots that this side takes before the program has consumed any.
    pub credit_slots: u32,
    /// Bytes of receive buffer behind this channel; the peer keeps no more than this in flight.
    pub receive_buffer: u32,
    /// Bytes of one message that a peer may send before its handler has consumed any.
    pub message_window: u32,
    /// A peer that is silent for this long is dead.
    pub silence: Nanos,
    /// Most time that an acknowledgement waits for a frame to ride on.
    pub ack_delay: Nanos,
    /// Slots received that make an acknowledgement due at once.
    pub ack_every: u32,
    /// Bounds of the retransmission timer.
    pub rto_min: Nanos,
    /// See [`Config::rto_min`].
    pub rto_max: Nanos,
    /// The timer before there was any round-trip sample.
    pub rto_initial: Nanos,
    /// Round trips longer than the shortest by more than this count as congestion.
    pub delay_target: Nanos,
    /// Whether the window reacts to delay and loss at all; without, only credit and buffer limit it.
    pub congestion: bool,
    /// The window to begin with, in bytes.
    pub window_initial: u32,
    /// A hello is repeated after this time, doubling.
    pub hello_interval: Nanos,
    /// This side takes raw Ethernet frames to begin with, and says so in every frame (D-12).
    pub raw_frames: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            security: Security::Fabric,
            recovery: Policy::SelectiveRepeat,
            credit_slots: 256,
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
            raw_frames: false,
        }
    }
}

impl Config {
    /// An idle link lets itself be heard this often; the higher rank of a pair waits a little longer, so that one
    /// exchange serves both (L-17).
    pub(crate) fn heartbeat(&self, higher: bool) -> Nanos {
        if higher { self.silence / 3 + self.silence / 16 } else { self.silence / 3 }
    }
}
