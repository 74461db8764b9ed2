//! Sending: from records to frames.

use tautline_device::{Channel, Datagram, HEADROOM, RouteId, SlotId};
use tautline_link::{Nanos, Transmit};
use tautline_wire::Seq;
use tautline_wire::memory::Memory;
use tautline_wire::record::{self, LONG_LEN, SHORT_LEN};

use crate::interface::Interface;
use crate::limits::{TX_QUEUE, TX_RESERVE};
use crate::peer::{Key, Open, Peer, PeerState, SHORT_ONLY, UNKNOWN};
use crate::{Rank, SendError};

impl Interface {
    /// The peer's number for a handler, if a message of `len` bytes may go there now. Starts to connect if need be.
    #[inline]
    pub(crate) fn handler(&mut self, now: Nanos, rank: Rank, key: Key, len: u64) -> Result<u16, SendError> {
        let Some(peer) = self.peers.get(rank as usize) else { return Err(SendError::NoSuchPeer(rank)) };
        if !peer.is_up() || self.closed {
            return Err(self.not_up(now, rank));
        }
        let number = peer.numbers[key.0 as usize];
        if number == UNKNOWN {
            return Err(SendError::UnknownHandler(rank));
        }
        if number & SHORT_ONLY != 0 && len > self.short_limit(rank) as u64 {
            return Err(SendError::TooLongForHandler(self.short_limit(rank)));
        }
        Ok(number & !SHORT_ONLY)
    }

    #[cold]
    pub(crate) fn not_up(&mut self, now: Nanos, rank: Rank) -> SendError {
        if self.closed {
            return SendError::Closed;
        }
        self.connect(now, rank);
        match self.peers[rank as usize].state {
            PeerState::Down(why) => SendError::PeerGone(rank, why),
            _ => SendError::WouldBlock,
        }
    }

    /// The longest message that goes in one slot: what ever fitted one frame, for a path that grows narrow must not turn good messages into bad ones.
    pub(crate) fn short_limit(&self, rank: Rank) -> usize {
        let peer = &self.peers[rank as usize];
        let longest = match peer.peering.link() {
            Some(link) if rank != self.rank && peer.near.is_none() => {
                link.slot_limit().min(self.device.arena_ref().payload_len())
            }
            _ => self.capacity(peer),
        };
        longest - LONG_LEN
    }

    pub(crate) fn capacity(&self, peer: &Peer) -> usize {
        let arena = self.device.arena_ref().payload_len();
        if peer.rank == self.rank {
            return self.own.max_frame().min(arena);
        }
        if let Some(near) = &peer.near {
            return near.shm.max_frame().min(arena);
        }
        peer.peering.link().map_or(arena, tautline_link::Link::slot_capacity).min(arena)
    }

    /// Whether another slot may be opened for this peer.
    #[inline]
    fn may_open(&mut self, rank: Rank) -> bool {
        let peer = &mut self.peers[rank as usize];
        let queued = if rank == self.rank {
            self.own.room() > 0
        } else if let Some(near) = &mut peer.near {
            let clear = near.shm.is_clear();
            // Whoever found no room before is to try again: nobody else will notice that there is some.
            self.activity += u64::from(clear && near.stalled);
            near.stalled = !clear;
            clear
        } else {
            peer.peering.link().is_some_and(|l| l.is_open() && l.waiting() < TX_QUEUE)
        };
        queued && self.may_take(&self.peers[rank as usize])
    }

    /// Slots are for whoever comes first while there are many; of the second half every peer has its share, so that one that
    /// takes nothing stalls nobody else (N-3).
    #[inline]
    fn may_take(&self, peer: &Peer) -> bool {
        let arena = self.device.arena_ref();
        let (available, half) = (arena.available(), arena.capacity() / 2);
        if available > half {
            return available > TX_RESERVE;
        }
        let share = (half.saturating_sub(TX_RESERVE) / self.peers.len()).max(1);
        available > TX_RESERVE
            && peer.peering.link().is_none_or(|l| peer.rank == self.rank || l.unacknowledged() < share)
    }

