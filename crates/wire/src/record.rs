//! The records of a slot (W-6). A slot may hold several records, of different messages.

use crate::layout::fields;
use crate::{Malformed, put, u16_at, u32_at, u64_at};

/// Length of the header that every record starts with. A short message has no other.
pub const SHORT_LEN: usize = 8;
/// Length of the long header.
pub const LONG_LEN: usize = 24;

fields! { LONG_LEN;
    AT_KIND: 0, 1;
    AT_FLAGS: 1, 1;
    AT_HANDLER: 2, 2;
    AT_LEN: 4, 4;
    AT_MESSAGE: 8, 4;
    AT_AUX: 12, 4;
    AT_WIDE: 16, 8;
}

const SHORT: u8 = 1;
const FIRST: u8 = 2;
const MORE: u8 = 3;
const ABORT: u8 = 4;
const WINDOW: u8 = 5;
const HANDLERS: u8 = 6;
const LOAN: u8 = 7;
const LOAN_MORE: u8 = 8;
/// Kinds of memory records; [`crate::memory`] defines them.
pub(crate) const MEMORY_KINDS: std::ops::RangeInclusive<u8> = 16..=30;
/// Kinds of tag records; [`crate::tags`] defines them.
pub(crate) const TAG_KINDS: std::ops::RangeInclusive<u8> = 32..=39;
/// Kinds of multicast records; [`crate::multicast`] defines them.
pub(crate) const MULTICAST_KINDS: std::ops::RangeInclusive<u8> = 40..=46;

/// The records that may share a slot (W-11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Messages and parts of them, and control records.
    Messages,
    /// Memory records.
    Memory,
    /// Tag records.
    Tags,
    /// Multicast records.
    Multicast,
}

impl Class {
    /// Returns the class of a slot that starts with this byte.
    #[inline]
    pub fn of(first: u8) -> Class {
        if first < *MEMORY_KINDS.start() {
            Class::Messages
        } else if first < *TAG_KINDS.start() {
            Class::Memory
        } else if first < *MULTICAST_KINDS.start() {
            Class::Tags
        } else {
            Class::Multicast
        }
    }
}

/// A record of [`Class::Memory`], [`Class::Tags`] or [`Class::Multicast`], without its data.
pub trait RecordHead {
    /// The records that it shares slots with.
    const CLASS: Class;

    /// Returns the length of the head.
    fn head_len(&self) -> usize;

    /// Writes the head, after which the caller appends `len` bytes of data. Returns the length of the head.
    fn write(&self, out: &mut [u8], flags: u8, len: usize) -> usize;
}

/// Length of a record with a loan.
pub const LOAN_LEN: usize = LONG_LEN + 8;
/// Length of a record with a part of a message on loan.
pub const LOAN_MORE_LEN: usize = LONG_LEN + 16;

/// Returns whether a record that starts with this byte is a whole message.
#[inline]
pub fn is_whole_message(first: u8) -> bool {
    matches!(first, SHORT | LOAN)
}

/// Returns handler and data of a slot that holds one short message and nothing else.
#[inline]
pub fn as_short(slot: &[u8]) -> Option<(u16, &[u8])> {
    let (head, data) = slot.split_first_chunk::<SHORT_LEN>()?;
    let alone = head[AT_KIND] == SHORT && u32_at(head, AT_LEN) as usize == data.len();
    alone.then(|| (u16_at(head, AT_HANDLER), data))
}

/// Returns message, offset and data of a slot that holds one further part of a message and nothing else.
#[inline]
pub fn as_more(slot: &[u8]) -> Option<(u32, u64, &[u8])> {
    let (head, data) = slot.split_first_chunk::<LONG_LEN>()?;
    let (len, offset) = (u32_at(head, AT_LEN) as usize, u64_at(head, AT_WIDE));
    let alone = head[AT_KIND] == MORE && len == data.len() && offset.checked_add(len as u64).is_some();
    alone.then(|| (u32_at(head, AT_MESSAGE), offset, data))
}

/// Returns the length of the loan that a slot starts with; zero if it starts with none.
#[inline]
pub fn loaned_len(slot: &[u8]) -> u64 {
    match slot.first() {
        Some(&LOAN) if slot.len() >= LOAN_LEN => u64_at(slot, LONG_LEN),
        Some(&LOAN_MORE) if slot.len() >= LOAN_MORE_LEN => u32_at(slot, AT_AUX).into(),
        _ => 0,
    }
}

