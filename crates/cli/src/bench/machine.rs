//! The state of the machine, its bare limits, and the installed rivals.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tautline_baseline::cpu::{Machine, cores_in_use};
use tautline_baseline::limits;
use tautline_baseline::rivals::{self, RivalStatus};
use tautline_baseline::xdp;

use super::pair::Path;
use super::plan::Extent;

/// The run that a row belongs to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub version: String,
    /// Seconds since 1970.
    pub began: u64,
    pub processor: String,
    pub cores: usize,
    pub kernel: String,
    /// Cores that others used when it began.
    pub cores_in_use: f64,
}

impl Run {
    /// What has to be the same for two runs' figures to be comparable.
    pub fn machine(&self) -> String {
        format!("{}, {} cores, {}", self.processor, self.cores, self.kernel)
    }
}

/// What a reader must know to judge the figures.
pub struct State {
    pub machine: Machine,
    pub began: SystemTime,
    /// Cores that others used when the run began.
    pub cores_in_use: f64,
    pub cores: [usize; 2],
    pub system_call_ns: f64,
    pub clock_read_ns: f64,
    /// Gigabytes per second of 64 KiB and 1 MiB copies.
    pub copy: [f64; 2],
    /// One way between the two cores.
    pub cache_line_ns: Option<f64>,
    pub found: Vec<RivalStatus>,
    /// Why bare AF_XDP cannot be measured here, if there is a network to measure it over.
    pub no_xdp: Option<String>,
    /// Whether anything is measured between namespaces.
    has_veth: bool,
}

impl State {
    /// Examines the machine and the installed rivals, and measures the bare limits.
    pub fn examine(extent: Extent, cores: [usize; 2], paths: &[Path]) -> State {
        let batches = if extent == Extent::Smoke { 3 } else { 100 };
        let line = if extent == Extent::Smoke { 1_000 } else { 200_000 };
        let a_while = Duration::from_millis(if extent == Extent::Smoke { 20 } else { 400 });
        State {
            machine: Machine::examine(),
            began: SystemTime::now(),
            cores_in_use: cores_in_use(a_while).unwrap_or(0.0),
            cores,
            system_call_ns: limits::system_call_ns(batches),
            clock_read_ns: limits::clock_read_ns(batches),
            copy: [(64 << 10, 2_000), (1 << 20, 200)]
                .map(|(bytes, copies)| limits::copy_gigabytes_per_second(bytes, copies.min(batches * 20))),
            cache_line_ns: limits::cache_line_ns(cores[0], cores[1], line).ok(),
            found: rivals::detect(),
            has_veth: paths.iter().any(|path| path.is_veth()),
            no_xdp: if paths.iter().any(|path| path.is_veth()) {
                xdp::check().err().map(|e| e.to_string())
            } else {
                None
            },
        }
    }

    /// What cannot be measured here, and what to do.
    pub fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if let Some(reason) = &self.no_xdp {
            missing.push(format!("bare AF_XDP: {reason}"));
        }
        if self.has_veth {
            missing.push("interrupt moderation: veth has no interrupts to hold back".into());
        }
        let absent = self.found.iter().filter(|found| found.version.is_none());
        let (unbuilt, absent): (Vec<_>, Vec<_>) = absent.partition(|found| found.rival.is_built_in());
        let names = |rivals: &[&RivalStatus]| {
            rivals.iter().map(|found| found.rival.name()).collect::<Vec<_>>().join(", ")
        };
        let absent: Vec<_> = absent.into_iter().filter(|found| !found.rival.packages().is_empty()).collect();
        if !absent.is_empty() {
            let packages: Vec<_> = absent.iter().flat_map(|found| found.rival.packages()).copied().collect();
            missing.push(format!(
                "rivals that are not installed: {}; add them by: sudo apt-get install --no-install-recommends {}",
                names(&absent),
                packages.join(" ")
            ));
        }
        if !unbuilt.is_empty() {
            let features: Vec<_> = unbuilt.iter().map(|found| found.rival.name()).collect();
            missing.push(format!(
                "rivals that are not in this build: {}; add them by: cargo run --release --features {} -- bench",
                names(&unbuilt),
                features.join(",")
            ));
        }
        if !rivals::has_compiler() {
            missing
                .push("rivals that are C libraries: there is no C compiler (cc) to build their test".into());
        }
        missing
    }

    /// What a reader of one row needs to know of the run.
    pub fn run(&self) -> Run {
        Run {
            version: env!("CARGO_PKG_VERSION").into(),
            began: self.began.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            processor: self.machine.cpu.clone(),
            cores: self.machine.cores,
            kernel: self.machine.kernel.clone(),
            cores_in_use: self.cores_in_use,
        }
    }

    /// Whether the machine was busy when the run began.
    pub fn is_busy(&self) -> bool {
        self.cores_in_use > 0.3
    }
}
