//! Shared memory for tests: a directory of its own, greetings without a key, and both sides of a handover.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tautline_device::shm::{
    self, Accepted, Contribution, Dial, GREETING_LEN, Greeting, Handover, Incoming, LanePages, Listener,
    POOL_UNIT, Pool, Refusal, Shm,
};

/// A directory of this test, removed when dropped.
pub struct TempDir(pub PathBuf);

impl TempDir {
    pub fn new(what: &str) -> TempDir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        TempDir(std::env::temp_dir().join(format!("tautline-{what}-{}-{number}", std::process::id())))
    }

    pub fn listener_path(&self) -> PathBuf {
        shm::listener_path(&self.0, 1, 0)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn prove(_: &[u8]) -> [u8; 16] {
    [5; 16]
}

/// The size of each side's pool.
const POOL: usize = 2 * POOL_UNIT;

/// The lane of the process that dials, and that of the process that listens.
fn lane(which: u32) -> Arc<LanePages> {
    static LANES: Mutex<BTreeMap<(u32, u32), Arc<LanePages>>> = Mutex::new(BTreeMap::new());
    // A forked child has lanes of its own.
    let key = (std::process::id(), which);
    LANES.lock().unwrap().entry(key).or_insert_with(|| LanePages::create().unwrap()).clone()
}

fn greet(from: u32, answers: u64) -> ([u8; GREETING_LEN], Contribution) {
    let (to, epoch) = (1 - from, u64::from(from) + 1);
    let number = lane(from).take_number().unwrap();
    let made = Pool::create(POOL).unwrap();
    let pool = (made.size() / POOL_UNIT) as u32;
    let (window, beacon, ring, asymmetric) = (1, 0, number.get(), true);
    let greeting = Greeting { from, to, epoch, answers, window, pool, beacon, ring, asymmetric };
    (greeting.to_bytes(prove), Contribution { pool: Some(made), number })
}

pub fn hello() -> std::io::Result<([u8; GREETING_LEN], Contribution)> {
    Ok(greet(0, 0))
}

/// Accepts a connection.
pub fn answer_incoming(incoming: Incoming, handover: Handover) -> std::io::Result<Shm> {
    let (answer, own) = greet(1, 1);
    incoming.accept(handover, &answer, own, true)
}

/// Tries again until there is a result; panics after ten seconds.
pub fn until<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{what} takes too long");
        std::thread::yield_now();
    }
}

/// Connects to a listener and establishes a channel.
pub fn dial(listener: &Path) -> Shm {
    let dial = Dial::new(listener, hello).unwrap();
    let (_, handles) = until("an answer", || dial.poll_greeting(prove).unwrap());
    dial.establish(handles, true)
}

/// The next connection, if there is one.
pub fn next(listener: &Listener) -> Option<Incoming> {
    match listener.accept(|error| Refusal::of(error).to_bytes(prove)) {
        Accepted::Connection(incoming) => Some(incoming),
        Accepted::None | Accepted::Refused(_) | Accepted::Waiting(_) => None,
    }
}

/// Accepts the next connection and establishes a channel.
pub fn accept(listener: &Listener) -> Shm {
    let incoming = until("a connection", || next(listener));
    let (_, handover) = until("a greeting", || incoming.poll_greeting(prove).unwrap());
    answer_incoming(incoming, handover).unwrap()
}

/// Returns both ends of a channel in this process.
pub fn pair(listener: &Listener, path: &Path) -> (Shm, Shm) {
    let dial = Dial::new(path, hello).unwrap();
    let callee = accept(listener);
    let (_, handles) = dial.poll_greeting(prove).unwrap().expect("an answer");
    (dial.establish(handles, true), callee)
}

/// Returns bytes that differ between frames.
pub fn frame(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + number * 97 + 5) as u8).collect()
}

/// Returns the numbers of mappings and descriptors of segments in this process.
pub fn segments() -> (usize, usize) {
    // Their pages stay.
    let _ = (lane(0), lane(1));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter(|line| line.contains("memfd:tautline")).count();
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    (mapped, open.filter(|to| to.to_string_lossy().contains("memfd:tautline")).count())
}
