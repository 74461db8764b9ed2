//! The ring in shared memory against a queue; and with overwritten words, where only panics and hangs count.
#![no_main]

#[path = "../../crates/mem/tests/ring_oracle/mod.rs"]
#[allow(dead_code)]
mod ring_oracle;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    ring_oracle::run(data);
});
