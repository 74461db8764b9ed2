//! Sends and receives whose bytes are in memory that the program has lent.

use tautline_node::tags::{Buffer, Mode, Region};

use super::{Claimed, Receive, Send, Tags};
use crate::Rank;
use crate::error::Result;

impl Tags {
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
}

impl Claimed {
    /// As [`Claimed::receive`], into memory that the program has lent.
    pub fn receive_lent(self, room: Region) -> Result<Receive> {
        self.receive_into(Buffer::Lent(room))
    }
}
