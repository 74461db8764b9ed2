//! Bytes as hexadecimal digits.

use std::fmt::Write as _;

/// The digits of `bytes`, in lower case.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Exactly `N` bytes; `None` if `text` is anything but their digits.
pub(crate) fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(digits[0])? << 4 | digit(digits[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digits_are_decoded() {
        assert_eq!(decode(&encode(&[0, 0xab, 0xff])), Some([0, 0xab, 0xff]));
        for text in ["", "0g", "+1", "001", "é"] {
            assert_eq!(decode::<1>(text), None, "{text}");
        }
    }
}
