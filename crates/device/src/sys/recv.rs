//! Receiving one datagram or many, with the source and the size of coalesced frames.

use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::last_errno;

/// Room for the control messages that we request: one of four bytes, and some spare.
#[repr(C, align(8))]
struct Control([u8; 64]);

const _: () = {
    // SAFETY: pure arithmetic.
    assert!(unsafe { libc::CMSG_SPACE(4) } as usize <= size_of::<Control>());
};

/// Receives one datagram without ancillary data, which is the cheapest way. The socket must not coalesce,
/// because this call cannot tell frames apart.
#[inline]
pub(crate) fn receive_from(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    with_source: bool,
) -> Result<Received, Errno> {
    let room = buffer.len();
    let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    let (len, source) = if with_source {
        let (_, len, source) = rustix::net::recvfrom(socket, buffer, flags)?;
        (len, source.and_then(|source| SocketAddr::try_from(source).ok()))
    } else {
        (rustix::net::recv(socket, buffer, flags)?.1, None)
    };
    Ok(Received { len, segment: 0, truncated: len > room, source })
}

/// A received datagram, or a train of coalesced datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) len: usize,
    /// Bytes of every frame but the last, if several were coalesced; else zero.
    pub(crate) segment: usize,
    /// The datagram did not fit the buffer.
    pub(crate) truncated: bool,
    pub(crate) source: Option<SocketAddr>,
}

/// Room for the vectors of one `recvmmsg`, allocated once. Their pointers are valid within one call only.
pub(crate) struct RxVectors {
    messages: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
    names: Box<[libc::sockaddr_in6]>,
    controls: Box<[Control]>,
}

// SAFETY: the pointers inside are written at the start of `receive` and followed only by the kernel until it
// returns, and afterwards only into `names` and `controls`, which move with this value.
unsafe impl Send for RxVectors {}

impl RxVectors {
    /// Allocates room for `datagrams` at a time.
    pub(crate) fn new(datagrams: usize) -> RxVectors {
        // SAFETY: mmsghdr consists of integers and pointers, for which zero is valid.
        let message = || unsafe { zeroed::<libc::mmsghdr>() };
        // SAFETY: sockaddr_in6 consists of integers.
        let name = || unsafe { zeroed::<libc::sockaddr_in6>() };
        let empty = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        RxVectors {
            messages: (0..datagrams).map(|_| message()).collect(),
            vectors: vec![empty; datagrams].into_boxed_slice(),
            names: (0..datagrams).map(|_| name()).collect(),
            controls: (0..datagrams).map(|_| Control([0; 64])).collect(),
        }
    }

    /// Returns the number of datagrams that one call can receive.
    pub(crate) fn capacity(&self) -> usize {
        self.messages.len()
    }

    /// Receives what has arrived, one datagram per buffer; returns their number. [`RxVectors::received`]
    /// describes them.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        buffers: &mut [Box<[u8]>],
    ) -> Result<usize, Errno> {
        let count = buffers.len().min(self.messages.len());
        for (i, buffer) in buffers.iter_mut().take(count).enumerate() {
            self.vectors[i].iov_base = buffer.as_mut_ptr().cast();
            self.vectors[i].iov_len = buffer.len();
            let header = &mut self.messages[i].msg_hdr;
            header.msg_name = (&raw mut self.names[i]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in6>() as _;
            header.msg_iov = &raw mut self.vectors[i];
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut self.controls[i]).cast();
            header.msg_controllen = size_of::<Control>() as _;
            header.msg_flags = 0;
        }
        if count == 1 { self.receive_one(socket) } else { self.receive_many(socket, count) }
    }

    #[inline]
    fn receive_one(&mut self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        let message = &mut self.messages[0];
        // SAFETY: the header was filled by `receive` with a name, a vector and a control buffer that are
        // borrowed for the whole of this call.
        let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message.msg_hdr, libc::MSG_DONTWAIT) };
        message.msg_len = libc::c_uint::try_from(len).map_err(|_| last_errno())?;
        Ok(1)
    }

    fn receive_many(&mut self, socket: BorrowedFd<'_>, count: usize) -> Result<usize, Errno> {
        // SAFETY: the first `count` headers were filled by `receive` with names, vectors and control buffers
        // that are borrowed for the whole of this call; no timeout is given.
        let got = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.messages.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        usize::try_from(got).map_err(|_| last_errno())
    }

    /// Returns the datagram in buffer `index`, after a [`RxVectors::receive`] that returned more than
    /// `index`.
    #[inline]
    pub(crate) fn received(&self, index: usize) -> Received {
        let message = &self.messages[index];
        let mut received = Received {
            len: message.msg_len as usize,
            segment: 0,
            truncated: message.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
            source: source(&self.names[index], message.msg_hdr.msg_namelen as usize),
        };
        // The type differs between C libraries.
        let control_len: usize = message.msg_hdr.msg_controllen as _;
        if control_len > 0 {
            read_controls(&self.controls[index].0[..control_len.min(size_of::<Control>())], &mut received);
        }
        received
    }
}

/// Parses the control messages. Works on bytes, so that nothing the kernel writes can lead it out of bounds.
fn read_controls(mut bytes: &[u8], received: &mut Received) {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    while bytes.len() >= HEADER {
        // SAFETY: the length was checked, any bits are a cmsghdr, and the read may be unaligned.
        let header = unsafe { bytes.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
        let len: usize = header.cmsg_len as _;
        if len < HEADER || len > bytes.len() {
            return;
        }
        let value = &bytes[HEADER..len];
        if (header.cmsg_level, header.cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO) {
            // The kernel writes an int; early ones wrote a u16.
            received.segment = native_int(value) as usize;
        }
        // SAFETY: pure arithmetic.
        let next = unsafe { libc::CMSG_SPACE((len - HEADER) as libc::c_uint) } as usize;
        bytes = bytes.get(next..).unwrap_or(&[]);
    }
}

fn native_int(value: &[u8]) -> u32 {
    match *value {
        [a, b, c, d, ..] => u32::from_ne_bytes([a, b, c, d]),
        [a, b] => u32::from(u16::from_ne_bytes([a, b])),
        _ => 0,
    }
}

#[inline]
fn source(name: &libc::sockaddr_in6, len: usize) -> Option<SocketAddr> {
    match libc::c_int::from(name.sin6_family) {
        libc::AF_INET if len >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: a sockaddr_in is smaller than a sockaddr_in6, needs no more alignment, consists of
            // integers, and the family says that this is one.
            let name = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(name.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(name.sin_port)).into())
        }
        libc::AF_INET6 if len >= size_of::<libc::sockaddr_in6>() => {
            let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
            let port = u16::from_be(name.sin6_port);
            Some(SocketAddrV6::new(ip, port, name.sin6_flowinfo, name.sin6_scope_id).into())
        }
        _ => None,
    }
}
