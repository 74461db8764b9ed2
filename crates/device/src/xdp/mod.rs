//! The AF_XDP device: frames go between the card's rings and our own memory, past the kernel's protocol stack.
//!
//! What lives here: one socket on one queue of one interface (`attach`), the program that steers frames to it (`program`, written with
//! `asm`), the headers that the kernel would have written (`headers`), the kernel's tables of routes and neighbours (`neighbour`), which way
//! each route goes (`ways`), sending (`send`) and receiving (`receive`). What does not: recovery, order, peers.
//!
//! The device owns a [`Udp`] device on the same address and port (D-13): it reserves the port, gets whatever the program lets pass, and
//! carries what cannot go directly. Slots are the same for both, so a route changes its way between two frames.

mod asm;
mod attach;
mod config;
mod headers;
mod neighbour;
mod probe;
mod program;
mod receive;
mod send;
#[cfg(test)]
mod tests;
mod ways;

pub use attach::Refusal;
pub use config::{Done, Mode, Receive, XdpConfig};
pub use headers::Framing;
pub use probe::{InterfaceProbe, Probe, probe};

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use attach::{Attached, Memory, Place};
use ways::Route;

use crate::sys::bpf::WordMap;
use crate::sys::netlink::Netlink;
use crate::sys::{self, Layout, Umem, Xsk};
use crate::udp::{self, Udp, UdpConfig};
use crate::{Arena, Counters, Datagram, DeviceEvent, Guarantees, RouteId, RxBatch, SlotId, Way};

/// The AF_XDP device.
///
/// `Send`, not shared: it moves with the interface that owns it. It makes no thread and keeps no timer.
pub struct Xdp {
    /// First, so that it is gone before the memory is.
    xsk: Xsk,
    attached: Attached,
    udp: Udp,
    copies: Arena,
    umem: Arc<Umem>,
    layout: Layout,
    mail: WordMap,
    news: Netlink,
    asks: Netlink,
    place: Place,
    local: SocketAddr,
    framing: Framing,
    receive: Receive,
    /// The kernel looks at frames until the completion ring says otherwise.
    told: bool,
    routes: Vec<Route>,
    events: VecDeque<DeviceEvent>,
    /// Slots whose frames the kernel has not taken from the ring yet, one for each descriptor.
    pending: VecDeque<Origin>,
    health: ways::Health,
    post: receive::Post,
    counters: Counters,
    strange: Strange,
    flushes: u32,
    /// Frames shall come with their source.
    sources: bool,
    /// Addresses that belong to hardware addresses, as far as raw frames made us ask.
    senders: Vec<(headers::Mac, std::net::IpAddr)>,
    about: String,
}

/// Whose slot a descriptor points into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Slot(SlotId),
    Copy(SlotId),
}

/// Frames for us that were not taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strange {
    /// By the program: lengths that contradict each other.
    pub length: u64,
    /// By the program and by us: checksums.
    pub checksum: u64,
    /// By the program: a source that no host has.
    pub source: u64,
    /// By the program: shorter than any frame of its kind.
    pub short: u64,
    /// By us: what the program should not have let through.
    pub shape: u64,
}

/// A device that could not be opened, with everything needed to open a plain UDP device in its place.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub why: Refusal,
    /// What it was told, with the socket if there is one already.
    pub udp: UdpConfig,
}

impl Xdp {
    /// Opens the device on the interface that has the address that is bound. Refused, it gives back what a plain
    /// UDP device needs.
    ///
    /// # Errors
    /// With the reason, in words for people.
    pub fn open(config: XdpConfig) -> Result<Xdp, Box<Refused>> {
        let mut config = config;
        let opened = (|| {
            let (socket, local) = match config.udp.socket.take() {
                Some(socket) => sys::adopt_socket(socket),
                None => sys::open_socket(config.udp.bind),
            }
            .map_err(|e| Refusal::System(format!("the port cannot be had: {e}")))?;
            config.udp.socket = Some(socket);
            let (news, mut asks) = attach::tables()?;
            let place = attach::find(&mut asks, local.ip(), config.vlan)?;
            let payload = config.udp.slot_payload.unwrap_or_else(|| udp::slot_payload(local.ip()));
            let opened = attach::open(&config, &place, local, payload)?;
            Ok((local, news, asks, place, opened))
        })();
        match opened {
            Ok((local, news, asks, place, opened)) => {
                Xdp::assemble(config, local, (news, asks), place, opened)
            }
            Err(why) => Err(Box::new(Refused { why, udp: config.udp })),
        }
    }

