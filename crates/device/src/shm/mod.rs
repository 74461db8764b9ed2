//! Shared memory: a channel between two processes of one host (S-1 … S-7).
//!
//! Each pair has one segment, with rings for each direction. The process that connects creates it and hands
//! it over a socket, which then is the doorbell of both (S-31). Frames carry no packet number, no tag and no
//! acknowledgement: memory loses nothing, and the kernel authenticates the process that has it.

mod greeting;
mod listener;
mod loans;
mod pair;
mod probe;
mod windows;
mod words;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tautline_mem::pool::MAX_EXTENTS;
use tautline_mem::ring::{self, Corrupt, LINE, LINE_DATA, LINE_DATA_WORDS, Peeked, Shape};
use tautline_mem::{Barrier, PeerPages, Segment};

pub use tautline_mem::{LanePages, RingNumber};

pub use tautline_mem::ring::{PeekedLine, PoppedLine};

pub use tautline_mem::pool::{Extent, POOL_UNIT, Pool, PoolView, ReturnStatus};
pub use tautline_mem::ring::InlineFrame;

pub use greeting::{GREETING_LEN, Greeting, Refusal};
pub use listener::prepare_dir;
pub(crate) use listener::unlink_stale_listeners_if_due;
pub use listener::{
    Accepted, Contribution, Dial, Handover, Incoming, Listener, PeerHandles, discovery_dir, listener_path,
    private_dir, unlink_stale_listener, unlink_stale_listeners,
};
pub use loans::{LoanError, PeerMemory, PeerMemoryProbe};
pub use pair::PairEnd;
pub use probe::{ShmProbe, probe};
pub use windows::MAX_WINDOWS;

use loans::Loans;
use windows::{WINDOWS_LEN, Windows};

use crate::sys::local::{self, Ring};
use crate::{Channel, PushError};

/// The rings of a pair: lines for bursts of small messages that stay in the L1 cache, bytes that stay in the
/// L2 cache.
const SHAPE: Shape = Shape { lines: 512, span: 4, bytes: 512 << 10, max_frame: 32 << 10 };
const RING_LEN: usize = SHAPE.size().next_multiple_of(4096);
/// Bytes of the ring that returns numbers, for each direction.
const RETURNS_LEN: usize = 8 * MAX_EXTENTS + LINE;
const SEGMENT_LEN: usize = 2 * RING_LEN + 2 * RETURNS_LEN + 2 * WINDOWS_LEN;
/// Bytes of a segment, in pages, that are used until traffic needs more (S-35).
const FIRST_LEN: usize =
    2 * SHAPE.first_size().next_multiple_of(4096) + (SEGMENT_LEN - 2 * RING_LEN).next_multiple_of(4096);

const _: () = assert!(SHAPE.is_sound());
const _: () = assert!(FIRST_LEN <= 150 << 10);

/// Bytes of the longest frame.
pub const MAX_FRAME: usize = SHAPE.max_frame;
/// The most frames in flight in one direction.
pub const MAX_FRAMES: usize = SHAPE.lines;
/// Bytes of the longest frame in one cache line.
pub const LINE_FRAME: usize = LINE_DATA;
/// Bytes of the longest frame in a few cache lines.
pub const INLINE_FRAME: usize = SHAPE.inline_max();
/// Words of a frame in one cache line.
pub const LINE_WORDS: usize = LINE_DATA_WORDS;

/// The most rings that are taken in one go.
const RINGS_AT_ONCE: usize = 16;
/// How often a process that has disconnected is found to be exiting before it counts as dead: the kernel
/// takes microseconds, or until the process gets a core again.
const EXIT_LOOKS_MAX: u32 = 10_000;

/// The role of this side; decides which ring it sends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Caller,
    Callee,
}

/// One end of a channel through shared memory.
#[derive(Debug)]
pub struct Shm {
    tx: ring::Sender,
    rx: ring::Receiver,
    /// The other process, and the connection to it, which is also the doorbell.
    process: OwnedFd,
    socket: OwnedFd,
    /// The pages of the other side's lane, and the number of this ring among those of our own lane.
    peer_pages: PeerPages,
    number: RingNumber,
    barrier: Barrier,
    /// Frames were pushed, and the other side was not woken for them yet.
    unflushed: bool,
    /// The other side wrote invalid data, or ended the channel.
    corrupt: bool,
    ended: bool,
    rings: u64,
    /// How often it was found to be exiting.
    exit_looks: AtomicU32,
    loans: Loans,
    windows: Windows,
}

static KEEP_DESCRIPTORS: AtomicBool = AtomicBool::new(false);

/// Keeps the descriptors of segments and pools open from now on: for tests that overwrite the memory of
/// channels in use, which they find by these.
#[doc(hidden)]
pub fn keep_descriptors() {
    KEEP_DESCRIPTORS.store(true, Ordering::Relaxed);
}

