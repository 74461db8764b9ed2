//! What a program's thread holds of its node: the verbs of upper crates.
//!
//! Each verb takes the owner word for as long as it runs. No code of a program runs meanwhile, with one
//! exception: `fill` of [`Endpoint::try_add`] and [`Endpoint::try_put_filled`], which writes a message or a
//! put in place. It must not call the endpoint, and should only write the bytes.

mod inspect;
mod lanes;
mod loans;
mod members;
mod memory;
mod multicast;
mod send;
mod tags;
mod waiting;

pub use lanes::Lanes;
pub use members::Members;
pub use multicast::Multicasts;
pub use tags::{Received, TagRequest, Tagged};
pub use waiting::{WaitFor, Waker};

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tautline_link::Nanos;
use tautline_mem::{ForkGuard, Owned, Turns, has_address_space};

use crate::lane::{Delivery, FastPoll, FrameBatch, Lane};
use crate::limits::{JOIN_SPACE, MEMBERS_LANE};
use crate::local::{self, Discovery, Mailbox, Reopen};
use crate::wait::watchdog::Watchdog;
use crate::wait::{Descriptors, Guard, PollActivity, Shared, SpinBackoff};
use crate::{
    Address, Choice, Clock, Config, DeviceName, Environment, Event, Job, JoinError, SendError, Undelivered,
};
use lanes::Node;

/// A thread's hold on its node. Clones share the node.
///
/// `Endpoint` is `Send` and `Sync`: several threads may send, poll and wait (N-19). Only one at a time takes
/// slots: [`Endpoint::take`], [`Endpoint::take_frames`] and [`Endpoint::give_back`] belong together. After
/// `fork` the child's copy refuses every call with [`SendError::Forked`] (N-10).
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub(crate) shared: Arc<Shared>,
    owner: Arc<Owner>,
}

/// Ends the lane when its last endpoint is dropped.
#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
    node: Arc<Node>,
    lane: u16,
}

impl Endpoint {
    /// Joins a job: opens a device, starts the watchdog, announces `handlers` to peers that connect.
    pub fn join(
        mut job: Job,
        mut config: Config,
        handlers: Vec<(String, bool)>,
    ) -> Result<Endpoint, JoinError> {
        if let Some(security) = job.security {
            config.link.security = security;
        }
        job.check()?;
        config.check()?;
        config.settle_device(job.device);
        check_address_space()?;
        let (device, choice) = crate::open_device(&mut job, &config)?;
        let environment = Environment::new(device, Clock::system(), fresh_entropy()?);
        let launcher = job.launcher.take();
        let endpoint = Endpoint::start_node(job, config, environment, handlers, Some(choice))?;
        if let Some(launcher) = launcher {
            tracing::info!(%launcher, "job joined");
            endpoint.shared.lock().push_event(Event::Launcher(launcher));
        }
        Ok(endpoint)
    }

    /// Joins a job in an environment of the program's own.
    pub fn over(
        job: &Job,
        mut config: Config,
        environment: Environment,
        handlers: Vec<(String, bool)>,
    ) -> Result<Endpoint, JoinError> {
        job.check()?;
        config.check()?;
        Endpoint::start_node(job.without_socket(), config, environment, handlers, None)
    }

    fn start_node(
        job: Job,
        config: Config,
        environment: Environment,
        handlers: Vec<(String, bool)>,
        choice: Option<Choice>,
    ) -> Result<Endpoint, JoinError> {
        let watched = !environment.clock.is_virtual() && environment.device.fd().is_some();
        let tick = config.watchdog.filter(|_| watched);
        let dog = tick.map(Watchdog::new).transpose()?.map(Arc::new);
        let node = Arc::new(Node::new(job, config, dog));
        node.directory.reserve();
        Endpoint::start(&node, 0, environment, handlers, choice)
    }

