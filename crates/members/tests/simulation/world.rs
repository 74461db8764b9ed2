//! A network of members on a virtual clock: channels that break, partitions, crashes, restarts, pauses.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use tautline_members::{Action, End, Fact, Membership, Message, Nanos, Notice, Rank, Start};

/// The silence after which a peer counts as dead, and the time after which a channel counts as unreachable.
pub const BOUND: Nanos = 1_000_000_000;
/// Between two attempts to reach a peer.
const RETRY: Nanos = BOUND / 10;
const DELAY: (Nanos, Nanos) = (50_000, 500_000);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// An attempt to open a channel, which ends at the given time.
    Dial {
        from: Rank,
        to: Rank,
        process: u64,
        until: Nanos,
    },
    Deliver {
        from: Rank,
        to: Rank,
        channel: u64,
        bytes: Vec<u8>,
    },
    /// The side of `at` of a channel with `peer` is up, or over.
    Up {
        at: Rank,
        peer: Rank,
        channel: u64,
    },
    Down {
        at: Rank,
        peer: Rank,
        channel: u64,
        end: Ending,
    },
    /// The channel is over for both sides unless they reach each other again.
    Silence {
        a: Rank,
        b: Rank,
        channel: u64,
    },
    Timeout {
        at: Rank,
        process: u64,
    },
    /// A pause is over.
    Resume {
        at: Rank,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    Lost,
    Closed,
}

struct Node {
    process: u64,
    machine: Membership,
    /// Its side of the channels.
    channels: BTreeMap<Rank, u64>,
    paused_until: Nanos,
    /// A wake-up has been scheduled.
    wakes_at: Nanos,
}

pub struct World {
    now: Nanos,
    random: u64,
    first: u32,
    /// How many ranks there have been.
    ever: u32,
    present: bool,
    nodes: BTreeMap<Rank, Node>,
    sides: BTreeMap<Rank, bool>,
    excluded: Vec<Rank>,
    queue: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    count: u64,
    messages: BTreeMap<Rank, u64>,
    notices: Vec<(Rank, Notice)>,
    /// Prints all that happens.
    pub traces: bool,
}

impl World {
    /// A job of `n` members that have all been started.
    pub fn new(seed: u64, n: usize, present: bool) -> World {
        let mut world = World::unstarted(seed, n);
        world.present = present;
        (0..n as u32).for_each(|rank| world.start(rank));
        world
    }

    /// A job of `n` members of which none has been started.
    pub fn unstarted(seed: u64, n: usize) -> World {
        World {
            now: 0,
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03,
            first: n as u32,
            ever: n as u32,
            present: false,
            nodes: BTreeMap::new(),
            sides: BTreeMap::new(),
            excluded: Vec::new(),
            queue: BinaryHeap::new(),
            count: 0,
            messages: BTreeMap::new(),
            notices: Vec::new(),
            traces: false,
        }
    }

    /// A number below `limit` (splitmix64).
    fn draw(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }

    fn after(&mut self, time: Nanos, event: Event) {
        self.count += 1;
        self.queue.push(Reverse((self.now + time, self.count, event)));
    }

    fn soon(&mut self, event: Event) {
        let delay = DELAY.0 + self.draw(DELAY.1 - DELAY.0);
        self.after(delay, event);
    }

    pub fn start(&mut self, rank: Rank) {
        self.count += 1;
        // Whoever starts it knows how many there have been.
        let (process, members, joined) = (self.count, self.first, self.ever - self.first);
        self.ever = self.ever.max(rank + 1);
        let start = Start { rank, members, joined, process, present: self.present, bound: BOUND };
        let machine = Membership::new(self.now, start);
        let node = Node { process, machine, channels: BTreeMap::new(), paused_until: 0, wakes_at: 0 };
        assert!(self.nodes.insert(rank, node).is_none());
        self.act(rank);
    }

    pub fn is_running(&self, rank: Rank) -> bool {
        self.nodes.contains_key(&rank)
    }

    /// These members take no part: others only notice that they live.
    pub fn exclude(&mut self, which: impl Fn(Rank) -> bool) {
        self.excluded = self.nodes.keys().copied().filter(|rank| which(*rank)).collect();
    }

