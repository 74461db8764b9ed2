//! Who takes raw Ethernet frames: peers are told what the device says, and the device what peers say (D-12).

use tautline_link::Nanos;

use super::Interface;
use crate::{Event, Rank};

impl Interface {
    /// The device takes raw frames from now on, or no more.
    #[cold]
    pub(super) fn tell_raw(&mut self, now: Nanos) {
        let takes = self.device.takes_raw();
        self.config.link.raw_frames = takes;
        for rank in 0..self.peers.len() as Rank {
            self.peers[rank as usize].peering.set_raw_frames(takes);
            self.serve(now, rank);
        }
    }

    /// A peer does.
    pub(super) fn hear_raw(&mut self, rank: Rank, takes: bool) {
        let route = self.peers[rank as usize].route;
        let before = self.device.transport(route);
        self.device.note_raw(route, takes);
        let now = self.device.transport(route);
        if let Some(transport) = now.filter(|_| now != before) {
            let reason = self.device.why(route).to_owned();
            tracing::info!(rank = self.rank, peer = rank, transport = transport.name(), %reason, "another way");
            self.push_event(Event::Transport { peer: rank, device: transport.name(), reason });
        }
    }
}
