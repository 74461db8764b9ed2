//! Styles that register on the builder: queues and streams that are offered to a name, and a style of a
//! program's own.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::{failures_until, join, run};
use tautline::style::{Hooks, PendingMessage, Style};
use tautline::{Builder, Endpoint, Short, queue, stream};

/// A queue that is offered to a registered name arrives there with its receiver's rank, and carries entries.
#[test]
fn a_queue_is_offered_to_a_name() {
    run(2, |job| {
        let accepted = Rc::new(RefCell::new(None));
        let slot = accepted.clone();
        let builder = Endpoint::builder()
            .with(queue::on_offer("jobs", move |from, sender| *slot.borrow_mut() = Some((from, sender))));
        let ep = join(builder, job);
        if ep.rank() == 0 {
            let mut jobs = queue::offer(&ep, 1, "jobs", 4096).unwrap();
            let entries: Vec<_> = std::iter::from_fn(|| jobs.pop().unwrap()).collect();
            assert_eq!(entries, [b"one".to_vec(), b"two".to_vec()]);
        } else {
            ep.run_until(|| accepted.borrow().is_some()).unwrap();
            let (from, mut jobs) = accepted.take().unwrap();
            assert_eq!(from, 0);
            jobs.push(b"one").unwrap();
            jobs.push(b"two").unwrap();
            jobs.end().unwrap();
        }
        ep.close().unwrap();
    });
}

/// A stream that is offered to a registered name arrives there, and carries bytes. A message that is no
/// cookie fails.
#[test]
fn a_stream_is_offered_to_a_name() {
    run(2, |job| {
        let accepted = Rc::new(RefCell::new(None));
        let slot = accepted.clone();
        let builder = Endpoint::builder()
            .with(stream::on_offer("log", move |_, writer| *slot.borrow_mut() = Some(writer)));
        let ep = join(builder, job);
        if ep.rank() == 0 {
            ep.send(1, "log", b"no cookie").unwrap();
            let mut reader = stream::offer(&ep, 1, "log", 4096).unwrap();
            let mut text = [0; 5];
            reader.read_exact(&mut text).unwrap();
            assert_eq!(&text, b"hello");
        } else {
            let failures = failures_until(&ep, || accepted.borrow().is_some());
            assert!(failures.len() == 1 && failures[0].reason.contains("not a cookie"), "{failures:?}");
            let mut writer = accepted.take().unwrap();
            writer.write_all(b"hello").unwrap();
            writer.close().unwrap();
        }
        ep.close().unwrap();
    });
}

/// A style outside the crate: it counts notes, and answers each of them without ever waiting.
#[derive(Clone, Default)]
struct Notes(Rc<Cell<u32>>);

impl Style for &Notes {
    fn register(self, builder: Builder) -> Builder {
        let (noted, acknowledged) = (self.0.clone(), self.0.clone());
        builder
            .attach(self.clone())
            .on_short("note", move |m: Short<'_>| {
                noted.set(noted.get() + 1);
                let ep = m.endpoint();
                assert!(ep.in_handler());
                let handler = ep.handler("noted").unwrap();
                ep.send_later(PendingMessage::new(m.from(), handler, vec![7; 100_000]));
            })
            .on("noted", move |mut m| {
                let acknowledged = acknowledged.clone();
                async move {
                    assert_eq!(m.read_to_end().await?, vec![7; 100_000]);
                    acknowledged.set(acknowledged.get() + 1);
                    Ok(())
                }
            })
    }
}

/// A style of the program's own uses the same hooks as the crate's.
#[test]
fn a_style_of_the_programs_own() {
    const COUNT: u32 = 50;
    run(2, |job| {
        let notes = Notes::default();
        let ep = join(Endpoint::builder().with(&notes), job);
        assert!(Rc::ptr_eq(&ep.attachment::<Notes>().unwrap().0, &notes.0));
        assert!(ep.attachment::<u32>().is_none() && !ep.in_handler());
        if ep.rank() == 0 {
            for _ in 0..COUNT {
                ep.send(1, "note", b"").unwrap();
            }
        }
        let done = || notes.0.get() == COUNT;
        ep.wait_until(None, done, done).unwrap();
        if ep.rank() == 0 {
            assert!(ep.peer_error(1, ep.peer_id(1)).is_none(), "it waits for the last note");
            ep.send(1, "note", b"").unwrap();
        }
        ep.run_until(|| notes.0.get() == COUNT + 1).unwrap();
        ep.close().unwrap();
    });
}
