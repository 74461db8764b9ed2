//! A peer is killed at every system call of connecting and disconnecting. The survivor never hangs, and
//! nothing is leaked.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::print_stdout)]

mod shm_pair;
mod tracee;

use shm_pair::{TempDir, answer_incoming, frame, hello, next, prove, segments, until};
use tautline_device::Channel;
use tautline_device::shm::{Dial, Incoming, Listener, Shm, unlink_stale_listeners};
use tracee::{Stop, Tracee, may_trace, pause};

/// The surviving side of a handover. It never blocks, and continues after every error.
enum Survivor {
    Listening { listener: Listener, incoming: Option<Incoming>, shm: Option<Shm> },
    Dialing { dial: Option<Dial>, shm: Option<Shm> },
}

impl Survivor {
    /// Does whatever can be done now.
    fn turn(&mut self, dir: &TempDir) {
        match self {
            Survivor::Listening { listener, incoming, shm } => {
                if let Some(next) = next(listener) {
                    *incoming = Some(next);
                }
                match incoming.as_ref().map(|v| v.poll_greeting(prove)) {
                    Some(Ok(Some((_, handover)))) => {
                        let incoming = incoming.take().expect("it sent a greeting");
                        *shm = answer_incoming(incoming, handover).ok();
                    }
                    Some(Err(_)) => *incoming = None,
                    Some(Ok(None)) | None => {}
                }
                Survivor::exchange(shm);
            }
            Survivor::Dialing { dial, shm } => {
                if dial.is_none() && shm.is_none() {
                    *dial = Dial::new(&dir.listener_path(), hello).ok();
                }
                match dial.as_ref().map(|c| c.poll_greeting(prove)) {
                    Some(Ok(Some((_, bell)))) => {
                        *shm = Some(dial.take().expect("it connected").establish(bell, true));
                    }
                    Some(Err(_)) => *dial = None,
                    Some(Ok(None)) | None => {}
                }
                Survivor::exchange(shm);
            }
        }
    }

    fn exchange(shm: &mut Option<Shm>) {
        let Some(shm) = shm else { return };
        let _ = shm.push(&frame(7, 100), &[]);
        shm.flush();
        let mut out = vec![0; shm.max_frame()];
        while let Some(len) = shm.pop(&mut out) {
            assert_eq!(out[..len], frame(7, 100), "torn");
        }
        assert!(!shm.is_corrupt());
    }

    /// Checks that the death of the other process is visible everywhere.
    fn check(self) {
        let (incoming, dial, shm) = match self {
            Survivor::Listening { listener, incoming, shm } => {
                // A process that connected and died is detected without waiting.
                while let Some(incoming) = next(&listener) {
                    if let Ok(None) = incoming.poll_greeting(prove) {
                        panic!("the death is not visible");
                    }
                }
                (incoming, None, shm)
            }
            Survivor::Dialing { dial, shm } => (None, dial, shm),
        };
        assert!(
            !incoming.is_some_and(|v| matches!(v.poll_greeting(prove), Ok(None))),
            "the death is not visible"
        );
        assert!(
            !dial.is_some_and(|c| matches!(c.poll_greeting(prove), Ok(None))),
            "the death is not visible"
        );
        if let Some(shm) = shm {
            until("the death", || shm.is_dead().then_some(()));
            Survivor::exchange(&mut Some(shm));
        }
    }
}

/// The role of the child.
#[derive(Clone, Copy, Debug)]
enum Role {
    Dialer,
    Listener,
    /// Closes and drops a channel of its own, and unlinks stale listeners.
    Cleaner,
}

