//! One direction of the simulated network.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{MICRO, Nanos, Rng};

/// Faults of one direction; probabilities in thousandths.
#[derive(Clone, Debug)]
pub struct Faults {
    pub loss: u32,
    pub duplicate: u32,
    /// Probability that a frame is held back until 1 to `reorder_by` later ones have passed.
    pub reorder: u32,
    pub reorder_by: u32,
    pub corrupt: u32,
    pub delay: Nanos,
    pub jitter: Nanos,
    /// Larger frames are lost.
    pub mtu: usize,
    /// All frames are lost.
    pub cut: bool,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            loss: 0,
            duplicate: 0,
            reorder: 0,
            reorder_by: 64,
            corrupt: 0,
            delay: 20 * MICRO,
            jitter: 0,
            mtu: usize::MAX,
            cut: false,
        }
    }
}

/// A frame that is held back, and how many must pass first.
type Held = (u32, Vec<u8>);

#[derive(Default)]
pub struct Pipe {
    pub faults: Faults,
    queue: BinaryHeap<Reverse<(Nanos, u64, Vec<u8>)>>,
    held: Vec<Held>,
    order: u64,
    last: Nanos,
    /// Frames pushed, including those that are lost.
    pub offered: u64,
    /// A copy of every frame pushed, if wanted.
    pub tap: Option<Vec<Vec<u8>>>,
    /// Frames for which this returns true are lost.
    pub filter: Option<Filter>,
}

pub type Filter = Box<dyn FnMut(&[u8]) -> bool>;

impl Pipe {
    pub fn push(&mut self, now: Nanos, frame: Vec<u8>, rng: &mut Rng) {
        self.offered += 1;
        if let Some(tap) = &mut self.tap {
            tap.push(frame.clone());
        }
        let filtered = self.filter.as_mut().is_some_and(|f| f(&frame));
        if filtered || self.faults.cut || frame.len() > self.faults.mtu || rng.chance(self.faults.loss) {
            return;
        }
        if rng.chance(self.faults.duplicate) {
            self.enqueue(now, frame.clone(), rng);
        }
        if rng.chance(self.faults.reorder) {
            let by = 1 + rng.below(u64::from(self.faults.reorder_by)) as u32;
            self.held.push((by, frame));
            // No frame is held for ever, even if none passes it.
            if self.held.len() > 64 {
                let (_, frame) = self.held.remove(0);
                self.enqueue(now, frame, rng);
            }
            return;
        }
        self.enqueue(now, frame, rng);
        self.release(now, rng);
    }

    fn release(&mut self, now: Nanos, rng: &mut Rng) {
        for held in &mut self.held {
            held.0 -= 1;
        }
        while let Some(i) = self.held.iter().position(|h| h.0 == 0) {
            let (_, frame) = self.held.remove(i);
            self.enqueue(now, frame, rng);
        }
    }

    fn enqueue(&mut self, now: Nanos, mut frame: Vec<u8>, rng: &mut Rng) {
        if rng.chance(self.faults.corrupt) {
            corrupt(&mut frame, rng);
        }
        let mut at = now + self.faults.delay;
        if self.faults.jitter > 0 {
            at += rng.below(self.faults.jitter);
        } else {
            // Without jitter the pipe keeps order even if its delay changes.
            at = at.max(self.last);
            self.last = at;
        }
        self.order += 1;
        self.queue.push(Reverse((at, self.order, frame)));
    }

    pub fn next_arrival(&self) -> Option<Nanos> {
        self.queue.peek().map(|Reverse((at, ..))| *at)
    }

    pub fn pop(&mut self, now: Nanos) -> Option<Vec<u8>> {
        if self.next_arrival()? > now {
            return None;
        }
        self.queue.pop().map(|Reverse((.., frame))| frame)
    }

    /// Drops all frames under way.
    pub fn clear(&mut self) {
        self.queue.clear();
        self.held.clear();
    }
}

fn corrupt(frame: &mut Vec<u8>, rng: &mut Rng) {
    match rng.below(4) {
        0 => frame.truncate(rng.below(frame.len() as u64) as usize),
        1 => frame.push(rng.next() as u8),
        _ => {
            for _ in 0..1 + rng.below(3) {
                let bit = rng.below(frame.len() as u64 * 8) as usize;
                frame[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}
