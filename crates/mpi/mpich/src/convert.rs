//! Values of this ABI and of the core.

use std::ffi::{c_int, c_void};

use tautline_mpi::constants as core;
use tautline_mpi::foreign::{Abi, Callback, Codec, Content, Foreign, Status};

use crate::prelude::Ptr;
use crate::values;

/// Looks a value up; others are the same on both sides.
fn mapped<T: PartialEq + Copy>(pairs: &[(T, T)], value: T) -> T {
    pairs.iter().find(|(from, _)| *from == value).map_or(value, |(_, to)| *to)
}

fn mapped_back<T: PartialEq + Copy>(pairs: &[(T, T)], value: T) -> T {
    pairs.iter().find(|(_, to)| *to == value).map_or(value, |(from, _)| *from)
}

/// Modes are sets of bits.
fn bits(pairs: &[(c_int, c_int)], value: c_int) -> c_int {
    pairs.iter().filter(|(bit, _)| value & bit != 0).fold(0, |all, (_, to)| all | to)
}

fn bits_back(pairs: &[(c_int, c_int)], value: c_int) -> c_int {
    pairs.iter().filter(|(_, bit)| value & bit != 0).fold(0, |all, (to, _)| all | to)
}

/// Error codes that the program added lie behind the last one that is predefined.
const LAST_CODE: c_int = 0x3fff_ffff;

/// `MPI_LB` and `MPI_UB`.
const LOWER_MARK: c_int = 0x4c00_0010;
const UPPER_MARK: c_int = 0x4c00_0011;
/// `MPIX_C_FLOAT16`.
const C_HALF: c_int = 0x4c00_0246;

/// From the representation of the program to that of the core.
pub mod from {
    use super::*;

    macro_rules! handles {
        ($($name:ident: $type:ident, $pairs:ident, $of_int:ident;)*) => {$(
            #[inline]
            pub fn $name(value: c_int) -> tautline_mpi::handle::$type {
                let value = value.cast_unsigned();
                // All predefined values lie above those that the core gives out.
                let value = if value < 0x400_0000 { value } else { mapped(&values::$pairs, value) };
                tautline_mpi::handle::$type(value as usize)
            }

            pub fn $of_int(value: c_int) -> c_int {
                value
            }
        )*};
    }

    handles! {
        comm: Comm, COMM, comm_of_int; group: Group, GROUP, group_of_int; win: Win, WIN, win_of_int;
        session: Session, SESSION, session_of_int; message: Message, MESSAGE, message_of_int;
        info: Info, INFO, info_of_int; errhandler: Errhandler, ERRHANDLER, errhandler_of_int;
        request: Request, REQUEST, request_of_int; known_datatype: Datatype, DATATYPE, datatype_of_int;
        op: Op, OP, op_of_int;
    }

    /// A datatype; the standard ABI does not have all of this one.
    #[inline]
    pub fn datatype(value: c_int) -> tautline_mpi::handle::Datatype {
        match value {
            LOWER_MARK => tautline_mpi::datatype::LOWER_MARK,
            UPPER_MARK => tautline_mpi::datatype::UPPER_MARK,
            C_HALF => tautline_mpi::datatype::C_HALF,
            value => known_datatype(value),
        }
    }

    /// Files are pointers here; null is `MPI_FILE_NULL`.
    pub fn file(value: Ptr) -> tautline_mpi::handle::File {
        if value.is_null() { core::FILE_NULL } else { tautline_mpi::handle::File(value.addr()) }
    }

    pub fn file_of_int(value: c_int) -> Ptr {
        std::ptr::without_provenance_mut(usize::try_from(value).unwrap_or(0))
    }

    macro_rules! ints {
        ($($name:ident: $pairs:ident;)*) => {$(
            #[inline]
            pub fn $name(value: c_int) -> c_int {
                mapped(&values::$pairs, value)
            }
        )*};
    }

    ints! {
        rank: RANK; root: RANK; tag: TAG; keyval: KEYVAL; order: ORDER; split: SPLIT; typeclass: TYPECLASS;
        thread: THREAD; distrib: DISTRIB; darg: DARG;
    }

