//! Channels over AF_XDP between two network namespaces while hostile frames arrive, and while links flap.
//! Both nodes publish what they count, so that the tests know what became of each frame.
#![allow(clippy::print_stdout)]

#[path = "../../device/tests/forge/mod.rs"]
mod forge;
#[path = "../../device/tests/spaces/mod.rs"]
mod spaces;

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use spaces::{Shape, Spaces, ip, spaces};
use tautline::node::link::JobKey;
use tautline::{Config, DeviceName, Endpoint, Event, Job, Member, Short};

/// Where a handshake frame names its job (H-10).
const JOB_RANGE: std::ops::Range<usize> = 16..24;
const PATIENCE: Duration = Duration::from_secs(20);
/// Hostile frames that are sent before they must have been counted: few, so that the kernel has room.
const AT_ONCE: u64 = 8;

fn key() -> JobKey {
    JobKey::new([9; 32])
}

fn address(spaces: &Spaces, side: usize) -> SocketAddr {
    SocketAddr::new(spaces.addr(side, false), 7_300)
}

/// The content of the message with a number; its size varies up to most of a frame.
fn message(number: u64) -> Vec<u8> {
    let len = 8 + (number * 37 % 1_000) as usize;
    let mut bytes: Vec<u8> = (0..len).map(|i| (i as u64 * 31 + number * 7) as u8).collect();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// What a node counts, published after each of its turns.
#[derive(Debug, Default)]
struct Published {
    sent: AtomicU64,
    resent: AtomicU64,
    accepted: AtomicU64,
    /// Frames that the device or the node refused, for whatever reason.
    refused: AtomicU64,
    overflows: AtomicU64,
    /// Messages sent by rank 0, received by rank 1.
    messages: AtomicU64,
}

impl Published {
    fn publish(&self, ep: &Endpoint, messages: u64) {
        let all = ep.counters();
        let (links, device) = (all.links, all.device);
        let node = [all.strays, all.stale, all.forged_handshakes, all.retries, all.hellos_dropped];
        let link = [links.bad_tag, links.replayed, links.malformed];
        let refused = device.frames_refused + node.iter().chain(&link).sum::<u64>();
        let put = |to: &AtomicU64, value| to.store(value, Ordering::Release);
        put(&self.sent, links.frames_sent);
        put(&self.resent, links.slots_resent);
        put(&self.accepted, links.frames_accepted);
        put(&self.refused, refused);
        put(&self.overflows, device.receive_overflows);
        put(&self.messages, messages);
    }
}

#[derive(Debug, Default)]
struct World {
    nodes: [Published; 2],
    /// Rank 0 is to send no messages.
    paused: AtomicBool,
    /// It has obeyed, and published what it had sent.
    rests: AtomicBool,
    over: AtomicBool,
}

impl World {
    fn sent(&self) -> u64 {
        self.nodes[0].sent.load(Ordering::Acquire)
    }

    fn resent(&self) -> u64 {
        self.nodes[0].resent.load(Ordering::Acquire)
    }

    fn refused(&self) -> u64 {
        self.nodes[1].refused.load(Ordering::Acquire)
    }

    fn received(&self) -> u64 {
        self.nodes[1].messages.load(Ordering::Acquire)
    }

    /// How many frames of rank 0 rank 1 has not accepted. Negative if it accepted others.
    fn missing(&self) -> i64 {
        // Read first: what is accepted later was sent before.
        let accepted = self.nodes[1].accepted.load(Ordering::Acquire);
        self.sent() as i64 - accepted as i64
    }

    fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Release);
    }

    #[track_caller]
    fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !condition() {
            assert!(Instant::now() < until, "{what}: {self:?}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Lets rank 1 receive so many more messages.
    #[track_caller]
    fn flow(&self, messages: u64) {
        let before = self.received();
        self.until("messages flow", || self.received() >= before + messages);
    }
}

/// Sends numbered messages, or checks them, until the test is over.
fn live(spaces: &Spaces, rank: u32, world: &World) {
    spaces.enter(rank as usize);
    let config = Config::with(|config| {
        config.device = Some(DeviceName::Xdp);
        // A link that flaps is no death.
        config.link.silence = 10_000_000_000;
    });
    let seen = Rc::new(Cell::new(0));
    let count = seen.clone();
    let builder = Endpoint::builder().config(config).on_short("number", move |short: Short<'_>| {
        let number = count.get();
        assert!(short.data() == message(number), "message {number}, in order and unaltered");
        count.set(number + 1);
    });
    let members = (0..2).map(|side| Member::new(address(spaces, side))).collect();
    let ep = builder.join_job(Job::new(rank, key(), members)).unwrap();
    let mut next = 0;
    while !world.over.load(Ordering::Acquire) {
        let paused = world.paused.load(Ordering::Acquire);
        if rank == 0 && !paused {
            // Few at a time: what is under test is what becomes of the frames, not how many there are.
            let until = next + 4;
            while next < until && ep.try_send(1, "number", &message(next)).is_ok() {
                next += 1;
            }
        }
        ep.extract(usize::MAX).unwrap();
        let failure = ep.poll_failure();
        let down =
            std::iter::from_fn(|| ep.poll_event()).find(|event| matches!(event, Event::PeerDown { .. }));
        // Read last: when the test is over, the other node may leave first.
        if !world.over.load(Ordering::Acquire) {
            assert!(failure.is_none() && down.is_none(), "{failure:?} {down:?}");
        }
        world.nodes[rank as usize].publish(&ep, if rank == 0 { next } else { seen.get() });
        if rank == 0 {
            world.rests.store(paused, Ordering::Release);
        }
        ep.wait(Some(Duration::from_millis(1))).unwrap();
    }
}

