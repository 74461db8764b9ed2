//! Opening channels: hellos out, handshake frames in, handler tables across.

use std::net::SocketAddr;

use tautline_device::shm::Refusal;
use tautline_device::{RouteId, Transport};
use tautline_link::{ChannelIds, HandshakeFrame, HandshakeOutcome, Nanos};
use tautline_wire::handshake::HANDSHAKE_LEN;
use tautline_wire::record::{self, HandlerNames as AnnouncedNames};
use tautline_wire::{Handshake, Kind};

use super::Lane;
use crate::channel::Port;
use crate::limits::{HELLOS_TO_ADDRESS, LOCAL_POLL_NS, MAX_HANDLERS, MAX_NAME, REJECTED, SHORTAGE_PAUSE};
use crate::local::{Hello, explain};
use crate::membership::{HandlerNames, Peer, SHORT_ONLY};
use crate::{Address, Down, Event, Member, PeerState, Rank, Shortage};

impl Lane {
    /// The job has one more rank.
    pub(crate) fn member_joined(&mut self, rank: Rank, member: Member) {
        if member.address_count() > 1 {
            // J-28: as when the lane was opened.
            self.port.device.want_sources(true);
        }
        self.peers.roster_mut().join(rank, member);
    }

    /// Makes sure that a peer is there. False if the job has no such rank.
    pub(crate) fn add_peer(&mut self, rank: Rank) -> bool {
        let Lane { peers, port, config, .. } = self;
        peers.add(&mut *port.device, &config.link, rank)
    }

    /// A peer, which is added unless it is there. None if the job has no such rank.
    pub(crate) fn peer(&mut self, rank: Rank) -> Option<&mut Peer> {
        self.add_peer(rank);
        self.peers.get_mut(rank)
    }

    /// Starts to open a channel, unless there is one.
    pub(crate) fn connect(&mut self, now: Nanos, rank: Rank) {
        if self.peers.member(rank).channel.link.is_in_use() || !self.dial(now, rank) {
            return self.connect_link(now, rank);
        }
        let timeout = self.config.connect_timeout.as_nanos() as Nanos;
        let peer = self.peers.member_mut(rank);
        if peer.state != PeerState::Connecting {
            peer.connect_by = now + timeout;
        }
        if peer.state == PeerState::Unknown {
            peer.state = PeerState::Connecting;
            peer.channel.note_timer(&mut self.port, now);
        }
    }

    /// Dials a peer's listener, if it has one on this host. True if an answer is awaited, or datagrams are
    /// not to be used anyway.
    pub(super) fn dial(&mut self, now: Nanos, rank: Rank) -> bool {
        if self.local.reopen.is_some() {
            self.reopen_listener(now);
        }
        let Lane { local, peers, port, secrets, config, .. } = self;
        let Some(discovery) = local.discovery.as_mut().filter(|_| !port.closed) else { return false };
        let peer = peers.member_mut(rank);
        if peer.channel.is_shared() || discovery.is_dialling(rank) || discovery.will_redial(rank) {
            return true;
        }
        if !discovery.reaches(&peer.local) || now < peer.local.dial_after && !discovery.only {
            return false;
        }
        if discovery.is_dialling_enough(now) {
            discovery.redial_at(rank, now + LOCAL_POLL_NS);
            return true;
        }
        let hello = Hello { from: self.rank, to: rank, epoch: secrets.number(), window: config.local_window };
        let Err(error) = discovery.dial(now, hello) else { return true };
        if error.kind() == std::io::ErrorKind::WouldBlock {
            // N-16: too many dial at once; the peer is there.
            discovery.redial_at(rank, now + LOCAL_POLL_NS);
            return true;
        }
        let only = discovery.only;
        tracing::debug!(rank = self.rank, peer = rank, %error, "no shared memory");
        if error.kind() == std::io::ErrorKind::NotFound {
            // A peer without a listener is on another host.
            peer.local.refused = None;
        } else {
            self.note_failed_dial(now, rank, &error);
        }
        if only {
            self.reach_otherwise(now, rank);
        }
        only
    }

    /// Opens the listener after all, so that peers which connect from now on share memory (N-17).
    #[cold]
    fn reopen_listener(&mut self, now: Nanos) {
        let Some(reopen) = self.local.reopen.as_mut().filter(|_| !self.port.closed) else { return };
        if let Some(discovery) = reopen.try_open(now, &self.config) {
            tracing::info!(rank = self.rank, "memory can be shared with peers on this host after all");
            self.local.discovery = Some(Box::new(discovery));
            (self.local.reopen, self.local.unavailable) = (None, None);
            self.status.descriptors_changed = true;
        }
    }

