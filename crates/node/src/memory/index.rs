//! Finds the tripwires that an access touches with a few loads, however many there are (T-3).
//!
//! An aperture is cut into buckets of 64 bytes, and again into buckets of 512, of 4,096 and so on. A range is
//! kept in the one or two smallest buckets that are no shorter than it. A search visits the buckets that the
//! access touches, on the levels that have any ranges. Tables are allocated where ranges are, 4,096 buckets
//! at a time.

use super::slab::Name;

const LEVELS: usize = 15;
const FIRST_BITS: u32 = 6;
const STEP_BITS: u32 = 3;
const CHUNK_BITS: u32 = 12;
const CHUNK: usize = 1 << CHUNK_BITS;

/// An empty bucket, or the end of a list.
const NONE: u32 = 0;
/// Set in a bucket with several tripwires: the other bits are the first node. Without it: one tripwire,
/// counted from one.
const LIST: u32 = 1 << 31;

/// The range of one tripwire and the accesses that it watches for; zero for none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watched {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) on: u8,
}

/// The nodes of a tripwire in the lists of its one or two buckets.
pub(crate) type Places = [u32; 2];

#[derive(Clone, Copy, Debug)]
struct Node {
    wire: u32,
    next: u32,
}

/// Buckets, and a bit for each that is not empty: long accesses skip 64 empty ones at a time.
#[derive(Debug)]
struct Chunk {
    some: [u64; CHUNK / 64],
    held: [u32; CHUNK],
}

impl Chunk {
    fn new() -> Box<Chunk> {
        Box::new(Chunk { some: [0; CHUNK / 64], held: [NONE; CHUNK] })
    }

    /// Calls `found` for each bucket from `first` to `last` that is not empty.
    #[inline(always)]
    fn each(&self, first: usize, last: usize, mut found: impl FnMut(usize, u32)) {
        if first == last {
            // Most accesses are short; testing the bit first would cost them time.
            if self.held[first] != NONE {
                found(first, self.held[first]);
            }
            return;
        }
        for word in first / 64..=last / 64 {
            let mut some = self.some[word];
            if word == first / 64 {
                some &= u64::MAX << (first % 64);
            }
            if word == last / 64 {
                some &= u64::MAX >> (63 - last % 64);
            }
            while some != 0 {
                let at = word * 64 + some.trailing_zeros() as usize;
                some &= some - 1;
                found(at, self.held[at]);
            }
        }
    }
}

#[derive(Debug, Default)]
struct Level {
    chunks: Vec<Option<Box<Chunk>>>,
    count: usize,
}

/// The ranges of one aperture.
#[derive(Debug)]
pub(crate) struct Index {
    levels: [Level; LEVELS],
    /// A bit for each level that has ranges.
    used: u32,
    nodes: Vec<Node>,
    /// The node before each node, which only removal needs.
    before: Vec<u32>,
    free: Vec<u32>,
    /// All tripwires of the aperture, including those that fired once and watch nothing now.
    pub(crate) wires: Vec<Name>,
}

const fn bits(level: usize) -> u32 {
    FIRST_BITS + STEP_BITS * level as u32
}

/// Returns the level for a range of `len` bytes.
fn level_of(len: u64) -> usize {
    (0..LEVELS - 1).find(|level| len <= 1 << bits(*level)).unwrap_or(LEVELS - 1)
}

impl Index {
    pub(crate) fn new() -> Index {
        let levels = std::array::from_fn(|_| Level::default());
        // Node zero is never used, so that zero can mean none.
        let nodes = vec![Node { wire: 0, next: NONE }];
        Index { levels, used: 0, nodes, before: vec![NONE], free: Vec::new(), wires: Vec::new() }
    }

    fn bucket(&self, level: usize, bucket: u64) -> u32 {
        let (chunk, at) = ((bucket >> CHUNK_BITS) as usize, bucket as usize & (CHUNK - 1));
        self.levels[level].chunks.get(chunk).and_then(Option::as_ref).map_or(NONE, |chunk| chunk.held[at])
    }

    fn set_bucket(&mut self, level: usize, bucket: u64, held: u32) {
        let (chunk, at) = ((bucket >> CHUNK_BITS) as usize, bucket as usize & (CHUNK - 1));
        let chunks = &mut self.levels[level].chunks;
        if chunks.len() <= chunk {
            chunks.resize_with(chunk + 1, || None);
        }
        let chunk = chunks[chunk].get_or_insert_with(Chunk::new);
        chunk.held[at] = held;
        let (word, bit) = (&mut chunk.some[at / 64], 1 << (at % 64));
        *word = if held == NONE { *word & !bit } else { *word | bit };
    }

    /// Adds a node at the front of the list that starts with `next`.
    fn node(&mut self, wire: u32, next: u32) -> u32 {
        let at = match self.free.pop() {
            Some(at) => {
                (self.nodes[at as usize], self.before[at as usize]) = (Node { wire, next }, NONE);
                at
            }
            None => {
                self.nodes.push(Node { wire, next });
                self.before.push(NONE);
                self.nodes.len() as u32 - 1
            }
        };
        if next != NONE {
            self.before[next as usize] = at;
        }
        at
    }

