//! G5: the golden table of goodput; any change is a visible diff. Rewrite it with `TAUTLINE_BLESS=1`.

use std::path::Path;

#[test]
fn goodput_matches_the_golden_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/goodput.txt");
    let table = tautline_sim::goodput::table();
    if std::env::var_os("TAUTLINE_BLESS").is_some() {
        std::fs::write(&path, &table).unwrap();
        return;
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert_eq!(
        golden, table,
        "goodput changed; if that is intended, rewrite the table with TAUTLINE_BLESS=1"
    );
}

/// N-15: a message that fits the window takes only the time of the path, whatever its length: none of its
/// frames waits for an acknowledgement of the others, which may be delayed by 1.5 ms.
#[test]
fn no_frame_waits_for_an_acknowledgement() {
    for bytes in [1, 1_000, 1_400, 1_500, 2_000, 3_000, 4_500, 6_000, 9_000, 12_000, 14_000] {
        let took = tautline_sim::goodput::one_way(bytes).expect("it arrives");
        // Eight nanoseconds a byte, headers and gaps of half a dozen frames, and the delay of the path.
        let path = 50_000 + 10 * bytes as u64 + 100_000;
        assert!(took <= path, "{bytes} bytes took {took} ns, the path {path}");
    }
}
