//! The link kind: a reliable channel made of the sans-I/O link and the datagram device.

use std::collections::VecDeque;

use tautline_device::{HEADROOM, RouteId, SlotId};
use tautline_link::{Arrival, Link, Nanos, Peering, Reassembly, Transmit};
use tautline_wire::Seq;

use super::port::Port;
use super::untagged::{Untagged, frame_range};
use crate::limits::{MAX_REASSEMBLIES, TX_QUEUE};
use crate::memory::PlacedPart;

/// A slot that arrived ahead of a gap.
#[derive(Debug)]
pub(crate) enum Ahead {
    /// All of it.
    Bytes(Vec<u8>),
    /// Part of a put whose bytes are in their place already.
    Placed(PlacedPart),
}

/// The datagram side of a channel. Its handshake may run while another kind is established.
#[derive(Debug)]
pub(crate) struct LinkChannel {
    pub(crate) peering: Peering,
    pub(crate) route: RouteId,
    /// Slots that arrived ahead of a gap; the first is the one after the slot that is due.
    ahead: VecDeque<Option<Ahead>>,
    /// Slots being put together from fragments.
    fragments: Vec<(Seq, Reassembly)>,
}

impl LinkChannel {
    pub(crate) fn new(peering: Peering, route: RouteId) -> LinkChannel {
        LinkChannel { peering, route, ahead: VecDeque::new(), fragments: Vec::new() }
    }

    /// Forgets what arrived out of order on the former channel (N-4).
    pub(super) fn reset(&mut self) {
        self.ahead.clear();
        self.fragments.clear();
    }

    #[inline]
    pub(crate) fn link(&self) -> Option<&Link> {
        self.peering.link()
    }

    /// Whether there is a link that is not over, or one is being opened.
    pub(crate) fn is_in_use(&self) -> bool {
        self.is_live() || self.peering.is_connecting()
    }

    /// Whether frames of the device may be for it: there is a link, over or not, or one is being opened.
    pub(crate) fn is_polled(&self) -> bool {
        self.link().is_some() || self.peering.is_connecting()
    }

    /// Whether there is a link that is not over.
    pub(crate) fn is_live(&self) -> bool {
        self.link().is_some_and(|link| !link.is_over())
    }