    /// The slot that records for this peer go to, with at least `need` bytes of room; opens a new one if there must be.
    #[inline]
    pub(crate) fn open_slot(&mut self, rank: Rank, need: usize) -> Result<(), SendError> {
        self.open_slot_for(rank, need, false)
    }

    /// As above, for records of memory or for all others: they do not share slots (W-6).
    #[inline]
    pub(crate) fn open_slot_for(&mut self, rank: Rank, need: usize, memory: bool) -> Result<(), SendError> {
        let fits = |o: &Open| o.capacity - o.used >= need && o.memory == memory;
        if self.peers[rank as usize].open.as_ref().is_some_and(fits) {
            return Ok(());
        }
        self.close_slot(rank);
        if !self.may_open(rank) {
            return Err(SendError::WouldBlock);
        }
        let peer = &self.peers[rank as usize];
        // A message that goes in one slot may need more than a frame has now (L-19).
        let capacity = self.capacity(peer).max(need);
        let behind = peer.peering.link().map_or(Seq(0), tautline_link::Link::end);
        let slot = self.device.arena().take().ok_or(SendError::WouldBlock)?;
        self.peers[rank as usize].open = Some(Open { slot, used: 0, capacity, tail: None, behind, memory });
        Ok(())
    }

    /// What was added to the open slot is ready to leave.
    #[inline]
    pub(crate) fn close_slot(&mut self, rank: Rank) {
        let peer = &mut self.peers[rank as usize];
        let Some(open) = peer.open.take() else { return };
        if open.used == 0 {
            self.device.arena().give(open.slot);
        } else if rank == self.rank {
            let bytes = &self.device.arena_ref().payload(open.slot)[..open.used];
            // Room was there when the slot was opened, and control slots leave it alone.
            self.own.push(bytes, &[]).expect("the own channel had room");
            self.device.arena().give(open.slot);
        } else if let Some(near) = &mut peer.near {
            let bytes = &self.device.arena_ref().payload(open.slot)[..open.used];
            // Room was there when the slot was opened, and control slots leave it alone; if the other side spoilt it, the channel ends.
            let _ = near.shm.push(bytes, &[]);
            near.shm.flush();
            self.device.arena().give(open.slot);
        } else if let Some(link) = peer.peering.link_mut().filter(|l| l.is_open()) {
            link.push(open.slot.0, open.used as u32);
            self.mark_dirty(rank);
        } else {
            self.device.arena().give(open.slot);
        }
    }

    /// A whole small message that can leave at once, in a frame of its own: all that happens to most messages outside a batch.
    /// False, with nothing done, if it takes more than that.
    #[inline]
    pub(crate) fn express(&mut self, now: Nanos, rank: Rank, key: Key, data: &[u8]) -> bool {
        if self.batch_depth > 0 || self.closed || now >= self.next_deadline || self.dirty.len() > 1 {
            return false;
        }
        let (len, longest) = (SHORT_LEN + data.len(), LONG_LEN + data.len());
        let Some(peer) = self.peers.get(rank as usize) else { return false };
        let clear = peer.is_up()
            && peer.open.is_none()
            && peer.peering.link().is_some_and(|link| {
                link.is_clear(longest) && !(self.config.share_frames && link.unacknowledged() > 0)
            })
            && longest <= self.device.arena_ref().payload_len()
            && peer.numbers[key.0 as usize] != UNKNOWN
            && self.may_take(peer);
        let Some(slot) = clear.then(|| self.device.arena().take()).flatten() else { return false };
        let number = self.peers[rank as usize].numbers[key.0 as usize] & !SHORT_ONLY;
        self.send_clear(now, rank, (slot, len), |room| {
            put_short(room, number, data);
        });
        true
    }

