//! Handles: other threads and tasks send, call, put and answer through an endpoint, and nobody hangs (N-19).
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::common::sleeps::{driver_sleeps, extract_in_runtime};
use crate::common::{config, join, pattern, run_over};
use tautline::memory::{Cookie, Rights};
use tautline::rpc::{CallError, Replier, Rpc};
use tautline::{
    AsyncHandle, Builder, Config, DeviceName, Endpoint, Error, Handle, Job, Message, PeerState, SendError,
    Short, Waiting,
};

const DEVICES: [DeviceName; 2] = [DeviceName::Shm, DeviceName::Udp];

/// Nothing but a wake-up ends a wait: there is no watchdog, and the next heartbeat is far away.
fn quiet() -> Config {
    config(|c| {
        c.watchdog = None;
        c.waiting = Waiting::Park;
        c.link.silence = 600_000_000_000;
        c.link.credit_slots = 16;
    })
}

/// Extracts on the endpoint's thread while `work` runs on another.
fn drive(ep: &Endpoint, work: impl FnOnce(Handle) + Send) {
    let (over, waker, handle) = (AtomicBool::new(false), ep.waker(), ep.handle());
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            // Also when it panics, so that the test ends.
            let _end = End(&over, waker);
            work(handle);
        });
        while !over.load(Ordering::SeqCst) {
            let _ = ep.run_until(|| over.load(Ordering::SeqCst));
        }
        worker.join().unwrap();
    });
}

struct End<'a>(&'a AtomicBool, tautline::Waker);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
        self.1.wake();
    }
}

/// Serves until the other side has closed.
fn serve(ep: Endpoint) {
    let _ = ep.run_until(|| matches!(ep.peer_state(1 - ep.rank()), Some(PeerState::Down(_))));
    ep.close().unwrap();
}

/// Runs a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A builder whose handler checks that each thread's messages arrive in order; and the number of them.
fn counting(threads: usize) -> (Builder, Rc<RefCell<Vec<u64>>>) {
    let next = Rc::new(RefCell::new(vec![0; threads]));
    let expected = next.clone();
    let builder = Endpoint::builder().on("data", move |mut m: Message| {
        let expected = expected.clone();
        async move {
            let bytes = m.read_to_end().await?;
            let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            let (thread, number) = (word(0), word(8));
            assert!(bytes[16..] == pattern(bytes.len() - 16, number as usize), "{thread} {number}");
            let due = &mut expected.borrow_mut()[thread as usize];
            assert_eq!(number, *due, "of thread {thread}");
            *due += 1;
            Ok(())
        }
    });
    (builder, next)
}

fn message(thread: u64, number: u64) -> Vec<u8> {
    // Mostly one frame; every 50th has several.
    let len = if number % 50 == 49 { 30_000 } else { 500 };
    [&thread.to_le_bytes()[..], &number.to_le_bytes(), &pattern(len, number as usize)].concat()
}

/// M-2, N-19: the messages of several threads arrive once, and in the order of each thread. The endpoint's
/// thread does nothing meanwhile: senders that wait for room make progress themselves. Long messages, too.
#[test]
fn threads_that_send() {
    const THREADS: u64 = 4;
    const MESSAGES: u64 = 1_000;
    for device in DEVICES {
        for tasks in [false, true] {
            run_over(device, 2, |job| {
                let (builder, next) = counting(THREADS as usize);
                let ep = join(builder.config(quiet()), job);
                if ep.rank() == 1 {
                    ep.serve(THREADS * MESSAGES).unwrap();
                    assert_eq!(*next.borrow(), [MESSAGES; THREADS as usize]);
                    return ep.close().unwrap();
                }
                std::thread::scope(|scope| {
                    for thread in 0..THREADS {
                        let handle = ep.handle();
                        scope.spawn(move || {
                            for number in 0..MESSAGES {
                                let bytes = message(thread, number);
                                if tasks {
                                    block_on(handle.to_async().send(1, "data", &bytes)).unwrap();
                                } else {
                                    handle.send(1, "data", &bytes).unwrap();
                                }
                            }
                        });
                    }
                });
                ep.close().unwrap();
            });
        }
    }
}

