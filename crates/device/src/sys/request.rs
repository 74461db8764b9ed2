//! Unix datagram sockets with a path, by which one process requests descriptors from another.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, sockopt,
};

/// The most descriptors of one message.
pub(crate) const FDS_MAX: usize = 4;

/// A received message: its length, the user who sent it as the kernel tells, and its descriptors.
pub(crate) struct Received {
    pub len: usize,
    pub uid: u32,
    pub fds: Vec<OwnedFd>,
}

/// Returns the effective user of this process.
pub(crate) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    sockopt::set_socket_passcred(&socket, true)?;
    Ok(socket)
}

/// A socket with a path, which is unlinked when it is dropped by the process that created it.
#[derive(Debug)]
pub(crate) struct RequestSocket {
    socket: OwnedFd,
    path: PathBuf,
    inode: u64,
    pid: u32,
}

impl RequestSocket {
    /// Binds a socket. Replaces an existing file: a dead process left it behind, or a child that it forked.
    pub(crate) fn bind(path: &Path) -> io::Result<RequestSocket> {
        let pid = std::process::id();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = path.with_file_name(format!(".{pid}.{name}"));
        let _ = std::fs::remove_file(&temporary);
        let socket = socket()?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(&temporary)?)?;
        let inode = std::fs::symlink_metadata(&temporary)?.ino();
        std::fs::rename(&temporary, path)?;
        Ok(RequestSocket { socket, path: path.to_owned(), inode, pid })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for RequestSocket {
    fn drop(&mut self) {
        let is_ours = std::fs::symlink_metadata(&self.path).is_ok_and(|meta| meta.ino() == self.inode);
        if is_ours && std::process::id() == self.pid {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns the inode number of this thread's network namespace.
pub(crate) fn network() -> io::Result<u64> {
    std::fs::metadata("/proc/thread-self/ns/net").map(|meta| meta.ino())
}

/// Sends a request to the socket at a path; returns the socket that the answer comes to.
pub(crate) fn request(path: &Path, request: &[u8]) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, peers) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    sockopt::set_socket_passcred(&ours, true)?;
    let to = SocketAddrUnix::new(path)?;
    let sender = socket()?;
    rustix::net::connect(&sender, &to)?;
    send(sender.as_fd(), request, &[peers.as_fd()])?;
    Ok(ours)
}

/// Waits for the answer to a request.
pub(crate) fn await_answer(socket: &OwnedFd, out: &mut [u8], timeout: Duration) -> io::Result<Received> {
    let time = Timespec { tv_sec: 0, tv_nsec: timeout.as_nanos().min(999_999_999) as i64 };
    poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&time))?;
    receive(socket.as_fd(), out)?.ok_or_else(|| io::Error::from(io::ErrorKind::TimedOut))
}

/// Whether something can be read now.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&none)).is_ok_and(|ready| ready > 0)
}

/// Sends bytes with descriptors.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "there is space for four");
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the next message; `None` if nothing has arrived.
///
/// Without rustix, because a sender in another PID namespace has the process id zero here, which rustix's
/// type cannot represent.
pub(crate) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Option<Received>> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // Words, because control messages are aligned to them.
    let mut control = [0u64; CONTROL_LEN / 8];
    // SAFETY: `msghdr` consists of integers and pointers, for which zero is valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), CONTROL_LEN);
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: the kernel writes at most as many bytes to `bytes` and `control` as the header says, and they
    // have as many.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    let Ok(len) = usize::try_from(len) else {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
    };
    let (mut uid, mut fds) = (None, Vec::new());
    // SAFETY: the header is as the kernel left it, and `control` is live.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !at.is_null() {
        // SAFETY: a control message from the kernel, aligned as `control` is; its data has the length that it
        // says, and may be unaligned.
        unsafe {
            let (kind, data) = ((*at).cmsg_type, libc::CMSG_DATA(at));
            let len = (*at).cmsg_len - (data.addr() - at.addr());
            if kind == libc::SCM_CREDENTIALS && len >= size_of::<libc::ucred>() {
                uid = Some(data.cast::<libc::ucred>().read_unaligned().uid);
            } else if kind == libc::SCM_RIGHTS {
                let numbers = data.cast::<libc::c_int>();
                let each = (0..len / size_of::<libc::c_int>()).map(|i| numbers.add(i).read_unaligned());
                fds.extend(each.map(|fd| OwnedFd::from_raw_fd(fd)));
            }
            at = libc::CMSG_NXTHDR(&raw const header, at);
        }
    }
    let uid = uid.ok_or_else(|| io::Error::from(io::ErrorKind::PermissionDenied))?;
    Ok(Some(Received { len, uid, fds }))
}

/// Room for credentials and descriptors, with their headers.
const CONTROL_LEN: usize = 128;
