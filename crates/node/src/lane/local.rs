//! Peers on this host: opening channels through shared memory, taking frames out of their rings, and sleeping
//! while they may send (N-12, N-13).

use tautline_device::shm::{Greeting, Refusal, Shm};
use tautline_link::{Death, Nanos};
use tautline_wire::handshake::RefuseReason;
use tautline_wire::record;

use super::Lane;
use super::frames::{FastPoll, FrameBatch};
use super::inbox::Place;
use crate::channel::{ChannelNumbers, NextFrame, ShmChannel};
use crate::local::{Dialled, Hello, IncomingDial, LocalPeers, explain};
use crate::{Address, Down, Event, PeerState, Rank, Shortage};

/// Polls of shared memory for each read of the clock.
const SPINS: u32 = 64;
/// The same, where polling the device costs as little.
const DEVICE_SPINS: u32 = 48;
/// Bytes that are taken out in one go: they stay in the first cache, or near it, until they are read.
const AT_ONCE: usize = 64 << 10;

impl Lane {
    // Taking frames.

    /// Whether a local peer has sent something, or closed.
    #[inline(always)]
    pub(crate) fn has_local_frames(&self) -> bool {
        let poll = &self.local.poll;
        poll.active().any(|rank| self.peers.member(rank).channel.has_frames()) || poll.has_new()
    }

    /// Whether a local peer has made room, or granted a window, that a sender waits for: [`Lane::receive`]
    /// turns it into activity.
    #[inline]
    pub(crate) fn has_new_local_room(&mut self) -> bool {
        let Lane { local, peers, .. } = self;
        local.poll.active().any(|rank| peers.member_mut(rank).channel.has_new_room())
    }

    /// How often a waiting program polls before it reads the clock.
    #[inline]
    pub(crate) fn spins(&mut self) -> u32 {
        if !self.local.poll.is_empty() {
            SPINS
        } else if self.port.device.is_quiet() {
            DEVICE_SPINS
        } else {
            1
        }
    }

    /// Whether a waiting program may poll again without reading the clock.
    #[inline]
    pub(crate) fn may_spin(&mut self) -> bool {
        let quiet = !self.local.poll.is_empty() || self.port.device.is_quiet();
        if quiet && !self.has_new_local_room() {
            self.local.poll.note_vain();
            return true;
        }
        false
    }

    /// Takes frames of up to `limit` bytes in all, rounded up, if nothing that came before waits: small ones
    /// of one peer, or a longer one that holds a whole message.
    #[inline]
    pub(crate) fn take_frames(&mut self, limit: usize, batch: &mut FrameBatch) -> FastPoll {
        // Messages of a node to itself have little room, and nothing but extraction makes more.
        let others = !self.inbox.is_empty() || self.is_serving() || self.port.loopback_frames > 0;
        if !self.local.poll.may_poll_fast(others) {
            return FastPoll::SlowPath;
        }
        let mut found = self.find_frames(limit, batch);
        if found == FastPoll::Empty && self.local.poll.spin_pause() {
            found = self.find_frames(limit, batch);
        }
        self.local.poll.note(found != FastPoll::Empty);
        found
    }

    /// Polls the rings that were busy lately, and then looks for others with frames. The peer that was found
    /// last is polled last. The first ring is polled here, outside of any loop: mostly there is no other.
    #[inline]
    fn find_frames(&mut self, limit: usize, batch: &mut FrameBatch) -> FastPoll {
        let first = self.local.poll.first();
        match self.poll_ring(first, limit, batch) {
            Some(found) => found,
            None => self.find_others(first, limit, batch),
        }
    }

    #[inline(never)]
    fn find_others(&mut self, first: usize, limit: usize, batch: &mut FrameBatch) -> FastPoll {
        let (mut place, mut others) = (first, self.local.poll.len().saturating_sub(1));
        loop {
            for _ in 0..others {
                place = self.local.poll.after(place);
                if let Some(found) = self.poll_ring(place, limit, batch) {
                    return found;
                }
            }
            if !self.local.poll.find_new() {
                return self.found_nothing();
            }
            others = self.local.poll.len();
        }
    }

