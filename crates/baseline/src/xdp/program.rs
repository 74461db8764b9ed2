//! The steering program: IPv4 datagrams to one UDP port go to our socket, everything else passes to the
//! kernel.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Where the program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// In the kernel's common receive path; every interface has that.
    Generic,
    /// In the interface's own driver.
    Native,
}

// From linux/bpf.h.
const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const MAP_OF_SOCKETS: u32 = 17;
const PROG_OF_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const REDIRECT_MAP: i32 = 51;
const PASS: i32 = 2;
const GENERIC: u32 = 1 << 1;
const NATIVE: u32 = 1 << 2;

/// An instruction as the kernel reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u8,
    /// Destination in the low four bits, source in the high ones.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn op(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: to | from << 4, offset, immediate }
}

// The few opcodes that we need: size and mode, then class, as in linux/bpf_common.h.
const LOAD_BYTE: u8 = 0x71;
const LOAD_HALF: u8 = 0x69;
const LOAD_WORD: u8 = 0x61;
const LOAD_MAP: u8 = 0x18;
const MOVE: u8 = 0xBF;
const SET: u8 = 0xB7;
const ADD: u8 = 0x07;
const IF_MORE: u8 = 0x2D;
const UNLESS: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// Bytes of the three headers, and where in them the deciding fields are.
const HEADERS: i32 = super::frame::HEADER as i32;
const ETHER_TYPE: i16 = 12;
const IP_VERSION: i16 = 14;
const IP_PROTOCOL: i16 = 23;
const UDP_PORT: i16 = 36;

/// Registers: 1 the context, 2 the frame, 3 its end, 5 the field being examined.
fn instructions(port: u16, map: i32) -> [Instruction; 21] {
    let net = |value: u16| i32::from(value.to_be());
    // To the last two instructions, from the one at this place.
    let pass = |from: i16| 19 - (from + 1);
    [
        op(LOAD_WORD, 2, 1, 0, 0),
        op(LOAD_WORD, 3, 1, 4, 0),
        op(MOVE, 5, 2, 0, 0),
        op(ADD, 5, 0, 0, HEADERS),
        op(IF_MORE, 5, 3, pass(4), 0),
        op(LOAD_HALF, 5, 2, ETHER_TYPE, 0),
        op(UNLESS, 5, 0, pass(6), net(0x0800)),
        op(LOAD_BYTE, 5, 2, IP_VERSION, 0),
        op(UNLESS, 5, 0, pass(8), 0x45),
        op(LOAD_BYTE, 5, 2, IP_PROTOCOL, 0),
        op(UNLESS, 5, 0, pass(10), 17),
        op(LOAD_HALF, 5, 2, UDP_PORT, 0),
        op(UNLESS, 5, 0, pass(12), net(port)),
        // The queue that it came by is the index in the map; without a socket there it passes.
        op(LOAD_WORD, 2, 1, 16, 0),
        op(LOAD_MAP, 1, 1, 0, map),
        op(0, 0, 0, 0, 0),
        op(SET, 3, 0, 0, PASS),
        op(CALL, 0, 0, 0, REDIRECT_MAP),
        op(EXIT, 0, 0, 0, 0),
        op(SET, 0, 0, 0, PASS),
        op(EXIT, 0, 0, 0, 0),
    ]
}

/// The map and the program, until dropped; also the link, once it is attached.
pub(super) struct Steering {
    map: OwnedFd,
    program: OwnedFd,
    link: Option<OwnedFd>,
}

impl Steering {
    /// Loads a program that takes datagrams to this port.
    pub(super) fn load(port: u16) -> io::Result<Self> {
        let map = create_map().map_err(|e| explain("make a map of AF_XDP sockets", &e))?;
        let program = load(&instructions(port, map.as_raw_fd()));
        let program = program.map_err(|e| explain("load an XDP program", &e))?;
        Ok(Self { map, program, link: None })
    }

