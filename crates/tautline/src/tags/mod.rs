//! Messages matched to receives by context, source and tag, as MPI matches them.
//!
//! A receive names a source and a tag, or [`ANY`] of either. It takes the oldest message that matches or, if
//! none is there, the first that arrives. Messages of one sender with the same tag are received in the order
//! in which they were sent. Matching needs no handler and no thread of the program: whoever polls does it,
//! the watchdog included, and puts the bytes where the receive wants them.
//!
//! A message of up to 64 KiB ([`crate::Config::eager_limit`]) is sent at once while the sender has credit
//! with its peer, 1 MiB for each peer. Of any other message only the envelope goes; the bytes follow when a
//! receive has matched, straight into its buffer, and until then the send does not end. So messages that
//! nobody receives cost their receiver a bounded amount of memory.
//!
//! Two ranks that both send long messages before they receive wait for each other, as in MPI: post the
//! receive first ([`Tags::start_receive`]), or do not wait for the send ([`Tags::start_send`]).
//!
//! Closing the endpoint ([`crate::Endpoint::close`]) sends what was started or buffered, and waits for the
//! receives of long messages, for as long as closing may take. What is left then is [`Error::Undelivered`].
//!
//! ```no_run
//! use tautline::Endpoint;
//! use tautline::tags::ANY;
//!
//! fn main() -> tautline::Result<()> {
//!     let ep = Endpoint::builder().join()?;
//!     let tags = ep.tags(0);
//!     if ep.rank() == 0 {
//!         let mut buffer = vec![0; 100];
//!         for _ in 1..ep.size() {
//!             let status = tags.receive(ANY, 7, &mut buffer)?;
//!             println!("rank {} sent {} bytes", status.source, status.len);
//!         }
//!     } else {
//!         tags.send(0, 7, b"hello")?;
//!     }
//!     ep.close()
//! }
//! ```

mod requests;

use std::sync::Arc;
use std::time::Duration;

pub use requests::{Claimed, Receive, Request, Send};
use tautline_node::Received;
pub use tautline_node::TagRequest as RequestId;
pub use tautline_node::tags::{Failure, Region, Status};

use crate::core::Shared;
use crate::error::{Error, Result};
use crate::{Rank, SendError};
use tautline_node::tags::{Buffer, Mode, Pattern};

/// Any source, or any tag.
pub const ANY: Option<u32> = None;

/// Sends and receives messages of one context. `Send`, `Sync` and cheap to clone. Made by
/// [`crate::Endpoint::tags`] and [`crate::Handle::tags`].
///
/// Several threads may use it at once. Its methods that wait block the calling thread, which makes protocol
/// progress meanwhile; handlers of messages do not run. It does not keep the endpoint open.
///
/// When a peer is lost, sends to it and receives from it fail with [`Error::PeerGone`]; what it sent before
/// can still be received. Receives of [`ANY`] source go on waiting for others; a call that waits for one, or
/// probes, fails when every other rank is gone.
#[derive(Clone, Debug)]
pub struct Tags {
    shared: Arc<Shared>,
    context: u32,
}

impl Tags {
    pub(crate) fn new(shared: &Arc<Shared>, context: u32) -> Tags {
        Tags { shared: shared.clone(), context }
    }

    /// The same for another context: messages of different contexts never match each other's receives.
    pub fn with_context(&self, context: u32) -> Tags {
        Tags::new(&self.shared, context)
    }

    /// The context.
    pub fn context(&self) -> u32 {
        self.context
    }

