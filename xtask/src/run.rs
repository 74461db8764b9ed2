//! Running other programs: where the tree is, which programs there are, how a command is shown and bounded.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The root of the source tree: the one that cargo runs this for, else the one that it was built from.
pub fn root() -> PathBuf {
    // Two clones that share a target folder share this program, so the one it was built from is only second best.
    let running_for = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let mut folder = running_for.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    folder.pop();
    folder
}

/// Where cargo puts what it builds.
pub fn target_dir() -> PathBuf {
    // Commands start at the root, so a relative folder counts from there; `join` leaves an absolute one alone.
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Free room of the disk that a folder is on, or will be on once it is made; nothing if that cannot be found out.
pub fn free_mib(folder: &Path) -> Option<u64> {
    let there = folder.ancestors().find(|folder| folder.exists())?;
    let output = Command::new("df").args(["--output=avail", "--block-size=1M"]).arg(there).output().ok()?;
    String::from_utf8(output.stdout).ok()?.lines().nth(1)?.trim().parse().ok()
}

/// The place of `program`; the administrator's folders count even when PATH leaves them out.
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

/// `line` split at spaces, run from the root without standard input; `CARGO` is this very cargo.
pub fn command(line: &str) -> Command {
    let mut words = line.split_ascii_whitespace();
    let program = words.next().unwrap_or_default();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(if program == "cargo" { cargo } else { program.into() });
    command.args(words).current_dir(root()).stdin(Stdio::null());
    command
}

/// Run to the end with output passed through; a bad exit is an error that names the command.
pub fn check(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("could not start `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", shown(command));
    }
    Ok(())
}

/// Like [`check`], and hands back standard output, which is also passed through.
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

/// The command as one would type it, with the variables it sets.
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
