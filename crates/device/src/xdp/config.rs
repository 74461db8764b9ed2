//! The knobs of the AF_XDP device.

use super::headers::Framing;
use crate::udp::UdpConfig;

/// How the steering program is attached and how frames get from the card to our memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// The best that works here: zero copy, then native, then generic; on veth, which has no zero copy, generic first, because there
    /// it is the faster, unless several ranks divide its queues, which only native mode can tell apart.
    #[default]
    Auto,
    /// The card writes to our memory by itself.
    ZeroCopy,
    /// The program runs in the driver; the kernel copies.
    Native,
    /// The program runs behind the driver; the kernel copies.
    Generic,
}

impl Mode {
    /// The mode's name in configuration and reports.
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
pub enum Receive {
    /// The kernel, when the card interrupts; polling looks at memory and makes no system call.
    #[default]
    Kernel,
    /// The caller: a receive that finds nothing makes the kernel poll the card (preferred busy polling).
    BusyPoll,
    /// Whoever is faster on the first traffic.
    Measured,
}

impl Receive {
    /// Its name in configuration and reports.
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
            other => Err(format!("unknown way to receive \"{other}\"; use kernel, busy-poll or measured")),
        }
    }
}

/// When the kernel is done with the bytes of a frame (D-9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Completion {
    /// When it has taken the frame from the ring, if the driver is known to copy; else when it says so.
    #[default]
    Auto,
    /// When it says so through the completion ring, whatever the driver.
    Ring,
}

/// How to open an AF_XDP device.
#[derive(Debug)]
pub struct XdpConfig {
    /// The socket that owns the port, and the device for whoever cannot be reached directly. Its address decides the interface.
    pub udp: UdpConfig,
    /// Which mode.
    pub mode: Mode,
    /// Who moves received frames.
    pub receive: Receive,
    /// How frames are framed.
    pub framing: Framing,
    /// When bytes that were sent may be changed.
    pub completion: Completion,
    /// Work out UDP's checksum. Whoever protects all of a frame by other means need not (D-14); over IPv6 it is worked out all the same.
    pub checksums: bool,
    /// Leave checksums that are wanted to the card. By default: if its driver offers that for this kind of socket.
    pub checksum_offload: Option<bool>,
    /// The VLAN whose tag frames carry; by default that of the interface.
    pub vlan: Option<u16>,
    /// Chunks to receive into: a power of two. Fewer are taken if the system does not let so much be pinned.
    pub rx_chunks: u32,
    /// Entries of the ring to send by: a power of two.
    pub tx_ring: u32,
    /// The first queue to try; a taken one gives the next.
    pub queue: u32,
    /// Processes that share the interface: each takes its part of the queues, and at least one.
    pub sharers: u32,
    /// Take every datagram for the port, not only those that look like frames; for tests of the device alone.
    pub any_shape: bool,
    /// Give up the privileges that opening needed, in this thread.
    pub drop_privileges: bool,
}

impl Default for XdpConfig {
    fn default() -> XdpConfig {
        XdpConfig {
            udp: UdpConfig::default(),
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
            any_shape: false,
            drop_privileges: false,
        }
    }
}
