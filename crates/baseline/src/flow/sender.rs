//! The sending side: fills the window, takes acknowledgements, goes back after a loss.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::net::{RecvFlags, SendFlags};

use super::{Ack, RESEND, Shape, Source, is_transient, u64_at};
use crate::cpu::{Measured, Stopwatch};
use crate::mmsg::{HEAD, Outbox};
use crate::transport::{SILENCE, SpinLimit, timed_out};
use crate::udp::UdpPair;

/// Bytes of messages that are made together.
const GROUP: u64 = 192 << 10;

pub(super) struct Sender<'a> {
    pair: &'a UdpPair,
    shape: &'a Shape,
    blocking: bool,
    outbox: Outbox,
    sent: u64,
    acked: u64,
    /// When the receiver last made progress, and when we last reacted to its silence.
    progress_at: Instant,
    resent: Instant,
    drops: u64,
}

impl<'a> Sender<'a> {
    pub(super) fn new(pair: &'a UdpPair, shape: &'a Shape, blocking: bool) -> Self {
        Self {
            pair,
            shape,
            blocking,
            outbox: Outbox::default(),
            sent: 0,
            acked: 0,
            progress_at: Instant::now(),
            resent: Instant::now(),
            drops: 0,
        }
    }

    pub(super) fn run(mut self, source: &mut impl Source) -> io::Result<Measured> {
        let (total, message) = (self.shape.total(), self.shape.message as u64);
        // Messages of several packets are made before they are sent: sent one by one, each would end in a
        // small packet, and the stream would be no limit.
        let together = (GROUP / message).max(1);
        let group = together * message;
        let mut buf = vec![0; group as usize];
        let mut held = u64::MAX;
        let watch = Stopwatch::start();
        while self.acked < total {
            while self.sent < total && self.room() > 0 {
                let number = self.sent / group;
                let end = group.min(total - number * group) as usize;
                if number != held {
                    for (i, one) in (0..).zip(buf[..end].chunks_mut(self.shape.message)) {
                        source.write(number * together + i, one);
                    }
                    held = number;
                }
                let from = (self.sent % group) as usize;
                if !self.push(&buf[from..end])? {
                    break;
                }
            }
            self.take_acknowledgements()?;
        }
        let measured = watch.stop(self.shape.count, total, self.drops);
        for _ in 0..3 {
            // The receiver may be gone after the first.
            let _ = rustix::net::send(&self.pair.socket, &[0xFF; HEAD], SendFlags::empty());
        }
        Ok(measured)
    }

    /// How many bytes may be sent now: whole packets only, so that a window never ends in a small packet.
    fn room(&self) -> usize {
        let free = self.shape.window.saturating_sub((self.sent - self.acked) as usize);
        let packet = self.shape.cut.packet();
        if self.sent == self.acked { free.max(packet) } else { free / packet * packet }
    }

    /// Sends what there is room for; `false` if the kernel has no room now.
    fn push(&mut self, rest: &[u8]) -> io::Result<bool> {
        let most = self.room().min(self.shape.batch * self.shape.cut.packet());
        let bytes = &rest[..rest.len().min(most)];
        match self.outbox.send(self.pair.socket.as_fd(), self.sent, bytes, self.shape.cut, self.blocking) {
            Ok(n) => self.sent += n as u64,
            Err(e) if is_transient(&e) => return Ok(false),
            Err(e) => return Err(e),
        }
        Ok(true)
    }

    /// Takes all acknowledgements that are there and, if the window is full, waits for one.
    fn take_acknowledgements(&mut self) -> io::Result<()> {
        let mut spin_limit = SpinLimit::new();
        loop {
            let mut ack: Ack = [0; 16];
            let flags = if self.blocking { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
            match rustix::net::recv(&self.pair.socket, &mut ack, flags) {
                Ok((_, 16)) => return self.accept(ack),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) if self.blocking => return self.start_again(),
                Err(rustix::io::Errno::AGAIN) => {
                    spin_limit.spin()?;
                    if spin_limit.is_checkpoint() && self.progress_at.max(self.resent).elapsed() > RESEND {
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
            self.progress_at = Instant::now();
        }
        self.acked = self.acked.max(next);
        self.sent = self.sent.max(self.acked);
        if u64_at(&ack, 8) != 0 && next == self.acked && self.sent > self.acked {
            self.drops += 1;
            self.sent = self.acked;
        }
        Ok(())
    }

    /// Nothing arrived for a while: data or acknowledgements were lost, or the receiver does not run.
    fn start_again(&mut self) -> io::Result<()> {
        if self.progress_at.elapsed() > SILENCE {
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
