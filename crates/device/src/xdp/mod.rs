//! The AF_XDP device: frames move between the card's rings and our own memory, past the kernel's protocol
//! stack.
//!
//! What lives here:
//! - the interface of an address (`attach_point`), attaching the program to it (`attach`), sharing the
//!   program with other processes (`shared`), binding sockets to queues (`bind`), and doing all of it again
//!   when an interface comes back (`reopen`, `retry`, `watch`);
//! - the program that steers frames to the sockets (`program`, written with `asm`), and the headers that the
//!   kernel would have written (`headers`);
//! - the kernel's tables of routes and neighbours (`neighbour`), and the transport of each route (`routing`);
//! - the sockets' memory (`rings`), sending (`send`), receiving (`receive`, `arrivals`), and who moves frames
//!   (`trial`).
//!
//! What does not: recovery, order, peers.
//!
//! The device owns a [`Udp`] device on the same address and port (D-13). It reserves the port, receives what
//! the program lets pass, and sends what cannot use AF_XDP. Both send from the same slots, so a route can
//! change its transport between two frames.

mod arrivals;
mod asm;
mod attach;
mod attach_point;
mod bind;
mod config;
mod features;
mod headers;
mod neighbour;
mod probe;
mod program;
mod receive;
mod reopen;
mod retry;
mod rings;
mod routing;
mod send;
mod shared;
#[cfg(test)]
mod tests;
mod trial;
mod unavailable;
mod watch;

pub use config::{Completion, Mode, Receive, XdpConfig};
pub use headers::Framing;
pub use probe::{InterfaceProbe, Probe, probe};
pub use unavailable::Unavailable;

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use arrivals::Arrivals;
use attach_point::AttachPoint;
use program::{DROP_CAUSES, DropCause};
use rings::Rings;
use routing::{Route, Routing};
use shared::Attached;
use trial::Polling;

use crate::sys::netlink::Netlink;
use crate::sys::{self, Queues};
use crate::udp::{self, Udp, UdpConfig};
use crate::{Arena, Counters, Datagram, DeviceEvent, RouteId, RxBatch, SlotId, Transport};

/// The AF_XDP device.
///
/// `Send`, not shared: it moves with the lane that owns it. It makes no thread and keeps no timer.
pub struct Xdp {
    /// First, so that the sockets are closed before the program is detached.
    rings: Rings,
    attached: Attached,
    point: AttachPoint,
    udp: Udp,
    routing: Routing,
    arrivals: Arrivals,
    polling: Polling,
    statistics: Statistics,
    config: XdpConfig,
    local: SocketAddr,
    /// Frames are received with their source.
    sources: bool,
    description: String,
}

/// What the device counted.
struct Statistics {
    counters: Counters,
    refused: RefusedFrames,
    /// What the program had dropped at our queues before they were ours.
    dropped_before: [u64; DROP_CAUSES as usize],
}

/// Malformed frames for this device, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedFrames {
    /// Dropped by the program: lengths that contradict each other.
    pub length: u64,
    /// Dropped by the program or by the device: wrong checksums.
    pub checksum: u64,
    /// Dropped by the program: a source address that no host has.
    pub source: u64,
    /// Dropped by the program: shorter than any frame of its kind.
    pub short: u64,
    /// Dropped by the device: what the program should not have let through.
    pub shape: u64,
}

impl RefusedFrames {
    /// Returns the sum over all causes.
    pub fn total(self) -> u64 {
        self.length + self.checksum + self.source + self.short + self.shape
    }
}

/// A device could not be opened. Contains everything needed to open a plain UDP device instead.
#[derive(Debug)]
pub struct OpenError {
    /// Why.
    pub why: Unavailable,
    /// The UDP configuration, with the socket if it was opened already.
    pub udp: UdpConfig,
}