    /// Starts a lane of a node.
    fn start(
        node: &Arc<Node>,
        number: u16,
        environment: Environment,
        handlers: Vec<(String, bool)>,
        choice: Option<Choice>,
    ) -> Result<Endpoint, JoinError> {
        let (job, mut config) = (&node.job, node.config.clone());
        if number == MEMBERS_LANE {
            config.waiting = crate::Waiting::Park;
        }
        let Environment { device, clock, entropy, host } = environment;
        let descriptors = if clock.is_virtual() { None } else { Descriptors::new(&*device)? };
        let port = device.local_addr().port();
        let mut lane = Lane::new(job, number, config.clone(), device, entropy, handlers)?;
        let bell = descriptors.as_ref().map(Descriptors::bell).transpose()?;
        lane.local.directory = node.directory.clone();
        lane.local.mailbox = Arc::new(Mailbox::new(bell));
        lane.status.bell = descriptors.as_ref().map(Descriptors::bell).transpose()?;
        lane.status.driver_bell = descriptors.as_ref().map(Descriptors::driver_bell).transpose()?;
        let polls = PollActivity::new(config.watchdog.filter(|_| node.dog.is_some()))?;
        // Last: if there are too few descriptors for it, the node goes without.
        if number > 0 {
            discover_with(node, number, &mut lane, descriptors.as_ref())?;
        } else if let Some(host) = host.filter(|_| clock.is_virtual()) {
            lane.local.discovery = Some(Box::new(Discovery::simulated(job, &config, &host)?));
        }
        if let Some(mut choice) = choice {
            if let Some(descriptors) = descriptors.as_ref().filter(|_| number == 0) {
                discover(job, &config, &mut lane, descriptors, &mut choice)?;
            }
            lane.push_event(Event::Device(choice));
        }
        let mailbox = lane.local.mailbox.clone();
        let backoff = if clock.is_virtual() {
            SpinBackoff::new(1, 1)
        } else {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            SpinBackoff::new(job.ranks_on_host(), cores)
        };
        let shared = Arc::new(Shared {
            lane: Owned::new(lane),
            clock,
            polls,
            fork: ForkGuard::new(),
            descriptors,
            turns: Turns::default(),
            signal: AtomicBool::new(false),
            backoff,
            config,
            rank: job.rank,
            number: Address::new(job.rank, number).into(),
            size: job.size(),
        });
        // The thread that opens the lane is the favoured one.
        drop(shared.lock());
        node.add(&shared);
        if let Some(dog) = &node.dog {
            dog.add(&shared)?;
        }
        node.directory.open(number, port, mailbox);
        let owner = Arc::new(Owner { shared: shared.clone(), node: node.clone(), lane: number });
        Ok(Endpoint { shared, owner })
    }

    /// Opens further lanes of this node.
    pub fn lanes(&self) -> Lanes {
        Lanes(Arc::downgrade(&self.owner.node))
    }

    /// For whoever watches the members, from any thread.
    pub fn members(&self) -> Members {
        Members::new(self)
    }

