//! The two-sided message transport that every driver runs over, and how two processes open one. The
//! transports themselves are in `bytes.rs` (pipe, Unix socket, TCP), `sysv.rs` and `udp.rs`; those of
//! libraries that may be installed in `zeromq.rs` and `iceoryx.rs`.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::{bytes, cpu, semaphores, sysv, udp, zeromq};

/// How long a transport waits for a silent peer before it fails: a dead peer must never hang the bench.
pub const SILENCE: Duration = Duration::from_secs(10);

/// The most small messages (up to 1 KiB) that a driver may have in progress without an answer from the other
/// side, unless it has announced them by [`Transport::set_one_way`]. The transports hold back larger ones by
/// themselves.
pub const SMALL_WINDOW: usize = 64;

/// A message-oriented connection between side A and side B.
///
/// Both sides know the length of the next message, so that a byte stream needs no framing of its own.
pub trait Transport {
    /// The name of the system, as it appears in the tables.
    fn name(&self) -> &'static str;

    /// Sends one message; the buffer may be rewritten as soon as this returns.
    ///
    /// # Errors
    /// Whatever the system reports, and [`io::ErrorKind::TimedOut`] after [`SILENCE`].
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Waits until one whole message of `buf.len()` bytes is in `buf`, and returns that length.
    ///
    /// # Errors
    /// Whatever the system reports, and [`io::ErrorKind::TimedOut`] after [`SILENCE`].
    fn recv(&mut self, buf: &mut [u8]) -> io::Result<usize>;

    /// Sends what [`send`](Self::send) may have kept back to share a frame.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// From now on messages go one way without any answer, or no longer do. A transport without flow control
    /// of its own then begins to hold messages back, or ends it. Nothing may be in flight.
    fn set_one_way(&mut self, _one_way: bool) {}
}

/// One of the two ends; A starts and measures, B answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that starts.
    A,
    /// The side that answers.
    B,
}

/// The transports of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A pair of pipes.
    Pipe,
    /// A pair of named pipes.
    Fifo,
    /// A System V message queue.
    SysV,
    /// Shared memory with POSIX semaphores.
    Semaphores,
    /// A Unix stream socket.
    Unix,
    /// TCP without Nagle's delay.
    Tcp,
    /// TCP with Nagle's delay, as a socket is by default.
    TcpNagle,
    /// Connected UDP sockets, one message per datagram where it fits.
    Udp,
    /// The same; whoever waits for a message polls the interface's queue itself for a while.
    UdpBusy,
    /// ZeroMQ's `ipc`, if its library is installed.
    ZeroMq,
    /// iceoryx2 with a copy at each end, if this crate was built with the feature `iceoryx2`.
    Iceoryx2,
}

impl Kind {
    /// Every transport of the kernel with the options that suit it, in the order of the tables.
    pub const ALL: [Kind; 7] =
        [Kind::Pipe, Kind::Fifo, Kind::SysV, Kind::Semaphores, Kind::Unix, Kind::Tcp, Kind::Udp];

    /// The name of the transport, as it appears in the tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Pipe => "pipe",
            Kind::Fifo => "fifo",
            Kind::SysV => "sysv",
            Kind::Semaphores => "semaphores",
            Kind::Unix => "unix",
            Kind::Tcp => "tcp",
            Kind::TcpNagle => "tcp-nagle",
            Kind::Udp => "udp",
            Kind::UdpBusy => "udp-busy",
            Kind::ZeroMq => "zeromq",
            Kind::Iceoryx2 => "iceoryx2",
        }
    }

    /// Whether it can be opened here; those of the kernel always can.
    #[must_use]
    pub fn is_installed(self) -> bool {
        match self {
            Kind::ZeroMq => zeromq::is_installed(),
            Kind::Iceoryx2 => crate::ICEORYX2.is_some(),
            _ => true,
        }
    }

    /// Whether the transport uses the network, and so depends on the addresses of the [`Setup`].
    #[must_use]
    pub fn is_network(self) -> bool {
        matches!(self, Kind::Tcp | Kind::TcpNagle | Kind::Udp | Kind::UdpBusy)
    }
}

