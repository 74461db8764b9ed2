//! Messages that receives take by source and tag.

use std::time::Duration;

use crate::common::{Limit, await_event, config, job_beside_an_absent_rank, join, pattern, run_over};
use tautline::tags::{ANY, Request, Tags};
use tautline::{DeviceName, Down, Endpoint, Error, Event, Job, SendError, Waiting};

pub(crate) const DEVICES: [DeviceName; 2] = [DeviceName::Shm, DeviceName::Udp];
const CREDIT: usize = 1 << 20;

pub(crate) fn enter(job: Job) -> (Endpoint, Tags) {
    let ep = join(Endpoint::builder().config(config(|_| {})), job);
    let tags = ep.tags(0);
    (ep, tags)
}

/// Bytes that depend on a number.
pub(crate) fn content(number: u32, len: usize) -> Vec<u8> {
    pattern(len, number as usize)
}

/// Both ranks have come here.
pub(crate) fn meet(ep: &Endpoint, tags: &Tags) {
    let other = 1 - ep.rank();
    tags.send(other, u32::MAX, &[]).unwrap();
    tags.receive(other, u32::MAX, &mut Vec::new()).unwrap();
}

/// E-1, E-2: a rank's messages to itself, sent before or after they are received.
#[test]
fn a_rank_sends_to_itself_before_and_after_it_receives() {
    run_over(DeviceName::Udp, 1, |job| {
        let (ep, tags) = enter(job);
        for len in [0, 8, 5_000, 100_000] {
            let receive = tags.start_receive(0, 1, vec![0; len]).unwrap();
            let send = tags.start_send(0, 1, content(1, len)).unwrap();
            assert_eq!(receive.wait().unwrap().1, content(1, len));
            send.wait().unwrap();
            let send = tags.start_send_synchronous(0, 1, content(4, len)).unwrap();
            let receive = tags.start_receive(0, 1, vec![0; len]).unwrap();
            send.wait().unwrap();
            assert_eq!(receive.wait().unwrap().1, content(4, len));
        }
        let receive = tags.start_receive(0, 2, vec![0; 8]).unwrap();
        assert!(tags.try_send(0, 2, &content(2, 8)).unwrap());
        assert_eq!(receive.wait().unwrap().1, content(2, 8));
        assert!(tags.try_send(0, 3, &content(3, 8)).unwrap());
        let mut buffer = vec![0; 8];
        tags.receive(0, 3, &mut buffer).unwrap();
        assert_eq!(buffer, content(3, 8));
        ep.close().unwrap();
    });
}

/// E-1, E-2, E-5, E-7: messages of every length arrive whole and in order, whether receives are posted before
/// or after they are sent, and whatever their tags are received in.
#[test]
fn messages_of_every_length_in_order() {
    const LENGTHS: [usize; 11] =
        [0, 1, 8, 40, 41, 1_500, 16_000, 16_500, 64 << 10, (64 << 10) + 1, (1 << 20) + 7];
    for device in DEVICES {
        run_over(device, 2, |job| {
            let (ep, tags) = enter(job);
            for late in [false, true] {
                if ep.rank() == 0 {
                    if late {
                        // Long ones wait at the sender until they are received.
                        let sends: Vec<_> = (0..)
                            .zip(LENGTHS)
                            .map(|(tag, len)| tags.start_send(1, tag, content(tag, len)).unwrap())
                            .collect();
                        tags.send(1, 99, &[]).unwrap();
                        for (send, len) in sends.into_iter().zip(LENGTHS) {
                            assert_eq!(send.wait().unwrap().len(), len);
                        }
                    } else {
                        tags.receive(1, 98, &mut Vec::new()).unwrap();
                        for (tag, len) in (0..).zip(LENGTHS) {
                            tags.send(1, tag, &content(tag, len)).unwrap();
                        }
                    }
                } else if late {
                    tags.receive(0, 99, &mut Vec::new()).unwrap();
                    // By tag, in another order than they were sent.
                    for (tag, len) in (0..11).zip(LENGTHS).rev() {
                        let mut buffer = vec![0; len + 3];
                        let status = tags.receive(0, tag, &mut buffer).unwrap();
                        assert_eq!((status.source, status.tag, status.len), (0, tag, len as u64));
                        assert!(buffer[..len] == content(tag, len) && buffer[len..] == [0; 3]);
                    }
                } else {
                    let posted: Vec<_> = LENGTHS
                        .iter()
                        .map(|_| tags.start_receive(ANY, ANY, vec![0; 2 << 20]).unwrap())
                        .collect();
                    tags.send(0, 98, &[]).unwrap();
                    for ((tag, len), receive) in (0..).zip(LENGTHS).zip(posted) {
                        let (status, buffer) = receive.wait().unwrap();
                        assert_eq!((status.tag, status.len), (tag, len as u64));
                        assert!(buffer[..len] == content(tag, len));
                    }
                }
                meet(&ep, &tags);
            }
            ep.close().unwrap();
        });
    }
}