    /// Takes frames out of the ring at a place, unless it is empty.
    #[inline(always)]
    fn poll_ring(&mut self, place: usize, limit: usize, batch: &mut FrameBatch) -> Option<FastPoll> {
        let peer = self.peers.at_place(self.local.poll.peer_at(place)?)?;
        let (small, more) = peer.channel.pop_inline(&mut batch.inline, limit);
        if small > 0 {
            (batch.small, batch.long) = (small, None);
            batch.from = peer.id();
            batch.more = more || self.local.poll.len() > 1;
            self.local.poll.found_at(place);
            return Some(FastPoll::Frames);
        }
        more.then(|| self.find_long(place, batch))
    }

    /// The next frame of a peer is no small message: it may be a longer one, or a memory record.
    #[inline(never)]
    fn find_long(&mut self, place: usize, batch: &mut FrameBatch) -> FastPoll {
        let count = self.local.poll.len();
        let Some(rank) = self.local.poll.at(place) else { return FastPoll::SlowPath };
        let peer = self.peers.member_mut(rank);
        match peer.channel.take_message(&mut batch.frame) {
            NextFrame::Message(len) => {
                (batch.small, batch.long) = (0, Some(len));
                batch.from = peer.id();
                batch.more = peer.channel.has_frames() || count > 1;
                self.local.poll.found_at(place);
                FastPoll::Frames
            }
            NextFrame::Served => {
                self.poll_served();
                self.found_nothing()
            }
            NextFrame::Other => FastPoll::SlowPath,
        }
    }

    #[inline]
    fn found_nothing(&self) -> FastPoll {
        if self.local.poll.is_empty() || self.has_events() { FastPoll::SlowPath } else { FastPoll::Empty }
    }

    /// Takes what local peers have sent, as much as a batch holds. Returns how many frames.
    pub(super) fn receive_local(&mut self, now: Nanos) -> usize {
        self.local.poll.find_new();
        let found = self.receive_active();
        // S-40: a peer rang, and no bit says what for.
        if self.local.poll.take_rung() && found == 0 && self.sweep(now) {
            return self.receive_active();
        }
        if self.local.poll.is_retire_due() {
            self.retire_idle();
        }
        found
    }

    /// Checks the rings that are not polled. Returns whether one of them has frames, or this side waits for
    /// something of its peer.
    #[cold]
    fn sweep(&mut self, now: Nanos) -> bool {
        let Lane { local, peers, .. } = self;
        local.poll.sweep(now, |rank| !peers.member(rank).channel.is_idle())
    }

    /// Polls the rings no more that have been idle for a while.
    #[cold]
    fn retire_idle(&mut self) {
        if self.begin_retire() > 0 {
            self.barrier();
            self.end_retire();
        }
    }

    fn begin_retire(&mut self) -> usize {
        let Lane { local, peers, .. } = self;
        local.poll.begin_retire(|rank| peers.member_mut(rank).channel.retire())
    }

    fn end_retire(&mut self) {
        let Lane { local, peers, .. } = self;
        local.poll.end_retire(|rank| peers.member(rank).channel.is_idle());
    }

    /// Makes what was announced to all local peers visible before what is read next (S-14).
    fn barrier(&self) {
        if let Some(discovery) = &self.local.discovery {
            discovery.barrier().heavy();
        }
    }

    fn receive_active(&mut self) -> usize {
        let mut batch = self.inbox.take_batch();
        batch.clear();
        let (mut count, mut bytes) = (0, 0);
        let limit = self.config.link.credit_slots as usize;
        self.local.poll.next_turn();
        let mut place = self.local.poll.first();
        for _ in 0..self.local.poll.len() {
            // What peers send may end their channels.
            let Some(rank) = self.local.poll.at(place) else { break };
            place = self.local.poll.after(place);
            let (peer, port) = self.channel(rank);
            if peer.channel.note_new_room(port) {
                self.local.poll.poll_slowly_soon();
            }
            while bytes < AT_ONCE
                && let Some(frame) = self.peers.member_mut(rank).channel.take_frame(&mut batch, limit)
            {
                count += 1;
                bytes += frame.len as usize;
                self.deliver(rank, &batch, Place::Batch(frame));
            }
        }
        self.inbox.return_batch(batch);
        self.port.activity += count as u64;
        if count > 0 {
            self.local.poll.note_found();
        }
        self.end_closed();
        count
    }

