//! How channels end: by death, by close, by a breach of the protocol (N-8, N-9).

use tautline_device::SlotId;
use tautline_link::{Death, Event as LinkEvent, Nanos};

use super::Lane;
use crate::memory::Failure;
use crate::{Address, Down, Event, PeerId, PeerState, Rank, Undelivered, tags};

impl Lane {
    /// Frees slots that a link no longer needs, and handles its next event.
    #[inline]
    pub(super) fn collect(&mut self, now: Nanos, rank: Rank) {
        if self.peers.member(rank).channel.link.peering.has_superseded() {
            self.retire_former_links(rank);
        }
        let peer = self.peers.member_mut(rank);
        let overdue = peer.state == PeerState::Connecting && now >= peer.connect_by;
        if overdue && peer.channel.stop_connecting() {
            return self.teardown(rank, self.why_unreachable(rank));
        }
        // N-9: read before the slots are freed.
        let ends = self.port.closed && peer.channel.link.link().is_some_and(tautline_link::Link::is_over);
        let reported = |number: u16| self.names.is_reported(number, &peer.handlers);
        let unacknowledged = ends.then(|| peer.channel.undelivered(&self.port, reported));
        if let Some(event) = peer.channel.poll_event(&mut self.port) {
            if let (LinkEvent::Died(why), Some(lost)) = (&event, unacknowledged) {
                Undelivered { why: Some(Down::Died(*why)), ..lost }.merge_into(&mut self.undelivered);
            }
            self.handle_link_event(rank, &event);
        }
    }

    #[cold]
    fn handle_link_event(&mut self, rank: Rank, event: &LinkEvent) {
        match event {
            LinkEvent::Died(why) => self.teardown(rank, Down::Died(*why)),
            LinkEvent::PeerClosed | LinkEvent::Closed => self.teardown(rank, Down::Closed),
            LinkEvent::PathChanged(max_frame) => {
                self.push_event(Event::PathChanged { peer: rank, max_frame: *max_frame });
            }
            LinkEvent::PeerAcceptsRaw(takes) => self.note_peer_raw(rank, *takes),
        }
    }

    /// Frees what links held that were replaced by one with a restarted peer, and reports their deaths.
    #[cold]
    pub(super) fn retire_former_links(&mut self, rank: Rank) {
        while let Some(mut former) = self.peers.member_mut(rank).channel.link.peering.take_superseded() {
            while let Some(token) = former.poll_freed() {
                self.port.free_slot(SlotId(token));
            }
            while let Some(event) = former.poll_event() {
                if let LinkEvent::Died(why) = event {
                    self.teardown(rank, Down::Died(why));
                }
            }
            self.counters.add_link(former.counters());
        }
    }

    /// The peer is gone; the program is told once (N-8).
    pub(crate) fn teardown(&mut self, rank: Rank, why: Down) {
        self.detach_shm(rank);
        self.memory.peer_down(rank, Failure::PeerGone(rank, why));
        self.tags.peer_down(rank, tags::Failure::PeerGone(rank, why));
        self.multicast.peer_down(rank, tags::Failure::PeerGone(rank, why));
        let (peer, port) = self.channel(rank);
        peer.reset_channel(port);
        peer.end_liveness();
        if matches!(peer.state, PeerState::Up | PeerState::Connecting) {
            peer.state = PeerState::Down(why);
            let incarnation = peer.incarnation;
            self.push_event(Event::PeerDown { peer: rank, incarnation, why });
        }
        self.forget_restarted(rank);
    }

    /// Somebody says that a process has ended: those of its lanes that are quiet have to say that they live
    /// (L-45). Returns whether there is any.
    pub(crate) fn probe(&mut self, now: Nanos, process: Rank) -> bool {
        let mut asked = false;
        for peer in self.peers.iter_mut().filter(|peer| Address::from(peer.rank).rank == process) {
            if peer.channel.link.peering.link_mut().is_some_and(|link| link.probe(now)) {
                peer.channel.mark_dirty(&mut self.port);
                asked = true;
            }
        }
        asked
    }

