//! Memory that peers may access: through threads of this process, and, when it is mapped, from other
//! processes.
//!
//! No reference to its bytes is ever formed. All accesses are by whole aligned words of eight bytes, each
//! moved at once; bytes that share a word with others are merged into it by compare-and-exchange. So no
//! reader sees a torn word, whoever writes it and however many bytes of it, and no other byte is written
//!

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Segment;

/// Bytes of a word.
pub const WORD: usize = 8;

/// A range that is not within the memory, or a word that is not aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange;

impl std::fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("out of range, or not aligned")
    }
}

impl std::error::Error for OutOfRange {}

/// Where the bytes are.
#[derive(Debug)]
enum Backing {
    /// In a segment, which other processes of this host can map.
    Segment(Segment),
    /// In a vector of the program.
    Adopted(Vec<u8>),
}

/// Owned memory that is read and written by copying.
///
/// `Send` and `Sync`: every access is atomic by words. Several words do not become visible at once; guard
/// them by a word that is written last ([`ApertureMemory::write_u64`] releases, [`ApertureMemory::read_u64`]
/// acquires).
#[derive(Debug)]
pub struct ApertureMemory {
    at: NonNull<AtomicU64>,
    len: usize,
    backing: Backing,
}

// SAFETY: the memory is freed only by drop and accessed only through atomic words, from any thread.
unsafe impl Send for ApertureMemory {}
// SAFETY: as above.
unsafe impl Sync for ApertureMemory {}

impl ApertureMemory {
    /// Allocates `len` bytes of zeros that peers on this host can map. Beyond 64 MiB the kernel allocates
    /// each page when it is first touched.
    ///
    /// # Errors
    /// If the system has no memory, or `len` exceeds the memory of this machine.
    pub fn allocate(len: usize) -> io::Result<ApertureMemory> {
        let whole = whole_pages(len)?;
        let segment = Segment::create_with(whole, whole <= POPULATED).map_err(|why| {
            io::Error::new(why.kind(), format!("cannot allocate {len} bytes of memory: {why}"))
        })?;
        Ok(ApertureMemory { at: segment.base().cast(), len, backing: Backing::Segment(segment) })
    }

    /// Maps memory that another process allocated with `len` bytes.
    pub fn attach(fd: OwnedFd, len: usize) -> io::Result<ApertureMemory> {
        let segment = Segment::attach_with(fd, whole_pages(len)?, len <= POPULATED)?;
        Ok(ApertureMemory { at: segment.base().cast(), len, backing: Backing::Segment(segment) })
    }

    /// Maps memory as [`ApertureMemory::attach`] does, read-only.
    pub fn attach_read_only(fd: OwnedFd, len: usize) -> io::Result<ApertureMemory> {
        let segment = Segment::attach_read_only(fd, whole_pages(len)?, len <= POPULATED)?;
        Ok(ApertureMemory { at: segment.base().cast(), len, backing: Backing::Segment(segment) })
    }

    /// Takes over memory of the program; [`ApertureMemory::into_vec`] returns it. Its capacity grows to whole
    /// words if needed, which may move it.
    ///
    /// # Errors
    /// If the memory does not start at a multiple of eight: its words could tear. The vector is returned.
    pub fn adopt(mut bytes: Vec<u8>) -> Result<ApertureMemory, Vec<u8>> {
        let len = bytes.len();
        bytes.resize(len.max(1).next_multiple_of(WORD), 0);
        let at =
            NonNull::new(bytes.as_mut_ptr()).expect("a vector is never at address zero").cast::<AtomicU64>();
        if !at.is_aligned() {
            bytes.truncate(len);
            return Err(bytes);
        }
        Ok(ApertureMemory { at, len, backing: Backing::Adopted(bytes) })
    }

