//! The ring's oracle, on random programs and on the fuzz target's corpus.
#![cfg(not(loom))]
#![allow(clippy::print_stdout, missing_docs)]

mod ring_oracle;

use ring_oracle::{Tally, run};

fn add(sum: &mut Tally, one: Tally) {
    sum.pushed += one.pushed;
    sum.refused += one.refused;
    sum.popped += one.popped;
    sum.overwritten += one.overwritten;
    sum.detected += one.detected;
}

/// Returns a program of random operations; `overwrite` allows it to overwrite memory.
fn random(seed: u64, overwrite: bool) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    // The first byte chooses the ring's shape.
    let mut bytes = vec![seed as u8];
    for _ in 0..400 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let [op, rest @ ..] = (state >> 8).to_le_bytes();
        if overwrite || op % 16 != 15 {
            bytes.push(op);
            match op % 16 {
                0..4 | 12 => bytes.push(rest[0]),
                4..8 => bytes.extend_from_slice(&rest[..4]),
                13 => bytes.push(rest[0].max(1)),
                15 => bytes.extend_from_slice(&rest[..5]),
                _ => {}
            }
        }
    }
    bytes
}

/// S-3, S-13: a ring behaves like a queue under all sequences of operations.
#[test]
fn oracle() {
    let mut sum = Tally::default();
    (0..2_000).for_each(|seed| add(&mut sum, run(&random(seed, false))));
    println!("{sum:?}");
    assert!(sum.pushed > 10_000 && sum.refused > 1_000 && sum.pushed == sum.popped, "{sum:?}");
    assert_eq!((sum.overwritten, sum.detected), (0, 0));
}

/// S-2: overwritten words lead to errors or to other frames, never to a panic.
#[test]
fn oracle_with_overwritten_words() {
    let mut sum = Tally::default();
    (0..2_000).for_each(|seed| add(&mut sum, run(&random(seed, true))));
    println!("{sum:?}");
    assert!(sum.overwritten > 1_000 && sum.detected > 100, "{sum:?}");
}

/// S-2, S-3: the inputs that the fuzzer kept.
#[test]
fn oracle_on_the_corpus() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/shm_ring");
    let entries = std::fs::read_dir(&corpus);
    let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", corpus.display()));
    let mut sum = Tally::default();
    let inputs =
        entries.map(|entry| add(&mut sum, run(&std::fs::read(entry.unwrap().path()).unwrap()))).count();
    println!("{inputs} inputs: {sum:?}");
    assert!(inputs > 50 && sum.popped > 0, "{inputs} inputs: {sum:?}");
}
