//! The device of a simulated node: a plug in the virtual network.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tautline_device::{Arena, Counters, Datagram, DeviceEvent, RouteId, RxBatch, SlotId};

use crate::net::Net;

/// The network, as its devices share it. Everything runs in one thread; the lock is there because devices are
/// `Send`.
pub(crate) type SharedNet = Arc<Mutex<Net>>;

pub(crate) fn lock(net: &SharedNet) -> MutexGuard<'_, Net> {
    net.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frames queued before the device flushes by itself.
const QUEUE: usize = 64;

/// A plug in the virtual network. It belongs to one incarnation of its node: after a crash it neither sends
/// nor receives, whatever its owner does while it is dropped.
#[derive(Debug)]
pub struct SimDevice {
    net: SharedNet,
    place: u32,
    incarnation: u64,
    arena: Arena,
    routes: Vec<(SocketAddr, usize)>,
    queue: Vec<(RouteId, SlotId, Range<usize>)>,
    receive_buffer: usize,
    counters: Counters,
    /// After how many calls a slot is leaked: see [`crate::Sabotage::Leak`].
    pub(crate) leaks_after: Option<u64>,
}

impl SimDevice {
    pub(crate) fn plug(
        net: &SharedNet,
        place: u32,
        incarnation: u64,
        slots: usize,
        max_frame: usize,
    ) -> SimDevice {
        let receive_buffer = {
            let mut net = lock(net);
            net.ports[place as usize].incarnation = incarnation;
            net.ports[place as usize].rx_limit
        };
        SimDevice {
            net: net.clone(),
            place,
            incarnation,
            arena: Arena::new(slots, max_frame),
            routes: Vec::new(),
            queue: Vec::with_capacity(QUEUE),
            receive_buffer,
            counters: Counters::default(),
            leaks_after: None,
        }
    }
}

impl Datagram for SimDevice {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn local_addr(&self) -> SocketAddr {
        lock(&self.net).address(self.place)
    }

    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }

    fn arena_ref(&self) -> &Arena {
        &self.arena
    }

    fn route(&mut self, to: SocketAddr) -> io::Result<RouteId> {
        self.routes.push((to, self.arena.payload_len()));
        Ok(RouteId(self.routes.len() as u32 - 1))
    }

    fn max_frame(&self, route: RouteId) -> usize {
        self.routes[route.0 as usize].1
    }

    fn send(&mut self, route: RouteId, slot: SlotId, range: Range<usize>) {
        if self.queue.len() == QUEUE {
            self.flush();
        }
        self.queue.push((route, slot, range));
    }

    fn flush(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        let mut net = lock(&self.net);
        let plugged = net.ports[self.place as usize].incarnation == self.incarnation;
        self.counters.send_calls += 1;
        if self.leaks_after == Some(self.counters.send_calls) || net.leaks && plugged {
            net.leaks = false;
            self.arena.take();
        }
        for (route, slot, range) in self.queue.drain(..) {
            self.counters.frames_sent += 1;
            self.counters.bytes_sent += range.len() as u64;
            if plugged {
                let to = self.routes[route.0 as usize].0;
                net.transmit(self.place, to, self.arena.bytes(slot, range));
            }
        }
    }

    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<usize> {
        batch.clear();
        self.counters.receive_calls += 1;
        let mut net = lock(&self.net);
        if net.ports[self.place as usize].incarnation != self.incarnation {
            return Ok(0);
        }
        while batch.has_room() {
            let Some(frame) = net.receive(self.place) else { break };
            let arrived = net.frame(frame);
            batch.push(net.address(arrived.from), &arrived.bytes);
            self.counters.bytes_received += arrived.bytes.len() as u64;
            net.recycle(frame);
        }
        self.counters.frames_received += batch.frames().len() as u64;
        Ok(batch.frames().len())
    }

    fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        loop {
            let (to, max_frame) = lock(&self.net).ports[self.place as usize].path_limits.pop_front()?;
            if let Some(at) = self.routes.iter().position(|route| route.0 == to) {
                self.routes[at].1 = max_frame;
                return Some(DeviceEvent::PathLimit { route: RouteId(at as u32), max_frame });
            }
        }
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use tautline_device::conformance::{DatagramOptions, datagram_suite};

    use crate::net::{PathOptions, address};
    use crate::places::Places;

    /// D-1 … D-6, as for every device.
    #[test]
    fn conforms() {
        let current: RefCell<Option<SharedNet>> = RefCell::new(None);
        let make = || -> (Box<dyn Datagram>, Box<dyn Datagram>) {
            let options = PathOptions { delay_ns: 1_000, ..PathOptions::default() };
            let net = Arc::new(Mutex::new(Net::new(Places::single(3), 1, options, 1_472, 212_992)));
            *current.borrow_mut() = Some(net.clone());
            let plug = |node| SimDevice::plug(&net, node, u64::from(node) + 1, 256, 1_472);
            (Box::new(plug(0)), Box::new(plug(1)))
        };
        let idle = || {
            if let Some(net) = &*current.borrow() {
                lock(net).advance();
            }
        };
        datagram_suite(
            make,
            &DatagramOptions { dead: Some(address(2)), polls: 2_000, idle: &idle, ..Default::default() },
        );
    }
}