/// What one side needs to open its half of a transport or to run a stream.
///
/// The two sides must open the same things in the same order over the same control stream.
#[derive(Debug)]
pub struct Setup<'a> {
    /// Which half this is.
    pub side: Side,
    /// A connected stream to the other side, for addresses and descriptors; idle between calls.
    pub control: &'a mut UnixStream,
    /// The address to bind here.
    pub local: IpAddr,
    /// The address that the other side binds.
    pub remote: IpAddr,
    /// Sleep in the kernel while waiting; otherwise spin on a non-blocking descriptor.
    pub blocking: bool,
    /// `SO_RCVBUF` and `SO_SNDBUF` to request (within `rmem_max`; never forced); `None` keeps the system's
    /// default. TCP ignores it, since its own tuning does better; a pipe takes it as its capacity.
    pub rcvbuf: Option<usize>,
}

/// Opens one side of a transport for messages of up to `bytes` bytes; the other side must do the same at the
/// same time.
///
/// # Errors
/// Whatever the system reports, and [`io::ErrorKind::TimedOut`] if the other side does not answer.
pub fn open(kind: Kind, setup: &mut Setup<'_>, bytes: usize) -> io::Result<Box<dyn Transport>> {
    Ok(match kind {
        Kind::Pipe => Box::new(bytes::pipe(setup)?),
        Kind::Fifo => Box::new(bytes::fifo(setup)?),
        Kind::SysV => Box::new(sysv::SysV::open(setup)?),
        Kind::Semaphores => Box::new(semaphores::Semaphores::open(setup, bytes)?),
        Kind::Unix => Box::new(bytes::unix(setup)?),
        Kind::Tcp | Kind::TcpNagle => Box::new(bytes::tcp(setup, kind)?),
        Kind::Udp | Kind::UdpBusy => Box::new(udp::Udp::open(setup, kind)?),
        Kind::ZeroMq => Box::new(zeromq::ZeroMq::open(setup)?),
        Kind::Iceoryx2 => iceoryx2(setup, bytes)?,
    })
}

#[cfg(feature = "iceoryx2")]
fn iceoryx2(setup: &mut Setup<'_>, bytes: usize) -> io::Result<Box<dyn Transport>> {
    Ok(Box::new(crate::iceoryx::Iceoryx2::open(setup, bytes)?))
}

#[cfg(not(feature = "iceoryx2"))]
fn iceoryx2(_: &mut Setup<'_>, _: usize) -> io::Result<Box<dyn Transport>> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "built without the feature iceoryx2"))
}

impl Setup<'_> {
    /// Sends the other side `N` bytes and receives its `N` bytes; also a barrier.
    ///
    /// # Errors
    /// Whatever the control stream reports, and [`io::ErrorKind::TimedOut`] after [`SILENCE`].
    pub fn exchange<const N: usize>(&mut self, ours: &[u8; N]) -> io::Result<[u8; N]> {
        let before = self.control.read_timeout()?;
        self.control.set_read_timeout(Some(SILENCE))?;
        let mut theirs = [0; N];
        let done = self.control.write_all(ours).and_then(|()| self.control.read_exact(&mut theirs));
        self.control.set_read_timeout(before)?;
        done.map_err(silent)?;
        Ok(theirs)
    }

    /// Returns when the other side has called this too.
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange).
    pub fn barrier(&mut self) -> io::Result<()> {
        let theirs = self.exchange(b"meet")?;
        if &theirs == b"meet" { Ok(()) } else { Err(io::Error::other("the two sides are out of step")) }
    }
}

/// A receive timeout of a socket, which reports "would block", is a silent peer.
pub(crate) fn silent(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { timed_out() } else { error }
}

pub(crate) fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the other side is silent")
}

/// Empty turns between two readings of the clock.
const CHECK_EVERY: u32 = 4096;

/// Bounds a spin loop in time, and reads the clock so rarely that the bound costs nothing.
pub(crate) struct SpinLimit {
    spins: u32,
    since: Option<Instant>,
}

impl SpinLimit {
    pub(crate) fn new() -> Self {
        Self { spins: 0, since: None }
    }

    /// One empty turn of the loop.
    pub(crate) fn spin(&mut self) -> io::Result<()> {
        self.spins = self.spins.wrapping_add(1);
        cpu::spin(self.spins);
        if self.spins.is_multiple_of(CHECK_EVERY) {
            let since = *self.since.get_or_insert_with(Instant::now);
            if since.elapsed() > SILENCE {
                return Err(timed_out());
            }
        }
        Ok(())
    }

    /// Whether this turn read the clock, so that a caller may do the same.
    pub(crate) fn is_checkpoint(&self) -> bool {
        self.spins.is_multiple_of(CHECK_EVERY)
    }
}
