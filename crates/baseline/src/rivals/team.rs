//! Two ranks over an MPI or UCX, started once and then commanded, so that a round starts no processes.
//! Between two orders they sleep. A rank that hangs is ended: the ranks have an alarm, and we have a time
//! bound.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::child::{Background, TempDir, last_complaint, run};
use super::tools;
use super::{Figures, Order, Placement, Rival, Route, Test};
use crate::content::{Account, Tally};

/// For compiling the program, or for both ranks to report.
const START_TIME: Duration = Duration::from_secs(20);
/// For one order; the ranks' own alarm comes first.
const ORDER_TIME: Duration = Duration::from_secs(30);
/// For the processes to end by themselves.
const END_TIME: Duration = Duration::from_secs(2);
/// The interval at which `stop` is checked.
const STOP_INTERVAL: Duration = Duration::from_millis(20);

/// The ranks, and the streams to them. Dropping it ends all its processes.
pub(super) struct Team {
    ranks: [BufReader<UnixStream>; 2],
    processes: Vec<Background>,
    folder: TempDir,
}

/// The file of the ranks' standard error.
const COMPLAINTS: &str = "complaints";

impl Team {
    pub(super) fn start(
        rival: Rival,
        route: Route,
        placement: &Placement,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Self, String> {
        let folder = TempDir::new()?;
        let socket = folder.path().join("desk");
        let listener = UnixListener::bind(&socket).map_err(|e| e.to_string())?;
        listener.set_nonblocking(true).map_err(|e| e.to_string())?;
        let commands = match rival {
            Rival::Ucx => ucx(route, placement, &folder, &socket)?,
            Rival::OpenMpi => vec![open_mpi(route, placement, &folder, &socket)?],
            Rival::TautlineMpi => tautline_mpi(route, placement, &folder, &socket)?,
            _ => vec![mpich(tools::mpich(), &[], placement, &folder, &socket)?],
        };
        let file = File::create(folder.path().join(COMPLAINTS)).map_err(|e| e.to_string())?;
        let mut processes = Vec::new();
        for mut command in commands {
            let complaints = file.try_clone().map_err(|e| e.to_string())?;
            processes.push(Background::start(&mut command, complaints)?);
        }
        let ranks =
            gather(&listener, &mut processes, stop).map_err(|e| format!("{e}{}", complaint(&folder)))?;
        let mut team = Self { ranks, processes, folder };
        if rival == Rival::Ucx {
            team.introduce(stop)?;
        }
        Ok(team)
    }

    /// Sends each rank the other's address.
    fn introduce(&mut self, stop: &mut dyn FnMut() -> bool) -> Result<(), String> {
        let until = Instant::now() + START_TIME;
        let [one, other] = &mut self.ranks;
        let addresses = [line_from(one, until, stop)?, line_from(other, until, stop)?];
        for (rank, address) in self.ranks.iter_mut().rev().zip(addresses) {
            rank.get_mut().write_all(address.as_bytes()).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    pub(super) fn run(
        &mut self,
        order: &Order,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<[Figures; 2], String> {
        let (test, window, period) = match order.test {
            Test::PingPong => ('p', 0, 0),
            Test::Paced { period_us } => ('p', 0, period_us),
            Test::Stream { window } => ('s', window.unwrap_or(0), 0),
        };
        let line = format!("{test} {} {} {window} {period}\n", order.bytes, order.count);
        for rank in &mut self.ranks {
            rank.get_mut().write_all(line.as_bytes()).map_err(|_| "its processes are gone".to_owned())?;
        }
        let until = Instant::now() + ORDER_TIME;
        let [one, other] = &mut self.ranks;
        let mut answer = |rank| parse(&line_from(rank, until, stop)?);
        let answers = answer(one).and_then(|first| Ok([first, answer(other)?]));
        let answers = answers.map_err(|e| format!("{e}{}", complaint(&self.folder)))?;
        Ok(answers.map(|figures| figures.with(order)))
    }
}

impl Drop for Team {
    /// The ranks end when their streams do, and take with them what their library keeps in files. Whatever
    /// is left then is killed.
    fn drop(&mut self) {
        for rank in &self.ranks {
            let _ = rank.get_ref().shutdown(Shutdown::Both);
        }
        let until = Instant::now() + END_TIME;
        while self.processes.iter_mut().any(|process| process.ended().is_none()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The ranks' last complaint, as the end of a sentence.
fn complaint(folder: &TempDir) -> String {
    last_complaint(&fs::read_to_string(folder.path().join(COMPLAINTS)).unwrap_or_default())
}

/// Compiles the ranks' program over a link, and returns the file.
fn compile(compiler: &Path, folder: &TempDir, link: &str, libraries: &[&str]) -> Result<PathBuf, String> {
    for (name, text) in [
        ("team.c", include_str!("team.c")),
        ("link_mpi.h", include_str!("link_mpi.h")),
        ("link_ucx.h", include_str!("link_ucx.h")),
    ] {
        fs::write(folder.path().join(name), text).map_err(|e| e.to_string())?;
    }
    let program = folder.path().join("team");
    let mut command = Command::new(compiler);
    command.arg("-O3").arg(format!("-DLINK=\"{link}\"")).arg("-o").arg(&program);
    command.arg(folder.path().join("team.c")).args(libraries);
    run(&mut command, START_TIME).map_err(|e| format!("the compiler: {e}"))?;
    Ok(program)
}

/// Adds the arguments of every rank.
fn arguments(command: &mut Command, placement: &Placement, socket: &Path) {
    command.arg(socket).args(placement.cores.map(|core| core.to_string()));
}

fn open_mpi(route: Route, placement: &Placement, folder: &TempDir, socket: &Path) -> Result<Command, String> {
    let mpi = tools::open_mpi().ok_or("its mpirun or mpicc is not installed")?;
    let program = compile(&mpi.mpicc, folder, "link_mpi.h", &[])?;
    let mut command = match &placement.namespaces {
        Some(namespaces) => namespaces.node(&mpi.mpirun),
        None => Command::new(&mpi.mpirun),
    };
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    // The program pins itself; and it polls, as we do.
    command.args(["--bind-to", "none", "--mca", "mpi_yield_when_idle", "0"]);
    if route == Route::Tcp {
        command.args(["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]);
    }
    match &placement.namespaces {
        Some(namespaces) => namespaces.options(&mut command, folder)?,
        None if route == Route::Tcp => {
            command.args(["-n", "2", "--mca", "btl_tcp_if_include", "lo"]);
        }
        None => {
            command.args(["-n", "2"]);
        }
    }
    arguments(command.arg(program), placement, socket);
    Ok(command)
}

fn mpich(
    mpi: Option<tools::Mpi>,
    options: &[&str],
    placement: &Placement,
    folder: &TempDir,
    socket: &Path,
) -> Result<Command, String> {
    let mpi = mpi.ok_or("its mpirun or mpicc is not installed")?;
    let program = compile(&mpi.mpicc, folder, "link_mpi.h", &[])?;
    let mut command = Command::new(&mpi.mpirun);
    arguments(command.args(options).args(["-n", "2"]).arg(program), placement, socket);
    Ok(command)
}

/// Names the rank of a process that is started here.
const RANK: &str = "TAUTLINE_BENCH_RANK";

/// Ours as MPICH; between namespaces with a list of members that both ranks read.
fn tautline_mpi(
    route: Route,
    placement: &Placement,
    folder: &TempDir,
    socket: &Path,
) -> Result<Vec<Command>, String> {
    let mpi = tools::tautline_mpi();
    let Some(namespaces) = &placement.namespaces else {
        let options: &[&str] = if route == Route::Tcp { &["--device", "udp"] } else { &[] };
        return Ok(vec![mpich(mpi, options, placement, folder, socket)?]);
    };
    let (mpi, libraries) = mpi.zip(tools::tautline_libraries()).ok_or("it is not installed")?;
    let program = compile(&mpi.mpicc, folder, "link_mpi.h", &[])?;
    let mut key = [0; 32];
    File::open("/dev/urandom").and_then(|mut from| from.read_exact(&mut key)).map_err(|e| e.to_string())?;
    let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let [first, second] = namespaces.addresses;
    let text =
        format!("tautline-job 1\nkey {key}\nrank ${RANK}\nmember 0 {first}:9000\nmember 1 {second}:9000\n");
    let job = folder.path().join("job");
    fs::write(&job, text).map_err(|e| e.to_string())?;
    fs::set_permissions(&job, fs::Permissions::from_mode(0o600)).map_err(|e| e.to_string())?;
    let start = |rank: usize| {
        let mut command = namespaces.enter(rank);
        command.env("TAUTLINE_JOB_FILE", &job).env(RANK, rank.to_string());
        arguments(command.env("LD_LIBRARY_PATH", &libraries).arg(&program), placement, socket);
        command
    };
    Ok([0, 1].map(start).into())
}

/// UCX has no launcher, so the processes are started here.
fn ucx(route: Route, placement: &Placement, folder: &TempDir, socket: &Path) -> Result<Vec<Command>, String> {
    let compiler = tools::ucx().ok_or("its headers or a C compiler are not installed")?;
    let program = compile(&compiler, folder, "link_ucx.h", &["-lucp", "-lucs"])?;
    let start = |rank: &str| {
        let mut command = Command::new(&program);
        command.env("UCX_TLS", if route == Route::Tcp { "tcp,self" } else { "sm,self" });
        if route == Route::Tcp {
            command.env("UCX_NET_DEVICES", "lo");
        }
        arguments(&mut command, placement, socket);
        command.arg(rank);
        command
    };
    Ok(vec![start("0"), start("1")])
}

/// Waits until both ranks have reported their numbers.
fn gather(
    listener: &UnixListener,
    processes: &mut [Background],
    stop: &mut dyn FnMut() -> bool,
) -> Result<[BufReader<UnixStream>; 2], String> {
    let until = Instant::now() + START_TIME;
    let mut ranks = [None, None];
    while ranks.iter().any(Option::is_none) {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(|e| e.to_string())?;
                let mut reader = BufReader::new(stream);
                let line = line_from(&mut reader, until, stop)?;
                let rank = line.trim().strip_prefix("rank ").and_then(|rank| rank.parse::<usize>().ok());
                let seat = rank.and_then(|rank| ranks.get_mut(rank)).ok_or("it started something else")?;
                *seat = Some(reader);
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                if let Some(status) = processes.iter_mut().find_map(Background::ended) {
                    return Err(format!("it ended with {status}"));
                }
                if Instant::now() > until || stop() {
                    return Err("its processes did not report".to_owned());
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(e) => return Err(e.to_string()),
        }
    }
    let [Some(first), Some(second)] = ranks else { return Err("two ranks of one number".to_owned()) };
    Ok([first, second])
}

/// Reads the next line, within the time and unless `stop` returns true.
pub(super) fn line_from(
    rank: &mut BufReader<UnixStream>,
    until: Instant,
    stop: &mut dyn FnMut() -> bool,
) -> Result<String, String> {
    rank.get_ref().set_read_timeout(Some(STOP_INTERVAL)).map_err(|e| e.to_string())?;
    let mut line = String::new();
    loop {
        match rank.read_line(&mut line) {
            Ok(0) => return Err("one of its processes ended".to_owned()),
            Ok(_) => return Ok(line),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                if stop() {
                    return Err("stopped on request".to_owned());
                }
                if Instant::now() > until {
                    return Err("it did not answer in time".to_owned());
                }
            }
            Err(e) => return Err(e.to_string()),
        }
    }
}

fn parse(line: &str) -> Result<Figures, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let numbers: Vec<f64> = words.iter().take(6).filter_map(|word| word.parse().ok()).collect();
    // Sums need all their bits.
    let sums: Vec<u64> = words.iter().skip(6).filter_map(|word| word.parse().ok()).collect();
    let (
        [median_ns, p99_ns, p999_ns, mean_ns, elapsed_ns, cpu_ns],
        [written_bytes, written_sum, read_bytes, read_sum],
    ) = (&numbers[..], &sums[..])
    else {
        return Err(format!("it answered {line:?}"));
    };
    let account = Account {
        written: Tally { bytes: *written_bytes, sum: *written_sum },
        read: Tally { bytes: *read_bytes, sum: *read_sum },
    };
    let ns = |value: f64| value as u64;
    Ok(Figures {
        median_ns: *median_ns,
        p99_ns: *p99_ns,
        p999_ns: *p999_ns,
        mean_ns: *mean_ns,
        elapsed_ns: ns(*elapsed_ns),
        cpu_ns: ns(*cpu_ns),
        account: Some(account),
        ..Figures::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_has_six_figures_and_four_sums() {
        let figures = parse("740 1200 3000 801.5 9000000 8000000 640 18446744073709551615 640 7\n").unwrap();
        assert_eq!(figures.account.map(|account| account.written.sum), Some(u64::MAX));
        assert_eq!((figures.median_ns, figures.mean_ns, figures.elapsed_ns), (740.0, 801.5, 9_000_000));
        assert!(parse("740 1200 3000 801.5 9000000 8000000\n").is_err());
        assert!(parse("740 1200\n").is_err() && parse("").is_err());
    }

    #[test]
    fn a_stop_ends_the_wait_for_a_silent_rank() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut turns = 0;
        let mut stop = || {
            turns += 1;
            turns > 2
        };
        let said = line_from(&mut BufReader::new(ours), Instant::now() + ORDER_TIME, &mut stop);
        assert_eq!(said, Err("stopped on request".to_owned()));
    }
}
