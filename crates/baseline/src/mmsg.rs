//! The system calls that move many datagrams at once, with segmentation (GSO) and coalescing (GRO) by the kernel.
//! A stream is cut into segments, each with its stream position in front, so that a lost one is noticed.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::net::sockopt;

/// Bytes in front of each segment: its position in the stream, little-endian.
pub(crate) const HEAD: usize = 8;
/// The largest packet that one call hands to the kernel or takes from it.
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

/// Asks the kernel to cut what is sent into datagrams of `size` bytes.
pub(crate) fn set_segment(socket: &UdpSocket, size: usize) -> io::Result<()> {
    set_udp_option(socket, libc::UDP_SEGMENT, size as libc::c_int)
}

/// Asks the kernel to hand over runs of equal datagrams in one piece.
pub(crate) fn set_coalesce(socket: &UdpSocket) -> io::Result<()> {
    set_udp_option(socket, libc::UDP_GRO, 1)
}

fn set_udp_option(socket: &UdpSocket, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the pointer and length describe `value`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
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
    /// Payload bytes of a segment.
    pub(crate) segment: usize,
    /// Segments that the kernel takes as one packet; 1 without GSO.
    pub(crate) per_packet: usize,
}

impl Cut {
    /// Payload bytes of a packet.
    pub(crate) fn packet(self) -> usize {
        self.segment * self.per_packet
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
    /// Sends `bytes`, which begin at `position` of the stream, with one call; returns how many went out.
    pub(crate) fn send(
        &mut self,
        fd: BorrowedFd<'_>,
        position: u64,
        bytes: &[u8],
        cut: Cut,
    ) -> io::Result<usize> {
        self.heads.clear();
        self.pieces.clear();
        self.packets.clear();
        let starts = (0..bytes.len()).step_by(cut.segment);
        self.heads.extend(starts.map(|start| (position + start as u64).to_le_bytes()));
        for (head, segment) in self.heads.iter_mut().zip(bytes.chunks(cut.segment)) {
            self.pieces.push(libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: HEAD });
            self.pieces
                .push(libc::iovec { iov_base: segment.as_ptr().cast_mut().cast(), iov_len: segment.len() });
        }
        for packet in self.pieces.chunks_mut(2 * cut.per_packet) {
            self.packets.push(message(packet));
        }
        // SAFETY: every message points at our `pieces`, and those at our `heads` and at `bytes`; none of them changes
        // or moves before the call returns, and sending only reads what the pieces point at.
        let sent = unsafe {
            libc::sendmmsg(fd.as_raw_fd(), self.packets.as_mut_ptr(), self.packets.len() as libc::c_uint, 0)
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((sent as usize * cut.packet()).min(bytes.len()))
    }
}

/// Room for the control message in which the kernel tells the size of coalesced datagrams.
type Control = [u64; 4];

/// Receives up to a fixed number of packets at once.
pub(crate) struct Inbox {
    slots: usize,
    bytes: Vec<u8>,
    /// Of each packet received: its length, and the length of the datagrams in it (the last may be shorter).
    lens: Vec<(usize, usize)>,
}

impl Inbox {
    pub(crate) fn new(slots: usize) -> Self {
        Self { slots, bytes: vec![0; slots * PACKET_MAX], lens: Vec::with_capacity(slots) }
    }

    /// Receives what is there. Without `wait`, an empty queue is [`io::ErrorKind::WouldBlock`]; with it, the call
    /// sleeps until there is one packet or the socket's timeout has passed.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>, wait: bool) -> io::Result<()> {
        const SLOTS_MAX: usize = 16;
        self.lens.clear();
        let mut control: [Control; SLOTS_MAX] = [[0; 4]; SLOTS_MAX];
        let mut pieces = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; SLOTS_MAX];
        let mut packets = [const { libc::mmsghdr { msg_hdr: no_message(), msg_len: 0 } }; SLOTS_MAX];
        let slots = self.slots.min(SLOTS_MAX);
        for (i, slot) in self.bytes.chunks_exact_mut(PACKET_MAX).take(slots).enumerate() {
            pieces[i] = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
            packets[i] = message(&mut pieces[i..=i]);
            packets[i].msg_hdr.msg_control = control[i].as_mut_ptr().cast();
            packets[i].msg_hdr.msg_controllen = size_of::<Control>();
        }
        let flags = if wait { libc::MSG_WAITFORONE } else { libc::MSG_DONTWAIT };
        // SAFETY: the first `slots` messages point at their own piece, slot and control room, all of which live on
        // this frame or in `self.bytes` until the call returns.
        let received = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                packets.as_mut_ptr(),
                slots as libc::c_uint,
                flags,
                ptr::null_mut(),
            )
        };
        if received < 0 {
            return Err(io::Error::last_os_error());
        }
        for packet in &packets[..received as usize] {
            let len = packet.msg_len as usize;
            // SAFETY: the kernel has filled this message's control room, which is still alive, and set its length.
            let datagram = unsafe { coalesced_size(&packet.msg_hdr) };
            self.lens.push((len, datagram.unwrap_or(len).max(1)));
        }
        Ok(())
    }

    /// Every datagram of the packets received last, in order.
    pub(crate) fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        let packets = self.bytes.chunks_exact(PACKET_MAX).zip(&self.lens);
        packets.flat_map(|(bytes, &(len, datagram))| bytes[..len].chunks(datagram))
    }
}

/// # Safety
/// `header` must describe control room that the kernel has filled.
unsafe fn coalesced_size(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: by this function's contract the header and its control room are valid, and the macros stay within it.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(header);
        while let Some(control) = next.as_ref() {
            if control.cmsg_level == libc::SOL_UDP && control.cmsg_type == libc::UDP_GRO {
                return usize::try_from(ptr::read_unaligned(libc::CMSG_DATA(control).cast::<libc::c_int>()))
                    .ok();
            }
            next = libc::CMSG_NXTHDR(header, control);
        }
    }
    None
}

fn message(pieces: &mut [libc::iovec]) -> libc::mmsghdr {
    let mut header = no_message();
    header.msg_iov = pieces.as_mut_ptr();
    header.msg_iovlen = pieces.len();
    libc::mmsghdr { msg_hdr: header, msg_len: 0 }
}

const fn no_message() -> libc::msghdr {
    // SAFETY: `msghdr` is plain old data for which all zeroes are a valid value: no name, no pieces, no control.
    unsafe { std::mem::zeroed() }
}
