//! Frames of a local peer on their way to the program by the fast path: taken out of the ring and handled
//! without the inbox.

use tautline_device::shm::{self, InlineFrame};

use crate::PeerId;

/// Small frames that are taken out in one go.
const SMALL: usize = 16;

/// What the fast path found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPoll {
    /// Frames of one peer: they are in the [`FrameBatch`].
    Frames,
    /// Nothing at all.
    Empty,
    /// Nothing that may be taken now: [`crate::Endpoint::take`] is due.
    SlowPath,
}

/// Frames of one peer on this host: small ones, or one that is longer.
#[derive(Debug)]
pub struct FrameBatch {
    pub(super) from: PeerId,
    pub(super) inline: [InlineFrame; SMALL],
    pub(super) small: usize,
    pub(super) frame: Box<[u8]>,
    pub(super) long: Option<usize>,
    pub(super) more: bool,
}

impl Default for FrameBatch {
    fn default() -> FrameBatch {
        FrameBatch {
            from: PeerId::new(0, 0),
            inline: [InlineFrame::EMPTY; SMALL],
            small: 0,
            frame: vec![0; shm::MAX_FRAME].into_boxed_slice(),
            long: None,
            more: false,
        }
    }
}

impl FrameBatch {
    /// The peer that sent them.
    #[inline]
    pub fn from(&self) -> PeerId {
        self.from
    }

    /// The small frames, in order; if there are none, there is a longer one.
    #[inline]
    pub fn small(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.inline[..self.small].iter().map(InlineFrame::frame)
    }

    /// How many frames there are.
    #[inline]
    pub fn count(&self) -> usize {
        self.small + usize::from(self.long.is_some())
    }

    /// The longer frame, if there is one.
    #[inline]
    pub fn long(&self) -> Option<&[u8]> {
        self.long.map(|len| &self.frame[..len])
    }

    /// The frames, in order.
    pub fn frames(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        let small = self.inline[..self.small].iter().map(InlineFrame::frame);
        small.chain(self.long())
    }

    /// Whether there may be more.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.more
    }
}
