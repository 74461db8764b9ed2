//! What the program is told of memory: a bounded queue, filled and emptied at a constant price (T-6).

use std::collections::VecDeque;

use super::request::{Failure, Ticket};
use super::sets::SetId;
use super::tables::ApertureId;
use super::wires::{Report, Wire, WireId};
use crate::Rank;
use crate::limits::{MAX_NOTICES, MAX_OUT_OF_BAND_WAITING};
use tautline_wire::memory::{MAX_OUT_OF_BAND, Refusal};

/// A small message beside all others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OutOfBand {
    bytes: [u8; MAX_OUT_OF_BAND],
    len: u8,
}

impl OutOfBand {
    /// Of up to [`MAX_OUT_OF_BAND`] bytes.
    pub fn new(bytes: &[u8]) -> Option<OutOfBand> {
        let mut out_of_band = OutOfBand { bytes: [0; MAX_OUT_OF_BAND], len: bytes.len() as u8 };
        out_of_band.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(out_of_band)
    }

    /// What it says.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for OutOfBand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Aside({:?})", String::from_utf8_lossy(self.bytes()))
    }
}

/// Something that happened to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryEvent {
    /// A tripwire fired.
    Tripwire {
        /// Which.
        wire: WireId,
        /// What the program wanted to be told with it.
        tag: u64,
        /// How often since the last such event.
        fires: u64,
    },
    /// A tripset is ready.
    Tripset {
        /// Which.
        set: SetId,
        /// What the program wanted to be told with it.
        tag: u64,
        /// How often it has been.
        times: u64,
    },
    /// A peer says that it has put something.
    Notice {
        /// Who.
        peer: Rank,
        /// Where.
        aperture: ApertureId,
        /// The first byte.
        at: u64,
        /// How many.
        len: u64,
        /// What it says.
        value: u64,
    },
    /// An operation is complete.
    Completed {
        /// Which.
        ticket: Ticket,
        /// What the program wanted to be told with it.
        tag: u64,
        /// A word's former value, or zero; or why not.
        result: Result<u64, Failure>,
    },
    /// A put that nobody waits for was refused.
    Refused {
        /// By whom.
        peer: Rank,
        /// Why.
        why: Refusal,
    },
    /// A small message beside all others.
    OutOfBand {
        /// Who sent it.
        peer: Rank,
        /// What it says.
        out_of_band: OutOfBand,
    },
    /// Notices, refusals or small messages were dropped here because the program did not read its events.
    Lost {
        /// How many.
        events: u64,
    },
}

/// What a future waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wakeup {
    /// A tripwire fired.
    Wire(WireId),
    /// A tripset is ready.
    Set(SetId),
    /// An operation is complete.
    Op(Ticket),
}

/// The queue. Tripwires and completions have their place in it by being armed or asked for; only what peers send unasked is limited here.
#[derive(Debug, Default)]
pub(crate) struct News {
    queue: VecDeque<MemoryEvent>,
    /// Events of peers' making that are in the queue.
    notices: usize,
    out_of_band_waiting: usize,
    /// The queue's last event says that others were lost.
    losing: bool,
    /// Events in the queue that nobody is to be told of any more.
    stale: usize,
    woken: Vec<Wakeup>,
    fresh: bool,
    lost: u64,
}

impl News {
    /// Whether something happened that the program has not been told of.
    #[inline]
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// The program has been told that there are events; true if there are any.
    pub(crate) fn told(&mut self) -> bool {
        self.fresh = false;
        self.queue.len() > self.stale
    }

    /// Events that were dropped.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    pub(crate) fn wake(&mut self, woken: Wakeup) {
        self.fresh = true;
        self.woken.push(woken);
    }

    pub(crate) fn take_woken(&mut self) -> Option<Wakeup> {
        self.woken.pop()
    }

    #[inline]
    pub(crate) fn wire_fired(&mut self, id: WireId, wire: &mut Wire, fires: u64) {
        let queue = match wire.report {
            Report::Poll => false,
            Report::Once => wire.queued == 0,
            Report::Each => wire.queued == 0 || self.queue.len() < MAX_NOTICES,
        };
        if queue {
            wire.queued += 1;
            self.push(MemoryEvent::Tripwire { wire: id, tag: wire.tag, fires });
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, event: MemoryEvent) {
        self.losing = false;
        self.fresh = true;
        self.queue.push_back(event);
    }

    /// An event that a peer caused, and that the program did not ask for: dropped if too many wait (T-6).
    pub(crate) fn unasked(&mut self, event: MemoryEvent) {
        let (waiting, limit) = match event {
            MemoryEvent::OutOfBand { .. } => (&mut self.out_of_band_waiting, MAX_OUT_OF_BAND_WAITING),
            _ => (&mut self.notices, MAX_NOTICES),
        };
        if *waiting < limit {
            *waiting += 1;
            return self.push(event);
        }
        self.lost += 1;
        match self.queue.back_mut() {
            Some(MemoryEvent::Lost { events }) if self.losing => *events += 1,
            _ => {
                self.push(MemoryEvent::Lost { events: 1 });
                self.losing = true;
            }
        }
    }

    /// The next event, as it was queued; the caller works out what has become of it.
    fn pop(&mut self) -> Option<MemoryEvent> {
        let event = self.queue.pop_front()?;
        match event {
            MemoryEvent::OutOfBand { .. } => self.out_of_band_waiting -= 1,
            MemoryEvent::Notice { .. } | MemoryEvent::Refused { .. } => self.notices -= 1,
            _ => {}
        }
        Some(event)
    }

    /// So many events in the queue have lost their cause. They are passed over when their turn comes; if they are most of the
    /// queue, they are swept out: `lives` says which are not.
    pub(crate) fn abandon(&mut self, events: usize, lives: impl Fn(&MemoryEvent) -> bool) {
        self.stale += events;
        if self.stale > 64 && self.stale > self.queue.len() / 2 {
            self.queue.retain(lives);
            self.stale = 0;
        }
    }
}

impl crate::lane::Lane {
    /// The next thing that happened to memory.
    pub(crate) fn poll_memory_event(&mut self) -> Option<MemoryEvent> {
        loop {
            let event = self.memory.news.pop()?;
            let event = match event {
                MemoryEvent::Tripwire { wire, tag, fires } => self
                    .memory
                    .wires
                    .read(wire, fires)
                    .map(|fires| MemoryEvent::Tripwire { wire, tag, fires }),
                MemoryEvent::Tripset { set, tag, .. } => {
                    self.memory.wires.read_set(set).map(|times| MemoryEvent::Tripset { set, tag, times })
                }
                event => Some(event),
            };
            if event.is_some() {
                return event;
            }
            self.memory.news.stale -= 1;
        }
    }
}
