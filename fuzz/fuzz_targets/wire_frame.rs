//! Frames of an established channel: the header of an accepted frame is written back byte for byte.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tautline_wire::ext::Extensions;
use tautline_wire::frame::{HEADER_LEN, channel_of};
use tautline_wire::{Frame, Kind, Records};

fuzz_target!(|data: &[u8]| {
    let _ = Kind::of(data);
    let channel = channel_of(data);
    let Ok(frame) = Frame::parse(data) else { return };
    assert_eq!(channel, Ok(frame.header.channel));
    let mut written = [0; HEADER_LEN];
    frame.header.write(&mut written);
    assert_eq!(written, data[..HEADER_LEN]);
    assert_eq!(HEADER_LEN + frame.extensions().len() + frame.payload().len(), data.len());
    for ext in Extensions::new(frame.extensions()) {
        let _ = ext;
    }
    for record in Records::new(frame.payload(), 0) {
        let _ = record;
    }
});
