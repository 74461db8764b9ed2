//! `mpiexec` with the options that people type: it becomes a `tautline run`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;

use super::options::{self, Meaning};
use crate::run::{self, RunArgs};

#[derive(Debug, Parser)]
struct Run {
    #[command(flatten)]
    args: RunArgs,
}

/// What `mpiexec -help` prints.
const HELP: &str = "\
Usage: mpiexec [OPTIONS] PROGRAM [ARGS] [: [OPTIONS] PROGRAM [ARGS]]...

Starts an MPI job. Of several programs each has the options before it; -genv, -x, -l, -timeout, --device,
-hostfile, -iface, -bind-to and -oversubscribe are for all of them. One hyphen and two mean the same, as do
`-n 4` and `-n=4`.

  -n, -np N                how many processes; without it as many as the hosts take, or as the tasks of a Slurm
                           allocation; else 1
  -host, -hosts LIST       on these hosts: a,b:4
  -hostfile, -f FILE       on the hosts of this file: a, b:4 or c slots=4 in each line
  -ppn, -N, -npernode N    how many processes a host takes
  -oversubscribe           let hosts take more processes than they have slots
  -iface NAME              the interface whose address the hosts announce
  -wdir DIR                the directory that the program runs in
  -env NAME VALUE          a variable of the program
  -genv NAME VALUE         a variable of all programs
  -genvlist, -envlist A,B  variables of this environment, which hosts then have, too
  -x NAME[=VALUE]          the same, one at a time
  -l, --tag-output         begin each line of output with the rank
  -output-filename DIR     write the output of each rank to a file in this directory
  -timeout SECONDS         end the job after that time
  -disable-auto-cleanup    when a rank fails, let the others go on
  -bind-to core            bind each process to a core; for socket, numa and the like they are not bound
  -map-by ppr:N:node       how many processes a host takes; ranks always fill one host after the other
  -configfile FILE         a program with its options in each line of the file
  --device NAME            shm, udp or xdp

Without effect: -mca and its like, -report-bindings, -genvall, -rmk, -q, -v and others that ask for what is
always so.

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
    let Translated { words: translated, notes } = translate(args, run::is_in_allocation())?;
    // The supervisor has said it.
    if !run::is_supervised() {
        notes.iter().for_each(|note| report!("mpiexec: {note}"));
    }
    words.extend(translated);
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
    /// How many processes a host takes.
    per_host: Option<OsString>,
    wdir: Option<OsString>,
    env: Vec<OsString>,
    words: Vec<OsString>,
}

/// The options that are for all programs.
#[derive(Default)]
struct Common {
    /// As `tautline run` has them.
    words: Vec<OsString>,
    interface: Option<OsString>,
    oversubscribes: bool,
    /// What has no effect, and why; each once.
    notes: Vec<String>,
}

impl Common {
    fn pass(&mut self, option: &str, value: impl Into<OsString>) {
        self.words.extend([option.into(), value.into()]);
    }

    fn note(&mut self, text: String) {
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    fn has(&self, option: &str) -> bool {
        self.words.iter().any(|word| word == option)
    }
}

/// The arguments of `tautline run`, and what the user is told.
struct Translated {
    words: Vec<OsString>,
    notes: Vec<String>,
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

/// The arguments of `tautline run`. In an allocation of Slurm there are hosts without an option.
fn translate(args: &[OsString], in_allocation: bool) -> Result<Translated> {
    let args = with_file(args)?;
    let mut common = Common::default();
    let parts = args.split(|word| word == ":").map(|part| part_of(part, &mut common));
    let mut parts = parts.collect::<Result<Vec<Part>>>()?;
    let several = parts.len() > 1;
    let names_hosts = common.has("--hostfile") || parts.iter().any(|part| part.hosts.is_some());
    if several {
        common.words.extend(hosts_of(&mut parts, common.oversubscribes)?);
    }
    if names_hosts || in_allocation {
        // On this host alone there is one address, and any number of processes.
        let per_host = parts.iter().find_map(|part| part.per_host.clone());
        for (option, value) in [("--interface", common.interface.take()), ("--ppn", per_host)] {
            value.into_iter().for_each(|value| common.pass(option, value));
        }
        if common.oversubscribes {
            common.words.push("--oversubscribe".into());
        }
    }
    let Common { mut words, notes, .. } = common;
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
            // Hosts tell the number, as do the tasks of an allocation.
            None if names_hosts && index == 0 || in_allocation && !several => {}
            None => words.extend(["-n".into(), part.per_host.unwrap_or_else(|| "1".into())]),
        }
        words.extend(program);
    }
    Ok(Translated { words, notes })
}

