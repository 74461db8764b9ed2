//! Sending: headers in front of the frame where it lies, a descriptor in the ring, one doorbell per batch.

use std::ops::Range;

use tautline_wire::Kind;
use tautline_wire::handshake::HANDSHAKE_LEN;

use super::headers::{Framing, Template};
use super::receive::ANSWER;
use super::routing::STALLS_MAX;
use super::{Origin, Xdp};
use crate::sys::{Errno, ORDERS, order_sum};
use crate::{Datagram, HEADROOM, RouteId, SlotId};

/// How often the doorbell is rung for one batch before what is left waits for the next.
const KICKS: usize = 64;
/// Flushes between looks at the clock.
const UPKEEP_FLUSHES: u32 = 16;

/// Whether a frame is to open a channel (W-1, H-1): then it is not known yet which frames the other side takes.
fn is_handshake(frame: &[u8]) -> bool {
    let opens = |kind| matches!(kind, Kind::Hello | Kind::Welcome | Kind::Retry | Kind::Refuse);
    frame.len() == HANDSHAKE_LEN && Kind::of(frame).is_ok_and(opens)
}

/// Completes a frame that lies there in its slot, with orders to the card in front of it if it is to do something. Returns whether it is.
#[inline]
fn put_headers(template: &Template, slot: &mut [u8], frame: Range<usize>) -> bool {
    let start = frame.start;
    template.write(&mut slot[frame]);
    let orders = template.orders();
    if let Some((from, offset)) = orders {
        slot[start - ORDERS..start].copy_from_slice(&order_sum(from, offset));
    }
    orders.is_some()
}

impl Xdp {
    /// Queues a frame, by whatever way its route goes now.
    #[inline]
    pub(super) fn send_frame(&mut self, id: RouteId, slot: SlotId, range: Range<usize>) {
        let route = &mut self.routes[id.0 as usize];
        let Some(template) = route.template.as_ref().filter(|_| !route.confirm) else {
            route.confirm = false;
            return self.udp.send(id, slot, range);
        };
        route.used = true;
        if self.config.framing == Framing::Raw
            && is_handshake(self.udp.arena_ref().bytes(slot, range.clone()))
        {
            // D-12: whoever does without raw frames hears it, too.
            return self.udp.send(id, slot, range);
        }
        if range.start < template.len() + ORDERS || self.udp.arena_ref().is_held(slot) {
            return self.send_copy(id, slot, range);
        }
        let start = range.start - template.len();
        let ordered = put_headers(template, self.udp.arena().slot_mut(slot), start..range.end);
        let len = range.len();
        self.queue(Origin::Slot(slot), start..range.end, len, ordered);
    }

    /// The frame cannot go from where it is: there is no room before it, or the kernel still looks at an earlier one there.
    #[cold]
    fn send_copy(&mut self, id: RouteId, slot: SlotId, range: Range<usize>) {
        if self.copies.available() == 0 {
            self.ring();
        }
        let Some(copy) = self.copies.take() else { return self.counters.send_failures += 1 };
        let Some(template) = &self.routes[id.0 as usize].template else { return self.copies.give(copy) };
        let frame = self.udp.arena_ref().bytes(slot, range);
        let (head, len) = (template.len(), frame.len());
        // From the end of the headroom if it fits there; a frame that began within the headroom is longer than a payload.
        let start = HEADROOM.min(HEADROOM + self.copies.payload_len() - len);
        if start < head + ORDERS {
            self.copies.give(copy);
            return self.counters.send_failures += 1;
        }
        let room = self.copies.slot_mut(copy);
        room[start..start + len].copy_from_slice(frame);
        let ordered = put_headers(template, room, start - head..start + len);
        self.queue(Origin::Copy(copy), start - head..start + len, len, ordered);
        // Held until it has left, then free.
        self.copies.give(copy);
    }