    /// An error code.
    pub fn code(value: c_int) -> c_int {
        if value > LAST_CODE { value - LAST_CODE + core::ERR_LASTCODE } else { mapped(&values::CODE, value) }
    }

    /// An address of data, or one of the values that stand for something else.
    #[inline]
    pub fn buffer(at: Ptr) -> Ptr {
        match at.addr().cast_signed() {
            -1 => std::ptr::without_provenance_mut(core::IN_PLACE),
            -2 => std::ptr::without_provenance_mut(core::BUFFER_AUTOMATIC),
            _ => at,
        }
    }

    /// Weights of edges, or one of the addresses that stand for something else.
    pub fn weights(at: Ptr) -> Ptr {
        let is = |place: &'static c_int| at.addr() == (&raw const *place).addr();
        match () {
            () if is(&crate::symbols::UNWEIGHTED) => std::ptr::without_provenance_mut(core::UNWEIGHTED),
            () if is(&crate::symbols::WEIGHTS_EMPTY) => std::ptr::without_provenance_mut(core::WEIGHTS_EMPTY),
            () => at,
        }
    }

    /// A pointer to statuses; 1 is `MPI_STATUS_IGNORE`.
    #[inline]
    pub fn status(at: Ptr) -> Foreign<Status> {
        let at = if at.addr() == 1 { std::ptr::null_mut() } else { at };
        // A constant: the compiler sees through it, so that a status is written without a call.
        const STATUS: &Codec<Status> = &Codec { get: super::get_status, set: super::set_status };
        Foreign::new(at, STATUS)
    }

    /// A callback of the program.
    pub fn callback(address: Ptr, wide: bool) -> Callback {
        Callback { address, wide, abi: &ABI }
    }
}

/// From the representation of the core to that of the program.
pub mod to {
    use super::*;

    macro_rules! handles {
        ($($name:ident: $type:ident, $pairs:ident;)*) => {$(
            #[inline]
            pub fn $name(handle: tautline_mpi::handle::$type) -> c_int {
                // Handles of the core have 26 bits.
                let value = handle.0 as u32;
                let value = if value >= 4096 { value } else { mapped_back(&values::$pairs, value) };
                value.cast_signed()
            }
        )*};
    }

    handles! {
        comm: Comm, COMM; group: Group, GROUP; win: Win, WIN; session: Session, SESSION;
        message: Message, MESSAGE; info: Info, INFO; errhandler: Errhandler, ERRHANDLER;
        request: Request, REQUEST; known_datatype: Datatype, DATATYPE; op: Op, OP;
    }

    /// A datatype; the standard ABI does not have all of this one.
    #[inline]
    pub fn datatype(handle: tautline_mpi::handle::Datatype) -> c_int {
        match handle {
            tautline_mpi::datatype::LOWER_MARK => LOWER_MARK,
            tautline_mpi::datatype::UPPER_MARK => UPPER_MARK,
            tautline_mpi::datatype::C_HALF => C_HALF,
            handle => known_datatype(handle),
        }
    }

    /// Files are pointers here.
    pub fn file(handle: tautline_mpi::handle::File) -> Ptr {
        if handle == core::FILE_NULL {
            std::ptr::null_mut()
        } else {
            std::ptr::without_provenance_mut(handle.0)
        }
    }

    macro_rules! ints {
        ($($name:ident: $pairs:ident;)*) => {$(
            pub fn $name(value: c_int) -> c_int {
                mapped_back(&values::$pairs, value)
            }
        )*};
    }

    ints! {
        rank: RANK; tag: TAG; keyval: KEYVAL; thread: THREAD; combiner: COMBINER; compare: COMPARE;
        topo: TOPO; distrib: DISTRIB; darg: DARG;
    }

    /// An error code.
    pub fn code(value: c_int) -> c_int {
        if value > core::ERR_LASTCODE {
            value - core::ERR_LASTCODE + LAST_CODE
        } else {
            mapped_back(&values::CODE, value)
        }
    }

    /// The number of a handle of the core, which the generated functions pass.
    pub fn int(handle: impl ToInt) -> c_int {
        handle.to_int()
    }

