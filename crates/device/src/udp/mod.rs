//! The UDP device, which needs no privileges.
//!
//! What lives here: one unconnected socket, the queue of frames to send (`send`), receiving (`recv`), the
//! frame limit of each path (`path`), the connected sockets of routes in use (`connected`), and what the
//! machine supports (`probe`). What does not: recovery,
//! order, peers. A batch costs one system call. The kernel segments trains of equal frames (GSO) and
//! coalesces received ones (GRO) where it can; the code without either is kept and tested.

mod config;
mod connected;
mod path;
mod probe;
mod recv;
mod send;
#[cfg(test)]
mod tests;

pub use config::{RECEIVE_BUFFER, UdpConfig};
pub use path::FRAME_CAP;
pub(crate) use path::{payload_of_mtu, slot_payload};
pub use probe::{Probe, probe};

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use connected::Sockets;
use path::PathRefresh;
use recv::RxState;
use send::{Outgoing, Queued};

use crate::sys::{self, Errno};
use crate::{Arena, Counters, Datagram, DeviceEvent, RouteId, RxBatch, SlotId};

/// The UDP device.
///
/// `Send`, not shared: it moves with the lane that owns it. It makes no thread and keeps no timer, and after
/// [`Udp::open`] only [`Datagram::route`] allocates.
pub struct Udp {
    socket: OwnedFd,
    local: SocketAddr,
    arena: Arena,
    routes: Vec<Route>,
    outgoing: Outgoing,
    rx: RxState,
    refresh: PathRefresh,
    sockets: Sockets,
    /// Routes whose changed limit was not reported yet, each at most once.
    limit_changes: VecDeque<RouteId>,
    counters: Counters,
    /// The kernel's count of drops when the device was opened; an inherited socket may have some.
    drops_before: u32,
    receive_buffer: usize,
    features: Features,
}

/// Optional features of the system, and whether they are in use.
struct Features {
    gso: Feature,
    gro: Feature,
    busy_poll: Feature,
    /// Routes get connected sockets.
    connect: bool,
}

/// Frames beyond this length leave singly or in pairs, for which packed slots gain nothing.
const PACKED_MAX: usize = 16 << 10;

/// A destination.
struct Route {
    to: SocketAddr,
    /// A socket connected to the destination, for sending (D-33).
    connected: Option<OwnedFd>,
    /// No frame was sent.
    is_new: bool,
    max_frame: u32,
    /// Trains may be sent; false once the path's device has refused one.
    gso: bool,
    /// How many trains were sent since the path was last checked.
    sent: u32,
    /// How many checks in a row found few.
    quiet: u8,
}

/// Whether an optional feature of the system is in use, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feature {
    On,
    /// Not requested.
    Off,
    /// Requested, and refused by the system.
    Refused(Errno),
}

impl Feature {
    fn tried(asked: bool, turn_on: impl FnOnce() -> Result<(), Errno>) -> Feature {
        match asked.then(turn_on) {
            None => Feature::Off,
            Some(Ok(())) => Feature::On,
            Some(Err(errno)) => Feature::Refused(errno),
        }
    }

    fn is_on(self) -> bool {
        self == Feature::On
    }
}

impl std::fmt::Display for Feature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Feature::On => f.write_str("on"),
            Feature::Off => f.write_str("off"),
            Feature::Refused(errno) => write!(f, "refused ({errno})"),
        }
    }
}

impl Udp {
    /// Opens the device: binds a socket, or takes over the inherited one, and finds out what the system
    /// offers.
    pub fn open(config: UdpConfig) -> io::Result<Udp> {
        Udp::open_over(config, None)
    }

