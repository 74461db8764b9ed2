//! Taking frames out of the memory that a channel shares with its peer, sleeping, and the end. A channel of
//! another kind shares no memory: it has no frames here, and no peer that rings.

use tautline_device::shm::{InlineFrame, LINE_WORDS, PeekedLine, PoppedLine};
use tautline_mem::ApertureMemory;
use tautline_wire::record;

use super::{Channel, Kind, Port};
use crate::Down;

/// The next frame of a ring, when it is not a small message.
#[derive(Debug)]
pub(crate) enum NextFrame {
    /// A whole message of this many bytes; it has been taken.
    Message(usize),
    /// Memory or tag records.
    Served,
    /// Part of a message, control records, the end, or nothing.
    Other,
}

impl Channel {
    /// Returns whether memory is shared with the peer.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.kind, Kind::Shm(_))
    }

    /// Returns whether a frame, or the end, is in the ring.
    #[inline(always)]
    pub(crate) fn has_frames(&self) -> bool {
        match &self.kind {
            Kind::Shm(shm) => shm.has_frames(),
            _ => false,
        }
    }

    /// Returns whether the ring has a frame that may be taken while at most `limit` are pending, or the
    /// loopback queue has one.
    pub(crate) fn has_takeable_frames(&self, limit: usize) -> bool {
        match &self.kind {
            Kind::Shm(shm) => shm.has_frames() && !shm.is_clogged(limit),
            Kind::Loopback(loopback) => loopback.has_takeable_frames(),
            Kind::Link => false,
        }
    }

    /// Takes small frames that hold whole messages, fewer than `limit` bytes together. Returns how many, and
    /// whether something follows them.
    #[inline(always)]
    pub(crate) fn pop_inline(&mut self, frames: &mut [InlineFrame], limit: usize) -> (usize, bool) {
        match &mut self.kind {
            Kind::Shm(shm) => shm.pop_inline(frames, limit),
            _ => (0, false),
        }
    }

    /// Takes the next frame into `out` if it is a whole message.
    #[inline]
    pub(crate) fn take_message(&mut self, out: &mut [u8]) -> NextFrame {
        let Kind::Shm(shm) = &mut self.kind else { return NextFrame::Other };
        let first = shm.first_byte();
        match shm.peek() {
            Some(len) if record::is_whole_message(first) => {
                shm.take(&mut out[..len]);
                NextFrame::Message(len)
            }
            Some(_) if record::is_served(first) => NextFrame::Served,
            _ => NextFrame::Other,
        }
    }

    /// Takes the next frame if it is a small memory or tag record.
    #[inline(always)]
    pub(crate) fn pop_served_words(&mut self) -> PoppedLine {
        match &mut self.kind {
            Kind::Shm(shm) => shm.pop_served_words(),
            _ => PoppedLine::Empty,
        }
    }

    /// Returns the words of the next frame if memory is shared with the peer and the frame fits a line,
    /// without taking it.
    #[inline(always)]
    pub(crate) fn peek_line(&self) -> PeekedLine<'_> {
        match &self.kind {
            Kind::Shm(shm) => shm.peek_line(),
            _ => PeekedLine::Other,
        }
    }

    /// Takes the frame that [`Channel::peek_line`] returned.
    #[inline(always)]
    pub(crate) fn skip_line(&mut self) {
        if let Kind::Shm(shm) = &mut self.kind {
            shm.skip_line();
        }
    }

    /// Returns the length and the first words of the next frame, if it holds memory or tag records.
    #[inline]
    pub(crate) fn peek_served(&mut self) -> Option<(usize, [u64; LINE_WORDS])> {
        let shm = self.shm_mut()?;
        let len = shm.peek()?;
        let words = shm.first_words();
        record::is_served(words[0] as u8).then_some((len, words))
    }

    /// Takes the frame that [`Channel::peek_served`] found into exactly as many bytes.
    pub(crate) fn take_served(&mut self, out: &mut [u8]) {
        if let Some(shm) = self.shm_mut() {
            shm.take(out);
        }
    }

    /// Takes the frame that [`Channel::peek_served`] found; what follows its first words goes to an aperture.
    #[inline]
    pub(crate) fn take_served_rest(&mut self, len: usize, to: (&ApertureMemory, usize)) {
        if let Some(shm) = self.shm_mut() {
            shm.take_rest(len, to);
        }
    }

    /// As [`Channel::take_served_rest`], to private memory. What `out` has no room for is dropped.
    #[inline]
    pub(crate) fn take_served_rest_into(&mut self, len: usize, out: &mut [u8]) {
        if let Some(shm) = self.shm_mut() {
            shm.take_rest_into(len, out);
        }
    }

    /// Takes the next frame of a peer that is gone into a buffer of its own. False if there is none.
    pub(crate) fn take_last(&mut self, buffer: &mut Vec<u8>) -> bool {
        self.shm_mut().is_some_and(|shm| shm.take_last(buffer))
    }

    /// Counts a frame that was taken out as pending. False if no memory is shared.
    pub(crate) fn add_pending(&mut self) -> bool {
        self.shm_mut().map(super::shm::ShmChannel::add_pending).is_some()
    }

    /// Returns whether the peer has made room, returned a loan or granted a window that a sender waits for.
    #[inline]
    pub(crate) fn has_new_room(&mut self) -> bool {
        match &mut self.kind {
            Kind::Shm(shm) => shm.has_new_room(),
            _ => false,
        }
    }

    /// Counts what a sender waits for, and is there now, as activity, and takes the peer's windows (S-29).
    /// Returns whether a message waits for windows.
    #[inline]
    pub(crate) fn note_new_room(&mut self, port: &mut Port) -> bool {
        match &mut self.kind {
            Kind::Shm(shm) => shm.note_new_room(port, &mut self.messages),
            _ => false,
        }
    }

    /// Publishes what was taken. Returns the low bits of the number of frames taken so far, and whether
    /// nothing more is to be done: there are no frames, and nobody waits for anything of the peer.
    pub(crate) fn retire(&mut self) -> (u32, bool) {
        self.shm_mut().map_or((0, false), |shm| {
            shm.publish();
            (shm.taken() as u32, shm.is_idle())
        })
    }

    /// Returns whether there are no frames, and nobody waits for anything of the peer.
    pub(crate) fn is_idle(&self) -> bool {
        self.shm().is_none_or(super::shm::ShmChannel::is_idle)
    }

    /// Takes the peer's ring, if there is one (S-31). Returns whether there was.
    pub(crate) fn take_ring(&mut self) -> bool {
        self.shm_mut().is_some_and(super::shm::ShmChannel::take_ring)
    }

    /// Rings for a peer that has said elsewhere that it sleeps.
    pub(crate) fn ring(&mut self) {
        if let Some(shm) = self.shm_mut() {
            shm.ring();
        }
    }

    /// Returns whether the peer wrote to the ring what no correct peer writes.
    pub(crate) fn is_corrupt(&self) -> bool {
        self.shm().is_some_and(super::shm::ShmChannel::is_corrupt)
    }

    /// Returns why the channel is over, if the peer closed or corrupted it.
    #[inline]
    pub(crate) fn end(&self) -> Option<Down> {
        self.shm()?.end()
    }

    /// Returns whether the process behind the shared memory has ended, or has let go of it.
    pub(crate) fn is_dead(&self) -> bool {
        self.shm().is_some_and(super::shm::ShmChannel::is_dead)
    }

    /// Returns whether the peer lives and let go of the memory before it sent anything.
    pub(crate) fn was_rejected(&self) -> bool {
        self.shm().is_some_and(super::shm::ShmChannel::was_rejected)
    }

    /// Returns frames sent, frames taken, and how often the peer had to be woken.
    pub(crate) fn shm_counts(&self) -> Option<[u64; 3]> {
        self.shm().map(super::shm::ShmChannel::counts)
    }
}
