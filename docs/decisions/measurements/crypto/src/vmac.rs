//! VMAC-64 with AES-128 (draft-krovetz-vmac-01; Krovetz and Dai), in safe Rust.

use aes::Aes128Enc;
use aes::cipher::{BlockCipherEncrypt, KeyInit};

/// Bytes of a frame that one pass of the NH hash compresses.
const BLOCK: usize = 128;
const P64: u64 = u64::MAX - 256;
const M62: u128 = (1 << 126) - 1;
const M63: u64 = u64::MAX >> 1;
const M127: u128 = (1 << 127) - 1;
const MPOLY: u64 = 0x1fff_ffff_1fff_ffff;

/// The key of one direction of one link.
#[derive(Clone)]
pub struct Vmac64 {
    nh: [u64; BLOCK / 8],
    poly: [u64; 2],
    l3: [u64; 2],
    aes: Aes128Enc,
}

fn wide(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

impl Vmac64 {
    /// Expands a 16-byte key.
    pub fn new(key: &[u8; 16]) -> Self {
        let aes = Aes128Enc::new(key.into());
        let words = |domain: u8, counter: u8| -> [u64; 2] {
            let mut block = [0; 16];
            block[0] = domain;
            block[15] = counter;
            split(encrypt(&aes, block))
        };
        let mut nh = [0; BLOCK / 8];
        for (i, pair) in nh.chunks_exact_mut(2).enumerate() {
            pair.copy_from_slice(&words(0x80, i as u8));
        }
        let poly = words(0xC0, 0).map(|w| w & MPOLY);
        let l3 = (0..=u8::MAX)
            .map(|i| words(0xE0, i))
            .find(|pair| pair.iter().all(|&w| w < P64))
            .expect("a word is out of range with probability 2^-56");
        Self { nh, poly, l3, aes }
    }

    /// The tag of a frame in one slice. No two frames of one key may share a nonce.
    #[inline]
    pub fn tag(&self, nonce: u64, frame: &[u8]) -> u64 {
        // The pad first: the processor then overlaps the AES rounds with the hash.
        let pad = self.pad(nonce);
        self.hash(frame).wrapping_add(pad)
    }

    /// The tag of `header` followed by `payload`; equal to that of the two put together.
    #[inline]
    pub fn tag2(&self, nonce: u64, header: &[u8], payload: &[u8]) -> u64 {
        let pad = self.pad(nonce);
        self.hash2(header, payload).wrapping_add(pad)
    }

    /// Like [`Vmac64::tag`], with pads made sixteen at a time.
    #[inline]
    pub fn tag_cached(&self, pads: &mut Pads, nonce: u64, frame: &[u8]) -> u64 {
        let pad = pads.get(&self.aes, nonce);
        self.hash(frame).wrapping_add(pad)
    }

    /// Like [`Vmac64::tag2`], with pads made sixteen at a time.
    #[inline]
    pub fn tag2_cached(&self, pads: &mut Pads, nonce: u64, header: &[u8], payload: &[u8]) -> u64 {
        let pad = pads.get(&self.aes, nonce);
        self.hash2(header, payload).wrapping_add(pad)
    }

    #[inline]
    fn hash(&self, frame: &[u8]) -> u64 {
        let (blocks, rest) = frame.as_chunks::<BLOCK>();
        let mut acc = self.poly_key();
        let mut first = true;
        for block in blocks {
            acc = self.absorb(acc, self.nh(block), &mut first);
        }
        self.finish(acc, rest, first)
    }

    #[inline]
    fn hash2(&self, header: &[u8], payload: &[u8]) -> u64 {
        let mut acc = self.poly_key();
        let mut first = true;
        let (blocks, header) = header.as_chunks::<BLOCK>();
        for block in blocks {
            acc = self.absorb(acc, self.nh(block), &mut first);
        }
        // The block that holds the end of the header and the start of the payload.
        let mut seam = [0; BLOCK];
        let (head, tail) = seam.split_at_mut(header.len());
        head.copy_from_slice(header);
        let Some((start, payload)) = payload.split_at_checked(tail.len()) else {
            tail[..payload.len()].copy_from_slice(payload);
            let used = header.len() + payload.len();
            return self.finish(acc, &seam[..used], first);
        };
        tail.copy_from_slice(start);
        acc = self.absorb(acc, self.nh(&seam), &mut first);
        let (blocks, rest) = payload.as_chunks::<BLOCK>();
        for block in blocks {
            acc = self.absorb(acc, self.nh(block), &mut first);
        }
        self.finish(acc, rest, first)
    }

    /// Half of an AES block; two neighbouring nonces share a block.
    #[inline]
    fn pad(&self, nonce: u64) -> u64 {
        let block = encrypt(&self.aes, u128::from(nonce & !1).to_be_bytes());
        let [even, odd] = split(block);
        if nonce & 1 == 0 { even } else { odd }
    }

    #[inline]
    fn poly_key(&self) -> u128 {
        u128::from(self.poly[0]) << 64 | u128::from(self.poly[1])
    }

    #[inline]
    fn nh(&self, block: &[u8; BLOCK]) -> u128 {
        let mut sum = 0u128;
        for (m, k) in block.as_chunks::<16>().0.iter().zip(self.nh.as_chunks::<2>().0) {
            sum = sum.wrapping_add(nh_pair(m, k));
        }
        sum & M62
    }

    #[inline]
    fn absorb(&self, acc: u128, nh: u128, first: &mut bool) -> u128 {
        if std::mem::take(first) { acc.wrapping_add(nh) } else { self.step(acc, nh) }
    }

    /// `acc * key + m`, partly reduced modulo 2^127 - 1.
    #[inline]
    fn step(&self, acc: u128, m: u128) -> u128 {
        let [kh, kl] = self.poly;
        let (ah, al) = ((acc >> 64) as u64, acc as u64);
        let low = wide(al, kl).wrapping_add(wide(ah, 2 * kh));
        let mid = wide(al, kh).wrapping_add(wide(ah, kl));
        let (high, carry) = ((low >> 64) as u64).overflowing_add(mid as u64);
        let top = ((mid >> 64) as u64).wrapping_add(u64::from(carry));
        let top = top.wrapping_mul(2).wrapping_add(high >> 63);
        let acc = u128::from(high & M63) << 64 | u128::from(low as u64);
        acc.wrapping_add(m).wrapping_add(u128::from(top))
    }

    /// Takes in the last, partial block and reduces to 64 bits.
    #[inline]
    fn finish(&self, mut acc: u128, rest: &[u8], mut first: bool) -> u64 {
        if !rest.is_empty() {
            let (whole, end) = rest.as_chunks::<16>();
            let keys = self.nh.as_chunks::<2>().0;
            let mut sum = 0u128;
            for (m, k) in whole.iter().zip(keys) {
                sum = sum.wrapping_add(nh_pair(m, k));
            }
            if !end.is_empty() {
                let mut last = [0; 16];
                last[..end.len()].copy_from_slice(end);
                sum = sum.wrapping_add(nh_pair(&last, &keys[whole.len()]));
            }
            acc = self.absorb(acc, sum & M62, &mut first);
        }
        // Reduce acc + (bits of the last block << 64) fully modulo 2^127 - 1.
        let bits = rest.len() as u128 * 8;
        let acc = (acc & M127) + (bits << 64) + (acc >> 127);
        let over = (acc >> 127) + u128::from(acc & M127 == M127 && acc >> 127 == 0);
        let acc = (acc + over) & M127;
        // Quotient and remainder by 2^64 - 2^32.
        let (mut p1, mut p2) = ((acc >> 64) as u64, acc as u64);
        let mut t = p1.wrapping_add(p2 >> 32);
        t = t.wrapping_add(t >> 32);
        t = t.wrapping_add(u64::from(t as u32 > 0xffff_fffe));
        p1 = p1.wrapping_add(t >> 32);
        p2 = p2.wrapping_add(p1 << 32);
        mul_p64(add_p64(p1, self.l3[0]), add_p64(p2, self.l3[1]))
    }
}

/// The pads of sixteen neighbouring nonces. As secret as the key.
#[derive(Clone)]
pub struct Pads {
    group: u64,
    pads: [u64; 16],
}

impl Pads {
    /// Starts out empty.
    pub fn new() -> Self {
        // No nonce shifted right by four gives this.
        Self { group: u64::MAX, pads: [0; 16] }
    }

    #[inline]
    fn get(&mut self, aes: &Aes128Enc, nonce: u64) -> u64 {
        if self.group != nonce >> 4 {
            self.fill(aes, nonce >> 4);
        }
        self.pads[(nonce & 15) as usize]
    }

    #[inline(never)]
    fn fill(&mut self, aes: &Aes128Enc, group: u64) {
        let mut blocks: [aes::Block; 8] =
            std::array::from_fn(|i| u128::from(group << 4 | i as u64 * 2).to_be_bytes().into());
        aes.encrypt_blocks(&mut blocks);
        for (pair, block) in self.pads.chunks_exact_mut(2).zip(blocks) {
            pair.copy_from_slice(&split(block.into()));
        }
        self.group = group;
    }
}

fn encrypt(aes: &Aes128Enc, block: [u8; 16]) -> [u8; 16] {
    let mut block = block.into();
    aes.encrypt_block(&mut block);
    block.into()
}

fn split(block: [u8; 16]) -> [u64; 2] {
    let word = u128::from_be_bytes(block);
    [(word >> 64) as u64, word as u64]
}

#[inline]
fn nh_pair(m: &[u8; 16], k: &[u64; 2]) -> u128 {
    let m = u128::from_le_bytes(*m);
    wide((m as u64).wrapping_add(k[0]), ((m >> 64) as u64).wrapping_add(k[1]))
}

#[inline]
fn add_p64(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum.wrapping_add(257 * u64::from(carry))
}

#[inline]
fn mul_p64(a: u64, b: u64) -> u64 {
    // 2^64 = 257 modulo p.
    let product = wide(a, b);
    let folded = u128::from(product as u64) + (product >> 64) * 257;
    let (sum, carry) = (folded as u64).overflowing_add((folded >> 64) as u64 * 257);
    let sum = sum.wrapping_add(257 * u64::from(carry));
    sum.wrapping_add(257 * u64::from(sum >= P64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_vectors() {
        let key = Vmac64::new(b"abcdefghijklmnop");
        let nonce = u64::from_be_bytes(*b"bcdefghi");
        for (repeat, want) in [
            (0, 0x2576_BE1C_56D8_B81B),
            (1, 0x2D37_6CF5_B181_3CE5),
            (16, 0xE842_1F61_D573_D298),
            (100, 0x4492_DF6C_5CAC_1BBE),
            (1_000_000, 0x09BA_597D_D760_1113u64),
        ] {
            assert_eq!(key.tag(nonce, &b"abc".repeat(repeat)), want, "abc x {repeat}");
        }
    }

    /// Hash, cached pads and plain pads agree on every nonce order.
    #[test]
    fn cached_pads_equal_plain() {
        let key = Vmac64::new(b"abcdefghijklmnop");
        let mut pads = Pads::new();
        for n in [0, 1, 2, 15, 16, 17, 15, 40, 3, u64::MAX, u64::MAX - 1, 0] {
            assert_eq!(key.tag2_cached(&mut pads, n, b"ab", b"cd"), key.tag(n, b"abcd"));
            assert_eq!(key.tag_cached(&mut pads, n, b"abcd"), key.tag(n, b"abcd"));
        }
    }

    /// The arithmetic against slow, obviously right versions, on edges and on random values.
    #[test]
    fn arithmetic() {
        let mut x = 1u64;
        let mut next = || {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let y = x ^ x >> 29;
            let edges = [0, 1, 2, P64 - 1, P64, u64::MAX, M63, M63 + 1, 1 << 32, MPOLY];
            if y % 3 == 0 { edges[(y >> 40) as usize % edges.len()] } else { y }
        };
        let slow_mul = |mut a: u128, mut b: u128| {
            let mut sum = 0;
            a %= M127;
            while b > 0 {
                if b & 1 == 1 {
                    sum = (sum + a) % M127;
                }
                a = (a + a) % M127;
                b >>= 1;
            }
            sum
        };
        let mut key = Vmac64::new(b"abcdefghijklmnop");
        for _ in 0..20_000 {
            let (a, b) = (next(), next());
            assert_eq!(u128::from(mul_p64(a, b)), wide(a, b) % u128::from(P64));
            key.poly = [next() & MPOLY, next() & MPOLY];
            key.l3 = [next() % P64, next() % P64];
            let acc = (u128::from(next()) << 64 | u128::from(next())) % (M127 + (1 << 126));
            let m = (u128::from(next()) << 64 | u128::from(next())) & M62;
            let want = (slow_mul(acc, key.poly_key()) + m % M127) % M127;
            assert_eq!(key.step(acc, m) % M127, want);
            let whole = acc % M127;
            let by = u128::from(u64::MAX - u64::from(u32::MAX));
            let p = u128::from(P64);
            let left = (whole / by + u128::from(key.l3[0])) % p;
            let right = (whole % by + u128::from(key.l3[1])) % p;
            assert_eq!(u128::from(key.finish(acc, &[], true)), left * right % p);
        }
    }

    #[test]
    fn two_slices_equal_one() {
        let key = Vmac64::new(b"abcdefghijklmnop");
        let data: Vec<u8> = (0..700usize).map(|i| (i * 7 + i / 9) as u8).collect();
        for len in 0..data.len() {
            for cut in [0, 1, 8, 24, 63, 127, 128, 129, 300, len] {
                let cut = cut.min(len);
                let (h, p) = data[..len].split_at(cut);
                assert_eq!(key.tag2(3, h, p), key.tag(3, &data[..len]), "{cut} of {len}");
            }
        }
    }
}
