//! What the program is told of memory: a bounded queue, filled and emptied at a constant cost (T-6).

use std::collections::VecDeque;

use tautline_wire::memory::{MAX_OUT_OF_BAND, MemoryRecord as Message, Refusal};

use super::failure::Failure;
use super::ids::{ApertureId, SetId, Ticket, WireId};
use super::writer::RecordWriter;
use crate::Rank;
use crate::limits::{MAX_NOTICES, MAX_OUT_OF_BAND_WAITING};

/// A small message to a peer's event queue, outside the order of all others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OutOfBand {
    bytes: [u8; MAX_OUT_OF_BAND],
    len: u8,
}

impl OutOfBand {
    /// Creates one of up to [`MAX_OUT_OF_BAND`] bytes.
    pub fn new(bytes: &[u8]) -> Option<OutOfBand> {
        let mut out_of_band = OutOfBand { bytes: [0; MAX_OUT_OF_BAND], len: bytes.len() as u8 };
        out_of_band.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(out_of_band)
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Writes it to a peer's channel. False for want of room.
    pub(crate) fn write_to(&self, writer: &mut impl RecordWriter) -> bool {
        writer.write(&Message::OutOfBand(&[]), 0, self.bytes())
    }
}

impl std::fmt::Debug for OutOfBand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OutOfBand({:?})", String::from_utf8_lossy(self.bytes()))
    }
}

/// Something that happened to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryEvent {
    /// A tripwire fired.
    Tripwire {
        /// The tripwire.
        wire: WireId,
        /// The program's tag for it.
        tag: u64,
        /// How often it fired since its last event.
        fires: u64,
    },
    /// A tripset is ready.
    Tripset {
        /// The tripset.
        set: SetId,
        /// The program's tag for it.
        tag: u64,
        /// How often it has been ready in all.
        times: u64,
    },
    /// A peer announces that it has put something.
    Notice {
        /// The peer.
        peer: Rank,
        /// The aperture.
        aperture: ApertureId,
        /// The first byte.
        at: u64,
        /// The number of bytes.
        len: u64,
        /// The peer's value.
        value: u64,
    },
    /// An operation is complete.
    Completed {
        /// The operation.
        ticket: Ticket,
        /// The program's tag for it.
        tag: u64,
        /// A word's former value, zero for other operations, or why it failed.
        result: Result<u64, Failure>,
    },
    /// A put was refused whose completion nobody waits for.
    Refused {
        /// The owner of the memory.
        peer: Rank,
        /// Why.
        why: Refusal,
    },
    /// An out-of-band message arrived.
    OutOfBand {
        /// The sender.
        peer: Rank,
        /// The message.
        out_of_band: OutOfBand,
    },
    /// Notices, refusals or out-of-band messages were dropped here because the program did not read its
    /// events.
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

/// The queue. The number of tripwires and operations bounds their events; only events that peers cause
/// unasked are limited here.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    queue: VecDeque<MemoryEvent>,
    /// Notices and refusals in the queue.
    notices: usize,
    out_of_band: usize,
    /// Whether the last event in the queue counts events that are being dropped.
    dropping: bool,
    /// Events in the queue whose tripwire or tripset no longer exists.
    stale: usize,
    wakeups: Vec<Wakeup>,
    unacknowledged: bool,
    lost: u64,
}

impl EventQueue {
    /// Returns whether there are events or wake-ups that the program does not know of.
    #[inline]
    pub(super) fn is_unacknowledged(&self) -> bool {
        self.unacknowledged
    }

    /// Notes that the program knows that there are events. True if there are any.
    pub(super) fn acknowledge(&mut self) -> bool {
        self.unacknowledged = false;
        self.queue.len() > self.stale
    }

    /// Returns how many events were dropped.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn wake(&mut self, wakeup: Wakeup) {
        self.unacknowledged = true;
        self.wakeups.push(wakeup);
    }

    pub(super) fn take_wakeup(&mut self) -> Option<Wakeup> {
        self.wakeups.pop()
    }

    /// Returns whether the queue has room for an event of each fire of a tripwire.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.queue.len() < MAX_NOTICES
    }

    #[inline]
    pub(super) fn push(&mut self, event: MemoryEvent) {
        self.dropping = false;
        self.unacknowledged = true;
        self.queue.push_back(event);
    }

    /// Queues an event that a peer caused and that the program did not ask for. It is dropped if too many
    /// wait (T-9).
    pub(super) fn push_unasked(&mut self, event: MemoryEvent) {
        let (waiting, limit) = match event {
            MemoryEvent::OutOfBand { .. } => (&mut self.out_of_band, MAX_OUT_OF_BAND_WAITING),
            _ => (&mut self.notices, MAX_NOTICES),
        };
        if *waiting < limit {
            *waiting += 1;
            return self.push(event);
        }
        self.lost += 1;
        match self.queue.back_mut() {
            Some(MemoryEvent::Lost { events }) if self.dropping => *events += 1,
            _ => {
                self.push(MemoryEvent::Lost { events: 1 });
                self.dropping = true;
            }
        }
    }

    /// Returns the next event as it was queued. The caller reports with [`EventQueue::note_stale_read`] if it
    /// is stale.
    pub(super) fn pop(&mut self) -> Option<MemoryEvent> {
        let event = self.queue.pop_front()?;
        match event {
            MemoryEvent::OutOfBand { .. } => self.out_of_band -= 1,
            MemoryEvent::Notice { .. } | MemoryEvent::Refused { .. } => self.notices -= 1,
            _ => {}
        }
        Some(event)
    }

    /// Notes that the event that was popped last was stale.
    pub(super) fn note_stale_read(&mut self) {
        self.stale -= 1;
    }

    /// Notes that `events` more events are stale. They are skipped when they are read; if most of the queue
    /// is stale, all events for which `is_current` is false are removed.
    pub(super) fn note_stale(&mut self, events: usize, is_current: impl Fn(&MemoryEvent) -> bool) {
        self.stale += events;
        if self.stale > 64 && self.stale > self.queue.len() / 2 {
            self.queue.retain(is_current);
            self.stale = 0;
        }
    }
}
