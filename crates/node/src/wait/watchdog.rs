//! The watchdog: protocol progress while the program computes (N-5, N-6). One thread serves all lanes of a
//! node. It never runs a handler.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use tautline_link::Nanos;

use super::descriptors::{Descriptors, poll_all};
use super::shared::Shared;

/// After this many checks in a row that found the program polling, the checks become rarer. Once in as many
/// checks the watchdog makes sure that the program polls the device, too.
const BUSY_CHECKS: u32 = 16;

/// The watchdog of a node. Its thread runs while there are lanes.
#[derive(Debug)]
pub(crate) struct Watchdog {
    tick: Duration,
    lanes: Mutex<Lanes>,
    /// Signalled when the thread has noticed a change.
    noticed: Condvar,
    /// Wakes the thread when lanes have changed.
    changed: OwnedFd,
}

#[derive(Debug, Default)]
struct Lanes {
    all: Vec<Arc<Shared>>,
    /// Counts changes, and those that the thread has noticed.
    changes: u64,
    noticed: u64,
    thread: Option<JoinHandle<()>>,
    /// The thread has not decided to end.
    running: bool,
}

impl Watchdog {
    /// A watchdog that polls lanes whose programs have not polled for `tick`.
    pub(crate) fn new(tick: Duration) -> io::Result<Watchdog> {
        let changed = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Watchdog { tick, lanes: Mutex::default(), noticed: Condvar::new(), changed })
    }

    fn lock(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
    }

    /// Watches a lane from now on.
    pub(crate) fn add(self: &Arc<Watchdog>, lane: &Arc<Shared>) -> io::Result<()> {
        lane.polls.arm_timer(self.tick);
        let mut lanes = self.lock();
        if !lanes.running {
            let dog = self.clone();
            let thread = std::thread::Builder::new().name("tautline-watchdog".into()).stack_size(256 * 1024);
            lanes.thread = Some(thread.spawn(move || dog.run())?);
            lanes.running = true;
        }
        lanes.all.push(lane.clone());
        lanes.changes += 1;
        drop(lanes);
        self.ring();
        Ok(())
    }

    /// Watches a lane no longer; when this returns, the thread has let go of it. Without lanes the thread
    /// ends.
    pub(crate) fn remove(&self, lane: &Arc<Shared>) {
        let mut lanes = self.lock();
        let before = lanes.all.len();
        lanes.all.retain(|other| !Arc::ptr_eq(other, lane));
        if lanes.all.len() == before {
            return;
        }
        lanes.changes += 1;
        let change = lanes.changes;
        self.ring();
        while lanes.noticed < change {
            lanes = self.noticed.wait(lanes).unwrap_or_else(PoisonError::into_inner);
        }
        let thread = if lanes.running { None } else { lanes.thread.take() };
        drop(lanes);
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    fn run(&self) {
        let mut watched: Vec<Watched> = Vec::new();
        // Kept, so that no tick allocates.
        let mut devices = Vec::new();
        while self.notice(&mut watched) {
            self.sleep(&watched, &mut devices);
            for lane in &mut watched {
                lane.check(self.tick);
            }
        }
    }

    /// Takes over lanes that were added, and lets go of those that were removed. False if there are none
    /// left.
    fn notice(&self, watched: &mut Vec<Watched>) -> bool {
        let mut lanes = self.lock();
        if lanes.noticed == lanes.changes {
            return true;
        }
        watched.retain(|lane| lanes.all.iter().any(|other| Arc::ptr_eq(other, &lane.shared)));
        for lane in &lanes.all {
            if !watched.iter().any(|other| Arc::ptr_eq(&other.shared, lane)) {
                watched.push(Watched::new(lane.clone()));
            }
        }
        lanes.noticed = lanes.changes;
        lanes.running = !watched.is_empty();
        self.noticed.notify_all();
        lanes.running
    }

    /// Sleeps until the timer of a lane expires, lanes change, or a lane whose program is away has something
    /// to do. `devices` is room for the descriptors of their devices.
    fn sleep(&self, watched: &[Watched], devices: &mut Vec<Arc<[OwnedFd]>>) {
        let tick = self.tick.as_nanos() as Nanos;
        let away = || watched.iter().filter(|lane| lane.away.is_some());
        let most = away().map(|lane| if lane.armed { tick } else { lane.shared.watchdog_sleep() }).min();
        let descriptors =
            || away().filter(|lane| !lane.armed).filter_map(|lane| lane.shared.descriptors.as_ref());
        devices.extend(descriptors().map(Descriptors::device));
        let timers = watched.iter().filter_map(|lane| lane.shared.polls.timer());
        let sources =
            devices.iter().flat_map(|fds| &**fds).chain(descriptors().filter_map(Descriptors::local));
        if poll_all(std::iter::once(&self.changed).chain(timers).chain(sources), most) {
            let _ = rustix::io::read(&self.changed, &mut [0; 8]);
        }
        devices.clear();
    }
}

/// A lane as the watchdog's thread sees it.
struct Watched {
    shared: Arc<Shared>,
    /// The program's polls when it was found away; none while it polls, or sleeps inside the library.
    away: Option<u64>,
    /// Checks in a row that found the program polling.
    busy: u32,
    /// The program waits on the endpoint's descriptor in a loop of its own: it is given a tick to come first.
    armed: bool,
}

impl Watched {
    fn new(shared: Arc<Shared>) -> Watched {
        Watched { shared, away: None, busy: 0, armed: false }
    }

    fn check(&mut self, tick: Duration) {
        let polls = &self.shared.polls;
        if polls.has_expired() && !polls.is_parked() {
            // If it is parked, the program arms the timer again when it leaves.
            if polls.has_moved() {
                self.busy += 1;
                if self.busy.is_multiple_of(BUSY_CHECKS) {
                    self.shared.poll_device_soon();
                }
                polls.arm_timer(if self.busy < BUSY_CHECKS { tick } else { 2 * tick });
            } else {
                self.busy = 0;
                self.away = Some(polls.polls());
            }
        }
        let Some(before) = self.away else { return };
        if polls.polls() == before && !polls.is_parked() {
            self.shared.poll_as_watchdog();
            // A lane that has just been left to its program is polled, and then slept on.
            self.armed = !self.armed && self.shared.is_armed();
        } else {
            (self.away, self.armed) = (None, false);
            polls.arm_timer(tick);
        }
    }
}
