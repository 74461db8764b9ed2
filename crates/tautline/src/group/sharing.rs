//! Memory that all members of a group share, if they are processes of one host (G-14, G-19, G-20). Here it is
//! agreed on and set up; `shared_op` uses it.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tautline_node::{Asleep, Awaited, GroupMemory, MAX_GROUP_OPERATIONS, TagRequest, open_memory_of};

use super::algorithms::{all_reduce, barrier, broadcast};
use super::failure::Cause;
use super::groups;
use super::plan::{Draft, Plan};
use super::reduction::Reduction;
use super::run::{Run, WATCH, Wires};
use crate::Rank;
use crate::error::{Error, Result};
use crate::tags::{Receive, Request};

/// Calls that memory is not shared for: many groups are used for a few collectives only.
const CALLS_BEFORE: u64 = 4;
/// Set in the tags of messages that set up shared memory, or are never sent.
const SETUP: u32 = 3 << 30;
/// Bytes of an offer: whether there is memory, the creator's process, its descriptor, the secret.
const OFFER: usize = 28;

/// What a group knows of its shared memory.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// Collectives that could use it, so far.
    calls: AtomicU64,
    setup: Mutex<Option<Setup>>,
    /// None inside: the members do not share memory.
    decided: OnceLock<Option<Arc<Board>>>,
}

/// Setting up under way.
#[derive(Debug)]
struct Setup {
    stage: Stage,
    run: Run,
    memory: Option<GroupMemory>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The first member tells where its memory is.
    Offer,
    /// Neighbours open channels, so that they can wake each other and notice deaths.
    Connect,
    /// Members agree on whether all have it mapped.
    Answer,
}

impl Sharing {
    /// Numbers a collective that could use shared memory. None if it is to go by messages.
    pub(super) fn number(&self) -> Option<u64> {
        if matches!(self.decided.get(), Some(None)) {
            return None;
        }
        // Before this member looks whose turn it is.
        let calls = self.calls.fetch_add(1, Ordering::SeqCst);
        calls.checked_sub(CALLS_BEFORE).filter(|number| *number < MAX_GROUP_OPERATIONS)
    }

    /// Whether a collective after the `number`th was called. After this one has left.
    pub(super) fn has_later(&self, number: u64) -> bool {
        self.calls.load(Ordering::SeqCst) > number + CALLS_BEFORE + 1
    }

    /// Whether the members have agreed on sharing memory, or on not sharing any.
    pub(super) fn is_decided(&self) -> bool {
        self.decided.get().is_some()
    }

    /// The memory, if it was agreed on.
    #[inline]
    pub(super) fn board(&self) -> Option<&Arc<Board>> {
        self.decided.get()?.as_ref()
    }

    /// What was decided; none if that takes more time.
    #[inline]
    pub(super) fn decide(&self, wires: Wires<'_>) -> Result<Option<&Option<Arc<Board>>>> {
        match self.decided.get() {
            Some(decided) => Ok(Some(decided)),
            None => self.set_up(wires),
        }
    }

