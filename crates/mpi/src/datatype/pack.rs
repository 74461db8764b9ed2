//! Data of a message: `count` copies of a datatype at an address. Any range of its packed bytes can be packed
//! or unpacked, in any order of ranges.

use std::ffi::c_void;
use std::sync::Arc;

use super::Type;
use super::node::walk_repeated;
use crate::constants::{ERR_BUFFER, ERR_COUNT};
use crate::error::{Error, Result, ensure};

/// The program's memory for one message.
#[derive(Clone, Debug)]
pub struct Message {
    at: *mut u8,
    count: u64,
    of: Arc<Type>,
    size: u64,
    /// Whether the packed bytes are those in memory, from `at` on.
    contiguous: bool,
}

// SAFETY: the program promises to leave the memory alone until the operation is complete, and to let the
// library use it from any thread.
unsafe impl Send for Message {}
// SAFETY: only calls of unsafe functions use the memory.
unsafe impl Sync for Message {}

impl Message {
    /// `count` copies of `of` at `at`.
    pub fn new(at: *mut c_void, count: i64, of: &Arc<Type>) -> Result<Message> {
        let count = u64::try_from(count).map_err(|_| Error::new(ERR_COUNT, format!("count is {count}")))?;
        let size = of.size().checked_mul(count).filter(|size| i64::try_from(*size).is_ok());
        let size =
            size.ok_or_else(|| Error::new(ERR_COUNT, "the message is larger than MPI_Count can say"))?;
        // Datatypes with absolute addresses have no data at the origin; all others need memory.
        let needs_memory = size > 0 && of.bounds().data.is_some_and(|(begin, _)| begin < 4096);
        ensure(!at.is_null() || !needs_memory, ERR_BUFFER, || "the buffer is a null pointer".to_owned())?;
        let contiguous =
            of.runs().contiguous().is_some_and(|run| count <= 1 || run.cast_signed() == of.extent());
        Ok(Message { at: at.cast(), count, of: Arc::clone(of), size, contiguous })
    }

    /// The address of the first copy's origin.
    pub(super) fn origin(&self) -> *mut u8 {
        self.at
    }

    /// The number of packed bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The number of copies.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The datatype.
    pub fn datatype(&self) -> &Arc<Type> {
        &self.of
    }

    /// The bytes where they lie, if they lie there as they are packed.
    pub fn contiguous(&self) -> Option<*mut u8> {
        self.contiguous.then_some(self.at)
    }

    fn walk(&self, from: u64, to: u64, visit: &mut impl FnMut(i64, u64)) {
        if self.contiguous {
            if from < to {
                visit(from.cast_signed(), to - from);
            }
        } else {
            walk_repeated(self.of.runs(), self.of.extent(), 0, (from, to), visit);
        }
    }

    /// Packs the bytes from position `from` on, as many as `out` holds or the message has left, and returns
    /// their number.
    ///
    /// # Safety
    ///
    /// The program's memory is as the datatype says, and nobody writes to it meanwhile.
    pub unsafe fn pack(&self, from: u64, out: &mut [u8]) -> usize {
        let to = self.size.min(from.saturating_add(out.len() as u64));
        let mut out = out.as_mut_ptr();
        self.walk(from, to, &mut |at, len| {
            // SAFETY: the walk stays inside the datatype and visits `to - from` bytes in all.
            unsafe {
                copy(self.at.wrapping_offset(at as isize), out, len as usize);
                out = out.add(len as usize);
            }
        });
        to.saturating_sub(from) as usize
    }

    /// Unpacks bytes to position `from` and the following ones, and returns how many the message had room
    /// for.
    ///
    /// # Safety
    ///
    /// The program's memory is as the datatype says, and nobody else uses it meanwhile.
    pub unsafe fn unpack(&self, from: u64, bytes: &[u8]) -> usize {
        let to = self.size.min(from.saturating_add(bytes.len() as u64));
        let mut bytes = bytes.as_ptr();
        self.walk(from, to, &mut |at, len| {
            // SAFETY: the walk stays inside the datatype and visits `to - from` bytes in all.
            unsafe {
                copy(bytes, self.at.wrapping_offset(at as isize), len as usize);
                bytes = bytes.add(len as usize);
            }
        });
        to.saturating_sub(from) as usize
    }

    /// All packed bytes.
    ///
    /// # Safety
    ///
    /// As for [`pack`](Self::pack).
    pub unsafe fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size as usize];
        // SAFETY: as promised by the caller.
        unsafe { self.pack(0, &mut bytes) };
        bytes
    }
}

/// Copies a run. The sizes of single elements are worth a case each: a call of `memcpy` takes longer.
///
/// # Safety
///
/// As for `ptr::copy_nonoverlapping`.
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as promised by the caller; the sizes are those of the types.
    unsafe {
        match len {
            4 => to.cast::<[u8; 4]>().write(from.cast::<[u8; 4]>().read()),
            8 => to.cast::<[u8; 8]>().write(from.cast::<[u8; 8]>().read()),
            16 => to.cast::<[u8; 16]>().write(from.cast::<[u8; 16]>().read()),
            _ => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}
