//! Address space, which a process may have little of.

use rustix::mm::{MapFlags, ProtFlags};

/// Whether `len` bytes of address space are left. An allocation that fails later aborts the process.
pub fn has_address_space(len: usize) -> bool {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping that cannot be accessed, at an address that the kernel chooses; nothing refers to
    // it, and it is unmapped as a whole.
    unsafe {
        let mapped = rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), flags);
        mapped.is_ok_and(|at| rustix::mm::munmap(at, len).is_ok())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn address_space_is_finite() {
        assert!(super::has_address_space(1 << 20));
        assert!(!super::has_address_space(1 << 62));
    }
}