    /// Opens the device with an existing arena.
    pub(crate) fn open_over(config: UdpConfig, arena: Option<Arena>) -> io::Result<Udp> {
        config.check()?;
        let (socket, local) = match config.socket {
            Some(socket) => sys::adopt_socket(socket)?,
            None => sys::open_socket(config.bind)?,
        };
        let addresses = Some(config.addresses).filter(|told| local.ip().is_unspecified() && !told.is_empty());
        let addresses = addresses.unwrap_or_else(|| vec![local.ip()]);
        addresses.iter().try_for_each(|address| path::check_mtu(*address))?;
        sys::set_buffers(socket.as_fd(), config.rcvbuf, config.sndbuf)?;
        if config.rcvbuf.is_none() {
            sys::widen_receive_buffer(socket.as_fd(), RECEIVE_BUFFER)?;
        }
        let gso = Feature::tried(config.gso, || sys::has_gso(socket.as_fd()));
        let gro = Feature::tried(config.gro, || sys::set_gro(socket.as_fd(), false));
        let busy_poll = Feature::tried(config.busy_poll_us > 0, || {
            sys::set_busy_poll(socket.as_fd(), config.busy_poll_us)
        });
        let new_arena = || {
            let frame = config.slot_payload.unwrap_or_else(|| {
                addresses.iter().map(|address| path::slot_payload(*address)).max().unwrap_or_default()
            });
            match config.packed {
                Some(headers) if frame <= PACKED_MAX && frame > headers => {
                    Arena::packed(config.tx_slots, frame - headers, headers)
                }
                _ => Arena::new(config.tx_slots, frame),
            }
        };
        Ok(Udp {
            local,
            arena: arena.unwrap_or_else(new_arena),
            routes: Vec::new(),
            outgoing: Outgoing::new(config.batch),
            rx: RxState::new(gro.is_on(), config.batch),
            refresh: PathRefresh::new(),
            sockets: Sockets::default(),
            limit_changes: VecDeque::new(),
            counters: Counters::default(),
            drops_before: sys::drops(socket.as_fd()),
            receive_buffer: sys::receive_buffer(socket.as_fd())?,
            features: Features { gso, gro, busy_poll, connect: config.connect },
            socket,
        })
    }

    /// Describes what this device found and uses, in one sentence for people.
    pub fn describe(&self) -> String {
        format!(
            "udp at {}: segmentation (GSO) {}, coalescing (GRO) {}, busy poll {}, receive buffer {} B, frames up to {} B",
            self.local,
            self.features.gso,
            self.features.gro,
            self.features.busy_poll,
            self.receive_buffer,
            self.arena.frame_len().min(FRAME_CAP),
        )
    }

    /// Whether frames wait for the flush.
    #[inline]
    pub(crate) fn has_queued(&self) -> bool {
        !self.outgoing.queue.is_empty()
    }

    /// Notes that a route's limit has changed.
    #[cold]
    fn note_limit_change(&mut self, route: u32) {
        let id = RouteId(route);
        if !self.limit_changes.contains(&id) {
            self.limit_changes.push_back(id);
        }
    }
}

impl Datagram for Udp {
    fn name(&self) -> &'static str {
        "udp"
    }

    /// Returns the bound address. An unspecified address (`0.0.0.0`) stays so: only the caller knows which of
    /// the host's addresses its peers use.
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }

    fn arena_ref(&self) -> &Arena {
        &self.arena
    }

    fn route(&mut self, to: SocketAddr) -> io::Result<RouteId> {
        let max_frame = self.first_limit(to)?;
        let id =
            u32::try_from(self.routes.len()).map_err(|_| io::Error::from(io::ErrorKind::QuotaExceeded))?;
        if self.routes.len() == self.routes.capacity() {
            // There may be thousands that are hardly used: they do not take twice what they need.
            self.routes.reserve_exact(self.routes.len() / 16 + 1);
        }
        self.routes.push(Route {
            to,
            connected: None,
            is_new: true,
            max_frame: max_frame as u32,
            gso: self.features.gso.is_on(),
            sent: 0,
            quiet: 0,
        });
        // Each route is in the queue at most once, so queueing never allocates.
        self.limit_changes.reserve_exact(self.routes.capacity() - self.limit_changes.len());
        Ok(RouteId(id))
    }

    #[inline]
    fn max_frame(&self, route: RouteId) -> usize {
        self.routes[route.0 as usize].max_frame as usize
    }

    #[inline]
    fn send(&mut self, route: RouteId, slot: SlotId, range: Range<usize>) {
        debug_assert!((route.0 as usize) < self.routes.len());
        debug_assert!(range.start <= range.end && range.end <= crate::HEADROOM + self.arena.payload_len());
        if self.outgoing.queue.len() == self.outgoing.queue.capacity() {
            self.flush();
        }
        self.outgoing.queue.push(Queued {
            route: route.0,
            slot,
            start: range.start as u32,
            end: range.end as u32,
        });
    }

    #[inline]
    fn flush(&mut self) {
        self.send_queue();
    }

    #[inline]
    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<usize> {
        self.receive(batch)
    }

    fn want_sources(&mut self, wanted: bool) {
        self.rx.sources = wanted;
    }

    fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    #[inline]
    fn poll_event(&mut self) -> Option<DeviceEvent> {
        let route = self.limit_changes.pop_front()?;
        Some(DeviceEvent::PathLimit { route, max_frame: self.max_frame(route) })
    }

    fn counters(&self) -> Counters {
        let drops = u64::from(sys::drops(self.socket.as_fd()).wrapping_sub(self.drops_before));
        Counters { receive_overflows: self.counters.receive_overflows + drops, ..self.counters }
    }
}
