//! The three capabilities that AF_XDP needs, and the limit on pinned memory.

use std::io;
use std::ptr;

/// Numbers from `linux/capability.h`, with the names for `setcap`.
pub(crate) const NEEDED: [(u32, &str); 3] = [(13, "cap_net_raw"), (12, "cap_net_admin"), (39, "cap_bpf")];

/// Version 3 of the interface: 64 bits in two halves.
const VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn read() -> io::Result<[Half; 2]> {
    let mut header = Header { version: VERSION, pid: 0 };
    let mut halves = [Half::default(); 2];
    // SAFETY: a live header, and room for the two halves that version 3 writes.
    let done = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, halves.as_mut_ptr()) };
    if done == 0 { Ok(halves) } else { Err(io::Error::last_os_error()) }
}

/// Allows pinning memory beyond RLIMIT_MEMLOCK.
const IPC_LOCK: u32 = 14;

fn has(halves: &[Half; 2], bit: u32) -> bool {
    halves[bit as usize / 32].effective & 1 << (bit % 32) != 0
}

/// Whether this thread may pin any amount of memory.
pub(crate) fn may_pin_any() -> bool {
    has(&read().unwrap_or_default(), IPC_LOCK)
}

/// Returns the needed capabilities that this thread lacks.
pub(crate) fn missing() -> Vec<&'static str> {
    let halves = read().unwrap_or_default();
    NEEDED.iter().filter(|(bit, _)| !has(&halves, *bit)).map(|(_, name)| *name).collect()
}

/// Whether this process is in a nested user namespace: its capabilities apply only to that namespace's
/// resources.
pub(crate) fn is_in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    is_nested(&map)
}

/// The initial namespace maps every user to itself.
fn is_nested(uid_map: &str) -> bool {
    !uid_map.is_empty() && !uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Drops the three capabilities, for this thread and its future children.
pub(crate) fn drop_needed() -> io::Result<()> {
    let mut halves = read()?;
    for (bit, _) in NEEDED {
        let half = &mut halves[bit as usize / 32];
        let keep = !(1 << (bit % 32));
        (half.effective, half.permitted, half.inheritable) =
            (half.effective & keep, half.permitted & keep, half.inheritable & keep);
    }
    let mut header = Header { version: VERSION, pid: 0 };
    // SAFETY: a live header and two live halves, which the kernel only reads.
    let done = unsafe { libc::syscall(libc::SYS_capset, ptr::from_mut(&mut header), halves.as_ptr()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns how many bytes all processes of this user may pin together, unless they are privileged; `None` for
/// no limit.
pub(crate) fn memlock_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_user_namespaces_are_detected() {
        assert!(!is_nested("         0          0 4294967295\n") && !is_nested(""));
        assert!(is_nested("0 1000 1\n") && is_nested("0 0 65536\n") && is_nested("0 0 1\n1 1 4294967294\n"));
    }
}
