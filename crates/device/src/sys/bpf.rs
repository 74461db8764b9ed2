//! The `bpf` system call: maps, programs, links, and information about attached programs.

use std::ffi::CStr;
use std::mem::size_of_val;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use super::last_errno;

// Commands, from `linux/bpf.h`.
const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP: libc::c_int = 1;
const MAP_UPDATE: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
#[cfg(test)]
const PROG_TEST_RUN: libc::c_int = 10;
const PROG_GET_FD_BY_ID: libc::c_int = 13;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const LINK_CREATE: libc::c_int = 28;
const LINK_DETACH: libc::c_int = 34;

/// An array with a copy per core.
pub(crate) const MAP_PERCPU_ARRAY: u32 = 6;
/// An array.
pub(crate) const MAP_ARRAY: u32 = 2;
/// AF_XDP sockets by queue.
pub(crate) const MAP_XSK: u32 = 17;
/// User space may map the array.
const F_MMAPABLE: u32 = 1 << 10;

/// A program that runs for every frame of an interface.
pub(crate) const PROG_XDP: u32 = 6;
/// A program that runs for every packet of one socket.
pub(crate) const PROG_SOCKET_FILTER: u32 = 1;
/// The program accepts frames in several fragments.
pub(crate) const F_HAS_FRAGS: u32 = 1 << 5;
const ATTACH_XDP: u32 = 37;

/// Run the program in the driver, or behind it on the kernel's buffers.
pub(crate) const XDP_DRIVER: u32 = 1 << 2;
pub(crate) const XDP_GENERIC: u32 = 1 << 1;

fn bpf<T>(command: libc::c_int, attributes: &mut T) -> Result<libc::c_int, Errno> {
    let size = size_of_val(attributes);
    // SAFETY: the pointer is to live attributes of the size given; pointers in them are to live memory of the
    // lengths beside them.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_mut(attributes), size) };
    if done < 0 { Err(last_errno()) } else { Ok(done as libc::c_int) }
}

fn owned(fd: libc::c_int) -> OwnedFd {
    // SAFETY: new from the kernel, and owned by nobody else. The kernel sets BPF descriptors to be closed on
    // exec.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn name_of(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    name.iter_mut().zip(text.bytes().take(15)).for_each(|(to, from)| *to = from);
    name
}

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    kind: u32,
    key: u32,
    value: u32,
    entries: u32,
    flags: u32,
    inner: u32,
    node: u32,
    name: [u8; 16],
}

/// Creates a map with keys of four bytes.
fn create_map(kind: u32, value: u32, entries: u32, flags: u32, name: &str) -> Result<OwnedFd, Errno> {
    let mut attributes =
        MapCreate { kind, key: 4, value, entries, flags, name: name_of(name), ..MapCreate::default() };
    bpf(MAP_CREATE, &mut attributes).map(owned)
}

#[repr(C)]
struct MapElement {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The hardware address and port of the frames that a queue takes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Addressee {
    pub mac: [u8; 6],
    /// Zero for none.
    pub port: u16,
    /// The name of the job, in the byte order of handshake frames; zero for any.
    pub job: u64,
}

/// Addressees by queue, or AF_XDP sockets by queue.
#[derive(Debug)]
pub(crate) struct QueueMap(OwnedFd);

impl QueueMap {
    /// Creates the map of sockets that the program redirects frames to.
    pub(crate) fn sockets(queues: u32) -> Result<QueueMap, Errno> {
        create_map(MAP_XSK, 4, queues, 0, "tautline_queues").map(QueueMap)
    }

    /// Creates the map of each queue's addressee.
    pub(crate) fn ports(queues: u32) -> Result<QueueMap, Errno> {
        create_map(MAP_ARRAY, size_of::<Addressee>() as u32, queues, 0, "tautline_ports").map(QueueMap)
    }

    /// Wraps a map that another process created.
    pub(crate) fn of(fd: OwnedFd) -> QueueMap {
        QueueMap(fd)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(crate) fn raw(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Sets a value, which must have the type that the map was created for.
    fn set<T>(&self, queue: u32, value: &T) -> Result<(), Errno> {
        let mut attributes = MapElement {
            map: self.0.as_raw_fd() as u32,
            pad: 0,
            key: ptr::from_ref(&queue).addr() as u64,
            value: ptr::from_ref(value).addr() as u64,
            flags: 0,
        };
        bpf(MAP_UPDATE, &mut attributes).map(drop)
    }

    pub(crate) fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        self.set(queue, &(socket.as_raw_fd() as u32))
    }

    pub(crate) fn set_addressee(&self, queue: u32, to: Addressee) -> Result<(), Errno> {
        self.set(queue, &to)
    }
}

/// Counters of a program, one set per core.
#[derive(Debug)]
pub(crate) struct CounterMap {
    fd: OwnedFd,
    cores: usize,
}

impl CounterMap {
    pub(crate) fn new(counters: u32) -> Result<CounterMap, Errno> {
        let cores = possible_cores();
        create_map(MAP_PERCPU_ARRAY, 8, counters, 0, "tautline_drops").map(|fd| CounterMap { fd, cores })
    }

