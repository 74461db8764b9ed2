//! Calls at their limits: each ends with an answer or with an error that says what to do. Over datagrams and
//! through shared memory.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::network_faults::FaultsMet;
use crate::common::{Limit, config, job_beside_an_absent_rank, join, run, run_over};
use tautline::node::device::fault::Faults;
use tautline::node::limits::MAX_RUNNING;
use tautline::rpc::{CallError, Rpc};
use tautline::{Builder, DeviceName, Endpoint, Error, PeerState, Short};

/// A handler for [`part`].
fn with_end(builder: Builder) -> (Builder, Rc<Cell<bool>>) {
    let ended = Rc::new(Cell::new(false));
    let end = ended.clone();
    (builder.on_short("end", move |_: Short<'_>| end.set(true)), ended)
}

fn part(ep: Endpoint, ended: &Cell<bool>) {
    ep.send(1 - ep.rank(), "end", b"").unwrap();
    ep.run_until(|| ended.get()).unwrap();
    ep.close().unwrap();
}

/// Calls whose answers could not arrive fail, and the error says what to do.
#[test]
fn calls_without_registration() {
    run(2, |job| {
        let (rpc, other) = (Rpc::new(), Rpc::new());
        let (mut builder, ended) = with_end(Endpoint::builder());
        if job.rank == 0 {
            builder =
                builder.with(&rpc).with(rpc.serve_raw("echo", |_, request, answer| answer.extend(request)));
        }
        let ep = join(builder, job);
        if ep.rank() == 1 {
            let why = rpc.call_raw(&ep, 0, "echo", b"").unwrap_err().to_string();
            assert!(why.contains("Builder::with"), "{why}");
            let why = rpc.call::<_, u64>(&ep, 0, "echo", &1u64).unwrap_err().to_string();
            assert!(why.contains("Builder::with"), "{why}");
        } else {
            let why = other.call_raw(&ep, 0, "echo", b"").unwrap_err().to_string();
            assert!(why.contains("another Rpc"), "{why}");
            assert_eq!(rpc.clone().call_raw(&ep, 0, "echo", b"me").unwrap().wait().unwrap(), b"me");
        }
        part(ep, &ended);
    });
}

/// A service gets requests of one frame, longer ones and malformed ones; if it panics before its future
/// exists, only that call fails.
#[test]
fn requests_of_all_lengths() {
    run(2, |job| {
        let rpc = Rpc::new();
        let (builder, ended) = with_end(Endpoint::builder().with(&rpc));
        let builder = builder.with(rpc.serve("sum", |_, words: Vec<u64>| {
            assert!(words.len() != 3, "three is too many");
            std::future::ready(Ok::<_, ()>((words.iter().sum::<u64>(), words)))
        }));
        let ep = join(builder, job);
        if ep.rank() == 1 {
            for len in [0, 1, 3, 2, 100, 3, 1_000, 40_000, 3, 1] {
                let words: Vec<u64> = (0..len).collect();
                let call = rpc.call::<_, (u64, Vec<u64>)>(&ep, 0, "sum", &words).unwrap().wait();
                if len == 3 {
                    let Err(CallError::Panicked(text)) = call else { panic!("{call:?}") };
                    assert_eq!(text, "three is too many");
                } else {
                    assert_eq!(call.unwrap(), (words.iter().sum(), words));
                }
                // A request without a number cannot be answered.
                ep.send(0, "sum", b"half a head").unwrap();
            }
        }
        part(ep, &ended);
    });
}

/// More calls than the limit of unfinished handlers: services that end at once are all answered; calls of
/// services that would have to wait fail, and the error says that the service was not begun.
#[test]
fn more_calls_than_handlers() {
    run(2, |job| {
        let rpc = Rpc::new();
        let (builder, ended) = with_end(Endpoint::builder().with(&rpc));
        let builder = builder.with(rpc.serve("twice", |_, n: u64| async move { Ok::<u64, ()>(2 * n) }));
        let builder =
            builder.with(rpc.serve("never", |_, _: Vec<u8>| std::future::pending::<Result<(), ()>>()));
        let ep = join(builder, job);
        if ep.rank() == 1 {
            let most = MAX_RUNNING as u64;
            let calls: Vec<_> =
                (0..most + 4_000).map(|n| rpc.call::<_, u64>(&ep, 0, "twice", &n).unwrap()).collect();
            for (n, call) in calls.into_iter().enumerate() {
                assert_eq!(call.wait().unwrap(), 2 * n as u64);
            }
            let never = |len: usize| rpc.call::<_, ()>(&ep, 0, "never", &vec![0_u8; len]).unwrap();
            let waiting: Vec<_> = (0..most).map(|_| never(1)).collect();
            for len in [1, 10_000, 300_000] {
                let why = never(len).wait();
                assert!(matches!(why, Err(CallError::Busy)), "{len} bytes: {why:?}");
            }
            drop(waiting);
        }
        part(ep, &ended);
    });
}

/// The reader of an answer may make calls, a call to oneself never waits for room, and a panic whose payload
/// panics when it is dropped is reported as any other.
#[test]
fn calls_from_answers_and_to_oneself() {
    struct Worse;
    impl Drop for Worse {
        fn drop(&mut self) {
            assert!(std::thread::panicking(), "worse");
        }
    }
    run(2, |job| {
        let rpc = Rpc::new();
        let (builder, ended) = with_end(Endpoint::builder().with(&rpc));
        let builder =
            builder.with(rpc.serve_bytes("echo", |_, bytes| async move { Ok::<Vec<u8>, Vec<u8>>(bytes) }));
        let builder = builder.with(rpc.serve("bad", |_, (): ()| async move {
            if true {
                std::panic::panic_any(Worse);
            }
            Ok::<(), ()>(())
        }));
        let ep = join(builder, job);
        if ep.rank() == 1 {
            let inner = |bytes: &[u8]| rpc.call_raw(&ep, 0, "echo", bytes).unwrap().wait().unwrap();
            let outer = rpc.call_raw(&ep, 0, "echo", b"twice").unwrap();
            assert_eq!(outer.wait_with(inner).unwrap(), b"twice");
            let long = vec![7; 3 << 20];
            assert!(rpc.call_raw(&ep, 1, "echo", &long).unwrap().wait().unwrap() == long);
            let bad = rpc.call::<_, ()>(&ep, 0, "bad", &()).unwrap().wait();
            assert!(matches!(bad, Err(CallError::Panicked(_))), "{bad:?}");
            part(ep, &ended);
        } else {
            ep.run_until(|| ended.get()).unwrap();
            assert!(ep.poll_failure().is_some_and(|failure| failure.panicked));
            part(ep, &ended);
        }
    });
}

/// A request that is too long for a raw service fails, and the error names the alternative.
#[test]
fn requests_too_long_for_raw_services() {
    run(2, |job| {
        let rpc = Rpc::new();
        let (builder, ended) = with_end(Endpoint::builder().with(&rpc));
        let builder = builder.with(rpc.serve_raw("raw", |_, _, _| {}));
        let ep = join(builder, job);
        let long = vec![1; 1 << 20];
        let why = rpc.call_raw(&ep, 1 - ep.rank(), "raw", &long).unwrap_err().to_string();
        assert!(why.contains("serve_bytes"), "{why}");
        part(ep, &ended);
    });
}

/// The answer of a raw service is what it wrote, whatever methods it used.
#[test]
fn answers_of_raw_services() {
    run(2, |job| {
        let rpc = Rpc::new();
        let (builder, ended) = with_end(Endpoint::builder().with(&rpc));
        let builder = builder.with(rpc.serve_raw("clear", |_, request, answer| {
            assert!(answer.is_empty());
            answer.extend_from_slice(b"not this");
            answer.clear();
            answer.extend(request);
        }));
        let builder = builder.with(rpc.serve_raw("shape", |_, _, answer| {
            answer.resize(5, b'x');
            answer.truncate(3);
            answer.reserve(100);
            answer.push(b'y');
            write!(answer, "{}", 17).unwrap();
            answer[0] = b'z';
            assert_eq!(answer.len(), 6);
        }));
        let builder = builder.with(rpc.serve_raw("nothing", |_, _, answer| answer.resize(0, 1)));
        let ep = join(builder, job);
        if ep.rank() == 1 {
            let limit = Some(Duration::from_secs(60));
            let call =
                |name: &str| rpc.call_raw_timeout(&ep, 0, name, b"this", limit).unwrap().wait().unwrap();
            for _ in 0..2 {
                assert_eq!(call("clear"), b"this");
                assert_eq!(call("shape"), b"zxxy17");
                assert_eq!(call("nothing"), b"");
            }
        }
        part(ep, &ended);
    });
}

/// A deadline bounds connecting, too. Rank 1 never joins, and connecting takes an hour: without the
/// deadline this would not end.
#[test]
fn a_deadline_bounds_connecting() {
    let _limit = Limit::seconds(60);
    for device in [None, Some(DeviceName::Udp), Some(DeviceName::Shm)] {
        let (job, absent) = job_beside_an_absent_rank(device);
        let rpc = Rpc::new();
        let hour = config(|c| c.connect_timeout = Duration::from_secs(3600));
        let ep = join(Endpoint::builder().with(&rpc).config(hour), job);
        let limit = Some(Duration::from_millis(50));
        let late = rpc.call_timeout::<_, u64>(&ep, 1, "add", &(1u64, 2u64), limit).unwrap().wait();
        assert!(matches!(late, Err(CallError::DeadlinePassed)), "{late:?}");
        let late = rpc.call_raw_timeout(&ep, 1, "echo", &vec![0; 1 << 20], limit).unwrap().wait();
        assert!(matches!(late, Err(CallError::DeadlinePassed)), "{late:?}");
        assert_eq!(ep.peer_state(1), Some(PeerState::Connecting));
        drop((ep, absent));
    }
}

/// A deadline bounds waiting for room, too: the peer extracts nothing until the calls have failed, and there
/// is no room for all of them. Those that did not leave in time never arrive.
#[test]
fn a_deadline_bounds_waiting_for_room() {
    const CALLS: usize = 20_000;
    for device in [DeviceName::Udp, DeviceName::Shm] {
        let failed = std::sync::Barrier::new(2);
        run_over(device, 2, |job| {
            let rpc = Rpc::new();
            let served = Rc::new(Cell::new(0));
            let serves = served.clone();
            let (builder, ended) = with_end(Endpoint::builder().with(&rpc));
            let builder = builder.with(rpc.serve_raw("count", move |_, _, _| serves.set(serves.get() + 1)));
            let ep = join(builder, job);
            if ep.rank() == 0 {
                failed.wait();
            } else {
                let limit = Some(Duration::from_millis(100));
                let make = |_| rpc.call_raw_timeout(&ep, 0, "count", &[0; 1000], limit).unwrap();
                let calls: Vec<_> = (0..CALLS).map(make).collect();
                for call in calls {
                    let late = call.wait();
                    assert!(matches!(late, Err(CallError::DeadlinePassed)), "{late:?}");
                }
                failed.wait();
                // Meanwhile those that did not leave would find room.
                for _ in 0..1_000 {
                    rpc.call_raw(&ep, 0, "count", b"more").unwrap().wait().unwrap();
                }
            }
            part(ep, &ended);
            assert!(served.get() < CALLS, "there was room for all calls, or they left too late");
        });
    }
}

/// M-19: a request that the service's rank does not keep is refused, and an answer that the caller's rank
/// does not keep ends the call. Both are errors of that call alone.
#[test]
fn requests_and_answers_over_the_limit() {
    const LIMIT: usize = 1 << 20;
    run(2, |job| {
        let rpc = Rpc::new();
        let builder = Endpoint::builder()
            .max_whole(LIMIT as u64)
            .with(&rpc)
            .with(rpc.serve_bytes("bytes", |_, request| async move { Ok(request) }))
            .with(rpc.serve_bytes("grow", |_, _| async move { Ok(vec![7; LIMIT + 1]) }))
            .with(rpc.serve_bytes_deferred("deferred", |replier, request| replier.answer(&request)));
        let ep = join(builder, job);
        if ep.rank() == 1 {
            for service in ["bytes", "deferred"] {
                let long = rpc.call_raw(&ep, 0, service, &[7; LIMIT + 1]).unwrap().wait();
                assert!(matches!(long, Err(CallError::TooLong)), "{service}: {:?}", long.map(|it| it.len()));
                let fits = rpc.call_raw(&ep, 0, service, &[7; LIMIT - 16]).unwrap().wait().unwrap();
                assert_eq!(fits.len(), LIMIT - 16);
            }
            let long = rpc.call_raw(&ep, 0, "grow", b"").unwrap().wait();
            let limit = |error: &CallError| matches!(error, CallError::Endpoint(Error::TooLong { .. }));
            assert!(long.as_ref().is_err_and(limit), "{:?}", long.map(|it| it.len()));
            let (handle, waker, over) = (ep.handle(), ep.waker(), Arc::new(AtomicBool::new(false)));
            let ended = over.clone();
            let thread = std::thread::spawn(move || {
                let long = handle.call_raw(0, "grow", b"").unwrap().wait();
                // The end of a thread by itself wakes nobody.
                ended.store(true, Ordering::SeqCst);
                waker.wake();
                long
            });
            ep.run_until(|| over.load(Ordering::SeqCst)).unwrap();
            let long = thread.join().unwrap();
            assert!(long.as_ref().is_err_and(limit), "{:?}", long.map(|it| it.len()));
        } else {
            let _ = ep.run_until(|| matches!(ep.peer_state(1), Some(PeerState::Down(_))));
        }
        ep.close().unwrap();
    });
}

/// A call runs once, although the network loses, repeats and reorders its frames. One that its caller gives
/// up runs once or not at all.
#[test]
fn calls_run_at_most_once() {
    const CALLS: u32 = 1_200;
    let faults = Faults::with(|faults| {
        (faults.loss, faults.duplicate) = (0.05, 0.2);
        (faults.reorder, faults.reorder_by) = (0.1, 16);
    });
    for (device, fault) in [(DeviceName::Udp, Some((11, faults))), (DeviceName::Shm, None)] {
        let met = FaultsMet::default();
        run_over(device, 2, |job| {
            let rpc = Rpc::new();
            let runs = Rc::new(RefCell::new(vec![0; CALLS as usize]));
            let count = || {
                let runs = runs.clone();
                move |request: &[u8]| {
                    let number = u32::from_le_bytes(request[..4].try_into().unwrap());
                    runs.borrow_mut()[number as usize] += 1;
                    number
                }
            };
            let (raw, bytes, typed) = (count(), count(), count());
            let (builder, ended) = with_end(Endpoint::builder().with(&rpc));
            let builder = builder.with(rpc.serve_raw("raw", move |_, request, answer| {
                answer.extend_from_slice(&raw(request).to_le_bytes());
            }));
            let builder = builder.with(rpc.serve_bytes("bytes", move |_, request| {
                let number = bytes(&request);
                async move { Ok(number.to_le_bytes().to_vec()) }
            }));
            let builder = builder.with(rpc.serve("typed", move |_, number: u32| {
                let number = typed(&number.to_le_bytes());
                async move { Ok::<_, ()>(number) }
            }));
            let ep = join(builder.config(config(|c| c.fault = fault)), job);
            if ep.rank() == 1 {
                for first in (0..CALLS).step_by(60) {
                    let mut calls = Vec::new();
                    for number in first..first + 60 {
                        // Of one frame and of many.
                        let mut request = number.to_le_bytes().to_vec();
                        request.resize(if number % 9 == 0 { 30_000 } else { 4 }, 0);
                        let (name, given_up) = (["raw", "bytes"][number as usize % 2], number % 5 == 4);
                        if number % 3 == 2 {
                            let call = rpc.call::<_, u32>(&ep, 0, "typed", &number).unwrap();
                            assert!(given_up || call.wait().unwrap() == number);
                            continue;
                        }
                        // A raw service takes requests of one frame.
                        let name = if request.len() > 4 { "bytes" } else { name };
                        let call = rpc.call_raw(&ep, 0, name, &request).unwrap();
                        if !given_up {
                            calls.push((number, call));
                        }
                    }
                    for (number, call) in calls {
                        assert_eq!(call.wait().unwrap(), number.to_le_bytes());
                    }
                }
            }
            let caller = ep.rank() == 1;
            met.add(&ep);
            part(ep, &ended);
            for (number, runs) in runs.borrow().iter().enumerate().filter(|_| !caller) {
                assert!(*runs == 1 || *runs == 0 && number % 5 == 4, "call {number} ran {runs} times");
            }
        });
        if fault.is_some() {
            met.check();
        }
    }
}
