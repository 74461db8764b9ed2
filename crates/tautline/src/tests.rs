//! Tests that need an endpoint and look inside it.

use crate::{Endpoint, Event, Job, Member, Rank};
use std::future::Future;
use std::pin::pin;
use tautline_node::limits::MAX_EVENTS;

/// An endpoint that is alone in its job.
fn alone() -> Endpoint {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let members = vec![Member::new(socket.local_addr().unwrap())];
    let key = tautline_node::link::JobKey::new([1; 32]);
    let job = Job::new(0, key, members).with_socket(socket);
    Endpoint::builder().join_job(job).unwrap()
}

/// T-10: a full event queue drops the oldest events, and the first event that is read tells how many were
/// dropped, those included that the node had dropped before.
#[test]
fn a_full_event_queue_drops_the_oldest() {
    let ep = alone();
    while ep.poll_event().is_some() {}
    let event = |i: usize| Event::PathChanged { peer: 0 as Rank, max_frame: i };
    ep.core.events.push(Event::Lost { events: 7 });
    for i in 0..MAX_EVENTS + 10 {
        ep.core.events.push(event(i));
    }
    assert_eq!(ep.poll_event(), Some(Event::Lost { events: 17 }));
    for i in 10..MAX_EVENTS + 10 {
        assert_eq!(ep.poll_event(), Some(event(i)));
    }
    assert_eq!(ep.poll_event(), None);
    ep.close().unwrap();
}

/// A future that stops waiting leaves nothing behind.
#[test]
fn dropped_futures_leave_no_waiters() {
    let ep = alone();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let aperture = ep.aperture(64).unwrap();
    let mut wires: Vec<_> = (0..8).map(|i| aperture.tripwire(i..i + 1).arm().unwrap()).collect();
    let mut set = ep.tripset(&wires.iter().collect::<Vec<_>>(), 1, None).unwrap();
    let (mut queue, _) = crate::queue::AsyncReceiver::pair(&ep.to_async(), 64).unwrap();
    let (mut reader, _) = crate::stream::AsyncReader::pair(&ep.to_async(), 64).unwrap();
    for _ in 0..100 {
        for wire in &mut wires {
            assert!(pin!(wire.fired()).poll(&mut context).is_pending());
        }
        assert!(pin!(set.ready()).poll(&mut context).is_pending());
        assert!(pin!(queue.pop()).poll(&mut context).is_pending());
        assert!(pin!(reader.read(&mut [0; 8])).poll(&mut context).is_pending());
        let full = || Err::<(), _>(crate::SendError::WouldBlock.into());
        assert!(pin!(crate::waiting::until_room(&ep.core, full)).poll(&mut context).is_pending());
        // A queue and a stream each keep the waker of the last poll.
        assert_eq!((ep.core.memory_waiters(), ep.core.waits.peers.len()), (2, 2));
        assert!(ep.core.waits.room.is_empty());
    }
    drop((queue, reader));
    assert!(ep.core.memory_waiters() == 0 && ep.core.waits.peers.is_empty());
    ep.close().unwrap();
}

/// Streams have the traits of futures-io: bytes arrive in order through a ring that is much smaller, the end
/// of the writer is the end of the reader, and what comes after it is an error of the right kind.
#[cfg(feature = "futures")]
#[test]
fn streams_through_the_traits_of_futures_io() {
    use futures_io::{AsyncRead, AsyncWrite};
    use std::pin::Pin;
    use std::task::Poll;

    fn copy(ep: &Endpoint, mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
        let text: Vec<u8> = (0..50_000_u32).map(|i| (i / 7) as u8).collect();
        let (mut sent, mut got, mut waits) = (0, Vec::new(), 0);
        let (mut from, mut to) = (Pin::new(&mut from), Pin::new(&mut to));
        let copied = ep.block_on(std::future::poll_fn(|context| {
            loop {
                let mut part = [0; 777];
                if sent < text.len() {
                    match to.as_mut().poll_write(context, &text[sent..]) {
                        Poll::Ready(len) => sent += len.unwrap(),
                        Poll::Pending => waits += 1,
                    }
                    assert!(matches!(to.as_mut().poll_flush(context), Poll::Ready(Ok(()))));
                    if sent == text.len() {
                        assert!(matches!(to.as_mut().poll_close(context), Poll::Ready(Ok(()))));
                    }
                }
                match from.as_mut().poll_read(context, &mut part) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(()),
                    Poll::Ready(len) => got.extend_from_slice(&part[..len.unwrap()]),
                    Poll::Pending => return Poll::Pending,
                }
            }
        }));
        copied.unwrap();
        assert!(got == text && waits > 0, "{} of {} bytes, {waits} waits", got.len(), text.len());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let Poll::Ready(Err(late)) = to.as_mut().poll_write(&mut context, b"late") else { panic!("written") };
        assert_eq!(late.kind(), std::io::ErrorKind::BrokenPipe);
    }

    let ep = alone();
    let pair = || {
        let (reader, cookie) = crate::stream::pair(&ep, 1_000).unwrap();
        (reader, crate::stream::Writer::new(&ep, &cookie).unwrap())
    };
    let (reader, writer) = pair();
    copy(&ep, reader, writer);
    let (reader, writer) = pair();
    copy(&ep, reader.into_async(), writer.into_async());
    let ((reader, writer), (unread, unwritten)) = (pair(), pair());
    let halves = [(reader, unwritten), (unread, writer)];
    let [first, second] = halves.map(|(reader, writer)| crate::stream::Stream { reader, writer });
    copy(&ep, first, second);
    ep.close().unwrap();
}

/// A dropped stream of events leaves no waiter; the stream ends when the endpoint is closed.
#[cfg(feature = "futures")]
#[test]
fn the_stream_of_events_ends() {
    use futures_core::Stream;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Poll, Wake, Waker};

    struct Count(AtomicU32);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let ep = alone();
    while ep.poll_event().is_some() {}
    let count = Arc::new(Count(AtomicU32::new(0)));
    for _ in 0..100 {
        let waker = Waker::from(count.clone());
        let polled = pin!(ep.events()).poll_next(&mut std::task::Context::from_waker(&waker));
        assert_eq!(polled, Poll::Pending);
    }
    assert!(ep.core.events.waiters.is_empty() && Arc::strong_count(&count) == 1);
    let waker = Waker::from(count.clone());
    let mut context = std::task::Context::from_waker(&waker);
    let mut events = pin!(ep.events());
    assert_eq!(events.as_mut().poll_next(&mut context), Poll::Pending);
    let last = Event::PathChanged { peer: 0, max_frame: 7 };
    ep.core.events.push(last.clone());
    ep.close().unwrap();
    assert_eq!(count.0.load(Ordering::Relaxed), 1, "closing wakes the waiter");
    assert_eq!(events.as_mut().poll_next(&mut context), Poll::Ready(Some(last)));
    assert_eq!(events.as_mut().poll_next(&mut context), Poll::Ready(None));
    assert_eq!(events.as_mut().poll_next(&mut context), Poll::Ready(None));
}
