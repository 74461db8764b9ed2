//! Loans: messages that stay where they are. The sender lends them; the receiver reads them in place and
//! returns them (S-8, S-19, S-20).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use tautline_mem::Segment;
use tautline_mem::pool::{Extent, MAX_EXTENTS, NUMBER_MASK, Pool, PoolView, ReturnStatus};
use tautline_mem::returns::{ReturnReceiver, ReturnSender};
use tautline_mem::ring::Corrupt;

use crate::sys::local;

use super::{RETURNS_LEN, RING_LEN, Shm, Side};

/// The most spare references to the other side's pool.
const MAX_SPARE_REFS: usize = 32;

/// The loans of both sides.
#[derive(Debug)]
pub(super) struct Loans {
    /// The pool that we lend from, and the numbers that come back.
    pool: Option<Pool>,
    returns: ReturnReceiver,
    /// The number of loans that came back.
    returned: u64,
    /// The other side's pool, and where we return its numbers.
    view: Option<Arc<PoolView>>,
    /// References to the view that were given back, for the next borrower: a new one would take locked
    /// instructions, which wait for all earlier stores.
    spare_refs: Vec<Arc<PoolView>>,
    return_sender: ReturnSender,
    /// Where we announce that we may read the other process, and where it announces the same.
    may_read: (usize, usize),
    segment: Arc<Segment>,
    peer_memory: Option<Arc<PeerMemory>>,
}

/// Finds out whether this process may read the other one (S-27). The other side decides how long that takes,
/// even for ever: its memory may be where page faults are its own business.
#[derive(Debug)]
pub struct PeerMemoryProbe {
    peer: Arc<PeerMemory>,
    /// Not kept for the sake of the probe, which may take for ever.
    segment: Weak<Segment>,
    /// Where success is announced.
    may_read: usize,
}

impl PeerMemoryProbe {
    /// Reads the word that both know, and announces to the other side if it is there.
    pub fn run(self) {
        if self.peer.read(self.peer.beacon, &mut []).is_ok() {
            self.peer.confirmed.store(true, Ordering::Release);
            if let Some(segment) = self.segment.upgrade() {
                segment.word(self.may_read).store(1, Ordering::Relaxed);
            }
        }
    }
}

/// Another process's memory, for copying from it (S-9, S-25).
#[derive(Debug)]
pub struct PeerMemory {
    pid: i32,
    process: OwnedFd,
    /// The address of a word that exists as long as the process keeps its memory.
    beacon: u64,
    expected: u64,
    /// It could be read.
    confirmed: AtomicBool,
}

impl PeerMemory {
    /// Copies bytes out of the other process.
    ///
    /// # Errors
    /// If they cannot be read, or the process has exited or become another program; the copied bytes are
    /// arbitrary then.
    pub fn read(&self, address: u64, out: &mut [u8]) -> io::Result<()> {
        let word = local::read_process(self.pid, address, out, self.beacon)?;
        if word != self.expected || local::is_readable(self.process.as_fd()) {
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
        let (ours, peers) = match side {
            Side::Caller => (2 * RING_LEN, 2 * RING_LEN + RETURNS_LEN),
            Side::Callee => (2 * RING_LEN + RETURNS_LEN, 2 * RING_LEN),
        };
        Loans {
            pool,
            returns: ReturnReceiver::new(segment.clone(), ours, MAX_EXTENTS),
            returned: 0,
            view: view.map(Arc::new),
            spare_refs: Vec::with_capacity(MAX_SPARE_REFS),
            return_sender: ReturnSender::new(segment.clone(), peers, MAX_EXTENTS),
            may_read: (peers + 8 * MAX_EXTENTS, ours + 8 * MAX_EXTENTS),
            segment: segment.clone(),
            peer_memory: None,
        }
    }
}

/// The most parts of messages in flight, and their bytes: as much as stays in the inner caches (S-21).
const MAX_PARTS: usize = 48;
const MAX_PART_BYTES: usize = 768 << 10;

/// Why there is no memory to lend.
#[derive(Debug)]
pub enum LoanError {
    /// Waiting does not help: nothing can be lent to this peer, or not as much, or the program holds all of
    /// the memory.
    Unavailable,
    /// Other loans must be returned first.
    Exhausted,
    /// The system has no memory.
    OutOfMemory(io::Error),
}

impl Shm {
    /// Takes returned loans back into the pool.
    fn collect(&mut self) {
        let Some(pool) = &mut self.loans.pool else { return };
        while let Some(number) = self.loans.returns.take() {
            let status = ReturnStatus::of(number);
            self.loans.returned += 1;
            if pool.returned(number & NUMBER_MASK, status) == Err(Corrupt) {
                self.set_corrupt();
                return;
            }
        }
    }

