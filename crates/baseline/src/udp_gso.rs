//! One-way streams of large messages over raw UDP: the limit of the bandwidth of a message layer on UDP.
//!
//! The sender rewrites its buffer before each message, the kernel segments it into datagrams (or takes many
//! at once), and the receiver takes coalesced datagrams, copies them to their place in the user's buffer and
//! reads each message. There is a sliding window, so that an ordinary receive buffer does not overflow, and
//! go-back recovery, so that a drop is counted and survived. What a real layer must add (retaining what it
//! sent, order between channels, a tag) is missing: a message that must be sent again is simply made again.

use std::io;

use crate::content::Pattern;
use crate::cpu::Measured;
use crate::flow::{self, Shape, Sink, Source};
use crate::mmsg::{Cut, HEAD, PACKET_MAX};
use crate::transport::Setup;
use crate::udp::UdpPair;

/// How a stream is sent. The same on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of a message.
    pub bytes: usize,
    /// Messages.
    pub count: u64,
    /// The largest datagram; `None` takes what the path to the peer carries unfragmented.
    pub datagram: Option<usize>,
    /// Let the kernel segment and coalesce (GSO, GRO); otherwise each datagram is sent by itself.
    pub gso: bool,
    /// Bytes given to the kernel as one packet, at most; rounded to whole datagrams.
    pub packet: usize,
    /// Packets per system call.
    pub batch: usize,
    /// Bytes in flight without an acknowledgement, at most; never more than the peer's receive buffer holds.
    pub window: usize,
    /// The receiver looks at both ends of a message only.
    pub unread: bool,
}

impl Plan {
    /// A reasonable plan for this kind of stream; [`best_plan`] finds a better one.
    #[must_use]
    pub fn new(bytes: usize, count: u64) -> Self {
        Self {
            bytes,
            count,
            datagram: None,
            gso: true,
            packet: PACKET_MAX,
            batch: 4,
            window: 1 << 20,
            unread: false,
        }
    }

    /// The same with `sendmmsg` and `recvmmsg` only.
    #[must_use]
    pub fn without_gso(self) -> Self {
        Self { gso: false, batch: 16, ..self }
    }

    /// The shape that the path and the peer's buffer allow, with datagrams a multiple of `unit`.
    pub(crate) fn shape(&self, pair: &UdpPair, unit: usize) -> Shape {
        let datagram = self.datagram.unwrap_or(pair.payload_max).clamp(HEAD + unit, pair.payload_max);
        let datagram = datagram / unit * unit;
        // The kernel takes no more than 64 KiB with headers, and on older versions no more than 64 datagrams.
        let per_packet =
            if self.gso { (self.packet.min(PACKET_MAX - 64) / datagram).clamp(1, 64) } else { 1 };
        // Coalesced packets cost the receive buffer little more than their bytes. Half of it, as for single
        // datagrams, was slower by a fifth: no limit.
        let held = if self.gso { pair.peer_rcvbuf / 8 * 7 } else { pair.peer_rcvbuf / 2 };
        let window = self.window.min(held).max(1);
        Shape {
            message: self.bytes.max(1),
            count: self.count,
            cut: Cut { datagram, per_packet },
            gso: self.gso,
            batch: self.batch.clamp(1, 16),
            window: if self.gso { window } else { fit_small(window, datagram) },
        }
    }
}

/// Single datagrams cost the receive buffer more than their bytes.
fn fit_small(window: usize, datagram: usize) -> usize {
    const OVERHEAD: usize = 1280;
    (window * datagram / (datagram + OVERHEAD)).max(datagram)
}

/// Runs one side of a stream; side A sends. Both sides measure themselves.
///
/// # Errors
/// Whatever the system reports, [`io::ErrorKind::InvalidData`] if a message is not what was sent, and
/// [`io::ErrorKind::TimedOut`] if the other side is silent.
pub fn stream(setup: &mut Setup<'_>, plan: &Plan) -> io::Result<Measured> {
    let pair = UdpPair::open(setup)?;
    let shape = plan.shape(&pair, 1);
    let mut writer = Writer { pattern: Pattern::new(shape.message), next: 0 };
    let pattern = Pattern::new(shape.message);
    let mut copier =
        Copier { pattern, message: vec![0; shape.message], next: 0, unread: plan.unread, wrong: None };
    flow::run(setup, &pair, &shape, &mut writer, &mut copier)
}

