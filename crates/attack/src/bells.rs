//! A member that abuses doorbells: it takes no rings, makes every descriptor that it shares block, and fills
//! each of them with bytes that mean nothing, while two others exchange messages.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::fs::OFlags;
use rustix::net::SendFlags;
use rustix::process::{PidfdFlags, PidfdGetfdFlags};
use tautline::Security;

use crate::datagrams::{all_up, counts, forward_until, settle};
use crate::launch::{Members, PATIENCE, Process, member};
use crate::record::Record;
use crate::relay::Relay;

/// The ranks that go on, and the one after them that attacks.
const VICTIMS: usize = 2;
const RINGER: usize = 2;
/// Reports of the victims between which messages must have arrived.
const REPORTS: u32 = 4;

/// The rings of one attacking process; most come when everything is full or closed.
const RINGS_EACH: u64 = 100_000;

/// Rings `count` times.
pub fn attack(count: u64) -> Record {
    Record::of("bells".to_owned(), |record| {
        if let Err(why) = run(record, count) {
            record.breaks(why);
        }
    })
}

fn run(record: &mut Record, count: u64) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the attack could not be set up: {error}");
    let members = Members::new(VICTIMS + 1, "shm", Security::Fabric).map_err(failed)?;
    let start = |rank| members.start(rank, None, member("talk", "")).map_err(failed);
    let mut ranks = (0..=VICTIMS).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut relay = Relay::new(&[]).map_err(failed)?;
    let mut shared = 0;
    loop {
        forward_until(&mut relay, &mut ranks, all_up)?;
        let (victims, ringer) = ranks.split_at_mut(VICTIMS);
        let wanted = RINGS_EACH.min(count - record.count);
        ringer[0].ask(&format!("ring {wanted}"));
        shared += ringer[0].line("@holds")?.parse().unwrap_or(0);
        let (mut rung, until) = (0, Instant::now() + PATIENCE);
        while rung < wanted {
            (0..REPORTS).try_for_each(|_| await_messages(&mut relay, victims))?;
            rung = ringer[0].drain("@rung ").last().and_then(|line| line[6..].parse().ok()).unwrap_or(rung);
            ringer[0].check_alive()?;
            if Instant::now() > until {
                return Err(format!("the ringer got no further than {rung} rings within {PATIENCE:?}"));
            }
        }
        record.count += rung;
        record.tell(count);
        ringer[0].kill();
        for rank in &mut *victims {
            let other = format!("@down {} ", VICTIMS - 1 - rank.rank);
            let deaths = rank.drain(&other);
            deaths.iter().for_each(|line| record.breaks(format!("rank {} said {line}", rank.rank)));
        }
        if record.count >= count {
            break;
        }
        for rank in &mut *victims {
            rank.line(&format!("@down {RINGER} "))?;
            // Ranks that stay have nothing new to report.
            rank.put_back(vec![format!("@up {}", VICTIMS - 1 - rank.rank)]);
        }
        ringer[0] = start(RINGER)?;
    }
    record.notes.push(format!("{shared} descriptors shared"));
    if shared == 0 {
        return Err("the member shares no descriptor, so that there is nothing to attack".to_owned());
    }
    settle(record, &mut relay, &mut ranks[..VICTIMS], Security::Fabric)
}

/// Waits until each victim has received another message of the other.
fn await_messages(relay: &mut Relay, victims: &mut [Process]) -> Result<(), String> {
    let received = |relay: &mut Relay, victims: &mut [Process]| -> Result<Vec<u64>, String> {
        Ok(counts(relay, victims)?.iter().enumerate().map(|(at, of)| of.received[1 - at]).collect())
    };
    let before = received(relay, victims)?;
    forward_until(relay, victims, |victims| {
        // The answers come by the standard output, so nothing needs to be forwarded for them.
        let mut nobody = Relay::new(&[]).map_err(|error| error.to_string())?;
        let now = received(&mut nobody, victims)?;
        Ok(before.iter().zip(now).all(|(before, now)| now > *before))
    })
}

/// The ringer's part: rings `count` times, and says so after every thousand.
pub fn ring(count: u64) {
    const TELL_AFTER: u64 = 1_000;
    let shared = shared_descriptors();
    println!("@holds {}", shared.len());
    let mut rung = 0;
    while rung < count && !shared.is_empty() {
        for _ in 0..TELL_AFTER.min(count - rung) {
            // Most of them are full before long; that is the point.
            let _ = fill(&shared[rung as usize % shared.len()]);
            rung += 1;
        }
        println!("@rung {rung}");
    }
}

/// Writes once to a socket, without waiting. The descriptors of other kinds have been filled already.
fn fill(fd: &OwnedFd) -> rustix::io::Result<usize> {
    rustix::net::send(fd, &[0xa5; 96], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

/// Copies of this process's sockets, eventfds and pipes, all of which are full and block. A copy shares the
/// flags of the original, and so does the end that a peer was sent.
fn shared_descriptors() -> Vec<OwnedFd> {
    let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
    let (Ok(own), Ok(all)) = (own, std::fs::read_dir("/proc/self/fd")) else { return Vec::new() };
    let kinds = ["socket:", "pipe:", "anon_inode:[eventfd]"];
    let shareable = |to: &str| kinds.iter().any(|kind| to.starts_with(kind));
    let numbers = all
        .flatten()
        .filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|to| to.to_str().is_some_and(shareable)));
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let copies = numbers.filter(|number| *number > 2).filter_map(|number| {
        let copy = rustix::process::pidfd_getfd(&own, number, PidfdGetfdFlags::empty()).ok()?;
        let flags = rustix::fs::fcntl_getfl(&copy).ok()?;
        rustix::fs::fcntl_setfl(&copy, flags | OFlags::NONBLOCK).ok()?;
        // The largest number that an eventfd takes fills it; a pipe takes many.
        let most = 1 << 16;
        (0..most).take_while(|_| rustix::io::write(&copy, &(u64::MAX - 1).to_le_bytes()).is_ok()).count();
        rustix::fs::fcntl_setfl(&copy, flags - OFlags::NONBLOCK).ok()?;
        Some(copy)
    });
    copies.collect()
}
