//! Simulated hosts: nodes of one process, on a virtual clock, that share memory as if they were processes of
//! one host.
//!
//! The memory, the rings and the descriptors that tell of a death are real. Listeners are queues, so that
//! nothing has a name in the file system, and nothing happens but what a node does: a world in one thread is
//! deterministic.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use tautline_device::shm::{Contribution, GREETING_LEN, Greeting, PairEnd, PeerMemoryProbe, Shm};

use super::transport::{Greet, IncomingDial, LocalTransport, NextDial, OutgoingDial, Prove, Refuse};
use crate::Rank;

/// A simulated host. Nodes on a virtual clock that have clones of it in their [`crate::Environment`]
/// share memory.
#[derive(Clone, Debug, Default)]
pub struct SimulatedHost(Arc<Mutex<Host>>);

#[derive(Debug, Default)]
struct Host {
    processes: BTreeMap<Rank, Process>,
    /// Dials and accepts that failed for want of descriptors or memory.
    failures: u64,
}

/// A process of a simulated host.
#[derive(Debug, Default)]
struct Process {
    backlog: VecDeque<SimulatedIncoming>,
    /// Its lanes, each with whether it has been told.
    notices: BTreeMap<u16, bool>,
}

/// Connections that may wait to be accepted by a process: few, so that worlds see what follows.
const BACKLOG: usize = 2;

impl Process {
    fn notify(&mut self) {
        self.notices.values_mut().for_each(|notice| *notice = true);
    }
}

impl SimulatedHost {
    /// A host without processes.
    pub fn new() -> SimulatedHost {
        SimulatedHost::default()
    }

    /// How often memory could not be shared for want of descriptors or memory of the real host: what follows
    /// then is not decided by the simulation.
    pub fn failures(&self) -> u64 {
        self.lock().failures
    }

    fn lock(&self) -> MutexGuard<'_, Host> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self, rank: Rank) {
        if let Some(process) = self.lock().processes.get_mut(&rank) {
            process.notify();
        }
    }

    fn notify_all(&self) {
        self.lock().processes.values_mut().for_each(Process::notify);
    }

    /// Counts an error of the real host.
    fn counted<T>(&self, result: io::Result<T>) -> io::Result<T> {
        self.lock().failures += u64::from(result.is_err());
        result
    }

    /// Starts a process of a rank.
    pub(super) fn start(&self, rank: Rank) -> io::Result<SimulatedProcess> {
        let exited = event()?;
        let mut host = self.lock();
        if host.processes.contains_key(&rank) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        host.processes.insert(rank, Process::default());
        Ok(SimulatedProcess { host: self.clone(), rank, exited })
    }
}

/// Makes a descriptor that becomes readable when it is written to.
fn event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// A running process of a simulated host. It exits when this is dropped.
#[derive(Debug)]
pub(super) struct SimulatedProcess {
    host: SimulatedHost,
    rank: Rank,
    /// Readable when the process has exited.
    exited: OwnedFd,
}

impl Drop for SimulatedProcess {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.exited, &1u64.to_ne_bytes());
        let process = self.host.lock().processes.remove(&self.rank);
        // Without the lock: connections that were not accepted report to their diallers.
        drop(process);
        self.host.notify_all();
    }
}

