//! Raw UDP as a transport: one message per datagram where it fits, else several datagrams of one size. There
//! is no recovery: a window below the receive buffer keeps the kernel from dropping on one machine. The
//! streams of `flow.rs` also start from a `UdpPair`.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendFlags};

use crate::mmsg;
use crate::transport::{Kind, SILENCE, Setup, SpinLimit, Transport, timed_out};

/// A connected socket and the properties of the path to the peer.
pub(crate) struct UdpPair {
    pub(crate) socket: UdpSocket,
    /// The largest datagram that the path takes without IP fragments.
    pub(crate) payload_max: usize,
    /// The size of the peer's receive buffer, by the kernel's accounting.
    pub(crate) peer_rcvbuf: usize,
}

impl UdpPair {
    pub(crate) fn open(setup: &mut Setup<'_>) -> io::Result<Self> {
        let socket = UdpSocket::bind((setup.local, 0))?;
        if let Some(size) = setup.rcvbuf {
            sockopt::set_socket_recv_buffer_size(&socket, size)?;
            sockopt::set_socket_send_buffer_size(&socket, size)?;
        }
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(SILENCE))?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(SILENCE))?;
        let rcvbuf = sockopt::socket_recv_buffer_size(&socket)?;
        let mut ours = [0; 10];
        ours[..2].copy_from_slice(&socket.local_addr()?.port().to_le_bytes());
        ours[2..].copy_from_slice(&(rcvbuf as u64).to_le_bytes());
        let theirs = setup.exchange(&ours)?;
        let port = u16::from_le_bytes([theirs[0], theirs[1]]);
        socket.connect(SocketAddr::new(setup.remote, port))?;
        setup.barrier()?;
        let peer_rcvbuf = u64::from_le_bytes(std::array::from_fn(|i| theirs[2 + i])) as usize;
        let payload_max = mmsg::payload_max(&socket)?;
        Ok(Self { socket, payload_max, peer_rcvbuf })
    }
}

/// One side of the raw UDP transport.
///
/// Messages of more than `SMALL` bytes take credit, which returns on a socket of its own, so that it is
/// never mistaken for data; smaller ones are bounded by the drivers' window and cost nothing extra, except
/// in streams without answers. Messages that do not fit a datagram have a socket of their own too, since
/// only there may the kernel segment and coalesce.
pub(crate) struct Udp {
    kind: Kind,
    single: UdpPair,
    bulk: Bulk,
    credit: Credit,
    /// The largest message that is one datagram: by the path, and by what a quarter of either buffer holds.
    single_max: usize,
    blocking: bool,
    /// Messages of more bytes take credit: in streams without answers all, else those above `SMALL`.
    free: Option<usize>,
}

/// Up to here, `SMALL_WINDOW` messages fit the default receive buffer.
const SMALL: usize = 1024;
/// How long a busy-polling call polls.
const BUSY_POLL_US: u32 = 50;
/// What the kernel charges for a datagram beyond its bytes, rounded up.
const OVERHEAD: usize = 1280;

impl Udp {
    pub(crate) fn open(setup: &mut Setup<'_>, kind: Kind) -> io::Result<Self> {
        let single = UdpPair::open(setup)?;
        let bulk = UdpPair::open(setup)?;
        if kind == Kind::UdpBusy {
            mmsg::set_busy_poll(&single.socket, BUSY_POLL_US)?;
            mmsg::set_busy_poll(&bulk.socket, BUSY_POLL_US)?;
        }
        let socket = UdpPair::open(setup)?.socket;
        let own_rcvbuf = sockopt::socket_recv_buffer_size(&single.socket)?;
        let buffer = own_rcvbuf.min(single.peer_rcvbuf);
        Ok(Self {
            kind,
            single_max: single.payload_max.min((buffer / 4).saturating_sub(OVERHEAD)).max(SMALL),
            single,
            bulk: Bulk::new(bulk, buffer / 4),
            credit: Credit { socket, blocking: setup.blocking, window: buffer / 2, taken: 0, owed: 0 },
            blocking: setup.blocking,
            free: Some(SMALL),
        })
    }
}

impl Transport for Udp {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > self.single_max {
            return self.bulk.send(bytes, &mut self.credit);
        }
        if self.takes_credit(bytes.len()) {
            self.credit.take(bytes.len() + OVERHEAD)?;
        }
        rustix::net::send(&self.single.socket, bytes, SendFlags::empty())?;
        Ok(())
    }

    fn recv(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // Credit returns as the next wait begins, after an answer has been sent: never inside a round trip.
        self.credit.give()?;
        if buf.len() > self.single_max {
            return self.bulk.recv(buf, &mut self.credit);
        }
        let wanted = buf.len();
        let got = receive(&self.single.socket, buf, self.blocking)?;
        if wanted != got {
            return Err(io::Error::other(format!(
                "a datagram of {got} bytes arrived where {wanted} were expected"
            )));
        }
        if self.takes_credit(wanted) {
            self.credit.owed += wanted + OVERHEAD;
        }
        Ok(wanted)
    }

    fn set_one_way(&mut self, one_way: bool) {
        self.free = if one_way { None } else { Some(SMALL) };
    }
}

impl Udp {
    fn takes_credit(&self, len: usize) -> bool {
        self.free.is_none_or(|free| len > free)
    }
}

