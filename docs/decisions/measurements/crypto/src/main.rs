//! Measures candidates for the per-frame tag and for the sealed-mode cipher.
//!
//! Build with plain `cargo build --release`, then run pinned to one core:
//! `taskset -c 1 target/release/crypto-measurements`.
//! `--features aegis-pure` swaps the C backend of `aegis` for its pure-Rust one.
//!
//! Two modes are measured. `stream` issues independent calls, so the processor may overlap the end
//! of one call with the start of the next. `chain` makes the nonce and the address of each call
//! depend on the tag of the call before, so the full latency of a call shows.
#![forbid(unsafe_code)]

#[cfg(test)]
mod sealed;
mod vmac;

use std::hint::black_box;
use std::time::{Duration, Instant};

use aegis::aegis128l::{Aegis128L, Aegis128LMac};
use aegis::aegis128x2::{Aegis128X2, Aegis128X2Mac};
use aegis::aegis128x4::{Aegis128X4, Aegis128X4Mac};
use aes::Aes128Enc;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::{Aes128Gcm, aead::AeadInOut};
use polyval::Polyval;
use polyval::universal_hash::UniversalHash;

const SIZES: [usize; 4] = [64, 256, 1500, 8192];
const ROUNDS: usize = 15;
const SLICE: Duration = Duration::from_millis(8);
/// Length of the header where a frame is given as two slices, and of the AAD in sealed mode.
const HEADER: usize = 24;
const KEY: [u8; 16] = *b"0123456789abcdef";
const KEY2: [u8; 16] = *b"fedcba9876543210";

fn low64(tag: &[u8]) -> u64 {
    u64::from_le_bytes(tag[..8].try_into().expect("tag of at least 8 bytes"))
}

fn nonce16(n: u64) -> [u8; 16] {
    let mut b = [0; 16];
    b[..8].copy_from_slice(&n.to_le_bytes());
    b
}

fn nonce12(n: u64) -> [u8; 12] {
    let mut b = [0; 12];
    b[..8].copy_from_slice(&n.to_le_bytes());
    b
}

/// Wegman-Carter: POLYVAL of the frame, plus one AES block of the nonce.
struct PolyvalAes {
    hash: Polyval,
    hash2: Polyval,
    aes: Aes128Enc,
}

impl PolyvalAes {
    fn new() -> Self {
        Self {
            hash: Polyval::new(&KEY.into()),
            hash2: Polyval::new(&KEY2.into()),
            aes: Aes128Enc::new(&KEY2.into()),
        }
    }

    /// One AES block of the nonce and both lengths.
    fn pad(&self, n: u64, header: usize, payload: usize) -> u64 {
        let mut block = [0; 16];
        block[..8].copy_from_slice(&n.to_le_bytes());
        block[8..12].copy_from_slice(&(header as u32).to_le_bytes());
        block[12..].copy_from_slice(&(payload as u32).to_le_bytes());
        let mut block = block.into();
        self.aes.encrypt_block(&mut block);
        low64(&block)
    }

    /// As GMAC does it: a last block holds the lengths.
    fn tag_length_block(&self, n: u64, m: &[u8]) -> u64 {
        let pad = self.pad(n, 0, 0);
        let mut h = self.hash.clone();
        h.update_padded(m);
        let mut last = [0; 16];
        last[..8].copy_from_slice(&(m.len() as u64).to_le_bytes());
        h.update(&[last.into()]);
        low64(&h.finalize()) ^ pad
    }

    /// The lengths go into the pad block instead.
    fn tag(&self, n: u64, header: &[u8], payload: &[u8]) -> u64 {
        let pad = self.pad(n, header.len(), payload.len());
        let mut h = self.hash.clone();
        if !header.is_empty() {
            h.update_padded(header);
        }
        h.update_padded(payload);
        low64(&h.finalize()) ^ pad
    }

    /// As the tag of short frames: whole groups of four blocks, of which the last reaches back. Whole blocks
    /// at least.
    fn tag_reaching_back(&self, n: u64, m: &[u8]) -> u64 {
        let pad = self.pad(n, 0, m.len());
        let mut h = self.hash.clone();
        h.update(polyval::Block::slice_as_chunks(&m[..m.len() / 64 * 64]).0);
        if !m.len().is_multiple_of(64) {
            h.update(polyval::Block::slice_as_chunks(&m[m.len() - 64..]).0);
        }
        low64(&h.finalize()) ^ pad
    }

