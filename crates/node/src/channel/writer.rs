//! Memory and tag records on their way into a channel, and parts that the peer lends on their way out of it.

use tautline_link::Nanos;
use tautline_mem::ApertureMemory;
use tautline_wire::memory::{ExtentRef, PUT_HEAD};
use tautline_wire::record::{Class, RecordHead};

use super::{Channel, Kind, Port, shm};
use crate::memory::{LentParts, RecordWriter};

/// A part is not begun in a frame with less room than this.
const LEAST_PART: usize = 256;

/// One peer's channel, for memory and tags to write to.
pub(crate) struct ChannelWriter<'a> {
    channel: &'a mut Channel,
    port: &'a mut Port,
}

impl<'a> ChannelWriter<'a> {
    #[inline]
    pub(crate) fn new(channel: &'a mut Channel, port: &'a mut Port) -> ChannelWriter<'a> {
        ChannelWriter { channel, port }
    }

    /// Whether records go straight into the ring; inside a batch they share frames.
    #[inline]
    fn is_direct(&self) -> bool {
        self.port.batch_depth == 0 && matches!(self.channel.kind, Kind::Shm(_))
    }

    /// Whether a put of `len` bytes can go straight into the ring in one frame.
    #[inline(always)]
    pub(crate) fn takes_inline_puts(&self, len: usize) -> bool {
        self.is_direct() && !self.port.closed && self.channel.open.is_none() && PUT_HEAD + len <= shm::PART
    }

    /// Pushes a whole put, its head given as words, into the ring. False for want of room.
    #[inline(always)]
    pub(crate) fn push_put(&mut self, head: [u64; PUT_HEAD / 8], bytes: &[u8]) -> bool {
        self.channel.shm_mut().is_some_and(|shm| shm.push_put(head, bytes))
    }

    fn write_slot<H: RecordHead>(
        &mut self,
        message: &H,
        flags: u8,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        if self.channel.open_frame(self.port, message.head_len() + len, H::CLASS).is_err() {
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
}

impl RecordWriter for ChannelWriter<'_> {
    fn has_room(&mut self, len: usize) -> bool {
        match &mut self.channel.kind {
            Kind::Shm(shm) if self.port.batch_depth == 0 => shm.has_room_for_record(),
            _ => self.channel.open_frame(self.port, len, Class::Memory).is_ok(),
        }
    }

    #[inline]
    fn is_immediate(&self) -> bool {
        self.is_direct()
    }

    #[inline]
    fn write(&mut self, message: &impl RecordHead, flags: u8, data: &[u8]) -> bool {
        if self.is_direct() {
            self.channel.close_frame(self.port);
            return self.channel.shm_mut().is_some_and(|shm| shm.push_record(message, flags, data));
        }
        self.write_slot(message, flags, data.len(), |out| out.copy_from_slice(data))
    }

    #[inline(always)]
    fn write_line<const N: usize>(&mut self, head: [u64; N], data: &[u8]) -> bool {
        let fits = 8 * N + data.len() <= tautline_device::shm::LINE_FRAME
            && self.is_direct()
            && self.channel.open.is_none();
        fits && self.channel.shm_mut().is_some_and(|shm| shm.push_line_words(head, data))
    }

    #[inline]
    fn write_long<const N: usize>(&mut self, head: [u64; N], data: &[u8]) -> Option<bool> {
        if 8 * N + data.len() <= tautline_device::shm::LINE_FRAME || !self.is_direct() {
            return None;
        }
        self.channel.close_frame(self.port);
        Some(self.channel.shm_mut()?.push_long_words(head, data))
    }

    fn write_with(
        &mut self,
        message: &impl RecordHead,
        flags: u8,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        if self.is_direct() {
            let bytes = self.port.fill_scratch(len, fill);
            let sent = self.write(message, flags, &bytes[..len]);
            self.port.return_scratch(bytes);
            return sent;
        }
        self.write_slot(message, flags, len, fill)
    }

    #[inline]
    fn write_now(&mut self, now: Nanos, message: &impl RecordHead, flags: u8, data: &[u8]) -> bool {
        self.channel.send_record_at_once(self.port, now, message, flags, data)
    }

    #[inline]
    fn record_limit(&self) -> usize {
        if self.is_direct() { shm::PART } else { self.channel.capacity(self.port) }
    }

    fn data_limit(&self, head: usize) -> usize {
        if self.is_direct() { shm::PART } else { self.channel.capacity(self.port) - head }
    }

    #[inline]
    fn part_limit(&self, class: Class, head: usize, left: u64) -> usize {
        if self.is_direct() {
            return shm::PART;
        }
        let fresh = self.channel.capacity(self.port) - head;
        let open = self.channel.open.as_ref().filter(|open| open.class == class);
        let here = open.map_or(0, |open| (open.capacity - open.used).saturating_sub(head));
        if here >= LEAST_PART || here as u64 >= left { here } else { fresh }
    }

    #[inline]
    fn lend_limit(&self, whole: u64, left: u64) -> Option<usize> {
        if self.is_direct() { shm::lend_limit(whole, left) } else { None }
    }

    fn lend_part<H: RecordHead>(
        &mut self,
        (len, flags): (usize, u8),
        record: impl FnOnce(ExtentRef) -> H,
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<bool> {
        self.channel.shm()?;
        self.channel.close_frame(self.port);
        self.channel.shm_mut()?.lend_record((len, flags), record, fill)
    }

    fn has_full_train(&self) -> bool {
        self.channel.has_long_train()
    }

    fn flush(&mut self) {
        self.channel.close_frame(self.port);
    }
}

impl LentParts for Channel {
    fn is_sound(&mut self, extent: ExtentRef) -> bool {
        self.shm().is_some_and(|shm| shm.has_extent(extent.at, extent.len.into()))
    }

    fn copy_part(&mut self, extent: ExtentRef, to: &ApertureMemory, at: usize) -> bool {
        self.shm().is_some_and(|shm| shm.copy_extent(&extent, (to, at)))
    }

    fn read_part(&mut self, extent: ExtentRef, out: &mut [u8]) {
        if let Some(shm) = self.shm() {
            shm.read_extent(&extent, out);
        }
    }

    fn return_part(&mut self, extent: ExtentRef) {
        if let Some(shm) = self.shm_mut() {
            shm.return_extent(extent.number);
        }
    }
}