    /// Messages that receives take by context, source and tag.
    #[inline]
    pub fn tagged(&self) -> Tagged<'_> {
        Tagged(self)
    }

    /// Messages that the nodes of a group forward to all members.
    #[inline]
    pub fn multicast(&self) -> Multicasts<'_> {
        Multicasts(self)
    }

    /// The number of this endpoint's lane.
    pub fn lane(&self) -> u16 {
        self.owner.lane
    }

    /// Runs `verb` under the owner word; for verbs that need no time.
    pub(crate) fn with<T>(&self, verb: impl FnOnce(&mut Lane) -> T) -> Result<T, SendError> {
        Ok(verb(&mut *self.lock()?))
    }

    #[inline(always)]
    fn lock(&self) -> Result<Guard<'_>, SendError> {
        if !self.shared.fork.is_mine_unflagged() && !self.wake_driver() {
            return Err(SendError::Forked);
        }
        Ok(self.shared.lock())
    }

    /// A program that sleeps on the descriptor uses the endpoint elsewhere meanwhile, in another task or
    /// thread: it looks again, because what it slept for may have changed (N-6). False in a forked child.
    #[cold]
    #[inline(never)]
    fn wake_driver(&self) -> bool {
        let mine = self.disarm();
        self.shared.ring_driver();
        mine
    }

    /// As [`Endpoint::lock`], for the calls that a program makes when it has woken.
    #[inline(always)]
    fn lock_awake(&self) -> Result<Guard<'_>, SendError> {
        if !self.shared.fork.is_mine_unflagged() && !self.disarm() {
            return Err(SendError::Forked);
        }
        Ok(self.shared.lock())
    }

    /// The program does not sleep on the descriptor, or no longer. False in a forked child.
    #[cold]
    #[inline(never)]
    pub(crate) fn disarm(&self) -> bool {
        if !self.shared.fork.is_mine() {
            return false;
        }
        let mut lane = self.shared.lock();
        lane.set_armed(false);
        self.shared.fork.set_flag(false);
        true
    }

    #[inline]
    pub(crate) fn enter(&self) -> Result<(Guard<'_>, Nanos), SendError> {
        let mut lane = self.lock()?;
        let now = self.shared.arrive(&mut lane);
        Ok((lane, now))
    }

    /// Makes protocol progress without taking anything out (N-1).
    pub fn progress(&self) -> Result<usize, SendError> {
        let (mut lane, now) = self.enter()?;
        Ok(lane.poll(now))
    }

    /// Makes progress and polls everything, as a node does that a descriptor has woken: for nodes on a
    /// virtual clock. While a node shares memory with idle peers, most other polls leave the device out.
    pub fn progress_woken(&self) -> Result<usize, SendError> {
        let (mut lane, now) = self.enter()?;
        lane.poll_all_soon();
        Ok(lane.poll(now))
    }

    /// Polls, then takes slots of up to `limit` bytes (rounded up to whole slots) into `delivery`, which must
    /// be empty. If it stays empty, it need not be given back. Returns whether events wait.
    #[inline]
    pub fn take(&self, limit: usize, delivery: &mut Delivery) -> Result<bool, SendError> {
        debug_assert!(delivery.is_empty());
        let mut lane = self.lock_awake()?;
        if lane.local.poll.asleep {
            lane.wake_up();
        }
        if !lane.local.former.is_empty() && lane.inbox.is_empty() {
            // What was taken before has been handled.
            lane.local.former.clear();
        }
        // Also when slots wait, so that a program that extracts slowly still hears its peers; but not when a
        // wait has just polled, and what it found lies in place.
        if !lane.inbox.has_in_place() {
            let now = self.shared.arrive(&mut lane);
            lane.poll_deferred(now);
        }
        if !lane.inbox.is_empty() && limit > 0 {
            lane.take_ready(limit, delivery);
        }
        Ok(lane.has_events())
    }

    /// Takes frames that local peers have sent, up to `limit` bytes (rounded up), if nothing that came before
    /// waits. Every so often it returns [`FastPoll::SlowPath`] although there may be some: then
    /// [`Endpoint::take`] is due, so that everything else has its turn.
    #[inline]
    pub fn take_frames(&self, limit: usize, batch: &mut FrameBatch) -> Result<FastPoll, SendError> {
        let mut lane = self.lock_awake()?;
        self.shared.polls.polled();
        if lane.memory.wants_time() {
            lane.memory.set_time(self.shared.clock.now());
        }
        Ok(lane.take_frames(limit, batch))
    }

    /// Gives back what [`Endpoint::take_frames`] took, but for the first `handled` frames, to be delivered as
    /// any other slot.
    pub fn put_back(&self, batch: &FrameBatch, handled: usize) -> Result<(), SendError> {
        self.with(|lane| lane.put_back(batch, handled))
    }

    /// Gives a delivery back; its first `consumed` slots are done with.
    #[inline]
    pub fn give_back(&self, delivery: &mut Delivery, consumed: usize) -> Result<(), SendError> {
        let mut lane = self.lock()?;
        lane.give_back(delivery, consumed);
        if lane.status.urgent && lane.port.batch_depth == 0 {
            let now = self.shared.clock.now();
            lane.service(now);
        }
        Ok(())
    }

    /// The next thing that happened.
    pub fn poll_event(&self) -> Option<Event> {
        self.with(Lane::poll_event).ok().flatten()
    }

    /// As [`Endpoint::close_within`], with the configured time.
    pub fn close(&self) -> Result<Vec<Undelivered>, SendError> {
        self.close_within(self.shared.config.close_timeout)
    }

    /// Closes in good order (N-9): everything sent is delivered, or its peer is gone, or `time` is over.
    /// Returns what was not acknowledged. Closing lane 0 closes all lanes of the node, in the same time.
    ///
    /// On a virtual clock it returns at once what is not acknowledged yet; poll until
    /// [`Endpoint::is_closed`].
    pub fn close_within(&self, time: Duration) -> Result<Vec<Undelivered>, SendError> {
        let until = self.now().saturating_add(Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX));
        let lanes = self.closing_lanes();
        for lane in &lanes {
            // Requests that found no room are still to be sent, which a closed channel does not do.
            lane.wait_before(until, |lane| lane.port.closed || !lane.has_unsent())?;
        }
        self.owner.withdraw();
        for lane in &lanes {
            let (mut closing, now) = lane.enter()?;
            closing.close(now);
            drop(closing);
            lane.shared.ring();
        }
        let mut undelivered = Vec::new();
        for lane in &lanes {
            lane.wait_before(until, |lane| lane.is_closed())?;
            lane.with(|lane| lane.undelivered())?
                .into_iter()
                .for_each(|entry| entry.merge_into(&mut undelivered));
        }
        if !self.shared.clock.is_virtual() {
            self.owner.stop();
        }
        Ok(undelivered)
    }

    /// The lanes that closing this one closes: lane 0 lives as long as the node, and comes last.
    fn closing_lanes(&self) -> Vec<Endpoint> {
        let others = if self.owner.lane == 0 { self.owner.node.others() } else { Vec::new() };
        let others = others.into_iter().map(|shared| Endpoint { shared, owner: self.owner.clone() });
        others.chain([self.clone()]).collect()
    }

    /// Polls and waits until `done` returns true, or the time is `until`.
    fn wait_before(&self, until: Nanos, done: impl FnMut(&mut Lane) -> bool) -> Result<(), SendError> {
        if !self.shared.clock.is_virtual() {
            let left = Duration::from_nanos(until.saturating_sub(self.now()));
            self.wait_until(Some(left), done)?;
        }
        Ok(())
    }

    /// Ends the node as a killed process ends: peers on its simulated host see it exit, and nothing that the
    /// endpoint does afterwards reaches them. For simulations.
    pub fn kill(&self) {
        // The process exits first: a peer whose channel is closed by a living process may use datagrams
        // instead.
        let others = self.owner.node.others();
        let lanes = || others.iter().chain([&self.shared]);
        lanes().for_each(|lane| lane.lock().local.discovery = None);
        for shared in lanes() {
            let lane = &mut *shared.lock();
            for rank in lane.local.poll.take_all() {
                if let Some(shm) = lane.peers.member_mut(rank).channel.detach_shm() {
                    lane.counters.local.add(shm.counts());
                }
            }
        }
    }
}

