//! Memory that two processes share. It is accessed only by atomic words and raw copies: any process that has
//! it mapped may change it at any time, so its contents are copied once and then checked (S-2).

#[cfg(loom)]
pub use modelled::{Lines, Segment, Word};
#[cfg(not(loom))]
pub use real::{Lines, Segment, Word};

/// The words of a cache line.
pub(crate) type Line = [crate::sync::AtomicU64; 8];

/// Checks a file's size against RLIMIT_FSIZE: the kernel ends a process that exceeds it by a signal.
#[cfg(not(loom))]
pub(crate) fn check_file_size(len: usize) -> std::io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if limit.is_some_and(|limit| len as u64 > limit) {
        let why = format!("{len} bytes exceed the limit on file sizes (ulimit -f)");
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, why));
    }
    Ok(())
}

/// Checks that a file is of ordinary pages. Other memory may not be there when it is read: more huge pages
/// can be promised than exist.
#[cfg(not(loom))]
pub(crate) fn check_kind(fd: &std::os::fd::OwnedFd) -> std::io::Result<()> {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    if rustix::fs::fstatfs(fd)?.f_type as i64 != TMPFS_MAGIC {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            "the memory does not consist of ordinary pages",
        ));
    }
    Ok(())
}

#[cfg(not(loom))]
mod real {
    use std::ffi::CStr;
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::ptr::NonNull;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use rustix::fs::{MemfdFlags, SealFlags};
    use rustix::mm::{Advice, MapFlags, ProtFlags};

    use super::Line;

    /// Anonymous memory of fixed size, which lives as long as a process has it open or mapped.
    #[derive(Debug)]
    pub struct Segment {
        at: NonNull<u8>,
        len: usize,
        fd: Option<OwnedFd>,
    }

    // SAFETY: the mapping is unmapped only by drop, and accessed only through atomics and raw copies, from
    // any thread.
    unsafe impl Send for Segment {}
    // SAFETY: as above; sharing it among threads adds nothing to sharing it among processes.
    unsafe impl Sync for Segment {}

    const PAGE: usize = 4096;

    /// The seals that keep the memory from being removed under a process that has it mapped.
    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

    impl Segment {
        /// Creates a segment of zeros.
        pub fn create(len: usize) -> io::Result<Segment> {
            Segment::create_with(len, true)
        }

        /// Creates a segment of zeros whose pages the kernel allocates when they are first touched, or by
        /// [`Segment::populate`].
        pub fn create_sparse(len: usize) -> io::Result<Segment> {
            Segment::create_with(len, false)
        }

        /// Maps a segment as [`Segment::attach`] does, without touching its pages, and closes the descriptor.
        pub fn attach_sparse(fd: OwnedFd, len: usize) -> io::Result<Segment> {
            let mut segment = Segment::attach_with(fd, len, false)?;
            segment.close_fd();
            Ok(segment)
        }

        /// Creates a segment; unless `populated`, the kernel allocates each page when it is first touched.
        pub(crate) fn create_with(len: usize, populated: bool) -> io::Result<Segment> {
            let fd = Segment::create_file(len, c"tautline")?;
            rustix::fs::fcntl_add_seals(&fd, SEALS)?;
            Segment::map(fd, len, (ProtFlags::READ | ProtFlags::WRITE, populated))
        }

        /// Creates a segment that has another name.
        pub(crate) fn create_named(len: usize, name: &CStr) -> io::Result<Segment> {
            let fd = Segment::create_file(len, name)?;
            rustix::fs::fcntl_add_seals(&fd, SEALS)?;
            Segment::map(fd, len, (ProtFlags::READ | ProtFlags::WRITE, true))
        }

        /// Creates a segment that this process alone can write, by this mapping.
        pub(crate) fn create_for_readers(len: usize, name: &CStr) -> io::Result<Segment> {
            let fd = Segment::create_file(len, name)?;
            let segment = Segment::map(fd, len, (ProtFlags::READ | ProtFlags::WRITE, true))?;
            rustix::fs::fcntl_add_seals(segment.fd(), SEALS | SealFlags::FUTURE_WRITE)?;
            Ok(segment)
        }

        fn create_file(len: usize, name: &CStr) -> io::Result<OwnedFd> {
            super::check_file_size(len)?;
            let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            rustix::fs::ftruncate(&fd, len as u64)?;
            Ok(fd)
        }

        /// Maps a segment that another process created.
        ///
        /// # Errors
        /// If it is not sealed, or does not have exactly `len` bytes: it could vanish later.
        pub fn attach(fd: OwnedFd, len: usize) -> io::Result<Segment> {
            Segment::attach_with(fd, len, true)
        }

