//! Calls, streams and mappings when a process is restarted.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tautline::memory::{Cookie, MapCookie, Rights};
use tautline::rpc::{Call, CallError, Rpc};
use tautline::{Builder, DeviceName, Endpoint, Error, Event, Job, Message, PeerState, Short, stream};

use super::{CountDrop, Mail, Node, next_cookie, node, part, with_mail};
use crate::common::launch::Launcher;
use crate::common::{Limit, extract_for, join};

/// Runs two programs, of which the second has two incarnations.
fn with_restart(first: impl Fn(Job) + Sync, second: impl Fn(Job, Job) + Sync) {
    for device in [DeviceName::Udp, DeviceName::Shm] {
        let _limit = Limit::seconds(60);
        let launcher = Launcher::over(device, 2);
        let (one, two, again) = (launcher.job(0), launcher.job(1), launcher.job(1));
        std::thread::scope(|scope| {
            scope.spawn(|| first(one));
            scope.spawn(|| second(two, again));
        });
    }
}

/// A call to a server that is restarted while the caller computes fails; its new incarnation can be called.
#[test]
fn a_server_restarts() {
    with_restart(
        |job| {
            let Node { ep, rpc, mail, .. } = node(job);
            let call = rpc.call_raw(&ep, 1, "never", b"").unwrap();
            extract_for(&ep, Duration::from_millis(50));
            // The first incarnation ends when it has sent this, and the second begins.
            next_cookie(&ep, &mail);
            std::thread::sleep(Duration::from_millis(1500));
            let gone = call.wait();
            assert!(matches!(gone, Err(CallError::Endpoint(Error::PeerGone(1, _)))), "{gone:?}");
            let start = Instant::now();
            loop {
                match rpc.call_raw(&ep, 1, "echo", b"new").and_then(Call::wait) {
                    Ok(answer) => break assert_eq!(answer, b"new"),
                    Err(error) if start.elapsed() > Duration::from_secs(20) => panic!("{error}"),
                    Err(_) => extract_for(&ep, Duration::from_millis(20)),
                }
            }
            part(ep, &mail);
        },
        |job, again| {
            let Node { ep, begun, dropped, .. } = node(job);
            let start = ep.handled();
            while begun.get() == 0 {
                extract_for(&ep, Duration::from_millis(5));
            }
            assert_eq!((ep.handled(), dropped.get()), (start, 0), "the service runs");
            let aperture = ep.aperture(8).unwrap();
            let cookie = aperture.cookie(.., Rights::READ).unwrap();
            ep.send(0, "cookie", &cookie.to_bytes()).unwrap();
            ep.close().unwrap();
            let Node { ep, mail, .. } = node(again);
            ep.connect(0).unwrap();
            part(ep, &mail);
        },
    );
}

/// N-4: a message says which incarnation it was begun for, whether or not the program has read that there is
/// another one.
#[test]
fn a_message_knows_its_incarnation() {
    with_restart(
        |job| {
            let (builder, mail) = with_mail(Endpoint::builder());
            let ep = join(builder, job);
            next_cookie(&ep, &mail);
            let mut former = ep.begin(1, "long", 8).unwrap();
            assert_eq!(former.incarnation(), 1);
            ep.send(1, "cookie", &[1; Cookie::LEN]).unwrap();
            // Not `run_until`, which ends when every peer is gone.
            while mail.borrow_mut().pop().is_none() {
                extract_for(&ep, Duration::from_millis(5));
            }
            let mut next = ep.begin(1, "long", 8).unwrap();
            assert_eq!(next.incarnation(), 2);
            let down = |event: &Event| matches!(event, Event::PeerDown { peer: 1, incarnation: 1, .. });
            assert!(
                std::iter::from_fn(|| ep.poll_event()).any(|event| down(&event)),
                "it was not read before"
            );
            let gone = former.piece(&[1; 8]);
            assert!(matches!(gone, Err(Error::PeerGone(1, _))), "{gone:?}");
            next.piece(&[2; 8]).unwrap();
            next.end().unwrap();
            part(ep, &mail);
        },
        |job, again| {
            for (job, last) in [(job, false), (again, true)] {
                let (builder, mail) = with_mail(Endpoint::builder());
                let received = Rc::new(RefCell::new(Vec::new()));
                let keep = received.clone();
                let ep = join(
                    builder.on("long", move |mut message: Message| {
                        let keep = keep.clone();
                        async move {
                            let bytes = message.read_to_end().await?;
                            keep.borrow_mut().extend(bytes);
                            Ok(())
                        }
                    }),
                    job,
                );
                ep.send(0, "cookie", &[0; Cookie::LEN]).unwrap();
                if last {
                    part(ep, &mail);
                    assert_eq!(*received.borrow(), [2; 8]);
                } else {
                    next_cookie(&ep, &mail);
                    ep.close().unwrap();
                }
            }
        },
    );
}

