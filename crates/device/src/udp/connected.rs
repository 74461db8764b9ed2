//! Which routes have a connected socket (D-33). A frame costs less through one, but it takes a descriptor.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use super::Udp;
use super::path::REFRESH_EVERY;
use crate::sys;

/// The most routes with a connected socket; more would use too many descriptors.
pub(super) const MAX_CONNECTED: usize = 64;
/// A route with fewer trains a second is quiet. Heartbeats and their answers are fewer.
const QUIET_BELOW: u64 = 32;
/// So many checks in a row must find a route quiet before its socket is closed.
const QUIET_CHECKS: u8 = 4;

/// The connected sockets of a device.
#[derive(Default)]
pub(super) struct Sockets {
    /// How many are open.
    open: usize,
}

impl Udp {
    /// Opens a connected socket, unless [`MAX_CONNECTED`] are open. Without one, frames go through the main
    /// socket.
    fn open_connected(&mut self, to: SocketAddr) -> Option<OwnedFd> {
        if !self.features.connect || self.sockets.open >= MAX_CONNECTED {
            return None;
        }
        let socket = sys::open_connected(self.local, to).ok()?;
        self.sockets.open += 1;
        Some(socket)
    }

    /// Opens the socket of a route whose first frame is about to be sent: peers that share memory have routes
    /// without frames.
    #[cold]
    pub(super) fn connect_new(&mut self, route: u32) {
        let to = self.routes[route as usize].to;
        let connected = self.open_connected(to);
        let entry = &mut self.routes[route as usize];
        (entry.connected, entry.is_new) = (connected, false);
    }

    /// Opens or closes the socket of a route over which `sent` trains went since it was last checked. Returns
    /// whether it did.
    pub(super) fn update_connected(&mut self, route: u32, sent: u32) -> bool {
        let quiet_below = u128::from(QUIET_BELOW) * u128::from(self.refresh.interval);
        let quiet = u128::from(sent) * u128::from(REFRESH_EVERY) < quiet_below;
        let entry = &mut self.routes[route as usize];
        entry.quiet = if quiet { entry.quiet.saturating_add(1) } else { 0 };
        match &entry.connected {
            Some(_) if entry.quiet >= QUIET_CHECKS => {
                entry.connected = None;
                self.sockets.open -= 1;
                true
            }
            None if !quiet => {
                let connected = self.open_connected(self.routes[route as usize].to);
                let opened = connected.is_some();
                self.routes[route as usize].connected = connected;
                opened
            }
            _ => false,
        }
    }
}
