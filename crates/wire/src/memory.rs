//! Memory records: operations on another node's memory, and their answers.
//!
//! They stand in slots of their own, are obeyed as soon as their slot is due, and never wait for the program. Each starts with the eight
//! bytes that every record starts with; `flags` holds [`ASK`], and `len` counts all bytes that follow.

use crate::record::{self, Record, SHORT_LEN};
use crate::{Malformed, put, u32_at, u64_at};

/// The first and the last kind that is a memory record's.
pub(crate) const KINDS: std::ops::RangeInclusive<u8> = OPEN..=LENT;

const OPEN: u8 = 16;
const PUT: u8 = 17;
const PART: u8 = 18;
const NOTICE: u8 = 19;
const GET: u8 = 20;
const SWAP: u8 = 21;
const ADD: u8 = 22;
const CAS: u8 = 23;
const FLUSH: u8 = 24;
const ASIDE: u8 = 25;
const DONE: u8 = 26;
const FAILED: u8 = 27;
const VALUE: u8 = 28;
const DATA: u8 = 29;
const LENT: u8 = 30;

/// The requester wants to be told when this request, and all before it, are done.
pub const ASK: u8 = 1;

/// Bytes of the longest head of a memory record: all but the data.
pub const MAX_HEAD: usize = SHORT_LEN + 40;
/// Bytes of the head of a whole put.
pub const PUT_HEAD: usize = SHORT_LEN + 16;
/// Bytes of the head of a part of a put.
pub const PART_HEAD: usize = SHORT_LEN + 24;
/// Bytes of the head of a part of an answer to a get.
pub const DATA_HEAD: usize = SHORT_LEN + 16;
/// Bytes of a record that lends part of a put.
pub const LENT_LEN: usize = SHORT_LEN + 40;
/// Bytes of the longest out-of-band message.
pub const MAX_OUT_OF_BAND: usize = 40;

/// What names part of another node's memory in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The number under which the requester opened a cookie.
    pub handle: u32,
    /// The request's number, counted up by one per channel.
    pub id: u32,
    /// Where, counted from the start of what the cookie names.
    pub at: u64,
}

/// What happens to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// It becomes this.
    Swap(u64),
    /// This is added, wrapping around.
    Add(u64),
    /// It becomes the second if it is the first.
    CompareSwap(u64, u64),
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Refusal {
    /// No such cookie was ever given, or it was altered.
    Forged = 1,
    /// The cookie is of a former life of its owner.
    Stale = 2,
    /// The cookie was revoked, or its aperture closed.
    Revoked = 3,
    /// The cookie's time is over.
    Expired = 4,
    /// Beyond the end of what the cookie names.
    OutOfRange = 5,
    /// The cookie does not allow this.
    Rights = 6,
    /// A word that is not aligned.
    Misaligned = 7,
}

impl Refusal {
    /// All of them.
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
            Refusal::Forged => "no such cookie was given",
            Refusal::Stale => "the cookie is of a former life of its owner",
            Refusal::Revoked => "the cookie was revoked",
            Refusal::Expired => "the cookie's time is over",
            Refusal::OutOfRange => "beyond the end of what the cookie names",
            Refusal::Rights => "the cookie does not allow this",
            Refusal::Misaligned => "the word is not aligned to eight bytes",
        })
    }
}