    /// Handles of the core that have a number in this ABI.
    pub trait ToInt {
        fn to_int(self) -> c_int;
    }

    macro_rules! to_int {
        ($($name:ident: $type:ident;)*) => {$(
            impl ToInt for tautline_mpi::handle::$type {
                fn to_int(self) -> c_int {
                    $name(self)
                }
            }
        )*};
    }

    to_int! {
        comm: Comm; group: Group; win: Win; session: Session; message: Message; info: Info;
        errhandler: Errhandler; request: Request; datatype: Datatype; op: Op;
    }

    impl ToInt for tautline_mpi::handle::File {
        fn to_int(self) -> c_int {
            (file(self).addr() as u32).cast_signed()
        }
    }
}

/// `MPI_Status` of this ABI.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawStatus {
    count_low: c_int,
    /// The lowest bit says whether the operation was cancelled.
    count_high_and_cancelled: c_int,
    source: c_int,
    tag: c_int,
    error: c_int,
}

const _: () = assert!(size_of::<RawStatus>() == 20);

/// The ways to read and write values in the program's memory.
pub mod codec {
    use super::*;
    pub use tautline_mpi::standard::codec::{INT, NARROW, POINTER, WIDE};

    macro_rules! ints {
        ($($name:ident: $type:ty, $from:expr, $to:expr;)*) => {$(
            pub static $name: Codec<$type> = Codec {
                get: |at, index| {
                    // SAFETY: as promised by the caller of `Foreign::get`.
                    let value = unsafe { at.cast::<c_int>().add(index).read_unaligned() };
                    $from(value)
                },
                set: |at, index, value| {
                    // SAFETY: as promised by the caller of `Foreign::set`.
                    unsafe { at.cast::<c_int>().add(index).write_unaligned($to(value)) }
                },
            };
        )*};
    }

    ints! {
        COMM: tautline_mpi::handle::Comm, from::comm, to::comm;
        GROUP: tautline_mpi::handle::Group, from::group, to::group;
        WIN: tautline_mpi::handle::Win, from::win, to::win;
        SESSION: tautline_mpi::handle::Session, from::session, to::session;
        MESSAGE: tautline_mpi::handle::Message, from::message, to::message;
        INFO: tautline_mpi::handle::Info, from::info, to::info;
        ERRHANDLER: tautline_mpi::handle::Errhandler, from::errhandler, to::errhandler;
        REQUEST: tautline_mpi::handle::Request, from::request, to::request;
        DATATYPE: tautline_mpi::handle::Datatype, from::datatype, to::datatype;
        OP: tautline_mpi::handle::Op, from::op, to::op;
        RANK: c_int, from::rank, to::rank;
        TAG: c_int, from::tag, to::tag;
        KEYVAL: c_int, from::keyval, to::keyval;
        CODE: c_int, from::code, to::code;
        THREAD: c_int, from::thread, to::thread;
        COMBINER: c_int, |value| mapped(&values::COMBINER, value), to::combiner;
        COMPARE: c_int, |value| mapped(&values::COMPARE, value), to::compare;
        TOPO: c_int, |value| mapped(&values::TOPO, value), to::topo;
        AMODE: c_int, |value| bits(&values::AMODE, value), |value| bits_back(&values::AMODE, value);
        DISTRIB: c_int, from::distrib, to::distrib;
        DARG: c_int, from::darg, to::darg;
    }

    /// The integers that `MPI_Type_get_contents` returns, some of which are constants.
    pub static CONTENTS: Codec<Content> = Codec {
        // SAFETY: as promised by the caller of `Foreign::get`.
        get: |at, index| Content::Int(unsafe { at.cast::<c_int>().add(index).read_unaligned() }),
        set: |at, index, value| {
            let value = match value {
                Content::Int(value) => value,
                Content::Order(value) => mapped_back(&values::ORDER, value),
                Content::Distrib(value) => to::distrib(value),
                Content::Darg(value) => to::darg(value),
            };
            // SAFETY: as promised by the caller of `Foreign::set`.
            unsafe { at.cast::<c_int>().add(index).write_unaligned(value) }
        },
    };

