//! Handshake frames that are sent again by somebody else, at any time and to anybody, change nothing.

use tautline_link::{ChannelIds, Config, HandshakeOutcome, Peering};
use tautline_wire::Handshake;
use tautline_wire::frame::Kind;
use tautline_wire::handshake::RefuseReason;

use crate::network_faults::MODES;
use crate::world::{MICRO, MILLI, Nanos, Pipe, Rng, SECOND, World, params};

fn is_handshake(frame: &[u8]) -> bool {
    !matches!(Kind::of(frame), Ok(Kind::Data | Kind::Close))
}

/// Opens channels between three incarnations of both sides, whichever side connects. Returns a world of fresh
/// incarnations, and the handshake frames that each side has sent so far.
fn recorded(seed: u64) -> (World, [Vec<Vec<u8>>; 2]) {
    let mut world = World::new(seed, &Config::default());
    world.pipes.iter_mut().for_each(|p| p.tap = Some(Vec::new()));
    for round in 0..3 {
        world.sides[round % 2].connect(world.now);
        assert!(world.run_until_true(SECOND, World::is_open));
        world.restart(0);
        world.restart(1);
    }
    let mut frames = world.pipes.each_mut().map(|p| p.tap.take().unwrap());
    frames.iter_mut().for_each(|frames| frames.retain(|frame| is_handshake(frame)));
    world.pipes.iter_mut().for_each(Pipe::clear);
    (world, frames)
}

/// H-14: one old hello, sent again and again, keeps nobody out who connects to its sender.
#[test]
fn a_replayed_hello_keeps_nobody_out() {
    let (mut world, frames) = recorded(1);
    let old = frames[0].iter().find(|frame| Kind::of(frame) == Ok(Kind::Hello)).unwrap().clone();
    world.sides[1].connect(world.now);
    for _ in 0..6 {
        world.deliver(1, old.clone());
        world.run(660 * MILLI);
    }
    assert!(world.is_open(), "{}", world.report());
    assert!(world.deaths().is_empty());
}

/// H-14: an old hello that arrives while another is being answered does not take its place.
#[test]
fn a_replayed_hello_displaces_no_other() {
    let (mut world, frames) = recorded(2);
    let old: Vec<_> = frames[0].iter().filter(|frame| Kind::of(frame) == Ok(Kind::Hello)).cloned().collect();
    world.sides[0].connect(world.now);
    for step in 0..1000 {
        world.deliver(1, old[step % old.len()].clone());
        world.run(10 * MICRO);
    }
    assert!(world.is_open(), "{}", world.report());
    assert!(world.deaths().is_empty());
}

/// How long it takes until the channel is open, while handshake frames are replayed by chance.
fn opening_time(seed: u64, replays: bool) -> Nanos {
    let (mut world, mut frames) = recorded(seed);
    let mut rng = Rng(seed);
    let start = world.now;
    let (first, later) = (rng.below(2) as usize, rng.below(200) * MICRO);
    world.pipes.iter_mut().for_each(|p| p.tap = Some(Vec::new()));
    world.sides[first].connect(start);
    let mut connected = rng.below(2) == 0;
    let mut opened = None;
    for _ in 0..2_000 {
        if !connected && world.now >= start + later {
            world.sides[1 - first].connect(world.now);
            connected = true;
        }
        let end = world.now + 5 * MICRO;
        if world.run_until_true(5 * MICRO, World::is_open) {
            opened.get_or_insert(world.now - start);
        }
        world.now = end;
        for from in 0..2 {
            // Frames of this handshake can be replayed, too.
            let recent = world.pipes[from].tap.as_mut().map(std::mem::take).unwrap_or_default();
            frames[from].extend(recent.into_iter().filter(|frame| is_handshake(frame)));
            if replays && rng.below(2) == 0 {
                let frame = frames[from][rng.below(frames[from].len() as u64) as usize].clone();
                world.deliver(1 - from, frame);
            }
        }
    }
    assert!(world.deaths().is_empty(), "seed {seed}: {:?}", world.deaths());
    opened.unwrap_or_else(|| panic!("seed {seed}: not open after {} ms\n{}", 10, world.report()))
}

/// H-14: whatever handshake frames are replayed, to the lower rank or the higher one, of former incarnations
/// or of this one: a channel opens, and as soon as without them.
#[test]
fn replays_delay_no_handshake() {
    for seed in 0..200 {
        assert!(opening_time(seed, true) <= opening_time(seed, false), "seed {seed}");
    }
}

/// H-12, H-14: a hello that brought its cookie, but lost to that of the lower rank, is of no use later.
#[test]
fn an_ignored_hello_is_used_up() {
    let mut world = World::new(5, &Config::default());
    let now = world.now;
    let ids = |epoch| ChannelIds { epoch, channel: epoch as u32 };
    world.sides[1].connect(now);
    let first = world.sides[1].peering.poll_hello(now).unwrap();
    world.deliver(0, first.to_vec());
    let retry = world.pipes[0].pop(now + SECOND).unwrap();
    world.sides[0].connect(now);
    world.deliver(1, retry);
    let proven = Handshake::parse(&world.sides[1].peering.poll_hello(now).unwrap()).unwrap();
    let outcome = world.sides[0].peering.handle_handshake(now, &proven, ids(3));
    assert!(matches!(outcome, HandshakeOutcome::Ignored), "{outcome:?}");
    assert!(world.run_until_true(SECOND, World::is_open));
    let outcome = world.sides[0].peering.handle_handshake(world.now, &proven, ids(4));
    assert!(matches!(outcome, HandshakeOutcome::Reply(_)), "{outcome:?}");
}

