//! Which other systems are installed here, and their own small latency tests. Nothing is ever installed.
//! A rival that does not run is reported as such; it is never an error of the bench.

mod child;

use std::fmt;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use child::{Background, TempDir, run};

/// The systems we look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rival {
    /// Open MPI: `mpirun` and `mpicc`.
    OpenMpi,
    /// MPICH: `mpichversion`, or an `mpirun` that is its Hydra.
    Mpich,
    /// UCX: `ucx_perftest`.
    Ucx,
    /// ZeroMQ's `libzmq`.
    ZeroMq,
    /// iperf 3.
    Iperf3,
    /// sockperf.
    Sockperf,
}

/// Which way the messages of a rival's test shall go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Shared memory, as the rival prefers it on one host.
    Host,
    /// TCP over loopback.
    Tcp,
}

/// What came of a rival's latency test.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The median one-way latency, in microseconds.
    OneWayUs(f64),
    /// It is not installed, or there is no test for it here.
    Absent,
    /// It is installed but gave no figure, for this reason.
    Failed(String),
}

/// A rival and whether it is here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Which.
    pub rival: Rival,
    /// Its own account of its version; `None` if it is not installed.
    pub version: Option<String>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rival.name(), self.version.as_deref().unwrap_or("not installed"))
    }
}

/// Looks for every rival.
#[must_use]
pub fn detect() -> Vec<Found> {
    Rival::ALL.into_iter().map(|rival| Found { rival, version: rival.version() }).collect()
}

/// Runs a rival's ping-pong between two processes on this machine, if there is one for it (Open MPI, UCX).
#[must_use]
pub fn latency(rival: Rival, route: Route, bytes: usize, iterations: u32) -> Outcome {
    let result = match rival {
        Rival::OpenMpi => match (open_mpi_tool("mpirun"), open_mpi_tool("mpicc")) {
            (Some(mpirun), Some(mpicc)) => open_mpi(&mpirun, &mpicc, route, bytes, iterations),
            _ => return Outcome::Absent,
        },
        Rival::Ucx => match find_tool("ucx_perftest") {
            Some(tool) => ucx(&tool, route, bytes, iterations),
            None => return Outcome::Absent,
        },
        Rival::Mpich | Rival::ZeroMq | Rival::Iperf3 | Rival::Sockperf => return Outcome::Absent,
    };
    match result {
        Ok(us) => Outcome::OneWayUs(us),
        Err(reason) => Outcome::Failed(reason),
    }
}

impl Rival {
    /// Every system we look for.
    pub const ALL: [Rival; 6] =
        [Rival::OpenMpi, Rival::Mpich, Rival::Ucx, Rival::ZeroMq, Rival::Iperf3, Rival::Sockperf];

    /// The name as it appears in the tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Rival::OpenMpi => "Open MPI",
            Rival::Mpich => "MPICH",
            Rival::Ucx => "UCX",
            Rival::ZeroMq => "libzmq",
            Rival::Iperf3 => "iperf3",
            Rival::Sockperf => "sockperf",
        }
    }

    /// Looks for it: its version, or `None`.
    #[must_use]
    pub fn version(self) -> Option<String> {
        match self {
            Rival::OpenMpi => line_with(&open_mpi_tool("mpirun")?, "--version", "Open MPI"),
            Rival::Mpich => {
                let own = find_tool("mpichversion").and_then(|tool| line_with(&tool, "", "Version"));
                own.or_else(|| line_with(&find_tool("mpiexec.hydra")?, "--version", "Version"))
            }
            Rival::Ucx => {
                find_tool("ucx_perftest")?;
                let version = find_tool("ucx_info").and_then(|tool| line_with(&tool, "-v", "ersion"));
                Some(version.unwrap_or_else(|| "version unknown".to_owned()))
            }
            Rival::ZeroMq => find_library("libzmq.so"),
            Rival::Iperf3 => line_with(&find_tool("iperf3")?, "--version", "iperf"),
            Rival::Sockperf => line_with(&find_tool("sockperf")?, "--version", "sockperf"),
        }
    }
}

/// The first line of a tool's answer that holds a word.
fn line_with(tool: &Path, argument: &str, word: &str) -> Option<String> {
    let mut command = Command::new(tool);
    if !argument.is_empty() {
        command.arg(argument);
    }
    let text = run(&mut command, Duration::from_secs(5)).ok()?;
    text.lines().map(str::trim).find(|line| line.contains(word)).map(str::to_owned)
}

