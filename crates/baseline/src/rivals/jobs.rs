//! Jobs of many ranks, of ours or over an MPI: started for each measurement, told what to do by arguments,
//! and heard through a socket to which rank 0 writes.

use std::fs::{self, File};
use std::io::{BufReader, ErrorKind};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::child::{Background, TempDir, last_complaint, run};
use super::team::line_from;
use super::{Rival, tools};

/// For compiling the program.
const COMPILE_TIME: Duration = Duration::from_secs(60);
/// For ranks to end after their last report.
const END_TIME: Duration = Duration::from_secs(20);

/// A program of many ranks, built for an MPI.
pub struct JobProgram {
    rival: Rival,
    mpirun: PathBuf,
    folder: TempDir,
}

/// What a job reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobReport {
    /// From the start of the launcher until all ranks were there.
    pub joined: Duration,
    /// A line for each experiment.
    pub lines: Vec<String>,
    /// How it was started, without the arguments of the ranks.
    pub command: String,
}

impl JobProgram {
    /// Builds the program.
    ///
    /// # Errors
    /// Why it cannot be measured here.
    pub fn build(rival: Rival) -> Result<Self, String> {
        let mpi = match rival {
            Rival::OpenMpi => tools::open_mpi(),
            Rival::Mpich => tools::mpich(),
            Rival::TautlineMpi => tools::tautline_mpi(),
            _ => return Err(format!("{} has no launcher of jobs", rival.name())),
        };
        let mpi = mpi.ok_or("its mpirun or mpicc is not installed")?;
        let folder = TempDir::new()?;
        let source = folder.path().join("job.c");
        fs::write(&source, include_str!("job.c")).map_err(|e| e.to_string())?;
        let mut compile = Command::new(&mpi.mpicc);
        compile.args(["-O3", "-o"]).arg(folder.path().join("job")).arg(&source);
        run(&mut compile, COMPILE_TIME).map_err(|e| format!("the compiler: {e}"))?;
        Ok(Self { rival, mpirun: mpi.mpirun, folder })
    }

    /// How a job is started: as root and with more ranks than cores, if need be, and not bound to cores.
    /// Ranks that outnumber the cores give them up while they wait, as far as the MPI can do that.
    #[must_use]
    pub fn command(&self, ranks: u64, crowded: bool) -> Command {
        let mut command = Command::new(&self.mpirun);
        if self.rival == Rival::OpenMpi {
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            command.args(["--oversubscribe", "--bind-to", "none"]);
            command.args(["--mca", "mpi_yield_when_idle", if crowded { "1" } else { "0" }]);
        }
        command.args(["-n", &ranks.to_string()]).arg(self.folder.path().join("job"));
        command
    }
}

/// Runs a job: starts `command` with the socket and the experiments as further arguments, and reads what rank
/// 0 reports of each, unless `stop` returns true meanwhile. All its processes have ended when this returns.
///
/// # Errors
/// Why there is no report.
pub fn run_job(
    mut command: Command,
    experiments: &[String],
    limit: Duration,
    stop: &mut dyn FnMut() -> bool,
) -> Result<JobReport, String> {
    let folder = TempDir::new()?;
    let (socket, complaints) = (folder.path().join("desk"), folder.path().join("complaints"));
    let listener = UnixListener::bind(&socket).map_err(|e| e.to_string())?;
    listener.set_nonblocking(true).map_err(|e| e.to_string())?;
    let mut report = JobReport { command: shown(&command), ..JobReport::default() };
    command.arg(&socket).args(experiments);
    let begin = Instant::now();
    let until = begin + limit;
    let file = File::create(&complaints).map_err(|e| e.to_string())?;
    let mut launcher = Background::start(&mut command, file)?;
    let mut converse = || {
        let mut desk = BufReader::new(accept(&listener, &mut launcher, until, stop)?);
        if line_from(&mut desk, until, stop)? != "joined\n" {
            return Err("its ranks are not those that were started".to_owned());
        }
        report.joined = begin.elapsed();
        for _ in experiments {
            report.lines.push(line_from(&mut desk, until, stop)?);
        }
        end_of(&mut launcher, stop)
    };
    converse().map_err(|e| {
        format!("{e}{}", last_complaint(&fs::read_to_string(&complaints).unwrap_or_default()))
    })?;
    Ok(report)
}

/// Waits for the launcher.
fn end_of(launcher: &mut Background, stop: &mut dyn FnMut() -> bool) -> Result<(), String> {
    let until = Instant::now() + END_TIME;
    loop {
        match launcher.ended() {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("it ended with {status}")),
            None if Instant::now() > until || stop() => return Err("it did not end".to_owned()),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Waits for rank 0.
fn accept(
    listener: &UnixListener,
    launcher: &mut Background,
    until: Instant,
    stop: &mut dyn FnMut() -> bool,
) -> Result<UnixStream, String> {
    loop {
        // Looked for before the connection: rank 0 may have connected and ended.
        let ended = launcher.ended();
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(|e| e.to_string())?;
                return Ok(stream);
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Err(e.to_string()),
        }
        if let Some(status) = ended {
            return Err(format!("it ended with {status}"));
        }
        if Instant::now() > until || stop() {
            return Err("its ranks did not report".to_owned());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A command line as people type it, with names instead of paths.
fn shown(command: &Command) -> String {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let words = command.get_args().map(|word| {
        let path = Path::new(word);
        if path.is_absolute() { name(path) } else { word.to_string_lossy().into_owned() }
    });
    std::iter::once(name(Path::new(command.get_program()))).chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_ends_or_hangs_is_reported() {
        let start = |script: &str, patience: Duration| {
            let mut command = Command::new("sh");
            command.args(["-c", script, "job"]);
            run_job(command, &[], patience, &mut || false)
        };
        let (long, short) = (Duration::from_secs(60), Duration::from_millis(300));
        assert!(start("echo why >&2; exit 3", long).unwrap_err().ends_with(": why"));
        assert!(start("sleep 600", short).unwrap_err().starts_with("its ranks did not report"));
    }

    #[test]
    fn command_lines_have_names_for_paths() {
        let mut command = Command::new("/usr/bin/mpirun");
        command.args(["-n", "4", "/tmp/folder/job"]);
        assert_eq!(shown(&command), "mpirun -n 4 job");
    }
}