/// Tries variations of a plan on this path and returns the fastest; both sides return the same.
///
/// Each is tried three times for about `trial_bytes`, and judged by its best: a limit is what can be done.
///
/// # Errors
/// If no variation runs, and if the control stream fails.
pub fn best_plan(setup: &mut Setup<'_>, plan: &Plan, trial_bytes: u64) -> io::Result<Plan> {
    let count = (trial_bytes / plan.bytes.max(1) as u64).clamp(4, plan.count.max(4));
    let mut best: Option<(u64, Plan)> = None;
    for candidate in plan.variations() {
        let trial = Plan { count, ..candidate };
        for _ in 0..3 {
            let ours = stream(setup, &trial).map_or(u64::MAX, |measured| measured.elapsed_ns);
            let theirs = u64::from_le_bytes(setup.exchange(&ours.to_le_bytes())?);
            // Either clock would do, but the two sides must agree.
            let worse = ours.max(theirs);
            if worse != u64::MAX && best.is_none_or(|(ns, _)| worse < ns) {
                best = Some((worse, candidate));
            }
        }
    }
    best.map(|(_, plan)| plan).ok_or_else(|| io::Error::other("no stream runs over this path"))
}

impl Plan {
    /// The parameters that matter: window and calls; a small buffer prefers small packets, and a path that
    /// carries large datagrams may still prefer small ones.
    fn variations(&self) -> Vec<Plan> {
        let batches = if self.gso { [1, 4] } else { [4, 16] };
        let mut all = vec![Plan { window: 128 << 10, packet: 32 << 10, ..*self }];
        for window in [256 << 10, 512 << 10, 1 << 20, 2 << 20] {
            all.extend(batches.map(|batch| Plan { window, batch, ..*self }));
        }
        if self.gso {
            all.extend([1_472, 8_972].map(|datagram| Plan { datagram: Some(datagram), ..*self }));
        }
        all
    }
}

struct Writer {
    pattern: Pattern,
    /// The first message that was never written.
    next: u64,
}

impl Source for Writer {
    fn write(&mut self, number: u64, buf: &mut [u8]) {
        if number < self.next {
            self.pattern.write_again(number, 0, buf);
        } else {
            self.pattern.write(number, buf);
            self.next = number + 1;
        }
    }
}

/// Copies bytes to their place in the user's message, and reads each message when it is complete.
struct Copier {
    pattern: Pattern,
    message: Vec<u8>,
    /// The first message that was never complete.
    next: u64,
    unread: bool,
    /// Why the next message is not what was sent.
    wrong: Option<io::Error>,
}

impl Copier {
    fn complete(&mut self, number: u64) {
        // A message that comes again after a loss counts once; one behind a gap comes again.
        if number != self.next {
            return;
        }
        let done = if self.unread {
            self.pattern.check_ends(number, &self.message)
        } else {
            self.pattern.check(number, &self.message)
        };
        self.next += u64::from(done.is_ok());
        // A message with misplaced bytes comes again, too.
        self.wrong = done.err();
    }
}

impl Sink for Copier {
    fn take(&mut self, mut position: u64, mut bytes: &[u8]) {
        let len = self.message.len();
        while !bytes.is_empty() {
            let at = (position % len as u64) as usize;
            let (piece, rest) = bytes.split_at(bytes.len().min(len - at));
            self.message[at..at + piece.len()].copy_from_slice(piece);
            position += piece.len() as u64;
            bytes = rest;
            if position.is_multiple_of(len as u64) {
                self.complete(position / len as u64 - 1);
            }
        }
    }

    fn arrived(&mut self, position: u64) -> io::Result<()> {
        if position < (self.next + 1) * self.message.len() as u64 {
            return Ok(());
        }
        self.wrong.take().map_or(Ok(()), Err)
    }
}
