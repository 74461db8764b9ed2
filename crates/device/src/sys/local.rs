//! Unix sockets with a path, and the processes at their other ends.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::Errno;

/// Connections that may wait to be accepted: as many as the kernel allows by default.
const BACKLOG: i32 = 4_096;

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Opens a socket that listens at a path.
pub(crate) fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to the socket at a path.
pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Accepts the next connection, if there is one.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => Ok(Some(socket)),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) =>
        {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns a descriptor of the process at the other end of a connection, which must belong to this user.
pub(crate) fn peer_process(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let (pid, uid) = peer_credentials(socket)?;
    if uid != rustix::process::geteuid().as_raw() {
        let why = format!("it belongs to another user ({uid})");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    match peer_pidfd(socket) {
        // Kernels before 6.5 only return the process id. If the id was reused since, the connection is
        // closed.
        Err(Errno::NOPROTOOPT) => {
            Ok(rustix::process::pidfd_open(visible(pid)?, rustix::process::PidfdFlags::empty())?)
        }
        other => Ok(other?),
    }
}

/// Returns the id of the process at the other end, zero if it has none in this PID namespace, and its user.
fn peer_credentials(socket: &OwnedFd) -> io::Result<(i32, u32)> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `peer`, which is as long and may hold any bytes, and
    // the new length to `len`.
    let done = unsafe {
        let to = std::ptr::from_mut(&mut peer).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut len)
    };
    if done == 0 { Ok((peer.pid, peer.uid)) } else { Err(super::last_errno().into()) }
}

/// Checks that a process has an id here.
fn visible(pid: i32) -> io::Result<rustix::process::Pid> {
    rustix::process::Pid::from_raw(pid).ok_or_else(|| {
        let why = "it is in another PID namespace, where only Linux 6.5 and later can watch it; start both \
                   in one";
        io::Error::new(io::ErrorKind::Unsupported, why)
    })
}

/// Returns a descriptor of the process that listens or connected.
fn peer_pidfd(socket: &OwnedFd) -> Result<OwnedFd, Errno> {
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut fd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `fd`, which is as long, and the new length to `len`.
    let done = unsafe {
        let to = std::ptr::from_mut(&mut fd).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, to, &raw mut len)
    };
    if done != 0 || fd < 0 {
        return Err(super::last_errno());
    }
    // SAFETY: the kernel has just created this descriptor; nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    Ok(fd)
}

/// Returns the id of the process at the other end of a connection.
pub(crate) fn peer_pid(socket: &OwnedFd) -> io::Result<i32> {
    Ok(visible(peer_credentials(socket)?.0)?.as_raw_nonzero().get())
}

/// Copies bytes out of another process, and a word from elsewhere in it, both from the same address space: a
/// process that executes another program gets a new one.
pub(crate) fn read_process(pid: i32, address: u64, out: &mut [u8], word_at: u64) -> Result<u64, Errno> {
    let mut word = [0; 8];
    let local = [
        libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() },
        libc::iovec { iov_base: word.as_mut_ptr().cast(), iov_len: word.len() },
    ];
    let remote = [
        libc::iovec { iov_base: address as *mut libc::c_void, iov_len: out.len() },
        libc::iovec { iov_base: word_at as *mut libc::c_void, iov_len: word.len() },
    ];
    // SAFETY: the kernel writes at most as many bytes to `out` and `word` as they have, and only reads the
    // other process; an invalid address is an error.
    let read = unsafe { libc::process_vm_readv(pid, local.as_ptr(), 2, remote.as_ptr(), 2, 0) };
    match usize::try_from(read) {
        Ok(read) if read == out.len() + word.len() => Ok(u64::from_ne_bytes(word)),
        Ok(_) => Err(Errno::FAULT),
        Err(_) => Err(super::last_errno()),
    }
}

/// Whether a descriptor is readable now; that of a process is readable once it has exited.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(n) if n > 0)
}

/// What was found at a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ring {
    Taken,
    None,
    /// The other side has disconnected.
    Closed,
}