impl LocalTransport for SimulatedProcess {
    fn dial(&self, to: Rank, greet: Greet<'_>) -> io::Result<Box<dyn OutgoingDial>> {
        match self.host.lock().processes.get(&to) {
            None => return Err(io::ErrorKind::NotFound.into()),
            Some(process) if process.backlog.len() >= BACKLOG => {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Some(_) => {}
        }
        let (greeting, own) = self.host.counted(greet())?;
        let process = self.host.counted(self.exited.try_clone())?;
        let state = Arc::new(Mutex::new(DialState::Waiting));
        let incoming = SimulatedIncoming {
            host: self.host.clone(),
            dialler: self.rank,
            greeting,
            end: Some(PairEnd { process, own }),
            acceptor: None,
            state: state.clone(),
        };
        if let Some(process) = self.host.lock().processes.get_mut(&to) {
            process.backlog.push_back(incoming);
            process.notify();
        }
        Ok(Box::new(SimulatedDial { host: self.host.clone(), to, state, shm: None }))
    }

    fn accept(&self, _: Refuse<'_>) -> NextDial {
        let next = self.host.lock().processes.get_mut(&self.rank).and_then(|own| own.backlog.pop_front());
        let Some(mut incoming) = next else { return NextDial::None };
        match self.host.counted(self.exited.try_clone()) {
            Ok(exited) => incoming.acceptor = Some(exited),
            Err(error) => return NextDial::Refused(error),
        }
        NextDial::Dial(Box::new(incoming))
    }

    fn listener_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn attach(&self, lane: u16) {
        if let Some(own) = self.host.lock().processes.get_mut(&self.rank) {
            own.notices.insert(lane, false);
        }
    }

    fn has_notice(&self, lane: u16) -> bool {
        let host = self.host.lock();
        host.processes.get(&self.rank).and_then(|own| own.notices.get(&lane)).is_some_and(|notice| *notice)
    }

    fn take_notice(&self, lane: u16) -> bool {
        let mut host = self.host.lock();
        let notice = host.processes.get_mut(&self.rank).and_then(|own| own.notices.get_mut(&lane));
        notice.is_some_and(std::mem::take)
    }

    fn probe(&self, probe: PeerMemoryProbe) {
        // It is this process that is read.
        probe.run();
    }

    fn channel_closed(&self) {
        self.host.notify_all();
    }

    fn unlink_listener(&self, _: Rank) -> bool {
        true
    }
}

/// How things stand between both sides of a dial.
#[derive(Debug)]
enum DialState {
    Waiting,
    Answered([u8; GREETING_LEN], Box<Shm>),
    /// The acceptor refused or went away.
    Refused,
    /// The dialler gave up or went away.
    Cancelled,
}

fn lock(state: &Mutex<DialState>) -> MutexGuard<'_, DialState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "no greeting of this job")
}

#[derive(Debug)]
struct SimulatedDial {
    host: SimulatedHost,
    to: Rank,
    state: Arc<Mutex<DialState>>,
    /// This side's end, once the answer was read.
    shm: Option<Box<Shm>>,
}

impl OutgoingDial for SimulatedDial {
    fn poll_greeting(&mut self, prove: Prove<'_>) -> io::Result<Option<Greeting>> {
        let mut state = lock(&self.state);
        match std::mem::replace(&mut *state, DialState::Waiting) {
            DialState::Waiting => Ok(None),
            DialState::Answered(answer, shm) => {
                self.shm = Some(shm);
                Greeting::parse(&answer, prove).map(Some).ok_or_else(invalid)
            }
            DialState::Refused | DialState::Cancelled => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn is_open(&self) -> bool {
        matches!(*lock(&self.state), DialState::Waiting | DialState::Answered(..))
    }

    fn establish(mut self: Box<Self>, _: bool) -> io::Result<Shm> {
        let shm = self.shm.take().ok_or(io::ErrorKind::NotConnected)?;
        Ok(*shm)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for SimulatedDial {
    fn drop(&mut self) {
        let former = std::mem::replace(&mut *lock(&self.state), DialState::Cancelled);
        if matches!(former, DialState::Answered(..)) || self.shm.take().is_some() {
            drop(former);
            // The acceptor's end is dead now.
            self.host.notify(self.to);
        }
    }
}

#[derive(Debug)]
struct SimulatedIncoming {
    host: SimulatedHost,
    dialler: Rank,
    greeting: [u8; GREETING_LEN],
    /// What the dialler contributes.
    end: Option<PairEnd>,
    /// Readable when the accepting process has exited.
    acceptor: Option<OwnedFd>,
    state: Arc<Mutex<DialState>>,
}

impl IncomingDial for SimulatedIncoming {
    fn poll_greeting(&mut self, prove: Prove<'_>) -> io::Result<Option<Greeting>> {
        Greeting::parse(&self.greeting, prove).map(Some).ok_or_else(invalid)
    }

    fn accept(
        mut self: Box<Self>,
        answer: &[u8; GREETING_LEN],
        own: Contribution,
        _: bool,
    ) -> io::Result<Shm> {
        let mut state = lock(&self.state);
        let (DialState::Waiting, Some(dialler), Some(process)) =
            (&*state, self.end.take(), self.acceptor.take())
        else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let (there, here) = self.host.counted(Shm::pair(dialler, PairEnd { process, own }))?;
        *state = DialState::Answered(*answer, Box::new(there));
        self.host.notify(self.dialler);
        Ok(here)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for SimulatedIncoming {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        if matches!(*state, DialState::Waiting) {
            *state = DialState::Refused;
            self.host.notify(self.dialler);
        }
    }
}
