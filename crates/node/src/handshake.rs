//! Opening channels: hellos out, handshake frames in, handler tables across.

use std::net::SocketAddr;

use tautline_device::Transport;
use tautline_link::{Fresh, Nanos, Outcome, ShakeFrame};
use tautline_wire::handshake::HANDSHAKE_LEN;
use tautline_wire::record::{self, HandlerNames};
use tautline_wire::{Handshake, Kind};

use crate::interface::Interface;
use crate::limits::{MAX_HANDLERS, MAX_NAME};
use crate::peer::{PeerState, SHORT_ONLY};
use crate::{Down, Event, Rank};

impl Interface {
    /// Starts to open a channel, unless there is one.
    pub(crate) fn connect(&mut self, now: Nanos, rank: Rank) {
        let peer = &self.peers[rank as usize];
        let known = peer.peering.link().is_some_and(|l| !l.is_over()) || peer.peering.is_knocking();
        if !known && self.knock(now, rank) {
            let timeout = self.config.connect_timeout.as_nanos() as Nanos;
            let peer = &mut self.peers[rank as usize];
            if peer.state != PeerState::Connecting {
                peer.connect_by = now + timeout;
            }
            if peer.state == PeerState::Unknown {
                peer.state = PeerState::Connecting;
                self.next_deadline = self.next_deadline.min(now + self.soonest);
            }
            return;
        }
        self.connect_far(now, rank);
    }

    /// Starts to open a channel by datagram, unless there is one.
    pub(crate) fn connect_far(&mut self, now: Nanos, rank: Rank) {
        let fresh = self.fresh(rank);
        let timeout = self.config.connect_timeout.as_nanos() as Nanos;
        self.has_links = true;
        let peer = &mut self.peers[rank as usize];
        if peer.peering.link().is_some_and(|l| !l.is_over()) || peer.peering.is_knocking() {
            return;
        }
        peer.peering.connect(now, fresh);
        if peer.state == PeerState::Unknown {
            peer.state = PeerState::Connecting;
        }
        peer.connect_by = now + timeout;
        self.mark_dirty(rank);
    }

    fn fresh(&mut self, rank: Rank) -> Fresh {
        let epoch = self.fresh_number();
        // The low half finds the peer without a search, the high half tells incarnations apart.
        let channel = rank & 0xffff | (self.fresh_number() as u32) << 16;
        Fresh { epoch, channel }
    }

    /// A frame that is not of an established channel.
    #[cold]
    pub(crate) fn handle_handshake(&mut self, now: Nanos, bytes: &[u8], from: Option<SocketAddr>) {
        let Ok(shake) = Handshake::parse(bytes) else {
            self.counters.strays += 1;
            return;
        };
        let frame: &ShakeFrame = bytes[..HANDSHAKE_LEN].try_into().expect("parse checked the length");
        let rank = shake.from;
        let authentic = rank != self.rank
            && self.peers.get(rank as usize).is_some_and(|p| p.peering.is_authentic(frame, &shake));
        if !authentic {
            self.counters.forged_handshakes += 1;
            return;
        }
        if self.closed && shake.kind == Kind::Hello {
            return;
        }
        if shake.kind == Kind::Hello && self.must_prove(now, &shake, from) {
            return;
        }
        let connected = self.peers[rank as usize].peering.link().is_some_and(|l| !l.is_over());
        if shake.kind == Kind::Hello && !connected && self.knock(now, rank) {
            // N-12: it lives on this host; the answer comes another way.
            return;
        }
        self.has_links = true;
        let fresh = self.fresh(rank);
        let outcome = self.peers[rank as usize].peering.handle_handshake(now, &shake, fresh);
        match outcome {
            Outcome::Ignored => {}
            Outcome::Reply(reply) => self.send_shake(rank, &reply),
            Outcome::Opened => {}
            Outcome::Refused(reason) => self.take_down(rank, Down::Refused(reason)),
        }
        self.note_link(now, rank);
        self.mark_dirty(rank);
    }

