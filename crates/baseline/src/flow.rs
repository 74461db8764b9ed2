//! A one-way stream over raw UDP: sliding window, cumulative acknowledgement, and the simplest recovery that
//! cannot hang (go back to the first missing byte). The caller makes and takes the bytes.

mod receiver;
mod sender;

use std::io;
use std::time::Duration;

use rustix::net::sockopt::{self, Timeout};

use crate::cpu::Measured;
use crate::mmsg::{self, Cut};
use crate::transport::{Setup, Side};
use crate::udp::UdpPair;
use receiver::Receiver;
use sender::Sender;

/// Makes the messages of a stream; called again for a message that must be sent again.
pub(crate) trait Source {
    fn write(&mut self, number: u64, buf: &mut [u8]);
}

/// Takes a stream in order, except for bytes that come again after a loss.
pub(crate) trait Sink {
    /// Some bytes of a packet; they may turn out to be misplaced if the rest of the packet is lost.
    fn take(&mut self, position: u64, bytes: &[u8]);
    /// Everything before `position` has arrived for good.
    fn arrived(&mut self, position: u64) -> io::Result<()>;
}

/// The shape of a stream; the same on both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) message: usize,
    pub(crate) count: u64,
    pub(crate) cut: Cut,
    pub(crate) gso: bool,
    /// Packets that one system call sends or takes.
    pub(crate) batch: usize,
    /// Bytes sent and not yet acknowledged, at most.
    pub(crate) window: usize,
}

impl Shape {
    fn total(&self) -> u64 {
        self.message as u64 * self.count
    }

    /// The receiver acknowledges after this many bytes: often enough that a full window never waits for it.
    fn acknowledge_every(&self) -> u64 {
        let spare = self.window.saturating_sub(self.cut.packet());
        (self.window / 4).min(spare).max(1) as u64
    }
}

/// An acknowledgement: the next byte expected, and whether something after it has already arrived.
type Ack = [u8; 16];
/// From the sender, when everything has been acknowledged: the receiver may end.
const END: u64 = u64::MAX;
/// A sender that waits this long for an acknowledgement starts again from the last one.
const RESEND: Duration = Duration::from_millis(20);

/// Runs one side of a stream over a fresh pair of sockets.
pub(crate) fn run(
    setup: &mut Setup<'_>,
    pair: &UdpPair,
    shape: &Shape,
    source: &mut impl Source,
    sink: &mut impl Sink,
) -> io::Result<Measured> {
    sockopt::set_socket_timeout(&pair.socket, Timeout::Recv, Some(RESEND))?;
    sockopt::set_socket_timeout(&pair.socket, Timeout::Send, Some(RESEND))?;
    match setup.side {
        Side::A => {
            if shape.gso {
                mmsg::set_segment(&pair.socket, shape.cut.datagram)?;
            }
            setup.barrier()?;
            Sender::new(pair, shape, setup.blocking).run(source)
        }
        Side::B => {
            if shape.gso {
                mmsg::set_coalesce(&pair.socket)?;
            }
            setup.barrier()?;
            Receiver::new(pair, shape, setup.blocking).run(sink)
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        || error.raw_os_error() == Some(libc::ENOBUFS)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}