/// E-7: both sides send 1 MiB at once, to each other and to themselves, having posted their receives.
#[test]
fn both_sides_send_long_messages_at_once() {
    const LEN: usize = 1 << 20;
    for device in DEVICES {
        run_over(device, 2, |job| {
            let (ep, tags) = enter(job);
            let (me, other) = (ep.rank(), 1 - ep.rank());
            for round in 0..4 {
                let from_other = tags.start_receive(other, 1, vec![0; LEN]).unwrap();
                let own = tags.start_receive(me, 1, vec![0; LEN]).unwrap();
                let to_me = tags.start_send(me, 1, content(me, LEN)).unwrap();
                tags.send(other, 1, &content(me + round, LEN)).unwrap();
                tags.wait_all(&[&from_other, &own, &to_me]).unwrap();
                assert!(from_other.wait().unwrap().1 == content(other + round, LEN));
                assert!(own.wait().unwrap().1 == content(me, LEN));
                to_me.wait().unwrap();
            }
            meet(&ep, &tags);
            ep.close().unwrap();
        });
    }
}

/// E-1, N-6: a rank that is alone receives what it sends itself, short or long, also if nothing else happens
/// and it sleeps whenever it waits.
#[test]
fn messages_to_oneself() {
    for waiting in [Waiting::Spin, Waiting::SpinThenPark, Waiting::Park] {
        run_over(DeviceName::Shm, 1, |job| {
            let ep = join(Endpoint::builder().config(config(|c| c.waiting = waiting)), job);
            let tags = ep.tags(0);
            for len in [0, 1, 40, 3_000, 70_000] {
                let posted = [(); 2].map(|()| tags.start_receive(0, 1, vec![0; len]).unwrap());
                let sends = [1, 2].map(|number| tags.start_send(0, 1, content(number, len)).unwrap());
                for (receive, number) in posted.into_iter().zip(1..) {
                    assert!(receive.wait().unwrap().1 == content(number, len));
                }
                for send in sends {
                    send.wait().unwrap();
                }
                if len <= 3_000 {
                    let mut buffer = vec![0; len];
                    tags.send(0, 2, &content(3, len)).unwrap();
                    tags.receive(0, 2, &mut buffer).unwrap();
                    assert!(buffer == content(3, len));
                }
            }
            ep.close().unwrap();
        });
    }
}

/// E-5, E-6: a flood of messages that nobody receives takes no more of the receiver than its credit;
/// envelopes wait for the rest, and every message arrives, in order.
#[test]
fn unexpected_flood_is_bounded() {
    const FLOOD: u32 = 20_000;
    for device in DEVICES {
        run_over(device, 2, |job| {
            let (ep, tags) = enter(job);
            if ep.rank() == 0 {
                let sends: Vec<_> = (0..FLOOD)
                    .map(|number| tags.start_send(1, number % 3, number.to_le_bytes().to_vec()).unwrap())
                    .collect();
                // Without receives those end that have credit, and no others.
                let eager = CREDIT / (64 + 4);
                let requests: Vec<&dyn Request> = sends.iter().map(|send| send as _).collect();
                tags.send_buffered(1, 7, &[]).unwrap();
                tags.receive(1, 8, &mut Vec::new()).unwrap();
                assert_eq!(tags.test_some(&requests).unwrap(), (0..eager).collect::<Vec<_>>());
                tags.send_buffered(1, 9, &[]).unwrap();
                tags.wait_all(&requests).unwrap();
            } else {
                tags.probe(0, 7).unwrap();
                assert_eq!(ep.node().tagged().waiting(), (0, FLOOD as usize + 1));
                tags.send(0, 8, &[]).unwrap();
                tags.receive(0, 9, &mut Vec::new()).unwrap();
                for number in 0..FLOOD {
                    let mut buffer = vec![0; 4];
                    let tag = if number % 2 == 0 { ANY } else { Some(number % 3) };
                    assert_eq!(tags.receive(0, tag, &mut buffer).unwrap().tag, number % 3);
                    assert_eq!(buffer, number.to_le_bytes());
                }
                tags.receive(0, 7, &mut Vec::new()).unwrap();
            }
            meet(&ep, &tags);
            ep.close().unwrap();
        });
    }
}

