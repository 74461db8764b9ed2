//! The options that people type after `mpiexec`, with the number of their values and what they mean here.
//!
//! What lives here: the table, and taking one option with its values from a command line. What the job
//! becomes is decided in `mpiexec`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use anyhow::{Result, bail};

/// What an option means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The number of processes of this program.
    Count,
    /// The hosts of this program.
    Hosts,
    /// The directory of this program.
    Dir,
    /// A variable and its value for this program.
    Env,
    /// A variable and its value for all programs.
    JobEnv,
    /// A variable for all programs, with a value or with the one that it has here.
    Variable,
    /// Variables for all programs, with the values that they have here.
    Variables,
    /// How many processes each host takes.
    PerHost,
    /// Each host takes one process.
    OnePerHost,
    /// The interface whose address hosts announce.
    Interface,
    /// Hosts may take more processes than they have slots.
    Oversubscribe,
    /// What each process is bound to.
    Bind,
    /// The same, where the name says it.
    BindTo(&'static str),
    /// How ranks are spread over hosts and cores.
    Map,
    /// How hosts are reached.
    Launcher,
    /// Who reads standard input.
    Input,
    /// A file with the programs and their options.
    File,
    /// An option of `tautline run`, with the same value.
    Run(&'static str),
    /// Has no effect: what it asks for is always so, or does not exist here.
    Nothing,
    /// Has no effect, for the reason that is reported.
    Without(&'static str),
    /// Is an error; the text says what to do instead.
    Refused(&'static str),
}

/// An option, by its names without hyphens: one hyphen and two mean the same.
pub struct Known {
    pub names: &'static [&'static str],
    /// The number of its values.
    pub values: usize,
    pub meaning: Meaning,
}

const fn known(names: &'static [&'static str], values: usize, meaning: Meaning) -> Known {
    Known { names, values, meaning }
}

/// The options of MPICH's `mpiexec` (hydra), of Open MPI's, and our own.
pub const OPTIONS: &[Known] = &[
    known(&["n", "np", "c"], 1, Meaning::Count),
    known(&["host", "hosts", "H"], 1, Meaning::Hosts),
    known(&["hostfile", "machinefile", "machine", "f"], 1, Meaning::Run("--hostfile")),
    known(&["wdir", "wd"], 1, Meaning::Dir),
    known(&["env"], 2, Meaning::Env),
    known(&["genv"], 2, Meaning::JobEnv),
    known(&["x"], 1, Meaning::Variable),
    known(&["genvlist", "envlist"], 1, Meaning::Variables),
    known(&["ppn", "perhost", "N", "npernode"], 1, Meaning::PerHost),
    known(&["pernode"], 0, Meaning::OnePerHost),
    known(&["iface"], 1, Meaning::Interface),
    known(&["oversubscribe"], 0, Meaning::Oversubscribe),
    known(&["bind-to", "binding"], 1, Meaning::Bind),
    known(&["bind-to-core"], 0, Meaning::BindTo("core")),
    known(&["bind-to-socket"], 0, Meaning::BindTo("socket")),
    known(&["bind-to-none"], 0, Meaning::BindTo("none")),
    known(&["map-by", "rank-by"], 1, Meaning::Map),
    known(&["launcher", "bootstrap"], 1, Meaning::Launcher),
    known(&["s", "stdin"], 1, Meaning::Input),
    known(&["l", "prepend-rank", "tag-output"], 0, Meaning::Run("--tag")),
    known(&["timeout"], 1, Meaning::Run("--timeout")),
    known(&["device"], 1, Meaning::Run("--device")),
    known(&["output-filename"], 1, Meaning::Run("--output")),
    known(&["disable-auto-cleanup", "enable-recovery"], 0, Meaning::Run("--keep-going")),
    // Reports about what does not happen here, or that nobody needs.
    known(
        &["q", "quiet", "v", "verbose", "report-bindings", "display-map", "display-allocation"],
        0,
        Meaning::Nothing,
    ),
    known(&["print-all-exitcodes", "disable-hostname-propagation"], 0, Meaning::Nothing),
    // All variables reach programs of this host, and processes may always outnumber cores.
    known(
        &["genvall", "envall", "allow-run-as-root", "use-hwthread-cpus", "nooversubscribe"],
        0,
        Meaning::Nothing,
    ),
    // Modules, and places, of the other library.
    known(&["mca", "gmca", "omca", "prtemca", "pmixmca"], 2, Meaning::Nothing),
    known(&["am", "rmk", "prefix", "topolib", "demux", "usize", "display"], 1, Meaning::Nothing),
    known(
        &["genvnone", "envnone"],
        0,
        Meaning::Without(
            "programs of this host have all variables of mpiexec, those of other hosts have none",
        ),
    ),
    known(
        &["outfile-pattern", "errfile-pattern"],
        1,
        Meaning::Refused("`tautline run --output DIR` writes the output of each rank to a file"),
    ),
    known(
        &["launcher-exec", "bootstrap-exec"],
        1,
        Meaning::Refused("`tautline run --ssh COMMAND` names the command that connects to a host"),
    ),
    known(&["configfile", "app"], 1, Meaning::File),
    known(&["npersocket"], 1, Meaning::Refused("-ppn N says how many processes a host takes")),
];

/// An option of a command line with its values.
pub struct Given {
    /// As it was typed, without a value.
    pub name: String,
    pub meaning: Meaning,
    pub values: Vec<OsString>,
}

/// What `name`, with one hyphen or two, is.
fn find(name: &str) -> Option<&'static Known> {
    let bare = name.strip_prefix("--").or_else(|| name.strip_prefix('-'))?;
    OPTIONS.iter().find(|option| option.names.contains(&bare))
}

