//! What a route costs that is not used, checked by a counting allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicIsize, Ordering};

use tautline_device::Datagram;
use tautline_device::udp::{Udp, UdpConfig};

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

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        IN_USE.fetch_add(size as isize - layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes of heap that a route may take: with the rest of an idle link, which `crates/sim/tests/idle_links.rs`
/// counts, 2 KiB at most (N-27).
const MOST: isize = 56;

#[test]
fn a_route_costs_little() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let config = UdpConfig::with(|config| config.bind = address.parse().unwrap());
        let Ok(mut device) = Udp::open(config) else {
            tautline_skips::skip("a_route_costs_little", "there is no IPv6 loopback (in part)");
            continue;
        };
        let peer = |number: u16| match device.local_addr() {
            SocketAddr::V4(_) => SocketAddr::from(([127, 0, 0, 1], 20_000 + number)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::LOCALHOST, 20_000 + number)),
        };
        let peers: Vec<_> = (0..4_000).map(peer).collect();
        for &peer in &peers[..1_000] {
            device.route(peer).unwrap();
        }
        let before = IN_USE.load(Ordering::Relaxed);
        for count in 1_001..=4_000 {
            device.route(peers[count - 1]).unwrap();
            if count.is_multiple_of(500) {
                let each = (IN_USE.load(Ordering::Relaxed) - before) / (count - 1_000) as isize;
                assert!(each <= MOST, "{address}: {each} bytes for each of {count} routes");
            }
        }
    }
}
