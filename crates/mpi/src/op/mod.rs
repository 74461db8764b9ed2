//! Reductions: the predefined operations, and those of the program.

mod extended;
mod kernels;

#[cfg(test)]
mod tests;

pub use kernels::{Kernel, kernel};

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::constants as c;
use crate::datatype::{Message, Type};
use crate::error::{Error, Result, count as natural};
use crate::foreign::Callback;
use crate::handle::{Datatype, Op};

/// An operation.
pub enum Operation {
    /// One of the standard.
    Predefined(Op),
    /// One of the program.
    User {
        /// `void f(void *in, void *inout, int *len, MPI_Datatype *datatype)`, or with `MPI_Count *`.
        function: Callback,
        /// Whether the order of operands does not matter.
        commutes: bool,
    },
}

/// The most elements that a function with an `int` gets at once.
const CHUNK: i64 = c_int::MAX as i64;

impl Operation {
    /// The operation of a predefined handle.
    pub fn predefined(op: Op) -> Option<Operation> {
        let known = [
            c::SUM,
            c::MIN,
            c::MAX,
            c::PROD,
            c::BAND,
            c::BOR,
            c::BXOR,
            c::LAND,
            c::LOR,
            c::LXOR,
            c::MINLOC,
            c::MAXLOC,
            c::REPLACE,
            c::NO_OP,
        ];
        known.contains(&op).then_some(Operation::Predefined(op))
    }

    /// Whether the order of operands does not matter.
    pub fn commutes(&self) -> bool {
        match self {
            Operation::Predefined(op) => !matches!(*op, c::REPLACE | c::NO_OP),
            Operation::User { commutes, .. } => *commutes,
        }
    }

    /// Fails if the operation cannot be applied to the datatype.
    pub fn check(&self, datatype: &Type) -> Result<()> {
        match self {
            Operation::Predefined(c::REPLACE | c::NO_OP) | Operation::User { .. } => Ok(()),
            Operation::Predefined(op) => {
                let kernel = datatype.single().and_then(|of| kernels::kernel(*op, of));
                kernel.map(|_| ()).ok_or_else(|| {
                    Error::new(c::ERR_OP, format!("{} is not defined for this datatype", name(*op)))
                })
            }
        }
    }

    /// Combines `count` elements: `inout[i] = in[i] op inout[i]`.
    ///
    /// # Safety
    ///
    /// Both arrays are as the datatype says, and do not overlap. The program's function, if it is one, keeps
    /// to the standard.
    pub unsafe fn apply(
        &self,
        input: *const c_void,
        inout: *mut c_void,
        count: i64,
        datatype: &Arc<Type>,
        handle: Datatype,
    ) -> Result<()> {
        let elements = natural(count, "count")?;
        if elements == 0 {
            return Ok(());
        }
        match self {
            Operation::Predefined(c::NO_OP) => Ok(()),
            Operation::Predefined(c::REPLACE) => {
                let bytes = Message::new(input.cast_mut(), count, datatype)?;
                let to = Message::new(inout, count, datatype)?;
                // SAFETY: as promised by the caller.
                unsafe { to.unpack(0, &bytes.to_vec()) };
                Ok(())
            }
            Operation::Predefined(op) => {
                self.check(datatype)?;
                let kernel = datatype.single().and_then(|of| kernels::kernel(*op, of));
                // SAFETY: as promised by the caller.
                kernel.into_iter().for_each(|kernel| unsafe { kernel(input.cast(), inout.cast(), elements) });
                Ok(())
            }
            Operation::User { function, .. } => {
                // SAFETY: as promised by the caller.
                unsafe { call(*function, input, inout, count, (datatype.extent(), handle)) };
                Ok(())
            }
        }
    }
}

/// Calls the function of the program, in chunks if it takes an `int`.
///
/// # Safety
///
/// As for [`Operation::apply`].
unsafe fn call(
    function: Callback,
    input: *const c_void,
    inout: *mut c_void,
    count: i64,
    (extent, handle): (i64, Datatype),
) {
    type Narrow = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int, *mut usize);
    type Wide = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut i64, *mut usize);
    let mut datatype = (function.abi.datatype)(handle);
    if function.wide {
        let mut len = count;
        // SAFETY: the program passed a function of this type.
        unsafe {
            let wide = std::mem::transmute::<*const c_void, Wide>(function.address);
            wide(input.cast_mut(), inout, &raw mut len, &raw mut datatype);
        }
        return;
    }
    let mut done = 0;
    while done < count {
        let chunk = (count - done).min(CHUNK);
        let mut len = chunk as c_int;
        let offset = (done * extent) as isize;
        // SAFETY: the program passed a function of this type; the arrays go on behind the first chunk.
        unsafe {
            let narrow = std::mem::transmute::<*const c_void, Narrow>(function.address);
            let (input, inout) = (input.wrapping_byte_offset(offset), inout.wrapping_byte_offset(offset));
            narrow(input.cast_mut(), inout, &raw mut len, &raw mut datatype);
        }
        done += chunk;
    }
}

/// The name of a predefined operation.
fn name(op: Op) -> &'static str {
    match op {
        c::SUM => "MPI_SUM",
        c::MIN => "MPI_MIN",
        c::MAX => "MPI_MAX",
        c::PROD => "MPI_PROD",
        c::BAND => "MPI_BAND",
        c::BOR => "MPI_BOR",
        c::BXOR => "MPI_BXOR",
        c::LAND => "MPI_LAND",
        c::LOR => "MPI_LOR",
        c::LXOR => "MPI_LXOR",
        c::MINLOC => "MPI_MINLOC",
        c::MAXLOC => "MPI_MAXLOC",
        _ => "the operation",
    }
}
