//! Calls of every kind that are blocked when their peer closes or dies, over datagrams and through shared
//! memory. The peer ends when the call sleeps, and has done nothing for it.
#![allow(clippy::print_stdout)]

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use crate::common::{Limit, config, jobs, join};
use tautline::memory::Rights;
use tautline::node::link::Death;
use tautline::rpc::{CallError, Rpc};
use tautline::{Cookie, DeviceName, Down, Endpoint, Error, Job, Message, Result, Short, queue, stream};

/// How the peer ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Closes,
    Dies,
}

/// What the survivor has of its peer before it blocks.
struct Survivor {
    ep: Endpoint,
    rpc: Rpc,
    memory: Cookie,
    queue: queue::Sender,
    stream: stream::Writer,
}

/// A call that blocks, repeated until it does if once is not enough: a peer that closes may still serve
/// memory.
type Call = (&'static str, fn(&mut Survivor) -> Result<()>);

const CALLS: [Call; 33] = [
    ("send", |it| repeat(|| it.ep.send(1, "work", &[0; 1_000]))),
    ("send a long message", |it| it.ep.send(1, "data", &vec![0; 64 << 20])),
    ("piece", |it| {
        let mut out = it.ep.begin(1, "data", 1 << 40)?;
        repeat(|| out.piece(&[0; 10_000]))
    }),
    ("loan", |it| {
        repeat(|| {
            let loan = it.ep.loan(1, 100_000)?;
            loan.send("data")
        })
    }),
    ("started send", |it| it.ep.start_send(1, "data", vec![0; 64 << 20])?.wait()),
    ("wait_any", |it| {
        let mut all = [it.ep.start_send(1, "data", vec![0; 64 << 20])?];
        it.ep.wait_any(&mut all)?;
        all[0].wait()
    }),
    ("exchange", |it| it.ep.exchange(1, b"one").map(drop)),
    ("barrier", |it| it.ep.barrier()),
    ("share", |it| it.ep.share(it.memory).map(drop)),
    ("call", |it| it.rpc.call_raw(&it.ep, 1, "never", b"")?.wait().map(drop).map_err(of_call)),
    ("call with a deadline", |it| {
        let limit = Some(Duration::from_secs(60));
        it.rpc.call_raw_timeout(&it.ep, 1, "never", b"", limit)?.wait().map(drop).map_err(of_call)
    }),
    ("get", |it| repeat(|| it.ep.remote(&it.memory).get(0, 8)?.wait().map(drop))),
    ("put", |it| repeat(|| it.ep.remote(&it.memory).put(0, &[1; 64]))),
    ("put with completion", |it| {
        repeat(|| it.ep.remote(&it.memory).put_with_completion(0, &[1; 8])?.wait().map(drop))
    }),
    ("put_notice", |it| repeat(|| it.ep.remote(&it.memory).put_notice(0, &[1; 8], 1)?.wait().map(drop))),
    ("put_list", |it| {
        repeat(|| it.ep.remote(&it.memory).put_list(&[(0, &[1; 8]), (16, &[2; 8])])?.wait().map(drop))
    }),
    ("put_from", |it| {
        let from = it.ep.aperture(64)?;
        repeat(|| it.ep.remote(&it.memory).put_from(0, &from, ..)?.wait().map(drop))
    }),
    ("get_list", |it| repeat(|| it.ep.remote(&it.memory).get_list(&[(0, 8), (16, 8)])?.wait().map(drop))),
    ("get_into", |it| {
        let into = it.ep.aperture(64)?;
        repeat(|| it.ep.remote(&it.memory).get_into(0, &into, ..)?.wait().map(drop))
    }),
    ("swap", |it| repeat(|| it.ep.remote(&it.memory).swap(0, 1)?.wait().map(drop))),
    ("compare_swap", |it| repeat(|| it.ep.remote(&it.memory).compare_swap(0, 0, 1)?.wait().map(drop))),
    ("fence", |it| {
        repeat(|| {
            it.ep.remote(&it.memory).put(0, &[1; 64])?;
            it.ep.remote(&it.memory).fence()?.wait().map(drop)
        })
    }),
    ("fetch_add", |it| repeat(|| it.ep.remote(&it.memory).fetch_add(0, 1)?.wait().map(drop))),
    ("flush", |it| repeat(|| it.ep.remote(&it.memory).flush()?.wait().map(drop))),
    ("tripwire", |it| it.ep.aperture(8)?.tripwire(0..8).arm()?.wait().map(drop)),
    ("tripset", |it| {
        let watched = it.ep.aperture(8)?;
        let wire = watched.tripwire(0..8).arm()?;
        it.ep.tripset(&[&wire], 1, None)?.wait().map(drop)
    }),
    ("queue, pop", |it| queue::pair(&it.ep, 100)?.0.pop().map(drop)),
    ("queue, push", |it| repeat(|| it.queue.push(&[0; 100]))),
    ("stream, read", |it| stream::pair(&it.ep, 100)?.0.read(&mut [0]).map(drop)),
    ("stream, write", |it| it.stream.write_all(&vec![0; 1 << 20])),
    ("serve", |it| it.ep.serve(1_000_000)),
    ("run_until", |it| it.ep.run_until(|| false)),
    ("block_on", |it| {
        let (ep, memory) = (it.ep.to_async(), it.memory);
        repeat(|| it.ep.block_on(async { ep.remote(&memory).get(0, 8).await.map(drop) })?)
    }),
];

fn repeat(mut call: impl FnMut() -> Result<()>) -> Result<()> {
    (0..10_000_000).try_for_each(|_| call())
}

fn of_call(error: CallError) -> Error {
    match error {
        CallError::Endpoint(error) => error,
        other => panic!("{other:?}"),
    }
}

/// The survivor's node, and how often it had slept before the call.
type Caller = (tautline::node::Endpoint, u64);

/// Joins, hands out cookies, and makes progress until the survivor is about to call. Then it does nothing,
/// and ends when the call sleeps.
fn peer(job: Job, end: End, callers: &Receiver<Caller>, idle: &Sender<()>) {
    let rpc = Rpc::new();
    let never = rpc.serve_bytes("never", |_, _| std::future::pending());
    let builder = Endpoint::builder().with(&rpc).with(never).on_short("work", |_: Short<'_>| {});
    let builder = builder.on("data", |mut msg: Message| async move { msg.skip(msg.remaining()).await });
    // Nothing is served behind the program's back.
    let ep = join(builder.config(config(|c| c.watchdog = None)), job);
    let aperture = ep.aperture(64).unwrap();
    let (queue, to_queue) = queue::pair(&ep, 4_000).unwrap();
    let (stream, to_stream) = stream::pair(&ep, 4_000).unwrap();
    for cookie in [aperture.cookie(.., Rights::ALL).unwrap(), to_queue, to_stream] {
        ep.send(0, "cookie", &cookie.to_bytes()).unwrap();
    }
    let (caller, slept) = loop {
        match callers.try_recv() {
            Ok(caller) => break caller,
            // The survivor has failed.
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => ep.progress().unwrap(),
        }
        std::thread::sleep(Duration::from_micros(200));
    };
    idle.send(()).unwrap();
    // Not if the call has failed before.
    while caller.counters().sleeps == slept && callers.try_recv().err() == Some(TryRecvError::Empty) {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(caller);
    if end == End::Closes {
        // What it was sent is lost: it extracts nothing.
        let _ = ep.close();
        drop((queue, stream, aperture));
    } else {
        ep.node().kill();
        std::mem::forget((queue, stream, aperture, ep));
    }
}

fn survivor(job: Job) -> Survivor {
    let rpc = Rpc::new();
    let cookies = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let inbox = cookies.clone();
    let builder = Endpoint::builder().with(&rpc).on_short("cookie", move |m: Short<'_>| {
        inbox.borrow_mut().push(Cookie::from_bytes(m.data().try_into().expect("a cookie")));
    });
    let ep = join(builder, job);
    ep.run_until(|| cookies.borrow().len() == 3).unwrap();
    let [memory, to_queue, to_stream] = cookies.borrow()[..] else { unreachable!("there are three") };
    let queue = queue::Sender::new(&ep, &to_queue).unwrap();
    let stream = stream::Writer::new(&ep, &to_stream).unwrap();
    Survivor { ep, rpc, memory, queue, stream }
}

fn ends(device: DeviceName, end: End) {
    let expected = match (end, device) {
        (End::Closes, _) => Down::Closed,
        (End::Dies, DeviceName::Shm) => Down::Exited,
        (End::Dies, _) => Down::Died(Death::Silence),
    };
    for (what, call) in CALLS {
        let _limit = Limit::seconds(60);
        println!("{what}, {device:?}, {end:?}");
        let mut all = jobs(2);
        all.iter_mut().for_each(|job| job.device = Some(device));
        let (second, first) = (all.pop().unwrap(), all.pop().unwrap());
        std::thread::scope(|scope| {
            let ((caller, callers), (idle, is_idle)) = (channel(), channel());
            scope.spawn(move || peer(second, end, &callers, &idle));
            let mut it = survivor(first);
            caller.send((it.ep.node().clone(), it.ep.counters().sleeps)).unwrap();
            is_idle.recv().unwrap();
            let result = call(&mut it);
            let Err(Error::PeerGone(1, why)) = result else {
                panic!("{what}, {device:?}, {end:?}: {result:?}")
            };
            assert_eq!(why, expected, "{what}, {device:?}, {end:?}");
        });
    }
}

/// N-8: no call outlasts its peer.
#[test]
fn a_peer_closes_over_udp() {
    ends(DeviceName::Udp, End::Closes);
}

/// N-8, S-6: the same through shared memory.
#[test]
fn a_peer_closes_through_shared_memory() {
    ends(DeviceName::Shm, End::Closes);
}

/// N-8, L-15: the same for a peer that dies.
#[test]
fn a_peer_dies_over_udp() {
    ends(DeviceName::Udp, End::Dies);
}

/// N-8, S-6: the same for a peer that dies, through shared memory.
#[test]
fn a_peer_dies_through_shared_memory() {
    ends(DeviceName::Shm, End::Dies);
}
