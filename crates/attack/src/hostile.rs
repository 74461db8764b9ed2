//! Hostile datagrams: random ones, and captured ones that were altered.

use tautline::Security;
use tautline::node::link::{ChannelIds, Config, JobKey, Peering, PeeringParams};

/// A small generator: the same seed gives the same attack.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// Frames that were seen on the way, the newest ones.
#[derive(Default)]
pub struct Captures {
    frames: Vec<Vec<u8>>,
    handshakes: Vec<Vec<u8>>,
    at: usize,
}

const CAPTURES: usize = 512;

impl Captures {
    pub fn add(&mut self, frame: &[u8]) {
        let kept = if is_handshake(frame) { &mut self.handshakes } else { &mut self.frames };
        if kept.len() < CAPTURES {
            kept.push(frame.to_vec());
        } else {
            kept[self.at % CAPTURES] = frame.to_vec();
            self.at += 1;
        }
    }

    pub fn any<'a>(&'a self, random: &mut Random) -> Option<&'a [u8]> {
        let of = if random.below(8) == 0 { &self.handshakes } else { &self.frames };
        of.get(random.below(of.len())).map(Vec::as_slice)
    }

    pub fn handshake<'a>(&'a self, random: &mut Random) -> Option<&'a [u8]> {
        self.handshakes.get(random.below(self.handshakes.len())).map(Vec::as_slice)
    }
}

/// Whether a frame is a hello, welcome, retry or refuse (W-1).
pub fn is_handshake(frame: &[u8]) -> bool {
    matches!(frame.first(), Some(0x72..=0x75))
}

/// Makes hostile datagrams for a job in a security mode.
pub struct Forger {
    pub random: Random,
    security: Security,
    other_job: Vec<u8>,
}

/// The longest random datagram.
const LONGEST: usize = 1_500;

impl Forger {
    pub fn new(security: Security, seed: u64) -> Forger {
        Forger { random: Random::new(seed), security, other_job: hello_of_another_job() }
    }

    /// The next datagram, derived from the captures unless it is random.
    pub fn datagram(&mut self, captures: &Captures) -> Vec<u8> {
        // The open mode promises nothing about frames that somebody on the path alters or repeats.
        let kinds = if self.security == Security::Open { 4 } else { 8 };
        let kind = self.random.below(kinds);
        let captured = |random: &mut Random| captures.any(random).map(<[u8]>::to_vec);
        let bytes = match kind {
            0 | 1 => None,
            2 => Some(self.other_job.clone()),
            3 => captures.handshake(&mut self.random).map(|frame| {
                let mut frame = frame.to_vec();
                // The versions.
                frame[8] = self.random.next() as u8;
                frame[9] = frame[8];
                frame
            }),
            4 => captured(&mut self.random).map(|mut frame| {
                for _ in 0..=self.random.below(3) {
                    let bit = self.random.below(8 * frame.len());
                    frame[bit / 8] ^= 1 << (bit % 8);
                }
                frame
            }),
            5 => captured(&mut self.random).map(|mut frame| {
                let len = self.random.below(2 * frame.len());
                frame.resize(if len == frame.len() { len + 1 } else { len }, 0x5a);
                frame
            }),
            6 => captured(&mut self.random),
            _ => captured(&mut self.random).zip(captured(&mut self.random)).map(|(head, tail)| {
                let at = self.random.below(head.len().min(tail.len()));
                [&head[..at], &tail[at..]].concat()
            }),
        };
        bytes.unwrap_or_else(|| self.noise(kind == 1))
    }

    /// For one of eight frames on their way, an altered copy that is to arrive first. Only the tag, or the
    /// key of a handshake, tells it from what a member sends: its packet number is not yet known.
    pub fn overtaking(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        if self.security == Security::Open || self.random.below(8) != 0 {
            return None;
        }
        let mut copy = frame.to_vec();
        let bit = self.random.below(8 * copy.len());
        copy[bit / 8] ^= 1 << (bit % 8);
        Some(copy)
    }

    fn noise(&mut self, marked: bool) -> Vec<u8> {
        let mut bytes = vec![0; self.random.below(LONGEST)];
        self.random.fill(&mut bytes);
        if let (true, Some(first)) = (marked, bytes.first_mut()) {
            *first = 0x71 + self.random.below(6) as u8;
        }
        bytes
    }
}

/// The epoch of [`hello_of_another_job`], which occurs in what answers it.
const OTHER_EPOCH: u64 = 0x6f74_6865_7220_6a6f;

/// Whether a frame of a member is a handshake that answers the hello of another job.
pub fn answers_other_job(frame: &[u8]) -> bool {
    let epoch = OTHER_EPOCH.to_le_bytes();
    is_handshake(frame) && frame.windows(epoch.len()).any(|bytes| bytes == epoch)
}

/// A hello that is valid in a job with another key.
fn hello_of_another_job() -> Vec<u8> {
    let key = JobKey::new([0x66; 32]);
    let params = PeeringParams { key, me: 0, peer: 1, lane: 0, peer_lane: 0, port: 0, max_frame: 1_400 };
    let mut peering = Peering::new(params, Config::default());
    peering.connect(0, ChannelIds { epoch: OTHER_EPOCH, channel: 1 });
    peering.poll_hello(0).expect("it is due").to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_attack() {
        let make = || {
            let (mut forger, mut captures) = (Forger::new(Security::Fabric, 5), Captures::default());
            captures.add(&[0x71; 100]);
            captures.add(&hello_of_another_job());
            (0..1_000).map(|_| forger.datagram(&captures)).collect::<Vec<_>>()
        };
        assert!(make() == make());
    }
}
