//! The largest frame of each path, derived from the kernel's path MTU and kept up to date (D-5).

use std::io;
use std::net::{IpAddr, SocketAddr};

use tautline_wire::frame::{BASE_FRAME, MAX_FRAME, SMALLEST_FRAME};

use super::Udp;
use crate::RouteId;
use crate::sys::{self, Errno};

/// The largest frame, however large the MTU: a jumbo Ethernet frame. It matters on loopback, whose MTU is
/// 65,536. Streams of 64 KiB messages gain a fifth from 1,472 to 4,096 bytes, and nothing measurable beyond
/// (4.8 GB/s from there to 32 KiB; `examples/udp_cost.rs sizes`), and slots stay small.
pub const FRAME_CAP: usize = 8_972;

/// IP and UDP headers.
const OVERHEAD_V4: usize = 20 + 8;
const OVERHEAD_V6: usize = 40 + 8;
/// The MTU of Ethernet: the default where nothing better is known.
const ETHERNET_MTU: usize = 1_500;
/// The shortest time between two checks of a path in use, in nanoseconds.
pub(super) const REFRESH_EVERY: u64 = 1_000_000_000;
/// The clock is read at one of this many flushes.
const REFRESH_FLUSHES: u32 = 64;

/// When paths are checked again.
pub(super) struct PathRefresh {
    flushes: u32,
    /// When the last pass over all routes began.
    pub(super) begun_at: u64,
    /// Nanoseconds from the beginning of the pass before it to that.
    pub(super) interval: u64,
    /// The next route to check.
    pub(super) next: usize,
}

impl PathRefresh {
    pub(super) fn new() -> PathRefresh {
        PathRefresh { flushes: 0, begun_at: sys::coarse_now(), interval: 0, next: 0 }
    }

    /// Counts a flush. Returns whether [`Udp::refresh_paths`] is due.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        self.flushes = self.flushes.wrapping_add(1);
        self.flushes.is_multiple_of(REFRESH_FLUSHES)
    }
}

fn frame_limit(mtu: usize, ip: IpAddr) -> usize {
    let overhead = if ip.is_ipv4() { OVERHEAD_V4 } else { OVERHEAD_V6 };
    mtu.saturating_sub(overhead).clamp(1, FRAME_CAP.min(MAX_FRAME))
}

/// Returns the MTU at an address of this host.
fn mtu_at(local: IpAddr) -> usize {
    if local.is_unspecified() {
        ETHERNET_MTU
    } else if local.is_loopback() {
        usize::MAX
    } else {
        sys::interface_mtu(local).ok().flatten().unwrap_or(ETHERNET_MTU)
    }
}

/// Refuses an interface whose MTU is too small for any frame (L-20).
pub(super) fn check_mtu(local: IpAddr) -> io::Result<()> {
    let mtu = mtu_at(local);
    let least = SMALLEST_FRAME + if local.is_ipv4() { OVERHEAD_V4 } else { OVERHEAD_V6 };
    if mtu >= least {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        format!(
            "the interface with the address {local} has an MTU of {mtu}, but frames need {least}: raise it (ip link set dev INTERFACE mtu 1500), or use the address of another interface"
        ),
    ))
}

/// Returns the default payload of slots.
pub(crate) fn slot_payload(local: IpAddr) -> usize {
    let mtu = mtu_at(local);
    frame_limit(mtu, local).max(SMALLEST_FRAME)
}

/// Returns the default payload of slots for an MTU, with the headers of IPv4, which are the shorter ones.
pub(crate) fn payload_of_mtu(mtu: usize) -> usize {
    frame_limit(mtu, std::net::Ipv4Addr::UNSPECIFIED.into()).max(SMALLEST_FRAME)
}

impl Udp {
    /// Returns the largest frame for a destination; `None` if its network cannot be reached now, or there is
    /// no descriptor to ask with, which says nothing about the path.
    ///
    /// # Errors
    /// If this socket can never reach the address.
    pub(super) fn path_limit(&self, to: SocketAddr) -> io::Result<Option<usize>> {
        if to.is_ipv4() != self.local.is_ipv4() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the destination has the other IP version",
            ));
        }
        match sys::path_mtu(self.local.ip(), to) {
            Ok(mtu) => Ok(Some(frame_limit(mtu, to.ip()).min(self.arena.frame_len()))),
            Err(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::NETDOWN) => Ok(None),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns the largest frame for a new destination. A network that cannot be reached now may come back,
    /// and so may descriptors: it gets what every path takes.
    pub(super) fn first_limit(&self, to: SocketAddr) -> io::Result<usize> {
        Ok(self.path_limit(to)?.unwrap_or(BASE_FRAME.min(self.arena.frame_len())))
    }

    /// Checks a route's path again. It keeps its limit while the network cannot be reached.
    pub(crate) fn recheck(&mut self, route: RouteId) {
        if let Ok(Some(limit)) = self.path_limit(self.routes[route.0 as usize].to) {
            self.set_limit(route.0, limit);
        }
    }

    /// Sets a route's limit, and notes a change.
    pub(super) fn set_limit(&mut self, route: u32, max_frame: usize) {
        let entry = &mut self.routes[route as usize];
        if entry.max_frame != max_frame as u32 {
            entry.max_frame = max_frame as u32;
            self.note_limit_change(route);
        }
    }

    /// Lowers a route's limit after the system refused a frame of `len` bytes as too long.
    #[cold]
    pub(super) fn frame_too_long(&mut self, route: u32, len: usize) {
        let to = self.routes[route as usize].to;
        let mut limit = self.first_limit(to).unwrap_or(BASE_FRAME);
        if limit >= len {
            // The kernel contradicts itself; only what every path takes is safe now.
            limit = BASE_FRAME.min(len.saturating_sub(1)).max(1);
        }
        self.set_limit(route, limit);
    }

    /// Checks paths, so that a changed limit is noticed without a refusal, and gives connected sockets to the
    /// routes in use (D-33). Called once per [`REFRESH_FLUSHES`]; checks one used route per call, and all of
    /// them in turn.
    #[cold]
    pub(super) fn refresh_paths(&mut self) {
        if self.refresh.next >= self.routes.len() {
            let now = sys::coarse_now();
            let interval = now.saturating_sub(self.refresh.begun_at);
            if interval < REFRESH_EVERY {
                return;
            }
            (self.refresh.begun_at, self.refresh.interval) = (now, interval);
            self.refresh.next = 0;
        }
        while let Some(entry) = self.routes.get_mut(self.refresh.next) {
            let route = self.refresh.next as u32;
            self.refresh.next += 1;
            let sent = std::mem::take(&mut entry.sent);
            let changed = self.update_connected(route, sent);
            if sent > 0 {
                return self.recheck(RouteId(route));
            }
            if changed {
                return;
            }
        }
    }
}
