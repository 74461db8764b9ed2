//! Every `bench` command that README.md and `tautline help bench` show runs as it is written there, with a
//! few messages each; and every option of the command is shown in one of them.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Output;

use common::tautline;

/// What stands in code spans and code blocks of a text in Markdown.
fn code(markdown: &str) -> Vec<String> {
    let mut found = Vec::new();
    let blocks = markdown.split("```");
    for (i, block) in blocks.enumerate() {
        if i % 2 == 1 {
            found.extend(block.lines().map(str::to_owned));
        } else {
            // Spans may continue on the next line.
            found.extend(block.split('`').skip(1).step_by(2).map(|span| span.replace('\n', " ")));
        }
    }
    found
}

/// The arguments after `bench` of a command, if it is one of this program.
fn arguments(line: &str) -> Option<Vec<String>> {
    let words: Vec<_> = line.split_whitespace().take_while(|word| !["#", ">"].contains(word)).collect();
    let at = words.iter().position(|word| *word == "bench")?;
    let ours = words[..at].iter().all(|word| {
        ["sudo", "tautline", "cargo", "run", "--release", "--", "--features", "iceoryx2"].contains(word)
    });
    ours.then(|| words[at + 1..].iter().map(|word| (*word).to_owned()).collect())
}

fn help() -> String {
    let out = tautline().args(["help", "bench"]).output().unwrap();
    String::from_utf8(out.stdout).unwrap()
}

fn commands() -> BTreeSet<Vec<String>> {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let help = help();
    let (_, examples) = help.split_once("Examples:").unwrap();
    let lines = examples.lines().map(str::trim).filter(|line| line.contains("tautline bench"));
    let all = code(&readme).into_iter().chain(lines.map(str::to_owned));
    all.filter_map(|line| arguments(&line)).collect()
}

fn run(args: &[String], folder: &Path) -> Output {
    let mut command = tautline();
    command.arg("bench").args(args).current_dir(folder);
    if !args.iter().any(|arg| arg == "--compare") {
        command.arg("--smoke");
    }
    // What selects nothing measures everything, which other tests do; here the options matter.
    let selecting = ["--only", "--paper", "--compare", "--tune"];
    let selects = |arg: &String| selecting.contains(&arg.as_str());
    if !args.iter().any(selects) {
        command.args(["--only", "latency,rate,8,64"]);
    }
    command.output().unwrap()
}

#[test]
fn every_command_that_is_shown_runs() {
    let folder = common::folder("commands");
    let rows = run(&["--json".into(), "--only".into(), "latency,8,unix".into()], &folder).stdout;
    for file in ["A.json", "B.json", "monday.jsonl", "tuesday.jsonl"] {
        std::fs::write(folder.join(file), &rows).unwrap();
    }
    let commands = commands();
    assert!(commands.len() > 10, "{commands:?}");
    for args in &commands {
        let shown = args.join(" ");
        if let Some(why) = tautline_skips::lacks_namespaces().filter(|_| shown.contains("--netns")) {
            tautline_skips::skip("every_command_that_is_shown_runs", why);
            continue;
        }
        let out = run(args, &folder);
        let said = String::from_utf8_lossy(&out.stderr);
        // The figures of a few messages may beat a limit, which is what --strict is there to say.
        let beaten = args.iter().any(|arg| arg == "--strict") && said.contains("which is no limit then");
        assert!(out.status.success() || beaten, "bench {shown}: {said}");
        assert!(!out.stdout.is_empty(), "bench {shown} prints nothing");
        if let Some(at) = args.iter().position(|arg| arg == "--html") {
            assert!(folder.join(&args[at + 1]).is_file(), "bench {shown}");
        }
    }
}

#[test]
fn every_option_is_shown_in_an_example() {
    let help = help();
    let (options, _) = help.split_once("Examples:").unwrap();
    let names = options.split_whitespace().filter(|word| word.starts_with("--"));
    let names: BTreeSet<_> =
        names.map(|name| name.trim_matches(|c: char| !c.is_ascii_alphabetic() && c != '-')).collect();
    let shown: BTreeSet<_> = commands().into_iter().flatten().collect();
    let hidden: Vec<_> = names.iter().filter(|name| **name != "--help" && !shown.contains(**name)).collect();
    assert!(names.len() > 8 && hidden.is_empty(), "{hidden:?} of {names:?}");
}
