//! The job key and what is derived from it (H-2, H-3).

use tautline_wire::handshake::{HANDSHAKE_LEN, MAC_RANGE};

use crate::erase::erase;

/// The secret that the processes of a job share. Never printed, and erased when it is dropped.
#[derive(Clone)]
pub struct JobKey([u8; 32]);

impl Drop for JobKey {
    fn drop(&mut self) {
        erase(&mut self.0);
    }
}

impl std::fmt::Debug for JobKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JobKey(…)")
    }
}

/// Numbers for a channel, which the caller supplies whenever one may be opened.
#[derive(Clone, Copy, Debug)]
pub struct ChannelIds {
    /// Unpredictable, never used before, and not zero.
    pub epoch: u64,
    /// Our number for the channel.
    pub channel: u32,
}

/// A lane as keys are derived for it: the rank alone for lane 0.
pub(crate) fn party(rank: u32, lane: u16) -> u32 {
    rank | u32::from(lane) << 16
}

/// The side of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Sent the hello.
    Initiator,
    /// Answered it.
    Responder,
}

/// The secrets of one channel, one direction each.
pub(crate) struct LinkKeys {
    pub(crate) tx: [u8; 32],
    pub(crate) rx: [u8; 32],
}

impl Drop for LinkKeys {
    fn drop(&mut self) {
        erase(&mut self.tx);
        erase(&mut self.rx);
    }
}

impl JobKey {
    /// Wraps a key of 32 random bytes.
    pub fn new(bytes: [u8; 32]) -> JobKey {
        JobKey(bytes)
    }

    /// Returns the bytes, for a launcher that passes them on.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the job's public name. It identifies frames of other jobs without a check of their
    /// authentication (H-10).
    pub fn job_id(&self) -> u64 {
        let hash = blake3::keyed_hash(&self.0, b"tautline v1 job id");
        u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("the slice has eight bytes"))
    }

    /// Returns a proof that `message` comes from a holder of the key; `purpose` separates uses of the key.
    pub fn prove(&self, purpose: &str, message: &[u8]) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(b"tautline v1 proof ").update(purpose.as_bytes()).update(&[0]).update(message);
        hasher.finalize().as_bytes()[..16].try_into().expect("the slice has sixteen bytes")
    }

    fn mac(&self, frame: &[u8; HANDSHAKE_LEN]) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(b"tautline v1 handshake");
        hasher.update(&frame[..MAC_RANGE.start]);
        hasher.finalize().as_bytes()[..16].try_into().expect("the slice has sixteen bytes")
    }

    /// Writes the authentication code of a handshake frame (H-2).
    pub(crate) fn sign(&self, frame: &mut [u8; HANDSHAKE_LEN]) {
        let mac = self.mac(frame);
        frame[MAC_RANGE].copy_from_slice(&mac);
    }

    /// Returns whether a handshake frame was signed with this key.
    pub fn verify(&self, frame: &[u8; HANDSHAKE_LEN]) -> bool {
        let mac = self.mac(frame);
        constant_eq(&mac, &frame[MAC_RANGE])
    }

    /// Derives the secrets of a channel from the key, both ranks and both epochs (H-3).
    pub(crate) fn derive(&self, role: Role, initiator: (u32, u64), responder: (u32, u64)) -> LinkKeys {
        let direction = |name: &[u8]| {
            let mut hasher = blake3::Hasher::new_keyed(&self.0);
            hasher.update(b"tautline v1 link ").update(name);
            for (rank, epoch) in [initiator, responder] {
                hasher.update(&rank.to_le_bytes()).update(&epoch.to_le_bytes());
            }
            *hasher.finalize().as_bytes()
        };
        let (forth, back) = (direction(b"forth"), direction(b"back"));
        match role {
            Role::Initiator => LinkKeys { tx: forth, rx: back },
            Role::Responder => LinkKeys { tx: back, rx: forth },
        }
    }
}

/// An endless sequence of unpredictable bytes, made of one secret.
pub struct RandomSequence {
    secret: [u8; 32],
    next: u64,
}

impl std::fmt::Debug for RandomSequence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RandomSequence(…)")
    }
}

impl Drop for RandomSequence {
    fn drop(&mut self) {
        erase(&mut self.secret);
    }
}

impl RandomSequence {
    /// Begins the sequence of `secret`, which must be fresh and unpredictable.
    pub fn new(secret: [u8; 32]) -> RandomSequence {
        RandomSequence { secret, next: 0 }
    }

    /// Returns the next bytes of the sequence.
    pub fn bytes(&mut self) -> [u8; 16] {
        self.next += 1;
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(b"tautline v1 random").update(&self.next.to_le_bytes());
        hasher.finalize().as_bytes()[..16].try_into().expect("the slice has sixteen bytes")
    }
}

/// Compares in constant time: without an early exit.
pub(crate) fn constant_eq(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && std::hint::black_box(a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// H-3: one side's sending key is the other side's receiving key, and another epoch changes both keys.
    #[test]
    fn both_sides_derive_the_same_keys() {
        let key = JobKey::new([7; 32]);
        let a = key.derive(Role::Initiator, (0, 11), (1, 22));
        let b = key.derive(Role::Responder, (0, 11), (1, 22));
        assert_eq!(a.tx, b.rx);
        assert_eq!(a.rx, b.tx);
        assert_ne!(a.tx, a.rx);
        let c = key.derive(Role::Initiator, (0, 12), (1, 22));
        assert_ne!(a.tx, c.tx);
        assert_ne!(a.rx, c.rx);
    }

    /// H-2: a handshake frame with any byte changed, or signed by another job, fails verification.
    #[test]
    fn signature_covers_everything() {
        let key = JobKey::new([7; 32]);
        let mut frame = [5u8; HANDSHAKE_LEN];
        key.sign(&mut frame);
        assert!(key.verify(&frame));
        assert!(!JobKey::new([8; 32]).verify(&frame));
        for i in 0..HANDSHAKE_LEN {
            frame[i] ^= 1;
            assert!(!key.verify(&frame), "byte {i}");
            frame[i] ^= 1;
        }
        assert_eq!(format!("{key:?}"), "JobKey(…)");
    }
}