    /// Returns adopted memory with its present contents; `None` if the memory was allocated here.
    pub fn into_vec(self) -> Option<Vec<u8>> {
        match self.backing {
            Backing::Segment(_) => None,
            Backing::Adopted(mut bytes) => {
                bytes.truncate(self.len);
                Some(bytes)
            }
        }
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the memory has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the descriptor by which other processes can map it; `None` if it was adopted.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            Backing::Segment(segment) => Some(segment.fd()),
            Backing::Adopted(_) => None,
        }
    }

    #[inline]
    fn check(&self, at: usize, len: usize) -> Result<(), OutOfRange> {
        if at <= self.len && len <= self.len - at { Ok(()) } else { Err(OutOfRange) }
    }

    /// Returns the word that contains the byte at an offset, which must be within the memory.
    #[inline(always)]
    fn word_holding(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at < self.len);
        // SAFETY: the memory consists of whole words up to the one with its last byte, lives as long as self,
        // and is accessed only by atomics of this size; the caller has checked the offset.
        unsafe { self.at.add(at / WORD).as_ref() }
    }

    #[inline]
    fn word(&self, at: usize) -> Result<&AtomicU64, OutOfRange> {
        self.check(at, WORD)?;
        if at.is_multiple_of(WORD) { Ok(self.word_holding(at)) } else { Err(OutOfRange) }
    }

    /// Copies bytes in. Whole words become visible at once each, in order of their addresses.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.check(at, bytes.len())?;
        if bytes.len() == WORD && at.is_multiple_of(WORD) {
            self.word_holding(at).store(word_of(bytes), Ordering::Release);
            return Ok(());
        }
        self.write_any(at, bytes);
        Ok(())
    }

    #[inline]
    fn write_any(&self, at: usize, bytes: &[u8]) {
        // SAFETY: the caller has checked the range, which does not overlap private memory.
        unsafe { self.write_raw(at, bytes.as_ptr(), bytes.len()) };
    }

    /// Copies bytes in from memory that others may write meanwhile: the bytes are arbitrary then, but this
    /// side tears no word.
    ///
    /// # Safety
    /// `len` bytes are readable at `from`, and they do not overlap this memory.
    #[inline]
    pub(crate) unsafe fn write_from(&self, at: usize, from: *const u8, len: usize) -> Result<(), OutOfRange> {
        self.check(at, len)?;
        // SAFETY: checked here, and by the caller.
        unsafe { self.write_raw(at, from, len) };
        Ok(())
    }

    /// Copies bytes in, by whole words.
    ///
    /// # Safety
    /// The range is within this memory; `len` bytes are readable at `from`, and they do not overlap it.
    unsafe fn write_raw(&self, mut at: usize, mut from: *const u8, mut len: usize) {
        let few = |from: *const u8, len: usize| {
            let mut bytes = [0u8; WORD];
            // SAFETY: it is called for up to seven of the readable bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len) };
            bytes
        };
        let before = ((WORD - at % WORD) % WORD).min(len);
        if before > 0 {
            self.merge(at, &few(from, before)[..before]);
            // SAFETY: at least as many bytes are readable.
            from = unsafe { from.add(before) };
            (at, len) = (at + before, len - before);
        }
        let words = len / WORD;
        if words >= BULK_WORDS {
            // SAFETY: the range was checked, is aligned, and does not overlap the source.
            unsafe { copy_words_in(from.cast(), self.at.as_ptr().add(at / WORD).cast(), words) };
        } else {
            for i in 0..words {
                // SAFETY: as many words are readable, at any alignment; any bytes are a word.
                let word = unsafe { from.cast::<u64>().add(i).read_unaligned() };
                self.word_holding(at + i * WORD).store(u64::from_le(word), Ordering::Relaxed);
            }
        }
        let rest = len - words * WORD;
        if rest > 0 {
            // SAFETY: the last of the readable bytes.
            let last = few(unsafe { from.add(words * WORD) }, rest);
            self.merge(at + words * WORD, &last[..rest]);
        }
        // A reader that learns of this write through a later one sees it.
        std::sync::atomic::fence(Ordering::Release);
    }

    /// Writes some bytes of a word.
    fn merge(&self, at: usize, bytes: &[u8]) {
        let shift = 8 * (at % WORD);
        let mask = (u64::MAX >> (64 - 8 * bytes.len())) << shift;
        let new = word_of(bytes) << shift;
        let word = self.word_holding(at);
        let mut old = word.load(Ordering::Relaxed);
        while let Err(now) =
            word.compare_exchange_weak(old, old & !mask | new, Ordering::Release, Ordering::Relaxed)
        {
            old = now;
        }
    }

    /// Copies bytes out.
    #[inline]
    pub fn read(&self, at: usize, out: &mut [u8]) -> Result<(), OutOfRange> {
        self.check(at, out.len())?;
        if out.len() == WORD && at.is_multiple_of(WORD) {
            out.copy_from_slice(&self.word_holding(at).load(Ordering::Acquire).to_le_bytes());
            return Ok(());
        }
        self.read_any(at, out);
        Ok(())
    }

    fn read_any(&self, mut at: usize, mut out: &mut [u8]) {
        std::sync::atomic::fence(Ordering::Acquire);
        let before = (WORD - at % WORD) % WORD;
        if before > 0 && !out.is_empty() {
            let len = before.min(out.len());
            let (part, rest) = out.split_at_mut(len);
            self.read_part(at, part);
            (at, out) = (at + len, rest);
        }
        let (words, rest) = out.as_chunks_mut::<WORD>();
        if words.len() >= BULK_WORDS {
            // SAFETY: the range was checked, is aligned, and does not overlap private memory.
            unsafe {
                copy_words(self.at.as_ptr().add(at / WORD).cast(), words.as_mut_ptr().cast(), words.len());
            };
        } else {
            for (i, word) in words.iter_mut().enumerate() {
                *word = self.word_holding(at + i * WORD).load(Ordering::Relaxed).to_le_bytes();
            }
        }
        if !rest.is_empty() {
            self.read_part(at + words.len() * WORD, rest);
        }
    }

    /// Reads some bytes of a word.
    fn read_part(&self, at: usize, out: &mut [u8]) {
        let word = self.word_holding(at).load(Ordering::Acquire).to_le_bytes();
        let from = at % WORD;
        out.copy_from_slice(&word[from..from + out.len()]);
    }

    /// Reads an aligned word, with acquire ordering.
    #[inline]
    pub fn read_u64(&self, at: usize) -> Result<u64, OutOfRange> {
        Ok(u64::from_le(self.word(at)?.load(Ordering::Acquire)))
    }

    /// Writes an aligned word, with release ordering.
    #[inline]
    pub fn write_u64(&self, at: usize, value: u64) -> Result<(), OutOfRange> {
        self.word(at)?.store(value.to_le(), Ordering::Release);
        Ok(())
    }

    /// Stores `new` in an aligned word if it holds `expected`; returns the old value.
    #[inline]
    pub fn compare_exchange(&self, at: usize, expected: u64, new: u64) -> Result<u64, OutOfRange> {
        let word = self.word(at)?;
        let (expected, new) = (expected.to_le(), new.to_le());
        let old = word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
        Ok(u64::from_le(old.unwrap_or_else(|old| old)))
    }

    /// Adds to an aligned word, wrapping around; returns the old value.
    #[inline]
    pub fn fetch_add(&self, at: usize, value: u64) -> Result<u64, OutOfRange> {
        let word = self.word(at)?;
        let add = |old| Some(u64::from_le(old).wrapping_add(value).to_le());
        Ok(u64::from_le(
            word.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).unwrap_or_else(|old| old),
        ))
    }

    /// Stores a value in an aligned word; returns the old value.
    #[inline]
    pub fn swap(&self, at: usize, value: u64) -> Result<u64, OutOfRange> {
        Ok(u64::from_le(self.word(at)?.swap(value.to_le(), Ordering::AcqRel)))
    }
}

