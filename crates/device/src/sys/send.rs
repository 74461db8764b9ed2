//! Sending one frame, or a batch of trains of frames.

use std::mem::{offset_of, size_of, zeroed};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;
use rustix::net::SendFlags;

use super::last_errno;

/// Sends one frame without ancillary data.
#[inline]
pub(crate) fn send_to(socket: BorrowedFd<'_>, bytes: &[u8], to: SocketAddr) -> Result<(), Errno> {
    rustix::net::sendto(socket, bytes, SendFlags::DONTWAIT, &to).map(drop)
}

/// Sends one frame through a connected socket.
#[inline]
pub(crate) fn send_connected(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Errno> {
    rustix::net::send(socket, bytes, SendFlags::DONTWAIT).map(drop)
}

/// Consecutive queued frames that leave as one message: one frame, or several of one route and size, of which
/// only the last may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Train {
    pub(crate) first: u32,
    pub(crate) frames: u32,
    pub(crate) route: u32,
    /// Bytes of every frame but the last.
    pub(crate) segment: u16,
}

/// The control message `UDP_SEGMENT`, in the layout of `CMSG_SPACE(2)`.
#[repr(C, align(8))]
struct SegmentControl {
    header: libc::cmsghdr,
    size: u16,
}

const SEGMENT_LEN: usize = offset_of!(SegmentControl, size) + size_of::<u16>();

// The layout equals that of the CMSG macros.
const _: () = {
    // SAFETY: pure arithmetic.
    assert!(unsafe { libc::CMSG_LEN(2) } as usize == SEGMENT_LEN);
    // SAFETY: pure arithmetic.
    assert!(unsafe { libc::CMSG_SPACE(2) } as usize <= size_of::<SegmentControl>());
};

/// A destination as the kernel reads it.
#[repr(C)]
union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Name {
    /// Returns an address, and how many of its bytes count.
    fn encode(to: SocketAddr) -> (Name, libc::socklen_t) {
        match to {
            SocketAddr::V4(to) => {
                let v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as _,
                    sin_port: to.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(to.ip().octets()) },
                    sin_zero: [0; 8],
                };
                (Name { v4 }, size_of::<libc::sockaddr_in>() as _)
            }
            SocketAddr::V6(to) => {
                let v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as _,
                    sin6_port: to.port().to_be(),
                    sin6_flowinfo: to.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: to.ip().octets() },
                    sin6_scope_id: to.scope_id(),
                };
                (Name { v6 }, size_of::<libc::sockaddr_in6>() as _)
            }
        }
    }
}

/// Room for the vectors of one `sendmmsg`, allocated once. Their pointers are valid within one call only.
pub(crate) struct TxVectors {
    messages: Box<[libc::mmsghdr]>,
    names: Box<[Name]>,
    frames: Box<[libc::iovec]>,
    controls: Box<[SegmentControl]>,
}

// SAFETY: the pointers inside are written at the start of `send` and used only until it returns, so it does
// not matter which thread has them between calls.
unsafe impl Send for TxVectors {}

impl TxVectors {
    /// Allocates room for a batch of `frames` frames in as many trains.
    pub(crate) fn new(frames: usize) -> TxVectors {
        // SAFETY: mmsghdr consists of integers and pointers, for which zero is valid.
        let message = || unsafe { zeroed::<libc::mmsghdr>() };
        let control = || {
            // SAFETY: cmsghdr consists of integers.
            let mut header = unsafe { zeroed::<libc::cmsghdr>() };
            header.cmsg_level = libc::SOL_UDP;
            header.cmsg_type = libc::UDP_SEGMENT;
            header.cmsg_len = SEGMENT_LEN as _;
            SegmentControl { header, size: 0 }
        };
        let empty = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        TxVectors {
            messages: (0..frames).map(|_| message()).collect(),
            names: (0..frames).map(|_| Name::encode(SocketAddr::from(([0, 0, 0, 0], 0))).0).collect(),
            frames: vec![empty; frames].into_boxed_slice(),
            controls: (0..frames).map(|_| control()).collect(),
        }
    }

    /// Sends trains in one system call. `frame` returns the bytes of a queued frame, and `route` a
    /// destination, or `None` if the socket is connected to it. Returns how many trains left, or why the
    /// first one did not.
    pub(crate) fn send<'a>(
        &mut self,
        socket: BorrowedFd<'_>,
        trains: &[Train],
        frame: impl Fn(u32) -> &'a [u8],
        route: impl Fn(u32) -> Option<SocketAddr>,
    ) -> Result<usize, Errno> {
        let mut used = 0;
        let room = self.messages.iter_mut().zip(&mut self.names).zip(&mut self.controls);
        for (train, ((message, name), control)) in trains.iter().zip(room) {
            let vectors = &mut self.frames[used..used + train.frames as usize];
            let mut pieces = 0;
            let mut end = ptr::null();
            for bytes in (train.first..train.first + train.frames).map(&frame) {
                let range = bytes.as_ptr_range();
                if range.start == end {
                    // One piece costs the kernel less than two.
                    vectors[pieces - 1].iov_len += bytes.len();
                } else {
                    vectors[pieces] =
                        libc::iovec { iov_base: range.start.cast_mut().cast(), iov_len: bytes.len() };
                    pieces += 1;
                }
                end = range.end;
            }
            let vectors = &mut vectors[..pieces];
            used += pieces;
            let header = &mut message.msg_hdr;
            (header.msg_name, header.msg_namelen) = (ptr::null_mut(), 0);
            if let Some(to) = route(train.route) {
                (*name, header.msg_namelen) = Name::encode(to);
                header.msg_name = (&raw mut *name).cast();
            }
            header.msg_iov = vectors.as_mut_ptr();
            header.msg_iovlen = vectors.len() as _;
            if train.frames > 1 {
                control.size = train.segment;
                header.msg_control = (&raw mut *control).cast();
                header.msg_controllen = size_of::<SegmentControl>() as _;
            } else {
                header.msg_control = ptr::null_mut();
                header.msg_controllen = 0;
            }
        }
        let count = trains.len().min(self.messages.len()) as libc::c_uint;
        // SAFETY: the first `count` headers were filled above with names, vectors and controls that are
        // borrowed for the whole of this call; the kernel reads through them and writes only `msg_len` of
        // each header.
        let sent = unsafe {
            libc::sendmmsg(socket.as_raw_fd(), self.messages.as_mut_ptr(), count, libc::MSG_DONTWAIT as _)
        };
        usize::try_from(sent).map_err(|_| last_errno())
    }
}
