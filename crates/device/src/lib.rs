//! Devices that move frames.
//!
//! What lives here: the two kinds of device as traits ([`Datagram`], [`Channel`]), the [`udp`] device, the
//! [`xdp`] device, shared memory ([`shm`]), the channel of a process to itself ([`loopback`]), the wrappers
//! [`fault`], [`trace`] and [`pcap`], and, in `sys`, every system call. What does not: reliability, order and
//! peers; the link adds what a datagram device lacks.

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

/// Returns nanoseconds on the system's monotonic clock, which nodes on real devices use.
#[inline]
pub fn monotonic_now() -> u64 {
    sys::now()
}

/// A destination that a device can send to; created once per peer, so that sending needs no look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteId(pub u32);

/// A change that a device noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// Frames on this route may have at most `max_frame` bytes from now on (D-5).
    PathLimit {
        /// The route.
        route: RouteId,
        /// Bytes of a frame.
        max_frame: usize,
    },
    /// Frames on this route use another transport from now on (D-13, D-24).
    Transport {
        /// The route.
        route: RouteId,
        /// The new transport.
        transport: Transport,
        /// Why, for people.
        why: String,
    },
    /// The descriptors to wait on have changed: get them again.
    Descriptors,
    /// Whether the device takes raw Ethernet frames has changed; see [`Datagram::takes_raw`] (D-22).
    Raw,
}

/// How the frames of a route are sent, if a device has several transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Through a UDP socket.
    Udp,
    /// Directly between our memory and the card.
    Xdp,
}

impl Transport {
    /// Returns the transport's name: that of the device with only this transport.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Udp => "udp",
            Transport::Xdp => "xdp",
        }
    }
}

/// What a device counted. Counters never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
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
    /// Frames that could not be sent; they count as lost.
    pub send_failures: u64,
    /// Frames that the receiving host dropped for lack of room, where the system tells.
    pub receive_overflows: u64,
    /// Malformed frames for this device, if the device parses headers (D-14, D-17).
    pub frames_refused: u64,
}

/// A device that carries frames without guaranteeing their delivery (D-1 … D-6).
///
/// To send, take a slot from [`Datagram::arena`], write the payload, build the headers in its headroom, and
/// [`Datagram::send`] a range of it. The range must stay unchanged until [`Datagram::flush`] returns; the
/// device does not read it afterwards (D-2). To receive, let [`Datagram::recv`] fill a batch of the caller.
pub trait Datagram: Send {
    /// Returns a short name: `udp`, `xdp`, `sim`.
    fn name(&self) -> &'static str;
    /// Returns the address that peers send to.
    fn local_addr(&self) -> SocketAddr;
    /// Returns the memory that frames are sent from.
    fn arena(&mut self) -> &mut Arena;
    /// Returns the memory that frames are sent from, for reading.
    fn arena_ref(&self) -> &Arena;
    /// Creates a destination. There is one route per peer.
    fn route(&mut self, to: SocketAddr) -> io::Result<RouteId>;
    /// Returns the largest frame that the path to a destination takes, as far as the device knows.
    fn max_frame(&self, route: RouteId) -> usize;
    /// Queues bytes of a slot, counted from the start of its headroom, as one frame. Never blocks. A full
    /// queue flushes itself; a frame that cannot be sent counts as lost (D-3).
    fn send(&mut self, route: RouteId, slot: SlotId, range: Range<usize>);
    /// Hands everything queued to the network, with one doorbell per batch.
    fn flush(&mut self);
    /// Replaces the batch's contents by frames that have arrived; returns their number. Never blocks (D-4).
    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<usize>;
    /// Sets whether frames are received with their source, which is the default; a device may omit it if that
    /// is cheaper (D-8).
    fn want_sources(&mut self, wanted: bool) {
        let _ = wanted;
    }
    /// Returns the bytes that the system buffers for this device before it drops frames; credit is sized from
    /// it (D-6).
    fn receive_buffer(&self) -> usize;
    /// Returns the descriptor that becomes readable when a frame has arrived, if there is one.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
    /// Returns further descriptors to wait on, for a device with several sources. They are not gathered in an
    /// epoll set, because every frame would pay for that even if nobody sleeps.
    fn more_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
    /// Returns the next change that the device noticed.
    fn poll_event(&mut self) -> Option<DeviceEvent>;
    /// Returns what the device counted.
    fn counters(&self) -> Counters;
    /// Whether reading memory shows that nothing has arrived; false if the device cannot tell as cheaply.
    fn is_quiet(&mut self) -> bool {
        false
    }
    /// Returns a route's present transport, if the device has several (D-13).
    fn transport(&self, route: RouteId) -> Option<Transport> {
        let _ = route;
        None
    }
    /// Returns why a route uses its transport, for people.
    fn transport_reason(&self, route: RouteId) -> &str {
        let _ = route;
        ""
    }
    /// Whether this device takes raw Ethernet frames now (D-22); a change is an event.
    fn takes_raw(&self) -> bool {
        false
    }
    /// Sets whether the peer of a route takes raw Ethernet frames; the default is that it does.
    fn set_peer_takes_raw(&mut self, route: RouteId, takes: bool) {
        let _ = (route, takes);
    }
    /// Requests a transport for a route, as far as it is possible; `None` for the best.
    fn prefer_transport(&mut self, route: RouteId, transport: Option<Transport>) {
        let _ = (route, transport);
    }
}

/// A device that is reliable and ordered (D-7): frames come out at the other end once, in order and
/// unaltered, until one side closes or dies.
pub trait Channel: Send {
    /// Returns a short name: `loopback`, `shm`.
    fn name(&self) -> &'static str;
    /// Returns the bytes of the largest frame.
    fn max_frame(&self) -> usize;
    /// Returns how many frames of the largest size may be pushed now.
    fn room(&mut self) -> usize;
    /// Pushes a frame made of two parts.
    ///
    /// # Errors
    /// If there is no room, or the channel is closed; nothing is pushed then.
    fn push(&mut self, head: &[u8], body: &[u8]) -> Result<(), PushError>;
    /// Rings the doorbell: the other side sees what was pushed.
    fn flush(&mut self);
    /// Copies the oldest frame into `out` and removes it; returns its length, or `None` if there is none.
    ///
    /// # Panics
    /// If `out` is shorter than [`Channel::max_frame`].
    fn pop(&mut self, out: &mut [u8]) -> Option<usize>;
    /// Closes the channel. The other side can still pop what was pushed.
    fn close(&mut self);
    /// Whether the other side has closed or died, and everything it pushed was popped.
    fn is_finished(&mut self) -> bool;
}

/// Why a frame was not pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// No room now; a pop at the other side makes room.
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
            PushError::TooLong => "the frame is longer than the channel allows",
            PushError::Closed => "the channel is closed",
        })
    }
}

impl std::error::Error for PushError {}
