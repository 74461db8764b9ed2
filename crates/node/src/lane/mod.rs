//! What one thread drives: a device, the channels over it, and what waits for the program.
//!
//! A [`Lane`] is reached through its owner word (`wait::Shared`), by the program's thread or by the watchdog
//! in its place. It is given the time and reads no clock. What lives here: polling and serving (this file),
//! receiving (`receive`), sending (`send`), opening channels (`connect`), their ends (`teardown`), processes
//! of this host (`local`), and the queues to the program (`inbox`, `events`). What does not: how a channel
//! carries frames (`channel`), and what memory records mean (`memory`).

mod connect;
mod events;
mod frames;
mod grants;
mod inbox;
mod local;
mod receive;
mod send;
mod teardown;
#[cfg(test)]
mod tests;
mod timers;
mod train;

pub use frames::{FastPoll, FrameBatch};
pub use inbox::{Delivery, Item};
pub(crate) use receive::Polled;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use tautline_device::{Datagram, DeviceEvent};
use tautline_link::Nanos;

use crate::channel::Port;
use crate::group_waits::GroupWaits;
use crate::local::LocalPeers;
use crate::membership::{HandlerNames, Peer, Peers};
use crate::memory::Memory;
use crate::multicast::Multicast;
use crate::secrets::Secrets;
use crate::tags::Tags;
use crate::{Config, Counters, Event, Job, JoinError, MessageId, PeerId, PeerState, Rank, Undelivered};
use events::EventQueue;
use grants::{Granting, Grants};
use inbox::Inbox;
use timers::Timers;

/// Batches that are received before timers are served.
const CATCH_UP: usize = 16;
/// The part of the silence bound after which a node that has not received is behind: 2 ms by default.
const BEHIND: Nanos = 500;

/// The device, channels and queues that one thread drives.
pub(crate) struct Lane {
    /// Its own number: the rank, for lane 0.
    pub(crate) rank: Rank,
    pub(crate) config: Config,
    pub(crate) port: Port,
    pub(crate) peers: Peers,
    pub(crate) names: HandlerNames,
    pub(crate) inbox: Inbox,
    events: EventQueue,
    timers: Timers,
    grants: Grants,
    pub(crate) local: LocalPeers,
    pub(crate) memory: Box<Memory>,
    pub(crate) tags: Box<Tags>,
    pub(crate) multicast: Box<Multicast>,
    pub(crate) groups: GroupWaits,
    pub(crate) secrets: Secrets,
    pub(crate) counters: Counters,
    /// Messages given up whose receivers could not be told yet, for want of room.
    aborts: VecDeque<MessageId>,
    /// Peers that are not told of all handlers yet, for want of room, and the number of the next one.
    announcements: Vec<(PeerId, usize)>,
    /// What could not be delivered while the lane closed (N-9).
    undelivered: Vec<Undelivered>,
    pub(crate) status: Status,
}

/// How things stand between a lane and those who poll it.
#[derive(Debug, Default)]
pub(crate) struct Status {
    /// When the device was last asked for frames.
    pub(crate) received_at: Nanos,
    /// The watchdog is polling in the program's place.
    pub(crate) watchdog_polls: bool,
    /// The watchdog took frames that the program has not been told of.
    pub(crate) watchdog_polled: bool,
    /// A channel that is dirty has something that its peer waits for.
    pub(crate) urgent: bool,
    /// Threads that sleep inside the library, and the doorbell that wakes one of them.
    pub(crate) sleepers: u32,
    pub(crate) bell: Option<OwnedFd>,
    /// The program sleeps on the descriptor in an event loop of its own, and counts as a sleeper; and the
    /// doorbell that wakes it.
    pub(crate) armed: bool,
    pub(crate) driver_bell: Option<OwnedFd>,
    /// The activity that sleeping threads were last rung for.
    rung_for: u64,
    /// The device or the listener has other descriptors than before.
    pub(crate) descriptors_changed: bool,
    /// There are, or may soon be, links.
    has_links: bool,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("rank", &self.rank).field("port", &self.port).finish_non_exhaustive()
    }
}

