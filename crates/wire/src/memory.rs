//! Memory records: operations on another node's memory, and answers to them.
//!
//! Their slots hold no other records. They are processed as soon as their slot is next in order, and never
//! wait for the program. Each starts with the short header; `flags` may be [`COMPLETION_REQUESTED`], and
//! `len` counts all bytes after the header.

use crate::record::{self, Class, Record, RecordHead, SHORT_LEN};
use crate::{Malformed, put, u32_at, u64_at};

const OPEN: u8 = 16;
const PUT: u8 = 17;
const PART: u8 = 18;
const NOTICE: u8 = 19;
const GET: u8 = 20;
const SWAP: u8 = 21;
const ADD: u8 = 22;
const CAS: u8 = 23;
const FLUSH: u8 = 24;
const OUT_OF_BAND: u8 = 25;
const DONE: u8 = 26;
const FAILED: u8 = 27;
const VALUE: u8 = 28;
const DATA: u8 = 29;
const LOANED_PART: u8 = 30;
const _: () = assert!(OPEN == *record::MEMORY_KINDS.start() && LOANED_PART == *record::MEMORY_KINDS.end());

/// Returns whether a memory record of this kind changes something at its receiver, and begins an operation;
/// the further parts of a long put only change something.
pub fn changes(kind: u8) -> (bool, bool) {
    let begins = matches!(kind, PUT | NOTICE | SWAP | ADD | CAS | OUT_OF_BAND);
    (begins || matches!(kind, PART | LOANED_PART), begins)
}

/// The requester wants an answer when this request and all before it are done.
pub const COMPLETION_REQUESTED: u8 = 1;

/// Length of the longest head of a memory record, which is the record without data.
pub const MAX_HEAD: usize = SHORT_LEN + 40;
/// Length of the head of a whole put.
pub const PUT_HEAD: usize = SHORT_LEN + 16;
/// Length of the head of a part of a put.
pub const PART_HEAD: usize = SHORT_LEN + 24;
/// Length of the head of a part of an answer to a get.
pub const DATA_HEAD: usize = SHORT_LEN + 16;
/// Length of a record with a part of a put on loan.
pub const LOANED_PART_LEN: usize = SHORT_LEN + 40;
/// Length of the longest out-of-band message.
pub const MAX_OUT_OF_BAND: usize = 40;

/// The target of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The requester's number for the cookie, from [`MemoryRecord::Open`].
    pub handle: u32,
    /// The request's number, consecutive per channel.
    pub id: u32,
    /// Offset from the start of the cookie's range.
    pub at: u64,
}

/// An atomic operation on a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Stores the value.
    Swap(u64),
    /// Adds the value, wrapping around.
    Add(u64),
    /// Stores the second value if the word equals the first.
    CompareSwap(u64, u64),
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Refusal {
    /// The cookie was never issued, or it was altered.
    Forged = 1,
    /// The cookie is of an earlier incarnation of its owner.
    Stale = 2,
    /// The cookie was revoked, or its aperture was closed.
    Revoked = 3,
    /// The cookie has expired.
    Expired = 4,
    /// The range exceeds that of the cookie.
    OutOfRange = 5,
    /// The cookie does not allow the operation.
    Rights = 6,
    /// The word is not aligned.
    Misaligned = 7,
}

impl Refusal {
    /// All reasons.
    pub const ALL: [Refusal; 7] = [
        Refusal::Forged,
        Refusal::Stale,
        Refusal::Revoked,
        Refusal::Expired,
        Refusal::OutOfRange,
        Refusal::Rights,
        Refusal::Misaligned,
    ];
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Refusal::Forged => "no such cookie was issued",
            Refusal::Stale => "the cookie is of an earlier incarnation of its owner",
            Refusal::Revoked => "the cookie was revoked",
            Refusal::Expired => "the cookie has expired",
            Refusal::OutOfRange => "the range exceeds that of the cookie",
            Refusal::Rights => "the cookie does not allow the operation",
            Refusal::Misaligned => "the word is not aligned to eight bytes",
        })
    }
}

