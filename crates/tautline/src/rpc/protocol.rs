//! The layout of requests and answers.

/// The handlers that receive answers: of one frame, and longer ones.
pub(super) const ANSWER: &str = "tautline.rpc.answer";
pub(super) const LONG_ANSWER: &str = "tautline.rpc.answer.long";
/// The handler that receives the numbers of cancelled calls.
pub(super) const CANCEL: &str = "tautline.rpc.cancel";

/// Bytes in front of a request: the call's number, and the nanoseconds that the caller will wait.
pub(super) const REQUEST_HEAD: usize = 16;
/// Bytes in front of an answer: the call's number, and its status.
pub(super) const ANSWER_HEAD: usize = 16;

/// How a service ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Status {
    Good = 0,
    Failed = 1,
    Panicked = 2,
    Unreadable = 3,
    Busy = 4,
    /// The request was longer than the service's rank keeps.
    TooLong = 5,
}

impl Status {
    #[inline]
    pub(super) fn from_wire(word: u64) -> Status {
        match word {
            0 => Status::Good,
            1 => Status::Failed,
            2 => Status::Panicked,
            4 => Status::Busy,
            5 => Status::TooLong,
            _ => Status::Unreadable,
        }
    }

    #[inline]
    pub(super) fn to_bytes(self) -> [u8; 8] {
        (self as u64).to_le_bytes()
    }
}

/// Reads the word at an offset.
#[inline]
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Bytes that a buffer of an answer keeps allocated.
pub(super) const KEPT: usize = 64 << 10;

/// Frees most memory of a large buffer, whose content is no longer needed.
#[inline]
pub(super) fn shrink(bytes: &mut Vec<u8>) {
    if bytes.capacity() > KEPT {
        bytes.truncate(KEPT);
        bytes.shrink_to(KEPT);
    }
}
