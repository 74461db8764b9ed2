//! Messages to oneself: the same contracts, without a network.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{Limit, jobs, join, pattern};
use tautline::{Endpoint, Error, Message, Outgoing, SendError, Short};

fn alone(builder: tautline::Builder) -> Endpoint {
    join(builder, jobs(1).remove(0))
}

/// An endpoint that counts the bytes sent to "data" and checks them.
fn counting() -> (Endpoint, Rc<Cell<u64>>) {
    let bytes = Rc::new(Cell::new(0));
    let sum = bytes.clone();
    let ep = alone(
        Endpoint::builder()
            .on("data", move |mut msg: Message| {
                let sum = sum.clone();
                async move {
                    let got = msg.read_to_end().await?;
                    assert!(msg.from() == 0 && got == pattern(got.len(), 0));
                    sum.set(sum.get() + got.len() as u64);
                    Ok(())
                }
            })
            .on_short("short", |_: Short<'_>| {}),
    );
    (ep, bytes)
}

/// M-3: messages of all sizes that fit the loopback channel, in one call.
#[test]
fn messages_that_fit() {
    let _limit = Limit::seconds(30);
    let (ep, bytes) = counting();
    let mut sum = 0;
    for size in [0, 1, 8, 100, 1500, 10_000, 65_507, 100_000, 400_000] {
        ep.send(0, "data", &pattern(size, 0)).unwrap();
        ep.serve(1).unwrap();
        sum += size as u64;
        assert_eq!(bytes.get(), sum);
    }
    assert_eq!(ep.poll_failure(), None);
    ep.close().unwrap();
}

/// A message to oneself that is longer than a window is sent as this thread extracts, behind what began
/// before it.
#[test]
fn long_messages_to_oneself() {
    let _limit = Limit::seconds(30);
    let (ep, bytes) = counting();
    let mut sum = 0;
    for size in [600_000, 1 << 20, 5_000_000] {
        ep.send(0, "data", &pattern(size, 0)).unwrap();
        ep.send(0, "data", &pattern(size + 1, 0)).unwrap();
        ep.send(0, "data", &pattern(10, 0)).unwrap();
        ep.serve(3).unwrap();
        sum += 2 * size as u64 + 11;
        assert_eq!(bytes.get(), sum);
    }
    // Not through a handle on the same thread, and the error says what to do.
    let error = ep.handle().send(0, "data", &pattern(1 << 20, 0)).unwrap_err();
    assert!(!error.is_would_block() && error.to_string().contains("Endpoint::send"), "{error}");
    ep.serve(1).unwrap();
    assert_eq!(ep.poll_failure().unwrap().reason, Error::Aborted.to_string());
    // What was sent is handled before the endpoint closes.
    ep.send(0, "data", &pattern(1 << 20, 0)).unwrap();
    ep.close().unwrap();
    assert_eq!(bytes.get(), sum + (1 << 20));
}

/// Only the program itself can make room for more: a piece that would wait for that fails instead of hanging.
#[test]
fn messages_that_do_not_fit() {
    let _limit = Limit::seconds(30);
    let (ep, bytes) = counting();
    let data = pattern(5_000_000, 0);
    let mut out = ep.begin(0, "data", data.len() as u64).unwrap();
    assert!(out.piece(&data).unwrap_err().is_would_block());
    drop(out);
    // That one was aborted; now with extraction in between.
    let mut out = ep.begin(0, "data", data.len() as u64).unwrap();
    while out.remaining() > 0 {
        let at = data.len() - out.remaining() as usize;
        match out.try_piece(&data[at..]) {
            Ok(_) => {}
            Err(error) => {
                assert!(error.is_would_block(), "{error}");
                ep.extract(usize::MAX).unwrap();
            }
        }
    }
    out.end().unwrap();
    ep.serve(1).unwrap();
    assert_eq!(bytes.get(), data.len() as u64);
    assert_eq!(ep.poll_failure().unwrap().reason, Error::Aborted.to_string());
    assert_eq!(ep.poll_failure(), None);
    ep.close().unwrap();
}

/// The loopback channel is bounded; messages are refused when it is full, and not lost.
#[test]
fn the_channel_is_bounded() {
    let _limit = Limit::seconds(30);
    let (ep, _) = counting();
    let mut sent = 0u64;
    while ep.try_send(0, "short", &[0; 1000]).is_ok() {
        sent += 1;
        assert!(sent < 1_000_000);
    }
    assert!(ep.send(0, "short", b"x").unwrap_err().is_would_block());
    ep.serve(sent).unwrap();
    ep.send(0, "short", b"x").unwrap();
    ep.serve(1).unwrap();
    assert_eq!(ep.handled(), sent + 1);
    ep.close().unwrap();
}

/// M-6: aborting a message works also while the channel is full.
#[test]
fn aborted_while_full() {
    let _limit = Limit::seconds(30);
    let (ep, bytes) = counting();
    let mut out: Outgoing = ep.begin(0, "data", 1000).unwrap();
    out.piece(b"abc").unwrap();
    let mut sent = 0;
    while ep.try_send(0, "short", &[0; 60_000]).is_ok() {
        sent += 1;
    }
    drop(out);
    ep.serve(sent + 1).unwrap();
    assert_eq!(bytes.get(), 0);
    assert_eq!(ep.poll_failure().unwrap().reason, Error::Aborted.to_string());
    ep.close().unwrap();
}

/// M-4: a handler sends to its own node, a chain of thousands, with and without an `async` send.
#[test]
fn sends_from_handlers() {
    let _limit = Limit::seconds(30);
    let ep = alone(Endpoint::builder().on("count", |mut msg: Message| async move {
        let left: u64 = msg.read().await?;
        msg.skip(msg.remaining()).await?;
        if left > 0 {
            let mut next = vec![0; if left.is_multiple_of(100) { 600_000 } else { 8 }];
            next[..8].copy_from_slice(&(left - 1).to_le_bytes());
            msg.endpoint().send(0, "count", &next).await?;
        }
        Ok(())
    }));
    ep.send(0, "count", &2000u64.to_le_bytes()).unwrap();
    ep.serve(2001).unwrap();
    assert_eq!(ep.poll_failure(), None);
    ep.close().unwrap();
}

/// N-9: after closing, calls fail.
#[test]
fn sends_after_close() {
    let (ep, _) = counting();
    let still = ep.clone();
    ep.close().unwrap();
    assert!(matches!(still.send(0, "data", b"x"), Err(Error::Send(SendError::Closed))));
    assert!(matches!(still.begin(0, "data", 1).map(drop), Err(Error::Send(SendError::Closed))));
    assert!(matches!(still.extract(usize::MAX), Err(Error::Send(SendError::Closed))));
}

/// M-5: a window granted to oneself takes no room: not that of another message's open slot, either.
#[test]
fn windows_leave_room_for_open_slots() {
    let _limit = Limit::seconds(30);
    let frame = alone(Endpoint::builder()).node().short_limit(0);
    let (go, waker, read) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(None)), Rc::new(Cell::new(0)));
    let config = crate::common::config(|c| {
        c.link.credit_slots = 2;
        c.link.message_window = frame as u32 + 10;
    });
    let (may, who, sum) = (go.clone(), waker.clone(), read.clone());
    let ep = alone(Endpoint::builder().config(config).on("data", move |mut msg: Message| {
        let (may, who, sum) = (may.clone(), who.clone(), sum.clone());
        async move {
            std::future::poll_fn(|context| {
                who.set(Some(context.waker().clone()));
                if may.get() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
            let len = msg.read_to_end().await?.len();
            sum.set(sum.get() + len);
            Ok(())
        }
    }));
    let data = pattern(5 * frame, 0);
    let mut long = ep.try_begin(0, "data", data.len() as u64).unwrap();
    let mut sent = long.try_piece(&data).unwrap();
    assert_eq!(sent, frame + 10);
    ep.extract(usize::MAX).unwrap();
    // The channel is empty. This message's slot, almost full, stays open while the first one's handler grants
    // itself more.
    let mut other = ep.try_begin(0, "data", frame as u64).unwrap();
    assert_eq!(other.try_piece(&data[..frame - 5]).unwrap(), frame - 5);
    go.set(true);
    waker.take().expect("the handler waits").wake();
    for _ in 0..1_000 {
        ep.extract(usize::MAX).unwrap();
        sent += long.try_piece(&data[sent..]).unwrap_or(0);
    }
    assert_eq!(sent, data.len());
    long.end().unwrap();
    for _ in 0..1_000 {
        ep.extract(usize::MAX).unwrap();
        let _ = other.try_piece(&data[..other.remaining() as usize]);
    }
    other.end().unwrap();
    ep.run_until(|| read.get() == 6 * frame).unwrap();
    ep.close().unwrap();
}
