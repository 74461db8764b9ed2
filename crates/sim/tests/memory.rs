//! Memory under every fault: puts take effect once and in order, tripwires fire exactly when they should.
#![allow(clippy::print_stdout)]

use tautline_sim::memory::{Mistake, Summary, run};

fn seeds() -> u64 {
    std::env::var("TAUTLINE_MEMORY_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(60)
}

/// T-1, T-2: with loss, repetition, reordering, damage, partitions, pauses,
/// crashes and restarts.
#[test]
fn seeds_keep_the_promises() {
    let mut all = Summary::default();
    for seed in 1..=seeds() {
        let sum = run(seed, 150, Mistake::None).unwrap();
        all.complete += sum.complete;
        all.failed += sum.failed;
        all.fires += sum.fires;
        all.incarnations += sum.incarnations;
        all.placed_ahead += sum.placed_ahead;
    }
    println!("{all:?}");
    assert!(all.complete > 100 * seeds() && all.failed > 0 && all.incarnations > 3 * seeds());
    assert!(all.fires > 100 * seeds() && all.placed_ahead > 0, "{all:?}");
}

/// The same seed gives the same world.
#[test]
fn the_same_seed_gives_the_same_memory() {
    for seed in 500..505 {
        assert_eq!(run(seed, 60, Mistake::None), run(seed, 60, Mistake::None));
    }
}

/// The checks detect mistakes.
#[test]
fn mistakes_are_detected() {
    for (mistake, reason) in [
        (Mistake::DropPut, "not what was put"),
        (Mistake::AddTwice, "the sum"),
        (Mistake::Overcount, "every time"),
    ] {
        let detected =
            (700..706).filter(|seed| run(*seed, 40, mistake).is_err_and(|why| why.contains(reason))).count();
        assert!(detected >= 4, "{mistake:?} was detected in {detected} of 6 seeds");
    }
}
