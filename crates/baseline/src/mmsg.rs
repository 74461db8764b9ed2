//! The system calls that move many datagrams at once, with segmentation (GSO) and coalescing (GRO) by the
//! kernel. A stream is cut into packets, each with its stream position and length in front, so that a lost
//! one is detected; a packet is one datagram, or with GSO a run of datagrams of one size.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::net::sockopt;

/// Bytes in front of each packet: its position in the stream and its length, little-endian. Per packet and
/// not per datagram: gathering a header for each of 44 datagrams costs a quarter of the bandwidth.
pub(crate) const HEAD: usize = 16;
/// The largest packet that one call sends or receives.
pub(crate) const PACKET_MAX: usize = 65_536;

/// The largest datagram that the path of a connected socket takes without IP fragments.
pub(crate) fn payload_max(socket: &UdpSocket) -> io::Result<usize> {
    let (mtu, headers, most) = if socket.local_addr()?.is_ipv4() {
        (sockopt::ip_mtu(socket)?, 28, 65_507)
    } else {
        (sockopt::ipv6_mtu(socket)?, 48, 65_527)
    };
    Ok((mtu as usize).saturating_sub(headers).clamp(512, most))
}

/// Has the kernel cut what is sent into datagrams of `size` bytes.
pub(crate) fn set_segment(socket: &UdpSocket, size: usize) -> io::Result<()> {
    set_udp_option(socket, libc::UDP_SEGMENT, size as libc::c_int)
}

/// Has the kernel deliver runs of equal datagrams together.
pub(crate) fn set_coalesce(socket: &UdpSocket) -> io::Result<()> {
    set_udp_option(socket, libc::UDP_GRO, 1)
}

/// Has calls that wait poll the interface's queue for so long. It may need privileges.
pub(crate) fn set_busy_poll(socket: &UdpSocket, microseconds: u32) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, microseconds as libc::c_int)
}

fn set_udp_option(socket: &UdpSocket, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    set_option(socket, libc::SOL_UDP, option, value)
}

fn set_option(
    socket: &UdpSocket,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the pointer and length describe `value`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// How a stream becomes packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// Bytes of a datagram.
    pub(crate) datagram: usize,
    /// Datagrams that the kernel takes as one packet; 1 without GSO.
    pub(crate) per_packet: usize,
}

impl Cut {
    /// Bytes of the stream in a full packet.
    pub(crate) fn packet(self) -> usize {
        self.datagram * self.per_packet - HEAD
    }
}

/// Sends stretches of a stream; keeps its tables between calls.
#[derive(Default)]
pub(crate) struct Outbox {
    heads: Vec<[u8; HEAD]>,
    pieces: Vec<libc::iovec>,
    packets: Vec<libc::mmsghdr>,
}

impl Outbox {
    /// Sends `bytes`, which begin at `position` of the stream, with one call; returns how many were sent.
    /// Without `wait`, a full send buffer is [`io::ErrorKind::WouldBlock`].
    pub(crate) fn send(
        &mut self,
        fd: BorrowedFd<'_>,
        position: u64,
        bytes: &[u8],
        cut: Cut,
        wait: bool,
    ) -> io::Result<usize> {
        self.heads.clear();
        self.pieces.clear();
        self.packets.clear();
        for (i, packet) in bytes.chunks(cut.packet()).enumerate() {
            self.heads.push(head(position + (i * cut.packet()) as u64, packet.len()));
        }
        for (head, packet) in self.heads.iter_mut().zip(bytes.chunks(cut.packet())) {
            self.pieces.push(libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: HEAD });
            self.pieces
                .push(libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() });
        }
        for packet in self.pieces.chunks_mut(2) {
            self.packets.push(message(packet));
        }
        let flags = if wait { 0 } else { libc::MSG_DONTWAIT };
        // SAFETY: every message points at our `pieces`, and those at our `heads` and at `bytes`; none of them
        // changes or moves before the call returns, and sending only reads what the pieces point at.
        let sent = unsafe {
            libc::sendmmsg(
                fd.as_raw_fd(),
                self.packets.as_mut_ptr(),
                self.packets.len() as libc::c_uint,
                flags,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((sent as usize * cut.packet()).min(bytes.len()))
    }
}

fn head(position: u64, len: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&position.to_le_bytes());
    head[8..].copy_from_slice(&(len as u64).to_le_bytes());
    head
}

/// Receives up to a fixed number of packets at once.
pub(crate) struct Inbox {
    slots: usize,
    bytes: Vec<u8>,
    lens: Vec<usize>,
}

impl Inbox {
    pub(crate) fn new(slots: usize) -> Self {
        let slots = slots.clamp(1, SLOTS_MAX);
        Self { slots, bytes: vec![0; slots * PACKET_MAX], lens: Vec::with_capacity(slots) }
    }

    /// Receives what is there. Without `wait`, an empty queue is [`io::ErrorKind::WouldBlock`]; with it, the
    /// call sleeps until there is something or the socket's timeout has passed.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>, wait: bool) -> io::Result<()> {
        self.lens.clear();
        let mut pieces = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; SLOTS_MAX];
        let mut packets = [const { libc::mmsghdr { msg_hdr: no_message(), msg_len: 0 } }; SLOTS_MAX];
        for (i, slot) in self.bytes.chunks_exact_mut(PACKET_MAX).enumerate() {
            pieces[i] = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
            packets[i] = message(&mut pieces[i..=i]);
        }
        let (slots, flags) =
            (self.slots as libc::c_uint, if wait { libc::MSG_WAITFORONE } else { libc::MSG_DONTWAIT });
        // SAFETY: the first `slots` messages point each at its own piece and slot, which live on this frame
        // and in `self.bytes` until the call returns.
        let received =
            unsafe { libc::recvmmsg(fd.as_raw_fd(), packets.as_mut_ptr(), slots, flags, ptr::null_mut()) };
        if received < 0 {
            return Err(io::Error::last_os_error());
        }
        self.lens.extend(packets[..received as usize].iter().map(|packet| packet.msg_len as usize));
        Ok(())
    }

    /// What was received last, in order: datagrams, or runs of them that the kernel has coalesced.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks_exact(PACKET_MAX).zip(&self.lens).map(|(bytes, &len)| &bytes[..len])
    }
}

const SLOTS_MAX: usize = 16;

fn message(pieces: &mut [libc::iovec]) -> libc::mmsghdr {
    let mut header = no_message();
    header.msg_iov = pieces.as_mut_ptr();
    header.msg_iovlen = pieces.len();
    libc::mmsghdr { msg_hdr: header, msg_len: 0 }
}

const fn no_message() -> libc::msghdr {
    // SAFETY: `msghdr` is plain old data for which all zeroes are a valid value: no name, no pieces, no
    // control.
    unsafe { std::mem::zeroed() }
}
