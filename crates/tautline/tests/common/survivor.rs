//! A survivor in the process of a test, its victims in others, and how long the reports of deaths take.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tautline::{DeviceName, Down, Endpoint, Event, Waiting};

use super::config;
use super::launch::{Launcher, Process, now};
use super::victim::{Received, VICTIM, await_up, check_failures, listener, start, until};

/// A survivor in this process, and a job for it and its victims.
pub struct Scene {
    pub launcher: Launcher,
    pub ep: Endpoint,
    pub received: Received,
}

impl Scene {
    pub fn new(ranks: usize, waiting: Waiting) -> Scene {
        Scene::with(ranks, config(|c| c.waiting = waiting))
    }

    pub fn with(ranks: usize, mut config: tautline::Config) -> Scene {
        // It reads what victims offer, and offers nothing.
        config.single_copy = Some(usize::MAX);
        let launcher = Launcher::over(DeviceName::Shm, ranks);
        let (builder, received) = listener(ranks, config);
        let ep = builder.join_job(launcher.job(0)).unwrap();
        Scene { launcher, ep, received }
    }

    /// Starts a victim and waits until it is up and has sent a message.
    pub fn start(&self, role: &str) -> Process {
        let stream = self.stream();
        let victim = start(&self.launcher, VICTIM, role);
        await_up(&self.ep, VICTIM);
        until(&self.ep, || self.stream() != stream);
        victim
    }

    /// The time, on the clock of [`now`], when the victim that sent last began to send.
    pub fn stream(&self) -> u64 {
        self.received.borrow()[VICTIM as usize].0
    }

    /// Messages of that victim.
    pub fn received(&self) -> u64 {
        self.received.borrow()[VICTIM as usize].1
    }
}

/// The incarnations of the victim, as the survivor is told of them.
#[derive(Default)]
pub struct Incarnations {
    /// The last one that came up or ended.
    last: u32,
    up: bool,
    /// Those that came up and exited.
    pub exited: u64,
}

impl Incarnations {
    /// Extracts and reads all events. Each incarnation comes up once, and its end is reported before its
    /// successor comes up.
    pub fn read(&mut self, ep: &Endpoint) {
        ep.extract(usize::MAX).unwrap();
        while let Some(event) = ep.poll_event() {
            match event {
                Event::PeerUp { peer: VICTIM, incarnation } => {
                    assert!(!self.up, "the end of incarnation {} was not reported", self.last);
                    assert!(incarnation > self.last, "{incarnation} comes after {}", self.last);
                    (self.last, self.up) = (incarnation, true);
                }
                Event::PeerDown { peer: VICTIM, incarnation, why } => {
                    // One that died before it was up may have a number, too.
                    let is_its = incarnation == self.last || !self.up && incarnation > self.last;
                    assert!(is_its && why == Down::Exited, "{incarnation} after {}: {why:?}", self.last);
                    self.last = incarnation;
                    self.exited += u64::from(std::mem::take(&mut self.up));
                }
                _ => {}
            }
        }
        check_failures(ep);
    }

    /// The incarnation that is up.
    pub fn up(&self) -> Option<u32> {
        self.up.then_some(self.last)
    }

    /// Reads until `done`, with waits that only a death or a message can end.
    pub fn read_until(&mut self, ep: &Endpoint, mut done: impl FnMut(&Incarnations) -> bool) {
        self.read(ep);
        while !done(self) {
            ep.wait(None).unwrap();
            self.read(ep);
        }
    }
}

/// Kills a process after a while, from another thread, which returns the time of the kill.
pub fn kill_later(pid: Pid, after: Duration) -> std::thread::JoinHandle<u64> {
    std::thread::spawn(move || {
        std::thread::sleep(after);
        let at = now();
        kill_process(pid, Signal::KILL).unwrap();
        at
    })
}

/// Prints after which times deaths were reported; returns the median.
pub fn report(what: &str, times: &mut [Duration]) -> Duration {
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    println!(
        "{what}: {} deaths reported after: median {:?}, p99 {:?}, max {:?}",
        times.len(),
        at(50),
        at(99),
        at(100)
    );
    at(50)
}
