//! Which launcher started this process, and how it joins its job (J-1, J-8, J-15).

use std::os::fd::OwnedFd;
use std::path::Path;

use tautline_node::device::inherit;
use tautline_node::{Job, JoinError, Launcher, Member, Rank};

use crate::key_value::Admitted;
use crate::{INTERFACE, address, exchange, job_file, pmi1, pmi2, pmix, sealed_key, secret_file};

/// Names the inherited descriptor that a job description is read from.
pub const JOB_FD: &str = "TAUTLINE_JOB_FD";
/// Names the file that a job description is read from.
pub const JOB_FILE: &str = "TAUTLINE_JOB_FILE";
/// Names the file that the key of a job is read from, if another launcher started it.
pub const KEY_FILE: &str = "TAUTLINE_KEY_FILE";

/// A way to find a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Descriptor,
    File,
    Pmi2,
    Pmi1,
    Pmix,
    Alone,
}

impl Way {
    /// In the order in which they are considered.
    const ALL: [Way; 6] = [Way::Descriptor, Way::File, Way::Pmi2, Way::Pmi1, Way::Pmix, Way::Alone];

    fn name(self) -> &'static str {
        match self {
            Way::Descriptor => "tautline run",
            Way::File => "job file",
            Way::Pmi2 => "pmi2",
            Way::Pmi1 => "pmi1",
            Way::Pmix => "pmix",
            Way::Alone => "alone",
        }
    }

    /// How the environment shows that the process was started in this way, or why it does not.
    fn recognize(self, variable: Variable<'_>) -> Result<String, String> {
        let set =
            |name: &str| variable(name).map(|_| format!("{name} is set")).ok_or(format!("{name} is not set"));
        match self {
            Way::Descriptor => set(JOB_FD),
            Way::File => set(JOB_FILE),
            Way::Pmi2 => {
                set("PMI_FD").and_then(|_| set("PMI_JOBID")).map(|_| "PMI_FD and PMI_JOBID are set".into())
            }
            Way::Pmi1 => match (set("PMI_FD"), set("PMI_JOBID")) {
                (Ok(_), Ok(_)) => Err("PMI_JOBID is set".into()),
                (fd, _) => fd,
            },
            Way::Pmix => set("PMIX_RANK"),
            Way::Alone => Ok("no launcher's variables are set".into()),
        }
    }
}

/// The value of an environment variable.
type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The job that this process was started in (J-1), with the launcher to report.
pub fn job_from_environment() -> Result<Job, JoinError> {
    let (way, launcher) = choose(&variable)?;
    let mut job = match way {
        Way::Descriptor => job_file::read_descriptor(&variable(JOB_FD).unwrap_or_default())?,
        Way::File => job_file::read(Path::new(&std::env::var_os(JOB_FILE).unwrap_or_default()))?,
        Way::Pmi1 => join(way, || with_descriptor(pmi1::init))?,
        Way::Pmi2 => {
            let job = variable("PMI_JOBID").unwrap_or_default();
            join(way, || with_descriptor(|fd, rank, size| pmi2::init(fd, rank, size, &job)))?
        }
        Way::Pmix => join(way, || Ok(pmix::init()?))?,
        Way::Alone => alone()?,
    };
    job.launcher = Some(launcher);
    Ok(job)
}

/// The launcher that a process with this environment would be said to be started by, for diagnosis: nothing
/// is taken over.
pub fn launcher_of_environment() -> Result<Launcher, JoinError> {
    choose(&variable).map(|(_, launcher)| launcher)
}

fn choose(variable: Variable<'_>) -> Result<(Way, Launcher), JoinError> {
    let mut passed_over = Vec::new();
    for way in Way::ALL {
        match way.recognize(variable) {
            Ok(reason) => {
                if way == Way::Alone {
                    check_alone(variable)?;
                }
                let mut launcher = Launcher::new(way.name(), reason);
                launcher.passed_over = passed_over;
                return Ok((way, launcher));
            }
            Err(reason) => passed_over.push((way.name(), reason)),
        }
    }
    unreachable!("a process can always be alone")
}

/// A process that was started together with others is not alone: without their addresses and a key it cannot
/// join them, and must not take itself for a job of its own (J-15).
fn check_alone(variable: Variable<'_>) -> Result<(), JoinError> {
    for (name, launcher, advice) in [
        ("SLURM_STEP_NUM_TASKS", "srun", "use srun --mpi=pmi2 or srun --mpi=pmix"),
        ("PMI_SIZE", "a launcher with PMI, and PMI_FD is not set", "let it hand over PMI_FD"),
    ] {
        if variable(name).is_some_and(|value| value.trim() != "1") {
            return Err(JoinError::Launcher(format!(
                "this process was started with others by {launcher}, which hands over neither addresses nor a key; \
                 {advice}, or set {JOB_FILE} to a job file of mode 0600 with all members"
            )));
        }
    }
    Ok(())
}