    /// Two independent keys, each over half of the frame, so that two chains of products overlap.
    fn tag_two_lanes(&self, n: u64, m: &[u8]) -> u64 {
        let pad = self.pad(n, 0, m.len());
        let half = m.len() / 128 * 64;
        let (first, second) = m.split_at(half);
        let (mut a, mut b) = (self.hash.clone(), self.hash2.clone());
        let (mut left, mut right) = (first.chunks_exact(64), second.chunks_exact(64));
        for x in left.by_ref() {
            a.update_padded(x);
            if let Some(y) = right.next() {
                b.update_padded(y);
            }
        }
        for y in right.by_ref() {
            b.update_padded(y);
        }
        b.update_padded(right.remainder());
        low64(&a.finalize()) ^ low64(&b.finalize()) ^ pad
    }
}

/// The cells of one line: nanoseconds per call, for every size, every round.
struct Line {
    name: &'static str,
    samples: Vec<Vec<f64>>,
    run: Box<dyn FnMut(usize, u64) -> Duration>,
}

fn buffers(size: usize) -> (usize, Vec<u8>) {
    let count: usize = if size > 2048 { 4 } else { 8 };
    (count, (0..count * size).map(|i| (i * 31 + 7) as u8).collect())
}

/// A tag candidate. A byte of a buffer changes four (or two) calls before that buffer is used, so
/// neither hoisting nor a store-forwarding stall can colour the result.
fn tag_line(name: &'static str, chain: bool, op: impl Fn(u64, &[u8]) -> u64 + 'static) -> Line {
    let mut nonce = 0u64;
    let run = move |size: usize, iters: u64| {
        let (count, mut data) = buffers(size);
        let mask = if chain { black_box(0u64) } else { 0 };
        let mut last = 0u64;
        let start = Instant::now();
        for i in 0..iters {
            let ahead = (i as usize + count / 2) & (count - 1);
            data[ahead * size + (i as usize & 63)] = i as u8;
            nonce += 1;
            let dep = if chain { last & mask } else { 0 };
            let at = ((i + dep) as usize & (count - 1)) * size;
            last = black_box(op(nonce + dep, &data[at..at + size]));
        }
        start.elapsed()
    };
    Line { name, samples: vec![], run: Box::new(run) }
}

/// A sealing candidate: in place, `HEADER` bytes of AAD, a 16-byte tag apart.
fn seal_line(name: &'static str, op: impl Fn(u64, &[u8], &mut [u8]) -> [u8; 16] + 'static) -> Line {
    let mut nonce = 0u64;
    let run = move |size: usize, iters: u64| {
        let (count, mut data) = buffers(size);
        let mut header = [0u8; HEADER];
        let start = Instant::now();
        for i in 0..iters {
            nonce += 1;
            header[0] = nonce as u8;
            let at = (i as usize & (count - 1)) * size;
            black_box(op(nonce, &header, &mut data[at..at + size]));
        }
        start.elapsed()
    };
    Line { name, samples: vec![], run: Box::new(run) }
}

/// An opening candidate: `open` reads a ciphertext and writes the plaintext elsewhere.
fn open_line(
    name: &'static str,
    seal: impl Fn(u64, &[u8], &mut [u8]) -> [u8; 16] + 'static,
    open: impl Fn(u64, &[u8], &[u8], &[u8; 16], &mut [u8]) -> bool + 'static,
) -> Line {
    let run = move |size: usize, iters: u64| {
        let (count, mut data) = buffers(size);
        let plain = data.clone();
        let header = [5u8; HEADER];
        let tags: Vec<_> =
            (0..count).map(|i| seal(i as u64, &header, &mut data[i * size..(i + 1) * size])).collect();
        let mut out = vec![0u8; size];
        let mut bad = tags[0];
        bad[15] ^= 1;
        assert!(!open(0, &header, &data[..size], &bad, &mut out), "{name} accepted a forgery");
        let start = Instant::now();
        for i in 0..iters {
            let at = i as usize & (count - 1);
            let ct = &data[at * size..(at + 1) * size];
            assert!(open(at as u64, &header, ct, &tags[at], black_box(&mut out)));
        }
        let took = start.elapsed();
        let at = (iters - 1) as usize % count;
        assert_eq!(out, plain[at * size..(at + 1) * size], "{name} opened wrongly");
        took
    };
    Line { name, samples: vec![], run: Box::new(run) }
}

