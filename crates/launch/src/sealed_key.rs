//! The job key on its way through a launcher's key-value space: sealed to each process (J-13).
//!
//! Each process publishes an X25519 key. Rank 0 makes a key pair for each receiver, and encrypts the job key
//! under what both agree on. Everything that the processes published about themselves goes into the
//! derivation, so that a receiver accepts the key only if it and rank 0 have read the same.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::error::Unspecified;
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use tautline_node::link::{JobKey, erase};

const PUBLIC: usize = 32;
const TAG: usize = 16;
/// Bytes of a sealed key: the sender's public key, the job key, and a tag.
pub(crate) const SEALED: usize = PUBLIC + 32 + TAG;

/// The key pair of a receiver, for one use.
pub(crate) struct Receiver {
    private: EphemeralPrivateKey,
    public: [u8; PUBLIC],
}

/// A fresh job key.
pub fn random_key() -> std::io::Result<JobKey> {
    let mut key = [0; 32];
    let filled = SystemRandom::new().fill(&mut key);
    filled.map_err(|_| std::io::Error::other("the system has no random bytes for a key"))?;
    let job_key = JobKey::new(key);
    erase(&mut key);
    Ok(job_key)
}

impl Receiver {
    pub(crate) fn new() -> Result<Receiver, Unspecified> {
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new())?;
        let public = public_bytes(&private)?;
        Ok(Receiver { private, public })
    }

    /// What the process publishes.
    pub(crate) fn public(&self) -> &[u8; PUBLIC] {
        &self.public
    }

    /// Opens a key that was sealed to this receiver in the same context.
    pub(crate) fn open(self, sealed: &[u8; SEALED], context: &[u8]) -> Result<JobKey, Unspecified> {
        let (sender, rest) = sealed.split_at(PUBLIC);
        let cipher = agree(self.private, &self.public, sender, sender, context)?;
        let mut bytes: [u8; 32 + TAG] = rest.try_into().expect("the rest of a sealed key");
        let opened = cipher.open_in_place(zero_nonce(), Aad::empty(), &mut bytes)?;
        let key = JobKey::new((&*opened).try_into().map_err(|_| Unspecified)?);
        erase(&mut bytes);
        Ok(key)
    }
}

/// Seals a job key to the receiver with this public key.
pub(crate) fn seal(key: &JobKey, to: &[u8; PUBLIC], context: &[u8]) -> Result<[u8; SEALED], Unspecified> {
    let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new())?;
    let public = public_bytes(&private)?;
    let cipher = agree(private, to, to, &public, context)?;
    let mut sealed = [0; SEALED];
    sealed[..PUBLIC].copy_from_slice(&public);
    sealed[PUBLIC..PUBLIC + 32].copy_from_slice(key.bytes());
    let (text, tag) = sealed[PUBLIC..].split_at_mut(32);
    tag.copy_from_slice(cipher.seal_in_place_separate_tag(zero_nonce(), Aad::empty(), text)?.as_ref());
    Ok(sealed)
}

fn public_bytes(private: &EphemeralPrivateKey) -> Result<[u8; PUBLIC], Unspecified> {
    private.compute_public_key()?.as_ref().try_into().map_err(|_| Unspecified)
}

/// The cipher that both sides derive: from what they agree on, both public keys and the context.
fn agree(
    private: EphemeralPrivateKey,
    receiver: &[u8],
    peer: &[u8],
    sender: &[u8],
    context: &[u8],
) -> Result<LessSafeKey, Unspecified> {
    let secret = agree_ephemeral(private, &UnparsedPublicKey::new(&X25519, peer), |shared| {
        Salt::new(HKDF_SHA256, b"tautline job key 1").extract(shared)
    })?;
    let info = [receiver, sender, context];
    Ok(LessSafeKey::new(UnboundKey::from(secret.expand(&info, &AES_256_GCM)?)))
}

/// Every pair of keys encrypts once, so that the nonce need not differ.
fn zero_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// J-13: a sealed key opens for its receiver and in its context only, and does not contain the key.
    #[test]
    fn only_the_receiver_opens_a_key() {
        let key = random_key().unwrap();
        let receiver = || Receiver::new().unwrap();
        let (right, altered, elsewhere, wrong) = (receiver(), receiver(), receiver(), receiver());
        let sealed = seal(&key, right.public(), b"cards").unwrap();
        assert!(!sealed.windows(8).any(|window| key.bytes().windows(8).any(|part| part == window)));
        assert!(wrong.open(&sealed, b"cards").is_err());
        let other = seal(&key, elsewhere.public(), b"cards").unwrap();
        assert!(elsewhere.open(&other, b"other cards").is_err());
        let mut flipped = seal(&key, altered.public(), b"cards").unwrap();
        flipped[SEALED - 1] ^= 1;
        assert!(altered.open(&flipped, b"cards").is_err());
        assert_eq!(right.open(&sealed, b"cards").unwrap().bytes(), key.bytes());
    }
}
