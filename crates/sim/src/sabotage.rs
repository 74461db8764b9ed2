//! Deliberate mistakes, each of them in what wraps the library: its device, its events, its timers, its
//! handlers, its entropy. The checkers do not know of them.

use std::cell::{Cell, RefCell};

use tautline::{Event, Rank};
use tautline_node::{FastPoll, FrameBatch};

use crate::Nanos;
use crate::handlers::Kind;

/// A deliberate mistake, to show that the checkers detect it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sabotage {
    /// None.
    #[default]
    None,
    /// A handler is called twice for a message.
    Repeat,
    /// No handler is called for a message.
    Skip,
    /// Two messages change places.
    Reorder,
    /// A handler panics that does not by itself.
    Panic,
    /// A message that is meant to be sent whole is abandoned.
    Abort,
    /// The network damages frames in a mode without tags.
    Damage,
    /// After healing, one program never extracts again.
    Stall,
    /// The same, long before healing.
    StallEarly,
    /// A computing peer is taken for dead, because no watchdog makes progress for it.
    NoWatchdog,
    /// The ends of peers are not reported. One node crashes several times.
    HideDeaths,
    /// The same, but no node crashes: one is cut off for a while, several times.
    HideLosses,
    /// Ends are hidden for a while. Later the node that was cut off crashes, and that is reported.
    HideThenCrash,
    /// Messages for a node that crashes are handed to its successor.
    Late,
    /// One node does not take part when all close.
    NoClose,
    /// A slot is taken and never freed.
    Leak,
    /// The same, while a node closes.
    LeakLate,
    /// A program never sends its last message.
    Withhold,
    /// Frames in shared memory are taken and dropped.
    DropLocal,
    /// Frames in shared memory are delivered twice.
    RepeatLocal,
    /// Frames in shared memory are lost when their sender crashes.
    LoseWithSender,
}

/// The mistake of a world, and when it is made.
#[derive(Debug)]
pub(crate) struct Saboteur {
    what: Sabotage,
    /// Opportunities for mistakes that are made once.
    seen: Cell<u64>,
    withheld: RefCell<Option<Withheld>>,
}

/// The kinds and the bytes of messages.
type Messages = Vec<(Kind, Vec<u8>)>;

/// Messages of one peer that a crashing incarnation does not get.
#[derive(Debug)]
struct Withheld {
    number: u64,
    from: Rank,
    messages: Messages,
}

/// The node that crashes if a mistake needs a crash.
pub(crate) const CRASHING: u32 = 1;

/// [`Sabotage::StallEarly`] begins at this time.
const STALLED_FROM: Nanos = 1_000_000_000;

/// The duration of a world whose mistake takes long to be noticed.
pub(crate) const LONG_HORIZON: Nanos = 15_000_000_000;

/// [`Sabotage::HideThenCrash`] hides ends until this time.
const HIDDEN_UNTIL: Nanos = 10_000_000_000;

/// The first opportunities are left out, so that the world is under way.
const SPARED: u64 = 100;

impl Saboteur {
    pub(crate) fn new(what: Sabotage) -> Saboteur {
        Saboteur { what, seen: Cell::new(0), withheld: RefCell::default() }
    }

    /// Whether it is this mistake.
    pub(crate) fn is(&self, what: Sabotage) -> bool {
        self.what == what
    }

    /// Whether it is this mistake, and now is the time to make it.
    pub(crate) fn strikes(&self, what: Sabotage) -> bool {
        if self.what != what {
            return false;
        }
        self.seen.set(self.seen.get() + 1);
        self.seen.get() == SPARED
    }

    /// Whether a program does not get to read an event.
    pub(crate) fn hides(&self, event: &Event, now: Nanos) -> bool {
        let hides = match self.what {
            Sabotage::HideDeaths | Sabotage::HideLosses => true,
            Sabotage::HideThenCrash => now < HIDDEN_UNTIL,
            _ => false,
        };
        hides && matches!(event, Event::PeerDown { .. })
    }

    /// Whether a program extracts nothing from now on.
    pub(crate) fn stalls(&self, place: u32, now: Nanos) -> bool {
        self.what == Sabotage::StallEarly && place == CRASHING && now > STALLED_FROM
    }

    /// Messages that a program keeps for itself.
    pub(crate) fn withheld_messages(&self, place: u32) -> u64 {
        u64::from(self.what == Sabotage::Withhold && place == CRASHING)
    }

    /// Takes frames that a node has in shared memory, and drops or repeats them. Returns whether there were
    /// any.
    pub(crate) fn meddle(&self, node: &tautline_node::Endpoint, steps: u64) -> bool {
        let mut batch = FrameBatch::default();
        let meddles = matches!(self.what, Sabotage::DropLocal | Sabotage::RepeatLocal);
        if !meddles || steps < SPARED || !take(node, &mut batch) {
            return false;
        }
        if self.what == Sabotage::RepeatLocal {
            let _ = node.put_back(&batch, 0);
            let _ = node.put_back(&batch, 0);
        }
        true
    }

    /// A process of a node's host is about to crash: loses what it has sent.
    pub(crate) fn lose(&self, node: &tautline_node::Endpoint, sender: Rank) {
        let mut batch = FrameBatch::default();
        while self.what == Sabotage::LoseWithSender && take(node, &mut batch) {
            if batch.from().rank != sender {
                let _ = node.put_back(&batch, 0);
                break;
            }
        }
    }

    /// Whether an incarnation does not get what a peer sends: it crashes soon.
    pub(crate) fn withholds(&self, (place, number): (u32, u64), from: Rank) -> bool {
        let mut withheld = self.withheld.borrow_mut();
        if self.what != Sabotage::Late || place != CRASHING {
            return false;
        }
        let victim = withheld.get_or_insert_with(|| Withheld { number, from, messages: Vec::new() });
        victim.number == number && victim.from == from
    }

    /// Keeps a message that was withheld.
    pub(crate) fn keep(&self, kind: Kind, data: &[u8]) {
        if let Some(withheld) = &mut *self.withheld.borrow_mut() {
            withheld.messages.push((kind, data.to_vec()));
        }
    }

    /// What was withheld from the predecessor of an incarnation, and its sender.
    pub(crate) fn overdue(&self, (place, number): (u32, u64)) -> Option<(Rank, Messages)> {
        let mut withheld = self.withheld.borrow_mut();
        let withheld = withheld.as_mut().filter(|it| place == CRASHING && number != it.number)?;
        Some((withheld.from, std::mem::take(&mut withheld.messages)))
    }
}

fn take(node: &tautline_node::Endpoint, batch: &mut FrameBatch) -> bool {
    node.take_frames(usize::MAX, batch).ok() == Some(FastPoll::Frames)
}
