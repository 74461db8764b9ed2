//! The byte-stream transports: pipe pair, named pipes, Unix stream socket, TCP. Each is two descriptors and a
//! length known to both sides. An empty message travels as one byte, since a byte stream cannot show it
//! otherwise.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use crate::descriptors::{give, take};
use crate::transport::{Kind, SILENCE, Setup, Side, SpinLimit, Transport, silent, timed_out};

/// One side of a byte-stream transport.
pub(crate) struct Bytes {
    kind: Kind,
    from: OwnedFd,
    into: OwnedFd,
    blocking: bool,
}

impl Bytes {
    fn new(kind: Kind, from: OwnedFd, into: OwnedFd, blocking: bool) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&from, !blocking)?;
        rustix::io::ioctl_fionbio(&into, !blocking)?;
        // A dead peer closes its pipe; a socket whose peer hangs needs a time bound.
        if !matches!(kind, Kind::Pipe | Kind::Fifo) {
            sockopt::set_socket_timeout(&from, Timeout::Recv, Some(SILENCE))?;
            sockopt::set_socket_timeout(&from, Timeout::Send, Some(SILENCE))?;
        }
        Ok(Self { kind, from, into, blocking })
    }

    /// One empty turn: spins when polled; a blocking call that returned empty has waited long enough.
    fn again(&self, spin_limit: &mut SpinLimit) -> io::Result<()> {
        if self.blocking { Err(timed_out()) } else { spin_limit.spin() }
    }
}

impl Transport for Bytes {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = if bytes.is_empty() { &[0] } else { bytes };
        let mut spin_limit = SpinLimit::new();
        while !rest.is_empty() {
            match rustix::io::write(&self.into, rest) {
                Ok(n) => {
                    rest = &rest[n..];
                    spin_limit = SpinLimit::new();
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.again(&mut spin_limit)?,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn recv(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let wanted = buf.len();
        let mut empty = [0];
        let mut rest = if buf.is_empty() { &mut empty } else { buf };
        let mut spin_limit = SpinLimit::new();
        while !rest.is_empty() {
            match rustix::io::read(&self.from, &mut *rest) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    rest = &mut rest[n..];
                    spin_limit = SpinLimit::new();
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.again(&mut spin_limit)?,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(wanted)
    }
}

/// Each side makes the pipe that it writes to and gives away the reading end.
pub(crate) fn pipe(setup: &mut Setup<'_>) -> io::Result<Bytes> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    if let Some(size) = setup.rcvbuf {
        // Above the user's limit the default stays: we compare with an ordinary pipe.
        let _ = fcntl_setpipe_size(&writer, size);
    }
    give(setup.control, &reader)?;
    drop(reader);
    let from = take(setup.control)?;
    Bytes::new(Kind::Pipe, from, writer, setup.blocking)
}

/// The same with a name, which is gone as soon as both ends are open.
pub(crate) fn fifo(setup: &mut Setup<'_>) -> io::Result<Bytes> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("tautline-fifo-{}-{number}", std::process::id()));
    let kind = FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &file, kind, Mode::RUSR | Mode::WUSR, 0)
        .map_err(|why| io::Error::other(format!("cannot make {} ({why}); see TMPDIR", file.display())))?;
    let open = |flags| rustix::fs::open(&file, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
    // In this order neither waits for the other.
    let ends = open(OFlags::RDONLY).and_then(|reader| Ok((reader, open(OFlags::WRONLY)?)));
    rustix::fs::unlink(&file)?;
    let (reader, writer) = ends?;
    if let Some(size) = setup.rcvbuf {
        let _ = fcntl_setpipe_size(&writer, size);
    }
    give(setup.control, &reader)?;
    drop(reader);
    let from = take(setup.control)?;
    Bytes::new(Kind::Fifo, from, writer, setup.blocking)
}

pub(crate) fn unix(setup: &mut Setup<'_>) -> io::Result<Bytes> {
    let end = unix_end(setup)?;
    if let Some(size) = setup.rcvbuf {
        sockopt::set_socket_recv_buffer_size(&end, size)?;
        sockopt::set_socket_send_buffer_size(&end, size)?;
    }
    setup.barrier()?;
    Bytes::new(Kind::Unix, end.try_clone()?, end, setup.blocking)
}

/// Side A makes the socket pair and gives away one end.
pub(crate) fn unix_end(setup: &mut Setup<'_>) -> io::Result<OwnedFd> {
    Ok(match setup.side {
        Side::A => {
            let (ours, theirs) = UnixStream::pair()?;
            give(setup.control, &theirs)?;
            ours.into()
        }
        Side::B => take(setup.control)?,
    })
}

pub(crate) fn tcp(setup: &mut Setup<'_>, kind: Kind) -> io::Result<Bytes> {
    let stream = tcp_stream(setup)?;
    stream.set_nodelay(kind != Kind::TcpNagle)?;
    setup.barrier()?;
    Bytes::new(kind, stream.try_clone()?.into(), stream.into(), setup.blocking)
}

/// Side A listens, side B connects; without Nagle's delay.
pub(crate) fn tcp_stream(setup: &mut Setup<'_>) -> io::Result<TcpStream> {
    let stream = match setup.side {
        Side::A => {
            let listener = TcpListener::bind((setup.local, 0))?;
            setup.exchange(&listener.local_addr()?.port().to_le_bytes())?;
            accept(&listener)?
        }
        Side::B => {
            let port = u16::from_le_bytes(setup.exchange(&[0; 2])?);
            TcpStream::connect_timeout(&SocketAddr::new(setup.remote, port), SILENCE)?
        }
    };
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let since = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => return Ok(stream),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && since.elapsed() < SILENCE => {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            Err(e) => return Err(silent(e)),
        }
    }
}
