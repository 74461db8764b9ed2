//! The interface: device, links, and the order in which they are served.

mod fate;
mod framing;
mod look;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tautline_device::own::Own;
use tautline_device::shm::View;
use tautline_device::{Datagram, DeviceEvent, RxBatch, SlotId};
use tautline_link::{Doorkeeper, Nanos, Peering, Who};

use crate::delivery::Item;
use crate::limits::{BATCH_BUFFERS, HELLOS_FREE, MAX_EVENTS};
use crate::memory::Memory;
use crate::near::Neighbourhood;
use crate::peer::{Peer, PeerState};
use crate::{Config, Counters, Event, Job, JoinError, MessageId, Rank};

/// Batches that are received before timers are served.
const CATCH_UP: usize = 16;

/// The software network card of one process. Everything it does is given the time; it reads no clock.
pub struct Interface {
    pub(crate) rank: Rank,
    pub(crate) config: Config,
    pub(crate) device: Box<dyn Datagram>,
    pub(crate) own: Own,
    /// Frames that the own channel holds when it is empty.
    pub(crate) own_room: usize,
    /// Own slots that are ready or with the program.
    pub(crate) own_pending: usize,
    pub(crate) peers: Vec<Peer>,
    pub(crate) dirty: Vec<Rank>,
    /// Never later than the first deadline of any peer.
    pub(crate) next_deadline: Nanos,
    /// The shortest time after which a timer that starts now can be due.
    pub(crate) soonest: Nanos,
    pub(crate) batch: Option<Box<RxBatch>>,
    pub(crate) ready: VecDeque<Item>,
    /// How many items of `ready` lie in the batch.
    pub(crate) in_place: usize,
    pub(crate) buffers: Vec<Vec<u8>>,
    pub(crate) events: VecDeque<Event>,
    /// Events that gave way to others, and that nobody has been told of.
    events_lost: u64,
    pub(crate) scratch: Vec<SlotId>,
    pub(crate) batch_depth: u32,
    pub(crate) handlers: Vec<(String, bool)>,
    pub(crate) keys: Vec<String>,
    /// Where each name is in `keys`.
    pub(crate) key_of: HashMap<String, u32>,
    pub(crate) doorkeeper: Doorkeeper,
    pub(crate) seed: u64,
    pub(crate) counters: Counters,
    pub(crate) closed: bool,
    pub(crate) activity: u64,
    /// When the device was last asked for frames.
    pub(crate) listened: Nanos,
    /// Messages given up whose receivers could not be told yet, for want of room.
    pub(crate) aborts: VecDeque<MessageId>,
    /// The watchdog took frames that the program has not been told of.
    pub(crate) stood_in: bool,
    /// A dirty peer should hear from us now.
    pub(crate) urgent: bool,
    /// Where peers on this host are met.
    pub(crate) hood: Option<Box<Neighbourhood>>,
    /// Why there is no such place, although one was wanted.
    pub(crate) no_hood: Option<String>,
    /// Peers that memory is shared with.
    pub(crate) near_up: Vec<Rank>,
    /// Polls until the datagram device is looked at again, while memory is shared with somebody.
    pub(crate) near_polls: u32,
    /// Small frames that may be taken before everything else has its turn.
    pub(crate) near_lines: u32,
    /// The peer on this host that is looked at first.
    pub(crate) near_turn: usize,
    /// Finds in close succession, and vain looks since the last one.
    pub(crate) near_streak: u32,
    pub(crate) near_vain: u32,
    /// Peers on this host have been told that this node sleeps.
    pub(crate) near_asleep: bool,
    /// The watchdog polls in the program's place.
    pub(crate) absent: bool,
    /// The device wakes by other descriptors than before.
    pub(crate) other_fds: bool,
    /// There are, or may soon be, channels by datagram.
    pub(crate) has_links: bool,
    /// What peers that are gone had lent, until the program has looked at all that they sent.
    pub(crate) formers: Vec<(Rank, u32, Arc<View>)>,
    /// What peers that are gone had read in this process; whoever waits for that is told.
    pub(crate) read_before: Vec<(Rank, u32, u32)>,
    /// Apertures, tripwires, operations.
    pub(crate) memory: Box<Memory>,
}

