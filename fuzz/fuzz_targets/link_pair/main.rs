//! Two peerings driven by a program of operations: traffic, faults, time, and bytes that nobody honest sent. Seals are
//! waived here, so that such bytes reach the state machine. Nothing may panic; and as long as nothing was injected, what
//! is delivered is what was pushed, in order.
#![no_main]

mod pair;

use libfuzzer_sys::fuzz_target;
use pair::{Pair, Program};

fuzz_target!(|data: &[u8]| {
    let mut program = Program::new(data);
    let mut pair = Pair::new(&mut program);
    while let Some(op) = program.byte() {
        pair.step(op, &mut program);
    }
    pair.settle();
});