/// A memory record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryRecord<'a> {
    /// Assigns a handle to a cookie, in place of the handle's previous cookie.
    Open {
        /// The requester's number for the cookie.
        handle: u32,
        /// The owner's number for the cookie.
        cookie: u32,
        /// The incarnation of the owner that issued the cookie.
        incarnation: u64,
        /// The secret of the cookie.
        secret: [u8; 16],
    },
    /// A whole put: writes the bytes.
    Put(Target, &'a [u8]),
    /// A part of a put: writes the bytes. The number is how many bytes of the put follow.
    Part(Target, u64, &'a [u8]),
    /// Queues an event at the owner.
    Notice {
        /// The memory that the event is about.
        target: Target,
        /// Length of that memory.
        len: u64,
        /// The requester's value.
        value: u64,
    },
    /// Reads this many bytes.
    Get(Target, u64),
    /// Changes a word and returns its previous value.
    Atomic(Target, Atomic),
    /// Does nothing, but can request completion.
    Flush {
        /// The request's number.
        id: u32,
    },
    /// A small message for the event queue.
    OutOfBand(&'a [u8]),
    /// All requests up to this one are done, except those that have answers of their own.
    Done {
        /// The request's number.
        id: u32,
    },
    /// A request was refused.
    Failed {
        /// The request's number.
        id: u32,
        /// The reason.
        why: Refusal,
    },
    /// The previous value of a word.
    Value {
        /// The request's number.
        id: u32,
        /// The value.
        value: u64,
    },
    /// A part of the bytes of a get.
    Data {
        /// The request's number.
        id: u32,
        /// Offset in the bytes of the get.
        at: u64,
        /// The bytes.
        data: &'a [u8],
    },
    /// As [`MemoryRecord::Part`], but the bytes are on loan: the owner reads them in the requester's pool,
    /// then returns the number. Only over shared memory (S-24).
    LoanedPart(Target, u64, ExtentRef),
}

/// An area of the requester's loan pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentRef {
    /// The number of the loan, which the owner returns.
    pub number: u32,
    /// Length of the area.
    pub len: u32,
    /// Where in the pool the area begins.
    pub at: u64,
}

impl<'a> MemoryRecord<'a> {
    /// Reads a memory record.
    #[inline]
    pub fn parse(record: &Record<'a>) -> Result<MemoryRecord<'a>, Malformed> {
        let Record::Memory { kind, body, .. } = *record else { return Err(Malformed::UnknownKind) };
        match kind {
            PUT if body.len() >= 16 => Ok(MemoryRecord::Put(target(body), &body[16..])),
            PART if body.len() >= 24 => MemoryRecord::part(body),
            DATA if body.len() >= 16 => {
                let (id, at, data) = (u32_at(body, 0), u64_at(body, 8), &body[16..]);
                at.checked_add(data.len() as u64).ok_or(Malformed::BadValue)?;
                Ok(MemoryRecord::Data { id, at, data })
            }
            OUT_OF_BAND if body.len() <= MAX_OUT_OF_BAND => Ok(MemoryRecord::OutOfBand(body)),
            _ => MemoryRecord::fixed(kind, body),
        }
    }

    fn part(body: &'a [u8]) -> Result<MemoryRecord<'a>, Malformed> {
        let (target, rest, data) = (target(body), u64_at(body, 16), &body[24..]);
        let end = target.at.checked_add(data.len() as u64).and_then(|end| end.checked_add(rest));
        end.ok_or(Malformed::BadValue)?;
        Ok(MemoryRecord::Part(target, rest, data))
    }

    fn fixed(kind: u8, body: &'a [u8]) -> Result<MemoryRecord<'a>, Malformed> {
        let word = |at| u64_at(body, at);
        match (kind, body.len()) {
            (OPEN, 32) => {
                let mut secret = [0; 16];
                secret.copy_from_slice(&body[16..]);
                let (handle, cookie) = (u32_at(body, 0), u32_at(body, 4));
                Ok(MemoryRecord::Open { handle, cookie, incarnation: word(8), secret })
            }
            (NOTICE, 32) => Ok(MemoryRecord::Notice { target: target(body), len: word(16), value: word(24) }),
            (GET, 24) => Ok(MemoryRecord::Get(target(body), word(16))),
            (SWAP, 24) => Ok(MemoryRecord::Atomic(target(body), Atomic::Swap(word(16)))),
            (ADD, 24) => Ok(MemoryRecord::Atomic(target(body), Atomic::Add(word(16)))),
            (CAS, 32) => Ok(MemoryRecord::Atomic(target(body), Atomic::CompareSwap(word(16), word(24)))),
            (FLUSH, 8) => Ok(MemoryRecord::Flush { id: u32_at(body, 0) }),
            (DONE, 8) => Ok(MemoryRecord::Done { id: u32_at(body, 0) }),
            (FAILED, 8) => {
                let why = Refusal::ALL.into_iter().find(|why| u32::from(*why as u8) == u32_at(body, 4));
                Ok(MemoryRecord::Failed { id: u32_at(body, 0), why: why.ok_or(Malformed::BadValue)? })
            }
            (VALUE, 16) => Ok(MemoryRecord::Value { id: u32_at(body, 0), value: word(8) }),
            (LOANED_PART, 40) => {
                let extent = ExtentRef { number: u32_at(body, 24), len: u32_at(body, 28), at: word(32) };
                let (target, rest) = (target(body), word(16));
                let end = target.at.checked_add(extent.len.into()).and_then(|end| end.checked_add(rest));
                end.ok_or(Malformed::BadValue)?;
                Ok(MemoryRecord::LoanedPart(target, rest, extent))
            }
            (OPEN..=LOANED_PART, _) => Err(Malformed::BadValue),
            _ => Err(Malformed::UnknownKind),
        }
    }

    fn write_fixed(&self, out: &mut [u8]) -> u8 {
        let body = &mut out[SHORT_LEN..];
        match *self {
            MemoryRecord::Open { handle, cookie, incarnation, secret } => {
                put(body, 0, handle.to_le_bytes());
                put(body, 4, cookie.to_le_bytes());
                put(body, 8, incarnation.to_le_bytes());
                put(body, 16, secret);
                OPEN
            }
            MemoryRecord::Notice { target, len, value } => {
                put(body, 16, len.to_le_bytes());
                put(body, 24, value.to_le_bytes());
                put_target(out, NOTICE, target)
            }
            MemoryRecord::Get(target, len) => {
                put(body, 16, len.to_le_bytes());
                put_target(out, GET, target)
            }
            MemoryRecord::Atomic(target, atomic) => {
                let kind = match atomic {
                    Atomic::Swap(value) => {
                        put(body, 16, value.to_le_bytes());
                        SWAP
                    }
                    Atomic::Add(value) => {
                        put(body, 16, value.to_le_bytes());
                        ADD
                    }
                    Atomic::CompareSwap(expected, new) => {
                        put(body, 16, expected.to_le_bytes());
                        put(body, 24, new.to_le_bytes());
                        CAS
                    }
                };
                put_target(out, kind, target)
            }
            MemoryRecord::Flush { id } => put_id(body, FLUSH, id, 0),
            MemoryRecord::Done { id } => put_id(body, DONE, id, 0),
            MemoryRecord::Failed { id, why } => put_id(body, FAILED, id, why as u32),
            MemoryRecord::Value { id, value } => {
                put(body, 8, value.to_le_bytes());
                put_id(body, VALUE, id, 0)
            }
            MemoryRecord::OutOfBand(_) => OUT_OF_BAND,
            MemoryRecord::LoanedPart(target, rest, extent) => {
                put(body, 16, rest.to_le_bytes());
                put(body, 24, extent.number.to_le_bytes());
                put(body, 28, extent.len.to_le_bytes());
                put(body, 32, extent.at.to_le_bytes());
                put_target(out, LOANED_PART, target)
            }
            MemoryRecord::Put(..) | MemoryRecord::Part(..) | MemoryRecord::Data { .. } => {
                unreachable!("`write` handles these")
            }
        }
    }
}

impl RecordHead for MemoryRecord<'_> {
    const CLASS: Class = Class::Memory;

    fn head_len(&self) -> usize {
        SHORT_LEN
            + match self {
                MemoryRecord::LoanedPart(..) => 40,
                MemoryRecord::Open { .. } | MemoryRecord::Notice { .. } => 32,
                MemoryRecord::Atomic(_, Atomic::CompareSwap(..)) => 32,
                MemoryRecord::Part(..) | MemoryRecord::Get(..) | MemoryRecord::Atomic(..) => 24,
                MemoryRecord::Put(..) | MemoryRecord::Value { .. } | MemoryRecord::Data { .. } => 16,
                MemoryRecord::Flush { .. } | MemoryRecord::Done { .. } | MemoryRecord::Failed { .. } => 8,
                MemoryRecord::OutOfBand(_) => 0,
            }
    }

    #[inline]
    fn write(&self, out: &mut [u8], flags: u8, len: usize) -> usize {
        let head = self.head_len();
        let out = &mut out[..head];
        let kind = match *self {
            MemoryRecord::Put(target, _) => put_target(out, PUT, target),
            MemoryRecord::Part(target, rest, _) => {
                put(out, SHORT_LEN + 16, rest.to_le_bytes());
                put_target(out, PART, target)
            }
            MemoryRecord::Data { id, at, .. } => put_target(out, DATA, Target { handle: id, id: 0, at }),
            _ => self.write_fixed(out),
        };
        record::write::head(out, kind, flags, head - SHORT_LEN + len);
        head
    }
}

/// Returns the head of a whole put of `len` bytes, as [`RecordHead::write`] writes it, in words.
#[inline(always)]
pub fn put_head(target: Target, flags: u8, len: usize) -> [u64; PUT_HEAD / 8] {
    let first = u64::from(PUT) | u64::from(flags) << 8 | ((PUT_HEAD - SHORT_LEN + len) as u64) << 32;
    [first, u64::from(target.handle) | u64::from(target.id) << 32, target.at]
}

/// Reads the head of a frame of `len` bytes that consists of one whole put. Returns its target, its flags and
/// how many bytes it writes; `None` if the frame is anything else.
#[inline(always)]
pub fn parse_put(words: [u64; PUT_HEAD / 8], len: usize) -> Option<(Target, u8, usize)> {
    let bytes = len.checked_sub(PUT_HEAD)?;
    let whole = words[0] as u8 == PUT && (words[0] >> 32) as usize == PUT_HEAD - SHORT_LEN + bytes;
    let target = Target { handle: words[1] as u32, id: (words[1] >> 32) as u32, at: words[2] };
    whole.then_some((target, (words[0] >> 8) as u8, bytes))
}

#[inline]
fn target(body: &[u8]) -> Target {
    Target { handle: u32_at(body, 0), id: u32_at(body, 4), at: u64_at(body, 8) }
}

#[inline]
fn put_target(out: &mut [u8], kind: u8, target: Target) -> u8 {
    put(out, SHORT_LEN, target.handle.to_le_bytes());
    put(out, SHORT_LEN + 4, target.id.to_le_bytes());
    put(out, SHORT_LEN + 8, target.at.to_le_bytes());
    kind
}

fn put_id(body: &mut [u8], kind: u8, id: u32, more: u32) -> u8 {
    put(body, 0, id.to_le_bytes());
    put(body, 4, more.to_le_bytes());
    kind
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Records;

    const TARGET: Target = Target { handle: 3, id: 77, at: 1 << 40 };

    fn all() -> Vec<MemoryRecord<'static>> {
        vec![
            MemoryRecord::Open { handle: 1, cookie: 2, incarnation: 3, secret: [4; 16] },
            MemoryRecord::Put(TARGET, b"12345678"),
            MemoryRecord::Part(TARGET, 5, b"abc"),
            MemoryRecord::Notice { target: TARGET, len: 5, value: 6 },
            MemoryRecord::Get(TARGET, 1 << 33),
            MemoryRecord::Atomic(TARGET, Atomic::Swap(7)),
            MemoryRecord::Atomic(TARGET, Atomic::Add(8)),
            MemoryRecord::Atomic(TARGET, Atomic::CompareSwap(9, 10)),
            MemoryRecord::Flush { id: 11 },
            MemoryRecord::OutOfBand(b"by the way"),
            MemoryRecord::Done { id: 12 },
            MemoryRecord::Failed { id: 13, why: Refusal::Rights },
            MemoryRecord::Value { id: 14, value: 15 },
            MemoryRecord::Data { id: 16, at: 17, data: b"x" },
            MemoryRecord::LoanedPart(TARGET, 5, ExtentRef { number: 18, len: 19, at: 1 << 20 }),
        ]
    }

    fn data<'a>(memory: &MemoryRecord<'a>) -> &'a [u8] {
        match *memory {
            MemoryRecord::Put(_, data)
            | MemoryRecord::Part(_, _, data)
            | MemoryRecord::OutOfBand(data)
            | MemoryRecord::Data { data, .. } => data,
            _ => &[],
        }
    }

    /// memory records of every kind read back as written, several in a slot.
    #[test]
    fn memory_records_round_trip() {
        let mut out = vec![0u8; 1024];
        let mut at = 0;
        for memory in all() {
            let data = data(&memory);
            at += memory.write(&mut out[at..], COMPLETION_REQUESTED, data.len());
            out[at..at + data.len()].copy_from_slice(data);
            at += data.len();
        }
        let got: Vec<_> = Records::new(&out[..at], 0).map(Result::unwrap).collect();
        assert_eq!(got.iter().map(|r| MemoryRecord::parse(r).unwrap()).collect::<Vec<_>>(), all());
        assert!(got.iter().all(|r| matches!(r, Record::Memory { flags: COMPLETION_REQUESTED, .. })));
    }

    /// the head of a put is the same as words and as bytes, and no other record is read as a put.
    #[test]
    fn put_head_as_words() {
        let words = |bytes: &[u8]| {
            let (parts, _) = bytes.as_chunks::<8>();
            [0, 1, 2].map(|i| parts.get(i).map_or(0, |part| u64::from_le_bytes(*part)))
        };
        let mut out = [0u8; 128];
        for memory in all() {
            let data = data(&memory);
            let head = memory.write(&mut out, COMPLETION_REQUESTED, data.len());
            let len = head + data.len();
            let MemoryRecord::Put(target, _) = memory else {
                assert_eq!(parse_put(words(&out), len), None, "{memory:?}");
                continue;
            };
            assert_eq!(words(&out), put_head(target, COMPLETION_REQUESTED, data.len()));
            assert_eq!(parse_put(words(&out), len), Some((target, COMPLETION_REQUESTED, data.len())));
            for wrong in [0, 8, head - 1, len - 1, len + 1, len + 8] {
                assert_eq!(parse_put(words(&out), wrong), None, "{wrong} bytes");
            }
        }
    }

    /// W-7: memory records of the wrong length, or with numbers that overflow, are rejected.
    #[test]
    fn malformed_memory_records_are_rejected() {
        let mut out = [0u8; 128];
        for memory in all().iter().filter(|m| data(m).is_empty()) {
            for extra in [1, 8] {
                let len = memory.write(&mut out, 0, extra);
                let record = Records::new(&out[..len + extra], 0).next().unwrap().unwrap();
                assert!(MemoryRecord::parse(&record).is_err(), "{memory:?} with {extra} more");
            }
        }
        let far = Target { at: u64::MAX - 2, ..TARGET };
        let overflowing =
            [MemoryRecord::Part(far, 1, b""), MemoryRecord::Data { id: 1, at: u64::MAX, data: b"" }];
        for memory in overflowing {
            let len = memory.write(&mut out, 0, 2);
            let record = Records::new(&out[..len + 2], 0).next().unwrap().unwrap();
            assert!(MemoryRecord::parse(&record).is_err(), "{memory:?}");
        }
        for (rest, len) in [(1, 2), (u64::MAX, 0), (0, 3)] {
            let loaned = MemoryRecord::LoanedPart(far, rest, ExtentRef { number: 1, len, at: 0 });
            loaned.write(&mut out, 0, 0);
            let record = Records::new(&out[..LOANED_PART_LEN], 0).next().unwrap().unwrap();
            assert!(MemoryRecord::parse(&record).is_err(), "{loaned:?}");
        }
        for why in [0u32, 8, 256] {
            MemoryRecord::Failed { id: 1, why: Refusal::Rights }.write(&mut out, 0, 0);
            put(&mut out, SHORT_LEN + 4, why.to_le_bytes());
            let record = Records::new(&out[..16], 0).next().unwrap().unwrap();
            assert!(MemoryRecord::parse(&record).is_err());
        }
    }
}
