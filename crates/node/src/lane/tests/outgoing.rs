//! Messages that are begun, continued, ended and given up.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tautline_link::TRAIN_TAGS;
use tautline_wire::record::{Record, Records};

use super::*;

/// The records that a side has received, one message's bytes put together.
fn gather(slots: &[Vec<u8>], into: &mut Vec<u8>) -> bool {
    let mut aborted = false;
    for record in slots.iter().flat_map(|slot| Records::new(slot, 0)) {
        match record.unwrap() {
            Record::First { data, .. } => into.extend_from_slice(data),
            Record::More { offset, data, .. } => {
                assert_eq!(offset, into.len() as u64, "pieces come in order");
                into.extend_from_slice(data);
            }
            Record::Abort { .. } => aborted = true,
            other => panic!("{other:?}"),
        }
    }
    aborted
}

/// M-3: a message of several pieces arrives as it was added, over as many frames as it takes.
#[test]
fn pieces_become_one_message() {
    let mut pair = Pair::connected();
    let bytes: Vec<u8> = (0..10_000).map(|i| (i % 251) as u8).collect();
    let message = pair.begin(0, bytes.len() as u64).unwrap();
    let (mut done, mut got) = (0, Vec::new());
    for piece in [1, 5_000, 0, 4_999] {
        let mut left = piece;
        while left > 0 {
            let added = pair.add(0, message, done as u64, &bytes[done..done + left]);
            (done, left) = (done + added, left - added);
            if added == 0 {
                pair.settle();
                let slots = pair.take(1);
                gather(&slots, &mut got);
            }
        }
    }
    pair.lanes[0].peers.member_mut(1).channel.messages.end(message.number);
    pair.send_now(0);
    for _ in 0..10 {
        pair.settle();
        let slots = pair.take(1);
        gather(&slots, &mut got);
    }
    assert_eq!(got, bytes);
}

/// L-33, M-7: frames of a train that lacked only their tags leave, with right ones, when the program panics
/// while it fills the next frame.
#[test]
fn frames_before_a_panic_leave() {
    for whole in 1..=TRAIN_TAGS + 1 {
        let mut pair = Pair::connected();
        let message = pair.begin(0, 100_000).unwrap();
        let (mut calls, mut written, now) = (0, 0, pair.now);
        let (peer, port) = pair.lanes[0].channel(1);
        let filled = catch_unwind(AssertUnwindSafe(|| {
            peer.channel.add(port, now, (message.number, 0), 60_000, |at, room| {
                calls += 1;
                // The first call is for the frame in which the message begins.
                if calls == whole + 2 {
                    resume_unwind(Box::new("as it should"))
                }
                room.fill(7);
                written = at + room.len();
            })
        }));
        assert!(filled.is_err() && written > whole * 1_000);
        pair.send_now(0);
        pair.pass(1_000);
        pair.pass(1_000);
        let mut got = Vec::new();
        gather(&pair.take(1), &mut got);
        assert_eq!(got.len(), written, "{whole} whole frames");
        assert!(got.iter().all(|byte| *byte == 7));
        assert_eq!(pair.counters(0).links.slots_resent, 0);
    }
}

/// M-5: no more is sent of a message than its window allows, until the receiver grants more.
#[test]
fn the_window_holds_a_message_back() {
    let mut pair = Pair::connected();
    let window = pair.lanes[1].config.link.message_window as usize;
    let bytes = vec![3; window + 500];
    let message = pair.begin(0, bytes.len() as u64).unwrap();
    let (mut done, mut got) = (0, Vec::new());
    for _ in 0..1_000 {
        done += pair.add(0, message, done as u64, &bytes[done..]);
        pair.send_now(0);
        pair.settle();
        let slots = pair.take(1);
        gather(&slots, &mut got);
        if got.len() == window {
            break;
        }
    }
    assert_eq!((done, got.len()), (window, window));
    pair.settle();
    assert_eq!(pair.add(0, message, done as u64, &bytes[done..]), 0);
    let (peer, port) = pair.lanes[1].channel(0);
    assert!(peer.channel.grant_window(port, message.number, bytes.len() as u64));
    pair.settle();
    assert_eq!(pair.add(0, message, done as u64, &bytes[done..]), 500);
    pair.send_now(0);
    pair.settle();
    let slots = pair.take(1);
    gather(&slots, &mut got);
    assert_eq!(got, bytes);
}

/// M-6: a message that is given up ends at its receiver with an abort, also if there was no room for it at
/// first.
#[test]
fn giving_up_is_told() {
    let mut pair = Pair::connected();
    let message = pair.begin(0, 100).unwrap();
    assert_eq!(pair.add(0, message, 0, &[1; 40]), 40);
    while pair.send(0, &[7; 1_000]).is_ok() {}
    pair.lanes[0].give_up(message);
    assert_eq!(pair.lanes[0].aborts.len(), 1, "there is no room for it now");
    let (mut short, mut aborted) = (0, false);
    for _ in 0..200 {
        pair.pass(1_000_000);
        for slot in pair.take(1) {
            for record in Records::new(&slot, 0) {
                match record.unwrap() {
                    Record::Short { .. } => short += 1,
                    Record::Abort { message: number } => aborted |= number == message.number,
                    _ => {}
                }
            }
        }
    }
    assert!(aborted && short > 100);
    assert!(pair.lanes[0].aborts.is_empty());
}

/// M-2: a handler of short messages gets none that does not fit a frame.
#[test]
fn short_handlers_refuse_long_messages() {
    let mut pair = Pair::connected();
    let limit = pair.lanes[0].peers.member(1).channel.short_limit(&pair.lanes[0].port);
    let lane = &mut pair.lanes[0];
    assert!(lane.handler(pair.now, 1, pair.short, limit as u64).is_ok());
    let refused = lane.handler(pair.now, 1, pair.short, limit as u64 + 1);
    assert!(matches!(refused, Err(SendError::TooLongForHandler(it)) if it == limit), "{refused:?}");
    assert!(lane.handler(pair.now, 1, pair.stream, u64::MAX).is_ok());
    let unknown = lane.names.insert("unknown");
    lane.peers.iter_mut().for_each(|peer| peer.handlers.add_key(unknown, "unknown"));
    assert!(matches!(lane.handler(pair.now, 1, unknown, 1), Err(SendError::UnknownHandler(1))));
    assert!(matches!(lane.handler(pair.now, 7, unknown, 1), Err(SendError::NoSuchPeer(7))));
}

/// N-4: a message that was begun with a former incarnation of a peer cannot go on.
#[test]
fn a_message_ends_with_its_incarnation() {
    let mut pair = Pair::connected();
    let message = pair.begin(0, 100).unwrap();
    pair.lanes[0].check(message.peer).unwrap();
    pair.lanes[0].teardown(1, Down::Closed);
    let gone = pair.lanes[0].check(message.peer);
    assert!(matches!(gone, Err(SendError::PeerGone(1, Down::Closed))), "{gone:?}");
    assert!(!pair.lanes[0].had_left(message.peer), "its beginning was still in an open frame");
    let (free, all) = {
        let arena = pair.lanes[0].port.device.arena_ref();
        (arena.available(), arena.capacity())
    };
    assert_eq!(free, all, "its frame was freed");
}
