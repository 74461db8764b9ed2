//! Opening sockets, their options, and the path MTU.

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::last_errno;

/// From `asm-generic/socket.h`; not in `libc` for every target.
const SO_PREFER_BUSY_POLL: libc::c_int = 69;
/// From `asm-generic/socket.h`; not in `libc` for every target.
const SO_MEMINFO: libc::c_int = 55;
/// The index of the drop counter in the result of `SO_MEMINFO`; from `linux/sock_diag.h`.
const MEMINFO_DROPS: usize = 8;

/// Opens an unconnected socket, non-blocking and closed on `exec`.
fn new_socket(ip: IpAddr) -> Result<OwnedFd, Errno> {
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// Opens a bound socket that never fragments. An IPv6 socket takes IPv6 only: one device, one family.
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

/// Opens a socket for sending only, connected to `to`: the kernel then caches the route, and a frame costs a
/// seventh less. It is bound to the address of `local`, at another port.
pub(crate) fn open_connected(local: SocketAddr, to: SocketAddr) -> io::Result<OwnedFd> {
    let socket = new_socket(to.ip())?;
    rustix::net::bind(&socket, &SocketAddr::new(local.ip(), 0))?;
    rustix::net::connect(&socket, &to)?;
    forbid_fragments(socket.as_fd(), to.ip())?;
    // Nothing is received from it.
    let _ = sockopt::set_socket_recv_buffer_size(&socket, 0);
    Ok(socket)
}

/// Sets up an inherited socket as [`open_socket`] would have.
///
/// # Errors
/// If it is not a bound UDP socket.
pub(crate) fn adopt_socket(socket: OwnedFd) -> io::Result<(OwnedFd, SocketAddr)> {
    if sockopt::socket_type(&socket)? != SocketType::DGRAM {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the inherited descriptor is not a datagram socket",
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

/// Returns the address that a socket is bound to.
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

/// Returns the path MTU from `from` to `to`, as the kernel knows it now. Needs a temporary connected socket,
/// because an unconnected one has no path.
pub(crate) fn path_mtu(from: IpAddr, to: SocketAddr) -> Result<usize, Errno> {
    let socket = new_socket(to.ip())?;
    if !from.is_unspecified() && from.is_ipv4() == to.is_ipv4() && !is_link_local(from) {
        rustix::net::bind(&socket, &SocketAddr::new(from, 0))?;
    }
    rustix::net::connect(&socket, &to)?;
    let mtu = if to.is_ipv4() { sockopt::ip_mtu(&socket)? } else { sockopt::ipv6_mtu(&socket)? };
    Ok(mtu as usize)
}

/// Whether an address is link-local. Such addresses cannot be bound without a scope, and the destination's
/// scope names the interface anyway.
fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Sets the socket's buffers where requested; the system may grant less.
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

/// Has the socket buffer at least so many bytes, by the kernel's own account, or as many as the system lets
/// users have.
pub(crate) fn widen_receive_buffer(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    if receive_buffer(socket)? < bytes {
        // The kernel doubles the figure, to allow for its overhead.
        sockopt::set_socket_recv_buffer_size(socket, bytes / 2)?;
    }
    Ok(())
}

/// Returns the bytes that the socket buffers before it drops, by the kernel's own account.
pub(crate) fn receive_buffer(socket: BorrowedFd<'_>) -> io::Result<usize> {
    Ok(sockopt::socket_recv_buffer_size(socket)?)
}

/// Makes the kernel poll the network card for this long when a receive finds nothing.
pub(crate) fn set_busy_poll(socket: BorrowedFd<'_>, time_us: u32) -> Result<(), Errno> {
    let time_us = libc::c_int::try_from(time_us).unwrap_or(libc::c_int::MAX);
    set_int(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, time_us)?;
    // A hint that older kernels do not have.
    let _ = set_int(socket, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, 1);
    Ok(())
}

/// Returns the number of datagrams that the socket has dropped for lack of room; zero if the kernel does not
/// tell. (`SO_RXQ_OVFL` would report it with every datagram, at a cost of some 20 ns each.)
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

/// Turns coalescing of received datagrams on or off.
pub(crate) fn set_gro(socket: BorrowedFd<'_>, on: bool) -> Result<(), Errno> {
    set_int(socket, libc::SOL_UDP, libc::UDP_GRO, libc::c_int::from(on))
}

/// Checks that the kernel has segmentation offload for UDP; zero means "off", so the socket does not change.
pub(crate) fn has_gso(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    set_int(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0)
}

/// Turns checksums off; the kernel then refuses to segment trains, by which tests simulate a path without
/// GSO.
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
