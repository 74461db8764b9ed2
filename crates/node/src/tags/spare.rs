//! Memory of messages that were taken, for the next ones.

use std::collections::VecDeque;

use crate::limits::TAG_OVERHEAD;

/// Buffers that are kept.
const BUFFERS: usize = 64;
/// A buffer is longer than its message by less than this, so that no message takes more than it is charged
/// (E-5).
const UNIT: usize = 64;

const _: () = assert!(UNIT as u64 <= TAG_OVERHEAD);

/// Buffers for messages of up to a certain length.
#[derive(Debug)]
pub(crate) struct Spare {
    buffers: VecDeque<Vec<u8>>,
    longest: usize,
}

impl Spare {
    pub(crate) fn new(longest: usize) -> Spare {
        Spare { buffers: VecDeque::new(), longest }
    }

    /// Empty memory for a message of `len` bytes.
    pub(crate) fn take(&mut self, len: usize) -> Vec<u8> {
        if len == 0 || len > self.longest {
            return Vec::with_capacity(len);
        }
        let room = len.next_multiple_of(UNIT);
        let fits = |buffer: &Vec<u8>| (len..len + UNIT).contains(&buffer.capacity());
        let kept = self.buffers.iter().rposition(fits).and_then(|at| self.buffers.swap_remove_back(at));
        kept.unwrap_or_else(|| Vec::with_capacity(room))
    }

    /// Keeps memory that is no longer used.
    pub(crate) fn put(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() == 0 || buffer.capacity() > self.longest.next_multiple_of(UNIT) {
            return;
        }
        if self.buffers.len() == BUFFERS {
            // Messages may have another length now.
            self.buffers.pop_front();
        }
        buffer.clear();
        self.buffers.push_back(buffer);
    }
}
