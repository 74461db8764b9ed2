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
