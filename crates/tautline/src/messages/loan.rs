//! Messages that are lent instead of copied: filled where the receiver reads them (M-9).

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::rc::{Rc, Weak};

use tautline_node::device::shm::ReturnStatus;
use tautline_node::{BorrowedLoan, Loan as Shared, PeerId};
use zerocopy::FromBytes;

use crate::core::Core;
use crate::endpoint::{blocking, retry};
use crate::{Endpoint, Name, Rank, Result};

/// A buffer to fill and send to one peer; see [`Endpoint::loan`].
///
/// Where the peer is on this host, it is memory that both sides have: sending it copies nothing, whatever its size. Elsewhere it is memory of the program's own,
/// and sending it is like [`Endpoint::send`]. Its bytes are at first whatever was there before. Dropped unsent, it is given back. A peer can be lent
/// [`crate::Config::loan_pool`] bytes at a time, in up to 240 pieces; what a program holds unsent counts. A forked child must not touch it.
#[derive(Debug)]
#[must_use = "a loan that is dropped is not sent"]
pub struct Loan {
    core: Rc<Core>,
    peer: Rank,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Shared(Option<Shared>),
    Own(Vec<u8>),
}

// A name is looked at, not kept; by value it reads better at the call: a string or a `Handler`.
#[allow(clippy::needless_pass_by_value)]
impl Loan {
    pub(crate) fn try_new(core: &Rc<Core>, peer: Rank, len: usize) -> Result<Loan> {
        let shared = if peer == core.node.rank() { None } else { core.node.try_loan(peer, len)? };
        let memory = match shared {
            Some(loan) => Memory::Shared(Some(loan)),
            None => {
                let mut own = Vec::new();
                own.try_reserve_exact(len).map_err(crate::Error::other)?;
                own.resize(len, 0);
                Memory::Own(own)
            }
        };
        Ok(Loan { core: core.clone(), peer, memory })
    }

    /// The peer that it is for.
    pub fn peer(&self) -> Rank {
        self.peer
    }

    /// Whether the peer will read it where it is.
    pub fn is_shared(&self) -> bool {
        matches!(self.memory, Memory::Shared(_))
    }

    /// Sends it as a message of its length; waits for room if it must. See [`Endpoint::send`].
    #[inline]
    pub fn send(mut self, handler: impl Name) -> Result<()> {
        let key = handler.key(&Endpoint::inner(self.core.clone()))?;
        let core = self.core.clone();
        if blocking(&core, self.peer, || self.try_lend(key))? {
            return Ok(());
        }
        Endpoint::inner(core).send(self.peer, key, &self)
    }

    /// As [`Loan::send`], and lets other handlers go on while there is no room. For use in handlers.
    pub async fn send_async(mut self, handler: impl Name) -> Result<()> {
        let endpoint = Endpoint::inner(self.core.clone());
        let key = handler.key(&endpoint)?;
        let core = self.core.clone();
        if retry(&core, || self.try_lend(key)).await? {
            return Ok(());
        }
        endpoint.send_async(self.peer, key, &self).await
    }

    /// Sends it if that is possible at once. If not, it comes back with the reason.
    ///
    /// # Errors
    /// As [`Endpoint::try_send`]: what is not lent goes in one frame, or is refused.
    #[inline]
    pub fn try_send(mut self, handler: impl Name) -> std::result::Result<(), (Loan, crate::Error)> {
        let sent = handler.key(&Endpoint::inner(self.core.clone())).and_then(|key| {
            if self.try_lend(key)? {
                return Ok(());
            }
            Endpoint::inner(self.core.clone()).try_send(self.peer, key, &self)
        });
        sent.map_err(|error| (self, error))
    }

    /// Lends it, if it can be lent.
    #[inline]
    fn try_lend(&mut self, key: crate::Handler) -> Result<bool> {
        match &mut self.memory {
            Memory::Shared(loan) => Ok(self.core.node.try_lend(key.0, loan)?),
            Memory::Own(_) => Ok(false),
        }
    }
}

impl Deref for Loan {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Shared(Some(loan)) => loan,
            Memory::Own(bytes) => bytes,
            Memory::Shared(None) => &[],
        }
    }
}

impl DerefMut for Loan {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Shared(Some(loan)) => loan,
            Memory::Own(bytes) => bytes,
            Memory::Shared(None) => &mut [],
        }
    }
}

impl Drop for Loan {
    #[inline]
    fn drop(&mut self) {
        if let Memory::Shared(loan) = &mut self.memory
            && let Some(loan) = loan.take()
        {
            self.core.node.cancel_loan(loan);
        }
    }
}

/// A whole message that is read where its sender wrote it, if both are on one host; see [`crate::Builder::on_loan`].
///
/// It may be kept for as long as it is needed, but not be touched by a forked child. Dropping it gives the memory back to its sender, who can lend only so much at a time.
/// Reads copy: the sender is another process and could still write there. What has been read stays as it was read.
#[derive(Debug)]
pub struct Lent {
    core: Weak<Core>,
    from: Rank,
    memory: Source,
}

