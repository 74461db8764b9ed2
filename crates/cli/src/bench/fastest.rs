//! `tautline bench --tune`: the fastest algorithm of each collective on this host.
//!
//! The members are threads of this process, each with an endpoint of its own, which share memory as processes
//! do.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use tautline::group::{Algorithm, Call, Choice, Choices, Group, Kind, Reduction, Sum};
use tautline::{DeviceName, Endpoint, Job, Member};
use tautline_launch::random_key;

use super::plan::Extent;

/// Numbers of members, and for tests.
const MEMBERS: &[usize] = &[2, 4, 8, 16];
const FEW: &[usize] = &[2, 3];
/// Calls before a figure is measured.
const WARM_UP: usize = 8;
/// Samples of each figure.
const SAMPLES: usize = 7;
/// The sizes at which algorithms are compared.
const TUNED: [usize; 6] = [64, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Measures the algorithms of each collective, and prints the lines of a table with the fastest ones.
pub fn tune(extent: Extent) -> Result<ExitCode> {
    let (members, time) = amount(extent);
    let mut text = String::from("# Measured by `tautline bench --tune`. Give it to all ranks of a job:\n");
    let _ = writeln!(text, "# {}=\"$(cat FILE)\" tautline run …", tautline::group::CHOICES);
    for &members in members {
        for choice in among(members, |world| fastest(world, time))? {
            let _ = writeln!(text, "{choice}");
        }
    }
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// Numbers of members, and the time of each figure.
fn amount(extent: Extent) -> (&'static [usize], Duration) {
    match extent {
        Extent::Full => (MEMBERS, Duration::from_millis(70)),
        Extent::Quick => (MEMBERS, Duration::from_millis(14)),
        Extent::Smoke => (FEW, Duration::from_micros(100)),
    }
}

/// Runs `program` at each member of a job, and returns what the first one returns.
fn among<T: Send>(
    members: usize,
    program: impl Fn(&Group) -> tautline::Result<T> + Send + Sync,
) -> Result<T> {
    let sockets = (0..members).map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
    let sockets = sockets.collect::<std::io::Result<Vec<_>>>().context("cannot bind sockets")?;
    let addresses = sockets.iter().map(|socket| Ok(Member::new(socket.local_addr()?)));
    let addresses = addresses.collect::<std::io::Result<Vec<_>>>()?;
    let key = random_key()?;
    let enter = |(rank, socket): (usize, UdpSocket)| {
        let job = Job::new(rank as u32, key.clone(), addresses.clone());
        job.with_device(DeviceName::Shm).with_socket(socket)
    };
    let jobs: Vec<Job> = sockets.into_iter().enumerate().map(enter).collect();
    let run = |job: Job| -> tautline::Result<T> {
        let endpoint = Endpoint::builder().join_job(job)?;
        let world = endpoint.world()?;
        let result = program(&world)?;
        world.barrier()?;
        drop(world);
        endpoint.close()?;
        Ok(result)
    };
    let run = &run;
    let results: Vec<_> = std::thread::scope(|scope| {
        let ranks: Vec<_> = jobs.into_iter().map(|job| scope.spawn(move || run(job))).collect();
        ranks.into_iter().map(|rank| rank.join().map_err(|_| anyhow!("a member has panicked"))).collect()
    });
    let mut first = None;
    for result in results {
        let result = result?.map_err(|why| anyhow!("{why}"))?;
        first.get_or_insert(result);
    }
    first.ok_or_else(|| anyhow!("a job without members"))
}

/// The median time of something that all members do together, in microseconds.
fn median(
    world: &Group,
    time: Duration,
    mut once: impl FnMut() -> tautline::Result<()>,
) -> tautline::Result<f64> {
    // Groups agree on sharing memory in their first calls.
    (0..WARM_UP).try_for_each(|_| once())?;
    let start = Instant::now();
    once()?;
    once()?;
    let each = (start.elapsed() / 2).as_nanos().max(1);
    // The same number at all members.
    let mut count = [(time.as_nanos() / SAMPLES as u128 / each).clamp(1, 10_000) as u64];
    world.broadcast(0, &mut count)?;
    let mut samples = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        world.barrier()?;
        let start = Instant::now();
        for _ in 0..count[0] {
            once()?;
        }
        samples.push(start.elapsed().as_nanos() as f64 / 1e3 / count[0] as f64);
    }
    samples.sort_by(f64::total_cmp);
    Ok(samples[SAMPLES / 2])
}

/// The collective of some kind and length, in a group of so many members.
fn call(kind: Kind, len: usize, members: usize) -> Call {
    match kind {
        Kind::Barrier => Call::Barrier,
        Kind::Broadcast => Call::Broadcast { root: 0, len },
        Kind::Gather => Call::Gather { root: 0, len },
        Kind::Scatter => Call::Scatter { root: 0, len },
        Kind::AllGather => Call::AllGather { len },
        Kind::AllToAll => Call::AllToAll { len },
        Kind::Reduce => Call::Reduce { root: 0, len, with: Reduction::of::<f64, _>(Sum) },
        Kind::ReduceScatter => {
            Call::ReduceScatter { lens: vec![len; members], with: Reduction::of::<f64, _>(Sum) }
        }
        _ => Call::AllReduce { len, with: Reduction::of::<f64, _>(Sum) },
    }
}

/// Bytes of the input and the output of a collective at one member.
fn lens(call: &Call, members: usize, me: usize) -> (usize, usize) {
    let at = |root: usize, len: usize| if me == root { len } else { 0 };
    match call {
        Call::Broadcast { root, len } => (at(*root, *len), *len),
        Call::Gather { root, len } => (*len, at(*root, len * members)),
        Call::Scatter { root, len } => (at(*root, len * members), *len),
        Call::AllGather { len } => (*len, len * members),
        Call::AllToAll { len } => (len * members, len * members),
        Call::Reduce { root, len, .. } => (*len, at(*root, *len)),
        Call::AllReduce { len, .. } => (*len, *len),
        Call::ReduceScatter { lens, .. } => (lens.iter().sum(), lens[me]),
        _ => (0, 0),
    }
}

fn time_of(world: &Group, group: &Group, call: &Call, time: Duration) -> tautline::Result<f64> {
    let (input, output) = lens(call, world.size(), world.member());
    let (input, mut output) = (vec![1; input], vec![0; output]);
    median(world, time, || group.run_into(call, &input, &mut output))
}

/// The fastest algorithm of each collective at each size, as lines of a table for this number of members.
fn fastest(world: &Group, time: Duration) -> tautline::Result<Vec<Choice>> {
    let members = world.size();
    let mut lines: Vec<Choice> = Vec::new();
    for kind in Kind::ALL {
        let groups = kind.algorithms().iter().map(|&algorithm| {
            let line = Choice { kind, bytes: usize::MAX, members: usize::MAX, algorithm };
            Ok((algorithm, world.with_choices(Choices::with([line]))?))
        });
        let groups = groups.collect::<tautline::Result<Vec<(Algorithm, Group)>>>()?;
        let mut chosen: Vec<Choice> = Vec::new();
        for len in TUNED {
            let call = call(kind, len, members);
            let (input, output) = lens(&call, members, 0);
            if input.max(output) > 16 << 20 {
                break;
            }
            let mut best: Option<(f64, Algorithm)> = None;
            for (algorithm, group) in &groups {
                if *algorithm == Algorithm::Shared && !call.fits_shared_memory(members) {
                    continue;
                }
                // The slowest member counts.
                let mut us = [time_of(world, group, &call, time)?];
                world.all_reduce(&mut us, tautline::group::Max)?;
                // Where an algorithm does not apply, another line of the table was measured.
                let applies = match algorithm {
                    Algorithm::Shared => group.hosts() == Some(1),
                    Algorithm::Hosts => group.hosts().is_some_and(|hosts| hosts > 1),
                    _ => true,
                };
                if applies && best.is_none_or(|(least, _)| us[0] < least) {
                    best = Some((us[0], *algorithm));
                }
            }
            let Some((_, algorithm)) = best else { continue };
            let bytes = call.choice(members).map_or(len, |(_, bytes)| bytes);
            match chosen.last_mut().filter(|line| line.algorithm == algorithm) {
                Some(line) => line.bytes = bytes,
                None => chosen.push(Choice { kind, bytes, members, algorithm }),
            }
            if kind == Kind::Barrier {
                break;
            }
        }
        if let Some(line) = chosen.last_mut() {
            line.bytes = usize::MAX;
        }
        lines.append(&mut chosen);
    }
    Ok(lines)
}
