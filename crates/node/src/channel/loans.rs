//! Messages that are lent to a peer on this host instead of copied (S-8, S-9, M-9).

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use tautline_device::shm::{Extent, LINE_FRAME, LoanError, PeerMemory, PoolView, ReturnStatus};
use tautline_wire::record::{LOAN_LEN, LoanLocation};

use super::shm::ShmChannel;
use super::{Channel, Port};
use crate::{PeerId, Rank, SendError};

const _: () = assert!(LOAN_LEN <= LINE_FRAME && LOAN_LEN.is_multiple_of(8));

/// Memory to fill, which a peer on this host can read.
#[derive(Debug)]
pub struct Loan {
    pub(crate) peer: PeerId,
    extent: Extent,
}

impl Loan {
    /// The peer that can read it.
    pub fn peer(&self) -> Rank {
        self.peer.rank
    }
}

impl Deref for Loan {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.extent
    }
}

impl DerefMut for Loan {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.extent
    }
}

/// Bytes of this process that a peer is reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    pub(crate) peer: PeerId,
    pub(crate) number: u32,
}

/// A message that a peer on this host has lent, to be read in place and then returned.
#[derive(Debug)]
pub struct BorrowedLoan {
    pub(crate) lender: PeerId,
    number: u32,
    source: Source,
    len: usize,
}

/// Where the bytes of a loan lie.
#[derive(Debug)]
enum Source {
    Pool(Arc<PoolView>, usize),
    Process(Arc<PeerMemory>, u64),
    Returned,
}

impl BorrowedLoan {
    /// A loan that lies in memory which a peer lent from before it went.
    pub(crate) fn of_former(
        lender: PeerId,
        number: u32,
        view: &Arc<PoolView>,
        at: u64,
        len: u64,
    ) -> Option<BorrowedLoan> {
        let source = view.contains(at, len).then(|| Source::Pool(view.clone(), at as usize))?;
        Some(BorrowedLoan { lender, number, source, len: usize::try_from(len).ok()? })
    }

    /// Bytes of the message.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The peer that lent it.
    pub fn lender(&self) -> PeerId {
        self.lender
    }

    /// Whether it lies in memory that both sides map, and so stays readable whatever becomes of the sender.
    #[inline]
    pub fn is_mapped(&self) -> bool {
        matches!(self.source, Source::Pool(..))
    }

    /// Whether the sender has few extents like this one and waits for it: the program did not lend it on
    /// purpose.
    #[inline]
    pub fn is_wanted_back(&self) -> bool {
        matches!(&self.source, Source::Pool(view, at) if view.is_for_parts(*at))
    }

    /// Copies bytes out, from `at` on. False if they are gone: the sender died while they were in its memory
    /// alone.
    ///
    /// # Panics
    /// If the message has fewer bytes.
    #[inline]
    #[must_use]
    pub fn copy_to(&self, at: usize, out: &mut [u8]) -> bool {
        assert!(at <= self.len && out.len() <= self.len - at, "the message has {} bytes", self.len);
        match &self.source {
            Source::Pool(view, start) => {
                view.copy_out(start + at, out);
                true
            }
            Source::Process(outside, address) => outside.read(address + at as u64, out).is_ok(),
            Source::Returned => false,
        }
    }

    /// The lender is gone: there is nobody to return it to.
    pub(crate) fn forget(&mut self) {
        self.source = Source::Returned;
    }

    /// Where it lies, if in memory that both sides map. The sender can still write there.
    pub fn as_ptr(&self) -> *const u8 {
        match &self.source {
            Source::Pool(view, start) => view.as_ptr(*start),
            Source::Process(..) | Source::Returned => std::ptr::null(),
        }
    }
}

impl ShmChannel {
    /// Memory that the peer can read. None if it can never be lent so much.
    fn loan(&mut self, peer: PeerId, len: usize) -> Result<Option<Loan>, SendError> {
        match self.shm.loan(len) {
            Ok(extent) => Ok(Some(Loan { peer, extent })),
            Err(LoanError::Unavailable) => Ok(None),
            Err(LoanError::Exhausted) => {
                self.want_returns();
                Err(SendError::WouldBlock)
            }
            Err(LoanError::OutOfMemory(error)) => {
                tracing::warn!(peer = peer.rank, len, %error, "no memory to lend");
                Ok(None)
            }
        }
    }