impl std::fmt::Debug for Interface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interface").field("rank", &self.rank).field("device", &self.device.name()).finish()
    }
}

impl Interface {
    /// Makes an interface for `job` over `device`. `entropy` must be fresh and unpredictable: epochs come from it.
    /// `handlers` are the names that this side announces, each with whether it takes only short messages.
    pub fn new(
        job: &Job,
        mut config: Config,
        mut device: Box<dyn Datagram>,
        entropy: [u8; 32],
        handlers: Vec<(String, bool)>,
    ) -> Result<Interface, JoinError> {
        // D-6: the receive buffer is shared by all who may send to it at once.
        let senders = (job.members.len() as u32).saturating_sub(1).clamp(1, 16);
        config.link.receive_buffer = (device.receive_buffer() as u32 / senders).max(16 * 1024);
        config.link.raw_frames = device.takes_raw();
        let mut peers = Vec::with_capacity(job.members.len());
        for (rank, member) in job.members.iter().enumerate() {
            let route = device.route(member.addr)?;
            let who = Who {
                key: job.key.clone(),
                me: job.rank,
                peer: rank as u32,
                endpoint: 0,
                peer_endpoint: 0,
                max_frame: device.max_frame(route),
            };
            let mut peer = Peer::new(rank as Rank, Peering::new(who, config.link.clone()), route, 0);
            let (here, there) = (job.members[job.rank as usize].addr.ip(), member.addr.ip());
            peer.at_home = here == there || here.is_loopback() && there.is_loopback();
            peers.push(peer);
        }
        // H-7: only a flood of hellos makes them matter.
        device.want_sources(false);
        let own_frame = device.arena_ref().payload_len();
        let limit = HELLOS_FREE + 4 * peers.len() as u32;
        let mut seed = [0; 8];
        seed.copy_from_slice(&entropy[..8]);
        let soonest = config.link.ack_delay.min(config.link.rto_min).min(config.link.hello_interval);
        let mut interface = Interface {
            rank: job.rank,
            own_pending: 0,
            own_room: config.link.credit_slots as usize,
            own: Own::new(own_frame, config.link.credit_slots as usize),
            config,
            device,
            peers,
            dirty: Vec::new(),
            next_deadline: Nanos::MAX,
            soonest,
            batch: Some(Box::new(RxBatch::new(BATCH_BUFFERS))),
            ready: VecDeque::with_capacity(1024),
            in_place: 0,
            buffers: Vec::new(),
            events: VecDeque::new(),
            events_lost: 0,
            scratch: Vec::new(),
            batch_depth: 0,
            handlers,
            keys: Vec::new(),
            key_of: HashMap::new(),
            doorkeeper: Doorkeeper::new(entropy, limit),
            seed: u64::from_le_bytes(seed),
            counters: Counters::default(),
            closed: false,
            activity: 0,
            listened: 0,
            aborts: VecDeque::new(),
            stood_in: false,
            urgent: false,
            hood: None,
            no_hood: None,
            near_up: Vec::new(),
            near_polls: 0,
            near_lines: 0,
            near_turn: 0,
            near_streak: 0,
            near_vain: 0,
            near_asleep: false,
            absent: false,
            other_fds: false,
            has_links: true,
            formers: Vec::new(),
            read_before: Vec::new(),
            memory: Box::new(Memory::new(0)),
        };
        interface.memory.epoch = interface.fresh_number();
        interface.open_own();
        Ok(interface)
    }

    /// The channel to ourselves is open from the start.
    fn open_own(&mut self) {
        let me = self.rank as usize;
        let names = self.handlers.clone();
        for (number, (name, short)) in names.iter().enumerate() {
            let number = number as u16 | if *short { crate::peer::SHORT_ONLY } else { 0 };
            self.peers[me].learn(name, number, &[]);
        }
        let peer = &mut self.peers[me];
        peer.state = PeerState::Up;
        peer.incarnation = 1;
        peer.table_complete = true;
    }

