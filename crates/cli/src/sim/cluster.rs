//! `tautline sim --nodes`: a pattern of messages among many nodes on one simulated switch.

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use tautline_sim::NetworkModel;
use tautline_sim::cluster::collectives::{Collectives, Together};
use tautline_sim::cluster::{Cluster, ClusterReport, Pattern};

/// The arguments of a run with many nodes.
#[derive(Debug, Args)]
pub struct ClusterArgs {
    /// Simulate this many nodes on one switch, without faults, instead of worlds with faults
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "first", "messages", "per_seed", "replay"])]
    nodes: Option<u32>,
    /// Who sends to whom
    #[arg(long, value_enum, default_value_t = PatternName::Random, requires = "nodes")]
    pattern: PatternName,
    /// To how many others each node sends in the pattern `random` [default: 8, or all others]
    #[arg(long, value_name = "K", requires = "nodes")]
    peers: Option<u32>,
    /// Rounds of the pattern: messages to each peer
    #[arg(long, value_name = "N", default_value_t = 10, requires = "nodes")]
    rounds: u32,
    /// Bytes of each message
    #[arg(long, value_name = "N", default_value_t = 64, requires = "nodes")]
    bytes: usize,
    /// The network, where it is not the default: mbps, latency_ns, queue_bytes, send_ns, receive_ns, wake_ns
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', requires = "nodes")]
    network: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PatternName {
    /// Every node sends to --peers others, drawn by the seed, as fast as it can
    Random,
    /// All nodes send to the first, as fast as they can
    Incast,
    /// All nodes send to the first, each the next message when it has the answer to the one before
    Requests,
    /// Every node sends to the next one, and waits for the one before it
    Ring,
    /// The messages of a dissemination barrier in each round
    Barrier,
    /// The barrier of a group in each round, beside the bound of the network
    GroupBarrier,
    /// An all-reduce in each round
    #[value(name = "allreduce")]
    AllReduce,
    /// A broadcast of the first node in each round, which programs forward
    Broadcast,
    /// A multicast of the first node in each round, which nodes forward
    Multicast,
}

/// A run with many nodes.
#[derive(Debug)]
pub enum Many {
    /// A pattern of messages.
    Messages(Cluster),
    /// Collectives or multicasts.
    Together(Collectives),
}

impl ClusterArgs {
    /// What to simulate; none if the arguments ask for worlds with faults.
    pub fn cluster(&self, seed: Option<u64>) -> Result<Option<Many>> {
        let Some(nodes) = self.nodes else { return Ok(None) };
        let (rounds, bytes, seed) = (self.rounds, self.bytes, seed.unwrap_or(0));
        let model = network(&self.network)?;
        let together =
            |together| Ok(Some(Many::Together(Collectives { nodes, together, rounds, bytes, seed, model })));
        let pattern = match self.pattern {
            PatternName::Random => {
                let usual = nodes.saturating_sub(1).clamp(1, 8);
                Pattern::Random { peers: self.peers.unwrap_or(usual) }
            }
            PatternName::Incast => Pattern::Incast,
            PatternName::Requests => Pattern::Requests,
            PatternName::Ring => Pattern::Ring,
            PatternName::Barrier => Pattern::Barrier,
            PatternName::GroupBarrier => return together(Together::Barrier),
            PatternName::AllReduce => return together(Together::AllReduce),
            PatternName::Broadcast => return together(Together::Broadcast),
            PatternName::Multicast => return together(Together::Multicast),
        };
        Ok(Some(Many::Messages(Cluster { nodes, pattern, rounds, bytes, seed, model })))
    }
}

/// The default network with some values changed.
fn network(changes: &[String]) -> Result<NetworkModel> {
    let mut model = NetworkModel::default();
    for change in changes {
        let (key, value) = change
            .split_once('=')
            .with_context(|| format!("--network {change}: write KEY=VALUE, as mbps=25000"))?;
        let place = match key {
            "mbps" => &mut model.mbps,
            "latency_ns" => &mut model.latency_ns,
            "queue_bytes" => &mut model.queue_bytes,
            "send_ns" => &mut model.send_ns,
            "receive_ns" => &mut model.receive_ns,
            "wake_ns" => &mut model.wake_ns,
            _ => bail!(
                "--network {change}: no \"{key}\" in the model\ngive mbps, latency_ns, queue_bytes, send_ns, \
                 receive_ns or wake_ns"
            ),
        };
        let number = value.parse().ok().filter(|number| *number <= MAX_VALUE);
        *place = number.with_context(|| format!("--network {change}: not a number up to {MAX_VALUE}"))?;
    }
    Ok(model)
}

/// What the model's arithmetic bears.
const MAX_VALUE: u64 = 1_000_000_000;

/// Simulates, and prints what it took.
pub fn run(many: &Many, as_json: bool) -> Result<()> {
    match many {
        Many::Messages(cluster) => run_messages(cluster, as_json),
        Many::Together(collectives) => run_together(collectives, as_json),
    }
}

fn progress_bar(of: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
    let template = format!("{{bar:40}} {{pos}}/{{len}} {of} {{elapsed_precise}} (left: {{eta}})");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}

