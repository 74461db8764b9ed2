//! Frames that come out of order, twice, in fragments, or from nowhere.

use super::*;

fn sent(pair: &mut Pair, count: u8) -> Vec<Vec<u8>> {
    (0..count).for_each(|i| pair.send(0, &[i; 8]).unwrap());
    pair.poll(0);
    let frames = pair.intercept(1);
    assert_eq!(frames.len(), count as usize, "one frame each");
    frames
}

fn expected(count: u8) -> Vec<Vec<u8>> {
    (0..count).map(|i| vec![i; 8]).collect()
}

/// L-4: slots are delivered once and in order, in whatever order their frames come.
#[test]
fn order_is_restored() {
    let mut pair = Pair::connected();
    let mut frames = sent(&mut pair, 6);
    frames.reverse();
    for frame in frames {
        assert!(pair.take(1).is_empty(), "nothing is delivered before the first slot");
        pair.inject(1, [frame]);
        pair.poll(1);
    }
    assert_eq!(pair.take_short(1), expected(6));
}

/// L-3, L-4: a frame that comes again delivers nothing.
#[test]
fn repetitions_are_dropped() {
    let mut pair = Pair::connected();
    let frames = sent(&mut pair, 3);
    pair.inject(1, frames.iter().chain(&frames).cloned());
    pair.poll(1);
    pair.inject(1, frames.clone());
    pair.poll(1);
    assert_eq!(pair.take_short(1), expected(3));
    assert_eq!(pair.counters(1).links.replayed, 6);
}

/// L-9: what is lost is sent again, and the gap holds back only what comes after it.
#[test]
fn a_lost_frame_is_sent_again() {
    let mut pair = Pair::connected();
    let mut frames = sent(&mut pair, 5);
    frames.remove(2);
    pair.inject(1, frames);
    pair.poll(1);
    assert_eq!(pair.take_short(1), expected(2));
    pair.settle();
    assert_eq!(pair.take_short(1), (2..5).map(|i| vec![i; 8]).collect::<Vec<_>>());
    assert!(pair.counters(0).links.slots_resent >= 1);
}

/// L-19: a slot that does not fit the path any more comes in fragments, in any order, and is one slot again.
#[test]
fn fragments_make_a_slot() {
    let mut pair = Pair::connected();
    let long = vec![5; 1_300];
    pair.send(0, &long).unwrap();
    drop(pair.intercept(1));
    let route = RouteId(address(1).port().into());
    let narrow = DeviceEvent::PathLimit { route, max_frame: 600 };
    pair.events[0].lock().unwrap().push_back(narrow);
    let mut fragments = Vec::new();
    for _ in 0..100 {
        pair.now += 5_000_000;
        pair.poll(0);
        fragments.extend(pair.intercept(1));
        if fragments.len() >= 3 {
            break;
        }
    }
    assert!(fragments.iter().all(|frame| frame.len() <= 600));
    fragments.reverse();
    pair.inject(1, fragments);
    pair.settle();
    assert_eq!(pair.take_short(1), [long]);
}

/// L-37: however many slots ahead wait for their fragments, there is room for those of the slot that is due.
#[test]
fn slots_ahead_do_not_starve_the_one_that_is_due() {
    let mut pair = Pair::connected();
    let now = pair.now;
    let link = &mut pair.lanes[1].peers.member_mut(0).channel.link;
    let due = link.link().unwrap().next_expected();
    for round in 0..3 {
        for ahead in 1..200 {
            let complete = link.add_fragment(now, (due.ahead(round + ahead), 0, 1_000), &[1; 250]);
            assert!(complete.is_none());
        }
        let due = due.ahead(round);
        assert!(link.add_fragment(now, (due, 500, 1_000), &[1; 500]).is_none());
        let (arrival, bytes) = link.add_fragment(now, (due, 0, 1_000), &[1; 500]).expect("there was no room");
        assert_eq!((arrival, bytes.len()), (tautline_link::Arrival::Next { released: 0 }, 1_000));
    }
}

