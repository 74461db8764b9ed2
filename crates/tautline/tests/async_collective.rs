//! Barriers, shared cookies, exchanges and waits of tasks and handlers.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use crate::common::{jobs, join, pattern, run};
use tautline::memory::Rights;
use tautline::{Down, Endpoint, Error, Message};

/// Polls a future once, and drops it; true if it was ready.
fn polled_once<T>(ep: &Endpoint, future: impl Future<Output = T>) -> bool {
    let mut future = pin!(future);
    ep.block_on(poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready()))).unwrap()
}

/// M-16: barriers of tasks hold as others do, and both kinds can be called in turn.
#[test]
fn tasks_call_barriers() {
    for n in [1, 2, 5] {
        let entered: Vec<AtomicU32> = (0..40).map(|_| AtomicU32::new(0)).collect();
        run(n, |job| {
            let device = job.device;
            let ep = join(Endpoint::builder(), job);
            let task = ep.to_async();
            let base = if device == Some(tautline::DeviceName::Shm) { n as u32 } else { 0 };
            for (i, entered) in entered.iter().enumerate() {
                entered.fetch_add(1, Ordering::SeqCst);
                if (i + ep.rank() as usize).is_multiple_of(3) {
                    ep.barrier().unwrap();
                } else {
                    ep.block_on(task.barrier()).unwrap().unwrap();
                }
                assert!(entered.load(Ordering::SeqCst) >= base + n as u32, "barrier {i} of {n}");
            }
            ep.close().unwrap();
        });
    }
}

/// A handler may take part in a barrier, and in a share: others run meanwhile.
#[test]
fn handlers_call_barriers() {
    run(3, |job| {
        let done = Rc::new(Cell::new(0));
        let count = done.clone();
        let builder = Endpoint::builder().on("meet", move |msg: Message| {
            let done = count.clone();
            async move {
                let ep = msg.endpoint();
                ep.barrier().await?;
                let cookies = ep.share(None).await?;
                assert_eq!(cookies, vec![None; 3]);
                done.set(done.get() + 1);
                Ok(())
            }
        });
        let ep = join(builder, job);
        ep.send((ep.rank() + 1) % 3, "meet", b"").unwrap();
        ep.run_until(|| done.get() == 1).unwrap();
        ep.barrier().unwrap();
        ep.close().unwrap();
    });
}

/// A barrier that was dropped goes on with the next call.
#[test]
fn dropped_barriers_go_on() {
    run(4, |job| {
        let ep = join(Endpoint::builder(), job);
        let task = ep.to_async();
        for round in 0..20 {
            let mut over = false;
            for _ in 0..if round % 4 == ep.rank() { 3 } else { 0 } {
                over = over || polled_once(&ep, task.barrier());
                ep.extract(usize::MAX).unwrap();
            }
            if !over {
                ep.barrier().unwrap();
            }
            let aperture = ep.aperture(8).unwrap();
            let cookie = aperture.cookie(.., Rights::ALL).unwrap();
            let cookies = ep.block_on(task.share(cookie)).unwrap().unwrap();
            let owners: Vec<_> = cookies.iter().map(|cookie| cookie.as_ref().unwrap().owner()).collect();
            assert_eq!(owners, [0, 1, 2, 3], "round {round}");
        }
        ep.close().unwrap();
    });
}

/// There is one barrier at a time. One that was dropped is no share.
#[test]
fn one_barrier_at_a_time() {
    run(2, |job| {
        let told = Rc::new(Cell::new(false));
        let tell = told.clone();
        let ep = join(Endpoint::builder().on_short("go", move |_| tell.set(true)), job);
        if ep.rank() == 1 {
            // The other rank cannot leave the barrier before.
            ep.run_until(|| told.get()).unwrap();
        } else {
            let task = ep.to_async();
            let mut first = Box::pin(task.barrier());
            let pending =
                ep.block_on(poll_fn(|context| Poll::Ready(first.as_mut().poll(context).is_pending())));
            assert!(pending.unwrap());
            assert!(matches!(ep.barrier(), Err(Error::TooMany(_))));
            assert!(matches!(ep.block_on(task.share(None)), Ok(Err(Error::TooMany(_)))));
            drop(first);
            assert!(matches!(ep.share(None), Err(Error::TooMany(_))));
            ep.send(1, "go", b"").unwrap();
        }
        ep.barrier().unwrap();
        ep.close().unwrap();
    });
}

