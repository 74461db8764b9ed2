//! Starting and ending, versions, names, memory.

use std::alloc::Layout;
use std::ffi::c_int;
use std::sync::Arc;

use tautline::group::Call;

use super::{Ptr, buffered, set_string};
use crate::attribute::Owner;
use crate::call::{self, Object};
use crate::constants as c;
use crate::error::{Error, Result};
use crate::foreign::Foreign;
use crate::handle::{Comm, Info};
use crate::network::{self, network};
use crate::objects::{self, INFOS};
use crate::state;

/// `MPI_Init`.
pub unsafe fn init(_argc: Foreign<c_int>, _argv: Ptr) -> Result<()> {
    state::initialize(c::THREAD_SINGLE).map(|_| ())
}

/// `MPI_Init_thread`.
pub unsafe fn init_thread(
    _argc: Foreign<c_int>,
    _argv: Ptr,
    required: c_int,
    provided: Foreign<c_int>,
) -> Result<()> {
    let level = state::initialize(required)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { provided.set(0, level) };
    Ok(())
}

/// `MPI_Finalize`: the attributes of `MPI_COMM_SELF` are deleted first. No rank leaves before all are here.
pub unsafe fn finalize() -> Result<()> {
    for comm in [&objects::SELF, &objects::WORLD] {
        // SAFETY: the program's callbacks keep to the standard.
        unsafe { comm.attributes.delete_all(&Owner(Object::Comm(comm.handle()), None))? };
    }
    let together =
        buffered::flush().and_then(|()| network().world().run(&Call::Barrier, &[]).map_err(network::failure));
    // Whatever happened to the others, this rank leaves.
    together.map(drop).and(state::finalize())
}

/// `MPI_Initialized`.
pub unsafe fn initialized(flag: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { flag.set(0, c_int::from(state::is_initialized())) };
    Ok(())
}

/// `MPI_Finalized`.
pub unsafe fn finalized(flag: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { flag.set(0, c_int::from(state::is_finalized())) };
    Ok(())
}

/// `MPI_Query_thread`.
pub unsafe fn query_thread(provided: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { provided.set(0, state::level()) };
    Ok(())
}

/// `MPI_Is_thread_main`.
pub unsafe fn is_thread_main(flag: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { flag.set(0, c_int::from(state::is_main_thread())) };
    Ok(())
}

/// `MPI_Abort`.
pub unsafe fn abort(_comm: Comm, code: c_int) -> Result<()> {
    let rank = network().rank;
    call::report(&format!("rank {rank}: MPI_Abort was called with the code {code}"));
    network::abort(code)
}

/// `MPI_Get_version`.
pub unsafe fn get_version(version: Foreign<c_int>, subversion: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        version.set(0, c::VERSION);
        subversion.set(0, c::SUBVERSION);
    }
    Ok(())
}

/// `MPI_Get_library_version`.
pub unsafe fn get_library_version(version: Ptr, length: Foreign<c_int>) -> Result<()> {
    let text = concat!("Tautline MPI ", env!("CARGO_PKG_VERSION"));
    // SAFETY: the arguments are as the standard says.
    unsafe { set_string(version, c::MAX_LIBRARY_VERSION_STRING, text, length) }
}

/// `MPI_Get_processor_name`. The limit is the lowest of all ABIs.
pub unsafe fn get_processor_name(name: Ptr, length: Foreign<c_int>) -> Result<()> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    // SAFETY: the arguments are as the standard says.
    unsafe { set_string(name, 128, if host.is_empty() { "localhost" } else { host }, length) }
}

/// `MPI_Abi_get_version`.
pub unsafe fn abi_get_version(major: Foreign<c_int>, minor: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        major.set(0, c::ABI_VERSION);
        minor.set(0, c::ABI_SUBVERSION);
    }
    Ok(())
}

/// `MPI_Abi_get_info`.
pub unsafe fn abi_get_info(info: Foreign<Info>) -> Result<()> {
    let sizes = [("mpi_aint_size", "8"), ("mpi_count_size", "8"), ("mpi_offset_size", "8")];
    let list = sizes.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    // SAFETY: the arguments are as the standard says.
    unsafe { info.set(0, objects::add(&INFOS, Arc::new(list.into()))?) };
    Ok(())
}

/// `MPI_Get_hw_resource_info`: nothing is known of the hardware.
pub unsafe fn get_hw_resource_info(info: Foreign<Info>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { info.set(0, objects::add(&INFOS, Arc::default())?) };
    Ok(())
}

/// `MPI_Abi_get_fortran_info`: nothing is known of Fortran.
pub unsafe fn abi_get_fortran_info(info: Foreign<Info>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { info.set(0, c::INFO_NULL) };
    Ok(())
}

/// `MPI_Pcontrol`: the level of a tool.
pub unsafe fn pcontrol(_level: c_int) -> Result<()> {
    Ok(())
}

/// `MPI_Get_address`.
pub unsafe fn get_address(location: Ptr, address: Foreign<i64>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { address.set(0, location.addr() as i64) };
    Ok(())
}

/// What lies in front of memory that `MPI_Alloc_mem` gives out: the size of the whole.
const HEAD: usize = 64;

fn layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size.checked_add(HEAD)?, HEAD).ok()
}

/// `MPI_Alloc_mem`.
pub unsafe fn alloc_mem(size: i64, _info: Info, base: Ptr) -> Result<()> {
    let bad = |text: String| Error::new(c::ERR_ARG, text);
    let bytes = usize::try_from(size).map_err(|_| bad(format!("size is {size}")))?;
    if base.is_null() {
        return Err(bad("baseptr is a null pointer".to_owned()));
    }
    let layout =
        layout(bytes).ok_or_else(|| Error::new(c::ERR_NO_MEM, format!("{size} bytes are too many")))?;
    // SAFETY: the layout is not empty; its head has room for the size.
    unsafe {
        let at = std::alloc::alloc(layout);
        if at.is_null() {
            return Err(Error::new(c::ERR_NO_MEM, format!("there is no memory for {size} bytes")));
        }
        at.cast::<usize>().write(bytes);
        base.cast::<*mut u8>().write_unaligned(at.add(HEAD));
    }
    Ok(())
}

/// `MPI_Free_mem`.
pub unsafe fn free_mem(base: Ptr) -> Result<()> {
    if base.is_null() {
        return Ok(());
    }
    // SAFETY: the program passes what `MPI_Alloc_mem` returned.
    unsafe {
        let at = base.cast::<u8>().sub(HEAD);
        let size = at.cast::<usize>().read();
        layout(size).into_iter().for_each(|layout| std::alloc::dealloc(at, layout));
    }
    Ok(())
}