        /// Maps a segment as [`Segment::attach`] does; see [`Segment::create_with`] for `populated`.
        pub(crate) fn attach_with(fd: OwnedFd, len: usize, populated: bool) -> io::Result<Segment> {
            Segment::check(&fd, len)?;
            Segment::map(fd, len, (ProtFlags::READ | ProtFlags::WRITE, populated))
        }

        fn check(fd: &OwnedFd, len: usize) -> io::Result<()> {
            let refuse = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why));
            // The seals first: only memory has them, and other files may not answer for ever.
            if !rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SEALS)) {
                return refuse("the segment is not sealed");
            }
            super::check_kind(fd)?;
            if rustix::fs::fstat(fd)?.st_size as u64 != len as u64 {
                return refuse("the segment has the wrong size");
            }
            Ok(())
        }

        /// Maps a segment read-only; a write there is a segmentation fault.
        pub(crate) fn attach_read_only(fd: OwnedFd, len: usize, populated: bool) -> io::Result<Segment> {
            Segment::check(&fd, len)?;
            Segment::map(fd, len, (ProtFlags::READ, populated))
        }

        fn map(fd: OwnedFd, len: usize, (protection, populated): (ProtFlags, bool)) -> io::Result<Segment> {
            let flags = MapFlags::SHARED;
            let flags = if populated { flags | MapFlags::POPULATE } else { flags };
            // SAFETY: a new mapping of a whole file, at an address that the kernel chooses; nothing else
            // refers to it.
            let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, &fd, 0)? };
            // SAFETY: the range is the mapping just made. A forked child does not need it, and must not write
            // to it.
            unsafe { rustix::mm::madvise(at, len, Advice::LinuxDontFork)? };
            let at = NonNull::new(at.cast()).expect("a mapping is never at address zero");
            Ok(Segment { at, len, fd: Some(fd) })
        }

        /// Allocates the pages of a range, and maps them: later accesses cause no page faults. Kernels before
        /// 5.14 leave that to the accesses.
        ///
        /// # Errors
        /// If there is no memory.
        ///
        /// # Panics
        /// If the range is not within the segment.
        pub fn populate(&self, at: usize, len: usize) -> io::Result<()> {
            assert!(at <= self.len && len <= self.len - at);
            let first = at & !(PAGE - 1);
            let len = at + len - first;
            // SAFETY: the range is within the mapping; its contents stay as they are.
            let populated = unsafe {
                rustix::mm::madvise(self.at.as_ptr().add(first).cast(), len, Advice::LinuxPopulateWrite)
            };
            match populated {
                Err(rustix::io::Errno::INVAL) => Ok(()),
                other => Ok(other?),
            }
        }

        /// Returns the descriptor, to be handed to the other process.
        ///
        /// # Panics
        /// If it was closed.
        pub fn fd(&self) -> BorrowedFd<'_> {
            self.fd.as_ref().expect("the descriptor was closed").as_fd()
        }

        /// Closes the descriptor. The memory lives as long as it is mapped.
        pub fn close_fd(&mut self) {
            self.fd = None;
        }

        /// Returns the address of the first byte.
        #[inline]
        pub(crate) fn base(&self) -> NonNull<u8> {
            self.at
        }

        /// Returns the number of bytes.
        #[inline]
        pub fn len(&self) -> usize {
            self.len
        }

        /// Whether the segment has no bytes.
        pub fn is_empty(&self) -> bool {
            self.len == 0
        }

        /// Returns the word at a byte offset.
        ///
        /// # Panics
        /// If the offset is not aligned, or not within the segment.
        #[inline(always)]
        pub fn word(&self, at: usize) -> &AtomicU64 {
            assert!(at.is_multiple_of(8) && at < self.len && self.len.is_multiple_of(8));
            // SAFETY: aligned (the mapping and the offset are) and within the mapping, which lives as long as
            // self; other processes may write an atomic at any time.
            unsafe { &*self.at.as_ptr().add(at).cast() }
        }

        /// Copies bytes into the segment.
        ///
        /// # Panics
        /// If they do not fit.
        #[inline]
        pub fn copy_in(&self, at: usize, bytes: &[u8]) {
            assert!(at <= self.len && bytes.len() <= self.len - at);
            // SAFETY: the range is within the mapping, and private memory does not overlap it. If another
            // process writes there meanwhile, the bytes are arbitrary, and any bytes are valid.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.as_ptr().add(at), bytes.len()) };
        }

        /// Copies bytes out of the segment.
        ///
        /// # Panics
        /// If the segment does not have as many.
        #[inline]
        pub fn copy_out(&self, at: usize, bytes: &mut [u8]) {
            assert!(at <= self.len && bytes.len() <= self.len - at);
            // SAFETY: as in `copy_in`, in the other direction.
            unsafe {
                std::ptr::copy_nonoverlapping(self.at.as_ptr().add(at), bytes.as_mut_ptr(), bytes.len());
            };
        }

        /// Prefetches the cache line at a byte offset; does nothing if it is not within the segment.
        #[inline(always)]
        pub fn prefetch(&self, at: usize) {
            #[cfg(target_arch = "x86_64")]
            if at < self.len {
                // SAFETY: a hint without effect on memory, for an address within the mapping.
                unsafe {
                    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                    _mm_prefetch::<_MM_HINT_T0>(self.at.as_ptr().add(at).cast());
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = at;
        }
    }

    /// Cache lines of a segment; their number is a power of two. Their bounds are checked once.
    #[derive(Debug)]
    pub struct Lines {
        at: NonNull<Line>,
        mask: usize,
        /// Keeps the lines mapped.
        _segment: Arc<Segment>,
    }

    // SAFETY: as for the segment; the lines are accessed only through atomics.
    unsafe impl Send for Lines {}
    // SAFETY: as above.
    unsafe impl Sync for Lines {}

    impl Lines {
        /// Refers to `count` lines at a byte offset.
        ///
        /// # Panics
        /// If they are not aligned, not a power of two, or not within the segment.
        pub fn new(segment: &Arc<Segment>, at: usize, count: usize) -> Lines {
            let len = count.checked_mul(size_of::<Line>()).expect("the lines fit the address space");
            assert!(count.is_power_of_two() && at.is_multiple_of(size_of::<Line>()));
            assert!(at <= segment.len && len <= segment.len - at, "within the segment");
            // SAFETY: within the mapping, as checked above.
            let at = unsafe { segment.at.add(at) }.cast();
            Lines { at, mask: count - 1, _segment: segment.clone() }
        }

        /// Returns a line by its number, modulo the number of lines.
        #[inline(always)]
        pub fn get(&self, number: u64) -> &Line {
            // SAFETY: `new` checked that all lines up to the mask are aligned and within the mapping, which
            // lives as long as self; other processes may write atomics at any time.
            unsafe { self.at.add(number as usize & self.mask).as_ref() }
        }

        /// Prefetches a line for reading.
        #[inline(always)]
        pub fn prefetch(&self, number: u64) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a hint without effect on memory, for an address within the mapping, as in `get`.
            unsafe {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T0>(self.at.add(number as usize & self.mask).as_ptr().cast());
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = number;
        }

        /// Prefetches a line for writing: a core that has it exclusively need not request it with the store.
        #[inline(always)]
        pub fn prefetch_for_write(&self, number: u64) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a hint without effect on memory, for an address within the mapping, as in `get`;
            // processors without the instruction ignore it.
            unsafe {
                let at = self.at.add(number as usize & self.mask).as_ptr();
                std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = number;
        }
    }

    /// A word of a segment. Its bounds are checked once.
    #[derive(Debug)]
    pub struct Word {
        at: NonNull<AtomicU64>,
        /// Keeps the word mapped.
        _segment: Arc<Segment>,
    }

    // SAFETY: as for the segment; the word is accessed only as an atomic.
    unsafe impl Send for Word {}
    // SAFETY: as above.
    unsafe impl Sync for Word {}

    impl Word {
        /// Refers to the word at a byte offset.
        ///
        /// # Panics
        /// If the offset is not aligned, or not within the segment.
        pub fn new(segment: &Arc<Segment>, at: usize) -> Word {
            Word { at: NonNull::from(segment.word(at)), _segment: segment.clone() }
        }

        /// Returns the word.
        #[inline(always)]
        pub fn get(&self) -> &AtomicU64 {
            // SAFETY: `new` checked that it is aligned and within the mapping, which lives as long as self;
            // other processes may write an atomic at any time.
            unsafe { self.at.as_ref() }
        }
    }

    impl Drop for Segment {
        fn drop(&mut self) {
            // SAFETY: the range is the mapping made in `map`, and nothing borrowed from self is left.
            unsafe {
                let _ = rustix::mm::munmap(self.at.as_ptr().cast(), self.len);
            }
        }
    }
}

