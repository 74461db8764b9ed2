//! Tag records: messages that are matched to receives by context, source and tag, and what their two sides
//! tell each other about them (E-3).
//!
//! Their slots hold no other records. They are processed as soon as their slot is next in order, and never
//! wait for the program. Each starts with the short header, and `len` counts all bytes after it.

use crate::memory::ExtentRef;
use crate::record::{self, Class, Record, RecordHead, SHORT_LEN};
use crate::{Malformed, put, u32_at, u64_at};

const EAGER: u8 = 32;
const ENVELOPE: u8 = 33;
const ACCEPT: u8 = 34;
const DATA: u8 = 35;
const LOANED_DATA: u8 = 36;
const CREDIT: u8 = 37;
const MATCHED: u8 = 38;
const FENCE: u8 = 39;
const _: () = assert!(EAGER == *record::TAG_KINDS.start() && FENCE == *record::TAG_KINDS.end());

/// In an envelope: the bytes follow without being asked for.
const BYTES_FOLLOW: u8 = 1;
/// In an envelope: the sender wants to know when it is matched.
const REPORT: u8 = 2;
/// In a fence: it is between all members of a group.
const ALL: u8 = 1;

/// Length of the head of a whole message.
pub const EAGER_HEAD: usize = SHORT_LEN + 8;
/// Length of the head of bytes of a message.
pub const DATA_HEAD: usize = SHORT_LEN + 16;
/// Length of a record with bytes of a message on loan.
pub const LOANED_DATA_LEN: usize = SHORT_LEN + 32;
/// What [`TagRecord::Data`] names instead of a receive: the message that the last envelope announced whose
/// bytes follow.
pub const ANNOUNCED: u64 = 0;

/// The first words of a frame with a whole message of `len` bytes, which follow.
#[inline]
pub fn message_head(context: u32, tag: u32, len: usize) -> [u64; EAGER_HEAD / 8] {
    // Kind, no flags, no handler, and the bytes after the header.
    [u64::from(EAGER) | ((len + 8) as u64) << 32, u64::from(context) | u64::from(tag) << 32]
}

/// Context, tag and length of the message if a frame of `len` bytes that begins with these words is one
/// record with a whole message; the message follows them. None says nothing about the frame.
#[inline]
pub fn whole_message(words: [u64; 2], len: usize) -> Option<(u32, u32, usize)> {
    let data = len.checked_sub(EAGER_HEAD)?;
    let (context, tag) = (words[1] as u32, (words[1] >> 32) as u32);
    (words == message_head(context, tag, data)).then_some((context, tag, data))
}

/// An envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The context.
    pub context: u32,
    /// The tag.
    pub tag: u32,
    /// The sender's number for the message.
    pub id: u32,
    /// Length of the message.
    pub total: u64,
    /// Whether the bytes follow without being asked for.
    pub bytes_follow: bool,
    /// Whether the sender wants to know when it is matched; one whose bytes do not follow always does.
    pub report: bool,
}

/// A tag record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagRecord<'a> {
    /// A whole message.
    Eager {
        /// The context.
        context: u32,
        /// The tag.
        tag: u32,
        /// The message.
        data: &'a [u8],
    },
    /// A message whose bytes are not in this record.
    Envelope(Envelope),
    /// A message was matched: these bytes of it are wanted.
    Accept {
        /// The sender's number for the message.
        id: u32,
        /// The receiver's number for the receive, not [`ANNOUNCED`].
        to: u64,
        /// How many bytes are wanted, from the first on.
        len: u64,
    },
    /// Bytes of a message.
    Data {
        /// The receiver's number for the receive, or [`ANNOUNCED`].
        to: u64,
        /// Where in the message they begin.
        at: u64,
        /// The bytes.
        data: &'a [u8],
    },
    /// As [`TagRecord::Data`], but the bytes are on loan: the receiver reads them in the sender's pool, then
    /// returns the number. Only over shared memory.
    LoanedData {
        /// The receiver's number for the receive, or [`ANNOUNCED`].
        to: u64,
        /// Where in the message they begin.
        at: u64,
        /// Where they are.
        extent: ExtentRef,
    },
    /// The receiver returns credit for messages that were matched.
    Credit {
        /// How much.
        bytes: u64,
    },
    /// A message whose bytes followed its envelope was matched.
    Matched {
        /// The sender's number for the message.
        id: u32,
    },
    /// The sender takes no more messages of the receiver in some contexts, and sends it none.
    Fence {
        /// The first of them.
        first: u32,
        /// The last of them, not below the first.
        last: u32,
        /// Whether all members of the contexts' group exchange no more messages in them.
        all: bool,
    },
}

