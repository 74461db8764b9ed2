//! What leaves, when, and in how many frames.

use super::*;

/// N-2: a message outside a batch leaves at once, in a frame of its own.
#[test]
fn a_message_leaves_at_once() {
    let mut pair = Pair::connected();
    for sent in 1..=3 {
        pair.send(0, b"now").unwrap();
        assert_eq!(pair.frames[1].lock().unwrap().len(), sent);
    }
}

/// N-2: messages of a batch share frames, and leave when the batch ends.
#[test]
fn a_batch_shares_frames() {
    let mut pair = Pair::connected();
    pair.lanes[0].port.batch_depth = 1;
    (0..20_u8).for_each(|i| pair.send(0, &[i; 8]).unwrap());
    assert!(pair.frames[1].lock().unwrap().is_empty());
    pair.lanes[0].port.batch_depth = 0;
    pair.lanes[0].end_batch(pair.now);
    assert_eq!(pair.frames[1].lock().unwrap().len(), 1);
    pair.poll(1);
    assert_eq!(pair.take_short(1), (0..20).map(|i| vec![i; 8]).collect::<Vec<_>>());
}

/// A program that waits inside a batch lets out what the batch has gathered.
#[test]
fn waiting_flushes_a_batch() {
    let mut pair = Pair::connected();
    pair.lanes[0].port.batch_depth = 2;
    pair.send(0, b"question").unwrap();
    pair.lanes[0].flush_batch(pair.now);
    assert_eq!(pair.frames[1].lock().unwrap().len(), 1);
    assert_eq!(pair.lanes[0].port.batch_depth, 2, "the batch goes on");
}

/// N-3: a peer that takes nothing holds its sender back, with would-block; room counts as activity.
#[test]
fn a_full_queue_blocks() {
    let mut pair = Pair::connected();
    let mut sent = 0_u32;
    let refused = loop {
        match pair.send(0, &[7; 1_000]) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 10_000, "nothing holds the sender back");
    };
    assert!(matches!(refused, SendError::WouldBlock), "{refused:?}");
    let seen = pair.lanes[0].activity();
    let mut taken = 0;
    for _ in 0..200 {
        pair.pass(1_000_000);
        taken += pair.take_short(1).len() as u32;
    }
    assert_eq!(taken, sent, "nothing was lost");
    assert_ne!(pair.lanes[0].activity(), seen);
    pair.send(0, b"again").unwrap();
    let (free, all) = {
        let arena = pair.lanes[0].port.device.arena_ref();
        (arena.available(), arena.capacity())
    };
    assert!(free >= all - 2, "{free} of {all} slots are free");
}

/// N-3: the second half of the arena is divided among the members, so that one that takes nothing blocks
/// nobody else.
#[test]
fn a_silent_peer_leaves_slots_to_others() {
    let mut pair = Pair::connected();
    while pair.send(0, &[7; 1_000]).is_ok() {}
    assert!(pair.lanes[0].port.may_take(Some(0)), "another peer finds a slot");
    assert!(pair.lanes[0].port.may_take(None));
}

/// W-12: a window overtakes messages that were never sent.
#[test]
fn windows_overtake_waiting_messages() {
    let mut pair = Pair::connected();
    while pair.send(0, &[7; 1_000]).is_ok() {}
    let (peer, port) = pair.lanes[0].channel(1);
    assert!(peer.channel.link.link().unwrap().unsent() > 2, "messages wait behind the congestion window");
    let before = peer.channel.link.link().unwrap().unsent();
    assert!(peer.channel.grant_window(port, 3, 1 << 20));
    assert_eq!(peer.channel.link.link().unwrap().unsent(), before + 1);
    // Its turn comes before those that waited: after one more slot at most.
    pair.poll(1);
    let in_flight = pair.take_short(1).len();
    pair.poll(0);
    pair.poll(1);
    let more = pair.take_short(1).len();
    assert!(more < before, "{in_flight} and {more} of {before} came before the window");
}

