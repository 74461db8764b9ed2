//! Greetings: any bytes are read or refused, and what is read reads the same after it was written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tautline_device::shm::{GREETING_LEN, Greeting};

fuzz_target!(|data: &[u8]| {
    // The proof is taken as it comes, so that the rest is reached; a wrong one must be refused all the same.
    let mut proof = [0; 16];
    if let Some(end) = data.get(GREETING_LEN - 16..GREETING_LEN) {
        proof.copy_from_slice(end);
    }
    let wrong = |_: &[u8]| proof.map(|byte| !byte);
    assert_eq!(Greeting::parse(data, wrong), None);
    let Some(greeting) = Greeting::parse(data, |_| proof) else { return };
    assert_eq!(data.len(), GREETING_LEN);
    let written = greeting.to_bytes(|_| proof);
    assert_eq!(Greeting::parse(&written, |_| proof), Some(greeting));
});
