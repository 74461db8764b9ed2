//! `mpiexec` with the options that people type: it becomes a `tautline run`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;

use crate::run::{self, RunArgs};

#[derive(Debug, Parser)]
struct Run {
    #[command(flatten)]
    args: RunArgs,
}

/// What `mpiexec -help` prints.
const HELP: &str = "\
Usage: mpiexec [OPTIONS] PROGRAM [ARGS] [: [OPTIONS] PROGRAM [ARGS]]...

Starts an MPI job. Of several programs each has the options before it; -genv, -l, -timeout and --device are
for all of them.

  -n, -np N                how many processes; 1 if no hosts are named
  -host, -hosts LIST       on these hosts: a,b:4
  -hostfile, -f FILE       on the hosts of this file: a, b:4 or c slots=4 in each line
  -ppn N                   how many processes a host takes
  -wdir DIR                the directory that the program runs in
  -env NAME VALUE          a variable of the program
  -genv NAME VALUE         a variable of all programs
  -genvlist, -envlist A,B  variables of this environment, which hosts then have, too
  -x NAME[=VALUE]          the same, one at a time
  -l                       begin each line of output with the rank
  -timeout SECONDS         end the job after that time
  -bind-to core            bind each process to a core
  --device NAME            shm, udp or xdp

`tautline run --help` shows what else a job can have.
";

/// Starts the job that the options of `mpiexec` describe.
pub fn mpiexec(args: &[OsString]) -> Result<ExitCode> {
    let is_first = |names: &[&str]| args.first().is_some_and(|arg| names.iter().any(|name| arg == name));
    if is_first(&["-help", "--help", "-h"]) {
        print!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    }
    if is_first(&["-version", "--version", "-V"]) {
        println!("mpiexec (Tautline) {}", env!("CARGO_PKG_VERSION"));
        return Ok(ExitCode::SUCCESS);
    }
    let mut words = vec![OsString::from("mpiexec")];
    words.extend(translate(args)?);
    let mut run = Run::try_parse_from(&words).map_err(|error| anyhow::anyhow!("{error}"))?.args;
    // Programs that were built for another library find ours first, if it is installed.
    if let Ok(folder) = super::installed() {
        run.env.push(library_path(folder.join("lib").as_os_str(), &run.env));
    }
    run::run(run)
}

/// Where programs look for libraries: in our folder, and then where the options or this environment say.
fn library_path(folder: &OsStr, given: &[OsString]) -> OsString {
    const NAME: &str = "LD_LIBRARY_PATH";
    let value = |text: &OsString| {
        let rest = text.as_bytes().strip_prefix(NAME.as_bytes())?.strip_prefix(b"=")?;
        Some(OsString::from_vec(rest.to_vec()))
    };
    let old = given.iter().rev().find_map(value).or_else(|| std::env::var_os(NAME));
    let mut whole = OsString::from(format!("{NAME}="));
    whole.push(folder);
    if let Some(old) = old.filter(|old| !old.is_empty()) {
        whole.push(":");
        whole.push(old);
    }
    whole
}

/// One program of the job, with the options that are for it alone.
#[derive(Default)]
struct Part {
    count: Option<OsString>,
    hosts: Option<OsString>,
    wdir: Option<OsString>,
    env: Vec<OsString>,
    words: Vec<OsString>,
}

