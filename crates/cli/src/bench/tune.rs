//! The best raw stream that this path allows: a limit is what can be done, so it is looked for.
//!
//! `best_plan` varies window and calls for one shape of packet; the shapes are varied here. Large datagrams cost the least
//! per byte, but an ordinary receive buffer holds few of them, and then the two sides wait for each other.

use std::io;

use tautline_baseline::Setup;
use tautline_baseline::udp_gso::{self, Plan};

/// Bytes of a datagram (`None`: what the path carries) and of what the kernel gets as one packet.
const SHAPES: [(Option<usize>, usize); 6] = [
    (None, 65_536),
    (Some(8_192), 65_536),
    (Some(8_192), 32_768),
    (Some(16_384), 32_768),
    (Some(32_768), 32_768),
    (Some(8_192), 16_384),
];
/// How often each shape's best plan is tried against the others'.
const TRIALS: usize = 3;

/// The fastest plan for streams of such messages; both sides return the same.
pub fn best(
    setup: &mut Setup<'_>,
    bytes: usize,
    count: u64,
    trial_bytes: u64,
    gso: bool,
) -> io::Result<Plan> {
    if !gso {
        return udp_gso::best_plan(setup, &Plan::new(bytes, count).without_gso(), trial_bytes);
    }
    let mut plans = Vec::new();
    for (datagram, packet) in SHAPES {
        plans.push(udp_gso::best_plan(
            setup,
            &Plan { datagram, packet, ..Plan::new(bytes, count) },
            trial_bytes,
        )?);
    }
    let trial = (trial_bytes / bytes.max(1) as u64).clamp(4, count.max(4));
    let mut best = None;
    for _ in 0..TRIALS {
        for plan in &plans {
            let ours = udp_gso::stream(setup, &Plan { count: trial, ..*plan })?.elapsed_ns;
            // Either clock would do, but the two sides must agree.
            let worse = ours.max(u64::from_le_bytes(setup.exchange(&ours.to_le_bytes())?));
            if best.is_none_or(|(ns, _)| worse < ns) {
                best = Some((worse, *plan));
            }
        }
    }
    best.map(|(_, plan)| plan).ok_or_else(|| io::Error::other("no way to stream over this path"))
}