    fn assemble(
        config: XdpConfig,
        local: SocketAddr,
        (news, asks): (Netlink, Netlink),
        place: Place,
        opened: attach::Opened,
    ) -> Result<Xdp, Box<Refused>> {
        let attach::Opened { attached, mut xsk, memory, queue, mode, passed_over } = opened;
        let Memory { layout, umem, arena, copies, chunks } = memory;
        chunks.into_iter().for_each(|chunk| xsk.fill(chunk));
        xsk.submit_chunks();
        let room = layout.chunks * FRAME_CHARGE;
        let tell = XdpConfig { udp: UdpConfig::default(), ..config };
        let udp_config = UdpConfig { rcvbuf: config.udp.rcvbuf.or(Some(room)), ..config.udp };
        // From here on nothing fails but by a lack of descriptors or memory.
        let failed = |e: String| {
            Box::new(Refused {
                why: Refusal::System(e),
                udp: UdpConfig { bind: local, ..UdpConfig::default() },
            })
        };
        let udp = Udp::open_over(udp_config, Some(arena)).map_err(|e| failed(e.to_string()))?;
        let socket = udp.fd().ok_or_else(|| failed("the UDP device has no socket".into()))?;
        let mail = attach::watch(socket, &news).map_err(|e| failed(e.to_string()))?;
        let zero_copy = xsk.is_zero_copy();
        let busy = match tell.receive {
            Receive::Kernel => Ok(()),
            Receive::BusyPoll => xsk.prefer_busy_poll(BUSY_US, BUSY_FRAMES),
        };
        if tell.drop_privileges {
            sys::caps::give_up().map_err(|e| failed(format!("privileges cannot be given up: {e}")))?;
        }
        let told = tell.done == Done::Told || zero_copy || !COPYING_DRIVERS.contains(&place.driver.as_str());
        let about =
            describe(&tell, &place, local, (queue, mode, zero_copy), &passed_over, (&umem, layout), busy);
        Ok(Xdp {
            xsk,
            attached,
            udp,
            copies,
            umem,
            layout,
            mail,
            news,
            asks,
            place,
            local,
            framing: tell.framing,
            receive: tell.receive,
            told,
            routes: Vec::new(),
            events: VecDeque::new(),
            pending: VecDeque::with_capacity(tell.tx_ring as usize),
            health: ways::Health::default(),
            post: receive::Post::default(),
            counters: Counters::default(),
            strange: Strange::default(),
            flushes: 0,
            sources: true,
            senders: Vec::new(),
            about,
        })
    }

    /// One sentence about what this device found and uses, for people.
    pub fn describe(&self) -> &str {
        &self.about
    }

    /// Frames for us that were not taken, by cause.
    pub fn strange(&self) -> Strange {
        let drops = |kind: program::Drop| self.attached.drops.get(kind as u32);
        Strange {
            length: drops(program::Drop::Length),
            checksum: self.strange.checksum + drops(program::Drop::Checksum),
            source: drops(program::Drop::Source),
            short: drops(program::Drop::Short),
            shape: self.strange.shape,
        }
    }
}

/// What a link charges for the smallest frame; one chunk holds one.
const FRAME_CHARGE: usize = 768;
/// Drivers that are known to have copied a frame when they have taken it from the ring. Others may send from our pages.
const COPYING_DRIVERS: [&str; 3] = ["veth", "tun", "dummy"];
/// How long, and for how many frames, the kernel polls the card when the caller asks it to.
const BUSY_US: u32 = 20;
const BUSY_FRAMES: u32 = 64;

