//! The lanes of a node: opening further ones, and closing them (N-21, N-22, N-23).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::{Endpoint, Owner, fresh_entropy};
use crate::local::Directory;
use crate::wait::Shared;
use crate::wait::watchdog::Watchdog;
use crate::{Clock, Config, Environment, Job, JoinError, Member, Rank};

/// What the lanes of a node have in common. Nothing here is touched per message.
#[derive(Debug)]
pub(crate) struct Node {
    pub(super) job: Job,
    pub(super) config: Config,
    pub(super) directory: Arc<Directory>,
    pub(super) dog: Option<Arc<Watchdog>>,
    lanes: Mutex<Vec<Weak<Shared>>>,
    /// Members that joined the running job, in order of their ranks.
    joined: Mutex<Vec<Member>>,
}

impl Node {
    pub(super) fn new(job: Job, config: Config, dog: Option<Arc<Watchdog>>) -> Node {
        Node {
            job,
            config,
            directory: Arc::default(),
            dog,
            lanes: Mutex::default(),
            joined: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Shared>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lane 0, while it is open.
    pub(super) fn first(&self) -> Option<Arc<Shared>> {
        self.lock().first()?.upgrade()
    }

    /// Adds a lane, which is then told of the members that have joined.
    pub(super) fn add(&self, lane: &Arc<Shared>) {
        let mut lanes = self.lock();
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.push(Arc::downgrade(lane));
        drop(lanes);
        let joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (rank, member) in (self.job.size()..).zip(joined) {
            lane.lock().member_joined(rank, member);
        }
    }

    /// A member has joined: all lanes are told, also those that are opened later. False if it is not the
    /// next one.
    pub(super) fn join(&self, rank: Rank, member: &Member) -> bool {
        let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        let next = rank as usize == self.job.members.len() + joined.len();
        if next {
            joined.push(member.clone());
        }
        drop(joined);
        let lanes: Vec<_> = self.lock().iter().filter_map(Weak::upgrade).collect();
        for lane in lanes {
            lane.lock().member_joined(rank, member.clone());
        }
        next
    }

    /// Somebody says that a process has ended: those of its lanes that are quiet have to say that they live.
    pub(super) fn probe(&self, rank: Rank) {
        let lanes: Vec<_> = self.lock().iter().filter_map(Weak::upgrade).collect();
        for lane in lanes {
            let asked = {
                let mut owned = lane.lock();
                let now = lane.arrive(&mut owned);
                owned.probe(now, rank)
            };
            if asked {
                lane.ring();
            }
        }
    }

    /// The lanes other than lane 0.
    pub(super) fn others(&self) -> Vec<Arc<Shared>> {
        self.lock().iter().skip(1).filter_map(Weak::upgrade).collect()
    }
}

/// Opens further lanes of a node, from any thread. It does not keep the node open.
#[derive(Clone, Debug)]
pub struct Lanes(pub(super) Weak<Node>);

impl Lanes {
    /// Opens a lane, to be driven by the thread that calls this. `handlers` are those of the lane, as in
    /// [`Endpoint::join`].
    pub fn open(&self, handlers: Vec<(String, bool)>) -> Result<Endpoint, JoinError> {
        self.open_reserved(handlers, Directory::reserve)
    }

    /// Opens the lane of the protocol among members, once. It parks when it waits, whatever the node does.
    pub fn open_for_members(&self, handlers: Vec<(String, bool)>) -> Result<Endpoint, JoinError> {
        self.open_reserved(handlers, Directory::reserve_for_members)
    }

    fn open_reserved(
        &self,
        handlers: Vec<(String, bool)>,
        reserve: impl FnOnce(&Directory) -> Option<u16>,
    ) -> Result<Endpoint, JoinError> {
        let node = self.0.upgrade().ok_or(JoinError::Closed)?;
        let lane = Reservation::new(&node, reserve)?;
        let (device, choice) = crate::open_lane_device(&node.job, &node.config, lane.number)?;
        let environment = Environment::new(device, Clock::system(), fresh_entropy()?);
        let endpoint = Endpoint::start(&node, lane.number, environment, handlers, Some(choice))?;
        lane.keep();
        Ok(endpoint)
    }

    /// Opens a lane in an environment of the program's own, as [`Endpoint::over`] does for lane 0.
    pub fn open_over(
        &self,
        environment: Environment,
        handlers: Vec<(String, bool)>,
    ) -> Result<Endpoint, JoinError> {
        let node = self.0.upgrade().ok_or(JoinError::Closed)?;
        let lane = Reservation::new(&node, Directory::reserve)?;
        let endpoint = Endpoint::start(&node, lane.number, environment, handlers, None)?;
        lane.keep();
        Ok(endpoint)
    }
}

/// The number of a lane that is being opened; given back unless it is kept.
struct Reservation<'a> {
    node: &'a Node,
    number: u16,
    kept: bool,
}

impl<'a> Reservation<'a> {
    fn new(
        node: &'a Node,
        reserve: impl FnOnce(&Directory) -> Option<u16>,
    ) -> Result<Reservation<'a>, JoinError> {
        let first = node.first().ok_or(JoinError::Closed)?;
        if !first.fork.is_mine() || first.lock().port.closed {
            return Err(JoinError::Closed);
        }
        let number = reserve(&node.directory).ok_or_else(|| {
            JoinError::Config(format!("a node has at most {} lanes", crate::limits::MEMBERS_LANE))
        })?;
        Ok(Reservation { node, number, kept: false })
    }

    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.node.directory.close(self.number);
        }
    }
}

impl Owner {
    /// Peers are no longer told where this lane is.
    pub(super) fn withdraw(&self) {
        self.node.directory.close(self.lane);
    }
}