    /// Receives, answers, repeats, keeps alive: everything but running handlers (N-1). Returns how many frames came.
    #[inline]
    pub fn poll(&mut self, now: Nanos) -> usize {
        let received = self.receive(now);
        self.look_around(now);
        self.after_receive(now);
        received
    }

    #[inline]
    fn after_receive(&mut self, now: Nanos) {
        while let Some(event) = self.device.poll_event() {
            self.handle_device_event(now, &event);
        }
        self.service(now);
    }

    /// As [`Interface::poll`], for whoever takes what has come and calls again soon: if nothing is urgent, acknowledgements and
    /// timers wait for that call, which often has data that carries them.
    #[inline]
    pub(crate) fn listen(&mut self, now: Nanos) {
        self.receive(now);
        self.look_around(now);
        if self.in_place == 0 || now >= self.next_deadline || !self.is_calm() {
            self.after_receive(now);
        } else {
            self.next_deadline = self.next_deadline.min(now + self.soonest);
        }
    }

    /// Whether all that is left to do is for one peer, and can wait.
    #[inline]
    fn is_calm(&self) -> bool {
        let &[rank] = self.dirty.as_slice() else { return false };
        let peer = &self.peers[rank as usize];
        peer.open.is_none()
            && peer.peering.link().is_some_and(tautline_link::Link::is_calm)
            && self.aborts.is_empty()
            && self.memory.busy.is_empty()
    }

    /// Whether nothing was received for so long that timers would judge by old news: the program may only ever send.
    pub(crate) fn is_deaf(&self, now: Nanos) -> bool {
        now.saturating_sub(self.listened) > self.config.link.silence / 10
    }

    /// Listens before timers judge, or a peer that spoke all the while dies of silence (N-5).
    #[cold]
    pub(crate) fn catch_up(&mut self, now: Nanos) {
        for _ in 0..CATCH_UP {
            if self.receive(now) == 0 {
                break;
            }
        }
        self.service(now);
    }

    /// Sends what the peers marked dirty have to send, and serves timers that are due.
    #[inline]
    pub(crate) fn service(&mut self, now: Nanos) {
        self.urgent = false;
        if !self.aborts.is_empty() {
            self.retry_aborts();
        }
        if !self.memory.busy.is_empty() {
            self.serve_memory(now);
        }
        while let Some(rank) = self.dirty.pop() {
            self.peers[rank as usize].dirty = false;
            self.serve(now, rank);
        }
        if now >= self.next_deadline {
            self.serve_timers(now);
        }
        self.flush();
    }

    #[inline]
    pub(crate) fn flush(&mut self) {
        self.device.flush();
        if !self.scratch.is_empty() {
            self.empty_scratch();
        }
    }

    #[cold]
    fn serve_timers(&mut self, now: Nanos) {
        self.next_deadline = Nanos::MAX;
        for rank in 0..self.peers.len() as Rank {
            let peer = &mut self.peers[rank as usize];
            if peer.peering.next_deadline().is_some_and(|at| at <= now) {
                peer.peering.handle_timeout(now);
                self.serve(now, rank);
            } else if peer.state == PeerState::Connecting {
                self.serve(now, rank);
            }
        }
        self.settle_deadline();
    }

    fn handle_device_event(&mut self, now: Nanos, event: &DeviceEvent) {
        if let DeviceEvent::PathLimit { route, max_frame } = *event
            && let Some(peer) = self.peers.iter_mut().find(|p| p.route == route)
        {
            peer.peering.set_path_limit(now, max_frame);
            let rank = peer.rank;
            self.serve(now, rank);
        }
        if *event == DeviceEvent::Descriptors {
            self.other_fds = true;
        }
        if *event == DeviceEvent::Raw {
            self.tell_raw(now);
        }
        if let DeviceEvent::Transport { route, transport, why } = event
            && let Some(peer) = self.peers.iter().find(|p| p.route == *route && p.peering.link().is_some())
        {
            let peer = peer.rank;
            tracing::info!(rank = self.rank, peer, transport = transport.name(), reason = %why, "another way");
            self.push_event(Event::Transport { peer, device: transport.name(), reason: why.clone() });
        }
    }

