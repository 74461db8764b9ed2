//! The memory that AF_XDP sends from and receives into: one mapping, pinned by the kernel.
//!
//! The front belongs to arenas, which send from it; the rest is chunks that frames arrive in. A chunk has one
//! owner at a time, the fill ring, the kernel, or a batch that reads from it. The owner has a token
//! ([`Chunk`]) that can be neither copied nor created elsewhere.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tautline_mem::Arena;

/// The size of a huge page on x86-64 and most others; machines with another size get ordinary pages.
const HUGE_PAGE: usize = 2 << 20;

/// The mapping, and the chunks that were returned by batches that were dropped or cleared.
#[derive(Debug)]
pub(crate) struct Umem {
    base: NonNull<u8>,
    len: usize,
    chunk: usize,
    /// The offset of the chunks to receive into.
    chunks_at: usize,
    huge: bool,
    returned: Mutex<Vec<Chunk>>,
    any_returned: AtomicBool,
}

// SAFETY: the pointer is to a mapping that lives as long as this value; bytes are accessed only through
// tokens and arenas, which are exclusive.
unsafe impl Send for Umem {}
// SAFETY: as above; what `&Umem` shares is behind a mutex and an atomic.
unsafe impl Sync for Umem {}

/// A chunk to receive into; its owner may read and write its bytes.
#[derive(Debug)]
pub(crate) struct Chunk(pub(super) u32);

/// How the memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bytes of a chunk, as the kernel counts: 2,048 or 4,096.
    pub chunk: usize,
    /// Chunks per slot of the arenas.
    pub slot_chunks: usize,
    /// Slots to send from.
    pub slots: usize,
    /// Slots for copies of frames that cannot be sent from where they lie.
    pub copies: usize,
    /// Chunks to receive into.
    pub chunks: usize,
}

impl Layout {
    pub(crate) fn stride(self) -> usize {
        self.chunk * self.slot_chunks
    }

    fn chunks_at(self) -> usize {
        self.stride() * (self.slots + self.copies)
    }

    pub(crate) fn len(self) -> usize {
        self.chunks_at() + self.chunk * self.chunks
    }
}