/// A thread that sends to its own node: the endpoint's thread is woken to extract, and makes room.
#[test]
fn messages_to_oneself() {
    const MESSAGES: u64 = 1_000;
    for device in DEVICES {
        run_over(device, 2, |job| {
            let (builder, next) = counting(2);
            let ep = join(builder.config(quiet()), job);
            drive(&ep, |handle| {
                for number in 0..MESSAGES {
                    handle.send(handle.rank(), "data", &message(0, number)).unwrap();
                    let bytes = message(1, number);
                    block_on(handle.to_async().send(handle.rank(), "data", &bytes)).unwrap();
                }
            });
            ep.run_until(|| *next.borrow() == [MESSAGES; 2]).unwrap();
            // On the endpoint's own thread nobody would make room.
            let full = (0..10_000).find_map(|_| ep.handle().send(ep.rank(), "data", &message(0, 0)).err());
            assert!(full.unwrap().is_would_block());
            ep.handle().try_send(1 - ep.rank(), "data", &[0; 1 << 20]).unwrap_err();
        });
    }
}

fn echo(rpc: &Rpc) -> Builder {
    Endpoint::builder()
        .config(quiet())
        .with(rpc)
        .with(rpc.serve_raw("echo", |_, request, answer| answer.extend_from_slice(request)))
        .with(rpc.serve_bytes("long", |_, request| async move { Ok(request) }))
        .with(rpc.serve("add", |_, (a, b): (u64, u64)| async move {
            if b == 0 { Err("nothing to add".to_owned()) } else { Ok(a + b) }
        }))
        .with(rpc.serve_bytes("never", |_, _| std::future::pending()))
}

/// Calls from four threads while the endpoint's thread serves calls of the other side, and its own.
#[test]
fn calls_from_threads() {
    const THREADS: u64 = 4;
    const CALLS: u64 = 500;
    for device in DEVICES {
        let finished = AtomicU64::new(0);
        run_over(device, 2, |job| {
            let rpc = Rpc::new();
            let ep = join(echo(&rpc), job);
            let peer = 1 - ep.rank();
            let running = AtomicU64::new(THREADS);
            let waker = ep.waker();
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (handle, running, waker) = (ep.handle(), &running, waker.clone());
                    scope.spawn(move || {
                        for number in 0..CALLS {
                            let text = (thread << 32 | number).to_le_bytes();
                            assert_eq!(handle.call_raw(peer, "echo", &text).unwrap().wait().unwrap(), text);
                            let sum = handle.call::<_, u64>(peer, "add", &(number, 1u64)).unwrap();
                            assert_eq!(block_on(sum).unwrap(), number + 1);
                        }
                        let long = pattern(100_000, thread as usize);
                        assert_eq!(handle.call_raw(peer, "long", &long).unwrap().wait().unwrap(), long);
                        let failed = handle.call::<_, u64>(peer, "add", &(1u64, 0u64)).unwrap().wait();
                        let why: Option<String> = failed.unwrap_err().service();
                        assert_eq!(why.as_deref(), Some("nothing to add"));
                        running.fetch_sub(1, Ordering::SeqCst);
                        waker.wake();
                    });
                }
                let mut own = 0u64;
                while running.load(Ordering::SeqCst) > 0 {
                    let call = rpc.call_raw(&ep, peer, "echo", &own.to_le_bytes()).unwrap();
                    assert_eq!(call.wait().unwrap(), own.to_le_bytes());
                    own += 1;
                }
            });
            assert!(format!("{rpc:?}").contains("calls: 0"), "{rpc:?}");
            let wait = ep.handle().call_raw(peer, "echo", b"").unwrap().wait();
            assert!(wait.unwrap_err().to_string().contains("own thread"));
            // The other side may still call.
            finished.fetch_add(1, Ordering::SeqCst);
            while finished.load(Ordering::SeqCst) < 2 {
                ep.extract(usize::MAX).unwrap();
                ep.wait(Some(Duration::from_millis(1))).unwrap();
            }
            ep.close().unwrap();
        });
    }
}