impl Segment {
    /// Copies `len` bytes out of the segment to an aperture, by whole words.
    ///
    /// # Panics
    /// If the segment does not have as many.
    #[inline]
    pub fn copy_to(
        &self,
        at: usize,
        len: usize,
        (to, place): (&ApertureMemory, usize),
    ) -> Result<(), OutOfRange> {
        assert!(at <= self.len() && len <= self.len() - at);
        // SAFETY: the range is within the mapping, which does not overlap the aperture's. If another process
        // writes there meanwhile, the bytes are arbitrary, and any bytes are valid.
        unsafe { to.write_from(place, self.base().as_ptr().add(at), len) }
    }
}

/// The number of words from which on a bulk copy is faster than one by one, where the processor has one.
const BULK_WORDS: usize = if cfg!(target_arch = "x86_64") { 48 } else { usize::MAX };
/// The number of words from which on `rep movsq` is the fastest.
#[cfg(target_arch = "x86_64")]
const REP_WORDS: usize = 256;

/// Copies whole words, each moved at once on the aligned side; others may write either side meanwhile. Later
/// accesses are not moved before it.
///
/// # Safety
/// Both ranges are valid for `words` words and do not overlap. The side that is not private memory is
/// aligned.
#[inline]
unsafe fn copy_words(from: *const u64, to: *mut u64, words: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller guarantees the ranges. Aligned quadwords are loaded and stored at once; the
    // direction flag is clear, as the ABI demands. The compiler must assume that this accesses any memory.
    unsafe {
        std::arch::asm!(
            "rep movsq",
            inout("rcx") words => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{words} words from {from:?} to {to:?} must be copied one by one");
}

/// Copies whole words as [`copy_words`] does, to shared memory: one cache line per iteration, so that several
/// are in flight.
///
/// # Safety
/// As for [`copy_words`]; `to` is aligned.
#[inline]
unsafe fn copy_words_in(mut from: *const u64, mut to: *mut u64, mut words: usize) {
    #[cfg(target_arch = "x86_64")]
    if words < REP_WORDS && std::is_x86_feature_detected!("avx") {
        // SAFETY: the caller guarantees the ranges, and this stays within them: one word if needed, so that
        // stores are aligned to 16 bytes, then whole lines. Processors with AVX store 16 aligned bytes at
        // once, and so the two words in them.
        unsafe {
            if !to.addr().is_multiple_of(16) {
                copy_words(from, to, 1);
                (from, to, words) = (from.add(1), to.add(1), words - 1);
            }
            let lines = words / 8;
            if lines > 0 {
                std::arch::asm!(
                    "2:",
                    "movups {a}, [{from}]",
                    "movups {b}, [{from} + 16]",
                    "movups {c}, [{from} + 32]",
                    "movups {d}, [{from} + 48]",
                    "movaps [{to}], {a}",
                    "movaps [{to} + 16], {b}",
                    "movaps [{to} + 32], {c}",
                    "movaps [{to} + 48], {d}",
                    "add {from}, 64",
                    "add {to}, 64",
                    "dec {lines}",
                    "jnz 2b",
                    from = inout(reg) from,
                    to = inout(reg) to,
                    lines = inout(reg) lines => _,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    options(nostack)
                );
            }
            words %= 8;
        }
    }
    if words > 0 {
        // SAFETY: the rest of the ranges.
        unsafe { copy_words(from, to, words) };
    }
}

/// Returns up to eight bytes as a word, the first one lowest.
#[inline(always)]
fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; WORD];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Memory up to this size is allocated at once, so that nobody waits for it later. Larger memory is allocated
/// as it is touched: it may never be needed.
const POPULATED: usize = 64 << 20;

/// Returns `len` rounded up to whole pages. An error if the machine has less memory: the kernel would kill a
/// process that touched all of it, or another one.
fn whole_pages(len: usize) -> io::Result<usize> {
    let info = rustix::system::sysinfo();
    let unit = u64::from(info.mem_unit.max(1));
    let most = (info.totalram as u64).saturating_add(info.totalswap as u64).saturating_mul(unit);
    let whole = len.max(1).checked_next_multiple_of(rustix::param::page_size());
    whole.filter(|whole| *whole as u64 <= most).ok_or_else(|| {
        let why = format!("{len} bytes exceed the memory of this machine, which has {most}");
        io::Error::new(io::ErrorKind::OutOfMemory, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Large memory is allocated as it is touched, also by a process that maps it; more than the machine has
    /// is an error that says so.
    #[test]
    fn large_memory_is_allocated_as_it_is_touched() {
        let taken =
            |memory: &ApertureMemory| rustix::fs::fstat(memory.fd().unwrap()).unwrap().st_blocks * 512;
        let short = ApertureMemory::allocate(1 << 20).unwrap();
        assert!(taken(&short) >= 1 << 20, "{}", taken(&short));
        let len = POPULATED + 1;
        let long = ApertureMemory::allocate(len).unwrap();
        let fd = || long.fd().unwrap().try_clone_to_owned().unwrap();
        let (mapped, read) = (
            ApertureMemory::attach(fd(), len).unwrap(),
            ApertureMemory::attach_read_only(fd(), len).unwrap(),
        );
        assert_eq!(taken(&long), 0);
        long.write(len - 1, &[7]).unwrap();
        let mut last = [[0]; 2];
        mapped.read(len - 1, &mut last[0]).unwrap();
        read.read(len - 1, &mut last[1]).unwrap();
        assert_eq!(last, [[7]; 2]);
        assert!((1..1 << 22).contains(&taken(&long)), "{}", taken(&long));
        for len in [usize::MAX, isize::MAX as usize, 1 << 62] {
            let why = ApertureMemory::allocate(len).unwrap_err().to_string();
            assert!(why.contains("exceed the memory of this machine"), "{why}");
        }
    }

    /// for all offsets and lengths, reads return what was written, and no other byte changes.
    #[test]
    fn copies_are_exact() {
        for memory in [ApertureMemory::allocate(61).unwrap(), ApertureMemory::adopt(vec![0; 61]).unwrap()] {
            let mut model = [0u8; 61];
            let mut state = 1u64;
            for step in 0..20_000u64 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
                let at = (state >> 33) as usize % 62;
                let len = (state >> 43) as usize % (62 - at);
                let bytes: Vec<u8> = (0..len).map(|i| (state >> (i % 7)) as u8).collect();
                memory.write(at, &bytes).unwrap();
                model[at..at + len].copy_from_slice(&bytes);
                let from = (state >> 20) as usize % 62;
                let mut got = vec![0; (state >> 50) as usize % (62 - from)];
                memory.read(from, &mut got).unwrap();
                assert_eq!(got, model[from..from + got.len()]);
            }
        }
    }

    /// neither bytes beyond the end nor unaligned words can be accessed.
    #[test]
    fn accesses_out_of_range_fail() {
        let memory = ApertureMemory::adopt(vec![7; 20]).unwrap();
        assert_eq!(memory.write(20, &[]), Ok(()));
        assert_eq!(memory.write(19, &[1, 2]), Err(OutOfRange));
        assert_eq!(memory.read(usize::MAX, &mut [0]), Err(OutOfRange));
        assert_eq!(memory.read_u64(4), Err(OutOfRange));
        assert_eq!(memory.read_u64(16), Err(OutOfRange));
        assert_eq!(memory.swap(usize::MAX - 7, 1), Err(OutOfRange));
        assert_eq!(memory.into_vec(), Some(vec![7; 20]));
    }

    #[test]
    fn atomic_operations_on_words() {
        let memory = ApertureMemory::allocate(16).unwrap();
        memory.write(8, &5u64.to_le_bytes()).unwrap();
        assert_eq!(memory.compare_exchange(8, 4, 9), Ok(5));
        assert_eq!(memory.compare_exchange(8, 5, 9), Ok(5));
        assert_eq!(memory.fetch_add(8, u64::MAX), Ok(9));
        assert_eq!(memory.swap(8, 1), Ok(8));
        assert_eq!(memory.read_u64(8), Ok(1));
        let mapped = ApertureMemory::attach(memory.fd().unwrap().try_clone_to_owned().unwrap(), 16).unwrap();
        mapped.write_u64(0, 77).unwrap();
        assert_eq!(memory.read_u64(0), Ok(77));
    }

    /// no word tears in a long copy, in or out.
    #[test]
    fn long_copies_do_not_tear() {
        let memory = ApertureMemory::allocate(8192).unwrap();
        let rounds = if cfg!(debug_assertions) { 5_000 } else { 100_000u32 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..rounds {
                    let bytes = [if i % 2 == 0 { 0 } else { 0xff }; 4096];
                    // Whole words first; then a range whose first and last words are partial.
                    memory.write(8, &bytes[..2048 + 8 * (i as usize % 200)]).unwrap();
                    memory.write(5, &bytes[..2048]).unwrap();
                }
            });
            let mut got = [0; 2000];
            for i in 0..rounds {
                memory.read(8 * (1 + i as usize % 3), &mut got).unwrap();
                let torn = got.as_chunks::<8>().0.iter().find(|word| word.iter().any(|b| *b != word[0]));
                assert_eq!(torn, None);
            }
        });
    }

    /// a reader never sees half of a word, whether it is written alone, among others, or by bytes next
    /// to others.
    #[test]
    fn words_do_not_tear() {
        let memory = ApertureMemory::adopt(vec![0; 64]).unwrap();
        let rounds = if cfg!(debug_assertions) { 200_000 } else { 2_000_000u64 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..rounds {
                    let word = if i % 2 == 0 { [0; 8] } else { [0xff; 8] };
                    match i % 3 {
                        0 => memory.write(8, &word).unwrap(),
                        1 => memory.write(3, &[word, word].concat()).unwrap(),
                        _ => memory.write(8, &[word, word, word].concat()).unwrap(),
                    }
                    // The next word is written in part.
                    memory.write(16, &word[..3]).unwrap();
                }
            });
            scope.spawn(|| (0..rounds).for_each(|i| memory.write(19, &[i as u8; 5]).unwrap()));
            for _ in 0..rounds {
                let mut got = [0; 24];
                memory.read(8, &mut got).unwrap();
                // A write at offset 3 also covers this word with bytes of one value: five of one word and
                // three of the next.
                let word = &got[..8];
                assert!(word.iter().all(|b| *b == word[0]), "torn: {word:?}");
            }
        });
    }
}
