//! A batch of received frames: the caller's buffers, and where in them the frames lie.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::sys::{LentChunks, ReceivedChunk, Umem};

/// Bytes of one receive buffer: the largest UDP payload, or a whole train of coalesced frames.
pub const BUFFER_LEN: usize = 65_536;

/// The most frames in one buffer: as many as the kernel coalesces (`UDP_MAX_SEGMENTS`).
pub(crate) const TRAIN_MAX: usize = 128;

/// One received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxFrame {
    /// The buffer that it is in.
    pub buffer: u32,
    /// Its start in the buffer.
    pub start: u32,
    /// Its length.
    pub len: u32,
}

/// Received frames. A device fills the batch; its owner reads frames in place and passes it to the device
/// again.
#[derive(Debug)]
pub struct RxBatch {
    pub(crate) buffers: Vec<Box<[u8]>>,
    pub(crate) sources: Vec<Option<SocketAddr>>,
    pub(crate) frames: Vec<RxFrame>,
    /// Frames that lie in a device's own memory; their buffers are numbered after ours (D-10).
    loans: LentChunks,
    lent_from: Vec<Option<SocketAddr>>,
}

impl RxBatch {
    /// Creates a batch of `buffers` buffers.
    pub fn new(buffers: usize) -> RxBatch {
        RxBatch {
            buffers: (0..buffers).map(|_| vec![0; BUFFER_LEN].into_boxed_slice()).collect(),
            sources: vec![None; buffers],
            frames: Vec::with_capacity(buffers * TRAIN_MAX),
            loans: LentChunks::default(),
            lent_from: Vec::new(),
        }
    }

    /// Removes all frames; those in a device's memory are returned to it.
    #[inline]
    pub fn clear(&mut self) {
        self.frames.clear();
        if !self.loans.is_empty() {
            self.loans.clear();
            self.lent_from.clear();
        }
    }

    /// Returns the frames, in order of arrival.
    pub fn frames(&self) -> &[RxFrame] {
        &self.frames
    }

    /// Returns a frame's source. The address is the sender's; the port may differ from the one that its
    /// device is bound to.
    pub fn source(&self, frame: RxFrame) -> Option<SocketAddr> {
        match self.sources.get(frame.buffer as usize) {
            Some(source) => *source,
            None => self.lent_from[frame.buffer as usize - self.buffers.len()],
        }
    }

    /// Returns a frame's bytes.
    #[inline]
    pub fn bytes(&self, frame: RxFrame) -> &[u8] {
        match self.buffers.get(frame.buffer as usize) {
            Some(buffer) => &buffer[frame.start as usize..][..frame.len as usize],
            None => {
                let lent = frame.buffer as usize - self.buffers.len();
                self.loans.bytes(lent, frame.start as usize, frame.len as usize)
            }
        }
    }

    /// Returns a frame's bytes, to decrypt in place.
    #[inline]
    pub fn bytes_mut(&mut self, frame: RxFrame) -> &mut [u8] {
        let own = self.buffers.len();
        match self.buffers.get_mut(frame.buffer as usize) {
            Some(buffer) => &mut buffer[frame.start as usize..][..frame.len as usize],
            None => {
                let lent = frame.buffer as usize - own;
                self.loans.bytes_mut(lent, frame.start as usize, frame.len as usize)
            }
        }
    }

    /// Adds a frame in a device's memory, without what is before `from` and behind `to` (D-10).
    #[inline]
    pub(crate) fn lend(
        &mut self,
        umem: &Arc<Umem>,
        frame: ReceivedChunk,
        (from, to): (usize, usize),
        source: Option<SocketAddr>,
    ) {
        let lent = self.loans.lend(umem, frame, from, to);
        self.lent_from.push(source);
        let buffer = (self.buffers.len() + lent) as u32;
        self.frames.push(RxFrame { buffer, start: 0, len: (to - from) as u32 });
    }

    /// Removes all frames; those of this memory are passed to `take`.
    #[inline]
    pub(crate) fn take_back(&mut self, umem: &Arc<Umem>, take: impl FnMut(crate::sys::Chunk)) {
        self.frames.clear();
        self.lent_from.clear();
        self.loans.take_back(umem, take);
    }

    /// Appends a frame of `len` bytes, written by `fill`; `None` if there is no room.
    #[inline]
    pub fn append(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Option<RxFrame> {
        let (buffer, start) = match self.last() {
            None => (0, 0),
            Some(last) => {
                let start = (last.start + last.len).next_multiple_of(64);
                let fits = start as usize + len <= BUFFER_LEN;
                if fits { (last.buffer, start) } else { (last.buffer + 1, 0) }
            }
        };
        let room = self.buffers.get_mut(buffer as usize)?.get_mut(start as usize..start as usize + len)?;
        if self.frames.len() == self.frames.capacity() {
            return None;
        }
        fill(room);
        let frame = RxFrame { buffer, start, len: len as u32 };
        self.frames.push(frame);
        Some(frame)
    }

    /// Returns the last frame in a buffer of ours.
    #[inline]
    fn last(&self) -> Option<&RxFrame> {
        let own = self.buffers.len() as u32;
        self.frames.iter().rev().find(|frame| frame.buffer < own)
    }

    /// Returns the number of buffers with frames.
    fn used(&self) -> usize {
        self.last().map_or(0, |frame| frame.buffer as usize + 1)
    }

    /// Whether [`RxBatch::push`] has a buffer left.
    pub fn has_room(&self) -> bool {
        self.used() < self.buffers.len()
    }

    /// Copies a datagram into a buffer of its own, for devices that do not receive into the buffers
    /// themselves. Returns false if all buffers are used, or the datagram is too long.
    pub fn push(&mut self, from: SocketAddr, bytes: &[u8]) -> bool {
        self.push_from(Some(from), bytes)
    }

    pub(crate) fn push_from(&mut self, from: Option<SocketAddr>, bytes: &[u8]) -> bool {
        let used = self.used();
        let Some(buffer) = self.buffers.get_mut(used) else { return false };
        let Some(room) = buffer.get_mut(..bytes.len()) else { return false };
        room.copy_from_slice(bytes);
        self.sources[used] = from;
        self.frames.push(RxFrame { buffer: used as u32, start: 0, len: bytes.len() as u32 });
        true
    }
}
