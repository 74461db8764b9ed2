//! `mpiexec` with the options that people type: it becomes a `tautline run`.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;

use crate::run::{self, RunArgs};

#[derive(Debug, Parser)]
struct Run {
    #[command(flatten)]
    args: RunArgs,
}

/// Starts the job that the options of `mpiexec` describe.
pub fn mpiexec(args: &[OsString]) -> Result<ExitCode> {
    let mut words = vec![OsString::from("mpiexec")];
    words.extend(translate(args)?);
    let mut run = Run::try_parse_from(&words).map_err(|error| anyhow::anyhow!("{error}"))?.args;
    // Programs that were built for another library find ours first, if it is installed.
    if let Ok(folder) = super::installed() {
        let mut value = OsString::from("LD_LIBRARY_PATH=");
        value.push(folder.join("lib"));
        if let Some(old) = std::env::var_os("LD_LIBRARY_PATH").filter(|old| !old.is_empty()) {
            value.push(":");
            value.push(old);
        }
        run.env.push(value);
    }
    run::run(run)
}

/// What one program of the job is started with.
#[derive(Default)]
struct Part {
    count: Option<OsString>,
    words: Vec<OsString>,
}

/// The arguments of `tautline run`.
fn translate(args: &[OsString]) -> Result<Vec<OsString>> {
    let mut options: Vec<OsString> = Vec::new();
    let mut parts = Vec::new();
    for part in args.split(|word| word == ":") {
        parts.push(part_of(part, &mut options)?);
    }
    let mut words = options;
    for (index, part) in parts.into_iter().enumerate() {
        if index > 0 {
            words.push(":".into());
        }
        match part.count {
            Some(count) => words.extend(["-n".into(), count]),
            // A list of hosts tells the number, as does one process on this host.
            None if words.iter().any(|word| word == "--hosts" || word == "--hostfile") && index == 0 => {}
            None => words.extend(["-n".into(), "1".into()]),
        }
        words.extend(part.words);
    }
    Ok(words)
}

fn part_of(args: &[OsString], options: &mut Vec<OsString>) -> Result<Part> {
    let mut part = Part::default();
    let mut rest = args.iter();
    while let Some(word) = rest.next() {
        let text = word.to_string_lossy();
        let mut value = || rest.next().cloned().with_context(|| format!("{text} needs a value"));
        let mut pass = |option: &str, value: OsString| options.extend([option.into(), value]);
        match text.as_ref() {
            "-n" | "-np" | "--np" | "-c" => part.count = Some(value()?),
            "-host" | "-hosts" | "--host" | "-H" => pass("--hosts", value()?),
            "-hostfile" | "--hostfile" | "-machinefile" | "--machinefile" | "-f" => {
                pass("--hostfile", value()?);
            }
            "-ppn" | "-perhost" | "--ppn" => pass("--ppn", value()?),
            "-wdir" | "--wdir" | "-wd" => pass("--wdir", value()?),
            "-env" | "-genv" => {
                let mut variable = value()?;
                variable.push("=");
                variable.push(value()?);
                pass("--env", variable);
            }
            "-x" => pass("--env", value()?),
            "-genvlist" | "-envlist" => {
                let list = value()?;
                for name in list.to_string_lossy().split(',') {
                    pass("--env", name.into());
                }
            }
            "-l" | "-prepend-rank" | "--tag-output" => options.push("--tag".into()),
            "-timeout" | "--timeout" => pass("--timeout", value()?),
            "--device" => pass("--device", value()?),
            // All variables reach programs of this host, and processes may always outnumber cores.
            "-genvall" | "-envall" | "--oversubscribe" | "-oversubscribe" | "--allow-run-as-root" => {}
            "-bind-to" | "--bind-to" => {
                if value()? != "none" {
                    pass("--bind", "core".into());
                }
            }
            option if option.starts_with('-') => bail!(
                "mpiexec does not know the option {option}\nit knows -n, -host, -hostfile, -ppn, -wdir, -env, -genv, -l and -timeout; `tautline run` has more"
            ),
            _ => {
                part.words.push(word.clone());
                part.words.extend(rest.by_ref().cloned());
            }
        }
    }
    if part.words.is_empty() {
        bail!("there is no program\nfor example: mpiexec -n 2 ./program");
    }
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> Result<String> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let words = translate(&words)?;
        Ok(words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn options_become_those_of_run() {
        assert_eq!(translated("-n 2 ./a -n 3").unwrap(), "-n 2 ./a -n 3");
        assert_eq!(translated("./a").unwrap(), "-n 1 ./a");
        assert_eq!(translated("-genv A 1 -np 4 -wdir /x ./a b").unwrap(), "--env A=1 --wdir /x -n 4 ./a b");
        assert_eq!(translated("-n 1 ./a : -n 3 ./b c").unwrap(), "-n 1 ./a : -n 3 ./b c");
        assert_eq!(translated("-host x,y ./a").unwrap(), "--hosts x,y ./a");
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(translated("-n 2").unwrap_err().to_string().contains("no program"));
        assert!(translated("-n").unwrap_err().to_string().contains("-n needs a value"));
        assert!(translated("-launcher ssh ./a").unwrap_err().to_string().contains("-launcher"));
    }
}
