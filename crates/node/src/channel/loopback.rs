//! The loopback kind: a node's channel to itself, a queue in private memory.

use tautline_device::Channel as _;
use tautline_device::loopback::Loopback;

/// The channel of a node to itself.
#[derive(Debug)]
pub(super) struct LoopbackChannel {
    queue: Loopback,
    /// Frames that may be ready or with the program at once.
    limit: usize,
    pending: usize,
}

impl LoopbackChannel {
    pub(super) fn new(max_frame: usize, frames: usize) -> LoopbackChannel {
        LoopbackChannel { queue: Loopback::new(max_frame, frames), limit: frames, pending: 0 }
    }

    pub(super) fn max_frame(&self) -> usize {
        self.queue.max_frame()
    }

    /// How many frames of the largest size fit now.
    pub(super) fn room(&mut self) -> usize {
        self.queue.room()
    }

    /// Queues a frame; false if there is no room.
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        self.queue.push(bytes, &[]).is_ok()
    }

    /// Takes the oldest frame out into `buffer`. It counts as pending unless it is consumed at once. False if
    /// there is none, or as many are pending as may be.
    pub(super) fn pop(&mut self, buffer: &mut Vec<u8>) -> bool {
        if self.pending >= self.limit {
            return false;
        }
        buffer.resize(self.queue.max_frame(), 0);
        let Some(len) = self.queue.pop(buffer) else { return false };
        buffer.truncate(len);
        self.pending += 1;
        true
    }

    /// Whether [`LoopbackChannel::pop`] would take a frame out.
    pub(super) fn has_takeable_frames(&self) -> bool {
        self.pending < self.limit && !self.queue.is_empty()
    }

    pub(super) fn consumed(&mut self, frames: u32) {
        self.pending -= frames as usize;
    }
}
