//! What closing reports when a peer does not take everything in time (N-9).
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use crate::common::log::logged;
use crate::common::{Limit, jobs, join};
use tautline::{Config, DeviceName, Endpoint, Error, Job, Message, PeerState, Result, Undelivered};

const MESSAGES: u64 = 150;
const LEN: usize = 20_000;

/// Connects to a peer, and makes progress until the peer can be reached, or is gone again.
fn meet(ep: &Endpoint, peer: u32) {
    ep.connect(peer).unwrap();
    while !matches!(ep.peer_state(peer), Some(PeerState::Up | PeerState::Down(_))) {
        ep.wait(Some(Duration::from_millis(10))).unwrap();
        ep.progress().unwrap();
    }
}

/// Rank 1 of two over datagrams computes until it is told to go on, extracts until nothing more comes, and
/// returns how many messages arrived whole.
fn receive_late(job: Job, go_on: &mpsc::Receiver<()>) -> u64 {
    let count = Rc::new(Cell::new(0));
    let handled = count.clone();
    let builder = Endpoint::builder().on("x", move |mut message: Message| {
        let handled = handled.clone();
        async move {
            assert_eq!(message.read_to_end().await?.len(), LEN);
            handled.set(handled.get() + 1);
            Ok(())
        }
    });
    // Its credit is less than what it is sent.
    let ep = join(builder.config(Config::with(|config| config.link.credit_slots = 256)), job);
    meet(&ep, 0);
    let _ = go_on.recv();
    // The end of rank 0 ends the wait, also as the failure of a handler whose message broke off.
    while let Err(Error::HandlerFailed(_)) = ep.run_until(|| count.get() == MESSAGES) {}
    count.get()
}

/// Runs `sender` as rank 0 beside a receiver that takes nothing before the sender has ended, or says so.
/// Returns what the sender returned, and how many messages arrived.
fn beside_late_receiver<T>(config: Config, sender: impl FnOnce(Endpoint, mpsc::Sender<()>) -> T) -> (T, u64) {
    let _limit = Limit::seconds(60);
    let mut all = jobs(2);
    all.iter_mut().for_each(|job| job.device = Some(DeviceName::Udp));
    let second = all.pop().unwrap();
    let (go_on, late) = mpsc::channel();
    let receiver = std::thread::spawn(move || receive_late(second, &late));
    let ep = join(Endpoint::builder().config(config), all.pop().unwrap());
    let returned = sender(ep, go_on);
    (returned, receiver.join().unwrap())
}

fn short_time() -> Config {
    Config::with(|config| config.close_timeout = Duration::from_millis(300))
}

fn send_all(ep: &Endpoint) {
    (0..MESSAGES).for_each(|_| ep.send(1, "x", &[7; LEN]).unwrap());
}

/// What a close reported for rank 1, and nobody else.
fn undelivered(closed: Result<()>) -> Undelivered {
    match closed {
        Err(Error::Undelivered(mut peers)) if peers.len() == 1 && peers[0].peer == 1 => peers.remove(0),
        other => panic!("{other:?}"),
    }
}

/// N-9: what was not acknowledged when the time to close is over is an error that says how much, and to whom.
/// Nothing is waited for a second time when the endpoint is dropped.
#[test]
fn undelivered_messages_are_an_error() {
    let (lost, arrived) = beside_late_receiver(short_time(), |ep, _| {
        send_all(&ep);
        let (clone, view) = (ep.clone(), ep.to_async());
        let closed = clone.close();
        let sleeps = view.counters().sleeps;
        drop(ep);
        assert_eq!(view.counters().sleeps, sleeps, "dropping a closed endpoint waited again");
        closed
    });
    assert!(arrived < MESSAGES, "all messages arrived: this shows nothing");
    assert!(lost.is_err(), "close returned Ok, and {arrived} of {MESSAGES} messages arrived");
    let text = lost.as_ref().unwrap_err().to_string();
    let lost = undelivered(lost);
    assert!(arrived + lost.messages >= MESSAGES && lost.messages <= MESSAGES, "{arrived} arrived; {lost}");
    assert!(lost.bytes > 0 && lost.bytes <= lost.messages * LEN as u64 && lost.why.is_none(), "{lost}");
    assert!(text.contains(&lost.to_string()) && text.contains("rank 1"), "{text}");
}

