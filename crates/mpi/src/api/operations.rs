//! Reduction operations.

use std::ffi::c_int;
use std::sync::Arc;

use super::Ptr;
use crate::constants as c;
use crate::error::{Error, Result};
use crate::foreign::{Callback, Foreign};
use crate::handle::{Datatype, Op};
use crate::objects::{self, OPS};
use crate::op::Operation;

/// `MPI_Op_create`.
pub unsafe fn op_create(function: Callback, commutes: c_int, op: Foreign<Op>) -> Result<()> {
    if function.is_null() {
        return Err(Error::new(c::ERR_ARG, "the function is a null pointer"));
    }
    let operation = Operation::User { function, commutes: commutes != 0 };
    // SAFETY: the arguments are as the standard says.
    unsafe { op.set(0, objects::add(&OPS, Arc::new(operation))?) };
    Ok(())
}

/// `MPI_Op_free`.
pub unsafe fn op_free(op: Foreign<Op>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let handle = op.get(0);
        objects::op(handle)?;
        if OPS.remove(handle.0).is_none() {
            return Err(Error::new(c::ERR_OP, "a predefined operation cannot be freed"));
        }
        op.set(0, c::OP_NULL);
    }
    Ok(())
}

/// `MPI_Op_commutative`.
pub unsafe fn op_commutative(op: Op, commutes: Foreign<c_int>) -> Result<()> {
    // SAFETY: the arguments are as the standard says.
    unsafe { commutes.set(0, c_int::from(objects::op(op)?.commutes())) };
    Ok(())
}

/// `MPI_Reduce_local`.
pub unsafe fn reduce_local(input: Ptr, inout: Ptr, count: i64, datatype: Datatype, op: Op) -> Result<()> {
    let (object, operation) = (objects::datatype(datatype)?, objects::op(op)?);
    operation.check(&object.of)?;
    if count > 0 && (input.is_null() || inout.is_null()) {
        return Err(Error::new(c::ERR_BUFFER, "a buffer is a null pointer"));
    }
    // SAFETY: the arguments are as the standard says.
    unsafe { operation.apply(input, inout, count, &object.of, datatype) }
}
