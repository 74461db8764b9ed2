//! Attacks on running jobs, and checks that the promises hold: no forged message is accepted, none is lost,
//! repeated, reordered or altered between live ranks, no live rank is declared dead, memory is bounded, and
//! a node is idle afterwards.
//!
//! What lives here: one module per attack, the member program that all of them attack (`member`), and how its
//! processes are started (`launch`). Traffic goes to loopback or to network namespaces of our own.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bells;
mod claims;
mod datagrams;
mod flood;
mod frames;
mod handshakes;
mod hostile;
mod launch;
mod member;
mod record;
mod relay;
mod shortages;
mod storm;
mod traffic;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use record::Record;
use tautline::Security;

/// Attack running jobs, and report which promises held.
#[derive(Debug, Parser)]
#[command(name = "tautline-attack")]
struct Args {
    /// The attacks; by default all of them: datagrams, frames, handshakes, kills, stops, shortages, claims,
    /// bells, flood
    attacks: Vec<String>,
    /// The sizes of the long form: hours instead of seconds
    #[arg(long)]
    long: bool,
    /// Print the record as JSON
    #[arg(long)]
    json: bool,
    /// Hostile datagrams in each security mode
    #[arg(long, value_name = "N")]
    datagrams: Option<u64>,
    /// Hostile Ethernet frames to an AF_XDP device
    #[arg(long, value_name = "N")]
    frames: Option<u64>,
    /// Joins and restarts while handshakes are replayed and redirected
    #[arg(long, value_name = "N")]
    joins: Option<u64>,
    /// Kills with restart, on each device
    #[arg(long, value_name = "N")]
    kills: Option<u64>,
    /// Stops, on each device
    #[arg(long, value_name = "N")]
    stops: Option<u64>,
    /// Messages that claim to be long
    #[arg(long, value_name = "N")]
    claims: Option<u64>,
    /// Rings of a member that abuses doorbells
    #[arg(long, value_name = "N")]
    rings: Option<u64>,
    /// Pairs of measurements, under a flood and beside it
    #[arg(long, value_name = "N")]
    pairs: Option<u64>,
    /// Ranks in storms
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
    /// Seed of all that is random in an attack
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Run as a member of a job; for the attacks themselves
    #[arg(long, hide = true)]
    member: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(role) = &args.member {
        return member::run(role);
    }
    let records = match attack_all(&args) {
        Ok(records) => records,
        Err(error) => {
            eprintln!("tautline-attack: {error:#}");
            return ExitCode::from(2);
        }
    };
    record::print(&records, args.json);
    if records.iter().all(Record::held) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn attack_all(args: &Args) -> Result<Vec<Record>> {
    let names =
        ["datagrams", "frames", "handshakes", "kills", "stops", "shortages", "claims", "bells", "flood"];
    if let Some(unknown) = args.attacks.iter().find(|name| !names.contains(&name.as_str())) {
        anyhow::bail!("there is no attack \"{unknown}\"; there are {}", names.join(", "));
    }
    let size = |given: Option<u64>, short, long| given.unwrap_or(if args.long { long } else { short });
    let ranks = args.ranks.unwrap_or(if args.long { 8 } else { 4 });
    let mut records = Vec::new();
    for name in names {
        if !args.attacks.is_empty() && !args.attacks.iter().any(|wanted| wanted == name) {
            continue;
        }
        let before = records.len();
        match name {
            "datagrams" => {
                for security in [Security::Fabric, Security::Sealed, Security::Open] {
                    let count = size(args.datagrams, 20_000, 10_000_000);
                    records.push(datagrams::attack(security, count, args.seed));
                }
            }
            "frames" => records.push(frames::attack(size(args.frames, 20_000, 10_000_000), args.seed)),
            "handshakes" => records.push(handshakes::attack(size(args.joins, 3, 500), args.seed)),
            "kills" => {
                for device in ["shm", "udp"] {
                    records.push(storm::kills(device, ranks, size(args.kills, 4, 1_000), args.seed));
                }
            }
            "stops" => {
                for device in ["shm", "udp"] {
                    records.push(storm::stops(device, ranks, size(args.stops, 5, 5_000), args.seed));
                }
            }
            "shortages" => records.extend(shortages::attack()),
            "claims" => records.push(claims::attack(size(args.claims, 1_000, 20_000))),
            "bells" => records.push(bells::attack(size(args.rings, 4_000, 10_000_000))),
            _ => records.push(flood::attack(size(args.pairs, 1, 15), args.seed, args.long)),
        }
        for record in &records[before..] {
            eprintln!("{}", record.line());
        }
    }
    Ok(records)
}
