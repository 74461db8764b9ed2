//! The receiving side of loans: memory of the sender that is read in place and returned when dropped (M-9).

use std::cell::Cell;
use std::rc::{Rc, Weak};

use tautline_node::device::shm::ReturnStatus;
use tautline_node::{BorrowedLoan, PeerId};
use zerocopy::FromBytes;

use crate::Rank;
use crate::async_endpoint::AsyncEndpoint;
use crate::core::Core;

/// Memory that a peer lent to this node; returned when dropped.
#[derive(Debug)]
pub(super) struct LoanGuard {
    core: Weak<Core>,
    from: Rank,
    loan: BorrowedLoan,
    /// What the lender is told when it is returned.
    status: Cell<ReturnStatus>,
}

impl LoanGuard {
    #[inline]
    pub(super) fn new(core: &Rc<Core>, from: Rank, loan: BorrowedLoan) -> LoanGuard {
        LoanGuard { core: Rc::downgrade(core), from, loan, status: Cell::new(ReturnStatus::Read) }
    }

    pub(super) fn from(&self) -> Rank {
        self.from
    }

    pub(super) fn len(&self) -> u64 {
        self.loan.len() as u64
    }

    /// Copies bytes out; false if they can no longer be read.
    #[inline]
    pub(super) fn copy_to(&self, at: usize, out: &mut [u8]) -> bool {
        let copied = self.loan.copy_to(at, out);
        if !copied {
            self.status.set(ReturnStatus::Incomplete);
        }
        copied
    }

    /// Whether it can be read, as far as its first byte shows.
    #[inline]
    pub(super) fn is_readable(&self) -> bool {
        self.is_mapped() || self.loan.is_empty() || self.loan.copy_to(0, &mut [0])
    }

    /// Returns it unread.
    pub(super) fn refuse(self) {
        self.status.set(ReturnStatus::Refused);
    }

    /// The peer that lent it.
    pub(super) fn lender(&self) -> PeerId {
        self.loan.lender()
    }

    /// Whether the lender has few buffers like it, and waits for this one.
    #[inline]
    pub(super) fn is_wanted_back(&self) -> bool {
        self.loan.is_wanted_back()
    }

    /// Whether it stays readable whatever happens to the lender.
    #[inline]
    pub(super) fn is_mapped(&self) -> bool {
        self.loan.is_mapped()
    }
}

impl Drop for LoanGuard {
    #[inline]
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            core.node.return_loan(&mut self.loan, self.status.get());
        }
    }
}

/// A whole message that is read where its sender wrote it, if both are on one host; see
/// [`crate::Builder::on_loan`].
///
/// It may be kept for as long as it is needed, but a forked child must not touch it. Dropping it returns the
/// memory to the sender, whose loans are limited ([`crate::Config::loan_pool`]). Reads copy, because the
/// sender is another process that could still write there: what has been read stays as it was read.
#[derive(Debug)]
pub struct Borrowed {
    core: Weak<Core>,
    from: Rank,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Shared(LoanGuard),
    Private(Vec<u8>),
}

/// Bytes that [`Borrowed::for_each_part`] shows at a time: they fit the first-level cache.
const PART: usize = 16 << 10;

impl Borrowed {
    #[inline]
    pub(super) fn shared(loan: LoanGuard) -> Borrowed {
        debug_assert!(loan.is_mapped());
        Borrowed { core: loan.core.clone(), from: loan.from, bytes: Bytes::Shared(loan) }
    }

    pub(super) fn private(core: &Rc<Core>, from: Rank, bytes: Vec<u8>) -> Borrowed {
        Borrowed { core: Rc::downgrade(core), from, bytes: Bytes::Private(bytes) }
    }

    /// The sender's number, to answer to. It is the rank if the sender is lane 0 of its process, as the
    /// endpoint that joined is; in general it is an address: [`crate::Address::from`] takes it apart into
    /// rank and lane.
    #[inline]
    pub fn from(&self) -> Rank {
        self.from
    }

    /// The message's length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.bytes {
            Bytes::Shared(guard) => guard.loan.len(),
            Bytes::Private(bytes) => bytes.len(),
        }
    }

    /// Whether the message is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it lies where its sender wrote it.
    pub fn is_shared(&self) -> bool {
        matches!(self.bytes, Bytes::Shared(_))
    }

    /// The endpoint that received the message, to send from.
    ///
    /// # Panics
    /// If the endpoint was dropped, which can happen only to a message that is kept.
    pub fn endpoint(&self) -> AsyncEndpoint {
        AsyncEndpoint::new(self.core.upgrade().expect("the endpoint is still there"))
    }

    /// Copies the bytes from `at` on to their final place.
    ///
    /// # Panics
    /// If the message is too short.
    #[inline]
    pub fn copy_to(&self, at: usize, out: &mut [u8]) {
        match &self.bytes {
            Bytes::Shared(guard) => {
                let copied = guard.copy_to(at, out);
                debug_assert!(copied, "mapped memory stays readable");
            }
            Bytes::Private(bytes) => out.copy_from_slice(&bytes[at..at + out.len()]),
        }
    }

    /// Reads the value at `at`: any plain type with a fixed layout.
    ///
    /// # Panics
    /// If the message is too short.
    #[inline]
    pub fn read<T: FromBytes + zerocopy::IntoBytes>(&self, at: usize) -> T {
        let mut value = T::new_zeroed();
        self.copy_to(at, value.as_mut_bytes());
        value
    }

    /// Shows the whole message, part by part.
    pub fn for_each_part(&self, mut part: impl FnMut(&[u8])) {
        match &self.bytes {
            Bytes::Private(bytes) => part(bytes),
            Bytes::Shared(_) => {
                let mut buffer = [0; PART];
                for at in (0..self.len()).step_by(PART) {
                    let here = &mut buffer[..PART.min(self.len() - at)];
                    self.copy_to(at, here);
                    part(here);
                }
            }
        }
    }

    /// Returns a copy of the whole message.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.copy_to(0, &mut bytes);
        bytes
    }

    /// The address of the message, valid until this is dropped. To read there without a copy requires
    /// `unsafe` and trust that the sender, another process, no longer writes.
    pub fn as_ptr(&self) -> *const u8 {
        match &self.bytes {
            Bytes::Shared(guard) => guard.loan.as_ptr(),
            Bytes::Private(bytes) => bytes.as_ptr(),
        }
    }
}
