//! Seeds keep the promises, the same seed runs the same way twice, and broken promises are detected.

use std::io::Write;
use std::sync::{Arc, Mutex};

use tautline_sim::{Options, Report, Sabotage, Trace, replay, run, run_many};

/// G1, G3, G6, G7: a smoke test; `tautline sim` and `cargo xtask test` run many more.
#[test]
fn forty_seeds_keep_the_promises() {
    let options = Options { messages: 2_000, ..Options::default() };
    let sum = run_many(1, 40, 0, 2, &options, |_| {});
    if let Some(failure) = sum.failures.first() {
        panic!("{failure}");
    }
    assert!(
        sum.is_good() && sum.messages > 40_000,
        "{} messages, differing: {:?}",
        sum.messages,
        sum.different
    );
}

/// G4: the same seed gives the same trace, another seed another.
#[test]
fn the_same_seed_gives_the_same_world() {
    let options = Options { messages: 1_000, ..Options::default() };
    let mut hashes = Vec::new();
    for seed in 100..110 {
        let first = run(seed, &options);
        assert_eq!(first, run(seed, &options), "seed {seed} differs from itself");
        hashes.push(first.trace_hash);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 10, "different seeds give different traces");
}

/// Runs seeds with a deliberate mistake until one is detected; it must be detected often, and for the right
/// reason.
fn assert_detected(sabotage: Sabotage, reason: &str) {
    let options = Options { messages: 1_500, sabotage, ..Options::default() };
    let reports: Vec<Report> = (200..212).map(|seed| run(seed, &options)).collect();
    let right = reports.iter().filter(|r| r.violations.iter().any(|v| v.contains(reason))).count();
    let texts: Vec<_> = reports.iter().flat_map(|r| &r.violations).collect();
    assert!(right >= 3, "{sabotage:?} was detected in {right} of {} seeds: {texts:?}", reports.len());
}

#[test]
fn a_repeated_message_is_detected() {
    assert_detected(Sabotage::Repeat, "order");
}

#[test]
fn a_missing_message_is_detected() {
    assert_detected(Sabotage::Skip, "order");
}

#[test]
fn an_altered_message_is_detected() {
    assert_detected(Sabotage::Damage, "altered");
}

#[test]
fn a_stall_is_detected() {
    assert_detected(Sabotage::Stall, "no progress");
}

#[test]
fn a_false_death_is_detected() {
    assert_detected(Sabotage::NoWatchdog, "false death");
}

#[test]
fn a_leaked_slot_is_detected() {
    assert_detected(Sabotage::Leak, "slots are not free");
}

/// Bytes that a run writes.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A replay is the same run, with a readable trace and a capture of every frame that arrived.
#[test]
fn a_replay_is_the_same_run() {
    let options = Options { messages: 300, ..Options::default() };
    let (text, capture) = (Sink::default(), Sink::default());
    let trace = Trace::new(Some(Box::new(text.clone())), Some(Box::new(capture.clone()))).unwrap();
    let replayed = replay(7, &options, trace);
    assert_eq!(replayed, run(7, &options));
    assert_eq!(replayed.replay_command(), "tautline sim --seed 7 --per-seed 300 --replay");
    let text = String::from_utf8(text.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("Hello epoch") && text.contains("PeerUp"), "{text}");
    let capture = capture.0.lock().unwrap();
    let mut at = 24;
    let mut packets = 0;
    while at < capture.len() {
        let len = u32::from_le_bytes(capture[at + 8..at + 12].try_into().unwrap()) as usize;
        at += 16 + len;
        packets += 1;
    }
    assert_eq!((at, packets), (capture.len(), replayed.frames));
}

/// N-15: worlds with so little credit that windows granted for messages of one direction used to overtake the
/// open slot of the other direction for ever. With the present swarm these seeds are such worlds; soaks of
/// two hundred million messages found ten.
#[test]
fn control_slots_do_not_starve_messages() {
    for seed in [1_001_756, 1_005_330, 2_001_923, 3_006_950] {
        let report = run(seed, &Options::default());
        assert!(report.is_good(), "{report}");
    }
}
