//! Many seeds.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Options, Report, Sabotage, memory, run, styles};

/// The progress of a run of many seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Seeds that are done.
    pub seeds: u64,
    /// Seeds in all.
    pub of: u64,
    /// Messages so far.
    pub messages: u64,
    /// Seeds with violations so far.
    pub failed: u64,
}

/// The results of many seeds.
#[derive(Clone, Debug, Default)]
pub struct SeedSummary {
    /// Seeds run.
    pub seeds: u64,
    /// Messages that reached a handler.
    pub messages: u64,
    /// Bytes compared.
    pub bytes: u64,
    /// Messages lost with peers whose end was reported.
    pub lost: u64,
    /// Messages begun under a fault: see [`Report::under_faults`].
    pub under_faults: u64,
    /// Reports that a peer is gone.
    pub deaths: u64,
    /// Frames delivered.
    pub frames: u64,
    /// Virtual time of all seeds together.
    pub virtual_ns: u64,
    /// Seeds run a second time that gave the same hash.
    pub same: u64,
    /// Seeds run a second time that gave another hash.
    pub different: Vec<u64>,
    /// Reports of the seeds with violations.
    pub failures: Vec<Report>,
    /// What the worlds of memory did.
    pub memory: memory::Summary,
    /// What the worlds of calls, queues and streams did.
    pub styles: styles::Summary,
    /// Why worlds of these two kinds failed; each with its seed.
    pub other_failures: Vec<String>,
}

impl SeedSummary {
    /// Whether every promise was kept, and every second run was like the first.
    pub fn is_good(&self) -> bool {
        self.failures.is_empty() && self.different.is_empty() && self.other_failures.is_empty()
    }

    fn add(&mut self, report: Report) {
        self.seeds += 1;
        self.messages += report.messages;
        self.bytes += report.bytes;
        self.lost += report.lost;
        self.under_faults += report.under_faults;
        self.deaths += report.deaths;
        self.frames += report.frames;
        self.virtual_ns += report.virtual_ns;
        if !report.is_good() {
            self.failures.push(report);
        }
    }
}

/// One seed in this many is run twice and must give the same hash (G4).
const TWICE_EVERY: u64 = 100;
/// With one seed in this many a world of memory, and one of calls, queues and streams, are run.
const OTHERS_EVERY: u64 = 16;
/// Operations, and calls and entries, of each of these worlds.
const OTHER_OPERATIONS: u64 = 150;

/// Runs the world of memory, and the world of calls, queues and streams, of a seed. An error says which
/// promise was broken.
pub fn run_others(seed: u64, options: &Options) -> Result<(memory::Summary, styles::Summary), String> {
    let memory = memory::run(seed, OTHER_OPERATIONS, options.hosts, memory::Mistake::None)?;
    let styles = styles::run(seed, OTHER_OPERATIONS, options.hosts, styles::Mistake::None)?;
    Ok((memory, styles))
}

/// Runs `count` seeds from `first` on, or more until `messages` messages were handled, on up to two threads.
/// `progress` is called after each seed.
pub fn run_many(
    first: u64,
    count: u64,
    messages: u64,
    threads: usize,
    options: &Options,
    progress: impl Fn(Progress) + Sync,
) -> SeedSummary {
    let next = AtomicU64::new(0);
    let sum = Mutex::new(SeedSummary::default());
    let work = || {
        loop {
            let so_far = sum.lock().unwrap_or_else(PoisonError::into_inner).messages;
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count && so_far >= messages {
                return;
            }
            let seed = first.wrapping_add(index);
            let report = run(seed, options);
            let again =
                index.is_multiple_of(TWICE_EVERY).then(|| run(seed, options).trace_hash == report.trace_hash);
            let others = (index.is_multiple_of(OTHERS_EVERY) && options.sabotage == Sabotage::None)
                .then(|| run_others(seed, options));
            let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
            match others {
                Some(Ok((memory, styles))) => {
                    sum.memory.add(&memory);
                    sum.styles.add(&styles);
                }
                Some(Err(why)) => sum.other_failures.push(why),
                None => {}
            }
            match again {
                Some(true) => sum.same += 1,
                Some(false) => sum.different.push(seed),
                None => {}
            }
            sum.add(report);
            let failed = (sum.failures.len() + sum.other_failures.len()) as u64;
            progress(Progress { seeds: sum.seeds, of: count.max(sum.seeds), messages: sum.messages, failed });
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, 2) {
            scope.spawn(work);
        }
        work();
    });
    let mut sum = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    sum.failures.sort_by_key(|report| report.seed);
    sum
}
