//! The content of messages, and the account of what each side wrote and read.
//!
//! Every message differs from the one before it in all its bytes, with its number at both ends. A sender
//! rewrites its whole buffer for each message; a receiver reads every byte and compares the sum with that of
//! the message of this number. Each process keeps an account of what it wrote and read, so that whoever
//! compares the two accounts detects a sender that resends an old buffer, a receiver that does not read, and
//! a driver that does not use this module at all.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

/// The source shifts by up to this before it repeats. A multiple of eight.
const SHIFT: usize = 4096;

/// Bytes, and the sum of their words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many bytes.
    pub bytes: u64,
    /// The wrapping sum of their little-endian words.
    pub sum: u64,
}

impl Tally {
    #[inline]
    fn add(self, bytes: usize, sum: u64) -> Self {
        Self { bytes: self.bytes + bytes as u64, sum: self.sum.wrapping_add(sum) }
    }
}

/// What this process wrote to send it, and what it read of what it received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Messages written to be sent, each counted once.
    pub written: Tally,
    /// Messages received and read.
    pub read: Tally,
}

/// The sums of the patterns that were dropped since the account was last taken.
static ACCOUNT: Mutex<Account> = Mutex::new(Account { written: EMPTY, read: EMPTY });

/// Returns the account of this process since the last call, and begins a new one. What a [`Pattern`] counted
/// is in it once the pattern is dropped.
pub fn take_account() -> Account {
    let words = WORDS.take();
    let all = std::mem::take(&mut *ACCOUNT.lock().unwrap_or_else(PoisonError::into_inner));
    Account {
        written: all.written.add(words.written.bytes as usize, words.written.sum),
        read: all.read.add(words.read.bytes as usize, words.read.sum),
    }
}

thread_local! {
    /// The account of this thread's [`make_words`] and [`read_words`].
    static WORDS: Cell<Account> = const { Cell::new(Account { written: EMPTY, read: EMPTY }) };
}

const EMPTY: Tally = Tally { bytes: 0, sum: 0 };

/// Makes message `number` of `len` words, for systems that send values and not bytes.
#[must_use]
pub fn make_words(number: u64, len: usize) -> Vec<u64> {
    let mut account = WORDS.get();
    account.written = account.written.add(8 * len, number.wrapping_mul(len as u64));
    WORDS.set(account);
    let skips = SABOTAGE.load(Ordering::Relaxed) == Sabotage::SkipWriting as u8;
    vec![if skips { 0 } else { number }; len]
}

/// Reads every word of a message; returns its number if all of them agree.
#[must_use]
pub fn read_words(words: &[u64]) -> Option<u64> {
    let number = words.first().copied().unwrap_or(0);
    if SABOTAGE.load(Ordering::Relaxed) == Sabotage::SkipReading as u8 {
        return Some(number);
    }
    let sum = words.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word));
    let mut account = WORDS.get();
    account.read = account.read.add(8 * words.len(), sum);
    WORDS.set(account);
    words.iter().all(|word| *word == number).then_some(number)
}

/// Whether a fault is injected: then wrong content is no error at once.
#[must_use]
pub fn is_sabotaged() -> bool {
    SABOTAGE.load(Ordering::Relaxed) != 0
}

/// A fault that tests inject, to show that it is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Senders leave their buffers as they are.
    SkipWriting = 1,
    /// Receivers do not look at what they received.
    SkipReading = 2,
}

static SABOTAGE: AtomicU8 = AtomicU8::new(0);

/// Injects a fault into every [`Pattern`] that this process makes from now on.
pub fn sabotage(fault: Sabotage) {
    SABOTAGE.store(fault as u8, Ordering::Relaxed);
}

/// Writes and reads the messages of one size.
#[derive(Debug)]
pub struct Pattern {
    source: Vec<u8>,
    /// The sum of the source's words before each of them.
    sums: Vec<u64>,
    bytes: usize,
    sabotage: u8,
    account: Cell<Account>,
}

impl Drop for Pattern {
    fn drop(&mut self) {
        let ours = self.account.get();
        let mut all = ACCOUNT.lock().unwrap_or_else(PoisonError::into_inner);
        all.written = all.written.add(ours.written.bytes as usize, ours.written.sum);
        all.read = all.read.add(ours.read.bytes as usize, ours.read.sum);
    }
}

