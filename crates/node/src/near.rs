//! Peers on this host: shared memory in place of datagrams (N-12, N-13).
//!
//! Every node hangs a door where the processes of its user meet. Whoever wants a channel knocks there first; and whoever is asked for one by
//! datagram knocks, too, before it answers, so that it does not matter who was there first. What is shared needs no progress while the
//! program computes, so the watchdog has nothing to do here but to open the door.

mod frames;
mod loans;
mod meeting;
mod puts;
pub(crate) mod send;

pub use frames::{FastPoll, FrameBatch};
pub use loans::{BorrowedLoan, Loan, Offer};

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{Timespec, epoll};
use tautline_device::shm::{self, Back, Call, Door, POOL_UNIT, Pool, Shm, Visitor};
use tautline_link::{JobKey, Nanos};

use crate::delivery::{Item, Place};
use crate::descriptors::Descriptors;
use crate::interface::Interface;
use crate::limits::NEAR_LOOK;
use crate::{Config, DeviceName, Down, Job, Member, PassedOver, Rank};

/// How often the door of a dead peer is looked at.
const LAST_RESPECTS: u32 = 50;

/// Stands for whoever is not known yet.
const STRANGER: u64 = u64::MAX;

/// What is shared with one peer.
#[derive(Debug)]
pub(crate) struct Near {
    pub(crate) shm: Shm,
    /// Frames taken out that are ready or with the program; bounded as credit is.
    pub(crate) pending: usize,
    /// Something could not be sent for want of room.
    pub(crate) stalled: bool,
    /// Something could not be lent for want of room when so much had come back.
    pub(crate) wanting: Option<u64>,
    /// What the peer has been offered to read in this process and has not been known to have read.
    pub(crate) offered: Vec<u32>,
    /// Bytes of a message that may be sent before the peer grants more.
    pub(crate) window: u32,
}

impl Near {
    /// What comes back from now on is to be told: not only to whoever asks next.
    #[inline]
    pub(crate) fn want(&mut self) {
        self.wanting.get_or_insert(self.shm.returned());
    }

    /// Whether something has come back that is waited for.
    #[inline]
    pub(crate) fn has_wanted(&self) -> bool {
        self.wanting.is_some_and(|seen| self.shm.has_returned_since(seen))
    }
}

/// Where this node meets others of its host.
#[derive(Debug)]
pub(crate) struct Neighbourhood {
    door: Door,
    place: PathBuf,
    job: u64,
    key: JobKey,
    bell: OwnedFd,
    /// Readable when somebody knocks, answers or dies.
    watch: OwnedFd,
    calls: Vec<(Rank, u64, Call)>,
    visitors: Vec<Visitor>,
    asymmetric: bool,
    /// Datagrams are not to be used.
    only: bool,
    /// Ranks that are met here, by number; all of them if there is no list.
    met: Option<Vec<bool>>,
    /// Bytes that each peer can be lent.
    pool: usize,
    /// What peers that may read this process find there: the job's name (S-9).
    beacon: Box<u64>,
    next_look: Nanos,
    /// Ranks to knock at again, when their time has come.
    again: Vec<(Rank, Nanos)>,
    /// Ranks that died, whose doors may still be there, how often that is looked at, and when next.
    fallen: Vec<(Rank, u32, Nanos)>,
}

impl Neighbourhood {
    /// Hangs this node's door; `bell` is what others ring to wake it.
    pub(crate) fn new(job: &Job, config: &Config, bell: OwnedFd) -> io::Result<Neighbourhood> {
        let place = shm::meeting_place();
        let id = job_at(&job.key, &job.members);
        let door = Door::open(&shm::door_of(&place, id, job.rank))?;
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let hood = Neighbourhood {
            door,
            place,
            job: id,
            key: job.key.clone(),
            bell,
            watch,
            calls: Vec::new(),
            visitors: Vec::new(),
            asymmetric: shm::is_asymmetric(),
            only: config.device == Some(DeviceName::Shm),
            met: housemates(job, config),
            pool: config.loan_pool,
            beacon: Box::new(id),
            next_look: 0,
            again: Vec::new(),
            fallen: Vec::new(),
        };
        hood.watch(hood.door.fd(), None);
        Ok(hood)
    }