    /// Ends channels that their peers have closed or corrupted.
    #[inline]
    fn end_closed(&mut self) {
        for i in (0..self.local.poll.len()).rev() {
            let Some(rank) = self.local.poll.at(i) else { continue };
            if let Some(why) = self.peers.member(rank).channel.end() {
                self.teardown(rank, why);
            }
        }
    }

    // Sleeping.

    /// Tells local peers that this node is about to sleep, and polls once more: false if it should not sleep.
    pub(crate) fn announce_sleep(&mut self, now: Nanos) -> bool {
        self.local.poll.announce_sleep();
        if self.local.poll.asleep {
            // Idle rings need not be polled after this sleep; the others learn what was taken (S-12).
            self.begin_retire();
            self.barrier();
            self.end_retire();
        }
        let room = self.has_new_local_room();
        let grouped = self.groups.announce_sleep();
        // Nobody might wake this node for a ring that is corrupt.
        let corrupt = self.local.poll.active().any(|rank| self.peers.member(rank).channel.is_corrupt());
        let more = self.memory.has_more() || self.tags.has_more() || self.multicast.has_more();
        let is_sweep_due = self.local.poll.asleep && self.local.poll.is_sweep_due(now);
        let swept = is_sweep_due && self.sweep(now);
        if is_sweep_due {
            self.local.poll.note_checked();
        }
        if room
            || grouped
            || corrupt
            || more
            || swept
            || self.local.poll.has_new()
            || self.has_takeable_frames()
            || self.has_own_frames()
        {
            self.announce_wake();
            return false;
        }
        true
    }

    /// Whether there are frames that may be taken out: not of a peer that has sent as much as the program
    /// leaves untaken.
    fn has_takeable_frames(&self) -> bool {
        let limit = self.config.link.credit_slots as usize;
        let takeable = |rank: Rank| self.peers.member(rank).channel.has_takeable_frames(limit);
        self.local.poll.active().any(takeable)
    }

    /// Tells local peers that this node is awake again.
    pub(crate) fn announce_wake(&mut self) {
        if self.status.sleepers > 0 {
            // Another thread still sleeps, and wants to be rung for.
            return;
        }
        self.groups.announce_wake();
        self.local.poll.announce_wake();
    }

    /// A thread that slept on the descriptors takes the rings that woke it, so that they wake no other.
    pub(crate) fn take_rings(&mut self) {
        let Lane { local, peers, .. } = self;
        let LocalPeers { discovery: Some(discovery), poll, .. } = local else { return };
        discovery.for_each_readable(|rank| {
            if peers.member_mut(rank).channel.take_ring() {
                poll.note_ring();
            }
        });
    }

    /// Somebody polls although peers were told that this node sleeps.
    #[cold]
    pub(crate) fn wake_up(&mut self) {
        // A ring may be for a thread that still sleeps.
        if self.status.sleepers == 0 {
            self.announce_wake();
            self.take_rings();
        }
    }

    /// Has peers ring while the program computes, so that the watchdog serves them at once (N-13). False if
    /// there is something to serve first.
    pub(crate) fn announce_computing(&mut self, now: Nanos) -> bool {
        self.local.poll.asleep || self.announce_sleep(now)
    }

    /// This node was woken, perhaps by a process of this host.
    pub(crate) fn poll_all_soon(&mut self) {
        if let Some(discovery) = &mut self.local.discovery {
            discovery.poll_soon();
        }
        self.local.poll.poll_device_soon();
    }

    // Opening channels.

    /// Polls for processes of this host that dial, answer or die, if it is time to.
    #[inline]
    pub(super) fn poll_local(&mut self, now: Nanos) {
        if let Some(discovery) = &mut self.local.discovery
            && discovery.is_due(now)
        {
            self.poll_discovery(now);
        }
    }

