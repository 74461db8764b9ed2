//! Lending messages to peers on this host, and reading what they lend (M-9).

use tautline_device::shm::ReturnStatus;
use tautline_wire::record::LoanLocation;

use super::Endpoint;
use crate::channel::{BorrowedLoan, Loan, Offer};
use crate::membership::{Key, SHORT_ONLY, UNKNOWN};
use crate::{PeerId, Rank, SendError};

impl Endpoint {
    /// Memory that a peer on this host can read, to be filled and lent or given back. None if it cannot be
    /// lent so much; [`SendError::WouldBlock`] while earlier loans must come back first, or the peer is being
    /// connected to.
    pub fn try_loan(&self, peer: Rank, len: usize) -> Result<Option<Loan>, SendError> {
        let (mut lane, now) = self.enter()?;
        lane.reach(now, peer).inspect_err(|_| lane.service(now))?;
        let to = lane.peers.member_mut(peer);
        let id = to.id();
        to.channel.loan(id, len).inspect_err(|_| lane.service(now))
    }

    /// Gives back a loan that was not lent.
    pub fn cancel_loan(&self, loan: Loan) {
        let _ = self.with(|lane| {
            let peer = lane.peers.member_mut(loan.peer.rank);
            if peer.incarnation == loan.peer.incarnation {
                peer.channel.cancel_loan(loan);
            }
        });
    }

    /// Sends a filled loan as a message; what `loan` held is gone then. False, with nothing sent, if the
    /// handler takes only messages that fit a frame. Never blocks.
    #[inline]
    pub fn try_lend(&self, key: Key, loan: &mut Option<Loan>) -> Result<bool, SendError> {
        let Some(to) = loan.as_ref().map(|loan| loan.peer) else { return Ok(false) };
        let mut lane = self.lock()?;
        self.shared.polls.polled();
        let number = lane.peers.get(to.rank).map_or(UNKNOWN, |peer| peer.handlers.number(key));
        let lent = match lane.check(to) {
            Err(gone) => Err(gone),
            Ok(()) if number == UNKNOWN => Err(SendError::UnknownHandler(to.rank)),
            Ok(()) if number & SHORT_ONLY != 0 => return Ok(false),
            Ok(()) => {
                let (peer, port) = lane.channel(to.rank);
                peer.channel.lend(port, number, loan)
            }
        };
        if lent.is_err() {
            let now = self.shared.arrive(&mut lane);
            lane.service(now);
        }
        lent.map(|()| true)
    }

    /// Lets a peer on this host copy a message out of this process by itself. None, with nothing sent, if it
    /// cannot: then it is to be sent as any other. `bytes` must stay as they are until
    /// [`Endpoint::poll_offer`] returns, or the peer reads something else. Never blocks.
    pub fn try_offer(&self, peer: Rank, key: Key, bytes: &[u8]) -> Result<Option<Offer>, SendError> {
        let (mut lane, now) = self.enter()?;
        let handler = lane.handler(now, peer, key, bytes.len() as u64).inspect_err(|_| lane.service(now))?;
        let (to, port) = lane.channel(peer);
        if to.handlers.number(key) & SHORT_ONLY != 0 {
            return Ok(None);
        }
        let id = to.id();
        to.channel.offer(port, id, handler, bytes).inspect_err(|_| lane.service(now))
    }

    /// Whether the peer has read an offer: false, with nothing sent, if it could not;
    /// [`SendError::WouldBlock`] if not yet. Once it has returned something else, it must not be asked again.
    pub fn poll_offer(&self, offer: &Offer) -> Result<bool, SendError> {
        self.with(|lane| {
            if lane.local.former.take_read(offer) {
                return Ok(true);
            }
            lane.check(offer.peer)?;
            lane.peers.member_mut(offer.peer.rank).channel.poll_offer(offer)
        })?
    }

    /// The message that a peer has lent, as its record says; none if there is no such loan. It must be
    /// returned with [`Endpoint::return_loan`].
    #[inline]
    pub fn borrow_loan(&self, from: PeerId, number: u32, at: LoanLocation, len: u64) -> Option<BorrowedLoan> {
        let mut lane = self.lock().ok()?;
        let peer = lane.peers.get_mut(from.rank)?;
        if peer.incarnation == from.incarnation
            && let Some(loan) = peer.channel.borrow(from, number, at, len)
        {
            return Some(loan);
        }
        match at {
            LoanLocation::Pool(at) => lane.local.former.borrow(from, number, at, len),
            LoanLocation::Process(_) => None,
        }
    }

    /// Returns a loan to its peer, and says whether it was read. It cannot be read any more.
    #[inline]
    pub fn return_loan(&self, loan: &mut BorrowedLoan, status: ReturnStatus) {
        let Ok(mut lane) = self.lock() else { return };
        let peer = lane.peers.member_mut(loan.lender.rank);
        if peer.incarnation == loan.lender.incarnation {
            peer.channel.return_loan(loan, status);
        } else {
            loan.forget();
        }
    }
}
