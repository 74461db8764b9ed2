//! Hostile datagrams from the addresses of members, while all members exchange messages: random, altered,
//! truncated, replayed, redirected, spliced, of another job, of another version, in bursts.

use std::time::{Duration, Instant};

use tautline::Security;

use crate::hostile::{Captures, Forger, answers_other_job};
use crate::launch::{Members, PATIENCE, Process, member};
use crate::record::Record;
use crate::relay::Relay;

const RANKS: usize = 3;
/// Hostile datagrams for each genuine one, and how many may come at once.
const EACH: u64 = 8;
const BURST: u64 = 64;
/// Memory that a member may take beyond what it took before, in KiB: captured and reordered frames, buffers
/// that had not grown yet.
const GROWTH_KIB: u64 = 64 << 10;
/// Wake-ups of an idle member that no frame explains: the listener of a process that was killed is looked for
/// 50 times. A member that is kept awake has thousands.
const SPARE_WAKE_UPS: u64 = 100;

/// Sends `count` of them to a job in a security mode.
pub fn attack(security: Security, count: u64, seed: u64) -> Record {
    Record::of(format!("hostile datagrams, {}", security.name()), |record| {
        if let Err(why) = run(record, security, count, seed) {
            record.breaks(why);
        }
    })
}

fn run(record: &mut Record, security: Security, count: u64, seed: u64) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the attack could not be set up: {error}");
    let members = Members::new(RANKS, "udp", security).map_err(failed)?;
    let mut relay = Relay::new(&members.addresses).map_err(failed)?;
    let mut ranks = Vec::new();
    for rank in 0..RANKS {
        let seen = relay.seen_by(rank).map_err(failed)?;
        ranks.push(members.start(rank, Some(&seen), member("talk", "")).map_err(failed)?);
    }
    let mut forger = Forger::new(security, seed);
    let mut captures = Captures::default();
    forward_until(&mut relay, &mut ranks, all_up)?;
    let before: Vec<_> = ranks.iter().map(Process::memory).collect();
    let (mut sent, mut answered, mut until) = (0, 0_u64, Instant::now() + PATIENCE);
    while sent < count {
        let genuine = relay.pass(|relay, passing| {
            if let Some(altered) = forger.overtaking(passing.bytes) {
                relay.inject(passing.from, passing.to, &altered);
                sent += 1;
            }
            answered += u64::from(answers_other_job(passing.bytes));
            captures.add(passing.bytes);
            true
        }) as u64;
        if genuine > 0 {
            until = Instant::now() + PATIENCE;
        } else if Instant::now() > until {
            return Err(format!("no member sent anything for {PATIENCE:?}, after {sent} datagrams"));
        }
        let burst = if sent % 4_096 < BURST { 4 * BURST } else { (EACH * genuine).clamp(8, BURST) };
        for _ in 0..burst.min(count.saturating_sub(sent)) {
            let to = forger.random.below(RANKS);
            let from = (to + 1 + forger.random.below(RANKS - 1)) % RANKS;
            relay.inject(from, to, &forger.datagram(&captures));
            sent += 1;
        }
        record.count = sent;
        record.tell(count);
        // The members need the processor, too.
        std::thread::sleep(Duration::from_micros(if genuine == 0 { 200 } else { 20 }));
    }
    for rank in &mut ranks {
        let deaths = rank.drain("@down");
        deaths.iter().for_each(|line| record.breaks(format!("rank {} said {line}", rank.rank)));
    }
    if answered > 0 {
        record.breaks(format!("{answered} handshakes of another job were answered"));
    }
    settle(record, &mut relay, &mut ranks, security)?;
    let after = ranks.iter().map(Process::memory);
    let growth = before.iter().zip(after).map(|(before, after)| after.saturating_sub(*before)).max();
    let growth = growth.unwrap_or(0);
    record.notes.push(format!("memory grew by {growth} KiB"));
    if growth > GROWTH_KIB {
        record.breaks(format!("a member grew by {growth} KiB"));
    }
    Ok(())
}

/// Forwards datagrams until `done`.
pub fn forward_until(
    relay: &mut Relay,
    ranks: &mut [Process],
    mut done: impl FnMut(&mut [Process]) -> Result<bool, String>,
) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    while !done(ranks)? {
        for rank in ranks.iter_mut() {
            rank.check_alive()?;
        }
        if Instant::now() > until {
            return Err(format!("the members got no further within {PATIENCE:?}"));
        }
        if relay.pass(|_, _| true) == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    Ok(())
}