/// E-7: a message longer than its buffer fails the receive, with its first bytes in place, and no other.
#[test]
fn long_messages_are_truncated() {
    for device in DEVICES {
        run_over(device, 2, |job| {
            let (ep, tags) = enter(job);
            for (tag, len) in (0..).zip([9, 20_000, 200_000]) {
                for late in [false, true] {
                    if ep.rank() == 0 {
                        if !late {
                            tags.receive(1, 50, &mut Vec::new()).unwrap();
                        }
                        tags.send_buffered(1, tag, &content(1, len)).unwrap();
                        tags.send(1, 51, b"next").unwrap();
                        continue;
                    }
                    let posted = (!late).then(|| {
                        let receive = tags.start_receive(0, tag, vec![0; 8]).unwrap();
                        tags.send(0, 50, &[]).unwrap();
                        receive
                    });
                    let mut next = vec![0; 4];
                    tags.receive(0, 51, &mut next).unwrap();
                    assert_eq!(next, b"next");
                    let result = match posted {
                        Some(receive) => receive.wait().map(|_| ()),
                        None => {
                            let mut buffer = vec![0; 8];
                            let result = tags.receive(0, tag, &mut buffer).map(|_| ());
                            assert_eq!(buffer, content(1, 8));
                            result
                        }
                    };
                    let Err(Error::Truncated(status)) = result else { panic!("{result:?}") };
                    assert_eq!((status.source, status.tag, status.len), (0, tag, len as u64));
                }
            }
            meet(&ep, &tags);
            ep.close().unwrap();
        });
    }
}

/// E-2, E-11: probed messages stay, claimed ones are received by their claim alone, and receives that are
/// cancelled or dropped take nothing.
#[test]
fn probe_claim_and_cancel() {
    for device in DEVICES {
        run_over(device, 2, |job| {
            let (ep, tags) = enter(job);
            let other = tags.with_context(1);
            if ep.rank() == 0 {
                tags.receive(1, 1, &mut Vec::new()).unwrap();
                for (number, len) in (0..).zip([5, 100_000, 5, 100_000]) {
                    tags.send_buffered(1, 4, &content(number, len)).unwrap();
                }
                other.send(1, 4, b"elsewhere").unwrap();
                tags.send_synchronous(1, 5, b"short").unwrap();
                tags.send_synchronous(1, 5, &content(5, 50_000)).unwrap();
                tags.send_pieces(1, 6, &[b"one", b"", b"two"]).unwrap();
            } else {
                drop(tags.start_receive(0, 4, vec![0; 9]).unwrap());
                let cancelled = tags.start_receive(ANY, ANY, vec![7; 9]).unwrap();
                assert!(!cancelled.test().unwrap());
                assert_eq!(cancelled.cancel().unwrap(), [7; 9]);
                assert_eq!(tags.try_probe(ANY, 77).unwrap(), None);
                tags.send(0, 1, &[]).unwrap();
                let status = tags.probe(0, ANY).unwrap();
                assert_eq!((status.tag, status.len), (4, 5));
                let first = tags.claim(0, 4).unwrap();
                let second = tags.claim(ANY, 4).unwrap();
                assert_eq!((first.status().len, second.status().len), (5, 100_000));
                // Dropped, a claimed message is lost, and its sender goes on.
                drop(tags.claim(0, ANY).unwrap());
                let (status, bytes) = tags.start_receive(0, 4, vec![0; 100_000]).unwrap().wait().unwrap();
                assert!(status.len == 100_000 && bytes == content(3, 100_000));
                assert!(second.receive(vec![0; 100_000]).unwrap().wait().unwrap().1 == content(1, 100_000));
                assert_eq!(first.receive(vec![0; 5]).unwrap().wait().unwrap().1, content(0, 5));
                assert_eq!(tags.try_probe(0, 4).unwrap(), None);
                let mut buffer = vec![0; 9];
                other.receive(0, 4, &mut buffer).unwrap();
                assert_eq!(buffer, b"elsewhere");
                let mut buffer = vec![0; 5];
                tags.receive(0, 5, &mut buffer).unwrap();
                let mut buffer = vec![0; 50_000];
                tags.receive(0, 5, &mut buffer).unwrap();
                assert!(buffer == content(5, 50_000));
                let receive = tags.start_receive_pieces(0, 6, vec![vec![0; 2], vec![0; 4]]).unwrap();
                assert_eq!(receive.wait_pieces().unwrap().1, [&b"on"[..], b"etwo"]);
            }
            meet(&ep, &tags);
            ep.close().unwrap();
        });
    }
}