/// N-9: the program chooses how long closing waits. With more time than the default the same messages arrive,
/// and closing succeeds, however long the receiver computes.
#[test]
fn the_program_chooses_the_time() {
    let (lost, _) = beside_late_receiver(Config::default(), |ep, _| {
        send_all(&ep);
        ep.close_within(Duration::ZERO)
    });
    assert!(undelivered(lost).messages > 0);
    let zero = Config::with(|config| config.close_timeout = Duration::ZERO);
    let ((), arrived) = beside_late_receiver(zero, |ep, go_on| {
        send_all(&ep);
        let waker = std::thread::spawn(move || {
            // Longer than closing waits by default.
            std::thread::sleep(Duration::from_millis(2500));
            drop(go_on);
        });
        ep.close_within(Duration::MAX).unwrap();
        waker.join().unwrap();
    });
    assert_eq!(arrived, MESSAGES);
}

/// N-9, M-14: messages that were started and not sent count, too, and the time to close is spent once.
#[test]
fn started_messages_count() {
    const STARTED: u64 = 400;
    let (lost, arrived) = beside_late_receiver(short_time(), |ep, _| {
        for _ in 0..STARTED {
            drop(ep.start_send(1, "x", [7; LEN]).unwrap());
        }
        ep.close()
    });
    let lost = undelivered(lost);
    assert!(arrived + lost.messages >= STARTED && lost.messages <= STARTED, "{arrived} arrived; {lost}");
}

/// N-9: an endpoint that is dropped can only log what was not delivered.
#[test]
fn dropping_logs_what_was_not_delivered() {
    let (lines, _) = beside_late_receiver(short_time(), |ep, _| {
        send_all(&ep);
        logged(|_| drop(ep)).1
    });
    let said = |(level, text): &(tracing::Level, String)| {
        *level == tracing::Level::ERROR && text.contains("bytes) to rank 1")
    };
    assert_eq!(lines.iter().filter(|line| said(line)).count(), 1, "{lines:?}");
}

/// N-9, N-22: closing lane 0 reports what the other lanes had not delivered.
#[test]
fn lane_0_reports_for_all_lanes() {
    let (lost, arrived) = beside_late_receiver(short_time(), |ep, _| {
        let lanes = ep.lanes();
        let (sent, closed) = (mpsc::channel(), mpsc::channel::<()>());
        let lane = std::thread::spawn(move || {
            let lane = lanes.open(Endpoint::builder()).unwrap();
            send_all(&lane);
            sent.0.send(()).unwrap();
            let _ = closed.1.recv();
        });
        sent.1.recv().unwrap();
        // Rank 1 waits for lane 0, which sends nothing by itself.
        meet(&ep, 1);
        let lost = ep.close();
        drop(closed.0);
        lane.join().unwrap();
        lost
    });
    let lost = undelivered(lost);
    assert!(lost.messages > 0 && arrived + lost.messages >= MESSAGES, "{arrived} arrived; {lost}");
}

/// Unparks its thread.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a future; extracts while it is suspended and the endpoint is open.
fn drive<T>(ep: &Endpoint, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        if ep.extract(usize::MAX).is_ok() {
            ep.wait(Some(Duration::from_millis(1))).unwrap();
        } else {
            std::thread::park();
        }
    }
}

/// N-9: the form for tasks reports the same, and needs nobody who extracts once everything that was started
/// is sent.
#[test]
fn tasks_close_too() {
    let (lost, arrived) = beside_late_receiver(short_time(), |ep, _| {
        for _ in 0..MESSAGES {
            drop(ep.start_send(1, "x", [7; LEN]).unwrap());
        }
        drive(&ep, ep.to_async().close())
    });
    let lost = undelivered(lost);
    assert!(lost.messages > 0 && arrived + lost.messages >= MESSAGES, "{arrived} arrived; {lost}");
    let (closed, arrived) = beside_late_receiver(short_time(), |ep, go_on| {
        send_all(&ep);
        drop(go_on);
        let closed = drive(&ep, ep.to_async().close_within(Duration::MAX));
        assert!(matches!(ep.extract(1), Err(Error::Send(tautline::SendError::Closed))));
        closed.and(drive(&ep, ep.to_async().close()))
    });
    closed.unwrap();
    assert_eq!(arrived, MESSAGES);
}

/// A close that is dropped before anything was closed leaves the endpoint open.
#[test]
fn a_dropped_close_changes_nothing() {
    let ((), arrived) = beside_late_receiver(Config::default(), |ep, go_on| {
        for _ in 0..MESSAGES {
            drop(ep.start_send(1, "x", [7; LEN]).unwrap());
        }
        let task = ep.to_async();
        let mut close = Box::pin(task.close());
        let pending = close.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())).is_pending();
        assert!(pending, "everything had room: this shows nothing");
        drop(close);
        ep.extract(usize::MAX).unwrap();
        drop(go_on);
        ep.close_within(Duration::MAX).unwrap();
    });
    assert_eq!(arrived, MESSAGES);
}

