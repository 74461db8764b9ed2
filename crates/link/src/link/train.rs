//! Tags of the frames of a train, which cost less if they are computed together (L-22, L-33).

use tautline_aegis::LANES;
use tautline_wire::Header;
use tautline_wire::frame::{channel_of, packet_of};

use super::Link;

/// The tags that received frames must have.
#[derive(Clone, Copy, Debug)]
pub struct TrainTags {
    channel: u32,
    /// The packet number of the first of them; the others follow it.
    first: u64,
    count: usize,
    tags: [u64; LANES],
}

/// Tags of frames, and which of them a frame is: its place.
pub type FrameOfTrain<'a> = Option<(&'a TrainTags, usize)>;

impl TrainTags {
    /// Returns of how many frames they are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The tag of the frame at a place, if that has this header.
    #[inline]
    pub(super) fn tag(&self, header: &Header, place: usize) -> Option<u64> {
        let expected = (self.channel, self.first.checked_add(place as u64)?);
        (place < self.count && (header.channel, header.packet) == expected).then(|| self.tags[place])
    }
}

impl Link {
    /// Returns whether tags of several frames cost less if they are computed together.
    #[inline]
    pub fn tags_trains(&self) -> bool {
        self.seal.tags_trains()
    }

    /// Returns the tags of four frames to send with consecutive packet numbers from `first` on. `None` if
    /// they are not computed together, because they differ in length or have an unusual one.
    #[inline]
    pub fn tags(&self, first: u64, frames: [&[u8]; LANES]) -> Option<[u64; LANES]> {
        self.seal.tags_to_send(first, frames)
    }

    /// Computes the tags of received frames of this link: of the first, and those behind it that are as long,
    /// up to four. `None` if it has no such frames behind it, or its tag is computed by itself.
    #[inline]
    pub fn train_tags<'a>(&self, mut frames: impl Iterator<Item = &'a [u8]>) -> Option<TrainTags> {
        if !self.tags_trains() {
            return None;
        }
        let head = frames.next()?;
        let (channel, first) = (channel_of(head).ok()?, packet_of(head).ok()?);
        let (mut train, mut count) = ([head; LANES], 1);
        // What is left of the four is the last one again; nobody asks for its further tags.
        for frame in frames.take(LANES - 1) {
            if frame.len() != head.len() || channel_of(frame) != Ok(channel) {
                break;
            }
            train[count..].fill(frame);
            count += 1;
        }
        if count < 2 || channel != self.channel {
            return None;
        }
        Some(TrainTags { channel, first, count, tags: self.seal.tags_to_receive(first, train)? })
    }
}
