//! Handles as programs hold them. Predefined handles are numbers below 4096 ([`crate::constants`]); all
//! others name an entry of a pool of objects.

/// Values of handles below this one are predefined.
pub const FIRST_DYNAMIC: usize = 4096;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub struct $name(pub usize);

        impl From<usize> for $name {
            fn from(value: usize) -> $name {
                $name(value)
            }
        }

        impl From<$name> for usize {
            fn from(handle: $name) -> usize {
                handle.0
            }
        }
    )*};
}

handles! {
    /// `MPI_Comm`.
    Comm
    /// `MPI_Group`.
    Group
    /// `MPI_Win`.
    Win
    /// `MPI_File`.
    File
    /// `MPI_Session`.
    Session
    /// `MPI_Message`.
    Message
    /// `MPI_Info`.
    Info
    /// `MPI_Errhandler`.
    Errhandler
    /// `MPI_Request`.
    Request
    /// `MPI_Datatype`.
    Datatype
    /// `MPI_Op`.
    Op
}
