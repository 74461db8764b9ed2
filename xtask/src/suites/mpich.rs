//! MPICH's own tests, from Debian's source package. They are built for the ABI of MPICH with its compiler, so
//! the same programs run with our library and with that of MPICH.
//!
//! The list in the tree has the tests that pass, a line each; it may only grow. A listed test that fails is
//! an error; tests that pass and are not listed are reported.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::{Place, call, read};

const LIST: &str = "crates/mpi/suites/mpich.txt";

/// The folders of tests whose subject we implement.
const FOLDERS: [&str; 10] =
    ["attr", "basic", "coll", "comm", "datatype", "errhan", "group", "info", "init", "pt2pt"];

/// The folder `basic` has no list of its own.
const BASIC: &str = "patterns 4\nself 1\nsendrecv 2\nsimple 2\nsrtest 2\nwtime 1\nadapt 2\n";

/// Tests run with at most this many ranks, unless they need more.
const RANKS_MAX: u32 = 4;
const NEED_MORE: [&str; 9] =
    ["grouptest", "ic2", "coll2", "gatherv", "coll6", "coll7", "nbcoll2", "p_gatherv", "cmsplit2"];

/// How long a listed test may take, and one that is not listed: some of those never end.
const SECONDS: [&str; 2] = ["120", "20"];

/// How a test shows that it passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// It says so, and ends with 0.
    Says,
    /// It ends with 0.
    Succeeds,
    /// It ends with another code.
    Fails,
}

/// A test with a number of ranks and arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Test {
    folder: String,
    name: String,
    ranks: u32,
    args: Vec<String>,
    verdict: Verdict,
}

impl Test {
    /// The tests of a folder's list. Lines that differ only in the environment are one test: the variables
    /// are those of MPICH.
    fn parse(folder: &str, text: &str) -> Result<Vec<Test>> {
        let mut tests: Vec<Test> = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, ranks, rest @ ..] = &words[..] else { bail!("`{line}` has no number of ranks") };
            let ranks: u32 = ranks.parse().with_context(|| format!("the number of ranks in `{line}`"))?;
            let expects_failure = rest.iter().any(|word| word.starts_with("resultTest="));
            let test = Test {
                folder: folder.to_owned(),
                name: (*name).to_owned(),
                ranks: if NEED_MORE.contains(name) { ranks } else { ranks.min(RANKS_MAX) },
                args: rest.iter().filter_map(|word| word.strip_prefix("arg=")).map(str::to_owned).collect(),
                verdict: match folder {
                    _ if expects_failure => Verdict::Fails,
                    "basic" => Verdict::Succeeds,
                    _ => Verdict::Says,
                },
            };
            if !tests.contains(&test) {
                tests.push(test);
            }
        }
        Ok(tests)
    }

    /// As it stands in the list.
    fn line(&self) -> String {
        let mut line = format!("{}/{} {}", self.folder, self.name, self.ranks);
        for arg in &self.args {
            line.push(' ');
            line.push_str(arg);
        }
        line
    }

    /// Runs it; whether it passed, and what it wrote.
    fn run(&self, tests: &Path, mpiexec: &Path, seconds: &str) -> Result<(bool, String)> {
        let mut command = Command::new(mpiexec);
        command.args(["-timeout", seconds, "-n", &self.ranks.to_string(), &format!("./{}", self.name)]);
        command.args(&self.args).current_dir(tests.join(&self.folder)).stdin(Stdio::null());
        let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        let says_so = || text.lines().any(|line| line.trim().eq_ignore_ascii_case("no errors"));
        let passed = match self.verdict {
            Verdict::Says => output.status.success() && says_so(),
            Verdict::Succeeds => output.status.success(),
            // 124 says that the time was over.
            Verdict::Fails => !matches!(output.status.code(), Some(0 | 124) | None),
        };
        Ok((passed, text.into_owned()))
    }
}

/// The source of Debian's package: where the machine takes its packages from, it also takes sources.
fn fetch(folder: &Path) -> Result<PathBuf> {
    let source = folder.join("mpich-source");
    let tests = source.join("test/mpi");
    if tests.join("configure").is_file() {
        return Ok(tests);
    }
    let lists = folder.join("apt");
    for part in ["lists/partial", "cache/archives/partial", "sources"] {
        std::fs::create_dir_all(lists.join(part))?;
    }
    for (name, from) in
        [("debian.sources", "/etc/apt/sources.list.d/debian.sources"), ("a.list", "/etc/apt/sources.list")]
    {
        if let Ok(text) = std::fs::read_to_string(from) {
            let text = format!("\n{text}").replace("Types: deb\n", "Types: deb-src\n");
            let text = text.replace("\ndeb ", "\ndeb-src ");
            std::fs::write(lists.join("sources").join(name), text)?;
        }
    }
    let apt = || {
        let mut apt = Command::new("apt-get");
        let option = |name: &str, path: &Path| format!("Dir::{name}={}", path.display());
        apt.args(["-q", "-o", "Dir::Etc::sourcelist=/dev/null"]);
        apt.args(["-o", &option("Etc::sourceparts", &lists.join("sources"))]);
        apt.args(["-o", &option("State::lists", &lists.join("lists"))]);
        apt.args(["-o", &option("Cache", &lists.join("cache"))]);
        apt.current_dir(folder);
        apt
    };
    call(apt().arg("update"))?;
    call(apt().args(["source", "--download-only", "mpich"]))?;
    let archive = std::fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path())).find(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("mpich_") && name.contains(".orig.tar")
    });
    let archive = archive.context("apt-get has fetched no source of mpich")?;
    std::fs::create_dir_all(&source)?;
    call(Command::new("tar").arg("xf").arg(archive).arg("--strip-components=1").arg("-C").arg(&source))?;
    Ok(tests)
}