/// Simulates collectives or multicasts.
fn run_together(run: &Collectives, as_json: bool) -> Result<()> {
    let bar = progress_bar("rounds");
    let outcome = run.run_with(|(over, of)| {
        bar.set_length(of);
        bar.set_position(over);
    });
    bar.finish_and_clear();
    let report = outcome.map_err(|why| anyhow!("{why}"))?;
    let name = match run.together {
        Together::Barrier => "group-barrier",
        Together::AllReduce => "allreduce",
        Together::Broadcast => "broadcast",
        _ => "multicast",
    };
    let ratio = report.round_ns as f64 / report.bound_ns.max(1) as f64;
    if as_json {
        let report = json!({
            "nodes": run.nodes, "pattern": name, "rounds": run.rounds, "bytes": run.bytes, "seed": run.seed,
            "first_round_ns": report.first_ns, "round_ns": report.round_ns, "bound_ns": report.bound_ns,
            "frames": report.frames, "dropped": report.dropped, "deaths": report.deaths,
            "trace_hash": format!("{:016x}", report.trace_hash),
        });
        println!("{report}");
        return Ok(());
    }
    let us = |ns: u64| ns as f64 / 1e3;
    println!("{} nodes, {name}, {} rounds of {} bytes", run.nodes, run.rounds, run.bytes);
    println!("first round {:>14.1} us of virtual time, channels opened within it", us(report.first_ns));
    if run.rounds > 1 {
        println!(
            "each other  {:>14.1} us (median), {ratio:.2} times the bound of {:.1} us",
            us(report.round_ns),
            us(report.bound_ns)
        );
    }
    println!(
        "frames      {:>14}    {} dropped, {} false deaths",
        report.frames, report.dropped, report.deaths
    );
    Ok(())
}

fn run_messages(cluster: &Cluster, as_json: bool) -> Result<()> {
    let bar = progress_bar("messages");
    let before = resident_bytes();
    let mut peak = before;
    let outcome = cluster.run_with(|(arrived, of)| {
        bar.set_length(of);
        bar.set_position(arrived);
        peak = peak.max(resident_bytes());
    });
    bar.finish_and_clear();
    let report = outcome.map_err(|why| anyhow!("{why}"))?;
    let per_node = peak.max(resident_bytes()).saturating_sub(before) / u64::from(cluster.nodes);
    if as_json {
        println!("{}", to_json(cluster, &report, per_node));
    } else {
        print(cluster, &report, per_node);
    }
    Ok(())
}

/// Memory of this process that is in use.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

fn name(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Random { .. } => "random",
        Pattern::Incast => "incast",
        Pattern::Requests => "requests",
        Pattern::Ring => "ring",
        Pattern::Barrier => "barrier",
    }
}

fn to_json(cluster: &Cluster, report: &ClusterReport, per_node: u64) -> serde_json::Value {
    let NetworkModel { mbps, latency_ns, queue_bytes, send_ns, receive_ns, wake_ns } = cluster.model;
    json!({
        "nodes": cluster.nodes,
        "pattern": name(cluster.pattern),
        "peers": if let Pattern::Random { peers } = cluster.pattern { Some(peers) } else { None },
        "rounds": cluster.rounds,
        "message_bytes": cluster.bytes,
        "seed": cluster.seed,
        "network": {
            "mbps": mbps, "latency_ns": latency_ns, "queue_bytes": queue_bytes,
            "send_ns": send_ns, "receive_ns": receive_ns, "wake_ns": wake_ns,
        },
        "messages": report.messages,
        "bytes": report.bytes,
        "virtual_ns": report.virtual_ns,
        "first_round_ns": report.first_round_ns,
        "median_ns": report.median_ns,
        "p99_ns": report.p99_ns,
        "frames": report.frames,
        "dropped": report.dropped,
        "resent": report.resent,
        "deaths": report.deaths,
        "memory_per_node": per_node,
        "trace_hash": format!("{:016x}", report.trace_hash),
    })
}

fn print(cluster: &Cluster, report: &ClusterReport, per_node: u64) {
    let us = |ns: u64| ns as f64 / 1e3;
    let model = cluster.model;
    println!(
        "{} nodes, {}, {} rounds of {} bytes, over cables of {} Mb/s and {:.1} us; a frame takes {} ns to send \
         and {} ns to receive, and wakes an idle node in {} ns",
        cluster.nodes,
        name(cluster.pattern),
        cluster.rounds,
        cluster.bytes,
        model.mbps,
        us(model.latency_ns),
        model.send_ns,
        model.receive_ns,
        model.wake_ns
    );
    println!("completion  {:>14.1} us of virtual time, channels opened within it", us(report.virtual_ns));
    if report.first_round_ns > 0 && cluster.rounds > 1 {
        let later = (report.virtual_ns - report.first_round_ns) / u64::from(cluster.rounds - 1);
        println!(
            "first round {:>14.1} us; each of the others {:.1} us",
            us(report.first_round_ns),
            us(later)
        );
    }
    println!(
        "messages    {:>14}    one way: median {:.1} us, p99 {:.1} us",
        report.messages,
        us(report.median_ns),
        us(report.p99_ns)
    );
    println!("bytes       {:>14}", report.bytes);
    println!(
        "frames      {:>14}    {} dropped, {} slots sent again, {} false deaths",
        report.frames, report.dropped, report.resent, report.deaths
    );
    println!("memory      {per_node:>14}    bytes per node");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read() {
        let changes = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let model = network(&changes("mbps=25000,wake_ns=0")).unwrap();
        assert_eq!(model, NetworkModel { mbps: 25_000, wake_ns: 0, ..NetworkModel::default() });
        for (bad, why) in [
            ("mbps", "write KEY=VALUE"),
            ("speed=3", "no \"speed\""),
            ("mbps=fast", "not a number"),
            ("mbps=99999999999", "not a number up to"),
        ] {
            let error = network(&changes(bad)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
