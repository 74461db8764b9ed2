//! Memory records on their way into slots and rings.

use tautline_device::Channel;
use tautline_device::shm::LINE_FRAME;
use tautline_wire::memory::{MAX_HEAD, Memory as Message};

use crate::Rank;
use crate::interface::Interface;
use crate::near::send::line_of;

impl Interface {
    /// Whether a record of so many bytes can be sent now.
    pub(crate) fn has_room(&mut self, rank: Rank, len: usize) -> bool {
        let direct = self.batch_depth == 0;
        match &mut self.peers[rank as usize].near {
            Some(near) if direct => {
                let clear = near.shm.is_clear();
                near.stalled |= !clear;
                clear
            }
            _ => self.open_slot_for(rank, len, true).is_ok(),
        }
    }

    /// Sends a memory record with data that lies in private memory. False for want of room.
    #[inline]
    pub(crate) fn emit(&mut self, rank: Rank, message: &Message<'_>, flags: u8, data: &[u8]) -> bool {
        if self.peers[rank as usize].near.is_some() && self.batch_depth == 0 {
            return self.emit_near(rank, message, flags, data);
        }
        self.emit_slot(rank, message, flags, data.len(), |out| out.copy_from_slice(data))
    }

    /// As [`Interface::emit`], with data that `fill` writes.
    pub(crate) fn emit_with(
        &mut self,
        rank: Rank,
        message: &Message<'_>,
        flags: u8,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        if self.peers[rank as usize].near.is_some() && self.batch_depth == 0 {
            let mut scratch = std::mem::take(&mut self.memory.scratch);
            scratch.resize(len.max(scratch.len()), 0);
            fill(&mut scratch[..len]);
            let sent = self.emit_near(rank, message, flags, &scratch[..len]);
            self.memory.scratch = scratch;
            return sent;
        }
        self.emit_slot(rank, message, flags, len, fill)
    }

    fn emit_slot(
        &mut self,
        rank: Rank,
        message: &Message<'_>,
        flags: u8,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        if self.open_slot_for(rank, message.head_len() + len, true).is_err() {
            return false;
        }
        let open = self.peers[rank as usize].open.as_mut().expect("opened above");
        let room = &mut self.device.arena().payload_mut(open.slot)[open.used..open.capacity];
        let head = message.write(room, flags, len);
        fill(&mut room[head..head + len]);
        open.used += head + len;
        open.tail = None;
        true
    }

    /// Straight into the ring that is shared with the peer; a small record moves one line.
    #[inline]
    fn emit_near(&mut self, rank: Rank, message: &Message<'_>, flags: u8, data: &[u8]) -> bool {
        if self.peers[rank as usize].open.is_some() {
            self.close_slot(rank);
        }
        let Some(near) = &mut self.peers[rank as usize].near else { return false };
        let mut head = [0; MAX_HEAD];
        let len = message.write(&mut head, flags, data.len());
        let whole = len + data.len();
        if whole <= LINE_FRAME {
            let mut line = [0; LINE_FRAME];
            line[..len].copy_from_slice(&head[..len]);
            line[len..whole].copy_from_slice(data);
            if near.shm.push_line(&line_of(&line), whole) {
                return true;
            }
        }
        let sent = near.shm.push(&head[..len], data).is_ok();
        near.stalled |= !sent;
        near.shm.flush();
        sent
    }
}
