//! The knobs of the UDP device.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

/// How to open a UDP device. The default is a socket on loopback with everything on that the system offers.
#[derive(Debug)]
pub struct UdpConfig {
    /// Where to bind; port 0 lets the system choose one. Decides between IPv4 and IPv6.
    pub bind: SocketAddr,
    /// An inherited socket that is bound already; `bind` is then not looked at.
    pub socket: Option<OwnedFd>,
    /// Slots to send from. Memory is touched when slots are used, not before.
    pub tx_slots: usize,
    /// Payload bytes of a slot, and so the largest frame. By default what the MTU of the interface with the bound
    /// address takes, at most [`super::FRAME_CAP`]; 1,472 (Ethernet) when bound to an unspecified address.
    pub slot_payload: Option<usize>,
    /// Use segmentation offload where the system has it; `false` forces one message per frame.
    pub gso: bool,
    /// Use receive coalescing where the system has it.
    pub gro: bool,
    /// Frames sent, and datagrams received, by one system call.
    pub batch: usize,
    /// How long the kernel polls the card when a receive finds nothing; 0 is off. May need a privilege; a refusal is
    /// told by [`super::Udp::describe`] and nothing else.
    pub busy_poll_us: u32,
    /// Send through a connected socket per destination (the first 64), which is cheaper. Frames then come from another port than
    /// the one that the device is bound to.
    pub connect: bool,
    /// Bytes of the socket's receive buffer; by default the system's own.
    pub rcvbuf: Option<usize>,
    /// Bytes of the socket's send buffer; by default the system's own.
    pub sndbuf: Option<usize>,
}

/// More than this in one batch gains nothing and only costs memory; the kernel's own bound is 1,024.
const BATCH_MAX: usize = 1_024;
/// A slot holds at least the smallest frame limit that a path may have.
const SLOT_MIN: usize = tautline_wire::frame::LEAST_FRAME;

impl Default for UdpConfig {
    fn default() -> UdpConfig {
        UdpConfig {
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            socket: None,
            tx_slots: 2_048,
            slot_payload: None,
            gso: true,
            gro: true,
            batch: 64,
            busy_poll_us: 0,
            connect: true,
            rcvbuf: None,
            sndbuf: None,
        }
    }
}

impl UdpConfig {
    pub(super) fn check(&self) -> io::Result<()> {
        let refuse = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        if !(1..=BATCH_MAX).contains(&self.batch) {
            return refuse("a batch is 1 to 1024 frames");
        }
        if self.tx_slots == 0 || u32::try_from(self.tx_slots).is_err() {
            return refuse("there must be at least one slot, and fewer than 2^32");
        }
        if self.slot_payload.is_some_and(|len| !(SLOT_MIN..=tautline_wire::frame::MAX_FRAME).contains(&len)) {
            return refuse("a slot's payload is 512 to 65507 bytes");
        }
        Ok(())
    }
}
