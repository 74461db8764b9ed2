//! The AF_XDP device: frames go between the card's rings and our own memory, past the kernel's protocol stack.
//!
//! What lives here: sockets on queues of one interface (`attach`), shared with other processes (`shared`), had again when it comes back (`back`), the program that steers frames to it (`program`, written with
//! `asm`), the headers that the kernel would have written (`headers`), the kernel's tables of routes and neighbours (`neighbour`), which way
//! each route goes (`routing`), who moves frames (`trial`), whether the program is still there (`watch`), sending (`send`) and receiving (`receive`). What does not: recovery, order, peers.
//!
//! The device owns a [`Udp`] device on the same address and port (D-13): it reserves the port, gets whatever the program lets pass, and
//! carries what cannot go directly. Slots are the same for both, so a route changes its way between two frames.

mod asm;
mod attach;
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
mod routing;
mod send;
mod shared;
#[cfg(test)]
mod tests;
mod trial;
mod watch;

pub use attach::Unavailable;
pub use config::{Completion, Mode, Receive, XdpConfig};
pub use headers::Framing;
pub use probe::{InterfaceProbe, Probe, probe};

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use attach::{MAIL_NEWS, Place};
use bind::Memory;
use routing::Route;
use shared::Attached;

use crate::sys::bpf::WordMap;
use crate::sys::netlink::Netlink;
use crate::sys::{self, Layout, Queues, Umem};
use crate::udp::{self, Udp, UdpConfig};
use crate::{Arena, Counters, Datagram, DeviceEvent, RouteId, RxBatch, SlotId, Transport};

/// The AF_XDP device.
///
/// `Send`, not shared: it moves with the interface that owns it. It makes no thread and keeps no timer.
pub struct Xdp {
    /// First, so that they are gone before the memory is.
    queues: Queues,
    /// Their numbers.
    numbers: Vec<u32>,
    attached: Attached,
    /// What the program had dropped at our queues before they were ours.
    dropped_before: [u64; program::DROPS as usize],
    config: XdpConfig,
    udp: Udp,
    copies: Arena,
    umem: Arc<Umem>,
    layout: Layout,
    mail: WordMap,
    news: Netlink,
    asks: Netlink,
    place: Place,
    local: SocketAddr,
    /// The kernel looks at frames until the completion ring says otherwise.
    told: bool,
    routes: Vec<Route>,
    events: VecDeque<DeviceEvent>,
    /// Slots whose frames the kernel has not taken from the ring yet, one for each descriptor.
    pending: VecDeque<Origin>,
    health: routing::Health,
    post: receive::Post,
    /// The caller moves frames to the rings.
    busy: bool,
    trial: Option<Box<trial::Trial>>,
    counters: Counters,
    refused: RefusedFrames,
    flushes: u32,
    /// Frames received lately, less some for each doorbell: many while others stream to us.
    streak: u32,
    /// Frames shall come with their source.
    sources: bool,
    /// Addresses that belong to hardware addresses, as far as raw frames made us ask.
    senders: Vec<(headers::Mac, std::net::IpAddr)>,
    /// Whether raw frames are taken, as the caller was last told.
    raw_told: bool,
    about: String,
    /// Doorbells that are not rung; for tests.
    lost_doorbells: u32,
}

/// Whose slot a descriptor points into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Slot(SlotId),
    Copy(SlotId),
}

/// Frames for us that were not taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedFrames {
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

impl RefusedFrames {
    /// All of them.
    pub fn total(self) -> u64 {
        self.length + self.checksum + self.source + self.short + self.shape
    }
}

/// A device that could not be opened, with everything needed to open a plain UDP device in its place.
#[derive(Debug)]
pub struct OpenError {
    /// Why.
    pub why: Unavailable,
    /// What it was told, with the socket if there is one already.
    pub udp: UdpConfig,
}

impl Xdp {
    /// Opens the device on the interface that has the address that is bound. Refused, it gives back what a plain
    /// UDP device needs.
    ///
    /// # Errors
    /// With the reason, in words for people.
    pub fn open(config: XdpConfig) -> Result<Xdp, Box<OpenError>> {
        let mut config = config;
        let opened: Result<_, Unavailable> = (|| {
            let (socket, local) = match config.udp.socket.take() {
                Some(socket) => sys::adopt_socket(socket),
                None => sys::open_socket(config.udp.bind),
            }
            .map_err(|e| Unavailable::System(format!("the port cannot be had: {e}")))?;
            config.udp.socket = Some(socket);
            let (news, mut asks) = attach::tables()?;
            let place = attach::find(&mut asks, local, config.vlan)?;
            let payload = config.udp.slot_payload.unwrap_or_else(|| udp::slot_payload(local.ip()));
            let opened = attach::open(&config, &place, local, payload)?;
            Ok((local, news, asks, place, opened))
        })();
        match opened {
            Ok((local, news, asks, place, opened)) => {
                Xdp::assemble(config, local, (news, asks), place, opened)
            }
            Err(why) => Err(Box::new(OpenError { why: why.with_holders(), udp: config.udp })),
        }
    }