impl Lane {
    /// Makes the lane of number `lane` for `job` over `device`. `entropy` must be fresh and unpredictable:
    /// epochs come from it. `handlers` are the names that this node announces, each with whether it takes
    /// only short messages.
    pub(crate) fn new(
        job: &Job,
        lane: u16,
        mut config: Config,
        mut device: Box<dyn Datagram>,
        entropy: [u8; 32],
        handlers: Vec<(String, bool)>,
    ) -> Result<Lane, JoinError> {
        // D-6: the receive buffer is for all who send to it at once. If there is more than one who may, they
        // start with little credit, and get more when they send.
        let buffer = (device.receive_buffer() as u32).max(16 * 1024);
        config.link.receive_buffer = buffer;
        if job.members.len() > 2 {
            config.link.credit_initial = grants::BASE_SHARE;
            config.link.spread_timers = true;
        }
        config.link.raw_frames = device.takes_raw();
        // L-40: so many heartbeats at a time that their answers fit the buffer.
        config.link.heartbeat_groups = (job.members.len() as u32 / 256).clamp(1, 64);
        let peers = Peers::new(job, lane, &mut *device, &config.link)?;
        // H-6: answers go to the addresses of the job. Of several the source tells which.
        device.want_sources(peers.roster().has_several_addresses());
        let (me, members) = (peers.me(), job.members.len());
        let mut secrets = Secrets::new(entropy);
        let mut lane = Lane {
            rank: me,
            port: Port::new(device, &config, members),
            peers,
            names: HandlerNames::new(handlers),
            inbox: Inbox::new(config.link.credit_slots as usize),
            events: EventQueue::new(me),
            timers: Timers::default(),
            grants: Grants::new(buffer),
            local: LocalPeers::default(),
            memory: Box::new(Memory::new(me, secrets.number())),
            tags: Box::new(Tags::new(secrets.number(), config.eager_limit.into())),
            multicast: Box::new(Multicast::new(me)),
            groups: GroupWaits::default(),
            secrets,
            counters: Counters::default(),
            aborts: VecDeque::new(),
            announcements: Vec::new(),
            undelivered: Vec::new(),
            status: Status { has_links: true, ..Status::default() },
            config,
        };
        lane.open_loopback();
        Ok(lane)
    }

    /// Another thread uses the lane than before.
    #[cold]
    pub(crate) fn enter_thread(&mut self, thread: usize) {
        self.port.enter_thread(thread);
    }

    /// The channel of the node to itself is open from the start.
    fn open_loopback(&mut self) {
        let frame = self.port.slot_len();
        let me = self.peers.member_mut(self.rank);
        me.channel.make_loopback(frame, self.config.link.credit_slots as usize);
        for (number, name) in self.names.announced() {
            me.handlers.learn(name, number, &self.names);
        }
        me.state = PeerState::Up;
        me.incarnation = 1;
        self.memory.peer_up(me.id());
        self.tags.peer_up(me.id());
    }

    /// Receives, answers, retransmits, keeps alive: everything but running handlers (N-1). Returns how many
    /// frames came.
    #[inline]
    pub(crate) fn poll(&mut self, now: Nanos) -> usize {
        let received = self.receive(now);
        self.poll_local(now);
        self.after_receive(now);
        received
    }

    #[inline]
    fn after_receive(&mut self, now: Nanos) {
        self.poll_groups();
        while let Some(event) = self.port.device.poll_event() {
            self.handle_device_event(now, &event);
        }
        self.service(now);
    }

    /// As [`Lane::poll`], for a caller that takes what has come and calls again soon: if nothing is urgent,
    /// acknowledgements and timers wait for that call, which often has data that carries them.
    #[inline]
    pub(crate) fn poll_deferred(&mut self, now: Nanos) {
        self.receive(now);
        self.poll_local(now);
        if !self.inbox.has_in_place() || now >= self.port.next_deadline || !self.is_calm() {
            self.after_receive(now);
        } else {
            self.port.note_timer(now);
            if self.status.sleepers > 0 {
                self.wake_sleepers();
            }
        }
    }

    /// Whether all that is left to do is for one peer, and can wait.
    #[inline]
    fn is_calm(&self) -> bool {
        let &[rank] = self.port.dirty() else { return false };
        let retries = !self.aborts.is_empty() || !self.announcements.is_empty();
        self.peers.member(rank).channel.is_calm() && !retries && !self.is_serving()
    }

    /// Whether nothing was received for so long that timers would judge by old information, and what they
    /// ask of peers could find the device's buffer full of it: the program may only ever send.
    pub(crate) fn is_behind(&self, now: Nanos) -> bool {
        now.saturating_sub(self.status.received_at) > self.config.link.silence / BEHIND
    }