    /// Whether a rank is to be met here.
    fn meets(&self, rank: Rank) -> bool {
        self.met.as_ref().is_none_or(|met| met.get(rank as usize) == Some(&true))
    }

    /// Something is to be looked at when this becomes readable.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Watches a descriptor of a peer that memory is shared with, or of somebody who is not known yet.
    fn watch(&self, fd: BorrowedFd<'_>, of: Option<Rank>) {
        let data = of.map_or(STRANGER, u64::from);
        if let Err(error) =
            epoll::add(&self.watch, fd, epoll::EventData::new_u64(data), epoll::EventFlags::IN)
        {
            tracing::warn!(%error, "cannot watch a peer on this host");
        }
    }

    /// No longer watches it: closing it is not enough when a forked child has it, too.
    fn forget(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.watch, fd);
    }

    /// Who has news; [`STRANGER`] for whoever is not known yet.
    fn news(&self) -> Vec<u64> {
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 64];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.watch, &mut events[..], Some(&none)).unwrap_or(0);
        events[..count].iter().map(|event| event.data.u64()).collect()
    }

    /// Takes down the doors of those who had no time to. Their connections close before their doors do, so it is tried for a while.
    fn clear_doors(&mut self, now: Nanos) {
        for (rank, tries, at) in std::mem::take(&mut self.fallen) {
            let door = shm::door_of(&self.place, self.job, rank);
            let over = at <= now && (shm::take_down(&door) || tries == 0 || !door.exists());
            if !over {
                let (tries, at) = if at <= now { (tries - 1, now + NEAR_LOOK) } else { (tries, at) };
                self.fallen.push((rank, tries, at));
            }
        }
    }

    /// Memory to lend from, if there is to be any, and how much of it greetings tell.
    fn pool(&self) -> (Option<Pool>, u32) {
        let pool = Pool::create(self.pool)
            .inspect_err(|error| tracing::warn!(%error, "nothing can be lent to peers on this host"))
            .ok();
        let units = pool.as_ref().map_or(0, |pool| pool.size() / POOL_UNIT);
        (pool, units as u32)
    }

    fn beacon(&self) -> u64 {
        std::ptr::from_ref::<u64>(&self.beacon) as u64
    }

    fn prove(&self) -> impl Fn(&[u8]) -> [u8; 16] + use<> {
        let key = self.key.clone();
        move |said| key.prove("shm", said)
    }
}

/// What this job is called where the processes of its user meet: those who know the same key and the same members mean the same job.
fn job_at(key: &JobKey, members: &[Member]) -> u64 {
    let members: String = members.iter().map(|member| format!("{} ", member.addr)).collect();
    let name = key.prove("door", members.as_bytes());
    u64::from_le_bytes(name[..8].try_into().expect("eight bytes"))
}

/// Ranks that AF_XDP, which is asked for, cannot reach: those at this rank's own address. No list if something else is, or nothing.
fn housemates(job: &Job, config: &Config) -> Option<Vec<bool>> {
    let own = job.members[job.rank as usize].addr.ip();
    let at_home = |(rank, member): (usize, &Member)| rank != job.rank as usize && member.addr.ip() == own;
    (config.device == Some(DeviceName::Xdp)).then(|| job.members.iter().enumerate().map(at_home).collect())
}

/// Takes down the doors that ranks of a job on this host left behind when they were killed: for launchers.
pub fn unlink_stale_listeners(key: &JobKey, members: &[Member]) {
    let (place, job) = (shm::meeting_place(), job_at(key, members));
    for rank in 0..members.len() as Rank {
        shm::take_down(&shm::door_of(&place, job, rank));
    }
}

