//! `tautline run --join JOB`: further ranks of a running job (J-22).

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use tautline_launch::control::{ControlError, Request, ask};

use super::control::{running_jobs, socket_path};
use super::{RunArgs, enter, hosts, lookup, parse_variable, programs};

/// Has the launcher of the job start the processes, and waits for their ends.
pub fn run(args: &RunArgs, job: &str) -> Result<ExitCode> {
    let launcher: u32 = job.parse().ok().filter(|pid| *pid > 0).with_context(|| {
        format!("--join {job}: not a process number\ngive that of the job's tautline run: {}", jobs())
    })?;
    if args.tag {
        bail!(
            "--tag: ranks that join write straight to the output of this command\nleave out --tag; to tell their \
             output apart, start each with a command of its own: tautline run -n 1 --join {job}"
        );
    }
    let hosts = match (&args.hosts, &args.hostfile) {
        (Some(list), _) => hosts::parse_list(list)?,
        (None, Some(file)) => hosts::read_file(file)?,
        (None, None) => Vec::new(),
    };
    let fill = (!hosts.is_empty()).then(|| hosts::capacity(&hosts, None));
    let [program] = &programs::parse(args.n, &args.program, fill)?[..] else {
        bail!(
            "--join starts one program, and a colon separates several\nstart each with a command of its own: \
             tautline run -n 1 --join {job} ./program"
        );
    };
    if let Some(folder) = &args.wdir {
        enter(folder)?;
    }
    let words = &program.words;
    let mut request = Request::from_here(program.count as u32, words[0].clone(), words[1..].to_vec())?;
    request.attached = true;
    // It may be only on the hosts that it is to run on.
    request.file = lookup::find(&words[0]).and_then(|file| Ok(std::path::absolute(file)?)).ok();
    request.given = args.env.iter().map(parse_variable).collect::<Result<Vec<_>>>()?;
    request.hosts = hosts::to_list(&hosts);
    let streams = (std::io::stdout(), std::io::stderr());
    let streams = [streams.0.as_fd(), streams.1.as_fd()];
    let mut started = match ask(&socket_path(launcher), &request, Some(streams)) {
        Ok(started) => started,
        Err(ControlError::Refused(why)) => bail!("job {job} refused: {why}"),
        Err(ControlError::Gone(_)) => return Err(absent(launcher)),
    };
    let mut code = 0;
    for _ in started.ranks.clone() {
        let Some((rank, ended)) = started.next_end() else {
            bail!("job {job} has ended, and its ranks with it");
        };
        if ended != 0 {
            report!("tautline: rank {rank} of job {job} ended with exit code {ended}");
        }
        if code == 0 {
            code = ended;
        }
    }
    Ok(ExitCode::from(code))
}

/// Why there is nobody to ask.
fn absent(launcher: u32) -> anyhow::Error {
    let own = rustix::process::geteuid().as_raw();
    match std::fs::metadata(format!("/proc/{launcher}")) {
        Ok(process) if process.uid() != own => {
            anyhow::anyhow!(
                "process {launcher} belongs to user {}\nonly the user of a job can join it; {}",
                process.uid(),
                jobs()
            )
        }
        Ok(_) => anyhow::anyhow!(
            "process {launcher} is no job that can be joined, or has not started its ranks yet\n{}",
            jobs()
        ),
        Err(_) => anyhow::anyhow!("there is no job {launcher}, or it has ended\n{}", jobs()),
    }
}

/// The jobs that can be joined, for advice.
fn jobs() -> String {
    match &running_jobs()[..] {
        [] => "no tautline run of this user on this host can be joined".to_owned(),
        jobs => {
            let numbers: Vec<_> = jobs.iter().map(ToString::to_string).collect();
            format!("jobs that can be joined: {}", numbers.join(", "))
        }
    }
}
