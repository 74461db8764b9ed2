//! Sockets with a name in a folder, by which one process asks another for descriptors.

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

/// Descriptors that go along with one message, at most.
pub(crate) const FDS_MAX: usize = 4;

/// What came: how many bytes, the user who sent it as the kernel tells, and descriptors.
pub(crate) struct Received {
    pub len: usize,
    pub uid: u32,
    pub fds: Vec<OwnedFd>,
}

/// The user that this process acts for.
pub(crate) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    sockopt::set_socket_passcred(&socket, true)?;
    Ok(socket)
}

/// A socket with a name. Taken down when dropped, by the process that opened it.
#[derive(Debug)]
pub(crate) struct RequestSocket {
    socket: OwnedFd,
    path: PathBuf,
    inode: u64,
    pid: u32,
}

impl RequestSocket {
    /// Opens a door, in place of whatever has that name: a dead process left it behind, or a child that it forked.
    pub(crate) fn bind(path: &Path) -> io::Result<RequestSocket> {
        let pid = std::process::id();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let unfinished = path.with_file_name(format!(".{pid}.{name}"));
        let _ = std::fs::remove_file(&unfinished);
        let socket = socket()?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(&unfinished)?)?;
        let inode = std::fs::symlink_metadata(&unfinished)?.ino();
        std::fs::rename(&unfinished, path)?;
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

/// The number of the network namespace that this thread is in.
pub(crate) fn network() -> io::Result<u64> {
    std::fs::metadata("/proc/thread-self/ns/net").map(|meta| meta.ino())
}

/// Asks whoever has that name, and waits for the answer for so long.
pub(crate) fn request(path: &Path, question: &[u8], out: &mut [u8], wait: Duration) -> io::Result<Received> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (mine, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    sockopt::set_socket_passcred(&mine, true)?;
    let to = SocketAddrUnix::new(path)?;
    let knocker = socket()?;
    rustix::net::connect(&knocker, &to)?;
    send(knocker.as_fd(), question, &[theirs.as_fd()])?;
    drop(theirs);
    let time = Timespec { tv_sec: 0, tv_nsec: wait.as_nanos().min(999_999_999) as i64 };
    poll(&mut [PollFd::new(&mine, PollFlags::IN)], Some(&time))?;
    receive(mine.as_fd(), out)?.ok_or_else(|| io::Error::from(io::ErrorKind::TimedOut))
}

/// Sends bytes, and descriptors along with them.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut along = SendAncillaryBuffer::new(&mut space);
    assert!(along.push(SendAncillaryMessage::ScmRights(fds)), "there is space for four");
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut along, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next message; nothing if there is none yet.
///
/// By hand, because whoever sends it from another namespace of processes has the number zero here, which a typed process number cannot hold.
pub(crate) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Option<Received>> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // Words, because control messages are aligned to them.
    let mut along = [0u64; ALONG / 8];
    // SAFETY: `msghdr` is made of integers and pointers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    (header.msg_control, header.msg_controllen) = (along.as_mut_ptr().cast(), ALONG);
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: the kernel writes at most as many bytes to `bytes` and `along` as the header says, which is as many as they have.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    let Ok(len) = usize::try_from(len) else {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
    };
    let (mut uid, mut fds) = (None, Vec::new());
    // SAFETY: the header is as the kernel left it, and `along` lives on.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !at.is_null() {
        // SAFETY: a control message of the kernel's, aligned as `along` is; its data is as long as its length says, and may lie unaligned.
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

/// Room for credentials and descriptors, with what each has around it.
const ALONG: usize = 128;
