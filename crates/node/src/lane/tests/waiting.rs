//! What the waiting loop tells the policy, on a virtual clock that the awaited condition advances.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::{Clock, Endpoint, Environment, Waiting};

/// Longer than a wait with a core to itself is ever interrupted.
const LONG: Nanos = 5_000_000;

/// A node without peers, and its clock.
fn alone(waiting: Waiting) -> (Endpoint, Arc<AtomicU64>) {
    let (addr, time) = (SocketAddr::from(([10, 0, 0, 1], 1)), Arc::new(AtomicU64::new(0)));
    let job = Job::new(0, JobKey::new([1; 32]), vec![Member::new(addr)]);
    let config = Config { waiting, ..Config::default() };
    let environment = Environment::new(Box::new(dead_end(addr)), Clock::Virtual(time.clone()), [0; 32]);
    (Endpoint::over(&job, config, environment, Vec::new()).unwrap(), time)
}

/// N-7: a wait that finds something after its core was taken away tells the policy, wherever it finds it.
#[test]
fn waits_that_end_report_their_last_interruption() {
    for waiting in [Waiting::SpinThenPark, Waiting::Spin] {
        for (lost_in, found_in) in [(10, 11), (9, 12)] {
            for (away, pauses) in [(LONG, true), (100, false)] {
                let (node, time) = alone(waiting);
                let mut calls = 0;
                let found = node.wait_until(None, |_| {
                    calls += 1;
                    time.fetch_add(if calls == lost_in { away } else { 100 }, Ordering::Relaxed);
                    calls == found_in
                });
                assert_eq!((found, calls), (Ok(true), found_in));
                let paused = node.shared.backoff.is_pausing(node.now());
                assert_eq!(paused, pauses, "{waiting:?}, lost in call {lost_in}, away for {away} ns");
            }
        }
    }
}

/// N-7: so does a wait whose time has passed.
#[test]
fn waits_that_time_out_report_their_last_interruption() {
    let (node, time) = alone(Waiting::SpinThenPark);
    let mut calls = 0;
    let found = node.wait_until(Some(std::time::Duration::from_millis(1)), |_| {
        calls += 1;
        time.fetch_add(if calls == 10 { LONG } else { 100 }, Ordering::Relaxed);
        false
    });
    assert_eq!(found, Ok(false));
    assert!(node.shared.backoff.is_pausing(node.now()));
}

/// N-7: after a sleep only a wait to which something came polls again. Whoever polls can lose its core, and
/// whoever is about to sleep again cannot.
#[test]
fn waits_poll_again_only_if_something_came() {
    for came in [true, false] {
        let (node, time) = alone(Waiting::SpinThenPark);
        let mut calls_after_sleep = 0;
        let found = node.wait_until(None, |lane| {
            time.fetch_add(100, Ordering::Relaxed);
            if node.shared.polls.is_parked() {
                calls_after_sleep += 1;
            }
            match calls_after_sleep {
                1 => lane.port.activity += u64::from(came),
                4 => drop(time.fetch_add(LONG, Ordering::Relaxed)),
                _ => {}
            }
            calls_after_sleep == 5
        });
        assert_eq!(found, Ok(true));
        assert_eq!(node.shared.backoff.is_pausing(node.now()), came);
    }
}

/// N-31: a wait tells the policy when the newest channel with a local peer came up.
#[test]
fn waits_know_of_new_channels() {
    for connected in [true, false] {
        let (node, time) = alone(Waiting::SpinThenPark);
        let mut calls = 0;
        let found = node.wait_until(None, |lane| {
            calls += 1;
            lane.local.connected_at = connected.then_some(1);
            time.fetch_add(100, Ordering::Relaxed);
            calls == 100
        });
        assert_eq!(found, Ok(true));
        assert_eq!(node.shared.backoff.is_connecting(node.now()), connected);
    }
}
