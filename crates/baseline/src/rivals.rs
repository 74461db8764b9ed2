//! Which other systems are installed here, and the same work done by them. Nothing is ever installed. A rival
//! that does not run is reported as such; it is never an error of the bench.
//!
//! C libraries with headers are driven from here: the two MPIs and UCX by a team of two ranks, a small C
//! program that the system's own compiler builds and that runs for all rounds; beside it UCX's own
//! `ucx_perftest`. ZeroMQ and iceoryx2 are transports like any other, see [`Kind`](crate::Kind); tarpc's
//! calls are [`tarpc_calls`](crate::tarpc_calls).

mod child;
mod jobs;
mod namespaces;
mod perftest;
mod team;
mod tools;

use std::fmt;

use crate::content::Account;
pub use jobs::{JobProgram, JobReport, run_job};
pub use namespaces::Namespaces;
use team::Team;
pub use tools::set_tautline_mpi;
use tools::{find_library, find_tool, line_with};

/// The systems that are searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rival {
    /// Open MPI: its `mpirun` and `mpicc`.
    OpenMpi,
    /// MPICH: its `mpirun` (Hydra) and `mpicc`.
    Mpich,
    /// Our own MPI, where [`set_tautline_mpi`] says: the same programs as over the others.
    TautlineMpi,
    /// UCX: its headers, and a C compiler.
    Ucx,
    /// UCX's own `ucx_perftest`, which resends an untouched buffer.
    UcxPerftest,
    /// ZeroMQ's `libzmq`.
    ZeroMq,
    /// iceoryx2, if this crate was built with the feature of that name.
    Iceoryx2,
    /// tarpc, if this crate was built with the feature of that name.
    Tarpc,
    /// iperf 3.
    Iperf3,
    /// sockperf.
    Sockperf,
}

/// The transport of a rival's test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// Shared memory, as the rival prefers it on one host.
    Host,
    /// TCP.
    Tcp,
}

/// A rival and whether it is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RivalStatus {
    /// Which.
    pub rival: Rival,
    /// Its version, as it reports it; `None` if it is not installed.
    pub version: Option<String>,
}

impl fmt::Display for RivalStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rival.name(), self.version.as_deref().unwrap_or("not installed"))
    }
}

/// Searches for every rival.
#[must_use]
pub fn detect() -> Vec<RivalStatus> {
    Rival::ALL.into_iter().map(|rival| RivalStatus { rival, version: rival.version() }).collect()
}

/// Whether there is a C compiler to build the tests of C libraries with.
#[must_use]
pub fn has_compiler() -> bool {
    tools::compiler().is_some()
}

impl Rival {
    /// Every system that is searched for.
    pub const ALL: [Rival; 10] = [
        Rival::OpenMpi,
        Rival::Mpich,
        Rival::TautlineMpi,
        Rival::Ucx,
        Rival::UcxPerftest,
        Rival::ZeroMq,
        Rival::Iceoryx2,
        Rival::Tarpc,
        Rival::Iperf3,
        Rival::Sockperf,
    ];

    /// The name as it appears in the tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Rival::OpenMpi => "Open MPI",
            Rival::Mpich => "MPICH",
            Rival::TautlineMpi => "MPI of Tautline",
            Rival::Ucx => "UCX",
            Rival::UcxPerftest => "ucx_perftest",
            Rival::ZeroMq => "libzmq",
            Rival::Iceoryx2 => "iceoryx2",
            Rival::Tarpc => "tarpc",
            Rival::Iperf3 => "iperf3",
            Rival::Sockperf => "sockperf",
        }
    }

    /// The Debian packages that it needs; none if it is not measured, or no package.
    #[must_use]
    pub fn packages(self) -> &'static [&'static str] {
        match self {
            Rival::OpenMpi => &["openmpi-bin", "libopenmpi-dev"],
            Rival::Mpich => &["mpich", "libmpich-dev"],
            Rival::Ucx => &["libucx-dev"],
            Rival::UcxPerftest => &["ucx-utils"],
            Rival::ZeroMq => &["libzmq5"],
            Rival::TautlineMpi | Rival::Iceoryx2 | Rival::Tarpc | Rival::Iperf3 | Rival::Sockperf => &[],
        }
    }

    /// Whether it comes with a feature of this crate, and is not searched for.
    #[must_use]
    pub fn is_built_in(self) -> bool {
        matches!(self, Rival::Iceoryx2 | Rival::Tarpc)
    }

    /// Searches for it: its version, or `None`.
    #[must_use]
    pub fn version(self) -> Option<String> {
        match self {
            Rival::OpenMpi => line_with(&tools::open_mpi()?.mpirun, "--version", "Open MPI"),
            Rival::Mpich => line_with(&tools::mpich()?.mpirun, "--version", "Version"),
            Rival::TautlineMpi => {
                tools::tautline_mpi().map(|_| "the libraries beside this program".to_owned())
            }
            Rival::Ucx | Rival::UcxPerftest => {
                let here = if self == Rival::Ucx { tools::ucx() } else { find_tool("ucx_perftest") };
                here?;
                let version = find_tool("ucx_info").and_then(|tool| line_with(&tool, "-v", "ersion"));
                Some(version.map_or("version unknown".to_owned(), |line| line.replace("# ", "")))
            }
            Rival::ZeroMq => crate::zeromq::is_installed().then(|| find_library("libzmq.so"))?,
            Rival::Iceoryx2 => crate::ICEORYX2.map(str::to_owned),
            Rival::Tarpc => crate::TARPC.map(str::to_owned),
            Rival::Iperf3 => line_with(&find_tool("iperf3")?, "--version", "iperf"),
            Rival::Sockperf => line_with(&find_tool("sockperf")?, "--version", "sockperf"),
        }
    }
}

