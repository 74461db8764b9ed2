//! Tampered frames: none is accepted, and none makes the link drop authentic frames.
//!
//! `TAUTLINE_MUTATIONS=100000000 cargo test --release -p tautline-link --test pair tampered_frames` is the
//! long run.

use std::collections::HashSet;

use tautline_link::Config;
use tautline_wire::handshake::Security;
use tautline_wire::layout;

use crate::world::{Load, MICRO, MILLI, Rng, SECOND, World};

const DEFAULT: u64 = 200_000;
const CHANNEL: std::ops::Range<usize> = 4..8;
const PACKET: std::ops::Range<usize> = 8..16;
const TAG: std::ops::Range<usize> = 40..48;

/// What an attacker has captured: frames that the receiver has not got yet, frames of an earlier epoch, and
/// frames of the receiver.
struct Captured {
    fresh: Vec<Vec<u8>>,
    old: Vec<Vec<u8>>,
    reflected: Vec<Vec<u8>>,
}

/// Opens a link and captures its frames from side 0 to side 1: small and large slots, fragments, selective
/// acknowledgements, requests for acknowledgements.
fn capture_frames(seed: u64, security: Security) -> (World, Captured) {
    let config = Config::with(|config| (config.security, config.silence) = (security, 100 * SECOND));
    let mut world = World::open(seed, &config);
    world.pipes[0].tap = Some(Vec::new());
    world.sides[0].load.left = 50;
    world.run(10 * MILLI);
    let old = world.pipes[0].tap.take().unwrap();

    world.restart(0);
    world.sides[0].connect(world.now);
    assert!(world.run_until_true(SECOND, World::is_open));
    world.pipes[1].tap = Some(Vec::new());
    world.sides[1].load.left = 60;
    let mut count = 0;
    world.pipes[1].filter = Some(Box::new(move |_| {
        count += 1;
        count % 7 == 3
    }));
    world.run(60 * MICRO);
    world.pipes[0].faults.cut = true;
    world.pipes[0].tap = Some(Vec::new());
    for len in [1, 8, 64, 300, 1400] {
        world.sides[0].load = Load { left: 20, queue: 500, len };
        world.run(200 * MICRO);
    }
    let now = world.now;
    world.sides[0].peering.set_path_limit(now, 1232);
    world.run(20 * MILLI);
    let fresh = world.pipes[0].tap.take().unwrap();
    let reflected = world.pipes[1].tap.take().unwrap();
    assert!(fresh.len() > 100 && old.len() > 40 && reflected.len() > 20);
    (world, Captured { fresh, old, reflected })
}

fn pick<'a>(rng: &mut Rng, frames: &'a [Vec<u8>]) -> &'a [u8] {
    &frames[rng.below(frames.len() as u64) as usize]
}

/// Writes a mutated frame to `out`.
fn mutate(rng: &mut Rng, captured: &Captured, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(pick(rng, &captured.fresh));
    let len = out.len() as u64;
    match rng.below(15) {
        0 => flip(out, rng.below(len * 8)),
        1 => (0..2 + rng.below(7)).for_each(|_| flip(out, rng.below(len * 8))),
        2 => out.truncate(rng.below(len) as usize),
        3 => (0..1 + rng.below(64)).for_each(|_| out.push(rng.next() as u8)),
        4 => splice(rng, captured, out),
        5 => swap_fields(rng, out),
        6 => change_packet_number(rng, out),
        7 => swap_words(rng, out),
        8 => keep_checksum(rng, out),
        9 => keep_crc(rng, out),
        10 => replace(rng, out, &captured.old),
        11 => replace(rng, out, &captured.reflected),
        12 => {
            let tag: [u8; 8] = pick(rng, &captured.fresh)[TAG].try_into().expect("the range has eight bytes");
            out[TAG].copy_from_slice(&tag);
        }
        13 => {
            let at = 16 + rng.below(len - 16) as usize;
            out[at..].iter_mut().for_each(|b| *b = rng.next() as u8);
        }
        _ => {
            let cut = rng.below(len) as usize;
            out.drain(cut..(cut + 1 + rng.below(8) as usize).min(len as usize));
        }
    }
}

fn flip(out: &mut [u8], bit: u64) {
    out[(bit / 8) as usize] ^= 1 << (bit % 8);
}

fn splice(rng: &mut Rng, captured: &Captured, out: &mut Vec<u8>) {
    let other = pick(rng, &captured.fresh);
    let at = [48, rng.below(out.len().min(other.len()) as u64) as usize][rng.below(2) as usize];
    out.truncate(at);
    out.extend_from_slice(&other[at.min(other.len())..]);
}

fn swap_fields(rng: &mut Rng, out: &mut [u8]) {
    let fields = layout("frame").expect("a known layout");
    let a = fields[rng.below(fields.len() as u64) as usize];
    let same: Vec<_> = fields.iter().filter(|f| f.size == a.size && f.at != a.at).collect();
    if let Some(b) = same.get(rng.below(same.len() as u64) as usize) {
        (0..a.size).for_each(|i| out.swap(a.at + i, b.at + i));
    }
}

