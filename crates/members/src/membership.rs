//! The state machine of one member.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::fact::Table;
use crate::{Action, End, Fact, MAX_MEMBERS, Message, Nanos, Notice, Rank, Start, Status, ring};

/// How many successors are tried at once, at most.
const MAX_WINDOW: usize = 64;
/// How much faster a member looks for a living successor after each that it finds dead.
const GROWTH: usize = 4;

/// What one member knows of the others, and what it does about it.
///
/// The caller says what happens, with `handle_*`, and then carries out what [`Membership::poll_action`]
/// returns, until it returns nothing. It calls [`Membership::handle_timeout`] at
/// [`Membership::next_deadline`]. Members that do so agree soon after the last fault (B-10).
#[derive(Debug)]
pub struct Membership {
    start: Start,
    incarnation: u32,
    /// Others know this incarnation: from now on a report of its death is an error of theirs.
    settled: bool,
    table: Table,
    links: BTreeMap<Rank, Link>,
    /// Members that could not be reached in time, and may still be.
    tried: BTreeSet<Rank>,
    /// The process that was last heard of at each rank, and its incarnation.
    processes: BTreeMap<Rank, (u64, u32)>,
    /// Members that were never heard of and cannot be reached: perhaps they have not been started.
    absent: BTreeSet<Rank>,
    /// Members that have been started, if not all of them have.
    seen: BTreeSet<Rank>,
    /// How many successors are tried at once.
    window: usize,
    /// Facts to be told to others, each with the member that told it.
    changed: BTreeMap<Rank, Option<Rank>>,
    /// Whom they are told to, besides those that this member would tell by what it knows now.
    also: BTreeSet<Rank>,
    /// This member was declared dead: others that are said to be dead may be alive as well.
    distrusts: bool,
    probe_at: Option<Nanos>,
    actions: VecDeque<Action>,
}

/// A channel.
#[derive(Debug)]
enum Link {
    /// Being opened, with the facts that the peer is to be told.
    Connecting(BTreeSet<Rank>),
    /// The peer takes part.
    Up {
        /// The peer may have given up this channel, because it took this member for dead.
        suspect: bool,
        /// The peer was told everything, and has not been dead in between.
        told: bool,
    },
    /// The peer is watched, and takes no part.
    Observed,
}

impl Membership {
    /// The state of a member that has just been started.
    pub fn new(now: Nanos, start: Start) -> Membership {
        let mut table = Table::new(start.members);
        let joined = start.members..(start.members + start.joined).min(MAX_MEMBERS);
        let own = Some(start.rank).filter(|rank| *rank >= start.members);
        joined.chain(own).for_each(|rank| table.set(rank, Fact::FIRST));
        let mut membership = Membership {
            start,
            incarnation: 0,
            settled: false,
            table,
            links: BTreeMap::new(),
            tried: BTreeSet::new(),
            processes: BTreeMap::new(),
            absent: BTreeSet::new(),
            seen: BTreeSet::new(),
            window: 1,
            changed: BTreeMap::new(),
            also: BTreeSet::new(),
            distrusts: false,
            probe_at: None,
            actions: VecDeque::new(),
        };
        membership.watch(now);
        membership
    }

    /// This member's rank.
    pub fn rank(&self) -> Rank {
        self.start.rank
    }

    /// This member's incarnation.
    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// What is known of a member; nothing if there is no such member.
    pub fn fact(&self, rank: Rank) -> Option<Fact> {
        self.table.get(rank)
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        if self.actions.is_empty() {
            self.spread();
        }
        self.actions.pop_front()
    }

