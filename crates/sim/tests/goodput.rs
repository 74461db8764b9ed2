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

/// L-10, L-24, L-25: without loss and without pauses no timer expires and nothing is sent twice, whatever the
/// window; while either process pauses, a timer expires at most once per pause.
#[test]
fn timers_expire_only_in_pauses() {
    use tautline_sim::goodput::{PAUSES, POLICIES, Pauses, WINDOWS, transfer};
    for (policy, window) in POLICIES.into_iter().flat_map(|policy| WINDOWS.map(|window| (policy, window))) {
        let took = transfer(policy, window, 0, None).expect("it arrives");
        assert_eq!((took.timeouts, took.resent), (0, 0), "{}, {window} bytes: {took:?}", policy.name());
        for (node, length) in [0, 1].into_iter().flat_map(|node| PAUSES.map(|length| (node, length))) {
            let pauses = Pauses { node, length };
            let took = transfer(policy, window, 0, Some(pauses)).expect("it arrives");
            let what = format!("{}, {window} bytes, {pauses:?}: {took:?}", policy.name());
            assert!(took.pauses > 0 && took.timeouts <= took.pauses, "{what}");
        }
    }
}
