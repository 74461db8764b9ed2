//! How processes of one host find each other: listening, dialling, and who has died (S-5, N-12, N-16).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{Timespec, epoll};
use tautline_device::shm::{self, Contribution, Greeting, LanePages, POOL_UNIT, Pool, Refusal, Shm};
use tautline_link::{JobKey, Nanos};
use tautline_mem::Barrier;

use super::simulated::SimulatedHost;
use super::sockets::{ListenerPaths, Sockets, job_name};
use super::transport::{IncomingDial, LocalTransport, NextDial, OutgoingDial};
use crate::limits::{LOCAL_POLL_NS, MAX_INCOMING, SHORTAGE_PAUSE};
use crate::membership::LocalHints;
use crate::{Address, Config, DeviceName, Job, Rank};

/// How often the listener of a dead peer is tried to be unlinked.
const UNLINK_TRIES: u32 = 50;

/// Stands for a process whose rank is not known yet.
const STRANGER: u64 = u64::MAX;
/// The most peers that are looked at in one turn.
const MAX_READABLE: usize = 64;

/// Peers of which something is to be read. Looked for after every sleep, so that nothing is allocated.
pub(crate) struct Readable {
    peers: [Rank; MAX_READABLE],
    count: usize,
    /// Processes that are not known yet have something to say.
    pub(crate) strangers: bool,
}

impl Readable {
    pub(crate) fn peers(&self) -> &[Rank] {
        &self.peers[..self.count]
    }
}

/// What a node says of itself when it dials or accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hello {
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    /// Not used before.
    pub(crate) epoch: u64,
    /// Bytes of a message that the other side may send before it is granted more.
    pub(crate) window: u32,
}

/// A dial that has ended.
#[derive(Debug)]
pub(crate) enum Dialled {
    /// The peer shares memory with us.
    Established(Box<Shm>, Greeting),
    /// The answer was not meant for this dial.
    Mistaken,
    /// The peer refused or went away.
    Failed(io::Error),
}

/// A connection that has greeted.
pub(crate) type Greeted = (Box<dyn IncomingDial>, Greeting);

/// How this node and others of its host find each other.
#[derive(Debug)]
pub(crate) struct Discovery {
    transport: Arc<dyn LocalTransport>,
    /// The lane that this is for.
    lane: u16,
    key: JobKey,
    /// Readable when somebody dials, answers or dies.
    watch: Arc<OwnedFd>,
    dials: Vec<Dial>,
    /// Connections that have not greeted. All lanes of the node share them, so that none waits for the lane
    /// that accepted it.
    incoming: Arc<Mutex<Vec<Incoming>>>,
    asymmetric: bool,
    /// Between this lane and its local peers.
    barrier: Barrier,
    /// Datagrams are not to be used.
    pub(crate) only: bool,
    /// Only peers at this rank's own address are reached, which AF_XDP cannot reach: it was asked for.
    by_address: bool,
    /// The pages of the lane (S-37).
    pages: Arc<LanePages>,
    /// Bytes that each peer can be lent.
    pool: usize,
    /// What peers that may read this process find there: the job's name (S-9).
    beacon: Box<u64>,
    /// This node copies messages out of its peers' processes.
    single_copy: bool,
    timers: Timers,
}

/// A connection that has not greeted.
#[derive(Debug)]
struct Incoming {
    connection: Box<dyn IncomingDial>,
    /// What watches it: that of the lane that accepted it.
    watch: Arc<OwnedFd>,
}

impl Incoming {
    fn unwatch(&self) {
        if let Some(fd) = self.connection.fd() {
            let _ = epoll::delete(&self.watch, fd);
        }
    }
}

/// A dial that has not ended.
#[derive(Debug)]
struct Dial {
    to: Rank,
    since: Nanos,
    /// What the answer refers to.
    epoch: u64,
    connection: Box<dyn OutgoingDial>,
}

/// The listener of a process that died, which may still be there.
#[derive(Debug)]
struct StaleListener {
    rank: Rank,
    tries_left: u32,
    next: Nanos,
}

/// What has to be done at a certain time.
#[derive(Debug, Default)]
struct Timers {
    next_poll: Nanos,
    /// Ranks to dial again.
    redial: Vec<(Rank, Nanos)>,
    unlink: Vec<StaleListener>,
    /// When the listener is watched again, while it is not.
    listen_again: Option<Nanos>,
    /// The last connection was refused for want of something.
    is_short: bool,
    /// Until then something may be lacking again.
    short_until: Nanos,
}