    /// When [`Membership::handle_timeout`] is to be called.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.probe_at
    }

    /// A member that is alive as far as is known here.
    fn is_living(&self, rank: Rank) -> bool {
        self.table.get(rank).is_some_and(Fact::is_alive) && !self.absent.contains(&rank)
    }

    /// Whom a fact is told to: living members that take part, as far as is known here.
    fn fingers(&self) -> BTreeSet<Rank> {
        let takes_part =
            |rank| self.is_living(rank) && !matches!(self.links.get(&rank), Some(Link::Observed));
        ring::fingers(self.start.rank, self.table.end(), takes_part)
    }

    /// Tells others what is new (B-4). Members to which there is no channel are connected first.
    fn spread(&mut self) {
        let changed = std::mem::take(&mut self.changed);
        let (also, distrusts) = (std::mem::take(&mut self.also), std::mem::take(&mut self.distrusts));
        if changed.is_empty() {
            return;
        }
        let is_up = |rank: &Rank| matches!(self.links.get(rank), Some(Link::Up { .. }));
        let mut targets = self.fingers();
        targets.extend(also.into_iter().filter(|rank| distrusts || self.is_living(*rank) || is_up(rank)));
        targets.remove(&self.start.rank);
        for target in targets {
            let told_here = |(_, teller): &(&Rank, &Option<Rank>)| **teller != Some(target);
            let ranks: Vec<Rank> = changed.iter().filter(told_here).map(|(rank, _)| *rank).collect();
            if !ranks.is_empty() {
                self.tell(target, &ranks);
            }
        }
    }

    /// Tells a member what is known of these ranks.
    fn tell(&mut self, target: Rank, ranks: &[Rank]) {
        match self.links.get_mut(&target) {
            Some(Link::Up { .. }) => {
                let facts = ranks.iter().filter_map(|rank| Some((*rank, self.table.get(*rank)?))).collect();
                self.send(target, false, facts);
            }
            Some(Link::Connecting(queued)) => queued.extend(ranks),
            Some(Link::Observed) => {}
            None => self.connect(target, ranks.iter().copied().collect()),
        }
    }

    fn connect(&mut self, rank: Rank, queued: BTreeSet<Rank>) {
        self.links.insert(rank, Link::Connecting(queued));
        self.actions.push_back(Action::Connect(rank));
    }

    /// Tells a member everything, and asks for what it knows (B-6).
    fn send_all(&mut self, to: Rank) {
        let facts = self.table.iter().collect();
        self.send(to, true, facts);
    }

    fn send(&mut self, to: Rank, sync: bool, facts: Vec<(Rank, Fact)>) {
        let (process, incarnation) = (self.start.process, self.incarnation);
        self.actions.push_back(Action::Send(to, Message { process, incarnation, sync, facts }));
    }
}

/// What a member learns, and what it makes of it: facts of others, and of itself.
impl Membership {
    /// A message has arrived.
    pub fn handle_message(&mut self, now: Nanos, from: Rank, message: &Message) {
        if from == self.start.rank || from >= MAX_MEMBERS {
            return;
        }
        self.note_process(from, message);
        for (rank, fact) in &message.facts {
            self.learn(*rank, *fact, Some(from));
        }
        self.settled = true;
        if message.sync {
            self.answer(from, message);
        }
        self.watch(now);
    }

    /// B-8: two processes that take themselves for the same incarnation follow each other, so that the former
    /// has ended.
    fn note_process(&mut self, from: Rank, message: &Message) {
        let here = (message.process, message.incarnation);
        let former = self.processes.insert(from, here);
        let restarted = former.is_some_and(|former| former.0 != here.0 && former.1 == here.1);
        let fact = Fact::alive(message.incarnation);
        if restarted && self.table.get(from) == Some(fact) {
            self.learn(from, Fact { status: Status::Died, ..fact }, None);
        }
    }

    /// Tells a member that has sent all its facts those that it lacks (B-6).
    fn answer(&mut self, to: Rank, message: &Message) {
        let mut theirs = Table::new(self.start.members);
        message.facts.iter().for_each(|(rank, fact)| theirs.set(*rank, *fact));
        let lacks: Vec<_> =
            self.table.iter().filter(|(rank, fact)| theirs.get(*rank) < Some(*fact)).collect();
        if !lacks.is_empty() && matches!(self.links.get(&to), Some(Link::Up { .. })) {
            self.send(to, false, lacks);
        }
    }

