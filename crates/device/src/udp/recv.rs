//! Receiving: datagrams go into the caller's buffers, and coalesced trains are split into frames.

use std::io;
use std::os::fd::AsFd;

use super::Udp;
use crate::RxBatch;
use crate::batch::{RxFrame, TRAIN_MAX};
use crate::sys::{self, Errno, Received, RxVectors};

/// The factor by which the next receive asks for more when one was filled.
const BATCH_GROWTH: usize = 8;
/// Retries after an error that does not concern receiving.
const RECV_RETRIES: usize = 4;
/// This many datagrams at once are a burst, which coalescing makes cheaper.
const BURST: usize = 2;
/// After this many consecutive datagrams that were not coalesced, coalescing costs more than it gains.
const SINGLES_MAX: u32 = 1_024;
/// This many receives after coalescing was turned off still expect trains: far longer than a datagram takes
/// from the kernel's check of the option to the socket's queue.
const DRAIN_RECEIVES: u32 = 1_024;

/// How to receive next.
///
/// Measured on loopback (Linux 6.18, best of six runs): a poll that finds nothing costs 160 ns by `recvfrom`,
/// 220 ns by `recvmsg` with room for control messages, and 230 ns by `recvmmsg` with eight buffers. One that
/// finds 8 B costs 80 ns more by `recvmsg`, 110 ns more by `recvmmsg` with one buffer, and 220 ns more with
/// eight. A ping-pong over a bare socket uses `recvfrom`, but without control messages a train of coalesced
/// frames looks like one frame. So coalescing is on only during bursts, `recvfrom` is used only while it is
/// off, and `recvmmsg` only if the last receive found something.
pub(super) struct RxState {
    vectors: RxVectors,
    /// The number of datagrams that the next receive asks for.
    wanted: usize,
    mode: Mode,
    /// The system can coalesce, and the configuration allows it.
    can_coalesce: bool,
    /// Frames are received with their source.
    pub(super) sources: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The kernel does not coalesce.
    Single,
    /// The kernel no longer coalesces; earlier trains may still arrive.
    Draining { receives: u32 },
    /// The kernel coalesces; `singles` datagrams arrived singly since the last train.
    Coalescing { singles: u32 },
}

impl RxState {
    pub(super) fn new(can_coalesce: bool, batch: usize) -> RxState {
        let vectors = RxVectors::new(batch);
        RxState { vectors, wanted: 1, mode: Mode::Single, can_coalesce, sources: true }
    }
}

impl Udp {
    /// Receives what has arrived.
    #[inline]
    pub(super) fn receive(&mut self, batch: &mut RxBatch) -> io::Result<usize> {
        batch.clear();
        self.counters.receive_calls += 1;
        if self.rx.wanted == 1 && self.rx.mode == Mode::Single && !batch.buffers.is_empty() {
            match sys::receive_from(self.socket.as_fd(), &mut batch.buffers[0], self.rx.sources) {
                Ok(received) => {
                    self.rx.wanted = BATCH_GROWTH.min(self.rx.vectors.capacity());
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
        let asked = self.rx.wanted.min(batch.buffers.len());
        match self.rx.vectors.receive(self.socket.as_fd(), &mut batch.buffers[..asked]) {
            Ok(got) => {
                if got == asked {
                    self.rx.wanted = (asked * BATCH_GROWTH).clamp(1, self.rx.vectors.capacity());
                }
                for index in 0..got {
                    let received = self.rx.vectors.received(index);
                    self.accept(batch, index, received);
                }
                self.update_mode(got, batch.frames.len());
                Ok(batch.frames.len())
            }
            Err(Errno::AGAIN) => {
                self.rx.wanted = 1;
                self.update_mode(0, 0);
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
                // Errors of earlier sends, reported by the next call on the socket.
                Errno::INTR
                | Errno::CONNREFUSED
                | Errno::HOSTUNREACH
                | Errno::NETUNREACH
                | Errno::MSGSIZE => {}
                // Memory will be available again; the datagrams stay in the socket.
                Errno::NOMEM | Errno::NOBUFS => return Ok(0),
                _ => break,
            }
            self.counters.receive_calls += 1;
            match self.rx.vectors.receive(self.socket.as_fd(), &mut batch.buffers[..1]) {
                Ok(_) => {
                    let received = self.rx.vectors.received(0);
                    self.accept(batch, 0, received);
                    return Ok(batch.frames.len());
                }
                Err(next) => errno = next,
            }
        }
        if errno == Errno::AGAIN { Ok(0) } else { Err(errno.into()) }
    }

    /// Adds the frames of one datagram to the batch.
    #[inline]
    fn accept(&mut self, batch: &mut RxBatch, index: usize, received: Received) {
        if received.truncated {
            self.counters.receive_overflows += 1;
            return;
        }
        batch.sources[index] = received.source;
        let frames = if received.segment == 0 || received.segment >= received.len {
            // An empty datagram is not a frame.
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

    /// Decides from the result of a receive whether the kernel shall coalesce.
    fn update_mode(&mut self, datagrams: usize, frames: usize) {
        self.rx.mode = match self.rx.mode {
            Mode::Single if datagrams >= BURST && self.rx.can_coalesce => self.set_coalescing(true),
            Mode::Single => Mode::Single,
            Mode::Draining { .. } if datagrams >= BURST => self.set_coalescing(true),
            Mode::Draining { receives: DRAIN_RECEIVES.. } => Mode::Single,
            Mode::Draining { receives } => Mode::Draining { receives: receives + 1 },
            Mode::Coalescing { .. } if frames > datagrams => Mode::Coalescing { singles: 0 },
            Mode::Coalescing { singles: SINGLES_MAX.. } => self.set_coalescing(false),
            Mode::Coalescing { singles } => Mode::Coalescing { singles: singles + datagrams as u32 },
        };
    }

    #[cold]
    fn set_coalescing(&mut self, on: bool) -> Mode {
        match (sys::set_gro(self.socket.as_fd(), on), on) {
            (Ok(()), true) => Mode::Coalescing { singles: 0 },
            (Ok(()), false) => Mode::Draining { receives: 0 },
            // The option could be set when the device was opened. Whatever happened, expecting trains is
            // always correct.
            (Err(_), _) => Mode::Coalescing { singles: 0 },
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