    /// Lets the peer read bytes of this process as a message. None if it cannot read them.
    fn offer(&mut self, peer: PeerId, handler: u16, bytes: &[u8]) -> Result<Option<Offer>, SendError> {
        let Some(number) = self.shm.peer_may_read().then(|| self.shm.open_offer()).flatten() else {
            return Ok(None);
        };
        let at = LoanLocation::Process(bytes.as_ptr() as u64);
        if !self.push_lend((handler, number), at, bytes.len() as u64) {
            self.shm.cancel_offer(number);
            return Err(SendError::WouldBlock);
        }
        self.offered.push(number);
        Ok(Some(Offer { peer, number }))
    }

    fn poll_offer(&mut self, offer: &Offer) -> Result<bool, SendError> {
        self.want_returns();
        let Some(status) = self.shm.poll_offer(offer.number) else { return Err(SendError::WouldBlock) };
        self.offered.retain(|number| *number != offer.number);
        match status {
            ReturnStatus::Read => Ok(true),
            ReturnStatus::Refused => Ok(false),
            ReturnStatus::Incomplete => Err(SendError::Unread(offer.peer.rank)),
        }
    }

    #[inline]
    fn borrow(&mut self, lender: PeerId, number: u32, at: LoanLocation, len: u64) -> Option<BorrowedLoan> {
        let source = match at {
            LoanLocation::Pool(at) if self.has_extent(at, len) => {
                Source::Pool(self.shm.borrow_view()?, at as usize)
            }
            LoanLocation::Pool(_) => return None,
            LoanLocation::Process(at) => {
                at.checked_add(len)?;
                Source::Process(self.shm.peer_memory()?.clone(), at)
            }
        };
        Some(BorrowedLoan { lender, number, source, len: usize::try_from(len).ok()? })
    }
}

impl Channel {
    /// Memory that the peer can read. None if this channel cannot lend so much.
    pub(crate) fn loan(&mut self, peer: PeerId, len: usize) -> Result<Option<Loan>, SendError> {
        self.shm_mut().map_or(Ok(None), |shm| shm.loan(peer, len))
    }

    /// Takes back a loan that was not lent.
    pub(crate) fn cancel_loan(&mut self, loan: Loan) {
        if let Some(shm) = self.shm_mut() {
            shm.shm.cancel_loan(loan.extent);
        }
    }

    /// Lends a filled loan as a message; what `loan` held is gone then.
    #[inline]
    pub(crate) fn lend(
        &mut self,
        port: &mut Port,
        handler: u16,
        loan: &mut Option<Loan>,
    ) -> Result<(), SendError> {
        let Some(it) = loan.as_ref() else { return Ok(()) };
        let (number, at, len) = it.extent.location();
        self.close_frame(port);
        let Some(shm) = self.shm_mut() else { return Err(SendError::WouldBlock) };
        if !shm.push_lend((handler, number), LoanLocation::Pool(at), len) {
            return Err(SendError::WouldBlock);
        }
        if let Some(loan) = loan.take() {
            shm.shm.commit_loan(loan.extent);
        }
        Ok(())
    }

    /// Lets the peer read bytes of this process as a message (S-9). None if it cannot.
    pub(crate) fn offer(
        &mut self,
        port: &mut Port,
        peer: PeerId,
        handler: u16,
        bytes: &[u8],
    ) -> Result<Option<Offer>, SendError> {
        if self.shm().is_none_or(|shm| !shm.shm.peer_may_read()) {
            return Ok(None);
        }
        self.close_frame(port);
        self.shm_mut().map_or(Ok(None), |shm| shm.offer(peer, handler, bytes))
    }

    /// Whether the peer has read an offer: false if it could not (S-26); [`SendError::WouldBlock`] if not
    /// yet.
    pub(crate) fn poll_offer(&mut self, offer: &Offer) -> Result<bool, SendError> {
        self.shm_mut().ok_or(SendError::WouldBlock)?.poll_offer(offer)
    }

    /// The message that the peer has lent; none if there is no such loan.
    #[inline]
    pub(crate) fn borrow(
        &mut self,
        lender: PeerId,
        number: u32,
        at: LoanLocation,
        len: u64,
    ) -> Option<BorrowedLoan> {
        self.shm_mut()?.borrow(lender, number, at, len)
    }

    /// Returns a loan to the peer, and says whether it was read. It cannot be read any more.
    #[inline]
    pub(crate) fn return_loan(&mut self, loan: &mut BorrowedLoan, status: ReturnStatus) {
        let source = std::mem::replace(&mut loan.source, Source::Returned);
        if let Some(shm) = self.shm_mut() {
            shm.shm.return_loan(loan.number, status);
            if let Source::Pool(view, _) = source {
                shm.shm.return_view(view);
            }
        }
    }
}
