//! The state of the machine, its bare limits, and the installed rivals.

use tautline_baseline::cpu::Machine;
use tautline_baseline::limits;
use tautline_baseline::rivals::{self, RivalStatus};
use tautline_baseline::xdp;

use super::pair::Path;
use super::plan::Extent;

/// What a reader must know to judge the figures.
pub struct State {
    pub machine: Machine,
    pub cores: [usize; 2],
    pub system_call_ns: f64,
    pub clock_read_ns: f64,
    /// Gigabytes per second of 64 KiB and 1 MiB copies.
    pub copy: [f64; 2],
    /// One way between the two cores.
    pub cache_line_ns: Option<f64>,
    pub found: Vec<RivalStatus>,
    /// Why bare AF_XDP cannot be measured here, if it was requested where it could be.
    pub no_xdp: Option<String>,
}

impl State {
    /// Examines the machine and the installed rivals, and measures the bare limits.
    pub fn examine(extent: Extent, cores: [usize; 2], path: Path) -> State {
        let batches = if extent == Extent::Smoke { 3 } else { 100 };
        let line = if extent == Extent::Smoke { 1_000 } else { 200_000 };
        State {
            machine: Machine::examine(),
            cores,
            system_call_ns: limits::system_call_ns(batches),
            clock_read_ns: limits::clock_read_ns(batches),
            copy: [(64 << 10, 2_000), (1 << 20, 200)]
                .map(|(bytes, copies)| limits::copy_gigabytes_per_second(bytes, copies.min(batches * 20))),
            cache_line_ns: limits::cache_line_ns(cores[0], cores[1], line).ok(),
            found: rivals::detect(),
            no_xdp: if path == Path::Veth { xdp::check().err().map(|e| e.to_string()) } else { None },
        }
    }

    /// Whether the machine was busy when the run began.
    pub fn is_busy(&self) -> bool {
        self.machine.load > 0.3 * self.machine.cores as f64
    }
}