/// Runs a test beside two nodes; ends them whatever becomes of it.
#[track_caller]
fn beside_nodes(test: &str, run: impl FnOnce(&Spaces, &World)) {
    struct Over<'a>(&'a World);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.over.store(true, Ordering::Release);
        }
    }
    let Some(spaces) = spaces(test, Shape::default()) else { return };
    let world = World::default();
    std::thread::scope(|scope| {
        let over = Over(&world);
        for rank in [1, 0] {
            let (spaces, world) = (&*spaces, &world);
            scope.spawn(move || {
                // A node that fails ends the test, too.
                let over = Over(world);
                live(spaces, rank, world);
                std::mem::forget(over);
            });
        }
        world.flow(100);
        run(&spaces, &world);
        assert!(!world.over.load(Ordering::Acquire), "a node failed");
        drop(over);
    });
    assert!(spaces.is_left_alone(), "no program is left");
}

/// The fuzzers' corpus, as far as it fits a frame.
fn corpus() -> Vec<Vec<u8>> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus");
    let kinds = ["wire_frame", "wire_handshake", "wire_ext", "wire_record", "link_pair"];
    let files = kinds.iter().flat_map(|kind| std::fs::read_dir(root.join(kind)).unwrap().flatten());
    let read = files.map(|file| std::fs::read(file.path()).unwrap());
    let mut all: Vec<_> = read.filter(|bytes| !bytes.is_empty() && bytes.len() <= 1_400).collect();
    all.sort();
    // The same with the first byte of each kind, so that the steering program accepts them as frames; and
    // long enough for any kind.
    for kind in 0x71..=0x76 {
        let shaped: Vec<_> = all.iter().filter(|bytes| bytes.len() < 1_200).take(60).cloned().collect();
        all.extend(shaped.into_iter().map(|mut bytes| {
            bytes[0] = kind;
            bytes.resize(bytes.len().max(112 + usize::from(kind)), 0x5a);
            if (0x72..=0x75).contains(&kind) {
                bytes[JOB_RANGE].copy_from_slice(&key().job_id().to_le_bytes());
            }
            bytes
        }));
    }
    all
}