    /// No memory could be shared with a peer. Its transport is an event that says why (N-17); where it has no
    /// other, the beginning of a shortage of this process is one (N-33).
    #[cold]
    pub(super) fn note_failed_dial(&mut self, now: Nanos, rank: Rank, error: &std::io::Error) {
        let local = &mut self.peers.member_mut(rank).local;
        let shortage = Shortage::of(error);
        local.refused = Some(explain(error));
        local.shortage = shortage.or(local.shortage);
        if shortage.is_none() || Refusal::in_error(error).is_some() {
            return;
        }
        let Some(discovery) = &mut self.local.discovery else { return };
        let is_new = discovery.note_shortage(now);
        if is_new && discovery.only {
            self.push_event(Event::LocalRefused { reason: explain(error) });
        }
    }

    /// Reaches a peer that no memory could be shared with by datagram, without another dial at every hello.
    /// Where only memory is to be used, dials it again later (N-33).
    #[cold]
    pub(super) fn reach_otherwise(&mut self, now: Nanos, rank: Rank) {
        let peer = self.peers.member_mut(rank);
        let Some(discovery) = self.local.discovery.as_mut().filter(|discovery| discovery.only) else {
            peer.local.dial_after = now + REJECTED;
            return self.connect_link(now, rank);
        };
        let pause = if peer.local.shortage.is_some() { SHORTAGE_PAUSE } else { LOCAL_POLL_NS };
        discovery.redial_at(rank, now + pause);
    }

    /// Why a peer counts as unreachable: for want of what sharing memory takes, if it is still dialled.
    pub(super) fn why_unreachable(&self, rank: Rank) -> Down {
        let discovery = self.local.discovery.as_ref();
        let is_dialled = discovery.is_some_and(|discovery| discovery.only || discovery.will_redial(rank));
        let shortage = self.peers.member(rank).local.shortage.filter(|_| is_dialled);
        shortage.map_or(Down::Unreachable, Down::Shortage)
    }

    /// Starts to open a channel by datagram, unless there is one.
    pub(super) fn connect_link(&mut self, now: Nanos, rank: Rank) {
        let fresh = self.fresh(rank);
        let timeout = self.config.connect_timeout.as_nanos() as Nanos;
        self.status.has_links = true;
        if self.peers.member(rank).channel.link.is_in_use() {
            return;
        }
        if Address::from(rank).lane != 0 || self.peers.roster().address_count(rank) > 1 {
            // H-13: the lane may have been closed, and opened at another port. J-28: the first address may
            // be reached again.
            self.set_route(now, rank, (0, 0));
        }
        let (peer, port) = self.channel(rank);
        peer.channel.link.peering.connect(now, fresh);
        if peer.state == PeerState::Unknown {
            peer.state = PeerState::Connecting;
        }
        peer.connect_by = now + timeout;
        peer.channel.mark_dirty(port);
    }

    fn fresh(&mut self, rank: Rank) -> ChannelIds {
        let epoch = self.secrets.number();
        // The low half finds the peer without a search, the high half tells incarnations apart.
        let place = self.peers.place(rank) as u32;
        let channel = place & 0xffff | (self.secrets.number() as u32) << 16;
        ChannelIds { epoch, channel }
    }

    /// J-28: if the hellos to an address of a peer were not answered, its next address is tried. With another
    /// epoch, so that a late answer does not count for the wrong address.
    pub(super) fn try_next_address(&mut self, now: Nanos, rank: Rank) {
        let peer = self.peers.member(rank);
        let (unanswered, at) = (peer.channel.link.peering.unanswered_hellos(), peer.address);
        let count = self.peers.roster().address_count(rank);
        if unanswered < HELLOS_TO_ADDRESS || count == 1 {
            return;
        }
        // An address that this node has no route to is passed over.
        if (1..count).any(|step| self.set_route(now, rank, ((at + step) % count, 0))) {
            let fresh = self.fresh(rank);
            self.peers.member_mut(rank).channel.link.peering.restart_attempt(fresh);
        }
    }

