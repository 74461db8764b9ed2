//! Extensions: accepted ones are within their limits, and read back the same after they are written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tautline_wire::ext::{Ext, Extensions, MAX_SACK_BYTES, put_fragment, put_pace, put_pad, put_sack};

fuzz_target!(|data: &[u8]| {
    let mut exts = Extensions::new(data);
    let mut out = [0; 260];
    while let Some(item) = exts.next() {
        let Ok(ext) = item else {
            assert!(exts.next().is_none());
            break;
        };
        let used = match ext {
            Ext::Sack(bits) => {
                assert!(bits.len() <= MAX_SACK_BYTES);
                put_sack(&mut out, bits)
            }
            Ext::Fragment { offset, total } => {
                assert!(offset < total);
                put_fragment(&mut out, offset, total)
            }
            Ext::Pace(pace) => {
                assert!(pace > 0);
                put_pace(&mut out, pace)
            }
            Ext::Pad(len) if (len + 2) % 4 == 0 => put_pad(&mut out, len + 2),
            Ext::Pad(_) => continue,
        };
        assert_eq!(used % 4, 0);
        assert_eq!(Extensions::new(&out[..used]).next(), Some(Ok(ext)));
    }
});
