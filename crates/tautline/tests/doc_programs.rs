//! Every program in the documentation, compiled as it stands and run many times as a job of real processes.
//!
//! Programs are the Rust blocks with a `fn main` in README.md, ARCHITECTURE.md, docs/ and the documentation
//! of this crate. A line `<!-- ranks: 3 -->` in front of a block gives the number of its ranks; without it
//! there are two.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::launch::Launcher;
use tautline::DeviceName;

/// Runs of each program on each device.
const RUNS: usize = 50;
/// A run that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// A program of the documentation.
struct Program {
    /// File and line.
    place: String,
    text: String,
    ranks: u32,
}

/// The output of each rank.
type Output = Vec<Vec<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

/// All files below a folder that end in `extension`, in order.
fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|end| end == extension) {
            found.push(path);
        }
    }
}

/// The lines of a file's documentation, each with its number.
fn documentation(path: &Path) -> Vec<(usize, String)> {
    let text = std::fs::read_to_string(path).unwrap();
    let is_code = path.extension().is_some_and(|end| end == "rs");
    let document = |line: &str| {
        let line = line.trim_start();
        let text = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))?;
        Some(text.strip_prefix(' ').unwrap_or(text).to_owned())
    };
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    if !is_code {
        return lines.map(|(at, line)| (at, line.to_owned())).collect();
    }
    lines.filter_map(|(at, line)| Some((at, document(line)?))).collect()
}

/// The programs of one file. In Markdown every Rust block must be one; in code, others are doc tests.
fn programs(path: &Path) -> Vec<Program> {
    let name = path.strip_prefix(root()).unwrap().display().to_string();
    let is_code = path.extension().is_some_and(|end| end == "rs");
    let (mut found, mut ranks) = (Vec::new(), 2);
    let mut block: Option<(usize, bool, String)> = None;
    for (at, line) in documentation(path) {
        if let Some(count) = line.trim().strip_prefix("<!-- ranks: ") {
            ranks = count.trim_end_matches("-->").trim().parse().unwrap();
        }
        let Some(info) = line.trim_start().strip_prefix("```") else {
            if let Some((_, _, text)) = &mut block {
                // Lines that rustdoc hides are part of the program.
                let shown =
                    if is_code && line == "#" { "" } else { line.strip_prefix("# ").unwrap_or(&line) };
                *text += &format!("{shown}\n");
            }
            continue;
        };
        match block.take() {
            None => {
                let first = info.split([',', ' ']).next().unwrap_or_default();
                let rust = first == "rust" || is_code && ["", "no_run"].contains(&first);
                block = Some((at, rust, String::new()));
            }
            Some((at, true, text)) if text.contains("fn main()") => {
                found.push(Program { place: format!("{name}:{at}"), text, ranks });
                ranks = 2;
            }
            Some((at, rust, _)) => assert!(!rust || is_code, "{name}:{at}: the block has no `fn main`"),
        }
    }
    assert!(block.is_none(), "{name}: a block has no end");
    found
}

/// All programs of the documentation.
fn all_programs() -> Vec<Program> {
    let root = root();
    let mut paths = vec![root.join("README.md"), root.join("ARCHITECTURE.md")];
    files(&root.join("docs"), "md", &mut paths);
    files(&root.join("crates/tautline/src"), "rs", &mut paths);
    paths.iter().flat_map(|path| programs(path)).collect()
}

/// Where this test and the libraries that it uses are.
fn deps() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// The compiled libraries of a name beside this test, the newest first: cargo keeps one for each set of
/// features.
fn libraries(deps: &Path, name: &str) -> Vec<PathBuf> {
    let start = format!("lib{name}-");
    let is_it = |path: &PathBuf| {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        file.starts_with(&start) && file.ends_with(".rlib")
    };
    let entries = std::fs::read_dir(deps).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = entries.filter(is_it).collect();
    found.sort_by_key(|path| std::cmp::Reverse(path.metadata().unwrap().modified().unwrap()));
    found
}