    /// Wraps counters that another process created.
    pub(crate) fn of(fd: OwnedFd) -> CounterMap {
        CounterMap { fd, cores: possible_cores() }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn raw(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Returns a counter's sum over all cores.
    pub(crate) fn get(&self, counter: u32) -> u64 {
        let mut values = vec![0u64; self.cores];
        let mut attributes = MapElement {
            map: self.fd.as_raw_fd() as u32,
            pad: 0,
            key: ptr::from_ref(&counter).addr() as u64,
            value: values.as_mut_ptr().addr() as u64,
            flags: 0,
        };
        // The kernel writes eight bytes for each possible core, and there is room for as many.
        bpf(MAP_LOOKUP, &mut attributes).map_or(0, |_| values.iter().sum())
    }
}

/// Returns the number of cores that the kernel sizes per-core values by. Too large is harmless and too small
/// is not, so a list that cannot be read counts as long.
fn possible_cores() -> usize {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = list.trim().rsplit(['-', ',']).next().and_then(|n| n.parse::<usize>().ok());
    last.map_or(8_192, |last| last + 1)
}

/// Words that a program increments and this process reads without a system call.
#[derive(Debug)]
pub(crate) struct WordMap {
    fd: OwnedFd,
    words: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the pointer is to a mapping of atomic words that lives as long as this value.
unsafe impl Send for WordMap {}

/// The mapping's length: one page holds all the words.
const WORD_PAGE: usize = 4_096;

impl WordMap {
    pub(crate) fn new(count: u32) -> Result<WordMap, Errno> {
        assert!(count as usize * 8 <= WORD_PAGE);
        // One value with all words, because programs can access only a map's first value without a call.
        let fd = create_map(MAP_ARRAY, 8 * count, 1, F_MMAPABLE, "tautline_words")?;
        // SAFETY: a new read-only mapping of the map's page, at an address that the kernel chooses.
        let map = unsafe {
            libc::mmap(ptr::null_mut(), WORD_PAGE, libc::PROT_READ, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if map == libc::MAP_FAILED {
            return Err(last_errno());
        }
        let words = NonNull::new(map.cast()).ok_or(Errno::NOMEM)?;
        Ok(WordMap { fd, words, count: count as usize })
    }

    pub(crate) fn raw(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    #[inline]
    pub(crate) fn get(&self, word: usize) -> u64 {
        assert!(word < self.count);
        // SAFETY: within the page, which is mapped as long as this value lives; atomic, and only loaded.
        unsafe { self.words.add(word).as_ref() }.load(Ordering::Acquire)
    }
}

impl Drop for WordMap {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, unmapped once.
        unsafe { libc::munmap(self.words.as_ptr().cast(), WORD_PAGE) };
    }
}

#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    attach: u32,
}

/// Bytes of the verifier's log that are kept.
const LOG_LEN: usize = 64 << 10;

/// Loads a program. A refusal by the verifier comes with the last line of its log that says why. The log has
/// statistics even if something else is wrong, so the message may be empty.
pub(crate) fn load(kind: u32, code: &[u64], flags: u32, name: &str) -> Result<OwnedFd, (Errno, String)> {
    let license = c"MIT";
    let mut attributes = ProgLoad {
        kind,
        instructions: code.len() as u32,
        code: code.as_ptr().addr() as u64,
        license: license.as_ptr().addr() as u64,
        flags,
        name: name_of(name),
        attach: if kind == PROG_XDP { ATTACH_XDP } else { 0 },
        ..ProgLoad::default()
    };
    match bpf(PROG_LOAD, &mut attributes) {
        Ok(fd) => Ok(owned(fd)),
        Err(errno) if !matches!(errno, Errno::ACCESS | Errno::INVAL) => Err((errno, String::new())),
        Err(_) => {
            let mut log = vec![0u8; LOG_LEN];
            (attributes.log_level, attributes.log_size) = (1, LOG_LEN as u32);
            attributes.log = log.as_mut_ptr().addr() as u64;
            bpf(PROG_LOAD, &mut attributes).map(owned).map_err(|errno| {
                let log_text =
                    CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy).unwrap_or_default();
                (errno, last_message(&log_text))
            })
        }
    }
}

/// Returns the line in which the verifier says what is wrong: the last one before its statistics.
fn last_message(log_text: &str) -> String {
    let counts = |line: &&str| line.starts_with("processed ") || line.starts_with("verification time ");
    log_text
        .lines()
        .map(str::trim)
        .rfind(|line| !line.is_empty() && !counts(line))
        .unwrap_or_default()
        .to_owned()
}

#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    prog: u32,
    ifindex: u32,
    attach: u32,
    flags: u32,
    rest: [u64; 4],
}

/// Attaches a program to an interface for as long as the descriptor is open.
pub(crate) fn attach(program: BorrowedFd<'_>, ifindex: u32, mode: u32) -> Result<OwnedFd, Errno> {
    let prog = program.as_raw_fd() as u32;
    let mut attributes =
        LinkCreate { prog, ifindex, attach: ATTACH_XDP, flags: mode, ..LinkCreate::default() };
    bpf(LINK_CREATE, &mut attributes).map(owned)
}

/// Whether a program is still attached. Any privileged process can detach it, and the kernel notifies nobody.
pub(crate) fn is_attached(link: BorrowedFd<'_>) -> bool {
    let mut info = LinkInfo::default();
    let mut attributes = InfoByFd {
        fd: link.as_raw_fd() as u32,
        len: size_of_val(&info) as u32,
        info: (&raw mut info).addr() as u64,
    };
    // If the kernel cannot tell, the program counts as attached.
    bpf(OBJ_GET_INFO_BY_FD, &mut attributes).is_err() || info.ifindex != 0
}

/// Detaches a program, as another process could.
pub(crate) fn detach(link: BorrowedFd<'_>) -> Result<(), Errno> {
    bpf(LINK_DETACH, &mut (link.as_raw_fd() as u32)).map(drop)
}

/// The beginning of `bpf_link_info` for an interface: type, id, program; then the interface.
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    pad: u32,
    ifindex: u32,
    rest: u32,
}

/// Runs a program for every packet of a socket.
pub(crate) fn attach_filter(program: BorrowedFd<'_>, socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let fd = program.as_raw_fd();
    // SAFETY: the pointer is to a live c_int of the length given; the kernel only reads it.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_BPF,
            (&raw const fd).cast(),
            size_of_val(&fd) as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

/// The kernel's information about a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgramInfo {
    pub name: String,
    /// The user who loaded it.
    pub uid: u32,
}

/// The beginning of `bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
struct ProgInfo {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    jited: u32,
    xlated: u32,
    jited_at: u64,
    xlated_at: u64,
    load_time: u64,
    uid: u32,
    maps: u32,
    maps_at: u64,
    name: [u8; 16],
    ifindex: u32,
    pad: u32,
}

#[repr(C)]
struct InfoByFd {
    fd: u32,
    len: u32,
    info: u64,
}

#[repr(C)]
#[derive(Default)]
struct FdById {
    id: u32,
    next: u32,
    flags: u32,
}

/// Returns information about a program by its id; needs a privilege.
pub(crate) fn program_info(id: u32) -> Result<ProgramInfo, Errno> {
    let fd = bpf(PROG_GET_FD_BY_ID, &mut FdById { id, ..FdById::default() }).map(owned)?;
    let mut info = ProgInfo::default();
    let mut attributes = InfoByFd {
        fd: fd.as_raw_fd() as u32,
        len: size_of_val(&info) as u32,
        info: (&raw mut info).addr() as u64,
    };
    bpf(OBJ_GET_INFO_BY_FD, &mut attributes)?;
    let name = CStr::from_bytes_until_nul(&info.name).map(|name| name.to_string_lossy().into_owned());
    Ok(ProgramInfo { name: name.unwrap_or_default(), uid: info.uid })
}

/// Runs a program on one frame in the kernel; returns its verdict.
#[cfg(test)]
pub(crate) fn test_run(program: BorrowedFd<'_>, frame: &[u8]) -> Result<u32, Errno> {
    #[repr(C)]
    #[derive(Default)]
    struct TestRun {
        prog: u32,
        verdict: u32,
        len_in: u32,
        len_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration: u32,
        rest: [u64; 4],
    }
    let mut attributes = TestRun {
        prog: program.as_raw_fd() as u32,
        len_in: frame.len() as u32,
        data_in: frame.as_ptr().addr() as u64,
        repeat: 1,
        ..TestRun::default()
    };
    bpf(PROG_TEST_RUN, &mut attributes)?;
    Ok(attributes.verdict)
}