    /// A member that had ended was started again (N-26).
    pub(crate) fn member_started(&mut self, rank: Rank) {
        self.peers.member_mut(rank).restarted = true;
        self.forget_restarted(rank);
        self.push_event(Event::MemberStarted { member: rank });
    }

    /// The end of a process is nothing that is known of the one that was started in its place.
    fn forget_restarted(&mut self, rank: Rank) {
        let peer = self.peers.member_mut(rank);
        if peer.restarted && matches!(peer.state, PeerState::Down(_)) && !peer.channel.link.is_in_use() {
            (peer.restarted, peer.state) = (false, PeerState::Unknown);
        }
    }

    /// A peer sent, under its own authentication, what no correct peer sends: its channel ends.
    pub(crate) fn violation(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id.rank) else { return };
        if peer.incarnation != id.incarnation {
            // It was a former incarnation, which is gone.
            return;
        }
        if peer.channel.violation() {
            self.teardown(id.rank, Down::Died(Death::Violation));
        } else {
            peer.channel.mark_dirty(&mut self.port);
        }
    }

    /// Starts to close every channel in good order (N-9). Poll until [`Lane::is_closed`].
    pub(crate) fn close(&mut self, now: Nanos) {
        self.port.closed = true;
        // Reason for other threads to try again, and to learn of it.
        self.port.activity += 1;
        self.port.close_batches();
        for peer in self.peers.iter_mut() {
            peer.channel.close(&mut self.port, now);
        }
        for (rank, bytes) in self.tags.unsent() {
            Undelivered::new(rank, 1, bytes).merge_into(&mut self.undelivered);
        }
        for peer in self.peers.iter_mut() {
            let rank = peer.rank;
            let (requests, bytes) = self.memory.unsent(rank);
            Undelivered::new(rank, requests, bytes).merge_into(&mut self.undelivered);
            self.memory.peer_down(rank, Failure::Closed);
            self.tags.peer_down(rank, tags::Failure::Closed);
            peer.end_liveness();
        }
        self.tags.close();
        self.multicast.close();
        self.close_local();
        self.service(now);
    }

    /// What the peers have not acknowledged of what was sent before the lane began to close. What a peer that
    /// closed in good order did not take is not counted: it would not have handled it (N-24).
    pub(crate) fn undelivered(&self) -> Vec<Undelivered> {
        let mut all = self.undelivered.clone();
        for peer in self.peers.iter().filter(|peer| peer.channel.link.is_live()) {
            let reported = |number: u16| self.names.is_reported(number, &peer.handlers);
            peer.channel.undelivered(&self.port, reported).merge_into(&mut all);
        }
        all
    }

    /// Whether every channel is over.
    pub(crate) fn is_closed(&self) -> bool {
        self.port.closed && self.peers.iter().all(|peer| peer.channel.link.is_settled())
    }

    /// Lets go of memory that is shared with a peer, if any is.
    pub(super) fn detach_shm(&mut self, rank: Rank) {
        let peer = self.peers.member_mut(rank);
        let id = peer.id();
        let Some(mut shm) = peer.channel.detach_shm() else { return };
        self.local.poll.remove(rank);
        self.local.former.keep(id, &mut shm);
        if let Some(discovery) = &self.local.discovery {
            discovery.detached(shm.liveness_fds());
        }
        self.counters.local.add(shm.counts());
    }

    /// Closes the channels of all local peers: what was sent stays where they find it.
    pub(super) fn close_local(&mut self) {
        for rank in self.local.poll.take_all() {
            if let Some(mut shm) = self.peers.member_mut(rank).channel.detach_shm() {
                shm.close();
                self.counters.local.add(shm.counts());
            }
        }
        self.local.discovery = None;
    }
}
