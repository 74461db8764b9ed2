//! What closing an endpoint frees: the program's handlers with all they hold, and the address.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use tautline::memory::Aperture;
use tautline::node::link::JobKey;
use tautline::{Builder, Endpoint, Error, Job, Member, Message, SendError, Short, queue, stream};

/// A loopback address that only this process uses, so that nobody takes it between two joins.
fn address() -> SocketAddr {
    static LAST: AtomicU16 = AtomicU16::new(20_000);
    let [_, a, b, c] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 64 | a, b, c], LAST.fetch_add(1, Ordering::Relaxed)))
}

/// Joins a job of one rank at an address.
fn join(builder: Builder, addr: SocketAddr) -> Endpoint {
    let (key, members) = (JobKey::new([7; 32]), vec![Member::new(addr)]);
    let job = Job::new(0, key, members);
    builder.join_job(job).unwrap()
}

/// Counts its instances; may panic when it is dropped.
struct Guard(Rc<Cell<i32>>, bool);

impl Guard {
    fn new(live: &Rc<Cell<i32>>, bad: bool) -> Guard {
        live.set(live.get() + 1);
        Guard(live.clone(), bad)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
        assert!(!self.1, "a guard that panics");
    }
}

/// M-7: a handler that panics while it is dropped keeps neither other handlers nor the node alive, however
/// the endpoint ends.
#[test]
fn a_panic_while_handlers_are_dropped() {
    for close in [false, true] {
        let (addr, live) = (address(), Rc::new(Cell::new(0)));
        let (count, number) = (live.clone(), Cell::new(0));
        let builder = Endpoint::builder().on("hang", move |message: Message| {
            number.set(number.get() + 1);
            let guard = Guard::new(&count, number.get() == 4);
            async move {
                let (_guard, _message) = (guard, message);
                pending().await
            }
        });
        let ep = join(builder, addr);
        for _ in 0..10 {
            ep.send(0, "hang", b"wait").unwrap();
        }
        ep.run_until(|| live.get() == 10).unwrap();
        if close {
            let other = ep.clone();
            ep.close().unwrap();
            assert_eq!(live.get(), 0);
            let failure = other.poll_failure().unwrap();
            assert!(failure.panicked && failure.reason == "a guard that panics", "{failure:?}");
            assert_eq!(other.poll_failure(), None);
        } else {
            drop(ep);
        }
        assert_eq!((live.get(), Rc::strong_count(&live)), (0, 1));
        join(Endpoint::builder(), addr).close().unwrap();
    }
}

/// Handlers of every kind may hold what holds the endpoint: closing drops them.
#[test]
fn handlers_that_hold_the_endpoint_are_dropped() {
    for kind in 0..3 {
        let (addr, live) = (address(), Rc::new(Cell::new(0)));
        let place: Rc<RefCell<Option<(Aperture, Endpoint)>>> = Rc::default();
        let (held, guard) = (place.clone(), Guard::new(&live, kind == 1));
        let builder = Endpoint::builder();
        let builder = match kind {
            0 => builder.on_short("x", move |_: Short<'_>| drop((held.borrow(), &guard))),
            1 => builder.on("x", move |_: Message| {
                drop((held.borrow(), &guard));
                async { Ok(()) }
            }),
            _ => builder.on_loan("x", move |_| drop((held.borrow(), &guard))),
        };
        let ep = join(builder, addr);
        *place.borrow_mut() = Some((ep.aperture(4096).unwrap(), ep.clone()));
        ep.send(0, "x", b"once").unwrap();
        ep.serve(1).unwrap();
        drop(place);
        ep.close().unwrap();
        assert_eq!((live.get(), Rc::strong_count(&live)), (0, 1), "kind {kind}");
        join(Endpoint::builder(), addr).close().unwrap();
    }
}

/// Calls on a closed endpoint fail, and none of the program's handlers runs any more.
#[test]
fn clones_of_a_closed_endpoint_fail() {
    let ep = join(Endpoint::builder().on_short("x", |_: Short<'_>| ()), address());
    let other = ep.clone();
    ep.close().unwrap();
    assert!(matches!(other.extract(usize::MAX), Err(Error::Send(SendError::Closed))));
    assert!(matches!(other.run_until(|| true), Err(Error::Send(SendError::Closed))));
}

/// A ring that exceeds memory is refused, and the error says why.
#[test]
fn oversized_rings_are_refused() {
    let ep = join(Endpoint::builder(), address());
    for capacity in [usize::MAX, usize::MAX - 8, isize::MAX as usize, isize::MAX as usize + 1] {
        let queue = queue::pair(&ep, capacity).map(|_| ()).unwrap_err().to_string();
        let stream = stream::pair(&ep, capacity).map(|_| ()).unwrap_err().to_string();
        assert!(queue.contains("at most") && stream == queue, "{queue}; {stream}");
    }
    assert!(queue::pair(&ep, 1 << 60).is_err());
    ep.close().unwrap();
}
