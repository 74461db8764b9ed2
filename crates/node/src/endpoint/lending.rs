//! Lending messages to peers on this host, and reading what they lend (M-9).

use tautline_device::shm::Back;
use tautline_wire::record::Where;

use super::Endpoint;
use crate::near::{BorrowedLoan, Loan, Offer};
use crate::peer::{Key, PeerId};
use crate::{Rank, SendError};

impl Endpoint {
    /// Memory that a peer on this host can read, to be filled and lent. Nothing if it cannot be lent so much; [`SendError::WouldBlock`] while what
    /// was lent before must come back first, or the peer is being connected to. It must be lent, or given back.
    pub fn try_loan(&self, peer: Rank, len: usize) -> Result<Option<Loan>, SendError> {
        let (mut interface, now) = self.enter()?;
        interface.loan(now, peer, len).inspect_err(|_| interface.service(now))
    }

    /// Gives back what was not lent.
    pub fn cancel_loan(&self, loan: Loan) {
        let _ = self.with(|i| i.cancel_loan(loan));
    }

    /// Sends what was filled as a message, by lending it; what `loan` held is gone then. False, with nothing sent, if the handler takes only messages that
    /// fit a frame. Never blocks.
    #[inline]
    pub fn try_lend(&self, key: Key, loan: &mut Option<Loan>) -> Result<bool, SendError> {
        if !self.shared.fork.is_mine() {
            return Err(SendError::Forked);
        }
        let mut interface = self.shared.lock();
        self.shared.presence.polled();
        let lent = interface.lend(key, loan);
        if lent.is_err() {
            let now = self.shared.arrive(&mut interface);
            interface.service(now);
        }
        lent
    }

    /// Lets a peer on this host copy a message out of this process by itself. Nothing, with nothing sent, if that cannot be: then it is to be sent as any other. `bytes` must stay as
    /// they are until [`Endpoint::poll_offer`] says so, or the peer reads something else. Never blocks.
    pub fn try_offer(&self, peer: Rank, key: Key, bytes: &[u8]) -> Result<Option<Offer>, SendError> {
        let (mut interface, now) = self.enter()?;
        interface.offer(now, peer, key, bytes).inspect_err(|_| interface.service(now))
    }

    /// Whether the peer has read what it was offered: false, with nothing sent, if it could not; [`SendError::WouldBlock`] if not yet. Asked once more after that, it is
    /// nonsense.
    pub fn poll_offer(&self, offer: &Offer) -> Result<bool, SendError> {
        self.with(|i| i.poll_offer(offer))?
    }

    /// What a peer lends us, as its record says; nothing if there is no such thing. It must be given back with [`Endpoint::return_loan`].
    #[inline]
    pub fn borrow_loan(&self, from: PeerId, number: u32, at: Where, len: u64) -> Option<BorrowedLoan> {
        self.with(|i| i.borrow_loan(from, number, at, len)).ok().flatten()
    }

    /// Gives back what a peer lent us, and says whether it was read. It cannot be read any more.
    #[inline]
    pub fn return_loan(&self, lease: &mut BorrowedLoan, back: Back) {
        let _ = self.with(|i| i.return_loan(lease, back));
    }
}