/// Connects, exchanges frames, and disconnects.
fn run(role: Role, dir: &TempDir) {
    let exchange = |mut shm: Shm| {
        let _ = shm.push(&frame(7, 100), &[]);
        shm.flush();
        let mut out = vec![0; shm.max_frame()];
        while shm.pop(&mut out).is_some() {}
        shm.close();
    };
    match role {
        Role::Dialer => {
            let Ok(dial) = Dial::new(&dir.listener_path(), hello) else { return };
            for _ in 0..1_000 {
                match dial.poll_greeting(prove) {
                    Ok(Some((_, bell))) => return exchange(dial.establish(bell, true)),
                    Ok(None) => {}
                    Err(_) => return,
                }
            }
        }
        Role::Listener => {
            let listener = Listener::bind(&dir.listener_path()).unwrap();
            let incoming = until("a connection", || next(&listener));
            let (_, handover) = until("a greeting", || incoming.poll_greeting(prove).unwrap());
            exchange(answer_incoming(incoming, handover).unwrap());
        }
        Role::Cleaner => {
            let listener = Listener::bind(&dir.listener_path()).unwrap();
            let mut ends = shm_pair::pair(&listener, &dir.listener_path());
            ends.0.close();
            drop(ends.0);
            assert!(ends.1.is_finished() && ends.1.is_dead());
            drop(ends.1);
            unlink_stale_listeners(&dir.0);
        }
    }
}

/// Leaves a listener without a process.
fn leave_a_stale_listener(dir: &TempDir) {
    let listener = Listener::bind(&tautline_device::shm::listener_path(&dir.0, 1, 9)).unwrap();
    // The file remains as it does when a process is killed.
    let path = tautline_device::shm::listener_path(&dir.0, 1, 8);
    std::fs::hard_link(tautline_device::shm::listener_path(&dir.0, 1, 9), path).unwrap();
    drop(listener);
}

/// Runs the child up to its `stops`-th stop at a system call and `steps` instructions further, and kills it.
/// Returns whether it had finished.
fn kill_at(kind: Role, stops: usize, steps: usize) -> bool {
    let dir = TempDir::new("call");
    let mut survivor = match kind {
        Role::Dialer => Survivor::Listening {
            listener: Listener::bind(&dir.listener_path()).unwrap(),
            incoming: None,
            shm: None,
        },
        Role::Listener | Role::Cleaner => Survivor::Dialing { dial: None, shm: None },
    };
    let cleaner = matches!(kind, Role::Cleaner);
    if cleaner {
        leave_a_stale_listener(&dir);
    }
    let mut child = Tracee::fork(|| {
        pause();
        run(kind, &dir);
        pause();
    });
    child.go();
    assert_eq!(child.await_stop(), Stop::Paused);
    let mut over = false;
    for _ in 0..stops {
        over = match child.next_call() {
            Stop::Call => false,
            Stop::Paused => true,
            other => panic!("{kind:?}: {other:?} at stop {stops}"),
        };
        if over {
            break;
        }
        if !cleaner {
            survivor.turn(&dir);
        }
    }
    for _ in 0..if over { 0 } else { steps } {
        if child.step() != Stop::Step {
            break;
        }
    }
    child.kill();
    child.await_death();
    if !cleaner {
        survivor.turn(&dir);
    }
    survivor.check();
    // The name can be used again, whether the child was reaped or not.
    let listener = Listener::bind(&dir.listener_path()).unwrap();
    drop(shm_pair::pair(&listener, &dir.listener_path()));
    unlink_stale_listeners(&dir.0);
    assert!(!tautline_device::shm::listener_path(&dir.0, 1, 8).exists(), "unlinked");
    child.reap();
    over
}

/// S-1, S-5, S-6: a peer that dies at any system call of connecting, accepting, disconnecting or cleaning up
/// leaves nobody waiting; its name can be used again, and its memory is freed.
#[test]
fn killed_at_every_system_call() {
    if !may_trace() {
        return tautline_skips::skip(
            "killed_at_every_system_call",
            "this process may not trace its children",
        );
    }
    let before = segments();
    for kind in [Role::Dialer, Role::Listener, Role::Cleaner] {
        let mut stops = 0;
        while !kill_at(kind, stops, 0) {
            stops += 1;
        }
        assert!(stops > 20, "{kind:?} was traced");
        // A sample of the instructions between system calls, too.
        let samples = tautline_skips::number("TAUTLINE_STEPS", 60) as usize;
        for i in 0..samples {
            kill_at(kind, i * 7 % stops, 1 + i * 37 % 211);
        }
        println!("{kind:?}: {stops} kills at system calls, {samples} between them");
    }
    assert_eq!(segments(), before, "mappings and descriptors of segments");
}
