//! Frames of a link whose tags are computed together (L-33).

use std::ops::Range;

use tautline_device::{HEADROOM, SlotId};
use tautline_link::{Link, TRAIN_TAGS};
use tautline_wire::frame::{HEADER_LEN, put_tag};

use super::port::Port;

/// Frames with consecutive packet numbers that lack their tags: less than a train's worth.
#[derive(Debug)]
pub(super) struct Untagged {
    /// The packet number of the first one.
    first: u64,
    frames: [(SlotId, u32); TRAIN_TAGS],
    len: usize,
}

impl Untagged {
    pub(super) const NONE: Untagged = Untagged { first: 0, frames: [(SlotId(0), 0); TRAIN_TAGS], len: 0 };

    /// Returns how many frames wait.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether a slot is among them.
    #[inline]
    pub(super) fn has(&self, slot: SlotId) -> bool {
        self.frames[..self.len].iter().any(|(of, _)| *of == slot)
    }

    /// Adds a frame: its packet number, its slot, and the length of its payload. As soon as there are enough
    /// of them, they get their tags and are passed to `send`.
    #[inline]
    pub(super) fn add(
        &mut self,
        link: &mut Link,
        port: &mut Port,
        (packet, slot, len): (u64, SlotId, u32),
        send: impl FnMut(&mut Port, SlotId, Range<usize>) + Copy,
    ) {
        if packet != self.first + self.len as u64 {
            self.finish(link, port, send);
            self.first = packet;
        }
        self.frames[self.len] = (slot, len);
        self.len += 1;
        if self.len == TRAIN_TAGS {
            self.finish(link, port, send);
            self.first = packet + 1;
        }
    }

    /// Writes the tags, and passes the frames to `send`.
    #[inline(never)]
    pub(super) fn finish(
        &mut self,
        link: &mut Link,
        port: &mut Port,
        mut send: impl FnMut(&mut Port, SlotId, Range<usize>),
    ) {
        if self.len == 0 {
            return;
        }
        let frames = &self.frames[..std::mem::take(&mut self.len)];
        let tags = (frames.len() > 1).then(|| {
            let arena = port.device.arena_ref();
            // In place of those that are missing the last one again; nobody sees its further tags.
            let frame = |i: usize| {
                let (slot, len) = frames[i.min(frames.len() - 1)];
                arena.bytes(slot, frame_range(len as usize))
            };
            link.tags(self.first, std::array::from_fn(frame))
        });
        for (i, &(slot, len)) in frames.iter().enumerate() {
            let range = frame_range(len as usize);
            let frame = &mut port.device.arena().slot_mut(slot)[range.clone()];
            match tags.flatten() {
                Some(tags) => put_tag(frame, tags[i]),
                None => link.tag_frame(self.first + i as u64, frame),
            }
            send(port, slot, range);
        }
    }
}

/// Where in its slot a frame with `len` bytes of payload lies.
#[inline]
pub(super) fn frame_range(len: usize) -> Range<usize> {
    HEADROOM - HEADER_LEN..HEADROOM + len
}
