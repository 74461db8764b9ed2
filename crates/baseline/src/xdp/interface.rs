//! Which interface an address belongs to.

use std::io;
use std::net::Ipv4Addr;

/// An interface of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) index: u32,
    pub(super) mac: [u8; 6],
}

/// The interface with this address, in this thread's network namespace.
pub(super) fn with_address(address: Ipv4Addr) -> io::Result<Interface> {
    let list = List::get()?;
    let owner = list.entries().find(|entry| ipv4_of(entry) == Some(address));
    let name = owner.map(|entry| entry.ifa_name);
    let name = name.ok_or_else(|| io::Error::other(format!("no interface has the address {address}")))?;
    // SAFETY: both names end with zero, and live as long as the list.
    let is_same = |entry: &&libc::ifaddrs| unsafe { libc::strcmp(entry.ifa_name, name) } == 0;
    let link = list.entries().filter(is_same).find_map(link_of);
    link.ok_or_else(|| io::Error::other("an interface without a hardware address"))
}

/// What `getifaddrs` gave, until dropped.
struct List(*mut libc::ifaddrs);

impl List {
    fn get() -> io::Result<Self> {
        let mut list = std::ptr::null_mut();
        // SAFETY: the pointer is to a live pointer.
        if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(list))
    }

    fn entries(&self) -> impl Iterator<Item = &libc::ifaddrs> {
        // SAFETY: the list lives as long as `self`, and each entry points to the next, the last to nothing.
        let at = |entry: *mut libc::ifaddrs| unsafe { entry.as_ref() };
        std::iter::successors(at(self.0), move |entry| at(entry.ifa_next))
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: this is what `getifaddrs` gave, and no entry is borrowed any more.
        unsafe { libc::freeifaddrs(self.0) };
    }
}

fn family(entry: &libc::ifaddrs) -> Option<libc::c_int> {
    // SAFETY: an address is there or the pointer is null.
    unsafe { entry.ifa_addr.as_ref() }.map(|address| libc::c_int::from(address.sa_family))
}

fn ipv4_of(entry: &libc::ifaddrs) -> Option<Ipv4Addr> {
    if family(entry)? != libc::AF_INET {
        return None;
    }
    // SAFETY: of this family the address is a `sockaddr_in`, wherever it lies.
    let address = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
    Some(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()))
}

fn link_of(entry: &libc::ifaddrs) -> Option<Interface> {
    if family(entry)? != libc::AF_PACKET {
        return None;
    }
    // SAFETY: of this family the address is a `sockaddr_ll`, wherever it lies.
    let link = unsafe { entry.ifa_addr.cast::<libc::sockaddr_ll>().read_unaligned() };
    let mac = *link.sll_addr.first_chunk()?;
    Some(Interface { index: u32::try_from(link.sll_ifindex).ok()?, mac })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_and_others_are_not() {
        let found = with_address(Ipv4Addr::LOCALHOST).unwrap();
        assert!(found.index > 0 && found.mac == [0; 6]);
        assert!(with_address(Ipv4Addr::new(192, 0, 2, 77)).is_err());
    }
}
