//! The `tautline` command: start jobs, measure, examine, simulate.
//!
//! What lives here: one module per subcommand, and `cli` with the command line. What does not: anything that
//! a program would want to call; that is the `tautline` crate.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

/// Prints a line to standard error. Nobody may read it any more; a job goes on all the same.
macro_rules! report {
    ($($line:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($line)*);
    }};
}

mod bench;
mod cli;
mod doctor;
mod mpi;
mod run;
mod sim;
mod sys;

use std::process::ExitCode;

fn main() -> ExitCode {
    exit_quietly_on_broken_pipe();
    match cli::main() {
        Ok(code) => code,
        Err(error) => {
            print_error(&error);
            ExitCode::from(2)
        }
    }
}

/// The reader of our output may close it (`tautline sim | head -1`): then there is nothing left to do, and
/// nothing to report.
fn exit_quietly_on_broken_pipe() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload().downcast_ref::<String>().map_or("", String::as_str);
        if text.starts_with("failed printing to stdout") {
            if !text.contains("Broken pipe") {
                eprintln!("tautline: {text}");
            }
            std::process::exit(if text.contains("Broken pipe") { 141 } else { 2 });
        }
        usual(panic);
    }));
}

/// Prints in one line what was wrong, and in the next what to do.
fn print_error(error: &anyhow::Error) {
    let text = format!("{error:#}");
    let mut lines = text.lines();
    eprintln!("tautline: {}", lines.next().unwrap_or("failed"));
    for line in lines {
        eprintln!("  {line}");
    }
}
