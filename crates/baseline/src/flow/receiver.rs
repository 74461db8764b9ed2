//! The receiving side: finds the packets in what the kernel delivers, acknowledges, and reports gaps.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::net::SendFlags;

use super::{Ack, END, Shape, Sink, is_transient, u64_at};
use crate::cpu::{Measured, Stopwatch};
use crate::mmsg::{HEAD, Inbox};
use crate::transport::{SILENCE, SpinLimit, timed_out};
use crate::udp::UdpPair;

pub(super) struct Receiver<'a> {
    pair: &'a UdpPair,
    shape: &'a Shape,
    blocking: bool,
    /// Where the packet begins that is arriving or comes next, its length (0 until its head has arrived), and
    /// how much of it has arrived.
    next: u64,
    len: usize,
    got: usize,
    acked: u64,
    /// Where the last gap was reported, so that each is reported once.
    gap: u64,
    gaps: u64,
}

impl<'a> Receiver<'a> {
    pub(super) fn new(pair: &'a UdpPair, shape: &'a Shape, blocking: bool) -> Self {
        Self { pair, shape, blocking, next: 0, len: 0, got: 0, acked: 0, gap: u64::MAX, gaps: 0 }
    }

    pub(super) fn run(mut self, sink: &mut impl Sink) -> io::Result<Measured> {
        let mut inbox = Inbox::new(self.shape.batch);
        let total = self.shape.total();
        let mut watch = None;
        let mut received_at = Instant::now();
        while self.next < total {
            if self.fill(&mut inbox, received_at)? {
                received_at = Instant::now();
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
    fn fill(&self, inbox: &mut Inbox, received_at: Instant) -> io::Result<bool> {
        let mut spin_limit = SpinLimit::new();
        loop {
            match inbox.receive(self.pair.socket.as_fd(), self.blocking) {
                Ok(()) => return Ok(true),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && self.blocking => {
                    return if received_at.elapsed() > SILENCE { Err(timed_out()) } else { Ok(false) };
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => spin_limit.spin()?,
                Err(e) => return Err(e),
            }
        }
    }

    fn take(&mut self, inbox: &Inbox, sink: &mut impl Sink) -> io::Result<()> {
        let mut stale = false;
        for run in inbox.runs() {
            stale |= self.take_run(run, sink)?;
        }
        if stale || self.next == self.shape.total() {
            self.acknowledge(false)?;
        }
        Ok(())
    }

    /// Takes one datagram, or a run of them; returns whether it was an old one.
    fn take_run(&mut self, run: &[u8], sink: &mut impl Sink) -> io::Result<bool> {
        if self.len > 0 && self.is_interrupted_by(run) {
            self.len = 0;
        }
        let mut rest = run;
        while !rest.is_empty() {
            if self.len == 0 {
                let Some((position, len)) = head(rest) else { return Ok(false) };
                if position < self.next || position == END {
                    return Ok(true);
                }
                if position > self.next || len == 0 || len > self.shape.total() - self.next {
                    self.report_gap()?;
                    return Ok(false);
                }
                (self.len, self.got) = (len as usize, 0);
                rest = &rest[HEAD..];
            }
            let (bytes, behind) = rest.split_at(rest.len().min(self.len - self.got));
            sink.take(self.next + self.got as u64, bytes);
            self.got += bytes.len();
            rest = behind;
            if self.got == self.len {
                self.next += self.len as u64;
                self.len = 0;
                sink.arrived(self.next)?;
                if self.next - self.acked >= self.shape.acknowledge_every() {
                    self.acknowledge(false)?;
                }
            }
        }
        Ok(false)
    }

    /// Whether this is not the rest of the current packet, but the packet again, or the one after it.
    fn is_interrupted_by(&self, run: &[u8]) -> bool {
        let after = self.next + self.len as u64;
        head(run).is_some_and(|(position, len)| {
            (position == self.next && len == self.len as u64) || (position == after && len > 0)
        })
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

    /// The last acknowledgement may be lost too: answers until the sender confirms it, or gives up.
    fn linger(&mut self, inbox: &mut Inbox) {
        let since = Instant::now();
        while since.elapsed() < SILENCE {
            match inbox.receive(self.pair.socket.as_fd(), true) {
                Ok(()) => {
                    let end = |run: &[u8]| head(run).is_some_and(|(position, _)| position == END);
                    if inbox.runs().any(end) || self.acknowledge(false).is_err() {
                        return;
                    }
                }
                Err(e) if is_transient(&e) => {}
                Err(_) => return,
            }
        }
    }
}

/// Position and length at the front of a packet.
fn head(bytes: &[u8]) -> Option<(u64, u64)> {
    (bytes.len() >= HEAD).then(|| (u64_at(bytes, 0), u64_at(bytes, 8)))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::mmsg::Cut;

    const PACKET: usize = 100;

    /// Copies bytes to their place.
    struct CopySink(Vec<u8>);

    impl Sink for CopySink {
        fn take(&mut self, position: u64, bytes: &[u8]) {
            self.0[position as usize..][..bytes.len()].copy_from_slice(bytes);
        }

        fn arrived(&mut self, _position: u64) -> io::Result<()> {
            Ok(())
        }
    }

    fn packet(number: u8) -> Vec<u8> {
        let position = u64::from(number) * PACKET as u64;
        [&position.to_le_bytes()[..], &(PACKET as u64).to_le_bytes(), &[number; PACKET]].concat()
    }

    /// Feeds runs to a receiver of three packets; returns how many gaps it saw, once all bytes are in place.
    fn receive(runs: &[&[u8]]) -> u64 {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(peer.local_addr().unwrap()).unwrap();
        let pair = UdpPair { socket, payload_max: 1472, peer_rcvbuf: 1 << 16 };
        let cut = Cut { datagram: PACKET + HEAD, per_packet: 1 };
        let shape = Shape { message: 3 * PACKET, count: 1, cut, gso: true, batch: 1, window: 1 << 16 };
        let mut sink = CopySink(vec![0xEE; 3 * PACKET]);
        let mut receiver = Receiver::new(&pair, &shape, false);
        for run in runs {
            receiver.take_run(run, &mut sink).unwrap();
        }
        assert_eq!(receiver.next, shape.total());
        assert!((0..3).all(|n| sink.0[n * PACKET..][..PACKET] == [n as u8; PACKET]));
        receiver.gaps
    }

    #[test]
    fn packets_may_be_whole_split_or_joined() {
        let (a, b, c) = (packet(0), packet(1), packet(2));
        assert_eq!(receive(&[&a, &b, &c]), 0);
        assert_eq!(receive(&[&a[..40], &a[40..], &b[..HEAD], &b[HEAD..], &c]), 0);
        assert_eq!(receive(&[&[a.clone(), b[..50].to_vec()].concat(), &[b[50..].to_vec(), c].concat()]), 0);
    }

    #[test]
    fn a_lost_packet_is_resent() {
        let (a, b, c) = (packet(0), packet(1), packet(2));
        assert_eq!(receive(&[&a, &c, &c, &b, &c]), 1);
        assert_eq!(receive(&[&a, &a, &b, &b, &c]), 0);
    }

    #[test]
    fn a_packet_with_a_lost_part_is_resent() {
        let (a, b, c) = (packet(0), packet(1), packet(2));
        // The end is missing; the middle is missing; the packet is resent before its rest is known to be
        // missing.
        assert_eq!(receive(&[&a, &b[..60], &c, &b, &c]), 1);
        assert_eq!(receive(&[&a[..40], &a[60..], &b, &a, &b, &c]), 1);
        assert_eq!(receive(&[&a[..40], &a, &b, &c]), 0);
    }

    #[test]
    fn strays_are_ignored() {
        let (a, b, c) = (packet(0), packet(1), packet(2));
        let far = [&0_u64.to_le_bytes()[..], &u64::MAX.to_le_bytes(), &[1; 50]].concat();
        assert_eq!(receive(&[&far, &[1; 3], &a, &[0xFF; HEAD], &b, &c]), 1);
    }
}
