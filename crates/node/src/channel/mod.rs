//! What connects a lane with a peer: loopback, shared memory, or a link over datagrams, with one set of
//! verbs.
//!
//! The kind is chosen when the channel is established. No code outside this module asks for it, except to
//! tell the user. What does not live here: who the peer is (`membership`), when channels are served (`lane`),
//! and what records mean (`memory`, and the `tautline` crate).
//!
//! Sending: [`Channel::open_frame`] takes a slot of the arena, records are added, and
//! [`Channel::close_frame`] queues it: as a frame of the loopback queue or the ring, which the peer sees at
//! once, or as a slot of the link, which [`Channel::transmit`] sends. Small messages and long pieces through
//! shared memory skip the slot.

mod awaited;
mod link;
pub(crate) mod loans;
mod loopback;
mod messages;
mod port;
mod ring;
mod send;
mod shm;
mod untagged;
mod writer;

pub(crate) use link::{Ahead, LinkChannel};
pub(crate) use loans::{BorrowedLoan, Loan, Offer};
pub(crate) use messages::OutgoingMessages;
pub(crate) use port::Port;
pub(crate) use ring::NextFrame;
pub(crate) use shm::ShmChannel;
pub(crate) use writer::ChannelWriter;

use tautline_device::{RxBatch, RxFrame, SlotId};
use tautline_link::{Event, Nanos};
use tautline_wire::Seq;
use tautline_wire::record::{self, Class, LONG_LEN, SHORT_LEN};

use crate::limits::TX_QUEUE;
use crate::{Rank, SendError, Undelivered};
use loopback::LoopbackChannel;

/// A reliable, ordered connection of this lane with one peer.
#[derive(Debug)]
pub(crate) struct Channel {
    rank: Rank,
    kind: Kind,
    /// The frame that records are being added to.
    open: Option<OpenFrame>,
    pub(crate) messages: OutgoingMessages,
    /// The datagram side. Its handshake may run while another kind is established.
    pub(crate) link: LinkChannel,
    /// The lane has to serve this channel.
    dirty: bool,
    /// The lane has to work out its deadline.
    touched: bool,
    /// When the last channel ended, no frame was open.
    all_left: bool,
}

/// How the two sides of a channel number it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelNumbers {
    /// This side's number.
    pub ours: u32,
    /// The peer's number.
    pub theirs: u32,
}

#[derive(Debug)]
enum Kind {
    Loopback(LoopbackChannel),
    Shm(Box<ShmChannel>),
    Link,
}

/// A slot of the arena that records are being added to.
#[derive(Debug)]
struct OpenFrame {
    slot: SlotId,
    used: usize,
    capacity: usize,
    /// The last record, if it may still grow: its message, and where its header starts.
    tail: Option<(u32, usize)>,
    /// One past the last slot of the link that was pushed before this frame was opened.
    behind: Seq,
    /// It holds records of this class, and no others (W-11).
    class: Class,
}

impl Channel {
    /// A channel to a peer that is reached by datagram unless shared memory takes its place.
    pub(crate) fn new(rank: Rank, link: LinkChannel) -> Channel {
        Channel {
            rank,
            kind: Kind::Link,
            open: None,
            messages: OutgoingMessages::default(),
            link,
            dirty: false,
            touched: false,
            all_left: false,
        }
    }

    /// Makes this the channel of the node to itself, with room for `frames` frames.
    pub(crate) fn make_loopback(&mut self, max_frame: usize, frames: usize) {
        self.kind = Kind::Loopback(LoopbackChannel::new(max_frame, frames));
    }

    /// Shared memory takes the place of whatever there was.
    pub(crate) fn establish_shm(&mut self, shm: ShmChannel) {
        self.kind = Kind::Shm(Box::new(shm));
    }

