//! Messages that are lent to peers on this host instead of copied (S-8, M-9).

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use tautline_device::shm::{Back, LINE_FRAME, Lack, Outside, Piece, View};
use tautline_link::Nanos;
use tautline_wire::record::{self, LEND_LEN, Where};

use super::send::line_of;
use crate::interface::Interface;
use crate::peer::{Key, SHORT_ONLY, UNKNOWN};
use crate::{PeerId, Rank, SendError};

const _: () = assert!(LEND_LEN <= LINE_FRAME && LEND_LEN.is_multiple_of(8));

/// Memory to fill, which a peer on this host can read.
#[derive(Debug)]
pub struct Loan {
    peer: Rank,
    incarnation: u32,
    piece: Piece,
}

impl Loan {
    /// The peer that can read it.
    pub fn peer(&self) -> Rank {
        self.peer
    }
}

impl Deref for Loan {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.piece
    }
}

impl DerefMut for Loan {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.piece
    }
}

/// Bytes of this process that a peer is reading.
#[derive(Debug)]
pub struct Offer {
    peer: Rank,
    incarnation: u32,
    number: u32,
}

/// A message that a peer on this host has lent us, to be read where it is and then given back.
#[derive(Debug)]
pub struct BorrowedLoan {
    pub(crate) peer: Rank,
    pub(crate) incarnation: u32,
    pub(crate) number: u32,
    source: Source,
    len: usize,
}

/// Where it lies.
#[derive(Debug)]
enum Source {
    Pool(Arc<View>, usize),
    Process(Arc<Outside>, u64),
    /// It was given back.
    Nowhere,
}

impl BorrowedLoan {
    /// Bytes of the message.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Who lent it, in which incarnation.
    pub fn lender(&self) -> PeerId {
        PeerId::new(self.peer, self.incarnation)
    }

    /// Whether it lies in memory that both sides have, and so is there whatever becomes of the sender.
    #[inline]
    pub fn is_mapped(&self) -> bool {
        matches!(self.source, Source::Pool(..))
    }

    /// Whether its sender has few places like it, and waits for this one: it did not lend it on purpose.
    #[inline]
    pub fn is_wanted_back(&self) -> bool {
        matches!(&self.source, Source::Pool(view, at) if view.is_for_parts(*at))
    }

    /// Copies bytes out, from `at` on. False if they are no more: the sender died while they were in its memory alone.
    ///
    /// # Panics
    /// If there are not so many.
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
            Source::Nowhere => false,
        }
    }

    /// Where it lies, if in memory that both sides have. The sender can still write there.
    pub fn as_ptr(&self) -> *const u8 {
        match &self.source {
            Source::Pool(view, start) => view.as_ptr(*start),
            Source::Process(..) | Source::Nowhere => std::ptr::null(),
        }
    }
}

impl Interface {
    /// Memory that a peer can read. Nothing if it has to be the program's own: the peer is not on this host, or cannot be lent so much.
    pub(crate) fn loan(&mut self, now: Nanos, rank: Rank, len: usize) -> Result<Option<Loan>, SendError> {
        let Some(peer) = self.peers.get(rank as usize) else { return Err(SendError::NoSuchPeer(rank)) };
        if !peer.is_up() || self.closed {
            return Err(self.not_up(now, rank));
        }
        let peer = &mut self.peers[rank as usize];
        let Some(near) = &mut peer.near else { return Ok(None) };
        match near.shm.loan(len) {
            Ok(piece) => Ok(Some(Loan { peer: rank, incarnation: peer.incarnation, piece })),
            Err(Lack::Never) => Ok(None),
            Err(Lack::Now) => {
                near.want();
                Err(SendError::WouldBlock)
            }
            Err(Lack::Memory(error)) => {
                tracing::warn!(rank = self.rank, peer = rank, len, %error, "no memory to lend");
                Ok(None)
            }
        }
    }

    /// Takes back what was not lent.
    pub(crate) fn cancel_loan(&mut self, loan: Loan) {
        let peer = &mut self.peers[loan.peer as usize];
        if let Some(near) = peer.near.as_mut().filter(|_| peer.incarnation == loan.incarnation) {
            near.shm.cancel_loan(loan.piece);
        }
    }

    /// Lends a filled piece as a message. False, and it stays where it is, if the handler takes only short messages.
    #[inline]
    pub(crate) fn lend(&mut self, key: Key, loan: &mut Option<Loan>) -> Result<bool, SendError> {
        let Some(it) = loan.as_ref() else { return Ok(false) };
        let rank = it.peer;
        self.check(PeerId::new(rank, it.incarnation))?;
        let number = self.peers[rank as usize].numbers[key.0 as usize];
        if number == UNKNOWN {
            return Err(SendError::UnknownHandler(rank));
        }
        if number & SHORT_ONLY != 0 {
            return Ok(false);
        }
        let (place, at, len) = it.piece.place();
        self.push_lend(rank, number, place, (Where::Pool(at), len))?;
        if let (Some(near), Some(loan)) = (&mut self.peers[rank as usize].near, loan.take()) {
            near.shm.lent(loan.piece);
        }
        Ok(true)
    }