impl<'a> TagRecord<'a> {
    /// Reads a tag record.
    #[inline]
    pub fn parse(record: &Record<'a>) -> Result<TagRecord<'a>, Malformed> {
        let Record::Tag { kind, flags, body } = *record else { return Err(Malformed::UnknownKind) };
        match kind {
            EAGER if body.len() >= 8 => {
                Ok(TagRecord::Eager { context: u32_at(body, 0), tag: u32_at(body, 4), data: &body[8..] })
            }
            DATA if body.len() >= 16 => {
                let (to, at, data) = (u64_at(body, 0), u64_at(body, 8), &body[16..]);
                at.checked_add(data.len() as u64).ok_or(Malformed::BadValue)?;
                Ok(TagRecord::Data { to, at, data })
            }
            _ => TagRecord::fixed(kind, flags, body),
        }
    }

    fn fixed(kind: u8, flags: u8, body: &'a [u8]) -> Result<TagRecord<'a>, Malformed> {
        match (kind, body.len()) {
            (ENVELOPE, 24) => {
                let bytes_follow = flags & BYTES_FOLLOW != 0;
                Ok(TagRecord::Envelope(Envelope {
                    context: u32_at(body, 0),
                    tag: u32_at(body, 4),
                    id: u32_at(body, 8),
                    total: u64_at(body, 16),
                    bytes_follow,
                    report: flags & REPORT != 0 || !bytes_follow,
                }))
            }
            (ACCEPT, 24) => {
                let (id, to, len) = (u32_at(body, 0), u64_at(body, 8), u64_at(body, 16));
                if to == ANNOUNCED { Err(Malformed::BadValue) } else { Ok(TagRecord::Accept { id, to, len }) }
            }
            (LOANED_DATA, 32) => {
                let (to, at) = (u64_at(body, 0), u64_at(body, 8));
                let extent =
                    ExtentRef { number: u32_at(body, 16), len: u32_at(body, 20), at: u64_at(body, 24) };
                at.checked_add(extent.len.into()).ok_or(Malformed::BadValue)?;
                Ok(TagRecord::LoanedData { to, at, extent })
            }
            (CREDIT, 8) => Ok(TagRecord::Credit { bytes: u64_at(body, 0) }),
            (MATCHED, 8) => Ok(TagRecord::Matched { id: u32_at(body, 0) }),
            (FENCE, 8) => {
                let (first, last) = (u32_at(body, 0), u32_at(body, 4));
                let all = flags & ALL != 0;
                if first > last {
                    Err(Malformed::BadValue)
                } else {
                    Ok(TagRecord::Fence { first, last, all })
                }
            }
            (EAGER..=FENCE, _) => Err(Malformed::BadValue),
            _ => Err(Malformed::UnknownKind),
        }
    }
}

impl RecordHead for TagRecord<'_> {
    const CLASS: Class = Class::Tags;

    #[inline]
    fn head_len(&self) -> usize {
        SHORT_LEN
            + match self {
                TagRecord::Eager { .. }
                | TagRecord::Credit { .. }
                | TagRecord::Matched { .. }
                | TagRecord::Fence { .. } => 8,
                TagRecord::Data { .. } => 16,
                TagRecord::Envelope(_) | TagRecord::Accept { .. } => 24,
                TagRecord::LoanedData { .. } => 32,
            }
    }

    #[inline]
    fn write(&self, out: &mut [u8], flags: u8, len: usize) -> usize {
        let head = self.head_len();
        let out = &mut out[..head];
        let body = &mut out[SHORT_LEN..];
        let (kind, flags) = match *self {
            TagRecord::Eager { context, tag, .. } => {
                put(body, 0, context.to_le_bytes());
                put(body, 4, tag.to_le_bytes());
                (EAGER, flags)
            }
            TagRecord::Data { to, at, .. } => {
                put(body, 0, to.to_le_bytes());
                put(body, 8, at.to_le_bytes());
                (DATA, flags)
            }
            TagRecord::Envelope(envelope) => {
                put(body, 0, envelope.context.to_le_bytes());
                put(body, 4, envelope.tag.to_le_bytes());
                put(body, 8, envelope.id.to_le_bytes());
                put(body, 12, [0; 4]);
                put(body, 16, envelope.total.to_le_bytes());
                let follow = if envelope.bytes_follow { BYTES_FOLLOW } else { 0 };
                (ENVELOPE, flags | follow | if envelope.report { REPORT } else { 0 })
            }
            TagRecord::Accept { id, to, len } => {
                put(body, 0, u64::from(id).to_le_bytes());
                put(body, 8, to.to_le_bytes());
                put(body, 16, len.to_le_bytes());
                (ACCEPT, flags)
            }
            TagRecord::LoanedData { to, at, extent } => {
                put(body, 0, to.to_le_bytes());
                put(body, 8, at.to_le_bytes());
                put(body, 16, extent.number.to_le_bytes());
                put(body, 20, extent.len.to_le_bytes());
                put(body, 24, extent.at.to_le_bytes());
                (LOANED_DATA, flags)
            }
            TagRecord::Credit { bytes } => {
                put(body, 0, bytes.to_le_bytes());
                (CREDIT, flags)
            }
            TagRecord::Matched { id } => {
                put(body, 0, u64::from(id).to_le_bytes());
                (MATCHED, flags)
            }
            TagRecord::Fence { first, last, all } => {
                put(body, 0, first.to_le_bytes());
                put(body, 4, last.to_le_bytes());
                (FENCE, flags | if all { ALL } else { 0 })
            }
        };
        record::write::head(out, kind, flags, head - SHORT_LEN + len);
        head
    }
}

/// Returns whether a tag record of this kind carries bytes of a message, and begins a message whose bytes
/// follow without being asked for.
pub fn carries(kind: u8, flags: u8) -> (bool, bool) {
    let begins = kind == EAGER || kind == ENVELOPE && flags & BYTES_FOLLOW != 0;
    (matches!(kind, EAGER | DATA | LOANED_DATA), begins)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Records;

    fn all() -> Vec<TagRecord<'static>> {
        let envelope =
            Envelope { context: 1, tag: 2, id: 3, total: 1 << 40, bytes_follow: false, report: true };
        vec![
            TagRecord::Eager { context: 1, tag: u32::MAX, data: b"12345678" },
            TagRecord::Envelope(envelope),
            TagRecord::Envelope(Envelope { bytes_follow: true, ..envelope }),
            TagRecord::Envelope(Envelope { bytes_follow: true, report: false, ..envelope }),
            TagRecord::Accept { id: 4, to: 5 << 32, len: 1 << 33 },
            TagRecord::Data { to: ANNOUNCED, at: 6, data: b"abc" },
            TagRecord::LoanedData { to: 7, at: 8, extent: ExtentRef { number: 9, len: 10, at: 1 << 34 } },
            TagRecord::Credit { bytes: 1 << 20 },
            TagRecord::Matched { id: 11 },
            TagRecord::Fence { first: 12, last: 12, all: false },
            TagRecord::Fence { first: 12, last: 13, all: true },
        ]
    }