/// Returns whether a record that starts with this byte is a control record or one that the node serves. These
/// are processed as soon as their slot is next in order, without the program (W-6, W-11).
#[inline]
pub fn is_control(first: u8) -> bool {
    matches!(first, WINDOW | HANDLERS) || is_served(first)
}

/// Returns whether a record that starts with this byte is a memory record, a tag record (E-3) or a
/// multicast record: the node serves it, whether the program polls or not.
#[inline]
pub fn is_served(first: u8) -> bool {
    (*MEMORY_KINDS.start()..=*MULTICAST_KINDS.end()).contains(&first)
}

/// A record. The data of `Short`, `First`, `More` and `Handlers` follows the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A whole message.
    Short {
        /// The receiver's number for the handler.
        handler: u16,
        /// The whole message.
        data: &'a [u8],
    },
    /// The beginning of a message.
    First {
        /// The receiver's number for the handler.
        handler: u16,
        /// The sender's number for the message, consecutive per channel.
        message: u32,
        /// Length of the whole message.
        total: u64,
        /// The first bytes of the message; may be empty.
        data: &'a [u8],
    },
    /// The next part of a message.
    More {
        /// The message.
        message: u32,
        /// Where in the message the data begins.
        offset: u64,
        /// The data.
        data: &'a [u8],
    },
    /// The sender aborted the message: the rest will not be sent.
    Abort {
        /// The message.
        message: u32,
    },
    /// The receiver opens the window of a message.
    Window {
        /// The message.
        message: u32,
        /// How many bytes of the message may be sent in total.
        limit: u64,
    },
    /// Names and numbers of handlers (M-1).
    Handlers {
        /// Whether this ends the table.
        last: bool,
        /// The entries, for [`HandlerNames`].
        data: &'a [u8],
    },
    /// A whole message on loan: the receiver reads it in the sender's memory, then returns the number. Only
    /// over shared memory (S-19).
    Loan {
        /// The receiver's number for the handler.
        handler: u16,
        /// The number of the loan, which the receiver returns.
        number: u32,
        /// Where the message is.
        at: LoanLocation,
        /// Length of the message.
        len: u64,
    },
    /// The next part of a message, on loan in the sender's pool (S-21).
    LoanMore {
        /// The message.
        message: u32,
        /// Where in the message the data begins.
        offset: u64,
        /// The number of the loan, which the receiver returns.
        number: u32,
        /// Where in the pool the part begins.
        at: u64,
        /// Length of the part.
        len: u32,
    },
    /// A memory operation or an answer to one, for [`crate::memory::MemoryRecord::parse`].
    Memory {
        /// The kind of operation or answer.
        kind: u8,
        /// See [`crate::memory::COMPLETION_REQUESTED`].
        flags: u8,
        /// The rest of the record.
        body: &'a [u8],
    },
    /// A message with a tag, or what its sides tell each other about it, for
    /// [`crate::tags::TagRecord::parse`].
    Tag {
        /// The kind of record.
        kind: u8,
        /// The flags of that kind.
        flags: u8,
        /// The rest of the record.
        body: &'a [u8],
    },
    /// Bytes of a multicast, or what the nodes of its tree tell each other, for
    /// [`crate::multicast::MulticastRecord::parse`].
    Multicast {
        /// The kind of record.
        kind: u8,
        /// The flags of that kind.
        flags: u8,
        /// The rest of the record.
        body: &'a [u8],
    },
}

/// Where a message on loan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoanLocation {
    /// At this offset in the sender's pool.
    Pool(u64),
    /// At this address of the sender's process.
    Process(u64),
}

/// Functions that write headers of records. They return the header's length.
pub mod write {
    use super::*;

    fn base(out: &mut [u8], kind: u8, handler: u16, len: usize) {
        out[AT_KIND] = kind;
        out[AT_FLAGS] = 0;
        put(out, AT_HANDLER, handler.to_le_bytes());
        put(out, AT_LEN, (len as u32).to_le_bytes());
    }

    fn long(out: &mut [u8], message: u32, wide: u64) -> usize {
        put(out, AT_MESSAGE, message.to_le_bytes());
        put(out, AT_AUX, [0; 4]);
        put(out, AT_WIDE, wide.to_le_bytes());
        LONG_LEN
    }