fn measure(title: &str, mut lines: Vec<Line>) {
    let mut iters = vec![[0u64; SIZES.len()]; lines.len()];
    for (l, line) in lines.iter_mut().enumerate() {
        line.samples = vec![vec![]; SIZES.len()];
        for (s, &size) in SIZES.iter().enumerate() {
            (line.run)(size, 200);
            let took = (line.run)(size, 2000);
            iters[l][s] = (SLICE.as_nanos() * 2000 / took.as_nanos().max(1)).max(200) as u64;
        }
    }
    for _ in 0..ROUNDS {
        for (s, &size) in SIZES.iter().enumerate() {
            for (l, line) in lines.iter_mut().enumerate() {
                let took = (line.run)(size, iters[l][s]);
                line.samples[s].push(took.as_nanos() as f64 / iters[l][s] as f64);
            }
        }
    }
    println!("\n### {title}\n");
    println!("| candidate | 64 B | 256 B | 1500 B | 8192 B |");
    println!("|---|---|---|---|---|");
    for line in &mut lines {
        print!("| {} |", line.name);
        for (s, &size) in SIZES.iter().enumerate() {
            let v = &mut line.samples[s];
            v.sort_by(f64::total_cmp);
            let mid = v[v.len() / 2];
            let (lo, hi) = (v[0], v[v.len() - 1]);
            print!(" {mid:.1} ns [{lo:.1}-{hi:.1}], {:.1} GB/s |", size as f64 / mid);
        }
        println!();
    }
}

fn polyval_lines(chain: bool) -> Vec<Line> {
    let with = |name, tag: fn(&PolyvalAes, u64, &[u8]) -> u64| {
        let p = PolyvalAes::new();
        tag_line(name, chain, move |n, m| tag(&p, n, m))
    };
    vec![
        with("polyval + aes, length block", PolyvalAes::tag_length_block),
        with("polyval + aes, length in pad", |p, n, m| p.tag(n, &[], m)),
        with("polyval + aes, length in pad, two slices", |p, n, m| p.tag(n, &m[..HEADER], &m[HEADER..])),
        with("polyval + aes, last group reaches back", PolyvalAes::tag_reaching_back),
        with("polyval + aes, two lanes", PolyvalAes::tag_two_lanes),
    ]
}