    /// Takes a fact if it is new, and has it told to others.
    pub(super) fn learn(&mut self, rank: Rank, fact: Fact, teller: Option<Rank>) {
        let known = self.table.get(rank);
        if known >= Some(fact) {
            return;
        }
        // Also those are told that were alive until now: they may be wrong in the same way (B-5).
        let fingers = self.fingers();
        self.also.extend(fingers);
        if rank == self.start.rank {
            return self.take_next_incarnation(fact.incarnation);
        }
        self.table.set(rank, fact);
        self.changed.insert(rank, teller);
        if fact.is_alive() {
            self.absent.remove(&rank);
        } else if let Some(Link::Up { told, .. }) = self.links.get_mut(&rank) {
            *told = false;
            // B-7: whoever can still be reached learns that it was declared dead.
            self.also.insert(rank);
        }
        self.tell_program(rank, known, fact);
    }

    /// B-7: others know of a later end, or of a later life, of this member than its own.
    fn take_next_incarnation(&mut self, past: u32) {
        self.incarnation = past + 1;
        self.table.set(self.start.rank, Fact::alive(self.incarnation));
        self.changed.insert(self.start.rank, None);
        self.distrusts = true;
        for link in self.links.values_mut() {
            if let Link::Up { suspect, .. } = link {
                *suspect = true;
            }
        }
        if self.settled {
            self.notify(Notice::Fenced { incarnation: self.incarnation });
        }
    }

    fn tell_program(&mut self, rank: Rank, known: Option<Fact>, fact: Fact) {
        if !self.settled && known.is_some_and(Fact::is_alive) && fact.is_alive() {
            // It happened before this member was there.
            return;
        }
        let ended =
            |fact: Fact| if fact.status == Status::Left { Notice::Left(rank) } else { Notice::Died(rank) };
        match known {
            None => {
                self.notify(Notice::Joined(rank));
                if !fact.is_alive() {
                    self.notify(ended(fact));
                }
            }
            Some(known) if known.is_alive() => {
                if fact.is_alive() || fact.incarnation > known.incarnation {
                    // Its end was missed.
                    self.notify(Notice::Died(rank));
                }
                match (fact.is_alive(), fact.incarnation > known.incarnation) {
                    (true, _) => self.notify(Notice::Started(rank)),
                    (false, false) => self.notify(ended(fact)),
                    // It has come and ended again: for the program it has ended.
                    (false, true) => {}
                }
            }
            Some(_) if fact.is_alive() => self.notify(Notice::Started(rank)),
            // It had ended, and has.
            Some(_) => {}
        }
    }

    fn notify(&mut self, notice: Notice) {
        self.actions.push_back(Action::Tell(notice));
    }
}

/// Channels: which ones a member opens, and what it concludes from their ends.
impl Membership {
    /// There is a channel to a member now, whoever opened it. `takes_part`: the member has this protocol.
    pub fn handle_up(&mut self, now: Nanos, rank: Rank, takes_part: bool) {
        self.absent.remove(&rank);
        if !self.start.present {
            self.seen.insert(rank);
        }
        let tried = self.tried.remove(&rank);
        let queued = match self.links.remove(&rank) {
            Some(Link::Connecting(queued)) => Some(queued),
            _ => tried.then(BTreeSet::new),
        };
        let opened = queued.is_some();
        let told = opened && self.is_living(rank);
        let link = if takes_part { Link::Up { suspect: false, told } } else { Link::Observed };
        self.links.insert(rank, link);
        if takes_part && opened {
            // B-6: whoever opens a channel says all that it knows, and is told what it lacks.
            self.send_all(rank);
        } else if let Some(queued) = queued {
            self.tell_again(queued);
        }
        self.watch(now);
    }