    /// Takes the shared memory out, if there is any; datagrams take its place.
    pub(crate) fn detach_shm(&mut self) -> Option<Box<ShmChannel>> {
        match std::mem::replace(&mut self.kind, Kind::Link) {
            Kind::Shm(shm) => {
                self.link.peering.resume();
                Some(shm)
            }
            kind => {
                self.kind = kind;
                None
            }
        }
    }

    #[inline]
    fn shm(&self) -> Option<&ShmChannel> {
        match &self.kind {
            Kind::Shm(shm) => Some(shm),
            _ => None,
        }
    }

    #[inline]
    fn shm_mut(&mut self) -> Option<&mut ShmChannel> {
        match &mut self.kind {
            Kind::Shm(shm) => Some(shm),
            _ => None,
        }
    }

    /// A new channel begins: nothing of the old one may leak into it (N-4).
    pub(crate) fn reset(&mut self, port: &mut Port) {
        self.all_left = self.open.is_none();
        self.touch(port);
        self.discard_frame(port);
        self.messages = OutgoingMessages::default();
        self.link.reset();
    }

    /// Whether nothing waited in an open frame when the last channel ended.
    pub(crate) fn all_left(&self) -> bool {
        self.all_left
    }

    fn discard_frame(&mut self, port: &mut Port) {
        if let Some(open) = self.open.take() {
            port.free_slot(open.slot);
        }
    }

    // Room.

    /// Bytes of payload that the next frame can have.
    pub(crate) fn capacity(&self, port: &Port) -> usize {
        let most = port.slot_len();
        match &self.kind {
            Kind::Loopback(loopback) => loopback.max_frame().min(most),
            Kind::Shm(shm) => shm.max_frame().min(most),
            Kind::Link => self.link.link().map_or(most, tautline_link::Link::slot_capacity).min(most),
        }
    }

    /// Bytes of the longest message that goes in one slot: what ever fitted one frame, for a path that grows
    /// narrow must not turn good messages into bad ones (L-19, L-31).
    pub(crate) fn short_limit(&self, port: &Port) -> usize {
        let longest = match (&self.kind, self.link.link()) {
            (Kind::Link, Some(link)) => link.slot_limit().min(port.slot_len()),
            _ => self.capacity(port),
        };
        longest - LONG_LEN
    }

    /// Whether another frame may be opened.
    #[inline]
    fn has_room(&mut self, port: &mut Port) -> bool {
        let room = match &mut self.kind {
            Kind::Loopback(loopback) => loopback.room() > 0,
            Kind::Shm(shm) => shm.has_room(port),
            Kind::Link => self.link.has_room(),
        };
        room && port.may_take(self.unacknowledged())
    }

    /// Whether this is the loopback channel, and nothing but extraction makes room: it is full, or there are
    /// slots, so that a message that cannot go on waits for its window.
    pub(crate) fn waits_for_extraction(&mut self, port: &Port) -> bool {
        match &mut self.kind {
            Kind::Loopback(loopback) => loopback.room() == 0 || port.may_take(None),
            Kind::Shm(_) | Kind::Link => false,
        }
    }

    /// Slots that the peer has not acknowledged, where slots stay until it has.
    #[inline]
    fn unacknowledged(&self) -> Option<usize> {
        match &self.kind {
            Kind::Link => self.link.link().map(tautline_link::Link::unacknowledged),
            Kind::Loopback(_) | Kind::Shm(_) => None,
        }
    }

    // Open, push, flush.

    /// Makes sure that a frame is open with at least `need` bytes of room, for records of a class (W-11).
    #[inline]
    pub(crate) fn open_frame(&mut self, port: &mut Port, need: usize, class: Class) -> Result<(), SendError> {
        let fits = |open: &OpenFrame| open.capacity - open.used >= need && open.class == class;
        if self.open.as_ref().is_some_and(fits) {
            return Ok(());
        }
        self.close_frame(port);
        if !self.has_room(port) {
            return Err(SendError::WouldBlock);
        }
        // A message that goes in one slot may need more than a frame has now (L-19).
        let capacity = self.capacity(port).max(need);
        let behind = self.link.pushed_to();
        let slot = port.take_slot().ok_or(SendError::WouldBlock)?;
        self.open = Some(OpenFrame { slot, used: 0, capacity, tail: None, behind, class });
        Ok(())
    }

