//! A raw Ethernet socket: frames as they are, to an interface of this thread's network namespace.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, netdevice, socket_with};

/// A socket that sends whole Ethernet frames.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// Opens a socket on an interface; needs `cap_net_raw`.
    pub fn open(interface: &str) -> io::Result<PacketSocket> {
        let fd = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        // SAFETY: all fields are integers, for which zero is valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = netdevice::name_to_index(&fd, interface)? as i32;
        let (at, len) = ((&raw const address).cast(), size_of_val(&address) as u32);
        // SAFETY: the pointer is to a live address of its own length, which the kernel only reads.
        if unsafe { libc::bind(fd.as_raw_fd(), at, len) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(PacketSocket(fd))
    }

    /// Sends one frame.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.0, frame, SendFlags::empty())?;
        Ok(())
    }
}
