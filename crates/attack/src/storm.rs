//! Storms: members are killed and restarted, or stopped and continued, while all exchange checked messages.

use std::time::Duration;

use rustix::process::Signal;
use tautline::Security;

use crate::datagrams::{all_up, forward_until, settle};
use crate::hostile::Random;
use crate::launch::{Members, Process, member};
use crate::record::Record;
use crate::relay::Relay;

/// The longest time for which a member is stopped: half the silence bound, and less (N-8, L-16).
const STOPPED_MS: usize = 450;

/// A job whose members talk.
struct Storm {
    members: Members,
    ranks: Vec<Process>,
    random: Random,
    /// Nobody is in between.
    relay: Relay,
    device: &'static str,
}

impl Storm {
    fn new(device: &'static str, n: usize, role: &str, seed: u64) -> Result<Storm, String> {
        let failed = |error: std::io::Error| format!("the attack could not be set up: {error}");
        let members = Members::new(n, device, Security::Fabric).map_err(failed)?;
        let ranks = (0..n).map(|rank| members.start(rank, None, member(role, "")));
        let ranks = ranks.collect::<Result<_, _>>().map_err(failed)?;
        let relay = Relay::new(&[]).map_err(failed)?;
        let mut storm = Storm { members, ranks, random: Random::new(seed), relay, device };
        forward_until(&mut storm.relay, &mut storm.ranks, all_up)?;
        Ok(storm)
    }

    /// Notes deaths of members other than `victim`, and transports that are not the expected ones.
    fn check(&mut self, record: &mut Record, victim: Option<usize>) {
        for rank in &mut self.ranks {
            for line in rank.drain("@down") {
                let whom = line.split_whitespace().nth(1).and_then(|peer| peer.parse().ok());
                if whom.is_none() || whom != victim {
                    record.breaks(format!("rank {} of {} said {line}", rank.rank, self.device));
                }
            }
            for line in rank.drain("@transport") {
                if self.device == "shm" && line.split_whitespace().nth(2) != Some("shm") {
                    record.breaks(format!("rank {} said {line}", rank.rank));
                }
            }
        }
    }

    fn pause(&mut self, least_ms: usize, most_ms: usize) {
        let time = least_ms + self.random.below(most_ms - least_ms);
        std::thread::sleep(Duration::from_millis(time as u64));
    }
}

/// Kills a random member and starts it again, `count` times: at once, or when its death is known.
pub fn kills(device: &'static str, ranks: usize, count: u64, seed: u64) -> Record {
    Record::of(format!("kills with restart, {device}, {ranks} ranks"), |record| {
        let ended = Storm::new(device, ranks, "talk-alone", seed).and_then(|mut storm| {
            for round in 0..count {
                kill_one(&mut storm, record, round % 2 == 0)?;
                record.count += 1;
                record.tell(count);
            }
            settle(record, &mut storm.relay, &mut storm.ranks, Security::Open)
        });
        if let Err(why) = ended {
            record.breaks(why);
        }
    })
}

fn kill_one(storm: &mut Storm, record: &mut Record, at_once: bool) -> Result<(), String> {
    let victim = storm.random.below(storm.ranks.len());
    storm.pause(5, 60);
    storm.check(record, None);
    storm.ranks[victim].kill();
    let restart = |storm: &Storm| {
        let started = storm.members.start(victim, None, member("talk-alone", ""));
        started.map_err(|error| format!("rank {victim} could not be started again: {error}"))
    };
    if at_once {
        storm.ranks[victim] = restart(storm)?;
    }
    let others: Vec<_> = (0..storm.ranks.len()).filter(|rank| *rank != victim).collect();
    for &rank in &others {
        storm.ranks[rank].line(&format!("@down {victim} "))?;
    }
    if !at_once {
        storm.ranks[victim] = restart(storm)?;
    }
    for &rank in &others {
        storm.ranks[rank].line(&format!("@up {victim}"))?;
        storm.ranks[victim].line(&format!("@up {rank}"))?;
    }
    storm.check(record, Some(victim));
    Ok(())
}

/// Stops random members for up to 450 ms, `count` times: two of them, so that their stops overlap.
pub fn stops(device: &'static str, ranks: usize, count: u64, seed: u64) -> Record {
    Record::of(format!("stops, {device}, {ranks} ranks"), |record| {
        let ended = Storm::new(device, ranks, "talk", seed).and_then(|mut storm| {
            while record.count < count {
                let first = storm.random.below(ranks);
                let second = (first + 1 + storm.random.below(ranks - 1)) % ranks;
                storm.ranks[first].signal(Signal::STOP);
                storm.pause(20, STOPPED_MS / 2);
                storm.ranks[second].signal(Signal::STOP);
                storm.pause(20, STOPPED_MS / 2);
                storm.ranks[first].signal(Signal::CONT);
                storm.pause(10, STOPPED_MS / 4);
                storm.ranks[second].signal(Signal::CONT);
                storm.pause(10, 60);
                storm.check(record, None);
                storm.ranks.iter_mut().try_for_each(Process::check_alive)?;
                record.count += 2;
                record.tell(count);
            }
            settle(record, &mut storm.relay, &mut storm.ranks, Security::Open)
        });
        if let Err(why) = ended {
            record.breaks(why);
        }
    })
}