    /// Handles a frame that is not of an established channel, from this address of the network, if the device
    /// tells it.
    #[cold]
    pub(super) fn handle_handshake(&mut self, now: Nanos, bytes: &[u8], source: Option<SocketAddr>) {
        let Ok(shake) = Handshake::parse(bytes) else {
            self.counters.strays += 1;
            return;
        };
        let frame: &HandshakeFrame = bytes[..HANDSHAKE_LEN].try_into().expect("parse checked the length");
        if self.peers.roster().is_unknown(frame, &shake) {
            return self.refuse_unknown(now, &shake, source);
        }
        let rank = Address::new(shake.from, shake.from_lane).into();
        // Only for another lane does a node get its own hello.
        let own = rank == self.rank && shake.to_lane == Address::from(self.rank).lane;
        if own || !self.peers.is_authentic(frame, &shake) || !self.add_peer(rank) {
            self.counters.forged_handshakes += 1;
            return;
        }
        let current = self.peers.member(rank).address;
        let mut route = self.peers.member(rank).channel.link.route;
        // H-6: of several addresses the answer goes to the one that the hello came from.
        let address = self.peers.roster().address_from(rank, source).unwrap_or(current);
        if shake.kind == Kind::Hello {
            if shake.from_lane != 0 || address != current {
                // H-13: only the lane itself knows its port.
                let Lane { peers, port, .. } = self;
                let lane_port = if shake.from_lane == 0 { 0 } else { shake.port };
                let answer_to = peers.roster_mut().route(&mut *port.device, rank, address, lane_port);
                let Ok(answer_to) = answer_to else { return };
                route = answer_to;
            }
            if !self.secrets.limiter.admits(now, shake.epoch) {
                self.counters.hellos_dropped += 1;
                return;
            }
            if self.port.closed || self.redirect(rank, &shake, route) {
                return;
            }
            // N-16: a peer on this host is answered through its listener.
            let link = &self.peers.member(rank).channel.link;
            if link.peering.is_proven(&shake) && !link.is_live() && self.dial(now, rank) {
                self.peers.member_mut(rank).channel.link.peering.take_proof(&shake);
                return;
            }
        }
        // N-16: the peer may have accepted a dial since. If it did not, the next hello gets the same welcome.
        let discovery = self.local.discovery.as_ref();
        if shake.kind == Kind::Welcome && discovery.is_some_and(|discovery| discovery.is_dialling(rank)) {
            return;
        }
        self.status.has_links = true;
        let fresh = self.fresh(rank);
        let proven = self.note_proven_path(now, rank, &shake, route);
        if shake.kind == Kind::Hello && self.peers.size() > 2 {
            let credit = self.grants.first_credit(now);
            self.peers.member_mut(rank).channel.link.peering.set_first_credit(credit);
        }
        let outcome = self.peers.member_mut(rank).channel.link.peering.handle_handshake(now, &shake, fresh);
        match outcome {
            HandshakeOutcome::Ignored => {}
            HandshakeOutcome::Opened => self.peers.member_mut(rank).answered_at = None,
            HandshakeOutcome::Reply(reply) => {
                self.counters.retries += u64::from(Kind::of(&reply) == Ok(Kind::Retry));
                self.port.send_bytes(route, &reply);
            }
            HandshakeOutcome::Welcome(reply) => {
                // A repeated hello without a cookie may be a replay, from elsewhere.
                if proven {
                    let moves = shake.from_lane != 0 || self.peers.roster().address_count(rank) > 1;
                    self.peers.member_mut(rank).answered_at = moves.then_some((route, address));
                }
                self.port.send_bytes(route, &reply);
            }
            HandshakeOutcome::Redirected(port) => drop(self.set_route(now, rank, (current, port))),
            HandshakeOutcome::Refused(reason) => self.teardown(rank, Down::Refused(reason)),
        }
        self.note_link(now, rank);
        let (peer, port) = self.channel(rank);
        peer.channel.mark_dirty(port);
    }

    /// J-23: a rank joined the job, and this process is not told of such. The job names no address for it.
    fn refuse_unknown(&mut self, now: Nanos, hello: &Handshake, source: Option<SocketAddr>) {
        if self.port.closed || !self.secrets.limiter.admits(now, hello.epoch) {
            return;
        }
        let Some(source) = source else {
            // The hello is repeated, and comes with its source then.
            return self.port.device.want_sources(true);
        };
        let Lane { peers, port, .. } = self;
        if let Some((route, refusal)) = peers.roster_mut().refuse_unknown(&mut *port.device, hello, source) {
            port.send_bytes(route, &refusal);
        }
    }

    /// H-13: a hello for another lane of this node is told where that lane is. True if it is for another
    /// lane.
    fn redirect(&mut self, rank: Rank, hello: &Handshake, route: RouteId) -> bool {
        let me = Address::from(self.rank);
        if hello.to != me.rank || hello.to_lane == me.lane || me.lane != 0 {
            return false;
        }
        if let Some(port) = self.local.directory.port(hello.to_lane) {
            let frame = self.peers.member(rank).channel.link.peering.redirect(hello, port);
            self.port.send_bytes(route, &frame);
        }
        true
    }

