//! Opening channels: lost frames, simultaneous hellos, refusals, restarts, replays.

use tautline_link::{ChannelIds, Config, Death, HandshakeOutcome, JobKey, Peering, PeeringParams};
use tautline_wire::frame::Kind;
use tautline_wire::handshake::{HANDSHAKE_LEN, RefuseReason, Security};
use tautline_wire::{Handshake, VERSION};

use crate::network_faults::MODES;
use crate::world::{Faults, MICRO, MILLI, Rng, SECOND, World, params};

/// Drops the first `count` frames of a kind.
fn drop_first(world: &mut World, pipe: usize, kind: Kind, count: u32) {
    let mut left = count;
    world.pipes[pipe].filter = Some(Box::new(move |frame| {
        let hit = left > 0 && Kind::of(frame) == Ok(kind);
        left -= u32::from(hit);
        hit
    }));
}

/// A hello that brings the cookie that the other side asked for (H-12).
fn hello(world: &mut World, side: usize) -> Handshake {
    let now = world.now;
    world.sides[side].connect(now);
    let poll = |world: &mut World| {
        let frame = world.sides[side].peering.poll_hello(now).expect("a hello is due");
        Handshake::parse(&frame).unwrap()
    };
    let (first, ids) = (poll(world), ChannelIds { epoch: 77, channel: 7 });
    let outcome = world.sides[1 - side].peering.handle_handshake(now, &first, ids);
    let HandshakeOutcome::Reply(retry) = outcome else { panic!("{outcome:?}") };
    world.sides[side].peering.handle_handshake(now, &Handshake::parse(&retry).unwrap(), ids);
    poll(world)
}

/// H-6, H-9: the channel opens once, whichever frame of the handshake is lost, and how often.
#[test]
fn handshake_survives_lost_frames() {
    for (pipe, kind) in [(0, Kind::Hello), (1, Kind::Welcome), (0, Kind::Data), (1, Kind::Data)] {
        for count in 1..4 {
            let mut world = World::new(7, &Config::default());
            drop_first(&mut world, pipe, kind, count);
            world.sides[0].load.left = 10;
            world.sides[1].load.left = 10;
            world.sides[0].connect(world.now);
            let open = world.run_until_true(SECOND / 2, |w| w.is_open() && w.is_settled());
            assert!(open, "{kind:?} lost {count} times\n{}", world.report());
            assert!(world.deaths().is_empty());
            assert_eq!(world.sides.each_ref().map(|s| s.streams.len()), [1, 1]);
        }
    }
}

/// H-9: a repeated hello gets the same answer, before and after the channel is live.
#[test]
fn repeated_hello_gets_the_same_answer() {
    let mut world = World::new(3, &Config::default());
    let hello = hello(&mut world, 0);
    let (now, ids) = (world.now, |n| ChannelIds { epoch: n, channel: n as u32 });
    let answer = |w: &mut World, n| match w.sides[1].peering.handle_handshake(now, &hello, ids(n)) {
        HandshakeOutcome::Welcome(reply) | HandshakeOutcome::Reply(reply) => reply,
        other => panic!("{other:?}"),
    };
    let first = answer(&mut world, 100);
    assert_eq!(answer(&mut world, 101), first);
    world.deliver(0, first.to_vec());
    assert!(world.run_until_true(SECOND, World::is_open));
    assert_eq!(answer(&mut world, 102), first);
    assert!(world.deaths().is_empty());
}

/// H-11: if both sides connect at once, one channel is opened, no slot is lost, and no side counts as
/// restarted.
#[test]
fn simultaneous_open() {
    for seed in 0..1000 {
        let mut rng = Rng(seed);
        let mut world = World::new(rng.next(), &Config::default());
        for pipe in &mut world.pipes {
            let (loss, duplicate) = (rng.below(300) as u32, rng.below(300) as u32);
            let (delay, jitter) = (rng.below(15_000) * MICRO, rng.below(3) * 5 * MILLI);
            pipe.faults = Faults { loss, duplicate, delay, jitter, ..Faults::default() };
        }
        for side in &mut world.sides {
            side.load.left = 5;
        }
        let first = rng.below(2) as usize;
        world.sides[first].connect(world.now);
        world.run(rng.below(3) * rng.below(20_000) * MICRO);
        world.sides[1 - first].connect(world.now);
        let open = world.run_until_true(5 * SECOND, |w| w.is_open() && w.is_settled());
        assert!(open && world.deaths().is_empty(), "seed {seed}: {:?}\n{}", world.deaths(), world.report());
    }
}

