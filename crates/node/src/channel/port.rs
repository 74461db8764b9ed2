//! What the channels of a lane share: the datagram device with its arena, and what is due to leave.

use tautline_device::{Datagram, HEADROOM, RouteId, SlotId};
use tautline_link::Nanos;

use crate::limits::TX_RESERVE;
use crate::{Config, Rank};

/// The device of a lane, and the state that every channel of the lane reads and writes.
pub(crate) struct Port {
    pub(crate) device: Box<dyn Datagram>,
    /// Slots of frames that no link owns: handshakes, acknowledgements, copies. Freed by the next flush.
    scratch: Vec<SlotId>,
    /// Frames of trains that the next flush sends; their slots stay until then.
    waiting: usize,
    /// Ranks whose channels have to be served.
    dirty: Vec<Rank>,
    /// Ranks that have used up their credit.
    wishes: Vec<Rank>,
    /// Ranks whose deadlines may have become earlier since the lane worked them out.
    pub(super) touched: Vec<Rank>,
    /// Open batches of the thread that entered the lane last; frames stay open while there is one.
    pub(crate) batch_depth: u32,
    batches: Batches,
    /// Changes whenever a send that would have blocked may succeed.
    pub(crate) activity: u64,
    /// Never later than the first deadline of any channel.
    pub(crate) next_deadline: Nanos,
    /// The shortest time after which a timer that starts now can be due.
    soonest: Nanos,
    pub(crate) closed: bool,
    /// Small messages share the next frame while earlier ones are unacknowledged.
    pub(crate) share_frames: bool,
    /// Members among which scarce slots are divided.
    members: usize,
    /// Frames in the loopback channel that have not been taken.
    pub(crate) loopback_frames: usize,
    /// Where records are put together that go into a ring.
    bytes: Vec<u8>,
}

impl Port {
    pub(crate) fn new(device: Box<dyn Datagram>, config: &Config, members: usize) -> Port {
        // H-18: half the interval, at the least.
        let soonest = config.link.ack_delay.min(config.link.rto_min).min(config.link.hello_interval / 2);
        Port {
            device,
            scratch: Vec::new(),
            waiting: 0,
            dirty: Vec::new(),
            wishes: Vec::new(),
            touched: Vec::new(),
            batch_depth: 0,
            batches: Batches::default(),
            activity: 0,
            next_deadline: Nanos::MAX,
            soonest,
            closed: false,
            share_frames: config.share_frames,
            members,
            loopback_frames: 0,
            bytes: Vec::new(),
        }
    }

    /// Another thread has entered the lane: the batches of the former one wait until it comes back (N-20).
    pub(crate) fn enter_thread(&mut self, thread: usize) {
        self.batch_depth = self.batches.enter(thread, self.batch_depth);
    }

    /// Closes the batches of all threads.
    pub(crate) fn close_batches(&mut self) {
        self.batch_depth = 0;
        self.batches.others.clear();
    }

    /// Bytes of payload that a slot of the arena holds.
    #[inline]
    pub(crate) fn slot_len(&self) -> usize {
        self.device.arena_ref().payload_len()
    }

    #[inline]
    pub(crate) fn take_slot(&mut self) -> Option<SlotId> {
        self.device.arena().take()
    }

    #[inline]
    pub(crate) fn free_slot(&mut self, slot: SlotId) {
        self.device.arena().give(slot);
    }

    /// Whether a channel with so many unacknowledged slots may take another one (N-3). More than half of the
    /// arena is open to every channel; the rest is divided evenly, so that a peer that acknowledges nothing
    /// blocks nobody else.
    #[inline]
    pub(crate) fn may_take(&self, unacknowledged: Option<usize>) -> bool {
        let arena = self.device.arena_ref();
        let (available, half) = (arena.available(), arena.capacity() / 2);
        if available > half {
            return available > TX_RESERVE;
        }
        let share = (half.saturating_sub(TX_RESERVE) / self.members).max(1);
        available > TX_RESERVE && unacknowledged.is_none_or(|slots| slots < share)
    }

    /// How many slots such a channel may take before [`Port::may_take`] has to be asked again.
    #[inline]
    pub(super) fn may_take_at_once(&self, unacknowledged: Option<usize>) -> usize {
        let arena = self.device.arena_ref();
        match arena.available().saturating_sub((arena.capacity() / 2).max(TX_RESERVE)) {
            0 => self.may_take(unacknowledged).into(),
            slots => slots,
        }
    }

