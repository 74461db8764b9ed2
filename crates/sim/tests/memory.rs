//! Memory under every fault: puts take effect once and in order, tripwires fire exactly when they should.
#![allow(clippy::print_stdout)]

use tautline_sim::Hosts;
use tautline_sim::memory::{Mistake, Summary, run};

fn seeds() -> u64 {
    tautline_skips::number("TAUTLINE_MEMORY_SEEDS", 60)
}

/// T-1, T-2: with loss, repetition, reordering, damage, partitions, pauses,
/// crashes and restarts.
#[test]
fn seeds_keep_the_promises() {
    let mut all = Summary::default();
    // Among these some operations fail because a channel ends.
    for seed in 141..141 + seeds() {
        all.add(&run(seed, 150, Hosts::Drawn, Mistake::None).unwrap());
    }
    println!("{all:?}");
    assert!(all.complete > 100 * seeds() && all.failed > 0 && all.incarnations > 3 * seeds());
    assert!(all.compared > 100 * seeds() && all.notices > 10 * seeds(), "{all:?}");
    assert!(all.listed >= 2 * seeds(), "{all:?}");
    assert!(all.fires > 100 * seeds() && all.placed_ahead > 0, "{all:?}");
    assert!(all.local_frames > 100 * seeds() && all.local_crashes > 0, "{all:?}");
}

/// S-6, T-1, T-2: the same when all nodes share memory, with pauses, crashes and restarts.
#[test]
fn seeds_keep_the_promises_over_shared_memory() {
    let (mut frames, mut crashes, mut complete) = (0, 0, 0);
    for seed in 1_000..1_020 {
        let sum = run(seed, 150, Hosts::Single, Mistake::None).unwrap();
        frames += sum.local_frames;
        crashes += sum.local_crashes;
        complete += sum.complete;
    }
    assert!(frames > 20_000 && crashes > 10 && complete > 20 * 500, "{frames} {crashes} {complete}");
}

/// The same seed gives the same world.
#[test]
fn the_same_seed_gives_the_same_memory() {
    for hosts in [Hosts::Drawn, Hosts::Single] {
        for seed in 500..505 {
            let again = || run(seed, 60, hosts, Mistake::None);
            assert_eq!(again(), again());
        }
    }
}

/// The checks detect mistakes, whatever carries the requests.
#[test]
fn mistakes_are_detected() {
    for (mistake, reason) in [
        // By a get, or in the end.
        (Mistake::DropPut, "was put"),
        (Mistake::AddTwice, "should be"),
        (Mistake::Overcount, "every time"),
        (Mistake::SwapOther, "the former value"),
        (Mistake::GetElsewhere, "a get returned something else"),
        (Mistake::NoticeElsewhere, "and should be for"),
        (Mistake::NoticeTwice, "came twice"),
        (Mistake::DropNotice, "never came"),
        (Mistake::DropPiece, "something else than was listed"),
    ] {
        for (hosts, first) in [(Hosts::Separate, 700), (Hosts::Single, 710)] {
            let is_detected =
                |seed: &u64| run(*seed, 40, hosts, mistake).is_err_and(|why| why.contains(reason));
            let detected = (first..first + 6).filter(is_detected).count();
            let said = run(first, 40, hosts, mistake);
            assert!(detected >= 4, "{mistake:?} was detected in {detected} of 6 seeds, {hosts:?}: {said:?}");
        }
    }
}
