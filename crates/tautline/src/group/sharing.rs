//! Memory that the members of a group on one host share (G-14, G-19, G-20, G-23). Here it is agreed on and
//! set up; `shared_op` and `hosts_op` use it.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tautline_node::{
    Asleep, Awaited, GroupMemory, MAX_GROUP_MEMBERS, MAX_GROUP_OPERATIONS, TagRequest, open_memory_of,
};

use super::algorithms::{all_gather, all_reduce, barrier, broadcast};
use super::choice::Choices;
use super::failure::Cause;
use super::groups;
use super::placement::Placement;
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
#[derive(Debug)]
pub(super) struct Sharing {
    /// The group's table.
    pub(super) choices: Choices,
    /// Collectives that could use memory of all members, so far.
    calls: AtomicU64,
    /// Collectives that could go in two levels, so far.
    hosts_calls: AtomicU64,
    setup: Mutex<Option<Setup>>,
    decided: OnceLock<Decision>,
}

/// What the members have agreed on.
#[derive(Debug)]
pub(super) enum Decision {
    /// They do not share memory.
    Messages,
    /// All share memory.
    Memory(Arc<Board>),
    /// Those of each host share memory.
    Hosts(Arc<Board>),
}

/// How the members of a group exchange the bytes of short collectives, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exchange {
    Messages,
    Memory,
    Hosts,
}

/// The numbers of a collective among those that could use memory of all members, and those that could go in
/// two levels.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    pub(super) memory: Option<u64>,
    pub(super) hosts: Option<u64>,
}

/// Setting up under way.
#[derive(Debug)]
struct Setup {
    stage: Stage,
    run: Run,
    placement: Placement,
    /// The ranks of the members on this host.
    local: Vec<Rank>,
    memory: Option<GroupMemory>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Members tell which hosts they are on. Neighbours open channels, so that they can wake each other and
    /// notice deaths.
    Hosts = 0,
    /// The first member of each host tells where its memory is.
    Offer = 1,
    /// Neighbours open channels, if not all members are on one host.
    Connect = 2,
    /// Members agree on whether all have it mapped. Not the number of [`WATCH`].
    Answer = 4,
}

impl Sharing {
    pub(super) fn new(choices: Choices) -> Sharing {
        let (calls, hosts_calls) = (AtomicU64::default(), AtomicU64::default());
        Sharing { choices, calls, hosts_calls, setup: Mutex::default(), decided: OnceLock::new() }
    }

    /// Numbers a collective that could use shared memory. Without a number it goes by messages.
    #[inline]
    pub(super) fn numbers(&self, plan: &Plan) -> Numbers {
        let mut numbers = Numbers::default();
        let decided = self.decided.get();
        if plan.shared.is_some() && matches!(decided, None | Some(Decision::Memory(_))) {
            numbers.memory = next(&self.calls, MAX_GROUP_OPERATIONS);
        }
        if plan.hosts.is_some() && matches!(decided, None | Some(Decision::Hosts(_))) {
            // Each takes two operations.
            numbers.hosts = next(&self.hosts_calls, MAX_GROUP_OPERATIONS / 2);
        }
        numbers
    }

    /// Whether a collective after the `number`th was called. After this one has left.
    pub(super) fn has_later(&self, number: u64) -> bool {
        self.calls.load(Ordering::SeqCst) > number + CALLS_BEFORE + 1
    }

    /// The same of those that go in two levels.
    pub(super) fn has_later_by_hosts(&self, number: u64) -> bool {
        self.hosts_calls.load(Ordering::SeqCst) > number + CALLS_BEFORE + 1
    }

    /// What the members have agreed on, if they have.
    pub(super) fn decision(&self) -> Option<&Decision> {
        self.decided.get()
    }

    /// How members exchange bytes. By messages until they have agreed on another way.
    #[inline]
    pub(super) fn exchange(&self) -> Exchange {
        match self.decided.get() {
            None | Some(Decision::Messages) => Exchange::Messages,
            Some(Decision::Memory(_)) => Exchange::Memory,
            Some(Decision::Hosts(_)) => Exchange::Hosts,
        }
    }

    /// The memory of all members, if they share it.
    #[inline]
    pub(super) fn board(&self) -> Option<&Arc<Board>> {
        match self.decided.get() {
            Some(Decision::Memory(board)) => Some(board),
            _ => None,
        }
    }

    /// The memory that this member shares with others, of all hosts or of its own.
    #[inline]
    pub(super) fn any_board(&self) -> Option<&Arc<Board>> {
        match self.decided.get() {
            Some(Decision::Memory(board) | Decision::Hosts(board)) => Some(board),
            _ => None,
        }
    }

    /// What was decided; none if that takes more time.
    #[inline]
    pub(super) fn decide(&self, wires: Wires<'_>) -> Result<Option<&Decision>> {
        match self.decided.get() {
            Some(decided) => Ok(Some(decided)),
            None => self.set_up(wires),
        }
    }

