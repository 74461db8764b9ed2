//! Frames that were tampered with: none is accepted, and none leaves a trace that keeps the true frames out.
//!
//! `TAUTLINE_MUTATIONS=100000000 cargo test --release -p tautline-link --test pair mutations` is the long run.

use std::collections::HashSet;

use tautline_link::Config;
use tautline_wire::handshake::Security;
use tautline_wire::layout;

use crate::world::{Load, MICRO, MILLI, Rng, SECOND, World};

const DEFAULT: u64 = 200_000;
const CHANNEL: std::ops::Range<usize> = 4..8;
const PACKET: std::ops::Range<usize> = 8..16;
const TAG: std::ops::Range<usize> = 40..48;

/// What the enemy has seen: frames that the receiver has not got yet, and others.
struct Loot {
    fresh: Vec<Vec<u8>>,
    former: Vec<Vec<u8>>,
    reflected: Vec<Vec<u8>>,
}

/// A live pair whose frames from side 0 to side 1 are caught on their way: small and large slots, fragments, selective
/// acknowledgements, questions.
fn ambush(seed: u64, security: Security) -> (World, Loot) {
    let mut world = World::open(seed, &Config { security, silence: 100 * SECOND, ..Config::default() });
    world.pipes[0].tap = Some(Vec::new());
    world.sides[0].load.left = 50;
    world.run(10 * MILLI);
    let former = world.pipes[0].tap.take().unwrap();

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
    assert!(fresh.len() > 100 && former.len() > 40 && reflected.len() > 20);
    (world, Loot { fresh, former, reflected })
}

fn pick<'a>(rng: &mut Rng, frames: &'a [Vec<u8>]) -> &'a [u8] {
    &frames[rng.below(frames.len() as u64) as usize]
}

/// Makes a mutated frame in `out`.
fn mutate(rng: &mut Rng, loot: &Loot, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(pick(rng, &loot.fresh));
    let len = out.len() as u64;
    match rng.below(15) {
        0 => flip(out, rng.below(len * 8)),
        1 => (0..2 + rng.below(7)).for_each(|_| flip(out, rng.below(len * 8))),
        2 => out.truncate(rng.below(len) as usize),
        3 => (0..1 + rng.below(64)).for_each(|_| out.push(rng.next() as u8)),
        4 => splice(rng, loot, out),
        5 => swap_fields(rng, out),
        6 => move_packet(rng, out),
        7 => swap_words(rng, out),
        8 => shift_sum(rng, out),
        9 => checked_by_crc(rng, out),
        10 => replace(rng, out, &loot.former),
        11 => replace(rng, out, &loot.reflected),
        12 => {
            let tag: [u8; 8] = pick(rng, &loot.fresh)[TAG].try_into().expect("eight bytes");
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

fn splice(rng: &mut Rng, loot: &Loot, out: &mut Vec<u8>) {
    let other = pick(rng, &loot.fresh);
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

/// Another packet number, near or far, also such that belong to the next sealing keys.
fn move_packet(rng: &mut Rng, out: &mut [u8]) {
    let packet = u64::from_le_bytes(out[PACKET].try_into().expect("eight bytes"));
    let moved = match rng.below(4) {
        0 => packet.wrapping_add(1 + rng.below(5000)),
        1 => packet.wrapping_sub(1 + rng.below(50)),
        2 => packet ^ 1 << rng.below(64),
        _ => packet + ((1 + rng.below(3)) << 22),
    };
    out[PACKET].copy_from_slice(&moved.to_le_bytes());
}

/// Two 16-bit words change places: sums over words stay as they are.
fn swap_words(rng: &mut Rng, out: &mut [u8]) {
    let words = out.len() as u64 / 2;
    let (a, b) = (2 * rng.below(words) as usize, 2 * rng.below(words) as usize);
    (0..2).for_each(|i| out.swap(a + i, b + i));
}

/// What one word gains another loses: the internet checksum stays as it is.
fn shift_sum(rng: &mut Rng, out: &mut [u8]) {
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

/// Adds a multiple of the polynomial of CRC-32 or CRC-32C: either checksum stays as it is.
fn checked_by_crc(rng: &mut Rng, out: &mut [u8]) {
    let poly: u64 = [0x1_04c1_1db7, 0x1_1edc_6f41][rng.below(2) as usize];
    let start = rng.below(out.len() as u64 * 8 - 32);
    (0..33).filter(|i| poly >> (32 - i) & 1 == 1).for_each(|i| flip(out, start + i));
}

/// A frame of a former epoch, or the receiver's own, under the channel number of today and perhaps a fresh packet number.
fn replace(rng: &mut Rng, out: &mut Vec<u8>, frames: &[Vec<u8>]) {
    let channel: [u8; 4] = out[CHANNEL].try_into().expect("four bytes");
    let packet: [u8; 8] = out[PACKET].try_into().expect("eight bytes");
    out.clear();
    out.extend_from_slice(pick(rng, frames));
    out[CHANNEL].copy_from_slice(&channel);
    if rng.below(2) == 0 {
        out[PACKET].copy_from_slice(&packet);
    }
}

fn attack(seed: u64, security: Security, count: u64) {
    let (mut world, loot) = ambush(seed, security);
    let mut rng = Rng(seed);
    let now = world.now;
    let accepted = world.link(1).counters().frames_accepted;
    let mut out = Vec::new();
    let mut sent = Vec::new();
    let mut done = 0;
    let known: HashSet<&[u8]> = loot.fresh.iter().map(Vec::as_slice).collect();
    while done < count {
        mutate(&mut rng, &loot, &mut out);
        if known.contains(out.as_slice()) {
            // The mutation undid itself.
            continue;
        }
        sent.clone_from(&out);
        let result = world.link(1).handle_frame(now, &mut out);
        assert!(result.is_err(), "accepted after {done}, {security:?}, seed {seed}: {sent:02x?}");
        done += 1;
    }
    // The true frames are still welcome.
    assert_eq!(world.link(1).counters().frames_accepted, accepted);
    for frame in &loot.fresh {
        let mut frame = frame.clone();
        assert!(
            world.link(1).handle_frame(now, &mut frame).is_ok(),
            "{security:?}: a true frame was refused"
        );
    }
}

/// L-3, L-22, L-23: no mutated frame is accepted, also if every checksum without a key would be none the wiser.
#[test]
fn mutated_frames() {
    let count = std::env::var("TAUTLINE_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(DEFAULT);
    let run = |seed, security| std::thread::spawn(move || attack(seed, security, count / 2));
    let threads = [run(1_000, Security::Fabric), run(2_000, Security::Sealed)];
    for thread in threads {
        thread.join().expect("no mutated frame is accepted");
    }
}