impl Xdp {
    /// Opens the device on the interface that has the bound address.
    ///
    /// # Errors
    /// With the reason, and what a plain UDP device needs.
    pub fn open(config: XdpConfig) -> Result<Xdp, Box<OpenError>> {
        let mut config = config;
        let opened: Result<_, Unavailable> = (|| {
            let (socket, local) = match config.udp.socket.take() {
                Some(socket) => sys::adopt_socket(socket),
                None => sys::open_socket(config.udp.bind),
            }
            .map_err(|e| Unavailable::System(format!("cannot bind the port: {e}")))?;
            config.udp.socket = Some(socket);
            let local = match config.address {
                Some(address) if local.ip().is_unspecified() => SocketAddr::new(address, local.port()),
                _ => local,
            };
            let failed = |e| unavailable::system("a netlink socket", e);
            let notifications = Netlink::open(neighbour::GROUPS).map_err(failed)?;
            let mut routing = Routing::new(notifications, Netlink::open(0).map_err(failed)?);
            let point = attach_point::find(&mut routing.queries, local, config.vlan)?;
            let payload = config.udp.slot_payload.unwrap_or_else(|| udp::slot_payload(local.ip()));
            let opened = attach::open(&config, &point, local, payload)?;
            Ok((local, routing, point, opened))
        })();
        match opened {
            Ok((local, routing, point, opened)) => Xdp::assemble(config, local, routing, point, opened),
            Err(why) => Err(Box::new(OpenError { why: why.with_holders(), udp: config.udp })),
        }
    }

    fn assemble(
        config: XdpConfig,
        local: SocketAddr,
        routing: Routing,
        point: AttachPoint,
        opened: attach::Opened,
    ) -> Result<Xdp, Box<OpenError>> {
        let attach::Opened { attached, queues, memory, numbers, failed_modes } = opened;
        let by_completion = is_by_completion(&config, &point, &queues);
        let (rings, arena) = Rings::new(queues, numbers, memory, config.tx_ring, by_completion);
        let room = rings.queues.chunks_per_queue() * FRAME_CHARGE;
        let ip = config.address.map_or(local.ip(), |_| config.udp.bind.ip());
        let bind = SocketAddr::new(ip, local.port());
        let udp_config = UdpConfig { rcvbuf: config.udp.rcvbuf.or(Some(room)), ..config.udp };
        let config = XdpConfig { udp: UdpConfig::default(), ..config };
        // From here on only a lack of descriptors or memory can fail.
        let failed = |e: String| {
            Box::new(OpenError {
                why: Unavailable::System(e),
                udp: UdpConfig { bind, ..UdpConfig::default() },
            })
        };
        let udp = Udp::open_over(udp_config, Some(arena)).map_err(|e| failed(e.to_string()))?;
        let socket = udp.fd().ok_or_else(|| failed("the UDP device has no socket".into()))?;
        let mut arrivals =
            Arrivals::new(socket, routing.notifications.fd()).map_err(|e| failed(e.to_string()))?;
        let busy = trial::configure(&rings.queues, config.receive);
        if let Some(requests) = attached.requests_fd() {
            arrivals.add_event_source(requests).map_err(|e| failed(e.to_string()))?;
        }
        if config.drop_privileges {
            sys::caps::drop_needed().map_err(|e| failed(format!("cannot drop privileges: {e}")))?;
        }
        let mut device = Xdp {
            statistics: Statistics {
                counters: Counters::default(),
                refused: RefusedFrames::default(),
                dropped_before: dropped(&attached, &rings.numbers),
            },
            rings,
            attached,
            point,
            udp,
            routing,
            arrivals,
            polling: Polling::new(config.receive),
            config,
            local,
            sources: true,
            description: String::new(),
        };
        device.description = device.describe_setup(&failed_modes, busy);
        Ok(device)
    }

    /// Describes what this device found and uses, in one sentence for people.
    pub fn describe(&self) -> &str {
        &self.description
    }

    /// Returns the number of frames that arrived through the UDP socket instead of a ring: from hosts whose
    /// frames the program does not take, or by queues without a socket of ours.
    pub fn frames_by_socket(&self) -> u64 {
        self.udp.counters().frames_received
    }

    /// Returns the numbers of this device's queues.
    pub fn queues(&self) -> &[u32] {
        &self.rings.numbers
    }

    /// Whether the measurement of who moves frames is still under way ([`Receive::Measured`]).
    pub fn is_measuring(&self) -> bool {
        self.polling.is_measuring()
    }

