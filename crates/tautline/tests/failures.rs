//! Failures of handlers that the program does not read: they are logged, and end a wait.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::common::log::logged;
use crate::common::{extract_for, jobs, join, run};
use tautline::{Builder, Endpoint, Error, HandlerFailure, Message, Short};
use tracing::Level;

/// Handlers that fail, and one that does not.
fn failing() -> Builder {
    Endpoint::builder()
        .on("err", |_: Message| async { Err(Error::other("refused on purpose")) })
        .on("panic", |_: Message| async { panic!("on purpose") })
        .on_short("short", |_: Short<'_>| panic!("a short one"))
        .on_short("good", |_: Short<'_>| {})
}

fn failed(result: tautline::Result<()>) -> HandlerFailure {
    match result {
        Err(Error::HandlerFailed(failure)) => *failure,
        other => panic!("{other:?}"),
    }
}

/// M-15: a wait that would sleep returns each unread failure once, and then continues.
#[test]
fn a_wait_returns_failures() {
    run(2, |job| {
        let ep = join(failing(), job);
        if ep.rank() == 0 {
            ["err", "panic", "short"].iter().for_each(|name| ep.send(1, *name, b"").unwrap());
            ep.serve(1).unwrap();
            ep.send(1, "good", b"").unwrap();
        } else {
            let (mut failures, lines) = logged(|_| {
                let wait = || failed(ep.run_until(|| ep.handled() == 4));
                (0..3).map(|_| wait()).collect::<Vec<_>>()
            });
            failures.sort_by(|a, b| a.handler.cmp(&b.handler));
            let texts: Vec<_> = failures.iter().map(|f| (&*f.handler, &*f.reason, f.panicked)).collect();
            assert_eq!(
                texts,
                [
                    ("err", "refused on purpose", false),
                    ("panic", "on purpose", true),
                    ("short", "a short one", true)
                ]
            );
            assert!(failures.iter().all(|failure| failure.from == 0));
            assert_eq!(ep.poll_failure(), None, "a failure that was returned is read");
            assert!(lines.iter().all(|(level, _)| *level != Level::ERROR), "{lines:?}");
            ep.send(0, "good", b"").unwrap();
            ep.run_until(|| ep.handled() == 4).unwrap();
        }
        ep.close().unwrap();
    });
}

/// A failure of a handler that `serve` counts does not end it; the next wait returns it.
#[test]
fn serve_counts_failures() {
    let _limit = crate::common::Limit::seconds(30);
    let ep = join(failing(), jobs(1).pop().unwrap());
    ep.send(0, "err", b"").unwrap();
    ep.serve(1).unwrap();
    assert_eq!(failed(ep.serve(1)).reason, "refused on purpose");
    let error = {
        ep.send(0, "short", b"").unwrap();
        ep.serve(2).unwrap_err()
    };
    let text = error.to_string();
    assert_eq!(text, "the handler \"short\" panicked on a message of rank 0: a short one");
    assert_eq!(format!("{error:?}"), format!("HandlerFailed: {text}"));
    // What the program reads does not end a wait.
    ep.send(0, "err", b"").unwrap();
    ep.serve(1).unwrap();
    assert!(ep.poll_failure().is_some());
    ep.send(0, "good", b"").unwrap();
    ep.serve(1).unwrap();
    ep.close().unwrap();
}

/// `block_on` returns failures, too, and a future that is pinned outside goes on.
#[test]
fn block_on_returns_failures() {
    let _limit = crate::common::Limit::seconds(30);
    let ep = join(failing(), jobs(1).pop().unwrap());
    ep.send(0, "err", b"").unwrap();
    let until = ep.clone();
    let mut future = std::pin::pin!(std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        if until.handled() == 2 { std::task::Poll::Ready(7) } else { std::task::Poll::Pending }
    }));
    // It is woken all the time, and so does not sleep.
    ep.send(0, "good", b"").unwrap();
    assert_eq!(ep.block_on(future.as_mut()).unwrap(), 7);
    let mut never = std::pin::pin!(std::future::pending::<()>());
    assert_eq!(failed(ep.block_on(never.as_mut())).handler, "err");
    ep.close().unwrap();
}

/// An unread failure is logged once, with its text, when the program is about to sleep or closes.
#[test]
fn unread_failures_are_logged() {
    let _limit = crate::common::Limit::seconds(30);
    let ep = join(failing(), jobs(1).pop().unwrap());
    let ((), lines) = logged(|lines| {
        ep.send(0, "panic", b"").unwrap();
        ep.serve(1).unwrap();
        assert!(lines.lock().unwrap().is_empty());
        // It may be told of events first.
        while ep.wait(Some(Duration::ZERO)).unwrap() {}
        assert_eq!(lines.lock().unwrap().len(), 1);
        extract_for(&ep, Duration::from_millis(5));
        assert_eq!(lines.lock().unwrap().len(), 1);
        ep.send(0, "err", b"").unwrap();
        ep.serve(1).unwrap();
        assert_eq!(ep.poll_failure().unwrap().reason, "on purpose");
        ep.close().unwrap();
    });
    let [(Level::ERROR, first), (Level::ERROR, second)] = &lines[..] else { panic!("{lines:?}") };
    assert!(
        first.contains("handler=panic") && first.contains("from=0") && first.contains("on purpose"),
        "{first}"
    );
    assert!(second.contains("handler=err") && second.contains("refused on purpose"), "{second}");
}

/// With `on_failure`, failures go there, and are neither logged nor returned. It is dropped when the endpoint
/// is closed.
#[test]
fn a_server_goes_on() {
    run(2, |job| {
        let taken = Rc::new(RefCell::new(Vec::new()));
        let into = taken.clone();
        let panics = Rc::new(Cell::new(true));
        let once = panics.clone();
        let ep = join(
            failing().on_failure(move |failure| {
                assert!(!once.replace(false), "a panic in here does no harm");
                into.borrow_mut().push(failure.reason);
            }),
            job,
        );
        if ep.rank() == 0 {
            ["err", "err", "panic", "short", "good"].iter().for_each(|name| ep.send(1, *name, b"").unwrap());
            ep.close().unwrap();
        } else {
            let ((), lines) = logged(|_| {
                ep.serve(5).unwrap();
                assert_eq!(ep.poll_failure(), None);
                ep.close().unwrap();
            });
            assert_eq!(*taken.borrow(), ["refused on purpose", "on purpose", "a short one"]);
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(lines[0].1.contains("on_failure"), "{lines:?}");
        }
        assert_eq!(Rc::strong_count(&panics), 1);
    });
}