/// The peer dies while eight threads wait for it, half of them as tasks: every call returns. Also if nobody
/// extracts.
#[test]
fn the_peer_dies() {
    for device in DEVICES {
        for drives in [true, false] {
            let called = Barrier::new(9);
            run_over(device, 2, |job| {
                let rpc = Rpc::new();
                let config = config(|c| {
                    c.link.silence = 3_000_000_000;
                    c.watchdog = c.watchdog.filter(|_| job.rank == 0);
                });
                let ep = join(echo(&rpc).config(config), job);
                if ep.rank() == 1 {
                    ep.run_until(|| ep.handled() >= 1).unwrap();
                    let (over, waker) = (AtomicBool::new(false), ep.waker());
                    std::thread::scope(|scope| {
                        scope.spawn(|| {
                            called.wait();
                            let _end = End(&over, waker);
                        });
                        ep.run_until(|| over.load(Ordering::SeqCst)).unwrap();
                    });
                    // As a process that is killed.
                    ep.node().kill();
                    return std::mem::forget(ep);
                }
                ep.send(1, "tautline.rpc.cancel", &[0; 8]).unwrap();
                let work = |handle: Handle| {
                    std::thread::scope(|scope| {
                        for thread in 0..8 {
                            let (handle, called) = (&handle, &called);
                            scope.spawn(move || {
                                let call = handle.call_raw(1, "never", b"").unwrap();
                                called.wait();
                                let ended =
                                    if thread % 2 == 0 || !drives { call.wait() } else { block_on(call) };
                                let gone = matches!(ended, Err(CallError::Endpoint(Error::PeerGone(1, _))));
                                assert!(gone, "{ended:?}");
                            });
                        }
                    });
                };
                if drives {
                    drive(&ep, work);
                } else {
                    let handle = ep.handle();
                    std::thread::scope(|scope| scope.spawn(|| work(handle)).join().unwrap());
                }
                assert!(format!("{rpc:?}").contains("calls: 0"), "{rpc:?}");
                ep.close().unwrap();
            });
        }
    }
}