/// Takes the option `word` apart, with the values that follow it in `rest` or, after `=`, in itself.
pub fn take<'a>(word: &OsStr, rest: &mut impl Iterator<Item = &'a OsString>) -> Result<Given> {
    let (name, own) = match split(word) {
        Some((name, value)) if find(&name.to_string_lossy()).is_some_and(|option| option.values > 0) => {
            (name, Some(value))
        }
        _ => (word.to_owned(), None),
    };
    let name = name.to_string_lossy().into_owned();
    let Some(option) = find(&name) else {
        bail!(
            "mpiexec does not know the option {name}\n`mpiexec -help` shows those that it knows; `tautline run` has more"
        );
    };
    let mut values: Vec<OsString> = own.into_iter().collect();
    // A variable and its value can be one word.
    let is_pair =
        |value: &OsString| matches!(option.meaning, Meaning::Env | Meaning::JobEnv) && split(value).is_some();
    while values.len() < option.values {
        let Some(value) = rest.next() else {
            bail!("{name} needs {}", if option.values == 1 { "a value" } else { "two values" });
        };
        match split(value) {
            Some((variable, value_of)) if values.is_empty() && is_pair(value) => {
                values.extend([variable, value_of]);
            }
            _ => values.push(value.clone()),
        }
    }
    if let Meaning::Refused(advice) = option.meaning {
        bail!("mpiexec cannot do what {name} says\n{advice}");
    }
    Ok(Given { name, meaning: option.meaning, values })
}

/// The parts before and after the first `=`.
fn split(word: &OsStr) -> Option<(OsString, OsString)> {
    let bytes = word.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
    Some((OsString::from_vec(bytes[..at].to_vec()), OsString::from_vec(bytes[at + 1..].to_vec())))
}

/// The words of a line, of which quotes keep some together.
pub fn words_of(line: &str) -> Result<Vec<OsString>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for char in line.chars() {
        match quote {
            Some(end) if char == end => quote = None,
            None if char == '\'' || char == '"' => {
                word.get_or_insert_default();
                quote = Some(char);
            }
            None if char.is_whitespace() => words.extend(word.take().map(OsString::from)),
            _ => word.get_or_insert_default().push(char),
        }
    }
    if quote.is_some() {
        bail!("a quote has no end in the line {line}");
    }
    words.extend(word.map(OsString::from));
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_one_meaning() {
        let mut names: Vec<&str> = OPTIONS.iter().flat_map(|option| option.names).copied().collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn values_follow_a_name_or_an_equals_sign() {
        let taken = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let mut rest = words[1..].iter();
            let given = take(&words[0], &mut rest).map_err(|error| error.to_string())?;
            let values: Vec<_> =
                given.values.iter().map(|value| value.to_string_lossy().into_owned()).collect();
            Ok::<_, String>((given.meaning, values.join(" "), rest.len()))
        };
        assert_eq!(taken("-n 4 ./a"), Ok((Meaning::Count, "4".into(), 1)));
        assert_eq!(taken("--np=4 ./a"), Ok((Meaning::Count, "4".into(), 1)));
        assert_eq!(taken("--mca btl self ./a"), Ok((Meaning::Nothing, "btl self".into(), 1)));
        assert_eq!(taken("-x A=1 ./a"), Ok((Meaning::Variable, "A=1".into(), 1)));
        assert_eq!(taken("-x=A=1 ./a"), Ok((Meaning::Variable, "A=1".into(), 1)));
        assert_eq!(taken("-genv A 1 ./a"), Ok((Meaning::JobEnv, "A 1".into(), 1)));
        assert_eq!(taken("-genv A=1 ./a"), Ok((Meaning::JobEnv, "A 1".into(), 1)));
        for (line, word) in [
            ("-n", "-n needs a value"),
            ("-mca btl", "-mca needs two values"),
            ("-nonsense=1", "the option -nonsense=1"),
            ("--quiet=1", "the option --quiet=1"),
            ("-outfile-pattern x", "tautline run --output"),
        ] {
            assert!(taken(line).unwrap_err().contains(word), "{line}");
        }
    }
}