/// H-6, H-7: a hello is answered with a retry of the same length, and a hello with its cookie is accepted.
#[test]
fn hello_with_cookie_is_accepted() {
    let mut world = World::new(5, &Config::default());
    world.pipes.iter_mut().for_each(|p| p.tap = Some(Vec::new()));
    world.sides[0].connect(world.now);
    assert!(world.run_until_true(SECOND, World::is_open));
    let kinds = |pipe: usize| -> Vec<_> {
        let handshakes = world.pipes[pipe].tap.as_ref().unwrap().iter().filter(|f| f.len() == HANDSHAKE_LEN);
        handshakes.map(|f| Kind::of(f).unwrap()).filter(|k| !matches!(k, Kind::Data)).collect()
    };
    assert_eq!(kinds(0), [Kind::Hello, Kind::Hello]);
    assert_eq!(kinds(1), [Kind::Retry, Kind::Welcome]);
}

fn refusal(world: &mut World) -> Option<RefuseReason> {
    world.sides[0].connect(world.now);
    world.run(SECOND / 10);
    world.sides[0]
        .outcomes
        .iter()
        .find_map(|o| if let HandshakeOutcome::Refused(why) = o { Some(*why) } else { None })
}

/// H-5: the initiator gets the reason of a refusal, and stops.
#[test]
fn refused_initiator_gets_the_reason() {
    let config = Config::default();
    let sealed = Config::with(|config| config.security = Security::Sealed);
    let mut world = World::with(1, [sealed, config.clone()]);
    assert_eq!(refusal(&mut world), Some(RefuseReason::Security));
    assert!(!world.sides[0].peering.is_connecting());

    // Rank 5 has the address of rank 1, or another lane that of lane 7: they answer, but not for the other.
    for change in [|p: &mut PeeringParams| p.me = 5, |p: &mut PeeringParams| p.lane = 7] {
        let mut world = World::new(1, &config);
        let mut other = params(1, 1472);
        change(&mut other);
        world.sides[1].peering = Peering::new(other, config.clone());
        assert_eq!(refusal(&mut world), None);
        assert!(world.sides[0].peering.is_connecting());
    }
}

/// H-13: a hello for another lane is told where that lane is, and goes on to be sent; the cookie that the
/// sender has proven its address with stays valid.
#[test]
fn hellos_for_another_lane_are_redirected() {
    let config = Config::default();
    let mut world = World::new(1, &config);
    let mut other = params(0, 1472);
    (other.lane, other.peer_lane, other.port) = (2, 7, 7002);
    let mut peering = Peering::new(other, config);
    peering.connect(world.now, ChannelIds { epoch: 5, channel: 1 });
    let frame = peering.poll_hello(world.now).unwrap();
    let hello = Handshake::parse(&frame).unwrap();
    assert_eq!((hello.from_lane, hello.to_lane, hello.port), (2, 7, 7002));
    let lane_0 = &mut world.sides[1].peering;
    assert!(lane_0.is_authentic(&frame, &hello));
    let retry = Handshake::parse(&lane_0.redirect(&hello, 7007)).unwrap();
    assert_eq!((retry.from_lane, retry.to_lane, retry.port), (7, 2, 7007));
    let ids = ChannelIds { epoch: 6, channel: 2 };
    let outcome = peering.handle_handshake(world.now, &retry, ids);
    assert!(matches!(outcome, HandshakeOutcome::Redirected(7007)), "{outcome:?}");
    let again = Handshake::parse(&peering.poll_hello(world.now).unwrap()).unwrap();
    assert_eq!((again.epoch, again.cookie), (hello.epoch, hello.cookie));
    // One for another attempt changes nothing.
    let stale = Handshake { peer_epoch: 4, ..retry };
    assert!(matches!(peering.handle_handshake(world.now, &stale, ids), HandshakeOutcome::Ignored));
}

/// W-2, H-4, H-5: unknown versions and required features are refused; optional features are not.
#[test]
fn unknown_versions_and_features_are_refused() {
    let reason = |change: fn(&mut Handshake)| {
        let mut world = World::new(9, &Config::default());
        let mut hello = hello(&mut world, 0);
        change(&mut hello);
        let now = world.now;
        let ids = ChannelIds { epoch: 9, channel: 9 };
        let reply = match world.sides[1].peering.handle_handshake(now, &hello, ids) {
            HandshakeOutcome::Reply(reply) | HandshakeOutcome::Welcome(reply) => reply,
            other => panic!("the hello was not answered: {other:?}"),
        };
        Handshake::parse(&reply).unwrap().reason
    };
    assert_eq!(reason(|_| ()), None);
    assert_eq!(
        reason(|h| (h.version_min, h.version_max) = (VERSION + 1, VERSION + 3)),
        Some(RefuseReason::Version)
    );
    assert_eq!(reason(|h| (h.version_min, h.version_max) = (0, VERSION + 3)), None);
    assert_eq!(reason(|h| h.features = 0x0000_ffff), None);
    assert_eq!(reason(|h| h.features = 0x8000_8000), Some(RefuseReason::Feature));
}

