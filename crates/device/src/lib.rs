//! Devices: what moves bytes.
//!
//! What lives here: the two kinds of device as traits ([`Datagram`], [`Channel`]), the [`udp`] device, the [`xdp`] device, shared memory ([`shm`]), the channel of a
//! process to itself ([`loopback`]), the wrappers [`fault`], [`trace`] and [`pcap`], and, in `sys`, every system call. What does
//! not: anything about reliability, order or peers; a device says what it guarantees and the link adds the rest.

pub mod batch;
pub mod conformance;
pub mod fault;
pub mod inherit;
pub mod loopback;
pub mod pcap;
pub mod shm;
mod sys;
pub mod trace;
pub mod udp;
mod wrap;
pub mod xdp;

pub use batch::{RxBatch, RxFrame};
pub use tautline_mem::{Arena, SlotId, arena::HEADROOM};

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// Nanoseconds on the system's monotonic clock: what nodes on real devices go by.
#[inline]
pub fn monotonic_now() -> u64 {
    sys::now()
}

/// A destination that a device knows how to reach; made once per peer, so that sending needs no look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteId(pub u32);

/// Something that a device noticed by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// Frames on this route may now have at most this many bytes (D-5).
    PathLimit {
        /// The route.
        route: RouteId,
        /// Bytes of a frame.
        max_frame: usize,
    },
    /// Frames on this route go another way from now on (D-13).
    Transport {
        /// The route.
        route: RouteId,
        /// The new way.
        transport: Transport,
        /// Why, in words for people.
        why: String,
    },
    /// What a sleeper must watch has changed: ask again for the descriptors.
    Descriptors,
    /// The device takes raw Ethernet frames from now on, or no more: ask again (D-12).
    Raw,
}

/// How the frames of a route go, where a device has several ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Through a UDP socket.
    Udp,
    /// Directly between our memory and the card.
    Xdp,
}

impl Transport {
    /// The way's name: that of the device which has no other.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Udp => "udp",
            Transport::Xdp => "xdp",
        }
    }
}

/// What a device counted; all of it only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames handed to the network.
    pub frames_sent: u64,
    /// Bytes of those frames.
    pub bytes_sent: u64,
    /// Frames taken from the network.
    pub frames_received: u64,
    /// Bytes of those frames.
    pub bytes_received: u64,
    /// System calls made to send.
    pub send_calls: u64,
    /// System calls made to receive, including those that found nothing.
    pub receive_calls: u64,
    /// Frames that could not be sent and count as lost.
    pub send_failures: u64,
    /// Frames that the receiving host dropped for want of room, where the system tells.
    pub receive_overflows: u64,
    /// Frames for this device that were misshapen and not taken, where the device looks at headers by itself (D-11, D-14).
    pub frames_refused: u64,
}