impl Umem {
    /// Maps memory of this layout, of huge pages if there are free ones, and creates the arenas in it: slots,
    /// then copies.
    pub(crate) fn new(layout: Layout, payload: usize) -> io::Result<(Arc<Umem>, [Arena; 2], Vec<Chunk>)> {
        let whole = layout.len().next_multiple_of(HUGE_PAGE);
        let (base, len, huge) = match map(whole, libc::MAP_HUGETLB) {
            Ok(base) => (base, whole, true),
            Err(_) => (map(layout.len(), 0)?, layout.len(), false),
        };
        let umem = Arc::new(Umem {
            base,
            len,
            chunk: layout.chunk,
            chunks_at: layout.chunks_at(),
            huge,
            // There are never more than all chunks, so returning them allocates nothing.
            returned: Mutex::new(Vec::with_capacity(layout.chunks)),
            any_returned: AtomicBool::new(false),
        });
        // SAFETY: a range of pages that were mapped above. This only excludes them from forked children, for
        // which pinned pages would be copied.
        unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_DONTFORK) };
        let arena = |from: usize, count: usize| {
            // SAFETY: the slots lie in front of the chunks, hence within the mapping.
            let start = unsafe { base.add(from * layout.stride()) };
            let bytes = NonNull::slice_from_raw_parts(start, count * layout.stride());
            // SAFETY: zeroed pages that live as long as `umem`; the two ranges overlap neither each other nor
            // any chunk, and the kernel reads only what it was told to send.
            unsafe { Arena::over(bytes, umem.clone(), count, layout.stride(), payload) }
        };
        let arenas = [arena(0, layout.slots), arena(layout.slots, layout.copies)];
        Ok((umem, arenas, (0..layout.chunks as u32).map(Chunk).collect()))
    }

    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn chunk_len(&self) -> usize {
        self.chunk
    }

    /// Returns the largest number of chunks.
    pub(super) fn chunk_count(&self) -> usize {
        (self.len - self.chunks_at).div_ceil(self.chunk)
    }

    pub(crate) fn is_huge(&self) -> bool {
        self.huge
    }

    /// Returns the address of a chunk, as descriptors count.
    #[inline]
    pub(super) fn address_of(&self, chunk: &Chunk) -> u64 {
        (self.chunks_at + chunk.0 as usize * self.chunk) as u64
    }

    /// Returns the chunk that contains an address. Only for addresses that the kernel has just handed over:
    /// otherwise the token would be false.
    #[inline]
    pub(super) fn chunk_at(&self, address: u64) -> Option<Chunk> {
        let offset = usize::try_from(address).ok()?.checked_sub(self.chunks_at)?;
        (self.chunks_at + offset < self.len).then_some(Chunk((offset / self.chunk) as u32))
    }

    /// Prefetches the first two cache lines at an address: headers and a small message.
    #[inline]
    pub(super) fn prefetch(&self, address: u64) {
        let at = self.base.as_ptr().wrapping_add(address as usize);
        prefetch_line(at);
        prefetch_line(at.wrapping_add(64));
    }

    /// Takes the chunks that batches returned.
    #[inline]
    pub(crate) fn take_returned(&self, mut take: impl FnMut(Chunk)) {
        if self.any_returned.load(Ordering::Relaxed) {
            self.any_returned.store(false, Ordering::Relaxed);
            self.returned.lock().unwrap_or_else(PoisonError::into_inner).drain(..).for_each(&mut take);
        }
    }

    #[cold]
    fn give_back(&self, chunks: impl Iterator<Item = Chunk>) {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner).extend(chunks);
        self.any_returned.store(true, Ordering::Relaxed);
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new`, and everything that refers to it keeps this value alive.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn map(len: usize, flags: libc::c_int) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE | flags;
    // SAFETY: a new anonymous mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

/// Prefetches a cache line, where the processor can. Any address is allowed; an invalid one is ignored.
#[inline]
pub(super) fn prefetch_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint without visible effect, which faults at no address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// A received frame, or part of one, in its chunk.
#[derive(Debug)]
pub(crate) struct ReceivedChunk {
    pub(super) chunk: Chunk,
    /// From the start of the mapping; the bytes lie within the chunk.
    pub(super) start: usize,
    pub(super) len: usize,
    /// The frame continues in the next chunk.
    pub(crate) more: bool,
}

impl ReceivedChunk {
    /// Returns the bytes.
    #[inline]
    pub(crate) fn bytes<'a>(&'a self, umem: &'a Umem) -> &'a [u8] {
        assert!(self.start + self.len <= umem.len);
        // SAFETY: the range lies within the chunk, whose token this value has: nobody else accesses it.
        unsafe { std::slice::from_raw_parts(umem.base.as_ptr().add(self.start), self.len) }
    }

    pub(crate) fn into_chunk(self) -> Chunk {
        self.chunk
    }
}

/// The chunks of frames in a batch; they belong to the batch until it is cleared, filled again or dropped.
#[derive(Debug, Default)]
pub(crate) struct LentChunks {
    umem: Option<Arc<Umem>>,
    frames: Vec<ReceivedChunk>,
}

impl LentChunks {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns part of a frame.
    ///
    /// # Panics
    /// If there is no such frame, or it is shorter.
    #[inline]
    pub(crate) fn bytes(&self, frame: usize, start: usize, len: usize) -> &[u8] {
        match &self.umem {
            Some(umem) => &self.frames[frame].bytes(umem)[start..][..len],
            None => panic!("no frame is lent"),
        }
    }

    /// Returns part of a frame for writing.
    ///
    /// # Panics
    /// If there is no such frame, or it is shorter.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, frame: usize, start: usize, len: usize) -> &mut [u8] {
        let (Some(umem), frame) = (&self.umem, &mut self.frames[frame]) else { panic!("no frame is lent") };
        // SAFETY: the range lies within the chunk, whose token is borrowed exclusively.
        let bytes = unsafe { std::slice::from_raw_parts_mut(umem.base.as_ptr().add(frame.start), frame.len) };
        &mut bytes[start..][..len]
    }

    /// Adds a frame, without what is before `from` and behind `to`; returns its number. All frames of a batch
    /// are from one memory.
    ///
    /// # Panics
    /// If there are frames of another memory, or the frame is shorter.
    #[inline]
    pub(crate) fn lend(
        &mut self,
        umem: &Arc<Umem>,
        mut frame: ReceivedChunk,
        from: usize,
        to: usize,
    ) -> usize {
        assert!(from <= to && to <= frame.len);
        (frame.start, frame.len) = (frame.start + from, to - from);
        if !self.umem.as_ref().is_some_and(|mine| Arc::ptr_eq(mine, umem)) {
            assert!(self.frames.is_empty(), "a batch holds frames of one device");
            self.umem = Some(umem.clone());
        }
        self.frames.push(frame);
        self.frames.len() - 1
    }

    /// Takes back the chunks of this memory.
    #[inline]
    pub(crate) fn take_back(&mut self, umem: &Arc<Umem>, take: impl FnMut(Chunk)) {
        if self.umem.as_ref().is_some_and(|mine| Arc::ptr_eq(mine, umem)) {
            self.frames.drain(..).map(ReceivedChunk::into_chunk).for_each(take);
        } else {
            self.clear();
        }
    }

    /// Returns all chunks; their device takes them back later.
    pub(crate) fn clear(&mut self) {
        if let Some(umem) = self.umem.as_ref().filter(|_| !self.frames.is_empty()) {
            umem.give_back(self.frames.drain(..).map(ReceivedChunk::into_chunk));
        }
    }
}

impl Drop for LentChunks {
    fn drop(&mut self) {
        self.clear();
    }
}
