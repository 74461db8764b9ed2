//! What a program's thread holds of its node.

mod lending;
mod waiting;

pub use waiting::{WaitFor, Waker};

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tautline_device::Datagram;
use tautline_link::Nanos;
use tautline_mem::{ForkGuard, Owned};

use crate::delivery::Delivery;
use crate::descriptors::Descriptors;
use crate::interface::Interface;
use crate::near::{FastPoll, FrameBatch, settle};
use crate::peer::{Key, MessageId, PeerId, UNKNOWN};
use crate::presence::Presence;
use crate::shared::{Guard, Shared};
use crate::wait::Manners;
use crate::{Choice, Clock, Config, Counters, DeviceName, Event, Job, JoinError, PeerState, Rank, SendError};

/// A thread's hold on its node. Clones share the node.
///
/// `Endpoint` is `Send` and `Sync`: calls from several threads take turns. After `fork` the child's copy refuses every
/// call with [`SendError::Forked`] (N-10).
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub(crate) shared: Arc<Shared>,
    owner: Arc<Owner>,
}

/// Bytes from which on a piece is worth a frame of its own.
const LONG_PIECE: usize = 8 << 10;

/// Ends the watchdog when the last endpoint is dropped.
#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
    watchdog: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Endpoint {
    /// Joins a job: opens a device, starts the watchdog, announces `handlers` to whoever connects.
    pub fn join(
        mut job: Job,
        mut config: Config,
        handlers: Vec<(String, bool)>,
    ) -> Result<Endpoint, JoinError> {
        if let Some(security) = job.security {
            config.link.security = security;
        }
        config.settle_device(job.device);
        let (device, choice) = crate::open_device(&mut job, &config)?;
        let mut entropy = [0; 32];
        rustix::rand::getrandom(&mut entropy, rustix::rand::GetRandomFlags::empty())
            .map_err(std::io::Error::from)?;
        Endpoint::over(&job, config, device, Clock::system(), entropy, handlers, Some(choice))
    }

    /// Joins a job over a given device and clock; for simulations, and for devices of one's own.
    pub fn over(
        job: &Job,
        config: Config,
        device: Box<dyn Datagram>,
        clock: Clock,
        entropy: [u8; 32],
        handlers: Vec<(String, bool)>,
        choice: Option<Choice>,
    ) -> Result<Endpoint, JoinError> {
        let mut descriptors = if clock.is_virtual() { None } else { Descriptors::new(&*device)? };
        let watchdog = config.watchdog.filter(|_| descriptors.is_some());
        let mut interface = Interface::new(job, config.clone(), device, entropy, handlers)?;
        if let Some(mut choice) = choice {
            if let Some(descriptors) = &mut descriptors {
                let settled = settle(job, &config, &mut interface, descriptors);
                if let (Err(why), Some(DeviceName::Shm)) = (&settled, config.device) {
                    return Err(JoinError::NoDevice(vec![why.clone()]));
                }
                if settled.is_ok() && config.device.is_none() {
                    choice.reason += "; peers on this host are reached through shared memory";
                }
                choice.passed_over.extend(settled.err());
            }
            interface.push_event(Event::Device(choice));
        }
        let shared = Arc::new(Shared {
            interface: Owned::new(interface),
            clock,
            presence: Presence::new(watchdog)?,
            fork: ForkGuard::new(),
            descriptors,
            armed: AtomicBool::new(false),
            signal: AtomicBool::new(false),
            manners: Manners::default(),
            config,
            rank: job.rank,
            size: job.size(),
        });
        // The thread that joins is at home with the interface.
        drop(shared.lock());
        let thread = match watchdog {
            Some(tick) => Some(crate::watchdog::start(shared.clone(), tick)?),
            None => None,
        };
        let owner = Arc::new(Owner { shared: shared.clone(), watchdog: Mutex::new(thread) });
        Ok(Endpoint { shared, owner })
    }

    /// This process's rank.
    pub fn rank(&self) -> Rank {
        self.shared.rank
    }

    /// How many processes the job has.
    pub fn size(&self) -> u32 {
        self.shared.size
    }

    /// The node's configuration.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Whether the node's time is simulated, so that waiting makes no sense.
    pub fn is_virtual(&self) -> bool {
        self.shared.clock.is_virtual()
    }

    /// The time on the node's clock.
    pub fn now(&self) -> Nanos {
        self.shared.clock.now()
    }

    /// Looks into the interface. For this crate alone: nothing of a program's runs under the owner word.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut Interface) -> T) -> Result<T, SendError> {
        if !self.shared.fork.is_mine() {
            return Err(SendError::Forked);
        }
        Ok(look(&mut self.shared.lock()))
    }

    #[inline]
    pub(crate) fn enter(&self) -> Result<(Guard<'_>, Nanos), SendError> {
        if !self.shared.fork.is_mine() {
            return Err(SendError::Forked);
        }
        let mut guard = self.shared.lock();
        let now = self.shared.arrive(&mut guard);
        Ok((guard, now))
    }

    /// Makes protocol progress without taking anything out (N-1).
    pub fn progress(&self) -> Result<usize, SendError> {
        let (mut interface, now) = self.enter()?;
        Ok(interface.poll(now))
    }

    /// Gives a name the number by which this side sends to it; the same name gives the same key.
    pub fn key(&self, name: &str) -> Result<Key, SendError> {
        self.with(|i| {
            if let Some(&at) = i.key_of.get(name) {
                return Key(at);
            }
            for peer in &mut i.peers {
                peer.numbers.push(peer.table.get(name).copied().unwrap_or(UNKNOWN));
            }
            let at = i.keys.len() as u32;
            i.keys.push(name.to_owned());
            i.key_of.insert(name.to_owned(), at);
            Key(at)
        })
    }

    /// Sends a whole message if it fits one frame. Never blocks.
    #[inline]
    pub fn try_send(&self, peer: Rank, key: Key, data: &[u8]) -> Result<bool, SendError> {
        if !self.shared.fork.is_mine() {
            return Err(SendError::Forked);
        }
        let mut interface = self.shared.lock();
        if !interface.near_up.is_empty() && interface.near_short(peer, key, data) {
            self.shared.presence.polled();
            return Ok(true);
        }
        if interface.batch_depth > 0 && interface.batch_short(peer, key, data) {
            return Ok(true);
        }
        // Calls, so that no way pays for another one's registers.
        self.try_send_far(interface, (peer, key), data)
    }

    #[inline(never)]
    fn try_send_far(
        &self,
        mut interface: Guard<'_>,
        (peer, key): (Rank, Key),
        data: &[u8],
    ) -> Result<bool, SendError> {
        let now = self.shared.clock.now();
        self.shared.presence.polled();
        if interface.express(now, peer, key, data) {
            return Ok(true);
        }
        // Whoever only tries makes the progress that it waits for.
        let handler = interface
            .handler(now, peer, key, data.len() as u64)
            .inspect_err(|_| interface.try_on(now, peer))?;
        if data.len() > interface.short_limit(peer) {
            return Ok(false);
        }
        interface.short(peer, handler, data).inspect_err(|_| interface.try_on(now, peer))?;
        interface.send_now(now, peer);
        Ok(true)
    }

    /// Begins a message of `total` bytes. Never blocks.
    pub fn try_begin(&self, peer: Rank, key: Key, total: u64) -> Result<MessageId, SendError> {
        let (mut interface, now) = self.enter()?;
        let handler =
            interface.handler(now, peer, key, total).inspect_err(|_| interface.try_on(now, peer))?;
        let message = interface.begin(peer, handler, total).inspect_err(|_| interface.try_on(now, peer))?;
        Ok(PeerId::new(peer, interface.peers[peer as usize].incarnation).message(message))
    }

    /// Adds to a message as many bytes of a piece as there is room for now; `fill` writes them in place and is told how
    /// far the piece has come. Returns how many, zero if there is no room at all. Never blocks.
    #[inline]
    pub fn try_add(
        &self,
        to: MessageId,
        offset: u64,
        len: usize,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<usize, SendError> {
        let (mut interface, now) = self.enter()?;
        let (peer, message) = (to.peer.rank, to.number);
        interface.check(to.peer)?;
        let mut fill = fill;
        if len >= LONG_PIECE
            && let Some(added) = interface.near_fill((peer, message), offset, len, &mut fill)
        {
            return Ok(added);
        }
        let added = interface.add_with(now, peer, message, offset, len, fill);
        if added < len {
            interface.send_now(now, peer);
        }
        Ok(added)
    }

    /// As [`Endpoint::try_add`], with bytes that are there already.
    #[inline]
    pub fn try_piece(&self, to: MessageId, offset: u64, bytes: &[u8]) -> Result<usize, SendError> {
        if bytes.len() >= LONG_PIECE {
            let (mut interface, _) = self.enter()?;
            interface.check(to.peer)?;
            if let Some(added) = interface.near_piece((to.peer.rank, to.number), offset, bytes) {
                return Ok(added);
            }
        }
        self.try_add(to, offset, bytes.len(), |at, room| room.copy_from_slice(&bytes[at..at + room.len()]))
    }

    /// Ends a message: it leaves, unless a batch is open.
    #[inline]
    pub fn end(&self, to: MessageId) -> Result<(), SendError> {
        let (mut interface, now) = self.enter()?;
        if let Err(gone) = interface.check(to.peer) {
            // M-6: it need not wait for this to have the message, and to close.
            return if interface.had_left(to.peer) { Ok(()) } else { Err(gone) };
        }
        interface.forget(to.peer.rank, to.number);
        interface.send_now(now, to.peer.rank);
        Ok(())
    }

    /// Gives a message up (M-6); its receiver is told as soon as there is room. Never blocks.
    pub fn abort(&self, to: MessageId) -> Result<(), SendError> {
        let (mut interface, now) = self.enter()?;
        interface.give_up(to);
        interface.service(now);
        Ok(())
    }

    /// Lets a peer send up to `limit` bytes of a message; false if that must be tried again.
    pub fn grant_window(&self, message: MessageId, limit: u64) -> Result<bool, SendError> {
        let (mut interface, now) = self.enter()?;
        if interface.check(message.peer).is_err() {
            return Ok(true);
        }
        let granted = interface.grant_window(message.peer.rank, message.number, limit);
        interface.send_now(now, message.peer.rank);
        Ok(granted)
    }

    /// Opens a batch: messages leave when a frame is full or the outermost batch is closed.
    pub fn open_batch(&self) -> Result<(), SendError> {
        self.with(|i| i.batch_depth += 1)
    }

    /// Closes a batch.
    pub fn close_batch(&self) -> Result<(), SendError> {
        let (mut interface, now) = self.enter()?;
        interface.batch_depth = interface.batch_depth.saturating_sub(1);
        if interface.batch_depth == 0 {
            interface.close_slots(now);
        }
        Ok(())
    }

    /// Polls, then takes slots of up to `limit` bytes (rounded up to whole slots) into `delivery`, which must be empty. If it
    /// stays empty, it need not be given back. Returns whether events wait.
    #[inline]
    pub fn take(&self, limit: usize, delivery: &mut Delivery) -> Result<bool, SendError> {
        debug_assert!(delivery.items.is_empty() && delivery.batch.is_none());
        self.shared.armed.store(false, Ordering::Relaxed);
        if !self.shared.fork.is_mine() {
            return Err(SendError::Forked);
        }
        let mut interface = self.shared.lock();
        interface.say_awake();
        if !interface.formers.is_empty() && interface.ready.is_empty() {
            // Whatever was taken before has been dealt with.
            interface.formers.clear();
        }
        // Also when slots wait, so that whoever extracts slowly still hears its peers; but not when a wait has just polled, and
        // what it found lies in place.
        if interface.in_place == 0 {
            let now = self.shared.arrive(&mut interface);
            interface.listen(now);
        }
        if !interface.ready.is_empty() && limit > 0 {
            interface.take_ready(limit, delivery);
        }
        Ok(interface.has_events())
    }

    /// Takes frames that peers on this host have sent, up to `limit` bytes (rounded up), if nothing that came before waits. Every so often it says
    /// [`FastPoll::SlowPath`] although there may be some: then [`Endpoint::take`] is due, so that everything else has its turn.
    #[inline]
    pub fn take_frames(&self, limit: usize, taken: &mut FrameBatch) -> Result<FastPoll, SendError> {
        if !self.shared.fork.is_mine() {
            return Err(SendError::Forked);
        }
        let mut interface = self.shared.lock();
        self.shared.presence.polled();
        if interface.wants_time() {
            interface.tell_time(self.shared.clock.now());
        }
        Ok(interface.take_frames(limit, taken))
    }

    /// Gives back what [`Endpoint::take_frames`] took, but for the first `handled` frames, to be delivered as any other slot.
    pub fn put_back(&self, taken: &FrameBatch, handled: usize) -> Result<(), SendError> {
        self.with(|i| i.put_back(taken, handled))
    }

    /// Gives a delivery back; its first `consumed` slots are done with. Returns whether more slots wait.
    #[inline]
    pub fn give_back(&self, delivery: &mut Delivery, consumed: usize) -> Result<bool, SendError> {
        if !self.shared.fork.is_mine() {
            return Err(SendError::Forked);
        }
        let mut interface = self.shared.lock();
        interface.give_back(delivery, consumed);
        if interface.urgent && interface.batch_depth == 0 {
            let now = self.shared.clock.now();
            interface.service(now);
        }
        Ok(interface.has_slots())
    }

    /// The next thing that happened.
    pub fn poll_event(&self) -> Option<Event> {
        self.with(Interface::poll_event).ok().flatten()
    }

    /// Changes whenever a frame came or a peer's state changed: reason to try again what would have blocked.
    #[inline]
    pub fn activity(&self) -> Result<u64, SendError> {
        self.with(|i| i.activity())
    }

    /// Changes whenever something that a peer asked of this node's memory was served.
    #[inline]
    pub fn memory_activity(&self) -> Result<u64, SendError> {
        self.with(|i| i.memory.served)
    }

    /// Whether slots wait to be taken.
    pub fn has_slots(&self) -> Result<bool, SendError> {
        self.with(|i| i.has_slots())
    }

    /// When [`Endpoint::progress`] must be called at the latest, if nothing arrives. For nodes on a virtual clock.
    pub fn next_deadline(&self) -> Result<Option<Nanos>, SendError> {
        self.with(Interface::next_deadline)
    }

    /// Whether the node was closed, and every link is over.
    pub fn is_closed(&self) -> Result<bool, SendError> {
        self.with(|i| i.is_closed())
    }

    /// The incarnation of a peer that can be reached now, if any.
    pub fn incarnation(&self, peer: Rank) -> Option<u32> {
        self.with(|i| i.incarnation(peer)).ok().flatten()
    }

    /// The last incarnation of a peer that there was, whether it can be reached or not; zero if there was none.
    pub fn last_incarnation(&self, peer: Rank) -> Result<u32, SendError> {
        self.with(|i| i.last_incarnation(peer))
    }

    /// Whether what was begun with this incarnation of a peer can still go on.
    pub fn check(&self, peer: PeerId) -> Result<(), SendError> {
        self.with(|i| i.check(peer))?
    }

    /// Bytes of a message that a peer may send before this side grants more (M-5).
    pub fn first_window(&self, peer: Rank) -> Result<u64, SendError> {
        self.with(|i| i.first_window(peer))
    }

    /// The peer sent what no correct peer sends: its channel ends.
    pub fn report_violation(&self, peer: PeerId) -> Result<(), SendError> {
        self.with(|i| i.violation(peer))
    }

    /// The transport that frames for a peer use now, where the device has several, and why.
    pub fn transport(&self, peer: Rank) -> Result<(Option<tautline_device::Transport>, String), SendError> {
        self.with(|i| {
            let (transport, why) = i.transport(peer);
            (transport, why.to_owned())
        })
    }

    /// Asks that frames for a peer use another transport, where the device has several; `None` for the best. What
    /// becomes of it is an event.
    pub fn prefer_transport(
        &self,
        peer: Rank,
        to: Option<tautline_device::Transport>,
    ) -> Result<(), SendError> {
        self.with(|i| i.prefer_transport(peer, to))
    }

    /// The number of the live link to a peer, and the peer's number for it. For tools and tests.
    pub fn link_channels(&self, peer: Rank) -> Option<(u32, u32)> {
        let channels = |i: &mut Interface| {
            i.link(peer).filter(|link| !link.is_over()).map(|link| (link.channel(), link.peer().channel))
        };
        self.with(channels).ok().flatten()
    }

    /// The number of the link to a peer, live or over. For tools and tests.
    pub fn link_channel(&self, peer: Rank) -> Option<u32> {
        self.with(|i| i.link(peer).map(tautline_link::Link::channel)).ok().flatten()
    }

    /// Free slots of the send arena, and all of them. For tools and tests.
    pub fn send_slots(&self) -> Result<(usize, usize), SendError> {
        self.with(|i| {
            let arena = i.device().arena_ref();
            (arena.available(), arena.capacity())
        })
    }

    /// How things stand with a peer.
    pub fn peer_state(&self, peer: Rank) -> Option<PeerState> {
        self.with(|i| i.peer_state(peer)).ok().flatten()
    }

    /// Whether every other rank of the job is gone.
    pub fn all_peers_lost(&self) -> bool {
        let me = self.rank() as usize;
        self.with(|i| {
            let mut others = i.peers.iter().enumerate().filter(|(rank, _)| *rank != me).peekable();
            others.peek().is_some() && others.all(|(_, peer)| matches!(peer.state, PeerState::Down(_)))
        })
        .unwrap_or(false)
    }

    /// Starts to open a channel to a peer, without waiting for it.
    pub fn connect(&self, peer: Rank) -> Result<(), SendError> {
        let (mut interface, now) = self.enter()?;
        if peer as usize >= interface.peers.len() {
            return Err(SendError::NoSuchPeer(peer));
        }
        if peer != interface.rank {
            interface.connect(now, peer);
            interface.service(now);
        }
        Ok(())
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.with(|i| i.counters()).unwrap_or_default()
    }

    /// The longest message that [`Endpoint::try_send`] takes for a peer now.
    pub fn short_limit(&self, peer: Rank) -> usize {
        self.with(|i| if (peer as usize) < i.peers.len() { i.short_limit(peer) } else { 0 }).unwrap_or(0)
    }

    /// Closes in good order (N-9): everything sent is delivered, or its peer is gone, or the configured time is over. True
    /// in the first two cases.
    pub fn close(&self) -> Result<bool, SendError> {
        {
            let (mut interface, now) = self.enter()?;
            interface.close(now);
        }
        if self.shared.clock.is_virtual() {
            return self.with(|i| i.is_closed());
        }
        let timeout = Some(self.shared.config.close_timeout);
        let closed = self.wait_until(timeout, |i| i.is_closed())?;
        self.owner.stop();
        Ok(closed)
    }
}

impl Owner {
    fn stop(&self) {
        if !self.shared.fork.is_mine() {
            // The watchdog is not here, and the locks may be held by it for ever.
            let thread = self.watchdog.try_lock().ok().and_then(|mut t| t.take());
            return std::mem::forget(thread);
        }
        self.shared.presence.close();
        let thread = self.watchdog.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.stop();
    }
}