/// The endpoint is closed while threads and tasks wait: for answers, and for room. All of them return
/// `Closed`, and so do later calls.
#[test]
fn the_endpoint_closes() {
    for device in DEVICES {
        let (called, over) = (Barrier::new(9), Barrier::new(2));
        run_over(device, 2, |job| {
            let rpc = Rpc::new();
            let mut quiet = quiet();
            quiet.close_timeout = Duration::from_millis(200);
            let ep = join(echo(&rpc).config(quiet).on_short("fill", |_: Short<'_>| {}), job);
            if ep.rank() == 1 {
                // It takes nothing after the connection, so that there is no room.
                ep.run_until(|| ep.handled() >= 1).unwrap();
                over.wait();
                return std::mem::forget(ep);
            }
            ep.send(1, "fill", b"").unwrap();
            let is_closed = |error: &Error| matches!(error, Error::Send(SendError::Closed));
            std::thread::scope(|scope| {
                for thread in 0..8 {
                    let (handle, called) = (ep.handle(), &called);
                    scope.spawn(move || {
                        let call = handle.call_raw(1, "never", b"");
                        called.wait();
                        let fill = || match thread % 2 {
                            0 => handle.send(1, "fill", &[0; 1000]),
                            _ => block_on(handle.to_async().send(1, "fill", &[0; 1000])),
                        };
                        let ended = match thread / 4 {
                            0 => std::iter::repeat_with(fill).find_map(Result::err).unwrap(),
                            _ if thread % 2 == 0 => call.unwrap().wait().unwrap_err().into(),
                            _ => block_on(call.unwrap()).unwrap_err().into(),
                        };
                        assert!(is_closed(&ended), "{ended:?}");
                        assert!(is_closed(&handle.send(1, "fill", b"").unwrap_err()));
                        assert!(is_closed(&handle.call_raw(1, "never", b"").unwrap_err().into()));
                    });
                }
                called.wait();
                std::thread::sleep(Duration::from_millis(50));
                // N-9: what is in shared memory is with the peer; what is in datagrams is not.
                match ep.close() {
                    Ok(()) => assert_eq!(device, DeviceName::Shm),
                    Err(Error::Undelivered(lost)) => assert_eq!((device, lost[0].peer), (DeviceName::Udp, 1)),
                    Err(other) => panic!("{other:?}"),
                }
            });
            over.wait();
        });
    }
}

/// A future that is dropped while it waits leaves nothing behind: no call, no part of a message, and its
/// service is cancelled. A deadline ends a call, blocking and as a future.
#[test]
fn cancelled_futures() {
    struct Dropped(Arc<AtomicU64>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    for device in DEVICES {
        let (started, dropped) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        run_over(device, 2, |job| {
            let rpc = Rpc::new();
            let (begin, end) = (started.clone(), dropped.clone());
            let builder = echo(&rpc).with(rpc.serve_bytes("slow", move |_, _| {
                begin.fetch_add(1, Ordering::SeqCst);
                let dropped = Dropped(end.clone());
                async move {
                    std::future::pending::<()>().await;
                    drop(dropped);
                    Ok(Vec::new())
                }
            }));
            let ep = join(
                // Messages that are aborted are no failures here.
                builder.on("data", |mut m: Message| async move {
                    let _ = m.read_to_end().await;
                    Ok(())
                }),
                job,
            );
            if ep.rank() == 1 {
                return serve(ep);
            }
            let (started, dropped) = (&started, &dropped);
            drive(&ep, |handle| {
                let mut context = Context::from_waker(Waker::noop());
                let tasks = handle.to_async();
                let (long, mut partly) = (vec![0; 20 << 20], 0);
                for _ in 0..20 {
                    let mut call = Box::pin(tasks.call_raw(1, "slow", b""));
                    let before = started.load(Ordering::SeqCst);
                    while started.load(Ordering::SeqCst) == before {
                        assert!(matches!(call.as_mut().poll(&mut context), Poll::Pending));
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    drop(call);
                    let mut send = Box::pin(tasks.send(1, "data", &long));
                    partly += u32::from(send.as_mut().poll(&mut context).is_pending());
                    drop(send);
                }
                assert!(partly > 0, "nothing was cancelled half-way");
                let limit = Some(Duration::from_millis(20));
                let late = handle.call_raw_timeout(1, "slow", b"", limit).unwrap().wait();
                assert!(matches!(late, Err(CallError::DeadlinePassed)), "{late:?}");
                let late = block_on(tasks.call_raw_timeout(1, "slow", b"", limit));
                assert!(matches!(late, Err(CallError::DeadlinePassed)), "{late:?}");
                // Whatever was cancelled before has been started when this is answered. On a busy machine the
                // calls with a deadline may never have left.
                assert_eq!(handle.call_raw(1, "echo", b"x").unwrap().wait().unwrap(), b"x");
                while dropped.load(Ordering::SeqCst) < started.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            assert!(format!("{rpc:?}").contains("calls: 0"), "{rpc:?}");
            ep.close().unwrap();
        });
        let (started, dropped) = (started.load(Ordering::SeqCst), dropped.load(Ordering::SeqCst));
        assert!((20..=22).contains(&started) && started == dropped, "{started} started, {dropped} dropped");
    }
}

/// N-6: 10,000 calls of tasks on a multi-threaded runtime, while a task of another thread drives the endpoint
/// and sleeps on its descriptor.
#[test]
fn tokio_with_several_threads() {
    const TASKS: u64 = 100;
    const CALLS: u64 = 100;
    for device in DEVICES {
        run_over(device, 2, |job: Job| {
            let rpc = Rpc::new();
            let ep = join(echo(&rpc), job);
            if ep.rank() == 1 {
                return serve(ep);
            }
            let (over, mut ended) = tokio::sync::mpsc::channel::<u64>(1);
            let tasks = ep.handle().to_async();
            let worker = std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
                let sum = runtime.block_on(call_from_tasks(tasks, TASKS, CALLS));
                over.blocking_send(sum).unwrap();
            });
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let sum = runtime.block_on(async {
                let done = async {
                    let sum = ended.recv().await.unwrap();
                    driver_sleeps(|| ep.counters().device.receive_calls).await;
                    sum
                };
                tokio::select! {
                    () = extract_in_runtime(&ep) => unreachable!(),
                    sum = done => sum,
                }
            });
            worker.join().unwrap();
            assert_eq!(sum, TASKS * (CALLS * (CALLS - 1) / 2 + CALLS));
            assert!(format!("{rpc:?}").contains("calls: 0"), "{rpc:?}");
            ep.close().unwrap();
        });
    }
}

async fn call_from_tasks(handle: AsyncHandle, tasks: u64, calls: u64) -> u64 {
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let handle = handle.clone();
            tokio::spawn(async move {
                let mut sum = 0;
                for number in 0..calls {
                    sum += handle.call::<_, u64>(1, "add", &(number, 1u64)).await.unwrap();
                }
                sum
            })
        })
        .collect();
    let mut sum = 0;
    for task in tasks {
        sum += task.await.unwrap();
    }
    sum
}

/// Threads and tasks put, get and change words of a peer's memory, while neither endpoint's thread does
/// anything.
#[test]
fn memory_from_threads() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 100;
    for device in DEVICES {
        let (given, cookie) = mpsc::channel::<Cookie>();
        let cookie = std::sync::Mutex::new(cookie);
        let over = Barrier::new(2);
        run_over(device, 2, |job| {
            // Only the owner has a watchdog, which serves its memory.
            let watchdog = Config::default().watchdog.filter(|_| job.rank == 1);
            let mut config = quiet();
            config.watchdog = watchdog;
            let ep = join(Endpoint::builder().config(config).on_short("data", |_: Short<'_>| {}), job);
            if ep.rank() == 1 {
                let aperture = ep.aperture(1 << 20).unwrap();
                given.send(aperture.cookie(.., Rights::ALL).unwrap()).unwrap();
                ep.serve(1).unwrap();
                over.wait();
                assert_eq!(aperture.read_u64(0).unwrap(), THREADS * ROUNDS * 2);
                ep.close().unwrap();
                return;
            }
            ep.send(1, "data", b"").unwrap();
            let cookie = cookie.lock().unwrap().recv().unwrap();
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let handle = ep.handle();
                    scope.spawn(move || {
                        let remote = handle.remote(&cookie);
                        let at = (thread + 1) * (128 << 10);
                        for round in 0..ROUNDS {
                            // Now and then more than there is room for.
                            let bytes = pattern(if round % 10 == 9 { 100_000 } else { 300 }, round as usize);
                            remote.put(at, &bytes).unwrap();
                            assert_eq!(remote.get(at, bytes.len()).unwrap(), bytes);
                            remote.fetch_add(0, 1).unwrap();
                            remote.flush().unwrap();
                            let tasks = handle.to_async().remote(&cookie);
                            block_on(async {
                                let bytes = pattern(bytes.len(), round as usize + 1);
                                tasks.put(at, &bytes).await.unwrap();
                                assert_eq!(tasks.get(at, bytes.len()).await.unwrap(), bytes);
                                tasks.fetch_add(0, 1).await.unwrap();
                                tasks.flush().await.unwrap();
                                tasks.swap(at, 7).await.unwrap();
                                assert_eq!(remote.swap(at, 9).unwrap(), 7);
                                assert_eq!(tasks.compare_swap(at, 9, 1).await.unwrap(), 9);
                                assert_eq!(remote.compare_swap(at, 9, 1).unwrap(), 1);
                            });
                        }
                    });
                }
            });
            over.wait();
            ep.close().unwrap();
        });
    }
}