impl Pattern {
    /// Messages of `bytes` bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let words = (bytes + SHIFT).div_ceil(8);
        let (mut source, mut sums, mut sum) =
            (Vec::with_capacity(8 * words), Vec::with_capacity(words + 1), 0_u64);
        for _ in 0..words {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            source.extend_from_slice(&state.to_le_bytes());
            sums.push(sum);
            sum = sum.wrapping_add(state);
        }
        sums.push(sum);
        let sabotage = SABOTAGE.load(Ordering::Relaxed);
        Self { source, sums, bytes, sabotage, account: Cell::default() }
    }

    /// Fills a buffer without making a message of it.
    pub fn prime(&self, buf: &mut [u8]) {
        buf.copy_from_slice(&self.source[..buf.len()]);
    }

    /// Rewrites the whole buffer as message `number`.
    #[inline]
    pub fn write(&self, number: u64, buf: &mut [u8]) {
        self.write_part(number, 0, buf);
    }

    /// Writes the part of message `number` that begins `at` bytes from its start. The message counts as
    /// written when its last byte is.
    #[inline]
    pub fn write_part(&self, number: u64, at: usize, part: &mut [u8]) {
        if at + part.len() == self.bytes {
            self.wrote(number);
        }
        self.write_again(number, at, part);
    }

    /// Writes a part of a message that has already been counted, to send it again.
    #[inline]
    pub fn write_again(&self, number: u64, at: usize, part: &mut [u8]) {
        if self.sabotage == Sabotage::SkipWriting as u8 {
            return;
        }
        let stamp = number.to_le_bytes();
        if let (0, Ok(word)) = (at, <&mut [u8; 8]>::try_from(&mut *part)) {
            *word = stamp;
            return;
        }
        let from = shift(number) + at;
        part.copy_from_slice(&self.source[from..from + part.len()]);
        if at < 8 {
            overlay(&stamp, 0, at, part);
        }
        if self.bytes >= 16 && at + part.len() > self.bytes - 8 {
            overlay(&stamp, self.bytes - 8, at, part);
        }
    }

    /// Returns message `number` of eight bytes.
    #[inline]
    pub fn word(&self, number: u64) -> u64 {
        self.wrote_word(number);
        // A stale word would stall whoever watches it for a change; a wrong one is detected as well.
        if self.sabotage == Sabotage::SkipWriting as u8 { number ^ 1 << 40 } else { number }
    }

    /// Reads every byte of message `number`, and checks that it is what was sent.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if it is not.
    #[inline]
    pub fn check(&self, number: u64, message: &[u8]) -> io::Result<()> {
        if self.sabotage == Sabotage::SkipReading as u8 {
            return Ok(());
        }
        let sum = sum(message);
        let right = message.len() == self.bytes && sum == self.expected(number) && has_ends(number, message);
        self.judge(right, number, message.len(), sum)
    }

    /// Checks the two ends of message `number`, and reads no more of it.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if it is not what was sent.
    pub fn check_ends(&self, number: u64, message: &[u8]) -> io::Result<()> {
        if has_ends(number, message) || self.sabotage == Sabotage::SkipReading as u8 {
            return Ok(());
        }
        Err(wrong(number, message.len()))
    }

    /// Reads every byte of a part of some message; the part begins at a multiple of eight bytes.
    pub fn read_part(&self, part: &[u8]) {
        if self.sabotage != Sabotage::SkipReading as u8 {
            self.was_read(part.len(), sum(part));
        }
    }

    /// Reads a message of eight bytes whose number is not known beforehand.
    #[inline]
    pub fn read_word(&self, word: u64) {
        if self.sabotage != Sabotage::SkipReading as u8 {
            self.was_read(8, word);
        }
    }

    /// Reads message `number` of eight bytes, and checks that it is what was sent.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if it is not.
    #[inline]
    pub fn check_word(&self, number: u64, word: u64) -> io::Result<()> {
        if self.sabotage == Sabotage::SkipReading as u8 {
            return Ok(());
        }
        self.judge(word == number, number, 8, word)
    }

    /// Counts a message that was read. A wrong one is an error and does not count, except that an injected
    /// fault is left to whoever compares the accounts.
    #[inline]
    fn judge(&self, right: bool, number: u64, len: usize, sum: u64) -> io::Result<()> {
        if !right && self.sabotage == 0 {
            return Err(wrong(number, len));
        }
        self.was_read(len, sum);
        Ok(())
    }

    #[inline]
    fn wrote(&self, number: u64) {
        let sum = if self.bytes == 8 { number } else { self.expected(number) };
        let before = self.account.get();
        self.account.set(Account { written: before.written.add(self.bytes, sum), ..before });
    }

    #[inline]
    fn wrote_word(&self, number: u64) {
        let before = self.account.get();
        self.account.set(Account { written: before.written.add(8, number), ..before });
    }

    #[inline]
    fn was_read(&self, bytes: usize, sum: u64) {
        let before = self.account.get();
        self.account.set(Account { read: before.read.add(bytes, sum), ..before });
    }

    /// The sum of message `number`.
    #[inline]
    fn expected(&self, number: u64) -> u64 {
        let (bytes, from) = (self.bytes, shift(number));
        if bytes < 8 {
            let mut stamp = number.to_le_bytes();
            stamp[bytes..].fill(0);
            return u64::from_le_bytes(stamp);
        }
        let first = from / 8;
        let mut sum = self.sums[first + bytes / 8].wrapping_sub(self.sums[first]);
        let message = &self.source[from..from + bytes];
        sum = sum.wrapping_add(tail(message));
        // The number replaces what is in the source at both ends.
        let mut replace = |at: usize| {
            let mut old = [0; 8];
            old.copy_from_slice(&message[at..at + 8]);
            sum = sum.wrapping_sub(placed(u64::from_le_bytes(old), at)).wrapping_add(placed(number, at));
        };
        replace(0);
        if bytes >= 16 {
            replace(bytes - 8);
        }
        sum
    }
}