    pub fn crash(&mut self, rank: Rank) {
        for (peer, channel) in self.end(rank) {
            self.after(BOUND, Event::Down { at: peer, peer: rank, channel, end: Ending::Lost });
        }
    }

    /// Ends a process, and returns the other ends of its channels.
    fn end(&mut self, rank: Rank) -> Vec<(Rank, u64)> {
        self.nodes.remove(&rank).expect("it runs");
        let other_end = |(at, node): (&Rank, &Node)| Some((*at, *node.channels.get(&rank)?));
        self.nodes.iter().filter_map(other_end).collect()
    }

    pub fn leave(&mut self, rank: Rank) {
        for (peer, channel) in self.end(rank) {
            if self.reaches(rank, peer) {
                self.soon(Event::Down { at: peer, peer: rank, channel, end: Ending::Closed });
            } else {
                self.after(BOUND, Event::Down { at: peer, peer: rank, channel, end: Ending::Lost });
            }
        }
    }

    /// Whether two processes reach each other, if they run.
    fn reaches(&self, a: Rank, b: Rank) -> bool {
        let side = |rank| self.sides.get(&rank).copied().unwrap_or(false);
        side(a) == side(b)
    }

    fn runs(&self, rank: Rank) -> bool {
        self.nodes.get(&rank).is_some_and(|node| node.paused_until <= self.now)
    }

    pub fn split(&mut self, side: impl Fn(Rank) -> bool) {
        self.sides = (0..self.first + 64).map(|rank| (rank, side(rank))).collect();
        self.watch_channels();
    }

    pub fn heal(&mut self) {
        self.trace("healed");
        self.sides.clear();
        let paused: Vec<_> = self.nodes.iter().filter(|(_, node)| node.paused_until > self.now).collect();
        let paused: Vec<_> = paused.into_iter().map(|(rank, _)| *rank).collect();
        for rank in paused {
            self.nodes.get_mut(&rank).expect("it runs").paused_until = self.now;
            self.resumed(rank);
        }
    }

    fn pause(&mut self, rank: Rank, time: Nanos) {
        let until = self.now + time;
        self.nodes.get_mut(&rank).expect("it runs").paused_until = until;
        self.after(time, Event::Resume { at: rank });
        self.watch_channels();
    }

    /// Channels whose ends do not reach each other are over in a while.
    fn watch_channels(&mut self) {
        let mut broken = Vec::new();
        for (a, node) in &self.nodes {
            for (b, channel) in &node.channels {
                if !self.reaches(*a, *b) || !self.runs(*a) || !self.runs(*b) {
                    broken.push(Event::Silence { a: *a, b: *b, channel: *channel });
                }
            }
        }
        broken.into_iter().for_each(|event| self.after(BOUND, event));
    }

    /// A process that was paused finds that some channels are silent, in a while.
    fn resumed(&mut self, rank: Rank) {
        let node = &self.nodes[&rank];
        let open = |peer: &Rank, channel: &u64| {
            self.nodes.get(peer).is_some_and(|node| node.channels.get(&rank) == Some(channel))
        };
        let over: Vec<_> = node.channels.iter().filter(|(peer, channel)| !open(peer, channel)).collect();
        let over: Vec<_> = over.into_iter().map(|(peer, channel)| (*peer, *channel)).collect();
        for (peer, channel) in over {
            self.after(BOUND, Event::Down { at: rank, peer, channel, end: Ending::Lost });
        }
    }

    /// Random faults, for as many bounds.
    pub fn run_with_faults(&mut self, bounds: u64) {
        let until = self.now + bounds * BOUND;
        while self.now < until {
            let rank = self.draw(u64::from(self.first)) as Rank;
            let others = self.nodes.len();
            match (self.draw(12), self.nodes.contains_key(&rank)) {
                (0..=1, true) if others > 1 => self.crash(rank),
                (2, true) if others > 2 => self.leave(rank),
                (3..=6, false) => self.start(rank),
                (7, _) => {
                    let salt = self.draw(1 << 20) as u32;
                    self.split(|rank| {
                        (rank.wrapping_mul(2_654_435_761) ^ salt).count_ones().is_multiple_of(2)
                    });
                }
                (8, _) => self.split(|other| other < rank),
                (9, _) => self.sides.clear(),
                (10, true) => {
                    let time = self.draw(3 * BOUND);
                    self.pause(rank, time);
                }
                (11, _) => {
                    let next = self.nodes.last_key_value().map_or(0, |(rank, _)| rank + 1);
                    if next >= self.first && next < self.first + 4 {
                        self.start(next);
                    }
                }
                _ => {}
            }
            let time = self.draw(BOUND);
            self.run_for(time);
        }
    }

