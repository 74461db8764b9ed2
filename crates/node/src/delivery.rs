//! Frames on their way to the program.
//!
//! A [`Delivery`] is taken out of the interface under the lock and read without it: frames lie in place in the batch they
//! were received into, or, if they had to wait, in buffers of their own.

use tautline_device::{RxBatch, RxFrame};

use crate::{PeerId, Rank};

/// Where a delivered slot lies.
#[derive(Debug)]
pub(crate) enum Place {
    /// In the batch: the part of a frame that is the slot.
    Batch(RxFrame),
    /// In a buffer of its own.
    Held(Vec<u8>),
}

/// One delivered slot.
#[derive(Debug)]
pub struct Item {
    pub(crate) peer: Rank,
    pub(crate) incarnation: u32,
    pub(crate) place: Place,
}

impl Item {
    /// Who sent it.
    pub fn from(&self) -> PeerId {
        PeerId::new(self.peer, self.incarnation)
    }
}

/// Slots taken out of the interface, in order of arrival per peer.
#[derive(Debug, Default)]
pub struct Delivery {
    pub(crate) batch: Option<Box<RxBatch>>,
    pub(crate) items: Vec<Item>,
}

impl Delivery {
    /// The slots.
    #[inline]
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// A slot's bytes: records.
    #[inline]
    pub fn bytes(&self, item: usize) -> &[u8] {
        match &self.items[item].place {
            Place::Held(bytes) => bytes,
            Place::Batch(frame) => {
                self.batch.as_ref().expect("a delivery with frames in place has their batch").bytes(*frame)
            }
        }
    }
}
