//! What a raw service answers.

use super::{ANSWER_HEAD, GOOD, let_go};

/// The answer of a raw service, which it adds bytes to: empty at first. What the protocol puts in front of them is out of its reach.
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

    /// An answer begins, to the call of this number.
    #[inline]
    pub(super) fn begin(&mut self, id: u64) {
        self.clear();
        self.bytes[..8].copy_from_slice(&id.to_le_bytes());
        self.end(GOOD);
    }

    /// How the call ended.
    #[inline]
    pub(super) fn end(&mut self, how: u64) {
        self.bytes[8..ANSWER_HEAD].copy_from_slice(&how.to_le_bytes());
    }

    /// The answer with its head.
    #[inline]
    pub(super) fn framed(&self) -> &[u8] {
        &self.bytes
    }

    /// It has been sent.
    #[inline]
    pub(super) fn let_go(&mut self) {
        let_go(&mut self.bytes);
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

    /// Takes all bytes away again.
    #[inline]
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Takes all but the first `len` bytes away again.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len.saturating_add(ANSWER_HEAD));
    }

    /// Gives it `len` bytes: what is too much goes, what lacks is `byte`.
    pub fn resize(&mut self, len: usize, byte: u8) {
        self.bytes.resize(len.checked_add(ANSWER_HEAD).expect("more than there is memory"), byte);
    }

    /// Makes room for so many bytes more.
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
    use super::super::{FAILED, KEPT};
    use super::*;

    /// The head is what it was, whatever was answered before; the memory of a long answer is let go.
    #[test]
    fn one_after_the_other() {
        let mut answer = Answer::new();
        for len in [0, 3, 1 << 20, 5] {
            answer.begin(7);
            assert!(answer.is_empty());
            answer.resize(len, 9);
            assert_eq!(answer.len(), len);
            answer.end(FAILED);
            assert_eq!(answer.framed()[..ANSWER_HEAD], [7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(answer.framed()[ANSWER_HEAD..], vec![9; len]);
            answer.let_go();
            assert!(answer.bytes.capacity() <= KEPT);
        }
    }
}
