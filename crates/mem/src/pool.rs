//! Memory that one process writes and another reads: extents are taken from it, filled, lent, and returned
//! (S-8).
//!
//! The kernel keeps the other side from writing there (`F_SEAL_FUTURE_WRITE`), so the owner may treat its
//! extents as private memory. The reader may not: the bytes can change at any time, so it gets copies.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::ring::Corrupt;
use crate::{ApertureMemory, OutOfRange};

/// The most extents that may be taken at a time.
pub const MAX_EXTENTS: usize = 256;
/// The bits of a returned word that are its number.
pub const NUMBER_MASK: u32 = (1 << 30) - 1;
/// The most extents that programs may take at a time; the rest is for parts of messages.
const MAX_LOANS: usize = MAX_EXTENTS - 16;
/// Bytes of a pool for parts of messages, behind the bytes that can be lent.
const PARTS_LEN: usize = 1 << 20;

/// How the other side returned a loan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnStatus {
    /// It was read as far as wanted.
    Read,
    /// It could not be read, and its receiver was not notified.
    Refused,
    /// Its receiver began to read it and could not read it to its end.
    Incomplete,
}

impl ReturnStatus {
    /// Returns the flag beside the number in a returned word.
    pub fn flag(self) -> u32 {
        match self {
            ReturnStatus::Read => 0,
            ReturnStatus::Refused => 1 << 30,
            ReturnStatus::Incomplete => 1 << 31,
        }
    }

    /// Returns the status in a returned word.
    pub fn of(word: u32) -> ReturnStatus {
        match word & !NUMBER_MASK {
            0 => ReturnStatus::Read,
            flag if flag == ReturnStatus::Refused.flag() => ReturnStatus::Refused,
            _ => ReturnStatus::Incomplete,
        }
    }
}

/// A pool's size is a multiple of this.
pub const POOL_UNIT: usize = 64 << 10;
/// Bytes of the largest pool that is attached: its peer claims them, and they are address space of this
/// process (S-34).
pub const MAX_POOL: usize = 64 << 30;

const LINE: usize = 64;
const PAGE: usize = 4096;
/// The bytes that are committed at a time: at first, and at most.
const FIRST_STEP: usize = 64 << 10;
const STEP: usize = 2 << 20;

/// The seals that keep the memory from being removed under its readers, and from being written by them.
const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// A mapping of a whole file.
#[derive(Debug)]
struct Map {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is unmapped only by drop, and accessed only as `Extent` and `PoolView` describe.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    fn new(fd: &OwnedFd, len: usize, protection: ProtFlags) -> io::Result<Map> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping of a whole file, at an address that the kernel chooses; nothing else refers
        // to it.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0)? };
        let map = Map { at: NonNull::new(at.cast()).expect("a mapping is never at address zero"), len };
        // SAFETY: the range is the mapping just made. A forked child does not need it, and must not write to
        // it.
        unsafe { rustix::mm::madvise(at, len, Advice::LinuxDontFork)? };
        Ok(map)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping made in `new`, and nothing borrowed from self is left.
        unsafe {
            let _ = rustix::mm::munmap(self.at.as_ptr().cast(), self.len);
        }
    }
}

/// The state of an extent's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// The program fills the extent.
    Taken,
    /// The other side reads the extent: its start, and the room it takes.
    Lent(usize, usize),
    /// The other side reads memory outside this pool.
    External,
    /// The other side has returned memory outside this pool.
    Returned(ReturnStatus),
}

/// The memory of the lender.
#[derive(Debug)]
pub struct Pool {
    map: Arc<Map>,
    /// References to the mapping that extents gave up, for the next extents: a new one would take a locked
    /// instruction, which waits for all earlier stores.
    spare_refs: Vec<Arc<Map>>,
    fd: Option<OwnedFd>,
    /// Free ranges in order (start, length), adjacent ones joined: of loans, and of parts of messages.
    free: [Vec<(usize, usize)>; 2],
    /// The end of the memory that the kernel has allocated: of loans, and of parts of messages.
    committed: [usize; 2],
    /// Where the memory for parts of messages begins.
    parts_at: usize,
    states: Box<[State]>,
    numbers: Vec<u32>,
    /// Which numbers belong to parts of messages, and how many.
    part: Box<[bool]>,
    parts: usize,
    part_bytes: usize,
}