    #[inline(never)]
    fn poll_discovery(&mut self, now: Nanos) {
        let Some(discovery) = &mut self.local.discovery else { return };
        discovery.unlink_exited(now);
        discovery.listen_again(now);
        if self.local.poll.is_sweep_overdue(now) {
            self.sweep(now);
        }
        let Some(discovery) = &mut self.local.discovery else { return };
        if discovery.has_redials() {
            for rank in discovery.take_redials(now) {
                // A peer that had been there may come back, too.
                let peer = self.peers.member(rank);
                let wanted = !peer.channel.is_shared() && now < peer.connect_by;
                let waits = peer.state == PeerState::Connecting || wanted;
                if waits && !peer.channel.link.is_live() && !self.dial(now, rank) {
                    self.connect_link(now, rank);
                }
            }
        }
        let Some(discovery) = &mut self.local.discovery else { return };
        let readable = discovery.readable();
        let strangers = readable.strangers || discovery.has_incoming();
        // Deaths first: whoever dials may be the successor of the dead peer.
        for rank in readable.peers() {
            self.check_alive(now, *rank);
        }
        if strangers {
            self.accept_all(now);
        }
        if self.local.mailbox.is_filled() {
            for (incoming, greeting) in self.local.mailbox.take() {
                self.accept(now, incoming, &greeting);
            }
        }
    }

    #[cold]
    fn check_alive(&mut self, now: Nanos, rank: Rank) {
        // It may have rung for a thread that sleeps, which does not see that ring any more (N-19).
        self.port.activity += 1;
        if self.peers.member(rank).channel.is_dead() && !self.is_rejected(now, rank) {
            self.peer_exited(rank);
        }
    }

    #[cold]
    fn accept_all(&mut self, now: Nanos) {
        let Some(discovery) = &mut self.local.discovery else { return };
        let (dropped, lacking) = discovery.accept_incoming(now);
        self.counters.strays += dropped;
        let (greeted, forged) = discovery.take_greeted();
        self.counters.forged_handshakes += forged;
        // Dials first: those to a process whose successor has dialled are over.
        for (rank, dialled) in discovery.take_dialled(self.rank) {
            self.finish_dial(now, rank, dialled);
        }
        if let Some(error) = lacking {
            self.push_event(Event::LocalRefused { reason: explain(&error) });
        }
        for (incoming, greeting) in greeted {
            let (to, me) = (Address::from(greeting.to), Address::from(self.rank));
            if to.rank == me.rank && to.lane != me.lane {
                self.local.directory.hand_over(to.lane, (incoming, greeting));
            } else {
                self.accept(now, incoming, &greeting);
            }
        }
    }

    fn accept(&mut self, now: Nanos, incoming: Box<dyn IncomingDial>, greeting: &Greeting) {
        let (me, from) = (self.rank, greeting.from);
        if self.peers.roster().is_stranger(from)
            && greeting.to == me
            && let Some(discovery) = &self.local.discovery
        {
            return discovery.refuse_unknown(incoming);
        }
        if greeting.to != me || from == me || self.port.closed || !self.add_peer(from) {
            return;
        }
        let Lane { peers, local, port, .. } = self;
        let peer = peers.member_mut(from);
        let Some(discovery) = &mut local.discovery else { return };
        // N-12: a peer that the device reaches which was asked for is not accepted. When both sides dial,
        // that of the lower rank, or of the lower lane, counts, if it was not to a former process (S-5). A
        // live link is not replaced; a restarted peer comes by datagram then.
        let ours_counts = Address::from(me) < Address::from(from) && discovery.may_be_answered(from);
        if peer.channel.link.is_live() || !discovery.reaches(&peer.local) || ours_counts {
            return;
        }
        // S-30: a dial that was given up may be handed over late, when the channel has long been established.
        // Asking for its end takes its rings, as in `check_alive`.
        port.activity += 1;
        if peer.channel.is_shared() && peer.channel.end().is_none() && !peer.channel.is_dead() {
            return;
        }
        discovery.cancel_dials(from);
        let epoch = self.secrets.number();
        let hello = Hello { from: me, to: from, epoch, window: self.config.local_window };
        match discovery.accept(incoming, greeting, hello) {
            Ok(shm) => self.establish_shm(now, from, shm, (epoch, greeting)),
            Err(error) => self.note_failed_dial(now, from, &error),
        }
    }

