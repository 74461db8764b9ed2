//! Shared memory: a channel by nature between two processes of one host (S-1 … S-7).
//!
//! One segment per pair, with a ring for each direction. The process that calls makes it and hands it over a socket, together with its bell;
//! the other answers with its own. Frames carry no packet number, no tag and no acknowledgement: the memory loses nothing, and the kernel
//! vouches for whoever has it.

mod greeting;
mod listener;
mod loans;
mod pair;
mod probe;
mod words;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use tautline_mem::pool::MAX_EXTENTS;
use tautline_mem::ring::{self, Corrupt, LINE, LINE_DATA, LINE_DATA_WORDS, Peeked, Shape};
use tautline_mem::{Barrier, Segment};

pub use tautline_mem::ring::PoppedLine;

pub use tautline_mem::pool::{Extent, POOL_UNIT, Pool, PoolView, ReturnStatus};
pub use tautline_mem::ring::InlineFrame;

pub use greeting::{GREETING_LEN, Greeting};
pub use listener::{
    Dial, Handover, Incoming, Listener, PeerHandles, discovery_dir, listener_path, unlink_stale_listener,
    unlink_stale_listeners,
};
pub(crate) use listener::{prepare_dir, unlink_stale_listeners_if_due};
pub use loans::{LoanError, PeerMemory};
pub use pair::PairEnd;
pub use probe::{ShmProbe, probe};

use loans::Loans;

use crate::sys::local;
use crate::{Channel, PushError};

/// The rings of a pair: lines for bursts of small messages that stay in the first cache, bytes that stay in the second.
const SHAPE: Shape = Shape { lines: 512, span: 4, bytes: 512 << 10, max_frame: 32 << 10 };
const RING_LEN: usize = SHAPE.size().next_multiple_of(4096);
/// Where numbers of pieces come back, for each direction.
const RETURNS_LEN: usize = 8 * MAX_EXTENTS + LINE;
const SEGMENT_LEN: usize = 2 * RING_LEN + 2 * RETURNS_LEN;

const _: () = assert!(SHAPE.is_sound());

/// Bytes of the longest frame.
pub const MAX_FRAME: usize = SHAPE.max_frame;
/// Frames that can be under way in one direction.
pub const MAX_FRAMES: usize = SHAPE.lines;
/// Bytes of a frame that moves one cache line.
pub const LINE_FRAME: usize = LINE_DATA;
/// Bytes of a frame that moves a few of them.
pub const INLINE_FRAME: usize = SHAPE.inline_max();
/// Words of a frame that moves one.
pub const LINE_WORDS: usize = LINE_DATA_WORDS;

/// Which ring is ours to send on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Caller,
    Callee,
}

/// One end of the memory that two processes share.
#[derive(Debug)]
pub struct Shm {
    tx: ring::Sender,
    rx: ring::Receiver,
    /// Rings where the other side sleeps.
    bell: OwnedFd,
    /// The other process, and the connection to it.
    process: OwnedFd,
    socket: OwnedFd,
    barrier: Barrier,
    /// Something was sent that the other side may have to be woken for.
    unannounced: bool,
    /// The other side wrote nonsense, or said that nothing will follow, or died.
    corrupt: bool,
    ended: bool,
    rings: u64,
    loans: Loans,
}

impl Shm {
    fn new(
        segment: Segment,
        side: Side,
        (socket, process): (OwnedFd, OwnedFd),
        (peer, pool): (PeerHandles, Option<Pool>),
        asymmetric: bool,
    ) -> Shm {
        let segment = Arc::new(segment);
        let (out, back) = match side {
            Side::Caller => (0, RING_LEN),
            Side::Callee => (RING_LEN, 0),
        };
        Shm {
            tx: ring::Sender::new(segment.clone(), out, SHAPE),
            rx: ring::Receiver::new(segment.clone(), back, SHAPE),
            loans: Loans::new(&segment, side, pool, peer.view),
            bell: peer.bell,
            process,
            socket,
            barrier: if asymmetric { Barrier::between_processes() } else { Barrier::symmetric() },
            unannounced: false,
            corrupt: false,
            ended: false,
            rings: 0,
        }
    }

    /// Sends a frame of up to [`LINE_FRAME`] bytes, given as words, and wakes the other side if it sleeps: all that happens to most small
    /// messages. False if there is no room.
    #[inline(always)]
    pub fn push_line(&mut self, words: &[u64; LINE_WORDS], len: usize) -> bool {
        let pushed = self.tx.push_line(words, len);
        self.announce(pushed)
    }

    /// Wakes the other side if it sleeps, and there is something for it.
    #[inline(always)]
    fn announce(&mut self, pushed: Result<bool, Corrupt>) -> bool {
        match pushed {
            Ok(true) => {
                if self.tx.must_ring(self.barrier) {
                    self.ring();
                }
                true
            }
            Ok(false) => false,
            Err(Corrupt) => self.spoilt(),
        }
    }

    /// Takes frames that lie in lines, for as long as they start as `wanted` and have fewer than `limit` bytes together. Returns how many, and whether
    /// there is something behind them.
    #[inline(always)]
    pub fn pop_inline(
        &mut self,
        frames: &mut [InlineFrame],
        limit: usize,
        wanted: impl Fn(u8) -> bool,
    ) -> (usize, bool) {
        self.taking(|rx| rx.pop_inline(frames, limit, wanted))
    }