    /// Sends a slot of `len` bytes at once, over a link that is clear; `write` writes them.
    #[inline(always)]
    fn send_clear(
        &mut self,
        now: Nanos,
        rank: Rank,
        (slot, len): (SlotId, usize),
        write: impl FnOnce(&mut [u8]),
    ) {
        let peer = &mut self.peers[rank as usize];
        let link = peer.peering.link_mut().expect("it is clear");
        let bytes = self.device.arena().slot_mut(slot);
        write(&mut bytes[HEADROOM..]);
        let transmit = link.push_clear(now, slot.0, len as u32);
        let range = HEADROOM - transmit.head_len()..HEADROOM + len;
        link.finish(&transmit, now, &mut bytes[range.clone()]);
        self.device.send(peer.route, slot, range);
        self.flush();
        self.next_deadline = self.next_deadline.min(now + self.soonest);
    }

    /// A memory record that can leave at once, in a frame of its own; as [`Interface::express`].
    #[inline]
    pub(crate) fn express_memory(
        &mut self,
        now: Nanos,
        rank: Rank,
        message: &Memory<'_>,
        flags: u8,
        data: &[u8],
    ) -> bool {
        if self.batch_depth > 0 || self.closed || now >= self.next_deadline || self.dirty.len() > 1 {
            return false;
        }
        let len = message.head_len() + data.len();
        let peer = &self.peers[rank as usize];
        let clear = peer.open.is_none()
            && peer.peering.link().is_some_and(|link| {
                link.is_clear(len) && !(self.config.share_frames && link.unacknowledged() > 0)
            })
            && len <= self.device.arena_ref().payload_len()
            && self.may_take(peer);
        let Some(slot) = clear.then(|| self.device.arena().take()).flatten() else { return false };
        self.send_clear(now, rank, (slot, len), |room| {
            let head = message.write(room, flags, data.len());
            room[head..len].copy_from_slice(data);
        });
        true
    }

    /// A whole small message into a slot that is open and stays open: all that happens to most messages of a batch. False
    /// if it takes more than that.
    #[inline(never)]
    pub(crate) fn batch_short(&mut self, rank: Rank, key: Key, data: &[u8]) -> bool {
        if self.closed {
            return false;
        }
        let Some(peer) = self.peers.get_mut(rank as usize) else { return false };
        let number = peer.numbers.get(key.0 as usize).copied().unwrap_or(UNKNOWN);
        let Some(open) = peer.open.as_mut().filter(|o| number != UNKNOWN && !o.memory) else { return false };
        let room = &mut self.device.arena().payload_mut(open.slot)[open.used..open.capacity];
        let Some(room) = room.get_mut(..SHORT_LEN + data.len()) else { return false };
        open.used += put_short(room, number & !SHORT_ONLY, data);
        open.tail = None;
        true
    }

    /// A whole small message (M-3).
    #[inline]
    pub(crate) fn short(&mut self, rank: Rank, handler: u16, data: &[u8]) -> Result<(), SendError> {
        self.open_slot(rank, SHORT_LEN + data.len())?;
        let open = self.peers[rank as usize].open.as_mut().expect("opened above");
        let room = &mut self.device.arena().payload_mut(open.slot)[open.used..open.capacity];
        open.used += put_short(room, handler, data);
        open.tail = None;
        Ok(())
    }