#[cfg(loom)]
mod modelled {
    use super::Line;
    use crate::sync::{Arc, AtomicU64, Ordering};

    /// The same for loom, as atomic words; copies go word by word.
    #[derive(Debug)]
    pub struct Segment {
        words: Box<[AtomicU64]>,
    }

    impl Segment {
        pub fn create(len: usize) -> std::io::Result<Segment> {
            Ok(Segment { words: (0..len / 8).map(|_| AtomicU64::new(0)).collect() })
        }

        pub fn len(&self) -> usize {
            self.words.len() * 8
        }

        pub fn word(&self, at: usize) -> &AtomicU64 {
            &self.words[at / 8]
        }

        pub fn prefetch(&self, _: usize) {}

        pub fn populate(&self, _: usize, _: usize) -> std::io::Result<()> {
            Ok(())
        }

        pub fn copy_in(&self, at: usize, bytes: &[u8]) {
            for (i, part) in bytes.chunks(8).enumerate() {
                let mut word = [0; 8];
                word[..part.len()].copy_from_slice(part);
                self.words[at / 8 + i].store(u64::from_le_bytes(word), Ordering::Relaxed);
            }
        }

        pub fn copy_out(&self, at: usize, bytes: &mut [u8]) {
            for (i, part) in bytes.chunks_mut(8).enumerate() {
                let word = self.words[at / 8 + i].load(Ordering::Relaxed).to_le_bytes();
                part.copy_from_slice(&word[..part.len()]);
            }
        }
    }

