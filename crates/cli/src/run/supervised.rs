//! The supervisor of a launcher (J-25).
//!
//! The process that the user starts is the supervisor. It starts the same command again, which is the
//! launcher, and waits for it. It outlives a launcher that is killed, and ends what that has started. If the
//! supervisor is killed, the launcher ends the job. Only if both are killed at once are processes left that
//! ranks have started; the ranks themselves end even then.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::record::Record;
use super::{leftovers, limits};
use crate::sys::{Signals, THIS_PROGRAM};

/// Tells a launcher of its supervisor: the process number of that, the descriptors of the signals and that of
/// the record.
pub const SUPERVISOR: &str = "TAUTLINE_SUPERVISOR";

/// What this process is to do.
pub enum Begun {
    /// Start and watch the job.
    Launcher(Launcher),
    /// Nothing more: the launcher that it has supervised has ended.
    Ended(ExitCode),
}

/// What a launcher begins with.
pub struct Launcher {
    /// The process number that it has for users: that of the supervisor, if there is one.
    pub number: u32,
    pub signals: Signals,
    /// For the supervisor.
    pub record: Option<Record>,
}

/// Starts a launcher and waits for its end, unless this process is to be the launcher: if it has a
/// supervisor, or if there is no room for another process. `grace` is the time between SIGTERM and SIGKILL.
pub fn begin(grace: Duration) -> Result<Begun> {
    if let Some(launcher) = supervised()? {
        return Ok(Begun::Launcher(launcher));
    }
    let prepared = || -> io::Result<_> {
        leftovers::adopt()?;
        Ok((Signals::catch()?, Record::new()?))
    };
    let (signals, record) = prepared().map_err(|error| {
        let advice = limits::advice(&error);
        anyhow::Error::from(error).context(format!("cannot start the launcher\n{advice}; the reason was"))
    })?;
    let Ok(mut launcher) = start(&signals, &record) else {
        return Ok(Begun::Launcher(Launcher { number: std::process::id(), signals, record: None }));
    };
    // The launcher has inherited them.
    drop(signals);
    let status = launcher.wait()?;
    if let Some(code) = status.code() {
        return Ok(Begun::Ended(ExitCode::from(code as u8)));
    }
    let signal = status.signal().unwrap_or_default();
    report!("tautline: the launcher was killed by signal {signal}; everything that it started is ended");
    let left = leftovers::end_all(grace, leftovers::sleep);
    record.clean_up();
    let _ = std::fs::remove_file(super::control::socket_path(std::process::id()));
    if !left.is_empty() {
        let numbers: Vec<_> = left.iter().map(ToString::to_string).collect();
        super::watch::report_left("", &numbers.join(", "));
    }
    Ok(Begun::Ended(ExitCode::from((128 + signal) as u8)))
}

/// Starts this command again, under the name that it was started with.
fn start(signals: &Signals, record: &Record) -> io::Result<Child> {
    let mut words = std::env::args_os();
    let mut launcher = Command::new(THIS_PROGRAM);
    launcher.arg0(words.next().unwrap_or_default()).args(words);
    let (inherited, record) = (signals.inherited()?, record.inherited()?);
    let mut told = std::process::id().to_string();
    for descriptor in inherited.iter().chain([&record]) {
        told += &format!(" {}", descriptor.number());
    }
    launcher.env(SUPERVISOR, told).spawn()
}

/// Whether this process is the launcher of a supervisor, which has read the same command line.
pub fn is_supervised() -> bool {
    let parent = rustix::process::getppid().map(|parent| parent.as_raw_pid().to_string());
    let told = std::env::var(SUPERVISOR).ok();
    told.zip(parent).is_some_and(|(told, parent)| told.split(' ').next() == Some(&*parent))
}

/// What this process has from its supervisor; none if it has no supervisor.
fn supervised() -> Result<Option<Launcher>> {
    let Some(told) = std::env::var(SUPERVISOR).ok() else { return Ok(None) };
    let numbers: Option<Vec<i32>> = told.split(' ').map(|word| word.parse().ok()).collect();
    let parent = rustix::process::getppid().map(rustix::process::Pid::as_raw_pid);
    let Some([supervisor, signals @ .., record]) = numbers.as_deref() else { return Ok(None) };
    if Some(*supervisor) != parent {
        // A process further down may have inherited the variable, but not the descriptor.
        if Record::is_at(*record) {
            bail!("the process that was to supervise the job was killed before the job began");
        }
        return Ok(None);
    }
    let taken = || -> io::Result<_> { Ok((Signals::take_over(signals)?, Record::take(*record)?)) };
    let (signals, record) =
        taken().context("cannot take over what the supervisor has left\nthe reason was")?;
    Ok(Some(Launcher { number: supervisor.cast_unsigned(), signals, record: Some(record) }))
}