/// A caller is restarted: calls of its former incarnation are cancelled, and their answers never taken for
/// answers to the new one.
#[test]
fn a_caller_restarts() {
    with_restart(
        |job| {
            let rpc = Rpc::new();
            let (builder, mail) = with_mail(Endpoint::builder().with(&rpc));
            let (calls, dropped) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let (turns, drops) = (calls.clone(), dropped.clone());
            let builder = builder.with(rpc.serve_bytes("slow", move |_, request| {
                turns.set(turns.get() + 1);
                let (first, guard) = (turns.get() == 1, CountDrop(drops.clone()));
                async move {
                    let _guard = guard;
                    if first {
                        std::future::pending::<()>().await;
                    }
                    Ok(request)
                }
            }));
            let ep = join(builder, job);
            ep.run_until(|| calls.get() == 1).unwrap();
            while calls.get() < 2 {
                extract_for(&ep, Duration::from_millis(5));
            }
            // Both are over then: one cancelled, one answered.
            while dropped.get() < 2 {
                extract_for(&ep, Duration::from_millis(5));
            }
            part(ep, &mail);
        },
        |job, again| {
            let rpc = Rpc::new();
            let ep = join(Endpoint::builder().with(&rpc), job);
            std::mem::forget(rpc.call_raw(&ep, 0, "slow", b"first").unwrap());
            extract_for(&ep, Duration::from_millis(200));
            ep.close().unwrap();
            let rpc = Rpc::new();
            let (builder, mail) = with_mail(Endpoint::builder().with(&rpc));
            let ep = join(builder, again);
            assert_eq!(rpc.call_raw(&ep, 0, "slow", b"second").unwrap().wait().unwrap(), b"second");
            part(ep, &mail);
        },
    );
}

/// A stream whose writer was restarted while the reader computed ends with an error.
#[test]
fn a_writer_restarts() {
    with_restart(
        |job| {
            let (builder, mail) = with_mail(Endpoint::builder());
            let ep = join(builder, job);
            let (mut reader, cookie) = stream::pair(&ep, 4096).unwrap();
            ep.send(1, "cookie", &cookie.to_bytes()).unwrap();
            let mut half = [0; 11];
            reader.read_exact(&mut half).unwrap();
            std::thread::sleep(Duration::from_millis(1500));
            let gone = reader.read(&mut half);
            assert!(matches!(gone, Err(Error::PeerGone(1, _))), "{gone:?}");
            while ep.peer_state(1) != Some(PeerState::Up) {
                extract_for(&ep, Duration::from_millis(5));
            }
            part(ep, &mail);
        },
        |job, again| {
            let (builder, mail) = with_mail(Endpoint::builder());
            let ep = join(builder, job);
            let mut writer = stream::Writer::new(&ep, &next_cookie(&ep, &mail)).unwrap();
            writer.write_all(b"half a mess").unwrap();
            extract_for(&ep, Duration::from_millis(200));
            std::mem::forget(writer);
            ep.close().unwrap();
            let (builder, mail) = with_mail(Endpoint::builder());
            let ep = join(builder, again);
            ep.connect(0).unwrap();
            part(ep, &mail);
        },
    );
}