/// Builds the tests with MPICH's compiler.
fn build(source: &Path, folder: &Path) -> Result<()> {
    let done = folder.join("built");
    if done.is_file() {
        return Ok(());
    }
    if !Command::new("mpicc.mpich").arg("-show").output().is_ok_and(|output| output.status.success()) {
        bail!("mpicc.mpich is missing: `apt-get install libmpich-dev` installs it");
    }
    std::fs::create_dir_all(folder)?;
    let options =
        ["--disable-fortran", "--disable-cxx", "--with-mpi=/usr", "CC=mpicc.mpich", "MPICC=mpicc.mpich"];
    call(Command::new(source.join("configure")).arg("-q").args(options).current_dir(folder))?;
    for part in ["util", "dtpools"] {
        call(Command::new("make").args(["-s", "-C", part]).current_dir(folder))?;
    }
    for part in FOLDERS {
        // Some tests need what this MPI does not have; those are not built.
        let _ = Command::new("make").args(["-s", "-k", "-j2", "-C", part]).current_dir(folder).status()?;
    }
    Ok(std::fs::write(done, "")?)
}

fn listed(text: &str) -> BTreeSet<String> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

/// Fetches, builds and runs the tests.
pub fn run(place: &Place) -> Result<String> {
    let source = fetch(&place.folder)?;
    let tests = place.folder.join("mpich-tests");
    build(&source, &tests)?;
    let list = listed(&read(&place.root.join(LIST))?);
    let mpiexec = place.prefix.join("bin/mpiexec");
    let (mut passed, mut new, mut not_built) = (BTreeSet::new(), Vec::new(), 0);
    for folder in FOLDERS {
        let lists = [&tests, &source].map(|base| base.join(folder).join("testlist"));
        let text = match lists.iter().find(|path| path.is_file()) {
            Some(path) => read(path)?,
            None => BASIC.to_owned(),
        };
        for test in Test::parse(folder, &text)? {
            if !tests.join(folder).join(&test.name).is_file() {
                not_built += 1;
                continue;
            }
            let line = test.line();
            let known = list.contains(&line);
            let (ok, output) = test.run(&tests, &mpiexec, SECONDS[usize::from(!known)])?;
            match (ok, known) {
                (true, known) => {
                    if !known {
                        new.push(line.clone());
                    }
                    passed.insert(line);
                }
                (false, true) => println!("mpich: {line} failed:\n{output}"),
                (false, false) => println!("mpich: {line} fails, and is not listed"),
            }
        }
    }
    println!("mpich: {} tests pass, {not_built} are not built", passed.len());
    new.iter().for_each(|line| println!("mpich: add to {LIST}: {line}"));
    let missing: Vec<&String> = list.iter().filter(|line| !passed.contains(*line)).collect();
    if !missing.is_empty() {
        bail!("{} of {} listed tests do not pass: {missing:?}", missing.len(), list.len());
    }
    Ok(format!("{} tests pass, {} are listed", passed.len(), list.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_mpich_is_read() {
        let text = "# a comment\nallred 7 arg=-count=10\ncoll2 5\nallred 4 arg=-count=10 env=A=b\n\
                    errfatal 1 resultTest=TestErrFatal\n";
        let tests = Test::parse("coll", text).unwrap();
        let lines: Vec<String> = tests.iter().map(Test::line).collect();
        assert_eq!(lines, ["coll/allred 4 -count=10", "coll/coll2 5", "coll/errfatal 1"]);
        assert_eq!(tests[2].verdict, Verdict::Fails);
        assert!(Test::parse("coll", "a").is_err());
    }

    #[test]
    fn the_list_of_passing_tests_only_grows() {
        let list = listed(&read(&crate::run::root().join(LIST)).unwrap());
        assert!(list.len() >= 300, "{} tests are listed", list.len());
        assert!(list.iter().all(|line| FOLDERS.iter().any(|folder| line.starts_with(folder))));
    }
}
