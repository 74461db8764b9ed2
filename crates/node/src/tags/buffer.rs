//! The bytes of a message on either side: in one piece, in several, in memory that the program has lent, or
//! with the caller.

use std::ops::Range;
use std::sync::Arc;

use tautline_device::shm::LINE_FRAME;
use tautline_mem::Region;
use tautline_wire::tags::EAGER_HEAD;

/// The longest message in a line.
pub(super) const LINE_DATA: usize = LINE_FRAME - EAGER_HEAD;

/// What a message of one frame can be received into.
pub(crate) trait Room {
    /// Returns how many bytes there is room for.
    fn len(&self) -> u64;

    /// Returns the memory, if it is in one piece.
    fn as_piece(&mut self) -> Option<&mut [u8]>;

    /// Writes `len` bytes, at most [`LINE_DATA`], which are given as words; those for which there is no room
    /// are dropped.
    fn write_words(&mut self, len: usize, word: impl Fn(usize) -> u64);
}

impl Room for Region {
    #[inline(always)]
    fn len(&self) -> u64 {
        self.len() as u64
    }

    #[inline]
    fn as_piece(&mut self) -> Option<&mut [u8]> {
        Some(self.as_mut_slice())
    }

    #[inline(always)]
    fn write_words(&mut self, len: usize, word: impl Fn(usize) -> u64) {
        write_words(self.as_mut_slice(), len, word);
    }
}

impl Room for Buffer {
    #[inline]
    fn len(&self) -> u64 {
        self.len()
    }

    #[inline]
    fn as_piece(&mut self) -> Option<&mut [u8]> {
        match self {
            Buffer::Whole(bytes) => Some(bytes),
            Buffer::Lent(region) => Some(region.as_mut_slice()),
            _ => None,
        }
    }

    #[inline]
    fn write_words(&mut self, len: usize, word: impl Fn(usize) -> u64) {
        match self {
            Buffer::Whole(bytes) => write_words(bytes, len, word),
            Buffer::Lent(region) => write_words(region.as_mut_slice(), len, word),
            _ => {
                let mut data = [0; LINE_DATA];
                write_words(&mut data, len, word);
                self.write(0, &data[..len]);
            }
        }
    }
}

/// Writes the first bytes of a message, at most [`LINE_DATA`], which are given as words; those for which
/// there is no room are dropped.
#[inline(always)]
pub(super) fn write_words(out: &mut [u8], len: usize, word: impl Fn(usize) -> u64) {
    let len = len.min(out.len());
    let (whole, rest) = out[..len].as_chunks_mut::<8>();
    // A branch for each word costs less than a loop.
    for at in 0..LINE_DATA / 8 {
        let Some(part) = whole.get_mut(at) else { break };
        *part = word(at).to_le_bytes();
    }
    if !rest.is_empty() {
        let last = word(whole.len()).to_le_bytes();
        rest.iter_mut().zip(last).for_each(|(to, byte)| *to = byte);
    }
}

/// Where the bytes of a message come from, or go to.
///
/// The node owns it while the operation is under way, so that whoever polls, the watchdog included, may read
/// or write it.
#[derive(Debug, PartialEq, Eq)]
pub enum Buffer {
    /// In one piece.
    Whole(Vec<u8>),
    /// In several pieces, one after the other.
    Pieces(Vec<Vec<u8>>),
    /// In memory that the program has lent until the operation has ended.
    Lent(Region),
    /// To be sent, in several pieces that others read at the same time.
    Shared(Vec<Arc<Vec<u8>>>),
    /// Nowhere: received bytes are dropped, and bytes to be sent are with the caller, who waits.
    Absent,
}

