//! `tautline bench`: two pinned processes exchange messages, beside every system that they are compared with.
//!
//! What lives here: the plan (`plan`), the two processes (`pair`, `side`), our drivers (`taut`, `frames`),
//! the evaluation (`rows`, `targets`) and its presentation (`table`, `html`). What does not: the limits and
//! rivals themselves, which belong to `tautline-baseline` and know nothing of us.

mod calls;
mod case;
mod compare;
mod contenders;
mod fair;
mod fastest;
mod flood;
mod frames;
mod html;
mod loans;
mod machine;
mod many;
mod matching;
mod memory;
mod mpi;
mod netns;
mod only;
mod pair;
mod paper;
mod plan;
mod protection;
mod rows;
mod server;
mod side;
mod stolen;
mod summary;
mod svg;
mod table;
mod tagged;
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
use case::{Case, Other, Shared, System, Touch, Work};
use contenders::Contenders;
use many::Jobs;
pub use many::{RankArgs, rank};
pub use netns::check as can_make_namespaces;
use only::Only;
use pair::{Interrupted, Pair, Path};
use plan::{Extent, Here, Load};
use side::Fault;
pub use side::{SideArgs, side};

const EXAMPLES: &str = "\
Examples:
  tautline bench --quick
        Most of it, with few samples.
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
  tautline bench --only tag,tag-queues
        Messages with tags, also behind queues of 10,000 entries.
  tautline bench --tune > choices
        The fastest algorithm of each collective here, for the environment variable TAUTLINE_CHOICES.
  tautline bench --only calls
        Calls beside tarpc and plain requests over sockets.
  tautline bench --quick --only many
        Jobs of 2 to 64 ranks beside Open MPI and MPICH: starting, idle ranks, collectives, a halo exchange; also
        --only collectives, or one of them, such as --only all-reduce.
  sudo tautline bench --quick
        The same, and first of all between two network namespaces, over veth pairs with MTU 1,500 and 9,000, with
        bare AF_XDP beside it.
  sudo tautline bench --netns
        Everything between two network namespaces, and nothing on one host.
  tautline bench --loopback --only latency
        Nothing between namespaces, even as root.
  tautline bench --rounds 9 --only latency,64 --html latency.html
        More rounds; the report in a file of your choice.
  tautline bench --quick --strict
        Fails if a limit is beaten or something could not be measured.
  tautline bench --quick --paper 002
        The CLAN paper's figures beside ours; also 000 (Gigabit Ethernet), 001 (Myrinet protocols), 003 (Linux
        cluster), 004 (Fast Messages).
  tautline bench --paper 003 --only latency
        Only those of its figures that come from one test.
  tautline bench --compare monday.jsonl tuesday.jsonl
        What changed between two runs, and whether that is more than the spread of their rounds.

Both processes have a core to themselves. Systems take turns within each round; a figure is the median over
rounds, with the lowest and highest round beside it, and ratios are formed inside a round.

Every system does the same work: the sender rewrites a buffer of its own before each send, and the receiver reads
every byte of each message in a buffer of its own. The content changes with every message; both processes count
what they wrote and read, and a row whose sums differ fails. Rows that do less say so: warm rows and ucx-perftest
resend an untouched buffer, -in-place rows write where they send from, of -unread rows the receiver sees the ends
only, memcpy is a copy within one process. Loans are filled before and read after the measured time. The rows of
matching are net of the put.

Nothing is ever installed; rivals that are here (Open MPI, MPICH, UCX, ZeroMQ, tarpc, and in builds with the feature
of this name iceoryx2) are measured in the same rounds. The report says what could not be measured.";