fn lock(incoming: &Mutex<Vec<Incoming>>) -> MutexGuard<'_, Vec<Incoming>> {
    incoming.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Discovery {
    /// Opens this node's listener.
    pub(super) fn new(job: &Job, config: &Config) -> io::Result<Discovery> {
        let listeners = ListenerPaths::new(&job.key, job.first_members());
        let transport = Arc::new(Sockets::bind(job.rank, listeners)?);
        Discovery::over(job, config, (transport, 0), shm::is_asymmetric())
    }

    /// The same for another lane of the node. It shares the listener: whichever lane polls accepts, and hands
    /// over what is for another.
    pub(crate) fn for_lane(&self, job: &Job, config: &Config, lane: u16) -> io::Result<Discovery> {
        let mut lane = Discovery::over(job, config, (self.transport.clone(), lane), self.asymmetric)?;
        lane.incoming = self.incoming.clone();
        Ok(lane)
    }

    /// Makes this node a process of a simulated host.
    pub(crate) fn simulated(job: &Job, config: &Config, host: &SimulatedHost) -> io::Result<Discovery> {
        let process = Arc::new(host.start(job.rank)?);
        Discovery::over(job, config, (process, 0), false)
    }

    fn over(
        job: &Job,
        config: &Config,
        (transport, lane): (Arc<dyn LocalTransport>, u16),
        asymmetric: bool,
    ) -> io::Result<Discovery> {
        transport.attach(lane);
        let discovery = Discovery {
            transport,
            lane,
            key: job.key.clone(),
            watch: Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?),
            dials: Vec::new(),
            incoming: Arc::default(),
            asymmetric,
            barrier: if asymmetric { Barrier::between_processes() } else { Barrier::symmetric() },
            only: config.device == Some(DeviceName::Shm),
            by_address: config.device == Some(DeviceName::Xdp),
            pages: LanePages::create()?,
            pool: config.loan_pool,
            beacon: Box::new(job_name(&job.key, job.first_members())),
            single_copy: config.single_copy.is_some(),
            timers: Timers::default(),
        };
        discovery.watch_stranger(discovery.transport.listener_fd());
        Ok(discovery)
    }

    /// Whether a peer is reached through shared memory if it is on this host.
    pub(crate) fn reaches(&self, peer: &LocalHints) -> bool {
        peer.may_share && (!self.by_address || peer.same_ip)
    }

    /// Finds out whether a peer's memory can be read, if messages are to be copied out of it.
    fn probe_memory(&self, shm: &mut Shm, beacon: u64) {
        if !self.single_copy {
            return;
        }
        match shm.probe_peer_memory(beacon, *self.beacon) {
            Ok(probe) => self.transport.probe(probe),
            Err(error) => tracing::warn!(%error, "messages are not copied out of a peer's process"),
        }
    }

    /// Readable when somebody dials, answers or dies.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Watches a descriptor of a process that is not known yet, if there is one.
    fn watch_stranger(&self, fd: Option<BorrowedFd<'_>>) {
        if let Some(fd) = fd {
            self.watch(fd, None);
        }
    }

    fn unwatch_stranger(&self, fd: Option<BorrowedFd<'_>>) {
        if let Some(fd) = fd {
            self.unwatch(fd);
        }
    }

    /// Watches a descriptor of a peer, or of a process that is not known yet.
    fn watch(&self, fd: BorrowedFd<'_>, of: Option<Rank>) {
        let data = epoll::EventData::new_u64(of.map_or(STRANGER, u64::from));
        if let Err(error) = epoll::add(&self.watch, fd, data, epoll::EventFlags::IN) {
            tracing::warn!(%error, "cannot watch a peer on this host");
        }
    }

    /// No longer watches a descriptor: closing it is not enough when a forked child has it, too.
    fn unwatch(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.watch, fd);
    }

    /// No longer watches the process and the socket of a peer.
    pub(crate) fn detached(&self, fds: [BorrowedFd<'_>; 2]) {
        fds.into_iter().for_each(|fd| self.unwatch(fd));
        self.transport.channel_closed();
    }

    /// Watches the process and the socket of a peer that memory is shared with from now on.
    pub(crate) fn established(&mut self, rank: Rank, shm: &mut Shm, beacon: u64) {
        self.probe_memory(shm, beacon);
        let [process, socket] = shm.liveness_fds();
        // It was a stranger's so far.
        self.unwatch(socket);
        self.watch(process, Some(rank));
        self.watch(socket, Some(rank));
        self.timers.redial.retain(|(to, _)| *to != rank);
        // The listener of its predecessor is its own by now.
        self.timers.unlink.retain(|stale| stale.rank != Address::from(rank).rank);
    }

    // Dialling.

    /// Whether an answer of this rank is awaited.
    pub(crate) fn is_dialling(&self, rank: Rank) -> bool {
        self.dials.iter().any(|dial| dial.to == rank)
    }

    /// Whether an answer of this rank may still come: not from a process that has ended (S-5).
    pub(crate) fn may_be_answered(&self, rank: Rank) -> bool {
        self.dials.iter().any(|dial| dial.to == rank && dial.connection.is_open())
    }

    /// Dials a peer's listener.
    pub(crate) fn dial(&mut self, now: Nanos, hello: Hello) -> io::Result<()> {
        let greet = || {
            let (own, units) = self.contribution()?;
            let ring = own.number.get();
            Ok((self.greeting(hello, 0, (units, ring)).to_bytes(self.prove()), own))
        };
        let connection = self.transport.dial(Address::from(hello.to).rank, &greet)?;
        self.watch_stranger(connection.fd());
        self.dials.push(Dial { to: hello.to, since: now, epoch: hello.epoch, connection });
        Ok(())
    }

    /// Dials a rank again at this time.
    pub(crate) fn redial_at(&mut self, rank: Rank, at: Nanos) {
        if !self.will_redial(rank) {
            self.timers.redial.push((rank, at));
        }
    }

    /// Whether a rank will be dialled again before long: there is no use in doing so at every call.
    pub(crate) fn will_redial(&self, rank: Rank) -> bool {
        self.timers.redial.iter().any(|(to, _)| *to == rank)
    }

    /// Takes out the ranks that it is time to dial again.
    pub(crate) fn take_redials(&mut self, now: Nanos) -> Vec<Rank> {
        let due = self.timers.redial.extract_if(.., |(_, at)| *at <= now);
        due.map(|(rank, _)| rank).collect()
    }

    /// Gives up dials to a rank.
    pub(crate) fn cancel_dials(&mut self, rank: Rank) {
        let cancelled: Vec<_> = self.dials.extract_if(.., |dial| dial.to == rank).collect();
        cancelled.iter().for_each(|dial| self.unwatch_stranger(dial.connection.fd()));
    }

    /// Takes out the dials that have ended, with what became of them.
    pub(crate) fn take_dialled(&mut self, me: Rank) -> Vec<(Rank, Dialled)> {
        let prove = self.prove();
        let mut ended = Vec::new();
        for mut dial in std::mem::take(&mut self.dials) {
            let answer = dial.connection.poll_greeting(&prove);
            if let Ok(None) = answer {
                self.dials.push(dial);
                continue;
            }
            let Dial { to: rank, epoch, connection: dial, .. } = dial;
            self.unwatch_stranger(dial.fd());
            let dialled = match answer {
                Ok(None) => continue,
                Ok(Some(answer)) => {
                    let meant = answer.from == rank && answer.to == me && answer.answers == epoch;
                    if meant {
                        match dial.establish(self.asymmetric && answer.asymmetric) {
                            Ok(shm) => Dialled::Established(Box::new(shm), answer),
                            Err(error) => Dialled::Failed(error),
                        }
                    } else {
                        Dialled::Mistaken
                    }
                }
                Err(error) => Dialled::Failed(error),
            };
            ended.push((rank, dialled));
        }
        ended
    }

    // Accepting.

    /// Whether connections wait for their greetings, accepted by whichever lane.
    pub(crate) fn has_incoming(&self) -> bool {
        !lock(&self.incoming).is_empty()
    }

    /// Accepts connections to the listener. Returns how many were dropped (of another user, gone already, for
    /// want of something, or silent for longest when too many wait), and what this process lacks, when that
    /// begins (S-33).
    pub(crate) fn accept_incoming(&mut self, now: Nanos) -> (u64, Option<io::Error>) {
        let (mut dropped, mut lacking) = (0, None);
        let prove = self.prove();
        let refuse = |error: &io::Error| Refusal::of(error).to_bytes(&prove);
        // Each needs more when its greeting comes.
        let most = if now < self.timers.short_until { 1 } else { MAX_INCOMING };
        for _ in 0..most {
            match self.transport.accept(&refuse) {
                NextDial::Dial(connection) => {
                    self.timers.is_short = false;
                    self.watch_stranger(connection.fd());
                    let mut all = lock(&self.incoming);
                    all.push(Incoming { connection, watch: self.watch.clone() });
                    // A peer greets at once; the connection that has been silent for longest makes room.
                    if all.len() > MAX_INCOMING {
                        all.remove(0).unwatch();
                        dropped += 1;
                    }
                }
                NextDial::None => break,
                NextDial::Refused(error) => {
                    tracing::debug!(%error, "a connection was rejected");
                    dropped += 1;
                    lacking = Some(error).filter(|error| Refusal::of(error) != Refusal::Other);
                }
                NextDial::Waiting(error) => {
                    // The listener stays readable, and would keep this node awake.
                    self.unwatch_stranger(self.transport.listener_fd());
                    self.timers.listen_again = Some(now + SHORTAGE_PAUSE);
                    lacking = Some(error);
                    break;
                }
            }
        }
        (dropped, lacking.filter(|_| self.note_shortage(now)))
    }

    /// Something is lacking. Dials that have waited for a while are given up, and repeated later: if nodes
    /// wait for what dials of each other hold, none goes on (N-33). Returns whether the shortage is new: the
    /// last connection was accepted.
    pub(crate) fn note_shortage(&mut self, now: Nanos) -> bool {
        for dial in self.dials.extract_if(.., |dial| dial.since + SHORTAGE_PAUSE / 2 <= now) {
            if let Some(fd) = dial.connection.fd() {
                let _ = epoll::delete(&self.watch, fd);
            }
            if !self.timers.redial.iter().any(|(to, _)| *to == dial.to) {
                self.timers.redial.push((dial.to, now + SHORTAGE_PAUSE));
            }
        }
        self.timers.short_until = now + 2 * SHORTAGE_PAUSE;
        !std::mem::replace(&mut self.timers.is_short, true)
    }

    /// Whether another dial would take what those under way are going to need.
    pub(crate) fn is_dialling_enough(&self, now: Nanos) -> bool {
        self.only && now < self.timers.short_until && !self.dials.is_empty()
    }

    /// Watches the listener again, if it is time to.
    pub(crate) fn listen_again(&mut self, now: Nanos) {
        if self.timers.listen_again.take_if(|at| *at <= now).is_some() {
            self.watch_stranger(self.transport.listener_fd());
        }
    }

    /// Takes out the connections that have greeted, and how many did so without knowing the key.
    pub(crate) fn take_greeted(&mut self) -> (Vec<Greeted>, u64) {
        let prove = self.prove();
        let (mut greeted, mut forged) = (Vec::new(), 0);
        let mut all = lock(&self.incoming);
        for mut incoming in std::mem::take(&mut *all) {
            let said = incoming.connection.poll_greeting(&prove);
            if let Ok(None) = said {
                all.push(incoming);
                continue;
            }
            incoming.unwatch();
            match said {
                Ok(Some(greeting)) => greeted.push((incoming.connection, greeting)),
                _ => forged += 1,
            }
        }
        (greeted, forged)
    }

    /// Answers a greeting, and so shares memory with its sender.
    pub(crate) fn accept(
        &self,
        mut incoming: Box<dyn IncomingDial>,
        greeting: &Greeting,
        hello: Hello,
    ) -> io::Result<Shm> {
        if let Some(error) = incoming.take_error() {
            incoming.refuse(&Refusal::of(&error).to_bytes(self.prove()));
            return Err(error);
        }
        let (own, units) = self.contribution()?;
        let ring = own.number.get();
        let answer = self.greeting(hello, greeting.epoch, (units, ring)).to_bytes(self.prove());
        incoming.accept(&answer, own, greeting.asymmetric && self.asymmetric)
    }

    /// Refuses a rank that joined the job and that this process was not told of (J-23).
    pub(crate) fn refuse_unknown(&self, incoming: Box<dyn IncomingDial>) {
        incoming.refuse(&Refusal::UnknownRank.to_bytes(self.prove()));
    }

    fn greeting(&self, hello: Hello, answers: u64, (pool, ring): (u32, u32)) -> Greeting {
        let Hello { from, to, epoch, window } = hello;
        let beacon = std::ptr::from_ref::<u64>(&self.beacon) as u64;
        Greeting { from, to, epoch, answers, window, pool, beacon, ring, asymmetric: self.asymmetric }
    }

    /// The barrier between this lane and its local peers.
    pub(crate) fn barrier(&self) -> Barrier {
        self.barrier
    }

    /// What this lane contributes to a channel: the number of a ring, and memory to lend from, if there is to
    /// be any; and how much of it greetings tell.
    fn contribution(&self) -> io::Result<(Contribution, u32)> {
        let pool = Pool::create(self.pool)
            .inspect_err(|error| tracing::warn!(%error, "nothing can be lent to peers on this host"))
            .ok();
        let units = pool.as_ref().map_or(0, |pool| pool.size() / POOL_UNIT);
        let too_many = || io::Error::other("this lane shares memory with as many peers as it can");
        let number = self.pages.take_number().ok_or_else(too_many)?;
        Ok((Contribution { pool, number }, units as u32))
    }

    fn prove(&self) -> impl Fn(&[u8]) -> [u8; 16] + use<> {
        let key = self.key.clone();
        move |said| key.prove("shm", said)
    }

    // Time, and deaths.

    /// Whether it is time to poll; if so, not again for a while.
    #[inline]
    pub(crate) fn is_due(&mut self, now: Nanos) -> bool {
        let due = now >= self.timers.next_poll;
        if due {
            self.timers.next_poll = now + LOCAL_POLL_NS;
        }
        due
    }

    /// The next poll is due at once.
    pub(crate) fn poll_soon(&mut self) {
        self.timers.next_poll = 0;
    }

    /// When to poll at the latest although nothing happens.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        let Timers { redial, unlink, next_poll, listen_again, .. } = &self.timers;
        let noticed = self.transport.has_notice(self.lane).then_some(*next_poll);
        let others = noticed.into_iter().chain(*listen_again);
        redial.iter().map(|(_, at)| *at).chain(unlink.iter().map(|stale| stale.next)).chain(others).min()
    }

    /// Whether dials have to be repeated.
    pub(crate) fn has_redials(&self) -> bool {
        !self.timers.redial.is_empty()
    }

    /// What there is to read now.
    pub(crate) fn readable(&self) -> Readable {
        let mut readable = Readable { peers: [0; MAX_READABLE], count: 0, strangers: false };
        readable.strangers = self.for_each_readable(|rank| {
            readable.peers[readable.count] = rank;
            readable.count += 1;
        });
        readable.strangers |= self.transport.take_notice(self.lane);
        readable
    }

    /// Calls `each` with the peers of which something is to be read: a ring, or an end. Returns whether
    /// processes that are not known yet have something to say.
    pub(crate) fn for_each_readable(&self, mut each: impl FnMut(Rank)) -> bool {
        let none = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [none; MAX_READABLE];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.watch, &mut events[..], Some(&at_once)).unwrap_or(0);
        let mut strangers = false;
        for event in &events[..count] {
            match event.data.u64() {
                STRANGER => strangers = true,
                rank => each(rank as Rank),
            }
        }
        strangers
    }

    /// A peer died and may have left its listener behind.
    pub(crate) fn peer_exited(&mut self, now: Nanos, rank: Rank) {
        let rank = Address::from(rank).rank;
        self.timers.unlink.push(StaleListener { rank, tries_left: UNLINK_TRIES, next: 0 });
        self.unlink_exited(now);
    }

    /// Unlinks the listeners of peers that had no time to. Their connections close before their listeners do,
    /// so it is tried for a while.
    pub(crate) fn unlink_exited(&mut self, now: Nanos) {
        for mut stale in std::mem::take(&mut self.timers.unlink) {
            if stale.next <= now {
                if self.transport.unlink_listener(stale.rank) || stale.tries_left == 0 {
                    continue;
                }
                stale.tries_left -= 1;
                stale.next = now + LOCAL_POLL_NS;
            }
            self.timers.unlink.push(stale);
        }
    }
}

impl Drop for Discovery {
    /// Closes the connections that this lane watches: nobody else would learn of their greetings. Those who
    /// dialled dial again.
    fn drop(&mut self) {
        let watched = |incoming: &mut Incoming| Arc::ptr_eq(&incoming.watch, &self.watch);
        let closed: Vec<Incoming> = lock(&self.incoming).extract_if(.., watched).collect();
        drop(closed);
    }
}
