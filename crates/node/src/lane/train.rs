//! Trains: slots that came one behind the other and go on with one message, as most of a long one do. They go
//! to the program as one item.

use tautline_device::{RxBatch, RxFrame};
use tautline_link::{FrameOfTrain, Link, TrainTags};
use tautline_wire::record::as_more;

/// Slots of consecutive frames of a batch. Each holds one record, which goes on with the message where the
/// slot before it ended; all but the last are equally long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Train {
    /// The place of the first frame in the batch.
    first: u32,
    slots: u32,
    /// Where in its frame a slot begins.
    head: u32,
    len: u32,
    last_len: u32,
}

impl Train {
    #[inline]
    pub(crate) fn slots(&self) -> usize {
        self.slots as usize
    }

    /// Where a slot lies.
    #[inline]
    pub(crate) fn slot(&self, batch: &RxBatch, at: usize) -> RxFrame {
        debug_assert!(at < self.slots(), "there is no such slot");
        let frame = batch.frames()[self.first as usize + at];
        let len = if at + 1 == self.slots() { self.last_len } else { self.len };
        RxFrame { buffer: frame.buffer, start: frame.start + self.head, len }
    }

    /// Where the slots from `from` on lie.
    #[inline]
    pub(crate) fn frames(self, batch: &RxBatch, from: usize) -> impl Iterator<Item = RxFrame> {
        let frames = &batch.frames()[self.first as usize..][from..self.slots()];
        let mut left = frames.len();
        frames.iter().map(move |frame| {
            left -= 1;
            let len = if left == 0 { self.last_len } else { self.len };
            RxFrame { buffer: frame.buffer, start: frame.start + self.head, len }
        })
    }

    /// The bytes of the slots from `slot` on.
    #[inline]
    pub(crate) fn bytes_from(&self, slot: usize) -> usize {
        (self.slots() - 1 - slot) * self.len as usize + self.last_len as usize
    }

    /// Divides it behind the slots with the first `limit` bytes, at least one. The rest, if there is any.
    pub(crate) fn split(&mut self, limit: usize) -> Option<Train> {
        // Whoever sets no limit gives the largest number: it is compared before it is made a small one.
        let slots = limit.div_ceil(self.len as usize).clamp(1, self.slots()) as u32;
        if slots == self.slots {
            return None;
        }
        let rest = Train { first: self.first + slots, slots: self.slots - slots, ..*self };
        (self.slots, self.last_len) = (slots, self.len);
        Some(rest)
    }
}

/// Tags of some of a batch's frames, which are computed together (L-33).
#[derive(Debug, Default)]
pub(super) struct KnownTags {
    tags: Option<TrainTags>,
    /// The place of the first of these frames in the batch, and that behind the last one.
    from: usize,
    to: usize,
}

impl KnownTags {
    /// The tag of a batch's frame `at`, if it is computed together with those of the frames behind it. Places
    /// do not decrease.
    #[inline(never)]
    pub(super) fn find(&mut self, link: &Link, batch: &RxBatch, at: usize) -> FrameOfTrain<'_> {
        if at >= self.to {
            self.tags = link.train_tags(batch.frames()[at..].iter().map(|frame| batch.bytes(*frame)));
            (self.from, self.to) = (at, at + self.tags.as_ref().map_or(1, TrainTags::count));
        }
        self.tags.as_ref().map(|tags| (tags, at - self.from))
    }
}

/// A train that may get longer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coupling {
    train: Train,
    message: u32,
    /// Where in the message the next slot begins.
    offset: u64,
}

impl Coupling {
    /// A train of one slot, unless it holds more than one record: that of the batch's frame `at`, from `head`
    /// on.
    #[inline]
    pub(super) fn start(at: usize, head: usize, slot: &[u8]) -> Option<Coupling> {
        let (message, offset, data) = as_more(slot)?;
        let len = slot.len() as u32;
        let train = Train { first: at as u32, slots: 1, head: head as u32, len, last_len: len };
        Some(Coupling { train, message, offset: offset + data.len() as u64 })
    }

    /// Appends a slot, if that makes a train.
    #[inline]
    pub(super) fn append(&mut self, at: usize, head: usize, slot: &[u8]) -> bool {
        let Train { first, slots, head: same_head, len, last_len } = &mut self.train;
        let this = slot.len() as u32;
        let Some((message, offset, data)) = as_more(slot) else { return false };
        let fits = (at as u32, head as u32) == (*first + *slots, *same_head)
            && *last_len == *len
            && this <= *len
            && (message, offset) == (self.message, self.offset);
        if fits {
            *last_len = this;
            *slots += 1;
            self.offset += data.len() as u64;
        }
        fits
    }

