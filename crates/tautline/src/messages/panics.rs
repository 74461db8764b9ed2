//! Texts of panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns a panic's text and drops its payload. Dropping runs the program's code, which may panic again.
#[cold]
pub(crate) fn into_panic_text(panic: Box<dyn std::any::Any + Send>) -> String {
    let text = panic_text(&*panic);
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        // Dropping this one could panic, too.
        std::mem::forget(another);
    }
    text
}

/// Returns the text of a panic, as `catch_unwind` returns it.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panicked".to_owned())
}