    pub fn run_for(&mut self, time: Nanos) {
        let until = self.now + time;
        while self.queue.peek().is_some_and(|Reverse((at, ..))| *at <= until) {
            let Reverse((at, _, event)) = self.queue.pop().expect("there is one");
            self.now = at;
            self.handle(event);
        }
        self.now = until;
    }

    fn trace(&self, what: impl std::fmt::Debug) {
        if self.traces {
            println!("{:>14} {what:?}", self.now);
        }
    }

    fn handle(&mut self, event: Event) {
        self.trace(&event);
        match event {
            Event::Dial { from, to, process, until } => self.dial(from, to, process, until),
            Event::Deliver { from, to, channel, bytes } => self.deliver(from, to, channel, bytes),
            Event::Up { at, peer, channel } => self.up(at, peer, channel, false),
            Event::Down { at, peer, channel, end } => self.down(at, peer, channel, end),
            Event::Silence { a, b, channel } => {
                for (at, peer) in [(a, b), (b, a)] {
                    // A paused process notices nothing.
                    if (!self.reaches(a, b) || !self.runs(peer)) && self.runs(at) {
                        self.down(at, peer, channel, Ending::Lost);
                    }
                }
            }
            Event::Resume { at } => {
                if self.runs(at) {
                    self.resumed(at);
                }
            }
            Event::Timeout { at, process } => {
                if self.delayed(at, Event::Timeout { at, process }) {
                    return;
                }
                let now = self.now;
                if let Some(node) = self.nodes.get_mut(&at).filter(|node| node.process == process) {
                    node.wakes_at = 0;
                    node.machine.handle_timeout(now);
                    self.act(at);
                }
            }
        }
    }

    /// What happens to a paused process happens when it goes on.
    fn delayed(&mut self, at: Rank, event: Event) -> bool {
        let Some(node) = self.nodes.get(&at) else { return false };
        if node.paused_until <= self.now {
            return false;
        }
        let time = node.paused_until - self.now;
        self.after(time, event);
        true
    }

