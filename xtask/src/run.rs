//! Runs other programs, and finds them, the source tree and the target folder.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

/// The root of the source tree.
pub fn root() -> PathBuf {
    // Clones that share a target folder share this program. The variable is of the clone that cargo runs in;
    // the constant is of the clone that this program was built in.
    let running_for = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let mut folder = running_for.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    folder.pop();
    folder
}

/// Where cargo puts what it builds.
pub fn target_dir() -> PathBuf {
    // Commands run in the root, so a relative folder is relative to it. `join` returns an absolute one
    // unchanged.
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// A name for a file in the target folder that no other call returns, in this process or another.
pub fn unique_name(what: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("{what}-{}-{}.txt", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// The free space of the disk that a folder is on, or will be on; `None` if it is unknown.
pub fn free_mib(folder: &Path) -> Option<u64> {
    let there = folder.ancestors().find(|folder| folder.exists())?;
    let output = Command::new("df").args(["--output=avail", "--block-size=1M"]).arg(there).output().ok()?;
    String::from_utf8(output.stdout).ok()?.lines().nth(1)?.trim().parse().ok()
}

/// The path of `program`. `/usr/sbin` and `/sbin` are searched even if PATH lacks them.
pub fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Whether this process may install packages.
pub fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// The command that `line`, split at spaces, stands for. It runs in the root, without standard input, and
/// with the cargo that started this program.
pub fn command(line: &str) -> Command {
    let mut words = line.split_ascii_whitespace();
    let program = words.next().unwrap_or_default();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(if program == "cargo" { cargo } else { program.into() });
    command.args(words).current_dir(root()).stdin(Stdio::null());
    command
}

/// Runs a command with its output passed through. A bad exit status is an error that names the command.
pub fn check(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("could not start `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", shown(command));
    }
    Ok(())
}

/// Like [`check`], and returns standard output, which is passed through too.
pub fn check_and_capture(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("could not start `{}`", shown(command)))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{text}");
    if !output.status.success() {
        bail!("`{}` failed: {}", shown(command), output.status);
    }
    Ok(text)
}

/// The command as typed in a shell, with the variables that it sets.
pub fn shown(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| {
        value.map(|value| format!("{}={:?}", name.to_string_lossy(), value.to_string_lossy()))
    });
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    let words = words.map(|word| word.to_string_lossy().into_owned());
    variables.chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_named_in_the_error() {
        let error = check(&mut command("false --really")).unwrap_err().to_string();
        assert!(error.contains("`false --really` failed"), "{error}");
        check(&mut command("true")).unwrap();
    }

    #[test]
    fn a_missing_program_is_named_in_the_error() {
        let error = check(&mut command("no-such-program-here")).unwrap_err().to_string();
        assert!(error.contains("could not start `no-such-program-here`"), "{error}");
    }

    #[test]
    fn captured_output_comes_back() {
        assert_eq!(check_and_capture(&mut command("echo two words")).unwrap(), "two words\n");
    }

    #[test]
    fn commands_are_shown_as_typed() {
        let mut shown_command = command("cargo doc --no-deps");
        shown_command.env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(shown(&shown_command), "RUSTDOCFLAGS=\"-D warnings\" cargo doc --no-deps");
    }

    #[test]
    fn programs_are_found_on_the_path() {
        assert!(find_program("sh").is_some());
        assert!(find_program("no-such-program-here").is_none());
    }
}
