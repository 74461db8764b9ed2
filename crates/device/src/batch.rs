//! A batch of received frames: buffers that belong to the caller, and where in them the frames lie.

use std::net::SocketAddr;

/// Bytes of one receive buffer: the largest UDP payload, or a whole train of coalesced frames.
pub const BUFFER_LEN: usize = 65_536;

/// The most frames that one buffer holds: what the kernel joins at most (`UDP_MAX_SEGMENTS`).
pub(crate) const TRAIN_MAX: usize = 128;

/// One received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxFrame {
    /// Which buffer it is in.
    pub buffer: u32,
    /// Where it starts.
    pub start: u32,
    /// How long it is.
    pub len: u32,
}

/// Received frames. A device fills it; whoever owns it reads in place and hands it back to be filled again.
#[derive(Debug)]
pub struct RxBatch {
    pub(crate) buffers: Vec<Box<[u8]>>,
    pub(crate) sources: Vec<Option<SocketAddr>>,
    pub(crate) frames: Vec<RxFrame>,
}

impl RxBatch {
    /// Makes a batch of `buffers` buffers.
    pub fn new(buffers: usize) -> RxBatch {
        RxBatch {
            buffers: (0..buffers).map(|_| vec![0; BUFFER_LEN].into_boxed_slice()).collect(),
            sources: vec![None; buffers],
            frames: Vec::with_capacity(buffers * TRAIN_MAX),
        }
    }

    /// How many buffers there are.
    pub fn capacity(&self) -> usize {
        self.buffers.len()
    }

    /// Forgets all frames.
    pub fn clear(&mut self) {
        self.frames.clear();
    }

    /// The frames, in the order in which they arrived.
    pub fn frames(&self) -> &[RxFrame] {
        &self.frames
    }

    /// Where a frame came from. The address is the sender's; the port need not be the one that its device is bound to.
    pub fn source(&self, frame: RxFrame) -> Option<SocketAddr> {
        self.sources[frame.buffer as usize]
    }

    /// A frame's bytes.
    #[inline]
    pub fn bytes(&self, frame: RxFrame) -> &[u8] {
        &self.buffers[frame.buffer as usize][frame.start as usize..][..frame.len as usize]
    }

    /// A frame's bytes, to decipher in place.
    #[inline]
    pub fn bytes_mut(&mut self, frame: RxFrame) -> &mut [u8] {
        &mut self.buffers[frame.buffer as usize][frame.start as usize..][..frame.len as usize]
    }

    /// Adds a frame of `len` bytes, written by `fill`, behind the others; nothing if there is no room for it.
    #[inline]
    pub fn append(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Option<RxFrame> {
        let (buffer, start) = match self.frames.last() {
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

    /// How many buffers frames lie in.
    fn used(&self) -> usize {
        self.frames.last().map_or(0, |frame| frame.buffer as usize + 1)
    }

    /// Whether [`RxBatch::push`] has a buffer left.
    pub fn has_room(&self) -> bool {
        self.used() < self.buffers.len()
    }

    /// Adds a datagram by copying it into a buffer of its own: for devices that have no use for the buffers
    /// themselves. False when all buffers are used or the datagram is too long.
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
