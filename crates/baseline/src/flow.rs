//! A one-way stream over raw UDP: sliding window, cumulative acknowledgement, and the simplest recovery that
//! cannot hang (go back to the first missing byte). What is sent and what becomes of it is the caller's.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{self, Timeout};
use rustix::net::{RecvFlags, SendFlags};

use crate::cpu::{Measured, Stopwatch};
use crate::mmsg::{self, Cut, HEAD, Inbox, Outbox};
use crate::transport::{Patience, SILENCE, Setup, Side, timed_out};
use crate::udp::UdpPair;

/// Makes the messages of a stream; asked again for a message that must be sent anew.
pub(crate) trait Source {
    fn write(&mut self, number: u64, buf: &mut [u8]);
}

/// Takes the segments of a stream in order.
pub(crate) trait Sink {
    fn take(&mut self, position: u64, segment: &[u8]) -> io::Result<()>;
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

    /// The receiver acknowledges after this many bytes: often enough that a full window is never waiting for it.
    fn acknowledge_every(&self) -> u64 {
        let spare = self.window.saturating_sub(self.cut.packet());
        (self.window / 4).min(spare).max(1) as u64
    }
}

/// An acknowledgement: the next byte expected, and whether something after it has already come.
type Ack = [u8; 16];
/// From the sender, when everything has been acknowledged: the receiver may go.
const END: u64 = u64::MAX;
/// A sender that waits so long for an acknowledgement starts again from the last.
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
    match setup.side {
        Side::A => {
            if shape.gso {
                mmsg::set_segment(&pair.socket, shape.cut.segment + HEAD)?;
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

struct Sender<'a> {
    pair: &'a UdpPair,
    shape: &'a Shape,
    blocking: bool,
    outbox: Outbox,
    sent: u64,
    acked: u64,
    /// When the receiver last made progress, and when we last did something about its silence.
    heard: Instant,
    resent: Instant,
    drops: u64,
}

impl<'a> Sender<'a> {
    fn new(pair: &'a UdpPair, shape: &'a Shape, blocking: bool) -> Self {
        Self {
            pair,
            shape,
            blocking,
            outbox: Outbox::default(),
            sent: 0,
            acked: 0,
            heard: Instant::now(),
            resent: Instant::now(),
            drops: 0,
        }
    }

    fn run(mut self, source: &mut impl Source) -> io::Result<Measured> {
        let (total, message) = (self.shape.total(), self.shape.message as u64);
        let mut buf = vec![0; self.shape.message];
        let mut held = u64::MAX;
        let watch = Stopwatch::start();
        while self.acked < total {
            while self.sent < total && self.room() > 0 {
                let number = self.sent / message;
                if number != held {
                    source.write(number, &mut buf);
                    held = number;
                }
                let from = (self.sent % message) as usize;
                self.push(&buf[from..])?;
            }
            self.hear()?;
        }
        let measured = watch.stop(self.shape.count, total, self.drops);
        for _ in 0..3 {
            // The receiver may be gone after the first.
            let _ = rustix::net::send(&self.pair.socket, &END.to_le_bytes(), SendFlags::empty());
        }
        Ok(measured)
    }

    /// How many bytes may go now: whole packets only, so that a window never ends in small change.
    fn room(&self) -> usize {
        let free = self.shape.window.saturating_sub((self.sent - self.acked) as usize);
        let packet = self.shape.cut.packet();
        if self.sent == self.acked { free.max(packet) } else { free / packet * packet }
    }

    fn push(&mut self, rest: &[u8]) -> io::Result<()> {
        let most = self.room().min(self.shape.batch * self.shape.cut.packet());
        let bytes = &rest[..rest.len().min(most)];
        match self.outbox.send(self.pair.socket.as_fd(), self.sent, bytes, self.shape.cut) {
            Ok(n) => self.sent += n as u64,
            Err(e) if is_transient(&e) => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Takes acknowledgements: all that are there, and if the window is full, waits for one.
    fn hear(&mut self) -> io::Result<()> {
        let mut patience = Patience::new();
        loop {
            let mut ack: Ack = [0; 16];
            let flags = if self.blocking { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
            match rustix::net::recv(&self.pair.socket, &mut ack, flags) {
                Ok((_, 16)) => return self.accept(ack),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) if self.blocking => return self.start_again(),
                Err(rustix::io::Errno::AGAIN) => {
                    patience.spin()?;
                    if patience.is_checkpoint() && self.heard.max(self.resent).elapsed() > RESEND {
                        return self.start_again();
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn accept(&mut self, ack: Ack) -> io::Result<()> {
        let next = u64_at(&ack, 0);
        if next > self.shape.total() {
            return Err(io::Error::other("an acknowledgement beyond the end of the stream"));
        }
        if next > self.acked || u64_at(&ack, 8) != 0 {
            self.heard = Instant::now();
        }
        self.acked = self.acked.max(next);
        self.sent = self.sent.max(self.acked);
        if u64_at(&ack, 8) != 0 && next == self.acked && self.sent > self.acked {
            self.drops += 1;
            self.sent = self.acked;
        }
        Ok(())
    }

    /// Nothing was heard for a while: data or acknowledgements were lost, or the receiver does not run.
    fn start_again(&mut self) -> io::Result<()> {
        if self.heard.elapsed() > SILENCE {
            return Err(timed_out());
        }
        self.resent = Instant::now();
        if self.sent > self.acked {
            self.drops += 1;
            self.sent = self.acked;
        }
        Ok(())
    }
}

struct Receiver<'a> {
    pair: &'a UdpPair,
    shape: &'a Shape,
    blocking: bool,
    next: u64,
    acked: u64,
    /// Where the last gap was reported, so that each is reported once.
    gap: u64,
    gaps: u64,
}

impl<'a> Receiver<'a> {
    fn new(pair: &'a UdpPair, shape: &'a Shape, blocking: bool) -> Self {
        Self { pair, shape, blocking, next: 0, acked: 0, gap: u64::MAX, gaps: 0 }
    }

    fn run(mut self, sink: &mut impl Sink) -> io::Result<Measured> {
        let mut inbox = Inbox::new(self.shape.batch);
        let total = self.shape.total();
        let mut watch = None;
        let mut heard = Instant::now();
        while self.next < total {
            if self.fill(&mut inbox, heard)? {
                heard = Instant::now();
                watch.get_or_insert_with(Stopwatch::start);
                self.take(&inbox, sink)?;
            }
        }
        let watch = watch.unwrap_or_else(Stopwatch::start);
        let measured = watch.stop(self.shape.count, total, self.gaps);
        self.linger(&mut inbox);
        Ok(measured)
    }

    /// Waits for packets; `false` if there were none for a while.
    fn fill(&self, inbox: &mut Inbox, heard: Instant) -> io::Result<bool> {
        let mut patience = Patience::new();
        loop {
            match inbox.receive(self.pair.socket.as_fd(), self.blocking) {
                Ok(()) => return Ok(true),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && self.blocking => {
                    return if heard.elapsed() > SILENCE { Err(timed_out()) } else { Ok(false) };
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => patience.spin()?,
                Err(e) => return Err(e),
            }
        }
    }

    fn take(&mut self, inbox: &Inbox, sink: &mut impl Sink) -> io::Result<()> {
        let mut stale = false;
        for datagram in inbox.datagrams() {
            let Some((head, segment)) = datagram.split_first_chunk::<HEAD>() else { continue };
            let position = u64::from_le_bytes(*head);
            if position == self.next {
                sink.take(position, segment)?;
                self.next += segment.len() as u64;
                if self.next - self.acked >= self.shape.acknowledge_every() {
                    self.acknowledge(false)?;
                }
            } else if position > self.next && position != END {
                self.report_gap()?;
            } else {
                stale = true;
            }
        }
        if stale || self.next == self.shape.total() {
            self.acknowledge(false)?;
        }
        Ok(())
    }

    fn report_gap(&mut self) -> io::Result<()> {
        if self.gap != self.next {
            self.gap = self.next;
            self.gaps += 1;
            self.acknowledge(true)?;
        }
        Ok(())
    }

    fn acknowledge(&mut self, gap: bool) -> io::Result<()> {
        self.acked = self.next;
        let mut ack: Ack = [0; 16];
        ack[..8].copy_from_slice(&self.next.to_le_bytes());
        ack[8..].copy_from_slice(&u64::from(gap).to_le_bytes());
        match rustix::net::send(&self.pair.socket, &ack, SendFlags::empty()) {
            Ok(_) => Ok(()),
            Err(e) if is_transient(&e.into()) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// The last acknowledgement may be lost too: answers until the sender says that it has it, or for a moment.
    fn linger(&mut self, inbox: &mut Inbox) {
        let since = Instant::now();
        while since.elapsed() < 10 * RESEND {
            match inbox.receive(self.pair.socket.as_fd(), true) {
                Ok(()) => {
                    let end = |d: &[u8]| d.len() == HEAD && u64_at(d, 0) == END;
                    if inbox.datagrams().any(end) || self.acknowledge(false).is_err() {
                        return;
                    }
                }
                Err(e) if is_transient(&e) => {}
                Err(_) => return,
            }
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
