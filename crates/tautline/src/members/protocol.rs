//! The protocol among the members (B-1 … B-12) on a lane and a thread of its own (N-29): messages go on while
//! the program computes, and its own channels and events are not affected.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use tautline_members::{Action, End, Membership, Message as Facts, Nanos, Notice, Start};
use tautline_node::limits::MEMBERS_LANE;
use tautline_node::link::Death;
use tautline_node::{Address, Members};

use crate::endpoint::{Endpoint, Lanes};
use crate::error::{Error, Result};
use crate::messages::Message;
use crate::{Down, Event, JoinError, Rank};

const HANDLER: &str = "tautline.members";
/// The handler keeps messages of up to 786,448 bytes, and little else.
const STACK: usize = 512 << 10;
/// A message with a fact about every member that a job can have.
const LONGEST: u64 = 16 + 12 * tautline_members::MAX_MEMBERS as u64;

type Inbox = Rc<RefCell<Vec<(Rank, Facts)>>>;

/// Starts to take part, until the node is closed. `present`: all members have been started. `bound`: the
/// silence after which a peer counts as dead.
pub(crate) fn take_part(endpoint: &Endpoint, present: bool, bound: Nanos) -> Result<()> {
    let (rank, members) = (endpoint.rank(), endpoint.size());
    if members < 2 {
        return Ok(());
    }
    let key = tautline_launch::random_key().map_err(JoinError::System)?;
    let process = u64::from_le_bytes(key.bytes()[..8].try_into().expect("eight bytes"));
    let start = Start { rank, members, joined: 0, process, present, bound };
    let (program, lanes) = (endpoint.members(), endpoint.lanes());
    let (opened, result) = sync_channel(1);
    let thread = std::thread::Builder::new().name("members".into()).stack_size(STACK);
    thread.spawn(move || run(&lanes, program, start, &opened)).map_err(JoinError::System)?;
    result.recv().unwrap_or(Err(Error::Join(JoinError::Closed)))
}

/// What the thread does.
fn run(lanes: &Lanes, program: Members, start: Start, opened: &SyncSender<Result<()>>) {
    let inbox = Inbox::default();
    let endpoint = match open(lanes, &inbox) {
        Ok(endpoint) => endpoint,
        Err(error) => return drop(opened.send(Err(error))),
    };
    let (began, machine) = (Instant::now(), Membership::new(0, start));
    let half = Duration::from_nanos(start.bound / 2);
    let mut driver = Driver {
        endpoint,
        inbox,
        program,
        machine,
        began,
        half,
        attempts: BTreeMap::new(),
        up: BTreeSet::new(),
        observed: BTreeSet::new(),
    };
    let _ = opened.send(Ok(()));
    // It ends when the node is closed.
    while driver.turn().is_ok() {}
}

fn open(lanes: &Lanes, inbox: &Inbox) -> Result<Endpoint> {
    let inbox = inbox.clone();
    let builder = Endpoint::builder().max_whole(LONGEST).on(HANDLER, move |mut message: Message| {
        let inbox = inbox.clone();
        async move {
            if message.len() > LONGEST {
                return Err(Error::Violation("a message among members that is too long"));
            }
            let from = Address::from(message.from());
            let bytes = message.read_to_end().await?;
            let facts = Facts::decode(&bytes).filter(|_| from.lane == MEMBERS_LANE);
            let facts = facts.ok_or(Error::Violation("a message among members that makes no sense"))?;
            inbox.borrow_mut().push((from.rank, facts));
            Ok(())
        }
    });
    let endpoint = lanes.open_for_members(builder.on_failure(|failure| {
        tracing::warn!(%failure, "a message among members was ignored");
    }))?;
    // What a member that is gone has not been told is no loss.
    let node = &endpoint.core.node;
    node.leave_unreported(node.key(HANDLER)?)?;
    Ok(endpoint)
}

struct Driver {
    endpoint: Endpoint,
    inbox: Inbox,
    program: Members,
    machine: Membership,
    began: Instant,
    /// Half of the bound: for so long each of a member's two lanes is tried.
    half: Duration,
    attempts: BTreeMap<Rank, Attempt>,
    /// Members with a channel that take part.
    up: BTreeSet<Rank>,
    /// Members that take no part, with a channel to their first lane.
    observed: BTreeSet<Rank>,
}