/// Requests of several kinds are tested and waited for together: any of them, some, or all.
#[test]
fn requests_are_tested_together() {
    for device in DEVICES {
        run_over(device, 2, |job| {
            let (ep, tags) = enter(job);
            if ep.rank() == 0 {
                for tag in [2, 0, 1] {
                    tags.receive(1, 9, &mut Vec::new()).unwrap();
                    tags.send(1, tag, &[tag as u8]).unwrap();
                }
            } else {
                let [a, b, c] = [0, 1, 2].map(|tag| tags.start_receive(0, tag, vec![9]).unwrap());
                let all: [&dyn Request; 3] = [&a, &b, &c];
                assert_eq!((tags.test_any(&all).unwrap(), tags.test_all(&all).unwrap()), (None, false));
                assert!(!tags.wait_ids(&all.map(Request::id), 1, Some(Duration::from_millis(1))).unwrap());
                tags.send(0, 9, &[]).unwrap();
                assert_eq!(tags.wait_any(&all).unwrap(), 2);
                assert_eq!((tags.test_any(&all).unwrap(), tags.test_all(&all).unwrap()), (Some(2), false));
                tags.send(0, 9, &[]).unwrap();
                assert_eq!(tags.wait_some(&[&a, &b]).unwrap(), [0]);
                assert_eq!(tags.test_some(&all).unwrap(), [0, 2]);
                tags.send(0, 9, &[]).unwrap();
                tags.wait_all(&all).unwrap();
                assert!(tags.test_all(&all).unwrap() && tags.test_all(&[]).unwrap());
                assert_eq!(tags.test_any(&[]).unwrap(), None);
                for (receive, tag) in [a, b, c].into_iter().zip(0..) {
                    assert_eq!(receive.wait().unwrap().1, [tag]);
                }
            }
            meet(&ep, &tags);
            ep.close().unwrap();
        });
    }
}

/// E-7: a message of more than 4 GiB, of which its receive wants the first bytes.
#[test]
fn more_than_four_gibibytes_are_announced() {
    const PIECES: usize = 80;
    // Nobody reads or writes but the first page.
    let piece = [content(3, 100), vec![0; (64 << 20) - 100]].concat();
    run_over(DeviceName::Shm, 2, |job| {
        let (ep, tags) = enter(job);
        if ep.rank() == 0 {
            tags.send_pieces(1, 1, &[&piece[..]; PIECES]).unwrap();
        } else {
            let total = (PIECES * piece.len()) as u64;
            assert_eq!(tags.probe(0, 1).unwrap().len, total);
            let mut first = vec![0; 100];
            let result = tags.receive(0, 1, &mut first);
            assert!(matches!(result, Err(Error::Truncated(status)) if status.len == total), "{result:?}");
            assert_eq!(first, content(3, 100));
        }
        meet(&ep, &tags);
        ep.close().unwrap();
    });
}

/// E-10: receives and probes fail also if the peer was gone before any message had been sent or received.
#[test]
fn a_peer_that_was_never_up_fails_its_receives() {
    let _limit = Limit::seconds(60);
    for device in DEVICES {
        for probes in [false, true] {
            let (job, absent) = job_beside_an_absent_rank(Some(device));
            let time = Duration::from_millis(20);
            let ep = join(Endpoint::builder().config(config(|c| c.connect_timeout = time)), job);
            let tags = ep.tags(0);
            ep.connect(1).unwrap();
            await_event(&ep, |event| matches!(event, Event::PeerDown { peer: 1, .. }));
            let failed = match probes {
                false => tags.receive(1, 5, &mut vec![0; 9]).map(drop),
                true => tags.probe(1, 5).map(drop),
            };
            assert!(matches!(failed, Err(Error::PeerGone(1, Down::Unreachable))), "{failed:?}");
            drop(absent);
        }
    }
}

