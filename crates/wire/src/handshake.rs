//! The frames that open a channel: hello, welcome, retry, refuse (H-1 … H-16).
//!
//! All four have one layout of 112 bytes, so that an answer is never longer than the hello (H-6).

use crate::layout::fields;
use crate::{Kind, Malformed, array, put, u16_at, u32_at, u64_at};

/// Length of a handshake frame.
pub const HANDSHAKE_LEN: usize = 112;
/// The range of the authentication code: the last 16 bytes. It covers everything before them.
pub const MAC_RANGE: std::ops::Range<usize> = AT_MAC..AT_MAC + 16;
/// The range of the job's public name (H-10).
pub const JOB_RANGE: std::ops::Range<usize> = AT_JOB..AT_JOB + 8;
/// "TAUT". Identifies handshake frames, also for the dissector's heuristic.
pub const MAGIC: u32 = u32::from_le_bytes(*b"TAUT");

fields! { HANDSHAKE_LEN;
    AT_KIND: 0, 1;
    AT_FLAGS: 1, 1;
    AT_REASON_OR_PORT: 2, 2;
    AT_MAGIC: 4, 4;
    AT_VERSION_MIN: 8, 1;
    AT_VERSION_MAX: 9, 1;
    AT_SECURITY: 10, 1;
    AT_RESERVED: 11, 1;
    AT_FEATURES: 12, 4;
    AT_JOB: 16, 8;
    AT_FROM: 24, 4;
    AT_TO: 28, 4;
    AT_FROM_LANE: 32, 2;
    AT_TO_LANE: 34, 2;
    AT_CHANNEL: 36, 4;
    AT_EPOCH: 40, 8;
    AT_PEER_EPOCH: 48, 8;
    AT_MAX_FRAME: 56, 4;
    AT_CREDIT: 60, 4;
    AT_BUFFER: 64, 4;
    AT_MESSAGE_WINDOW: 68, 4;
    AT_SILENCE_MS: 72, 4;
    AT_ACK_DELAY_US: 76, 4;
    AT_COOKIE: 80, 16;
    AT_MAC: 96, 16;
}

/// How frames of a channel are protected. Both sides must use the same mode (H-5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Security {
    /// No protection except a token of the channel.
    Open = 0,
    /// A keyed tag over every frame.
    #[default]
    Fabric = 1,
    /// Encryption and authentication of every frame.
    Sealed = 2,
}

impl Security {
    fn from_wire(value: u8) -> Result<Security, Malformed> {
        Ok(match value {
            0 => Security::Open,
            1 => Security::Fabric,
            2 => Security::Sealed,
            _ => return Err(Malformed::BadValue),
        })
    }

    /// Returns the mode's name in configuration, reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Security::Open => "open",
            Security::Fabric => "fabric",
            Security::Sealed => "sealed",
        }
    }
}

impl std::str::FromStr for Security {
    type Err = String;

    fn from_str(name: &str) -> Result<Security, String> {
        match name {
            "open" => Ok(Security::Open),
            "fabric" => Ok(Security::Fabric),
            "sealed" => Ok(Security::Sealed),
            other => Err(format!("unknown security mode \"{other}\"; use fabric, sealed or open")),
        }
    }
}

/// Why a hello was refused (H-5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
#[non_exhaustive]
pub enum RefuseReason {
    /// No common wire version.
    Version = 1,
    /// The two sides use different security modes.
    Security = 2,
    /// The hello is for another rank.
    WrongRank = 3,
    /// The lane is not open.
    NoLane = 4,
    /// The receiver's table of peers is full.
    Full = 5,
    /// The receiver does not support a required feature.
    Feature = 6,
    /// The receiver was not told of the sender's rank, which joined the job later.
    UnknownRank = 7,
}

impl RefuseReason {
    fn from_wire(value: u16) -> Result<Option<RefuseReason>, Malformed> {
        Ok(Some(match value {
            0 => return Ok(None),
            1 => RefuseReason::Version,
            2 => RefuseReason::Security,
            3 => RefuseReason::WrongRank,
            4 => RefuseReason::NoLane,
            5 => RefuseReason::Full,
            6 => RefuseReason::Feature,
            7 => RefuseReason::UnknownRank,
            _ => return Err(Malformed::BadValue),
        }))
    }
}

