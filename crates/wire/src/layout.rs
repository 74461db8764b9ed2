//! The layouts as data: one table per header, from which the dissector is generated and against which it is tested.

/// One field of a fixed layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name, as in the code and in the dissector.
    pub name: &'static str,
    /// Byte offset from the start of the layout.
    pub at: usize,
    /// Size in bytes.
    pub size: usize,
}

/// The named layouts: `frame`, `handshake`, `record`.
pub fn layout(name: &str) -> Option<&'static [Field]> {
    match name {
        "frame" => Some(crate::frame::LAYOUT),
        "handshake" => Some(crate::handshake::LAYOUT),
        "record" => Some(crate::record::LAYOUT),
        _ => None,
    }
}

/// Declares the offsets of a layout and its table, and asserts at compile time that the fields tile it (W-3).
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
                assert!(LAYOUT[i].at == end, "a field does not start where the one before it ends");
                assert!(LAYOUT[i].at % (if LAYOUT[i].size > 8 { 8 } else { LAYOUT[i].size }) == 0, "unaligned");
                end += LAYOUT[i].size;
                i += 1;
            }
            assert!(end == $total, "the fields do not add up to the layout's length");
        };
    };
}
pub(crate) use fields;
