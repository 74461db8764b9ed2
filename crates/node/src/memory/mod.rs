//! The second primitive: memory that others reach, and tripwires that tell of it.
//!
//! What lives here: apertures and cookies (`tables`), tripwires and tripsets (`wires`, `sets`, over `index`), what is done for others (`serve`,
//! `answers`), what others are asked to do (`request`, `queue`, `put`, `emit`), and what the program is told (`news`). Everything happens under the interface's owner
//! word; requests are served whenever anybody polls, the watchdog included.

mod answers;
mod index;
mod news;
mod put;
mod queue;
mod request;
mod serve;
mod sets;
mod slab;
mod tables;
#[cfg(test)]
mod tests;
mod wires;
mod words;

use std::collections::{HashMap, VecDeque};
use tautline_link::Nanos;

pub use news::{MemoryEvent, OutOfBand, Wakeup};
pub use put::Progress;
pub use queue::{Local, Operation};
pub(crate) use request::Tell;
pub use request::{Failure, Ticket};
pub(crate) use serve::Placed;
pub use sets::SetId;
pub use slab::Name;
pub use tables::{ApertureId, Cookie, Hint, Rights};
pub use tautline_wire::memory::{Atomic, MAX_OUT_OF_BAND, Refusal};
pub use wires::{Access, Condition, Report, Test, Trip, WireCell, WireId};

use crate::Rank;
use crate::limits::{MAX_APERTURES, MAX_COOKIES, MAX_OPERATIONS};
use answers::Answer;
use news::News;
use queue::Request;
use request::{Op, Outstanding};
use slab::Slab;
use tables::{Aperture, CookieKey, Flag, Granted, Handle};
use wires::Wires;

/// What a node keeps of memory.
#[derive(Debug)]
pub(crate) struct Memory {
    /// This life of the node; cookies of another one are stale.
    pub(crate) epoch: u64,
    pub(crate) apertures: Slab<Aperture>,
    pub(crate) cookies: Slab<Granted>,
    /// Changes whenever the place of a put, its being allowed or the tripwires that it touches may be others than before.
    pub(crate) version: u64,
    /// The secrets of cookies, by number.
    pub(crate) secrets: Vec<[u8; 16]>,
    /// The secrets of the last cookies that were taken back, by number.
    pub(crate) gone: HashMap<u32, [u8; 16]>,
    pub(crate) wires: Wires,
    pub(crate) ops: Slab<Op>,
    pub(crate) news: News,
    /// Peers that have answers or requests waiting to be sent, in the order of their turns.
    pub(crate) busy: VecDeque<Rank>,
    /// The last service ended because it had done enough, not for want of room.
    pub(crate) more: bool,
    /// Requests and answers of peers that were served.
    pub(crate) served: u64,
    /// The time of the last poll that knew it.
    pub(crate) now: Nanos,
    /// When the last cookie that expires will have.
    pub(crate) last_expiry: Nanos,
    pub(crate) scratch: Vec<u8>,
    pub(crate) counters: MemoryCounters,
}

impl Memory {
    pub(crate) fn new(epoch: u64) -> Memory {
        Memory {
            epoch,
            apertures: Slab::new(MAX_APERTURES),
            cookies: Slab::new(MAX_COOKIES),
            version: 0,
            secrets: Vec::new(),
            gone: HashMap::new(),
            wires: Wires::default(),
            ops: Slab::new(MAX_OPERATIONS),
            news: News::default(),
            busy: VecDeque::new(),
            more: false,
            served: 0,
            now: 0,
            last_expiry: 0,
            scratch: Vec::new(),
            counters: MemoryCounters::default(),
        }
    }

    /// Whether anybody may reach for memory of this node, or this node waits for answers.
    pub(crate) fn is_used(&self) -> bool {
        self.apertures.len() + self.ops.len() > 0
    }
}

impl Memory {
    /// Whether the time matters to requests: a cookie has not expired yet that will.
    #[inline]
    pub(crate) fn wants_time(&self) -> bool {
        self.now < self.last_expiry
    }
}

impl crate::lane::Lane {
    /// Whether peers on this host may reach for memory.
    pub(crate) fn serves_local(&self) -> bool {
        self.memory.is_used() && !self.local.poll.is_empty()
    }
}

/// What a node keeps of memory for one peer. All of it ends with the channel (N-4).
#[derive(Debug, Default)]
pub(crate) struct PeerMemory {
    /// Cookies that the peer knows by a number of ours, by number and the other way round.
    pub(crate) opened: Vec<CookieKey>,
    pub(crate) by_key: HashMap<CookieKey, u32>,
    pub(crate) next_handle: u32,
    /// The number of our last request, and of the last one that the peer says is done.
    pub(crate) sent: u32,
    pub(crate) done: u32,
    /// Our last request that asked to be told.
    pub(crate) asked: u32,
    /// A put of ours that is under way piece by piece: nothing else may be sent before its end.
    pub(crate) half: Option<u32>,
    pub(crate) outstanding: VecDeque<Outstanding>,
    pub(crate) queue: VecDeque<Request>,

    /// What the peer opened.
    pub(crate) handles: Vec<Handle>,
    /// Where the peer last put a word, and what is known of that if it does so again and again.
    pub(crate) last: (u32, u64),
    pub(crate) flag: Option<Flag>,
    /// When that was last found out.
    pub(crate) tried: Option<u64>,
    /// The number of the peer's last request.
    pub(crate) seen: u32,
    /// The peer's put that has begun and not ended, if it is allowed.
    pub(crate) current: Option<u32>,
    /// The peer's put that has begun and was refused.
    pub(crate) refused: Option<u32>,
    pub(crate) answers: VecDeque<Answer>,
    pub(crate) busy: bool,
}

impl PeerMemory {
    /// The peer's next request: whether its number is right, which are counted without gaps.
    #[inline]
    pub(crate) fn count(&mut self, id: u32) -> bool {
        let next = self.seen.wrapping_add(1) == id;
        self.seen = id;
        // A put that was begun and not ended is never ended.
        (self.current, self.refused) = (None, None);
        next
    }

    /// The channel is over. Whoever waited for answers has been told.
    pub(crate) fn reset(&mut self) {
        let busy = self.busy;
        *self = PeerMemory { busy, ..PeerMemory::default() };
    }
}

/// What was counted of memory; all of it only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCounters {
    /// Puts of others that took effect here.
    pub puts: u64,
    /// Bytes of them.
    pub bytes_put: u64,
    /// Gets of others that were let in here.
    pub gets: u64,
    /// Words that others changed here.
    pub atomics: u64,
    /// Parts of puts that were placed before a gap in front of them was repaired.
    pub placed_ahead: u64,
    /// Requests of others that were refused here, whatever for; nothing was touched.
    pub refused: u64,
    /// Of them: no such cookie, or of a former life.
    pub forged: u64,
    /// Tripwires that fired.
    pub fires: u64,
    /// Events that were not queued because the queue was full.
    pub events_lost: u64,
}
