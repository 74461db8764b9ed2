//! How channels end: by death, by close, by a breach of the protocol (N-8, N-9).

use tautline_device::SlotId;
use tautline_link::{Death, Event as LinkEvent, Nanos};

use super::Interface;
use crate::counters::add;
use crate::memory::Failure;
use crate::peer::PeerState;
use crate::{Down, Event, PeerId, Rank};

impl Interface {
    /// Slots that are no longer needed, and news of the link.
    #[inline]
    pub(super) fn collect(&mut self, now: Nanos, rank: Rank) {
        while let Some(former) = self.peers[rank as usize].peering.take_former() {
            self.bury(rank, former);
        }
        let peer = &mut self.peers[rank as usize];
        let Some(link) = peer.peering.link_mut() else {
            if peer.state == PeerState::Connecting && now >= peer.connect_by {
                peer.peering.give_up();
                self.take_down(rank, Down::Unreachable);
            }
            return;
        };
        let arena = self.device.arena();
        let scarce = arena.available() <= arena.capacity() / 2;
        while let Some(token) = link.poll_freed() {
            arena.give(SlotId(token));
            // Whoever found none before is to try again.
            self.activity += u64::from(scarce);
        }
        if let Some(event) = link.poll_event() {
            self.handle_link_event(rank, &event);
        }
    }

    #[cold]
    fn handle_link_event(&mut self, rank: Rank, event: &LinkEvent) {
        if self.peers[rank as usize].near.is_some() {
            // News of a link that shared memory has taken the place of.
            return self.mark_dirty(rank);
        }
        match event {
            LinkEvent::Died(why) => self.take_down(rank, Down::Died(*why)),
            LinkEvent::PeerClosed | LinkEvent::Closed => self.take_down(rank, Down::Closed),
            LinkEvent::PathChanged(max_frame) => {
                self.push_event(Event::PathChanged { peer: rank, max_frame: *max_frame });
            }
            LinkEvent::Raw(takes) => self.hear_raw(rank, *takes),
        }
        // Rare enough that the next poll may take the next one.
        self.mark_dirty(rank);
    }

    /// A link was replaced by one with a restarted peer.
    #[cold]
    pub(crate) fn bury(&mut self, rank: Rank, mut former: tautline_link::Link) {
        while let Some(token) = former.poll_freed() {
            self.device.arena().give(SlotId(token));
        }
        while let Some(event) = former.poll_event() {
            if let LinkEvent::Died(why) = event {
                self.take_down(rank, Down::Died(why));
            }
        }
        add(&mut self.counters.links, former.counters());
    }

    /// The peer is gone; the program is told once (N-8).
    pub(crate) fn take_down(&mut self, rank: Rank, why: Down) {
        self.part(rank);
        let peer = &mut self.peers[rank as usize];
        peer.all_left = peer.open.is_none();
        if let Some(open) = peer.open.take() {
            self.device.arena().give(open.slot);
        }
        self.end_memory(rank, Failure::PeerGone(rank, why));
        let peer = &mut self.peers[rank as usize];
        peer.reset_channel();
        peer.end_life();
        if matches!(peer.state, PeerState::Up | PeerState::Connecting) {
            peer.state = PeerState::Down(why);
            let incarnation = peer.incarnation;
            self.push_event(Event::PeerDown { peer: rank, incarnation, why });
        }
    }

    /// A peer sent, under its own authentication, what no correct peer sends; its channel ends.
    pub fn violation(&mut self, PeerId { rank, incarnation }: PeerId) {
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        if peer.incarnation != incarnation {
            // It was a former self, which is gone.
            return;
        }
        if peer.near.is_some() {
            self.take_down(rank, Down::Died(Death::Violation));
        } else if let Some(link) = peer.peering.link_mut() {
            link.violation();
            self.mark_dirty(rank);
        }
    }

    /// Starts to close every link in good order (N-9). Poll until [`Interface::is_closed`].
    pub fn close(&mut self, now: Nanos) {
        self.closed = true;
        self.batch_depth = 0;
        for rank in 0..self.peers.len() as Rank {
            self.close_slot(rank);
            let peer = &mut self.peers[rank as usize];
            peer.peering.give_up();
            if let Some(link) = peer.peering.link_mut() {
                link.close(now);
            }
            self.mark_dirty(rank);
        }
        for rank in 0..self.peers.len() as Rank {
            self.end_memory(rank, Failure::Closed);
            self.peers[rank as usize].end_life();
        }
        self.close_near();
        self.service(now);
    }

    /// Whether every link is over.
    pub fn is_closed(&self) -> bool {
        self.closed && self.peers.iter().all(|p| p.peering.link().is_none_or(tautline_link::Link::is_over))
    }
}
