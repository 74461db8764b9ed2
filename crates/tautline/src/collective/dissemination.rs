//! Barriers and sharing, by dissemination: in round `k` each rank sends what it knows to the rank `2^k` after
//! it, and waits for the rank `2^k` before it. After log2(n) rounds it knows of everybody (M-16).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use tautline_node::link::Death;
use tautline_node::{PeerId, SendError};

use super::{ROUND, handler};
use crate::blocking::{Step, extract_until};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::memory::Cookie;
use crate::transfer::Transfer;
use crate::waiting::suspend_until;
use crate::{Address, Down, Rank};

/// Which call a round belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Call {
    Barrier = 0,
    Share = 1,
}

/// On the wire in place of a [`Call`]: a rank is gone, and all calls fail from now on.
const GONE: u8 = 2;

/// Bytes in front of what is gathered: the number of the call, which call it is, and the round.
const HEAD: usize = 10;
/// Messages of one round that this rank has not taken. A rank is at most one call ahead of the next.
const MAX_UNTAKEN: usize = 2;

/// The rounds of one endpoint.
#[derive(Default)]
pub(super) struct Rounds {
    /// Calls so far.
    calls: Cell<u64>,
    /// What has arrived, by round.
    arrived: RefCell<Vec<VecDeque<Arrived>>>,
    /// The first call that fails because a rank has gone down; so do all later ones.
    gone: Cell<Option<Gone>>,
    /// The call that is under way. One that was dropped stays here.
    current: RefCell<Option<Current>>,
    /// Somebody waits for the call that is under way.
    driven: Cell<bool>,
}

/// A call that is under way.
struct Current {
    call: Call,
    number: u64,
    gathered: Gathered,
    round: u32,
    /// The message of this round, until it is sent.
    sending: Option<(Transfer, Vec<u8>)>,
    /// The rank that this round waits for, if it was connected when the round began.
    known: Option<PeerId>,
}

/// Somebody waits for the call that is under way, until this is dropped.
struct Driven<'a>(&'a Cell<bool>);

impl Drop for Driven<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Why calls fail from a given one on.
#[derive(Clone, Copy)]
struct Gone {
    call: u64,
    rank: Rank,
    why: Down,
}

impl From<Gone> for Error {
    fn from(gone: Gone) -> Error {
        Error::PeerGone(gone.rank, gone.why)
    }
}

struct Arrived {
    call: u64,
    kind: u8,
    gathered: Vec<u8>,
}

/// The cookies of the ranks that this rank knows of.
#[derive(Default)]
pub(super) struct Gathered(BTreeMap<Rank, Option<Cookie>>);

/// The ranks before and after this one that take part in a round.
#[derive(Clone, Copy)]
struct Neighbours {
    before: Rank,
    after: Rank,
}

/// The number of rounds of a job.
fn rounds(size: u32) -> u32 {
    size.next_power_of_two().trailing_zeros()
}

/// Bytes of the longest message of a round: the cookies of all ranks.
pub(super) fn longest_round(size: u32) -> u64 {
    (HEAD + (size as usize).max(1) * (size_of::<Rank>() + 1 + Cookie::LEN)) as u64
}

fn neighbours(core: &Core, round: u32) -> Neighbours {
    let (rank, size, distance) = (u64::from(core.node.rank()), u64::from(core.node.size()), 1u64 << round);
    let of = |rank: u64| Rank::from(Address::new((rank % size) as Rank, core.node.lane()));
    Neighbours { before: of(rank + size - distance), after: of(rank + distance) }
}

impl Rounds {
    /// A message of a round has arrived.
    pub(super) fn arrived(&self, core: &Rc<Core>, from: Rank, bytes: &[u8]) -> Result<()> {
        let malformed = || Error::Violation("a malformed message of a barrier");
        let (call, rest) = bytes.split_first_chunk().ok_or_else(malformed)?;
        let call = u64::from_le_bytes(*call);
        let (&[kind, round], gathered) = rest.split_first_chunk().ok_or_else(malformed)?;
        if kind == GONE {
            let (rank, why) = gathered.split_first_chunk().ok_or_else(malformed)?;
            let why = why.first().map_or(Down::Exited, |byte| Down::from_byte(*byte));
            let rank = Rank::from_le_bytes(*rank);
            // A rank that was started again has made fewer calls than the others.
            let call = if rank == core.node.number() { 0 } else { call };
            self.end(core, Gone { call, rank, why });
            return Ok(());
        }
        // The call has failed here. An earlier one can still succeed.
        let gone = self.gone.get();
        if gone.is_some_and(|gone| gone.call <= call) {
            return Ok(());
        }
        let round = u32::from(round);
        if round >= rounds(core.node.size()) || neighbours(core, round).before != from {
            return Err(malformed());
        }
        let mut arrived = self.arrived.borrow_mut();
        if arrived.len() <= round as usize {
            arrived.resize_with(round as usize + 1, VecDeque::new);
        }
        let queue = &mut arrived[round as usize];
        if queue.len() == MAX_UNTAKEN {
            // A rank that was started again begins to count anew, and nobody takes what it sends.
            return if gone.is_some() { Ok(()) } else { Err(malformed()) };
        }
        queue.push_back(Arrived { call, kind, gathered: gathered.to_vec() });
        Ok(())
    }

