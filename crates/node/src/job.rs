//! A job: its members, their addresses, and the key they share. How a process finds its job is
//! `tautline-launch`'s.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use tautline_link::JobKey;
use tautline_wire::handshake::Security;

use crate::limits::MAX_PEERS;
use crate::{DeviceName, JoinError, Launcher, Member, Rank};

/// A job, as one of its processes sees it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Job {
    /// This process.
    pub rank: Rank,
    /// The shared secret.
    pub key: JobKey,
    /// All processes, by rank.
    pub members: Arc<[Member]>,
    /// How many of them, the last ones, were not there when the job began (J-22).
    pub joined: u32,
    /// The security mode that the launcher asked for.
    pub security: Option<Security>,
    /// The only device to use, if the launcher asked for one.
    pub device: Option<DeviceName>,
    /// A socket, bound to this member's address, that the launcher opened.
    pub socket: Option<OwnedFd>,
    /// A pipe on which the launcher tells what becomes of the members (N-26).
    pub notices: Option<OwnedFd>,
    /// The socket on which the launcher is asked to start further processes (J-22).
    pub control: Option<PathBuf>,
    /// Processes may join while it runs, and this one is told of them (J-23).
    pub may_grow: bool,
    /// How this process found the job, to be reported as an event.
    pub launcher: Option<Launcher>,
}

impl Job {
    /// Describes a job for one of its processes. Usually a launcher does that.
    pub fn new(rank: Rank, key: JobKey, members: Vec<Member>) -> Job {
        Job::with_shared_members(rank, key, members.into())
    }

    /// As [`Job::new`]; several nodes of one process, as in a simulation, have one list of members.
    pub fn with_shared_members(rank: Rank, key: JobKey, members: Arc<[Member]>) -> Job {
        Job {
            rank,
            key,
            members,
            joined: 0,
            security: None,
            device: None,
            socket: None,
            notices: None,
            control: None,
            may_grow: false,
            launcher: None,
        }
    }

    /// Sets the only device to use.
    pub fn with_device(mut self, device: DeviceName) -> Job {
        self.device = Some(device);
        self
    }

    /// Sets the socket that is bound to this member's address.
    pub fn with_socket(mut self, socket: impl Into<OwnedFd>) -> Job {
        self.socket = Some(socket.into());
        self
    }

    /// How many processes there are.
    pub fn size(&self) -> u32 {
        self.members.len() as u32
    }

    /// The processes that were there when the job began. They give the job its name on a host.
    pub(crate) fn first_members(&self) -> &[Member] {
        &self.members[..self.members.len().saturating_sub(self.joined as usize)]
    }

    /// Whether this process was there when the job began.
    pub(crate) fn is_first_member(&self) -> bool {
        (self.rank as usize) < self.first_members().len()
    }

    /// How many processes run on this host.
    pub(crate) fn ranks_on_host(&self) -> usize {
        let own = &self.members[self.rank as usize];
        self.members.iter().filter(|member| own.is_on_host_of(member)).count()
    }

    /// The same job without the socket that the launcher opened.
    pub(crate) fn without_socket(&self) -> Job {
        let mut job = Job::with_shared_members(self.rank, self.key.clone(), self.members.clone());
        (job.joined, job.security, job.device) = (self.joined, self.security, self.device);
        job.may_grow = self.may_grow;
        job
    }

    /// Checks that the process is one of the members, and that there are not too many of them.
    pub fn check(&self) -> Result<(), JoinError> {
        let (rank, members) = (self.rank, self.members.len());
        if rank as usize >= members {
            return Err(JoinError::Nonsense(format!("rank {rank} is not among the {members} members")));
        }
        if self.joined as usize >= members {
            let why = format!("of {members} members {} cannot have joined later", self.joined);
            return Err(JoinError::Nonsense(why));
        }
        if members > MAX_PEERS {
            let most = format!("{members} members are more than the {MAX_PEERS} that a job may have");
            return Err(JoinError::Nonsense(most));
        }
        Ok(())
    }
}
