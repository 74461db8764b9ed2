//! Sending: headers in front of the frame where it lies, a descriptor in the ring, one doorbell per batch.

use std::ops::Range;

use tautline_wire::Kind;
use tautline_wire::handshake::HANDSHAKE_LEN;

use super::Xdp;
use super::headers::{Framing, Template};
use super::receive::DOORBELL_WEIGHT;
use super::rings::Origin;
use super::routing::STALLS_MAX;
use crate::sys::{Errno, TX_METADATA_LEN, checksum_request};
use crate::{Datagram, HEADROOM, RouteId, SlotId};

/// Doorbells for one batch before the rest waits for the next flush.
const KICKS: usize = 64;
/// Flushes between clock reads.
const UPKEEP_FLUSHES: u32 = 16;

/// Whether a frame belongs to a handshake (W-1, H-1): the peer's framing is not known yet then.
fn is_handshake(frame: &[u8]) -> bool {
    let opens = |kind| matches!(kind, Kind::Hello | Kind::Welcome | Kind::Retry | Kind::Refuse);
    frame.len() == HANDSHAKE_LEN && Kind::of(frame).is_ok_and(opens)
}

/// Writes the headers of a frame in its slot, and metadata for the card in front of them if needed. Returns
/// whether there is metadata.
#[inline]
fn put_headers(template: &Template, slot: &mut [u8], frame: Range<usize>) -> bool {
    let start = frame.start;
    template.write(&mut slot[frame]);
    let offload = template.offload();
    if let Some((from, offset)) = offload {
        slot[start - TX_METADATA_LEN..start].copy_from_slice(&checksum_request(from, offset));
    }
    offload.is_some()
}

impl Xdp {
    /// Queues a frame on its route's present transport.
    #[inline]
    pub(super) fn send_frame(&mut self, id: RouteId, slot: SlotId, range: Range<usize>) {
        let route = &mut self.routing.routes[id.0 as usize];
        let Some(template) = route.template.as_ref().filter(|_| !route.confirm) else {
            route.confirm = false;
            return self.udp.send(id, slot, range);
        };
        route.used = true;
        if self.config.framing == Framing::Raw
            && is_handshake(self.udp.arena_ref().bytes(slot, range.clone()))
        {
            // D-21: a peer without raw framing receives it, too.
            return self.udp.send(id, slot, range);
        }
        if range.start < template.len() + TX_METADATA_LEN || self.udp.arena_ref().is_held(slot) {
            return self.send_copy(id, slot, range);
        }
        let start = range.start - template.len();
        let metadata = put_headers(template, self.udp.arena().slot_mut(slot), start..range.end);
        let len = range.len();
        self.queue(Origin::Slot(slot), start..range.end, len, metadata);
    }

    /// Sends a copy: there is no room in front of the frame, or the kernel may still read an earlier one in
    /// its slot.
    #[cold]
    fn send_copy(&mut self, id: RouteId, slot: SlotId, range: Range<usize>) {
        if self.rings.copies.available() == 0 {
            self.ring();
        }
        let copies = &mut self.rings.copies;
        let Some(copy) = copies.take() else { return self.statistics.counters.send_failures += 1 };
        let Some(template) = &self.routing.routes[id.0 as usize].template else { return copies.give(copy) };
        let frame = self.udp.arena_ref().bytes(slot, range);
        let (head, len) = (template.len(), frame.len());
        // Behind the headroom if it fits there; a frame that began within the headroom is longer than a
        // payload.
        let start = HEADROOM.min(HEADROOM + copies.payload_len() - len);
        if start < head + TX_METADATA_LEN {
            copies.give(copy);
            return self.statistics.counters.send_failures += 1;
        }
        let room = copies.slot_mut(copy);
        room[start..start + len].copy_from_slice(frame);
        let metadata = put_headers(template, room, start - head..start + len);
        self.queue(Origin::Copy(copy), start - head..start + len, len, metadata);
        // It is held until it has left, and free then.
        self.rings.copies.give(copy);
    }

    /// Pushes these bytes of a slot to the ring; a frame that finds no room counts as lost (D-3).
    #[inline]
    fn queue(&mut self, origin: Origin, range: Range<usize>, len: usize, metadata: bool) {
        let needed = self.rings.layout.slot_chunks as u32;
        if !self.rings.queues.sender().has_room(needed) {
            self.ring();
            if !self.rings.queues.sender().has_room(needed) {
                return self.statistics.counters.send_failures += 1;
            }
        }
        self.rings.push(self.udp.arena(), origin, range, metadata);
        self.statistics.counters.frames_sent += 1;
        self.statistics.counters.bytes_sent += len as u64;
    }

    /// Rings the doorbell for what was pushed.
    #[inline]
    pub(super) fn ring(&mut self) {
        if self.rings.pending.is_empty() || self.routing.health.lost {
            return;
        }
        self.rings.reap(self.udp.arena());
        let xsk = self.rings.queues.sender();
        xsk.submit();
        // The kernel may have taken all pending descriptors already.
        if xsk.untaken() > 0 && xsk.needs_wakeup() {
            self.kick();
        }
        self.rings.release_taken(self.udp.arena());
        self.routing.flushes = self.routing.flushes.wrapping_add(1);
        if self.routing.flushes.is_multiple_of(UPKEEP_FLUSHES) {
            self.routing.confirm_neighbours();
            self.check_program(false);
        }
    }

    /// Makes the kernel take what was submitted.
    #[inline]
    fn kick(&mut self) {
        let kicked = self.kick_once();
        if self.rings.queues.sender().untaken() > 0 || kicked.is_err() {
            self.kick_again(kicked);
        } else if self.routing.health.stalls > 0 {
            self.ring_moves();
        }
    }

    /// Rings the doorbell once.
    #[inline]
    fn kick_once(&mut self) -> Result<(), Errno> {
        if self.rings.loses_doorbell() {
            return Ok(());
        }
        self.statistics.counters.send_calls += 1;
        self.polling.streak = self.polling.streak.saturating_sub(DOORBELL_WEIGHT);
        self.polling.doorbell();
        self.rings.queues.sender().kick()
    }

    /// Notes that the kernel takes frames from the ring again.
    #[cold]
    fn ring_moves(&mut self) {
        if std::mem::take(&mut self.routing.health.stalls) >= STALLS_MAX {
            self.choose_all();
        }
    }

    #[cold]
    fn kick_again(&mut self, mut kicked: Result<(), Errno>) {
        let mut before = self.rings.queues.sender().untaken();
        for _ in 0..KICKS {
            match kicked {
                Ok(()) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => {}
                Err(errno) => {
                    if self.routing.health.send_error.replace(errno).is_none() {
                        self.choose_all();
                    }
                    return;
                }
            }
            let left = self.rings.queues.sender().untaken();
            if left < before {
                self.ring_moves();
            }
            if left == 0 {
                return;
            }
            before = left;
            self.rings.reap(self.udp.arena());
            kicked = self.kick_once();
        }
        let stalls = &mut self.routing.health.stalls;
        *stalls = stalls.saturating_add(1);
        if *stalls == STALLS_MAX {
            self.choose_all();
        }
    }
}