impl std::fmt::Display for RefuseReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            RefuseReason::Version => "no common protocol version",
            RefuseReason::Security => "the two sides use different security modes",
            RefuseReason::WrongRank => "another rank has that address",
            RefuseReason::NoLane => "no such lane",
            RefuseReason::Full => "the peer's table is full",
            RefuseReason::Feature => "the peer lacks a required feature",
            RefuseReason::UnknownRank => {
                "it does not know this rank, which joined later: its program does not watch members (watch_members)"
            }
        })
    }
}

/// A handshake frame as a typed value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// [`Kind::Hello`], [`Kind::Welcome`], [`Kind::Retry`] or [`Kind::Refuse`].
    pub kind: Kind,
    /// The reason, only in a refuse frame.
    pub reason: Option<RefuseReason>,
    /// In a hello or welcome, the port of the sender's lane; zero for lane 0 of a rank that was there when
    /// the job began. In a retry, the port of the
    /// lane that the hello was for; zero if the hello came to the right port (H-13). Zero in a refuse frame.
    pub port: u16,
    /// The lowest wire version that the sender supports.
    pub version_min: u8,
    /// The highest wire version that the sender supports; in a welcome, the version chosen.
    pub version_max: u8,
    /// The sender's security mode.
    pub security: Security,
    /// Low half: features that the sender supports. High half: features that it requires (H-4).
    pub features: u32,
    /// The job's public name, derived from its key.
    pub job: u64,
    /// The sender's rank.
    pub from: u32,
    /// The receiver's rank.
    pub to: u32,
    /// The sender's lane.
    pub from_lane: u16,
    /// The receiver's lane.
    pub to_lane: u16,
    /// The channel number of frames to the sender.
    pub channel: u32,
    /// The sender's epoch, new for each attempt.
    pub epoch: u64,
    /// The receiver's epoch; zero in a hello.
    pub peer_epoch: u64,
    /// The largest frame that the sender accepts.
    pub max_frame: u32,
    /// Slots that the sender accepts at first.
    pub credit: u32,
    /// Bytes of receive buffer that the sender has for this channel.
    pub buffer: u32,
    /// Bytes of one message that may be sent to the sender before its first window update.
    pub message_window: u32,
    /// The sender takes a peer for dead after this much silence.
    pub silence_ms: u32,
    /// The sender acknowledges within this time.
    pub ack_delay_us: u32,
    /// The cookie of a retry: proof of address in a hello, otherwise zeros.
    pub cookie: [u8; 16],
    /// The authentication code, made with the job key.
    pub mac: [u8; 16],
}

impl Handshake {
    /// Checks and reads a handshake frame.
    pub fn parse(bytes: &[u8]) -> Result<Handshake, Malformed> {
        if bytes.len() < HANDSHAKE_LEN {
            return Err(Malformed::Truncated);
        }
        let kind = Kind::of(bytes)?;
        if matches!(kind, Kind::Data | Kind::Close) {
            return Err(Malformed::UnknownKind);
        }
        if u32_at(bytes, AT_MAGIC) != MAGIC {
            return Err(Malformed::NotOurs);
        }
        let reason_or_port = u16_at(bytes, AT_REASON_OR_PORT);
        let (reason, port) = match kind {
            Kind::Refuse => (RefuseReason::from_wire(reason_or_port)?, 0),
            _ => (None, reason_or_port),
        };
        let handshake = Handshake {
            kind,
            reason,
            port,
            version_min: bytes[AT_VERSION_MIN],
            version_max: bytes[AT_VERSION_MAX],
            security: Security::from_wire(bytes[AT_SECURITY])?,
            features: u32_at(bytes, AT_FEATURES),
            job: u64_at(bytes, AT_JOB),
            from: u32_at(bytes, AT_FROM),
            to: u32_at(bytes, AT_TO),
            from_lane: u16_at(bytes, AT_FROM_LANE),
            to_lane: u16_at(bytes, AT_TO_LANE),
            channel: u32_at(bytes, AT_CHANNEL),
            epoch: u64_at(bytes, AT_EPOCH),
            peer_epoch: u64_at(bytes, AT_PEER_EPOCH),
            max_frame: u32_at(bytes, AT_MAX_FRAME),
            credit: u32_at(bytes, AT_CREDIT),
            buffer: u32_at(bytes, AT_BUFFER),
            message_window: u32_at(bytes, AT_MESSAGE_WINDOW),
            silence_ms: u32_at(bytes, AT_SILENCE_MS),
            ack_delay_us: u32_at(bytes, AT_ACK_DELAY_US),
            cookie: array(bytes, AT_COOKIE),
            mac: array(bytes, AT_MAC),
        };
        let frame_ok = (crate::frame::SMALLEST_FRAME..=crate::frame::MAX_FRAME)
            .contains(&(handshake.max_frame as usize));
        let credit_ok = (1..=MAX_CREDIT).contains(&handshake.credit);
        if handshake.version_min > handshake.version_max || !frame_ok || !credit_ok || handshake.epoch == 0 {
            return Err(Malformed::BadValue);
        }
        Ok(handshake)
    }