/// A pool of threads answers calls: each once, short and long ones. A replier that is dropped fails its call.
#[test]
fn a_pool_that_answers() {
    const CALLS: u64 = 300;
    for device in DEVICES {
        run_over(device, 2, |job| {
            let rpc = Rpc::new();
            let (requests, queue) = mpsc::channel::<(Replier, Vec<u8>)>();
            let queue = Arc::new(std::sync::Mutex::new(queue));
            let pool: Vec<_> = (0..3)
                .map(|_| {
                    let queue = queue.clone();
                    std::thread::spawn(move || {
                        let next = || queue.lock().unwrap().recv().ok();
                        while let Some((replier, request)) = next() {
                            match request.first() {
                                Some(0) => drop(replier),
                                Some(1) => replier.fail(b"no"),
                                _ => replier.answer(&request),
                            }
                        }
                    })
                })
                .collect();
            let builder = Endpoint::builder()
                .config(quiet())
                .with(&rpc)
                .with(rpc.serve_bytes_deferred("echo", move |replier, request| {
                    requests.send((replier, request)).unwrap();
                }))
                .with(rpc.serve_deferred("half", |replier, number: u64| {
                    std::thread::spawn(move || {
                        let odd = number % 2 == 1;
                        replier.answer(&if odd { Err("odd".to_owned()) } else { Ok(number / 2) });
                    });
                }));
            let ep = join(builder, job);
            if ep.rank() == 1 {
                serve(ep);
                return pool.into_iter().for_each(|thread| thread.join().unwrap());
            }
            let calls: Vec<_> = (0..CALLS)
                .map(|number| {
                    let request = pattern(if number % 7 == 0 { 50_000 } else { 40 }, number as usize + 2);
                    (rpc.call_raw(&ep, 1, "echo", &request).unwrap(), request)
                })
                .collect();
            for (call, request) in calls {
                let answer = call.wait();
                match request[0] {
                    0 => assert!(matches!(answer, Err(CallError::Panicked(_))), "{answer:?}"),
                    1 => assert!(matches!(answer, Err(CallError::Failed(why)) if why == b"no")),
                    _ => assert_eq!(answer.unwrap(), request),
                }
            }
            assert_eq!(rpc.call::<_, u64>(&ep, 1, "half", &8u64).unwrap().wait().unwrap(), 4);
            let odd = rpc.call::<_, u64>(&ep, 1, "half", &9u64).unwrap().wait().unwrap_err();
            assert_eq!(odd.service::<String>().as_deref(), Some("odd"));
            ep.close().unwrap();
            drop(rpc);
            pool.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}
