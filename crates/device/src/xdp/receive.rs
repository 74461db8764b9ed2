//! Receiving: frames are read where the kernel put them, and lent to the batch (D-10). While nothing arrives,
//! a receive only reads memory.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::Xdp;
use super::headers::{FrameError, Mac, Parsed, Sender, parse};
use super::neighbour;
use crate::sys::ReceivedChunk;
use crate::{Datagram, RxBatch};

/// Frames of one receive: bounds a poll (N-3).
const FRAMES: usize = 64;
/// One of this many receives that find nothing checks the clock, and perhaps the program. Few, because a
/// program that sleeps receives seldom.
const CHECK_RECEIVES: u32 = 4;

/// Polls of the rings per poll of everything else, while nothing arrives: a waiting program waits for the
/// rings, and the time between two polls adds to each message's latency.
const RING_POLLS: u32 = 8;

/// Consecutive frames with few doorbells between them that make a stream, and the most that are counted.
const STREAM: u32 = 16;
const STREAK_MAX: u32 = 64;
/// The frames of a stream that one doorbell cancels: fewer than one acknowledgement covers, so that
/// acknowledgements do not end a stream.
pub(super) const DOORBELL_WEIGHT: u32 = 16;
/// How long a receiver that has caught up with a stream pauses.
const PAUSE_SPINS: u32 = 12;

/// Lets the kernel get ahead with a stream. A receiver that polls the kernel's word without a pause makes its
/// cache line move between the cores for every frame.
#[cold]
fn pause() {
    for _ in 0..PAUSE_SPINS {
        std::hint::spin_loop();
    }
}

impl Xdp {
    #[inline]
    pub(super) fn receive_frames(&mut self, batch: &mut RxBatch) -> io::Result<usize> {
        self.take_back(batch);
        self.polling.poll_begins();
        if self.routing.health.gone {
            self.try_reopen();
        }
        if self.arrivals.has_events() {
            self.poll_events();
        }
        if self.arrivals.has_datagrams(|| self.rings.queues.has_frames()) {
            let count = self.udp.recv(batch)?;
            self.arrivals.note_datagrams(count > 0);
            if count > 0 {
                self.check_program(true);
                return Ok(count);
            }
        }
        if !self.rings.queues.has_frames() && (self.polling.busy || self.rings.queues.needs_rx_wakeup()) {
            self.wake_rx();
        }
        let mut refused = 0;
        while batch.frames().len() < FRAMES {
            let Some(frame) = self.rings.queues.take() else { break };
            if frame.more {
                if !self.gather(batch, frame) {
                    refused += 1;
                }
            } else if !self.accept(batch, frame) {
                refused += 1;
            }
            if self.rings.layout.slot_chunks > 1 && !batch.has_room() {
                break;
            }
        }
        let count = batch.frames().len();
        if count + refused > 0 {
            if self.polling.is_measuring() {
                self.measure();
            }
            self.polling.streak = (self.polling.streak + count as u32).min(STREAK_MAX);
            self.rings.queues.release_taken();
        } else {
            self.polling.found_nothing();
        }
        if refused > 0 {
            self.rings.queues.submit_chunks();
        }
        if count == 0 && self.arrivals.receives.is_multiple_of(CHECK_RECEIVES) {
            self.check_program(false);
        }
        Ok(count)
    }

    /// Whether there is nothing to do: no frame, no packet for a socket, no driver to wake.
    #[inline]
    pub(super) fn has_nothing(&mut self) -> bool {
        if self.polling.is_measuring() {
            self.polling.poll_begins();
            self.polling.found_nothing();
        }
        if self.polling.streak > STREAM {
            pause();
        }
        (0..RING_POLLS).all(|_| !self.rings.queues.has_frames())
            && !self.polling.busy
            && self.arrivals.is_quiet()
            && !self.rings.queues.needs_rx_wakeup()
    }

