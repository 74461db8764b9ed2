//! The command line. Every subcommand's options are defined beside its code.

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;

use crate::{bench, doctor, mpi, run, sim};

const OVERVIEW: &str = "\
First steps:
  tautline doctor                         what works on this machine, and how to enable the rest
  tautline run -n 2 ./hello               two processes of one job on this host
  tautline bench --quick                  how fast it is here, beside pipes, TCP and raw UDP
  tautline sim --seeds 100                a hundred worlds full of faults; no promise may be broken

Each command explains itself by example: tautline help run";

#[derive(Debug, Parser)]
#[command(
    name = "tautline",
    version,
    about = "User-level cluster messaging: start jobs, measure, examine, simulate.",
    after_help = OVERVIEW,
    subcommand_required = false
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start the processes of one job, on this host or, through ssh, on many
    Run(Box<run::RunArgs>),
    /// Measure messages on this machine, beside what they are compared with
    Bench(bench::BenchArgs),
    /// Say which devices work here, and why the others do not
    Doctor(doctor::DoctorArgs),
    /// Run simulated worlds full of faults, or show one of them again
    Sim(sim::SimArgs),
    /// Install MPI for programs and build systems, or say how to find it
    Mpi(mpi::MpiArgs),
    /// Compile a C program that uses MPI
    #[command(disable_help_flag = true)]
    Mpicc(mpi::RawArgs),
    /// Compile a C++ program that uses MPI
    #[command(disable_help_flag = true)]
    Mpicxx(mpi::RawArgs),
    /// Compile a Fortran program that uses MPI
    #[command(disable_help_flag = true)]
    Mpifort(mpi::RawArgs),
    /// Start the processes of an MPI program, with the options of mpiexec
    #[command(disable_help_flag = true)]
    Mpiexec(mpi::RawArgs),
    /// Become a program of a job
    #[command(name = "__child", hide = true)]
    Child(run::ChildArgs),
    /// Start and watch the processes of this host for a launcher on another
    #[command(name = "__agent", hide = true)]
    Agent(run::AgentArgs),
    /// One of the two processes of a measurement
    #[command(name = "__side", hide = true)]
    Side(bench::SideArgs),
    /// One of the ranks of a measurement
    #[command(name = "__rank", hide = true)]
    Rank(bench::RankArgs),
}

/// Reads the command line and runs the subcommand.
pub fn main() -> Result<ExitCode> {
    // Silent by default: RUST_LOG=info shows which devices were chosen, and why.
    let level = std::env::var("RUST_LOG").ok().and_then(|level| level.parse().ok());
    tracing_subscriber::fmt()
        .with_max_level(level.unwrap_or(LevelFilter::OFF))
        .with_writer(std::io::stderr)
        .init();
    match Cli::parse().command {
        None => {
            Cli::command().print_help()?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Run(args)) => run::run(*args),
        Some(Command::Bench(args)) => bench::bench(&args),
        Some(Command::Doctor(args)) => doctor::doctor(&args),
        Some(Command::Sim(args)) => sim::sim(&args),
        Some(Command::Mpi(args)) => mpi::mpi(args),
        Some(Command::Mpicc(raw)) => mpi::compile(mpi::Language::C, raw.args),
        Some(Command::Mpicxx(raw)) => mpi::compile(mpi::Language::Cxx, raw.args),
        Some(Command::Mpifort(raw)) => mpi::compile(mpi::Language::Fortran, raw.args),
        Some(Command::Mpiexec(raw)) => mpi::mpiexec(&raw.args),
        Some(Command::Child(args)) => run::become_program(&args),
        Some(Command::Agent(args)) => run::agent(&args),
        Some(Command::Side(args)) => bench::side(&args),
        Some(Command::Rank(args)) => bench::rank(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_valid() {
        Cli::command().debug_assert();
    }
}