/// The hostile frames for rank 1: the corpus with the address of the peer, of a stranger and of the receiver,
/// with wrong checksums, and truncated. A device or a node must count each of them.
fn hostile_frames(spaces: &Spaces) -> Vec<Vec<u8>> {
    let stranger: SocketAddr = "10.211.9.77:7300".parse().unwrap();
    let (from, to) = (address(spaces, 0), address(spaces, 1));
    let mut frames = Vec::new();
    for payload in corpus() {
        let good = forge::frame_by_hand(from, to, &payload);
        frames.push(good.clone());
        frames.push(forge::frame_by_hand(stranger, to, &payload));
        let names_us = payload.get(JOB_RANGE) == Some(&key().job_id().to_le_bytes()[..]);
        if !matches!((payload[0], names_us), (0x71 | 0x76, _) | (0x72..=0x75, true)) {
            // Bytes that are no frame of our job go to the kernel, which would count these itself (D-31).
            continue;
        }
        frames.push(forge::frame_by_hand(to, to, &payload));
        frames.push(good[..good.len() - 1].to_vec());
        for at in [40, good.len() - 1] {
            let mut wrong = good.clone();
            wrong[at] ^= 0x55;
            frames.push(wrong);
        }
    }
    frames
}

/// D-14, D-17: hostile frames from a raw socket on the peer's side, between bursts of messages. Each of them
/// is counted as refused, once; none is accepted; and no message is harmed.
#[test]
fn hostile_frames_are_refused_and_counted() {
    beside_nodes("hostile_frames_are_refused_and_counted", |spaces, world| {
        spaces.enter(0);
        let socket = forge::raw_socket("v0");
        let frames = hostile_frames(spaces);
        assert!(frames.len() > 1_000, "{} frames", frames.len());
        // Frames of the handshake may have been too many.
        world.pause(true);
        world.until("every frame of the peer is accepted", || world.missing() == 0);
        let before = world.refused();
        let mut injected = before;
        for burst in frames.chunks(frames.len() / 10 + 1) {
            world.pause(true);
            world.until("every frame of the peer is accepted", || world.missing() == 0);
            for few in burst.chunks(AT_ONCE as usize) {
                for frame in few {
                    rustix::net::send(&socket, frame, rustix::net::SendFlags::empty()).unwrap();
                    injected += 1;
                }
                world.until(&format!("{injected} frames are counted, the last {few:02x?}"), || {
                    assert!(world.refused() <= injected, "{injected} frames: {world:?}");
                    world.refused() == injected
                });
            }
            world.until("no other frame was accepted", || world.missing() == 0);
            world.pause(false);
            world.flow(200);
        }
        assert_eq!(world.refused(), injected, "nothing else is refused");
        println!("{} injected and refused; {} messages", injected - before, world.received());
    });
}

/// D-13: a link that goes down and up under load loses frames, and no message; and reorders none.
#[test]
fn the_link_flaps_under_load() {
    beside_nodes("the_link_flaps_under_load", |spaces, world| {
        let mut lost = 0;
        for side in [1, 0, 1, 0] {
            world.pause(false);
            world.flow(200);
            let resent = world.resent();
            ip(&format!("-n {} link set v0 down", spaces.names[side])).unwrap();
            let down = world.sent();
            // What is sent now is lost.
            world.until("frames are sent while the link is down", || world.sent() >= down + 5);
            ip(&format!("-n {} link set v0 up", spaces.names[side])).unwrap();
            spaces.acquaint().unwrap();
            world.flow(200);
            assert!(world.resent() > resent, "nothing had to be sent again: {world:?}");
            world.pause(true);
            world.until("rank 0 rests", || world.rests.load(Ordering::Acquire));
            let messages = world.nodes[0].messages.load(Ordering::Acquire);
            world.until("every message arrives", || world.received() == messages);
            // What else is under way arrives meanwhile; what was lost never does.
            let missing = (0..50).map(|_| {
                std::thread::sleep(Duration::from_millis(5));
                world.missing()
            });
            let missing = missing.min().unwrap();
            assert!(missing > lost, "side {side}: {missing} frames are missing after {lost}");
            println!("side {side}: {} frames lost, {} sent again", missing - lost, world.resent() - resent);
            lost = missing;
        }
    });
}