fn describe(
    config: &XdpConfig,
    place: &Place,
    local: SocketAddr,
    (queue, mode, zero_copy): (u32, Mode, bool),
    passed_over: &[(Mode, String)],
    (umem, layout): (&Umem, Layout),
    busy: Result<(), sys::Errno>,
) -> String {
    use std::fmt::Write;
    let mut text = format!(
        "xdp at {local} on {} (driver {}) queue {queue} of {}: {} mode{}",
        place.lower.name,
        place.driver,
        place.lower.queues,
        mode.name(),
        if zero_copy { ", no copies" } else { ", the kernel copies" },
    );
    if config.mode == Mode::Auto && place.driver == "veth" {
        text += " (on veth the faster one)";
    }
    for (mode, why) in passed_over {
        let _ = write!(text, ", not {} because {why}", mode.name());
    }
    let rx = match (config.receive, busy) {
        (Receive::Kernel, _) => "filled by the kernel".to_owned(),
        (Receive::BusyPoll, Ok(())) => "busy polled".to_owned(),
        (Receive::BusyPoll, Err(errno)) => format!("busy polling refused ({errno})"),
    };
    let pages = if umem.is_huge() { "huge pages" } else { "ordinary pages" };
    let framing = if config.framing == Framing::Raw { "raw Ethernet" } else { "UDP" };
    let _ = write!(
        text,
        ", rings {rx}, {framing} framing, {} KiB pinned in {pages}, {} chunks of {} B to receive into",
        umem.len() / 1024,
        layout.chunks,
        layout.chunk,
    );
    if let Some(vlan) = place.upper.vlan {
        let _ = write!(text, ", VLAN {vlan}");
    }
    text
}

impl Datagram for Xdp {
    fn name(&self) -> &'static str {
        "xdp"
    }

    fn guarantees(&self) -> Guarantees {
        self.udp.guarantees()
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
        self.routes.push(Route::new(to));
        self.look_up(id);
        // What a route begins with is no change.
        self.routes[id.0 as usize].told = true;
        Ok(id)
    }

    fn reroute(&mut self, route: RouteId, to: SocketAddr) -> io::Result<()> {
        self.udp.reroute(route, to)?;
        self.flush();
        let fresh = Route::new(to);
        let before = std::mem::replace(&mut self.routes[route.0 as usize], fresh);
        self.routes[route.0 as usize].asked = before.asked;
        self.look_up(route);
        self.routes[route.0 as usize].told = true;
        Ok(())
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
        (self.layout.chunks * FRAME_CHARGE).min(self.udp.receive_buffer())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.xsk.fd())
    }

    fn more_fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [self.udp.fd(), Some(self.news.fd())]
    }

    #[inline]
    fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.events.pop_front().or_else(|| self.udp.poll_event())
    }

    fn counters(&self) -> Counters {
        let (udp, own, kernel) = (self.udp.counters(), self.counters, self.xsk.statistics());
        Counters {
            frames_sent: udp.frames_sent + own.frames_sent,
            bytes_sent: udp.bytes_sent + own.bytes_sent,
            frames_received: udp.frames_received + own.frames_received,
            bytes_received: udp.bytes_received + own.bytes_received,
            send_calls: udp.send_calls + own.send_calls,
            receive_calls: udp.receive_calls + own.receive_calls,
            send_failures: udp.send_failures + own.send_failures,
            receive_overflows: udp.receive_overflows + kernel.overflows,
        }
    }

    #[inline]
    fn is_quiet(&mut self) -> bool {
        self.sees_nothing()
    }

    fn way(&self, route: RouteId) -> Option<Way> {
        self.routes.get(route.0 as usize).map(|route| route.way)
    }

    fn why(&self, route: RouteId) -> &str {
        self.routes.get(route.0 as usize).map_or("", |route| &route.why)
    }

    fn ask_way(&mut self, route: RouteId, way: Option<Way>) {
        if let Some(entry) = self.routes.get_mut(route.0 as usize) {
            entry.asked = way;
            self.look_up(route);
        }
    }
}
