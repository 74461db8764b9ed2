//! `tautline run` inside a Slurm allocation: its hosts, and how an agent is started on each (J-21).

use std::process::Command;

use anyhow::{Context, Result, bail};

use super::hosts::Host;

/// Names the hosts of an allocation.
const NODE_LIST: &str = "SLURM_JOB_NODELIST";

/// The value of an environment variable.
type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The hosts of the allocation that this process runs in, if it does, with as many processes as tasks were
/// asked for.
pub fn allocation() -> Result<Option<Vec<Host>>> {
    let variable = |name: &str| std::env::var(name).ok();
    let Some(list) = node_list(&variable)? else { return Ok(None) };
    let shown = Command::new("scontrol").args(["show", "hostnames", &list]).output();
    let shown =
        shown.context("cannot start scontrol, to list the hosts of the allocation\nthe reason was")?;
    if !shown.status.success() {
        bail!(
            "scontrol cannot list the hosts of the allocation: {}\nname them: --hosts, or --here for this one",
            String::from_utf8_lossy(&shown.stderr).trim()
        );
    }
    let names: Vec<String> = String::from_utf8_lossy(&shown.stdout).lines().map(str::to_owned).collect();
    let tasks = variable("SLURM_TASKS_PER_NODE").map(|text| parse_tasks(&text)).transpose()?;
    let slots = |index: usize| tasks.as_ref().and_then(|tasks| tasks.get(index).copied());
    Ok(Some(names.into_iter().enumerate().map(|(index, name)| Host { name, slots: slots(index) }).collect()))
}

/// Whether this process runs in an allocation, whose hosts a job gets that names none.
pub fn is_in_allocation() -> bool {
    std::env::var_os(NODE_LIST).is_some()
}

/// The list of hosts. An error in one of several tasks of a step, each of which would start the job.
fn node_list(variable: Variable<'_>) -> Result<Option<String>> {
    let Some(list) = variable(NODE_LIST) else { return Ok(None) };
    if let Some(tasks) = variable("SLURM_STEP_NUM_TASKS").filter(|tasks| tasks.trim() != "1") {
        bail!(
            "srun has started this command {tasks} times, and each would start the job\nstart it once: salloc or sbatch instead of srun, or start the program with srun"
        );
    }
    Ok(Some(list))
}

/// Reads `2(x3),1`: three hosts with two tasks, and one with one.
fn parse_tasks(text: &str) -> Result<Vec<usize>> {
    let mut tasks = Vec::new();
    for part in text.trim().split(',') {
        let repeated = part.strip_suffix(')').and_then(|part| part.split_once("(x"));
        let (count, times) = repeated.unwrap_or((part, "1"));
        let (Ok(count), Ok(times @ 1..=100_000)) = (count.parse::<usize>(), times.parse::<usize>()) else {
            bail!("SLURM_TASKS_PER_NODE is \"{text}\", which is no list of tasks\nname the hosts: --hosts");
        };
        tasks.extend(std::iter::repeat_n(count, times));
    }
    Ok(tasks)
}

/// The command that runs `script` on a host of the allocation. Its output is not held back until lines end.
pub fn on_host(name: &str, script: &str) -> Command {
    let mut command = Command::new("srun");
    command.args(["--overlap", "--unbuffered", "--nodes=1", "--ntasks=1", "--mpi=none", "--quiet"]);
    command.arg(format!("--nodelist={name}")).args(["sh", "-c", script]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// J-21: how Slurm writes the tasks of each host.
    #[test]
    fn tasks_are_read() {
        assert_eq!(parse_tasks("2(x3),1").unwrap(), [2, 2, 2, 1]);
        assert_eq!(parse_tasks("4").unwrap(), [4]);
        for text in ["", "x", "2(x)", "2(x3", "2(x0)", "1,,2", "2(x999999999)"] {
            assert!(parse_tasks(text).unwrap_err().to_string().contains("--hosts"), "{text}");
        }
    }

    /// J-21: outside of an allocation there is none, and a job is started once.
    #[test]
    fn a_job_is_started_once() {
        let list = |variables: &[(&str, &str)]| {
            let variable = |name: &str| {
                variables.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned())
            };
            node_list(&variable)
        };
        assert_eq!(list(&[]).unwrap(), None);
        assert_eq!(list(&[("SLURM_JOB_NODELIST", "n[1-2]")]).unwrap().as_deref(), Some("n[1-2]"));
        let error = list(&[("SLURM_JOB_NODELIST", "n1"), ("SLURM_STEP_NUM_TASKS", "4")]).unwrap_err();
        assert!(error.to_string().contains("4 times"), "{error}");
    }
}