/// N-25: requests and answers of memory that arrive while a node closes are no violation: they end no
/// channel, and so lose no message. Rank 1 puts all the time, and takes messages only afterwards.
#[test]
fn memory_traffic_does_not_disturb_closing() {
    crate::common::run_over(DeviceName::Udp, 2, |job| {
        let count = Rc::new(Cell::new(0));
        let handled = count.clone();
        let ep = join(
            Endpoint::builder().on("x", move |mut message: Message| {
                let handled = handled.clone();
                async move {
                    message.read_to_end().await?;
                    handled.set(handled.get() + 1);
                    Ok(())
                }
            }),
            job,
        );
        let aperture = ep.aperture(4096).unwrap();
        let cookie = aperture.cookie(.., tautline::memory::Rights::WRITE).unwrap();
        let cookies = ep.share(cookie).unwrap();
        if ep.rank() == 0 {
            send_all(&ep);
            return ep.close_within(Duration::MAX).unwrap();
        }
        let remote = ep.remote(&cookies[0].unwrap());
        for _ in 0..400 {
            // Rank 0 closes somewhere in here; these requests are then never answered.
            let _ = remote.try_put(8, &[7; 8]);
            ep.progress().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = ep.run_until(|| count.get() == MESSAGES);
        assert_eq!(count.get(), MESSAGES);
    });
}

/// E-18, N-9: messages with tags that were started or buffered leave before a channel closes, also if it is
/// only being opened when the program closes, and long ones if they are received meanwhile.
#[test]
fn tagged_messages_are_sent_before_the_end() {
    let _limit = Limit::seconds(60);
    for device in [DeviceName::Shm, DeviceName::Udp] {
        for len in [8, 1000, 100_000] {
            crate::common::run_over(device, 2, |job| {
                let ep = join(Endpoint::builder(), job);
                let tags = ep.tags(0);
                if ep.rank() == 0 {
                    tags.send_buffered(1, 1, &vec![1; len]).unwrap();
                    drop(tags.start_send(1, 2, vec![2; len]).unwrap());
                    drop(tags.start_send_pieces(1, 3, vec![vec![3; len - 1], vec![3]]).unwrap());
                    return ep.close_within(Duration::MAX).unwrap();
                }
                for tag in (1..=3).rev() {
                    let mut bytes = vec![0; len];
                    tags.receive(0, tag, &mut bytes).unwrap();
                    assert!(bytes.iter().all(|byte| *byte == tag as u8), "{len} bytes with tag {tag}");
                }
                ep.close().unwrap();
            });
        }
    }
}

/// E-18, E-7: a long message that nobody receives never leaves its sender, whose close says so. Short ones
/// are with their receiver, and messages of collectives are not counted.
#[test]
fn tagged_messages_that_nobody_receives_are_reported() {
    for device in [DeviceName::Shm, DeviceName::Udp] {
        let (over, over_too) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        crate::common::run_over(device, 2, |job| {
            let ep = join(Endpoint::builder(), job);
            let (tags, world) = (ep.tags(0), ep.world().unwrap());
            world.barrier().unwrap();
            over.wait();
            if ep.rank() == 0 {
                tags.send(1, 1, &[1; 1000]).unwrap();
                let _send = tags.start_send(1, 2, vec![2; 100_000]).unwrap();
                tags.send_buffered(1, 2, &vec![2; 70_000]).unwrap();
                let call = tautline::group::Call::Broadcast { root: 0, len: 1 << 20 };
                drop(world.start(&call, vec![0; 1 << 20]).unwrap());
                let lost = undelivered(ep.close_within(Duration::from_millis(100)));
                assert_eq!((lost.messages, lost.bytes, lost.why), (2, 170_000, None), "{lost}");
                over_too.wait();
                return;
            }
            over_too.wait();
            let _ = ep.close();
        });
    }
}

/// G-6, G-25, E-18: a member that revokes a group and closes at once has told all members, also those to
/// which it had no channel.
#[test]
fn notices_are_sent_before_the_end() {
    let _limit = Limit::seconds(60);
    for device in [DeviceName::Shm, DeviceName::Udp] {
        crate::common::run_over(device, 5, |job| {
            let ep = join(Endpoint::builder(), job);
            let world = ep.world().unwrap();
            if ep.rank() == 0 {
                world.revoke();
            } else {
                let error = world.barrier().unwrap_err();
                assert!(matches!(error, Error::Revoked), "{error:?}");
            }
            ep.close_within(Duration::MAX).unwrap();
        });
    }
}