/// What may be in flight, by the kernel's accounting of the receive buffer.
struct Credit {
    socket: UdpSocket,
    blocking: bool,
    window: usize,
    /// Taken by what we sent and not yet returned.
    taken: usize,
    /// What we owe the peer for what we received.
    owed: usize,
}

impl Credit {
    fn take(&mut self, cost: usize) -> io::Result<()> {
        while self.taken > 0 && self.taken + cost > self.window {
            let mut back = [0; 8];
            receive(&self.socket, &mut back, self.blocking)?;
            self.taken = self.taken.saturating_sub(u64::from_le_bytes(back) as usize);
        }
        self.taken += cost;
        Ok(())
    }

    /// Returns credit if it is worth a datagram. A sender waits with more than half of its window taken, so a
    /// quarter is soon enough.
    fn give(&mut self) -> io::Result<()> {
        if self.owed >= self.window / 4 {
            let owed = (self.owed as u64).to_le_bytes();
            self.owed = 0;
            // A peer that has sent its last message and is gone needs none.
            match rustix::net::send(&self.socket, &owed, SendFlags::empty()) {
                Ok(_) | Err(Errno::CONNREFUSED) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Messages of several datagrams, of equal length except the last: the kernel segments them and delivers them
/// together where it can, and the bytes arrive in order either way.
struct Bulk {
    pair: UdpPair,
    /// The cost of a packet, at most.
    cost_max: usize,
    /// The segment size that the kernel was last told; `None` once it has refused.
    segment: Option<usize>,
    /// The beginning of the next message, if the kernel has delivered it together with the end of the last.
    spill: Vec<u8>,
    spilled: usize,
}

impl Bulk {
    fn new(pair: UdpPair, cost_max: usize) -> Self {
        // Without coalescing the datagrams come one by one, which is slower but correct.
        let _ = mmsg::set_coalesce(&pair.socket);
        Self { pair, cost_max, segment: Some(0), spill: vec![0; mmsg::PACKET_MAX], spilled: 0 }
    }

    /// The length of the datagrams of a message of `len` bytes, and how many of them make a packet.
    fn cut(&self, len: usize) -> (usize, usize) {
        let most = self.pair.payload_max.min(self.cost_max.saturating_sub(OVERHEAD)).max(SMALL);
        let datagram = len.div_ceil(len.div_ceil(most));
        (datagram, (65_000 / datagram).min(self.cost_max / (datagram + OVERHEAD)).clamp(1, 64))
    }

    fn send(&mut self, bytes: &[u8], credit: &mut Credit) -> io::Result<()> {
        let (datagram, mut per_packet) = self.cut(bytes.len());
        if self.segment.is_some_and(|segment| segment != datagram) {
            self.segment = mmsg::set_segment(&self.pair.socket, datagram).ok().map(|()| datagram);
        }
        if self.segment.is_none() {
            per_packet = 1;
        }
        for packet in bytes.chunks(datagram * per_packet) {
            credit.take(cost(packet.len(), datagram))?;
            rustix::net::send(&self.pair.socket, packet, SendFlags::empty())?;
        }
        Ok(())
    }

    fn recv(&mut self, buf: &mut [u8], credit: &mut Credit) -> io::Result<usize> {
        let (datagram, _) = self.cut(buf.len());
        let mut filled = self.spilled.min(buf.len());
        buf[..filled].copy_from_slice(&self.spill[..filled]);
        self.spill.copy_within(filled..self.spilled, 0);
        self.spilled -= filled;
        while filled < buf.len() {
            credit.give()?;
            let rest = &mut buf[filled..];
            let room = rest.len();
            let mut pieces = [IoSliceMut::new(rest), IoSliceMut::new(&mut self.spill)];
            let got = receive_pieces(&self.pair.socket, &mut pieces, credit.blocking)?;
            credit.owed += cost(got, datagram);
            filled += got.min(room);
            self.spilled = got.saturating_sub(room);
        }
        Ok(filled)
    }
}

/// What the kernel charges for `len` bytes in datagrams.
fn cost(len: usize, datagram: usize) -> usize {
    len + len.div_ceil(datagram) * OVERHEAD
}

/// Receives one datagram, spinning or sleeping; returns its true length even if the buffer was too small for
/// it.
pub(crate) fn receive(socket: &UdpSocket, buf: &mut [u8], blocking: bool) -> io::Result<usize> {
    waiting(blocking, |flags| {
        rustix::net::recv(socket, &mut *buf, flags | RecvFlags::TRUNC).map(|(_, len)| len)
    })
}

/// Receives one packet into pieces, spinning or sleeping.
fn receive_pieces(socket: &UdpSocket, pieces: &mut [IoSliceMut<'_>], blocking: bool) -> io::Result<usize> {
    waiting(blocking, |flags| {
        rustix::net::recvmsg(socket, pieces, &mut RecvAncillaryBuffer::default(), flags).map(|got| got.bytes)
    })
}

fn waiting(
    blocking: bool,
    mut call: impl FnMut(RecvFlags) -> rustix::io::Result<usize>,
) -> io::Result<usize> {
    let flags = if blocking { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    let mut spin_limit = SpinLimit::new();
    loop {
        match call(flags) {
            Ok(len) => return Ok(len),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if blocking => return Err(timed_out()),
            Err(Errno::AGAIN) => spin_limit.spin()?,
            Err(e) => return Err(e.into()),
        }
    }
}