    pub(crate) fn node(&self) -> &tautline_node::Endpoint {
        &self.shared.node
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Sends a message. Returns when `bytes` may be used again: at once if it goes eagerly and there is room,
    /// otherwise when a receive has taken it.
    #[inline]
    pub fn send(&self, to: Rank, tag: u32, bytes: &[u8]) -> Result<()> {
        if self.node().tagged().try_send_tagged((to, self.context, tag), bytes)? {
            return Ok(());
        }
        self.send_by((to, tag), Mode::Standard, &[bytes])
    }

    /// As [`Tags::send`], with a message in several pieces.
    pub fn send_pieces(&self, to: Rank, tag: u32, pieces: &[&[u8]]) -> Result<()> {
        self.send_by((to, tag), Mode::Standard, pieces)
    }

    /// Sends a message. Returns when a receive has matched it.
    pub fn send_synchronous(&self, to: Rank, tag: u32, bytes: &[u8]) -> Result<()> {
        self.send_by((to, tag), Mode::Synchronous, &[bytes])
    }

    /// Sends a message for which a receive is posted, the caller says. It is sent as by [`Tags::send`], and
    /// nothing is lost if none is.
    pub fn send_ready(&self, to: Rank, tag: u32, bytes: &[u8]) -> Result<()> {
        self.send(to, tag, bytes)
    }

    /// Sends a copy of a message, if need be, and does not wait. The copy is kept until a receive takes it.
    pub fn send_buffered(&self, to: Rank, tag: u32, bytes: &[u8]) -> Result<()> {
        if self.node().tagged().try_send_tagged((to, self.context, tag), bytes)? {
            return Ok(());
        }
        self.start_send(to, tag, bytes.to_vec()).map(drop)
    }

    /// Sends a message at once, if there is room and credit, and it fits one frame: one of up to 400 bytes
    /// does. False otherwise; then the channel is opened, if need be, and progress is made, so that a later
    /// call may succeed. An error if the peer is lost.
    #[inline]
    pub fn try_send(&self, to: Rank, tag: u32, bytes: &[u8]) -> Result<bool> {
        if self.node().tagged().try_send_tagged((to, self.context, tag), bytes)? {
            return Ok(true);
        }
        self.node().tagged().prepare_send((to, self.context))??;
        Ok(false)
    }

    /// As [`Tags::try_send`], for messages whose call must cost little. It is also false if the send would
    /// fail: [`Tags::try_send`] tells why.
    #[inline(always)]
    pub fn send_at_once(&self, to: Rank, tag: u32, bytes: &[u8]) -> bool {
        self.node().tagged().try_send_tagged((to, self.context, tag), bytes).unwrap_or(false)
    }

    fn send_by(&self, (to, tag): (Rank, u32), mode: Mode, pieces: &[&[u8]]) -> Result<()> {
        let len = pieces.iter().map(|piece| piece.len() as u64).sum();
        if self.node().is_virtual() {
            return Err(SendError::WouldBlock.into());
        }
        let read = |at: u64, out: &mut [u8]| copy_pieces(pieces, at, out);
        Ok(self.node().tagged().send_tagged((to, self.context, tag), mode, len, read)??)
    }

    /// Begins to send a message, which goes on by itself.
    pub fn start_send(&self, to: Rank, tag: u32, bytes: Vec<u8>) -> Result<Send> {
        self.start((to, tag), Mode::Standard, Buffer::Whole(bytes))
    }

    /// As [`Tags::start_send`]; it ends when a receive has matched it.
    pub fn start_send_synchronous(&self, to: Rank, tag: u32, bytes: Vec<u8>) -> Result<Send> {
        self.start((to, tag), Mode::Synchronous, Buffer::Whole(bytes))
    }

    /// As [`Tags::start_send`], with a message in several pieces.
    pub fn start_send_pieces(&self, to: Rank, tag: u32, pieces: Vec<Vec<u8>>) -> Result<Send> {
        self.start((to, tag), Mode::Standard, Buffer::Pieces(pieces))
    }

    pub(crate) fn start(&self, (to, tag): (Rank, u32), mode: Mode, data: Buffer) -> Result<Send> {
        let id = self.node().tagged().start_send_tagged((to, self.context, tag), mode, data)?;
        Ok(Send::new(&self.shared, id))
    }

    fn pattern(&self, source: Option<Rank>, tag: Option<u32>) -> Pattern {
        Pattern { context: self.context, source, tag }
    }

    /// Receives a message into `buffer`, whose length is the room for it. The rest of the buffer stays as it
    /// was. If the message is longer, its first bytes are in the buffer, and the call fails with
    /// [`Error::Truncated`].
    #[inline]
    pub fn receive(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<u32>>,
        buffer: &mut Vec<u8>,
    ) -> Result<Status> {
        let pattern = self.pattern(source.into(), tag.into());
        let mut room = Buffer::Whole(std::mem::take(buffer));
        let result = self.receive_into(pattern, &mut room);
        if let Buffer::Whole(bytes) = room {
            *buffer = bytes;
        }
        result
    }

    /// As [`Tags::receive`], into memory that the program has lent, if the message is short, comes from a
    /// peer on this host, and is here or comes within a moment. None, with nothing done, otherwise.
    #[inline(always)]
    pub fn receive_at_once(
        &self,
        source: Rank,
        tag: Option<u32>,
        room: &mut Region,
    ) -> Option<std::result::Result<Status, Failure>> {
        if self.node().is_virtual() {
            return None;
        }
        self.node().tagged().try_receive_tagged(self.pattern(Some(source), tag), room)
    }

    /// As [`Tags::receive`], into memory that the program has lent, for messages that
    /// [`Tags::receive_at_once`] has not received. A receive under way if no message has come within `time`.
    pub fn receive_lent(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<u32>>,
        room: Region,
        time: Duration,
    ) -> Result<std::result::Result<Status, Receive>> {
        let pattern = self.pattern(source.into(), tag.into());
        let mut room = Buffer::Lent(room);
        let id = self.node().tagged().start_receive_tagged(pattern, &mut room)?;
        if self.node().is_virtual() {
            let (result, _) = Receive::new(&self.shared, id).finish()?;
            return Ok(Ok(result?));
        }
        match self.node().tagged().wait_received_tagged(id, &mut room, Some(time))? {
            Received::Ended(result) => Ok(Ok(result?)),
            Received::Pending(id) => Ok(Err(Receive::new(&self.shared, id))),
        }
    }

    #[inline]
    fn receive_into(&self, pattern: Pattern, buffer: &mut Buffer) -> Result<Status> {
        if self.node().is_virtual() {
            let id = self.node().tagged().start_receive_tagged(pattern, buffer)?;
            let (result, back) = Receive::new(&self.shared, id).finish()?;
            *buffer = back;
            return result;
        }
        match self.node().tagged().receive_tagged(pattern, buffer, None)? {
            Received::Ended(result) => Ok(result?),
            // Without a limit of time it has ended.
            Received::Pending(_) => Err(Error::Stale),
        }
    }

    /// Begins to receive a message into `buffer`, whose length is the room for it.
    pub fn start_receive(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<u32>>,
        buffer: Vec<u8>,
    ) -> Result<Receive> {
        let pattern = self.pattern(source.into(), tag.into());
        let id = self.node().tagged().start_receive_tagged(pattern, &mut Buffer::Whole(buffer))?;
        Ok(Receive::new(&self.shared, id))
    }

    /// As [`Tags::start_receive`], into several pieces, one after the other.
    pub fn start_receive_pieces(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<u32>>,
        pieces: Vec<Vec<u8>>,
    ) -> Result<Receive> {
        let pattern = self.pattern(source.into(), tag.into());
        let id = self.node().tagged().start_receive_tagged(pattern, &mut Buffer::Pieces(pieces))?;
        Ok(Receive::new(&self.shared, id))
    }

    pub(crate) fn start_receive_into(&self, from: Rank, tag: u32, mut buffer: Buffer) -> Result<Receive> {
        let pattern = self.pattern(Some(from), Some(tag));
        let id = self.node().tagged().start_receive_tagged(pattern, &mut buffer)?;
        Ok(Receive::new(&self.shared, id))
    }

    /// As [`Tags::start_send`], with bytes that stay where they are. Dropped, the send goes on, and reads
    /// them.
    pub fn start_send_lent(&self, to: Rank, tag: u32, bytes: Region) -> Result<Send> {
        self.start((to, tag), Mode::Standard, Buffer::Lent(bytes))
    }

    /// As [`Tags::start_send_synchronous`], with bytes that stay where they are.
    pub fn start_send_lent_synchronous(&self, to: Rank, tag: u32, bytes: Region) -> Result<Send> {
        self.start((to, tag), Mode::Synchronous, Buffer::Lent(bytes))
    }

    /// As [`Tags::start_receive`], into memory that the program has lent. Once the receive has ended or was
    /// dropped, nothing more is written there.
    pub fn start_receive_lent(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<u32>>,
        room: Region,
    ) -> Result<Receive> {
        let pattern = self.pattern(source.into(), tag.into());
        let id = self.node().tagged().start_receive_tagged(pattern, &mut Buffer::Lent(room))?;
        Ok(Receive::new(&self.shared, id))
    }

    /// What the next receive would take, if it is here.
    pub fn try_probe(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<u32>>,
    ) -> Result<Option<Status>> {
        Ok(self.node().tagged().probe_tagged(&self.pattern(source.into(), tag.into()))?)
    }

    /// Waits for a message, and leaves it in the queue. Fails when the source, if one is named, is lost.
    pub fn probe(&self, source: impl Into<Option<Rank>>, tag: impl Into<Option<u32>>) -> Result<Status> {
        let pattern = self.pattern(source.into(), tag.into());
        self.wait_for(&pattern, || Ok(self.node().tagged().probe_tagged(&pattern)?))
    }

    /// As [`Tags::probe`]; `None` if no message has come within `time`.
    pub fn probe_within(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<u32>>,
        time: Duration,
    ) -> Result<Option<Status>> {
        let pattern = self.pattern(source.into(), tag.into());
        if let Some(found) = self.node().tagged().probe_tagged(&pattern)? {
            return Ok(Some(found));
        }
        self.node().tagged().wait_tagged_message(&pattern, Some(time))??;
        Ok(self.node().tagged().probe_tagged(&pattern)?)
    }

    /// Takes the message that the next receive would take out of the queue, if it is here: only
    /// [`Claimed::receive`] receives it.
    pub fn try_claim(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<u32>>,
    ) -> Result<Option<Claimed>> {
        self.claim_matching(&self.pattern(source.into(), tag.into()))
    }

    /// As [`Tags::try_claim`]; waits for a message.
    pub fn claim(&self, source: impl Into<Option<Rank>>, tag: impl Into<Option<u32>>) -> Result<Claimed> {
        let pattern = self.pattern(source.into(), tag.into());
        self.wait_for(&pattern, || self.claim_matching(&pattern))
    }

    fn claim_matching(&self, pattern: &Pattern) -> Result<Option<Claimed>> {
        let claimed = self.node().tagged().claim_tagged(pattern)?;
        Ok(claimed.map(|(id, status)| Claimed::new(&self.shared, id, status)))
    }

    fn wait_for<T>(&self, pattern: &Pattern, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            if self.node().is_virtual() {
                return Err(SendError::WouldBlock.into());
            }
            self.node().tagged().wait_tagged_message(pattern, None)??;
        }
    }

