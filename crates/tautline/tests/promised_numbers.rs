//! Limits and defaults that docs/GUARANTEES.md states as numbers.

use std::time::Duration;

use tautline::Config;
use tautline::node::limits::{LOCAL_POLL_NS, MAX_BEGUN, MAX_ENVELOPES, MAX_RUNNING, TAG_OVERHEAD};

/// A number with commas between thousands.
fn grouped(number: u64) -> String {
    match number {
        0..1_000 => number.to_string(),
        _ => format!("{},{:03}", grouped(number / 1_000), number % 1_000),
    }
}

/// The page says what the library does. The numbers are here as well: a limit and its row that are changed
/// together, by mistake, are noticed.
#[test]
fn the_page_has_the_numbers_of_the_library() {
    let page = include_str!("../../../docs/GUARANTEES.md");
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let config = Config::default();
    let silence = Duration::from_nanos(config.link.silence);
    let rows = [
        (u64::from(MAX_BEGUN), 65_536, "Beginning more than # messages to a peer fails."),
        (MAX_RUNNING as u64, 65_536, "More than # suspended handlers."),
        (silence.as_secs(), 1, "A dead peer is reported within the silence bound (# s)"),
        (config.connect_timeout.as_secs(), 10, "A send to such a peer fails after # s."),
        (config.connect_timeout.as_secs(), 10, "the limit of time for that (# s)"),
        (LOCAL_POLL_NS / 1_000_000, 2, "within # ms while it is awake"),
        (TAG_OVERHEAD, 64, "the sender's credit and # bytes for each envelope"),
    ];
    for (actual, promised, row) in rows {
        assert_eq!(actual, promised, "{row}");
        let row = row.replace('#', &grouped(promised));
        assert!(page.contains(&row), "the page does not say: {row}");
    }
    // Not rounded, and what is not written in figures.
    assert_eq!((silence, LOCAL_POLL_NS), (Duration::from_secs(1), 2_000_000));
    assert_eq!(config.connect_timeout, Duration::from_secs(10));
    const { assert!(MAX_ENVELOPES >= 1_000_000, "a million tagged messages that nobody receives") };
}
