//! How a façade defines its C functions.

/// Defines each function under both names, so that tools can put themselves between the program and the
/// library.
#[macro_export]
macro_rules! export {
    ($($name:ident $twin:ident($($arg:ident: $type:ty),*) -> $result:ty { $body:expr })*) => {$(
        #[unsafe(no_mangle)]
        #[allow(unused_variables, unused_unsafe, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $twin($($arg: $type),*) -> $result {
            // SAFETY: the program passes what the standard asks for.
            unsafe { $body }
        }

        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            // SAFETY: as above.
            unsafe { $twin($($arg),*) }
        }
    )*};
}
