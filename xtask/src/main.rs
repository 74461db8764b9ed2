//! Project chores: the checks that keep the tree honest, and the one command that runs every test.
//!
//! Nothing here is part of the product; no crate depends on it.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod icount;
mod run;
mod setup;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::{Result, bail};

const HELP: &str = "\
Project chores of Tautline.

  cargo xtask tidy                    check the house rules: dependency direction, lengths, dead files, rule numbers
  cargo xtask test                    everything a change must pass; what .ci/run calls
  cargo xtask test --quick            the inner loop: format, clippy, tidy, tests
  cargo xtask setup                   list the optional Debian packages, who needs each, and the command to install them
  cargo xtask setup --yes             install the missing ones (as root)
  cargo xtask icount                  count instructions per frame and compare with xtask/golden/icount.txt
  cargo xtask icount --bless          accept today's counts
  cargo xtask icount --against DIR    count instructions per frame here and in another checkout, and compare

Replay a failing simulation seed with the command that the failure printed.
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
        ["tidy"] => tidy::run(&run::root())?,
        ["test"] => test::run(test::Extent::Full)?,
        ["test", "--quick"] => test::run(test::Extent::Quick)?,
        ["setup"] => setup::list(),
        ["setup", "--yes"] => setup::install_all()?,
        ["icount"] => icount::check()?.into_iter().for_each(|why| println!("{why}")),
        ["icount", "--bless"] => icount::bless()?,
        ["icount", "--against", folder] => icount::against(folder)?,
        other => bail!("unknown command `{}`; `cargo xtask help` shows what there is", other.join(" ")),
    }
    Ok(())
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