    /// Waits until one of the requests has ended, and returns its index.
    ///
    /// # Panics
    /// If there are none: nothing would ever end.
    pub fn wait_any(&self, requests: &[&dyn Request]) -> Result<usize> {
        assert!(!requests.is_empty(), "no requests to wait for");
        Ok(self.wait_some(requests)?[0])
    }

    /// Waits until at least one of the requests has ended, and returns the indices of all that have.
    pub fn wait_some(&self, requests: &[&dyn Request]) -> Result<Vec<usize>> {
        self.wait_count(requests, requests.len().min(1))?;
        self.test_some(requests)
    }

    /// Waits until all of the requests have ended.
    pub fn wait_all(&self, requests: &[&dyn Request]) -> Result<()> {
        self.wait_count(requests, requests.len())
    }

    /// The indices of those requests that have ended.
    pub fn test_some(&self, requests: &[&dyn Request]) -> Result<Vec<usize>> {
        Ok(self.node().tagged().test_tagged(&ids(requests))?)
    }

    /// The index of one of those requests that have ended, if there is any.
    pub fn test_any(&self, requests: &[&dyn Request]) -> Result<Option<usize>> {
        Ok(self.test_some(requests)?.first().copied())
    }

    /// Whether all of the requests have ended.
    pub fn test_all(&self, requests: &[&dyn Request]) -> Result<bool> {
        Ok(self.test_some(requests)?.len() == requests.len())
    }

