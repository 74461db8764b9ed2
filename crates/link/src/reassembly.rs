//! Puts a slot together from fragments that arrive in any order (L-19). Only paths that shrank under way need it.

/// One slot in the making.
#[derive(Debug)]
pub struct Reassembly {
    bytes: Vec<u8>,
    /// Disjoint, sorted, non-adjacent ranges that have arrived.
    have: Vec<(u32, u32)>,
}

impl Reassembly {
    /// Begins a slot of `total` bytes; `None` if it is longer than any slot may be.
    pub fn new(total: u32, limit: usize) -> Option<Reassembly> {
        (total as usize <= limit).then(|| Reassembly { bytes: vec![0; total as usize], have: Vec::new() })
    }

    /// Adds a fragment; true when the slot is whole. A fragment that contradicts the slot's length is ignored.
    pub fn add(&mut self, offset: u32, total: u32, data: &[u8]) -> bool {
        let end = u64::from(offset) + data.len() as u64;
        if total as usize != self.bytes.len() || end > u64::from(total) || data.is_empty() {
            return false;
        }
        self.bytes[offset as usize..end as usize].copy_from_slice(data);
        self.note(offset, end as u32);
        self.have.as_slice() == [(0, total)]
    }

    /// The whole slot.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn note(&mut self, start: u32, end: u32) {
        let (mut start, mut end) = (start, end);
        self.have.retain(|&(s, e)| {
            let apart = e < start || s > end;
            if !apart {
                start = start.min(s);
                end = end.max(e);
            }
            apart
        });
        let at = self.have.partition_point(|&(s, _)| s < start);
        self.have.insert(at, (start, end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L-19: fragments cut anywhere, in any order, repeated and overlapping, make the same slot.
    #[test]
    fn any_order_any_cut() {
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
