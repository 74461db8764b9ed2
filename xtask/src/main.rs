//! Commands for developers: the checks of the source tree, and the command that runs every test.
//!
//! No other crate depends on this one.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod ahead;
mod features;
mod icount;
mod mpi;
mod programs;
mod run;
mod setup;
mod skips;
mod soak;
mod suites;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::{Result, bail};

const HELP: &str = "\
Commands for developers of Tautline.

  cargo xtask tidy                    check the house rules: dependencies, files, comments, rule numbers
  cargo xtask tidy --all              the same, and list the exceptions in xtask/tidy-ratchet.txt
  cargo xtask tidy --shrink           lower the numbers in that file that are too high
  cargo xtask test                    run everything that a change must pass; .ci/run calls it
  cargo xtask test --quick            run format, clippy, tidy and tests only
  cargo xtask attack [ATTACK…]        attack running jobs: hostile datagrams and frames, kills, stops, shortages
  cargo xtask attack --long           the same with millions of datagrams and thousands of kills and stops
  cargo xtask attack --help           list the attacks and their sizes
  cargo xtask soak                    long runs of simulation, kills, forgeries, fuzzing; recorded in docs/SOAK.md
  cargo xtask soak --help             list its options and parts
  cargo xtask suites                  install programs and tests of other MPI projects, run them with our MPI
  cargo xtask suites --only A,B       run only these: kernels, netpipe, imb, scalapack, mpi4py, mpich, abi,
                                      launchers, or speed, which compares with MPICH and Open MPI
  cargo xtask setup                   list the optional Debian packages and what needs them
  cargo xtask setup --yes             install the missing ones (as root)
  cargo xtask icount                  count instructions per frame and compare with xtask/golden/icount.txt
  cargo xtask icount --bless          write the present counts to that file
  cargo xtask mpi                     write the header, exports, constants and page that follow from crates/mpi/table
  cargo xtask icount --against DIR    count instructions per frame here and in another checkout, and compare

A failing simulation seed prints the command that replays it.
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match dispatch(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(args: &[&str]) -> Result<()> {
    match args {
        [] | ["help" | "--help" | "-h"] => print!("{HELP}"),
        ["tidy"] => tidy::run(&run::root(), tidy::Show::New)?,
        ["tidy", "--shrink"] => tidy::shrink(&run::root())?,
        ["tidy", "--all"] => tidy::run(&run::root(), tidy::Show::All)?,
        ["test"] => test::run(test::Extent::Full)?,
        ["test", "--quick"] => test::run(test::Extent::Quick)?,
        ["attack", rest @ ..] => attack(rest)?,
        ["soak", rest @ ..] => soak::command(rest)?,
        [_, "--help" | "-h"] => print!("{HELP}"),
        ["suites"] => suites::run(&[])?,
        ["suites", "--only", names] => suites::run(&names.split(',').collect::<Vec<_>>())?,
        ["setup"] => setup::list(),
        ["setup", "--yes"] => setup::install_all()?,
        ["mpi"] => mpi::write(&run::root())?,
        ["icount"] => icount::check()?.into_iter().for_each(|why| println!("{why}")),
        ["icount", "--bless"] => icount::bless()?,
        ["icount", "--against", folder] => icount::against(folder)?,
        other => bail!("unknown command `{}`; see `cargo xtask help`", other.join(" ")),
    }
    Ok(())
}

/// Builds the attacks and runs them; they print their record on standard output.
fn attack(args: &[&str]) -> Result<()> {
    let mut command = run::command("cargo run --quiet --release -p tautline-attack --");
    run::check(command.args(args))
}

#[cfg(test)]
mod tests {
    use super::dispatch;

    #[test]
    fn an_unknown_command_is_refused_and_points_to_help() {
        for args in [&["tidi"][..], &["test", "--quik"], &["icount", "--bless", "--all"]] {
            let error = dispatch(args).unwrap_err().to_string();
            assert!(error.contains(&args.join(" ")) && error.contains("cargo xtask help"), "{error}");
        }
    }

    #[test]
    fn help_is_shown_for_no_arguments() {
        dispatch(&[]).unwrap();
    }
}
