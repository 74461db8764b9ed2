//! The `tautline` command: start jobs, measure, examine, simulate.
//!
//! What lives here: one module per subcommand, and `cli` with what they are called by. What does not: anything that a
//! program would want to call; that is the `tautline` crate.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod cli;
mod doctor;
mod run;
mod sim;
mod sys;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::main() {
        Ok(code) => code,
        Err(error) => {
            complain(&error);
            ExitCode::from(2)
        }
    }
}

/// Says in one line what was wrong, and in the next what to do.
fn complain(error: &anyhow::Error) {
    let text = format!("{error:#}");
    let mut lines = text.lines();
    eprintln!("tautline: {}", lines.next().unwrap_or("failed"));
    for line in lines {
        eprintln!("  {line}");
    }
}
