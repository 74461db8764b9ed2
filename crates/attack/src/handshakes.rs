//! Ranks that join and restart while somebody on the path copies their handshakes to other ranks and replays
//! those of former incarnations.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tautline::Security;

use crate::hostile::{Random, is_handshake};
use crate::launch::{Members, PATIENCE, Process, member};
use crate::record::Record;
use crate::relay::Relay;

const RANKS: usize = 3;
/// The rank that comes late and is restarted.
const LATE: usize = 1;
/// Copies of hellos that go to another rank before the late one is there.
const COPIES: u64 = 6;
/// Handshakes of former incarnations that are kept.
const RECORDED: usize = 64;

/// Lets a rank join late and restart `count` times.
pub fn attack(count: u64, seed: u64) -> Record {
    Record::of("replayed and redirected handshakes".to_owned(), |record| {
        if let Err(why) = run(record, count, seed) {
            record.breaks(why);
        }
    })
}

/// The first byte of a welcome.
const WELCOME: u8 = 0x73;

/// What the attacker knows.
struct Attacker {
    random: Random,
    /// Handshakes of former incarnations: sender, receiver, bytes.
    old: VecDeque<(usize, usize, Vec<u8>)>,
    /// Those of the present one.
    new: VecDeque<(usize, usize, Vec<u8>)>,
    copied: u64,
    replayed: u64,
    /// Welcomes for the late rank on their way.
    welcomes: u64,
}

impl Attacker {
    /// Forwards everything; copies and replays handshakes.
    fn pass(&mut self, relay: &mut Relay) -> usize {
        relay.pass(|relay, passing| {
            if is_handshake(passing.bytes) {
                let third = RANKS - passing.from - passing.to;
                relay.inject(passing.from, third, passing.bytes);
                self.copied += 1;
                let any = self.old.get(self.random.below(self.old.len()));
                // Before each handshake also those that former incarnations sent on its way.
                let same = self.old.iter().filter(|old| (old.0, old.1) == (passing.from, passing.to));
                for (from, to, bytes) in any.into_iter().chain(same) {
                    relay.inject(*from, *to, bytes);
                    self.replayed += 1;
                }
                self.welcomes += u64::from(passing.to == LATE && passing.bytes[0] == WELCOME);
                self.new.push_back((passing.from, passing.to, passing.bytes.to_vec()));
                if self.new.len() > RECORDED {
                    self.new.pop_front();
                }
            }
            true
        })
    }

    /// Replays all that former incarnations of the late rank have sent.
    fn replay_late(&mut self, relay: &Relay) {
        for (_, to, bytes) in self.old.iter().filter(|old| old.0 == LATE) {
            relay.inject(LATE, *to, bytes);
            self.replayed += 1;
        }
    }
}

fn run(record: &mut Record, count: u64, seed: u64) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the attack could not be set up: {error}");
    let members = Members::new(RANKS, "udp", Security::Fabric).map_err(failed)?;
    let mut relay = Relay::new(&members.addresses).map_err(failed)?;
    let start = |relay: &Relay, rank: usize| -> Result<Process, String> {
        let seen = relay.seen_by(rank).map_err(failed)?;
        members.start(rank, Some(&seen), member("talk-alone", "")).map_err(failed)
    };
    let mut others = vec![start(&relay, 0)?, start(&relay, 2)?];
    let (old, new) = (VecDeque::new(), VecDeque::new());
    let mut attacker = Attacker { random: Random::new(seed), old, new, copied: 0, replayed: 0, welcomes: 0 };
    for _ in 0..count {
        let (copied, welcomes) = (attacker.copied, attacker.welcomes);
        attacker.replay_late(&relay);
        forward(&mut attacker, &mut relay, &mut others, |attacker, _| attacker.copied >= copied + COPIES)?;
        // H-7: it is not there, so no hello of it was recent.
        if attacker.welcomes > welcomes {
            record.breaks(format!("hellos of former incarnations of rank {LATE} were welcomed"));
        }
        let mut late = start(&relay, LATE)?;
        let mut up = [false; 2];
        forward(&mut attacker, &mut relay, &mut others, |_, others| {
            let report = format!("@up {LATE}");
            others.iter_mut().zip(&mut up).for_each(|(rank, up)| *up |= !rank.drain(&report).is_empty());
            up == [true; 2]
        })?;
        late.kill();
        forward(&mut attacker, &mut relay, &mut others, |_, others| {
            let report = format!("@down {LATE} ");
            others.iter_mut().all(|rank| {
                let lines = rank.drain(&report);
                let noticed = lines.iter().any(|line| !line.contains("refused"));
                rank.put_back(lines);
                noticed
            })
        })?;
        for rank in &mut others {
            for line in rank.drain("@down") {
                if line.contains("refused") || !line.starts_with(&format!("@down {LATE} ")) {
                    record.breaks(format!("rank {} said {line}", rank.rank));
                }
            }
        }
        attacker.old.extend(attacker.new.drain(..));
        while attacker.old.len() > RECORDED {
            attacker.old.pop_front();
        }
        record.count += 1;
        record.tell(count);
    }
    record.notes.push(format!("{} copied, {} replayed", attacker.copied, attacker.replayed));
    Ok(())
}

fn forward(
    attacker: &mut Attacker,
    relay: &mut Relay,
    others: &mut [Process],
    mut done: impl FnMut(&Attacker, &mut [Process]) -> bool,
) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    while !done(attacker, others) {
        others.iter_mut().try_for_each(Process::check_alive)?;
        if Instant::now() > until {
            let said: Vec<_> = others.iter_mut().flat_map(|rank| rank.drain("@")).rev().take(6).collect();
            return Err(format!("rank {LATE} is kept out for {PATIENCE:?}; the others said {said:?}"));
        }
        if attacker.pass(relay) == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    Ok(())
}