/// Rings: makes the other end of a connection readable. Never waits, whatever the other side does with its
/// end (S-31): if there is no room, there are rings that it has not taken.
pub(crate) fn ring(socket: &OwnedFd) {
    let _ = rustix::net::send(socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Takes a ring. Never waits.
pub(crate) fn take_ring(socket: &OwnedFd) -> Ring {
    match rustix::net::recv(socket, &mut [0; 1], RecvFlags::DONTWAIT) {
        Ok((_, 1..)) => Ring::Taken,
        Err(Errno::AGAIN | Errno::INTR) => Ring::None,
        Ok(_) | Err(_) => Ring::Closed,
    }
}

/// Whether a process exits: it closes its descriptors, or has closed them, and whoever waits for its end may
/// not see it yet.
pub(crate) fn is_exiting(pid: i32) -> bool {
    /// The kernel sets it before a process closes anything.
    const PF_EXITING: u64 = 4;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may itself contain parentheses and spaces; the flags come seventh after it.
    let flags =
        stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & PF_EXITING != 0)
}

/// Whether the other side has disconnected, and everything that it sent was received.
pub(crate) fn has_ended(socket: &OwnedFd) -> bool {
    let peeked = rustix::net::recv(socket, &mut [0; 1], RecvFlags::DONTWAIT | RecvFlags::PEEK);
    !matches!(peeked, Ok((_, 1..)) | Err(Errno::AGAIN | Errno::INTR))
}

/// Sends bytes with descriptors.
pub(crate) fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)), "there is space for four");
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// What arrived at a socket: the number of bytes, descriptors, and whether some descriptors are missing,
/// because this process may not have as many.
pub(crate) type Received<const N: usize> = (usize, [Option<OwnedFd>; N], bool);

/// Receives bytes and up to `N` descriptors; `None` if nothing has arrived.
///
/// # Errors
/// If the other side has disconnected.
pub(crate) fn receive<const N: usize>(socket: &OwnedFd, bytes: &mut [u8]) -> io::Result<Option<Received<N>>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut received = rustix::net::recvmsg(socket, &mut parts, &mut control, flags);
    if matches!(received, Err(Errno::CONNRESET)) {
        // The other side closed without reading what we sent; what it sent comes behind that error.
        received = rustix::net::recvmsg(socket, &mut parts, &mut control, flags);
    }
    let message = match received {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        other => other?,
    };
    if message.bytes == 0 {
        let why = "the other process closed the connection before it answered";
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
    }
    let mut fds = [const { None }; N];
    let mut slots = fds.iter_mut();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            // Descriptors beyond `N` are closed.
            received.for_each(|fd| {
                if let Some(slot) = slots.next() {
                    *slot = Some(fd);
                }
            });
        }
    }
    let missing = message.flags.contains(rustix::net::ReturnFlags::CTRUNC);
    Ok(Some((message.bytes, fds, missing)))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    use super::*;

    /// S-6: a process exits from when it begins to until it is waited for, and not before.
    #[test]
    fn a_process_that_exits_is_told_from_one_that_lives() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        assert!(!is_exiting(pid));
        drop(child.stdin.take());
        let id = WaitId::Pid(Pid::from_raw(pid).unwrap());
        waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap().unwrap();
        assert!(is_exiting(pid));
        child.wait().unwrap();
        assert!(!is_exiting(0), "there is no such process");
    }

    /// S-31: rings that the other side does not take fill its buffer; then a ring is dropped, and never
    /// waits.
    #[test]
    fn a_ring_does_not_wait_for_room() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        // Far more than a socket holds.
        const RINGS: usize = 100_000;
        let (done, rung) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            (0..RINGS).for_each(|_| ring(&ours));
            done.send(ours).unwrap();
        });
        let limit = std::time::Duration::from_secs(60);
        let _ours = rung.recv_timeout(limit).expect("a ring waits for room");
        let taken = (0..).take_while(|_| take_ring(&theirs) == Ring::Taken).count();
        assert!((1..RINGS).contains(&taken), "{taken} of {RINGS} rings had room");
    }
}