/// H-8: a restarted peer is accepted with a new epoch, and no side accepts a frame of the old one.
#[test]
fn restart_while_the_old_link_is_live() {
    for (security, restarted) in MODES.into_iter().flat_map(|m| [(m, 0), (m, 1)]) {
        let mut world = World::open(11, &Config::with(|config| config.security = security));
        world.pipes.iter_mut().for_each(|p| p.tap = Some(Vec::new()));
        world.sides[0].load.left = 50;
        world.sides[1].load.left = 50;
        assert!(world.run_until_true(SECOND, World::is_settled));
        let old = world.pipes.each_mut().map(|p| p.tap.take().unwrap());

        world.restart(restarted);
        world.sides[restarted].connect(world.now);
        assert!(world.run_until_true(SECOND, World::is_open), "{security:?}\n{}", world.report());
        let survivor = 1 - restarted;
        assert!(matches!(world.deaths()[..], [(side, _, Death::Restarted)] if side == survivor));

        let accepted = world.sides.each_ref().map(|s| s.peering.link().unwrap().counters().frames_accepted);
        for (from, frames) in old.into_iter().enumerate() {
            for frame in frames {
                world.deliver(1 - from, frame);
            }
        }
        let accepted_now =
            world.sides.each_ref().map(|s| s.peering.link().unwrap().counters().frames_accepted);
        assert_eq!(accepted, accepted_now, "{security:?}: a frame of the old epoch was accepted");
        world.sides[survivor].load.left = 5;
        world.run(SECOND / 10);
        assert_eq!(world.sides[survivor].streams.last().unwrap().delivered, 5);
        assert_eq!(world.deaths().len(), 1);
    }
}

/// H-8: replayed hellos of this epoch and of earlier ones do not disturb the live link.
#[test]
fn replayed_hellos_are_harmless() {
    let mut world = World::open(13, &Config::default());
    world.restart(0);
    world.pipes[0].tap = Some(Vec::new());
    world.sides[0].connect(world.now);
    assert!(world.run_until_true(SECOND, World::is_open));
    world.restart(0);
    world.sides[0].connect(world.now);
    world.run(SECOND / 100);
    assert!(world.run_until_true(SECOND, World::is_open));
    let deaths = world.deaths().len();
    let taped = world.pipes[0].tap.take().unwrap();
    let hellos: Vec<_> = taped.into_iter().filter(|f| Kind::of(f) == Ok(Kind::Hello)).collect();
    assert_eq!(hellos.len(), 4, "each hello and its repetition with a cookie");
    world.sides[0].load.left = 20_000;
    world.sides[0].load.queue = 4;
    world.sides[1].every = MILLI;
    for round in 0..200 {
        world.deliver(1, hellos[round % 4].clone());
        world.run(20 * MILLI);
    }
    assert_eq!(world.deaths().len(), deaths, "{}", world.report());
    let stream = world.sides[0].streams.last().unwrap();
    assert!(stream.delivered > 5_000, "{}", stream.delivered);
}

/// H-2, H-10: a handshake frame with any bit changed, or of another job, is neither accepted nor answered.
#[test]
fn forged_handshakes_are_dropped() {
    let mut world = World::new(17, &Config::default());
    let now = world.now;
    world.sides[0].connect(now);
    let hello = world.sides[0].peering.poll_hello(now).unwrap();
    for bit in 0..HANDSHAKE_LEN * 8 {
        let mut forged = hello.to_vec();
        forged[bit / 8] ^= 1 << (bit % 8);
        world.deliver(1, forged);
    }
    let mut stranger = params(0, 1472);
    stranger.key = JobKey::new([1; 32]);
    let mut stranger = Peering::new(stranger, Config::default());
    stranger.connect(now, ChannelIds { epoch: 5, channel: 5 });
    world.deliver(1, stranger.poll_hello(now).unwrap().to_vec());
    assert!(world.sides[1].outcomes.is_empty());
    assert!(world.pipes[1].next_arrival().is_none());
}

/// H-1, L-20: a channel opens over a path that carries less than every path is expected to.
#[test]
fn handshake_over_a_narrow_path() {
    let mut world = World::new(19, &Config::default());
    for i in 0..2 {
        let now = world.now;
        world.sides[i].peering.set_path_limit(now, 576);
    }
    world.sides[0].connect(world.now);
    assert!(world.run_until_true(SECOND, World::is_open));
}