/// Whether every rank has reported every other one up; forgets the reports when it is so.
pub fn all_up(ranks: &mut [Process]) -> Result<bool, String> {
    let wanted = ranks.len() - 1;
    let reports: Vec<_> = ranks.iter_mut().map(|rank| rank.drain("@up")).collect();
    let distinct = |lines: &Vec<String>| lines.iter().collect::<std::collections::HashSet<_>>().len();
    let up = reports.iter().all(|lines| distinct(lines) >= wanted);
    if !up {
        ranks.iter_mut().zip(reports).for_each(|(rank, lines)| rank.put_back(lines));
    }
    Ok(up)
}

/// What a member counted: frames sent and accepted, messages checked, frames refused; messages sent to each
/// rank and received from each.
pub struct Counts {
    pub numbers: Vec<u64>,
    out: Vec<u64>,
    pub received: Vec<u64>,
}

pub fn counts(relay: &mut Relay, ranks: &mut [Process]) -> Result<Vec<Counts>, String> {
    ranks.iter_mut().for_each(|rank| rank.ask("report"));
    let mut all: Vec<Option<Counts>> = ranks.iter().map(|_| None).collect();
    forward_until(relay, ranks, |ranks| {
        for (at, rank) in ranks.iter_mut().enumerate() {
            if let Some(line) = rank.drain("@report").pop() {
                let numbers = |text: &str| text.split_whitespace().filter_map(|n| n.parse().ok()).collect();
                let mut parts = line.trim_start_matches("@report").split('|').map(numbers);
                let mut next = || parts.next().unwrap_or_default();
                all[at] = Some(Counts { numbers: next(), out: next(), received: next() });
            }
        }
        Ok(all.iter().all(Option::is_some))
    })?;
    Ok(all.into_iter().flatten().collect())
}

/// Ends the traffic: everything that was sent must arrive, no more frames may have been accepted than members
/// sent, and then the members must sleep.
pub fn settle(
    record: &mut Record,
    relay: &mut Relay,
    ranks: &mut [Process],
    security: Security,
) -> Result<(), String> {
    ranks.iter_mut().for_each(|rank| rank.ask("quiet"));
    let mut quiet = vec![false; ranks.len()];
    forward_until(relay, ranks, |ranks| {
        ranks.iter_mut().zip(&mut quiet).for_each(|(rank, quiet)| *quiet |= !rank.drain("@quiet").is_empty());
        Ok(quiet.iter().all(|quiet| *quiet))
    })?;
    let until = Instant::now() + PATIENCE;
    let all = loop {
        let all = counts(relay, ranks)?;
        let lost = (0..all.len()).flat_map(|from| (0..all.len()).map(move |to| (from, to)));
        let lost = lost.filter(|(from, to)| from != to && all[*from].out[*to] != all[*to].received[*from]);
        let lost: Vec<_> = lost.collect();
        if lost.is_empty() {
            break all;
        }
        if Instant::now() > until {
            return Err(format!("not all messages arrived between ranks {lost:?}"));
        }
    };
    let sum = |at: usize| all.iter().map(|counts| counts.numbers[at]).sum::<u64>();
    record.checked = sum(2);
    record.notes.push(format!("{} datagrams refused", sum(3)));
    // Members report one after the other, so what was sent is counted after what was accepted.
    let sent = counts(relay, ranks)?.iter().map(|counts| counts.numbers[0]).sum::<u64>();
    if security != Security::Open && sum(1) > sent {
        record.breaks(format!("{} frames were accepted, and members sent {sent}", sum(1)));
    }
    ranks.iter_mut().for_each(|rank| rank.ask("idle"));
    let mut idle: Vec<Option<String>> = vec![None; ranks.len()];
    forward_until(relay, ranks, |ranks| {
        ranks
            .iter_mut()
            .zip(&mut idle)
            .for_each(|(rank, idle)| *idle = rank.drain("@idle").pop().or(idle.take()));
        Ok(idle.iter().all(Option::is_some))
    })?;
    let mut unexplained = 0;
    for line in idle.into_iter().flatten() {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        if numbers[0] > numbers[1] + SPARE_WAKE_UPS {
            record.breaks(format!("{} wake-ups of an idle member for {} frames", numbers[0], numbers[1]));
        }
        unexplained = unexplained.max(numbers[0].saturating_sub(numbers[1]));
    }
    record.notes.push(format!("at most {unexplained} wake-ups of an idle member that no frame explains"));
    Ok(())
}