    /// E-15: the first words of a frame tell whether it is a whole message in one record, and nothing else.
    #[test]
    fn a_whole_message_is_known_by_its_first_words() {
        let words = |out: &[u8]| [u64_at(out, 0), u64_at(out, 8)];
        for record in all() {
            let mut out = [0; 64];
            let data = if let TagRecord::Eager { data, .. } = record { data } else { &[] };
            let head = record.write(&mut out, 0, data.len());
            let found = whole_message(words(&out), head + data.len());
            let TagRecord::Eager { context, tag, data } = record else {
                assert_eq!(found, None, "{record:?}");
                continue;
            };
            assert_eq!(found, Some((context, tag, data.len())));
            assert_eq!(message_head(context, tag, data.len()), words(&out));
            // Another record follows, or some bytes are missing.
            assert_eq!(whole_message(words(&out), head + data.len() + 16), None);
            assert_eq!(whole_message(words(&out), head + data.len() - 1), None);
        }
        assert_eq!(whole_message([0, 0], 7), None);
    }

    /// E-3: tag records of every kind read back as written, several in a slot; cut short, none is read.
    #[test]
    fn tag_records_round_trip() {
        let mut out = vec![0u8; 1024];
        let mut at = 0;
        for tag in all() {
            let data: &[u8] = match tag {
                TagRecord::Eager { data, .. } | TagRecord::Data { data, .. } => data,
                _ => &[],
            };
            let start = at;
            at += tag.write(&mut out[at..], 0, data.len());
            out[at..at + data.len()].copy_from_slice(data);
            at += data.len();
            assert!(record::is_served(out[start]) && Class::of(out[start]) == Class::Tags);
            let cut = Records::new(&out[start..at - 1], 0).next().unwrap();
            assert!(cut.is_err(), "{tag:?}");
        }
        let got: Vec<_> = Records::new(&out[..at], 0).map(Result::unwrap).collect();
        assert_eq!(got.iter().map(|r| TagRecord::parse(r).unwrap()).collect::<Vec<_>>(), all());
        for record in got {
            if let Record::Tag { kind, flags, body } = record {
                let short = Record::Tag { kind, flags, body: &body[..body.len().min(7)] };
                assert_eq!(TagRecord::parse(&short), Err(Malformed::BadValue));
            }
        }
        // No contexts.
        let len = TagRecord::Fence { first: 2, last: 1, all: false }.write(&mut out, 0, 0);
        let record = Records::new(&out[..len], 0).next().unwrap().unwrap();
        assert_eq!(TagRecord::parse(&record), Err(Malformed::BadValue));
        // A number that names no receive is no answer to an envelope.
        let none = TagRecord::Accept { id: 4, to: ANNOUNCED, len: 1 };
        let len = none.write(&mut out, 0, 0);
        let record = Records::new(&out[..len], 0).next().unwrap().unwrap();
        assert_eq!(TagRecord::parse(&record), Err(Malformed::BadValue));
    }
}
