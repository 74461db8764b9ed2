//! The options of the UDP device.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

/// How to open a UDP device. The default is a socket on loopback that uses everything the system offers.
#[derive(Debug)]
#[non_exhaustive]
pub struct UdpConfig {
    /// The address to bind; port 0 lets the system choose one. Decides between IPv4 and IPv6.
    pub bind: SocketAddr,
    /// This host's addresses that peers use, if the socket is bound to the unspecified address. The MTU of
    /// their interfaces decides the largest frame.
    pub addresses: Vec<IpAddr>,
    /// An inherited socket that is already bound; `bind` is ignored then.
    pub socket: Option<OwnedFd>,
    /// Slots to send from. Their memory is touched when they are used.
    pub tx_slots: usize,
    /// Payload bytes of a slot, and so the largest frame. The default is what the MTU of the interface with
    /// the bound address allows, up to [`super::FRAME_CAP`]; of an unspecified address, those with
    /// [`UdpConfig::addresses`], or 1,472 (Ethernet).
    pub slot_payload: Option<usize>,
    /// Use segmentation offload where available; `false` sends one message per frame.
    pub gso: bool,
    /// Use receive coalescing where available.
    pub gro: bool,
    /// The most frames sent, and datagrams received, by one system call.
    pub batch: usize,
    /// How long the kernel polls the card when a receive finds nothing; 0 is off. May need a privilege; a
    /// refusal only shows in [`super::Udp::describe`].
    pub busy_poll_us: u32,
    /// Send through a connected socket per destination (up to 64 that are in use), which is cheaper. Frames
    /// then come from another port than the bound one.
    pub connect: bool,
    /// Bytes of headers that frames have before their payload, if slots shall lie packed (D-32): trains then
    /// leave as one piece of memory. Only for frames of up to 16 KiB, longer ones leave singly.
    pub packed: Option<usize>,
    /// Bytes of the socket's receive buffer; if not set, [`RECEIVE_BUFFER`] as far as the system lets users
    /// have it.
    pub rcvbuf: Option<usize>,
    /// Bytes of the socket's send buffer; the default is the system's.
    pub sndbuf: Option<usize>,
}

/// Bytes of receive buffer, by the kernel's account, if nothing else is requested. The kernel's usual default
/// of 212,992 has no room for two trains on their way and one that is being read.
pub const RECEIVE_BUFFER: usize = 1 << 20;

/// The kernel's own limit. Larger batches would gain nothing.
const BATCH_MAX: usize = 1_024;
/// A slot holds at least the smallest frame limit of any path.
const SLOT_MIN: usize = tautline_wire::frame::SMALLEST_FRAME;

impl Default for UdpConfig {
    fn default() -> UdpConfig {
        UdpConfig {
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            addresses: Vec::new(),
            socket: None,
            tx_slots: 2_048,
            slot_payload: None,
            gso: true,
            gro: true,
            batch: 64,
            busy_poll_us: 0,
            connect: true,
            packed: None,
            rcvbuf: None,
            sndbuf: None,
        }
    }
}

impl UdpConfig {
    /// Returns the default configuration, as `change` changes it.
    pub fn with(change: impl FnOnce(&mut UdpConfig)) -> UdpConfig {
        let mut config = UdpConfig::default();
        change(&mut config);
        config
    }

    pub(super) fn check(&self) -> io::Result<()> {
        let refuse = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        if !(1..=BATCH_MAX).contains(&self.batch) {
            return refuse("a batch has 1 to 1024 frames");
        }
        if self.tx_slots == 0 || u32::try_from(self.tx_slots).is_err() {
            return refuse("there must be 1 to 2^32 - 1 slots");
        }
        if self.slot_payload.is_some_and(|len| !(SLOT_MIN..=tautline_wire::frame::MAX_FRAME).contains(&len)) {
            return refuse("a slot's payload has 512 to 65507 bytes");
        }
        Ok(())
    }
}