fn find_tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Several MPIs may be installed side by side, so the tool is asked whose it is.
fn open_mpi_tool(name: &str) -> Option<PathBuf> {
    let candidates = [format!("{name}.openmpi"), name.to_owned()];
    candidates.iter().filter_map(|name| find_tool(name)).find(|tool| {
        let asked = if name == "mpicc" { "--showme:version" } else { "--version" };
        line_with(tool, asked, "Open MPI").is_some()
    })
}

fn find_library(name: &str) -> Option<String> {
    let arch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let folders = [arch.as_str(), "/usr/lib64", "/usr/lib", "/usr/local/lib"];
    let files = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    // The longest name carries the fullest version.
    names.filter(|found| found.starts_with(name)).max_by_key(String::len)
}

const TEST_TIME: Duration = Duration::from_secs(20);

fn open_mpi(mpirun: &Path, mpicc: &Path, route: Route, bytes: usize, iterations: u32) -> Result<f64, String> {
    let folder = TempDir::new()?;
    let (source, program) = (folder.path().join("pingpong.c"), folder.path().join("pingpong"));
    fs::write(&source, include_str!("rivals/pingpong.c")).map_err(|e| e.to_string())?;
    run(Command::new(mpicc).arg("-O2").arg("-o").arg(&program).arg(&source), TEST_TIME)?;
    let mut command = Command::new(mpirun);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.args(["-n", "2", "--bind-to", "core"]);
    if route == Route::Tcp {
        command.args([
            "--mca",
            "pml",
            "ob1",
            "--mca",
            "btl",
            "tcp,self",
            "--mca",
            "btl_tcp_if_include",
            "lo",
        ]);
    }
    command.arg(&program).args([bytes.to_string(), iterations.to_string()]);
    let text = run(&mut command, TEST_TIME)?;
    figure_after(&text, "one_way_us", 1).ok_or_else(|| "no figure in its output".to_owned())
}

fn ucx(tool: &Path, route: Route, bytes: usize, iterations: u32) -> Result<f64, String> {
    let port = free_port()?;
    let start = |core: &str| {
        let mut command = Command::new(tool);
        command.env("UCX_TLS", if route == Route::Tcp { "tcp,self" } else { "sm,self" });
        command.args(["-p", &port, "-c", core]);
        command
    };
    let cores = crate::cpu::allowed_cores().map_err(|e| e.to_string())?;
    let core = |i: usize| cores[i % cores.len().max(1)].to_string();
    let _server = Background::start(&mut start(&core(1)))?;
    let mut last = String::new();
    for _ in 0..10 {
        // The server needs a moment to listen; there is no sign of it to wait for.
        std::thread::sleep(Duration::from_millis(200));
        let mut client = start(&core(0));
        client.arg("127.0.0.1").args([
            "-t",
            "tag_lat",
            "-s",
            &bytes.to_string(),
            "-n",
            &iterations.to_string(),
        ]);
        match run(&mut client, TEST_TIME) {
            Ok(text) => {
                return figure_after(&text, "Final:", 2).ok_or_else(|| "no figure in its output".to_owned());
            }
            Err(reason) => last = reason,
        }
    }
    Err(last)
}

fn free_port() -> Result<String, String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|e| e.to_string())?;
    listener.local_addr().map(|address| address.port().to_string()).map_err(|e| e.to_string())
}

/// The `nth` word after a mark, as a number.
fn figure_after(text: &str, mark: &str, nth: usize) -> Option<f64> {
    let (_, rest) = text.split_once(mark)?;
    rest.split_whitespace().nth(nth - 1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_the_tests_output() {
        assert_eq!(figure_after("noise\none_way_us 0.4213\n", "one_way_us", 1), Some(0.4213));
        let ucx = "+---+\nFinal:               10000      0.471      0.478      0.478   15.96\n";
        assert_eq!(figure_after(ucx, "Final:", 2), Some(0.471));
        assert_eq!(figure_after("Final:", "Final:", 2), None);
        assert_eq!(figure_after("", "Final:", 2), None);
    }

    #[test]
    fn every_rival_is_looked_for_and_none_is_an_error() {
        assert_eq!(detect().len(), Rival::ALL.len());
        assert_eq!(latency(Rival::ZeroMq, Route::Tcp, 8, 10), Outcome::Absent);
        if find_tool("ucx_perftest").is_none() {
            assert_eq!(latency(Rival::Ucx, Route::Tcp, 8, 10), Outcome::Absent);
        }
    }

    #[test]
    fn a_tool_that_fails_gives_a_reason() {
        let no = Path::new("/bin/false");
        assert!(open_mpi(no, no, Route::Tcp, 8, 10).is_err());
    }
}
