//! AES-128-GCM with a detached tag, on `ring`.

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};

/// The sealing key of one direction of one link.
pub struct Sealed(LessSafeKey);

/// A frame that does not open: forged, damaged, or under another key.
#[derive(Debug, PartialEq, Eq)]
pub struct NotOpened;

impl Sealed {
    /// Expands a 16-byte key.
    pub fn new(key: &[u8; 16]) -> Self {
        let key = UnboundKey::new(&AES_128_GCM, key).expect("the key has the right length");
        Self(LessSafeKey::new(key))
    }

    fn nonce(number: u64) -> Nonce {
        let mut bytes = [0; NONCE_LEN];
        bytes[4..].copy_from_slice(&number.to_be_bytes());
        Nonce::assume_unique_for_key(bytes)
    }

    /// Encrypts `body` in place and returns the tag. `number` must never repeat under this key.
    pub fn seal(&self, number: u64, header: &[u8], body: &mut [u8]) -> [u8; 16] {
        let tag = self
            .0
            .seal_in_place_separate_tag(Self::nonce(number), Aad::from(header), body)
            .expect("a frame is far below the length limit");
        tag.as_ref().try_into().expect("the tag has 16 bytes")
    }

    /// Decrypts `body` in place, or leaves it unfit for use.
    pub fn open(&self, number: u64, header: &[u8], body: &mut [u8], tag: [u8; 16]) -> Result<(), NotOpened> {
        self.0
            .open_in_place_separate_tag(Self::nonce(number), Aad::from(header), Tag::from(tag), body, 0..)
            .map(|_| ())
            .map_err(|_| NotOpened)
    }
}

#[test]
fn opens_what_it_sealed_and_nothing_else() {
    let key = Sealed::new(b"0123456789abcdef");
    let mut body = *b"forty-two bytes of payload, more or less..";
    let plain = body;
    let tag = key.seal(7, b"header", &mut body);
    assert_ne!(body, plain);
    let sealed = body;
    assert_eq!(key.open(8, b"header", &mut body, tag), Err(NotOpened));
    body = sealed;
    assert_eq!(key.open(7, b"Header", &mut body, tag), Err(NotOpened));
    body = sealed;
    assert_eq!(key.open(7, b"header", &mut body, tag), Ok(()));
    assert_eq!(body, plain);
}
