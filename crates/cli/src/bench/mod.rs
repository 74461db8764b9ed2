//! `tautline bench`: two pinned processes exchange messages, beside every system that they are compared with.
//!
//! What lives here: the plan (`plan`), the two processes (`pair`, `side`), our drivers (`taut`, `frames`),
//! the evaluation (`rows`, `targets`) and its presentation (`table`, `html`). What does not: the limits and
//! rivals themselves, which belong to `tautline-baseline` and know nothing of us.

mod calls;
mod case;
mod contenders;
mod content;
mod frames;
mod html;
mod loans;
mod machine;
mod matching;
mod memory;
mod netns;
mod only;
mod pair;
mod plan;
mod rows;
mod server;
mod side;
mod svg;
mod table;
mod targets;
mod taut;
mod tune;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tautline_baseline::cpu::{self, Burner};
use tautline_baseline::rivals::{Namespaces, Placement};

use crate::sys::Signals;
use case::{Case, Other, Shared, System, Work};
use contenders::Contenders;
pub use netns::check as can_make_namespaces;
use only::Only;
use pair::{Interrupted, Pair, Path};
use plan::{Extent, Here, Load};
pub use side::{SideArgs, side};

const EXAMPLES: &str = "\
Examples:
  tautline bench --quick
        Everything, with few samples.
  tautline bench
        Everything, with an HTML report and plots; it takes a while, and shows its progress.
  tautline bench --only latency,64,tautline
        One test, one size, our system, and the systems it is compared with.
  tautline bench --quick --json > rows.jsonl
        One JSON object per row and line.
  tautline bench --only shm
        Shared memory between the two processes, and its limits.
  tautline bench --only rivals,shm
        The installed rivals, beside shared memory.
  tautline bench --only memory
        Memory and the styles above it: words, blocks, queues, calls, and a server against its number of endpoints.
  tautline bench --only calls
        Calls beside tarpc (in a build with the feature tarpc) and plain requests over sockets.
  sudo tautline bench --netns
        The same between two network namespaces, over veth pairs, with bare AF_XDP beside it.

Both processes have a core to themselves. Systems take turns within each round; a figure is the median over
rounds, with the lowest and highest round beside it, and ratios are formed inside a round.

Buffers are rewritten before each send, except by ucx-perftest and in warm rows. Messages are copied to a buffer
of the receiver's (bare AF_XDP leaves them in place), and their number is checked. In ping-pongs and paced tests
of messages, and in the streams of pipes, sockets, bare AF_XDP and rivals, the receiver then reads every byte. In
the streams of Tautline, the raw UDP and two-copy streams, the memory tests and our calls it does not. Loans are
filled before and read after the measured time.

Nothing is ever installed; rivals that are here (Open MPI, MPICH, UCX, ZeroMQ, and in builds with the features of
these names iceoryx2 and tarpc) are measured in the same rounds.";

/// The arguments of `tautline bench`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    /// In less than a minute, with wider spread
    #[arg(long)]
    quick: bool,
    /// Only these tests, systems, sizes (comma-separated, see the examples)
    #[arg(long, value_name = "WORDS", default_value = "", hide_default_value = true)]
    only: Only,
    /// How often everything is measured; by default 5, or 3 with --quick
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// One JSON object per row and line instead of tables
    #[arg(long)]
    json: bool,
    /// File of the HTML report; by default target/tautline-bench.html if there is a directory target, else
    /// tautline-bench.html; with --json only on request
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Between two network namespaces, over veth (root)
    #[arg(long)]
    netns: bool,
    /// Fail if a result beats its own limit by more than 5 %, or if something could not be measured
    #[arg(long)]
    strict: bool,
    /// A few messages each, for tests
    #[arg(long, hide = true)]
    smoke: bool,
}

/// Everything that a report shows.
pub struct Report {
    pub path: Path,
    pub machine: machine::State,
    pub rows: Vec<rows::Row>,
    pub targets: Vec<targets::Target>,
}