/// One memory record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory<'a> {
    /// From now on `handle` stands for a cookie; what it stood for is forgotten.
    Open {
        /// The requester's number for it.
        handle: u32,
        /// The owner's number for the cookie.
        cookie: u32,
        /// The life of the owner that gave it.
        epoch: u64,
        /// What only those know who were given it.
        secret: [u8; 16],
    },
    /// Bytes for a place: all of a put.
    Put(Target, &'a [u8]),
    /// Bytes for a place: part of a put, of which this many bytes follow.
    Part(Target, u64, &'a [u8]),
    /// An event for the owner.
    Notice {
        /// What it is about, and how many bytes of it.
        target: Target,
        /// See `target`.
        len: u64,
        /// What the requester says.
        value: u64,
    },
    /// This many bytes are wanted.
    Get(Target, u64),
    /// A word is changed, and its former value wanted.
    Atomic(Target, Atomic),
    /// Nothing, but it can ask.
    Flush {
        /// The request's number.
        id: u32,
    },
    /// A small message that goes to the event queue.
    OutOfBand(&'a [u8]),
    /// All requests up to this one are done, but for those that have answers of their own.
    Done {
        /// The request's number.
        id: u32,
    },
    /// A request was refused.
    Failed {
        /// The request's number.
        id: u32,
        /// Why.
        why: Refusal,
    },
    /// A word's former value.
    Value {
        /// The request's number.
        id: u32,
        /// The value.
        value: u64,
    },
    /// Bytes that were wanted.
    Data {
        /// The request's number.
        id: u32,
        /// Where in what was wanted.
        at: u64,
        /// The bytes.
        data: &'a [u8],
    },
    /// As [`Memory::Part`], of bytes that lie in the requester's pool, where the owner reads them before it gives the number back; only through shared memory (S-8).
    Lent(Target, u64, Piece),
}

/// Where in the requester's pool the bytes of a part lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What to give back.
    pub number: u32,
    /// How many bytes.
    pub len: u32,
    /// Where in the pool they start.
    pub at: u64,
}

impl<'a> Memory<'a> {
    /// Reads a record.
    #[inline]
    pub fn of(record: &Record<'a>) -> Result<Memory<'a>, Malformed> {
        let Record::Memory { kind, body, .. } = *record else { return Err(Malformed::UnknownKind) };
        match kind {
            PUT if body.len() >= 16 => Ok(Memory::Put(target(body), &body[16..])),
            PART if body.len() >= 24 => Memory::part(body),
            DATA if body.len() >= 16 => {
                let (id, at, data) = (u32_at(body, 0), u64_at(body, 8), &body[16..]);
                at.checked_add(data.len() as u64).ok_or(Malformed::BadValue)?;
                Ok(Memory::Data { id, at, data })
            }
            ASIDE if body.len() <= MAX_OUT_OF_BAND => Ok(Memory::OutOfBand(body)),
            _ => Memory::fixed(kind, body),
        }
    }

    fn part(body: &'a [u8]) -> Result<Memory<'a>, Malformed> {
        let (target, rest, data) = (target(body), u64_at(body, 16), &body[24..]);
        let end = target.at.checked_add(data.len() as u64).and_then(|end| end.checked_add(rest));
        end.ok_or(Malformed::BadValue)?;
        Ok(Memory::Part(target, rest, data))
    }

    fn fixed(kind: u8, body: &'a [u8]) -> Result<Memory<'a>, Malformed> {
        let word = |at| u64_at(body, at);
        match (kind, body.len()) {
            (OPEN, 32) => {
                let mut secret = [0; 16];
                secret.copy_from_slice(&body[16..]);
                let (handle, cookie) = (u32_at(body, 0), u32_at(body, 4));
                Ok(Memory::Open { handle, cookie, epoch: word(8), secret })
            }
            (NOTICE, 32) => Ok(Memory::Notice { target: target(body), len: word(16), value: word(24) }),
            (GET, 24) => Ok(Memory::Get(target(body), word(16))),
            (SWAP, 24) => Ok(Memory::Atomic(target(body), Atomic::Swap(word(16)))),
            (ADD, 24) => Ok(Memory::Atomic(target(body), Atomic::Add(word(16)))),
            (CAS, 32) => Ok(Memory::Atomic(target(body), Atomic::CompareSwap(word(16), word(24)))),
            (FLUSH, 8) => Ok(Memory::Flush { id: u32_at(body, 0) }),
            (DONE, 8) => Ok(Memory::Done { id: u32_at(body, 0) }),
            (FAILED, 8) => {
                let why = Refusal::ALL.into_iter().find(|why| u32::from(*why as u8) == u32_at(body, 4));
                Ok(Memory::Failed { id: u32_at(body, 0), why: why.ok_or(Malformed::BadValue)? })
            }
            (VALUE, 16) => Ok(Memory::Value { id: u32_at(body, 0), value: word(8) }),
            (LENT, 40) => {
                let piece = Piece { number: u32_at(body, 24), len: u32_at(body, 28), at: word(32) };
                let (target, rest) = (target(body), word(16));
                let end = target.at.checked_add(piece.len.into()).and_then(|end| end.checked_add(rest));
                end.ok_or(Malformed::BadValue)?;
                Ok(Memory::Lent(target, rest, piece))
            }
            (OPEN..=LENT, _) => Err(Malformed::BadValue),
            _ => Err(Malformed::UnknownKind),
        }
    }

    /// Bytes of the record without its data.
    pub fn head_len(&self) -> usize {
        SHORT_LEN
            + match self {
                Memory::Lent(..) => 40,
                Memory::Open { .. } | Memory::Notice { .. } => 32,
                Memory::Atomic(_, Atomic::CompareSwap(..)) => 32,
                Memory::Part(..) | Memory::Get(..) | Memory::Atomic(..) => 24,
                Memory::Put(..) | Memory::Value { .. } | Memory::Data { .. } => 16,
                Memory::Flush { .. } | Memory::Done { .. } | Memory::Failed { .. } => 8,
                Memory::OutOfBand(_) => 0,
            }
    }

    /// Writes all of the record but its data, of which `len` bytes follow; what data the record itself holds is not looked at. Returns the
    /// head's length.
    #[inline]
    pub fn write(&self, out: &mut [u8], flags: u8, len: usize) -> usize {
        let head = self.head_len();
        let out = &mut out[..head];
        let kind = match *self {
            Memory::Put(target, _) => put_target(out, PUT, target),
            Memory::Part(target, rest, _) => {
                put(out, SHORT_LEN + 16, rest.to_le_bytes());
                put_target(out, PART, target)
            }
            Memory::Data { id, at, .. } => put_target(out, DATA, Target { handle: id, id: 0, at }),
            _ => self.write_fixed(out),
        };
        record::write::memory(out, kind, flags, head - SHORT_LEN + len);
        head
    }

    fn write_fixed(&self, out: &mut [u8]) -> u8 {
        let body = &mut out[SHORT_LEN..];
        match *self {
            Memory::Open { handle, cookie, epoch, secret } => {
                put(body, 0, handle.to_le_bytes());
                put(body, 4, cookie.to_le_bytes());
                put(body, 8, epoch.to_le_bytes());
                put(body, 16, secret);
                OPEN
            }
            Memory::Notice { target, len, value } => {
                put(body, 16, len.to_le_bytes());
                put(body, 24, value.to_le_bytes());
                put_target(out, NOTICE, target)
            }
            Memory::Get(target, len) => {
                put(body, 16, len.to_le_bytes());
                put_target(out, GET, target)
            }
            Memory::Atomic(target, atomic) => {
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
            Memory::Flush { id } => put_id(body, FLUSH, id, 0),
            Memory::Done { id } => put_id(body, DONE, id, 0),
            Memory::Failed { id, why } => put_id(body, FAILED, id, why as u32),
            Memory::Value { id, value } => {
                put(body, 8, value.to_le_bytes());
                put_id(body, VALUE, id, 0)
            }
            Memory::OutOfBand(_) => ASIDE,
            Memory::Lent(target, rest, piece) => {
                put(body, 16, rest.to_le_bytes());
                put(body, 24, piece.number.to_le_bytes());
                put(body, 28, piece.len.to_le_bytes());
                put(body, 32, piece.at.to_le_bytes());
                put_target(out, LENT, target)
            }
            Memory::Put(..) | Memory::Part(..) | Memory::Data { .. } => unreachable!("written above"),
        }
    }
}

/// The words of the head of a whole put of `len` bytes, of [`PUT_HEAD`] bytes: what [`Memory::write`] writes.
#[inline(always)]
pub fn put_words(target: Target, flags: u8, len: usize) -> [u64; PUT_HEAD / 8] {
    let first = u64::from(PUT) | u64::from(flags) << 8 | ((PUT_HEAD - SHORT_LEN + len) as u64) << 32;
    [first, u64::from(target.handle) | u64::from(target.id) << 32, target.at]
}

/// Reads the head of a frame of `len` bytes that is one whole put and nothing else: its target, its flags, and how many bytes it puts. Nothing if it is something else,
/// or nonsense.
#[inline(always)]
pub fn put_of(words: [u64; PUT_HEAD / 8], len: usize) -> Option<(Target, u8, usize)> {
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

    fn all() -> Vec<Memory<'static>> {
        vec![
            Memory::Open { handle: 1, cookie: 2, epoch: 3, secret: [4; 16] },
            Memory::Put(TARGET, b"12345678"),
            Memory::Part(TARGET, 5, b"abc"),
            Memory::Notice { target: TARGET, len: 5, value: 6 },
            Memory::Get(TARGET, 1 << 33),
            Memory::Atomic(TARGET, Atomic::Swap(7)),
            Memory::Atomic(TARGET, Atomic::Add(8)),
            Memory::Atomic(TARGET, Atomic::CompareSwap(9, 10)),
            Memory::Flush { id: 11 },
            Memory::OutOfBand(b"by the way"),
            Memory::Done { id: 12 },
            Memory::Failed { id: 13, why: Refusal::Rights },
            Memory::Value { id: 14, value: 15 },
            Memory::Data { id: 16, at: 17, data: b"x" },
            Memory::Lent(TARGET, 5, Piece { number: 18, len: 19, at: 1 << 20 }),
        ]
    }

    fn data<'a>(memory: &Memory<'a>) -> &'a [u8] {
        match *memory {
            Memory::Put(_, data)
            | Memory::Part(_, _, data)
            | Memory::OutOfBand(data)
            | Memory::Data { data, .. } => data,
            _ => &[],
        }
    }

    /// every memory record reads back as written, several to a slot.
    #[test]
    fn round_trip() {
        let mut out = vec![0u8; 1024];
        let mut at = 0;
        for memory in all() {
            let data = data(&memory);
            at += memory.write(&mut out[at..], ASK, data.len());
            out[at..at + data.len()].copy_from_slice(data);
            at += data.len();
        }
        let got: Vec<_> = Records::new(&out[..at], 0).map(Result::unwrap).collect();
        assert_eq!(got.iter().map(|r| Memory::of(r).unwrap()).collect::<Vec<_>>(), all());
        assert!(got.iter().all(|r| matches!(r, Record::Memory { flags: ASK, .. })));
    }

    /// the head of a put is the same by words and by bytes, and nothing else is taken for one.
    #[test]
    fn puts_by_words() {
        let words = |bytes: &[u8]| {
            let (parts, _) = bytes.as_chunks::<8>();
            [0, 1, 2].map(|i| parts.get(i).map_or(0, |part| u64::from_le_bytes(*part)))
        };
        let mut out = [0u8; 128];
        for memory in all() {
            let data = data(&memory);
            let head = memory.write(&mut out, ASK, data.len());
            let len = head + data.len();
            let Memory::Put(target, _) = memory else {
                assert_eq!(put_of(words(&out), len), None, "{memory:?}");
                continue;
            };
            assert_eq!(words(&out), put_words(target, ASK, data.len()));
            assert_eq!(put_of(words(&out), len), Some((target, ASK, data.len())));
            for wrong in [0, 8, head - 1, len - 1, len + 1, len + 8] {
                assert_eq!(put_of(words(&out), wrong), None, "{wrong} bytes");
            }
        }
    }

    /// W-7: a memory record of the wrong length, or with numbers that overflow, is refused.
    #[test]
    fn refuses_nonsense() {
        let mut out = [0u8; 128];
        for memory in all().iter().filter(|m| data(m).is_empty()) {
            for extra in [1, 8] {
                let len = memory.write(&mut out, 0, extra);
                let record = Records::new(&out[..len + extra], 0).next().unwrap().unwrap();
                assert!(Memory::of(&record).is_err(), "{memory:?} with {extra} more");
            }
        }
        let far = Target { at: u64::MAX - 2, ..TARGET };
        let overflowing = [Memory::Part(far, 1, b""), Memory::Data { id: 1, at: u64::MAX, data: b"" }];
        for memory in overflowing {
            let len = memory.write(&mut out, 0, 2);
            let record = Records::new(&out[..len + 2], 0).next().unwrap().unwrap();
            assert!(Memory::of(&record).is_err(), "{memory:?}");
        }
        for (rest, len) in [(1, 2), (u64::MAX, 0), (0, 3)] {
            let lent = Memory::Lent(far, rest, Piece { number: 1, len, at: 0 });
            lent.write(&mut out, 0, 0);
            let record = Records::new(&out[..LENT_LEN], 0).next().unwrap().unwrap();
            assert!(Memory::of(&record).is_err(), "{lent:?}");
        }
        for why in [0u32, 8, 256] {
            Memory::Failed { id: 1, why: Refusal::Rights }.write(&mut out, 0, 0);
            put(&mut out, SHORT_LEN + 4, why.to_le_bytes());
            let record = Records::new(&out[..16], 0).next().unwrap().unwrap();
            assert!(Memory::of(&record).is_err());
        }
    }
}