    /// Writes the frame. The caller computes the authentication code of the first 96 bytes afterwards.
    pub fn write(&self, out: &mut [u8; HANDSHAKE_LEN]) {
        out.fill(0);
        out[AT_KIND] = self.kind.first_byte();
        out[AT_VERSION_MIN] = self.version_min;
        out[AT_VERSION_MAX] = self.version_max;
        out[AT_SECURITY] = self.security as u8;
        let reason_or_port = self.reason.map_or(self.port, |reason| reason as u16);
        put(out, AT_REASON_OR_PORT, reason_or_port.to_le_bytes());
        put(out, AT_MAGIC, MAGIC.to_le_bytes());
        put(out, AT_FEATURES, self.features.to_le_bytes());
        put(out, AT_JOB, self.job.to_le_bytes());
        put(out, AT_FROM, self.from.to_le_bytes());
        put(out, AT_TO, self.to.to_le_bytes());
        put(out, AT_FROM_LANE, self.from_lane.to_le_bytes());
        put(out, AT_TO_LANE, self.to_lane.to_le_bytes());
        put(out, AT_CHANNEL, self.channel.to_le_bytes());
        put(out, AT_EPOCH, self.epoch.to_le_bytes());
        put(out, AT_PEER_EPOCH, self.peer_epoch.to_le_bytes());
        put(out, AT_MAX_FRAME, self.max_frame.to_le_bytes());
        put(out, AT_CREDIT, self.credit.to_le_bytes());
        put(out, AT_BUFFER, self.buffer.to_le_bytes());
        put(out, AT_MESSAGE_WINDOW, self.message_window.to_le_bytes());
        put(out, AT_SILENCE_MS, self.silence_ms.to_le_bytes());
        put(out, AT_ACK_DELAY_US, self.ack_delay_us.to_le_bytes());
        put(out, AT_COOKIE, self.cookie);
        put(out, AT_MAC, self.mac);
    }
}

/// The largest credit that may be granted. It keeps sequence numbers comparable (W-8).
pub const MAX_CREDIT: u32 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn sample() -> Handshake {
        Handshake {
            kind: Kind::Hello,
            reason: None,
            port: 7001,
            version_min: 1,
            version_max: 2,
            security: Security::Sealed,
            features: 0x0001_0003,
            job: 0x0102_0304_0506_0708,
            from: 1,
            to: 2,
            from_lane: 0,
            to_lane: 3,
            channel: 77,
            epoch: 0xfeed,
            peer_epoch: 0xbeef,
            max_frame: 1472,
            credit: 128,
            buffer: 212_992,
            message_window: 1 << 18,
            silence_ms: 1000,
            ack_delay_us: 500,
            cookie: [3; 16],
            mac: [9; 16],
        }
    }

    /// H-1: a handshake reads back as written.
    #[test]
    fn handshake_round_trip() {
        let mut bytes = [0; HANDSHAKE_LEN];
        sample().write(&mut bytes);
        assert_eq!(Handshake::parse(&bytes), Ok(sample()));
    }

    /// H-1: values out of range are rejected, not clamped.
    #[test]
    fn values_out_of_range_are_rejected() {
        let mut bytes = [0; HANDSHAKE_LEN];
        for (at, value) in [(AT_VERSION_MIN, 9), (AT_SECURITY, 7), (AT_MAX_FRAME + 3, 1)] {
            sample().write(&mut bytes);
            bytes[at] = value;
            assert_eq!(Handshake::parse(&bytes), Err(Malformed::BadValue), "{at}");
        }
        Handshake { kind: Kind::Refuse, reason: Some(RefuseReason::Full), port: 0, ..sample() }
            .write(&mut bytes);
        bytes[AT_REASON_OR_PORT] = 99;
        assert_eq!(Handshake::parse(&bytes), Err(Malformed::BadValue));
        sample().write(&mut bytes);
        bytes[AT_MAGIC] ^= 1;
        assert_eq!(Handshake::parse(&bytes), Err(Malformed::NotOurs));
        assert_eq!(Handshake::parse(&bytes[..111]), Err(Malformed::Truncated));
    }
}