    /// The open frame is ready to leave.
    #[inline]
    pub(crate) fn close_frame(&mut self, port: &mut Port) {
        let Some(open) = self.open.take() else { return };
        if open.used == 0 {
            return port.free_slot(open.slot);
        }
        match &mut self.kind {
            Kind::Link => {
                if self.link.push(open.slot, open.used) {
                    self.mark_dirty(port);
                } else {
                    port.free_slot(open.slot);
                }
            }
            Kind::Shm(shm) => {
                let bytes = &port.device.arena_ref().payload(open.slot)[..open.used];
                // There was room when the frame was opened, and control frames leave it alone. If the peer
                // corrupted the ring since, the channel ends.
                shm.push(bytes);
                port.free_slot(open.slot);
            }
            Kind::Loopback(loopback) => {
                let bytes = &port.device.arena_ref().payload(open.slot)[..open.used];
                let pushed = loopback.push(bytes);
                debug_assert!(pushed, "there was room when the frame was opened");
                port.loopback_frames += usize::from(pushed);
                port.free_slot(open.slot);
            }
        }
    }

    /// Sends control records in a frame of their own (W-11): they do not wait behind messages that are being
    /// written. A frame that overtakes does not wait behind messages that were never sent, either; only links
    /// have such frames. False for want of room.
    pub(crate) fn push_control(&mut self, port: &mut Port, bytes: &[u8], overtakes: bool) -> bool {
        // The room of the open frame is taken.
        let taken = usize::from(self.open.is_some());
        match &mut self.kind {
            Kind::Loopback(loopback) => {
                let pushed = loopback.room() > taken && loopback.push(bytes);
                port.loopback_frames += usize::from(pushed);
                return pushed;
            }
            Kind::Shm(shm) => return shm.push_control(bytes, taken),
            Kind::Link => {}
        }
        let Some(slot) = port.take_slot() else { return false };
        port.device.arena().payload_mut(slot)[..bytes.len()].copy_from_slice(bytes);
        let pushed = if overtakes {
            let seq = self.link.push_priority(slot, bytes.len());
            if let (Some(seq), Some(open)) = (seq, &mut self.open)
                && seq.before(open.behind)
            {
                open.behind = open.behind.next();
            }
            seq.is_some()
        } else {
            self.link.push(slot, bytes.len())
        };
        if pushed {
            self.mark_dirty(port);
        } else {
            port.free_slot(slot);
        }
        true
    }

    /// Has the lane serve this channel.
    #[inline]
    pub(crate) fn mark_dirty(&mut self, port: &mut Port) {
        if !self.dirty {
            self.dirty = true;
            port.push_dirty(self.rank);
        }
    }

    #[inline]
    pub(crate) fn clear_dirty(&mut self) {
        self.dirty = false;
    }

    /// Has the lane work out the deadline of this channel, which may have become earlier.
    #[inline]
    pub(crate) fn touch(&mut self, port: &mut Port) {
        if !self.touched {
            self.touched = true;
            port.touched.push(self.rank);
        }
    }

    pub(crate) fn clear_touched(&mut self) {
        self.touched = false;
    }

    /// A timer of this channel may have started.
    #[inline]
    pub(crate) fn note_timer(&mut self, port: &mut Port, now: Nanos) {
        port.note_timer(now);
        self.touch(port);
    }

    /// A message has ended: its frame leaves, unless a batch is open (N-2). Returns whether the lane has to
    /// serve its channels for that.
    #[inline]
    pub(crate) fn send_now(&mut self, port: &mut Port) -> bool {
        if port.batch_depth > 0 {
            self.mark_dirty(port);
            return self.has_long_train();
        }
        match self.kind {
            Kind::Link => {
                self.mark_dirty(port);
                true
            }
            Kind::Loopback(_) | Kind::Shm(_) => {
                self.close_frame(port);
                false
            }
        }
    }

