//! Queues, calls and streams between nodes, over datagrams and through shared memory.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod restarts;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{join, run};
use tautline::memory::{Failure, Refusal, Rights};
use tautline::rpc::{CallError, Rpc};
use tautline::{Builder, Cookie, DeviceName, Endpoint, Error, Job, Short, queue, stream};

/// Cookies that have arrived.
type Mail = Rc<RefCell<Vec<Cookie>>>;

fn with_mail(builder: Builder) -> (Builder, Mail) {
    let mail = Mail::default();
    let inbox = mail.clone();
    let builder = builder.on_short("cookie", move |m: Short<'_>| {
        inbox.borrow_mut().push(Cookie::from_bytes(m.data().try_into().expect("a cookie")));
    });
    (builder, mail)
}

fn next_cookie(ep: &Endpoint, mail: &Mail) -> Cookie {
    ep.run_until(|| !mail.borrow().is_empty()).unwrap();
    mail.borrow_mut().remove(0)
}

/// Ends when both sides are done.
fn part(ep: Endpoint, mail: &Mail) {
    let aperture = ep.aperture(8).unwrap();
    let cookie = aperture.cookie(.., tautline::memory::Rights::READ).unwrap();
    ep.send(1 - ep.rank(), "cookie", &cookie.to_bytes()).unwrap();
    next_cookie(&ep, mail);
    ep.close().unwrap();
}

fn entry(i: usize) -> Vec<u8> {
    vec![i as u8; (i * 37) % 700]
}

/// entries of all sizes arrive in order, also across the end of the ring, with a ring much smaller than
/// all of them.
#[test]
fn a_queue_keeps_order() {
    run(2, |job| {
        let (builder, mail) = with_mail(Endpoint::builder());
        let ep = join(builder, job);
        const COUNT: usize = 3000;
        if ep.rank() == 0 {
            let (mut queue, cookie) = queue::pair(&ep, 4000).unwrap();
            ep.send(1, "cookie", &cookie.to_bytes()).unwrap();
            for i in 0..COUNT {
                assert_eq!(queue.pop().unwrap(), Some(entry(i)), "entry {i}");
            }
            assert_eq!(queue.pop().unwrap(), None);
            assert!(queue.is_over().unwrap());
        } else {
            let mut queue = queue::Sender::new(&ep, &next_cookie(&ep, &mail)).unwrap();
            assert!(matches!(
                queue.push(&[0; 4096]),
                Err(Error::EntryTooLong { entry: 4096, longest: 3992 })
            ));
            for i in 0..COUNT {
                let entry = entry(i);
                let (a, b) = entry.split_at(entry.len() / 3);
                match i % 3 {
                    0 => queue.push(&entry).unwrap(),
                    1 => queue.push_pieces(&[a, &[], b]).unwrap(),
                    _ => {
                        while !queue.try_push(&entry).unwrap() {
                            ep.wait(Some(Duration::from_millis(10))).unwrap();
                            ep.extract(usize::MAX).unwrap();
                        }
                    }
                }
            }
            queue.end().unwrap();
            assert!(matches!(queue.push(&[1]), Err(Error::Aborted)));
        }
        part(ep, &mail);
    });
}

/// A queue whose sender dies yields the whole entries, then an error.
#[test]
fn a_queue_whose_sender_dies() {
    run(2, |job| {
        let (builder, mail) = with_mail(Endpoint::builder());
        let ep = join(builder, job);
        if ep.rank() == 0 {
            let (mut queue, cookie) = queue::pair(&ep, 4000).unwrap();
            ep.send(1, "cookie", &cookie.to_bytes()).unwrap();
            assert_eq!(queue.pop().unwrap().as_deref(), Some(&b"last words"[..]));
            match queue.pop() {
                Ok(None) | Err(Error::PeerGone(1, _)) => {}
                other => panic!("{other:?}"),
            }
        } else {
            let mut queue = queue::Sender::new(&ep, &next_cookie(&ep, &mail)).unwrap();
            queue.push(b"last words").unwrap();
            std::mem::forget(queue);
        }
        ep.close().unwrap();
    });
}

