//! The interface of an address, and its MTU.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::ptr;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Returns the MTU of the interface with this address; `None` if there is none (for example another address
/// of 127/8).
pub(crate) fn interface_mtu(ip: IpAddr) -> io::Result<Option<usize>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `list` is a place for one pointer; on success it owns a list that is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut entry = list;
    let mut found = None;
    while found.is_none() && !entry.is_null() {
        // SAFETY: `entry` is an element of the list, which lives until it is freed below.
        let this = unsafe { &*entry };
        // SAFETY: `ifa_addr` is null or a socket address of its family's size.
        if unsafe { address(this.ifa_addr) } == Some(ip) {
            // SAFETY: `ifa_name` is a zero-terminated string that lives as long as the list.
            found = Some(mtu_of(unsafe { CStr::from_ptr(this.ifa_name) }));
        }
        entry = this.ifa_next;
    }
    // SAFETY: the list came from getifaddrs, is freed once, and is not used afterwards.
    unsafe { libc::freeifaddrs(list) };
    found.transpose()
}

/// Returns the IP address in a socket address.
///
/// # Safety
/// The pointer must be null or point to a socket address of its family's size.
unsafe fn address(addr: *const libc::sockaddr) -> Option<IpAddr> {
    if addr.is_null() {
        return None;
    }
    // SAFETY: not null, so every socket address begins with its family.
    match libc::c_int::from(unsafe { (*addr).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a sockaddr_in.
            let addr = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(addr.sin_addr.s_addr.to_ne_bytes()).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is a sockaddr_in6.
            let addr = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(addr.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

fn mtu_of(name: &CStr) -> io::Result<usize> {
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: `ifreq` consists of integers and unions of integers and pointers, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = name.to_bytes();
    if bytes.len() >= request.ifr_name.len() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    // SAFETY: SIOCGIFMTU reads the zero-terminated name and writes an int into the union of this live ifreq.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the successful call above wrote this member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(usize::try_from(mtu).unwrap_or(0))
}