    /// Waits until `count` of the requests have ended (true), or `timeout` has passed (false). A request that
    /// was taken meanwhile has ended. [`Request::id`] has the id of a request.
    pub fn wait_ids(&self, requests: &[RequestId], count: usize, timeout: Option<Duration>) -> Result<bool> {
        Ok(self.node().tagged().wait_tagged(requests, count, timeout)?)
    }

    /// Makes progress. It never blocks.
    pub fn progress(&self) -> Result<()> {
        Ok(self.node().progress().map(drop)?)
    }

    fn wait_count(&self, requests: &[&dyn Request], count: usize) -> Result<()> {
        if self.node().is_virtual() {
            let ended = self.test_some(requests)?.len() >= count;
            return if ended { Ok(()) } else { Err(SendError::WouldBlock.into()) };
        }
        Ok(self.node().tagged().wait_tagged(&ids(requests), count, None).map(drop)?)
    }
}

fn ids(requests: &[&dyn Request]) -> Vec<tautline_node::TagRequest> {
    requests.iter().map(|request| request.id()).collect()
}

/// Copies bytes from `at` on out of pieces that have as many.
fn copy_pieces(pieces: &[&[u8]], at: u64, out: &mut [u8]) {
    let (mut skip, mut done) = (at, 0);
    for piece in pieces {
        let start = skip.min(piece.len() as u64) as usize;
        let len = (piece.len() - start).min(out.len() - done);
        out[done..done + len].copy_from_slice(&piece[start..start + len]);
        (skip, done) = (skip - start as u64, done + len);
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::Truncated(status) => Error::Truncated(status),
            Failure::Excluded(rank) => Error::Excluded(rank),
            Failure::Revoked => Error::Revoked,
            Failure::PeerGone(rank, why) => Error::PeerGone(rank, why),
            _ => SendError::Closed.into(),
        }
    }
}
