//! The representation of the standard ABI, which is that of the core: most conversions do nothing.

use std::ffi::{c_int, c_void};

use crate::constants::UNDEFINED;
use crate::foreign::{Abi, Callback, Codec, Content, Foreign, Status};
use crate::handle::{Comm, Datatype, Errhandler, File, Group, Info, Message, Op, Request, Session, Win};

/// Reads the value at `index` of an array.
///
/// # Safety
///
/// The array has that many values of type `T`.
#[inline]
unsafe fn get<T>(at: *const c_void, index: usize) -> T {
    // SAFETY: as promised by the caller. Programs need not align what they pass as `void *`.
    unsafe { at.cast::<T>().add(index).read_unaligned() }
}

/// Writes the value at `index` of an array.
///
/// # Safety
///
/// The array has room for that many values of type `T`.
#[inline]
unsafe fn set<T>(at: *mut c_void, index: usize, value: T) {
    // SAFETY: as promised by the caller.
    unsafe { at.cast::<T>().add(index).write_unaligned(value) }
}

unsafe fn get_narrow(at: *const c_void, index: usize) -> i64 {
    // SAFETY: as promised by the caller.
    i64::from(unsafe { get::<c_int>(at, index) })
}

/// What does not fit is `MPI_UNDEFINED`.
unsafe fn set_narrow(at: *mut c_void, index: usize, value: i64) {
    // SAFETY: as promised by the caller.
    unsafe { set(at, index, c_int::try_from(value).unwrap_or(UNDEFINED)) }
}

/// `MPI_Status` of the standard ABI.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawStatus {
    source: c_int,
    tag: c_int,
    error: c_int,
    /// The count's low and high half, then whether the operation was cancelled.
    internal: [c_int; 5],
}

const _: () = assert!(size_of::<RawStatus>() == 32 && align_of::<RawStatus>() == 4);

#[inline]
unsafe fn get_status(at: *const c_void, index: usize) -> Status {
    // SAFETY: as promised by the caller.
    let raw: RawStatus = unsafe { get(at, index) };
    let [low, high, cancelled, ..] = raw.internal;
    let bytes = u64::from(low.cast_unsigned()) | u64::from(high.cast_unsigned()) << 32;
    Status { source: raw.source, tag: raw.tag, error: raw.error, bytes, cancelled: cancelled != 0 }
}

#[inline]
unsafe fn set_status(at: *mut c_void, index: usize, status: Status) {
    let halves = [status.bytes as u32, (status.bytes >> 32) as u32].map(u32::cast_signed);
    let internal = [halves[0], halves[1], c_int::from(status.cancelled), 0, 0];
    let raw = RawStatus { source: status.source, tag: status.tag, error: status.error, internal };
    // SAFETY: as promised by the caller.
    unsafe { set(at, index, raw) }
}

/// The ways to read and write values in the program's memory.
pub mod codec {
    use super::*;

    macro_rules! plain {
        ($($name:ident: $type:ty;)*) => {$(
            #[doc = concat!("Values of type `", stringify!($type), "`.")]
            pub static $name: Codec<$type> = Codec { get: get::<$type>, set: set::<$type> };
        )*};
    }

    plain! {
        INT: c_int; WIDE: i64; POINTER: usize;
        RANK: c_int; TAG: c_int; KEYVAL: c_int; CODE: c_int; THREAD: c_int; COMBINER: c_int; COMPARE: c_int;
        TOPO: c_int; AMODE: c_int; DISTRIB: c_int; DARG: c_int;
        COMM: Comm; GROUP: Group; WIN: Win; FILE: File; SESSION: Session; MESSAGE: Message; INFO: Info;
        ERRHANDLER: Errhandler; REQUEST: Request; DATATYPE: Datatype; OP: Op;
    }

    /// The integers of a datatype's contents.
    pub static CONTENTS: Codec<Content> = Codec {
        // SAFETY: as promised by the caller of `Foreign::get`.
        get: |at, index| Content::Int(unsafe { get::<c_int>(at, index) }),
        set: |at, index, value| {
            let (Content::Int(value)
            | Content::Order(value)
            | Content::Distrib(value)
            | Content::Darg(value)) = value;
            // SAFETY: as promised by the caller of `Foreign::set`.
            unsafe { set(at, index, value) }
        },
    };

    /// Counts of type `int`.
    pub static NARROW: Codec<i64> = Codec { get: get_narrow, set: set_narrow };
    /// Statuses.
    pub static STATUS: Codec<Status> = Codec { get: get_status, set: set_status };
}

/// How callbacks of the standard ABI are called.
pub static ABI: Abi = Abi {
    comm: |comm| comm.0,
    datatype: |datatype| datatype.0,
    win: |win| win.0,
    file: |file| file.0,
    session: |session| session.0,
    keyval: |keyval| keyval,
    code: |code| code,
    code_back: |code| code,
    status: (size_of::<RawStatus>(), &codec::STATUS),
};

/// A pointer to statuses; null is `MPI_STATUS_IGNORE`.
#[inline(always)]
pub fn status(at: *mut c_void) -> Foreign<Status> {
    // A constant: the compiler sees through it, so that a status is written without a call.
    const STATUS: &Codec<Status> = &Codec { get: get_status, set: set_status };
    Foreign::new(at, STATUS)
}

/// A callback of the program.
pub fn callback(address: *mut c_void, wide: bool) -> Callback {
    Callback { address, wide, abi: &ABI }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_keeps_all_it_is_given() {
        let status = Status { source: 3, tag: -2, error: 15, bytes: 0x1_8000_0001, cancelled: true };
        let mut raw = [0u8; 65];
        // At an odd address: programs may embed statuses as they like.
        let at = raw[1..].as_mut_ptr().cast::<c_void>();
        let statuses = super::status(at);
        // SAFETY: there is room for two.
        unsafe {
            statuses.set(1, status);
            assert_eq!(statuses.get(1), status);
        }
        assert_eq!(raw[..33], [0; 33]);
    }

    #[test]
    fn a_count_that_does_not_fit_is_undefined() {
        let mut value: c_int = 0;
        let narrow = Foreign::new((&raw mut value).cast(), &codec::NARROW);
        // SAFETY: it points to an int.
        unsafe { narrow.set(0, 1 << 31) };
        assert_eq!(value, UNDEFINED);
    }
}