/// The arguments of `tautline bench`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    /// In one or two minutes on an idle machine, with wider spread; leaves out the costliest experiments
    #[arg(long)]
    quick: bool,
    /// Only these tests, systems and sizes (comma-separated): a row must match one word of each kind that is
    /// given; what it is compared with is measured, too. A wrong word shows all that there are
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
    /// Only between two network namespaces, over veth with an MTU of 1,500 and of 9,000 (root)
    #[arg(long, conflicts_with = "loopback")]
    netns: bool,
    /// Only on this host: loopback and shared memory
    #[arg(long)]
    loopback: bool,
    /// Fail if a row beats its limit by more than 5 % ("WRONG LIMIT"), or could not be measured
    #[arg(long)]
    strict: bool,
    /// Measure nothing: show what changed between two runs (files made by --json)
    #[arg(long, num_args = 2, value_names = ["A.json", "B.json"], conflicts_with_all = ["quick", "only", "rounds", "html", "netns", "loopback", "strict"])]
    compare: Option<Vec<PathBuf>>,
    /// Measure what a paper measured, and show its figures beside ours; give its number
    #[arg(long, value_name = "NUMBER", value_parser = paper::NUMBERS, conflicts_with_all = ["html", "netns", "compare"])]
    paper: Option<String>,
    /// Measure the algorithms of each collective, and print a table of the fastest for TAUTLINE_CHOICES
    #[arg(long, conflicts_with_all = ["only", "rounds", "json", "html", "netns", "loopback", "strict", "compare", "paper"])]
    tune: bool,
    /// A few messages each, for tests
    #[arg(long, hide = true)]
    smoke: bool,
    /// Between hosts too, even with --smoke
    #[arg(long, hide = true)]
    everywhere: bool,
    /// Inject a fault, to test that it is detected
    #[arg(long, hide = true)]
    sabotage: Option<Fault>,
}

/// Everything that a report shows.
pub struct Report {
    pub machine: machine::State,
    /// One for each path that was measured; those between hosts come first.
    pub parts: Vec<Part>,
    /// What was not measured, and why.
    pub missing: Vec<String>,
    /// How the jobs of many ranks were started.
    pub commands: Vec<String>,
    /// A signal ended the measurement: there are fewer rows and rounds.
    interrupted: Option<Interrupted>,
}

/// What was measured over one path.
pub struct Part {
    pub path: Path,
    pub rows: Vec<rows::Row>,
    pub targets: Vec<targets::Target>,
}

impl Report {
    /// The rows of all paths.
    pub fn rows(&self) -> impl Iterator<Item = &rows::Row> {
        self.parts.iter().flat_map(|part| &part.rows)
    }
}