    /// Whether there is no link, or one that is over and has nothing more to say about it (L-18).
    pub(crate) fn is_settled(&self) -> bool {
        self.link().is_none_or(Link::is_settled)
    }

    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.room() > 0
    }

    /// How many slots may be pushed before [`LinkChannel::has_room`] has to be asked again.
    #[inline]
    pub(super) fn room(&self) -> usize {
        let open = self.link().filter(|link| link.is_open());
        open.map_or(0, |link| TX_QUEUE.saturating_sub(link.unsent()))
    }

    #[inline]
    pub(super) fn can_send_now(&self, len: usize, share_frames: bool) -> bool {
        self.link().is_some_and(|link| link.can_send_now(len) && !(share_frames && link.unacknowledged() > 0))
    }

    /// One past the last slot that was pushed.
    #[inline]
    pub(super) fn pushed_to(&self) -> Seq {
        self.link().map_or(Seq(0), Link::pushed_to)
    }

    #[inline]
    fn open_link(&mut self) -> Option<&mut Link> {
        self.peering.link_mut().filter(|link| link.is_open())
    }

    /// Queues a slot; false if there is no open link.
    #[inline]
    pub(super) fn push(&mut self, slot: SlotId, len: usize) -> bool {
        let Some(link) = self.open_link() else { return false };
        link.push(slot.0, len as u32);
        true
    }

    /// Queues a slot in front of those that were never sent (W-12), and returns its number.
    pub(super) fn push_priority(&mut self, slot: SlotId, len: usize) -> Option<Seq> {
        Some(self.open_link()?.push_priority(slot.0, len as u32))
    }

    /// Sends a slot of `len` bytes at once over a link that is clear; `write` writes them.
    #[inline(always)]
    pub(super) fn send_clear(
        &mut self,
        port: &mut Port,
        now: Nanos,
        (slot, len): (SlotId, usize),
        write: impl FnOnce(&mut [u8]),
    ) {
        let link = self.peering.link_mut().expect("it is clear");
        let bytes = port.device.arena().slot_mut(slot);
        write(&mut bytes[HEADROOM..]);
        let range = frame_range(len);
        link.send_whole(now, slot.0, &mut bytes[range.clone()]);
        port.device.send(self.route, slot, range);
        port.flush();
    }

    /// Sends a whole frame with the next flush, or queues it if something is in its way. The link is open.
    /// It may wait in `untagged` for others: [`LinkChannel::end_train`] has to follow.
    #[inline]
    pub(super) fn send_in_train(
        &mut self,
        port: &mut Port,
        now: Nanos,
        (slot, len): (SlotId, usize),
        untagged: &mut Untagged,
    ) {
        let link = self.peering.link_mut().expect("there was room");
        if !link.can_send_now(len) {
            link.push(slot.0, len as u32);
            return;
        }
        let range = frame_range(len);
        let frame = &mut port.device.arena().slot_mut(slot)[range.clone()];
        let route = self.route;
        if link.tags_trains() {
            let packet = link.send_untagged(now, slot.0, frame);
            let send = |port: &mut Port, slot, range| port.send_with_flush(route, slot, range);
            untagged.add(link, port, (packet, slot, len as u32), send);
        } else {
            link.send_whole(now, slot.0, frame);
            port.send_with_flush(route, slot, range);
        }
    }

    /// Writes the tags of the frames that wait for them, and has the next flush send those frames.
    #[inline]
    pub(super) fn end_train(&mut self, port: &mut Port, untagged: &mut Untagged) {
        let route = self.route;
        let Some(link) = self.peering.link_mut() else { return };
        untagged.finish(link, port, |port, slot, range| port.send_with_flush(route, slot, range));
    }

    /// Sends every frame that the link wants to send now.
    #[inline]
    pub(super) fn transmit(&mut self, port: &mut Port, now: Nanos) {
        let Some(link) = self.peering.link_mut() else { return };
        let full = link.unsent() >= TX_QUEUE;
        if link.tags_trains() && link.unsent() > 1 {
            transmit_trains(port, link, now, self.route);
        } else {
            transmit_all::<false>(port, link, now, self.route);
        }
        // A sender that found the queue full may try again.
        port.activity += u64::from(full && link.unsent() < TX_QUEUE);
    }

    /// Frees the slots that the peer has acknowledged.
    #[inline]
    pub(crate) fn free_acknowledged(&mut self, port: &mut Port) {
        let Some(link) = self.peering.link_mut() else { return };
        let mut freed = link.poll_freed();
        // Whatever the peer acknowledges, and when the link ends: a frame leaves before its slot is reused.
        if freed.is_some() && port.waiting_frames() > 0 {
            port.flush();
        }
        let arena = port.device.arena();
        let scarce = arena.available() <= arena.capacity() / 2;
        while let Some(token) = freed {
            arena.give(SlotId(token));
            // A sender that found no slot may try again.
            port.activity += u64::from(scarce);
            freed = link.poll_freed();
        }
    }

    /// Keeps a slot that arrived `distance` slots ahead of the one that is due.
    pub(crate) fn keep_ahead(&mut self, distance: u32, slot: Ahead) {
        let at = distance as usize - 1;
        if self.ahead.len() <= at {
            self.ahead.resize_with(at + 1, || None);
        }
        self.ahead[at] = Some(slot);
    }

    #[inline]
    pub(crate) fn has_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// The slot that follows the one that was due, if it had arrived ahead of it.
    pub(crate) fn pop_ahead(&mut self) -> Option<Ahead> {
        self.ahead.pop_front().flatten()
    }

    /// Adds a fragment. Returns the whole slot and when its turn comes, once all fragments have arrived
    /// (L-19).
    #[cold]
    pub(crate) fn add_fragment(
        &mut self,
        now: Nanos,
        (seq, offset, total): (Seq, u32, u32),
        bytes: &[u8],
    ) -> Option<(Arrival, Vec<u8>)> {
        let due = self.link()?.next_expected();
        // Slots that arrived whole after some of their fragments are done with.
        self.fragments.retain(|(of, _)| !of.before(due));
        let at = self.fragments.iter().position(|(of, _)| *of == seq).or_else(|| {
            // L-37: one place is for the slot that is due.
            let places = MAX_REASSEMBLIES - usize::from(seq != due);
            let fresh = Reassembly::new(total, tautline_wire::frame::MAX_FRAME)
                .filter(|_| self.fragments.len() < places)?;
            self.fragments.push((seq, fresh));
            Some(self.fragments.len() - 1)
        })?;
        if !self.fragments[at].1.add(offset, total, bytes) {
            return None;
        }
        let (_, whole) = self.fragments.swap_remove(at);
        let arrival = self.peering.link_mut()?.slot_complete(now, seq, total as usize);
        Some((arrival, whole.into_bytes()))
    }
}

