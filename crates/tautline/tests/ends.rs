//! Whoever waits for memory in vain is told so; and nobody waits for what only extraction could bring, or stops others while it waits.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use common::pair::Pair;
use common::{join, run, run_over};
use tautline::memory::{Aperture, Cookie, Remote, Rights};
use tautline::{Config, DeviceName, Endpoint, Error, Message, SendError, Short, queue, stream};

/// More puts than may be unanswered.
const MANY: u64 = 3 * 4096;

/// a program that only puts, and never extracts, comes to its end; also if it puts to itself.
#[test]
fn puts_without_extracting() {
    run(2, |job| {
        let pair = Pair::join(job);
        let own = pair.ep.aperture(64).unwrap();
        let myself = pair.ep.remote(&own.cookie(.., Rights::ALL).unwrap());
        for i in 1..=MANY {
            myself.put(0, &i.to_le_bytes()).unwrap();
        }
        myself.flush().unwrap().wait().unwrap();
        assert_eq!(own.read_u64(0).unwrap(), MANY);
        if pair.ep.rank() == 0 {
            let aperture = pair.ep.aperture(64).unwrap();
            pair.give(&aperture.cookie(.., Rights::ALL).unwrap());
            assert_eq!(pair.hear(), b"done");
            assert_eq!(aperture.read_u64(0).unwrap(), MANY);
        } else {
            let remote = pair.take_cookie();
            for i in 1..=MANY {
                remote.put(0, &i.to_le_bytes()).unwrap();
            }
            pair.say("done");
        }
        pair.close();
    });
}

