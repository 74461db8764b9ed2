//! The best raw stream that this path allows: a limit is what can be done, so it is searched for.
//!
//! `best_plan` varies window and calls for one shape of packet; this module varies the shapes. Large
//! datagrams cost the least per byte, but an ordinary receive buffer holds few of them, and then the two
//! sides wait for each other.

use std::io;

use tautline_baseline::Setup;
use tautline_baseline::udp_gso::{self, Plan};

/// Bytes of a datagram (`None`: what the path carries) and of what the kernel gets as one packet.
const SHAPES: [(Option<usize>, usize); 5] = [
    (None, 65_536),
    (Some(8_192), 65_536),
    (Some(8_192), 32_768),
    (Some(16_384), 32_768),
    (Some(8_192), 16_384),
];
/// Bytes that are written at a time.
pub const CHUNK: usize = 64 << 10;
/// How often each shape's best plan is tried against the others'.
const TRIALS: usize = 3;

/// A reasonable plan, without a search for a better one.
pub fn untuned(bytes: usize, gso: bool) -> Plan {
    let plan = Plan::new(bytes, 1);
    if gso { Plan { datagram: Some(8_192), packet: 32_768, ..plan } } else { plan.without_gso() }
}

/// A raw stream has no messages: small ones may share a packet. Large ones are written whole, since the
/// user's buffer holds a whole message, unless they may be written in parts.
fn chunks(bytes: usize, parts: bool) -> Vec<usize> {
    match (shares_packets(bytes), parts) {
        (true, _) => vec![together(bytes)],
        (false, false) => vec![bytes],
        (false, true) => vec![bytes, CHUNK, CHUNK / 2],
    }
}

/// Whether messages of this size share packets.
pub fn shares_packets(bytes: usize) -> bool {
    bytes < CHUNK
}

/// The bytes of the messages of this size that are made together.
pub fn together(bytes: usize) -> usize {
    CHUNK / bytes.max(1) * bytes.max(1)
}

/// Finds the fastest plan for streams of such messages; both sides return the same. Its messages may have
/// another size, but there are as many bytes.
pub fn best(
    setup: &mut Setup<'_>,
    bytes: usize,
    count: u64,
    trial_bytes: u64,
    gso: bool,
    parts: bool,
) -> io::Result<Plan> {
    if !gso {
        return udp_gso::best_plan(setup, &Plan { count, ..untuned(bytes, false) }, trial_bytes);
    }
    let mut plans = Vec::new();
    for (datagram, packet) in SHAPES {
        let plan = Plan { datagram, packet, ..Plan::new(CHUNK, trial_bytes / CHUNK as u64) };
        let best = udp_gso::best_plan(setup, &plan, trial_bytes)?;
        plans.extend(chunks(bytes, parts).into_iter().map(|chunk| Plan { bytes: chunk, ..best }));
    }
    let mut best = None;
    for _ in 0..TRIALS {
        for plan in &plans {
            let plan = for_bytes(plan, trial_bytes);
            let ours = udp_gso::stream(setup, &plan)?.elapsed_ns;
            // Either clock would do, but the two sides must agree.
            let worse = ours.max(u64::from_le_bytes(setup.exchange(&ours.to_le_bytes())?));
            if best.is_none_or(|(ns, _)| worse < ns) {
                best = Some((worse, plan));
            }
        }
    }
    best.map(|(_, plan)| plan).ok_or_else(|| io::Error::other("no stream runs over this path"))
}

/// The same plan for about `bytes` bytes.
pub fn for_bytes(plan: &Plan, bytes: u64) -> Plan {
    Plan { count: bytes.div_ceil(plan.bytes.max(1) as u64).max(1), ..*plan }
}
