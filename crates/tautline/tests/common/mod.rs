//! Jobs for tests: several endpoints in one process, each in a thread of its own.
#![allow(dead_code, clippy::print_stdout, clippy::print_stderr)]

pub mod launch;
pub mod log;
pub mod network_faults;
pub mod pair;
pub mod sleeps;
pub mod survivor;
pub mod talker;
pub mod victim;

use std::io::Write;
use std::net::UdpSocket;
use std::sync::mpsc;
use std::time::Duration;

use tautline::node::link::JobKey;
use tautline::{Builder, Config, DeviceName, Endpoint, Error, Event, HandlerFailure, Job, Member};
pub use tautline_model::pattern;

/// Descriptions of a job of `n` processes on loopback. The sockets are bound, so that no port can be taken
/// meanwhile.
pub fn jobs(n: usize) -> Vec<Job> {
    jobs_at("127.0.0.1:0", n)
}

/// The job of rank 0 of two, over a device if one is named, and rank 1, which is not to join.
pub fn job_beside_an_absent_rank(device: Option<DeviceName>) -> (Job, Job) {
    let mut both = jobs(2);
    let absent = both.remove(1);
    let mut job = both.remove(0);
    job.device = device;
    (job, absent)
}

/// As [`jobs`], at addresses of a given kind.
pub fn jobs_at(address: &str, n: usize) -> Vec<Job> {
    let sockets: Vec<_> = (0..n).map(|_| UdpSocket::bind(address).unwrap()).collect();
    let members: Vec<_> = sockets.iter().map(|s| Member::new(s.local_addr().unwrap())).collect();
    sockets
        .into_iter()
        .enumerate()
        .map(|(rank, socket)| {
            Job::new(rank as u32, JobKey::new([42; 32]), members.clone()).with_socket(socket)
        })
        .collect()
}

/// Runs `program` once per rank, each in a thread, and waits for all, with a time limit. First over
/// datagrams, then through shared memory.
pub fn run(n: usize, program: impl Fn(Job) + Send + Sync) {
    run_over(DeviceName::Udp, n, &program);
    run_over(DeviceName::Shm, n, &program);
}

/// As [`run`], over one device.
pub fn run_over(device: DeviceName, n: usize, program: impl Fn(Job) + Send + Sync) {
    let mut all = jobs(n);
    all.iter_mut().for_each(|job| job.device = Some(device));
    run_jobs(all, program);
}

/// As [`run`], with jobs made beforehand.
pub fn run_jobs(jobs: Vec<Job>, program: impl Fn(Job) + Send + Sync) {
    let _limit = Limit::seconds(60);
    std::thread::scope(|scope| {
        for job in jobs {
            let program = &program;
            scope.spawn(move || program(job));
        }
    });
}

/// Joins with a builder.
pub fn join(builder: Builder, job: Job) -> Endpoint {
    builder.join_job(job).unwrap()
}

/// Ends the test process unless it is dropped in time, so that a test that hangs does not hang the whole run.
pub struct Limit(#[allow(dead_code)] mpsc::Sender<()>);

impl Limit {
    pub fn seconds(seconds: u64) -> Limit {
        let (alive, over) = mpsc::channel::<()>();
        let name = std::thread::current().name().unwrap_or("a test").to_owned();
        std::thread::spawn(move || {
            if over.recv_timeout(Duration::from_secs(seconds)) == Err(mpsc::RecvTimeoutError::Timeout) {
                // Not by eprintln, which the test harness captures.
                let _ = writeln!(std::io::stderr(), "{name} did not end within {seconds} s");
                std::process::exit(124);
            }
        });
        Limit(alive)
    }
}

/// A configuration with changes.
pub fn config(change: impl FnOnce(&mut Config)) -> Config {
    Config::with(change)
}

/// Extracts until an event satisfies `wanted`, and returns it.
pub fn await_event(ep: &Endpoint, mut wanted: impl FnMut(&Event) -> bool) -> Event {
    loop {
        ep.extract(usize::MAX).unwrap();
        while let Some(event) = ep.poll_event() {
            if wanted(&event) {
                return event;
            }
        }
        ep.wait(Some(Duration::from_millis(100))).unwrap();
    }
}

/// Extracts and waits until `done`, and returns the failures of handlers, in order.
pub fn failures_until(ep: &Endpoint, mut done: impl FnMut() -> bool) -> Vec<HandlerFailure> {
    let mut failures = Vec::new();
    loop {
        match ep.run_until(&mut done) {
            Ok(()) => break,
            Err(Error::HandlerFailed(failure)) => failures.push(*failure),
            Err(other) => panic!("{other:?}"),
        }
    }
    failures.extend(std::iter::from_fn(|| ep.poll_failure()));
    failures
}

/// Sleeps of a program that has nothing to do for half a second: one, and some for what its peers still
/// send. One that is kept awake tries to sleep thousands of times.
pub const FEW_SLEEPS: u64 = 20;

/// Extracts for a time.
pub fn extract_for(ep: &Endpoint, time: Duration) {
    let until = std::time::Instant::now() + time;
    while std::time::Instant::now() < until {
        ep.extract(usize::MAX).unwrap();
        ep.wait(Some(Duration::from_millis(1))).unwrap();
    }
}

/// A random number from a seed, which it changes.
pub fn draw(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}