/// a reader that reads only after its writer was restarted gets what the former incarnation
/// wrote, and then its end, and nothing of the new one. Also if the former one wrote nothing.
#[test]
fn a_reader_that_reads_late() {
    for words in [&b"last words"[..], b""] {
        with_restart(
            |job| {
                let (builder, mail) = with_mail(Endpoint::builder());
                let ep = join(builder, job);
                let (mut reader, cookie) = stream::pair(&ep, 4096).unwrap();
                ep.send(1, "cookie", &cookie.to_bytes()).unwrap();
                // The second incarnation says so.
                next_cookie_of_any_incarnation(&ep, &mail);
                let mut all = vec![0; words.len()];
                reader.read_exact(&mut all).unwrap();
                assert_eq!(all, words);
                for gone in [reader.try_read(&mut [0; 8]), reader.read(&mut [0; 8])] {
                    assert!(matches!(gone, Err(Error::PeerGone(1, _))), "{gone:?}");
                }
                part(ep, &mail);
            },
            |job, again| {
                let (builder, mail) = with_mail(Endpoint::builder());
                let ep = join(builder, job);
                let ring = next_cookie(&ep, &mail);
                let mut writer = stream::Writer::new(&ep, &ring).unwrap();
                writer.write_all(words).unwrap();
                ep.remote(&ring).flush().unwrap().wait().unwrap();
                std::mem::forget(writer);
                ep.close().unwrap();
                let (builder, mail) = with_mail(Endpoint::builder());
                let ep = join(builder, again);
                let aperture = ep.aperture(8).unwrap();
                let cookie = aperture.cookie(.., Rights::READ).unwrap();
                // The end of the former incarnation may not be known yet.
                while ep.send(0, "cookie", &cookie.to_bytes()).is_err() {
                    extract_for(&ep, Duration::from_millis(5));
                }
                let second = stream::Writer::new(&ep, &ring);
                assert!(matches!(second, Err(Error::TooMany(_))), "{second:?}");
                part(ep, &mail);
            },
        );
    }
}

/// As [`next_cookie`], also while one incarnation has ended and the next has not begun.
fn next_cookie_of_any_incarnation(ep: &Endpoint, mail: &Mail) {
    while mail.borrow().is_empty() {
        extract_for(ep, Duration::from_millis(1));
    }
    mail.borrow_mut().remove(0);
}

/// a mapping ends with its owner's incarnation, which is noticed without a call to the library; a new
/// incarnation shares again.
#[test]
fn an_owner_restarts_under_a_mapper() {
    let sizes = |mail: &Mail| mail.borrow().len();
    with_restart(
        |job| {
            let maps = Maps::default();
            let (builder, mail) = with_mail(with_maps(Endpoint::builder(), &maps));
            let ep = join(builder, job);
            let first = next_map(&ep, &maps);
            let mapped = ep.map(&first).unwrap();
            mapped.write_u64(0, 1).unwrap();
            // Nothing is extracted: the watchdog notices.
            let error = loop {
                if let Err(error) = mapped.write_u64(8, 2) {
                    break error;
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            assert!(matches!(error, Error::PeerGone(1, _)), "{error:?}");
            assert!(matches!(mapped.read_u64(0), Err(Error::PeerGone(1, _))));
            let second = next_map(&ep, &maps);
            let anew = ep.map(&second).unwrap();
            assert_eq!(anew.read_u64(0).unwrap(), 0);
            anew.write_u64(0, 3).unwrap();
            assert!(matches!(mapped.write_u64(0, 4), Err(Error::PeerGone(1, _))));
            assert_eq!(sizes(&mail), 0);
            part(ep, &mail);
        },
        |job, again| {
            let share = |ep: &Endpoint| {
                let aperture = ep.aperture(64).unwrap();
                let share = aperture.share(Rights::ALL).unwrap();
                while ep.send(0, "map", &share.cookie().to_bytes()).is_err() {
                    extract_for(ep, Duration::from_millis(5));
                }
                (aperture, share)
            };
            let (builder, _) = with_mail(Endpoint::builder());
            let ep = join(builder, job);
            let (aperture, first) = share(&ep);
            while aperture.read_u64(0).unwrap() != 1 {
                extract_for(&ep, Duration::from_millis(1));
            }
            // It dies without closing.
            std::mem::forget(first);
            ep.close().unwrap();
            let (builder, mail) = with_mail(Endpoint::builder());
            let ep = join(builder, again);
            let (aperture, second) = share(&ep);
            while aperture.read_u64(0).unwrap() != 3 {
                extract_for(&ep, Duration::from_millis(1));
            }
            assert_eq!(second.mapped_by(), [0]);
            part(ep, &mail);
        },
    );
}

/// Cookies for mappings that have arrived.
type Maps = Rc<RefCell<Vec<MapCookie>>>;

fn with_maps(builder: Builder, maps: &Maps) -> Builder {
    let inbox = maps.clone();
    builder.on_short("map", move |m: Short<'_>| {
        inbox.borrow_mut().push(MapCookie::from_bytes(m.data().try_into().expect("a cookie")));
    })
}

fn next_map(ep: &Endpoint, maps: &Maps) -> MapCookie {
    while maps.borrow().is_empty() {
        extract_for(ep, Duration::from_millis(1));
    }
    maps.borrow_mut().remove(0)
}