    #[cold]
    fn set_up(&self, wires: Wires<'_>) -> Result<Option<&Decision>> {
        let mut setup = self.lock();
        if self.decided.get().is_none() {
            let mut under_way = match setup.take() {
                Some(setup) => setup,
                None => Setup::begin(wires)?,
            };
            match under_way.advance(wires)? {
                None => *setup = Some(under_way),
                Some(decision) => {
                    let hosts = under_way.placement.hosts();
                    tracing::debug!(members = wires.members.len(), hosts, way = decision.name(), "group");
                    let _ = self.decided.set(decision);
                }
            }
        }
        Ok(self.decided.get())
    }

    /// Whether the members that setting up waits for later are watched, or nothing is set up.
    pub(super) fn is_watching(&self) -> bool {
        self.lock().as_ref().is_none_or(|setup| setup.run.is_watching())
    }

    /// Watches the members that setting up waits for later (G-22).
    pub(super) fn watch_later(&self, wires: Wires<'_>) -> Result<()> {
        self.lock().as_mut().map_or(Ok(()), |setup| {
            let (run, wires) = setup.parts(wires);
            run.watch(wires)
        })
    }

    /// An error if one of these is lost, and its messages have not arrived.
    pub(super) fn check_watched(&self, wires: Wires<'_>) -> Result<()> {
        self.lock().as_mut().map_or(Ok(()), |setup| {
            let (run, wires) = setup.parts(wires);
            run.check_watched(wires)
        })
    }

