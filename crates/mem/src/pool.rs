//! Memory that one process writes and another only reads: pieces are taken from it, filled, lent, and given back (S-8).
//!
//! The kernel keeps the other side from writing there (`F_SEAL_FUTURE_WRITE`), so the owner may look at its pieces as at any memory of its own. The reader may not:
//! for it nothing stays as it is, and so it gets copies.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::ring::Corrupt;
use crate::{ApertureMemory, OutOfRange};

/// Pieces that may be out at a time.
pub const MAX_EXTENTS: usize = 256;
/// Bits of what is given back that are its number.
pub const NUMBER: u32 = (1 << 30) - 1;
/// Pieces that programs may have out at a time: the rest is for parts of messages.
const MAX_LOANS: usize = MAX_EXTENTS - 16;
/// Bytes of a pool that are for parts of messages, behind all that can be lent.
const PARTS_LEN: usize = 1 << 20;

/// How something comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnStatus {
    /// It has been read, as far as anybody wanted.
    Read,
    /// It could not be read, and nobody was told of it.
    Refused,
    /// It could not be read to its end, by somebody who had begun.
    Incomplete,
}

impl ReturnStatus {
    /// What tells it, beside the number.
    pub fn flag(self) -> u32 {
        match self {
            ReturnStatus::Read => 0,
            ReturnStatus::Refused => 1 << 30,
            ReturnStatus::Incomplete => 1 << 31,
        }
    }

    /// What was told with a number.
    pub fn of(word: u32) -> ReturnStatus {
        match word & !NUMBER {
            0 => ReturnStatus::Read,
            flag if flag == ReturnStatus::Refused.flag() => ReturnStatus::Refused,
            _ => ReturnStatus::Incomplete,
        }
    }
}

/// A pool's size is a multiple of this.
pub const POOL_UNIT: usize = 64 << 10;

const LINE: usize = 64;
const PAGE: usize = 4096;
/// Memory is asked for so much at a time.
const STEP: usize = 2 << 20;

/// What keeps the memory from being taken away under its readers, and from being written by them.
const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// A whole file, mapped.
#[derive(Debug)]
struct Map {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is unmapped only by drop, and is reached only as `Extent` and `PoolView` say.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    fn new(fd: &OwnedFd, len: usize, protection: ProtFlags) -> io::Result<Map> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping of a whole file, at an address of the kernel's choice; nothing else refers to it.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0)? };
        let map = Map { at: NonNull::new(at.cast()).expect("a mapping is nowhere near zero"), len };
        // SAFETY: the range is the mapping just made. A forked child has no use for it, and must not write there.
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

/// What has become of a number that pieces go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// The program fills it.
    Taken,
    /// The other side reads it: where it starts, and how much room it takes.
    Lent(usize, usize),
    /// The other side reads memory that is not of this pool.
    External,
    /// It has done so, or not.
    Done(ReturnStatus),
}

/// The memory of whoever lends.
#[derive(Debug)]
pub struct Pool {
    map: Arc<Map>,
    /// Holds on the mapping that pieces have given up, for the next ones: counting them anew would take an instruction that waits for every store before it.
    holds: Vec<Arc<Map>>,
    fd: OwnedFd,
    /// What is free to be lent, and for parts of messages, in order: where it starts, and how long it is. Neighbours are joined.
    free: [Vec<(usize, usize)>; 2],
    /// Up to here the kernel has given us memory: of what can be lent, and of what is for parts.
    committed: [usize; 2],
    /// Where what is for parts begins.
    parts_at: usize,
    states: Box<[State]>,
    numbers: Vec<u32>,
    /// Which numbers belong to parts of messages, and how many do.
    part: Box<[bool]>,
    parts: usize,
    part_bytes: usize,
}

/// A piece of a pool that belongs to whoever holds it, until it is lent or given back. One that is just dropped stays taken.
#[derive(Debug)]
pub struct Extent {
    map: Arc<Map>,
    start: usize,
    len: usize,
    room: usize,
    number: u32,
}

impl Extent {
    /// Its number in its pool, where in the pool it starts, and how long it is.
    pub fn location(&self) -> (u32, u64, u64) {
        (self.number, self.start as u64, self.len as u64)
    }
}

