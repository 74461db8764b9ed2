//! The bytes of one incoming message, between arrival and handler.

use std::collections::VecDeque;
use std::task::Poll;

use tautline_node::Delivery;

use super::loan::Held;
use crate::{Error, Rank, Result};
use tautline_node::MessageId;

/// Bytes of a lent message that are shown at a time: they stay in the first cache.
const PART: usize = 16 << 10;

/// Why no more bytes will come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Aborted,
    /// It can no longer be read where its sender has it.
    Lost,
    PeerGone(crate::Down),
}

/// Bytes that have arrived and not been taken: first those that had to wait, in a buffer of ours, then those of the
/// delivery that is lent to us while the handler runs.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Counts the messages that used this stream, so that a handle kept too long is noticed.
    pub(crate) generation: u64,
    pub(crate) from: Rank,
    pub(crate) incoming: Option<MessageId>,
    pub(crate) total: u64,
    pub(crate) arrived: u64,
    pub(crate) taken: u64,
    pub(crate) granted: u64,
    /// How much is granted beyond what is taken.
    window: u64,
    pub(crate) end: Option<End>,
    buffer: Vec<u8>,
    at: usize,
    /// Where what lies elsewhere is shown from.
    shown: Vec<u8>,
    lent: Option<Box<Delivery>>,
    ranges: VecDeque<(u32, u32, u32)>,
    /// What lies where its sender wrote it, and how much of that is taken: behind what is in the buffer, and before what is in the delivery.
    held: VecDeque<(Held, usize)>,
    /// It is all of the message, and nobody else waits for it to come back.
    whole: bool,
}

impl Stream {
    pub(crate) fn restart(&mut self, from: Rank, incoming: Option<MessageId>, total: u64, window: u64) {
        self.generation += 1;
        self.from = from;
        self.incoming = incoming;
        self.total = total;
        self.arrived = 0;
        self.taken = 0;
        (self.granted, self.window) = (window, window);
        self.end = None;
        self.buffer.clear();
        self.at = 0;
        self.ranges.clear();
        self.held.clear();
        self.whole = false;
    }

    /// What is left of a message that nobody wants any more.
    pub(crate) fn rest(&self) -> Stream {
        let mut rest = Stream::default();
        rest.restart(self.from, self.incoming, self.total, self.window);
        (rest.granted, rest.arrived) = (self.granted, self.arrived);
        rest
    }

    /// Lets go of what is left of the message.
    pub(crate) fn drop_held(&mut self) {
        self.held.clear();
    }

    /// Whether bytes wait in a delivery that has not been lent yet.
    pub(crate) fn has_ranges(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// All of the message is there, elsewhere.
    pub(crate) fn arrive_whole(&mut self, held: Held) {
        self.whole = !held.is_wanted_back();
        self.arrive_held(held);
    }

    /// The handler has had its turn; what it did not take, and others wait for, moves to our own buffer.
    pub(crate) fn settle(&mut self) {
        if self.at == self.buffer.len() {
            self.buffer.clear();
            self.at = 0;
        }
        if !self.whole && !self.held.is_empty() {
            self.hold_own();
        }
    }

    /// Bytes are there, elsewhere. None wait in a delivery.
    pub(crate) fn arrive_held(&mut self, held: Held) {
        debug_assert!(self.ranges.is_empty(), "they would be overtaken");
        self.arrived += held.len();
        if held.len() > 0 || self.total == 0 {
            self.held.push_back((held, 0));
        }
    }

    /// All of the message as it was lent, if it was, and nothing of it is taken.
    pub(crate) fn take_lent(&mut self) -> Option<Held> {
        let mapped = self.held.front().is_some_and(|(held, _)| held.is_mapped());
        if !self.whole || !mapped || self.taken > 0 {
            return None;
        }
        self.taken = self.total;
        self.held.pop_front().map(|(held, _)| held)
    }

    /// All of a short message is there, and is copied: its frame is about to be used again.
    pub(crate) fn arrive_copied(&mut self, bytes: &[u8]) {
        self.arrived += bytes.len() as u64;
        self.buffer.extend_from_slice(bytes);
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
        self.settle();
        for (item, start, len) in self.ranges.drain(..) {
            let bytes = &delivery.bytes(item as usize)[start as usize..][..len as usize];
            self.buffer.extend_from_slice(bytes);
        }
        delivery
    }

    /// Bytes that can be taken now.
    pub(crate) fn available(&self) -> usize {
        let held: usize = self.held.iter().map(|(held, at)| held.len() as usize - at).sum();
        let lent: usize = self.ranges.iter().map(|(_, _, len)| *len as usize).sum();
        self.buffer.len() - self.at + held + lent
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
            Some(End::Lost) => {
                let why = "the message is gone: it can no longer be read where its sender has it";
                Poll::Ready(Err(Error::other(why)))
            }
            Some(End::PeerGone(why)) => Poll::Ready(Err(Error::PeerGone(self.from, why))),
        }
    }