/// As an option, small messages share the next frame while earlier ones are unacknowledged.
#[test]
fn shared_frames_wait_for_company() {
    let mut pair = Pair::with(|_, config| config.share_frames = true);
    pair.connect();
    (0..10_u8).for_each(|i| pair.send(0, &[i; 8]).unwrap());
    assert_eq!(
        pair.frames[1].lock().unwrap().len(),
        1,
        "the others wait for the acknowledgement of the first"
    );
    pair.settle();
    let slots = pair.take(1);
    assert_eq!(slots.len(), 2, "one alone, nine together");
}

/// L-18, N-9: closing sends what was written first, and is over when the peer has acknowledged it.
#[test]
fn closing_delivers_first() {
    let mut pair = Pair::connected();
    pair.lanes[0].port.batch_depth = 1;
    pair.send(0, b"last").unwrap();
    pair.lanes[0].close(pair.now);
    assert!(!pair.lanes[0].is_closed());
    for _ in 0..200 {
        pair.pass(5_000_000);
    }
    assert!(pair.lanes[0].is_closed());
    assert_eq!(pair.take_short(1), [b"last".to_vec()]);
    assert_eq!(pair.state(1), PeerState::Down(Down::Closed));
    assert!(matches!(pair.send(0, b"more"), Err(SendError::Closed)));
}

/// N-9: what a peer had not acknowledged when it died, while this node closed, is reported with the reason.
#[test]
fn a_death_while_closing_is_reported() {
    let mut pair = Pair::connected();
    pair.send(0, b"last").unwrap();
    pair.frames[1].lock().unwrap().clear();
    pair.lanes[0].close(pair.now);
    assert_eq!(pair.lanes[0].undelivered(), [Undelivered::new(1, 1, 4)]);
    for _ in 0..2_000 {
        pair.now += 5_000_000;
        pair.lanes[0].poll(pair.now);
        pair.frames[1].lock().unwrap().clear();
    }
    assert!(pair.lanes[0].is_closed());
    let why = Some(Down::Died(tautline_link::Death::Silence));
    assert_eq!(pair.lanes[0].undelivered(), [Undelivered { why, ..Undelivered::new(1, 1, 4) }]);
}

/// N-24: messages to a handler that the layer above does not want reported are not.
#[test]
fn unreported_handlers_are_not_reported() {
    let mut pair = Pair::connected();
    pair.send(0, b"last").unwrap();
    pair.frames[1].lock().unwrap().clear();
    assert_eq!(pair.lanes[0].undelivered(), [Undelivered::new(1, 1, 4)]);
    let names = &mut pair.lanes[0].names;
    names.leave_unreported(names.find("short").unwrap());
    assert_eq!(pair.lanes[0].undelivered(), []);
}

/// N-30: the frames of a message leave together, also if slots were acknowledged before it; of a long one the
/// first leave in short trains, and the others in trains that become longer.
#[test]
fn frames_leave_in_trains() {
    let mut pair = Pair::connected();
    for (from, len, trains) in [(0, 4_096, vec![3]), (1, 4_096, vec![3]), (0, 4_096, vec![3])] {
        pair.trains[from].lock().unwrap().clear();
        send_long(&mut pair, from, len);
        assert_eq!(*pair.trains[from].lock().unwrap(), trains, "{len} bytes");
        pair.now += 1_000;
        pair.lanes[1 - from].poll_deferred(pair.now);
        pair.take(1 - from);
    }
    pair.settle();
    pair.trains[0].lock().unwrap().clear();
    send_long(&mut pair, 0, 60_000);
    let trains = std::mem::take(&mut *pair.trains[0].lock().unwrap());
    assert!(trains[0] <= 10, "the receiver can begin soon: {trains:?}");
    assert!(trains.is_sorted_by(|a, b| a <= b || a == trains.last().unwrap()), "{trains:?}");
    assert!(trains.len() <= 4, "{trains:?}");
    // More is on its way now: this one leaves at once.
    send_long(&mut pair, 0, 60_000);
    let trains = std::mem::take(&mut *pair.trains[0].lock().unwrap());
    assert_eq!(trains.len(), 1, "{trains:?}");
}

fn send_long(pair: &mut Pair, from: usize, len: usize) {
    let message = pair.begin(from, len as u64).unwrap();
    let bytes = vec![from as u8; len];
    assert_eq!(pair.add(from, message, 0, &bytes), len);
    pair.lanes[from].peers.member_mut(1 - from as Rank).channel.messages.end(message.number);
    pair.send_now(from);
}
