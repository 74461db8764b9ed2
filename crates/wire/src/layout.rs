//! The layouts as data: one table per header. The Wireshark dissector is tested against these tables.

/// One field of a fixed layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name of the offset's constant: `AT_` and the name of the field in the dissector.
    pub name: &'static str,
    /// Offset from the start of the layout, in bytes.
    pub at: usize,
    /// Size in bytes.
    pub size: usize,
}

/// Declares the offsets of a layout and its table. Asserts at compile time that fields leave no gap (W-3).
macro_rules! fields {
    ($total:expr; $($name:ident : $at:expr, $size:expr;)*) => {
        $(#[allow(dead_code)] pub(crate) const $name: usize = $at;)*
        /// Every field of this layout, in order.
        pub const LAYOUT: &[$crate::layout::Field] =
            &[$($crate::layout::Field { name: stringify!($name), at: $at, size: $size },)*];
        const _: () = {
            let mut i = 0;
            let mut end = 0;
            while i < LAYOUT.len() {
                assert!(LAYOUT[i].at == end, "a field does not start at the end of the previous one");
                assert!(LAYOUT[i].at % (if LAYOUT[i].size > 8 { 8 } else { LAYOUT[i].size }) == 0, "a field is not aligned to its size");
                end += LAYOUT[i].size;
                i += 1;
            }
            assert!(end == $total, "the fields do not add up to the layout's length");
        };
    };
}
pub(crate) use fields;