    fn finish_dial(&mut self, now: Nanos, rank: Rank, dialled: Dialled) {
        match dialled {
            // N-16: a link that is live is not replaced; the peer learns that its answer was not used.
            Dialled::Established(..) if self.peers.member(rank).channel.link.is_live() => {}
            Dialled::Established(shm, greeting) => {
                self.establish_shm(now, rank, *shm, (greeting.answers, &greeting));
            }
            Dialled::Mistaken => {}
            Dialled::Failed(error) if Refusal::in_error(&error) == Some(Refusal::UnknownRank) => {
                self.teardown(rank, Down::Refused(RefuseReason::UnknownRank));
            }
            Dialled::Failed(error) if self.peers.member(rank).channel.is_shared() => {
                tracing::debug!(rank = self.rank, peer = rank, %error, "a dial that is not needed");
            }
            // The peer lacks something, went away, or would rather dial us.
            Dialled::Failed(error) => {
                self.note_failed_dial(now, rank, &error);
                self.reach_otherwise(now, rank);
            }
        }
    }

    /// Memory is shared with a peer from now on. `epoch` is this node's, `greeting` the peer's.
    fn establish_shm(&mut self, now: Nanos, rank: Rank, mut shm: Shm, (epoch, greeting): (u64, &Greeting)) {
        if self.peers.member(rank).channel.is_shared() {
            self.teardown(rank, Down::Died(Death::Restarted));
        }
        let Some(discovery) = &mut self.local.discovery else { return };
        discovery.established(rank, &mut shm, greeting.beacon);
        let connect_by = now + self.config.connect_timeout.as_nanos() as Nanos;
        let (peer, port) = self.channel(rank);
        peer.channel.link.peering.suspend();
        peer.reset_channel(port);
        let numbers = ChannelNumbers { ours: epoch as u32, theirs: greeting.epoch as u32 };
        let place = self.peers.place(rank) as u16;
        self.local.poll.add((rank, place), shm.number());
        self.local.connected_at = Some(now);
        let peer = self.peers.member_mut(rank);
        peer.channel.establish_shm(ShmChannel::new(shm, greeting.window, numbers));
        (peer.local.refused, peer.local.shortage) = (None, None);
        peer.incarnation += 1;
        peer.state = PeerState::Connecting;
        peer.connect_by = connect_by;
        let id = peer.id();
        self.memory.peer_up(id);
        self.inbox.reserve(self.config.link.credit_slots as usize);
        self.push_transport(rank, "shm", "on this host, of this user".to_owned());
        self.announce(rank);
    }

    /// Whether the peer lives, and let go of the channel before it ever used it: it may lack descriptors or
    /// memory. Then datagrams take its place, or it is dialled again (N-33).
    fn is_rejected(&mut self, now: Nanos, rank: Rank) -> bool {
        let peer = self.peers.member(rank);
        if peer.state != PeerState::Connecting || !peer.channel.was_rejected() {
            return false;
        }
        self.detach_shm(rank);
        let (peer, port) = self.channel(rank);
        peer.reset_channel(port);
        peer.local.refused = Some(
            "on this host, and it could not share memory with us: it may lack descriptors or memory".into(),
        );
        peer.local.shortage.get_or_insert(Shortage::Peer);
        self.reach_otherwise(now, rank);
        true
    }

    // The end.

    /// The process of a peer has ended: what it sent whole still counts (S-6).
    fn peer_exited(&mut self, rank: Rank) {
        // No more than there was room for, in case that somebody still writes there.
        for _ in 0..ShmChannel::FRAMES {
            let mut bytes = self.inbox.take_buffer();
            let peer = self.peers.member_mut(rank);
            let from = peer.id();
            if !peer.channel.take_last(&mut bytes) {
                self.inbox.recycle(bytes);
                break;
            }
            if bytes.first().is_some_and(|first| record::is_control(*first)) {
                self.handle_control(rank, &bytes);
                self.inbox.recycle(bytes);
            } else {
                self.inbox.push(from, Place::Held(bytes));
            }
        }
        if let Some(discovery) = &mut self.local.discovery {
            discovery.peer_exited(self.status.received_at, rank);
        }
        let end = self.peers.member(rank).channel.end();
        self.teardown(rank, if end == Some(Down::Closed) { Down::Closed } else { Down::Exited });
    }
}