/// An attempt to open a channel.
struct Attempt {
    until: Instant,
    /// The member has not been reached where it would take part; now its first lane is tried.
    first_lane: bool,
}

impl Driver {
    /// Handles what there is, and waits for more.
    fn turn(&mut self) -> Result<()> {
        self.endpoint.extract(usize::MAX)?;
        while let Some(event) = self.endpoint.poll_event() {
            self.handle_event(&event);
        }
        let now = self.now();
        for (from, facts) in self.inbox.take() {
            self.machine.handle_message(now, from, &facts);
        }
        self.give_up_attempts()?;
        self.machine.handle_timeout(now);
        while let Some(action) = self.machine.poll_action() {
            self.act(action)?;
        }
        let deadline = self.machine.next_deadline().map(|at| self.began + Duration::from_nanos(at));
        let next = self.attempts.values().map(|attempt| attempt.until).chain(deadline).min();
        self.endpoint.wait(next.map(|at| at.saturating_duration_since(Instant::now())))?;
        Ok(())
    }

    fn now(&self) -> Nanos {
        self.began.elapsed().as_nanos() as Nanos
    }

    fn handle_event(&mut self, event: &Event) {
        let now = self.now();
        match event {
            Event::PeerUp { peer, .. } => {
                let Address { rank, lane } = Address::from(*peer);
                if lane == MEMBERS_LANE {
                    self.attempts.remove(&rank);
                    self.observed.remove(&rank);
                    self.up.insert(rank);
                    self.machine.handle_up(now, rank, true);
                } else if lane == 0 && !self.up.contains(&rank) {
                    self.attempts.remove(&rank);
                    self.observed.insert(rank);
                    self.machine.handle_up(now, rank, false);
                }
            }
            Event::PeerDown { peer, why, .. } => {
                let Address { rank, lane } = Address::from(*peer);
                let known = if lane == MEMBERS_LANE { &mut self.up } else { &mut self.observed };
                if known.remove(&rank) {
                    self.machine.handle_down(now, rank, end(*why));
                }
            }
            _ => {}
        }
    }

    /// Attempts whose time is over go on with the other lane, or have failed.
    fn give_up_attempts(&mut self) -> Result<()> {
        let (now, at) = (Instant::now(), self.now());
        let due: Vec<Rank> =
            self.attempts.iter().filter(|(_, attempt)| attempt.until <= now).map(|(rank, _)| *rank).collect();
        for rank in due {
            match self.attempts.get_mut(&rank) {
                Some(attempt) if !attempt.first_lane => {
                    *attempt = Attempt { until: now + self.half, first_lane: true };
                    self.endpoint.connect(rank)?;
                }
                _ => {
                    self.attempts.remove(&rank);
                    self.machine.handle_down(at, rank, End::Unreachable);
                }
            }
        }
        Ok(())
    }

    fn act(&mut self, action: Action) -> Result<()> {
        match action {
            Action::Connect(rank) => {
                let attempt = Attempt { until: Instant::now() + self.half, first_lane: false };
                self.attempts.insert(rank, attempt);
                self.endpoint.connect(Address::new(rank, MEMBERS_LANE).into())?;
            }
            Action::Send(rank, facts) => {
                // If the channel is over, its end is reported, too.
                let to: Rank = Address::new(rank, MEMBERS_LANE).into();
                drop(self.endpoint.start_send(to, HANDLER, facts.encode()));
            }
            Action::Tell(notice) => match notice {
                Notice::Died(rank) => self.program.ended(rank, Down::Reported)?,
                Notice::Left(rank) => self.program.ended(rank, Down::Closed)?,
                Notice::Started(rank) => self.program.started(rank)?,
                Notice::Fenced { incarnation } => self.program.fenced(incarnation)?,
                // Nobody joins a job whose launcher cannot tell its address.
                Notice::Joined(_) => {}
            },
        }
        Ok(())
    }
}

fn end(why: Down) -> End {
    match why {
        Down::Died(Death::Restarted) => End::Replaced,
        Down::Closed => End::Closed,
        Down::Unreachable | Down::Refused(_) | Down::Shortage(_) => End::Unreachable,
        _ => End::Lost,
    }
}
