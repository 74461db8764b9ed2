//! Reassembles a slot from fragments in any order (L-19). Needed only if the path became narrower.

/// A slot of which some fragments received arrived.
#[derive(Debug)]
pub struct Reassembly {
    bytes: Vec<u8>,
    /// Ranges that have arrived: sorted, disjoint and not adjacent.
    received: Vec<(u32, u32)>,
}

impl Reassembly {
    /// Begins a slot of `total` bytes. Returns `None` if it is longer than `limit`.
    pub fn new(total: u32, limit: usize) -> Option<Reassembly> {
        (total as usize <= limit).then(|| Reassembly { bytes: vec![0; total as usize], received: Vec::new() })
    }

    /// Adds a fragment. Returns whether the slot is complete. A fragment that contradicts the slot's length
    /// is ignored.
    pub fn add(&mut self, offset: u32, total: u32, data: &[u8]) -> bool {
        let end = u64::from(offset) + data.len() as u64;
        if total as usize != self.bytes.len() || end > u64::from(total) || data.is_empty() {
            return false;
        }
        self.bytes[offset as usize..end as usize].copy_from_slice(data);
        self.insert(offset, end as u32);
        self.received.as_slice() == [(0, total)]
    }

    /// Returns the bytes of the complete slot.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn insert(&mut self, start: u32, end: u32) {
        let (mut start, mut end) = (start, end);
        self.received.retain(|&(s, e)| {
            let separate = e < start || s > end;
            if !separate {
                start = start.min(s);
                end = end.max(e);
            }
            separate
        });
        let at = self.received.partition_point(|&(s, _)| s < start);
        self.received.insert(at, (start, end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L-19: fragments that are cut anywhere, arrive in any order, repeat and overlap make the same slot.
    #[test]
    fn fragments_in_any_order() {
        let whole: Vec<u8> = (0..200u8).collect();
        let mut slot = Reassembly::new(200, 1000).unwrap();
        for (a, b) in [(50, 120), (0, 10), (110, 130), (10, 50), (0, 60), (190, 200)] {
            assert!(!slot.add(a as u32, 200, &whole[a..b]));
        }
        assert!(!slot.add(0, 199, &whole[..199]));
        assert!(slot.add(130, 200, &whole[130..190]));
        assert_eq!(slot.into_bytes(), whole);
        assert!(Reassembly::new(1001, 1000).is_none());
    }
}
