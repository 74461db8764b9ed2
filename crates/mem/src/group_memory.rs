//! Memory that the members of a group on one host share for short collectives (G-14 … G-20).
//!
//! Operations are numbered. A member that enters one writes the number into its own word, after its bytes
//! are in its own slot. Bytes of the last [`ROUNDS`] operations are kept: a member enters an operation only
//! when no other member can still be reading what it overwrites. Each process of the user that has the
//! memory mapped may write anything: every word is checked, and no word is used as an offset or a length.

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
pub const MAX_GROUP_BYTES: usize = 4096;
#[cfg(loom)]
pub const MAX_GROUP_BYTES: usize = 64;
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
    From(u64, usize),
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
    /// What this member's word must be.
    own: AtomicU64,
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
        GroupMemory { segment, me, members, turn: AtomicU64::new(0), own: AtomicU64::new(0) }
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
    fn word_of(&self, member: usize) -> &AtomicU64 {
        self.segment.word(ENTERED + 8 * member)
    }

    /// Where the round of an operation is.
    #[inline]
    fn round(&self, operation: u64) -> usize {
        SLOTS + (operation % ROUNDS) as usize * round_len(self.members)
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
        self.turn.load(Ordering::Acquire)
    }

    /// Whether all members have left the operation whose bytes this one overwrites (G-16): all have entered
    /// the one after it.
    #[inline]
    pub fn has_room(&self, operation: u64) -> bool {
        let needed = operation.saturating_sub(ROUNDS - 2);
        needed == 0
            || (0..self.members).all(|member| {
                member == self.me || count(self.word_of(member).load(Ordering::Acquire)) >= needed
            })
    }

    /// Writes this member's bytes.
    ///
    /// # Panics
    /// If there are more than [`MAX_GROUP_BYTES`].
    #[inline]
    pub fn contribute(&self, operation: u64, bytes: &[u8]) {
        assert!(bytes.len() <= MAX_GROUP_BYTES);
        self.segment.copy_in(self.slot(operation, self.me), bytes);
    }

    /// Enters an operation. Members whose calls agree have the same signature.
    #[inline]
    pub fn enter(&self, operation: u64, signature: u16) {
        let word = (operation + 1) << SIGNATURE_BITS | u64::from(signature);
        self.own.store(word, Ordering::Relaxed);
        self.word_of(self.me).store(word, Ordering::Release);
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
        let own = self.own.load(Ordering::Relaxed);
        if self.word_of(self.me).load(Ordering::Relaxed) != own {
            return Err(GroupFault::Corrupt);
        }
        for member in 0..self.members {
            let word = self.word_of(member).load(Ordering::Acquire);
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
        let word = self.word_of(member).load(Ordering::Acquire);
        if word == self.own.load(Ordering::Relaxed) { Ok(()) } else { check_word(operation, word) }
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

    /// Copies the bytes of a member that has entered.
    ///
    /// # Panics
    /// If there is no such member, or more than [`MAX_GROUP_BYTES`] are asked for.
    #[inline]
    pub fn read(&self, operation: u64, member: usize, bytes: &mut [u8]) {
        assert!(bytes.len() <= MAX_GROUP_BYTES);
        self.segment.copy_out(self.slot(operation, member), bytes);
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
        self.turn.store(operation + 1, Ordering::Release);
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
        let has_left = |operation: u64, member: usize| {
            member != self.me && count(self.word_of(member).load(Ordering::Acquire)) > operation + 1
        };
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
                has_left(operation, member) && self.has_result(operation) != Ok(true)
            }
        }
    }

    /// Whether what is awaited cannot come if a member is gone, by what it has written so far (G-20).
    pub fn needs(&self, awaited: Awaited, member: usize) -> bool {
        let entered = count(self.word_of(member).load(Ordering::Acquire));
        match awaited {
            Awaited::Turn(_) => false,
            Awaited::Room(operation) => entered < operation.saturating_sub(ROUNDS - 2),
            Awaited::Entered(operation) | Awaited::Operands(operation) => entered <= operation,
            Awaited::Published(operation) | Awaited::Result(operation) => {
                let claim = self.claim_word(operation).load(Ordering::Relaxed);
                entered <= operation || claim == (operation + 1) << SIGNATURE_BITS | member as u64
            }
            Awaited::From(_, root) => root == member,
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SECRET: [u8; 16] = [7; 16];

    fn members(count: usize) -> Vec<GroupMemory> {
        let mut first = GroupMemory::create(count, &SECRET).unwrap();
        let attach = |me: usize| {
            let fd = first.fd().try_clone_to_owned().unwrap();
            GroupMemory::attach(fd, (me, count), &SECRET).unwrap()
        };
        let others: Vec<_> = (1..count).map(attach).collect();
        first.close_fd();
        std::iter::once(first).chain(others).collect()
    }

    fn wait(memory: &GroupMemory, awaited: Awaited) {
        while !memory.is_done(awaited) {
            std::thread::yield_now();
        }
    }

    /// G-14: memory of another size or with another secret is refused.
    #[test]
    fn other_memory_is_refused() {
        let first = GroupMemory::create(4, &SECRET).unwrap();
        let fd = || first.fd().try_clone_to_owned().unwrap();
        assert!(GroupMemory::attach(fd(), (1, 5), &SECRET).unwrap_err().to_string().contains("wrong size"));
        let other = GroupMemory::attach(fd(), (1, 4), &[8; 16]).unwrap_err().to_string();
        assert!(other.contains("another group"), "{other}");
        assert!(GroupMemory::attach(fd(), (3, 4), &SECRET).is_ok());
    }

    /// G-15, G-16: in hundreds of operations of all kinds, drawn alike at all members, each member reads
    /// what the others wrote in the same operation, whoever is ahead.
    #[test]
    fn operations_do_not_mix() {
        const OPERATIONS: u64 = 500;
        for n in [2, 3, 5, 9] {
            std::thread::scope(|scope| {
                for memory in members(n) {
                    scope.spawn(move || (0..OPERATIONS).for_each(|at| operate(&memory, at)));
                }
            });
        }
    }

    fn bytes_of(operation: u64, member: usize) -> [u8; 100] {
        [(operation * 31 + member as u64 * 7) as u8; 100]
    }

    /// One operation of a member; what it does depends on the number only.
    fn operate(memory: &GroupMemory, at: u64) {
        let (me, n) = (memory.me(), memory.members());
        let root = at as usize % n;
        let mut got = [0; 100];
        wait(memory, Awaited::Turn(at));
        wait(memory, Awaited::Room(at));
        match at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 62 {
            // All read from all.
            0 => {
                memory.contribute(at, &bytes_of(at, me));
                memory.enter(at, 1);
                wait(memory, Awaited::Entered(at));
                assert_eq!(memory.has_all(at), Ok(true));
                for member in 0..n {
                    memory.read(at, member, &mut got);
                    assert_eq!(got, bytes_of(at, member));
                }
            }
            // One of them computes for all.
            1 => {
                memory.contribute(at, &bytes_of(at, me));
                memory.enter(at, 2);
                while !memory.has_result(at).unwrap() {
                    wait(memory, Awaited::Result(at));
                    if memory.has_all(at).unwrap() && memory.claim(at).unwrap() {
                        memory.read(at, root, &mut got);
                        memory.publish(at, &got);
                    }
                }
                memory.result(at, &mut got);
                assert_eq!(got, bytes_of(at, root));
            }
            // The root writes, and runs ahead.
            2 => {
                if me == root {
                    memory.publish(at, &bytes_of(at, me));
                }
                memory.enter(at, 3);
                if me != root {
                    wait(memory, Awaited::From(at, root));
                    memory.result(at, &mut got);
                    assert_eq!(got, bytes_of(at, root));
                }
            }
            // The root reads, and the others run ahead.
            _ => {
                memory.contribute(at, &bytes_of(at, me));
                memory.enter(at, 4);
                if me == root {
                    wait(memory, Awaited::Operands(at));
                    assert_eq!(memory.has_all(at), Ok(true));
                    for member in 0..n {
                        memory.read(at, member, &mut got);
                        assert_eq!(got, bytes_of(at, member));
                    }
                }
            }
        }
        memory.leave(at);
    }

    /// G-17: other calls, and words that no member writes, are errors; whoever waits is told.
    #[test]
    fn corruption_and_other_calls_are_detected() {
        let all = members(3);
        all[0].enter(0, 5);
        all[1].enter(0, 5);
        assert_eq!(all[0].has_all(0), Ok(false));
        all[2].enter(0, 6);
        assert_eq!(all[0].has_all(0), Err(GroupFault::OtherCall));
        assert!(all[0].is_done(Awaited::Entered(0)));
        all[2].word_of(2).store(u64::MAX, Ordering::Relaxed);
        assert_eq!(all[0].has_all(0), Err(GroupFault::Corrupt));
        all[2].word_of(0).store(0, Ordering::Relaxed);
        assert_eq!(all[0].has_all(0), Err(GroupFault::Corrupt), "this member's own word");
        for (word, claimed) in [
            (2 << SIGNATURE_BITS, Err(GroupFault::Corrupt)),
            (1 << SIGNATURE_BITS | 3, Err(GroupFault::Corrupt)),
            (1 << SIGNATURE_BITS, Err(GroupFault::Corrupt)),
            (1 << SIGNATURE_BITS | 2, Ok(false)),
            (0, Ok(true)),
        ] {
            all[1].claim_word(0).store(word, Ordering::Relaxed);
            assert_eq!(all[0].claim(0), claimed, "{word:x}");
        }
        all[1].segment.word(all[1].round(0)).store(2, Ordering::Relaxed);
        assert_eq!(all[0].has_result(0), Err(GroupFault::Corrupt));
        assert!(all[0].is_done(Awaited::Published(0)) && all[0].is_done(Awaited::Result(0)));
        all[1].mask(Asleep::ForAll).store(u64::MAX, Ordering::Relaxed);
        assert_eq!(all[0].asleep(Asleep::ForAll), 0b111, "no other bits");
    }

    /// G-17: what must have been there, since others have gone on, was overwritten.
    #[test]
    fn lost_words_are_detected() {
        let all = members(3);
        let awaited = [Awaited::Entered(0), Awaited::Result(0), Awaited::Published(0), Awaited::From(0, 1)];
        let overwritten = || awaited.map(|awaited| all[0].is_overwritten(awaited));
        all.iter().take(2).for_each(|memory| memory.enter(0, 1));
        assert_eq!(overwritten(), [false; 4], "the third may be late");
        all[2].enter(0, 1);
        all[1].enter(1, 1);
        assert_eq!(overwritten(), [false, true, true, true], "there is no result");
        all[1].publish(0, &[1]);
        assert_eq!(overwritten(), [false; 4]);
        all[1].word_of(2).store(0, Ordering::Relaxed);
        assert_eq!(overwritten(), [true, false, false, false], "the third had entered");
        let forged = members(3);
        forged[1].claim_word(0).store(1 << SIGNATURE_BITS, Ordering::Relaxed);
        assert!(forged[0].is_overwritten(Awaited::Published(0)), "claimed in this member's name");
        assert!(!forged[1].is_overwritten(Awaited::Published(0)));
    }

    /// G-20: a member that is gone is needed by those who wait for it, and by no others.
    #[test]
    fn members_are_needed_until_they_have_entered() {
        let all = members(3);
        all[0].enter(0, 1);
        for awaited in [Awaited::Entered(0), Awaited::Operands(0), Awaited::Result(0), Awaited::From(0, 1)] {
            assert!(all[0].needs(awaited, 1), "{awaited:?}");
        }
        assert!(!all[0].needs(Awaited::From(0, 2), 1) && !all[0].needs(Awaited::Turn(1), 1));
        assert!(!all[0].needs(Awaited::Room(2), 1) && all[0].needs(Awaited::Room(3), 1));
        all[1].enter(0, 1);
        for awaited in [Awaited::Entered(0), Awaited::Operands(0), Awaited::Result(0), Awaited::Room(3)] {
            assert!(!all[0].needs(awaited, 1), "{awaited:?}");
        }
        assert_eq!(all[1].claim(0), Ok(true));
        assert!(all[0].needs(Awaited::Published(0), 1) && !all[0].needs(Awaited::Published(0), 0));
    }

    /// G-18: one of those who may ring does, once per sleep.
    #[test]
    fn sleepers_are_rung_for_once() {
        let all = members(64);
        all[63].announce_sleep(Awaited::Entered(0));
        all[5].announce_sleep(Awaited::Room(4));
        all[6].announce_sleep(Awaited::Turn(4));
        assert_eq!(all[0].asleep(Asleep::ForAll), 1 << 63);
        assert_eq!(all[0].asleep(Asleep::ForAny), 1 << 5);
        assert!(all[0].take_asleep(Asleep::ForAll, 63) && !all[1].take_asleep(Asleep::ForAll, 63));
        all[5].announce_wake();
        assert_eq!(all[0].asleep(Asleep::ForAny), 0);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{Mutex, thread};

    fn model(run: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(run);
    }

    fn pair() -> [GroupMemory; 2] {
        let segment = Arc::new(Segment::create(len(2)).unwrap());
        [0, 1].map(|me| GroupMemory::over(segment.clone(), me, 2))
    }

    /// G-18: a member that announced its sleep, looked again and found that not all have entered is rung for
    /// by the one that enters last.
    #[test]
    fn loom_no_entry_is_slept_through() {
        model(|| {
            let [a, b] = pair();
            let bell = Arc::new(Mutex::new(false));
            let rung = bell.clone();
            let thread = thread::spawn(move || {
                b.enter(0, 1);
                if b.has_all(0).unwrap() && b.asleep(Asleep::ForAll) != 0 && b.take_asleep(Asleep::ForAll, 0)
                {
                    *rung.lock().unwrap() = true;
                }
            });
            a.enter(0, 1);
            a.announce_sleep(Awaited::Entered(0));
            let sleeps = !a.is_done(Awaited::Entered(0));
            thread.join().unwrap();
            assert!(!sleeps || *bell.lock().unwrap(), "asleep, and all have entered");
        });
    }

    /// G-15, G-16: what a member reads in an operation was written in it, also when slots are used again.
    #[test]
    fn loom_operations_do_not_mix() {
        model(|| {
            let [a, b] = pair();
            let run = |memory: GroupMemory| {
                for at in 0..3_u64 {
                    while !memory.has_room(at) {
                        thread::yield_now();
                    }
                    memory.contribute(at, &[at as u8 + 1; 8]);
                    memory.enter(at, 1);
                    while !memory.has_all(at).unwrap() {
                        thread::yield_now();
                    }
                    let mut got = [0; 8];
                    memory.read(at, 1 - memory.me(), &mut got);
                    assert_eq!(got, [at as u8 + 1; 8]);
                    memory.leave(at);
                }
            };
            let thread = thread::spawn(move || run(b));
            run(a);
            thread.join().unwrap();
        });
    }

    /// G-15: of two members one computes the result, and the other one reads it.
    #[test]
    fn loom_one_member_computes() {
        model(|| {
            let [a, b] = pair();
            let run = |memory: GroupMemory| {
                memory.contribute(0, &[3; 8]);
                memory.enter(0, 1);
                let mut computed = false;
                while !memory.has_result(0).unwrap() {
                    if memory.has_all(0).unwrap() && memory.claim(0).unwrap() {
                        let mut got = [0; 8];
                        memory.read(0, 1 - memory.me(), &mut got);
                        assert_eq!(got, [3; 8]);
                        memory.publish(0, &[9; 8]);
                        computed = true;
                    } else {
                        thread::yield_now();
                    }
                }
                let mut got = [0; 8];
                memory.result(0, &mut got);
                assert_eq!(got, [9; 8]);
                computed
            };
            let thread = thread::spawn(move || run(b));
            let first = run(a);
            assert!(first != thread.join().unwrap(), "one of them");
        });
    }
}