    /// Whether a frame may leave at once: no batch is open, no timer is due, and at most one channel waits to
    /// be served.
    #[inline]
    pub(super) fn is_clear(&self, now: Nanos) -> bool {
        self.batch_depth == 0 && !self.closed && now < self.next_deadline && self.dirty.len() <= 1
    }

    /// A timer may have started. Its exact time is worked out before the next sleep: its channel is dirty,
    /// or [`super::Channel::touch`] was called.
    #[inline]
    pub(crate) fn note_timer(&mut self, now: Nanos) {
        self.next_deadline = self.next_deadline.min(now + self.soonest);
    }

    #[inline]
    pub(super) fn push_dirty(&mut self, rank: Rank) {
        self.dirty.push(rank);
    }

    /// Something is due at this time.
    pub(crate) fn note_deadline(&mut self, at: Nanos) {
        self.next_deadline = self.next_deadline.min(at);
    }

    /// A peer has used up its credit (L-41).
    #[cold]
    pub(super) fn push_wish(&mut self, rank: Rank) {
        self.wishes.push(rank);
    }

    /// Whether peers have used up their credit.
    #[inline]
    pub(crate) fn has_wishes(&self) -> bool {
        !self.wishes.is_empty()
    }

    /// The next peer that has used up its credit.
    pub(crate) fn pop_wish(&mut self) -> Option<Rank> {
        self.wishes.pop()
    }

    /// The next rank whose deadline has to be worked out.
    pub(crate) fn pop_touched(&mut self) -> Option<Rank> {
        self.touched.pop()
    }

    /// The next channel that has to be served.
    #[inline]
    pub(crate) fn pop_dirty(&mut self) -> Option<Rank> {
        self.dirty.pop()
    }

    /// The channels that have to be served.
    #[inline]
    pub(crate) fn dirty(&self) -> &[Rank] {
        &self.dirty
    }

    /// Sends bytes that are no slot of a link: handshake frames.
    pub(crate) fn send_bytes(&mut self, route: RouteId, bytes: &[u8]) {
        let Some(slot) = self.take_scratch() else { return };
        self.device.arena().payload_mut(slot)[..bytes.len()].copy_from_slice(bytes);
        self.device.send(route, slot, HEADROOM..HEADROOM + bytes.len());
    }

    /// A slot that the next flush frees.
    pub(super) fn take_scratch(&mut self) -> Option<SlotId> {
        let slot = self.take_slot().or_else(|| {
            // What is queued goes out first, and its scratch slots come back.
            self.flush();
            self.take_slot()
        })?;
        self.scratch.push(slot);
        Some(slot)
    }

    /// Private memory with `len` bytes that `fill` wrote; [`Port::return_scratch`] takes it back.
    pub(super) fn fill_scratch(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.resize(len.max(bytes.len()), 0);
        fill(&mut bytes[..len]);
        bytes
    }

    pub(super) fn return_scratch(&mut self, bytes: Vec<u8>) {
        self.bytes = bytes;
    }

    /// Sends a frame of a train with the next flush.
    #[inline]
    pub(super) fn send_with_flush(&mut self, route: RouteId, slot: SlotId, range: std::ops::Range<usize>) {
        self.waiting += 1;
        self.device.send(route, slot, range);
    }

    /// Frames of trains that the next flush sends.
    #[inline]
    pub(super) fn waiting_frames(&self) -> usize {
        self.waiting
    }

    /// Hands everything queued to the network.
    #[inline]
    pub(crate) fn flush(&mut self) {
        self.waiting = 0;
        self.device.flush();
        if !self.scratch.is_empty() {
            self.free_scratch();
        }
    }

    #[cold]
    fn free_scratch(&mut self) {
        for slot in self.scratch.drain(..) {
            self.device.arena().give(slot);
        }
    }
}

/// The open batches of threads other than the one that entered the lane last.
#[derive(Debug, Default)]
struct Batches {
    thread: usize,
    others: Vec<(usize, u32)>,
}

impl Batches {
    /// A thread enters; the former one has `depth` open batches. Returns how many this one has.
    fn enter(&mut self, thread: usize, depth: u32) -> u32 {
        let former = std::mem::replace(&mut self.thread, thread);
        if depth > 0 {
            self.others.push((former, depth));
        }
        let own = self.others.iter().position(|(of, _)| *of == thread);
        own.map_or(0, |at| self.others.swap_remove(at).1)
    }
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port").field("device", &self.device.name()).finish_non_exhaustive()
    }
}
