//! When each peer has to be served at the latest (N-28): a heap of deadlines, one per peer at most, so that
//! neither serving timers nor finding the next deadline looks at peers without one.

use tautline_link::Nanos;

/// In place of a position: the peer has no deadline.
const ABSENT: u32 = u32::MAX;

/// Deadlines by the peers' places. A binary heap in which every place knows its position, so that a deadline
/// is moved instead of being left behind.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: Vec<(Nanos, u32)>,
    /// Where in the heap the deadline of each place is.
    positions: Vec<u32>,
}

impl Timers {
    /// The first deadline; `Nanos::MAX` if there is none.
    pub(crate) fn first(&self) -> Nanos {
        self.heap.first().map_or(Nanos::MAX, |entry| entry.0)
    }

    /// Sets the deadline of a place; `Nanos::MAX` for none.
    pub(crate) fn set(&mut self, place: usize, at: Nanos) {
        let position = self.positions.get(place).copied().unwrap_or(ABSENT);
        if position == ABSENT {
            if at != Nanos::MAX {
                self.insert(place, at);
            }
            return;
        }
        let position = position as usize;
        if at == Nanos::MAX {
            return self.remove(position);
        }
        let before = std::mem::replace(&mut self.heap[position].0, at);
        if at < before {
            self.rise(position);
        } else {
            self.sink(position);
        }
    }

    /// Removes and returns a place whose deadline is not after `now`.
    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<usize> {
        let &(at, place) = self.heap.first()?;
        if at > now {
            return None;
        }
        self.remove(0);
        Some(place as usize)
    }

    fn insert(&mut self, place: usize, at: Nanos) {
        if self.positions.len() <= place {
            self.positions.resize(place + 1, ABSENT);
        }
        let end = self.heap.len();
        self.heap.push((at, place as u32));
        self.positions[place] = end as u32;
        self.rise(end);
    }

    fn remove(&mut self, position: usize) {
        let (_, place) = self.heap.swap_remove(position);
        self.positions[place as usize] = ABSENT;
        if let Some(&(_, moved)) = self.heap.get(position) {
            self.positions[moved as usize] = position as u32;
            self.rise(position);
            self.sink(self.positions[moved as usize] as usize);
        }
    }

    fn rise(&mut self, mut position: usize) {
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.heap[parent] <= self.heap[position] {
                break;
            }
            self.swap(position, parent);
            position = parent;
        }
    }

    fn sink(&mut self, mut position: usize) {
        loop {
            let left = 2 * position + 1;
            let Some(entry) = self.heap.get(left) else { break };
            let right_first = self.heap.get(left + 1).is_some_and(|right| right < entry);
            let child = left + usize::from(right_first);
            if self.heap[position] <= self.heap[child] {
                break;
            }
            self.swap(position, child);
            position = child;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for position in [a, b] {
            self.positions[self.heap[position].1 as usize] = position as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// N-28: the same deadlines as a map has that is searched, whatever is set, moved and removed.
    #[test]
    fn first_deadline_is_the_least() {
        let (mut timers, mut model) = (Timers::default(), BTreeMap::new());
        let mut random = 1_u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 33) % below
        };
        for _ in 0..20_000 {
            let place = draw(50) as usize;
            match draw(4) {
                0 => {
                    timers.set(place, Nanos::MAX);
                    model.remove(&place);
                }
                1 => {
                    let now = draw(1_000);
                    while let Some(place) = timers.pop_due(now) {
                        assert!(model.remove(&place).is_some_and(|at| at <= now));
                    }
                    assert!(model.values().all(|at| *at > now));
                }
                _ => {
                    let at = draw(1_000);
                    timers.set(place, at);
                    model.insert(place, at);
                }
            }
            assert_eq!(timers.first(), model.values().copied().min().unwrap_or(Nanos::MAX));
        }
    }
}