    /// Writes the header of a short message.
    #[inline]
    pub fn short(out: &mut [u8], handler: u16, len: usize) -> usize {
        base(&mut out[..SHORT_LEN], SHORT, handler, len);
        SHORT_LEN
    }

    /// Writes the header of a message's first record.
    #[inline]
    pub fn first(out: &mut [u8], handler: u16, message: u32, total: u64, len: usize) -> usize {
        let out = &mut out[..LONG_LEN];
        base(out, FIRST, handler, len);
        long(out, message, total)
    }

    /// Writes the header of a message's next record.
    #[inline]
    pub fn more(out: &mut [u8], message: u32, offset: u64, len: usize) -> usize {
        let out = &mut out[..LONG_LEN];
        base(out, MORE, 0, len);
        long(out, message, offset)
    }

    /// Writes a record that aborts a message.
    pub fn abort(out: &mut [u8], message: u32) -> usize {
        let out = &mut out[..LONG_LEN];
        base(out, ABORT, 0, 0);
        long(out, message, 0)
    }

    /// Writes a record that opens a message's window.
    pub fn window(out: &mut [u8], message: u32, limit: u64) -> usize {
        let out = &mut out[..LONG_LEN];
        base(out, WINDOW, 0, 0);
        long(out, message, limit)
    }

    /// Writes the header of a table of handler names.
    pub fn handlers(out: &mut [u8], last: bool, len: usize) -> usize {
        base(&mut out[..SHORT_LEN], HANDLERS, u16::from(last), len);
        SHORT_LEN
    }

    /// Writes a record with a message on loan.
    #[inline]
    pub fn loan(out: &mut [u8], handler: u16, number: u32, at: LoanLocation, len: u64) -> usize {
        let out = &mut out[..LOAN_LEN];
        base(out, LOAN, handler, LOAN_LEN - LONG_LEN);
        let (kind, at) = match at {
            LoanLocation::Pool(at) => (0u32, at),
            LoanLocation::Process(at) => (1, at),
        };
        long(out, number, at);
        put(out, AT_AUX, kind.to_le_bytes());
        put(out, LONG_LEN, len.to_le_bytes());
        LOAN_LEN
    }

    /// Writes a record with a part of a message on loan.
    #[inline]
    pub fn loan_more(out: &mut [u8], message: u32, offset: u64, (number, at, len): (u32, u64, u32)) -> usize {
        let out = &mut out[..LOAN_MORE_LEN];
        base(out, LOAN_MORE, 0, LOAN_MORE_LEN - LONG_LEN);
        long(out, message, offset);
        put(out, AT_AUX, len.to_le_bytes());
        put(out, LONG_LEN, u64::from(number).to_le_bytes());
        put(out, LONG_LEN + 8, at.to_le_bytes());
        LOAN_MORE_LEN
    }

    /// Writes the header of a memory, tag or multicast record.
    #[inline]
    pub(crate) fn head(out: &mut [u8], kind: u8, flags: u8, len: usize) {
        base(&mut out[..SHORT_LEN], kind, 0, len);
        out[AT_FLAGS] = flags;
    }

    /// Sets the data length of a record whose header starts at `out[0]`.
    #[inline]
    pub fn set_len(out: &mut [u8], len: usize) {
        put(out, AT_LEN, (len as u32).to_le_bytes());
    }

    /// Writes one entry of a table of handler names. Returns its length, or `None` if it does not fit.
    pub fn handler_name(out: &mut [u8], number: u16, name: &str) -> Option<usize> {
        let len = u8::try_from(name.len()).ok()?;
        let out = out.get_mut(..3 + name.len())?;
        put(out, 0, number.to_le_bytes());
        out[2] = len;
        out[3..].copy_from_slice(name.as_bytes());
        Some(out.len())
    }
}