/// E-10: when a peer is gone, receives from it and sends to it fail, also those posted before; what it sent
/// whole is still received. Receives of the node's own close fail, too.
#[test]
fn a_lost_peer_fails_its_receives() {
    for device in DEVICES {
        run_over(device, 2, |job| {
            let (ep, tags) = enter(job);
            if ep.rank() == 1 {
                tags.send(0, 1, b"last").unwrap();
                tags.receive(0, 2, &mut Vec::new()).unwrap();
                return ep.close().unwrap();
            }
            let posted = [
                tags.start_receive(1, 5, vec![0; 9]).unwrap(),
                tags.start_receive(1, ANY, vec![0; 0]).unwrap(),
            ];
            let [five, any] = posted;
            // The second takes the message, which does not fit.
            assert!(matches!(any.wait(), Err(Error::Truncated(_))));
            let any_source = tags.start_receive(ANY, 5, vec![0; 9]).unwrap();
            let unmatched = tags.start_send(1, 9, vec![0; 100_000]).unwrap();
            tags.send(1, 2, &[]).unwrap();
            assert!(matches!(five.wait(), Err(Error::PeerGone(1, Down::Closed))));
            assert!(matches!(unmatched.wait(), Err(Error::PeerGone(1, Down::Closed))));
            assert!(matches!(tags.receive(1, 5, &mut Vec::new()), Err(Error::PeerGone(1, _))));
            assert!(matches!(tags.probe(1, 5), Err(Error::PeerGone(1, _))));
            assert!(matches!(tags.send(1, 5, &[]), Err(Error::PeerGone(1, _))));
            assert!(matches!(tags.send(2, 5, &[]), Err(Error::Send(SendError::NoSuchPeer(2)))));
            assert!(!any_source.test().unwrap());
            // E-16: nobody is left who could send these.
            let waits = [
                tags.receive(ANY, 5, &mut vec![0; 9]).map(drop),
                tags.start_receive(ANY, ANY, Vec::new()).unwrap().wait().map(drop),
                tags.probe(ANY, ANY).map(drop),
                tags.claim(ANY, 5).map(drop),
                tags.try_send(1, 5, &[]).map(drop),
            ];
            assert!(waits.iter().all(|it| matches!(it, Err(Error::PeerGone(1, Down::Closed)))), "{waits:?}");
            ep.close().unwrap();
            assert!(matches!(any_source.wait(), Err(Error::Send(SendError::Closed))));
            let mut kept = vec![7; 9];
            assert!(matches!(tags.receive(1, 5, &mut kept), Err(Error::Send(SendError::Closed))));
            assert_eq!(kept, [7; 9]);
        });
    }
}

/// A loop of [`Tags::try_send`] opens the channel by itself.
#[test]
fn tried_sends_open_the_channel() {
    for device in DEVICES {
        run_over(device, 2, |job| {
            let ep = join(Endpoint::builder().config(config(|c| c.device = Some(device))), job);
            let tags = ep.tags(0);
            if ep.rank() == 0 {
                while !tags.try_send(1, 3, b"short").unwrap() {
                    std::thread::yield_now();
                }
            } else {
                let mut bytes = vec![0; 5];
                tags.receive(0, 3, &mut bytes).unwrap();
                assert_eq!(bytes, *b"short");
            }
            ep.close().unwrap();
        });
    }
}

/// E-4: a program that does not poll still receives. A long message is sent only after it was asked for, so
/// that its send ends only if the receiver's watchdog matches it and answers.
#[test]
fn a_program_that_computes_still_receives() {
    const LEN: usize = 300_000;
    for device in DEVICES {
        let [posted, sent] = [(); 2].map(|()| std::sync::Barrier::new(2));
        run_over(device, 2, |job| {
            let (ep, tags) = enter(job);
            meet(&ep, &tags);
            if ep.rank() == 0 {
                posted.wait();
                tags.send(1, 1, &content(1, LEN)).unwrap();
                sent.wait();
            } else {
                let receive = tags.start_receive(0, 1, vec![0; LEN]).unwrap();
                posted.wait();
                sent.wait();
                assert!(receive.wait().unwrap().1 == content(1, LEN));
            }
            meet(&ep, &tags);
            ep.close().unwrap();
        });
    }
}

/// E-12: four threads of each rank send and receive at once, each with tags of its own, by one lane.
#[test]
fn four_threads() {
    const MESSAGES: u32 = 300;
    for device in DEVICES {
        run_over(device, 2, |job| {
            let (ep, tags) = enter(job);
            let other = 1 - ep.rank();
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let tags = tags.clone();
                    scope.spawn(move || {
                        for number in 0..MESSAGES {
                            let len = [8, 3_000, 70_000][number as usize % 3];
                            let receive = tags.start_receive(other, thread, vec![0; len]).unwrap();
                            tags.send(other, thread, &content(number + thread, len)).unwrap();
                            assert!(receive.wait().unwrap().1 == content(number + thread, len));
                        }
                    });
                }
            });
            meet(&ep, &tags);
            ep.close().unwrap();
        });
    }
}
