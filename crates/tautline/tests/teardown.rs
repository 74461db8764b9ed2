//! Waiting for memory that can no longer change: closed apertures, lost peers, closed endpoints, rings
//! without a writer.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, mpsc};
use std::time::Duration;

use crate::common::pair::Pair;
use crate::common::{Limit, config, jobs, join, run};
use tautline::memory::{Aperture, Completion, Cookie, Failure, Rights};
use tautline::{DeviceName, Endpoint, Error, Message, SendError, Short, queue, stream};

/// Closes an aperture when a message asks for it.
fn closer(open: &Rc<RefCell<Option<Aperture>>>) -> impl FnMut(Short<'_>) + 'static {
    let open = open.clone();
    move |_: Short<'_>| drop(open.borrow_mut().take())
}

/// T-8: waiting for a tripwire whose aperture is closed, or for a set with too few tripwires left, fails, in
/// every way to wait; fires that were counted before can still be taken.
#[test]
fn tripwires_of_closed_apertures() {
    run(2, |job| {
        let open: Rc<RefCell<Option<Aperture>>> = Rc::default();
        let ended: Rc<RefCell<Vec<String>>> = Rc::default();
        let (watched, ends) = (open.clone(), ended.clone());
        let (ready, over) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (readies, overs) = (ready.clone(), over.clone());
        let builder = Endpoint::builder()
            .on_short("close", closer(&open))
            .on("wire", move |message: Message| {
                let (watched, ends) = (watched.clone(), ends.clone());
                async move {
                    let mut wire = watched.borrow().as_ref().expect("open").tripwire(0..8).arm()?;
                    let mut set = message.endpoint().tripset(&[&wire], 1, None)?;
                    let error = wire.fired().await.expect_err("nobody writes there");
                    ends.borrow_mut().push(error.to_string());
                    let error = set.ready().await.expect_err("nobody writes there");
                    ends.borrow_mut().push(error.to_string());
                    Ok(())
                }
            })
            .on("set", {
                let (watched, ends) = (open.clone(), ended.clone());
                move |message: Message| {
                    let (watched, ends) = (watched.clone(), ends.clone());
                    async move {
                        let wire = watched.borrow().as_ref().expect("open").tripwire(0..8).arm()?;
                        let mut set = message.endpoint().tripset(&[&wire], 1, None)?;
                        let error = set.ready().await.expect_err("nobody writes there");
                        ends.borrow_mut().push(error.to_string());
                        Ok(())
                    }
                }
            })
            .on_short("ready", move |_: Short<'_>| readies.set(true))
            .on_short("over", move |_: Short<'_>| overs.set(true));
        let ep = join(builder, job);
        let peer = 1 - ep.rank();
        let aperture = ep.aperture(64).unwrap();
        let remote = ep.remote(&aperture.cookie(.., Rights::ALL).unwrap());
        let (mut one, mut two) =
            (aperture.tripwire(8..16).arm().unwrap(), aperture.tripwire(16..24).arm().unwrap());
        let mut both = ep.tripset(&[&one, &two], 2, None).unwrap();
        let mut any = ep.tripset(&[&one, &two], 1, None).unwrap();
        for need in [0, 3] {
            assert!(ep.tripset(&[&one, &two], need, None).unwrap_err().to_string().contains("cannot wait"));
        }
        remote.put_with_completion(8, &[1]).unwrap().wait().unwrap();
        *open.borrow_mut() = Some(aperture);
        // Both have reached this point.
        ep.send(peer, "ready", &[]).unwrap();
        ep.run_until(|| ready.get()).unwrap();
        // While this side waits, the other one has the aperture closed.
        for what in ["wire", "set", "close"] {
            ep.send(peer, what, &[]).unwrap();
        }
        let error = two.wait().unwrap_err();
        assert!(matches!(error, Error::Disarmed(why) if why.contains("closed")), "{error}");
        assert_eq!(one.wait().unwrap(), 1, "it had fired before");
        assert!(matches!(one.wait_for(Duration::from_secs(50)), Err(Error::Disarmed(_))));
        assert_eq!((any.wait().unwrap(), any.take()), (1, 0));
        for set in [&mut any, &mut both] {
            assert!(matches!(set.wait(), Err(Error::Disarmed(_))));
            assert!(matches!(set.wait_for(Duration::from_secs(50)), Err(Error::Disarmed(_))));
        }
        assert!(matches!(ep.tripset(&[&one], 1, None), Err(Error::Disarmed(_))));
        ep.run_until(|| ended.borrow().len() == 3).unwrap();
        assert!(ended.borrow().iter().all(|why| why.contains("will not fire again")), "{ended:?}");
        // A set whose tripwire is dropped.
        let aperture = ep.aperture(64).unwrap();
        let one = aperture.tripwire(..).arm().unwrap();
        let mut set = ep.tripset(&[&one], 1, None).unwrap();
        assert_eq!(set.wait_for(Duration::from_millis(1)).unwrap(), 0);
        drop(one);
        assert!(matches!(set.wait(), Err(Error::Disarmed(_))));
        ep.send(peer, "over", &[]).unwrap();
        ep.run_until(|| over.get()).unwrap();
        ep.close().unwrap();
    });
}

/// N-8, T-8: when the last peer goes down, every handler that waits for a tripwire or a set gets an error,
/// and so does a wait outside handlers; a wait with a timeout ends in time.
#[test]
fn tripwires_when_the_last_peer_is_lost() {
    run(2, |job| {
        let rank = job.rank;
        let ended = Rc::new(Cell::new(0));
        let ends = ended.clone();
        let begun = Rc::new(Cell::new(0));
        let begins = begun.clone();
        let builder = Endpoint::builder().on("wait", move |message: Message| {
            let (ends, begins) = (ends.clone(), begins.clone());
            async move {
                let aperture = message.endpoint().aperture(64)?;
                let mut wire = aperture.tripwire(..).arm()?;
                let mut set = message.endpoint().tripset(&[&wire], 1, None)?;
                begins.set(begins.get() + 1);
                let error = if begins.get() % 2 == 0 { wire.fired().await } else { set.ready().await };
                assert!(matches!(error, Err(Error::PeerGone(1, _))), "{error:?}");
                ends.set(ends.get() + 1);
                Ok(())
            }
        });
        let ep = join(builder, job);
        if rank == 1 {
            for _ in 0..10 {
                ep.send(0, "wait", &[]).unwrap();
            }
            return ep.close().unwrap();
        }
        let aperture = ep.aperture(64).unwrap();
        let mut wire = aperture.tripwire(..).arm().unwrap();
        let gone = wire.wait();
        assert!(matches!(gone, Err(Error::PeerGone(1, _))), "{gone:?}");
        assert_eq!((begun.get(), ended.get()), (10, 10));
        assert!(ep.poll_failure().is_none());
        assert_eq!(wire.wait_for(Duration::from_millis(1)).unwrap(), 0);
        ep.close().unwrap();
    });
}

/// a reader whose writer never comes gets an error when no peer is left that could write.
#[test]
fn readers_whose_writer_never_comes() {
    run(2, |job| {
        let rank = job.rank;
        let (reported, begun) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let (reports, begins) = (reported.clone(), begun.clone());
        let builder = Endpoint::builder().on("read", move |message: Message| {
            let (reports, begins) = (reports.clone(), begins.clone());
            async move {
                let (mut reader, _cookie) = stream::AsyncReader::pair(&message.endpoint(), 64)?;
                begins.set(true);
                let gone = reader.read(&mut [0; 8]).await;
                assert!(matches!(gone, Err(Error::PeerGone(1, _))), "{gone:?}");
                reports.set(1);
                Ok(())
            }
        });
        let ep = join(builder, job);
        if rank == 1 {
            ep.send(0, "read", &[]).unwrap();
        } else {
            let (mut entries, _cookie) = queue::pair(&ep, 64).unwrap();
            ep.run_until(|| begun.get()).unwrap();
            // The handler gets the error, and then nobody else is left to get it.
            ep.run_until(|| reported.get() == 1).unwrap();
            assert!(ep.poll_failure().is_none());
            assert!(matches!(entries.try_pop(), Ok(None)));
        }
        ep.close().unwrap();
    });
    run(2, |job| {
        let pair = Pair::join(job);
        if pair.ep.rank() == 1 {
            pair.say("here");
            return pair.ep.close().unwrap();
        }
        assert_eq!(pair.receive(), b"here");
        let (mut entries, _cookie) = queue::pair(&pair.ep, 64).unwrap();
        let gone = entries.pop();
        assert!(matches!(gone, Err(Error::PeerGone(1, _))), "{gone:?}");
        pair.ep.close().unwrap();
    });
}

/// Counts its wake-ups.
struct Wakeup(AtomicBool);

impl std::task::Wake for Wakeup {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// N-9: closing the endpoint wakes futures that wait for something, and they fail.
#[test]
fn futures_of_a_closed_endpoint() {
    use std::future::Future;
    run(2, |job| {
        let pair = Pair::join(job);
        let aperture = pair.ep.aperture(64).unwrap();
        let mut wire = aperture.tripwire(..).arm().unwrap();
        let (mut entries, ring) = queue::pair(&pair.ep, 64).unwrap();
        pair.give(&ring);
        let mut filled = queue::Sender::new(&pair.ep, pair.take_cookie().cookie()).unwrap();
        filled.push(&[0; 56]).unwrap();
        let mut filled = filled.into_async();
        pair.say("filled");
        pair.receive();
        assert!(entries.peek().unwrap().is_some());
        let woken: Vec<_> = (0..3).map(|_| std::sync::Arc::new(Wakeup(AtomicBool::new(false)))).collect();
        let wakers: Vec<std::task::Waker> = woken.iter().map(|it| it.clone().into()).collect();
        let (emptied, _cookie) = queue::pair(&pair.ep, 64).unwrap();
        let mut emptied = emptied.into_async();
        {
            let mut waits = [
                Box::pin(async { wire.fired().await.map(drop) })
                    as std::pin::Pin<Box<dyn Future<Output = tautline::Result<()>>>>,
                Box::pin(async { filled.push(&[0; 56]).await }),
                Box::pin(async { emptied.pop().await.map(drop) }),
            ];
            for (wait, waker) in waits.iter_mut().zip(&wakers) {
                assert!(wait.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
            }
            pair.say("over");
            pair.receive();
            pair.ep.clone().close().unwrap();
            for (i, (wait, waker)) in waits.iter_mut().zip(&wakers).enumerate() {
                assert!(woken[i].0.load(Ordering::SeqCst), "{i} was not woken");
                let said = wait.as_mut().poll(&mut std::task::Context::from_waker(waker));
                let reported = matches!(
                    &said,
                    std::task::Poll::Ready(Err(Error::Send(SendError::Closed) | Error::PeerGone(..)))
                );
                assert!(reported, "{i}: {said:?}");
            }
        }
        assert!(entries.try_pop().is_ok());
    });
}

/// N-9, A-8: closing the endpoint ends operations on the memory of others, and wakes the futures that wait
/// for nothing else. The owner of the memory is alive and does nothing.
#[test]
fn operations_of_a_closed_endpoint() {
    use std::future::Future;
    let _limit = Limit::seconds(60);
    let quiet = || {
        config(|c| {
            (c.watchdog, c.close_timeout) = (None, Duration::from_millis(200));
            c.link.silence = 60_000_000_000;
        })
    };
    let mut all = jobs(2);
    all.iter_mut().for_each(|job| job.device = Some(DeviceName::Udp));
    let (second, first) = (all.pop().unwrap(), all.pop().unwrap());
    let (given, idle) = (&AtomicBool::new(false), &Barrier::new(2));
    let (checked, over) = mpsc::channel::<()>();
    std::thread::scope(move |scope| {
        scope.spawn(move || {
            let ep = join(Endpoint::builder().config(quiet()), second);
            let aperture = ep.aperture(64).unwrap();
            let cookie = aperture.cookie(.., Rights::ALL).unwrap();
            ep.send(0, "cookie", &cookie.to_bytes()).unwrap();
            while !given.load(Ordering::SeqCst) {
                ep.progress().unwrap();
            }
            idle.wait();
            // Also after a failure of the other side.
            let _ = over.recv();
            ep.node().kill();
            std::mem::forget((aperture, ep));
        });
        let cookie = Rc::new(Cell::new(None));
        let inbox = cookie.clone();
        let builder = Endpoint::builder().config(quiet()).on_short("cookie", move |m: Short<'_>| {
            inbox.set(Some(Cookie::from_bytes(m.data().try_into().expect("a cookie"))));
        });
        let ep = join(builder, first);
        ep.run_until(|| cookie.get().is_some()).unwrap();
        given.store(true, Ordering::SeqCst);
        idle.wait();
        let (remote, aperture) = (ep.remote(&cookie.get().unwrap()), ep.aperture(64).unwrap());
        let mut waits = [
            remote.put_from(0, &aperture, 0..8).unwrap(),
            remote.get_into(0, &aperture, 8..16).unwrap(),
            remote.fetch_add(16, 1).unwrap(),
            remote.flush().unwrap(),
        ];
        let woken = waits.each_ref().map(|_| std::sync::Arc::new(Wakeup(AtomicBool::new(false))));
        let poll = |i: usize, wait: &mut Completion| {
            let waker: std::task::Waker = woken[i].clone().into();
            std::pin::Pin::new(wait).poll(&mut std::task::Context::from_waker(&waker))
        };
        for (i, wait) in waits.iter_mut().enumerate() {
            assert!(poll(i, wait).is_pending(), "{i}");
        }
        // Whether it counts as undelivered is tested elsewhere.
        let _ = ep.clone().close();
        for (i, wait) in waits.iter_mut().enumerate() {
            assert!(woken[i].0.load(Ordering::SeqCst), "{i} was not woken");
            let said = poll(i, wait);
            let closed = matches!(said, std::task::Poll::Ready(Err(Error::Operation(Failure::Closed))));
            assert!(closed, "{i}: {said:?}");
        }
        drop(checked);
    });
}

/// a ring has one writer: a second one fails at once, and the first does not notice.
#[test]
fn a_second_writer_is_refused() {
    run(3, |job| {
        let rank = job.rank;
        let mail: Rc<RefCell<Vec<Cookie>>> = Rc::default();
        let inbox = mail.clone();
        let reported = Rc::new(Cell::new(false));
        let reports = reported.clone();
        let builder = Endpoint::builder()
            .on_short("cookie", move |m: Short<'_>| {
                inbox.borrow_mut().push(Cookie::from_bytes(m.data().try_into().expect("a cookie")));
            })
            .on("second", move |mut m: Message| {
                let reports = reports.clone();
                async move {
                    let bytes = m.read_to_end().await?;
                    let cookie = Cookie::from_bytes(bytes.as_slice().try_into().expect("a cookie"));
                    let said = stream::AsyncWriter::new(&m.endpoint(), &cookie).await;
                    assert!(matches!(said, Err(Error::TooMany(_))), "{said:?}");
                    let said = queue::AsyncSender::new(&m.endpoint(), &cookie).await;
                    assert!(matches!(said, Err(Error::TooMany(_))), "{said:?}");
                    reports.set(true);
                    Ok(())
                }
            })
            .on_short("go", |_: Short<'_>| {});
        let ep = join(builder, job);
        let next = || {
            ep.run_until(|| !mail.borrow().is_empty()).unwrap();
            mail.borrow_mut().remove(0)
        };
        if rank == 0 {
            let (mut reader, cookie) = stream::pair(&ep, 4096).unwrap();
            ep.send(1, "cookie", &cookie.to_bytes()).unwrap();
            let mut words = [0; 5];
            reader.read_exact(&mut words).unwrap();
            assert_eq!(&words, b"first");
            ep.send(2, "cookie", &cookie.to_bytes()).unwrap();
            ep.serve(1).unwrap();
            ep.send(1, "second", &cookie.to_bytes()).unwrap();
            let mut words = [0; 6];
            reader.read_exact(&mut words).unwrap();
            assert_eq!(&words, b"second");
            assert_eq!(reader.read(&mut words).unwrap(), 0, "it was ended");
            (1..3).for_each(|peer| ep.send(peer, "go", &[]).unwrap());
        } else if rank == 1 {
            let cookie = next();
            let mut writer = stream::Writer::new(&ep, &cookie).unwrap();
            writer.write_all(b"first").unwrap();
            ep.run_until(|| reported.get()).unwrap();
            writer.write_all(b"second").unwrap();
            writer.close().unwrap();
            ep.serve(1).unwrap();
        } else {
            let cookie = next();
            for _ in 0..3 {
                let second = stream::Writer::new(&ep, &cookie);
                assert!(matches!(second, Err(Error::TooMany(_))), "{second:?}");
                assert!(second.unwrap_err().to_string().contains("writers"));
            }
            ep.send(0, "go", &[]).unwrap();
            ep.serve(1).unwrap();
        }
        ep.close().unwrap();
    });
}