    /// Parts that the handler did not take move to our own buffer: their memory is for whatever comes next, of whichever message.
    #[cold]
    fn hold_own(&mut self) {
        while let Some((held, at)) = self.held.pop_front() {
            let start = self.buffer.len();
            self.buffer.resize(start + held.len() as usize - at, 0);
            if !held.copy_to(at, &mut self.buffer[start..]) {
                self.buffer.truncate(start);
                return self.lose();
            }
        }
    }

    /// Takes up to `out.len()` bytes; returns how many.
    #[inline]
    pub(crate) fn take_into(&mut self, out: &mut [u8]) -> usize {
        let mut at = 0;
        if self.at < self.buffer.len() || self.held.is_empty() {
            self.take_near(out.len(), |part| {
                out[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            });
        }
        while at < out.len() && !self.held.is_empty() {
            let took = self.take_held(&mut out[at..]);
            if took == 0 {
                return at;
            }
            at += took;
        }
        if at < out.len() && !self.ranges.is_empty() {
            self.take_near(out.len() - at, |part| {
                out[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            });
        }
        at
    }

    /// Takes bytes of the first part that lies elsewhere.
    #[inline]
    fn take_held(&mut self, out: &mut [u8]) -> usize {
        let Some((held, at)) = self.held.front_mut() else { return 0 };
        let left = held.len() as usize - *at;
        let take = left.min(out.len());
        if !held.copy_to(*at, &mut out[..take]) {
            self.lose();
            return 0;
        }
        *at += take;
        if take == left {
            self.held.pop_front();
        }
        self.taken += take as u64;
        take
    }

    /// The message can no longer be read: most likely its sender died with it.
    #[cold]
    fn lose(&mut self) {
        self.held.clear();
        self.ranges.clear();
        self.end = Some(End::Lost);
    }

    /// Takes up to `max` bytes in as few parts as they lie in, oldest first; returns how many were taken.
    pub(crate) fn take(&mut self, max: usize, mut part: impl FnMut(&[u8])) -> usize {
        let mut done = 0;
        if self.at < self.buffer.len() || self.held.is_empty() {
            done = self.take_near(max, &mut part);
        }
        if !self.held.is_empty() && done < max {
            let mut buffer = std::mem::take(&mut self.shown);
            buffer.resize(PART, 0);
            while done < max && !self.held.is_empty() {
                let most = PART.min(max - done);
                let took = self.take_held(&mut buffer[..most]);
                if took == 0 {
                    break;
                }
                part(&buffer[..took]);
                done += took;
            }
            self.shown = buffer;
            if done < max && self.held.is_empty() {
                done += self.take_near(max - done, &mut part);
            }
        }
        done
    }

    /// Takes up to `max` bytes of what has to wait in our own buffer or, if nothing is elsewhere before them, in the delivery; in as few parts as they
    /// lie in, oldest first. Returns how many were taken.
    fn take_near(&mut self, max: usize, mut part: impl FnMut(&[u8])) -> usize {
        let mut done = 0;
        let waiting = (self.buffer.len() - self.at).min(max);
        if waiting > 0 {
            part(&self.buffer[self.at..self.at + waiting]);
            self.at += waiting;
            done = waiting;
        }
        while done < max && self.held.is_empty() {
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
    pub(crate) fn window_due(&mut self, finished: bool) -> Option<(MessageId, u64)> {
        let window = self.window;
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
