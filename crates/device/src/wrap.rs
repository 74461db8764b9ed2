//! What wrappers of devices share: forwarded calls, and the address of each route.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use crate::{Arena, Counters, Datagram, DeviceEvent, RouteId, RxBatch, SlotId, Transport};

/// The methods that a wrapper with a field `inner` forwards unchanged.
macro_rules! forward {
    () => {
        fn name(&self) -> &'static str {
            self.inner.name()
        }
        fn local_addr(&self) -> std::net::SocketAddr {
            self.inner.local_addr()
        }
        fn arena(&mut self) -> &mut crate::Arena {
            self.inner.arena()
        }
        fn arena_ref(&self) -> &crate::Arena {
            self.inner.arena_ref()
        }
        fn max_frame(&self, route: crate::RouteId) -> usize {
            self.inner.max_frame(route)
        }
        fn receive_buffer(&self) -> usize {
            self.inner.receive_buffer()
        }
        fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            self.inner.fd()
        }
        fn more_fds(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
            self.inner.more_fds()
        }
        fn counters(&self) -> crate::Counters {
            self.inner.counters()
        }
        fn transport(&self, route: crate::RouteId) -> Option<crate::Transport> {
            self.inner.transport(route)
        }
        fn transport_reason(&self, route: crate::RouteId) -> &str {
            self.inner.transport_reason(route)
        }
        fn takes_raw(&self) -> bool {
            self.inner.takes_raw()
        }
        fn set_peer_takes_raw(&mut self, route: crate::RouteId, takes: bool) {
            self.inner.set_peer_takes_raw(route, takes);
        }
        fn prefer_transport(&mut self, route: crate::RouteId, transport: Option<crate::Transport>) {
            self.inner.prefer_transport(route, transport);
        }
    };
}
pub(crate) use forward;

/// The address of each route.
#[derive(Debug, Default)]
pub(crate) struct RouteBook(Vec<Option<SocketAddr>>);

impl RouteBook {
    pub(crate) fn note(&mut self, route: RouteId, to: SocketAddr) {
        let index = route.0 as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, None);
        }
        self.0[index] = Some(to);
    }

    pub(crate) fn get(&self, route: RouteId) -> Option<SocketAddr> {
        self.0.get(route.0 as usize).copied().flatten()
    }
}

impl<T: Datagram + ?Sized> Datagram for Box<T> {
    fn name(&self) -> &'static str {
        (**self).name()
    }
    fn local_addr(&self) -> SocketAddr {
        (**self).local_addr()
    }
    fn arena(&mut self) -> &mut Arena {
        (**self).arena()
    }
    fn arena_ref(&self) -> &Arena {
        (**self).arena_ref()
    }
    fn route(&mut self, to: SocketAddr) -> io::Result<RouteId> {
        (**self).route(to)
    }
    fn max_frame(&self, route: RouteId) -> usize {
        (**self).max_frame(route)
    }
    fn send(&mut self, route: RouteId, slot: SlotId, range: Range<usize>) {
        (**self).send(route, slot, range);
    }
    fn flush(&mut self) {
        (**self).flush();
    }
    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<usize> {
        (**self).recv(batch)
    }
    fn want_sources(&mut self, wanted: bool) {
        (**self).want_sources(wanted);
    }
    fn receive_buffer(&self) -> usize {
        (**self).receive_buffer()
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).fd()
    }
    fn more_fds(&self) -> Vec<BorrowedFd<'_>> {
        (**self).more_fds()
    }
    fn poll_event(&mut self) -> Option<DeviceEvent> {
        (**self).poll_event()
    }
    fn counters(&self) -> Counters {
        (**self).counters()
    }
    fn is_quiet(&mut self) -> bool {
        (**self).is_quiet()
    }
    fn transport(&self, route: RouteId) -> Option<Transport> {
        (**self).transport(route)
    }
    fn transport_reason(&self, route: RouteId) -> &str {
        (**self).transport_reason(route)
    }
    fn takes_raw(&self) -> bool {
        (**self).takes_raw()
    }
    fn set_peer_takes_raw(&mut self, route: RouteId, takes: bool) {
        (**self).set_peer_takes_raw(route, takes);
    }
    fn prefer_transport(&mut self, route: RouteId, transport: Option<Transport>) {
        (**self).prefer_transport(route, transport);
    }
}
