//! Memory records on their way into a channel, and loan memory of the peer on its way out of it.

use tautline_link::Nanos;
use tautline_mem::ApertureMemory;
use tautline_wire::memory::{Memory as Message, PUT_HEAD, Piece, Target};

use super::{Channel, Kind, Port};

/// A frame with less room than this is not worth beginning a part in.
const LEAST_PART: usize = 256;

/// One peer's channel, for memory to write to.
pub(crate) struct ChannelWriter<'a> {
    channel: &'a mut Channel,
    port: &'a mut Port,
}

impl<'a> ChannelWriter<'a> {
    pub(crate) fn new(channel: &'a mut Channel, port: &'a mut Port) -> ChannelWriter<'a> {
        ChannelWriter { channel, port }
    }

    /// Whether records go straight into the ring: inside a batch they share frames.
    #[inline]
    fn direct(&self) -> bool {
        self.port.batch_depth == 0 && matches!(self.channel.kind, Kind::Shm(_))
    }

    /// Whether a record of `len` bytes can be written now.
    pub(crate) fn has_room(&mut self, len: usize) -> bool {
        match &mut self.channel.kind {
            Kind::Shm(shm) if self.port.batch_depth == 0 => shm.has_room_for_record(),
            _ => self.channel.open_frame(self.port, len, true).is_ok(),
        }
    }

    /// Writes a record whose data lies in private memory. False for want of room.
    #[inline]
    pub(crate) fn write(&mut self, message: &Message<'_>, flags: u8, data: &[u8]) -> bool {
        if self.direct() {
            self.channel.close_frame(self.port);
            if let Kind::Shm(shm) = &mut self.channel.kind {
                return shm.push_record(message, flags, data);
            }
        }
        self.write_slot(message, flags, data.len(), |out| out.copy_from_slice(data))
    }

    /// As [`ChannelWriter::write`], with `len` bytes of data that `fill` writes.
    pub(crate) fn write_with(
        &mut self,
        message: &Message<'_>,
        flags: u8,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        if self.direct() {
            self.channel.close_frame(self.port);
            if let Kind::Shm(shm) = &mut self.channel.kind {
                let bytes = self.port.fill_scratch(len, fill);
                let sent = shm.push_record(message, flags, &bytes[..len]);
                self.port.return_scratch(bytes);
                return sent;
            }
        }
        self.write_slot(message, flags, len, fill)
    }

    fn write_slot(
        &mut self,
        message: &Message<'_>,
        flags: u8,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        if self.channel.open_frame(self.port, message.head_len() + len, true).is_err() {
            return false;
        }
        let open = self.channel.open.as_mut().expect("opened above");
        let room = &mut self.port.device.arena().payload_mut(open.slot)[open.used..open.capacity];
        let head = message.write(room, flags, len);
        fill(&mut room[head..head + len]);
        open.used += head + len;
        open.tail = None;
        true
    }

    /// Writes a record that leaves at once in a frame of its own. False, with nothing done, if something is in its way.
    #[inline]
    pub(crate) fn write_now(&mut self, now: Nanos, message: &Message<'_>, flags: u8, data: &[u8]) -> bool {
        self.channel.send_record_at_once(self.port, now, message, flags, data)
    }

    /// Writes a whole put, its head given as words, straight into the ring. False, with nothing done, if that cannot be.
    #[inline]
    pub(crate) fn push_put(&mut self, head: [u64; PUT_HEAD / 8], bytes: &[u8]) -> bool {
        match &mut self.channel.kind {
            Kind::Shm(shm) if self.port.batch_depth == 0 && self.channel.open.is_none() => {
                shm.push_put(head, bytes)
            }
            _ => false,
        }
    }

    /// Bytes of the longest record, head included, that goes in one frame.
    #[inline]
    pub(crate) fn record_limit(&self) -> usize {
        if self.direct() { super::shm::PART } else { self.channel.capacity(self.port) }
    }

    /// Bytes of data of the next part of which `left` bytes remain, each with a head of `head` bytes.
    #[inline]
    pub(crate) fn part_limit(&self, head: usize, left: u64) -> usize {
        if self.direct() {
            return super::shm::PART;
        }
        let fresh = self.channel.capacity(self.port) - head;
        let open = self.channel.open.as_ref().filter(|open| open.memory);
        let here = open.map_or(0, |open| (open.capacity - open.used).saturating_sub(head));
        if here >= LEAST_PART || here as u64 >= left { here } else { fresh }
    }

    /// Bytes of data of a part in a frame of its own, with a head of `head` bytes.
    pub(crate) fn fresh_part_limit(&self, head: usize) -> usize {
        if self.direct() { super::shm::PART } else { self.channel.capacity(self.port) - head }
    }

    /// Bytes of the longest part worth lending, of a put of `whole` bytes of which `left` remain; none if it is not.
    #[inline]
    pub(crate) fn lend_limit(&self, whole: u64, left: u64) -> Option<usize> {
        if self.direct() { super::shm::lend_limit(whole, left) } else { None }
    }

    /// Sends part of a put from memory that the peer reads in place; `fill` writes it there. False for want of room; none
    /// if nothing can be lent.
    pub(crate) fn lend_part(
        &mut self,
        (target, rest, flags): (Target, u64, u8),
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<bool> {
        self.channel.shm()?;
        self.channel.close_frame(self.port);
        self.channel.shm_mut()?.lend_put_part((target, rest, flags), len, fill)
    }

    /// Lets what was written leave.
    pub(crate) fn flush(&mut self) {
        self.channel.close_frame(self.port);
    }

    /// Whether the peer's loan memory has such an extent.
    pub(crate) fn has_extent(&self, extent: &Piece) -> bool {
        self.channel.shm().is_some_and(|shm| shm.has_extent(extent.at, extent.len.into()))
    }

    /// Copies an extent of the peer's loan memory to an aperture.
    pub(crate) fn copy_extent(&mut self, extent: &Piece, to: (&ApertureMemory, usize)) -> bool {
        self.channel.shm_mut().is_some_and(|shm| shm.copy_extent(extent, to))
    }

    /// Returns an extent of the peer's loan memory.
    pub(crate) fn return_extent(&mut self, extent: &Piece) {
        if let Some(shm) = self.channel.shm_mut() {
            shm.return_extent(extent.number);
        }
    }
}