    #[cold]
    fn set_up(&self, wires: Wires<'_>) -> Result<Option<&Option<Arc<Board>>>> {
        let mut setup = self.lock();
        if self.decided.get().is_none() {
            let mut under_way = match setup.take() {
                Some(setup) => setup,
                None => Setup::begin(wires)?,
            };
            match under_way.advance(wires)? {
                None => *setup = Some(under_way),
                Some(board) => {
                    tracing::debug!(members = wires.members.len(), shared = board.is_some(), "group");
                    let _ = self.decided.set(board);
                }
            }
        }
        Ok(self.decided.get())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Setup>> {
        self.setup.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends what setting up waits for.
    pub(super) fn requests(&self, ids: &mut Vec<TagRequest>) {
        if let Some(setup) = &*self.lock() {
            setup.run.requests(ids);
        }
    }
}

fn plain(wires: Wires<'_>, write: impl FnOnce(&mut Draft)) -> Arc<Plan> {
    let mut draft = Draft::new(wires.me, wires.members.len());
    write(&mut draft);
    Arc::new(draft.plan)
}

impl Setup {
    fn begin(wires: Wires<'_>) -> Result<Setup> {
        let plan = plain(wires, |draft| broadcast::binomial(draft, 0, OFFER));
        let (mut memory, mut input) = (None, Vec::new());
        if wires.me == 0 {
            let secret = wires.tags.node().fresh_secret()?;
            memory =
                may_share(wires).then(|| GroupMemory::create(wires.members.len(), &secret).ok()).flatten();
            input = offer(memory.as_ref(), &secret).to_vec();
        }
        Ok(Setup { stage: Stage::Offer, run: Run::new((plan, None), input)?, memory })
    }

    /// What was decided; none if that takes more time.
    fn advance(&mut self, wires: Wires<'_>) -> Result<Option<Option<Arc<Board>>>> {
        loop {
            if !self.run.advance(Wires { tag: SETUP | self.stage as u32, ..wires })? {
                return Ok(None);
            }
            let mut output = vec![0; self.run.output_len()];
            self.run.copy_output(&mut output);
            match self.stage {
                Stage::Offer => {
                    if wires.me > 0 && may_share(wires) {
                        self.memory = accept(wires, &output);
                    }
                    (self.stage, self.run) =
                        (Stage::Connect, Run::new((plain(wires, barrier::dissemination), None), Vec::new())?);
                }
                Stage::Connect => {
                    let node = wires.tags.node();
                    let mut near = neighbours(wires.me, wires.members.len()).into_iter();
                    let yes =
                        self.memory.is_some() && near.all(|member| node.is_local(wires.members[member]));
                    let all = Reduction::new(1, true, |lower, upper| {
                        lower.iter().zip(upper).for_each(|(lower, upper)| *upper &= lower);
                    });
                    let plan = plain(wires, |draft| all_reduce::recursive_doubling(draft, 1));
                    (self.stage, self.run) = (Stage::Answer, Run::new((plan, Some(all)), vec![yes.into()])?);
                }
                Stage::Answer => {
                    let memory = self.memory.take().filter(|_| output == [1]);
                    return memory.map(|memory| Board::new(wires, memory)).transpose().map(Some);
                }
            }
        }
    }
}

/// Whether this member may share memory, whatever the others say.
fn may_share(wires: Wires<'_>) -> bool {
    wires.tags.node().tagged().shares_memory() && groups(wires.tags).may_share()
}

fn offer(memory: Option<&GroupMemory>, secret: &[u8; 16]) -> [u8; OFFER] {
    let mut bytes = [0; OFFER];
    if let Some(memory) = memory {
        bytes[0] = 1;
        bytes[4..8].copy_from_slice(&std::process::id().to_le_bytes());
        bytes[8..12].copy_from_slice(&(memory.fd().as_raw_fd() as u32).to_le_bytes());
        bytes[12..].copy_from_slice(secret);
    }
    bytes
}

/// Maps the memory of an offer, if that is possible here.
fn accept(wires: Wires<'_>, offer: &[u8]) -> Option<GroupMemory> {
    let (head, secret) = offer.split_last_chunk::<16>()?;
    let (head, descriptor) = head.split_last_chunk()?;
    let (head, process) = head.split_last_chunk()?;
    if head[0] == 0 {
        return None;
    }
    let (process, descriptor) = (u32::from_le_bytes(*process), u32::from_le_bytes(*descriptor));
    let place = (wires.me, wires.members.len());
    let mapped =
        open_memory_of(process, descriptor, true).and_then(|fd| GroupMemory::attach(fd, place, secret));
    mapped.inspect_err(|error| tracing::debug!(%error, "the group's memory cannot be mapped")).ok()
}

/// The members at distances of powers of two.
fn neighbours(me: usize, members: usize) -> Vec<usize> {
    let distances = std::iter::successors(Some(1), |distance| Some(distance * 2));
    let distances = distances.take_while(|distance| *distance < members);
    let mut all: Vec<usize> = distances
        .flat_map(|distance| [(me + distance) % members, (me + members - distance) % members])
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The shared memory of a group, and the members that this one watches.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) memory: Arc<GroupMemory>,
    tags: crate::tags::Tags,
    watches: Mutex<Vec<Watch>>,
    /// The activity of requests when losses were last looked for; zero if there are any.
    seen: AtomicU64,
    /// Counts losses. Changes under the lock of the watches.
    changes: AtomicU64,
}

/// A member that is watched.
#[derive(Debug)]
struct Watch {
    member: usize,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The receive ends when the member is lost.
    Alive(Receive),
    Lost(Cause),
}

impl Board {
    fn new(wires: Wires<'_>, mut memory: GroupMemory) -> Result<Arc<Board>> {
        memory.close_fd();
        let (memory, tags) = (Arc::new(memory), wires.tags.clone());
        groups(&tags).count_sharing(true);
        let board = Board {
            memory,
            tags,
            watches: Mutex::default(),
            seen: AtomicU64::default(),
            changes: AtomicU64::default(),
        };
        for member in neighbours(wires.me, wires.members.len()) {
            board.watch(wires, member)?;
        }
        Ok(Arc::new(board))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Watch>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a member from now on.
    fn watch(&self, wires: Wires<'_>, member: usize) -> Result<()> {
        let mut watches = self.lock();
        if member != wires.me && watches.iter().all(|watch| watch.member != member) {
            let receive = wires.tags.start_receive(wires.members[member], WATCH, Vec::new())?;
            watches.push(Watch { member, state: State::Alive(receive) });
        }
        Ok(())
    }

    /// Watches the members without which what is awaited cannot come.
    pub(super) fn watch_for(&self, wires: Wires<'_>, awaited: Awaited) -> Result<()> {
        let mut needed = (0..wires.members.len()).filter(|member| self.memory.needs(awaited, *member));
        needed.try_for_each(|member| self.watch(wires, member))
    }

    /// A number that changes when a member is found to be lost.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Appends the requests that end when a member is lost.
    pub(super) fn interruptions(&self, ids: &mut Vec<TagRequest>) {
        ids.extend(self.lock().iter().filter_map(|watch| match &watch.state {
            State::Alive(receive) => Some(receive.id()),
            State::Lost(_) => None,
        }));
    }

    /// Whether to look for losses: there are some, or requests have ended since the last call.
    pub(super) fn has_news(&self, activity: u64) -> bool {
        self.seen.swap(activity, Ordering::Relaxed) != activity
    }

    /// The members that were watched and are lost, and why (G-20).
    pub(super) fn losses(&self, wires: Wires<'_>) -> Result<Vec<(usize, Cause)>> {
        let tagged = self.tags.node().tagged();
        let mut lost = Vec::new();
        for Watch { member, state } in &mut *self.lock() {
            if let State::Alive(receive) = state
                && !tagged.has_ended(receive.id())?
            {
                continue;
            }
            let cause = match std::mem::replace(state, State::Lost(Cause::Failed(wires.members[*member]))) {
                State::Alive(receive) => {
                    self.changes.fetch_add(1, Ordering::AcqRel);
                    match receive.wait() {
                        Err(Error::PeerGone(rank, why)) => Cause::Gone(rank, why),
                        Err(Error::Excluded(by)) => Cause::Excluded(by),
                        Err(Error::Send(why)) => return Err(why.into()),
                        _ => Cause::Failed(wires.members[*member]),
                    }
                }
                State::Lost(cause) => cause,
            };
            *state = State::Lost(cause);
            lost.push((*member, cause));
        }
        if !lost.is_empty() {
            self.seen.store(0, Ordering::Relaxed);
        }
        Ok(lost)
    }

    /// Rings for members that sleep.
    #[inline]
    pub(super) fn wake(&self, members: &[Rank], why: Asleep) -> Result<()> {
        if self.memory.asleep(why) != 0 {
            self.tags.node().tagged().ring_members(&self.memory, members, why)?;
        }
        Ok(())
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        groups(&self.tags).count_sharing(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// G-14, G-15: the first calls use messages, and so do those that have no number.
    #[test]
    fn numbers_begin_and_end() {
        let sharing = Sharing::default();
        assert!((0..CALLS_BEFORE).all(|_| sharing.number().is_none()));
        assert_eq!(sharing.number(), Some(0));
        assert!(!sharing.has_later(0));
        assert_eq!(sharing.number(), Some(1));
        assert!(sharing.has_later(0) && !sharing.has_later(1));
        sharing.calls.store(CALLS_BEFORE + MAX_GROUP_OPERATIONS - 1, Ordering::SeqCst);
        assert_eq!(sharing.number(), Some(MAX_GROUP_OPERATIONS - 1));
        assert!((0..3).all(|_| sharing.number().is_none()));
    }

    /// G-20: whoever is lost has a neighbour, and neighbours are neighbours of each other.
    #[test]
    fn neighbours_watch_each_other() {
        assert_eq!(neighbours(0, 2), [1]);
        assert_eq!(neighbours(3, 8), [1, 2, 4, 5, 7]);
        for n in 2..=64 {
            for me in 0..n {
                let near = neighbours(me, n);
                assert!(!near.is_empty() && !near.contains(&me));
                assert!(near.iter().all(|other| neighbours(*other, n).contains(&me)), "{me} of {n}");
            }
        }
    }
}