impl Deref for Extent {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: within the mapping, which lives as long as self. No two pieces overlap, nothing else of this process refers to a piece, and no
        // other process can write there: the memory was sealed before anybody else had it.
        unsafe { std::slice::from_raw_parts(self.map.at.as_ptr().add(self.start), self.len) }
    }
}

impl DerefMut for Extent {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; others may read along, by copies that may come out torn, which is their concern.
        unsafe { std::slice::from_raw_parts_mut(self.map.at.as_ptr().add(self.start), self.len) }
    }
}

impl Pool {
    /// Makes one from which `len` bytes can be lent, rounded up; memory is used only where pieces were.
    pub fn create(len: usize) -> io::Result<Pool> {
        let too_much = || io::Error::from(io::ErrorKind::OutOfMemory);
        let parts_at = len.checked_next_multiple_of(POOL_UNIT).ok_or_else(too_much)?;
        let len = parts_at.checked_add(PARTS_LEN).ok_or_else(too_much)?;
        crate::segment::check_file_size(len)?;
        let fd =
            rustix::fs::memfd_create(c"tautline-loans", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        let map = Map::new(&fd, len, ProtFlags::READ | ProtFlags::WRITE)?;
        // From here on nobody else can map it to write.
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        let list = |from: usize, to: usize| {
            let mut free = Vec::with_capacity(MAX_EXTENTS + 1);
            free.extend((from < to).then_some((from, to - from)));
            free
        };
        Ok(Pool {
            map: Arc::new(map),
            holds: Vec::with_capacity(MAX_EXTENTS),
            fd,
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

    /// Its descriptor, to be handed to the other process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// How many bytes there are in all, free or not.
    pub fn size(&self) -> usize {
        self.map.len
    }

    /// Takes a piece; its bytes are whatever was there before. Nothing if there is no room now; an error if the system has no memory.
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
        // What was left out before it for alignment belongs to it, too.
        let room = start - from + room;
        if room == free {
            self.free[list].remove(at);
        } else {
            self.free[list][at] = (from + room, free - room);
        }
        let map = self.holds.pop().unwrap_or_else(|| self.map.clone());
        Ok(Some(Extent { map, start, len, room, number }))
    }

    /// Makes sure that there is memory up to `end`: better an error here than a signal when it is written.
    fn commit(&mut self, list: usize, end: usize) -> io::Result<()> {
        let from = self.committed[list];
        if end <= from {
            return Ok(());
        }
        let last = [self.parts_at, self.map.len][list];
        let end = end.next_multiple_of(STEP).min(last);
        let len = end - from;
        rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), from as u64, len as u64)?;
        // SAFETY: the range is within the mapping; this changes nothing in it, but spares the writer the faults. Older kernels do not know it.
        unsafe {
            let at = self.map.at.as_ptr().add(from).cast();
            let _ = rustix::mm::madvise(at, len, Advice::LinuxPopulateWrite);
        }
        self.committed[list] = end;
        Ok(())
    }

    /// Takes a piece for part of a message; [`Pool::parts`] counts it until it is back.
    pub fn take_part(&mut self, len: usize) -> io::Result<Option<Extent>> {
        let piece = self.take_from(1, len)?;
        if let Some(piece) = &piece {
            self.part[piece.number as usize] = true;
            self.parts += 1;
            self.part_bytes += piece.room;
        }
        Ok(piece)
    }

    /// How many parts of messages are out, and how much room they take.
    #[inline]
    pub fn parts(&self) -> (usize, usize) {
        (self.parts, self.part_bytes)
    }

    /// Whether a piece of `len` bytes could be taken if nothing else were.
    pub fn could_take(&self, len: usize) -> bool {
        len <= self.parts_at
    }

    /// Takes back a piece that was not lent.
    ///
    /// # Panics
    /// If it is of another pool.
    pub fn give(&mut self, piece: Extent) {
        let (start, room) = self.extent(&piece);
        self.free_number(piece.number);
        self.free_range(start, room);
        self.holds.push(piece.map);
    }

    /// The other side is going to read the piece, until it returns its number.
    ///
    /// # Panics
    /// If it is of another pool.
    pub fn lend(&mut self, piece: Extent) {
        let (start, room) = self.extent(&piece);
        self.states[piece.number as usize] = State::Lent(start, room);
        self.holds.push(piece.map);
    }

    fn extent(&self, piece: &Extent) -> (usize, usize) {
        let known = Arc::ptr_eq(&piece.map, &self.map) && self.states[piece.number as usize] == State::Taken;
        assert!(known, "a piece of another pool");
        let aligned = if piece.len < PAGE { LINE } else { PAGE };
        let before = piece.room - piece.len.max(1).next_multiple_of(aligned);
        (piece.start - before, piece.room)
    }

    /// A number for memory elsewhere that the other side is going to read; nothing if there is none left.
    pub fn reserve_external(&mut self) -> Option<u32> {
        let number = self.numbers.pop()?;
        self.states[number as usize] = State::External;
        Some(number)
    }

    /// How a number of [`Pool::reserve_external`] came back, if it did; it is free again then.
    pub fn take_status(&mut self, number: u32) -> Option<ReturnStatus> {
        let State::Done(back) = self.states[number as usize] else { return None };
        self.free_number(number);
        Some(back)
    }

    /// Whether something is with the other side, and so may come back.
    pub fn has_lent(&self) -> bool {
        self.states.iter().any(|state| matches!(state, State::Lent(..) | State::External))
    }

    /// The other side says that it no longer reads what goes by this number.
    pub fn returned(&mut self, number: u32, back: ReturnStatus) -> Result<(), Corrupt> {
        match self.states.get(number as usize) {
            Some(&State::Lent(start, room)) => {
                self.free_number(number);
                self.free_range(start, room);
                Ok(())
            }
            Some(State::External) => {
                self.states[number as usize] = State::Done(back);
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

/// The memory of a lender, as the other side sees it: it may change at any time, and cannot be written.
#[derive(Debug)]
pub struct PoolView(Map);

impl PoolView {
    /// Maps what another process lends from. Refused unless it is sealed and has exactly `len` bytes: it could vanish later otherwise.
    pub fn attach(fd: &OwnedFd, len: usize) -> io::Result<PoolView> {
        let unfit = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why));
        crate::segment::check_kind(fd)?;
        if !rustix::fs::fcntl_get_seals(fd)?.contains(SEALS) {
            return unfit("the pool is not sealed");
        }
        if len == 0 || rustix::fs::fstat(fd)?.st_size as u64 != len as u64 {
            return unfit("the pool has the wrong size");
        }
        Ok(PoolView(Map::new(fd, len, ProtFlags::READ)?))
    }

    /// Whether it has bytes from `at` to `at + len`.
    #[inline]
    pub fn contains(&self, at: u64, len: u64) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.0.len as u64)
    }

    /// Whether the lender needs what lies there back soon: it has few places for parts of messages.
    #[inline]
    pub fn is_for_parts(&self, at: usize) -> bool {
        at >= self.0.len.saturating_sub(PARTS_LEN)
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If there are not so many.
    #[inline]
    pub fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        assert!(at <= self.0.len && bytes.len() <= self.0.len - at);
        // SAFETY: the range is within the mapping, and private memory does not overlap it. If the owner writes there meanwhile, the bytes are
        // anybody's guess, and any bytes are valid.
        unsafe {
            std::ptr::copy_nonoverlapping(self.0.at.as_ptr().add(at), bytes.as_mut_ptr(), bytes.len());
        };
    }

    /// Copies `len` bytes to where others may reach them, whole words at once.
    ///
    /// # Panics
    /// If there are not so many.
    #[inline]
    pub fn copy_to(
        &self,
        at: usize,
        len: usize,
        (to, place): (&ApertureMemory, usize),
    ) -> Result<(), OutOfRange> {
        assert!(at <= self.0.len && len <= self.0.len - at);
        // SAFETY: the range is within the mapping, which is another one than the aperture's. If the owner writes there meanwhile, the bytes are
        // anybody's guess, and any bytes are valid.
        unsafe { to.write_from(place, self.0.at.as_ptr().add(at), len) }
    }

    /// Where a byte lies: for programs that trust the lender not to write any more, and say so with `unsafe` of their own.
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