/// Iterates over the records of a slot. A malformed record is returned as an error and ends the iteration.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Records<'a> {
    /// Reads a slot from `at` on.
    #[inline]
    pub fn new(bytes: &'a [u8], at: usize) -> Records<'a> {
        Records { bytes, at }
    }

    /// Returns the position of the next record, at which [`Records::new`] can resume.
    #[inline]
    pub fn position(&self) -> usize {
        self.at
    }

    #[inline]
    fn take(&mut self) -> Result<Record<'a>, Malformed> {
        let rest = &self.bytes[self.at..];
        if rest.len() < SHORT_LEN {
            return Err(Malformed::Truncated);
        }
        let kind = rest[AT_KIND];
        let handler = u16_at(rest, AT_HANDLER);
        let len = u32_at(rest, AT_LEN) as usize;
        let head = if matches!(kind, SHORT | HANDLERS) || is_served(kind) { SHORT_LEN } else { LONG_LEN };
        // W-7: a record ends within its slot.
        let end = head.checked_add(len).ok_or(Malformed::Truncated)?;
        let data = rest.get(head..end).ok_or(Malformed::Truncated)?;
        self.at += end;
        if kind == SHORT {
            return Ok(Record::Short { handler, data });
        }
        Self::take_long(kind, handler, rest, data)
    }

    fn take_long(kind: u8, handler: u16, rest: &[u8], data: &'a [u8]) -> Result<Record<'a>, Malformed> {
        if kind == HANDLERS {
            return Ok(Record::Handlers { last: handler != 0, data });
        }
        if MEMORY_KINDS.contains(&kind) {
            return Ok(Record::Memory { kind, flags: rest[AT_FLAGS], body: data });
        }
        if TAG_KINDS.contains(&kind) {
            return Ok(Record::Tag { kind, flags: rest[AT_FLAGS], body: data });
        }
        if MULTICAST_KINDS.contains(&kind) {
            return Ok(Record::Multicast { kind, flags: rest[AT_FLAGS], body: data });
        }
        if is_served(kind) {
            return Err(Malformed::UnknownKind);
        }
        let (message, wide) = (u32_at(rest, AT_MESSAGE), u64_at(rest, AT_WIDE));
        match kind {
            FIRST if data.len() as u64 <= wide => Ok(Record::First { handler, message, total: wide, data }),
            MORE if wide.checked_add(data.len() as u64).is_some() => {
                Ok(Record::More { message, offset: wide, data })
            }
            ABORT if data.is_empty() => Ok(Record::Abort { message }),
            WINDOW if data.is_empty() => Ok(Record::Window { message, limit: wide }),
            LOAN if data.len() == 8 => {
                let at = match u32_at(rest, AT_AUX) {
                    0 => LoanLocation::Pool(wide),
                    1 => LoanLocation::Process(wide),
                    _ => return Err(Malformed::BadValue),
                };
                Ok(Record::Loan { handler, number: message, at, len: u64_at(data, 0) })
            }
            LOAN_MORE if data.len() == 16 => {
                let len = u32_at(rest, AT_AUX);
                let number = u32::try_from(u64_at(data, 0)).map_err(|_| Malformed::BadValue)?;
                wide.checked_add(u64::from(len)).ok_or(Malformed::BadValue)?;
                Ok(Record::LoanMore { message, offset: wide, number, at: u64_at(data, 8), len })
            }
            FIRST | MORE | ABORT | WINDOW | LOAN | LOAN_MORE => Err(Malformed::BadValue),
            _ => Err(Malformed::UnknownKind),
        }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let item = self.take();
        if item.is_err() {
            self.at = self.bytes.len();
        }
        Some(item)
    }
}

/// Iterates over the entries of a table of handler names.
#[derive(Clone, Debug)]
pub struct HandlerNames<'a> {
    rest: &'a [u8],
}