/// Bytes arrive in order; each half closes separately; a slow reader holds the writer back.
#[test]
fn a_stream_both_ways() {
    run(2, |job| {
        let (builder, mail) = with_mail(Endpoint::builder());
        let ep = join(builder, job);
        let (reader, cookie) = stream::pair(&ep, 10_000).unwrap();
        ep.send(1 - ep.rank(), "cookie", &cookie.to_bytes()).unwrap();
        let writer = stream::Writer::new(&ep, &next_cookie(&ep, &mail)).unwrap();
        // An empty read or write needs nothing to be there.
        let mut reader = reader.into_async();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let polled = std::pin::pin!(reader.read(&mut [])).poll(&mut context);
        assert!(matches!(polled, std::task::Poll::Ready(Ok(0))));
        let mut stream = stream::Stream { reader: reader.into_blocking(), writer };
        assert_eq!(stream.reader.read(&mut []).unwrap(), 0);
        let text: Vec<u8> = (0..200_000u32).map(|i| (i / 7) as u8).collect();
        if ep.rank() == 0 {
            stream.writer.write_all(&text).unwrap();
            stream.writer.close().unwrap();
            let mut back = Vec::new();
            let mut part = [0; 777];
            loop {
                match stream.reader.read(&mut part).unwrap() {
                    0 => break,
                    len => back.extend_from_slice(&part[..len]),
                }
            }
            assert!(back == text);
        } else {
            let mut part = [0; 1000];
            let mut all = Vec::new();
            loop {
                match stream.reader.read(&mut part).unwrap() {
                    0 => break,
                    len => all.extend_from_slice(&part[..len]),
                }
            }
            // One half is closed; the other one continues until it is closed, too.
            assert_eq!(stream.writer.try_write(&all).unwrap(), 10_000);
            stream.writer.write_all(&all[10_000..]).unwrap();
            stream.writer.close().unwrap();
        }
        part(ep, &mail);
    });
}

struct Node {
    ep: Endpoint,
    rpc: Rpc,
    mail: Mail,
    /// Calls of the service that never answers.
    begun: Rc<Cell<u32>>,
    dropped: Rc<Cell<u32>>,
}

struct CountDrop(Rc<Cell<u32>>);

