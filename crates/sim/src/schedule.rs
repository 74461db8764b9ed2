//! Faults and their times: drawn beforehand, so that they can be printed.

use crate::places::Places;
use crate::rng::Rng;
use crate::sabotage::CRASHING;
use crate::swarm::Swarm;
use crate::{Nanos, Sabotage};

const MILLI: Nanos = 1_000_000;

/// Something that goes wrong, or right again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nearly everything on a path is lost.
    Burst { from: u32, to: u32, for_ns: Nanos },
    /// No frame passes, in one direction or both.
    BlackHole { from: u32, to: u32, both: bool, for_ns: Nanos },
    /// No frame passes from the nodes in the mask to the others, or in either direction.
    Partition { mask: u64, both: bool, for_ns: Nanos },
    /// The node does not run at all.
    Pause { node: u32, for_ns: Nanos },
    /// The program of a lane computes: it neither extracts nor sends. The watchdog keeps the network going.
    Compute { place: u32, for_ns: Nanos },
    /// The program of a lane sends as often as it can, and does not extract.
    SendOnly { place: u32, for_ns: Nanos },
    /// The node crashes, and restarts under a new epoch.
    Crash { node: u32, back_after: Nanos },
    /// A crashed node restarts.
    Restart { node: u32 },
    /// Larger frames no longer pass between the two, which the path reports or not.
    Mtu { a: u32, b: u32, mtu: usize, reports_mtu: bool },
    /// All faults end.
    Heal,
}

impl Fault {
    /// How long it lasts.
    pub(crate) fn duration(&self) -> Nanos {
        match *self {
            Fault::Burst { for_ns, .. }
            | Fault::BlackHole { for_ns, .. }
            | Fault::Partition { for_ns, .. }
            | Fault::Pause { for_ns, .. }
            | Fault::Compute { for_ns, .. }
            | Fault::SendOnly { for_ns, .. } => for_ns,
            Fault::Crash { back_after, .. } => back_after,
            Fault::Restart { .. } | Fault::Mtu { .. } | Fault::Heal => 0,
        }
    }
}

/// A fault and its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    pub(crate) at: Nanos,
    pub(crate) fault: Fault,
}

pub(crate) fn draw(rng: &mut Rng, swarm: &Swarm, sabotage: Sabotage) -> Vec<Planned> {
    let nodes = swarm.nodes.len() as u64;
    // Each seed uses only some kinds of fault, so that each kind also appears without the others.
    let sorts: Vec<u64> = (0..8).filter(|_| rng.chance(400_000)).collect();
    let count = if sorts.is_empty() { 0 } else { rng.magnitude(1, 16) };
    let mut faults: Vec<Planned> = (0..count)
        .map(|_| {
            let sort = rng.pick(&sorts);
            Planned { at: rng.below(swarm.horizon), fault: draw_one(rng, sort, nodes, swarm.max_frame) }
        })
        .collect();
    if sabotage == Sabotage::NoWatchdog {
        let fault = Fault::Compute { place: 0, for_ns: 3_000 * MILLI };
        faults = vec![Planned { at: swarm.horizon / 4, fault }];
    }
    if matches!(sabotage, Sabotage::Late | Sabotage::HideDeaths) {
        let crash = Fault::Crash { node: CRASHING, back_after: MILLI };
        faults = (4..16).map(|part| Planned { at: swarm.horizon / 16 * part, fault: crash }).collect();
    }
    if matches!(sabotage, Sabotage::HideLosses | Sabotage::HideThenCrash) {
        let cut = Fault::Partition { mask: 1 << CRASHING, both: true, for_ns: 1_500 * MILLI };
        faults = [1, 4].map(|second| Planned { at: second * 1_000 * MILLI, fault: cut }).into();
    }
    if sabotage == Sabotage::StallEarly {
        faults.clear();
    }
    if sabotage == Sabotage::HideThenCrash {
        let crash = Fault::Crash { node: CRASHING, back_after: MILLI };
        faults.push(Planned { at: 12_000 * MILLI, fault: crash });
    }
    faults.sort_by_key(|p| p.at);
    faults
}

/// Programs of all lanes compute or send, not only those of lane 0.
pub(crate) fn spread_over_lanes(rng: &mut Rng, faults: &mut [Planned], places: Places) {
    for planned in faults {
        if let Fault::Compute { place, .. } | Fault::SendOnly { place, .. } = &mut planned.fault {
            *place += places.ranks * rng.below(u64::from(places.lanes)) as u32;
        }
    }
}

fn draw_one(rng: &mut Rng, sort: u64, nodes: u64, max_frame: usize) -> Fault {
    let from = rng.below(nodes) as u32;
    let to = (from + rng.range(1, nodes - 1) as u32) % nodes as u32;
    match sort {
        0 => Fault::Burst { from, to, for_ns: rng.magnitude(MILLI / 10, 50 * MILLI) },
        1 => Fault::BlackHole {
            from,
            to,
            both: rng.chance(500_000),
            for_ns: rng.magnitude(MILLI, 5_000 * MILLI),
        },
        2 => {
            let mask = rng.range(1, (u64::MAX >> (64 - nodes)) - 1);
            Fault::Partition { mask, both: rng.chance(300_000), for_ns: rng.magnitude(MILLI, 3_000 * MILLI) }
        }
        3 => {
            let long = if rng.chance(50_000) { 3_000 * MILLI } else { 500 * MILLI };
            Fault::Pause { node: from, for_ns: rng.magnitude(MILLI, long) }
        }
        4 => Fault::Compute { place: from, for_ns: rng.magnitude(MILLI, 5_000 * MILLI) },
        5 => Fault::SendOnly { place: from, for_ns: rng.magnitude(MILLI, 3_000 * MILLI) },
        6 => Fault::Crash { node: from, back_after: rng.magnitude(MILLI / 10, 2_000 * MILLI) },
        _ => {
            let least = max_frame.min(1_232) as u64;
            let mtu =
                if rng.chance(300_000) { max_frame } else { rng.range(least, max_frame as u64) as usize };
            Fault::Mtu { a: from, b: to, mtu, reports_mtu: rng.chance(500_000) }
        }
    }
}