    /// Takes part in all rounds of one call, and extracts meanwhile.
    pub(super) fn run(&self, core: &Rc<Core>, call: Call, own: Gathered) -> Result<Gathered> {
        core.check_not_in_handler()?;
        let _driven = self.begin(core, call, own)?;
        extract_until(core, |taken| self.step(core, taken))
    }

    /// As [`Rounds::run`], for a task. Dropped before its end, the next call goes on with it.
    pub(super) async fn run_async(&self, core: &Rc<Core>, call: Call, own: Gathered) -> Result<Gathered> {
        let _driven = self.begin(core, call, own)?;
        suspend_until(core, |taken| self.step(core, taken)).await
    }

    /// Begins a call, or goes on with one that was dropped.
    fn begin(&self, core: &Rc<Core>, call: Call, own: Gathered) -> Result<Driven<'_>> {
        core.check_open()?;
        if self.driven.replace(true) {
            return Err(Error::TooMany("calls of barrier or share under way"));
        }
        let driven = Driven(&self.driven);
        if let Some(current) = &*self.current.borrow() {
            return if current.call == call {
                Ok(driven)
            } else {
                Err(Error::TooMany("unfinished calls of barrier or share"))
            };
        }
        let number = self.calls.get();
        if let Some(gone) = self.gone.get().filter(|gone| gone.call <= number) {
            // A rank that was started again has not heard of it.
            tell(core, gone, true);
            return Err(gone.into());
        }
        // A neighbour that is already gone is noticed only if there is a channel.
        for round in 0..rounds(core.node.size()) {
            core.node.connect(neighbours(core, round).before)?;
        }
        self.calls.set(number + 1);
        let mut current = Current { call, number, gathered: own, round: 0, sending: None, known: None };
        current.prepare(core)?;
        self.current.replace(Some(current));
        Ok(driven)
    }

    /// Goes through as many rounds as it can.
    fn step(&self, core: &Rc<Core>, taken: usize) -> Result<Step<Gathered>> {
        let stepped = self.go_on(core, taken);
        if let Err(Error::PeerGone(rank, why)) = stepped
            && let Some(number) = self.current.borrow().as_ref().map(|current| current.number)
        {
            self.end(core, Gone { call: number, rank, why });
        }
        if !matches!(stepped, Ok(Step::Wait | Step::WaitForRoom)) {
            self.current.take();
        }
        stepped
    }

    fn go_on(&self, core: &Rc<Core>, taken: usize) -> Result<Step<Gathered>> {
        let mut current = self.current.borrow_mut();
        let current = current.as_mut().ok_or(Error::Stale)?;
        while current.round < rounds(core.node.size()) {
            if let Some(gone) = self.gone.get().filter(|gone| gone.call <= current.number) {
                return Err(gone.into());
            }
            if let Some((transfer, bytes)) = &mut current.sending {
                match transfer.try_send(&core.node, bytes) {
                    Err(SendError::WouldBlock) => return Ok(Step::WaitForRoom),
                    sent => {
                        current.sending = None;
                        sent?;
                    }
                }
            }
            let mut arrived = self.arrived.borrow_mut();
            let Some(arrived) = arrived.get_mut(current.round as usize).and_then(VecDeque::pop_front) else {
                let before = neighbours(core, current.round).before;
                // What it sent before it went down comes first. It is there when the loss is noticed.
                if taken == 0
                    && let Some(error) = core.peer_error(before, current.known)
                    && !core.node.has_slots()?
                {
                    return Err(error);
                }
                return Ok(Step::Wait);
            };
            current.take(core, &arrived)?;
            current.round += 1;
            current.prepare(core)?;
        }
        Ok(Step::Done(std::mem::take(&mut current.gathered)))
    }

    /// A rank is gone: a call and all later ones fail, and so do those of the ranks that wait for this one.
    /// Earlier calls can still succeed.
    #[cold]
    fn end(&self, core: &Rc<Core>, gone: Gone) {
        if self.gone.get().is_none_or(|known| gone.call < known.call) {
            self.gone.set(Some(gone));
            tell(core, gone, false);
        }
    }
}

