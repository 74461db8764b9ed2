//! Messages among a flood of foreign datagrams: how many still arrive, and what that costs the receiver.
//!
//! Side A sends both, so that the number of datagrams for each message is fixed. Over loopback and veth the
//! core that sends a datagram also does what a network card's interrupt would do at the receiver.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use tautline_baseline::drive::{self, Content};
use tautline_baseline::{Measured, Setup, Side, Transport};

use super::case::Touch;
use super::taut::Taut;

/// Messages after which there is an answer.
pub const WINDOW: u64 = 64;
/// Bytes of a foreign datagram.
const JUNK: [u8; 64] = [0xA5; 64];

/// Where foreign datagrams are sent.
struct Flood {
    socket: UdpSocket,
    to: SocketAddr,
    /// Datagrams for each message.
    junk: u64,
}

impl Flood {
    fn new(local: std::net::IpAddr, to: SocketAddr, junk: u64) -> io::Result<Flood> {
        Ok(Flood { socket: UdpSocket::bind((local, 0))?, to, junk })
    }

    /// The datagrams of a window. What the receiver has no room for is lost.
    fn send(&self) {
        for _ in 0..self.junk * WINDOW {
            let _ = self.socket.send_to(&JUNK, self.to);
        }
    }

    /// Window after window, each in the midst of its datagrams.
    fn run(
        &self,
        side: Side,
        count: u64,
        mut window: impl FnMut() -> io::Result<Measured>,
    ) -> io::Result<Measured> {
        let mut total = Measured::default();
        let started = std::time::Instant::now();
        for _ in 0..count.div_ceil(WINDOW) {
            if side == Side::A {
                self.send();
            }
            let one = window()?;
            total.messages += one.messages;
            total.bytes += one.bytes;
        }
        total.elapsed_ns = started.elapsed().as_nanos() as u64;
        Ok(total)
    }
}

/// Our messages; the datagrams come to the same socket.
pub fn ours(setup: &Setup<'_>, taut: &mut Taut, count: u64, junk: u64) -> io::Result<Measured> {
    let flood = Flood::new(setup.local, taut.address(), junk)?;
    flood.run(setup.side, count, || taut.stream(setup.side, WINDOW, Some(WINDOW), false, Touch::Both))
}

/// Another transport; the datagrams come to a socket of the receiver that nobody reads.
pub fn plain(
    setup: &mut Setup<'_>,
    transport: &mut dyn Transport,
    bytes: usize,
    count: u64,
    junk: u64,
) -> io::Result<Measured> {
    let unread = UdpSocket::bind((setup.local, 0))?;
    let port = u16::from_le_bytes(setup.exchange(&unread.local_addr()?.port().to_le_bytes())?);
    let flood = Flood::new(setup.local, SocketAddr::new(setup.remote, port), junk)?;
    let side = setup.side;
    flood.run(side, count, || drive::stream(transport, side, bytes, WINDOW, Some(WINDOW), Content::Rewritten))
}
