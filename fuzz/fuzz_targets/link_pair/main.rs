//! Two peerings driven by a program of operations: traffic, faults, time, and injected bytes. They are made
//! without authentication, so that injected bytes reach the state machine. Nothing may panic. As long as
//! nothing was injected, slots are delivered unaltered and in order.
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
