//! Builds what later stages need while earlier ones run, with the time that those leave: tests wait for
//! timers and processes, and the last crates of a build keep one core busy.
//!
//! Only time is gained. A stage builds for itself what could not be built ahead, and reports why that fails.

use std::process::{Command, Stdio};

/// Lets the command run only when nothing else wants a core, and ends it when this process ends.
const AT_LEISURE: &str = "setpriv --pdeathsig TERM nice -n 19";

/// Runs builds one after the other, without output.
pub fn start(builds: Vec<Command>) {
    // The thread that starts a command must live as long as the command: the kernel sends the signal at the
    // end of that thread.
    std::thread::spawn(move || {
        for build in &builds {
            let _ = at_leisure(build).status();
        }
    });
}

fn at_leisure(build: &Command) -> Command {
    let mut words = AT_LEISURE.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).arg(build.get_program()).args(build.get_args());
    for (name, value) in build.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some(folder) = build.get_current_dir() {
        command.current_dir(folder);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It has the same arguments, folder and variables, and the lowest priority.
    #[test]
    fn a_build_is_what_it_would_have_been() {
        let mut build = Command::new("sh");
        build.args(["-c", "pwd; echo $GIVEN $HOME; nice"]).current_dir("/");
        build.env("GIVEN", "two words").env_remove("HOME");
        let output = at_leisure(&build).stdout(Stdio::piped()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "/\ntwo words\n19\n");
    }
}