/// Changes the packet number, by little or much, also to that of another sealing key.
fn change_packet_number(rng: &mut Rng, out: &mut [u8]) {
    let packet = u64::from_le_bytes(out[PACKET].try_into().expect("the range has eight bytes"));
    let moved = match rng.below(4) {
        0 => packet.wrapping_add(1 + rng.below(5000)),
        1 => packet.wrapping_sub(1 + rng.below(50)),
        2 => packet ^ 1 << rng.below(64),
        _ => packet + ((1 + rng.below(3)) << 22),
    };
    out[PACKET].copy_from_slice(&moved.to_le_bytes());
}

/// Swaps two 16-bit words: sums over words do not change.
fn swap_words(rng: &mut Rng, out: &mut [u8]) {
    let words = out.len() as u64 / 2;
    let (a, b) = (2 * rng.below(words) as usize, 2 * rng.below(words) as usize);
    (0..2).for_each(|i| out.swap(a + i, b + i));
}

/// Adds to one word what it subtracts from another: the internet checksum does not change.
fn keep_checksum(rng: &mut Rng, out: &mut [u8]) {
    let words = out.len() as u64 / 2;
    let (a, b) = (2 * rng.below(words) as usize, 2 * rng.below(words) as usize);
    let read = |out: &[u8], at: usize| u16::from_be_bytes([out[at], out[at + 1]]);
    let (x, y) = (read(out, a), read(out, b));
    let most = x.min(u16::MAX - y);
    if most > 0 && a != b {
        let by = 1 + rng.below(u64::from(most)) as u16;
        out[a..a + 2].copy_from_slice(&(x - by).to_be_bytes());
        out[b..b + 2].copy_from_slice(&(y + by).to_be_bytes());
    }
}

/// Adds a multiple of the polynomial of CRC-32 or CRC-32C: that checksum does not change.
fn keep_crc(rng: &mut Rng, out: &mut [u8]) {
    let poly: u64 = [0x1_04c1_1db7, 0x1_1edc_6f41][rng.below(2) as usize];
    let start = rng.below(out.len() as u64 * 8 - 32);
    (0..33).filter(|i| poly >> (32 - i) & 1 == 1).for_each(|i| flip(out, start + i));
}

/// Replaces the frame by one of an earlier epoch, or of the receiver, with the current channel number and
/// perhaps a new packet number.
fn replace(rng: &mut Rng, out: &mut Vec<u8>, frames: &[Vec<u8>]) {
    let channel: [u8; 4] = out[CHANNEL].try_into().expect("the range has four bytes");
    let packet: [u8; 8] = out[PACKET].try_into().expect("the range has eight bytes");
    out.clear();
    out.extend_from_slice(pick(rng, frames));
    out[CHANNEL].copy_from_slice(&channel);
    if rng.below(2) == 0 {
        out[PACKET].copy_from_slice(&packet);
    }
}

/// Attacks with `count` mutated frames; returns how many the link refused.
fn attack(seed: u64, security: Security, count: u64) -> u64 {
    let (mut world, captured) = capture_frames(seed, security);
    let mut rng = Rng(seed);
    let now = world.now;
    let accepted = world.link(1).counters().frames_accepted;
    let mut out = Vec::new();
    let mut sent = Vec::new();
    let (mut done, mut in_trains) = (0, 0);
    let known: HashSet<&[u8]> = captured.fresh.iter().map(Vec::as_slice).collect();
    while done < count {
        mutate(&mut rng, &captured, &mut out);
        if known.contains(out.as_slice()) {
            // The mutation had no effect.
            continue;
        }
        sent.clone_from(&out);
        // L-33: half of them as the first frame of a train.
        let like = |frame: &&[u8]| done % 2 == 0 && frame.len() == out.len();
        let behind = captured.fresh.iter().map(Vec::as_slice).filter(like);
        let tags = world.link(1).train_tags([out.as_slice()].into_iter().chain(behind));
        in_trains += u64::from(tags.is_some());
        let frame = tags.as_ref().map(|tags| (tags, 0));
        let result = world.link(1).handle_frame_of_train(now, &mut out, frame);
        assert!(result.is_err(), "accepted after {done}, {security:?}, seed {seed}: {sent:02x?}");
        done += 1;
    }
    assert_eq!(in_trains > 0, world.link(1).tags_trains(), "{in_trains} in trains");
    // Authentic frames are still accepted.
    assert_eq!(world.link(1).counters().frames_accepted, accepted);
    for (at, frame) in captured.fresh.iter().enumerate() {
        let tags = world.link(1).train_tags(captured.fresh[at..].iter().map(Vec::as_slice));
        let mut frame = frame.clone();
        let of_train = tags.as_ref().map(|tags| (tags, 0));
        assert!(
            world.link(1).handle_frame_of_train(now, &mut frame, of_train).is_ok(),
            "{security:?}: an authentic frame was dropped"
        );
    }
    done
}

/// L-3, L-22, L-23: no mutated frame is accepted, even if checksums without a key would not detect it.
#[test]
fn mutated_frames_are_dropped() {
    let count = tautline_skips::number("TAUTLINE_MUTATIONS", DEFAULT);
    let seed = tautline_skips::number(tautline_skips::SEED, 0);
    let run =
        |base, security| std::thread::spawn(move || attack(base + (seed << 16), security, count.div_ceil(2)));
    let threads = [run(1_000, Security::Fabric), run(2_000, Security::Sealed)];
    for thread in threads {
        tautline_skips::did(thread.join().expect("no mutated frame is accepted"));
    }
}