    #[inline]
    pub(crate) fn note_deadline(&mut self, rank: Rank) {
        let peer = &self.peers[rank as usize];
        let mut at = peer.peering.next_deadline().unwrap_or(Nanos::MAX);
        if peer.state == PeerState::Connecting {
            at = at.min(peer.connect_by);
        }
        self.next_deadline = self.next_deadline.min(at);
    }

    #[inline]
    pub(crate) fn mark_dirty(&mut self, rank: Rank) {
        let peer = &mut self.peers[rank as usize];
        if !peer.dirty {
            peer.dirty = true;
            self.dirty.push(rank);
        }
    }

    /// Everything that one peer is owed: freed slots, frames, events.
    #[inline]
    pub(crate) fn serve(&mut self, now: Nanos, rank: Rank) {
        if rank == self.rank {
            return;
        }
        self.collect(now, rank);
        self.transmit(now, rank);
        // No timer that this may have started is due before that; the exact time is worked out when it matters.
        self.next_deadline = self.next_deadline.min(now + self.soonest);
    }

    /// Works out the exact time of the next deadline, before a sleep.
    pub(crate) fn settle_deadline(&mut self) {
        self.next_deadline = Nanos::MAX;
        for rank in 0..self.peers.len() as Rank {
            self.note_deadline(rank);
        }
        if let Some(at) = self.near_deadline() {
            self.next_deadline = self.next_deadline.min(at);
        }
    }

    pub(crate) fn push_event(&mut self, event: Event) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
            self.events_lost += 1;
            self.counters.events_lost += 1;
        }
        self.activity += 1;
        tracing::debug!(rank = self.rank, ?event, "event");
        self.events.push_back(event);
    }

    /// The next thing that happened; first of all, how many of the oldest were dropped.
    pub fn poll_event(&mut self) -> Option<Event> {
        match std::mem::take(&mut self.events_lost) {
            0 => self.events.pop_front(),
            events => Some(Event::Lost { events }),
        }
    }

    /// When [`Interface::poll`] must be called at the latest, if nothing arrives.
    pub fn next_deadline(&mut self) -> Option<Nanos> {
        self.settle_deadline();
        (self.next_deadline != Nanos::MAX).then_some(self.next_deadline)
    }

    /// Whether slots or events wait for the program.
    #[inline]
    pub fn has_ready(&self) -> bool {
        self.near_news() || !self.ready.is_empty() || self.has_events()
    }

    /// Bytes of a message that a peer may send before this side grants more (M-5).
    pub fn first_window(&self, rank: Rank) -> u64 {
        let near = self.peers.get(rank as usize).is_some_and(|peer| peer.near.is_some());
        u64::from(if near { self.config.local_window } else { self.config.link.message_window })
    }

    /// Whether events wait for the program.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty() || self.memory.news.is_fresh()
    }

    /// Whether slots wait for the program.
    #[inline]
    pub fn has_slots(&self) -> bool {
        self.near_news() || !self.ready.is_empty()
    }

    /// Changes whenever a frame came or a peer's state changed: reason to try again what would have blocked.
    #[inline]
    pub fn activity(&self) -> u64 {
        self.activity
    }

    /// A number that was never used before and cannot be guessed: the next output of a keyed sequence.
    pub(crate) fn fresh_number(&mut self) -> u64 {
        let number = u64::from_le_bytes(self.fresh_secret()[..8].try_into().expect("eight bytes"));
        number.max(1)
    }

    /// Bytes that were never used before and cannot be guessed.
    pub(crate) fn fresh_secret(&mut self) -> [u8; 16] {
        self.seed = self.seed.wrapping_add(1);
        self.doorkeeper.cookie(b"fresh", self.seed)
    }
}