/// H-15: retries that are replayed make nobody send more than a few hellos.
#[test]
fn replayed_retries_prompt_few_hellos() {
    let mut world = World::new(4, &Config::default());
    let now = world.now;
    world.sides[0].connect(now);
    let first = &mut world.sides[0].peering;
    let mut hellos = 0;
    let mut retries = Vec::new();
    for epoch in 0..100 {
        if let Some(frame) = first.poll_hello(now) {
            hellos += 1;
            // Two incarnations of the peer ask for different cookies.
            let mut peer = Peering::new(params(1, 1472), Config::default());
            let hello = Handshake::parse(&frame).unwrap();
            let outcome = peer.handle_handshake(now, &hello, ChannelIds { epoch: 1 + epoch, channel: 1 });
            let HandshakeOutcome::Reply(retry) = outcome else { panic!("{outcome:?}") };
            retries.push(Handshake::parse(&retry).unwrap());
        }
        for retry in &retries {
            first.handle_handshake(now, retry, ChannelIds { epoch: 500, channel: 1 });
        }
    }
    assert_eq!(hellos, 1 + 8);
}

/// H-5: a rank that gets a hello for another one answers in its own name, which ends nothing.
#[test]
fn a_hello_copied_to_a_third_rank_is_not_refused_by_the_second() {
    let mut world = World::new(3, &Config::default());
    let now = world.now;
    world.sides[0].connect(now);
    let frame = world.sides[0].peering.poll_hello(now).unwrap();
    let hello = Handshake::parse(&frame).unwrap();
    let mut third = params(1, 1472);
    third.me = 2;
    let mut third = Peering::new(third, Config::default());
    let ids = ChannelIds { epoch: 9, channel: 9 };
    assert!(third.is_authentic(&frame, &hello));
    let outcome = third.handle_handshake(now, &hello, ids);
    let HandshakeOutcome::Reply(refusal) = outcome else { panic!("{outcome:?}") };
    let refuse = Handshake::parse(&refusal).unwrap();
    assert_eq!((refuse.from, refuse.to, refuse.reason), (2, 0, Some(RefuseReason::WrongRank)));

    // Neither this one nor any that names another sender or receiver ends the attempt.
    let first = &mut world.sides[0].peering;
    assert!(!first.is_authentic(&refusal, &refuse));
    let good = Handshake { from: 1, to: 0, from_lane: 0, to_lane: 0, ..refuse };
    for stray in [refuse, Handshake { to: 2, ..good }, Handshake { from_lane: 1, ..good }] {
        assert!(matches!(first.handle_handshake(now, &stray, ids), HandshakeOutcome::Ignored));
        assert!(first.is_connecting());
    }
    // The second is only late.
    world.deliver(0, refusal.to_vec());
    assert!(world.run_until_true(SECOND, World::is_open));
}

/// H-5: a lane that gets a hello for another lane of its rank answers in its own name, too.
#[test]
fn a_hello_copied_to_another_lane_is_not_refused_by_the_first() {
    let mut world = World::new(3, &Config::default());
    let now = world.now;
    world.sides[0].connect(now);
    let hello = Handshake::parse(&world.sides[0].peering.poll_hello(now).unwrap()).unwrap();
    let mut lane = params(1, 1472);
    lane.lane = 3;
    let mut lane = Peering::new(lane, Config::default());
    let ids = ChannelIds { epoch: 9, channel: 9 };
    let outcome = lane.handle_handshake(now, &hello, ids);
    let HandshakeOutcome::Reply(refusal) = outcome else { panic!("{outcome:?}") };
    let refuse = Handshake::parse(&refusal).unwrap();
    assert_eq!((refuse.from, refuse.from_lane, refuse.reason), (1, 3, Some(RefuseReason::NoLane)));
    world.deliver(0, refusal.to_vec());
    assert!(world.sides[0].peering.is_connecting());
}

/// L-3, L-15: frames of a channel that somebody records and sends again are dropped and counted. They do not
/// keep a dead peer alive, and change nothing while it lives.
#[test]
fn replayed_frames_keep_no_dead_peer_alive() {
    for security in MODES {
        let config = Config::with(|config| config.security = security);
        let mut world = World::open(7, &config);
        world.pipes[1].tap = Some(Vec::new());
        world.sides.iter_mut().for_each(|side| side.load.left = 300);
        assert!(world.run_until_true(SECOND, World::is_settled), "{}", world.report());
        world.run(SECOND);
        let mut frames = world.pipes[1].tap.take().unwrap();
        frames.retain(|frame| !is_handshake(frame));
        let before = *world.link(0).counters();
        for frame in &frames {
            world.deliver(0, frame.clone());
        }
        let after = *world.link(0).counters();
        let replayed = after.replayed - before.replayed;
        assert!(frames.len() > 100 && replayed == frames.len() as u64, "{replayed} of {}", frames.len());
        assert_eq!(after.frames_accepted, before.frames_accepted);

        world.pipes.iter_mut().for_each(|pipe| pipe.faults.cut = true);
        world.pipes.iter_mut().for_each(Pipe::clear);
        let cut = world.now;
        let mut again = frames.iter().cycle();
        while world.deaths().len() < 2 {
            assert!(world.now < cut + 2 * config.silence, "{}\n{}", security.name(), world.report());
            world.deliver(0, again.next().unwrap().clone());
            world.run(10 * MILLI);
        }
    }
}