/// A range of a pool. It belongs to its holder until it is lent or given back; if it is dropped, it stays
/// taken.
#[derive(Debug)]
pub struct Extent {
    map: Arc<Map>,
    start: usize,
    len: usize,
    room: usize,
    number: u32,
}

impl Extent {
    /// Returns its number in the pool, its start, and its length.
    pub fn location(&self) -> (u32, u64, u64) {
        (self.number, self.start as u64, self.len as u64)
    }
}

impl Deref for Extent {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: within the mapping, which lives as long as self. Extents do not overlap, nothing else in
        // this process refers to one, and no other process can write there: the memory was sealed before any
        // had it.
        unsafe { std::slice::from_raw_parts(self.map.at.as_ptr().add(self.start), self.len) }
    }
}

impl DerefMut for Extent {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; other processes may read it meanwhile, by copies that may be torn, which
        // they expect.
        unsafe { std::slice::from_raw_parts_mut(self.map.at.as_ptr().add(self.start), self.len) }
    }
}

impl Pool {
    /// Creates a pool that can lend `len` bytes, rounded up. Memory is used only where extents have been.
    pub fn create(len: usize) -> io::Result<Pool> {
        let too_much = || io::Error::from(io::ErrorKind::OutOfMemory);
        let parts_at = len.checked_next_multiple_of(POOL_UNIT).ok_or_else(too_much)?;
        let len = parts_at.checked_add(PARTS_LEN).ok_or_else(too_much)?;
        crate::segment::check_file_size(len)?;
        let fd =
            rustix::fs::memfd_create(c"tautline-loans", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        let map = Map::new(&fd, len, ProtFlags::READ | ProtFlags::WRITE)?;
        // From here on no other process can map it for writing.
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        let list = |from: usize, to: usize| {
            let mut free = Vec::with_capacity(MAX_EXTENTS + 1);
            free.extend((from < to).then_some((from, to - from)));
            free
        };
        Ok(Pool {
            map: Arc::new(map),
            spare_refs: Vec::with_capacity(MAX_EXTENTS),
            fd: Some(fd),
            free: [list(0, parts_at), list(parts_at, len)],
            committed: [0, parts_at],
            parts_at,
            states: vec![State::Free; MAX_EXTENTS].into_boxed_slice(),
            numbers: (0..MAX_EXTENTS as u32).rev().collect(),
            part: vec![false; MAX_EXTENTS].into_boxed_slice(),
            parts: 0,
            part_bytes: 0,
        })
    }

    /// Returns the descriptor, to be handed to the other process.
    ///
    /// # Panics
    /// If it was closed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("the descriptor was closed").as_fd()
    }

    /// Closes the descriptor, where the kernel allocates memory without it (Linux 5.14). The memory lives as
    /// long as it is mapped.
    pub fn close_fd(&mut self) {
        // Nothing is populated here: the kernel refuses what it does not know.
        if self.populate(0, 0).is_ok() {
            self.fd = None;
        }
    }

    /// Allocates the pages of a range, and maps them.
    fn populate(&self, from: usize, len: usize) -> rustix::io::Result<()> {
        assert!(from <= self.map.len && len <= self.map.len - from);
        // SAFETY: the range is within the mapping; its contents stay as they are.
        unsafe {
            let at = self.map.at.as_ptr().add(from).cast();
            rustix::mm::madvise(at, len, Advice::LinuxPopulateWrite)
        }
    }

    /// Returns the number of all bytes, free or not.
    pub fn size(&self) -> usize {
        self.map.len
    }

    /// Takes an extent; its bytes are left from its last use. Returns `None` if there is no room now.
    ///
    /// # Errors
    /// If the system has no memory.
    pub fn take(&mut self, len: usize) -> io::Result<Option<Extent>> {
        if self.numbers.len() <= MAX_EXTENTS - MAX_LOANS {
            return Ok(None);
        }
        self.take_from(0, len)
    }

