//! Messages that stay where they are: the sender lends them, the receiver reads them in place and gives them back (S-8).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tautline_mem::Segment;
use tautline_mem::pool::{Extent, MAX_EXTENTS, NUMBER_MASK, Pool, PoolView, ReturnStatus};
use tautline_mem::returns::{ReturnReceiver, ReturnSender};
use tautline_mem::ring::Corrupt;

use crate::sys::local;

use super::{RETURNS_LEN, RING_LEN, Shm, Side};

/// Holds on what the other side lends that are kept for the next ones.
const MAX_SPARE_REFS: usize = 32;

/// What each side lends the other.
#[derive(Debug)]
pub(super) struct Loans {
    /// What we lend from, and where it comes back.
    pool: Option<Pool>,
    returns: ReturnReceiver,
    /// How much has been taken back.
    returned: u64,
    /// What is lent to us, and where we give it back.
    view: Option<Arc<PoolView>>,
    /// Holds on it that have been given up, for whoever wants one next: counting them anew would take instructions that wait for every store before them.
    spare_refs: Vec<Arc<PoolView>>,
    giver: ReturnSender,
    /// Where we say that we may read the other process, and where it says so of us.
    may: (usize, usize),
    segment: Arc<Segment>,
    peer_memory: Option<Arc<PeerMemory>>,
}

/// Another process, as memory to copy from (S-9).
#[derive(Debug)]
pub struct PeerMemory {
    pid: i32,
    process: OwnedFd,
    /// Where a word lies that is there for as long as the process has the memory it had.
    beacon: u64,
    known: u64,
}

impl PeerMemory {
    /// Copies bytes out of it. An error if it cannot be read there, or is no more, or has become another program: then what was read may be anybody's.
    pub fn read(&self, address: u64, out: &mut [u8]) -> io::Result<()> {
        let word = local::read_process(self.pid, address, out, self.beacon)?;
        if word != self.known || local::is_readable(self.process.as_fd()) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    }
}

impl Loans {
    pub(super) fn new(
        segment: &Arc<Segment>,
        side: Side,
        pool: Option<Pool>,
        view: Option<PoolView>,
    ) -> Loans {
        let (ours, theirs) = match side {
            Side::Caller => (2 * RING_LEN, 2 * RING_LEN + RETURNS_LEN),
            Side::Callee => (2 * RING_LEN + RETURNS_LEN, 2 * RING_LEN),
        };
        Loans {
            pool,
            returns: ReturnReceiver::new(segment.clone(), ours, MAX_EXTENTS),
            returned: 0,
            view: view.map(Arc::new),
            spare_refs: Vec::with_capacity(MAX_SPARE_REFS),
            giver: ReturnSender::new(segment.clone(), theirs, MAX_EXTENTS),
            may: (theirs + 8 * MAX_EXTENTS, ours + 8 * MAX_EXTENTS),
            segment: segment.clone(),
            peer_memory: None,
        }
    }
}

/// Parts of messages that are under way at a time, and the bytes that they may take: no more than stay in the nearer caches.
const MAX_PARTS: usize = 48;
const MAX_PART_BYTES: usize = 768 << 10;

/// Why there is no piece to lend.
#[derive(Debug)]
pub enum LoanError {
    /// There never will be: nothing can be lent to this peer, or not so much.
    Unavailable,
    /// Others must come back first.
    Exhausted,
    /// The system has no memory.
    OutOfMemory(io::Error),
}

impl Shm {
    /// Takes what came back into the pool again.
    fn collect(&mut self) {
        let Some(pool) = &mut self.loans.pool else { return };
        while let Some(number) = self.loans.returns.take() {
            let status = ReturnStatus::of(number);
            self.loans.returned += 1;
            if pool.returned(number & NUMBER_MASK, status) == Err(Corrupt) {
                self.corrupt = true;
                return;
            }
        }
    }

    /// A piece of memory that the other side can read, to be filled.
    pub fn loan(&mut self, len: usize) -> Result<Extent, LoanError> {
        self.collect();
        match &mut self.loans.pool {
            Some(pool) if pool.could_take(len) => match pool.take(len) {
                Ok(Some(extent)) => Ok(extent),
                Ok(None) if pool.has_lent() => Err(LoanError::Exhausted),
                // The program itself has all of it, and waiting would not change that.
                Ok(None) => Err(LoanError::Unavailable),
                Err(error) => Err(LoanError::OutOfMemory(error)),
            },
            _ => Err(LoanError::Unavailable),
        }
    }