    /// Directs the frames of a queue to a socket.
    pub(super) fn send_to(&self, queue: u32, socket: &impl AsRawFd) -> io::Result<()> {
        let value = socket.as_raw_fd();
        let attr = MapUpdate {
            map: self.map.as_raw_fd(),
            _pad: 0,
            key: (&raw const queue) as u64,
            value: (&raw const value) as u64,
            flags: 0,
        };
        call(MAP_UPDATE, &attr).map(drop)
    }

    /// Attaches it to an interface.
    pub(super) fn attach(&mut self, interface: u32, attach: Attach) -> io::Result<()> {
        let flags = if attach == Attach::Generic { GENERIC } else { NATIVE };
        let program = self.program.as_raw_fd();
        let attr = LinkCreate { program, interface, kind: ATTACH_XDP, flags };
        let link = call(LINK_CREATE, &attr).map_err(|e| explain("attach an XDP program", &e))?;
        // SAFETY: the kernel has just made this descriptor for us.
        self.link = Some(unsafe { OwnedFd::from_raw_fd(link) });
        Ok(())
    }
}

fn explain(what: &str, error: &io::Error) -> io::Error {
    let hint = match error.raw_os_error() {
        Some(libc::EPERM) => {
            "; it takes CAP_BPF and CAP_NET_ADMIN outside of any user namespace: run it as root"
        }
        Some(libc::ENOSYS | libc::EINVAL) => "; this kernel does not offer it",
        Some(libc::EBUSY | libc::EEXIST) => "; another XDP program is attached there",
        _ => "",
    };
    io::Error::new(error.kind(), format!("cannot {what}: {error}{hint}"))
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key: u32,
    value: u32,
    entries: u32,
}

#[repr(C)]
struct MapUpdate {
    map: i32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// As far as we need it; the kernel takes the rest as zero.
#[repr(C)]
struct ProgLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected: u32,
}

#[repr(C)]
struct LinkCreate {
    program: i32,
    interface: u32,
    kind: u32,
    flags: u32,
}

fn create_map() -> io::Result<OwnedFd> {
    let fd = call(MAP_CREATE, &MapCreate { kind: MAP_OF_SOCKETS, key: 4, value: 4, entries: 1 })?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn load(instructions: &[Instruction]) -> io::Result<OwnedFd> {
    let fd = call(
        PROG_LOAD,
        &ProgLoad {
            kind: PROG_OF_XDP,
            count: instructions.len() as u32,
            instructions: instructions.as_ptr() as u64,
            license: c"GPL".as_ptr() as u64,
            log_level: 0,
            log_size: 0,
            log: 0,
            kernel_version: 0,
            flags: 0,
            name: *b"tautline_limit\0\0",
            interface: 0,
            expected: ATTACH_XDP,
        },
    )?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The one system call of eBPF; all its pointers are inside the attributes.
fn call<T>(command: libc::c_long, attr: &T) -> io::Result<libc::c_int> {
    // SAFETY: the attributes are those of the command, and whatever they point to is alive during the call;
    // none of our commands writes to memory.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attr, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_jump_ends_at_pass() {
        let program = instructions(7000, 3);
        for (at, instruction) in program.iter().enumerate() {
            if matches!(instruction.code, IF_MORE | UNLESS) {
                let to = (at as i64 + 1 + i64::from(instruction.offset)) as usize;
                assert_eq!(program[to], op(SET, 0, 0, 0, PASS), "from {at}");
                assert_eq!(program[to + 1].code, EXIT);
            }
        }
    }

    /// Where it is allowed, the kernel's verifier decides.
    #[test]
    fn the_kernel_loads_it_or_says_why_not() {
        if let Err(error) = Steering::load(7000) {
            assert!(error.to_string().starts_with("cannot "), "{error}");
            assert!(!rustix::process::geteuid().is_root() || error.raw_os_error().is_none(), "{error}");
        }
    }
}