impl Drop for CountDrop {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// Every kind of service, on every rank.
fn node(job: Job) -> Node {
    let rpc = Rpc::new();
    let (begun, dropped) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (builder, mail) = with_mail(Endpoint::builder().with(&rpc));
    let builder = builder.with(rpc.serve_raw("echo", |_, request, answer| answer.extend_from_slice(request)));
    let builder = builder.with(rpc.serve_raw("bad", |_, _, _| panic!("as it should")));
    let builder = builder.with(rpc.serve("divide", |_, (a, b): (u64, u64)| async move {
        a.checked_div(b).ok_or("by zero".to_owned())
    }));
    let builder = builder.with(rpc.serve("worse", |_, (): ()| async move {
        if true {
            panic!("as it must");
        }
        Ok::<(), ()>(())
    }));
    let builder = builder.with(rpc.serve("factorial", |caller, n: u64| async move {
        if n < 2 {
            return Ok::<u64, String>(1);
        }
        // Back to the caller, and so on.
        let rest = caller.endpoint().call::<_, u64>(caller.rank(), "factorial", &(n - 1)).await;
        Ok(n * rest.map_err(|e| e.to_string())?)
    }));
    let (begins, drops) = (begun.clone(), dropped.clone());
    let builder = builder.with(rpc.serve_bytes("never", move |_, _| {
        begins.set(begins.get() + 1);
        let guard = CountDrop(drops.clone());
        async move {
            let _guard = guard;
            std::future::pending::<()>().await;
            Ok(Vec::new())
        }
    }));
    let builder = builder.with(rpc.serve_bytes("long", |_, mut bytes| async move {
        bytes.reverse();
        Ok(bytes)
    }));
    Node { ep: join(builder, job), rpc, mail, begun, dropped }
}

/// Calls of every kind: raw and typed, long and short, many at once, nested; errors and panics reach the
/// caller.
#[test]
fn calls_of_every_kind() {
    run(2, |job| {
        let Node { ep, rpc, mail, .. } = node(job);
        let peer = 1 - ep.rank();
        if ep.rank() == 1 {
            assert_eq!(rpc.call_raw(&ep, peer, "echo", b"hello").unwrap().wait().unwrap(), b"hello");
            let calls: Vec<_> =
                (0..500u32).map(|i| rpc.call_raw(&ep, peer, "echo", &i.to_le_bytes()).unwrap()).collect();
            for (i, call) in calls.into_iter().enumerate() {
                assert_eq!(call.wait().unwrap(), (i as u32).to_le_bytes());
            }
            let good: u64 = rpc.call(&ep, peer, "divide", &(12u64, 4u64)).unwrap().wait().unwrap();
            assert_eq!(good, 3);
            let bad = rpc.call::<_, u64>(&ep, peer, "divide", &(12u64, 0u64)).unwrap().wait().unwrap_err();
            assert_eq!(bad.service::<String>().as_deref(), Some("by zero"));
            let wrong = rpc.call::<_, u64>(&ep, peer, "divide", &0u8).unwrap().wait();
            assert!(matches!(wrong, Err(CallError::Unreadable)), "{wrong:?}");
            let panicked = rpc.call_raw(&ep, peer, "bad", b"").unwrap().wait();
            assert!(
                matches!(&panicked, Err(CallError::Panicked(text)) if text == "as it should"),
                "{panicked:?}"
            );
            let panicked = rpc.call::<_, ()>(&ep, peer, "worse", &()).unwrap().wait();
            assert!(
                matches!(&panicked, Err(CallError::Panicked(text)) if text == "as it must"),
                "{panicked:?}"
            );
            assert_eq!(
                rpc.call::<_, u64>(&ep, peer, "factorial", &15u64).unwrap().wait().unwrap(),
                1_307_674_368_000
            );
            let text: Vec<u8> = (0..300_000u32).map(|i| i as u8).collect();
            let mut back = rpc.call_raw(&ep, peer, "long", &text).unwrap().wait().unwrap();
            back.reverse();
            assert!(back == text);
            assert!(rpc.call_raw(&ep, peer, "no such", b"").is_err());
        }
        part(ep, &mail);
    });
}

/// Deadlines end calls; services of cancelled calls are dropped where they wait.
#[test]
fn deadlines_and_cancellation() {
    run(2, |job| {
        let Node { ep, rpc, mail, dropped, .. } = node(job);
        let peer = 1 - ep.rank();
        if ep.rank() == 1 {
            // A deadline includes connecting, and a call that was never sent is not cancelled.
            rpc.call_raw(&ep, peer, "echo", b"").unwrap().wait().unwrap();
            let start = Instant::now();
            let late = rpc
                .call_raw_timeout(&ep, peer, "never", b"", Some(Duration::from_millis(30)))
                .unwrap()
                .wait();
            assert!(matches!(late, Err(CallError::DeadlinePassed)), "{late:?}");
            assert!(start.elapsed() >= Duration::from_millis(30));
            drop(rpc.call_raw(&ep, peer, "never", b"").unwrap());
        } else {
            ep.run_until(|| dropped.get() == 2).unwrap();
        }
        part(ep, &mail);
    });
}

/// Deadlines are noticed in handlers, too, although nothing else happens.
#[test]
fn deadlines_in_handlers() {
    run(2, |job| {
        let rpc = Rpc::new();
        let (builder, mail) = with_mail(Endpoint::builder().with(&rpc));
        let builder = builder.with(rpc.serve_bytes("never", |_, _| std::future::pending()));
        let builder = builder.with(rpc.serve("try", |caller, (): ()| async move {
            let limit = Some(Duration::from_millis(20));
            match caller.endpoint().call_raw_timeout(caller.rank(), "never", b"", limit).await {
                Err(CallError::DeadlinePassed) => Ok::<bool, String>(true),
                other => Err(format!("{other:?}")),
            }
        }));
        let ep = join(builder, job);
        if ep.rank() == 1 {
            assert!(rpc.call::<_, bool>(&ep, 0, "try", &()).unwrap().wait().unwrap());
        }
        part(ep, &mail);
    });
}

/// A call to a peer that goes down fails.
#[test]
fn a_call_whose_peer_dies() {
    run(2, |job| {
        let Node { ep, rpc, mail, dropped, .. } = node(job);
        if ep.rank() == 1 {
            let call = rpc.call_raw(&ep, 0, "never", b"").unwrap();
            let gone = call.wait();
            assert!(matches!(gone, Err(CallError::Endpoint(Error::PeerGone(0, _)))), "{gone:?}");
        } else {
            // Until the service runs.
            ep.wait(None).unwrap();
            while ep.extract(usize::MAX).unwrap() == 0 {
                ep.wait(None).unwrap();
            }
        }
        drop((mail, dropped));
        ep.close().unwrap();
    });
}

/// Sends to a peer until there is no room.
fn fill(ep: &Endpoint, peer: u32) {
    let filled = (0..10_000_000).any(|_| ep.try_send(peer, "fill", b"fill").is_err());
    assert!(filled, "there is always room");
}

/// Two programs, of which one can tell the other something without a message.
fn run_with_signal(program: impl Fn(Job, &AtomicBool) + Send + Sync) {
    for device in [DeviceName::Udp, DeviceName::Shm] {
        let signal = AtomicBool::new(false);
        crate::common::run_over(device, 2, |job| program(job, &signal));
    }
}

/// Waits without a call to the library.
fn await_signal(signal: &AtomicBool) {
    while !signal.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn with_fill(builder: Builder) -> (Builder, Mail) {
    let (builder, mail) = with_mail(builder);
    (builder.on_short("fill", |_: Short<'_>| {}), mail)
}

/// Raw answers that find no room are all sent later, and answers of any length arrive whole.
#[test]
fn answers_wait_for_room() {
    run(2, |job| {
        let rpc = Rpc::new();
        let (builder, mail) = with_mail(Endpoint::builder().with(&rpc));
        let builder = builder.with(rpc.serve_raw("as long as", |_, request, answer| {
            let len = u32::from_le_bytes(request.try_into().unwrap());
            answer.extend((0..len).map(|i| (i / 7) as u8));
        }));
        let ep = join(builder, job);
        if ep.rank() == 1 {
            // Nothing is extracted meanwhile: answers soon find no room.
            let calls: Vec<_> = (0..6000u32)
                .map(|i| (i % 1500, rpc.call_raw(&ep, 0, "as long as", &(i % 1500).to_le_bytes()).unwrap()))
                .collect();
            for (len, call) in calls {
                assert_eq!(call.wait().unwrap().len(), len as usize);
            }
            for len in [70_000u32, 600_000, 5_000_000] {
                let answer = rpc.call_raw(&ep, 0, "as long as", &len.to_le_bytes()).unwrap().wait().unwrap();
                assert!(answer.iter().copied().eq((0..len).map(|i| (i / 7) as u8)), "{len} bytes");
            }
        }
        part(ep, &mail);
    });
}

/// Handlers on both sides call each other with more than there is room for, all at once: none blocks another
/// while it waits for room.
#[test]
fn nested_calls_of_any_length() {
    run(2, |job| {
        let rpc = Rpc::new();
        let (builder, mail) = with_mail(Endpoint::builder().with(&rpc));
        let builder =
            builder.with(rpc.serve_bytes("inner", |_, bytes| async move {
                Ok((bytes.len() as u64).to_le_bytes().to_vec())
            }));
        let builder = builder.with(rpc.serve_bytes("outer", |caller, _| async move {
            let request = vec![1; 4 << 20];
            let call = caller.endpoint().call_raw(caller.rank(), "inner", &request);
            call.await.map_err(|e| e.to_string().into_bytes())
        }));
        let ep = join(builder, job);
        for _ in 0..3 {
            let limit = Some(Duration::from_secs(30));
            let calls: Vec<_> = (0..4)
                .map(|_| rpc.call_raw_timeout(&ep, 1 - ep.rank(), "outer", b"", limit).unwrap())
                .collect();
            for call in calls {
                assert_eq!(call.wait().unwrap(), (4u64 << 20).to_le_bytes());
            }
        }
        part(ep, &mail);
    });
}

/// Waiting for a tripwire fails when the last peer is gone.
#[test]
fn a_tripwire_without_peers() {
    run(2, |job| {
        let (builder, mail) = with_mail(Endpoint::builder());
        let ep = join(builder, job);
        if ep.rank() == 0 {
            let aperture = ep.aperture(64).unwrap();
            let mut wire = aperture.tripwire(0..8).arm().unwrap();
            ep.send(1, "cookie", &aperture.cookie(.., Rights::ALL).unwrap().to_bytes()).unwrap();
            assert_eq!(wire.wait().unwrap(), 1);
            let gone = wire.wait();
            assert!(matches!(gone, Err(Error::PeerGone(1, _))), "{gone:?}");
        } else {
            let remote = ep.remote(&next_cookie(&ep, &mail));
            remote.put_with_completion(0, &[1; 8]).unwrap().wait().unwrap();
        }
        ep.close().unwrap();
    });
}

/// A receiver that is dropped without having taken anything fails its sender, whether it knew the sender or
/// not.
#[test]
fn a_queue_without_its_receiver() {
    run(2, |job| {
        let (builder, mail) = with_mail(Endpoint::builder());
        let ep = join(builder, job);
        if ep.rank() == 0 {
            let (queue, cookie) = queue::pair(&ep, 4096).unwrap();
            let (never, other) = queue::pair(&ep, 4096).unwrap();
            drop(never);
            ep.send(1, "cookie", &cookie.to_bytes()).unwrap();
            ep.send(1, "cookie", &other.to_bytes()).unwrap();
            next_cookie(&ep, &mail);
            drop(queue);
        } else {
            let (cookie, other) = (next_cookie(&ep, &mail), next_cookie(&ep, &mail));
            let mut queue = queue::Sender::new(&ep, &cookie).unwrap();
            queue.push(b"one").unwrap();
            ep.send(0, "cookie", &cookie.to_bytes()).unwrap();
            let failed = (0..1000).find_map(|_| queue.push(&[0; 100]).err());
            assert!(matches!(failed, Some(Error::Aborted)), "{failed:?}");
            let failed = queue::Sender::new(&ep, &other);
            let why = Failure::Refused(Refusal::Revoked);
            assert!(matches!(failed, Err(Error::Operation(it)) if it == why), "{failed:?}");
        }
        part(ep, &mail);
    });
}

/// A writer that is dropped while there is no room still ends its stream.
#[test]
fn a_writer_dropped_without_room() {
    run_with_signal(|job, signal| {
        let (builder, mail) = with_fill(Endpoint::builder());
        let ep = join(builder, job);
        if ep.rank() == 0 {
            let (mut reader, cookie) = stream::pair(&ep, 1 << 16).unwrap();
            ep.send(1, "cookie", &cookie.to_bytes()).unwrap();
            await_signal(signal);
            let mut text = [0; 5];
            reader.read_exact(&mut text).unwrap();
            assert_eq!(reader.read(&mut text).unwrap(), 0);
        } else {
            let mut writer = stream::Writer::new(&ep, &next_cookie(&ep, &mail)).unwrap();
            writer.write_all(b"hello").unwrap();
            fill(&ep, 0);
            drop(writer);
            signal.store(true, Ordering::SeqCst);
        }
        part(ep, &mail);
    });
}

/// A reader that only polls, and found no room to report what it has read, reports it later.
#[test]
fn a_reader_that_only_polls() {
    run_with_signal(|job, signal| {
        let (builder, mail) = with_fill(Endpoint::builder());
        let ep = join(builder, job);
        if ep.rank() == 0 {
            let (mut queue, cookie) = queue::pair(&ep, 4096).unwrap();
            ep.send(1, "cookie", &cookie.to_bytes()).unwrap();
            next_cookie(&ep, &mail);
            fill(&ep, 1);
            let mut taken = 0;
            while queue.try_pop().unwrap().is_some() {
                taken += 1;
            }
            signal.store(true, Ordering::SeqCst);
            assert!(taken > 0);
            let start = Instant::now();
            let mut more = 0;
            while more < 10 {
                assert!(start.elapsed() < Duration::from_secs(20), "{more} of 10 came");
                ep.extract(usize::MAX).unwrap();
                more += usize::from(queue.try_pop().unwrap().is_some());
            }
        } else {
            let cookie = next_cookie(&ep, &mail);
            let mut queue = queue::Sender::new(&ep, &cookie).unwrap();
            while queue.try_push(&[1; 100]).unwrap() {}
            ep.send(0, "cookie", &cookie.to_bytes()).unwrap();
            await_signal(signal);
            for _ in 0..10 {
                queue.push(&[2; 100]).unwrap();
            }
        }
        part(ep, &mail);
    });
}