    #[inline]
    pub(super) fn train(&self) -> Train {
        self.train
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tautline_wire::record::{LONG_LEN, write};

    use super::*;

    /// Bytes in front of each slot.
    const HEAD: usize = 48;

    fn more(message: u32, offset: usize, len: usize) -> Vec<u8> {
        let mut slot = vec![7; LONG_LEN + len];
        write::more(&mut slot, message, offset as u64, len);
        slot
    }

    /// A train of slots of 100 bytes, the last one shorter, that begins with the second frame.
    fn train(slots: usize, last: usize) -> Coupling {
        let mut coupling = Coupling::start(1, HEAD, &more(5, 0, 100 - LONG_LEN)).unwrap();
        for at in 1..slots {
            let len = if at + 1 == slots { last } else { 100 };
            assert!(coupling.append(1 + at, HEAD, &more(5, at * (100 - LONG_LEN), len - LONG_LEN)));
        }
        coupling
    }

    /// Slots lie behind the headers of their frames.
    #[test]
    fn slots_of_a_train_are_found() {
        let mut batch = RxBatch::new(8);
        let from: SocketAddr = ([10, 0, 0, 1], 7).into();
        let frames = [vec![1; 20], vec![2; HEAD + 100], vec![3; HEAD + 100 + 16], vec![4; HEAD + 60]];
        frames.iter().for_each(|frame| assert!(batch.push(from, frame)));
        let train = train(3, 60).train();
        let slots = (0..3).map(|at| batch.bytes(train.slot(&batch, at)).to_vec());
        assert!(slots.eq([vec![2; 100], vec![3; 100], vec![4; 60]]));
        assert_eq!((train.slots(), train.bytes_from(0), train.bytes_from(1)), (3, 260, 160));
        for from in 0..=3 {
            assert!(train.frames(&batch, from).eq((from..3).map(|at| train.slot(&batch, at))), "{from}");
        }
    }

    /// What does not go on with the message, or lies elsewhere, is not appended; nor is anything after a
    /// shorter slot.
    #[test]
    fn other_slots_begin_anew() {
        let part = 100 - LONG_LEN;
        let good = more(5, 3 * part, part);
        assert!(train(3, 100).append(4, HEAD, &good));
        for (what, mut coupling, (at, head), slot) in [
            ("another message", train(3, 100), (4, HEAD), more(6, 3 * part, part)),
            ("another place in the message", train(3, 100), (4, HEAD), more(5, 3 * part + 1, part)),
            ("a frame in between", train(3, 100), (5, HEAD), good.clone()),
            ("a longer header", train(3, 100), (4, HEAD + 4), good.clone()),
            ("a longer slot", train(3, 100), (4, HEAD), more(5, 3 * part, part + 1)),
            ("a shorter slot before it", train(3, 99), (4, HEAD), more(5, 3 * part - 1, part - 1)),
            (
                "two records",
                train(3, 100),
                (4, HEAD),
                [more(5, 3 * part, 40), more(5, 3 * part + 40, 10)].concat(),
            ),
        ] {
            let before = coupling.train();
            assert!(!coupling.append(at, head, &slot), "{what}");
            assert_eq!(coupling.train(), before, "{what}");
        }
        assert!(Coupling::start(0, HEAD, &[0; 8]).is_none());
    }

    #[test]
    fn a_train_is_divided_at_a_limit() {
        let limits =
            [(0, 1, 3), (1, 1, 3), (100, 1, 3), (101, 2, 2), (300, 3, 1), (301, 4, 0), (usize::MAX, 4, 0)];
        // As numbers of 32 bits these would be no slots, and one.
        let large = [(100 << 32, 4, 0), (100 + (100 << 32), 4, 0)];
        for (limit, slots, rest) in limits.into_iter().chain(large) {
            let whole = train(4, 60).train();
            let mut front = whole;
            let back = front.split(limit);
            assert_eq!((front.slots(), back.map_or(0, |back| back.slots())), (slots, rest), "{limit}");
            let bytes = front.bytes_from(0) + back.map_or(0, |back| back.bytes_from(0));
            assert_eq!(bytes, whole.bytes_from(0), "{limit}");
            assert!(back.is_none_or(|back| back.first == 1 + slots as u32), "{limit}");
        }
    }
}
