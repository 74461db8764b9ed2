//! Receiving: datagrams into the caller's buffers, and coalesced trains cut into frames.

use std::io;
use std::os::fd::AsFd;

use super::Udp;
use crate::RxBatch;
use crate::batch::{RxFrame, TRAIN_MAX};
use crate::sys::{self, Errno, Received, RxVectors};

/// How much more is asked for when a receive was filled.
const APPETITE_GROWTH: usize = 8;
/// How often a receive is tried again after an error that says nothing about receiving.
const RECV_RETRIES: usize = 4;
/// So many datagrams at once are a burst, which coalescing makes cheaper.
const BURST: usize = 4;
/// So many datagrams in a row of which none was coalesced: coalescing costs more than it brings.
const QUIET_AFTER: u32 = 1_024;
/// So many receives after coalescing was switched off still look for trains: far longer than a datagram takes from
/// the kernel's look at the switch to the socket's queue.
const SETTLE_RECEIVES: u32 = 1_024;

/// How to receive next.
///
/// Measured on loopback (Linux 6.18, best of six runs): a poll that finds nothing costs 160 ns by `recvfrom`, 220 by `recvmsg` with
/// room for control messages, 230 by `recvmmsg` with eight buffers; one that finds 8 B costs 80, 110 (`recvmmsg` with one buffer) and
/// 220 ns more by the others than by `recvfrom`, which is what a ping-pong over a bare socket uses. But without control messages a
/// train of coalesced frames cannot be told from one frame. So coalescing is on only while there are bursts, `recvfrom` is used
/// only while it is off, and `recvmmsg` only when the receive before found something.
pub(super) struct Intake {
    vectors: RxVectors,
    /// How many datagrams the next receive asks for.
    appetite: usize,
    mode: Mode,
    /// The system can coalesce, and may.
    can_join: bool,
    /// Frames shall come with their source.
    pub(super) sources: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The kernel joins nothing.
    Plain,
    /// The kernel was told to join no more; what it joined before may still come.
    Settling { receives: u32 },
    /// The kernel joins; so many datagrams came singly since the last train.
    Joining { singles: u32 },
}

impl Intake {
    pub(super) fn new(can_join: bool, batch: usize) -> Intake {
        let vectors = RxVectors::new(batch);
        Intake { vectors, appetite: 1, mode: Mode::Plain, can_join, sources: true }
    }
}

impl Udp {
    /// Takes what has arrived.
    #[inline]
    pub(super) fn receive(&mut self, batch: &mut RxBatch) -> io::Result<usize> {
        batch.clear();
        self.counters.receive_calls += 1;
        if self.intake.appetite == 1 && self.intake.mode == Mode::Plain && !batch.buffers.is_empty() {
            match sys::receive_from(self.socket.as_fd(), &mut batch.buffers[0], self.intake.sources) {
                Ok(received) => {
                    self.intake.appetite = APPETITE_GROWTH.min(self.intake.vectors.capacity());
                    self.accept(batch, 0, received);
                    Ok(batch.frames.len())
                }
                Err(Errno::AGAIN) => Ok(0),
                Err(errno) => self.receive_failed(batch, errno),
            }
        } else {
            self.receive_many(batch)
        }
    }

    fn receive_many(&mut self, batch: &mut RxBatch) -> io::Result<usize> {
        let asked = self.intake.appetite.min(batch.buffers.len());
        match self.intake.vectors.receive(self.socket.as_fd(), &mut batch.buffers[..asked]) {
            Ok(got) => {
                if got == asked {
                    self.intake.appetite = (asked * APPETITE_GROWTH).clamp(1, self.intake.vectors.capacity());
                }
                for index in 0..got {
                    let received = self.intake.vectors.received(index);
                    self.accept(batch, index, received);
                }
                self.review_mode(got, batch.frames.len());
                Ok(batch.frames.len())
            }
            Err(Errno::AGAIN) => {
                self.intake.appetite = 1;
                self.review_mode(0, 0);
                Ok(0)
            }
            Err(errno) => self.receive_failed(batch, errno),
        }
    }

    #[cold]
    fn receive_failed(&mut self, batch: &mut RxBatch, mut errno: Errno) -> io::Result<usize> {
        for _ in 0..RECV_RETRIES {
            match errno {
                Errno::AGAIN => return Ok(0),
                // Echoes of what was sent earlier, reported to whoever calls next.
                Errno::INTR
                | Errno::CONNREFUSED
                | Errno::HOSTUNREACH
                | Errno::NETUNREACH
                | Errno::MSGSIZE => {}
                // Memory comes back; what waits in the socket waits on.
                Errno::NOMEM | Errno::NOBUFS => return Ok(0),
                _ => break,
            }
            self.counters.receive_calls += 1;
            match self.intake.vectors.receive(self.socket.as_fd(), &mut batch.buffers[..1]) {
                Ok(_) => {
                    let received = self.intake.vectors.received(0);
                    self.accept(batch, 0, received);
                    return Ok(batch.frames.len());
                }
                Err(next) => errno = next,
            }
        }
        if errno == Errno::AGAIN { Ok(0) } else { Err(errno.into()) }
    }

    /// Notes the frames of one datagram.
    #[inline]
    fn accept(&mut self, batch: &mut RxBatch, index: usize, received: Received) {
        if received.truncated {
            self.counters.receive_overflows += 1;
            return;
        }
        batch.sources[index] = received.source;
        let frames = if received.segment == 0 || received.segment >= received.len {
            // Not even a byte is not a frame.
            if received.len == 0 {
                return;
            }
            batch.frames.push(RxFrame { buffer: index as u32, start: 0, len: received.len as u32 });
            1
        } else {
            accept_train(batch, index, received)
        };
        self.counters.frames_received += frames;
        self.counters.bytes_received += received.len as u64;
    }

    /// Decides whether the kernel shall join frames, from what a receive found.
    fn review_mode(&mut self, datagrams: usize, frames: usize) {
        self.intake.mode = match self.intake.mode {
            Mode::Plain if datagrams >= BURST && self.intake.can_join => self.switch(true),
            Mode::Plain => Mode::Plain,
            Mode::Settling { .. } if datagrams >= BURST => self.switch(true),
            Mode::Settling { receives: SETTLE_RECEIVES.. } => Mode::Plain,
            Mode::Settling { receives } => Mode::Settling { receives: receives + 1 },
            Mode::Joining { .. } if frames > datagrams => Mode::Joining { singles: 0 },
            Mode::Joining { singles: QUIET_AFTER.. } => self.switch(false),
            Mode::Joining { singles } => Mode::Joining { singles: singles + datagrams as u32 },
        };
    }

    #[cold]
    fn switch(&mut self, join: bool) -> Mode {
        match (sys::set_gro(self.socket.as_fd(), join), join) {
            (Ok(()), true) => Mode::Joining { singles: 0 },
            (Ok(()), false) => Mode::Settling { receives: 0 },
            // It could be set when the device was opened; whatever happened, looking for trains is always right.
            (Err(_), _) => Mode::Joining { singles: 0 },
        }
    }
}

fn accept_train(batch: &mut RxBatch, index: usize, received: Received) -> u64 {
    let before = batch.frames.len();
    let starts = (0..received.len).step_by(received.segment).take(TRAIN_MAX);
    batch.frames.extend(starts.map(|start| RxFrame {
        buffer: index as u32,
        start: start as u32,
        len: received.segment.min(received.len - start) as u32,
    }));
    (batch.frames.len() - before) as u64
}