fn tag_lines(chain: bool) -> Vec<Line> {
    let mut lines = Vec::new();
    macro_rules! line {
        ($name:expr, $op:expr) => {
            lines.push(tag_line($name, chain, $op))
        };
    }
    macro_rules! aegis {
        ($one:ident, $mac:ident, $a:expr, $b:expr, $c:expr) => {
            line!($a, |n, m| low64(&$one::<16>::new(&KEY, &nonce16(n)).encrypt_in_place(&mut [], m)));
            line!($b, |n, m| {
                let mut mac = $mac::<16>::new_with_nonce(&KEY, &nonce16(n));
                mac.update(m);
                low64(&mac.finalize())
            });
            line!($c, |n, m| {
                let mut mac = $mac::<16>::new_with_nonce(&KEY, &nonce16(n));
                mac.update(&m[..HEADER]);
                mac.update(&m[HEADER..]);
                low64(&mac.finalize())
            });
        };
    }
    line!("none (cost of the loop)", |n, m| n ^ u64::from(m[0]));
    aegis!(
        Aegis128L,
        Aegis128LMac,
        "aegis128l, AAD only",
        "aegis128l, Mac type",
        "aegis128l, Mac type, two slices"
    );
    aegis!(
        Aegis128X2,
        Aegis128X2Mac,
        "aegis128x2, AAD only",
        "aegis128x2, Mac type",
        "aegis128x2, Mac type, two slices"
    );
    aegis!(
        Aegis128X4,
        Aegis128X4Mac,
        "aegis128x4, AAD only",
        "aegis128x4, Mac type",
        "aegis128x4, Mac type, two slices"
    );
    if cfg!(feature = "aegis-pure") {
        return lines;
    }

    let v = vmac::Vmac64::new(&KEY);
    line!("VMAC-64", move |n, m| v.tag(n, m));
    let v = vmac::Vmac64::new(&KEY);
    line!("VMAC-64, two slices", move |n, m| { v.tag2(n, &m[..HEADER], &m[HEADER..]) });
    let v = vmac::Vmac64::new(&KEY);
    let pads = std::cell::RefCell::new(vmac::Pads::new());
    line!("VMAC-64, 16 pads at a time", move |n, m| { v.tag_cached(&mut pads.borrow_mut(), n, m) });
    let v = vmac::Vmac64::new(&KEY);
    let pads = std::cell::RefCell::new(vmac::Pads::new());
    line!("VMAC-64, 16 pads at a time, two slices", move |n, m| {
        v.tag2_cached(&mut pads.borrow_mut(), n, &m[..HEADER], &m[HEADER..])
    });
    lines.extend(polyval_lines(chain));
    let h = ghash::GHash::new(&KEY.into());
    let p = PolyvalAes::new();
    line!("ghash + aes, length block", move |n, m| {
        let pad = p.pad(n, 0, 0);
        let mut h = h.clone();
        h.update_padded(m);
        let mut last = [0; 16];
        last[..8].copy_from_slice(&(m.len() as u64 * 8).to_be_bytes());
        h.update(&[last.into()]);
        low64(&h.finalize()) ^ pad
    });

    let k = aws_lc_key();
    line!("AES-GMAC, aws-lc-rs", move |n, m| {
        let nonce = aws_lc_rs::aead::Nonce::assume_unique_for_key(nonce12(n));
        let aad = aws_lc_rs::aead::Aad::from(m);
        low64(k.seal_in_place_separate_tag(nonce, aad, &mut []).expect("seal").as_ref())
    });
    let k = ring_key();
    line!("AES-GMAC, ring", move |n, m| {
        let nonce = ring::aead::Nonce::assume_unique_for_key(nonce12(n));
        let aad = ring::aead::Aad::from(m);
        low64(k.seal_in_place_separate_tag(nonce, aad, &mut []).expect("seal").as_ref())
    });
    let k = Aes128Gcm::new(&KEY.into());
    line!("AES-GMAC, aes-gcm", move |n, m| {
        low64(&k.encrypt_inout_detached(&nonce12(n).into(), m, (&mut [][..]).into()).expect("seal"))
    });
    let k = graviola::aead::AesGcm::new(&KEY);
    line!("AES-GMAC, graviola", move |n, m| {
        let mut tag = [0; 16];
        k.encrypt(&nonce12(n), m, &mut [], &mut tag);
        low64(&tag)
    });

    let p = PolyvalAes::new();
    let mut key = [0; 32];
    key[..16].copy_from_slice(&KEY);
    let one = poly1305::Poly1305::new(&key.into());
    line!("poly1305 + aes", move |n, m| {
        let pad = p.pad(n, 0, 0);
        low64(&one.clone().compute_unpadded(m)).wrapping_add(pad)
    });

    line!("siphasher SipHash-1-3-128", |n, m| {
        use std::hash::Hasher;
        let mut h = siphasher::sip128::SipHasher13::new_with_key(&KEY);
        h.write(&n.to_le_bytes());
        h.write(m);
        h.finish()
    });
    line!("siphasher SipHash-2-4-128", |n, m| {
        use std::hash::Hasher;
        let mut h = siphasher::sip128::SipHasher24::new_with_key(&KEY);
        h.write(&n.to_le_bytes());
        h.write(m);
        h.finish()
    });
    let mut key = [0; 32];
    key[..16].copy_from_slice(&KEY);
    let keyed = blake3::Hasher::new_keyed(&key);
    line!("blake3 keyed", move |n, m| {
        let mut h = keyed.clone();
        h.update(&n.to_le_bytes());
        h.update(m);
        low64(h.finalize().as_bytes())
    });
    line!("highway HighwayHash-64", |n, m| {
        use highway::HighwayHash;
        let key = [1 + n, 2, 3, 4];
        highway::HighwayHasher::new(highway::Key(key)).hash64(m)
    });
    let h = polymur_hash::PolymurHash::new(u128::from_le_bytes(KEY));
    let aes = Aes128Enc::new(&KEY2.into());
    line!("polymur-hash then aes", move |n, m| {
        let mut block = [0; 16];
        block[..8].copy_from_slice(&n.to_le_bytes());
        block[8..].copy_from_slice(&h.hash(m).to_le_bytes());
        let mut block = block.into();
        aes.encrypt_block(&mut block);
        low64(&block)
    });
    lines
}

fn aws_lc_key() -> aws_lc_rs::aead::LessSafeKey {
    use aws_lc_rs::aead::{AES_128_GCM, LessSafeKey, UnboundKey};
    LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &KEY).expect("key"))
}

fn ring_key() -> ring::aead::LessSafeKey {
    use ring::aead::{AES_128_GCM, LessSafeKey, UnboundKey};
    LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &KEY).expect("key"))
}