/// The newest library of this package that was built with tokio, and its dependencies: its metadata names
/// their files.
fn linked(deps: &Path) -> BTreeMap<&'static str, PathBuf> {
    for library in libraries(deps, "tautline") {
        let bytes = std::fs::read(&library).unwrap();
        let names = |path: &PathBuf| {
            let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
            let end = &stem.as_bytes()[stem.rfind('-').unwrap()..];
            bytes.windows(end.len()).any(|window| window == end)
        };
        let of = |name: &'static str| Some((name, libraries(deps, name).into_iter().find(names)?));
        if let (Some(tokio), Some(zerocopy)) = (of("tokio"), of("zerocopy")) {
            return BTreeMap::from([("tautline", library.clone()), tokio, zerocopy]);
        }
    }
    panic!("no libtautline-*.rlib in {} was built with tokio", deps.display())
}

/// Compiles a program against the library that this test uses, as rustdoc does with doc tests: cargo would
/// build all dependencies again.
fn compile(program: &Program, folder: &Path, number: usize, linked: &BTreeMap<&str, PathBuf>) -> PathBuf {
    let deps = deps();
    let source = folder.join(format!("program{number}.rs"));
    let binary = folder.join(format!("program{number}"));
    std::fs::write(&source, &program.text).unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.current_dir(root()).args(["--edition", "2024", "--crate-type", "bin", "-D", "warnings", "-o"]);
    command.arg(&binary).arg("-L").arg(format!("dependency={}", deps.display()));
    let mut externs = vec!["tautline"];
    externs.extend(["tokio", "zerocopy"].iter().filter(|name| program.text.contains(&format!("{name}::"))));
    for name in externs {
        command.arg("--extern").arg(format!("{name}={}", linked[name].display()));
    }
    command.args(std::env::var("RUSTFLAGS").unwrap_or_default().split_whitespace());
    let output = command.arg(&source).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} does not compile:\n{said}", program.place);
    binary
}

/// Runs a program once; its output, or what went wrong.
fn run(program: &Program, binary: &Path, device: DeviceName) -> Result<Output, String> {
    let launcher = Launcher::over(device, program.ranks as usize);
    let start = |rank| launcher.start(rank, Command::new(binary));
    let mut members: Vec<_> = (0..program.ranks).map(start).collect();
    let ends: Vec<_> = members.iter_mut().map(|member| member.finish(LIMIT)).collect();
    if ends.iter().all(|(code, _)| *code == Some(0)) {
        return Ok(ends.into_iter().map(|(_, lines)| lines).collect());
    }
    Err(format!("{} over {device:?}: {ends:?}", program.place))
}

/// Every program ends well, every time, on every device, and writes the same each time.
#[test]
fn programs_of_the_documentation() {
    let programs = all_programs();
    for place in ["README.md", "src/lib.rs", "src/memory/mod.rs", "src/queue.rs", "src/rpc/mod.rs"] {
        assert!(programs.iter().any(|program| program.place.contains(place)), "no program in {place}");
    }
    let folder = std::env::current_exe().unwrap().with_extension("programs");
    std::fs::create_dir_all(&folder).unwrap();
    let linked = linked(&deps());
    let binaries: Vec<_> =
        programs.iter().enumerate().map(|(at, program)| compile(program, &folder, at, &linked)).collect();
    let jobs: Vec<_> = (0..RUNS)
        .flat_map(|_| [DeviceName::Shm, DeviceName::Udp])
        .flat_map(|device| (0..programs.len()).map(move |at| (at, device)))
        .collect();
    let next = AtomicUsize::new(0);
    let (outputs, failures) = (Mutex::new(BTreeMap::<usize, Output>::new()), Mutex::new(Vec::new()));
    // Most of a run is spent waiting for the network.
    let workers = 2 * std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 16);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((at, device)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let problem = match run(&programs[*at], &binaries[*at], *device) {
                        Ok(output) => {
                            let mut outputs = outputs.lock().unwrap();
                            let first = outputs.entry(*at).or_insert_with(|| output.clone());
                            let differs = *first != output;
                            differs.then(|| format!("{}: {first:?}, then {output:?}", programs[*at].place))
                        }
                        Err(problem) => Some(problem),
                    };
                    failures.lock().unwrap().extend(problem);
                }
            });
        }
    });
    std::fs::remove_dir_all(&folder).unwrap();
    let failures = failures.into_inner().unwrap();
    let first = failures.iter().take(10).cloned().collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{} of {} runs failed:\n{first}", failures.len(), jobs.len());
    for (at, output) in outputs.into_inner().unwrap() {
        println!("{} with {} ranks: {output:?}", programs[at].place, programs[at].ranks);
    }
}
