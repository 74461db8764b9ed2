//! Rivals with processes of their own, where they are installed. Nothing is ever installed for this, so that
//! on a bare machine the tests only show that their absence is reported.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tautline_baseline::cpu;
use tautline_baseline::rivals::{Contender, Order, Placement, Rival, Route, Test};

fn placement() -> Placement {
    let cores = cpu::allowed_cores().unwrap();
    Placement { cores: [cores[0], cores[1 % cores.len()]], namespaces: None }
}

/// The installed ones; two that poll need a core each.
#[track_caller]
fn here(test: &str) -> Vec<Rival> {
    let all = [Rival::OpenMpi, Rival::Mpich, Rival::Ucx, Rival::UcxPerftest];
    if cpu::allowed_cores().unwrap().len() < 2 {
        tautline_skips::skip(test, "it needs two cores");
        return Vec::new();
    }
    let (here, absent): (Vec<_>, Vec<_>) = all.into_iter().partition(|rival| rival.version().is_some());
    if !absent.is_empty() {
        tautline_skips::skip(test, format!("{absent:?} are not installed (in part)"));
    }
    here
}

/// Two that poll need the cores to themselves, and a test that counts processes must be alone.
fn alone() -> MutexGuard<'static, ()> {
    static CORES: Mutex<()> = Mutex::new(());
    CORES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Processes of ours that run a team's program from a temporary directory.
fn ranks() -> Vec<String> {
    let mine = format!("tautline-baseline-{}-", std::process::id());
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|p| std::fs::read(p.path().join("cmdline")).ok());
    lines
        .map(|line| String::from_utf8_lossy(&line).into_owned())
        .filter(|line| line.contains(&mine))
        .collect()
}

#[test]
fn every_rival_runs_every_test_repeatedly() {
    let _alone = alone();
    for rival in here("every_rival_runs_every_test_repeatedly") {
        let mut contender = Contender::start(rival, Route::Host, placement(), &mut || false).unwrap();
        let mut run = |test, bytes, count| {
            let order = Order { test, bytes, count };
            let [a, _] = contender.run(&order, &mut || false).unwrap_or_else(|e| panic!("{rival:?}: {e}"));
            assert_eq!((a.messages, a.bytes), (count, count * bytes as u64), "{rival:?}");
            a
        };
        for bytes in [1, 8, 64, 4096, 65_536, 1 << 20] {
            assert!(run(Test::PingPong, bytes, 20).median_ns > 0.0, "{rival:?}");
        }
        for (bytes, window) in [(8, Some(64)), (8, None), (65_536, None), (1 << 20, None)] {
            assert!(run(Test::Stream { window }, bytes, 70).elapsed_ns > 0, "{rival:?}");
        }
        if rival == Rival::UcxPerftest {
            continue;
        }
        let paced = run(Test::Paced { period_us: 200 }, 64, 20);
        assert!(paced.p99_ns >= paced.median_ns && paced.elapsed_ns > 19 * 200_000, "{rival:?}");
    }
}

#[test]
fn a_dropped_team_leaves_neither_processes_nor_files() {
    let _alone = alone();
    for rival in here("a_dropped_team_leaves_neither_processes_nor_files") {
        let contender = Contender::start(rival, Route::Host, placement(), &mut || false).unwrap();
        drop(contender);
        let since = Instant::now();
        while !ranks().is_empty() && since.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(ranks(), Vec::<String>::new(), "{rival:?}");
    }
}

/// Files of Open MPI in shared memory that no process has mapped.
fn unused_segments() -> BTreeSet<String> {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let maps: Vec<_> =
        processes.filter_map(|p| std::fs::read_to_string(p.path().join("maps")).ok()).collect();
    let files = std::fs::read_dir("/dev/shm").unwrap().filter_map(Result::ok);
    files
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("vader_segment") && !maps.iter().any(|map| map.contains(name)))
        .collect()
}

#[test]
fn a_stop_request_ends_a_test() {
    let _alone = alone();
    let before = unused_segments();
    for rival in here("a_stop_request_ends_a_test") {
        let mut contender = Contender::start(rival, Route::Host, placement(), &mut || false).unwrap();
        let order = Order { test: Test::PingPong, bytes: 1 << 20, count: 100_000 };
        assert!(contender.run(&order, &mut || true).is_err(), "{rival:?}");
        drop(contender);
        // Files of another program's job, which that one is about to map, are gone after a while.
        let since = Instant::now();
        while !unused_segments().is_subset(&before) {
            assert!(since.elapsed() < Duration::from_secs(10), "{rival:?} left files in shared memory");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_missing_rival_is_reported() {
    let refused = Contender::start(Rival::Sockperf, Route::Host, placement(), &mut || false);
    assert!(refused.err().is_some_and(|reason| reason.contains("sockperf")));
}