    /// Lets leave what a batch has gathered.
    pub(crate) fn end_batch(&mut self, port: &mut Port) {
        match self.kind {
            Kind::Loopback(_) | Kind::Shm(_) => self.close_frame(port),
            Kind::Link if self.open.is_some() => self.mark_dirty(port),
            Kind::Link => {}
        }
    }

    /// Sends every frame that may leave now.
    #[inline]
    pub(crate) fn transmit(&mut self, port: &mut Port, now: Nanos) {
        self.close_unless_waiting(port);
        if let Some(hello) = self.link.peering.poll_hello(now) {
            port.send_bytes(self.link.route, &hello);
        }
        self.link.transmit(port, now);
        // What kept the open frame waiting may have left just now, and nothing else would close it before the
        // next acknowledgement.
        if self.close_unless_waiting(port) {
            self.link.transmit(port, now);
        }
    }

    /// Closes the open frame unless it may wait for company. Returns whether it did.
    #[inline]
    fn close_unless_waiting(&mut self, port: &mut Port) -> bool {
        let due = port.batch_depth == 0 && self.open.is_some() && !self.may_wait(port);
        if due {
            self.close_frame(port);
        }
        due
    }

    /// Whether the open frame may stay open for company (N-15): while slots from before it cannot be sent
    /// anyway and, as an option, while they are unacknowledged. Slots pushed later do not count: control
    /// slots would keep it open for ever.
    #[inline]
    fn may_wait(&self, port: &Port) -> bool {
        let (Some(link), Some(open), Kind::Link) = (self.link.link(), &self.open, &self.kind) else {
            return false;
        };
        open.capacity - open.used >= SHORT_LEN
            && link.is_open()
            && (link.sent_to().before(open.behind)
                || port.share_frames && link.acknowledged_to().before(open.behind))
    }

    /// Whether all that is left to do for this channel can wait for the next poll.
    #[inline]
    pub(crate) fn is_calm(&self) -> bool {
        self.open.is_none() && self.link.link().is_some_and(tautline_link::Link::is_idle)
    }

    // Take, consumed.

    /// Copies the next frame of the ring into `batch`, unless `limit` frames are pending; memory records are
    /// taken however many are.
    #[inline]
    pub(crate) fn take_frame(&mut self, batch: &mut RxBatch, limit: usize) -> Option<RxFrame> {
        self.shm_mut()?.take_frame(batch, limit)
    }

    /// Takes the next loopback frame out into `buffer`.
    pub(crate) fn take_loopback(&mut self, port: &mut Port, buffer: &mut Vec<u8>) -> bool {
        let Kind::Loopback(loopback) = &mut self.kind else { return false };
        let taken = loopback.pop(buffer);
        port.loopback_frames -= usize::from(taken);
        // There is room for another frame.
        port.activity += u64::from(taken);
        taken
    }

    /// Frames have been consumed: their room is granted again. Returns whether the peer should hear of it
    /// soon.
    #[inline]
    pub(crate) fn consumed(&mut self, port: &mut Port, frames: u32) -> bool {
        match &mut self.kind {
            Kind::Link => self.link.peering.link_mut().is_some_and(|link| {
                let due = link.consumed(frames);
                if due && link.wants_more_credit() {
                    port.push_wish(self.rank);
                }
                due
            }),
            Kind::Shm(shm) => {
                shm.consumed(frames);
                false
            }
            Kind::Loopback(loopback) => {
                loopback.consumed(frames);
                port.activity += 1;
                false
            }
        }
    }

