//! A netlink socket: requests with their answers, and notifications of changes.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;

use super::last_errno;

/// Bytes of a message's header, and the alignment of messages.
const HEADER: usize = 16;
const ALIGN: usize = 4;
/// The size of the read buffer: the kernel never sends more at once.
const BUFFER: usize = 64 << 10;
/// The most reads for one answer.
const READS_MAX: usize = 1_024;

const MSG_ERROR: u16 = 2;
const MSG_DONE: u16 = 3;
const FLAG_REQUEST: u16 = 1;
/// Return all entries.
pub(crate) const FLAG_DUMP: u16 = 0x300;

/// A socket for requests to the kernel about links, addresses, routes and neighbours.
#[derive(Debug)]
pub(crate) struct Netlink {
    fd: OwnedFd,
    sequence: u32,
    buffer: Box<[u8]>,
}

impl Netlink {
    /// Opens a socket that also gets notifications of these groups; zero for requests only.
    pub(crate) fn open(groups: u32) -> Result<Netlink, Errno> {
        Netlink::open_for(libc::NETLINK_ROUTE, groups)
    }

    /// Opens a socket for the kernel's generic netlink families.
    pub(crate) fn open_generic() -> Result<Netlink, Errno> {
        Netlink::open_for(libc::NETLINK_GENERIC, 0)
    }

    fn open_for(protocol: libc::c_int, groups: u32) -> Result<Netlink, Errno> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the call takes no pointers; the returned descriptor is ours alone.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: new from the kernel, and owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: `sockaddr_nl` consists of integers, for which zero is valid.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = groups;
        let len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: the pointer is to a live sockaddr_nl of the length given; the kernel only reads it.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) } != 0 {
            return Err(last_errno());
        }
        Ok(Netlink { fd, sequence: 0, buffer: vec![0; BUFFER].into_boxed_slice() })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Sends a request, and passes each message of the answer to `take`: its kind and its body.
    pub(crate) fn request(
        &mut self,
        kind: u16,
        flags: u16,
        body: &[u8],
        mut take: impl FnMut(u16, &[u8]),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((FLAG_REQUEST | flags).to_ne_bytes());
        message.extend(sequence.to_ne_bytes());
        message.extend(0u32.to_ne_bytes());
        message.extend(body);
        // SAFETY: the pointer is to as many live bytes as given; the kernel only reads them.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        for _ in 0..READS_MAX {
            // The kernel answers within the send call, so an empty queue means that the answer is complete.
            let len = self.read()?;
            for message in messages(&self.buffer[..len]) {
                if message.sequence != sequence {
                    continue;
                }
                match message.kind {
                    MSG_DONE => return Ok(()),
                    MSG_ERROR => return error_of(message.body),
                    kind => take(kind, message.body),
                }
                if flags & FLAG_DUMP == 0 {
                    return Ok(());
                }
            }
        }
        Err(io::Error::from(io::ErrorKind::InvalidData))
    }

    /// Passes notifications to `take`. Returns false if some were lost for lack of room.
    pub(crate) fn poll(&mut self, mut take: impl FnMut(u16, &[u8])) -> bool {
        let mut whole = true;
        for _ in 0..READS_MAX {
            match self.read() {
                Ok(len) => messages(&self.buffer[..len]).for_each(|m| take(m.kind, m.body)),
                Err(Errno::AGAIN) => break,
                // The rest can still be read.
                Err(_) => whole = false,
            }
        }
        whole
    }

    fn read(&mut self) -> Result<usize, Errno> {
        let (at, len) = (self.buffer.as_mut_ptr(), self.buffer.len());
        // SAFETY: the kernel writes at most `len` bytes to the buffer, which has as many.
        let got = unsafe { libc::recv(self.fd.as_raw_fd(), at.cast(), len, libc::MSG_DONTWAIT) };
        usize::try_from(got).map_err(|_| last_errno())
    }
}

struct Message<'a> {
    kind: u16,
    sequence: u32,
    body: &'a [u8],
}

/// Returns the well-formed messages of one read.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let len = u32_at(bytes, 0)? as usize;
        let message = bytes.get(..len).filter(|_| len >= HEADER)?;
        bytes = bytes.get(len.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some(Message { kind: u16_at(message, 4)?, sequence: u32_at(message, 8)?, body: &message[HEADER..] })
    })
}

fn error_of(body: &[u8]) -> io::Result<()> {
    match u32_at(body, 0).map_or(-1, u32::cast_signed) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(-errno)),
    }
}

/// Returns the attributes behind a body's fixed part: kind and value.
pub(crate) fn attributes(body: &[u8], fixed: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(fixed..).unwrap_or_default();
    std::iter::from_fn(move || {
        let len = u16_at(rest, 0)? as usize;
        let attribute = rest.get(..len).filter(|_| len >= 4)?;
        rest = rest.get(len.next_multiple_of(ALIGN)..).unwrap_or_default();
        // The two high bits are flags: the value is nested, or in network order.
        Some((u16_at(attribute, 2)? & 0x3fff, &attribute[4..]))
    })
}

/// Adds an attribute to a body.
pub(crate) fn add_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend(((4 + value.len()) as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(ALIGN), 0);
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_ne_bytes(*b))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_ne_bytes(*b))
}

/// Returns the name of an interface's driver, if it tells.
pub(crate) fn driver(interface: &str) -> Option<String> {
    /// `ethtool_drvinfo` of `linux/ethtool.h`.
    #[repr(C)]
    struct DriverInfo {
        command: u32,
        driver: [u8; 32],
        rest: [u8; 160],
    }
    const GET_DRIVER: u32 = 3;
    let mut info = DriverInfo { command: GET_DRIVER, driver: [0; 32], rest: [0; 160] };
    query_driver(interface, &mut info)?;
    let name = info.driver.split(|b| *b == 0).next().unwrap_or_default();
    Some(String::from_utf8_lossy(name).into_owned())
}

/// Returns the number of receive queues in use, if the driver tells.
pub(crate) fn queues(interface: &str) -> Option<u32> {
    /// `ethtool_channels`: the maximum of each kind, then the present numbers.
    #[repr(C)]
    #[derive(Default)]
    struct Channels {
        command: u32,
        most: [u32; 4],
        rx: u32,
        tx: u32,
        other: u32,
        combined: u32,
    }
    const GET_CHANNELS: u32 = 0x3c;
    let mut channels = Channels { command: GET_CHANNELS, ..Channels::default() };
    query_driver(interface, &mut channels)?;
    Some(channels.rx + channels.combined).filter(|queues| *queues > 0)
}

/// Sends a command to an interface's driver. `command` must be a structure of `linux/ethtool.h` that begins
/// with the command's number and has room for its answer.
fn query_driver<T>(interface: &str, command: &mut T) -> Option<()> {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None).ok()?;
    // SAFETY: `ifreq` consists of integers and unions of integers and pointers, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = ptr::from_mut(command).cast();
    // SAFETY: the request has a zero-terminated name and a pointer to the live command, which is as long as
    // the kernel's structure.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, ptr::from_mut(&mut request)) };
    (done == 0).then_some(())
}
