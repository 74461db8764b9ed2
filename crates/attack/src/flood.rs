//! A flood of hostile datagrams, and what it costs: the rate of checked messages between two members while
//! one of them is flooded, against the rate while the same flood goes to an idle socket of the same machine.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tautline::Security;

use crate::datagrams::{all_up, counts, forward_until, settle};
use crate::hostile::{Captures, Forger};
use crate::launch::{Members, Process, member};
use crate::record::Record;
use crate::relay::Relay;

/// Datagrams per second, and how many are sent at once.
const RATE: u64 = 60_000;
const BURST: u64 = 60;
/// How long each rate is measured, again and again in turn.
const SLICE: Duration = Duration::from_secs(1);
/// The rate under the flood is at least this much of the other, in per cent.
const LEAST: f64 = 80.0;
/// Different datagrams that are sent in turn.
const DIFFERENT: usize = 4_096;

/// Measures `pairs` of slices. `judge`: too low a rate is a broken promise. A few slices on a busy machine
/// say nothing.
pub fn attack(pairs: u64, seed: u64, judge: bool) -> Record {
    Record::of(format!("a flood of {RATE} datagrams per second"), |record| {
        if let Err(why) = run(record, pairs, seed, judge) {
            record.breaks(why);
        }
    })
}

fn run(record: &mut Record, pairs: u64, seed: u64, judge: bool) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the attack could not be set up: {error}");
    let members = Members::new(2, "udp", Security::Fabric).map_err(failed)?;
    let ranks = (0..2).map(|rank| members.start(rank, None, member("talk", "")));
    let mut ranks: Vec<Process> = ranks.collect::<Result<_, _>>().map_err(failed)?;
    let mut relay = Relay::new(&[]).map_err(failed)?;
    forward_until(&mut relay, &mut ranks, all_up)?;
    let idle = UdpSocket::bind("127.0.0.1:0").map_err(failed)?;
    let targets = [members.addresses[1], idle.local_addr().map_err(failed)?];
    let mut forger = Forger::new(Security::Fabric, seed);
    let datagrams: Vec<_> = (0..DIFFERENT).map(|_| forger.datagram(&Captures::default())).collect();
    let (mut rates, mut sent, mut shares) = ([Vec::new(), Vec::new()], 0, Vec::new());
    for pair in 0..pairs {
        // Each is first every other time.
        for which in if pair % 2 == 0 { [0, 1] } else { [1, 0] } {
            let (rate, flooded) = slice(&mut relay, &mut ranks, targets[which], &datagrams)?;
            rates[which].push(rate);
            sent += flooded;
        }
        if let [Some(under), Some(beside)] = [rates[0].last(), rates[1].last()] {
            shares.push(100.0 * under / beside);
        }
    }
    record.count = sent;
    let [under, beside] = rates.map(median);
    let (least, most) = shares.iter().fold((f64::MAX, 0.0_f64), |(a, b), s| (a.min(*s), b.max(*s)));
    let share = median(shares);
    record.notes.push(format!(
        "{under:.0} messages/s under it, {beside:.0} beside it: {share:.0} % (median of pairs; {least:.0} to {most:.0})"
    ));
    let seconds = 2.0 * pairs as f64 * SLICE.as_secs_f64();
    record.notes.push(format!("{:.0} datagrams/s were sent", sent as f64 / seconds));
    if judge && share < LEAST {
        record.breaks(format!("the rate under the flood is {share:.0} % of that beside it"));
    }
    settle(record, &mut relay, &mut ranks, Security::Fabric)
}

/// Floods an address for a slice; returns the messages per second meanwhile, and the datagrams sent.
fn slice(
    relay: &mut Relay,
    ranks: &mut [Process],
    target: SocketAddr,
    datagrams: &[Vec<u8>],
) -> Result<(f64, u64), String> {
    let (over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| flood(target, datagrams, &over, &sent));
        let mut checked = || -> Result<u64, String> {
            Ok(counts(relay, ranks)?.iter().map(|counts| counts.numbers[2]).sum())
        };
        let measured = checked().and_then(|before| {
            let begin = Instant::now();
            std::thread::sleep(SLICE);
            let after = checked()?;
            Ok((after - before) as f64 / begin.elapsed().as_secs_f64())
        });
        over.store(true, Ordering::Relaxed);
        measured.map(|rate| (rate, sent.load(Ordering::Relaxed)))
    })
}

/// Sends datagrams at [`RATE`] until `over`.
fn flood(target: SocketAddr, datagrams: &[Vec<u8>], over: &AtomicBool, sent: &AtomicU64) {
    let Ok(socket) = UdpSocket::bind("127.0.0.1:0") else { return };
    let begin = Instant::now();
    let mut number = 0;
    while !over.load(Ordering::Relaxed) {
        let due = begin.elapsed().as_nanos() as u64 * RATE / 1_000_000_000;
        // What a busy machine has missed is not made up for at once.
        let end = due.min(number + 4 * BURST);
        for datagram in number..end {
            let _ = socket.send_to(&datagrams[datagram as usize % datagrams.len()], target);
            sent.fetch_add(1, Ordering::Relaxed);
        }
        number = end.max(number);
        std::thread::sleep(Duration::from_micros(1_000_000 * BURST / RATE));
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(0.0)
}
