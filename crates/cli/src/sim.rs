//! `tautline sim`: many seeds of the deterministic world, or a replay of one.

mod cluster;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use tautline_sim::{Options, Report, SeedSummary, Trace};

const EXAMPLES: &str = "\
Examples:
  tautline sim --seeds 1000
        A thousand worlds, each with its own losses, crashes and partitions; every promise is checked.
  tautline sim --seeds 1000 --messages 10000000
        At least that many seeds and that many messages in all.
  tautline sim --seed 42 --replay
        One seed again, with a trace of everything that happens; add --pcap world.pcap for Wireshark.
  tautline sim --nodes 10000 --pattern barrier --rounds 10
        Ten barriers among ten thousand nodes on one switch: time, frames, and memory per node.
  tautline sim --nodes 1000 --pattern allreduce --bytes 8
        All-reduces of a group, beside the bound of the network; so do group-barrier, broadcast, multicast.
  tautline sim --nodes 1000 --pattern random --peers 16 --bytes 1024 --network mbps=25000,latency_ns=2000
        Every node sends ten messages to 16 others, over a faster network.

The same seed gives the same world on every machine. A seed that breaks a promise is reported with the command that
replays it, and the exit code is 1.";

/// The arguments of `tautline sim`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SimArgs {
    /// How many seeds, at least
    #[arg(long, value_name = "N", default_value_t = 100)]
    seeds: u64,
    /// The first seed
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    first: u64,
    /// How many messages in all, at least
    #[arg(long, value_name = "N", default_value_t = 0)]
    messages: u64,
    /// Messages of one seed, roughly; part of what determines its world
    #[arg(long, value_name = "N", default_value_t = Options::default().messages)]
    per_seed: u64,
    /// Only this seed
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "first", "messages"])]
    seed: Option<u64>,
    /// Print everything that happens; requires --seed
    #[arg(long, requires = "seed")]
    replay: bool,
    /// Write the frames of a replay to this file
    #[arg(long, value_name = "FILE", requires = "replay")]
    pcap: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: cluster::ClusterArgs,
}

/// Runs seeds.
pub fn sim(args: &SimArgs) -> Result<ExitCode> {
    if let Some(many) = args.cluster.cluster(args.seed)? {
        cluster::run(&many, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.seed.is_none() && args.seeds == 0 && args.messages == 0 {
        bail!("no seed to run\ngive --seeds 1 or more, or --messages");
    }
    let options = Options { messages: args.per_seed, ..Options::default() };
    let good = match args.seed {
        Some(seed) => one(args, seed, &options)?,
        None => many(args, &options)?,
    };
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn one(args: &SimArgs, seed: u64, options: &Options) -> Result<bool> {
    let report = if args.replay {
        tautline_sim::replay(seed, options, trace(args)?)
    } else {
        tautline_sim::run(seed, options)
    };
    let others = tautline_sim::run_others(seed, options);
    if args.json {
        println!("{}", to_json(&report));
    } else {
        print!("{}{report}", tautline_sim::describe(seed, options));
    }
    if let Err(why) = &others {
        eprintln!("VIOLATION {why}");
    }
    Ok(report.is_good() && others.is_ok())
}

/// The trace goes before the report, to standard output; with JSON to standard error.
fn trace(args: &SimArgs) -> Result<Trace> {
    let capture = match &args.pcap {
        None => None,
        Some(file) => {
            let out =
                std::fs::File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
            Some(Box::new(std::io::BufWriter::new(out)) as Box<dyn std::io::Write + Send>)
        }
    };
    let out: Box<dyn std::io::Write + Send> = if args.json {
        Box::new(std::io::BufWriter::new(std::io::stderr()))
    } else {
        Box::new(std::io::BufWriter::new(std::io::stdout()))
    };
    Ok(Trace::new(Some(out), capture)?)
}

fn to_json(report: &Report) -> serde_json::Value {
    json!({
        "seed": report.seed,
        "messages": report.messages,
        "completed": report.completed,
        "lost": report.lost,
        "under_faults": report.under_faults,
        "bytes": report.bytes,
        "frames": report.frames,
        "deaths": report.deaths,
        "virtual_ns": report.virtual_ns,
        "trace_hash": format!("{:016x}", report.trace_hash),
        "violation_count": report.violation_count,
        "violations": report.violations,
    })
}

fn many(args: &SimArgs, options: &Options) -> Result<bool> {
    let bar = ProgressBar::with_draw_target(Some(args.seeds), ProgressDrawTarget::stderr());
    if let Ok(style) =
        ProgressStyle::with_template("{bar:40} {pos}/{len} seeds {elapsed_precise} (left: {eta}) {msg}")
    {
        bar.set_style(style);
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let sum = tautline_sim::run_many(args.first, args.seeds, args.messages, threads, options, |progress| {
        bar.set_length(progress.of);
        bar.set_position(progress.seeds);
        bar.set_message(format!("{} messages, {} failed", progress.messages, progress.failed));
    });
    bar.finish_and_clear();
    print_summary(args, &sum)?;
    Ok(sum.is_good())
}

fn print_summary(args: &SimArgs, sum: &SeedSummary) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if args.json {
        let value = json!({
            "first": args.first,
            "seeds": sum.seeds,
            "messages": sum.messages,
            "bytes": sum.bytes,
            "frames": sum.frames,
            "lost": sum.lost,
            "under_faults": sum.under_faults,
            "deaths": sum.deaths,
            "virtual_ns": sum.virtual_ns,
            "same": sum.same,
            "different": sum.different,
            "operations": sum.memory.complete,
            "calls": sum.styles.answered,
            "entries": sum.styles.entries,
            "other_failures": sum.other_failures,
            "failures": sum.failures.iter().map(to_json).collect::<Vec<_>>(),
        });
        writeln!(out, "{value}")?;
        return Ok(());
    }
    for report in &sum.failures {
        writeln!(out, "{report}")?;
    }
    writeln!(
        out,
        "{} seeds from {}: {} messages, {} bytes compared, {} frames, {:.0} s of virtual time",
        sum.seeds,
        args.first,
        sum.messages,
        sum.bytes,
        sum.frames,
        sum.virtual_ns as f64 / 1e9
    )?;
    writeln!(
        out,
        "{} messages were begun under faults, and {} lost with peers whose end was reported ({} reports)",
        sum.under_faults, sum.lost, sum.deaths
    )?;
    writeln!(
        out,
        "{} operations on memory, {} tripwires fired, {} calls, {} entries of queues, {} bytes of streams",
        sum.memory.complete, sum.memory.fires, sum.styles.answered, sum.styles.entries, sum.styles.bytes
    )?;
    for why in &sum.other_failures {
        writeln!(out, "VIOLATION {why}")?;
    }
    writeln!(out, "{} seeds were run twice and were the same", sum.same)?;
    for seed in &sum.different {
        writeln!(
            out,
            "NOT THE SAME: seed {seed} gave two different worlds; replay it with: {}",
            command(args, *seed)
        )?;
    }
    match sum.failures.first() {
        None if sum.other_failures.is_empty() => writeln!(out, "no promise was broken")?,
        None => {}
        Some(first) => {
            writeln!(out, "{} seeds broke a promise; replay the first with:", sum.failures.len())?;
            writeln!(out, "  {}", command(args, first.seed))?;
        }
    }
    Ok(())
}

/// Returns the command that replays a seed.
fn command(args: &SimArgs, seed: u64) -> String {
    let mut command = format!("tautline sim --seed {seed} --replay");
    if args.per_seed != Options::default().messages {
        command.push_str(&format!(" --per-seed {}", args.per_seed));
    }
    command
}