/// The arguments with those of the file that `-configfile` names in its place: each line is a program with
/// its options.
fn with_file(args: &[OsString]) -> Result<Vec<OsString>> {
    let mut rest = args.iter();
    loop {
        let before = args.len() - rest.len();
        let Some(word) = rest.next().filter(|word| word.as_bytes().starts_with(b"-")) else {
            return Ok(args.to_vec());
        };
        let given = options::take(word, &mut rest)?;
        if given.meaning != Meaning::File {
            continue;
        }
        if rest.len() > 0 {
            bail!(
                "after {} and its file there is {}\nthe file has the programs",
                given.name,
                rest.as_slice()[0].display()
            );
        }
        let path = std::path::Path::new(&given.values[0]);
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}\ncheck the path; the reason was", path.display()))?;
        let mut words = args[..before].to_vec();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        for (index, line) in lines.enumerate() {
            if index > 0 {
                words.push(":".into());
            }
            words.extend(options::words_of(line).with_context(|| path.display().to_string())?);
        }
        return Ok(words);
    }
}

/// The hosts of several programs in the order of the ranks, if the programs name theirs. Programs that name
/// hosts get a number of processes.
fn hosts_of(parts: &mut [Part], oversubscribes: bool) -> Result<Vec<OsString>> {
    if parts.iter().all(|part| part.hosts.is_none()) {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    for part in parts {
        let Some(list) = &part.hosts else {
            bail!("one program has -host and another has none\nname the hosts of each program, or of none");
        };
        let number = |option: &str, text: &OsString| {
            let text = text.to_string_lossy();
            text.parse().with_context(|| format!("{option} {text}: that is no number of processes"))
        };
        let per_host = part.per_host.take().map(|text| number("-ppn", &text)).transpose()?;
        let mut hosts = run::hosts::parse_list(&list.to_string_lossy())?;
        let n = match &part.count {
            Some(count) => number("-n", count)?,
            None => run::hosts::capacity(&hosts, per_host),
        };
        part.count = Some(n.to_string().into());
        if oversubscribes {
            hosts = run::hosts::oversubscribed(hosts, per_host, n);
        }
        for (host, (_, slots)) in hosts.iter().zip(run::hosts::place(&hosts, per_host, n)?) {
            all.push(run::hosts::Host { name: host.name.clone(), slots: Some(slots) });
        }
    }
    all.retain(|host| host.slots != Some(0));
    Ok(vec!["--hosts".into(), run::hosts::to_list(&run::hosts::in_order(all)?).into()])
}

fn part_of(args: &[OsString], common: &mut Common) -> Result<Part> {
    let mut part = Part::default();
    let mut rest = args.iter();
    while let Some(word) = rest.next() {
        if word.as_bytes().starts_with(b"-") {
            apply(options::take(word, &mut rest)?, &mut part, common)?;
        } else {
            part.words.push(word.clone());
            part.words.extend(rest.by_ref().cloned());
        }
    }
    if part.words.is_empty() {
        bail!("there is no program\nfor example: mpiexec -n 2 ./program");
    }
    Ok(part)
}

/// Does what one option says.
fn apply(given: options::Given, part: &mut Part, common: &mut Common) -> Result<()> {
    let options::Given { name, meaning, values } = given;
    let first = values.first().cloned().unwrap_or_default();
    let text = first.to_string_lossy().into_owned();
    match meaning {
        Meaning::Count => part.count = Some(first),
        Meaning::Hosts => part.hosts = Some(first),
        Meaning::Dir => part.wdir = Some(first),
        Meaning::PerHost => part.per_host = Some(first),
        Meaning::OnePerHost => part.per_host = Some("1".into()),
        Meaning::Interface => common.interface = Some(first),
        Meaning::Oversubscribe => common.oversubscribes = true,
        Meaning::Env => part.env.push(values.join(OsStr::new("="))),
        Meaning::JobEnv => common.pass("--env", values.join(OsStr::new("="))),
        Meaning::Variable => variable(&name, &text, first, common),
        Meaning::Variables => text.split(',').for_each(|one| variable(&name, one, one.into(), common)),
        Meaning::Bind => bind(&name, &text, common),
        Meaning::BindTo(what) => bind(&name, what, common),
        Meaning::Map => match text.strip_prefix("ppr:").and_then(|rest| rest.strip_suffix(":node")) {
            Some(number) => part.per_host = Some(number.into()),
            None if ["slot", "core", "hwthread"].contains(&&*text) => {}
            None => common.note(format!("{name} {text} has no effect: ranks fill one host after the other")),
        },
        Meaning::Launcher if ["ssh", "slurm", "fork"].contains(&&*text) => {}
        Meaning::Launcher => bail!(
            "mpiexec does not know the launcher {text}\nhosts are reached through ssh, and those of an allocation \
             through Slurm; `tautline run --ssh COMMAND` names another command"
        ),
        Meaning::Input if text == "0" => {}
        Meaning::Input => {
            common.note(format!(
                "{name} {text} has no effect: rank 0 reads standard input, the others have none"
            ));
        }
        Meaning::Run(option) if values.is_empty() => {
            if !common.has(option) {
                common.words.push(option.into());
            }
        }
        Meaning::Run(option) => common.pass(option, first),
        Meaning::Nothing => {}
        Meaning::Without(why) => common.note(format!("{name} has no effect: {why}")),
        Meaning::File => bail!("{name} is for the beginning\ngive the options of the programs in the file"),
        Meaning::Refused(advice) => bail!("mpiexec cannot do what {name} says\n{advice}"),
    }
    Ok(())
}

/// Passes on a variable of this environment, or one with a value.
fn variable(name: &str, text: &str, word: OsString, common: &mut Common) {
    if text.contains('=') || std::env::var_os(&word).is_some() {
        common.pass("--env", word);
    } else {
        common.note(format!("{name} {text} has no effect: there is no such variable here"));
    }
}

/// Binds each process to a core if that was asked for. Threads of a process would share one core if a socket,
/// of which nothing is known here, became a core.
fn bind(name: &str, to: &str, common: &mut Common) {
    match to {
        "core" | "core:1" | "core:overload-allowed" if !common.has("--bind") => common.pass("--bind", "core"),
        "core" | "core:1" | "core:overload-allowed" | "none" => {}
        _ => {
            let named = if name.ends_with(to) { String::new() } else { format!(" {to}") };
            common
                .note(format!("{name}{named}: processes are not bound; -bind-to core binds each to a core"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> Result<String> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let Translated { words, .. } = translate(&words, false)?;
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

    /// What people type for other launchers does what it says, or nothing, and the latter is said once.
    #[test]
    fn options_of_other_launchers() {
        let run = |line: &str, in_allocation: bool| {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            let Translated { words, notes } = translate(&words, in_allocation).unwrap();
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
            (words.join(" "), notes.join("\n"))
        };
        for (line, words) in [
            ("--mca btl self -mca pml ob1 --report-bindings -q -v -rmk user --np=2 ./a", "-n 2 ./a"),
            ("-bind-to none -map-by slot --rank-by core -launcher fork -genvall ./a", "-n 1 ./a"),
            ("-bind-to core -n 2 ./a : -bind-to core -n 1 ./b", "--bind core -n 2 ./a : -n 1 ./b"),
            ("--use-hwthread-cpus -prepend-rank --tag-output -x A=1 -n 2 ./a", "--tag --env A=1 -n 2 ./a"),
            // On this host alone.
            ("-N 3 -iface lo --oversubscribe ./a", "-n 3 ./a"),
            ("-ppn 1 -n 3 ./a", "-n 3 ./a"),
            ("--map-by ppr:2:node ./a", "-n 2 ./a"),
            ("-npernode 2 -iface e0 -host x,y ./a", "--interface e0 --ppn 2 --hosts x,y ./a"),
            ("-host x:2 -n 4 -oversubscribe ./a", "--oversubscribe --hosts x:2 -n 4 ./a"),
            (
                "-oversubscribe -host x:2 -n 5 ./a : -host y -n 2 ./b",
                "--hosts x:5,y:2 --oversubscribe -n 5 ./a : -n 2 ./b",
            ),
        ] {
            assert_eq!(run(line, false), (words.to_owned(), String::new()), "{line}");
        }
        for (line, words, note) in [
            (
                "--bind-to socket -n 2 ./a : --bind-to socket -n 1 ./b",
                "-n 2 ./a : -n 1 ./b",
                "--bind-to socket: ",
            ),
            ("-bind-to hwthread ./a", "-n 1 ./a", "-bind-to hwthread: processes are not bound"),
            ("-bind-to core:2 ./a", "-n 1 ./a", "-bind-to core:2: processes are not bound"),
            ("-bind-to-socket ./a", "-n 1 ./a", "-bind-to-socket: processes are not bound"),
            ("--map-by node ./a", "-n 1 ./a", "--map-by node has no effect"),
            ("-s all ./a", "-n 1 ./a", "-s all has no effect"),
            ("-genvnone ./a", "-n 1 ./a", "-genvnone has no effect"),
            ("-x NO_SUCH_VARIABLE ./a", "-n 1 ./a", "no such variable"),
        ] {
            let (run, notes) = run(line, false);
            assert_eq!(run, words, "{line}");
            assert!(notes.contains(note) && notes.lines().count() == 1, "{line}: {notes}");
        }
        // The tasks of the allocation tell the number.
        assert_eq!(run("./a", true).0, "./a");
        assert_eq!(run("-n 3 -ppn 2 ./a", true).0, "--ppn 2 -n 3 ./a");
    }

    #[test]
    fn a_file_has_the_programs() {
        let path = std::env::temp_dir().join(format!("tautline-config-{}", std::process::id()));
        std::fs::write(&path, "# two programs\n-n 1 ./a 'b c'\n\n-n 2 -env A \"1 2\" ./d\n").unwrap();
        let line = |start: &str| translated(&format!("{start} {}", path.display()));
        assert_eq!(line("-l -configfile").unwrap(), "--tag -n 1 ./a b c : -n 2 env A=1 2 ./d");
        assert_eq!(line("./a -configfile").unwrap(), format!("-n 1 ./a -configfile {}", path.display()));
        let wrong = translated(&format!("-configfile {} ./a", path.display())).unwrap_err();
        assert!(wrong.to_string().contains("./a"), "{wrong}");
        std::fs::write(&path, "-n 1 ./a 'b\n").unwrap();
        assert!(format!("{:#}", line("-configfile").unwrap_err()).contains("quote"));
        std::fs::remove_file(&path).unwrap();
        assert!(format!("{:#}", line("-configfile").unwrap_err()).contains("cannot read"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(translated("-n 2").unwrap_err().to_string().contains("no program"));
        assert!(translated("-n").unwrap_err().to_string().contains("-n needs a value"));
        assert!(translated("-launcher rsh ./a").unwrap_err().to_string().contains("--ssh COMMAND"));
        assert!(translated("-nonsense ./a").unwrap_err().to_string().contains("-nonsense"));
    }
}
