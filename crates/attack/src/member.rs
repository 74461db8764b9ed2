//! The program under attack: a member that exchanges checked messages with every other, reports on its
//! standard output, and takes requests on its standard input.

use std::io::BufRead;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tautline::{Config, Endpoint, Message, Waiting};

use crate::bells;
use crate::traffic::Traffic;

/// The exit code of a member that could not join and said why.
pub const NOT_JOINED: u8 = 3;

/// How long an idle member counts its wake-ups.
const IDLE: Duration = Duration::from_secs(1);

/// Runs a member until it is told to quit, or its launcher is gone.
pub fn run(role: &str) -> ExitCode {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    println!("@started");
    let ended = match role {
        "talk" => talk(Config::default()),
        // Only its own calls change what it knows about its peers: its messages carry that.
        "talk-alone" => talk(Config::with(|config| config.watchdog = None)),
        "talk-parked" => talk(Config::with(|config| config.waiting = Waiting::Park)),
        "keeper" => keep(),
        "claimer" => claim(),
        other => panic!("there is no role {other}"),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("@error {error}");
            ExitCode::from(NOT_JOINED)
        }
    }
}

fn requests() -> Receiver<String> {
    let (send, requests) = channel();
    std::thread::spawn(move || {
        std::io::stdin().lock().lines().map_while(Result::ok).try_for_each(|line| send.send(line))
    });
    requests
}

fn now() -> u64 {
    std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64)
}

fn talk(config: Config) -> tautline::Result<()> {
    let (mut traffic, builder) = Traffic::new(now(), Endpoint::builder().config(config));
    let ep = builder.join()?;
    traffic.connect(&ep)?;
    println!("@joined");
    let requests = requests();
    let (mut quiet, mut reported) = (false, false);
    loop {
        let took = ep.extract(usize::MAX)?;
        while let Some(event) = ep.poll_event() {
            traffic.note(&ep, &event);
        }
        traffic.check_failures(&ep);
        let busy = traffic.send(&ep, quiet);
        if quiet && !busy && !std::mem::replace(&mut reported, true) {
            println!("@quiet");
        }
        for request in requests.try_iter() {
            match request.as_str() {
                "quiet" => (quiet, reported) = (true, false),
                "talk" => quiet = false,
                "report" => report(&ep, &traffic),
                "idle" => idle(&ep)?,
                ring if ring.starts_with("ring ") => bells::ring(ring[5..].parse().unwrap_or(0)),
                _ => return ep.close(),
            }
        }
        if took == 0 {
            ep.wait(Some(Duration::from_millis(2)))?;
        }
    }
}

fn report(ep: &Endpoint, traffic: &Traffic) {
    let counters = ep.counters();
    let links = counters.links;
    let (out, received) = traffic.counts(ep.size());
    let list = |of: &[u64]| of.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
    let checked = traffic.checked();
    let refused = counters.strays
        + counters.stale
        + counters.forged_handshakes
        + links.bad_tag
        + links.replayed
        + links.malformed
        + counters.retries
        + counters.device.frames_refused;
    println!(
        "@report {} {} {checked} {refused}|{}|{}",
        links.frames_sent,
        links.frames_accepted,
        list(&out),
        list(&received)
    );
}

/// Counts wake-ups and frames of a member that nobody sends messages to.
fn idle(ep: &Endpoint) -> tautline::Result<()> {
    let counts = || {
        let all = ep.counters();
        let frames = all.device.frames_sent + all.device.frames_received;
        (all.sleeps, frames + all.local.frames_sent + all.local.frames_received)
    };
    let (before, until) = (counts(), Instant::now() + IDLE);
    while Instant::now() < until {
        ep.extract(usize::MAX)?;
        ep.wait(Some(until.saturating_duration_since(Instant::now())))?;
    }
    let after = counts();
    println!("@idle {} {}", after.0 - before.0, after.1 - before.1);
    Ok(())
}

/// Keeps whole messages, as many handlers do; answers each complete one.
fn keep() -> tautline::Result<()> {
    let ep = Endpoint::builder()
        .on("whole", |mut message: Message| async move {
            let bytes = message.read_to_end().await?;
            println!("@whole {}", bytes.len());
            Ok(())
        })
        .on_failure(|failure| println!("@failed {}", failure.reason))
        .join()?;
    println!("@joined");
    let requests = requests();
    loop {
        ep.extract(usize::MAX)?;
        while ep.poll_event().is_some() {}
        if requests.try_iter().next().is_some() {
            return Ok(());
        }
        ep.wait(Some(Duration::from_millis(5)))?;
    }
}

/// Begins messages that claim 16 GiB or 256 MiB, of which one byte comes, and then sends a short one. The
/// former are too long to be kept whole; the latter are not, and sixteen of them exceed what the victim can
/// map.
fn claim() -> tautline::Result<()> {
    const CLAIMED: [u64; 2] = [16 << 30, 256 << 20];
    let ep = Endpoint::builder().join()?;
    println!("@joined");
    let requests = requests();
    let count: u64 = requests.recv().ok().and_then(|line| line.parse().ok()).unwrap_or(0);
    let mut begun = Vec::new();
    for claimed in CLAIMED.into_iter().cycle().take(count as usize) {
        // A victim that refuses them is within its rights.
        match ep.begin(1, "whole", claimed) {
            Ok(mut out) => {
                let _ = out.try_piece(&[1]);
                begun.push(out);
            }
            Err(_) => break,
        }
    }
    println!("@begun {}", begun.len());
    let sent = ep.send(1, "whole", &[2; 100]);
    println!("@sent {}", sent.map_or_else(|error| error.to_string(), |()| "ok".to_owned()));
    let _ = requests.recv();
    Ok(())
}
