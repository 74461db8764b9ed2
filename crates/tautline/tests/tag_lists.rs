//! Receives in any order and by any call, against a plain list of what was sent.

use crate::common::network_faults::FaultsMet;
use crate::common::{config, join, run_over};
use crate::tags::{DEVICES, content, enter, meet};
use tautline::node::device::fault::Faults;
use tautline::tags::{Receive, Status, Tags};
use tautline::{DeviceName, Endpoint, Error};

/// E-2, E-5, E-6, E-15: messages go to the receives that a plain list says, whether these find them in the
/// ring, in the queue, or are posted, and their credit is returned.
#[test]
fn short_messages_equal_a_list() {
    for device in DEVICES {
        run_over(device, 2, |job| {
            let (ep, tags) = enter(job);
            // More than the credit of a peer.
            exchange_as_a_list((ep.rank(), 1), &tags, 30_000);
            ep.close().unwrap();
        });
    }
}

/// The same by four threads of each rank at once, and on a network that loses, repeats and reorders frames
/// (E-12).
#[test]
fn messages_of_four_threads_equal_their_lists() {
    let faults = Faults::with(|faults| {
        (faults.loss, faults.duplicate, faults.reorder, faults.reorder_by) = (0.02, 0.05, 0.1, 4);
    });
    for (device, faulty) in [(DeviceName::Shm, false), (DeviceName::Udp, false), (DeviceName::Udp, true)] {
        let met = FaultsMet::default();
        run_over(device, 2, |job| {
            let seed = u64::from(job.rank) + 1;
            let config = config(|config| config.fault = faulty.then_some((seed, faults)));
            let ep = join(Endpoint::builder().config(config), job);
            let (tags, rank) = (ep.tags(0), ep.rank());
            std::thread::scope(|scope| {
                for thread in 1..=4 {
                    let tags = tags.with_context(thread);
                    scope.spawn(move || {
                        exchange_as_a_list((rank, thread), &tags, if faulty { 400 } else { 4_000 });
                    });
                }
            });
            meet(&ep, &tags);
            met.add(&ep);
            ep.close().unwrap();
        });
        if faulty {
            met.check();
        }
    }
}

/// Rank 0 sends messages whose lengths and tags both ranks draw; rank 1 receives them in another order and by
/// whatever call it draws, and compares with a list.
fn exchange_as_a_list((rank, seed): (u32, u32), tags: &Tags, messages: u32) {
    const ROUND: u32 = 20;
    let numbers = |seed: u32| {
        let mut state = seed;
        move |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        }
    };
    let (mut draw, mut choose) = (numbers(seed), numbers(seed + 100));
    for round in 0..messages / ROUND {
        // Most fit a line, some a few lines, some a frame, and few do not.
        let mut len = || match draw(32) {
            0 => draw(20_000),
            1..8 => draw(300),
            _ => draw(50),
        };
        let lens: Vec<u32> = (0..ROUND).map(|_| len()).collect();
        let message = |(at, len): (u32, u32)| (draw(3), content(round * ROUND + at, len as usize));
        let mut list: Vec<(u32, Vec<u8>)> = (0..).zip(lens).map(message).collect();
        if rank == 0 {
            list.iter().for_each(|(tag, bytes)| tags.send(1, *tag, bytes).unwrap());
            tags.receive(1, 9, &mut Vec::new()).unwrap();
            continue;
        }
        while !list.is_empty() {
            let tag = list[choose(list.len() as u32) as usize].0;
            let pattern = (choose(5) > 0).then_some(tag);
            let oldest = list.iter().position(|it| pattern.is_none_or(|tag| it.0 == tag)).unwrap();
            let (tag, bytes) = list.remove(oldest);
            let room = if choose(10) == 0 { bytes.len() / 2 } else { bytes.len() + 3 };
            let is_it = |status: Status| {
                assert_eq!((status.source, status.tag, status.len), (0, tag, bytes.len() as u64));
            };
            let mut buffer = vec![0; room];
            let mut taken = |receive: Receive| {
                receive.wait().map(|(status, back)| {
                    buffer = back;
                    status
                })
            };
            let result = match choose(8) {
                0 => taken(tags.start_receive(0, pattern, vec![0; room]).unwrap()),
                1 => {
                    let claimed = tags.claim(0, pattern).unwrap();
                    is_it(claimed.status());
                    taken(claimed.receive(vec![0; room]).unwrap())
                }
                2 => {
                    // Nothing has this tag: it is cancelled while the next message may be on its way.
                    let never = tags.start_receive(0, 77, vec![7; 4]).unwrap();
                    is_it(tags.probe(0, pattern).unwrap());
                    assert_eq!(never.cancel().unwrap(), [7; 4]);
                    tags.receive(0, pattern, &mut buffer)
                }
                _ => tags.receive(0, pattern, &mut buffer),
            };
            match result {
                Ok(status) => is_it(status),
                Err(Error::Truncated(status)) if room < bytes.len() => is_it(status),
                other => panic!("{other:?}"),
            }
            if room >= bytes.len() {
                assert_eq!(buffer[..bytes.len()], bytes);
                assert!(buffer[bytes.len()..].iter().all(|byte| *byte == 0));
            }
        }
        tags.send(0, 9, &[]).unwrap();
    }
}
