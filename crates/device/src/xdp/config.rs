//! The options of the AF_XDP device.

use std::net::IpAddr;

use super::headers::{Framing, Mac};
use crate::sys::bpf::Addressee;
use crate::udp::UdpConfig;

/// How the steering program is attached, and how frames get from the card to our memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// The best mode that works: zero copy, then native, then generic. On veth, which has no zero copy,
    /// generic comes first because it is faster there, unless several ranks divide the queues, which only
    /// native mode can tell apart.
    #[default]
    Auto,
    /// The card writes to our memory.
    ZeroCopy,
    /// The program runs in the driver; the kernel copies.
    Native,
    /// The program runs behind the driver; the kernel copies.
    Generic,
}

impl Mode {
    /// Returns the mode's name in configuration and reports.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Auto => "auto",
            Mode::ZeroCopy => "zero-copy",
            Mode::Native => "native",
            Mode::Generic => "generic",
        }
    }
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Mode, String> {
        match name {
            "auto" => Ok(Mode::Auto),
            "zero-copy" => Ok(Mode::ZeroCopy),
            "native" => Ok(Mode::Native),
            "generic" => Ok(Mode::Generic),
            other => Err(format!("unknown mode \"{other}\"; use auto, zero-copy, native or generic")),
        }
    }
}

/// Who moves frames from the card to the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Receive {
    /// The kernel, on interrupts; polling reads memory and makes no system call.
    #[default]
    Kernel,
    /// The caller: a receive that finds nothing makes the kernel poll the card (preferred busy polling).
    BusyPoll,
    /// The faster of both, measured on the first traffic.
    Measured,
}

impl Receive {
    /// Returns its name in configuration and reports.
    pub fn name(self) -> &'static str {
        match self {
            Receive::Kernel => "kernel",
            Receive::BusyPoll => "busy-poll",
            Receive::Measured => "measured",
        }
    }
}

impl std::str::FromStr for Receive {
    type Err = String;

    fn from_str(name: &str) -> Result<Receive, String> {
        match name {
            "kernel" => Ok(Receive::Kernel),
            "busy-poll" => Ok(Receive::BusyPoll),
            "measured" => Ok(Receive::Measured),
            other => Err(format!("unknown receive mode \"{other}\"; use kernel, busy-poll or measured")),
        }
    }
}

/// When the kernel no longer reads the bytes of a frame (D-9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Completion {
    /// When it has taken the frame from the ring, if the driver is known to copy; otherwise as
    /// [`Completion::Ring`].
    #[default]
    Auto,
    /// When the completion ring returns the frame, whatever the driver.
    Ring,
}

/// How to open an AF_XDP device.
#[derive(Debug)]
#[non_exhaustive]
pub struct XdpConfig {
    /// The socket that owns the port, and the device for destinations that AF_XDP cannot reach. Its address
    /// determines the interface.
    pub udp: UdpConfig,
    /// The address that determines the interface, if the socket is bound to the unspecified address. Frames
    /// for other interfaces go through the socket.
    pub address: Option<IpAddr>,
    /// The mode.
    pub mode: Mode,
    /// Who moves received frames.
    pub receive: Receive,
    /// The framing.
    pub framing: Framing,
    /// When bytes that were sent may be changed.
    pub completion: Completion,
    /// Compute UDP's checksum. It can be omitted if other means protect the whole frame (D-28); over IPv6 it
    /// is always computed.
    pub checksums: bool,
    /// Leave checksums to the card. By default, if its driver offers that for AF_XDP.
    pub checksum_offload: Option<bool>,
    /// The VLAN tag of frames; by default that of the interface.
    pub vlan: Option<u16>,
    /// Chunks to receive into: a power of two. Fewer are used if not as much memory may be pinned.
    pub rx_chunks: u32,
    /// Entries of the send ring: a power of two.
    pub tx_ring: u32,
    /// The first queue to try; if it is taken, the next ones are tried.
    pub queue: u32,
    /// The number of processes that share the interface; each takes its part of the queues, at least one.
    pub sharers: u32,
    /// The public name of the job (H-10). Handshake frames that carry another one pass to the kernel; without
    /// a name all of them are taken.
    pub job: Option<u64>,
    /// Take every datagram for the port, not only those that look like frames; for tests of the device alone.
    pub any_shape: bool,
    /// Drop the privileges that opening needed, in this thread.
    pub drop_privileges: bool,
}

impl XdpConfig {
    /// Returns the default configuration, as `change` changes it.
    pub fn with(change: impl FnOnce(&mut XdpConfig)) -> XdpConfig {
        let mut config = XdpConfig::default();
        change(&mut config);
        config
    }

    /// What the steering program compares frames with.
    pub(super) fn addressee(&self, mac: Mac, port: u16) -> Addressee {
        Addressee { mac, port, job: self.job.map_or(0, u64::to_le) }
    }
}

impl Default for XdpConfig {
    fn default() -> XdpConfig {
        XdpConfig {
            udp: UdpConfig::default(),
            address: None,
            mode: Mode::default(),
            receive: Receive::default(),
            framing: Framing::default(),
            completion: Completion::default(),
            checksums: true,
            checksum_offload: None,
            vlan: None,
            rx_chunks: 2_048,
            tx_ring: 512,
            queue: 0,
            sharers: 1,
            job: None,
            any_shape: false,
            drop_privileges: false,
        }
    }
}