/// M-17: tasks exchange long messages with several peers at once.
#[test]
fn tasks_exchange() {
    run(3, |job| {
        let ep = join(Endpoint::builder(), job);
        let task = ep.to_async();
        let others: Vec<u32> = (0..3).filter(|rank| *rank != ep.rank()).collect();
        for round in 0..5 {
            let own = |to: u32| pattern(300_000, (10 * ep.rank() + to) as usize + round);
            let sent: Vec<_> = others.iter().map(|to| (*to, own(*to))).collect();
            let both: Vec<(u32, &[u8])> = sent.iter().map(|(to, bytes)| (*to, &bytes[..])).collect();
            let got = if (round + ep.rank() as usize).is_multiple_of(2) {
                ep.block_on(task.exchange_all(&both)).unwrap().unwrap()
            } else {
                ep.exchange_all(&both).unwrap()
            };
            for (from, bytes) in others.iter().zip(got) {
                assert!(bytes == pattern(300_000, (10 * from + ep.rank()) as usize + round));
            }
        }
        ep.close().unwrap();
    });
}

/// An exchange that was dropped matches one of the peer's, whose message nobody gets; later ones are not
/// out of step. One that had sent nothing never was.
#[test]
fn dropped_exchanges() {
    run(2, |job| {
        let ep = join(Endpoint::builder(), job);
        let (task, peer) = (ep.to_async(), 1 - ep.rank());
        let long = pattern(8_000_000, 1);
        for round in 0..10u8 {
            ep.barrier().unwrap();
            if ep.rank() == 0 {
                // Part of it is sent, and it is aborted.
                assert!(!polled_once(&ep, task.exchange(peer, &long)));
            } else {
                let got = ep.exchange(peer, &[round]);
                assert!(matches!(got, Err(Error::Aborted)), "{got:?}");
            }
            let got = ep.exchange(peer, &[100 + round]).unwrap();
            assert_eq!(got, [100 + round], "round {round}");
        }
        ep.barrier().unwrap();
        ep.close().unwrap();
    });
    let ep = join(Endpoint::builder(), jobs(1).pop().unwrap());
    let task = ep.to_async();
    // Never polled, so nothing was sent.
    drop(task.exchange(0, b"never"));
    assert_eq!(ep.exchange(0, b"once").unwrap(), b"once");
    ep.close().unwrap();
}

/// N-8: waits of tasks end as those of the program do: when the condition holds, when a handler fails, when
/// the last peer is lost.
#[test]
fn tasks_wait() {
    run(2, |job| {
        let count = Rc::new(Cell::new(0));
        let counted = count.clone();
        let builder = Endpoint::builder()
            .on_short("count", move |_| counted.set(counted.get() + 1))
            .on("fail", |_: Message| async { Err(Error::Aborted) });
        let ep = join(builder, job);
        let task = ep.to_async();
        if ep.rank() == 1 {
            (0..30).for_each(|_| ep.send(0, "count", b"").unwrap());
            ep.send(0, "fail", b"").unwrap();
            // The other one has met the failure.
            ep.exchange(0, b"").unwrap();
            return ep.close().unwrap();
        }
        ep.block_on(task.run_until(|| count.get() >= 10)).unwrap().unwrap();
        ep.block_on(task.serve(30 - ep.handled().min(30))).unwrap().unwrap();
        assert_eq!(count.get(), 30);
        // Whichever of the two meets the failure first returns it.
        match ep.block_on(task.run_until(|| false)) {
            Err(Error::HandlerFailed(failure)) | Ok(Err(Error::HandlerFailed(failure))) => {
                assert_eq!(failure.handler, "fail");
            }
            other => panic!("{other:?}"),
        }
        ep.exchange(1, b"").unwrap();
        let ended = ep.block_on(task.run_until(|| false)).unwrap();
        assert!(matches!(ended, Err(Error::PeerGone(1, Down::Closed))), "{ended:?}");
        ep.close().unwrap();
    });
}
