//! The three privileges that AF_XDP needs: which of them this thread has, and giving them up.

use std::io;
use std::ptr;

/// Numbers from `linux/capability.h`, with the names that `setcap` knows.
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

/// Lets memory be pinned whatever RLIMIT_MEMLOCK says.
const IPC_LOCK: u32 = 14;

fn has(halves: &[Half; 2], bit: u32) -> bool {
    halves[bit as usize / 32].effective & 1 << (bit % 32) != 0
}

/// Whether this thread may pin any amount of memory.
pub(crate) fn may_lock() -> bool {
    has(&read().unwrap_or_default(), IPC_LOCK)
}

/// The needed privileges that this thread lacks.
pub(crate) fn missing() -> Vec<&'static str> {
    let halves = read().unwrap_or_default();
    NEEDED.iter().filter(|(bit, _)| !has(&halves, *bit)).map(|(_, name)| *name).collect()
}

/// Gives the three up, for this thread and all that it starts from now on.
pub(crate) fn give_up() -> io::Result<()> {
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
