//! What an interface does for the protocol stack: segmentation, coalescing and checksums, switched on or off.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// Commands of `SIOCETHTOOL`, each with a word that says on or off: transmit checksums, scatter and gather,
/// TCP segmentation, generic segmentation, generic receive offload.
const COMMANDS: [u32; 5] = [0x17, 0x19, 0x1f, 0x24, 0x2c];
const SIOCETHTOOL: libc::c_ulong = 0x8946;

#[repr(C)]
struct Command {
    number: u32,
    on: u32,
}

/// Switches every offload of an interface of this network namespace on or off.
///
/// # Errors
/// Whatever the system reports: there is no such interface, or this process may not change it.
pub fn set(interface: &str, on: bool) -> io::Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0").or_else(|_| UdpSocket::bind("0.0.0.0:0"))?;
    // SAFETY: a request is plain old data for which all zeroes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name of an interface is too long"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    // What depends on another one is switched on after it, and off before it.
    let mut commands = COMMANDS;
    if !on {
        commands.reverse();
    }
    for number in commands {
        let mut command = Command { number, on: u32::from(on) };
        request.ifr_ifru.ifru_data = (&raw mut command).cast();
        // SAFETY: the request and the command that it points to live until the call returns, and the kernel
        // reads two words of the latter.
        let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_wrong_interface_is_an_error() {
        assert!(super::set("no-such-one", false).is_err());
        assert!(super::set("a-name-that-is-far-too-long", false).is_err());
    }
}