/// Closes the descriptors of memory that the other side has, or that is on its way to it: two are left for
/// each peer (S-36).
fn close_handed_over(segment: &mut Segment, pool: Option<&mut Pool>) {
    if !KEEP_DESCRIPTORS.load(Ordering::Relaxed) {
        segment.close_fd();
        if let Some(pool) = pool {
            pool.close_fd();
        }
    }
}

/// Allocates the memory of a segment that is used from the start.
fn populate_first(segment: Segment) -> io::Result<Segment> {
    segment.populate(0, SHAPE.first_size())?;
    segment.populate(RING_LEN, SHAPE.first_size())?;
    segment.populate(2 * RING_LEN, SEGMENT_LEN - 2 * RING_LEN)?;
    Ok(segment)
}

/// Creates the segment of a pair.
fn create_segment() -> io::Result<Segment> {
    populate_first(Segment::create_sparse(SEGMENT_LEN)?)
}

/// Maps the segment of a pair that the other side created.
fn attach_segment(fd: OwnedFd) -> io::Result<Segment> {
    populate_first(Segment::attach_sparse(fd, SEGMENT_LEN)?)
}

impl Shm {
    fn new(
        mut segment: Segment,
        side: Side,
        (socket, process): (OwnedFd, OwnedFd),
        (peer, own): (PeerHandles, Contribution),
        asymmetric: bool,
    ) -> Shm {
        let Contribution { mut pool, number } = own;
        close_handed_over(&mut segment, pool.as_mut());
        let segment = Arc::new(segment);
        let (out, back) = match side {
            Side::Caller => (0, RING_LEN),
            Side::Callee => (RING_LEN, 0),
        };
        Shm {
            tx: ring::Sender::new(segment.clone(), out, SHAPE),
            rx: ring::Receiver::new(segment.clone(), back, SHAPE),
            loans: Loans::new(&segment, side, pool, peer.view),
            windows: Windows::new(&segment, side),
            process,
            socket,
            peer_pages: peer.pages,
            number,
            barrier: if asymmetric { Barrier::between_processes() } else { Barrier::symmetric() },
            unflushed: false,
            corrupt: false,
            ended: false,
            rings: 0,
            exit_looks: AtomicU32::new(0),
        }
    }

    /// Sends a frame of up to [`LINE_FRAME`] bytes, given as words, and wakes the other side if it sleeps:
    /// the whole path of most small messages. Returns false if there is no room.
    #[inline(always)]
    pub fn push_line(&mut self, words: &[u64; LINE_WORDS], len: usize) -> bool {
        let pushed = self.tx.push_line(words, len);
        self.wake_for(pushed)
    }

    /// Wakes the other side if it sleeps and a frame was pushed.
    #[inline(always)]
    fn wake_for(&mut self, pushed: Result<bool, Corrupt>) -> bool {
        match pushed {
            Ok(true) => {
                if self.peer_pages.announce_frames(self.barrier) {
                    self.ring();
                }
                true
            }
            Ok(false) => false,
            Err(Corrupt) => self.set_corrupt(),
        }
    }

    /// Takes frames that lie in lines alone, while `wanted` accepts their first bytes and they have fewer
    /// than `limit` bytes together. Returns their number, and whether something follows them.
    #[inline(always)]
    pub fn pop_inline(
        &mut self,
        frames: &mut [InlineFrame],
        limit: usize,
        wanted: impl Fn(u8) -> bool,
    ) -> (usize, bool) {
        self.take_with(|rx| rx.pop_inline(frames, limit, wanted))
    }

    /// Takes frames, and wakes the other side if that published room that it may be waiting for.
    #[inline(always)]
    fn take_with<T>(&mut self, take: impl FnOnce(&mut ring::Receiver) -> T) -> T {
        let published = self.rx.published();
        let taken = take(&mut self.rx);
        if self.rx.published() != published {
            self.wake_if_asleep();
        }
        taken
    }

    /// Returns the length of the next frame, if there is one.
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

    /// Returns the first byte of the next frame.
    #[inline]
    pub fn first_byte(&self) -> u8 {
        self.rx.first_byte()
    }

    /// Takes the frame whose length [`Shm::peek`] returned; `out` must have exactly that length.
    pub fn take(&mut self, out: &mut [u8]) {
        self.take_with(|rx| rx.pop(out));
    }

    /// Whether there is a frame, or the end.
    #[inline(always)]
    pub fn has_frames(&self) -> bool {
        !self.rx.is_empty()
    }

