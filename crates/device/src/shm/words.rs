//! Frames whose heads are words, and copies from shared memory straight into apertures.

use tautline_mem::ring::{LINE_DATA_WORDS, PeekedLine, PoppedLine};
use tautline_mem::{ApertureMemory, OutOfRange};

use super::Shm;

impl Shm {
    /// Sends a frame of up to [`super::LINE_FRAME`] bytes, words first, followed by bytes, and wakes the
    /// other side if it sleeps. Returns false if there is no room.
    #[inline(always)]
    pub fn push_words<const N: usize>(&mut self, head: [u64; N], body: &[u8]) -> bool {
        let pushed = self.tx.push_words(head, body);
        self.wake_for(pushed)
    }

    /// Sends a frame as [`Shm::push_words`] does, of more bytes than a line holds, up to the longest frame.
    #[inline]
    pub fn push_long<const N: usize>(&mut self, head: [u64; N], body: &[u8]) -> bool {
        let pushed = self.tx.push_long(head, body);
        self.wake_for(pushed)
    }

    /// Takes the next frame if it has up to [`super::LINE_FRAME`] bytes and `wanted` accepts its first byte.
    #[inline(always)]
    pub fn pop_words(&mut self, wanted: impl FnOnce(u8) -> bool) -> PoppedLine {
        self.take_with(|rx| rx.pop_words(wanted))
    }

    /// Returns the words of the next frame if it has up to [`super::LINE_FRAME`] bytes, without taking it.
    #[inline(always)]
    pub fn peek_line(&self) -> PeekedLine<'_> {
        self.rx.peek_line()
    }

    /// Takes the frame that [`Shm::peek_line`] returned.
    #[inline(always)]
    pub fn skip_line(&mut self) {
        if self.rx.skip_line() {
            self.wake_if_asleep();
        }
    }

    /// Returns the first words of the frame whose length [`Shm::peek`] returned.
    #[inline]
    pub fn first_words(&self) -> [u64; LINE_DATA_WORDS] {
        self.rx.first_words()
    }

    /// Takes the frame whose length [`Shm::peek`] returned, and copies what is not among its first words to
    /// `out`. What `out` has no room for is dropped.
    #[inline]
    pub fn take_rest_into(&mut self, len: usize, out: &mut [u8]) {
        self.take_with(|rx| rx.pop_rest_into(len, out));
    }

    /// Takes the frame whose length [`Shm::peek`] returned, and copies what is not among its first words to
    /// an aperture.
    #[inline]
    pub fn take_rest(&mut self, len: usize, to: (&ApertureMemory, usize)) -> Result<(), OutOfRange> {
        self.take_with(|rx| rx.pop_rest(len, to))
    }
}