    /// As [`Shm::loan`], for part of a message: no more of them than stay in the nearer caches.
    #[inline]
    pub fn loan_part(&mut self, len: usize) -> Result<Extent, LoanError> {
        self.collect();
        match &mut self.loans.pool {
            Some(pool) => match pool.parts() {
                (0, _) => pool.take_part(len).ok().flatten().ok_or(LoanError::Unavailable),
                (parts, bytes) if parts < MAX_PARTS && bytes + len <= MAX_PART_BYTES => {
                    pool.take_part(len).ok().flatten().ok_or(LoanError::Unavailable)
                }
                _ => Err(LoanError::Exhausted),
            },
            None => Err(LoanError::Unavailable),
        }
    }

    /// Takes back a piece that was not lent.
    pub fn cancel_loan(&mut self, extent: Extent) {
        if let Some(pool) = &mut self.loans.pool {
            pool.give(extent);
        }
    }

    /// The other side has been told of the piece, and reads it until it gives its number back.
    pub fn commit_loan(&mut self, extent: Extent) {
        if let Some(pool) = &mut self.loans.pool {
            pool.lend(extent);
        }
    }

    /// Finds out whether this process may read the other one, where it should find `known`, and says so.
    pub fn probe_peer_memory(&mut self, beacon: u64, known: u64) {
        let Ok(pid) = local::pid_behind(&self.socket) else { return };
        let Ok(process) = self.process.try_clone() else { return };
        let peer_memory = PeerMemory { pid, process, beacon, known };
        if peer_memory.read(beacon, &mut []).is_ok() {
            self.loans.peer_memory = Some(Arc::new(peer_memory));
            self.loans.segment.word(self.loans.may.0).store(1, Ordering::Relaxed);
        }
    }

    /// The other process, if this one may read it.
    pub fn peer_memory(&self) -> Option<&Arc<PeerMemory>> {
        self.loans.peer_memory.as_ref()
    }

    /// Whether the other side may read this process.
    #[inline]
    pub fn peer_may_read(&self) -> bool {
        self.loans.segment.word(self.loans.may.1).load(Ordering::Relaxed) == 1
    }

    /// A number for bytes of this process that the other side is to read; nothing if there is none left.
    pub fn open_offer(&mut self) -> Option<u32> {
        self.collect();
        self.loans.pool.as_mut()?.reserve_external()
    }

    /// The other side was not told of the number after all.
    pub fn cancel_offer(&mut self, number: u32) {
        if let Some(pool) = &mut self.loans.pool {
            let _ = pool.returned(number, ReturnStatus::Read);
            pool.take_status(number);
        }
    }

    /// What the other side said when it gave back a number of [`Shm::open_offer`]; once.
    pub fn poll_offer(&mut self, number: u32) -> Option<ReturnStatus> {
        self.collect();
        if self.corrupt { None } else { self.loans.pool.as_mut()?.take_status(number) }
    }

    /// Whether something has come back that has not been taken into the pool.
    pub fn has_returns(&self) -> bool {
        !self.loans.returns.is_empty()
    }

    /// How much has been taken into the pool again so far; see [`Shm::has_returned_since`].
    pub fn returned_count(&self) -> u64 {
        self.loans.returned
    }

    /// Whether something has come back since so much had, whoever took it.
    pub fn has_returned_since(&self, returned: u64) -> bool {
        self.has_returns() || self.loans.returned != returned
    }

    /// The memory that the other side lends from.
    pub fn view(&self) -> Option<&Arc<PoolView>> {
        self.loans.view.as_ref()
    }

    /// As [`Shm::view`], to be kept for a while, and then let go of with [`Shm::return_view`], which costs less than dropping it.
    #[inline]
    pub fn borrow_view(&mut self) -> Option<Arc<PoolView>> {
        self.loans.spare_refs.pop().or_else(|| self.loans.view.clone())
    }

    /// What [`Shm::borrow_view`] gave is no longer needed.
    #[inline]
    pub fn return_view(&mut self, view: Arc<PoolView>) {
        let ours = self.loans.view.as_ref().is_some_and(|own| Arc::ptr_eq(own, &view));
        if ours && self.loans.spare_refs.len() < MAX_SPARE_REFS {
            self.loans.spare_refs.push(view);
        }
    }

    /// Gives a number back: what goes by it is no longer read, or could not be. Wakes the other side if it sleeps: it may wait for that.
    pub fn return_loan(&mut self, number: u32, status: ReturnStatus) {
        self.loans.giver.send(number | status.flag());
        if self.tx.must_ring(self.barrier) {
            self.ring();
        }
    }
}