    /// Whether a frame of any size can be pushed.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        match self.tx.has_room() {
            Ok(clear) => clear,
            Err(Corrupt) => self.set_corrupt(),
        }
    }

    #[cold]
    fn set_corrupt(&mut self) -> bool {
        self.corrupt = true;
        self.attend();
        false
    }

    /// Has our own lane poll this channel, although the other side may have sent nothing (S-39).
    #[inline]
    pub fn attend(&self) {
        self.number.set();
    }

    /// Returns the number of this ring among those of our lane.
    pub fn number(&self) -> &RingNumber {
        &self.number
    }

    /// Whether the other side wrote something that no correct peer writes (S-2).
    pub fn is_corrupt(&self) -> bool {
        self.corrupt
    }

    /// Whether the other side has ended the channel, and everything before the end was taken.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether the other process has exited or disconnected (S-6). Takes its rings.
    pub fn is_dead(&self) -> bool {
        self.has_exited() || self.has_disconnected() && !self.is_exiting()
    }

    /// Whether the other process, which has disconnected, is about to exit. Its launcher is to see the exit
    /// before anybody here acts on it, or it would take another process for the first that has failed. A
    /// process that the kernel does not end is dead after some looks.
    #[cold]
    fn is_exiting(&self) -> bool {
        let looks = self.exit_looks.fetch_add(1, Ordering::Relaxed);
        looks < EXIT_LOOKS_MAX && local::peer_pid(&self.socket).is_ok_and(local::is_exiting)
    }

    /// Takes rings; whether there was an end behind them. One that sends more gets its turn again.
    fn has_disconnected(&self) -> bool {
        (0..RINGS_AT_ONCE).find_map(|_| match local::take_ring(&self.socket) {
            Ring::Taken => None,
            ring => Some(ring == Ring::Closed),
        }) == Some(true)
    }

    /// Whether the other process has exited.
    pub fn has_exited(&self) -> bool {
        local::is_readable(self.process.as_fd())
    }

    /// Returns descriptors that become readable when the other process exits or disconnects.
    pub fn liveness_fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.process.as_fd(), self.socket.as_fd()]
    }

    /// Wakes the other side if it sleeps.
    #[cold]
    fn wake_if_asleep(&mut self) {
        if self.peer_pages.must_ring(self.barrier) {
            self.ring();
        }
    }

    /// Rings for the other side, whether or not it sleeps.
    #[cold]
    pub fn ring(&mut self) {
        self.rings += 1;
        // S-31: it fails only if rings are waiting, or nobody is there to be woken.
        local::ring(&self.socket);
    }

    /// Returns the numbers of frames sent, frames taken, and doorbells.
    pub fn counts(&self) -> [u64; 3] {
        [self.tx.sent(), self.rx.taken(), self.rings]
    }

    /// Publishes what was taken, before the lane sleeps or polls this channel no more, and wakes the other
    /// side if it sleeps (S-12).
    pub fn publish(&mut self) {
        if self.rx.publish() {
            self.wake_if_asleep();
        }
    }

    /// Returns the number of frames taken.
    #[inline]
    pub fn taken(&self) -> u64 {
        self.rx.taken()
    }

    /// Announces that our lane is about to sleep, if this is its only channel. Then [`Shm::barrier`], then
    /// check again, then sleep.
    pub fn announce_sleep(&mut self) {
        self.publish();
        self.number.pages().announce_sleep();
    }

    /// Takes a ring of the other side, if there is one. Returns whether there was.
    pub fn take_ring(&mut self) -> bool {
        // An end is visible to whoever polls the socket.
        local::take_ring(&self.socket) == Ring::Taken
    }

    /// Announces that our lane is awake, if this is its only channel, and takes the ring that woke it.
    pub fn announce_wake(&mut self) {
        self.number.pages().announce_wake();
        self.take_ring();
    }

    /// Orders announcements before it ahead of checks after it, as senders see them (S-14).
    pub fn barrier(&self) {
        self.barrier.heavy();
    }
}

/// Whether this kernel supports asymmetric barriers; registers this process for them.
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
            Err(Corrupt) => usize::from(self.set_corrupt()),
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
                self.unflushed = true;
                Ok(())
            }
            Ok(false) => Err(PushError::Full),
            Err(Corrupt) => {
                self.set_corrupt();
                Err(PushError::Closed)
            }
        }
    }

    #[inline]
    fn flush(&mut self) {
        if self.unflushed {
            self.unflushed = false;
            if self.peer_pages.announce_frames(self.barrier) {
                self.ring();
            }
        }
    }

    fn pop(&mut self, out: &mut [u8]) -> Option<usize> {
        assert!(out.len() >= SHAPE.max_frame, "a frame may have {} bytes", SHAPE.max_frame);
        let len = self.peek()?;
        self.take(&mut out[..len]);
        Some(len)
    }

    fn close(&mut self) {
        self.tx.end();
        self.unflushed = true;
        self.flush();
    }

    fn is_finished(&mut self) -> bool {
        self.peek().is_none() && (self.ended || self.corrupt || !self.has_frames() && self.is_dead())
    }
}