    /// Frames for a peer go to this address of its rank and to this port from now on; to lane 0 if the port
    /// is zero. False if there is no route.
    fn set_route(&mut self, now: Nanos, rank: Rank, (address, port): (u8, u16)) -> bool {
        let Lane { peers, port: out, .. } = self;
        let Ok(route) = peers.roster_mut().route(&mut *out.device, rank, address, port) else { return false };
        let max_frame = out.device.max_frame(route);
        let peer = peers.member_mut(rank);
        peer.address = address;
        let link = &mut peer.channel.link;
        if link.route != route {
            link.route = route;
            link.peering.set_path_limit(now, max_frame);
        }
        true
    }

    /// Whether a hello brings the cookie. The link that is opened for it then has the frames of the path to
    /// where it came from, unless there is a link that goes on elsewhere.
    fn note_proven_path(&mut self, now: Nanos, rank: Rank, hello: &Handshake, route: RouteId) -> bool {
        let max_frame = self.port.device.max_frame(route);
        let link = &mut self.peers.member_mut(rank).channel.link;
        let proven = hello.kind == Kind::Hello && link.peering.is_proven(hello);
        if proven && !link.is_live() && link.route != route {
            link.peering.set_path_limit(now, max_frame);
        }
        proven
    }

    /// Announces this node's handlers on a link that has been opened (M-1).
    #[cold]
    pub(super) fn note_link(&mut self, now: Nanos, rank: Rank) {
        let peer = self.peers.member(rank);
        let (peering, link) = (&peer.channel.link.peering, peer.channel.link.link());
        let replaced = peering.has_superseded();
        if !link.is_some_and(tautline_link::Link::is_open) || peer.announced && !replaced {
            return;
        }
        // The former channel's end is reported before the new one's beginning.
        self.retire_former_links(rank);
        let connect_by = now + self.config.connect_timeout.as_nanos() as Nanos;
        let (peer, port) = self.channel(rank);
        peer.reset_channel(port);
        peer.incarnation += 1;
        if let Some((route, address)) = peer.answered_at.take() {
            (peer.channel.link.route, peer.address) = (route, address);
        }
        // Hellos of both sides may have gone different ways.
        let max_frame = port.device.max_frame(peer.channel.link.route);
        peer.channel.link.peering.set_path_limit(now, max_frame);
        if peer.state != PeerState::Up {
            peer.state = PeerState::Connecting;
            peer.connect_by = connect_by;
        }
        let (route, id) = (peer.channel.link.route, peer.id());
        // D-21: a peer that has sent no frame yet has not said that it takes raw ones.
        let takes_raw = peer.channel.link.link().is_some_and(tautline_link::Link::peer_accepts_raw);
        port.device.set_peer_takes_raw(route, takes_raw);
        self.memory.peer_up(id);
        self.report_transport(rank);
        self.announce(rank);
    }

    /// Says which transport the link to a peer uses, where the device has several or shared memory was
    /// expected.
    fn report_transport(&mut self, rank: Rank) {
        let no_shm = self.why_not_local(rank);
        let route = self.peers.member(rank).channel.link.route;
        let device = &self.port.device;
        let told = match (device.transport(route), no_shm) {
            (Some(transport @ Transport::Udp), Some(not)) => {
                Some((transport.name(), format!("{}; {not}", device.transport_reason(route))))
            }
            (Some(transport), _) => Some((transport.name(), device.transport_reason(route).to_owned())),
            (None, not_local) => not_local.map(|reason| ("udp", reason)),
        };
        let told = match (told, self.address_in_use(rank)) {
            (Some((device, reason)), Some(address)) => Some((device, format!("{reason}; {address}"))),
            (None, Some(address)) => Some((device.name(), address)),
            (told, None) => told,
        };
        if let Some((device, reason)) = told {
            self.push_transport(rank, device, reason);
        }
    }

    /// Which of its addresses a peer is reached at; none if it has only one (J-28).
    fn address_in_use(&self, rank: Rank) -> Option<String> {
        let (roster, number) = (self.peers.roster(), self.peers.member(rank).address);
        let count = roster.address_count(rank);
        let address = roster.address(rank, number);
        (count > 1).then(|| format!("at {address}, its address {} of {count}", number + 1))
    }