#[inline(never)]
fn transmit_trains(port: &mut Port, link: &mut Link, now: Nanos, route: RouteId) {
    transmit_all::<true>(port, link, now, route);
}

/// Sends every frame that a link wants to send; with `TRAINS`, tags of several are computed together.
#[inline(always)]
fn transmit_all<const TRAINS: bool>(port: &mut Port, link: &mut Link, now: Nanos, route: RouteId) {
    let send = |port: &mut Port, slot, range| port.device.send(route, slot, range);
    let mut untagged = Untagged::NONE;
    while let Some(transmit) = link.poll_transmit(now) {
        // D-16: the headers of a slot that the device still reads must stay; such a repetition goes from a
        // copy.
        let arena = port.device.arena_ref();
        // D-32: and so does a frame whose headers need more room than the slot has for itself.
        let whole = transmit.slot.as_ref().is_some_and(|slot| {
            slot.is_whole() && !arena.is_held(SlotId(slot.token)) && transmit.head_len() <= arena.headers()
        });
        if whole && !transmit.sealed {
            let slot = transmit.slot.as_ref().expect("whole slots are slots");
            let (slot, len) = (SlotId(slot.token), slot.range.end);
            if TRAINS && untagged.has(slot) {
                // Its header is about to be written anew.
                untagged.finish(link, port, send);
            }
            let range = HEADROOM - transmit.head_len()..HEADROOM + len;
            let frame = &mut port.device.arena().slot_mut(slot)[range.clone()];
            if TRAINS && range == frame_range(len) {
                let packet = link.finish_untagged(&transmit, now, frame);
                untagged.add(link, port, (packet, slot, len as u32), send);
                continue;
            }
            link.finish(&transmit, now, frame);
            if TRAINS {
                untagged.finish(link, port, send);
            }
            send(port, slot, range);
        } else {
            if TRAINS {
                untagged.finish(link, port, send);
            }
            if !send_copy(port, link, &transmit, now, route) {
                break;
            }
        }
    }
    if TRAINS {
        untagged.finish(link, port, send);
    }
}

/// Builds a frame in a slot of its own: control frames, fragments, probes, and everything on a sealed link.
#[cold]
fn send_copy(port: &mut Port, link: &mut Link, transmit: &Transmit, now: Nanos, route: RouteId) -> bool {
    let Some(copy) = port.take_scratch() else {
        tracing::warn!("no slot left for a control frame");
        return false;
    };
    let (head, tail) = (transmit.head_len(), transmit.tail_len());
    let len = transmit.slot.as_ref().map_or(0, |s| s.range.len());
    let arena = port.device.arena();
    let start = HEADROOM.saturating_sub(head).max(HEADROOM - arena.headers());
    if let Some(slot) = &transmit.slot {
        arena.copy(SlotId(slot.token), slot.range.clone(), copy, start + head);
    }
    let bytes = &mut arena.slot_mut(copy)[start..start + head + len + tail];
    if transmit.sealed {
        link.finish_sealed(transmit, now, bytes);
    } else {
        link.finish(transmit, now, bytes);
    }
    port.device.send(route, copy, start..start + head + len + tail);
    true
}