    /// Files.
    pub static FILE: Codec<tautline_mpi::handle::File> = Codec {
        // SAFETY: as promised by the caller of `Foreign::get`.
        get: |at, index| from::file(unsafe { at.cast::<Ptr>().add(index).read_unaligned() }),
        set: |at, index, value| {
            // SAFETY: as promised by the caller of `Foreign::set`.
            unsafe { at.cast::<Ptr>().add(index).write_unaligned(to::file(value)) }
        },
    };

    /// Statuses.
    pub static STATUS: Codec<Status> = Codec { get: get_status, set: set_status };
}

unsafe fn get_status(at: *const c_void, index: usize) -> Status {
    // SAFETY: as promised by the caller of `Foreign::get`.
    let raw = unsafe { at.cast::<RawStatus>().add(index).read_unaligned() };
    let high = raw.count_high_and_cancelled.cast_unsigned();
    Status {
        source: from::rank(raw.source),
        tag: from::tag(raw.tag),
        error: from::code(raw.error),
        bytes: u64::from(raw.count_low.cast_unsigned()) | u64::from(high >> 1) << 32,
        cancelled: high & 1 != 0,
    }
}

unsafe fn set_status(at: *mut c_void, index: usize, status: Status) {
    let high = ((status.bytes >> 32) as u32) << 1 | u32::from(status.cancelled);
    let raw = RawStatus {
        count_low: (status.bytes as u32).cast_signed(),
        count_high_and_cancelled: high.cast_signed(),
        source: to::rank(status.source),
        tag: to::tag(status.tag),
        error: to::code(status.error),
    };
    // SAFETY: as promised by the caller of `Foreign::set`.
    unsafe { at.cast::<RawStatus>().add(index).write_unaligned(raw) }
}

/// How callbacks of this ABI are called. An `int` is passed in the low half of a word, and read from there.
static ABI: Abi = Abi {
    comm: |comm| to::comm(comm).cast_unsigned() as usize,
    datatype: |datatype| to::datatype(datatype).cast_unsigned() as usize,
    win: |win| to::win(win).cast_unsigned() as usize,
    file: |file| to::file(file).addr(),
    session: |session| to::session(session).cast_unsigned() as usize,
    keyval: to::keyval,
    code: to::code,
    code_back: from::code,
    status: (size_of::<RawStatus>(), &codec::STATUS),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predefined_values_map_both_ways() {
        assert_eq!(from::comm(0x4400_0000), core::COMM_WORLD);
        assert_eq!(to::comm(core::COMM_WORLD), 0x4400_0000);
        assert_eq!(to::datatype(from::datatype(0x4c00_0405)), 0x4c00_0405);
        assert_eq!((from::rank(-1), from::rank(-2), from::rank(3)), (core::PROC_NULL, core::ANY_SOURCE, 3));
        assert_eq!((to::rank(core::ANY_SOURCE), to::tag(core::ANY_TAG)), (-2, -1));
        assert_eq!(to::code(core::ERR_UNSUPPORTED_OPERATION), 44);
        assert_eq!(from::file(std::ptr::null_mut()), core::FILE_NULL);
    }

    #[test]
    fn handles_of_the_core_keep_their_value() {
        for value in [4096, 0x12345, 0x1ff_ffff] {
            assert_eq!(to::comm(tautline_mpi::handle::Comm(value)), value as c_int);
            assert_eq!(from::comm(value as c_int).0, value);
        }
    }

    #[test]
    fn added_codes_lie_behind_the_last_one() {
        assert_eq!(to::code(core::ERR_LASTCODE + 3), LAST_CODE + 3);
        assert_eq!(from::code(LAST_CODE + 3), core::ERR_LASTCODE + 3);
    }

    #[test]
    fn a_status_keeps_all_it_is_given() {
        let status = Status { source: 3, tag: 7, error: 15, bytes: 0x1_8000_0001, cancelled: true };
        let mut raw = [0u32; 10];
        let statuses = Foreign::new(raw.as_mut_ptr().cast(), &codec::STATUS);
        // SAFETY: there is room for two.
        unsafe {
            statuses.set(1, status);
            assert_eq!(statuses.get(1), status);
        }
        assert_eq!((raw[7], raw[8]), (3, 7));
    }
}
