//! Opening sockets, their options, and the path MTU.

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::last_errno;

/// From `asm-generic/socket.h`; `libc` has no name for it on every target.
const SO_PREFER_BUSY_POLL: libc::c_int = 69;
/// The same.
const SO_MEMINFO: libc::c_int = 55;
/// Where the count of drops is in what `SO_MEMINFO` gives; from `linux/sock_diag.h`.
const MEMINFO_DROPS: usize = 8;

/// A new unconnected socket, non-blocking and closed on `exec`.
fn new_socket(ip: IpAddr) -> Result<OwnedFd, Errno> {
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// A bound socket that never fragments. An IPv6 socket takes IPv6 only: one device, one family.
pub(crate) fn open_socket(bind: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let socket = new_socket(bind.ip())?;
    if bind.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &bind)?;
    forbid_fragments(socket.as_fd(), bind.ip())?;
    let local = local_addr(socket.as_fd())?;
    Ok((socket, local))
}

/// Opens a socket to send from only, connected to `to`: the kernel then keeps the route, and a frame costs a seventh less. It
/// is bound to the same address as `local`, at a port of its own.
pub(crate) fn open_line(local: SocketAddr, to: SocketAddr) -> io::Result<OwnedFd> {
    let socket = new_socket(to.ip())?;
    rustix::net::bind(&socket, &SocketAddr::new(local.ip(), 0))?;
    rustix::net::connect(&socket, &to)?;
    forbid_fragments(socket.as_fd(), to.ip())?;
    // Nobody reads from it.
    let _ = sockopt::set_socket_recv_buffer_size(&socket, 0);
    Ok(socket)
}

/// Makes an inherited socket into what [`open_socket`] would have made; refuses what is no bound UDP socket.
pub(crate) fn adopt_socket(socket: OwnedFd) -> io::Result<(OwnedFd, SocketAddr)> {
    if sockopt::socket_type(&socket)? != SocketType::DGRAM {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the inherited descriptor is no datagram socket",
        ));
    }
    let local = local_addr(socket.as_fd())?;
    if local.port() == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the inherited socket is not bound"));
    }
    rustix::io::ioctl_fionbio(&socket, true)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    forbid_fragments(socket.as_fd(), local.ip())?;
    Ok((socket, local))
}

/// Where a socket is bound.
fn local_addr(socket: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    Ok(SocketAddr::try_from(rustix::net::getsockname(socket)?)?)
}

fn forbid_fragments(socket: BorrowedFd<'_>, ip: IpAddr) -> Result<(), Errno> {
    if ip.is_ipv4() {
        sockopt::set_ip_mtu_discover(socket, sockopt::Ipv4PathMtuDiscovery::DO)
    } else {
        sockopt::set_ipv6_mtu_discover(socket, sockopt::Ipv6PathMtuDiscovery::DO)
    }
}

/// What the kernel knows now about the path from `from` to `to`: asked of a throw-away connected socket, because an
/// unconnected one has no path.
pub(crate) fn path_mtu(from: IpAddr, to: SocketAddr) -> Result<usize, Errno> {
    let socket = new_socket(to.ip())?;
    if !from.is_unspecified() && from.is_ipv4() == to.is_ipv4() && !is_link_local(from) {
        rustix::net::bind(&socket, &SocketAddr::new(from, 0))?;
    }
    rustix::net::connect(&socket, &to)?;
    let mtu = if to.is_ipv4() { sockopt::ip_mtu(&socket)? } else { sockopt::ipv6_mtu(&socket)? };
    Ok(mtu as usize)
}

/// Link-local addresses cannot be bound without a scope, and the destination's scope names the interface anyway.
fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Sets the socket's buffers where asked; the system may give less than asked for.
pub(crate) fn set_buffers(
    socket: BorrowedFd<'_>,
    receive: Option<usize>,
    send: Option<usize>,
) -> io::Result<()> {
    if let Some(bytes) = receive {
        // Forcing needs a privilege; without it the system's limit applies.
        sockopt::set_socket_recv_buffer_size_force(socket, bytes)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, bytes))?;
    }
    if let Some(bytes) = send {
        sockopt::set_socket_send_buffer_size_force(socket, bytes)
            .or_else(|_| sockopt::set_socket_send_buffer_size(socket, bytes))?;
    }
    Ok(())
}

/// What the socket really holds before it drops, by the kernel's own account.
pub(crate) fn receive_buffer(socket: BorrowedFd<'_>) -> io::Result<usize> {
    Ok(sockopt::socket_recv_buffer_size(socket)?)
}

/// Lets the kernel poll the network card for so long when a receive finds nothing.
pub(crate) fn set_busy_poll(socket: BorrowedFd<'_>, time_us: u32) -> Result<(), Errno> {
    let time_us = libc::c_int::try_from(time_us).unwrap_or(libc::c_int::MAX);
    set_int(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, time_us)?;
    // Only a preference, unknown to older kernels.
    let _ = set_int(socket, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, 1);
    Ok(())
}

/// How many datagrams the socket has dropped for want of room; zero where the kernel does not say. (`SO_RXQ_OVFL` would tell with every
/// datagram, and cost some 20 ns each time.)
pub(crate) fn drops(socket: BorrowedFd<'_>) -> u32 {
    let mut info = [0u32; MEMINFO_DROPS + 1];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to the array, which has as many.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if done == 0 && len as usize == size_of_val(&info) { info[MEMINFO_DROPS] } else { 0 }
}

/// Asks for coalesced datagrams, or for single ones.
pub(crate) fn set_gro(socket: BorrowedFd<'_>, on: bool) -> Result<(), Errno> {
    set_int(socket, libc::SOL_UDP, libc::UDP_GRO, libc::c_int::from(on))
}

/// Whether the kernel knows segmentation offload for UDP; zero means "off", so the socket stays as it is.
pub(crate) fn has_gso(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    set_int(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0)
}

/// Sends without checksums; the kernel then refuses to cut trains, which is how tests meet a path without GSO.
#[cfg(test)]
pub(crate) fn refuse_gso(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    set_int(socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)
}

fn set_int(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> Result<(), Errno> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer is to a live c_int of the length given; the kernel only reads it.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}
