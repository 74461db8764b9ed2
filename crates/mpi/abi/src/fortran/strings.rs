//! Strings: those of Fortran have a length and are padded with blanks; those of C end in a zero byte.

use std::ffi::c_void;

use tautline_mpi::constants::MAX_LIBRARY_VERSION_STRING;

/// A string that the program passes, as C has it. Trailing blanks are no part of it.
pub struct Text(Vec<u8>);

impl Text {
    /// # Safety
    ///
    /// There are `length` characters.
    pub unsafe fn new(at: *mut c_void, length: usize) -> Text {
        // SAFETY: as promised by the caller.
        let characters = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), length) };
        Text(characters.trim_ascii_end().iter().copied().chain([0]).collect())
    }

    /// The same for keys and values of info objects, which have no leading blanks either.
    ///
    /// # Safety
    ///
    /// There are `length` characters.
    pub unsafe fn trimmed(at: *mut c_void, length: usize) -> Text {
        // SAFETY: as promised by the caller.
        let Text(mut text) = unsafe { Text::new(at, length) };
        let blanks = text.iter().take_while(|character| **character == b' ').count();
        text.drain(..blanks);
        Text(text)
    }

    /// The address of the string of C.
    pub fn at(&self) -> *mut c_void {
        self.0.as_ptr().cast_mut().cast()
    }
}

/// A variable that a string is written to, when this is dropped.
pub struct Line {
    at: *mut u8,
    length: usize,
    buffer: Vec<u8>,
}

/// No string begins with this byte: the function has written nothing.
const UNTOUCHED: u8 = 0xff;

impl Line {
    /// # Safety
    ///
    /// There is room for `length` characters.
    pub unsafe fn new(at: *mut c_void, length: usize) -> Line {
        let room = length.saturating_add(1).max(MAX_LIBRARY_VERSION_STRING as usize);
        Line { at: at.cast(), length, buffer: vec![UNTOUCHED; room] }
    }

    /// The address of the string of C.
    pub fn at(&mut self) -> *mut c_void {
        self.buffer.as_mut_ptr().cast()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let end = self.buffer.iter().position(|byte| *byte == 0);
        let Some(end) = end.filter(|_| self.buffer[0] != UNTOUCHED) else { return };
        let copied = end.min(self.length);
        // SAFETY: there is room for `length` characters, as promised to `new`.
        unsafe {
            std::ptr::copy_nonoverlapping(self.buffer.as_ptr(), self.at, copied);
            std::ptr::write_bytes(self.at.add(copied), b' ', self.length - copied);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(text: &Text) -> &[u8] {
        text.0.strip_suffix(b"\0").unwrap()
    }

    #[test]
    fn blanks_at_the_end_are_cut_off() {
        let mut given = *b"  a b  ";
        // SAFETY: there are seven characters.
        let (text, trimmed) =
            unsafe { (Text::new(given.as_mut_ptr().cast(), 7), Text::trimmed(given.as_mut_ptr().cast(), 7)) };
        assert_eq!((text_of(&text), text_of(&trimmed)), (&b"  a b"[..], &b"a b"[..]));
    }

    #[test]
    fn results_are_padded_or_cut_off_and_left_alone_without_any() {
        for (written, expected) in [(&b"ab\0"[..], *b"ab  "), (b"abcdef\0", *b"abcd"), (b"", *b"wxyz")] {
            let mut place = *b"wxyz";
            // SAFETY: there is room for four characters, and for what is written.
            unsafe {
                let mut line = Line::new(place.as_mut_ptr().cast(), 4);
                std::ptr::copy_nonoverlapping(written.as_ptr(), line.at().cast(), written.len());
            }
            assert_eq!(place, expected);
        }
    }
}