fn wrong(number: u64, len: usize) -> io::Error {
    let text = format!("message {number} of {len} bytes is not what was sent");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[inline]
fn shift(number: u64) -> usize {
    (number as usize * 8) % SHIFT
}

/// What eight bytes that begin at `at` add to the sum of the words of their message.
#[inline]
fn placed(word: u64, at: usize) -> u64 {
    match 8 * (at % 8) as u32 {
        0 => word,
        bits => (word << bits).wrapping_add(word >> (64 - bits)),
    }
}

/// The last, incomplete word.
#[inline]
fn tail(message: &[u8]) -> u64 {
    let (_, rest) = message.as_chunks::<8>();
    let mut word = [0; 8];
    word[..rest.len()].copy_from_slice(rest);
    u64::from_le_bytes(word)
}

/// Reads every byte: the sum of the words.
#[inline]
fn sum(message: &[u8]) -> u64 {
    let (words, _) = message.as_chunks::<8>();
    words.iter().fold(tail(message), |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

/// Writes the overlap of a stamp, which belongs at `place`, with a part that begins at `at`.
fn overlay(stamp: &[u8; 8], place: usize, at: usize, part: &mut [u8]) {
    let (first, last) = (place.max(at), (place + 8).min(at + part.len()));
    if first < last {
        part[first - at..last - at].copy_from_slice(&stamp[first - place..last - place]);
    }
}

/// Whether both ends carry this number.
#[inline]
fn has_ends(number: u64, message: &[u8]) -> bool {
    let stamp = number.to_le_bytes();
    let len = message.len();
    let head = len.min(8);
    message[..head] == stamp[..head] && (len < 16 || message[len - 8..] == stamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 12] = [0, 1, 7, 8, 9, 15, 16, 17, 23, 100, 4096, 5001];

    #[test]
    fn a_message_matches_its_number_only() {
        for len in SIZES {
            let pattern = Pattern::new(len);
            let mut buf = vec![0; len];
            for number in [0, 7, 511, 512, 70_000] {
                pattern.write(number, &mut buf);
                pattern.check(number, &buf).unwrap();
                assert_eq!(pattern.check(number + 1, &buf).is_ok(), len == 0, "{len} bytes");
                assert_eq!(pattern.check(number + 512, &buf).is_ok(), len == 0 || (len == 1), "{len} bytes");
            }
        }
    }

    #[test]
    fn every_byte_counts() {
        for len in SIZES {
            let pattern = Pattern::new(len);
            let mut buf = vec![0; len];
            pattern.write(9, &mut buf);
            for i in 0..len {
                buf[i] ^= 0x10;
                assert!(pattern.check(9, &buf).is_err(), "byte {i} of {len}");
                buf[i] ^= 0x10;
            }
        }
    }

    #[test]
    fn parts_equal_the_whole() {
        for bytes in SIZES {
            let pattern = Pattern::new(bytes);
            let mut whole = vec![0; bytes];
            pattern.write(777, &mut whole);
            for part in [1, 3, 7, 64] {
                let mut pieced = vec![0; bytes];
                for (i, room) in pieced.chunks_mut(part).enumerate() {
                    pattern.write_part(777, i * part, room);
                }
                assert_eq!(pieced, whole, "{bytes} by {part}");
            }
        }
    }

    #[test]
    fn what_is_written_and_what_is_read_have_the_same_sum() {
        for bytes in SIZES {
            let (sender, receiver) = (Pattern::new(bytes), Pattern::new(bytes));
            let mut buf = vec![0; bytes];
            for number in 0..600 {
                sender.write(number, &mut buf);
                receiver.check(number, &buf).unwrap();
            }
            let (sent, received) = (sender.account.get(), receiver.account.get());
            assert_eq!((sent.written, sent.read), (received.read, received.written), "{bytes}");
            assert_eq!(sent.written.bytes, 600 * bytes as u64);
        }
    }

    #[test]
    fn a_part_that_is_read_counts_as_much_as_in_the_whole() {
        let (whole, parts) = (Pattern::new(100), Pattern::new(100));
        let mut buf = vec![0; 100];
        whole.write(3, &mut buf);
        buf.chunks(24).for_each(|part| parts.read_part(part));
        assert_eq!(parts.account.get().read, whole.account.get().written);
    }
}