    /// Tells a peer of a message that it is to read elsewhere.
    #[inline]
    fn push_lend(
        &mut self,
        rank: Rank,
        handler: u16,
        number: u32,
        (at, len): (Where, u64),
    ) -> Result<(), SendError> {
        self.close_slot(rank);
        let mut bytes = [0; LEND_LEN];
        record::write::lend(&mut bytes, handler, number, at, len);
        let Some(near) = &mut self.peers[rank as usize].near else { return Err(SendError::WouldBlock) };
        if near.shm.push_line(&line_of(&bytes), LEND_LEN) {
            return Ok(());
        }
        near.stalled = true;
        Err(SendError::WouldBlock)
    }

    /// Lets a peer read bytes of this process as a message (S-9): what to ask [`Interface::poll_offer`] for. Nothing if that cannot be.
    pub(crate) fn offer(
        &mut self,
        now: Nanos,
        rank: Rank,
        key: Key,
        bytes: &[u8],
    ) -> Result<Option<Offer>, SendError> {
        let handler = self.handler(now, rank, key, bytes.len() as u64)?;
        let peer = &mut self.peers[rank as usize];
        let Some(near) = peer.near.as_mut().filter(|near| near.shm.is_open_to_it()) else { return Ok(None) };
        let short = peer.numbers[key.0 as usize] & SHORT_ONLY != 0;
        let Some(number) = near.shm.refer().filter(|_| !short) else { return Ok(None) };
        let offer = Offer { peer: rank, incarnation: peer.incarnation, number };
        let at = Where::Process(bytes.as_ptr() as u64);
        if let Err(error) = self.push_lend(rank, handler, number, (at, bytes.len() as u64)) {
            if let Some(near) = &mut self.peers[rank as usize].near {
                near.shm.unrefer(number);
            }
            return Err(error);
        }
        if let Some(near) = &mut self.peers[rank as usize].near {
            near.offered.push(number);
        }
        Ok(Some(offer))
    }

    /// Whether a peer has read what it was offered: true if so, false if it could not, and nobody there has heard of it; [`SendError::WouldBlock`] if not yet.
    pub(crate) fn poll_offer(&mut self, offer: &Offer) -> Result<bool, SendError> {
        let same = |read: &(Rank, u32, u32)| *read == (offer.peer, offer.incarnation, offer.number);
        if let Some(at) = self.read_before.iter().position(same) {
            self.read_before.swap_remove(at);
            return Ok(true);
        }
        self.check(PeerId::new(offer.peer, offer.incarnation))?;
        let Some(near) = &mut self.peers[offer.peer as usize].near else { return Err(SendError::WouldBlock) };
        near.want();
        let Some(back) = near.shm.poll_offer(offer.number) else { return Err(SendError::WouldBlock) };
        near.offered.retain(|number| *number != offer.number);
        match back {
            Back::Read => Ok(true),
            Back::Refused => Ok(false),
            Back::Broken => Err(SendError::Unread(offer.peer)),
        }
    }

    /// What a peer lends us; nothing if there is no such thing.
    #[inline]
    pub(crate) fn borrow_loan(
        &mut self,
        PeerId { rank, incarnation }: PeerId,
        number: u32,
        at: Where,
        len: u64,
    ) -> Option<BorrowedLoan> {
        let peer = self.peers.get_mut(rank as usize)?;
        let near = peer.near.as_mut().filter(|_| peer.incarnation == incarnation);
        let source = match at {
            Where::Pool(at) => {
                let former = || self.formers.iter().find(|(r, i, _)| (*r, *i) == (rank, incarnation));
                let view = match near {
                    Some(near) if near.shm.view()?.has(at, len) => near.shm.hold_view()?,
                    Some(_) => return None,
                    None => former().map(|(.., view)| view).filter(|view| view.has(at, len))?.clone(),
                };
                Source::Pool(view, at as usize)
            }
            Where::Process(at) => {
                at.checked_add(len)?;
                Source::Process(near?.shm.outside()?.clone(), at)
            }
        };
        Some(BorrowedLoan { peer: rank, incarnation, number, source, len: usize::try_from(len).ok()? })
    }

    /// A lease is over: its memory is the peer's again.
    #[inline]
    pub(crate) fn return_loan(&mut self, lease: &mut BorrowedLoan, back: Back) {
        let source = std::mem::replace(&mut lease.source, Source::Nowhere);
        let peer = &mut self.peers[lease.peer as usize];
        if let Some(near) = peer.near.as_mut().filter(|_| peer.incarnation == lease.incarnation) {
            near.shm.give_back(lease.number, back);
            if let Source::Pool(view, _) = source {
                near.shm.let_go(view);
            }
        }
    }
}