    /// Adds a tripwire whose range is in `all` and not empty. `places` has the nodes of each tripwire; only
    /// this type changes it.
    pub(crate) fn insert(&mut self, wire: u32, all: &[Watched], places: &mut [Places]) {
        let Watched { start, end, .. } = all[wire as usize];
        let level = level_of(end - start);
        // Whether a bucket is the second one of a range.
        let second = |wire: u32, bucket: u64| usize::from(bucket != all[wire as usize].start >> bits(level));
        for bucket in start >> bits(level)..=(end - 1) >> bits(level) {
            let held = self.bucket(level, bucket);
            let new = if held == NONE {
                wire + 1
            } else {
                let mut next = held & !LIST;
                if held & LIST == 0 {
                    next = self.node(held - 1, NONE);
                    places[held as usize - 1][second(held - 1, bucket)] = next;
                }
                let node = self.node(wire, next);
                places[wire as usize][second(wire, bucket)] = node;
                node | LIST
            };
            self.set_bucket(level, bucket, new);
        }
        self.levels[level].count += 1;
        self.used |= 1 << level;
    }

    /// Removes a range that was added, at a cost that does not depend on the number of ranges in its buckets.
    pub(crate) fn remove(&mut self, wire: u32, (start, end): (u64, u64), places: Places) {
        let level = level_of(end - start);
        for bucket in start >> bits(level)..=(end - 1) >> bits(level) {
            let held = self.bucket(level, bucket);
            if held & LIST == 0 {
                self.set_bucket(level, bucket, NONE);
                continue;
            }
            let at = places[usize::from(bucket != start >> bits(level))];
            debug_assert_eq!(self.nodes[at as usize].wire, wire);
            let (next, before) = (self.nodes[at as usize].next, self.before[at as usize]);
            self.free.push(at);
            if next != NONE {
                self.before[next as usize] = before;
            }
            if before == NONE {
                self.set_bucket(level, bucket, if next == NONE { NONE } else { next | LIST });
            } else {
                self.nodes[before as usize].next = next;
            }
        }
        self.levels[level].count -= 1;
        if self.levels[level].count == 0 {
            self.used &= !(1 << level);
            self.levels[level].chunks.clear();
        }
    }

    /// Calls `found` once for each tripwire whose range touches `start..end`, which is not empty, and that
    /// watches for any of `on`.
    #[inline]
    pub(crate) fn touched(&self, start: u64, end: u64, on: u8, all: &[Watched], mut found: impl FnMut(u32)) {
        let mut used = self.used;
        while used != 0 {
            let level = used.trailing_zeros() as usize;
            used &= used - 1;
            let (first, last) = (start >> bits(level), (end - 1) >> bits(level));
            let mut check = |wire: u32, bucket: u64| {
                let it = &all[wire as usize];
                // A range in two of the buckets counts in the first.
                let counts = bucket == first.max(it.start >> bits(level));
                if it.start < end && start < it.end && it.on & on != 0 && counts {
                    found(wire);
                }
            };
            let mut bucket = first;
            while bucket <= last {
                let Some(chunk) = self.levels[level].chunks.get((bucket >> CHUNK_BITS) as usize) else {
                    break;
                };
                let until = last.min(bucket | (CHUNK as u64 - 1));
                if let Some(chunk) = chunk {
                    let (base, within) = (bucket & !(CHUNK as u64 - 1), |at: u64| at as usize & (CHUNK - 1));
                    chunk.each(within(bucket), within(until), |at, held| {
                        if held & LIST == 0 {
                            return check(held - 1, base + at as u64);
                        }
                        let mut node = held & !LIST;
                        while node != NONE {
                            let Node { wire, next } = self.nodes[node as usize];
                            check(wire, base + at as u64);
                            node = next;
                        }
                    });
                }
                bucket = until + 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T-3: whatever ranges are added and removed, exactly those that an access touches are found, each once.
    #[test]
    fn finds_exactly_what_is_touched() {
        let mut index = Index::new();
        let mut all: Vec<Watched> = Vec::new();
        let mut places: Vec<Places> = Vec::new();
        let mut state = 7u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        const SIZE: u64 = 3 << 20;
        for step in 0..20_000 {
            let live: Vec<usize> = (0..all.len()).filter(|i| all[*i].on != 0).collect();
            if live.len() < 50 || random(2) == 0 && live.len() < 300 {
                let longest = 1 << random(22);
                let start = random(SIZE);
                let end = (start + 1 + random(longest)).min(SIZE);
                let free = (0..all.len()).find(|i| all[*i].on == 0).unwrap_or_else(|| {
                    all.push(Watched::default());
                    places.push(Places::default());
                    all.len() - 1
                });
                all[free] = Watched { start, end, on: 1 + random(3) as u8 };
                index.insert(free as u32, &all, &mut places);
            } else {
                let gone = live[random(live.len() as u64) as usize];
                index.remove(gone as u32, (all[gone].start, all[gone].end), places[gone]);
                all[gone].on = 0;
            }
            let start = random(SIZE);
            let longest = 1 << random(18);
            let end = (start + 1 + random(longest)).min(SIZE);
            let on = 1 + random(3) as u8;
            let mut got = Vec::new();
            index.touched(start, end, on, &all, |wire| got.push(wire));
            got.sort_unstable();
            let want: Vec<u32> = (0..all.len() as u32)
                .filter(|i| {
                    let it = &all[*i as usize];
                    it.on & on != 0 && it.start < end && start < it.end
                })
                .collect();
            assert_eq!(got, want, "step {step}");
        }
    }
}