impl Part {
    /// The program as one of several, which `tautline run` gives the same environment and directory. The
    /// shell changes them, and becomes the program.
    fn wrapped(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        if !self.env.is_empty() {
            words.push("env".into());
            words.extend(self.env.iter().cloned());
        }
        if let Some(folder) = &self.wdir {
            words.extend(["sh", "-c", r#"cd -- "$0" && exec "$@""#].map(OsString::from));
            words.push(folder.clone());
        }
        words.extend(self.words.iter().cloned());
        words
    }
}

/// The arguments of `tautline run`.
fn translate(args: &[OsString]) -> Result<Vec<OsString>> {
    let mut words: Vec<OsString> = Vec::new();
    let parts = args.split(|word| word == ":").map(|part| part_of(part, &mut words));
    let mut parts = parts.collect::<Result<Vec<Part>>>()?;
    let several = parts.len() > 1;
    if several {
        words.extend(hosts_of(&mut parts)?);
    }
    for (index, part) in parts.into_iter().enumerate() {
        let program = if several { part.wrapped() } else { part.words };
        if index > 0 {
            words.push(":".into());
        }
        if !several {
            let options = [("--hosts", part.hosts), ("--wdir", part.wdir)];
            words.extend(
                options.into_iter().filter_map(|(name, value)| Some([name.into(), value?])).flatten(),
            );
            words.extend(part.env.into_iter().flat_map(|variable| ["--env".into(), variable]));
        }
        match part.count {
            Some(count) => words.extend(["-n".into(), count]),
            // A list of hosts tells the number, as does one process on this host.
            None if words.iter().any(|word| word == "--hosts" || word == "--hostfile") && index == 0 => {}
            None => words.extend(["-n".into(), "1".into()]),
        }
        words.extend(program);
    }
    Ok(words)
}

/// The hosts of several programs in the order of the ranks, if the programs name theirs. Programs that name
/// hosts get a number of processes.
fn hosts_of(parts: &mut [Part]) -> Result<Vec<OsString>> {
    if parts.iter().all(|part| part.hosts.is_none()) {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    for part in parts {
        let Some(list) = &part.hosts else {
            bail!("one program has -host and another has none\nname the hosts of each program, or of none");
        };
        let hosts = run::hosts::parse_list(&list.to_string_lossy())?;
        let n = match &part.count {
            Some(count) => {
                let text = count.to_string_lossy();
                text.parse().with_context(|| format!("-n {text}: that is no number of processes"))?
            }
            None => run::hosts::capacity(&hosts, None),
        };
        part.count = Some(n.to_string().into());
        for (host, (_, slots)) in hosts.iter().zip(run::hosts::place(&hosts, None, n)?) {
            all.push(run::hosts::Host { name: host.name.clone(), slots: Some(slots) });
        }
    }
    all.retain(|host| host.slots != Some(0));
    Ok(vec!["--hosts".into(), run::hosts::to_list(&run::hosts::in_order(all)?).into()])
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
            "-host" | "-hosts" | "--host" | "-H" => part.hosts = Some(value()?),
            "-hostfile" | "--hostfile" | "-machinefile" | "--machinefile" | "-f" => {
                pass("--hostfile", value()?);
            }
            "-ppn" | "-perhost" | "--ppn" => pass("--ppn", value()?),
            "-wdir" | "--wdir" | "-wd" => part.wdir = Some(value()?),
            "-env" | "-genv" => {
                let mut variable = value()?;
                variable.push("=");
                variable.push(value()?);
                if text == "-env" { part.env.push(variable) } else { pass("--env", variable) }
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
                "mpiexec does not know the option {option}\n`mpiexec -help` shows those that it knows; `tautline run` has more"
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
        assert_eq!(translated("-env A 1 -np 4 ./a").unwrap(), "--env A=1 -n 4 ./a");
        assert_eq!(translated("-n 1 ./a : -n 3 ./b c").unwrap(), "-n 1 ./a : -n 3 ./b c");
        assert_eq!(translated("-host x,y ./a").unwrap(), "--hosts x,y ./a");
    }

    #[test]
    fn options_of_one_of_several_programs_are_for_it_alone() {
        let line = "-n 1 -env A 1 ./a : -genv B 2 -n 3 -env A 3 -wdir /x ./b c";
        let run = r#"--env B=2 -n 1 env A=1 ./a : -n 3 env A=3 sh -c cd -- "$0" && exec "$@" /x ./b c"#;
        assert_eq!(translated(line).unwrap(), run);
        let hosts =
            |line: &str| translated(line).map(|text| text.split(' ').nth(1).map(str::to_owned).unwrap());
        assert_eq!(hosts("-n 1 -host a ./x : -n 3 -host b,c ./y").unwrap(), "a:1,b:2,c:1");
        assert_eq!(hosts("-host a:2,b ./x : -n 2 -host b ./y").unwrap(), "a:2,b:3");
        for (line, word) in [
            ("-n 1 -host a ./x : -n 1 ./y", "of each program"),
            ("-n 1 -host a ./x : -n 1 -host b ./y : -n 1 -host a ./z", "a is named again"),
            ("-n x -host a ./x : -n 1 -host b ./y", "no number"),
        ] {
            let error = format!("{:#}", translated(line).unwrap_err());
            assert!(error.contains(word), "{line}: {error}");
        }
    }

    #[test]
    fn the_library_path_of_the_options_is_kept() {
        let given = ["LD_LIBRARY_PATH=/a", "B=1", "LD_LIBRARY_PATH=/x:/y"].map(OsString::from);
        assert_eq!(library_path(OsStr::new("/ours"), &given), "LD_LIBRARY_PATH=/ours:/x:/y");
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(translated("-n 2").unwrap_err().to_string().contains("no program"));
        assert!(translated("-n").unwrap_err().to_string().contains("-n needs a value"));
        assert!(translated("-launcher ssh ./a").unwrap_err().to_string().contains("-launcher"));
    }
}