/// Measures and reports.
pub fn bench(args: &BenchArgs) -> Result<ExitCode> {
    if let Some([before, after]) = args.compare.as_deref() {
        print!("{}", compare::compare(before, after, args.json)?);
        return Ok(ExitCode::SUCCESS);
    }
    let file = report_file(args);
    let is_new = file.as_ref().is_some_and(|file| !file.exists());
    if let Some(file) = &file {
        // Better now than after the measurement.
        std::fs::OpenOptions::new().append(true).create(true).open(file).with_context(|| {
            format!("cannot write {}\ngive another file: --html FILE; the reason was", file.display())
        })?;
    }
    let extent = match (args.smoke, args.quick) {
        (true, _) => Extent::Smoke,
        (_, true) => Extent::Quick,
        _ => Extent::Full,
    };
    if args.tune {
        return fastest::tune(extent);
    }
    let mut signals = Signals::catch()?;
    let report = match measure(args, extent, &mut signals) {
        Ok(report) => report,
        Err(error) => {
            discard(file.filter(|_| is_new));
            return Err(error);
        }
    };
    if let Some(interrupted) = &report.interrupted {
        discard(file.filter(|_| is_new));
        print_rows(args, &report)?;
        eprintln!("tautline: {interrupted}");
        return Ok(ExitCode::from((128 + interrupted.0) as u8));
    }
    match args.paper.as_deref().and_then(paper::of_number) {
        Some(paper) => print!("{}", paper::render(paper, &report, args.json)?),
        None => {
            print_rows(args, &report)?;
            if let Some(file) = &file {
                std::fs::write(file, html::render(&report)).with_context(|| {
                    format!("cannot write {}\ngive another file: --html FILE; the reason was", file.display())
                })?;
                let earlier = if is_new { "" } else { " (in the place of an earlier one)" };
                eprintln!("report: {}{earlier}", file.display());
            }
        }
    }
    Ok(if args.strict && !is_sound(&report) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Removes a report that was to be written.
fn discard(file: Option<PathBuf>) {
    if let Some(file) = file {
        let _ = std::fs::remove_file(file);
    }
}

/// Whether everything was measured and no limit was beaten; says on standard error what was not.
fn is_sound(report: &Report) -> bool {
    let mut sound = true;
    for row in report.rows() {
        let what = || format!("{} {} {} B, {}, {}", row.test, row.name(), row.bytes, row.policy, row.path);
        if row.wrong_limit {
            sound = false;
            let (limit, ratio) = (row.limit.as_deref().unwrap_or("?"), row.ratio.unwrap_or(0.0));
            eprintln!("tautline: {}: {ratio:.2} of {limit}, which is no limit then", what());
        }
        if row.error.is_some() && !row.rival {
            sound = false;
            eprintln!("tautline: {}: not measured", what());
        }
    }
    sound
}

/// The paths between hosts that are measured where that is possible.
const BETWEEN_HOSTS: [Path; 2] = [Path::Veth { mtu: 1500 }, Path::Veth { mtu: 9000 }];

/// Returns the paths to measure, and why there are no more.
fn paths(args: &BenchArgs) -> Result<(Vec<Path>, Option<String>)> {
    if args.netns {
        netns::check()?;
        return Ok((BETWEEN_HOSTS.into(), None));
    }
    let far = match args.paper.as_deref().and_then(paper::of_number) {
        Some(paper) => paper.far(),
        None => BETWEEN_HOSTS.into(),
    };
    if args.loopback || far.is_empty() {
        return Ok((vec![Path::Loopback], None));
    }
    Ok(match netns::check() {
        // A smoke test is short.
        Ok(()) if args.smoke && !args.everywhere => (vec![Path::Loopback], None),
        Ok(()) => (far.into_iter().chain([Path::Loopback]).collect(), None),
        Err(why) => {
            (vec![Path::Loopback], Some(format!("between hosts: {}", why.to_string().replace('\n', "; "))))
        }
    })
}

fn measure(args: &BenchArgs, extent: Extent, signals: &mut Signals) -> Result<Report> {
    let only = match args.paper.as_deref().and_then(paper::of_number) {
        Some(paper) => paper.words.parse::<Only>().map_err(anyhow::Error::msg)?.and(&args.only),
        None => args.only.clone(),
    };
    let (paths, mut missing) = paths(args).map(|(paths, why)| (paths, Vec::from_iter(why)))?;
    cpu::share_single_core()?;
    let cores = cpu::allowed_cores()?;
    let pinned = [cores[0], *cores.get(1).unwrap_or(&cores[0])];
    if cores.len() < 2 {
        missing.push("two cores: both processes share one, and polling systems wait for each other".into());
    }
    let with_rivals = extent != Extent::Smoke || args.only.names_rivals();
    let our_mpi = with_rivals.then(mpi::Installed::new);
    if let Some(Err(why)) = &our_mpi {
        missing.push(format!("our MPI: {why}"));
    }
    let machine = machine::State::examine(extent, pinned, &paths);
    missing.extend(machine.missing());
    if machine.no_xdp.is_none() && paths.contains(&Path::Veth { mtu: 9000 }) {
        missing.push("AF_XDP over frames of 9,000 bytes: it is measured over those of 1,500".into());
    }
    // A smoke test needs no rivals, unless it names them.
    let rivals = if with_rivals { Other::installed(&machine.found) } else { Vec::new() };
    let rounds = args.rounds.map_or(extent.rounds(), usize::from);
    let here = |path: Path| {
        let xdp = path == Path::Veth { mtu: 1500 } && machine.no_xdp.is_none();
        Here { rivals: rivals.clone(), xdp, brief: path.is_veth() && !args.netns }
    };
    let plans: Vec<_> = paths
        .iter()
        .map(|path| {
            let mut cells = plan::cells(extent, path.is_veth(), &only, &here(*path));
            if cores.len() < 2 {
                // What polls for a process on its own core is no limit.
                cells.iter_mut().filter_map(|cell| cell.limit.as_mut()).for_each(|limit| limit.hard = false);
            }
            (*path, cells)
        })
        .filter(|(_, cells)| !cells.is_empty())
        .collect();
    if plans.is_empty() {
        if let Some(feature) = args.only.needs_feature() {
            bail!(
                "this build cannot measure {feature}\nbuild one that can: cargo run --release --features {feature} -- bench"
            );
        }
        bail!(
            "--only leaves nothing to measure\ntry one word less; sizes are 0, 8, 64, 256, 1K, 4K, 16K, 64K, 256K, 1M and 4M"
        );
    }
    if extent == Extent::Full && args.only.is_everything() && args.rounds.is_none() {
        eprintln!(
            "tautline: measuring everything takes some 25 minutes on two cores; --quick takes one or two"
        );
    }
    let bar = bar((plans.iter().map(|(_, cells)| cells.len()).sum::<usize>() * rounds) as u64);
    let (mut parts, mut commands, mut interrupted) = (Vec::new(), Vec::new(), None);
    for (path, cells) in plans {
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
            jobs: Jobs::new(args.sabotage),
            sabotage: args.sabotage,
            results,
            bar: bar.clone(),
        };
        for round in 0..rounds {
            if let Err(error) = bench.round(round, signals) {
                interrupted = Some(error.downcast::<Interrupted>()?);
                bench.results.retain(|result| !result.figures.is_empty());
                break;
            }
        }
        commands.append(&mut bench.jobs.commands);
        let results = bench.results;
        parts.push(Part { path, rows: rows::rows(&results, path), targets: targets::judge(&results, path) });
        if interrupted.is_some() {
            break;
        }
    }
    bar.finish_and_clear();
    Ok(Report { machine, parts, missing, commands, interrupted })
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
    jobs: Jobs,
    sabotage: Option<Fault>,
    results: Vec<rows::Result>,
    bar: ProgressBar,
}

impl Bench {
    /// Measures every cell once: first all with idle cores, then those with a burner.
    fn round(&mut self, round: usize, signals: &mut Signals) -> Result<()> {
        for load in [Load::Idle, Load::OneCore, Load::Burner] {
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
                Load::Idle | Load::OneCore => None,
                Load::Burner => match Burner::start(&self.pinned) {
                    Ok(burner) => Some(burner),
                    // The shell is not in PATH, for instance. What needs no burner is measured all the same.
                    Err(error) => {
                        these.iter().for_each(|i| self.failed(*i, format!("no CPU burner: {error}")));
                        self.bar.inc(these.len() as u64);
                        continue;
                    }
                },
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
        let one_core = cell.load == Load::OneCore;
        let case = Case { system: cell.system, work: cell.work, one_core };
        let outcomes = match cell.work {
            // Not repeated: a job does all its experiments.
            Work::Many { ranks, .. } => self.job(round, &cell, ranks, signals).map(|both| (both, 0.0)),
            _ => stolen::undisturbed(self.pinned, || self.run(&case, signals)),
        };
        match outcomes {
            Ok((outcomes, stolen)) => match fair::fault(&cell, &outcomes) {
                None => {
                    let figure = rows::Figure { stolen, ..self.figure(&cell, &outcomes) };
                    self.results[index].figures.push((round, figure));
                }
                Some(fault) => self.failed(index, format!("unfair: {fault}")),
            },
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => {
                self.failed(index, format!("{error:#}"));
                if !contenders::is_one(cell.system) && !matches!(cell.work, Work::Many { .. }) {
                    // Whatever state the two are in, it cannot be repaired. Their namespaces go with them.
                    self.pair = None;
                    if self.path.is_veth() {
                        self.contenders = Contenders::default();
                    }
                }
            }
        }
        self.bar.inc(1);
        Ok(())
    }

    /// An experiment of a job, which does all that are wanted of it.
    fn job(
        &mut self,
        round: usize,
        cell: &plan::Cell,
        ranks: u64,
        signals: &mut Signals,
    ) -> Result<[case::Outcome; 2]> {
        let same = |other: &plan::Cell| other.system == cell.system && other.many == Some(ranks);
        let all = self.results.iter().map(|result| &result.cell).filter(|other| same(other));
        let all: Vec<_> =
            all.map(|cell| cell.work).filter(|work| matches!(work, Work::Many { .. })).collect();
        let outcome = self.jobs.run(round, (cell.system, cell.work), &all, signals)?;
        Ok([outcome, case::Outcome::default()])
    }

    fn failed(&mut self, index: usize, error: String) {
        let cell = &self.results[index].cell;
        self.bar.suspend(|| {
            eprintln!("tautline: {} {} {} B: {error}", cell.test.name(), cell.system, cell.bytes);
        });
        self.results[index].errors.push(error);
    }

    fn figure(&self, cell: &plan::Cell, outcomes: &[case::Outcome; 2]) -> rows::Figure {
        let mut figure = rows::figure(cell, outcomes);
        if self.sabotage == Some(Fault::SlowLimits) && !cell.system.is_ours() {
            figure.worsen(cell.test);
        }
        figure
    }

    fn run(&mut self, case: &Case, signals: &mut Signals) -> Result<[case::Outcome; 2]> {
        if self.pair.is_none() {
            let mut pair = Pair::start(self.path, self.pinned, self.sabotage, signals)?;
            self.tune(&mut pair, signals)?;
            self.pair = Some(pair);
        }
        let pair = self.pair.as_mut().context("the processes of the measurement are gone")?;
        if !contenders::is_one(case.system) {
            return pair.run(case, signals);
        }
        let lane = case.system.lane();
        let (a, b) = netns::addresses(lane);
        let namespaces = self.path.is_veth().then(|| Namespaces {
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
            let Work::Stream { bytes, count, touch, .. } = result.cell.work else { continue };
            let system = match result.cell.system {
                System::Gso { .. } => System::Gso { blocking: false },
                System::Datagrams { .. } if bytes >= TUNED_FROM && self.extent == Extent::Full => {
                    System::Datagrams { blocking: false }
                }
                system @ System::Shared { limit: Shared::TwoCopyStream } => system,
                _ => continue,
            };
            let parts = touch == Touch::InPlace;
            let gso = matches!(system, System::Gso { .. });
            if gso && parts && self.extent == Extent::Quick && bytes != tune::CHUNK {
                continue;
            }
            // Messages that share packets share a plan, too.
            let shares = |bytes| tune::shares_packets(bytes) && gso;
            let planned = |one: &(usize, System, bool)| one.1 == system && shares(one.0) && shares(bytes);
            if done.contains(&(bytes, system, parts)) || done.iter().any(planned) {
                continue;
            }
            done.push((bytes, system, parts));
            self.bar.set_message(format!("finding the best {} stream of {bytes} B", system.name()));
            let work = Work::Tune { bytes, count, trial_bytes: self.extent.trial_bytes(), parts };
            pair.run(&Case { system, work, one_core: false }, signals)
                .context("the bare stream to compare with")?;
        }
        Ok(())
    }
}

/// The file of the HTML report, if there is to be one.
fn report_file(args: &BenchArgs) -> Option<PathBuf> {
    match &args.html {
        Some(file) => Some(file.clone()),
        None if args.json || args.smoke || args.paper.is_some() => None,
        None if std::path::Path::new("target").is_dir() => Some("target/tautline-bench.html".into()),
        None => Some("tautline-bench.html".into()),
    }
}

/// The rows as text, or as JSON.
fn print_rows(args: &BenchArgs, report: &Report) -> Result<()> {
    if args.json {
        if report.machine.is_busy() {
            eprintln!("tautline: {}", table::BUSY);
        }
        for what in &report.missing {
            eprintln!("tautline: not measured: {what}");
        }
        let run = report.machine.run();
        for row in report.rows() {
            println!("{}", serde_json::to_string(&rows::Line { row, run: &run })?);
        }
    } else {
        print!("{}", table::render(report));
    }
    Ok(())
}
