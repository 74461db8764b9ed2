//! Sends, receives and claimed messages under way.

use std::sync::Arc;

use tautline_node::TagRequest;
use tautline_node::tags::{Buffer, ClaimId, ReceiveId, Region, SendId, Status};

use crate::SendError;
use crate::core::Shared;
use crate::error::{Error, Result};

/// A send or a receive, for [`crate::tags::Tags::wait_any`] and its like.
pub trait Request: sealed::Sealed {
    /// Its id, for [`crate::tags::Tags::wait_ids`].
    ///
    /// # Panics
    /// If its result was taken by `poll`.
    fn id(&self) -> TagRequest;

    /// Makes progress; whether it has ended. It never blocks.
    fn test(&self) -> Result<bool>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Send {}
    impl Sealed for super::Receive {}
}

fn test(shared: &Shared, request: TagRequest) -> Result<bool> {
    Ok(!shared.node.tagged().test_tagged(&[request])?.is_empty())
}

/// The bytes of a buffer, in one piece.
fn whole(buffer: Buffer) -> Vec<u8> {
    match buffer {
        Buffer::Whole(bytes) => bytes,
        Buffer::Pieces(pieces) => pieces.concat(),
        Buffer::Shared(pieces) => pieces.iter().flat_map(|piece| piece.iter().copied()).collect(),
        Buffer::Lent(_) | Buffer::Absent => Vec::new(),
    }
}

/// The bytes of a buffer, as they were given.
fn pieces(buffer: Buffer) -> Vec<Vec<u8>> {
    match buffer {
        Buffer::Pieces(pieces) => pieces,
        other => vec![whole(other)],
    }
}

/// A send under way. Dropped, it goes on.
#[derive(Debug)]
pub struct Send {
    shared: Arc<Shared>,
    id: Option<SendId>,
}

impl Send {
    pub(super) fn new(shared: &Arc<Shared>, id: SendId) -> Send {
        Send { shared: shared.clone(), id: Some(id) }
    }

    /// Takes the result, if it has ended. Makes no progress. Afterwards the send is over.
    pub fn poll(&mut self) -> Result<Option<Result<()>>> {
        let Some(id) = self.id else { return Err(Error::Stale) };
        let Some((result, _)) = self.shared.node.tagged().take_sent(id)? else { return Ok(None) };
        self.id = None;
        Ok(Some(result.map_err(Error::from)))
    }

    /// Waits for its end: its bytes have been sent, or copied to where they are sent from, or for a
    /// synchronous send it was matched. Returns the buffer.
    pub fn wait(self) -> Result<Vec<u8>> {
        self.finish().map(whole)
    }

    /// As [`Send::wait`], with the buffer as it was given.
    pub(crate) fn finish(mut self) -> Result<Buffer> {
        let Some(id) = self.id else { return Err(Error::Stale) };
        if !self.test()? {
            if self.shared.node.is_virtual() {
                return Err(SendError::WouldBlock.into());
            }
            self.shared.node.tagged().wait_tagged(&[TagRequest::Send(id)], 1, None)?;
        }
        self.id = None;
        let (result, buffer) = self.shared.node.tagged().take_sent(id)?.ok_or(Error::Stale)?;
        result?;
        Ok(buffer)
    }
}

impl Request for Send {
    fn id(&self) -> TagRequest {
        TagRequest::Send(self.id.expect("a send keeps its number until `wait` consumes it"))
    }

    fn test(&self) -> Result<bool> {
        test(&self.shared, self.id())
    }
}

impl Drop for Send {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let _ = self.shared.node.tagged().forget_send(id);
        }
    }
}

/// A receive under way. Dropped, it is cancelled; if a message has matched already, the rest of that message
/// is dropped.
#[derive(Debug)]
pub struct Receive {
    shared: Arc<Shared>,
    id: Option<ReceiveId>,
}

impl Receive {
    pub(super) fn new(shared: &Arc<Shared>, id: ReceiveId) -> Receive {
        Receive { shared: shared.clone(), id: Some(id) }
    }

    /// Waits for the message. Returns what it is and the buffer.
    pub fn wait(self) -> Result<(Status, Vec<u8>)> {
        let (result, buffer) = self.finish()?;
        Ok((result?, whole(buffer)))
    }

    /// As [`Receive::wait`], with the buffer in pieces, as it was given.
    pub fn wait_pieces(self) -> Result<(Status, Vec<Vec<u8>>)> {
        let (result, buffer) = self.finish()?;
        Ok((result?, pieces(buffer)))
    }

    /// Waits for the end, and returns the buffer whether the receive has failed or not.
    #[inline]
    pub(crate) fn finish(mut self) -> Result<(Result<Status>, Buffer)> {
        let Some(id) = self.id else { return Err(Error::Stale) };
        if self.shared.node.is_virtual() && !self.test()? {
            return Err(SendError::WouldBlock.into());
        }
        let taken = self.shared.node.tagged().finish_receive_tagged(id)?;
        self.id = None;
        let (result, buffer) = taken.ok_or(Error::Stale)?;
        Ok((result.map_err(Error::from), buffer))
    }

    /// Takes the result and the buffer, if it has ended. Makes no progress. Afterwards the receive is over.
    pub fn poll(&mut self) -> Result<Option<(Result<Status>, Vec<u8>)>> {
        let Some(id) = self.id else { return Err(Error::Stale) };
        let Some((result, buffer)) = self.shared.node.tagged().take_received(id)? else { return Ok(None) };
        self.id = None;
        Ok(Some((result.map_err(Error::from), whole(buffer))))
    }

    /// Cancels the receive and returns its buffer; the receive itself if a message has matched already.
    pub fn cancel(mut self) -> Result<Vec<u8>, Receive> {
        let Some(id) = self.id else { return Err(self) };
        match self.shared.node.tagged().cancel_receive(id) {
            Ok(Some(buffer)) => {
                self.id = None;
                Ok(whole(buffer))
            }
            _ => Err(self),
        }
    }
}

impl Request for Receive {
    fn id(&self) -> TagRequest {
        TagRequest::Receive(self.id.expect("a receive keeps its number until it is consumed"))
    }

    fn test(&self) -> Result<bool> {
        test(&self.shared, self.id())
    }
}

impl Drop for Receive {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let _ = self.shared.node.tagged().forget_receive(id);
        }
    }
}

/// A message that only [`Claimed::receive`] receives. Dropped, the message is lost.
#[derive(Debug)]
pub struct Claimed {
    shared: Arc<Shared>,
    id: Option<ClaimId>,
    status: Status,
}

impl Claimed {
    pub(super) fn new(shared: &Arc<Shared>, id: ClaimId, status: Status) -> Claimed {
        Claimed { shared: shared.clone(), id: Some(id), status }
    }

    /// What the message is.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Begins to receive it into `buffer`.
    pub fn receive(self, buffer: Vec<u8>) -> Result<Receive> {
        self.receive_into(Buffer::Whole(buffer))
    }

    /// As [`Claimed::receive`], into memory that the program has lent.
    pub fn receive_lent(self, room: Region) -> Result<Receive> {
        self.receive_into(Buffer::Lent(room))
    }

    fn receive_into(mut self, buffer: Buffer) -> Result<Receive> {
        let Some(claim) = self.id else { return Err(Error::Stale) };
        let id = self.shared.node.tagged().receive_claimed(claim, buffer)?;
        self.id = None;
        Ok(Receive::new(&self.shared, id))
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let _ = self.shared.node.tagged().drop_claimed(id);
        }
    }
}