    /// The same for loom.
    #[derive(Debug)]
    pub struct Lines {
        segment: Arc<Segment>,
        at: usize,
        mask: usize,
    }

    impl Lines {
        pub fn new(segment: &Arc<Segment>, at: usize, count: usize) -> Lines {
            assert!(count.is_power_of_two() && at + 64 * count <= segment.len());
            Lines { segment: segment.clone(), at, mask: count - 1 }
        }

        pub fn get(&self, number: u64) -> &Line {
            let at = (self.at + (number as usize & self.mask) * 64) / 8;
            self.segment.words[at..at + 8].try_into().expect("eight words")
        }

        pub fn prefetch(&self, _: u64) {}

        pub fn prefetch_for_write(&self, _: u64) {}
    }

    /// The same for loom.
    #[derive(Debug)]
    pub struct Word {
        segment: Arc<Segment>,
        at: usize,
    }

    impl Word {
        pub fn new(segment: &Arc<Segment>, at: usize) -> Word {
            assert!(at < segment.len());
            Word { segment: segment.clone(), at }
        }

        pub fn get(&self) -> &AtomicU64 {
            self.segment.word(self.at)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    /// S-1: two mappings share one memory; unsealed memory, and memory of another size, is refused.
    #[test]
    fn mappings_share_memory_and_bad_memory_is_refused() {
        let a = Segment::create(8192).unwrap();
        let b = Segment::attach(a.fd().try_clone_to_owned().unwrap(), 8192).unwrap();
        a.copy_in(100, b"over there");
        let mut got = [0; 10];
        b.copy_out(100, &mut got);
        assert_eq!(&got, b"over there");
        b.word(4096).store(7, Ordering::Release);
        assert_eq!(a.word(4096).load(Ordering::Acquire), 7);
        let again = a.fd().try_clone_to_owned().unwrap();
        assert!(Segment::attach(again, 4096).unwrap_err().to_string().contains("wrong size"));
        let bare = rustix::fs::memfd_create(c"bare", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&bare, 8192).unwrap();
        assert!(Segment::attach(bare, 8192).unwrap_err().to_string().contains("not sealed"));
        // A machine without huge pages cannot create such memory at all.
        use rustix::fs::{MemfdFlags, SealFlags};
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::ALLOW_SEALING;
        if let Ok(huge) = rustix::fs::memfd_create(c"huge", flags) {
            let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
            rustix::fs::fcntl_add_seals(&huge, seals).unwrap();
            assert!(Segment::attach(huge, 8192).unwrap_err().to_string().contains("ordinary pages"));
        }
    }

    #[test]
    fn line_numbers_wrap_around() {
        let segment = std::sync::Arc::new(Segment::create(4096).unwrap());
        let lines = Lines::new(&segment, 128, 4);
        lines.get(6)[3].store(9, Ordering::Relaxed);
        assert_eq!(segment.word(128 + 2 * 64 + 3 * 8).load(Ordering::Relaxed), 9);
    }

    #[test]
    #[should_panic = "within the segment"]
    fn lines_beyond_the_segment_panic() {
        let _ = Lines::new(&std::sync::Arc::new(Segment::create(4096).unwrap()), 4096 - 128, 4);
    }

    #[test]
    #[should_panic = "assertion failed"]
    fn reads_beyond_the_end_panic() {
        Segment::create(4096).unwrap().copy_out(4090, &mut [0; 8]);
    }
}