impl Buffer {
    /// Returns how many bytes it has.
    #[inline]
    pub fn len(&self) -> u64 {
        match self {
            Buffer::Whole(bytes) => bytes.len() as u64,
            Buffer::Pieces(pieces) => pieces.iter().map(|piece| piece.len() as u64).sum(),
            Buffer::Lent(region) => region.len() as u64,
            Buffer::Shared(pieces) => pieces.iter().map(|piece| piece.len() as u64).sum(),
            Buffer::Absent => 0,
        }
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `each` with the parts of `len` bytes from `at` on, as far as there are any, and with how many
    /// bytes came before each part.
    fn for_each(&mut self, at: u64, len: usize, mut each: impl FnMut(usize, &mut [u8])) {
        match self {
            Buffer::Whole(bytes) => {
                let start = at.min(bytes.len() as u64) as usize;
                let end = start.saturating_add(len).min(bytes.len());
                each(0, &mut bytes[start..end]);
            }
            Buffer::Pieces(pieces) => {
                let mut cut = Cut { at, len, done: 0, before: 0 };
                for piece in pieces {
                    let (done, part) = cut.next(piece.len());
                    if !part.is_empty() {
                        each(done, &mut piece[part]);
                    }
                }
            }
            Buffer::Lent(region) => {
                let start = at.min(region.len() as u64) as usize;
                let end = start.saturating_add(len).min(region.len());
                each(0, &mut region.as_mut_slice()[start..end]);
            }
            Buffer::Shared(_) | Buffer::Absent => {}
        }
    }

    /// Writes bytes from `at` on; those for which there is no room are dropped.
    #[inline]
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) {
        self.for_each(at, bytes.len(), |done, part| part.copy_from_slice(&bytes[done..done + part.len()]));
    }

    /// As [`Buffer::write`], with `len` bytes that `fill` writes in place; it is told how many of them came
    /// before.
    pub(super) fn write_with(&mut self, at: u64, len: usize, fill: impl FnMut(usize, &mut [u8])) {
        self.for_each(at, len, fill);
    }

    /// Reads bytes from `at` on, all of which there are.
    pub(super) fn read(&mut self, at: u64, out: &mut [u8]) {
        if let Buffer::Lent(region) = self {
            return region.read(at as usize, out);
        }
        if let Buffer::Shared(pieces) = self {
            let mut cut = Cut { at, len: out.len(), done: 0, before: 0 };
            for piece in pieces {
                let (done, part) = cut.next(piece.len());
                out[done..done + part.len()].copy_from_slice(&piece[part]);
            }
            return;
        }
        self.for_each(at, out.len(), |done, part| out[done..done + part.len()].copy_from_slice(part));
    }
}

/// `len` bytes from `at` on of several pieces.
struct Cut {
    at: u64,
    len: usize,
    done: usize,
    /// Bytes of the pieces so far.
    before: u64,
}

impl Cut {
    /// The part of the next piece, which has `piece` bytes, and how many bytes come before that part.
    fn next(&mut self, piece: usize) -> (usize, Range<usize>) {
        let first = self.at + self.done as u64;
        let start = first.saturating_sub(self.before).min(piece as u64) as usize;
        let end = start.saturating_add(self.len - self.done).min(piece);
        let done = self.done;
        self.done += end - start;
        self.before += piece as u64;
        (done, start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes in pieces are the same as in one, wherever a part begins and ends; what has no room is dropped.
    #[test]
    fn pieces_equal_the_whole() {
        let bytes: Vec<u8> = (0..30).collect();
        let pieces = [0..7, 7..7, 7..8, 8..30].map(|part| bytes[part].to_vec());
        for at in 0..=30_u64 {
            for len in 0..=(30 - at) as usize {
                let mut out = vec![0; len];
                Buffer::Pieces(pieces.to_vec()).read(at, &mut out);
                assert_eq!(out, bytes[at as usize..at as usize + len]);
                let mut shared = vec![0; len];
                Buffer::Shared(pieces.iter().cloned().map(Arc::new).collect()).read(at, &mut shared);
                assert_eq!(shared, out);
                let mut into = Buffer::Pieces(pieces.iter().map(|piece| vec![0; piece.len()]).collect());
                into.write(at, &bytes[at as usize..at as usize + len]);
                let Buffer::Pieces(got) = into else { unreachable!() };
                let mut want = vec![0; 30];
                want[at as usize..at as usize + len].copy_from_slice(&out);
                assert_eq!(got.concat(), want);
            }
        }
        let mut short = Buffer::Whole(vec![0; 2]);
        short.write(1, &[5, 6, 7]);
        short.write(9, &[1]);
        assert_eq!((short.len(), short), (2, Buffer::Whole(vec![0, 5])));
    }
}