impl<'a> HandlerNames<'a> {
    /// Reads the data of [`Record::Handlers`].
    pub fn new(data: &'a [u8]) -> HandlerNames<'a> {
        HandlerNames { rest: data }
    }

    fn take(&mut self) -> Result<(u16, &'a str), Malformed> {
        let rest = self.rest;
        if rest.len() < 3 {
            return Err(Malformed::Truncated);
        }
        let end = 3 + usize::from(rest[2]);
        let name = rest.get(3..end).ok_or(Malformed::Truncated)?;
        self.rest = &rest[end..];
        Ok((u16_at(rest, 0), std::str::from_utf8(name).map_err(|_| Malformed::BadValue)?))
    }
}

impl<'a> Iterator for HandlerNames<'a> {
    type Item = Result<(u16, &'a str), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let item = self.take();
        if item.is_err() {
            self.rest = &[];
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W-6: records of every kind read back as written.
    #[test]
    fn records_round_trip() {
        let mut out = vec![0u8; 512];
        let mut at = 0;
        at += write::short(&mut out[at..], 4, 3);
        out[at..at + 3].copy_from_slice(b"abc");
        at += 3;
        at += write::first(&mut out[at..], 5, 77, 1 << 33, 2);
        out[at..at + 2].copy_from_slice(b"de");
        at += 2;
        at += write::more(&mut out[at..], 77, 2, 0);
        at += write::abort(&mut out[at..], 77);
        at += write::window(&mut out[at..], 78, 1 << 40);
        at += write::loan(&mut out[at..], 9, 200, LoanLocation::Pool(1 << 34), 1 << 33);
        at += write::loan(&mut out[at..], 9, 201, LoanLocation::Process(u64::MAX), 3);
        at += write::loan_more(&mut out[at..], 77, 9, (202, 1 << 20, 3));
        assert_eq!([loaned_len(&out[at - LOAN_MORE_LEN..at]), loaned_len(&out[..at])], [3, 0]);
        assert_eq!(loaned_len(&out[at - LOAN_MORE_LEN - LOAN_LEN..at]), 3);
        let head = at;
        at += write::handlers(&mut out[at..], true, 0);
        let mut len = write::handler_name(&mut out[at..], 1, "one").unwrap();
        len += write::handler_name(&mut out[at + len..], 2, "").unwrap();
        write::set_len(&mut out[head..], len);
        at += len;

        let got: Vec<_> = Records::new(&out[..at], 0).collect::<Result<_, _>>().unwrap();
        assert_eq!(got[0], Record::Short { handler: 4, data: b"abc" });
        assert_eq!(as_short(&out[..SHORT_LEN + 3]), Some((4, &b"abc"[..])));
        assert!(
            [SHORT_LEN - 1, SHORT_LEN + 2, SHORT_LEN + 4].iter().all(|len| as_short(&out[..*len]).is_none())
        );
        assert!(as_short(&out[SHORT_LEN + 3..]).is_none());
        assert_eq!(got[1], Record::First { handler: 5, message: 77, total: 1 << 33, data: b"de" });
        assert_eq!(got[2], Record::More { message: 77, offset: 2, data: b"" });
        assert_eq!(got[3], Record::Abort { message: 77 });
        assert_eq!(got[4], Record::Window { message: 78, limit: 1 << 40 });
        assert_eq!(
            got[5],
            Record::Loan { handler: 9, number: 200, at: LoanLocation::Pool(1 << 34), len: 1 << 33 }
        );
        assert_eq!(
            got[6],
            Record::Loan { handler: 9, number: 201, at: LoanLocation::Process(u64::MAX), len: 3 }
        );
        let more = Record::LoanMore { message: 77, offset: 9, number: 202, at: 1 << 20, len: 3 };
        assert_eq!(got[7], more);
        let Record::Handlers { last: true, data } = got[8] else { panic!("{:?}", got[8]) };
        let names: Vec<_> = HandlerNames::new(data).collect::<Result<_, _>>().unwrap();
        assert_eq!(names, [(1, "one"), (2, "")]);
    }

    /// W-7: records beyond the end of their slot or message are rejected.
    #[test]
    fn overlong_records_are_rejected() {
        let mut out = [0u8; 64];
        write::short(&mut out, 1, 57);
        assert_eq!(Records::new(&out, 0).next(), Some(Err(Malformed::Truncated)));
        write::first(&mut out, 1, 1, 3, 4);
        assert_eq!(Records::new(&out, 0).next(), Some(Err(Malformed::BadValue)));
        write::more(&mut out, 1, u64::MAX, 4);
        assert_eq!(Records::new(&out, 0).next(), Some(Err(Malformed::BadValue)));
        write::loan_more(&mut out, 1, u64::MAX, (1, 0, 4));
        assert_eq!(Records::new(&out, 0).next(), Some(Err(Malformed::BadValue)));
        write::loan(&mut out, 1, 1, LoanLocation::Pool(0), 4);
        out[AT_AUX] = 2;
        assert_eq!(Records::new(&out, 0).next(), Some(Err(Malformed::BadValue)));
        out[0] = 99;
        assert_eq!(Records::new(&out, 0).next(), Some(Err(Malformed::UnknownKind)));
        assert_eq!(Records::new(&out[..5], 0).next(), Some(Err(Malformed::Truncated)));
    }
}
