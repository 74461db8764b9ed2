//! What an idle link costs, checked by a counting allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

use tautline_sim::NetworkModel;
use tautline_sim::cluster::{Cluster, Pattern};

struct Counting;

static IN_USE: AtomicIsize = AtomicIsize::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of this same method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        IN_USE.fetch_add(size as isize - layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes of heap that an idle link may take at each of its two ends, over UDP, where a route takes 56 of them
/// (`crates/device/tests/udp_routes.rs`) and not 40.
const MOST: isize = 2_048 - 56 + 40;

/// N-27: every node has sent to every other one, and then nothing for a second: each end of a link takes
/// little memory. Of two jobs the difference counts, so that what a node takes once does not.
#[test]
fn an_idle_link_costs_little() {
    let links = |nodes: u32| {
        let rounds = 40;
        let model = NetworkModel::default();
        let all = Cluster {
            nodes,
            pattern: Pattern::Random { peers: nodes - 1 },
            rounds,
            bytes: 64,
            seed: 1,
            model,
        };
        let mut seen = Vec::new();
        let report = all.run_idle(1_000_000_000, || seen.push(IN_USE.load(Ordering::Relaxed))).unwrap();
        assert_eq!(report.deaths, 0, "{report:?}");
        (seen[1] - seen[0]) / nodes as isize
    };
    let (few, many) = (17, 65);
    let each = (links(many) - links(few)) / (many - few) as isize;
    assert!(each <= MOST, "an end of an idle link takes {each} bytes of heap");
}