    /// A control slot of its own (W-6): tables and windows do not wait behind messages that are being written. One that overtakes does
    /// not wait behind messages that are not yet sent, either.
    pub(crate) fn push_control(&mut self, rank: Rank, bytes: &[u8], overtakes: bool) -> bool {
        let Some(slot) = self.device.arena().take() else { return false };
        self.device.arena().payload_mut(slot)[..bytes.len()].copy_from_slice(bytes);
        if rank == self.rank {
            // The open slot's room is taken.
            let taken = usize::from(self.peers[rank as usize].open.is_some());
            let pushed = self.own.room() > taken && self.own.push(bytes, &[]).is_ok();
            self.device.arena().give(slot);
            return pushed;
        }
        let peer = &mut self.peers[rank as usize];
        if let Some(near) = &mut peer.near {
            let pushed =
                near.shm.room() > usize::from(peer.open.is_some()) && near.shm.push(bytes, &[]).is_ok();
            near.stalled |= !pushed;
            near.shm.flush();
            self.device.arena().give(slot);
            return pushed;
        }
        match peer.peering.link_mut().filter(|l| l.is_open()) {
            Some(link) if overtakes => {
                let seq = link.push_ahead(slot.0, bytes.len() as u32);
                if let Some(open) = peer.open.as_mut().filter(|open| seq.before(open.behind)) {
                    open.behind = open.behind.next();
                }
                self.mark_dirty(rank);
            }
            Some(link) => {
                link.push(slot.0, bytes.len() as u32);
                self.mark_dirty(rank);
            }
            None => self.device.arena().give(slot),
        }
        true
    }

    /// A message has ended, or a batch: whatever is in the open slot leaves, unless it may wait for company (N-2).
    #[inline]
    pub(crate) fn send_now(&mut self, now: Nanos, rank: Rank) {
        if self.batch_depth > 0 {
            if self.train_is_long(rank) {
                self.mark_dirty(rank);
                self.service(now);
            }
            return self.mark_dirty(rank);
        }
        if rank == self.rank || self.peers[rank as usize].near.is_some() {
            return self.close_slot(rank);
        }
        self.mark_dirty(rank);
        self.service(now);
    }

    /// Lets what a batch has gathered leave, although the batch goes on.
    #[inline]
    pub(crate) fn flush_batch(&mut self, now: Nanos) {
        if self.batch_depth > 0 {
            let depth = std::mem::replace(&mut self.batch_depth, 0);
            self.close_slots(now);
            self.batch_depth = depth;
        }
    }

    /// Lets everything leave that has been gathered, for whomever. A poll inside a batch may have served peers whose slots stayed
    /// open, so all are looked at.
    pub(crate) fn close_slots(&mut self, now: Nanos) {
        self.close_slot(self.rank);
        for rank in 0..self.peers.len() as Rank {
            if self.peers[rank as usize].near.is_some() {
                self.close_slot(rank);
            } else if self.peers[rank as usize].open.is_some() {
                self.mark_dirty(rank);
            }
        }
        self.service(now);
    }

    /// All frames that a peer's link wants to send now.
    #[inline]
    pub(crate) fn transmit(&mut self, now: Nanos, rank: Rank) {
        self.close_unless_waiting(rank);
        if let Some(hello) = self.peers[rank as usize].peering.poll_hello(now) {
            let route = self.peers[rank as usize].route;
            self.send_bytes(route, &hello);
        }
        self.transmit_slots(now, rank);
        // What kept the open slot waiting may have left just now; nobody would look again before it is acknowledged.
        if self.close_unless_waiting(rank) {
            self.transmit_slots(now, rank);
        }
    }

    /// Closes the open slot, if there is one and nothing is a reason to wait for company. Returns whether it did.
    #[inline]
    fn close_unless_waiting(&mut self, rank: Rank) -> bool {
        let due = self.batch_depth == 0 && self.peers[rank as usize].open.is_some() && !self.may_wait(rank);
        if due {
            self.close_slot(rank);
        }
        due
    }

