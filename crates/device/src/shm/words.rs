//! Frames whose heads are words, and what goes from shared memory straight to where others may reach it.

use tautline_mem::ring::{LINE_DATA_WORDS, PoppedLine};
use tautline_mem::{ApertureMemory, OutOfRange};

use super::Shm;

impl Shm {
    /// Sends a frame of up to [`super::LINE_FRAME`] bytes, first words and bytes behind them, and wakes the other side if it sleeps. False if there is no room.
    #[inline(always)]
    pub fn push_words<const N: usize>(&mut self, head: [u64; N], body: &[u8]) -> bool {
        let pushed = self.tx.push_words(head, body);
        self.announce(pushed)
    }

    /// As [`Shm::push_words`], of more bytes than a line holds, and no more than the longest frame has.
    #[inline]
    pub fn push_long<const N: usize>(&mut self, head: [u64; N], body: &[u8]) -> bool {
        let pushed = self.tx.push_long(head, body);
        self.announce(pushed)
    }

    /// Takes the next frame, if it is one of up to [`super::LINE_FRAME`] bytes that starts as `wanted`.
    #[inline(always)]
    pub fn pop_words(&mut self, wanted: impl FnOnce(u8) -> bool) -> PoppedLine {
        self.taking(|rx| rx.pop_words(wanted))
    }

    /// The first words of the frame whose length [`Shm::peek`] told.
    #[inline]
    pub fn first_words(&self) -> [u64; LINE_DATA_WORDS] {
        self.rx.first_words()
    }

    /// Takes the frame whose length [`Shm::peek`] told; what is not among its first words goes straight to where others may reach it.
    #[inline]
    pub fn take_rest(&mut self, len: usize, to: (&ApertureMemory, usize)) -> Result<(), OutOfRange> {
        self.taking(|rx| rx.pop_rest(len, to))
    }
}