    /// Receives before timers judge, or a peer that sent all the while would count as silent (N-5).
    #[cold]
    pub(crate) fn catch_up(&mut self, now: Nanos) {
        for _ in 0..CATCH_UP {
            if self.receive(now) == 0 {
                break;
            }
        }
        self.service(now);
    }

    /// Sends what dirty channels have to send, and serves timers that are due.
    #[inline]
    pub(crate) fn service(&mut self, now: Nanos) {
        self.status.urgent = false;
        if !self.aborts.is_empty() {
            self.retry_aborts();
        }
        if !self.announcements.is_empty() {
            self.go_on_announcing();
        }
        if self.memory.is_busy() {
            self.serve_memory(now);
        }
        if self.tags.is_busy() {
            self.serve_tags(now);
        }
        if self.multicast.is_busy() {
            self.serve_multicast(now);
        }
        if self.port.has_wishes() {
            Granting(self).serve_wishes(now);
        }
        self.serve_dirty(now);
        if now >= self.port.next_deadline {
            self.serve_timers(now);
        }
        self.port.flush();
        if self.status.sleepers > 0 {
            self.wake_sleepers();
        }
    }

    /// This thread has found what another one, which sleeps, may wait for (N-19).
    #[cold]
    pub(crate) fn wake_sleepers(&mut self) {
        let activity = self.activity();
        if std::mem::replace(&mut self.status.rung_for, activity) == activity {
            return;
        }
        let driver = self.status.driver_bell.iter().filter(|_| self.status.armed);
        for bell in self.status.bell.iter().chain(driver) {
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// The program sleeps on the descriptor in an event loop of its own, or no longer.
    pub(crate) fn set_armed(&mut self, armed: bool) {
        match (std::mem::replace(&mut self.status.armed, armed), armed) {
            (false, true) => self.status.sleepers += 1,
            (true, false) => self.status.sleepers -= 1,
            _ => {}
        }
    }

    #[inline]
    pub(crate) fn serve_dirty(&mut self, now: Nanos) {
        while let Some(rank) = self.port.pop_dirty() {
            self.peers.member_mut(rank).channel.clear_dirty();
            self.serve(now, rank);
        }
    }

    #[cold]
    fn serve_timers(&mut self, now: Nanos) {
        self.settle_deadline();
        while let Some(place) = self.timers.pop_due(now) {
            let Some(peer) = self.peers.at_place(place) else { continue };
            let rank = peer.rank;
            let peering = &mut peer.channel.link.peering;
            if peering.next_deadline().is_some_and(|at| at <= now) {
                peering.handle_timeout(now);
                self.try_next_address(now, rank);
            }
            self.serve(now, rank);
        }
        if now >= Granting(self).next_grant() {
            Granting(self).serve_grants(now);
            self.serve_dirty(now);
        }
        self.settle_deadline();
    }

    /// Serves one channel: freed slots, events, frames.
    #[inline]
    pub(crate) fn serve(&mut self, now: Nanos, rank: Rank) {
        if rank == self.rank {
            return;
        }
        self.collect(now, rank);
        let channel = &mut self.peers.member_mut(rank).channel;
        channel.transmit(&mut self.port, now);
        channel.note_timer(&mut self.port, now);
    }

    /// Works out the exact time of the next deadline, before a sleep: deadlines of channels that were used
    /// since the last time have changed.
    fn settle_deadline(&mut self) {
        while let Some(rank) = self.port.pop_touched() {
            self.peers.member_mut(rank).channel.clear_touched();
            self.settle_peer(rank);
        }
        // Channels that wait to be served have changed, too.
        for i in 0..self.port.dirty().len() {
            self.settle_peer(self.port.dirty()[i]);
        }
        let local = self.local.next_deadline().unwrap_or(Nanos::MAX);
        let grant = Granting(self).next_grant();
        self.port.next_deadline = self.timers.first().min(local).min(grant);
    }

    fn settle_peer(&mut self, rank: Rank) {
        let at = self.peers.member(rank).next_deadline();
        self.timers.set(self.peers.place(rank), at);
    }

    /// When [`Lane::poll`] must be called at the latest, if nothing arrives.
    pub(crate) fn next_deadline(&mut self) -> Option<Nanos> {
        self.settle_deadline();
        (self.port.next_deadline != Nanos::MAX).then_some(self.port.next_deadline)
    }

    fn handle_device_event(&mut self, now: Nanos, event: &DeviceEvent) {
        match event {
            DeviceEvent::PathLimit { route, max_frame } => {
                let on_route = |peer: &&mut Peer| peer.channel.link.route == *route;
                let changed = self.peers.iter_mut().find(on_route).map(|peer| {
                    peer.channel.link.peering.set_path_limit(now, *max_frame);
                    peer.rank
                });
                if let Some(rank) = changed {
                    self.serve(now, rank);
                }
            }
            DeviceEvent::Descriptors => self.status.descriptors_changed = true,
            DeviceEvent::Raw => self.announce_raw(now),
            DeviceEvent::Transport { route, transport, why } => {
                let linked =
                    |peer: &&Peer| peer.channel.link.route == *route && peer.channel.link.link().is_some();
                let peer = self.peers.iter().find(linked).map(|peer| peer.rank);
                if let Some(peer) = peer {
                    self.push_transport(peer, transport.name(), why.clone());
                }
            }
        }
    }

    pub(crate) fn push_event(&mut self, event: Event) {
        self.port.activity += 1;
        self.events.push(event);
    }

    /// The next event of the node.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// Changes whenever a frame came or a peer's state changed: reason to try again what would have blocked.
    #[inline]
    pub(crate) fn activity(&self) -> u64 {
        self.port.activity + self.memory.activity() + self.wait_activity()
    }

    /// Looks at the memory of groups. What this thread finds there, another one may sleep for.
    #[inline(always)]
    pub(crate) fn poll_groups(&mut self) {
        if self.groups.poll() && self.status.sleepers > 0 {
            self.wake_sleepers();
        }
    }

    /// Changes what threads wait for, and has those that sleep look again.
    pub(crate) fn change_group_waits(&mut self, change: impl FnOnce(&mut GroupWaits)) {
        change(&mut self.groups);
        if self.status.sleepers > 0 {
            self.wake_sleepers();
        }
    }

    /// Changes whenever a send or receive with a tag, or of a multicast, or a wait for the memory of a group
    /// has ended or may go on.
    #[inline]
    pub(crate) fn request_activity(&self) -> u64 {
        self.tags.activity() + self.multicast.activity() + self.groups.activity()
    }

    /// Changes with [`Lane::request_activity`], and whenever threads that wait have to look again.
    #[inline]
    pub(crate) fn wait_activity(&self) -> u64 {
        self.request_activity() + self.groups.changes()
    }

    /// Why no message can come to a receive of any source: nobody is left who could send one. All peers are
    /// looked at once after each loss.
    #[inline]
    pub(crate) fn why_alone(&mut self) -> Option<crate::tags::Failure> {
        let loss = self.tags.last_loss()?;
        if self.peers.are_all_lost() {
            return Some(loss);
        }
        self.tags.forget_loss();
        None
    }

    /// Ends a receive of any source if nobody is left who could send a message (E-16).
    #[inline]
    pub(crate) fn end_if_alone(&mut self, id: crate::tags::ReceiveId) {
        if let Some(why) = self.why_alone() {
            self.tags.end_unmatched(id, why);
        }
    }

    /// When a lane that sleeps checks memory that it shares with others, whoever rings (S-40, G-18).
    pub(crate) fn look_again(&self, now: Nanos) -> Option<Nanos> {
        self.local.poll.sweep_at().into_iter().chain(self.groups.look_again(now)).min()
    }

    /// Whether slots or events wait for the program.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        self.has_slots() || self.has_events()
    }

    /// Whether events wait for the program.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty() || self.memory.has_new_events()
    }

    /// Whether slots wait for the program.
    #[inline]
    pub(crate) fn has_slots(&self) -> bool {
        self.has_local_frames() || !self.inbox.is_empty()
    }

    /// What was counted.
    pub(crate) fn counters(&self) -> Counters {
        let mut counters = self.counters;
        counters.device = self.port.device.counters();
        counters.frames_held = self.inbox.held;
        counters.events_lost = self.events.lost();
        for peer in self.peers.iter() {
            if let Some(counts) = peer.channel.shm_counts() {
                counters.local.add(counts);
            }
            if let Some(link) = peer.channel.link.link() {
                counters.add_link(link.counters());
            }
        }
        counters
    }
}