    /// Loses the next `count` doorbells, for sending and receiving, as if the system had missed them; for
    /// tests.
    #[doc(hidden)]
    pub fn lose_doorbells(&mut self, count: u32) {
        self.rings.lost_doorbells = count;
    }

    /// Returns the number of malformed frames for this device, by cause.
    pub fn refused_frames(&self) -> RefusedFrames {
        let now = dropped(&self.attached, &self.rings.numbers);
        let Statistics { refused, dropped_before, .. } = &self.statistics;
        let drops = |cause: DropCause| now[cause as usize].saturating_sub(dropped_before[cause as usize]);
        RefusedFrames {
            length: drops(DropCause::Length),
            checksum: refused.checksum + drops(DropCause::Checksum),
            source: drops(DropCause::Source),
            short: drops(DropCause::Short),
            shape: refused.shape,
        }
    }

    fn describe_setup(&self, failed_modes: &[(Mode, String)], busy: Result<(), sys::Errno>) -> String {
        use std::fmt::Write;
        let Xdp { rings, attached, point, config, local, .. } = self;
        let list: Vec<_> = rings.numbers.iter().map(u32::to_string).collect();
        let mut text = format!(
            "xdp at {local} on {} (driver {}) queue {} of {}: {} mode{}{}",
            point.lower.name,
            point.driver,
            list.join("+"),
            point.lower.queues,
            attached.terms.mode.name(),
            if rings.queues.is_zero_copy() { ", no copies" } else { ", the kernel copies" },
            if attached.joined { ", the program of another process" } else { "" },
        );
        if config.mode == Mode::Auto && point.driver == "veth" {
            text += match attached.terms.mode {
                Mode::Generic if attach::is_divided(config, point) => {
                    " (on veth all frames arrive by its first queue)"
                }
                Mode::Generic => " (on veth the faster one)",
                _ => " (on veth the one that knows the sender's queue)",
            };
        }
        for (mode, why) in failed_modes {
            let _ = write!(text, ", not {} because {why}", mode.name());
        }
        let rx = match (config.receive, busy) {
            (Receive::Kernel, _) => "filled by the kernel".to_owned(),
            (Receive::Measured, _) => "filled by the kernel, unless busy polling proves faster".to_owned(),
            (Receive::BusyPoll, Ok(())) => "busy polled".to_owned(),
            (Receive::BusyPoll, Err(errno)) => format!("busy polling refused ({errno})"),
        };
        let pages = if rings.umem.is_huge() { "huge pages" } else { "ordinary pages" };
        let framing = if config.framing == Framing::Raw { "raw Ethernet" } else { "UDP" };
        let _ = write!(
            text,
            ", rings {rx}, {framing} framing, {} KiB pinned in {pages}, {} chunks of {} B to receive into",
            rings.umem.len() / 1024,
            rings.layout.chunks,
            rings.layout.chunk,
        );
        if rings.queues.has_tx_metadata() && framing == "UDP" && (config.checksums || local.is_ipv6()) {
            text += ", checksums by the card";
        }
        if let Some(vlan) = point.upper.vlan {
            let _ = write!(text, ", VLAN {vlan}");
        }
        if let Some(why) = attached.requests_error() {
            let _ = write!(text, ", no other process can share the program because {why}");
        }
        text
    }
}

/// Returns what the program has dropped at these queues, by cause.
fn dropped(attached: &Attached, numbers: &[u32]) -> [u64; DROP_CAUSES as usize] {
    std::array::from_fn(|cause| {
        numbers.iter().map(|number| attached.drops.get(number * DROP_CAUSES + cause as u32)).sum()
    })
}

/// Whether the kernel may read a frame until the completion ring returns it (D-9).
fn is_by_completion(config: &XdpConfig, point: &AttachPoint, queues: &Queues) -> bool {
    config.completion == Completion::Ring
        || queues.is_zero_copy()
        || !COPYING_DRIVERS.contains(&point.driver.as_str())
}