    /// H-7: under a flood of hellos, first prove that you live where you say. Only then does it matter where frames come from; a
    /// hello whose source was not asked for is dropped then, and comes again.
    fn must_prove(&mut self, now: Nanos, hello: &Handshake, from: Option<SocketAddr>) -> bool {
        let mut address = [0; 18];
        match from {
            Some(SocketAddr::V4(a)) => address[..4].copy_from_slice(&a.ip().octets()),
            Some(SocketAddr::V6(a)) => address[..16].copy_from_slice(&a.ip().octets()),
            None => {}
        }
        address[16..].copy_from_slice(&from.map_or(0, |a| a.port()).to_le_bytes());
        let proof = self.doorkeeper.wants_proof(now, &address, hello.epoch, &hello.cookie);
        self.device.want_sources(proof);
        if !proof || from.is_none() {
            return proof;
        }
        self.counters.retries += 1;
        let cookie = self.doorkeeper.cookie(&address, hello.epoch);
        let retry = self.peers[hello.from as usize].peering.retry(hello, cookie);
        self.send_shake(hello.from, &retry);
        true
    }

    /// Answers go to the address that the job names for the rank, wherever the question came from (H-6).
    fn send_shake(&mut self, rank: Rank, frame: &ShakeFrame) {
        let route = self.peers[rank as usize].route;
        self.send_bytes(route, frame);
    }

    /// A link may have come alive: announce our handlers on it (M-1).
    #[cold]
    pub(crate) fn note_link(&mut self, now: Nanos, rank: Rank) {
        let peer = &self.peers[rank as usize];
        let replaced = peer.peering.has_former();
        if !peer.peering.link().is_some_and(tautline_link::Link::is_open) || peer.announced && !replaced {
            return;
        }
        // The former channel's end is reported before the new one's beginning.
        while let Some(former) = self.peers[rank as usize].peering.take_former() {
            self.bury(rank, former);
        }
        let peer = &mut self.peers[rank as usize];
        if let Some(open) = peer.open.take() {
            self.device.arena().give(open.slot);
        }
        let peer = &mut self.peers[rank as usize];
        peer.reset_channel();
        peer.announced = true;
        peer.incarnation += 1;
        if peer.state != PeerState::Up {
            peer.state = PeerState::Connecting;
            peer.connect_by = now + self.config.connect_timeout.as_nanos() as Nanos;
        }
        let route = peer.route;
        // D-12: whoever has sent no frame yet has not said that it takes raw ones.
        let takes_raw = peer.peering.link().is_some_and(tautline_link::Link::peer_takes_raw);
        self.device.note_raw(route, takes_raw);
        let not_near = self.why_not_near(rank);
        let told = match (self.device.transport(route), not_near) {
            (Some(transport), Some(not)) if transport == Transport::Udp => {
                Some((transport.name(), format!("{}; {not}", self.device.why(route))))
            }
            (Some(transport), _) => Some((transport.name(), self.device.why(route).to_owned())),
            (None, not_near) => not_near.map(|reason| ("udp", reason)),
        };
        if let Some((device, reason)) = told {
            tracing::info!(rank = self.rank, peer = rank, device, %reason, "the way to a peer");
            self.push_event(Event::Transport { peer: rank, device, reason });
        }
        self.announce(rank);
    }

    pub(crate) fn announce(&mut self, rank: Rank) {
        let names = std::mem::take(&mut self.handlers);
        let mut bytes = Vec::new();
        let mut entries = names.iter().enumerate().peekable();
        loop {
            let capacity = self.capacity(&self.peers[rank as usize]);
            bytes.clear();
            bytes.resize(capacity, 0);
            let head = record::write::handlers(&mut bytes, false, 0);
            let mut at = head;
            while let Some((number, (name, short))) = entries.peek() {
                let number = *number as u16 | if *short { SHORT_ONLY } else { 0 };
                let Some(used) = record::write::handler_name(&mut bytes[at..], number, name) else { break };
                at += used;
                entries.next();
            }
            let last = entries.peek().is_none();
            record::write::handlers(&mut bytes, last, at - head);
            self.push_control(rank, &bytes[..at], false);
            if last {
                break;
            }
        }
        self.handlers = names;
    }

    /// Part of the peer's table of handlers has come.
    #[cold]
    pub(crate) fn learn_handlers(&mut self, rank: Rank, last: bool, data: &[u8]) -> bool {
        let peer = &mut self.peers[rank as usize];
        for entry in HandlerNames::new(data) {
            let Ok((number, name)) = entry else { return false };
            let sane = name.len() <= MAX_NAME && usize::from(number & !SHORT_ONLY) < MAX_HANDLERS;
            if !sane || peer.table.len() >= MAX_HANDLERS {
                return false;
            }
            peer.learn(name, number, &self.keys);
        }
        if last {
            peer.table_complete = true;
            peer.state = PeerState::Up;
            let incarnation = peer.incarnation;
            self.push_event(Event::PeerUp { peer: rank, incarnation });
        }
        true
    }
}
