//! A wire made of memory, for the programs that count instructions: no system call, no loss, no delay.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use tautline_node::device::{Arena, Counters, Datagram, DeviceEvent, RouteId, RxBatch, SlotId};

/// Frames under way in one direction, and buffers for further ones.
#[derive(Default)]
struct Way {
    frames: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

type Queue = Arc<Mutex<Way>>;

/// One end of the wire. Like a socket, each end copies a frame once.
pub struct Wire {
    arena: Arena,
    addr: SocketAddr,
    peer: SocketAddr,
    out: Queue,
    input: Queue,
}

/// Both ends of a wire, at these addresses.
pub fn wires(addrs: [SocketAddr; 2]) -> [Wire; 2] {
    let queues: [Queue; 2] = Default::default();
    [0, 1].map(|end: usize| Wire {
        arena: Arena::new(1024, 1472),
        addr: addrs[end],
        peer: addrs[1 - end],
        out: queues[end].clone(),
        input: queues[1 - end].clone(),
    })
}

impl Datagram for Wire {
    fn name(&self) -> &'static str {
        "wire"
    }
    fn local_addr(&self) -> SocketAddr {
        self.addr
    }
    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }
    fn arena_ref(&self) -> &Arena {
        &self.arena
    }
    fn route(&mut self, _: SocketAddr) -> std::io::Result<RouteId> {
        Ok(RouteId(0))
    }
    fn max_frame(&self, _: RouteId) -> usize {
        1472
    }
    fn send(&mut self, _: RouteId, slot: SlotId, range: Range<usize>) {
        let mut out = self.out.lock().unwrap();
        let mut frame = out.spare.pop().unwrap_or_default();
        frame.clear();
        frame.extend_from_slice(self.arena.bytes(slot, range));
        out.frames.push_back(frame);
    }
    fn flush(&mut self) {}
    fn recv(&mut self, batch: &mut RxBatch) -> std::io::Result<usize> {
        batch.clear();
        let mut input = self.input.lock().unwrap();
        let Way { frames, spare } = &mut *input;
        while let Some(frame) = frames.front() {
            if !batch.push(self.peer, frame) {
                break;
            }
            spare.extend(frames.pop_front());
        }
        Ok(batch.frames().len())
    }
    fn receive_buffer(&self) -> usize {
        1 << 20
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn poll_event(&mut self) -> Option<DeviceEvent> {
        None
    }
    fn counters(&self) -> Counters {
        Counters::default()
    }
}