/// W-1: what is no frame, and frames for ranks that are not there, are strays.
#[test]
fn strays_are_counted() {
    let mut pair = Pair::connected();
    let mut misdirected = sent(&mut pair, 1).remove(0);
    let frame = misdirected.clone();
    // The channel's low half names the rank.
    let at = misdirected.windows(4).position(|four| four == frame_channel(&frame).to_le_bytes()).unwrap();
    misdirected[at..at + 2].copy_from_slice(&77_u16.to_le_bytes());
    let before = pair.counters(1).strays;
    pair.inject(1, [misdirected, vec![], vec![0; 48], vec![0x71; 3]]);
    pair.poll(1);
    assert_eq!(pair.counters(1).strays - before, 4);
    pair.inject(1, [frame]);
    pair.poll(1);
    assert_eq!(pair.take_short(1), expected(1));
}

fn frame_channel(frame: &[u8]) -> u32 {
    tautline_wire::frame::channel_of(frame).unwrap()
}

/// L-22: a frame that was altered on the way is dropped, and the slot comes again.
#[test]
fn altered_frames_are_dropped() {
    let mut pair = Pair::connected();
    let mut frame = sent(&mut pair, 1).remove(0);
    let last = frame.len() - 1;
    frame[last] ^= 0x80;
    pair.inject(1, [frame]);
    pair.poll(1);
    assert_eq!(pair.counters(1).links.bad_tag, 1);
    assert!(pair.take(1).is_empty());
    pair.settle();
    assert_eq!(pair.take_short(1), expected(1));
}

/// W-7: authenticated nonsense ends the channel, and both sides are told.
#[test]
fn a_malformed_control_slot_ends_the_channel() {
    let mut pair = Pair::connected();
    let (peer, port) = pair.lanes[0].channel(1);
    let mut handlers = vec![0; 32];
    // A table of handlers whose entry claims more bytes than there are.
    let head = tautline_wire::record::write::handlers(&mut handlers, true, 4);
    handlers[head..head + 4].copy_from_slice(&[0, 0, 200, 0]);
    peer.channel.push_control(port, &handlers[..head + 4], false);
    pair.settle();
    let why = PeerState::Down(Down::Died(tautline_link::Death::Violation));
    assert_eq!(pair.state(1), why);
}

/// N-1: what waits for the program when another batch comes is kept in order, copied once.
#[test]
fn slots_wait_in_order() {
    let mut pair = Pair::connected();
    for i in 0..4_u8 {
        pair.send(0, &[i; 8]).unwrap();
        pair.poll(1);
    }
    assert_eq!(pair.counters(1).frames_held, 3, "all but those of the last batch were copied");
    assert_eq!(pair.take_short(1), expected(4));
}

/// The loopback channel delivers in order, leaves no more with the program than its limit, and goes on when
/// it gives back.
#[test]
fn loopback_is_bounded_and_ordered() {
    let mut pair = Pair::new();
    let lane = &mut pair.lanes[0];
    let (mut sent, mut got) = (0_u32, Vec::new());
    for round in 0..3 {
        while let Ok(handler) = lane.handler(1, 0, pair.short, 4) {
            let (me, port) = lane.channel(0);
            if me.channel.write_short(port, handler, &sent.to_le_bytes()).is_err() {
                break;
            }
            lane.send_now(1, 0);
            sent += 1;
        }
        let before = lane.activity();
        lane.poll(2 + round);
        assert_ne!(lane.activity(), before, "room on the loopback channel counts as activity");
        let mut delivery = Delivery::default();
        lane.take_ready(usize::MAX, &mut delivery);
        assert!(delivery.items().len() <= lane.config.link.credit_slots as usize);
        for item in 0..delivery.items().len() {
            let slot = delivery.bytes(item);
            for record in tautline_wire::record::Records::new(slot, 0) {
                let Ok(tautline_wire::record::Record::Short { data, .. }) = record else { panic!() };
                got.push(u32::from_le_bytes(data.try_into().unwrap()));
            }
        }
        let count = delivery.items().len();
        lane.give_back(&mut delivery, count);
    }
    assert!(sent > 256 && got.len() > 256);
    assert!(got.iter().copied().eq(0..got.len() as u32));
}