#[derive(Debug)]
enum Source {
    Shared(Held),
    Own(Vec<u8>),
}

/// What is lent to us, given back when dropped.
#[derive(Debug)]
pub(crate) struct Held {
    core: Weak<Core>,
    from: Rank,
    lease: BorrowedLoan,
    back: Cell<ReturnStatus>,
}

impl Held {
    #[inline]
    pub(crate) fn new(core: &Rc<Core>, from: Rank, lease: BorrowedLoan) -> Held {
        Held { core: Rc::downgrade(core), from, lease, back: Cell::new(ReturnStatus::Read) }
    }

    pub(crate) fn from(&self) -> Rank {
        self.from
    }

    pub(crate) fn len(&self) -> u64 {
        self.lease.len() as u64
    }

    /// Copies bytes out; false if they are no more.
    #[inline]
    pub(crate) fn copy_to(&self, at: usize, out: &mut [u8]) -> bool {
        let there = self.lease.copy_to(at, out);
        if !there {
            self.back.set(ReturnStatus::Incomplete);
        }
        there
    }

    /// Whether it can be read, as far as its first byte shows.
    #[inline]
    pub(crate) fn can_be_read(&self) -> bool {
        self.is_mapped() || self.lease.is_empty() || self.lease.copy_to(0, &mut [0])
    }

    /// Gives it back unread.
    pub(crate) fn refuse(self) {
        self.back.set(ReturnStatus::Refused);
    }

    /// Who lent it, in which incarnation.
    pub(crate) fn lender(&self) -> PeerId {
        self.lease.lender()
    }

    /// Whether its sender has few places like it, and waits for this one.
    #[inline]
    pub(crate) fn is_wanted_back(&self) -> bool {
        self.lease.is_wanted_back()
    }

    /// Whether it stays, whatever becomes of its sender.
    #[inline]
    pub(crate) fn is_mapped(&self) -> bool {
        self.lease.is_mapped()
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            core.node.return_loan(&mut self.lease, self.back.get());
        }
    }
}

/// Bytes that [`Lent::for_each_part`] shows at a time: they stay in the first cache.
const PART: usize = 16 << 10;

impl Lent {
    #[inline]
    pub(crate) fn shared(held: Held) -> Lent {
        debug_assert!(held.is_mapped());
        Lent { core: held.core.clone(), from: held.from, memory: Source::Shared(held) }
    }

    pub(crate) fn own(core: &Rc<Core>, from: Rank, bytes: Vec<u8>) -> Lent {
        Lent { core: Rc::downgrade(core), from, memory: Source::Own(bytes) }
    }

    /// Who sent it.
    #[inline]
    pub fn from(&self) -> Rank {
        self.from
    }

    /// Bytes of the message.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.memory {
            Source::Shared(held) => held.lease.len(),
            Source::Own(bytes) => bytes.len(),
        }
    }

    /// Whether the message has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it lies where its sender wrote it.
    pub fn is_shared(&self) -> bool {
        matches!(self.memory, Source::Shared(_))
    }

    /// The endpoint that the message came to, to send from.
    ///
    /// # Panics
    /// If the endpoint is gone, which only a message kept beyond it can see.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::inner(self.core.upgrade().expect("the endpoint is still there"))
    }

    /// Copies bytes, from `at` on, to their final place.
    ///
    /// # Panics
    /// If there are not so many.
    #[inline]
    pub fn copy_to(&self, at: usize, out: &mut [u8]) {
        match &self.memory {
            Source::Shared(held) => {
                let there = held.copy_to(at, out);
                debug_assert!(there, "what is mapped stays");
            }
            Source::Own(bytes) => out.copy_from_slice(&bytes[at..at + out.len()]),
        }
    }

    /// Reads a value, any plain type with a fixed layout, from `at` on.
    ///
    /// # Panics
    /// If the message does not reach that far.
    #[inline]
    pub fn read<T: FromBytes + zerocopy::IntoBytes>(&self, at: usize) -> T {
        let mut value = T::new_zeroed();
        self.copy_to(at, value.as_mut_bytes());
        value
    }

    /// Shows all of it, part by part.
    pub fn for_each_part(&self, mut part: impl FnMut(&[u8])) {
        match &self.memory {
            Source::Own(bytes) => part(bytes),
            Source::Shared(_) => {
                let mut buffer = [0; PART];
                for at in (0..self.len()).step_by(PART) {
                    let here = &mut buffer[..PART.min(self.len() - at)];
                    self.copy_to(at, here);
                    part(here);
                }
            }
        }
    }

    /// A copy of all of it.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.copy_to(0, &mut bytes);
        bytes
    }

    /// Where it lies. To look at it without a copy is for programs that trust the sender, another process, not to write there any more, and say so with `unsafe`.
    /// Valid until this is dropped.
    pub fn as_ptr(&self) -> *const u8 {
        match &self.memory {
            Source::Shared(held) => held.lease.as_ptr(),
            Source::Own(bytes) => bytes.as_ptr(),
        }
    }
}