    /// Whether the peer's next frame waits until the program takes what has come before.
    pub(crate) fn is_clogged(&self, limit: usize) -> bool {
        match &self.kind {
            Kind::Shm(shm) => shm.is_clogged(limit),
            _ => self.link.link().is_some_and(tautline_link::Link::is_credit_used_up),
        }
    }

    // Close, death.

    /// The peer broke the protocol. Returns whether the channel is over at once; a link says so by an event.
    pub(crate) fn violation(&mut self) -> bool {
        match &self.kind {
            Kind::Shm(_) => return true,
            Kind::Link => {
                if let Some(link) = self.link.peering.link_mut() {
                    link.violation();
                }
            }
            Kind::Loopback(_) => {}
        }
        false
    }

    /// Frees slots that the link no longer needs, and returns its next event. A link that shared memory has
    /// replaced has none to tell.
    #[inline]
    pub(crate) fn poll_event(&mut self, port: &mut Port) -> Option<Event> {
        self.link.free_acknowledged(port);
        let event = self.link.peering.link_mut()?.poll_event()?;
        // Rare enough that the next poll may take the next one.
        self.mark_dirty(port);
        (!self.is_shared()).then_some(event)
    }

    /// Stops sending hellos. False if there is a link.
    pub(crate) fn stop_connecting(&mut self) -> bool {
        self.link.peering.stop_connecting();
        self.link.link().is_none()
    }

    /// Starts to close in good order (N-9).
    pub(crate) fn close(&mut self, port: &mut Port, now: Nanos) {
        self.close_frame(port);
        self.link.peering.stop_connecting();
        if let Some(link) = self.link.peering.link_mut() {
            link.close(now);
        }
        self.mark_dirty(port);
    }

    /// What the peer has not acknowledged, or had not when the link ended. Before the link's slots are freed.
    #[cold]
    pub(crate) fn undelivered(&self, port: &Port, reported: impl Fn(u16) -> bool) -> Undelivered {
        let arena = port.device.arena_ref();
        let slots = self.link.link().into_iter().flat_map(tautline_link::Link::unacknowledged_slots);
        let bytes = slots.map(|(token, len)| &arena.payload(SlotId(token))[..len as usize]);
        Undelivered::count(self.rank, bytes, reported)
    }

    /// Whether messages are cheaper when they share frames: where a frame costs a system call.
    #[inline]
    pub(crate) fn prefers_batches(&self) -> bool {
        !self.is_shared()
    }

    // Telling the user.

    /// Bytes of a message that the peer may send before this side grants more: `shm` through shared memory
    /// (M-5).
    pub(crate) fn first_window(&self, shm: u32, link: u32) -> u64 {
        u64::from(if self.is_shared() { shm } else { link })
    }

    /// Returns the numbers of the channel, and whether it is live.
    pub(crate) fn numbers(&self) -> Option<(ChannelNumbers, bool)> {
        match &self.kind {
            Kind::Shm(shm) => Some((shm.numbers(), true)),
            _ => {
                let link = self.link.link()?;
                let numbers = ChannelNumbers { ours: link.channel(), theirs: link.peer().channel };
                Some((numbers, !link.is_over()))
            }
        }
    }

    /// Whether enough slots wait for one system call's worth of frames.
    #[inline]
    pub(crate) fn has_long_train(&self) -> bool {
        let capacity = self.open.as_ref().map_or(1, |open| open.capacity);
        self.link.link().is_some_and(|link| link.unsent() >= (TRAIN / capacity).clamp(1, 64))
    }
}

/// Bytes that are worth a system call of their own.
const TRAIN: usize = 60_000;
/// The same while the peer has nothing to do.
const FIRST_TRAIN: usize = 12_000;
const _: () = assert!(TX_QUEUE >= 64);

/// Writes a whole small message; returns its bytes.
#[inline]
fn write_short(room: &mut [u8], handler: u16, data: &[u8]) -> usize {
    let head = record::write::short(room, handler, data.len());
    room[head..head + data.len()].copy_from_slice(data);
    head + data.len()
}
