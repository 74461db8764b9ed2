//! The answer of a raw service.

use super::protocol::{ANSWER_HEAD, Status, shrink};

/// The answer of a raw service, empty at first, to which it adds bytes. The protocol's own bytes, in front of
/// them, are out of its reach.
pub struct Answer {
    /// Head and answer.
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Answer").field(&&**self).finish()
    }
}

impl Answer {
    pub(super) fn new() -> Answer {
        Answer { bytes: vec![0; ANSWER_HEAD] }
    }

    /// Begins an answer to a call.
    #[inline]
    pub(super) fn begin(&mut self, number: u64) {
        self.clear();
        self.bytes[..8].copy_from_slice(&number.to_le_bytes());
        self.set_status(Status::Good);
    }

    #[inline]
    pub(super) fn set_status(&mut self, status: Status) {
        self.bytes[8..ANSWER_HEAD].copy_from_slice(&status.to_bytes());
    }

    /// The answer with its head.
    #[inline]
    pub(super) fn with_head(&self) -> &[u8] {
        &self.bytes
    }

    /// Frees the memory of a long answer that was sent.
    #[inline]
    pub(super) fn shrink(&mut self) {
        shrink(&mut self.bytes);
    }

    /// Adds bytes.
    #[inline]
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Adds a byte.
    #[inline]
    pub fn push(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    /// Removes all bytes.
    #[inline]
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Removes all but the first `len` bytes.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len.saturating_add(ANSWER_HEAD));
    }

    /// Changes the length to `len`: removes bytes at the end, or appends `byte`s.
    pub fn resize(&mut self, len: usize, byte: u8) {
        self.bytes.resize(len.checked_add(ANSWER_HEAD).expect("a length that fits memory"), byte);
    }

    /// Reserves memory for `more` further bytes.
    pub fn reserve(&mut self, more: usize) {
        self.bytes.reserve(more);
    }
}

impl std::ops::Deref for Answer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[ANSWER_HEAD..]
    }
}

impl std::ops::DerefMut for Answer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[ANSWER_HEAD..]
    }
}

impl Extend<u8> for Answer {
    fn extend<I: IntoIterator<Item = u8>>(&mut self, bytes: I) {
        self.bytes.extend(bytes);
    }
}

impl<'a> Extend<&'a u8> for Answer {
    fn extend<I: IntoIterator<Item = &'a u8>>(&mut self, bytes: I) {
        self.bytes.extend(bytes);
    }
}

impl std::io::Write for Answer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::protocol::KEPT;
    use super::*;

    /// The head is right whatever was answered before, and the memory of a long answer is freed.
    #[test]
    fn one_answer_after_the_other() {
        let mut answer = Answer::new();
        for len in [0, 3, 1 << 20, 5] {
            answer.begin(7);
            assert!(answer.is_empty());
            answer.resize(len, 9);
            assert_eq!(answer.len(), len);
            answer.set_status(Status::Failed);
            assert_eq!(answer.with_head()[..ANSWER_HEAD], [7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(answer.with_head()[ANSWER_HEAD..], vec![9; len]);
            answer.shrink();
            assert!(answer.bytes.capacity() <= KEPT);
        }
    }
}