    /// Takes something out, and wakes the other side if it was told of room that it sleeps for.
    #[inline(always)]
    fn taking<T>(&mut self, take: impl FnOnce(&mut ring::Receiver) -> T) -> T {
        let published = self.rx.published();
        let taken = take(&mut self.rx);
        if self.rx.published() != published {
            self.wake_if_asleep();
        }
        taken
    }

    /// Bytes of the next frame, if there is one.
    #[inline]
    pub fn peek(&mut self) -> Option<usize> {
        match self.rx.peek() {
            Ok(Some(Peeked::Frame(len))) => Some(len),
            Ok(Some(Peeked::End)) => {
                self.ended = true;
                None
            }
            Ok(None) => None,
            Err(Corrupt) => {
                self.corrupt = true;
                None
            }
        }
    }

    /// The first byte of the next frame.
    #[inline]
    pub fn first_byte(&self) -> u8 {
        self.rx.first_byte()
    }

    /// Takes the frame whose length [`Shm::peek`] told, into exactly as many bytes.
    pub fn take(&mut self, out: &mut [u8]) {
        self.taking(|rx| rx.pop(out));
    }

    /// Whether something is there: a frame, or the end.
    #[inline(always)]
    pub fn has_frames(&self) -> bool {
        !self.rx.is_empty()
    }

    /// Whether a frame of any size can be pushed.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        match self.tx.has_room() {
            Ok(clear) => clear,
            Err(Corrupt) => self.spoilt(),
        }
    }

    #[cold]
    fn spoilt(&mut self) -> bool {
        self.corrupt = true;
        false
    }

    /// The other side wrote what no correct one writes (S-2).
    pub fn is_corrupt(&self) -> bool {
        self.corrupt
    }

    /// The other side has said that nothing will follow, and everything before has been taken.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether the other process is no more, or has let go of the channel (S-6).
    pub fn is_dead(&self) -> bool {
        local::is_readable(self.process.as_fd()) || local::is_readable(self.socket.as_fd())
    }

    /// Whether the other process is no more.
    pub fn has_exited(&self) -> bool {
        local::is_readable(self.process.as_fd())
    }

    /// What becomes readable when the other process ends, or lets go of the channel.
    pub fn liveness_fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.process.as_fd(), self.socket.as_fd()]
    }

    /// The sender was told of room; it may sleep for want of it.
    #[cold]
    fn wake_if_asleep(&mut self) {
        if self.tx.must_ring(self.barrier) {
            self.ring();
        }
    }

    #[cold]
    fn ring(&mut self) {
        self.rings += 1;
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// What was counted: frames sent, frames taken, and how often the other side had to be woken.
    pub fn counts(&self) -> [u64; 3] {
        [self.tx.sent(), self.rx.taken(), self.rings]
    }

    /// Says that this side is about to sleep. Then [`Shm::barrier`] once for all channels, then look again, then sleep.
    pub fn announce_sleep(&mut self) {
        if self.rx.publish() {
            self.wake_if_asleep();
        }
        self.rx.set_asleep(true);
    }

    /// Says that this side is awake.
    pub fn announce_wake(&self) {
        self.rx.set_asleep(false);
    }

    /// Makes what was said before visible to senders before what is looked at after (S-4).
    pub fn barrier(&self) {
        self.barrier.heavy();
    }
}

/// Whether this kernel lets sleepers alone pay for barriers; registers this process for it.
pub fn is_asymmetric() -> bool {
    Barrier::between_processes().is_asymmetric()
}

impl Channel for Shm {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn max_frame(&self) -> usize {
        SHAPE.max_frame
    }

    fn room(&mut self) -> usize {
        match self.tx.room() {
            Ok(room) => room,
            Err(Corrupt) => usize::from(self.spoilt()),
        }
    }

    fn push(&mut self, head: &[u8], body: &[u8]) -> Result<(), PushError> {
        if head.len() + body.len() > SHAPE.max_frame {
            return Err(PushError::TooLong);
        }
        if self.tx.has_ended() {
            return Err(PushError::Closed);
        }
        match self.tx.push(head, body) {
            Ok(true) => {
                self.unannounced = true;
                Ok(())
            }
            Ok(false) => Err(PushError::Full),
            Err(Corrupt) => {
                self.corrupt = true;
                Err(PushError::Closed)
            }
        }
    }

    #[inline]
    fn flush(&mut self) {
        if self.unannounced {
            self.unannounced = false;
            if self.tx.must_ring(self.barrier) {
                self.ring();
            }
        }
    }

    fn pop(&mut self, out: &mut [u8]) -> Option<usize> {
        assert!(out.len() >= SHAPE.max_frame, "a frame may be {} bytes long", SHAPE.max_frame);
        let len = self.peek()?;
        self.take(&mut out[..len]);
        Some(len)
    }

    fn close(&mut self) {
        self.tx.end();
        self.unannounced = true;
        self.flush();
    }

    fn is_finished(&mut self) -> bool {
        self.peek().is_none() && (self.ended || self.corrupt || !self.has_frames() && self.is_dead())
    }
}
