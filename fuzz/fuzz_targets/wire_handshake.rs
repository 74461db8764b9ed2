//! Handshake frames: accepted ones are in range, and read back the same after they are written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tautline_wire::Handshake;
use tautline_wire::frame::{MAX_FRAME, SMALLEST_FRAME};
use tautline_wire::handshake::{HANDSHAKE_LEN, MAX_CREDIT};

fuzz_target!(|data: &[u8]| {
    let Ok(handshake) = Handshake::parse(data) else { return };
    assert!((SMALLEST_FRAME..=MAX_FRAME).contains(&(handshake.max_frame as usize)));
    assert!((1..=MAX_CREDIT).contains(&handshake.credit) && handshake.epoch != 0);
    let mut written = [0; HANDSHAKE_LEN];
    handshake.write(&mut written);
    assert_eq!(Handshake::parse(&written), Ok(handshake));
});
