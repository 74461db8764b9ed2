//! Functions that MPI 3 removed and that older programs of Fortran call, whose addresses are default
//! integers; and the predefined callbacks.

use super::by_reference;
use super::prelude::*;

by_reference! {
mpi_address_ pmpi_address_(location, address, ierror) () {
    give(ierror, call("MPI_Address", Object::None, || {
        api::get_address(from::buffer(location), Foreign::new(address, &codec::NARROW))
    }))
}
mpi_type_extent_ pmpi_type_extent_(datatype, extent, ierror) () {
    give(ierror, call("MPI_Type_extent", Object::None, || {
        api::type_get_extent(from::datatype(datatype), nowhere(), Foreign::new(extent, &codec::NARROW))
    }))
}
mpi_type_lb_ pmpi_type_lb_(datatype, displacement, ierror) () {
    give(ierror, call("MPI_Type_lb", Object::None, || {
        api::type_get_extent(from::datatype(datatype), Foreign::new(displacement, &codec::NARROW), nowhere())
    }))
}
mpi_type_ub_ pmpi_type_ub_(datatype, displacement, ierror) () {
    give(ierror, call("MPI_Type_ub", Object::None, || {
        let mut bounds = [0_i64; 2];
        let [lower, extent] = &mut bounds;
        let (lower, extent) = ((&raw mut *lower).cast(), (&raw mut *extent).cast());
        let (lower, extent) = (Foreign::new(lower, &codec::WIDE), Foreign::new(extent, &codec::WIDE));
        api::type_get_extent(from::datatype(datatype), lower, extent)?;
        Foreign::new(displacement, &codec::NARROW).set(0, bounds[0] + bounds[1]);
        Ok(())
    }))
}
mpi_type_hvector_ pmpi_type_hvector_(count, blocklength, stride, oldtype, newtype, ierror) () {
    give(ierror, call("MPI_Type_hvector", Object::None, || {
        let [count, blocklength, stride] = [count, blocklength, stride].map(|at| i64::from(from::int(at)));
        let newtype = Foreign::new(newtype, &codec::DATATYPE);
        api::type_create_hvector(count, blocklength, stride, from::datatype(oldtype), newtype)
    }))
}
mpi_type_hindexed_ pmpi_type_hindexed_(count, lengths, displacements, oldtype, newtype, ierror) () {
    give(ierror, call("MPI_Type_hindexed", Object::None, || {
        let lengths = Foreign::new(lengths, &codec::NARROW);
        let displacements = Foreign::new(displacements, &codec::NARROW);
        let newtype = Foreign::new(newtype, &codec::DATATYPE);
        let count = i64::from(from::int(count));
        api::type_create_hindexed(count, lengths, displacements, from::datatype(oldtype), newtype)
    }))
}
mpi_type_struct_ pmpi_type_struct_(count, lengths, displacements, types, newtype, ierror) () {
    give(ierror, call("MPI_Type_struct", Object::None, || {
        let lengths = Foreign::new(lengths, &codec::NARROW);
        let displacements = Foreign::new(displacements, &codec::NARROW);
        let (types, newtype) = (Foreign::new(types, &codec::DATATYPE), Foreign::new(newtype, &codec::DATATYPE));
        api::type_create_struct(i64::from(from::int(count)), lengths, displacements, types, newtype)
    }))
}
mpi_errhandler_create_ pmpi_errhandler_create_(function, errhandler, ierror) () {
    give(ierror, call("MPI_Errhandler_create", Object::None, || {
        api::comm_create_errhandler(from::callback(function), Foreign::new(errhandler, &codec::ERRHANDLER))
    }))
}
mpi_errhandler_set_ pmpi_errhandler_set_(comm, errhandler, ierror) () {
    give(ierror, call("MPI_Errhandler_set", Object::Comm(from::comm(comm)), || {
        api::comm_set_errhandler(from::comm(comm), from::errhandler(errhandler))
    }))
}
mpi_errhandler_get_ pmpi_errhandler_get_(comm, errhandler, ierror) () {
    give(ierror, call("MPI_Errhandler_get", Object::Comm(from::comm(comm)), || {
        api::comm_get_errhandler(from::comm(comm), Foreign::new(errhandler, &codec::ERRHANDLER))
    }))
}
}

/// A result that nobody asked for.
fn nowhere() -> Foreign<i64> {
    Foreign::new(std::ptr::null_mut(), &codec::WIDE)
}

/// The predefined callbacks for attributes: copying the value, copying nothing, deleting nothing.
macro_rules! callbacks {
    ($($dup:ident $no_copy:ident $no_delete:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $dup(
            _object: Ptr,
            _key: Ptr,
            _extra: Ptr,
            value: *const usize,
            copy: *mut usize,
            flag: *mut i32,
            ierror: *mut i32,
        ) {
            // SAFETY: whoever copies attributes passes places for all results.
            unsafe {
                *copy = *value;
                *flag = 1;
                *ierror = 0;
            }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $no_copy(
            _object: Ptr,
            _key: Ptr,
            _extra: Ptr,
            _value: Ptr,
            _copy: Ptr,
            flag: *mut i32,
            ierror: *mut i32,
        ) {
            // SAFETY: as above.
            unsafe {
                *flag = 0;
                *ierror = 0;
            }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $no_delete(_object: Ptr, _key: Ptr, _value: Ptr, _extra: Ptr, ierror: *mut i32) {
            // SAFETY: as above.
            unsafe { *ierror = 0 };
        }
    )*};
}

callbacks! {
    mpi_dup_fn_ mpi_null_copy_fn_ mpi_null_delete_fn_;
    mpi_comm_dup_fn_ mpi_comm_null_copy_fn_ mpi_comm_null_delete_fn_;
    mpi_type_dup_fn_ mpi_type_null_copy_fn_ mpi_type_null_delete_fn_;
    mpi_win_dup_fn_ mpi_win_null_copy_fn_ mpi_win_null_delete_fn_;
}