/// when answers stand behind messages that nobody extracts, a put does not wait for ever, but says so; after extracting it goes on. A queue extracts by itself.
#[test]
fn puts_behind_messages() {
    for (device, fenced) in
        [(DeviceName::Udp, false), (DeviceName::Shm, false), (DeviceName::Udp, true), (DeviceName::Shm, true)]
    {
        let full = AtomicBool::new(false);
        run_over(device, 2, |job| {
            let pair = Pair::join(job);
            if pair.ep.rank() == 0 {
                let aperture = pair.ep.aperture(64).unwrap();
                let (mut entries, ring) = queue::pair(&pair.ep, 1 << 16).unwrap();
                pair.give(&aperture.cookie(.., Rights::ALL).unwrap());
                pair.give(&ring);
                // As many messages as the network takes, until it has taken none for a while.
                let mut vain = 0;
                while vain < 100 {
                    match pair.ep.try_send(1, "mail", &[7; 100]) {
                        Ok(()) => vain = 0,
                        Err(Error::Send(SendError::WouldBlock)) => {
                            vain += 1;
                            pair.ep.progress().unwrap();
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
                full.store(true, Ordering::SeqCst);
                for i in 0..100u64 {
                    assert_eq!(entries.pop().unwrap().as_deref(), Some(&i.to_le_bytes()[..]));
                }
                pair.ep.run_until(|| pair.mail.borrow().iter().any(|m| m == b"done")).unwrap();
                pair.mail.borrow_mut().clear();
                assert_eq!(aperture.read_u64(0).unwrap(), MANY);
            } else {
                let remote = pair.take_cookie();
                let ring = *pair.take_cookie().cookie();
                pair.mail.borrow_mut().clear();
                while !full.load(Ordering::SeqCst) {
                    // Takes in what comes, and runs no handler.
                    pair.ep.progress().unwrap();
                }
                let mut told = 0;
                // Nothing passes a fence before what was got is here.
                let _held = fenced.then(|| (remote.get(0, 8).unwrap(), remote.fence().unwrap()));
                for i in 1..=MANY {
                    while let Err(error) = remote.put(0, &i.to_le_bytes()) {
                        assert!(matches!(error, Error::Send(SendError::Unextracted(0))), "{error}");
                        assert!(error.to_string().contains("extract"), "{error}");
                        told += 1;
                        pair.ep.extract(usize::MAX).unwrap();
                        pair.ep.wait(Some(Duration::from_millis(1))).unwrap();
                    }
                }
                assert!(told > 0, "it never stood behind messages");
                let mut entries = queue::Sender::new(&pair.ep, &ring).unwrap();
                for i in 0..100u64 {
                    entries.push(&i.to_le_bytes()).unwrap();
                }
                pair.say("done");
                pair.ep.run_until(|| pair.mail.borrow().iter().any(|m| m == b"over")).unwrap();
                pair.mail.borrow_mut().retain(|m| m == b"over");
            }
            pair.close();
        });
    }
}

/// Closes an aperture when told to.
fn closer(open: &Rc<RefCell<Option<Aperture>>>) -> impl FnMut(Short<'_>) + 'static {
    let open = open.clone();
    move |_: Short<'_>| drop(open.borrow_mut().take())
}

/// T-2: a tripwire whose aperture is closed, and a set with too few left, tell whoever waits, in whatever way; what was counted before can still be taken.
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
        // Both have got so far.
        ep.send(peer, "ready", &[]).unwrap();
        ep.run_until(|| ready.get()).unwrap();
        // While they wait, the other side has the aperture closed.
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

/// N-8, T-2: when the last peer goes, handlers that wait for a tripwire or a set are told, each of them, and so is whoever waits outside; a wait for a while is over in time.
#[test]
fn tripwires_when_all_are_gone() {
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

/// a reader whose writer never comes is told when nobody is left who could.
#[test]
fn nobody_comes_to_write() {
    run(2, |job| {
        let rank = job.rank;
        let (told, begun) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let (tells, begins) = (told.clone(), begun.clone());
        let builder = Endpoint::builder().on("read", move |message: Message| {
            let (tells, begins) = (tells.clone(), begins.clone());
            async move {
                let (mut reader, _cookie) = stream::pair(&message.endpoint(), 64)?;
                begins.set(true);
                let gone = reader.read_async(&mut [0; 8]).await;
                assert!(matches!(gone, Err(Error::PeerGone(1, _))), "{gone:?}");
                tells.set(1);
                Ok(())
            }
        });
        let ep = join(builder, job);
        if rank == 1 {
            ep.send(0, "read", &[]).unwrap();
        } else {
            let (mut entries, _cookie) = queue::pair(&ep, 64).unwrap();
            ep.run_until(|| begun.get()).unwrap();
            // The handler is told, and then there is nobody else to tell.
            ep.run_until(|| told.get() == 1).unwrap();
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
        assert_eq!(pair.hear(), b"here");
        let (mut entries, _cookie) = queue::pair(&pair.ep, 64).unwrap();
        let gone = entries.pop();
        assert!(matches!(gone, Err(Error::PeerGone(1, _))), "{gone:?}");
        pair.ep.close().unwrap();
    });
}

/// Whoever counts its wake-ups.
struct Wakeup(AtomicBool);

impl std::task::Wake for Wakeup {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// N-9: futures that wait for something when the endpoint is closed are woken, and say so.
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
        pair.say("filled");
        pair.hear();
        assert!(entries.peek().unwrap().is_some());
        let woken: Vec<_> = (0..3).map(|_| std::sync::Arc::new(Wakeup(AtomicBool::new(false)))).collect();
        let wakers: Vec<std::task::Waker> = woken.iter().map(|it| it.clone().into()).collect();
        let (mut emptied, _cookie) = queue::pair(&pair.ep, 64).unwrap();
        {
            let mut waits = [
                Box::pin(async { wire.fired().await.map(drop) })
                    as std::pin::Pin<Box<dyn Future<Output = tautline::Result<()>>>>,
                Box::pin(async { filled.push_async(&[0; 56]).await }),
                Box::pin(async { emptied.next().await.map(drop) }),
            ];
            for (wait, waker) in waits.iter_mut().zip(&wakers) {
                assert!(wait.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
            }
            pair.say("over");
            pair.hear();
            pair.ep.clone().close().unwrap();
            for (i, (wait, waker)) in waits.iter_mut().zip(&wakers).enumerate() {
                assert!(woken[i].0.load(Ordering::SeqCst), "{i} was not woken");
                let said = wait.as_mut().poll(&mut std::task::Context::from_waker(waker));
                let told = matches!(
                    &said,
                    std::task::Poll::Ready(Err(Error::Send(SendError::Closed) | Error::PeerGone(..)))
                );
                assert!(told, "{i}: {said:?}");
            }
        }
        assert!(entries.try_pop().is_ok());
    });
}

/// a ring has one writer: a second one is told so at once, and the first does not notice.
#[test]
fn a_second_writer() {
    run(3, |job| {
        let rank = job.rank;
        let mail: Rc<RefCell<Vec<Cookie>>> = Rc::default();
        let inbox = mail.clone();
        let told = Rc::new(Cell::new(false));
        let tells = told.clone();
        let builder = Endpoint::builder()
            .on_short("cookie", move |m: Short<'_>| {
                inbox.borrow_mut().push(Cookie::from_bytes(m.data().try_into().expect("a cookie")));
            })
            // In a handler it is told with the first write.
            .on("second", move |mut m: Message| {
                let tells = tells.clone();
                async move {
                    let bytes = m.read_to_end().await?;
                    let cookie = Cookie::from_bytes(bytes.as_slice().try_into().expect("a cookie"));
                    let mut writer = stream::Writer::new(&m.endpoint(), &cookie)?;
                    let said = writer.write_async(b"mixed in").await;
                    assert!(matches!(said, Err(Error::TooMany(_))), "{said:?}");
                    let mut sender = queue::Sender::new(&m.endpoint(), &cookie)?;
                    sender.end()?;
                    tells.set(true);
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
            ep.run_until(|| told.get()).unwrap();
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

/// handlers that put, get, swap, push and write stop nobody else while the node they ask takes nothing.
#[test]
fn handlers_wait_alone() {
    for device in [DeviceName::Udp, DeviceName::Shm] {
        let (tell, go_on) = mpsc::channel::<()>();
        let (tell, go_on) = (std::sync::Mutex::new(tell), std::sync::Mutex::new(go_on));
        run_over(device, 3, |job| {
            let rank = job.rank;
            match rank {
                0 => stands_still(job, &go_on.lock().unwrap()),
                1 => works(job),
                _ => asks(job, &tell.lock().unwrap()),
            }
        });
    }
}

const LONG: usize = 1 << 20;

/// Has memory, and for a while neither looks nor has a watchdog.
fn stands_still(job: tautline::Job, go_on: &mpsc::Receiver<()>) {
    // Patience is needed: nothing is heard of it.
    let config = Config { watchdog: None, ..common::config(|c| c.link.silence = 30_000_000_000) };
    let over = Rc::new(Cell::new(0));
    let overs = over.clone();
    let builder =
        Endpoint::builder().config(config).on_short("over", move |_: Short<'_>| overs.set(overs.get() + 1));
    let ep = join(builder, job);
    let aperture = ep.aperture(LONG).unwrap();
    let (mut entries, ring) = queue::pair(&ep, 2 * LONG).unwrap();
    let (mut reader, stream) = stream::pair(&ep, 2 * LONG).unwrap();
    let cookies = [aperture.cookie(.., Rights::ALL).unwrap(), ring, stream];
    for cookie in cookies {
        ep.send(1, "work", &cookie.to_bytes()).unwrap();
    }
    go_on.recv_timeout(Duration::from_secs(20)).expect("handlers stopped their node");
    for _ in 0..5 {
        assert_eq!(entries.pop().unwrap().unwrap(), vec![3; LONG / 2]);
    }
    let mut all = vec![0; LONG];
    for _ in 0..5 {
        reader.read_exact(&mut all).unwrap();
        assert!(all.iter().all(|byte| *byte == 4));
    }
    ep.run_until(|| over.get() == 2).unwrap();
    assert_eq!(aperture.read_u64(0).unwrap(), 5 * 8);
    ep.close().unwrap();
}

/// What one handler does with the memory of whoever stands still.
async fn work(mut message: Message, turn: u32, done: Rc<Cell<u32>>) -> tautline::Result<()> {
    let bytes = message.read_to_end().await?;
    let cookie = Cookie::from_bytes(bytes.as_slice().try_into().expect("a cookie"));
    let ep = message.endpoint();
    match turn {
        0 => {
            let remote: Remote = ep.remote(&cookie);
            for round in 0..5u8 {
                remote.put_async(64, &vec![round; LONG - 64]).await?;
                remote.put_list_async(&[(8, &[round]), (16, &[round; 8])]).await?;
                remote.put_pieces_async(24, &[&[round], &[round]]).await?;
                remote.fill_async(26, 4, |room| room.fill(round)).await?;
                assert_eq!(remote.get_async(24, 6).await?, [round; 6]);
                assert_eq!(remote.get_list_async(&[(8, 1), (16, 1)]).await?, [round; 2]);
                assert_eq!(remote.fetch_add_async(0, 8).await?, u64::from(round) * 8);
                assert_eq!(remote.swap_async(48, 1).await?, 0);
                assert_eq!(remote.compare_swap_async(48, 1, 0).await?, 1);
                let mine = ep.aperture(64)?;
                remote.get_into_async(24, &mine, 0..4).await?;
                remote.get_list_into_async(&mine, &[(24, 8..9), (26, 9..10)]).await?;
                remote.put_from_async(32, &mine, 0..8).await?;
                remote.put_notice_async(40, &[1], 5).await?;
                remote.fence_async().await?;
                remote.flush_async().await?;
                ep.send_out_of_band_async(0, b"so far").await?;
            }
        }
        1 => {
            let mut entries = queue::Sender::new(&ep, &cookie)?;
            for _ in 0..5 {
                entries.push_pieces_async(&[&[3; LONG / 4], &[3; LONG / 4]]).await?;
            }
            entries.end()?;
        }
        _ => {
            let mut writer = stream::Writer::new(&ep, &cookie)?;
            for _ in 0..5 {
                writer.write_async(&vec![4; LONG]).await?;
            }
            writer.close()?;
        }
    }
    done.set(done.get() + 1);
    Ok(())
}

fn works(job: tautline::Job) {
    let (turns, done) = (Cell::new(0), Rc::new(Cell::new(0)));
    let finished = done.clone();
    let pings = Rc::new(Cell::new(0));
    let ping = pings.clone();
    let builder = Endpoint::builder()
        .config(common::config(|c| c.link.silence = 30_000_000_000))
        .on("work", move |message: Message| work(message, turns.replace(turns.get() + 1), finished.clone()))
        .on_short("ping", move |m: Short<'_>| {
            ping.set(ping.get() + 1);
            m.endpoint().try_send(2, "pong", &[]).unwrap();
        });
    let ep = join(builder, job);
    ep.run_until(|| done.get() == 3).unwrap();
    assert!(ep.poll_failure().is_none());
    ep.run_until(|| pings.get() == 50).unwrap();
    ep.send(0, "over", &[]).unwrap();
    ep.close().unwrap();
}

/// Is answered by whoever works, and only then lets the one go on that stands still.
fn asks(job: tautline::Job, tell: &mpsc::Sender<()>) {
    let pongs = Rc::new(Cell::new(0));
    let pong = pongs.clone();
    let builder = Endpoint::builder()
        .config(common::config(|c| c.link.silence = 30_000_000_000))
        .on_short("pong", move |_: Short<'_>| pong.set(pong.get() + 1));
    let ep = join(builder, job);
    for i in 1..=50 {
        ep.send(1, "ping", &[]).unwrap();
        ep.run_until(|| pongs.get() == i).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    tell.send(()).unwrap();
    ep.send(0, "over", &[]).unwrap();
    ep.close().unwrap();
}