    /// Takes back the chunks of the batch, and those that other batches returned.
    #[inline]
    fn take_back(&mut self, batch: &mut RxBatch) {
        let (queues, umem) = (&mut self.rings.queues, &self.rings.umem);
        let mut any = false;
        let mut fill = |chunk| {
            any = true;
            queues.fill(chunk);
        };
        batch.take_back(umem, &mut fill);
        umem.take_returned(&mut fill);
        if any {
            queues.submit_chunks();
        }
    }

    #[cold]
    fn poll_events(&mut self) {
        self.poll_table_changes();
        self.attached.answer_requests();
    }

    #[cold]
    fn wake_rx(&mut self) {
        if self.rings.loses_doorbell() {
            return;
        }
        self.statistics.counters.receive_calls += 1;
        self.rings.queues.wake_rx();
    }

    #[cold]
    fn measure(&mut self) {
        if let Some([kernel, caller]) = self.polling.frame_received(&self.rings.queues) {
            self.routing.report_direct_routes(&format!(
                "busy polled from now on, which is faster here: an answer takes {caller} ns, and {kernel} ns if the kernel moves frames"
            ));
        }
    }

    /// Lends a frame to the batch. Returns false if it is malformed.
    #[inline]
    fn accept(&mut self, batch: &mut RxBatch, frame: ReceivedChunk) -> bool {
        match parse(frame.bytes(&self.rings.umem)) {
            Ok(Parsed { start, end, from }) => {
                let source = self.source(from);
                self.statistics.counters.frames_received += 1;
                self.statistics.counters.bytes_received += (end - start) as u64;
                batch.lend(&self.rings.umem, frame, (start, end), source);
                true
            }
            Err(error) => {
                self.statistics.refuse(error);
                self.rings.queues.fill(frame.into_chunk());
                false
            }
        }
    }

    /// Copies a frame that lies in several chunks into a buffer of the batch: the only copy on this path.
    #[cold]
    fn gather(&mut self, batch: &mut RxBatch, first: ReceivedChunk) -> bool {
        let mut whole = Vec::with_capacity(self.rings.layout.stride() + self.rings.layout.chunk);
        let mut next = Some(first);
        while let Some(part) = next {
            whole.extend_from_slice(part.bytes(&self.rings.umem));
            let more = part.more;
            self.rings.queues.fill(part.into_chunk());
            next = if more { self.rings.queues.take_rest() } else { None };
        }
        self.rings.queues.submit_chunks();
        match parse(&whole) {
            Ok(Parsed { start, end, from }) => {
                let source = self.source(from);
                self.statistics.counters.frames_received += 1;
                self.statistics.counters.bytes_received += (end - start) as u64;
                batch.push_from(source, &whole[start..end])
            }
            Err(error) => {
                self.statistics.refuse(error);
                false
            }
        }
    }

    /// Returns a frame's source; for a raw frame the address that belongs to its hardware address.
    #[inline]
    fn source(&mut self, from: Sender) -> Option<SocketAddr> {
        match from {
            Sender::Ip(source) => Some(source),
            Sender::Raw(mac, port) if self.sources => self.raw_source(mac, port),
            Sender::Raw(..) => None,
        }
    }

    #[cold]
    fn raw_source(&mut self, mac: Mac, port: u16) -> Option<SocketAddr> {
        let of = |senders: &[(Mac, IpAddr)]| senders.iter().find(|(m, _)| *m == mac).map(|(_, ip)| *ip);
        let routing = &mut self.routing;
        let ip = of(&routing.senders).or_else(|| {
            let v4 = self.local.is_ipv4();
            routing.senders = neighbour::neighbours(&mut routing.queries, self.point.upper.index);
            routing.senders.retain(|(_, ip)| ip.is_ipv4() == v4);
            of(&routing.senders)
        });
        ip.map(|ip| SocketAddr::new(ip, port))
    }
}

impl super::Statistics {
    #[cold]
    fn refuse(&mut self, error: FrameError) {
        match error {
            FrameError::Shape => self.refused.shape += 1,
            FrameError::Checksum => self.refused.checksum += 1,
        }
    }
}
