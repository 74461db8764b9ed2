//! Calls, queues and streams under every fault: calls run at most once, entries and bytes arrive in order.
#![allow(clippy::print_stdout)]

use tautline_sim::Hosts;
use tautline_sim::styles::{Mistake, Summary, run};

/// with loss, repetition, reordering, damage, partitions, computing, crashes and restarts, over
/// links and shared memory.
#[test]
fn seeds_keep_the_promises() {
    const SEEDS: u64 = 40;
    const EACH: u64 = 600;
    let mut all = Summary::default();
    for seed in 1..=SEEDS {
        all.add(&run(seed, EACH, Hosts::Drawn, Mistake::None).unwrap());
    }
    println!("{all:?}");
    assert_eq!(all.finished, SEEDS);
    // One call of twelve may be cancelled.
    assert!(all.answered + all.cancelled >= EACH * SEEDS && all.cancelled > SEEDS, "{all:?}");
    assert!(all.long > 50 * SEEDS, "{all:?}");
    assert!(all.failed > 0 && all.incarnations > 2 * SEEDS, "{all:?}");
    assert!(all.entries >= EACH * SEEDS && all.bytes >= 100 * EACH * SEEDS, "{all:?}");
}

/// The same seed gives the same world.
#[test]
fn the_same_seed_gives_the_same_styles() {
    for seed in 100..105 {
        let again = || run(seed, 30, Hosts::Drawn, Mistake::None);
        assert_eq!(again(), again());
    }
}

/// The checks detect mistakes.
#[test]
fn mistakes_are_detected() {
    for (mistake, reason) in [
        (Mistake::RunTwice, "was executed 2 times"),
        (Mistake::DropEntry, "after 20"),
        (Mistake::AlterByte, "other bytes than were written"),
        (Mistake::AlterRequest, "other bytes"),
        (Mistake::RunCancelled, "was executed 2 times"),
    ] {
        let is_detected =
            |seed: &u64| run(*seed, 60, Hosts::Drawn, mistake).is_err_and(|why| why.contains(reason));
        let detected = (200..206).filter(is_detected).count();
        assert!(detected >= 4, "{mistake:?} was detected in {detected} of 6 seeds");
    }
}