    fn take_from(&mut self, list: usize, len: usize) -> io::Result<Option<Extent>> {
        let grain = if len < PAGE { LINE } else { PAGE };
        let Some(room) = len.max(1).checked_next_multiple_of(grain) else { return Ok(None) };
        let Some(at) = self.free[list]
            .iter()
            .position(|(start, free)| start.next_multiple_of(grain) - start + room <= *free)
        else {
            return Ok(None);
        };
        let Some(&number) = self.numbers.last() else { return Ok(None) };
        let (from, free) = self.free[list][at];
        let start = from.next_multiple_of(grain);
        self.commit(list, start + room)?;
        self.numbers.pop();
        self.states[number as usize] = State::Taken;
        // The bytes skipped for alignment belong to the extent, too.
        let room = start - from + room;
        if room == free {
            self.free[list].remove(at);
        } else {
            self.free[list][at] = (from + room, free - room);
        }
        let map = self.spare_refs.pop().unwrap_or_else(|| self.map.clone());
        Ok(Some(Extent { map, start, len, room, number }))
    }

    /// Allocates memory up to `end`: a write to memory that does not exist would be a signal.
    fn commit(&mut self, list: usize, end: usize) -> io::Result<()> {
        let from = self.committed[list];
        if end <= from {
            return Ok(());
        }
        let (first, last) = ([0, self.parts_at][list], [self.parts_at, self.map.len][list]);
        // As much again as there is, so that there are few steps, and little is taken for little.
        let more = from + (from - first).clamp(FIRST_STEP, STEP);
        let end = end.next_multiple_of(PAGE).max(more).min(last);
        let len = end - from;
        match &self.fd {
            Some(fd) => {
                rustix::fs::fallocate(fd, FallocateFlags::empty(), from as u64, len as u64)?;
                // This spares the writer page faults and changes nothing else; older kernels refuse it.
                let _ = self.populate(from, len);
            }
            None => self.populate(from, len)?,
        }
        self.committed[list] = end;
        Ok(())
    }

    /// Takes an extent for part of a message; [`Pool::parts`] counts it until it is returned.
    pub fn take_part(&mut self, len: usize) -> io::Result<Option<Extent>> {
        let extent = self.take_from(1, len)?;
        if let Some(extent) = &extent {
            self.part[extent.number as usize] = true;
            self.parts += 1;
            self.part_bytes += extent.room;
        }
        Ok(extent)
    }

    /// Returns the number of extents with parts of messages, and the room that they take.
    #[inline]
    pub fn parts(&self) -> (usize, usize) {
        (self.parts, self.part_bytes)
    }

    /// Whether an extent of `len` bytes could be taken from an unused pool.
    pub fn could_take(&self, len: usize) -> bool {
        len <= self.parts_at
    }

    /// Takes back an extent that was not lent.
    ///
    /// # Panics
    /// If it belongs to another pool.
    pub fn give(&mut self, extent: Extent) {
        let (start, room) = self.range_of(&extent);
        self.free_number(extent.number);
        self.free_range(start, room);
        self.spare_refs.push(extent.map);
    }

    /// Notes that the other side reads an extent until it returns its number.
    ///
    /// # Panics
    /// If it belongs to another pool.
    pub fn lend(&mut self, extent: Extent) {
        let (start, room) = self.range_of(&extent);
        self.states[extent.number as usize] = State::Lent(start, room);
        self.spare_refs.push(extent.map);
    }

    fn range_of(&self, extent: &Extent) -> (usize, usize) {
        let known =
            Arc::ptr_eq(&extent.map, &self.map) && self.states[extent.number as usize] == State::Taken;
        assert!(known, "an extent of another pool");
        let aligned = if extent.len < PAGE { LINE } else { PAGE };
        let before = extent.room - extent.len.max(1).next_multiple_of(aligned);
        (extent.start - before, extent.room)
    }

    /// Reserves a number for memory outside this pool that the other side is going to read; `None` if all are
    /// taken.
    pub fn reserve_external(&mut self) -> Option<u32> {
        let number = self.numbers.pop()?;
        self.states[number as usize] = State::External;
        Some(number)
    }

    /// Returns how a number of [`Pool::reserve_external`] was returned, if it was; the number is free then.
    pub fn take_status(&mut self, number: u32) -> Option<ReturnStatus> {
        let State::Returned(status) = self.states[number as usize] else { return None };
        self.free_number(number);
        Some(status)
    }

    /// Whether the other side has something to return.
    pub fn has_lent(&self) -> bool {
        self.states.iter().any(|state| matches!(state, State::Lent(..) | State::External))
    }