    fn assemble(
        config: XdpConfig,
        local: SocketAddr,
        (news, asks): (Netlink, Netlink),
        place: Place,
        opened: attach::Opened,
    ) -> Result<Xdp, Box<OpenError>> {
        let attach::Opened { attached, mut queues, memory, numbers, passed_over } = opened;
        let Memory { layout, umem, arena, copies, chunks } = memory;
        chunks.into_iter().for_each(|chunk| queues.fill(chunk));
        queues.submit_chunks();
        let room = queues.each() * FRAME_CHARGE;
        let tell = XdpConfig { udp: UdpConfig::default(), ..config };
        let udp_config = UdpConfig { rcvbuf: config.udp.rcvbuf.or(Some(room)), ..config.udp };
        // From here on nothing fails but by a lack of descriptors or memory.
        let failed = |e: String| {
            Box::new(OpenError {
                why: Unavailable::System(e),
                udp: UdpConfig { bind: local, ..UdpConfig::default() },
            })
        };
        let udp = Udp::open_over(udp_config, Some(arena)).map_err(|e| failed(e.to_string()))?;
        let socket = udp.fd().ok_or_else(|| failed("the UDP device has no socket".into()))?;
        let mail = attach::watch(socket, &news).map_err(|e| failed(e.to_string()))?;
        let busy = drive(&queues, tell.receive);
        if let Some(door) = attached.door() {
            attach::watch_socket(&mail, MAIL_NEWS, door).map_err(|e| failed(e.to_string()))?;
        }
        if tell.drop_privileges {
            sys::caps::give_up().map_err(|e| failed(format!("privileges cannot be given up: {e}")))?;
        }
        let told = is_told(&tell, &place, &queues);
        let about = describe(
            &tell,
            &place,
            local,
            (&queues, &numbers, &attached),
            &passed_over,
            (&umem, layout),
            busy,
        );
        let dropped_before = dropped(&attached, &numbers);
        Ok(Xdp {
            queues,
            numbers,
            attached,
            dropped_before,
            udp,
            copies,
            umem,
            layout,
            mail,
            news,
            asks,
            place,
            local,
            told,
            routes: Vec::new(),
            events: VecDeque::new(),
            pending: VecDeque::with_capacity(tell.tx_ring as usize),
            busy: tell.receive == Receive::BusyPoll,
            trial: Xdp::trial_for(tell.receive),
            config: tell,
            health: routing::Health::default(),
            post: receive::Post::default(),
            counters: Counters::default(),
            refused: RefusedFrames::default(),
            flushes: 0,
            streak: 0,
            sources: true,
            senders: Vec::new(),
            raw_told: true,
            about,
            lost_doorbells: 0,
        })
    }

    /// One sentence about what this device found and uses, for people.
    pub fn describe(&self) -> &str {
        &self.about
    }

    /// Frames that came through the UDP socket, not by a ring: from hosts that the program does not take from, or by queues that have no socket of ours.
    pub fn frames_by_socket(&self) -> u64 {
        self.udp.counters().frames_received
    }

    /// The queues that this device has.
    pub fn queues(&self) -> &[u32] {
        &self.numbers
    }

    /// The next so many doorbells are not rung, neither for sending nor for receiving, as if the system had missed them; for tests.
    pub fn lose_doorbells(&mut self, count: u32) {
        self.lost_doorbells = count;
    }

    /// Frames for us that were not taken, by cause.
    pub fn refused_frames(&self) -> RefusedFrames {
        let now = dropped(&self.attached, &self.numbers);
        let drops =
            |kind: program::Drop| now[kind as usize].saturating_sub(self.dropped_before[kind as usize]);
        RefusedFrames {
            length: drops(program::Drop::Length),
            checksum: self.refused.checksum + drops(program::Drop::Checksum),
            source: drops(program::Drop::Source),
            short: drops(program::Drop::Short),
            shape: self.refused.shape,
        }
    }
}