/// What a rival's processes are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Which test.
    pub test: Test,
    /// Bytes of each message.
    pub bytes: usize,
    /// Messages or round trips.
    pub count: u64,
}

/// The tests that a rival can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// Back and forth.
    PingPong,
    /// One message per period, echoed.
    Paced {
        /// From one message to the next.
        period_us: u64,
    },
    /// One way; with a window, that many messages and then an answer.
    Stream {
        /// Messages per answer.
        window: Option<u64>,
    },
}

/// Where a rival's two processes run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// A core for each.
    pub cores: [usize; 2],
    /// Network namespaces to run in, if requested.
    pub namespaces: Option<Namespaces>,
}

/// What one of a rival's processes measured. Times of round trips are zero if there were none, or if it does
/// not report them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Half of the round trips took less.
    pub median_ns: f64,
    /// 99 of 100 took no more.
    pub p99_ns: f64,
    /// 999 of 1,000 took no more.
    pub p999_ns: f64,
    /// The arithmetic mean.
    pub mean_ns: f64,
    /// Messages moved.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The duration of all of it.
    pub elapsed_ns: u64,
    /// CPU time of the process in that time.
    pub cpu_ns: u64,
    /// What the process wrote and read, if it says so.
    pub account: Option<Account>,
}

impl Figures {
    fn with(self, order: &Order) -> Self {
        Self { messages: order.count, bytes: order.count * order.bytes as u64, ..self }
    }
}

/// A rival with processes of its own, ready to be measured. Its processes sleep meanwhile, or do not exist.
pub struct Contender {
    placement: Placement,
    /// `None` if a program is started for each figure.
    team: Option<Team>,
}

impl Contender {
    /// Whether a rival is driven this way.
    #[must_use]
    pub fn is_one(rival: Rival) -> bool {
        let mpi = matches!(rival, Rival::OpenMpi | Rival::Mpich | Rival::TautlineMpi);
        mpi || matches!(rival, Rival::Ucx | Rival::UcxPerftest)
    }

    /// Starts what a rival needs, unless `stop` returns true meanwhile.
    ///
    /// # Errors
    /// Why it cannot be measured here.
    pub fn start(
        rival: Rival,
        route: Route,
        placement: Placement,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Self, String> {
        if !Self::is_one(rival) {
            return Err(format!("there is no program of {} to measure", rival.name()));
        }
        let team = match rival {
            Rival::UcxPerftest => None,
            _ => Some(Team::start(rival, route, &placement, stop)?),
        };
        Ok(Self { placement, team })
    }

    /// Has its two processes run an order, unless `stop` returns true meanwhile. After an error it cannot be
    /// used any more.
    ///
    /// # Errors
    /// Why there is no figure.
    pub fn run(&mut self, order: &Order, stop: &mut dyn FnMut() -> bool) -> Result<[Figures; 2], String> {
        match &mut self.team {
            Some(team) => team.run(order, stop),
            None => perftest::measure(&self.placement, order, stop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_rival_is_no_error() {
        assert_eq!(detect().len(), Rival::ALL.len());
        let placement = Placement { cores: [0, 0], namespaces: None };
        let mut never = || false;
        assert!(Contender::start(Rival::Iperf3, Route::Host, placement.clone(), &mut never).is_err());
        if Rival::OpenMpi.version().is_none() {
            assert!(Contender::start(Rival::OpenMpi, Route::Host, placement, &mut never).is_err());
        }
    }
}