    fn dial(&mut self, from: Rank, to: Rank, process: u64, until: Nanos) {
        if self.delayed(from, Event::Dial { from, to, process, until }) {
            return;
        }
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&from).filter(|node| node.process == process) else { return };
        if node.channels.contains_key(&to) {
            // The other side was faster.
            return;
        }
        if self.reaches(from, to) && self.runs(to) && from != to {
            self.count += 1;
            let channel = self.count;
            self.up(to, from, channel, true);
            self.soon(Event::Up { at: from, peer: to, channel });
        } else if now >= until {
            self.nodes.get_mut(&from).expect("it runs").machine.handle_down(now, to, End::Unreachable);
            self.act(from);
        } else {
            self.after(RETRY, Event::Dial { from, to, process, until });
        }
    }

    fn up(&mut self, at: Rank, peer: Rank, channel: u64, accepted: bool) {
        if self.delayed(at, Event::Up { at, peer, channel }) {
            return;
        }
        // The other end may have ended meanwhile, or opened a later one.
        let other = self.nodes.get(&peer).and_then(|node| node.channels.get(&at).copied());
        let takes_part = !self.excluded.contains(&peer) && !self.excluded.contains(&at);
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&at) else { return };
        if node.channels.get(&peer).is_some_and(|present| *present > channel) {
            return;
        }
        if node.channels.insert(peer, channel).is_some() {
            node.machine.handle_down(now, peer, End::Replaced);
        }
        node.machine.handle_up(now, peer, takes_part);
        if !accepted && other != Some(channel) {
            self.after(BOUND, Event::Down { at, peer, channel, end: Ending::Lost });
        }
        self.act(at);
    }

    fn down(&mut self, at: Rank, peer: Rank, channel: u64, end: Ending) {
        if self.delayed(at, Event::Down { at, peer, channel, end }) {
            return;
        }
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&at) else { return };
        if node.channels.get(&peer) != Some(&channel) {
            return;
        }
        node.channels.remove(&peer);
        node.machine.handle_down(now, peer, if end == Ending::Lost { End::Lost } else { End::Closed });
        self.act(at);
    }

    fn deliver(&mut self, from: Rank, to: Rank, channel: u64, bytes: Vec<u8>) {
        let sent = self.nodes.get(&from).is_some_and(|node| node.channels.get(&to) == Some(&channel));
        if sent && !(self.reaches(from, to) && self.runs(to)) {
            // It is sent again, while the channel lasts.
            self.after(RETRY, Event::Deliver { from, to, channel, bytes });
            return;
        }
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&to) else { return };
        match node.channels.get(&from) {
            Some(present) if *present == channel => {}
            // This end is not open yet.
            present if sent && present.is_none_or(|present| *present < channel) => {
                return self.soon(Event::Deliver { from, to, channel, bytes });
            }
            _ => return,
        }
        *self.messages.entry(to).or_default() += 1;
        node.machine.handle_message(now, from, &Message::decode(&bytes).expect("it was encoded"));
        self.act(to);
    }

    /// Carries out what a member wants.
    fn act(&mut self, rank: Rank) {
        loop {
            let now = self.now;
            let Some(node) = self.nodes.get_mut(&rank) else { return };
            let process = node.process;
            let action = node.machine.poll_action();
            self.trace((rank, &action));
            let Some(node) = self.nodes.get_mut(&rank) else { return };
            match action {
                Some(_) if self.excluded.contains(&rank) => {}
                Some(Action::Connect(to)) => {
                    self.soon(Event::Dial { from: rank, to, process, until: now + BOUND });
                }
                Some(Action::Send(to, message)) => {
                    let Some(channel) = node.channels.get(&to).copied() else { continue };
                    *self.messages.entry(rank).or_default() += 1;
                    self.soon(Event::Deliver { from: rank, to, channel, bytes: message.encode() });
                }
                Some(Action::Tell(notice)) => self.notices.push((rank, notice)),
                None => break,
            }
        }
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&rank) else { return };
        if let Some(at) = node.machine.next_deadline().filter(|at| node.wakes_at < *at) {
            node.wakes_at = at;
            let process = node.process;
            self.after(at.saturating_sub(now), Event::Timeout { at: rank, process });
        }
    }

    pub fn reset_counts(&mut self) {
        self.messages.clear();
        self.notices.clear();
    }

    /// The most that any member has sent and received.
    pub fn most_messages(&self) -> u64 {
        self.messages.values().copied().max().unwrap_or(0)
    }

    pub fn take_notices(&mut self) -> Vec<(Rank, Notice)> {
        std::mem::take(&mut self.notices)
    }

    /// All that run agree on all.
    pub fn check_agreement(&self, seed: u64) {
        let end = self.nodes.last_key_value().map_or(0, |(rank, _)| rank + 1).max(self.first);
        let running: Vec<_> = self.nodes.iter().collect();
        for rank in 0..end {
            let facts: Vec<(Rank, Option<Fact>)> =
                running.iter().map(|(at, node)| (**at, node.machine.fact(rank))).collect();
            let first = facts[0].1;
            assert!(facts.iter().all(|(_, fact)| *fact == first), "seed {seed}: rank {rank} is {facts:?}");
            if let Some(node) = self.nodes.get(&rank) {
                let fact = first.expect("it is known");
                let own = (node.machine.incarnation(), true);
                assert_eq!((fact.incarnation, fact.is_alive()), own, "seed {seed}: rank {rank}");
            } else if self.present {
                assert!(first.is_none_or(|fact| !fact.is_alive()), "seed {seed}: rank {rank} is gone");
            }
        }
    }
}