impl Current {
    /// Prepares the message of this round, if there is one more.
    fn prepare(&mut self, core: &Core) -> Result<()> {
        if self.round >= rounds(core.node.size()) {
            return Ok(());
        }
        let Neighbours { before, after } = neighbours(core, self.round);
        self.known = core.peer_id(before);
        let mut bytes = Vec::with_capacity(HEAD);
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&[self.call as u8, self.round as u8]);
        self.gathered.write(&mut bytes);
        self.sending = Some((Transfer::new(after, handler(core, ROUND)?), bytes));
        Ok(())
    }

    /// Takes the message of the rank before this one.
    fn take(&mut self, core: &Core, arrived: &Arrived) -> Result<()> {
        if (arrived.call, arrived.kind) == (self.number, self.call as u8) {
            return self.gathered.read(&arrived.gathered);
        }
        if arrived.call == self.number {
            return Err(Error::Violation("one rank calls barrier where another calls share"));
        }
        let before = neighbours(core, self.round).before;
        if arrived.call < self.number && core.node.last_incarnation(before)? > 1 {
            // It has begun to count anew.
            return Err(Error::PeerGone(before, Down::Died(Death::Restarted)));
        }
        Err(Error::Violation(
            "the ranks have called barrier and share a different number of times; was one of them restarted?",
        ))
    }
}

/// Tells the ranks that wait for this one that a rank is gone, as there is room.
fn tell(core: &Rc<Core>, gone: Gone, again: bool) {
    let Ok(handler) = handler(core, ROUND) else { return };
    for round in 0..rounds(core.node.size()) {
        let after = neighbours(core, round).after;
        // The last one may still have to be sent.
        if after == gone.rank || again && core.outbox.has_jobs_for(after) {
            continue;
        }
        let mut bytes = gone.call.to_le_bytes().to_vec();
        bytes.extend_from_slice(&[GONE, round as u8]);
        bytes.extend_from_slice(&gone.rank.to_le_bytes());
        bytes.push(gone.why.to_byte());
        let mut transfer = Transfer::new(after, handler);
        // A rank that does not wait for it does not miss it.
        core.post(after, None, move |core| {
            !matches!(transfer.try_send(&core.node, &bytes), Err(SendError::WouldBlock))
        });
    }
}

impl Gathered {
    /// The cookie of one rank.
    pub(super) fn of(rank: Rank, cookie: Option<Cookie>) -> Gathered {
        Gathered(BTreeMap::from([(rank, cookie)]))
    }

    /// The cookies of all ranks.
    pub(super) fn into_cookies(self, size: u32) -> Result<Vec<Option<Cookie>>> {
        let Gathered(cookies) = self;
        let missing = Error::Violation("a cookie of a rank is missing");
        if cookies.len() == size as usize { Ok(cookies.into_values().collect()) } else { Err(missing) }
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        for (rank, cookie) in &self.0 {
            bytes.extend_from_slice(&rank.to_le_bytes());
            bytes.push(u8::from(cookie.is_some()));
            cookie.iter().for_each(|cookie| bytes.extend_from_slice(&cookie.to_bytes()));
        }
    }

    fn read(&mut self, mut bytes: &[u8]) -> Result<()> {
        let malformed = || Error::Violation("a malformed list of cookies");
        while !bytes.is_empty() {
            let (rank, rest) = bytes.split_first_chunk().ok_or_else(malformed)?;
            let (&[some], mut rest) = rest.split_first_chunk().ok_or_else(malformed)?;
            let cookie = if some == 0 {
                None
            } else {
                let (cookie, after) = rest.split_first_chunk().ok_or_else(malformed)?;
                rest = after;
                Some(Cookie::from_bytes(cookie))
            };
            self.0.insert(Rank::from_le_bytes(*rank), cookie);
            bytes = rest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After the last round a rank has heard, directly or not, of every rank.
    #[test]
    fn everybody_is_heard_of() {
        for size in 1..70u32 {
            let mut known: Vec<std::collections::BTreeSet<u32>> =
                (0..size).map(|rank| [rank].into()).collect();
            for round in 0..rounds(size) {
                let before = known.clone();
                for (rank, known) in known.iter_mut().enumerate() {
                    let from = (rank + size as usize - (1 << round)) % size as usize;
                    known.extend(&before[from]);
                }
            }
            assert!(known.iter().all(|known| known.len() == size as usize), "{size} ranks");
        }
        assert_eq!([1, 2, 3, 4, 5, 8, 9].map(rounds), [0, 1, 2, 2, 3, 3, 4]);
    }
}