/// A device that carries frames without promising that they arrive (D-1 … D-6).
///
/// Sending: take a slot from [`Datagram::arena`], write the payload, build the headers in its headroom, then
/// [`Datagram::send`] a range of it; the range must stay unchanged until [`Datagram::flush`] returns, after which
/// the device no longer looks at it (D-2). Receiving: [`Datagram::recv`] fills a batch that belongs to the caller.
pub trait Datagram: Send {
    /// A short name: `udp`, `xdp`, `sim`.
    fn name(&self) -> &'static str;
    /// The address at which others reach this device.
    fn local_addr(&self) -> SocketAddr;
    /// The memory that frames are sent from.
    fn arena(&mut self) -> &mut Arena;
    /// The same, to look.
    fn arena_ref(&self) -> &Arena;
    /// Makes a destination. The number of routes is bounded by the number of peers.
    fn route(&mut self, to: SocketAddr) -> io::Result<RouteId>;
    /// The largest frame that the path to this destination takes, as far as the device knows now.
    fn max_frame(&self, route: RouteId) -> usize;
    /// Queues bytes of a slot (counted from the start of its headroom) as one frame. Never blocks. A full queue
    /// flushes itself; what cannot be sent counts as lost (D-3).
    fn send(&mut self, route: RouteId, slot: SlotId, range: Range<usize>);
    /// Hands everything queued to the network: one doorbell per batch.
    fn flush(&mut self);
    /// Replaces the batch's contents by frames that have arrived; returns how many. Never blocks (D-4).
    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<usize>;
    /// Whether frames shall come with their source, as they do at first; a device may leave it out if that is cheaper (D-8).
    fn want_sources(&mut self, wanted: bool) {
        let _ = wanted;
    }
    /// Bytes that the system holds for this device before it drops; credit is sized from it (D-6).
    fn receive_buffer(&self) -> usize;
    /// The descriptor that becomes readable when a frame has arrived, if there is one.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
    /// More descriptors that a sleeper must watch, for a device that has several sources. They are not gathered in one of the
    /// kernel's sets: every frame would pay for its membership, whether anybody sleeps or not.
    fn more_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
    /// What the device noticed since the last call.
    fn poll_event(&mut self) -> Option<DeviceEvent>;
    /// What the device counted.
    fn counters(&self) -> Counters;
    /// Whether a look at memory, which costs next to nothing, shows that nothing has come; false where it takes more than that to tell.
    fn is_quiet(&mut self) -> bool {
        false
    }
    /// The way that frames of a route go now, if the device has several (D-13).
    fn transport(&self, route: RouteId) -> Option<Transport> {
        let _ = route;
        None
    }
    /// Why it goes that way, in words for people.
    fn transport_reason(&self, route: RouteId) -> &str {
        let _ = route;
        ""
    }
    /// Whether this device takes raw Ethernet frames now (D-12); a change is an event.
    fn takes_raw(&self) -> bool {
        false
    }
    /// Tells whether the one at the end of a route takes raw Ethernet frames; a device believes it does until told otherwise.
    fn set_peer_takes_raw(&mut self, route: RouteId, takes: bool) {
        let _ = (route, takes);
    }
    /// Asks for a way, as far as it can be had; `None` for the best.
    fn prefer_transport(&mut self, route: RouteId, transport: Option<Transport>) {
        let _ = (route, transport);
    }
}

/// A device that is reliable and ordered by nature (D-7): frames go in at one end and come out at the other, once, in
/// order and unaltered, until one side closes or dies.
pub trait Channel: Send {
    /// A short name: `own`, `shm`.
    fn name(&self) -> &'static str;
    /// The largest frame.
    fn max_frame(&self) -> usize;
    /// How many frames of the largest size may be pushed now.
    fn room(&mut self) -> usize;
    /// Pushes one frame made of two parts. Refused, with nothing pushed, when there is no room or the other side is gone.
    fn push(&mut self, head: &[u8], body: &[u8]) -> Result<(), PushError>;
    /// Lets the other side see what was pushed: the doorbell.
    fn flush(&mut self);
    /// Copies the oldest frame into `out` and removes it; `None` when there is none.
    ///
    /// # Panics
    /// If `out` is shorter than [`Channel::max_frame`].
    fn pop(&mut self, out: &mut [u8]) -> Option<usize>;
    /// Ends the channel; what was pushed can still be popped by the other side.
    fn close(&mut self);
    /// Whether the other side has closed or died, and everything it pushed has been popped.
    fn is_finished(&mut self) -> bool;
}

/// Why a frame was not pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// No room now; pop at the other side makes some.
    Full,
    /// Longer than [`Channel::max_frame`].
    TooLong,
    /// The channel is closed.
    Closed,
}

impl std::fmt::Display for PushError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PushError::Full => "the channel is full",
            PushError::TooLong => "the frame is longer than the channel takes",
            PushError::Closed => "the channel is closed",
        })
    }
}

impl std::error::Error for PushError {}
