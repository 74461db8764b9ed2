//! Memory that the members of a group on one host share for short collectives (G-14 … G-20).
//!
//! Operations are numbered. A member that enters one writes the number into its own word, after its bytes
//! are in its own slot. Bytes of the last [`ROUNDS`] operations are kept: a member enters an operation only
//! when no other member can still be reading what it overwrites. Each process of the user that has the
//! memory mapped may write anything: every word is checked, and no word is used as an offset or a length.

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(not(loom))]
use std::io;
#[cfg(not(loom))]
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::Segment;
use crate::sync::{Arc, AtomicU64, Ordering, fence};

/// The most members of a group that shares memory.
pub const MAX_GROUP_MEMBERS: usize = 64;
/// The most bytes of a member in one operation.
#[cfg(not(loom))]
pub const MAX_GROUP_BYTES: usize = 64 << 10;
#[cfg(loom)]
pub const MAX_GROUP_BYTES: usize = 64;
/// Operations of a group have numbers below this one: there are bits for them in each word.
pub const MAX_GROUP_OPERATIONS: u64 = (1 << (64 - SIGNATURE_BITS)) - ROUNDS - 1;
/// Operations whose bytes are kept.
#[cfg(not(loom))]
const ROUNDS: u64 = 4;
#[cfg(loom)]
const ROUNDS: u64 = 2;

/// Offsets: what only members know, the masks of sleeping members, the word of each member, a line for each
/// round, and then the rounds.
#[cfg(not(loom))]
const SECRET: usize = 0;
const ASLEEP: usize = 64;
const ENTERED: usize = 128;
const CLAIMS: usize = ENTERED + 8 * MAX_GROUP_MEMBERS;
const SLOTS: usize = CLAIMS + 64 * ROUNDS as usize;
/// In a round: the number of the operation whose result is there, and its bytes, mostly in the same line.
const RESULT: usize = 16;
/// Bytes of a slot. No multiple of a page: the same line of all slots would compete for a few cache sets.
const SLOT: usize = MAX_GROUP_BYTES + 64;
/// Where a member's bytes begin in its slot, if its word is in front of them.
const BEHIND_WORD: usize = 8;
/// In groups of so many members each has a word in every round, in front of its bytes: one line has both, and
/// nobody else writes there. In larger groups the words of all members are next to each other.
const WORDS_APART: usize = 2;

/// Bits of a member's word that tell operations apart; the bits above are the number of operations.
const SIGNATURE_BITS: u32 = 16;

const _: () = assert!(SLOTS.is_multiple_of(64) && SLOT.is_multiple_of(64) && RESULT < 64);

/// What a member waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// This member has left the operation before this one.
    Turn(u64),
    /// No member reads what this member overwrites in this operation.
    Room(u64),
    /// All members have entered, and none leaves before.
    Entered(u64),
    /// All members have entered, and may go on at once.
    Operands(u64),
    /// The result that another member computes is there. Nobody leaves before.
    Published(u64),
    /// The same, or all members have entered and nobody computes it yet.
    Result(u64),
    /// The bytes of a member, which may go on at once, are there.
    From(u64, u32),
}

/// Why members are asleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asleep {
    /// They wait for all members, or for a result.
    ForAll = 0,
    /// They wait for any member to enter.
    ForAny = 1,
}

/// Why an operation cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupFault {
    /// A member entered the operation with another signature: its call was another one.
    OtherCall,
    /// The memory has content that no member writes.
    Corrupt,
}

/// The shared memory of a group, as one member sees it.
#[derive(Debug)]
pub struct GroupMemory {
    segment: Arc<Segment>,
    me: usize,
    members: usize,
    /// Operations that this member has left. Not shared with others.
    turn: AtomicU64,
    /// What this member's word must be; if it has one in each round, by round.
    own: [AtomicU64; ROUNDS as usize],
}

const fn round_len(members: usize) -> usize {
    SLOT * (members + 1)
}

/// Bytes of the memory of a group.
fn len(members: usize) -> usize {
    (SLOTS + ROUNDS as usize * round_len(members)).next_multiple_of(4096)
}

impl GroupMemory {
    /// Creates the memory of a group whose first member this is. The others need its descriptor, and prove
    /// by `secret` that they have the right one.
    ///
    /// # Panics
    /// If there are more members than [`MAX_GROUP_MEMBERS`].
    #[cfg(not(loom))]
    pub fn create(members: usize, secret: &[u8; 16]) -> io::Result<GroupMemory> {
        let segment = Segment::create_sparse(len(members))?;
        segment.copy_in(SECRET, secret);
        Ok(GroupMemory::over(Arc::new(segment), 0, members))
    }