impl Interface {
    /// Meets others of this host from now on.
    pub(crate) fn settle_here(&mut self, hood: Neighbourhood) {
        self.hood = Some(Box::new(hood));
    }

    /// Whether the channel to this peer is being opened, or is open, without datagrams.
    pub(crate) fn is_local(&self, rank: Rank) -> bool {
        self.peers[rank as usize].near.is_some()
            || self.hood.as_ref().is_some_and(|hood| hood.calls.iter().any(|(to, _, _)| *to == rank))
    }

    /// The other process is no more: what it sent whole still counts (S-6).
    fn outlive(&mut self, rank: Rank) {
        let incarnation = self.peers[rank as usize].incarnation;
        // No more than there was room for, in case that somebody still writes there.
        for _ in 0..shm::MAX_FRAMES {
            let Some(near) = &mut self.peers[rank as usize].near else { break };
            let Some(len) = near.shm.peek() else { break };
            let mut bytes = self.buffers.pop().unwrap_or_default();
            bytes.resize(len, 0);
            near.shm.take(&mut bytes);
            near.pending += 1;
            if Interface::is_control(&bytes) {
                self.obey(rank, &bytes);
                self.buffers.push(bytes);
            } else {
                self.ready.push_back(Item { peer: rank, incarnation, place: Place::Held(bytes) });
            }
        }
        if let Some(hood) = &mut self.hood {
            hood.fallen.push((rank, LAST_RESPECTS, 0));
            hood.clear_doors(self.listened);
        }
        let closed = self.peers[rank as usize].near.as_ref().is_some_and(|near| near.shm.has_ended());
        self.take_down(rank, if closed { Down::Closed } else { Down::Exited });
    }

    /// Lets go of what is shared with a peer, if anything is.
    pub(crate) fn part(&mut self, rank: Rank) {
        self.near_up.retain(|up| *up != rank);
        let incarnation = self.peers[rank as usize].incarnation;
        if let Some(mut near) = self.peers[rank as usize].near.take() {
            // What it read before it went was sent.
            for number in std::mem::take(&mut near.offered) {
                if near.shm.poll_offer(number) == Some(Back::Read) {
                    self.read_before.push((rank, incarnation, number));
                }
            }
            // What it lent before counts, and may not have been looked at.
            self.formers.extend(near.shm.view().map(|view| (rank, incarnation, view.clone())));
            if let Some(hood) = &self.hood {
                near.shm.watched().into_iter().for_each(|fd| hood.forget(fd));
            }
            self.counters.near.add(near.shm.counts());
        }
    }
}

/// Hangs this node's door, so that peers on this host are reached through shared memory; or says why not.
pub(crate) fn settle(
    job: &Job,
    config: &Config,
    interface: &mut Interface,
    descriptors: &mut Descriptors,
) -> Result<(), PassedOver> {
    let not = |reason: String| Err(PassedOver { device: "shm", reason });
    if config.device == Some(DeviceName::Udp) {
        return not("udp was asked for".to_owned());
    }
    if housemates(job, config).is_some_and(|met| !met.contains(&true)) {
        return not("xdp was asked for, and no other rank has this one's address".to_owned());
    }
    if config.fault.is_some() || config.pcap.is_some() || config.trace {
        return not("faults, captures and traces show datagrams".to_owned());
    }
    if job.size() < 2 {
        return not("there is nobody else in the job".to_owned());
    }
    let settled = descriptors
        .bell()
        .and_then(|bell| Neighbourhood::new(job, config, bell))
        .and_then(|hood| descriptors.add_door(hood.fd()).map(|()| hood));
    match settled {
        Ok(hood) => {
            interface.settle_here(hood);
            Ok(())
        }
        Err(error) => {
            let reason = meeting::why_not(&error);
            tracing::warn!(rank = job.rank, %reason, "no shared memory");
            interface.no_hood = Some(reason.clone());
            not(reason)
        }
    }
}
