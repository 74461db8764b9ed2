//! What collectives cost on this machine: medians by number of members and bytes. The members are threads of
//! one process, each with an endpoint of its own, as far as they get cores.
//!
//! `cargo run --release -p tautline --example group_cost [shm|udp] [members …]`
#![allow(clippy::print_stdout)]

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use tautline::group::{Call, Group, Reduction, Sum};
use tautline::node::link::JobKey;
use tautline::{DeviceName, Endpoint, Error, Job, Member, Result};

const SIZES: [usize; 4] = [8, 1 << 10, 64 << 10, 1 << 20];

/// Time for each line, and the number of medians' samples.
const TIME: Duration = Duration::from_millis(200);
const SAMPLES: usize = 11;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let device = if args.iter().any(|arg| arg == "udp") { DeviceName::Udp } else { DeviceName::Shm };
    let mut members: Vec<usize> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    if members.is_empty() {
        members = vec![2, 4, 8, 16];
    }
    println!("{}: microseconds for each collective, the median of {SAMPLES} samples", device.name());
    println!("{:>8} {:>14} {:>9} {:>12}", "members", "collective", "bytes", "µs");
    for n in members {
        let jobs = jobs(device, n)?;
        std::thread::scope(|scope| {
            let ranks: Vec<_> = jobs.into_iter().map(|job| scope.spawn(|| measure(job))).collect();
            ranks.into_iter().try_for_each(|rank| rank.join().expect("it does not panic"))
        })?;
    }
    Ok(())
}

fn jobs(device: DeviceName, n: usize) -> Result<Vec<Job>> {
    let sockets: Vec<_> = (0..n)
        .map(|_| UdpSocket::bind("127.0.0.1:0"))
        .collect::<std::io::Result<_>>()
        .map_err(Error::other)?;
    let members: Vec<_> = sockets
        .iter()
        .map(|socket| Ok(Member::new(socket.local_addr()?)))
        .collect::<std::io::Result<_>>()
        .map_err(Error::other)?;
    let job = |(rank, socket)| {
        let job = Job::new(rank as u32, JobKey::new([7; 32]), members.clone());
        job.with_device(device).with_socket(socket)
    };
    Ok(sockets.into_iter().enumerate().map(job).collect())
}

fn measure(job: Job) -> Result<()> {
    let ep = Endpoint::builder().join_job(job)?;
    let world = ep.world()?;
    line(&world, "barrier", 0, &Call::Barrier)?;
    for len in SIZES {
        let with = Reduction::of::<f64, _>(Sum);
        line(&world, "broadcast", len, &Call::Broadcast { root: 0, len })?;
        line(&world, "all-reduce", len, &Call::AllReduce { len, with: with.clone() })?;
        line(&world, "reduce", len, &Call::Reduce { root: 0, len, with })?;
        if len <= 64 << 10 {
            line(&world, "all-gather", len, &Call::AllGather { len })?;
            line(&world, "all-to-all", len, &Call::AllToAll { len })?;
        }
    }
    world.barrier()?;
    ep.close()
}

/// Measures one collective, and prints its line at the first member.
fn line(world: &Group, name: &str, len: usize, call: &Call) -> Result<()> {
    let (n, me) = (world.size(), world.member());
    let (input, output) = match call {
        Call::Broadcast { root, .. } => (if me == *root { len } else { 0 }, len),
        Call::Reduce { root, .. } => (len, if me == *root { len } else { 0 }),
        Call::AllGather { .. } => (len, len * n),
        Call::AllToAll { .. } => (len * n, len * n),
        _ => (len, len),
    };
    let (input, mut output) = (vec![1; input], vec![0; output]);
    // As many as fit the time, the same number at all members.
    let mut count = [1_u64];
    let start = Instant::now();
    world.run_into(call, &input, &mut output)?;
    world.run_into(call, &input, &mut output)?;
    let each = start.elapsed() / 2;
    count[0] = (TIME.as_nanos() / SAMPLES as u128 / each.as_nanos().max(1)).clamp(3, 10_000) as u64;
    world.broadcast(0, &mut count)?;
    let mut samples = Vec::new();
    for _ in 0..SAMPLES {
        world.barrier()?;
        let start = Instant::now();
        for _ in 0..count[0] {
            world.run_into(call, &input, &mut output)?;
        }
        samples.push(start.elapsed().as_nanos() as f64 / 1000.0 / count[0] as f64);
    }
    samples.sort_by(f64::total_cmp);
    if me == 0 {
        println!("{n:>8} {name:>14} {len:>9} {:>12.2}", samples[SAMPLES / 2]);
    }
    Ok(())
}