    /// Maps the memory that the first member has created.
    ///
    /// # Errors
    /// If it is no sealed memory of the right size, or does not have the secret.
    #[cfg(not(loom))]
    pub fn attach(fd: OwnedFd, (me, members): (usize, usize), secret: &[u8; 16]) -> io::Result<GroupMemory> {
        let segment = Segment::attach_sparse(fd, len(members))?;
        let mut found = [0; 16];
        segment.copy_out(SECRET, &mut found);
        if found != *secret {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "this is the memory of another group"));
        }
        Ok(GroupMemory::over(Arc::new(segment), me, members))
    }

    /// Member `me` of `members` over memory of zeros, or of others that are in it.
    fn over(segment: Arc<Segment>, me: usize, members: usize) -> GroupMemory {
        assert!(me < members && members <= MAX_GROUP_MEMBERS);
        assert!(segment.len() >= SLOTS + ROUNDS as usize * round_len(members));
        let own = std::array::from_fn(|_| AtomicU64::new(0));
        GroupMemory { segment, me, members, turn: AtomicU64::new(0), own }
    }

    /// The descriptor, for the other members.
    ///
    /// # Panics
    /// In a member that has attached, and after [`GroupMemory::close_fd`].
    #[cfg(not(loom))]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.segment.fd()
    }

    /// Closes the descriptor: all members have mapped the memory, or will not.
    #[cfg(not(loom))]
    pub fn close_fd(&mut self) {
        if let Some(segment) = Arc::get_mut(&mut self.segment) {
            segment.close_fd();
        }
    }

    /// The number of members.
    pub fn members(&self) -> usize {
        self.members
    }

    /// This member.
    pub fn me(&self) -> usize {
        self.me
    }

    #[inline]
    fn are_words_apart(&self) -> bool {
        self.members <= WORDS_APART
    }

    /// Where the words are that tell whether members have entered an operation, and their distance.
    #[inline]
    fn words(&self, operation: u64) -> (usize, usize) {
        if self.are_words_apart() { (self.slot(operation, 0), SLOT) } else { (ENTERED, 8) }
    }

    /// The word that tells whether a member has entered an operation: the number in it is greater then.
    #[inline]
    fn word_of(&self, member: usize, operation: u64) -> &AtomicU64 {
        let (first, distance) = self.words(operation);
        self.segment.word(first + distance * member)
    }

    /// What that word of this member must be.
    #[inline]
    fn own_word(&self, operation: u64) -> &AtomicU64 {
        &self.own[if self.are_words_apart() { (operation % ROUNDS) as usize } else { 0 }]
    }

    /// Whether a member has entered so many operations.
    #[inline]
    fn has_entered(&self, member: usize, operations: u64) -> bool {
        operations == 0 || count(self.word_of(member, operations - 1).load(Ordering::Acquire)) >= operations
    }

    /// Where the round of an operation is.
    #[inline]
    fn round(&self, operation: u64) -> usize {
        SLOTS + (operation % ROUNDS) as usize * round_len(self.members)
    }

    /// Where a member's bytes are.
    #[inline]
    fn bytes_of(&self, operation: u64, member: usize) -> usize {
        self.slot(operation, member) + if self.are_words_apart() { BEHIND_WORD } else { 0 }
    }

    #[inline]
    fn slot(&self, operation: u64, member: usize) -> usize {
        assert!(member < self.members);
        self.round(operation) + SLOT * (member + 1)
    }

    #[inline]
    fn claim_word(&self, operation: u64) -> &AtomicU64 {
        self.segment.word(CLAIMS + 64 * (operation % ROUNDS) as usize)
    }

    // One operation, in the order of these functions.

    /// The operation that this member may enter next.
    #[inline]
    pub fn turn(&self) -> u64 {
        self.turn.load(Ordering::SeqCst)
    }

    /// Whether all members have left the operation whose bytes this one overwrites (G-16): all have entered
    /// the one after it.
    #[inline]
    pub fn has_room(&self, operation: u64) -> bool {
        let needed = operation.saturating_sub(ROUNDS - 2);
        needed == 0 || (0..self.members).all(|member| member == self.me || self.has_entered(member, needed))
    }

    /// Writes this member's bytes.
    ///
    /// # Panics
    /// If there are more than [`MAX_GROUP_BYTES`].
    #[inline]
    pub fn contribute(&self, operation: u64, bytes: &[u8]) {
        assert!(bytes.len() <= MAX_GROUP_BYTES);
        self.segment.copy_in(self.bytes_of(operation, self.me), bytes);
    }

    /// Enters an operation. Members whose calls agree have the same signature.
    #[inline]
    pub fn enter(&self, operation: u64, signature: u16) {
        let word = (operation + 1) << SIGNATURE_BITS | u64::from(signature);
        self.own_word(operation).store(word, Ordering::Relaxed);
        self.word_of(self.me, operation).store(word, Ordering::Release);
        // Of members that enter at the same time, one sees all; and whoever falls asleep is seen, or sees
        // this (G-18).
        fence(Ordering::SeqCst);
    }

    /// Whether all members have entered this operation. Members may have gone on to later ones.
    ///
    /// # Errors
    /// If a word says what no member writes there, or a member's call is another one (G-17).
    #[inline]
    pub fn has_all(&self, operation: u64) -> Result<bool, GroupFault> {
        let own = self.own_word(operation).load(Ordering::Relaxed);
        let (first, distance) = self.words(operation);
        let word_of = |member: usize| self.segment.word(first + distance * member);
        if word_of(self.me).load(Ordering::Relaxed) != own {
            return Err(GroupFault::Corrupt);
        }
        for member in 0..self.members {
            let word = word_of(member).load(Ordering::Acquire);
            if count(word) <= operation {
                return Ok(false);
            }
            if word != own {
                check_word(operation, word)?;
            }
        }
        Ok(true)
    }

    /// Checks that a member which has entered made the same call, as far as that can still be told (G-17).
    pub fn check_call(&self, operation: u64, member: usize) -> Result<(), GroupFault> {
        let word = self.word_of(member, operation).load(Ordering::Acquire);
        let own = self.own_word(operation).load(Ordering::Relaxed);
        if word == own { Ok(()) } else { check_word(operation, word) }
    }

    /// Returns whether this member is to compute the result: the first one that asks, after all have entered.
    ///
    /// # Errors
    /// If the memory says that this member has claimed it already, or what no member writes (G-17).
    pub fn claim(&self, operation: u64) -> Result<bool, GroupFault> {
        let word = self.claim_word(operation);
        let before = word.load(Ordering::Relaxed);
        match (count(before), before as u16) {
            (claimed, _) if claimed <= operation => {
                let after = (operation + 1) << SIGNATURE_BITS | self.me as u64;
                Ok(word.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed).is_ok())
            }
            (claimed, by) => {
                let by = usize::from(by);
                let possible = claimed == operation + 1 && by != self.me && by < self.members;
                if possible { Ok(false) } else { Err(GroupFault::Corrupt) }
            }
        }
    }

    /// Copies bytes of a member that has entered, after the first `skip` ones.
    ///
    /// # Panics
    /// If there is no such member, or a slot ends before them.
    #[inline]
    pub fn read(&self, operation: u64, member: usize, skip: usize, bytes: &mut [u8]) {
        assert!(skip <= MAX_GROUP_BYTES && bytes.len() <= MAX_GROUP_BYTES - skip);
        self.segment.copy_out(self.bytes_of(operation, member) + skip, bytes);
    }

    /// Writes the result.
    ///
    /// # Panics
    /// If it has more than [`MAX_GROUP_BYTES`].
    #[inline]
    pub fn publish(&self, operation: u64, bytes: &[u8]) {
        assert!(bytes.len() <= MAX_GROUP_BYTES);
        let round = self.round(operation);
        self.segment.copy_in(round + RESULT, bytes);
        self.segment.word(round).store(operation + 1, Ordering::Release);
        // As in `enter`.
        fence(Ordering::SeqCst);
    }

    /// Whether the result is there.
    #[inline]
    pub fn has_result(&self, operation: u64) -> Result<bool, GroupFault> {
        match self.segment.word(self.round(operation)).load(Ordering::Acquire) {
            published if published <= operation => Ok(false),
            published if published == operation + 1 => Ok(true),
            _ => Err(GroupFault::Corrupt),
        }
    }

    /// Copies the result.
    ///
    /// # Panics
    /// If more than [`MAX_GROUP_BYTES`] are asked for.
    #[inline]
    pub fn result(&self, operation: u64, bytes: &mut [u8]) {
        assert!(bytes.len() <= MAX_GROUP_BYTES);
        self.segment.copy_out(self.round(operation) + RESULT, bytes);
    }

    /// Leaves an operation: nothing of it is read any more.
    #[inline]
    pub fn leave(&self, operation: u64) {
        // In one order with the calls of other threads: one that does not see this is seen, and told.
        self.turn.store(operation + 1, Ordering::SeqCst);
    }

    // Waiting.

    /// Whether what is awaited is there. An operation that cannot go on is worth a look, too.
    #[inline]
    pub fn is_done(&self, awaited: Awaited) -> bool {
        match awaited {
            Awaited::Turn(operation) => self.turn() >= operation,
            Awaited::Room(operation) => self.has_room(operation),
            Awaited::Entered(operation) | Awaited::Operands(operation) => {
                self.has_all(operation).unwrap_or(true)
            }
            Awaited::Published(operation) | Awaited::From(operation, _) => {
                self.has_result(operation).unwrap_or(true)
            }
            Awaited::Result(operation) => {
                self.has_result(operation).unwrap_or(true)
                    || !self.is_claimed(operation) && self.has_all(operation).unwrap_or(true)
            }
        }
    }

    fn is_claimed(&self, operation: u64) -> bool {
        count(self.claim_word(operation).load(Ordering::Relaxed)) > operation
    }

    /// Whether what is awaited must have been there, by what others have written since: somebody has
    /// overwritten it (G-17). For members that have waited for long.
    pub fn is_overwritten(&self, awaited: Awaited) -> bool {
        let has_left =
            |operation: u64, member: usize| member != self.me && self.has_entered(member, operation + 2);
        let any_left = |operation: u64| (0..self.members).any(|member| has_left(operation, member));
        let claimed_by_us = |operation: u64| self.is_claimed(operation) && self.claim(operation).is_err();
        match awaited {
            Awaited::Turn(_) | Awaited::Room(_) | Awaited::Operands(_) => false,
            Awaited::Entered(operation) => any_left(operation) && self.has_all(operation) != Ok(true),
            Awaited::Published(operation) | Awaited::Result(operation) => {
                let lost = any_left(operation) || claimed_by_us(operation);
                lost && self.has_result(operation) != Ok(true)
            }
            Awaited::From(operation, member) => {
                has_left(operation, member as usize) && self.has_result(operation) != Ok(true)
            }
        }
    }

    /// Whether what is awaited cannot come if a member is gone, by what it has written so far (G-20).
    pub fn needs(&self, awaited: Awaited, member: usize) -> bool {
        let is_missing = |operation: u64| !self.has_entered(member, operation + 1);
        match awaited {
            Awaited::Turn(_) => false,
            Awaited::Room(operation) => !self.has_entered(member, operation.saturating_sub(ROUNDS - 2)),
            Awaited::Entered(operation) | Awaited::Operands(operation) => is_missing(operation),
            Awaited::Published(operation) | Awaited::Result(operation) => {
                let claim = self.claim_word(operation).load(Ordering::Relaxed);
                is_missing(operation) || claim == (operation + 1) << SIGNATURE_BITS | member as u64
            }
            Awaited::From(_, root) => root as usize == member,
        }
    }

    fn mask(&self, why: Asleep) -> &AtomicU64 {
        self.segment.word(ASLEEP + 8 * why as usize)
    }

    /// Announces that this member is about to sleep. Then look again, then sleep (G-18).
    pub fn announce_sleep(&self, awaited: Awaited) {
        let why = match awaited {
            Awaited::Turn(_) => return,
            Awaited::Room(_) => Asleep::ForAny,
            _ => Asleep::ForAll,
        };
        self.mask(why).fetch_or(1 << self.me, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Announces that this member is awake.
    pub fn announce_wake(&self) {
        for why in [Asleep::ForAll, Asleep::ForAny] {
            if self.asleep(why) & 1 << self.me != 0 {
                self.mask(why).fetch_and(!(1 << self.me), Ordering::SeqCst);
            }
        }
    }

    /// The members that sleep: a bit for each. After [`GroupMemory::enter`] or [`GroupMemory::publish`].
    #[inline]
    pub fn asleep(&self, why: Asleep) -> u64 {
        self.mask(why).load(Ordering::Relaxed) & (u64::MAX >> (64 - self.members))
    }

    /// Returns whether the caller is to ring for a member that sleeps: once per sleep.
    pub fn take_asleep(&self, why: Asleep, member: usize) -> bool {
        self.mask(why).fetch_and(!(1 << member), Ordering::SeqCst) & 1 << member != 0
    }
}

/// The number of operations that a member has entered, by its word.
#[inline]
fn count(word: u64) -> u64 {
    word >> SIGNATURE_BITS
}

/// Checks the word of another member that has entered an operation (G-17).
#[cold]
fn check_word(operation: u64, word: u64) -> Result<(), GroupFault> {
    match count(word) {
        // Nobody is further ahead of a member that is in the operation.
        count if count > operation + ROUNDS => Err(GroupFault::Corrupt),
        count if count == operation + 1 => Err(GroupFault::OtherCall),
        _ => Ok(()),
    }
}