/// Measures and reports.
pub fn bench(args: &BenchArgs) -> Result<ExitCode> {
    if let Some(file) = &args.html {
        // Better now than after the measurement.
        std::fs::OpenOptions::new().append(true).create(true).open(file).with_context(|| {
            format!("cannot write {}\ngive another file: --html FILE; the reason was", file.display())
        })?;
    }
    let path = if args.netns { Path::Veth } else { Path::Loopback };
    if args.netns {
        netns::check()?;
    }
    let extent = match (args.smoke, args.quick) {
        (true, _) => Extent::Smoke,
        (_, true) => Extent::Quick,
        _ => Extent::Full,
    };
    let mut signals = Signals::catch()?;
    let report = match measure(args, path, extent, &mut signals) {
        Ok(report) => report,
        Err(error) => {
            let Some(interrupted) = error.downcast_ref::<Interrupted>() else { return Err(error) };
            eprintln!("tautline: {interrupted}");
            return Ok(ExitCode::from((128 + interrupted.0) as u8));
        }
    };
    show(args, &report)?;
    let wrong = report.rows.iter().any(|row| row.wrong_limit || (row.error.is_some() && !row.rival));
    Ok(if args.strict && wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn measure(args: &BenchArgs, path: Path, extent: Extent, signals: &mut Signals) -> Result<Report> {
    let cores = cpu::allowed_cores()?;
    let pinned = [cores[0], *cores.get(1).unwrap_or(&cores[0])];
    if cores.len() < 2 {
        eprintln!(
            "tautline: only one core is available: both processes share it, and polling is useless here"
        );
    }
    let machine = machine::State::examine(extent, pinned, path);
    // A smoke test needs no rivals, unless it names them.
    let rivals = if extent == Extent::Smoke && !args.only.names_rivals() {
        Vec::new()
    } else {
        Other::installed(&machine.found)
    };
    let here = Here { rivals, xdp: path == Path::Veth && machine.no_xdp.is_none() };
    let rounds = args.rounds.map_or(extent.rounds(), usize::from);
    let cells = plan::cells(extent, path == Path::Veth, &args.only, &here);
    if cells.is_empty() {
        if let Some(feature) = args.only.needs_feature() {
            bail!(
                "this build cannot measure {feature}\nbuild one that can: cargo run --release --features {feature} -- bench"
            );
        }
        bail!(
            "--only leaves nothing to measure\ntry one word less; sizes are 0, 8, 64, 256, 1K, 4K, 16K, 64K, 256K, 1M and 4M"
        );
    }
    let results = cells
        .iter()
        .map(|cell| rows::Result { cell: *cell, figures: Vec::new(), errors: Vec::new() })
        .collect();
    let mut bench = Bench {
        path,
        pinned,
        extent,
        pair: None,
        contenders: Contenders::default(),
        results,
        bar: bar((cells.len() * rounds) as u64),
    };
    for round in 0..rounds {
        bench.round(round, signals)?;
    }
    bench.bar.finish_and_clear();
    let results = bench.results;
    let rows = rows::rows(&results, path);
    let targets = targets::judge(&results);
    Ok(Report { path, machine, rows, targets })
}

fn bar(len: u64) -> ProgressBar {
    // Hidden when standard error is no terminal. Drawn only between measurements, so that it disturbs none of
    // them.
    let bar = ProgressBar::with_draw_target(Some(len), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {elapsed_precise} (left: {eta}) {msg}");
    style.map_or(bar.clone(), |style| bar.with_style(style))
}

/// Streams from this size on are limited by the cost of each datagram; a better plan is searched for.
const TUNED_FROM: usize = 4 << 10;

/// A measurement in progress.
struct Bench {
    path: Path,
    pinned: [usize; 2],
    extent: Extent,
    pair: Option<Pair>,
    contenders: Contenders,
    results: Vec<rows::Result>,
    bar: ProgressBar,
}

impl Bench {
    /// Measures every cell once: first all with idle cores, then those with a burner.
    fn round(&mut self, round: usize, signals: &mut Signals) -> Result<()> {
        for load in [Load::Idle, Load::Burner] {
            let mut these: Vec<usize> =
                (0..self.results.len()).filter(|i| self.results[*i].cell.load == load).collect();
            if these.is_empty() {
                continue;
            }
            if round % 2 == 1 {
                // The order is reversed in every other round, so that no cell gains by it.
                these.reverse();
            }
            let burner = match load {
                Load::Idle => None,
                Load::Burner => Some(Burner::start(&self.pinned).context("cannot start a CPU burner")?),
            };
            for index in these {
                self.cell(round, index, signals)?;
            }
            drop(burner);
        }
        Ok(())
    }

    fn cell(&mut self, round: usize, index: usize, signals: &mut Signals) -> Result<()> {
        let cell = self.results[index].cell;
        self.bar.set_message(format!("{} {} {} B", cell.test.name(), cell.system, cell.bytes));
        let case = Case { system: cell.system, work: cell.work };
        match self.run(&case, signals) {
            Ok(outcomes) => self.results[index].figures.push((round, rows::figure(&cell, &outcomes))),
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => {
                let error = format!("{error:#}");
                self.bar.suspend(|| {
                    eprintln!("tautline: {} {} {} B: {error}", cell.test.name(), cell.system, cell.bytes);
                });
                self.results[index].errors.push(error);
                if !contenders::is_one(cell.system) {
                    // Whatever state the two are in, it cannot be repaired. Their namespaces go with them.
                    self.pair = None;
                    if self.path == Path::Veth {
                        self.contenders = Contenders::default();
                    }
                }
            }
        }
        self.bar.inc(1);
        Ok(())
    }

    fn run(&mut self, case: &Case, signals: &mut Signals) -> Result<[case::Outcome; 2]> {
        if self.pair.is_none() {
            let mut pair = Pair::start(self.path, self.pinned, signals)?;
            self.tune(&mut pair, signals)?;
            self.pair = Some(pair);
        }
        let pair = self.pair.as_mut().context("the processes of the measurement are gone")?;
        if !contenders::is_one(case.system) {
            return pair.run(case, signals);
        }
        let lane = case.system.lane();
        let (a, b) = netns::addresses(lane);
        let namespaces = (self.path == Path::Veth).then(|| Namespaces {
            processes: pair.processes(),
            addresses: [a, b],
            interface: netns::interface(lane),
        });
        self.contenders.run(case, &Placement { cores: self.pinned, namespaces }, signals)
    }

    /// Lets the sides find the best bare streams of the sizes that will be measured.
    fn tune(&self, pair: &mut Pair, signals: &mut Signals) -> Result<()> {
        let mut done = Vec::new();
        for result in &self.results {
            let Work::Stream { bytes, count, .. } = result.cell.work else { continue };
            let system = match result.cell.system {
                System::Gso { .. } => System::Gso { blocking: false },
                System::Datagrams { .. } if bytes >= TUNED_FROM && self.extent == Extent::Full => {
                    System::Datagrams { blocking: false }
                }
                system @ System::Shared { limit: Shared::TwoCopyStream } => system,
                _ => continue,
            };
            if done.contains(&(bytes, system)) {
                continue;
            }
            done.push((bytes, system));
            self.bar.set_message(format!("finding the best {} stream of {bytes} B", system.name()));
            let work = Work::Tune { bytes, count, trial_bytes: self.extent.trial_bytes() };
            pair.run(&Case { system, work }, signals).context("the bare stream to compare with")?;
        }
        Ok(())
    }
}

fn show(args: &BenchArgs, report: &Report) -> Result<()> {
    if args.json {
        for row in &report.rows {
            println!("{}", serde_json::to_string(row)?);
        }
    } else {
        print!("{}", table::render(report));
    }
    let file = match &args.html {
        Some(file) => file.clone(),
        None if args.json || args.smoke => return Ok(()),
        None if std::path::Path::new("target").is_dir() => "target/tautline-bench.html".into(),
        None => "tautline-bench.html".into(),
    };
    std::fs::write(&file, html::render(report)).with_context(|| {
        format!("cannot write {}\ngive another file: --html FILE; the reason was", file.display())
    })?;
    eprintln!("report: {}", file.display());
    Ok(())
}
