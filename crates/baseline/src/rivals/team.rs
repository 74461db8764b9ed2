//! Two ranks of an MPI, started once and then told what to measure, so that a round costs no start of processes.
//! Between two orders they sleep. Whatever hangs ends by itself: the ranks have an alarm, and we a time bound.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::{Duration, Instant};

use super::child::{Background, TempDir, run};
use super::tools::{self, Mpi};
use super::{Figures, Order, Place, Rival, Route, Test};

/// To compile the program, or for both ranks to report.
const START_TIME: Duration = Duration::from_secs(20);
/// For one order; the ranks' own alarm comes first.
const ORDER_TIME: Duration = Duration::from_secs(30);
/// Between two looks whether somebody wants us to stop.
const LOOK: Duration = Duration::from_millis(20);

/// The ranks, and the streams to them. Ends with all its processes when dropped.
pub(super) struct Team {
    ranks: [BufReader<UnixStream>; 2],
    _mpirun: Background,
    _folder: TempDir,
}

impl Team {
    pub(super) fn start(
        rival: Rival,
        route: Route,
        place: &Place,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Self, String> {
        let mpi = if rival == Rival::OpenMpi { tools::open_mpi() } else { tools::mpich() };
        let mpi = mpi.ok_or("mpirun or mpicc is not there")?;
        let folder = TempDir::new()?;
        let program = folder.path().join("team");
        compile(&mpi, &folder)?;
        let socket = folder.path().join("desk");
        let listener = UnixListener::bind(&socket).map_err(|e| e.to_string())?;
        listener.set_nonblocking(true).map_err(|e| e.to_string())?;
        let mut command = match &place.apart {
            Some(apart) => apart.node(&mpi.mpirun),
            None => Command::new(&mpi.mpirun),
        };
        if rival == Rival::OpenMpi {
            open_mpi_options(&mut command, route, place.apart.is_some());
        }
        if let Some(apart) = &place.apart {
            apart.options(&mut command, &folder)?;
        } else {
            command.args(["-n", "2"]);
        }
        command.arg(&program).arg(&socket).args(place.cores.map(|core| core.to_string()));
        let mut mpirun = Background::start(&mut command)?;
        let ranks = gather(&listener, &mut mpirun, stop)?;
        Ok(Self { ranks, _mpirun: mpirun, _folder: folder })
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
        let first = parse(&line_from(one, until, stop)?)?;
        Ok([first, parse(&line_from(other, until, stop)?)?].map(|figures| figures.with(order)))
    }
}

fn compile(mpi: &Mpi, folder: &TempDir) -> Result<(), String> {
    let source = folder.path().join("team.c");
    fs::write(&source, include_str!("team.c")).map_err(|e| e.to_string())?;
    let mut command = Command::new(&mpi.mpicc);
    command.arg("-O3").arg("-o").arg(folder.path().join("team")).arg(&source);
    run(&mut command, START_TIME).map(drop).map_err(|e| format!("mpicc: {e}"))
}

fn open_mpi_options(command: &mut Command, route: Route, apart: bool) {
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    // The program pins itself; and it polls, as we do.
    command.args(["--bind-to", "none", "--mca", "mpi_yield_when_idle", "0"]);
    if route == Route::Tcp {
        command.args(["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]);
        if !apart {
            command.args(["--mca", "btl_tcp_if_include", "lo"]);
        }
    }
}

/// Waits until both ranks have said who they are.
fn gather(
    listener: &UnixListener,
    mpirun: &mut Background,
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
                if let Some(status) = mpirun.ended() {
                    return Err(format!("mpirun ended with {status}"));
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

/// The next line, within the time and unless told to stop.
fn line_from(
    rank: &mut BufReader<UnixStream>,
    until: Instant,
    stop: &mut dyn FnMut() -> bool,
) -> Result<String, String> {
    rank.get_ref().set_read_timeout(Some(LOOK)).map_err(|e| e.to_string())?;
    let mut line = String::new();
    loop {
        match rank.read_line(&mut line) {
            Ok(0) => return Err("one of its processes ended".to_owned()),
            Ok(_) => return Ok(line),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                if stop() {
                    return Err("told to stop".to_owned());
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
    let numbers: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [median_ns, p99_ns, p999_ns, mean_ns, elapsed_ns, cpu_ns] = numbers[..] else {
        return Err(format!("it answered {line:?}"));
    };
    let ns = |value: f64| value as u64;
    Ok(Figures {
        median_ns,
        p99_ns,
        p999_ns,
        mean_ns,
        elapsed_ns: ns(elapsed_ns),
        cpu_ns: ns(cpu_ns),
        ..Figures::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_six_figures() {
        let figures = parse("740 1200 3000 801.5 9000000 8000000\n").unwrap();
        assert_eq!((figures.median_ns, figures.mean_ns, figures.elapsed_ns), (740.0, 801.5, 9_000_000));
        assert!(parse("740 1200\n").is_err() && parse("").is_err());
    }

    #[test]
    fn a_rank_that_says_nothing_is_not_waited_for_when_told_to_stop() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut turns = 0;
        let mut stop = || {
            turns += 1;
            turns > 2
        };
        let said = line_from(&mut BufReader::new(ours), Instant::now() + ORDER_TIME, &mut stop);
        assert_eq!(said, Err("told to stop".to_owned()));
    }
}