    /// Appends the requests that end when one of these is lost.
    pub(super) fn interruptions(&self, ids: &mut Vec<TagRequest>) {
        if let Some(setup) = &*self.lock() {
            setup.run.interruptions(ids);
        }
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

/// The next number of a sequence; none for the first ones, and when the numbers are used up.
#[inline]
fn next(calls: &AtomicU64, most: u64) -> Option<u64> {
    // Before this member looks whose turn it is.
    let calls = calls.fetch_add(1, Ordering::SeqCst);
    calls.checked_sub(CALLS_BEFORE).filter(|number| *number < most)
}

impl Decision {
    fn name(&self) -> &'static str {
        match self {
            Decision::Messages => "messages",
            Decision::Memory(_) => "memory",
            Decision::Hosts(_) => "memory of each host",
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
        let plan = plain(wires, |draft| all_gather::bruck(draft, &vec![8; wires.members.len()]));
        let input = wires.tags.node().host_number()?.to_le_bytes().to_vec();
        let (run, placement) = (Run::new((plan, None), input)?, Placement::default());
        Ok(Setup { stage: Stage::Hosts, run, placement, local: Vec::new(), memory: None })
    }

    /// The messages of this stage, with the wires that they use.
    fn parts<'a>(&'a mut self, wires: Wires<'a>) -> (&'a mut Run, Wires<'a>) {
        let wires = Wires { tag: SETUP | self.stage as u32, ..wires };
        let here = Wires { members: &self.local, me: self.placement.me(), ..wires };
        let is_here = matches!(self.stage, Stage::Offer | Stage::Connect);
        (&mut self.run, if is_here { here } else { wires })
    }

    /// What was decided; none if that takes more time.
    fn advance(&mut self, wires: Wires<'_>) -> Result<Option<Decision>> {
        loop {
            let (run, among) = self.parts(wires);
            if !run.advance(among)? {
                return Ok(None);
            }
            let wires = Wires { tag: SETUP | self.stage as u32, ..wires };
            let here = Wires { members: &self.local, me: self.placement.me(), ..wires };
            let mut output = vec![0; self.run.output_len()];
            self.run.copy_output(&mut output);
            (self.stage, self.run) = match self.stage {
                Stage::Hosts => {
                    let number = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
                    let numbers: Vec<u64> = output.as_chunks().0.iter().map(number).collect();
                    self.placement = Placement::new(&numbers, wires.me);
                    if self.placement.is_spread() {
                        return Ok(Some(Decision::Messages));
                    }
                    self.local = self.placement.local().iter().map(|member| wires.members[*member]).collect();
                    (Stage::Offer, self.offer(wires)?)
                }
                Stage::Offer => {
                    let place = (self.placement.me(), self.local.len());
                    if place.0 > 0 && may_share(here) {
                        self.memory = accept(place, &output);
                    }
                    match self.placement.is_one_host() {
                        true => (Stage::Answer, self.answer(wires)?),
                        false => {
                            let plan = plain(here, barrier::dissemination);
                            (Stage::Connect, Run::new((plan, None), Vec::new())?)
                        }
                    }
                }
                Stage::Connect => (Stage::Answer, self.answer(wires)?),
                Stage::Answer => {
                    let Some(memory) = self.memory.take().filter(|_| output == [1]) else {
                        return Ok(Some(Decision::Messages));
                    };
                    let (placement, local) = (std::mem::take(&mut self.placement), self.local.clone());
                    let is_one = placement.is_one_host();
                    let board = Board::new(wires, memory, placement, local)?;
                    return Ok(Some(if is_one { Decision::Memory(board) } else { Decision::Hosts(board) }));
                }
            };
        }
    }

    /// Creates the memory of this host, and tells the other members here.
    fn offer(&mut self, wires: Wires<'_>) -> Result<Run> {
        let here = Wires { members: &self.local, me: self.placement.me(), ..wires };
        let mut input = Vec::new();
        if here.me == 0 {
            let secret = wires.tags.node().fresh_secret()?;
            self.memory =
                may_share(here).then(|| GroupMemory::create(here.members.len(), &secret).ok()).flatten();
            input = offer(self.memory.as_ref(), &secret).to_vec();
        }
        Run::new((plain(here, |draft| broadcast::binomial(draft, 0, OFFER)), None), input)
    }

    /// Tells all members whether this one has the memory of its host mapped, and reaches its neighbours.
    fn answer(&self, wires: Wires<'_>) -> Result<Run> {
        let (node, local) = (wires.tags.node(), &self.local);
        let mut near = neighbours(self.placement.me(), local.len()).into_iter();
        let yes = self.memory.is_some() && near.all(|member| node.is_local(local[member]));
        let all = Reduction::new(1, true, |lower, upper| {
            lower.iter().zip(upper).for_each(|(lower, upper)| *upper &= lower);
        });
        let plan = plain(wires, |draft| all_reduce::recursive_doubling(draft, 1));
        Run::new((plan, Some(all)), vec![yes.into()])
    }
}

/// Whether this member may share memory with the others of its host, whatever they say. One that is alone on
/// its host has memory of its own.
fn may_share(wires: Wires<'_>) -> bool {
    let can_share = wires.members.len() == 1 || wires.tags.node().tagged().shares_memory();
    wires.members.len() <= MAX_GROUP_MEMBERS && can_share && groups(wires.tags).may_share()
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
fn accept(place: (usize, usize), offer: &[u8]) -> Option<GroupMemory> {
    let (head, secret) = offer.split_last_chunk::<16>()?;
    let (head, descriptor) = head.split_last_chunk()?;
    let (head, process) = head.split_last_chunk()?;
    if head[0] == 0 {
        return None;
    }
    let (process, descriptor) = (u32::from_le_bytes(*process), u32::from_le_bytes(*descriptor));
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

/// Memory that members of a group share, all of them or those of one host, and the members that this one
/// watches. They have the numbers that they have on the host.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) memory: Arc<GroupMemory>,
    pub(super) placement: Placement,
    /// The ranks of the members that share it.
    local: Vec<Rank>,
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
    fn new(
        wires: Wires<'_>,
        mut memory: GroupMemory,
        placement: Placement,
        local: Vec<Rank>,
    ) -> Result<Arc<Board>> {
        memory.close_fd();
        let (memory, tags) = (Arc::new(memory), wires.tags.clone());
        groups(&tags).count_sharing(true);
        let board = Board {
            memory,
            placement,
            local,
            tags,
            watches: Mutex::default(),
            seen: AtomicU64::default(),
            changes: AtomicU64::default(),
        };
        for member in neighbours(board.memory.me(), board.local.len()) {
            board.watch(board.wires(wires), member)?;
        }
        Ok(Arc::new(board))
    }

    /// The wires of the members that share it.
    #[inline]
    pub(super) fn wires<'a>(&'a self, wires: Wires<'a>) -> Wires<'a> {
        Wires { members: &self.local, me: self.memory.me(), ..wires }
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
                    // Before the change is counted: a thread that sees it looks for losses.
                    self.seen.store(0, Ordering::Relaxed);
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
    use crate::group::plan::{Shared, SharedKind};

    /// G-14, G-15: the first calls use messages, and so do those that have no number.
    #[test]
    fn numbers_begin_and_end() {
        let sharing = Sharing::new(Choices::default());
        let barrier = Shared { kind: SharedKind::Barrier, bytes: 0 };
        let in_memory = Plan { shared: Some(barrier), ..Plan::default() };
        let number = || sharing.numbers(&in_memory).memory;
        assert!((0..CALLS_BEFORE).all(|_| number().is_none()));
        assert_eq!(number(), Some(0));
        assert!(!sharing.has_later(0));
        assert_eq!(number(), Some(1));
        assert!(sharing.has_later(0) && !sharing.has_later(1));
        sharing.calls.store(CALLS_BEFORE + MAX_GROUP_OPERATIONS - 1, Ordering::SeqCst);
        assert_eq!(number(), Some(MAX_GROUP_OPERATIONS - 1));
        assert!((0..3).all(|_| number().is_none()));
        // Those that could go in two levels have numbers of their own.
        let by_hosts = Plan { hosts: Some(barrier), ..Plan::default() };
        let number = || sharing.numbers(&by_hosts).hosts;
        assert!((0..CALLS_BEFORE).all(|_| number().is_none()));
        assert_eq!((number(), number()), (Some(0), Some(1)));
        assert!(sharing.has_later_by_hosts(0) && !sharing.has_later_by_hosts(1));
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
