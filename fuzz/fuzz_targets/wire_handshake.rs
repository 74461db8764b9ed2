//! Handshake frames: what is accepted is in range, and reads the same after it was written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tautline_wire::Handshake;
use tautline_wire::frame::{LEAST_FRAME, MAX_FRAME};
use tautline_wire::handshake::{HANDSHAKE_LEN, MAX_CREDIT};

fuzz_target!(|data: &[u8]| {
    let Ok(shake) = Handshake::parse(data) else { return };
    assert!((LEAST_FRAME..=MAX_FRAME).contains(&(shake.max_frame as usize)));
    assert!((1..=MAX_CREDIT).contains(&shake.credit) && shake.epoch != 0);
    let mut written = [0; HANDSHAKE_LEN];
    shake.write(&mut written);
    assert_eq!(Handshake::parse(&written), Ok(shake));
});