    /// Notes that the other side no longer reads the memory with this number.
    pub fn returned(&mut self, number: u32, status: ReturnStatus) -> Result<(), Corrupt> {
        match self.states.get(number as usize) {
            Some(&State::Lent(start, room)) => {
                self.free_number(number);
                self.free_range(start, room);
                Ok(())
            }
            Some(State::External) => {
                self.states[number as usize] = State::Returned(status);
                Ok(())
            }
            _ => Err(Corrupt),
        }
    }

    fn free_number(&mut self, number: u32) {
        self.states[number as usize] = State::Free;
        self.numbers.push(number);
        self.parts -= usize::from(std::mem::take(&mut self.part[number as usize]));
    }

    fn free_range(&mut self, start: usize, len: usize) {
        let part = start >= self.parts_at;
        self.part_bytes -= if part { len } else { 0 };
        let free = &mut self.free[usize::from(part)];
        let mut at = free.partition_point(|(from, _)| *from < start);
        let (mut start, mut len) = (start, len);
        if at > 0 && free[at - 1].0 + free[at - 1].1 == start {
            at -= 1;
            (start, len) = (free[at].0, free[at].1 + len);
            free.remove(at);
        }
        match free.get_mut(at) {
            Some(next) if start + len == next.0 => *next = (start, len + next.1),
            _ => free.insert(at, (start, len)),
        }
    }
}

/// The lender's memory as the other side sees it: read-only, and it may change at any time.
#[derive(Debug)]
pub struct PoolView(Map);

impl PoolView {
    /// Maps the pool of another process.
    ///
    /// # Errors
    /// If it is not sealed, or does not have exactly `len` bytes: it could vanish later.
    pub fn attach(fd: &OwnedFd, len: usize) -> io::Result<PoolView> {
        let refuse = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why));
        // The seals first: only memory has them, and other files may not answer for ever.
        if !rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SEALS)) {
            return refuse("the pool is not sealed");
        }
        crate::segment::check_kind(fd)?;
        if len == 0 || rustix::fs::fstat(fd)?.st_size as u64 != len as u64 {
            return refuse("the pool has the wrong size");
        }
        Ok(PoolView(Map::new(fd, len, ProtFlags::READ)?))
    }

    /// Whether the bytes from `at` to `at + len` exist.
    #[inline]
    pub fn contains(&self, at: u64, len: u64) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.0.len as u64)
    }

    /// Whether the lender needs these bytes back soon: it has little memory for parts of messages.
    #[inline]
    pub fn is_for_parts(&self, at: usize) -> bool {
        at >= self.0.len.saturating_sub(PARTS_LEN)
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If the pool does not have as many.
    #[inline]
    pub fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        assert!(at <= self.0.len && bytes.len() <= self.0.len - at);
        // SAFETY: the range is within the mapping, and private memory does not overlap it. If the owner
        // writes there meanwhile, the bytes are arbitrary, and any bytes are valid.
        unsafe {
            std::ptr::copy_nonoverlapping(self.0.at.as_ptr().add(at), bytes.as_mut_ptr(), bytes.len());
        };
    }

    /// Copies `len` bytes to an aperture, by whole words.
    ///
    /// # Panics
    /// If the pool does not have as many.
    #[inline]
    pub fn copy_to(
        &self,
        at: usize,
        len: usize,
        (to, place): (&ApertureMemory, usize),
    ) -> Result<(), OutOfRange> {
        assert!(at <= self.0.len && len <= self.0.len - at);
        // SAFETY: the range is within the mapping, which does not overlap the aperture's. If the owner writes
        // there meanwhile, the bytes are arbitrary, and any bytes are valid.
        unsafe { to.write_from(place, self.0.at.as_ptr().add(at), len) }
    }

    /// Returns the address of a byte, for programs that trust the lender not to write any more, by `unsafe`
    /// of their own.
    ///
    /// # Panics
    /// If there is no such byte.
    pub fn as_ptr(&self, at: usize) -> *const u8 {
        assert!(at <= self.0.len);
        // SAFETY: within the mapping, or one past it.
        unsafe { self.0.at.as_ptr().add(at) }
    }
}

#[cfg(test)]
mod tests;
