//! The channel of a process to itself: frames are popped from the same object, on the same thread.

use crate::{Channel, PushError};

/// Bytes before each frame, for its length.
const LENGTH: usize = 4;

/// A ring of frames in private memory, allocated once. If it runs empty between messages, it stays in the
/// same few cache lines.
#[derive(Debug)]
pub struct Loopback {
    ring: Box<[u8]>,
    max_frame: usize,
    /// Where the oldest frame starts.
    head: usize,
    /// Bytes in use, with lengths.
    used: usize,
    closed: bool,
}

impl Loopback {
    /// Creates a channel for frames of up to `max_frame` bytes, with room for at least `frames` of that size.
    ///
    /// # Panics
    /// If either is zero, or a frame's length does not fit 32 bits.
    pub fn new(max_frame: usize, frames: usize) -> Loopback {
        assert!(max_frame > 0 && frames > 0 && u32::try_from(max_frame).is_ok());
        let ring = vec![0; (LENGTH + max_frame) * frames].into_boxed_slice();
        Loopback { ring, max_frame, head: 0, used: 0, closed: false }
    }

    /// Whether there is nothing to pop.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]) {
        let mut at = self.head + self.used;
        if at >= self.ring.len() {
            at -= self.ring.len();
        }
        let first = bytes.len().min(self.ring.len() - at);
        self.ring[at..at + first].copy_from_slice(&bytes[..first]);
        self.ring[..bytes.len() - first].copy_from_slice(&bytes[first..]);
        self.used += bytes.len();
    }

    /// Removes the oldest bytes.
    fn get(&mut self, out: &mut [u8]) {
        let first = out.len().min(self.ring.len() - self.head);
        let (start, rest) = out.split_at_mut(first);
        start.copy_from_slice(&self.ring[self.head..self.head + first]);
        rest.copy_from_slice(&self.ring[..rest.len()]);
        self.used -= out.len();
        self.head += out.len();
        if self.head >= self.ring.len() {
            self.head -= self.ring.len();
        }
    }
}

impl Channel for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn max_frame(&self) -> usize {
        self.max_frame
    }

    fn room(&mut self) -> usize {
        if self.closed { 0 } else { (self.ring.len() - self.used) / (LENGTH + self.max_frame) }
    }

    fn push(&mut self, head: &[u8], body: &[u8]) -> Result<(), PushError> {
        let len = head.len() + body.len();
        if self.closed {
            return Err(PushError::Closed);
        }
        if len > self.max_frame {
            return Err(PushError::TooLong);
        }
        if LENGTH + len > self.ring.len() - self.used {
            return Err(PushError::Full);
        }
        self.put(&(len as u32).to_le_bytes());
        self.put(head);
        self.put(body);
        Ok(())
    }

    fn flush(&mut self) {}

    fn pop(&mut self, out: &mut [u8]) -> Option<usize> {
        assert!(out.len() >= self.max_frame, "a frame may have {} bytes", self.max_frame);
        if self.used == 0 {
            return None;
        }
        let mut len = [0; LENGTH];
        self.get(&mut len);
        let len = u32::from_le_bytes(len) as usize;
        self.get(&mut out[..len]);
        if self.used == 0 {
            self.head = 0;
        }
        Some(len)
    }

    fn close(&mut self) {
        self.closed = true;
    }

    fn is_finished(&mut self) -> bool {
        self.closed && self.used == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// The channel behaves as a `VecDeque`.
    #[test]
    fn behaves_like_a_queue() {
        let mut channel = Loopback::new(50, 3);
        let mut oracle: VecDeque<Vec<u8>> = VecDeque::new();
        let mut out = [0; 50];
        let mut state = 7_u64;
        for step in 0..20_000_u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let len = (state >> 33) as usize % 52;
            let frame: Vec<u8> = (0..len).map(|i| (i as u32 + step) as u8).collect();
            if state >> 62 < 2 {
                let (head, body) = frame.split_at(len / 3);
                let room = channel.room();
                match channel.push(head, body) {
                    Ok(()) => oracle.push_back(frame),
                    Err(PushError::TooLong) => assert!(len > 50),
                    Err(PushError::Full) => assert_eq!(room, 0),
                    Err(PushError::Closed) => panic!("it was not closed"),
                }
            } else {
                let got = channel.pop(&mut out).map(|len| out[..len].to_vec());
                assert_eq!(got, oracle.pop_front());
            }
        }
    }
}