    /// Why a peer on this host is reached by datagram; none if it is on another host, or this node was told
    /// to use datagrams (N-17).
    fn why_not_local(&mut self, rank: Rank) -> Option<String> {
        let hints = &mut self.peers.member_mut(rank).local;
        let refused = hints.refused.take();
        let Some(discovery) = &self.local.discovery else {
            return self.local.unavailable.clone().filter(|_| hints.same_host);
        };
        let no_listener = "on this host, and without a listener for shared memory: it was told to use datagrams, \
                           belongs to another user, or could not open one";
        refused.or_else(|| (hints.same_host && discovery.reaches(hints)).then(|| no_listener.to_owned()))
    }

    /// Tells the program which transport a channel uses, and why.
    pub(super) fn push_transport(&mut self, peer: Rank, device: &'static str, reason: String) {
        tracing::info!(rank = self.rank, peer, device, %reason, "transport");
        self.push_event(Event::Transport { peer, device, reason });
    }

    /// Announces this node's handlers to a peer, as far as there is room; the others follow when there is.
    pub(super) fn announce(&mut self, rank: Rank) {
        let peer = self.peers.member_mut(rank);
        peer.announced = true;
        self.announcements.push((peer.id(), 0));
        self.go_on_announcing();
    }

    /// Announces what there was no room for before.
    #[cold]
    pub(super) fn go_on_announcing(&mut self) {
        let Lane { peers, port, names, announcements, .. } = self;
        announcements.retain_mut(|(id, next)| {
            // That of a channel that has ended is over.
            let peer = peers.get_mut(id.rank).filter(|peer| peer.id() == *id && peer.announced);
            peer.is_some_and(|peer| !announce_names(peer, port, names, next))
        });
    }

    /// Enters part of the peer's table of handlers. False if no correct peer sends it.
    #[cold]
    pub(super) fn learn_handlers(&mut self, rank: Rank, last: bool, data: &[u8]) -> bool {
        let peer = self.peers.member_mut(rank);
        for entry in AnnouncedNames::new(data) {
            let Ok((number, name)) = entry else { return false };
            let sane = name.len() <= MAX_NAME && usize::from(number & !SHORT_ONLY) < MAX_HANDLERS;
            if !sane || peer.handlers.len() >= MAX_HANDLERS {
                return false;
            }
            peer.handlers.learn(name, number, &self.names);
        }
        if last {
            peer.handlers.complete();
            (peer.state, peer.restarted) = (PeerState::Up, false);
            let incarnation = peer.incarnation;
            self.tags.peer_up(peer.id());
            self.multicast.peer_up(peer.id());
            self.push_event(Event::PeerUp { peer: rank, incarnation });
        }
        true
    }

    /// The device takes raw frames from now on, or no more: peers are told (D-22).
    #[cold]
    pub(super) fn announce_raw(&mut self, now: Nanos) {
        let takes = self.port.device.takes_raw();
        self.config.link.raw_frames = takes;
        for place in 0..self.peers.len() {
            let Some(peer) = self.peers.at_place(place) else { continue };
            let rank = peer.rank;
            peer.channel.link.peering.set_raw_frames(takes);
            self.serve(now, rank);
        }
    }

    /// A peer says whether it takes raw frames (D-21).
    pub(super) fn note_peer_raw(&mut self, rank: Rank, takes: bool) {
        let route = self.peers.member(rank).channel.link.route;
        let device = &mut self.port.device;
        let before = device.transport(route);
        device.set_peer_takes_raw(route, takes);
        let now = device.transport(route);
        if let Some(transport) = now.filter(|_| now != before) {
            let reason = device.transport_reason(route).to_owned();
            self.push_transport(rank, transport.name(), reason);
        }
    }
}

/// Sends the names of a node's handlers from number `next` on to a peer, in as many control frames as it
/// takes. False if there is no room for all of them; `next` is that of the first one left.
fn announce_names(peer: &mut Peer, port: &mut Port, names: &HandlerNames, next: &mut usize) -> bool {
    let mut bytes = Vec::new();
    let mut entries = names.announced().skip(*next).peekable();
    loop {
        bytes.clear();
        bytes.resize(peer.channel.capacity(port), 0);
        let head = record::write::handlers(&mut bytes, false, 0);
        let (mut at, mut count) = (head, 0);
        while let Some((number, name)) = entries.peek() {
            let Some(used) = record::write::handler_name(&mut bytes[at..], *number, name) else { break };
            at += used;
            count += 1;
            entries.next();
        }
        let last = entries.peek().is_none();
        record::write::handlers(&mut bytes, last, at - head);
        if !peer.channel.push_control(port, &bytes[..at], false) {
            return false;
        }
        *next += count;
        if last {
            return true;
        }
    }
}