    /// Puts descriptors for these bytes of a slot into the ring: one, or several if they lie in several chunks.
    #[inline]
    fn queue(&mut self, origin: Origin, range: Range<usize>, len: usize, ordered: bool) {
        let needed = self.layout.slot_chunks as u32;
        if !self.queues.first().has_room(needed) {
            self.ring();
            if !self.queues.first().has_room(needed) {
                return self.counters.send_failures += 1;
            }
        }
        let (base, arena) = match origin {
            Origin::Slot(slot) => (slot.0 as usize, self.udp.arena()),
            Origin::Copy(slot) => (self.layout.slots + slot.0 as usize, &mut self.copies),
        };
        let (Origin::Slot(slot) | Origin::Copy(slot)) = origin;
        let base = base * self.layout.stride();
        let (mut at, end) = (base + range.start, base + range.end);
        while at < end {
            let stop = end.min((at / self.layout.chunk + 1) * self.layout.chunk);
            arena.hold(slot);
            self.pending.push_back(origin);
            self.queues.first().push(at as u64, (stop - at) as u32, stop < end, ordered);
            at = stop;
        }
        self.counters.frames_sent += 1;
        self.counters.bytes_sent += len as u64;
    }

    /// Rings the doorbell for what is in the ring.
    #[inline]
    pub(super) fn ring(&mut self) {
        if self.pending.is_empty() || self.health.lost {
            return;
        }
        self.reap();
        let xsk = self.queues.first();
        xsk.submit();
        // What is pending may all be with the kernel already; then there is nothing to ring for.
        if xsk.unseen() > 0 && xsk.wants_kick() {
            self.kick();
        }
        if !self.told {
            let unseen = self.queues.first().unseen() as usize;
            while self.pending.len() > unseen {
                self.let_go_first();
            }
        }
        self.flushes = self.flushes.wrapping_add(1);
        if self.flushes.is_multiple_of(UPKEEP_FLUSHES) {
            self.confirm_neighbours();
        }
    }

    /// Makes the kernel take what was submitted.
    #[inline]
    fn kick(&mut self) {
        let kicked = self.ring_once();
        if self.queues.first().unseen() > 0 || kicked.is_err() {
            self.kick_again(kicked);
        } else if self.health.stalls > 0 {
            self.ring_moves();
        }
    }

    /// One doorbell.
    #[inline]
    fn ring_once(&mut self) -> Result<(), Errno> {
        if self.loses_doorbell() {
            return Ok(());
        }
        self.counters.send_calls += 1;
        self.streak = self.streak.saturating_sub(ANSWER);
        if let Some(trial) = &mut self.trial {
            trial.rang();
        }
        self.queues.first().kick()
    }

    /// Whether a test wants this doorbell not to be rung.
    #[inline]
    pub(super) fn loses_doorbell(&mut self) -> bool {
        let loses = self.lost_doorbells > 0;
        self.lost_doorbells -= u32::from(loses);
        loses
    }

    /// The kernel takes frames from the ring, perhaps after a long while.
    #[cold]
    fn ring_moves(&mut self) {
        if std::mem::take(&mut self.health.stalls) >= STALLS_MAX {
            self.choose_all();
        }
    }

    #[cold]
    fn kick_again(&mut self, mut kicked: Result<(), Errno>) {
        let mut before = self.queues.first().unseen();
        for _ in 0..KICKS {
            match kicked {
                Ok(()) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => {}
                Err(errno) => {
                    if self.health.refused.replace(errno).is_none() {
                        self.choose_all();
                    }
                    return;
                }
            }
            let left = self.queues.first().unseen();
            if left < before {
                self.ring_moves();
            }
            if left == 0 {
                return;
            }
            before = left;
            self.reap();
            kicked = self.ring_once();
        }
        self.health.stalls = self.health.stalls.saturating_add(1);
        if self.health.stalls == STALLS_MAX {
            self.choose_all();
        }
    }

    /// Takes back what the kernel says it is done with.
    #[inline]
    pub(super) fn reap(&mut self) {
        let stride = self.layout.stride() as u64;
        let mut any = false;
        while let Some(address) = self.queues.first().completed() {
            any = true;
            if self.told {
                let number = (address / stride) as u32;
                let slots = self.layout.slots as u32;
                if number < slots {
                    self.udp.arena().unhold(SlotId(number));
                } else {
                    self.copies.unhold(SlotId(number - slots));
                }
                self.pending.pop_front();
            }
        }
        if any {
            self.queues.first().finish_completed();
        }
    }

    #[inline]
    fn let_go_first(&mut self) {
        match self.pending.pop_front() {
            Some(Origin::Slot(slot)) => self.udp.arena().unhold(slot),
            Some(Origin::Copy(slot)) => self.copies.unhold(slot),
            None => {}
        }
    }

    pub(super) fn let_go_all(&mut self) {
        while !self.pending.is_empty() {
            self.let_go_first();
        }
    }
}