/// What a link charges for the smallest frame; one chunk holds one.
const FRAME_CHARGE: usize = 768;
/// Drivers that are known to have copied a frame once they have taken it from the ring. Others may send from
/// our pages.
const COPYING_DRIVERS: [&str; 3] = ["veth", "tun", "dummy"];

impl Datagram for Xdp {
    fn name(&self) -> &'static str {
        "xdp"
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    #[inline]
    fn arena(&mut self) -> &mut Arena {
        self.udp.arena()
    }

    #[inline]
    fn arena_ref(&self) -> &Arena {
        self.udp.arena_ref()
    }

    fn route(&mut self, to: SocketAddr) -> io::Result<RouteId> {
        let id = self.udp.route(to)?;
        self.routing.routes.push(Route::new(to));
        self.resolve(id);
        // The initial transport is not a change.
        self.routing.routes[id.0 as usize].reported = true;
        Ok(id)
    }

    #[inline]
    fn max_frame(&self, route: RouteId) -> usize {
        self.udp.max_frame(route)
    }

    #[inline]
    fn send(&mut self, route: RouteId, slot: SlotId, range: Range<usize>) {
        self.send_frame(route, slot, range);
    }

    #[inline]
    fn flush(&mut self) {
        self.ring();
        if self.udp.has_queued() {
            self.udp.flush();
        }
    }

    #[inline]
    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<usize> {
        self.receive_frames(batch)
    }

    fn want_sources(&mut self, wanted: bool) {
        self.sources = wanted;
        self.udp.want_sources(wanted);
    }

    fn receive_buffer(&self) -> usize {
        (self.rings.queues.chunks_per_queue() * FRAME_CHARGE).min(self.udp.receive_buffer())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.rings.queues.fds().next()
    }

    fn more_fds(&self) -> Vec<BorrowedFd<'_>> {
        let sockets = self.rings.queues.fds().skip(1);
        let netlink = [self.routing.notifications.fd()];
        sockets.chain(self.udp.fd()).chain(netlink).chain(self.attached.requests_fd()).collect()
    }

    #[inline]
    fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.routing.poll_event().or_else(|| self.udp.poll_event())
    }

    fn counters(&self) -> Counters {
        let (udp, own, kernel) =
            (self.udp.counters(), self.statistics.counters, self.rings.queues.statistics());
        Counters {
            frames_sent: udp.frames_sent + own.frames_sent,
            bytes_sent: udp.bytes_sent + own.bytes_sent,
            frames_received: udp.frames_received + own.frames_received,
            bytes_received: udp.bytes_received + own.bytes_received,
            send_calls: udp.send_calls + own.send_calls,
            receive_calls: udp.receive_calls + own.receive_calls,
            send_failures: udp.send_failures + own.send_failures,
            receive_overflows: udp.receive_overflows + own.receive_overflows + kernel.overflows,
            frames_refused: self.refused_frames().total(),
        }
    }

    #[inline]
    fn is_quiet(&mut self) -> bool {
        self.has_nothing()
    }

    fn transport(&self, route: RouteId) -> Option<Transport> {
        self.routing.routes.get(route.0 as usize).map(|route| route.transport)
    }

    fn transport_reason(&self, route: RouteId) -> &str {
        self.routing.routes.get(route.0 as usize).map_or("", |route| &route.reason)
    }

    fn takes_raw(&self) -> bool {
        self.config.framing == Framing::Raw && self.routing.health.receives_raw()
    }

    fn set_peer_takes_raw(&mut self, route: RouteId, takes: bool) {
        let entry = self.routing.routes.get_mut(route.0 as usize);
        if let Some(entry) = entry.filter(|entry| entry.peer_accepts_raw != takes) {
            // The caller asks for the transport next, so this change is not reported.
            (entry.peer_accepts_raw, entry.reported) = (takes, false);
            self.choose(route);
            self.routing.routes[route.0 as usize].reported = true;
        }
    }

    fn prefer_transport(&mut self, route: RouteId, transport: Option<Transport>) {
        if let Some(entry) = self.routing.routes.get_mut(route.0 as usize) {
            entry.preferred = transport;
            self.resolve(route);
        }
    }
}