    #[inline]
    fn transmit_slots(&mut self, now: Nanos, rank: Rank) {
        let peer = &mut self.peers[rank as usize];
        let route = peer.route;
        let Some(link) = peer.peering.link_mut() else { return };
        let full = link.waiting() >= TX_QUEUE;
        while let Some(transmit) = link.poll_transmit(now) {
            // D-9: while the device looks at a slot's earlier frame, its headers must stay; the rare repetition goes from a copy.
            let whole = transmit
                .slot
                .as_ref()
                .is_some_and(|slot| slot.is_whole() && !self.device.arena_ref().is_held(SlotId(slot.token)));
            if whole && !transmit.sealed {
                let slot = transmit.slot.as_ref().expect("whole slots are slots");
                let range = HEADROOM - transmit.head_len()..HEADROOM + slot.range.end;
                let bytes = self.device.arena().slot_mut(SlotId(slot.token));
                link.finish(&transmit, now, &mut bytes[range.clone()]);
                self.device.send(route, SlotId(slot.token), range);
            } else if !send_copy(&mut *self.device, &mut self.scratch, link, &transmit, now, route) {
                break;
            }
        }
        // Whoever found the queue full is to try again.
        self.activity += u64::from(full && link.waiting() < TX_QUEUE);
    }

    /// Whether the open slot may stay open for company: always while slots from before it cannot be sent anyway, and, as an
    /// option, while they are unacknowledged. Slots pushed later do not count: control slots would overtake it for ever.
    #[inline]
    fn may_wait(&self, rank: Rank) -> bool {
        let peer = &self.peers[rank as usize];
        let (Some(link), Some(open)) = (peer.peering.link(), &peer.open) else { return false };
        open.capacity - open.used >= SHORT_LEN
            && link.is_open()
            && (link.sent_to().before(open.behind)
                || self.config.share_frames && link.acknowledged_to().before(open.behind))
    }

    /// Sends bytes that are no slot: handshake frames.
    pub(crate) fn send_bytes(&mut self, route: RouteId, bytes: &[u8]) {
        let Some(slot) = self.device.arena().take() else { return };
        self.scratch.push(slot);
        self.device.arena().payload_mut(slot)[..bytes.len()].copy_from_slice(bytes);
        self.device.send(route, slot, HEADROOM..HEADROOM + bytes.len());
    }

    /// Gives back the slots of frames that were no slots of a link.
    #[cold]
    pub(crate) fn empty_scratch(&mut self) {
        for slot in self.scratch.drain(..) {
            self.device.arena().give(slot);
        }
    }
}

/// Writes a whole small message; returns its bytes.
#[inline]
fn put_short(room: &mut [u8], handler: u16, data: &[u8]) -> usize {
    let head = record::write::short(room, handler, data.len());
    room[head..head + data.len()].copy_from_slice(data);
    head + data.len()
}

/// Builds a frame in a slot of its own: control frames, fragments, probes, and everything on a sealed link.
#[cold]
fn send_copy(
    device: &mut dyn Datagram,
    scratch: &mut Vec<SlotId>,
    link: &mut tautline_link::Link,
    transmit: &Transmit,
    now: Nanos,
    route: RouteId,
) -> bool {
    let taken = device.arena().take();
    // Without a slot to copy to, what is queued goes out first, and its copies come back.
    let slot = taken.or_else(|| {
        device.flush();
        scratch.drain(..).for_each(|slot| device.arena().give(slot));
        device.arena().take()
    });
    let Some(copy) = slot else {
        tracing::warn!("no slot left for a control frame");
        return false;
    };
    scratch.push(copy);
    let (head, tail) = (transmit.head_len(), transmit.tail_len());
    let len = transmit.slot.as_ref().map_or(0, |s| s.range.len());
    let start = HEADROOM.saturating_sub(head);
    if let Some(slot) = &transmit.slot {
        device.arena().copy(SlotId(slot.token), slot.range.clone(), copy, start + head);
    }
    let bytes = &mut device.arena().slot_mut(copy)[start..start + head + len + tail];
    if transmit.sealed {
        link.finish_sealed(transmit, now, bytes);
    } else {
        link.finish(transmit, now, bytes);
    }
    device.send(route, copy, start..start + head + len + tail);
    true
}