/// Opens this node's listener for processes of its host, and notes in `choice` what became of it.
fn discover(
    job: &Job,
    config: &Config,
    lane: &mut Lane,
    descriptors: &Descriptors,
    choice: &mut Choice,
) -> Result<(), JoinError> {
    let started =
        local::start(job, config).and_then(|discovery| match descriptors.add_local(discovery.fd()) {
            Ok(()) => Ok(discovery),
            Err(error) => Err(local::unavailable(job, &error)),
        });
    match started {
        Ok(discovery) => {
            if config.device.is_none() {
                choice.reason += "; peers on this host are reached through shared memory";
            }
            lane.local.discovery = Some(Box::new(discovery));
        }
        // A rank that is alone has nobody to share memory with.
        Err((why, _)) if config.device == Some(DeviceName::Shm) && (job.size() > 1 || job.may_grow) => {
            return Err(JoinError::NoDevice(vec![why]));
        }
        Err((why, wanted)) => {
            lane.local.unavailable = wanted.then(|| why.reason.clone());
            lane.local.reopen = wanted.then(|| Box::new(Reopen::new(job)));
            choice.passed_over.push(why);
        }
    }
    Ok(())
}

/// Lets a further lane share the listener of its node.
fn discover_with(
    node: &Node,
    number: u16,
    lane: &mut Lane,
    descriptors: Option<&Descriptors>,
) -> Result<(), JoinError> {
    let first = node.first().ok_or(JoinError::Closed)?;
    let first = first.lock();
    lane.local.unavailable = first.local.unavailable.clone();
    let Some(discovery) = &first.local.discovery else { return Ok(()) };
    let discovery = discovery.for_lane(&node.job, &node.config, number)?;
    if let Some(descriptors) = descriptors {
        descriptors.add_local(discovery.fd())?;
    }
    lane.local.discovery = Some(Box::new(discovery));
    Ok(())
}

/// Checks that there is room for a node: an allocation that fails later would abort the process.
fn check_address_space() -> io::Result<()> {
    if has_address_space(JOIN_SPACE) {
        return Ok(());
    }
    let why = format!(
        "joining takes {} MiB of address space, which are not left; raise the limit, for example: ulimit -v {}",
        JOIN_SPACE >> 20,
        JOIN_SPACE >> 8
    );
    Err(io::Error::new(io::ErrorKind::OutOfMemory, why))
}

/// Bytes that nobody can guess.
fn fresh_entropy() -> io::Result<[u8; 32]> {
    let mut entropy = [0; 32];
    rustix::rand::getrandom(&mut entropy, rustix::rand::GetRandomFlags::empty())?;
    Ok(entropy)
}

impl Owner {
    fn stop(&self) {
        if !self.shared.fork.is_mine() {
            // The watchdog is not here, and its locks may be held for ever.
            return std::mem::forget(self.node.clone());
        }
        self.withdraw();
        if let Some(dog) = &self.node.dog {
            dog.remove(&self.shared);
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.stop();
    }
}