    /// Takes memory to fill and lend to the other side.
    pub fn loan(&mut self, len: usize) -> Result<Extent, LoanError> {
        self.collect();
        match &mut self.loans.pool {
            Some(pool) if pool.could_take(len) => match pool.take(len) {
                Ok(Some(extent)) => Ok(extent),
                Ok(None) if pool.has_lent() => Err(LoanError::Exhausted),
                // The program itself holds all of it, so waiting would not help.
                Ok(None) => Err(LoanError::Unavailable),
                Err(error) => Err(LoanError::OutOfMemory(error)),
            },
            _ => Err(LoanError::Unavailable),
        }
    }

    /// Takes memory as [`Shm::loan`] does, for part of a message: only as much as stays in the inner caches.
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

    /// Takes back an extent that was not lent.
    pub fn cancel_loan(&mut self, extent: Extent) {
        if let Some(pool) = &mut self.loans.pool {
            pool.give(extent);
        }
    }

    /// Notes that the other side knows of the extent, and reads it until it returns its number.
    pub fn commit_loan(&mut self, extent: Extent) {
        if let Some(pool) = &mut self.loans.pool {
            pool.lend(extent);
        }
    }

    /// Prepares to read the other process, where this one should find `expected`. Whoever runs the probe may
    /// have to wait for as long as the other process likes.
    pub fn probe_peer_memory(&mut self, beacon: u64, expected: u64) -> io::Result<PeerMemoryProbe> {
        let (pid, process) = (local::peer_pid(&self.socket)?, self.process.try_clone()?);
        let confirmed = AtomicBool::new(false);
        let peer = Arc::new(PeerMemory { pid, process, beacon, expected, confirmed });
        self.loans.peer_memory = Some(peer.clone());
        let segment = Arc::downgrade(&self.loans.segment);
        Ok(PeerMemoryProbe { peer, segment, may_read: self.loans.may_read.0 })
    }

    /// Returns the other process's memory, if this process may read it.
    pub fn peer_memory(&self) -> Option<&Arc<PeerMemory>> {
        self.loans.peer_memory.as_ref().filter(|peer| peer.confirmed.load(Ordering::Acquire))
    }

    /// Whether the other side may read this process.
    #[inline]
    pub fn peer_may_read(&self) -> bool {
        self.loans.segment.word(self.loans.may_read.1).load(Ordering::Relaxed) == 1
    }

    /// Returns a number for bytes of this process that the other side shall read; `None` if all are taken.
    pub fn open_offer(&mut self) -> Option<u32> {
        self.collect();
        self.loans.pool.as_mut()?.reserve_external()
    }

    /// Gives back a number that the other side does not know of.
    pub fn cancel_offer(&mut self, number: u32) {
        if let Some(pool) = &mut self.loans.pool {
            let _ = pool.returned(number, ReturnStatus::Read);
            pool.take_status(number);
        }
    }

    /// Returns the status of a number of [`Shm::open_offer`], once the other side has returned it; frees the
    /// number.
    pub fn poll_offer(&mut self, number: u32) -> Option<ReturnStatus> {
        self.collect();
        if self.corrupt { None } else { self.loans.pool.as_mut()?.take_status(number) }
    }

    /// Whether loans have come back that were not taken into the pool yet.
    pub fn has_returns(&self) -> bool {
        !self.loans.returns.is_empty()
    }

    /// Returns the number of loans taken back into the pool; see [`Shm::has_returned_since`].
    pub fn returned_count(&self) -> u64 {
        self.loans.returned
    }

    /// Whether loans have come back since [`Shm::returned_count`] was `returned`, taken into the pool or not.
    pub fn has_returned_since(&self, returned: u64) -> bool {
        self.has_returns() || self.loans.returned != returned
    }

    /// Returns the other side's pool.
    pub fn view(&self) -> Option<&Arc<PoolView>> {
        self.loans.view.as_ref()
    }

    /// Returns a reference to the other side's pool, to be given back by [`Shm::return_view`], which is
    /// cheaper than dropping it.
    #[inline]
    pub fn borrow_view(&mut self) -> Option<Arc<PoolView>> {
        self.loans.spare_refs.pop().or_else(|| self.loans.view.clone())
    }

    /// Takes back a reference of [`Shm::borrow_view`].
    #[inline]
    pub fn return_view(&mut self, view: Arc<PoolView>) {
        let ours = self.loans.view.as_ref().is_some_and(|own| Arc::ptr_eq(own, &view));
        if ours && self.loans.spare_refs.len() < MAX_SPARE_REFS {
            self.loans.spare_refs.push(view);
        }
    }

    /// Returns a number: its memory is no longer read, or could not be. Wakes the other side if it sleeps,
    /// because it may be waiting for that.
    pub fn return_loan(&mut self, number: u32, status: ReturnStatus) {
        self.loans.return_sender.send(number | status.flag());
        if self.peer_pages.must_ring(self.barrier) {
            self.ring();
        }
    }
}