    /// A channel to a member has ended, or could not be opened.
    pub fn handle_down(&mut self, now: Nanos, rank: Rank, end: End) {
        let Some(link) = self.links.remove(&rank) else { return };
        if end == End::Unreachable {
            self.tried.insert(rank);
        }
        let suspect = matches!(link, Link::Up { suspect: true, .. });
        if let Link::Connecting(queued) = link
            && self.is_living(rank)
        {
            self.tell_again(queued);
        }
        match end {
            // The next message shows whether it is another process (B-8).
            End::Replaced => {}
            // It may have ended the channel because it took this member for dead: that is no sign of death.
            End::Lost if suspect => self.connect(rank, BTreeSet::new()),
            End::Closed => self.conclude(rank, Status::Left),
            End::Unreachable if !self.has_started(rank) => {
                self.absent.insert(rank);
                self.widen();
            }
            End::Lost | End::Unreachable => self.conclude(rank, Status::Died),
        }
        self.watch(now);
    }

    /// The deadline has passed.
    pub fn handle_timeout(&mut self, now: Nanos) {
        if self.probe_at.is_none_or(|at| now < at) {
            return;
        }
        self.probe_at = None;
        // B-9: members that were lost and those that never came are tried by the one that watches for them.
        let gap: Vec<Rank> = self.gap().collect();
        for rank in gap {
            if !self.links.contains_key(&rank) {
                self.connect(rank, BTreeSet::new());
            }
        }
        self.watch(now);
    }

    /// A member that was alive has ended.
    fn conclude(&mut self, rank: Rank, status: Status) {
        let Some(fact) = self.table.get(rank).filter(|fact| fact.is_alive()) else { return };
        self.learn(rank, Fact { status, ..fact }, None);
        self.widen();
        if status == Status::Died && !self.start.present {
            // It watched the next one, which therefore has been started.
            let next = ring::after(rank, self.table.end()).find(|next| self.is_living(*next));
            self.seen.extend(next);
        }
    }

    /// More successors are tried at once, until one is found that lives (B-11).
    fn widen(&mut self) {
        self.window = (self.window * GROWTH).min(MAX_WINDOW);
    }

    fn has_started(&self, rank: Rank) -> bool {
        self.start.present || self.seen.contains(&rank) || self.table.has(rank)
    }

    fn tell_again(&mut self, queued: BTreeSet<Rank>) {
        for rank in queued {
            self.changed.entry(rank).or_insert(None);
        }
    }

    /// Sees to it that there is a channel to the next living member (B-2). Those that take no part are
    /// watched, too, because they watch nobody. After a death several are tried at once, so that it does not
    /// take a time-out for each of many that died together.
    pub(super) fn watch(&mut self, now: Nanos) {
        let mut left = self.window;
        let (mut wanted, mut next) = (Vec::new(), None);
        for rank in ring::after(self.start.rank, self.table.end()) {
            if !self.is_living(rank) {
                continue;
            }
            match self.links.get_mut(&rank) {
                Some(Link::Observed) => continue,
                Some(Link::Up { told, .. }) => {
                    next = Some(rank).filter(|_| !std::mem::replace(told, true));
                    self.window = 1;
                    break;
                }
                Some(Link::Connecting(_)) => {}
                None => wanted.push(rank),
            }
            left -= 1;
            if left == 0 {
                break;
            }
        }
        for rank in wanted {
            self.connect(rank, BTreeSet::new());
        }
        if let Some(next) = next {
            // B-6: it may have missed something while others watched it, or while it counted as dead.
            self.send_all(next);
        }
        if self.probe_at.is_none() && self.gap().next().is_some() {
            self.probe_at = Some(now + self.start.bound);
        }
    }

    /// The members between this one and the next living one that were lost or never came.
    fn gap(&self) -> impl Iterator<Item = Rank> {
        let is_next =
            |rank: &Rank| self.is_living(*rank) && matches!(self.links.get(rank), Some(Link::Up { .. }));
        let is_missing = |rank: &Rank| {
            let died = self.table.get(*rank).is_some_and(|fact| fact.status == Status::Died);
            died || self.absent.contains(rank)
        };
        ring::after(self.start.rank, self.table.end())
            .take_while(move |rank| !is_next(rank))
            .filter(is_missing)
    }
}
