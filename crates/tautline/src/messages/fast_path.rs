//! The fast path: whole messages from peers on this host, straight from shared memory to their handlers.

use tautline_node::wire::{Record, Records, as_short};
use tautline_node::{FastPoll, FrameBatch};

use super::borrowed::LoanGuard;
use super::handlers::{Registered, StreamHandler};
use super::incoming::Short;
use super::runner::{NewMessage, Runner};
use crate::Rank;
use crate::error::Result;

/// Messages of up to this many bytes are copied for `async` handlers, which costs less than the slow path.
const MAX_COPIED: usize = 1 << 10;

impl Runner<'_> {
    /// Runs the handlers of whole messages from peers on this host, up to `limit` bytes. Everything else is
    /// left to the slow path. Returns the number of bytes taken; nothing if the slow path is to run now.
    #[inline]
    pub(super) fn run_frames(self, limit: usize) -> Result<Option<usize>> {
        // Extraction is not reentrant, so nobody else has it borrowed.
        let mut frames = self.inbox.frames.borrow_mut();
        let mut bytes = 0;
        while bytes < limit {
            match self.core.node.take_frames(limit - bytes, &mut frames)? {
                FastPoll::Frames => {}
                FastPoll::Empty => return Ok(Some(bytes)),
                FastPoll::SlowPath => break,
            }
            let mut handled = 0;
            for frame in frames.small() {
                // The bytes of loans count, too (M-8).
                if bytes >= limit {
                    break;
                }
                let Some(took) = self.run_frame(&frames, frame) else { break };
                bytes = bytes.saturating_add(took);
                handled += 1;
            }
            if let Some(frame) = frames.long()
                && let Some(took) = self.run_long_frame(&frames, frame)
            {
                bytes += took;
                handled += 1;
            }
            if handled < frames.count() {
                self.core.node.put_back(&frames, handled)?;
                return Ok((bytes > 0).then_some(bytes));
            }
            if !frames.has_more() {
                // Another poll would cost time and find nothing.
                return Ok(Some(bytes));
            }
        }
        Ok((bytes > 0).then_some(bytes))
    }

    /// Runs the handler of a frame that is one whole message, and returns its bytes. Nothing if the slow path
    /// has to deal with the frame.
    // Inlined in the loop over small frames: a call would cost five of its 30 instructions.
    #[inline(always)]
    fn run_frame(self, frames: &FrameBatch, frame: &[u8]) -> Option<usize> {
        let Some((handler, data)) = as_short(frame) else { return self.run_other(frames, frame) };
        let (core, from) = (self.core, frames.from().rank);
        match self.handler(handler.into()) {
            Some(Registered::Short(function)) => {
                self.call(handler.into(), function, Short { core, from, data });
                Some(frame.len())
            }
            Some(Registered::Whole(stream)) => {
                self.run_whole(handler.into(), stream, Short { core, from, data });
                Some(frame.len())
            }
            Some(Registered::Stream(stream)) if data.len() <= MAX_COPIED => {
                self.run_copied(handler.into(), stream, from, data);
                Some(frame.len())
            }
            _ => None,
        }
    }

    #[inline(never)]
    fn run_long_frame(self, frames: &FrameBatch, frame: &[u8]) -> Option<usize> {
        self.run_frame(frames, frame)
    }

    /// Runs an `async` handler on a copy of a message: it may be suspended before it has taken all of it.
    #[inline(never)]
    fn run_copied(self, handler: usize, stream: &StreamHandler, from: Rank, data: &[u8]) {
        let message = NewMessage { from, id: None, total: data.len() as u64 };
        let task = self.claim(handler, stream, message);
        stream.with(|slots| slots.bytes(task.slot).borrow_mut().arrive_copied(data));
        self.start(stream, task);
        self.poll(task);
    }

    /// Runs the handler of a frame that lends a whole message.
    #[inline(never)]
    fn run_other(self, frames: &FrameBatch, frame: &[u8]) -> Option<usize> {
        let Some(Ok(Record::Loan { handler, number, at, len })) = Records::new(frame, 0).next() else {
            return None;
        };
        let (handler, from) = (usize::from(handler), frames.from());
        self.handler(handler)?.as_stream()?;
        let loan = self.core.node.borrow_loan(from, number, at, len)?;
        self.run_loan(handler, LoanGuard::new(self.core, from.rank, loan));
        Some(frame.len().saturating_add(len as usize))
    }
}