/// What the program has dropped at these queues, by cause.
fn dropped(attached: &Attached, numbers: &[u32]) -> [u64; program::DROPS as usize] {
    std::array::from_fn(|kind| {
        numbers.iter().map(|number| attached.drops.get(number * program::DROPS + kind as u32)).sum()
    })
}

/// Whether the kernel looks at frames until the completion ring says otherwise (D-9).
fn is_told(config: &XdpConfig, place: &Place, queues: &Queues) -> bool {
    config.completion == Completion::Ring
        || queues.is_zero_copy()
        || !COPYING_DRIVERS.contains(&place.driver.as_str())
}

/// Who moves frames to the rings, as far as the system agrees.
fn drive(queues: &Queues, receive: Receive) -> Result<(), sys::Errno> {
    match receive {
        Receive::Kernel | Receive::Measured => Ok(()),
        Receive::BusyPoll => queues.prefer_busy_poll(true, BUSY_US, BUSY_FRAMES),
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
    (queues, numbers, attached): (&Queues, &[u32], &Attached),
    passed_over: &[(Mode, String)],
    (umem, layout): (&Umem, Layout),
    busy: Result<(), sys::Errno>,
) -> String {
    use std::fmt::Write;
    let list: Vec<_> = numbers.iter().map(u32::to_string).collect();
    let mut text = format!(
        "xdp at {local} on {} (driver {}) queue {} of {}: {} mode{}{}",
        place.lower.name,
        place.driver,
        list.join("+"),
        place.lower.queues,
        attached.terms.mode.name(),
        if queues.is_zero_copy() { ", no copies" } else { ", the kernel copies" },
        if attached.joined { ", the program of another process" } else { "" },
    );
    if config.mode == Mode::Auto && place.driver == "veth" {
        text += match attached.terms.mode {
            Mode::Generic if attach::is_divided(config, place) => {
                " (on veth all frames come by its first queue)"
            }
            Mode::Generic => " (on veth the faster one)",
            _ => " (on veth the one that knows the sender's queue)",
        };
    }
    for (mode, why) in passed_over {
        let _ = write!(text, ", not {} because {why}", mode.name());
    }
    let rx = match (config.receive, busy) {
        (Receive::Kernel, _) => "filled by the kernel".to_owned(),
        (Receive::Measured, _) => "filled by the kernel, unless busy polling turns out faster".to_owned(),
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
    if queues.takes_orders() && framing == "UDP" && (config.checksums || local.is_ipv6()) {
        text += ", checksums by the card";
    }
    if let Some(vlan) = place.upper.vlan {
        let _ = write!(text, ", VLAN {vlan}");
    }
    if let Some(why) = attached.no_door() {
        let _ = write!(text, ", no other process can share the program because {why}");
    }
    text
}

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
        self.routes.push(Route::new(to));
        self.look_up(id);
        // What a route begins with is no change.
        self.routes[id.0 as usize].told = true;
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
        (self.queues.each() * FRAME_CHARGE).min(self.udp.receive_buffer())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.queues.fds().next()
    }

    fn more_fds(&self) -> Vec<BorrowedFd<'_>> {
        let sockets = self.queues.fds().skip(1);
        sockets.chain(self.udp.fd()).chain([self.news.fd()]).chain(self.attached.door()).collect()
    }

    #[inline]
    fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.events.pop_front().or_else(|| self.udp.poll_event())
    }

    fn counters(&self) -> Counters {
        let (udp, own, kernel) = (self.udp.counters(), self.counters, self.queues.statistics());
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
        self.sees_nothing()
    }

    fn transport(&self, route: RouteId) -> Option<Transport> {
        self.routes.get(route.0 as usize).map(|route| route.transport)
    }

    fn transport_reason(&self, route: RouteId) -> &str {
        self.routes.get(route.0 as usize).map_or("", |route| &route.why)
    }

    fn takes_raw(&self) -> bool {
        self.config.framing == Framing::Raw && self.health.hears()
    }

    fn set_peer_takes_raw(&mut self, route: RouteId, takes: bool) {
        if let Some(entry) = self.routes.get_mut(route.0 as usize).filter(|entry| entry.takes_raw != takes) {
            // Whoever tells us asks for the way next.
            (entry.takes_raw, entry.told) = (takes, false);
            self.choose(route);
            self.routes[route.0 as usize].told = true;
        }
    }

    fn prefer_transport(&mut self, route: RouteId, transport: Option<Transport>) {
        if let Some(entry) = self.routes.get_mut(route.0 as usize) {
            entry.asked = transport;
            self.look_up(route);
        }
    }
}