fn seal_aws_lc() -> impl Fn(u64, &[u8], &mut [u8]) -> [u8; 16] {
    use aws_lc_rs::aead::{Aad, Nonce};
    let k = aws_lc_key();
    move |n, aad, buf| {
        let nonce = Nonce::assume_unique_for_key(nonce12(n));
        let tag = k.seal_in_place_separate_tag(nonce, Aad::from(aad), buf).expect("seal");
        tag.as_ref().try_into().expect("16-byte tag")
    }
}

fn seal_ring() -> impl Fn(u64, &[u8], &mut [u8]) -> [u8; 16] {
    use ring::aead::{Aad, Nonce};
    let k = ring_key();
    move |n, aad, buf| {
        let nonce = Nonce::assume_unique_for_key(nonce12(n));
        let tag = k.seal_in_place_separate_tag(nonce, Aad::from(aad), buf).expect("seal");
        tag.as_ref().try_into().expect("16-byte tag")
    }
}

fn seal_aes_gcm() -> impl Fn(u64, &[u8], &mut [u8]) -> [u8; 16] {
    let k = Aes128Gcm::new(&KEY.into());
    move |n, aad, buf| k.encrypt_inout_detached(&nonce12(n).into(), aad, buf.into()).expect("seal").into()
}

fn seal_graviola() -> impl Fn(u64, &[u8], &mut [u8]) -> [u8; 16] {
    let k = graviola::aead::AesGcm::new(&KEY);
    move |n, aad, buf| {
        let mut tag = [0; 16];
        k.encrypt(&nonce12(n), aad, buf, &mut tag);
        tag
    }
}

fn seal_aegis() -> impl Fn(u64, &[u8], &mut [u8]) -> [u8; 16] {
    |n, aad, buf| Aegis128L::<16>::new(&KEY, &nonce16(n)).encrypt_in_place(buf, aad)
}

fn seal_lines() -> Vec<Line> {
    vec![
        seal_line("aws-lc-rs AES-128-GCM", seal_aws_lc()),
        seal_line("ring AES-128-GCM", seal_ring()),
        seal_line("aes-gcm AES-128-GCM", seal_aes_gcm()),
        seal_line("graviola AES-128-GCM", seal_graviola()),
        seal_line("aegis AEGIS-128L (for information)", seal_aegis()),
    ]
}

fn open_lines() -> Vec<Line> {
    let aws = aws_lc_key();
    let ring = ring_key();
    let rust = Aes128Gcm::new(&KEY.into());
    let grav = graviola::aead::AesGcm::new(&KEY);
    vec![
        open_line("aws-lc-rs AES-128-GCM, gather", seal_aws_lc(), move |n, aad, ct, tag, out| {
            use aws_lc_rs::aead::{Aad, Nonce};
            let nonce = Nonce::assume_unique_for_key(nonce12(n));
            aws.open_separate_gather(nonce, Aad::from(aad), ct, tag, out).is_ok()
        }),
        open_line("ring AES-128-GCM, copy then in place", seal_ring(), move |n, aad, ct, tag, out| {
            use ring::aead::{Aad, Nonce};
            let nonce = Nonce::assume_unique_for_key(nonce12(n));
            let tag = ring::aead::Tag::from(*tag);
            out.copy_from_slice(ct);
            ring.open_in_place_separate_tag(nonce, Aad::from(aad), tag, out, 0..).is_ok()
        }),
        open_line("aes-gcm AES-128-GCM, in to out", seal_aes_gcm(), move |n, aad, ct, tag, out| {
            let io = InOutBuf::new(ct, out).expect("equal lengths");
            rust.decrypt_inout_detached(&nonce12(n).into(), aad, io, tag.into()).is_ok()
        }),
        open_line(
            "graviola AES-128-GCM, copy then in place",
            seal_graviola(),
            move |n, aad, ct, tag, out| {
                out.copy_from_slice(ct);
                grav.decrypt(&nonce12(n), aad, out, tag).is_ok()
            },
        ),
        open_line("aegis AEGIS-128L, copy then in place", seal_aegis(), |n, aad, ct, tag, out| {
            out.copy_from_slice(ct);
            Aegis128L::<16>::new(&KEY, &nonce16(n)).decrypt_in_place(out, tag, aad).is_ok()
        }),
    ]
}

fn main() {
    println!("Median of {ROUNDS} interleaved rounds [lowest-highest], nanoseconds per call.");
    measure("Tag, independent calls", tag_lines(false));
    measure("Tag, each call waiting for the one before", tag_lines(true));
    if !cfg!(feature = "aegis-pure") {
        measure("Seal, in place", seal_lines());
        measure("Open", open_lines());
    }
}
