//! Devices in network namespaces, for tests.
#![allow(dead_code, clippy::needless_pass_by_value)]

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::spaces::{Shape, Spaces, spaces};
use tautline_device::udp::{Udp, UdpConfig};
use tautline_device::xdp::{Xdp, XdpConfig};
use tautline_device::{
    Arena, Counters, Datagram, DeviceEvent, HEADROOM, RouteId, RxBatch, SlotId, Transport,
};

/// A device in one of the namespaces: calls that open sockets enter it first.
pub struct NetnsDevice<D> {
    pub device: D,
    pub spaces: Arc<Spaces>,
    pub side: usize,
}

impl<D: Datagram> Datagram for NetnsDevice<D> {
    fn name(&self) -> &'static str {
        self.device.name()
    }
    fn local_addr(&self) -> SocketAddr {
        self.device.local_addr()
    }
    fn arena(&mut self) -> &mut Arena {
        self.device.arena()
    }
    fn arena_ref(&self) -> &Arena {
        self.device.arena_ref()
    }
    fn route(&mut self, to: SocketAddr) -> io::Result<RouteId> {
        self.spaces.enter(self.side);
        self.device.route(to)
    }
    fn max_frame(&self, route: RouteId) -> usize {
        self.device.max_frame(route)
    }
    fn send(&mut self, route: RouteId, slot: SlotId, range: Range<usize>) {
        self.device.send(route, slot, range);
    }
    fn flush(&mut self) {
        self.spaces.enter(self.side);
        self.device.flush();
    }
    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<usize> {
        // A device that reopens its interface opens sockets there.
        self.spaces.enter(self.side);
        self.device.recv(batch)
    }
    fn want_sources(&mut self, wanted: bool) {
        self.device.want_sources(wanted);
    }
    fn receive_buffer(&self) -> usize {
        self.device.receive_buffer()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.device.fd()
    }
    fn more_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.device.more_fds()
    }
    fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.device.poll_event()
    }
    fn counters(&self) -> Counters {
        self.device.counters()
    }
    fn transport(&self, route: RouteId) -> Option<Transport> {
        self.device.transport(route)
    }
    fn transport_reason(&self, route: RouteId) -> &str {
        self.device.transport_reason(route)
    }
    fn prefer_transport(&mut self, route: RouteId, transport: Option<Transport>) {
        self.device.prefer_transport(route, transport);
    }
}

/// Sends one frame.
pub fn send(device: &mut impl Datagram, route: RouteId, bytes: &[u8]) {
    let slot = device.arena().take().unwrap();
    device.arena().payload_mut(slot)[..bytes.len()].copy_from_slice(bytes);
    device.send(route, slot, HEADROOM..HEADROOM + bytes.len());
    device.flush();
    device.arena().give(slot);
}

/// Receives until `want` frames have arrived, or for half a second.
pub fn receive(device: &mut impl Datagram, want: usize) -> Vec<Vec<u8>> {
    let mut batch = RxBatch::new(16);
    let until = Instant::now() + Duration::from_millis(500);
    let mut got = Vec::new();
    loop {
        // Read first: a thread that was held up looks once more.
        let late = Instant::now() >= until;
        device.recv(&mut batch).unwrap();
        got.extend(batch.frames().iter().map(|frame| batch.bytes(*frame).to_vec()));
        if late || got.len() >= want {
            return got;
        }
    }
}

/// Returns a frame that looks like data (W-1).
pub fn data_frame(number: usize, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|i| (i * 31 + number * 97 + 5) as u8).collect();
    bytes[0] = 0x71;
    bytes
}

pub fn udp_config(spaces: &Spaces, side: usize) -> UdpConfig {
    UdpConfig::with(|config| {
        (config.bind, config.tx_slots) = (SocketAddr::new(spaces.addr(side, false), 0), 256);
    })
}

pub fn open(spaces: &Arc<Spaces>, side: usize, mut config: XdpConfig) -> NetnsDevice<Xdp> {
    spaces.enter(side);
    (config.udp, config.rx_chunks) = (udp_config(spaces, side), 512);
    let device = Xdp::open(config).unwrap_or_else(|r| panic!("{}", r.why));
    NetnsDevice { device, spaces: spaces.clone(), side }
}

pub fn open_udp(spaces: &Arc<Spaces>, side: usize) -> NetnsDevice<Udp> {
    spaces.enter(side);
    NetnsDevice { device: Udp::open(udp_config(spaces, side)).unwrap(), spaces: spaces.clone(), side }
}

/// Keeps other tests of this program from forking: their child would keep the sockets and queues of a device
/// open until it executes its program.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs in a thread of its own, because a thread that entered a namespace stays there; and [`alone`].
#[track_caller]
pub fn in_namespaces(test: &str, shape: Shape, run: impl FnOnce(&Arc<Spaces>) + Send) {
    let _alone = alone();
    let Some(spaces) = spaces(test, shape) else { return };
    std::thread::scope(|scope| scope.spawn(|| run(&spaces)).join()).expect("the thread in the namespaces");
}

/// Receives frames, and handles changes of the kernel's tables.
pub fn poll(device: &mut impl Datagram) {
    let mut batch = tautline_device::RxBatch::new(8);
    for _ in 0..50 {
        device.recv(&mut batch).unwrap();
    }
}

/// Sends frames until the route uses the wanted transport; returns the events meanwhile.
pub fn until_transport(
    from: &mut NetnsDevice<Xdp>,
    to: &mut impl Datagram,
    route: RouteId,
    transport: Transport,
) -> Vec<DeviceEvent> {
    let until = Instant::now() + Duration::from_secs(5);
    let mut events = Vec::new();
    while from.transport(route) != Some(transport) {
        assert!(
            Instant::now() < until,
            "not yet {}, because {}",
            transport.name(),
            from.transport_reason(route)
        );
        send(from, route, &data_frame(0, 64));
        poll(to);
        poll(from);
        events.extend(std::iter::from_fn(|| from.poll_event()));
    }
    events
}

pub fn assert_arrives(from: &mut impl Datagram, to: &mut impl Datagram, route: RouteId, number: usize) {
    let frame = data_frame(number, 300);
    send(from, route, &frame);
    assert!(receive(to, 1) == [frame], "frame {number} arrives");
}

/// Polls until the device has reported new descriptors and uses AF_XDP; returns the events meanwhile.
pub fn until_reopened(
    from: &mut NetnsDevice<Xdp>,
    to: &mut impl Datagram,
    route: RouteId,
) -> Vec<DeviceEvent> {
    let until = Instant::now() + Duration::from_secs(10);
    let mut events = Vec::new();
    while from.transport(route) != Some(Transport::Xdp) || !events.contains(&DeviceEvent::Descriptors) {
        assert!(Instant::now() < until, "not reopened, because {}; {events:?}", from.transport_reason(route));
        poll(from);
        poll(to);
        send(from, route, &data_frame(0, 64));
        events.extend(std::iter::from_fn(|| from.poll_event()));
    }
    events
}