/// What launchers with PMI hand over: a descriptor, the rank and the number of processes.
fn handed_over(variable: Variable<'_>) -> Result<(OwnedFd, Rank, u32), JoinError> {
    let number = |name: &str| {
        let text = variable(name).unwrap_or_default();
        text.trim()
            .parse::<u32>()
            .map_err(|_| JoinError::Launcher(format!("{name} is \"{text}\", which is no number")))
    };
    let (fd, rank, size) = (number("PMI_FD")?, number("PMI_RANK")?, number("PMI_SIZE")?);
    let fd = inherit::take(fd as i32).map_err(|error| {
        JoinError::Launcher(format!(
            "descriptor {fd} (PMI_FD): {error}; a process joins once: has it joined already, or is it not the one that was launched?"
        ))
    })?;
    Ok((fd, rank, size))
}

/// Joins the others through the space of the launcher, to which `init` introduces this process. What can fail
/// on its own fails before that: launchers kill processes that end in between, before these can say why.
fn join(way: Way, init: impl FnOnce() -> Result<Admitted, JoinError>) -> Result<Job, JoinError> {
    let key = std::env::var_os(KEY_FILE).map(|path| secret_file::read_key(Path::new(&path))).transpose()?;
    let ips = address::announced(variable(INTERFACE).as_deref())?;
    let admitted = init().map_err(|error| match error {
        JoinError::System(error) => {
            JoinError::Launcher(format!("the launcher cannot be joined through {}: {error}", way.name()))
        }
        other => other,
    })?;
    exchange::join(admitted, &ips, key)
}

/// Introduces this process to a launcher with PMI, on the descriptor that it has handed over.
fn with_descriptor(
    init: impl FnOnce(OwnedFd, Rank, u32) -> std::io::Result<Admitted>,
) -> Result<Admitted, JoinError> {
    let (fd, rank, size) = handed_over(&variable)?;
    Ok(init(fd, rank, size)?)
}

/// A job of one.
fn alone() -> Result<Job, JoinError> {
    let key = sealed_key::random_key()?;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    Ok(Job::new(0, key, vec![Member::new(socket.local_addr()?)]).with_socket(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(variables: &[(&str, &str)]) -> Result<Launcher, JoinError> {
        let variable =
            |name: &str| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        choose(&variable).map(|(_, launcher)| launcher)
    }

    /// J-8: the first launcher that the environment shows is taken, and the others have reasons.
    #[test]
    fn launchers_are_recognized() {
        for (variables, name) in [
            (&[][..], "alone"),
            (&[("SLURM_STEP_NUM_TASKS", "1")], "alone"),
            (&[("PMI_FD", "6"), ("PMI_RANK", "0"), ("PMI_SIZE", "4")], "pmi1"),
            (
                &[("PMI_FD", "6"), ("PMI_SIZE", "4"), ("PMI_JOBID", "3.0"), ("SLURM_STEP_NUM_TASKS", "4")],
                "pmi2",
            ),
            (&[("PMIX_RANK", "0"), ("SLURM_STEP_NUM_TASKS", "4")], "pmix"),
            (&[("PMIX_RANK", "0"), ("PMI_FD", "6")], "pmi1"),
            (&[("PMI_FD", "6"), (JOB_FILE, "/x")], "job file"),
            (&[("PMI_FD", "6"), (JOB_FILE, "/x"), (JOB_FD, "4")], "tautline run"),
        ] {
            let launcher = chosen(variables).unwrap();
            assert_eq!(launcher.name, name);
            let before = Way::ALL.iter().position(|way| way.name() == name).unwrap();
            assert_eq!(launcher.passed_over.len(), before, "{launcher}");
        }
        let text = chosen(&[("PMI_FD", "6")]).unwrap().to_string();
        assert!(
            text.starts_with("pmi1: PMI_FD is set; not tautline run: TAUTLINE_JOB_FD is not set"),
            "{text}"
        );
    }

    /// J-15: one of several processes is not alone.
    #[test]
    fn one_of_many_is_not_alone() {
        for (variables, word) in
            [(&[("SLURM_STEP_NUM_TASKS", "4")][..], "--mpi=pmi2"), (&[("PMI_SIZE", "2")], "PMI_FD")]
        {
            let error = chosen(variables).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains(JOB_FILE), "{error}");
        }
    }

    /// J-15: a process alone is a job of one, each with a key of its own.
    #[test]
    fn alone_is_a_job_of_one() {
        let (first, second) = (alone().unwrap(), alone().unwrap());
        assert_eq!((first.rank, first.size()), (0, 1));
        assert_ne!(first.key.bytes(), second.key.bytes());
    }
}
