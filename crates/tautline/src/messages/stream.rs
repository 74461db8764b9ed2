//! The bytes of one incoming message, between arrival and handler.

use std::collections::VecDeque;
use std::task::Poll;

use tautline_node::Delivery;

use super::loan::Held;
use crate::core::Incoming;
use crate::{Error, Rank, Result};

/// Bytes of a lent message that are shown at a time: they stay in the first cache.
const PART: usize = 16 << 10;

/// Why no more bytes will come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Aborted,
    PeerGone(crate::Down),
}

/// Bytes that have arrived and not been taken: first those that had to wait, in a buffer of ours, then those of the
/// delivery that is lent to us while the handler runs.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Counts the messages that used this stream, so that a handle kept too long is noticed.
    pub(crate) generation: u64,
    pub(crate) from: Rank,
    pub(crate) incoming: Option<Incoming>,
    pub(crate) total: u64,
    pub(crate) arrived: u64,
    pub(crate) taken: u64,
    pub(crate) granted: u64,
    pub(crate) end: Option<End>,
    buffer: Vec<u8>,
    at: usize,
    lent: Option<Box<Delivery>>,
    ranges: VecDeque<(u32, u32, u32)>,
    /// All of the message, where its sender wrote it.
    pub(crate) lease: Option<Held>,
}

impl Stream {
    pub(crate) fn restart(&mut self, from: Rank, incoming: Option<Incoming>, total: u64, granted: u64) {
        self.generation += 1;
        self.from = from;
        self.incoming = incoming;
        self.total = total;
        self.arrived = 0;
        self.taken = 0;
        self.granted = granted;
        self.end = None;
        self.buffer.clear();
        self.at = 0;
        self.ranges.clear();
        self.lease = None;
    }

    /// All of the message is there, elsewhere.
    pub(crate) fn arrive_lent(&mut self, message: Held) {
        self.arrived = self.total;
        self.lease = Some(message);
    }

    /// Notes bytes of a delivery that will be lent.
    pub(crate) fn arrive(&mut self, item: usize, start: usize, len: usize) {
        self.arrived += len as u64;
        if len > 0 {
            self.ranges.push_back((item as u32, start as u32, len as u32));
        }
    }

    pub(crate) fn lend(&mut self, delivery: Box<Delivery>) {
        self.lent = Some(delivery);
    }

    /// Takes the delivery back; what the handler did not take moves to our own buffer.
    pub(crate) fn reclaim(&mut self) -> Box<Delivery> {
        let delivery = self.lent.take().expect("lent for the time that the handler runs");
        if self.at == self.buffer.len() {
            self.buffer.clear();
            self.at = 0;
        }
        for (item, start, len) in self.ranges.drain(..) {
            let bytes = &delivery.bytes(item as usize)[start as usize..][..len as usize];
            self.buffer.extend_from_slice(bytes);
        }
        delivery
    }

    /// Bytes that can be taken now.
    pub(crate) fn available(&self) -> usize {
        if self.lease.is_some() {
            return self.left() as usize;
        }
        let lent: usize = self.ranges.iter().map(|(_, _, len)| *len as usize).sum();
        self.buffer.len() - self.at + lent
    }

    pub(crate) fn left(&self) -> u64 {
        self.total - self.taken
    }

    /// Whether `want` bytes are there; an error if they will never be.
    pub(crate) fn ready(&self, want: u64) -> Poll<Result<()>> {
        if want > self.left() {
            return Poll::Ready(Err(Error::EndOfMessage { left: self.left() }));
        }
        if self.available() as u64 >= want {
            return Poll::Ready(Ok(()));
        }
        match self.end {
            None => Poll::Pending,
            Some(End::Aborted) => Poll::Ready(Err(Error::Aborted)),
            Some(End::PeerGone(why)) => Poll::Ready(Err(Error::PeerGone(self.from, why))),
        }
    }

    /// Takes up to `out.len()` bytes; returns how many.
    #[inline]
    pub(crate) fn take_into(&mut self, out: &mut [u8]) -> usize {
        if let Some(lent) = &self.lease {
            let take = out.len().min(self.left() as usize);
            if !lent.copy_to(self.taken as usize, &mut out[..take]) {
                self.lose();
                return 0;
            }
            self.taken += take as u64;
            return take;
        }
        let mut at = 0;
        self.take(out.len(), |part| {
            out[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        })
    }

    /// The sender died with the message.
    #[cold]
    fn lose(&mut self) {
        self.lease = None;
        self.end = Some(End::PeerGone(crate::Down::Exited));
    }

    /// As [`Stream::take`], of a message that was lent.
    #[cold]
    fn take_lent(&mut self, max: usize, mut part: impl FnMut(&[u8])) -> usize {
        let most = max.min(self.left() as usize);
        let mut done = 0;
        let mut buffer = std::mem::take(&mut self.buffer);
        while done < most {
            buffer.resize(PART.min(most - done), 0);
            if self.lease.is_none() || self.take_into(&mut buffer) == 0 {
                break;
            }
            done += buffer.len();
            part(&buffer);
        }
        buffer.clear();
        self.buffer = buffer;
        done
    }

    /// Takes up to `max` bytes in as few parts as they lie in, oldest first; returns how many were taken.
    pub(crate) fn take(&mut self, max: usize, mut part: impl FnMut(&[u8])) -> usize {
        if self.lease.is_some() {
            return self.take_lent(max, part);
        }
        let mut done = 0;
        let waiting = (self.buffer.len() - self.at).min(max);
        if waiting > 0 {
            part(&self.buffer[self.at..self.at + waiting]);
            self.at += waiting;
            done = waiting;
        }
        while done < max {
            let (Some(range), Some(delivery)) = (self.ranges.front_mut(), self.lent.as_ref()) else { break };
            let (item, start, len) = *range;
            let take = (len as usize).min(max - done);
            part(&delivery.bytes(item as usize)[start as usize..][..take]);
            if take == len as usize {
                self.ranges.pop_front();
            } else {
                *range = (item, start + take as u32, len - take as u32);
            }
            done += take;
        }
        self.taken += done as u64;
        done
    }

    /// The window to grant now, if the handler has taken enough to make it worth a slot (M-5).
    pub(crate) fn window_due(&mut self, window: u64, finished: bool) -> Option<(Incoming, u64)> {
        if self.granted >= self.total {
            return None;
        }
        let used = if finished { self.arrived } else { self.taken };
        let limit = (used + window).min(self.total);
        let worth = limit >= self.granted + window / 2 || limit == self.total && limit > self.granted;
        if !worth {
            return None;
        }
        self.granted = limit;
        Some((self.incoming?, limit))
    }
}
