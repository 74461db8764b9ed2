//! Writing messages to a channel: whole small ones, and long ones piece by piece (M-3, M-6).

use tautline_device::SlotId;
use tautline_link::Nanos;
use tautline_wire::record::{self, Class, LONG_LEN, Record, RecordHead, Records, SHORT_LEN};

use super::untagged::Untagged;
use super::{Channel, FIRST_TRAIN, Kind, OpenFrame, Port, TRAIN, write_short};
use crate::SendError;

/// Bytes from which on a piece through shared memory is worth a loan or a frame of its own.
const LONG_PIECE: usize = 8 << 10;
/// A message of up to so many bytes that is given in one piece is lent as a whole (S-22).
const MAX_WHOLE: usize = 64 << 10;

impl Channel {
    /// Sends a whole small message in the way that most messages go: straight into the ring, or inside a
    /// batch into the open frame. False, with nothing done, if it takes more than that.
    #[inline]
    pub(crate) fn send_direct(&mut self, port: &mut Port, handler: u16, data: &[u8]) -> bool {
        match &mut self.kind {
            _ if port.batch_depth > 0 => self.append_short(port, handler, data),
            Kind::Shm(shm) if self.open.is_none() => shm.push_short(port, handler, data),
            _ => false,
        }
    }

    /// Adds a whole small message to the open frame; false if there is none, or it has no room.
    #[inline]
    fn append_short(&mut self, port: &mut Port, handler: u16, data: &[u8]) -> bool {
        let Some(open) = self.open.as_mut().filter(|open| open.class == Class::Messages) else {
            return false;
        };
        let room = &mut port.device.arena().payload_mut(open.slot)[open.used..open.capacity];
        let Some(room) = room.get_mut(..SHORT_LEN + data.len()) else { return false };
        open.used += write_short(room, handler, data);
        open.tail = None;
        true
    }

    /// Sends a whole small message at once in a frame of its own: what happens to most messages outside a
    /// batch. False, with nothing done, if something is in its way, or this kind has a shorter path.
    #[inline]
    pub(crate) fn send_at_once(&mut self, port: &mut Port, now: Nanos, handler: u16, data: &[u8]) -> bool {
        let Some(slot) = self.take_clear_slot(port, now, LONG_LEN + data.len()) else { return false };
        self.link.send_clear(port, now, (slot, SHORT_LEN + data.len()), |room| {
            write_short(room, handler, data);
        });
        self.note_timer(port, now);
        true
    }

    /// As [`Channel::send_at_once`], with a memory or tag record.
    #[inline]
    pub(super) fn send_record_at_once(
        &mut self,
        port: &mut Port,
        now: Nanos,
        message: &impl RecordHead,
        flags: u8,
        data: &[u8],
    ) -> bool {
        let len = message.head_len() + data.len();
        let Some(slot) = self.take_clear_slot(port, now, len) else { return false };
        self.link.send_clear(port, now, (slot, len), |room| {
            let head = message.write(room, flags, data.len());
            room[head..len].copy_from_slice(data);
        });
        self.note_timer(port, now);
        true
    }

    /// A slot for `len` bytes that can leave at once.
    #[inline]
    fn take_clear_slot(&mut self, port: &mut Port, now: Nanos, len: usize) -> Option<SlotId> {
        let clear = port.is_clear(now)
            && self.open.is_none()
            && matches!(self.kind, Kind::Link)
            && self.link.can_send_now(len, port.share_frames)
            && len <= port.slot_len()
            && port.may_take(self.unacknowledged());
        clear.then(|| port.take_slot()).flatten()
    }

    /// Adds a whole small message to the open frame, or to a new one (M-3).
    #[inline]
    pub(crate) fn write_short(
        &mut self,
        port: &mut Port,
        handler: u16,
        data: &[u8],
    ) -> Result<(), SendError> {
        self.open_frame(port, SHORT_LEN + data.len(), Class::Messages)?;
        let open = self.open.as_mut().expect("opened above");
        let room = &mut port.device.arena().payload_mut(open.slot)[open.used..open.capacity];
        open.used += write_short(room, handler, data);
        open.tail = None;
        Ok(())
    }

    /// Begins a message (M-3) and returns its number. `own_window` is the first window of the loopback
    /// channel.
    pub(crate) fn begin(
        &mut self,
        port: &mut Port,
        handler: u16,
        total: u64,
        own_window: u32,
    ) -> Result<u32, SendError> {
        self.messages.check_limit()?;
        self.open_frame(port, LONG_LEN + usize::from(total > 0), Class::Messages)?;
        let first_window = match (&self.kind, self.link.link()) {
            (Kind::Loopback(_), _) => own_window.into(),
            (Kind::Shm(shm), _) => shm.first_window(),
            (Kind::Link, Some(link)) => link.peer().message_window.into(),
            (Kind::Link, None) => u64::MAX,
        };
        let message = self.messages.begin(total, first_window);
        if let Kind::Shm(shm) = &mut self.kind
            && total > first_window
        {
            shm.want_windows();
        }
        let open = self.open.as_mut().expect("opened above");
        let at = open.used;
        let room = &mut port.device.arena().payload_mut(open.slot)[at..open.capacity];
        open.used += record::write::first(room, handler, message, total, 0);
        open.tail = Some((message, at));
        Ok(message)
    }

    /// Adds as many of a piece's `len` bytes as there is room for, and returns how many. `fill` writes them
    /// in place: it is given how far the piece has come, and room.
    #[inline]
    pub(crate) fn add(
        &mut self,
        port: &mut Port,
        now: Nanos,
        (message, offset): (u32, u64),
        len: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> usize {
        if len >= LONG_PIECE
            && let Some(added) = self.add_lent(port, (message, offset), len, &mut fill)
        {
            return added;
        }
        self.add_copied(port, now, (message, offset), len, fill)
    }

    /// As [`Channel::add`], with bytes that are there already.
    #[inline]
    pub(crate) fn add_bytes(
        &mut self,
        port: &mut Port,
        now: Nanos,
        (message, offset): (u32, u64),
        bytes: &[u8],
    ) -> usize {
        let fill = |at: usize, room: &mut [u8]| room.copy_from_slice(&bytes[at..at + room.len()]);
        if bytes.len() >= LONG_PIECE {
            if let Some(added) = self.add_lent(port, (message, offset), bytes.len(), fill) {
                return added;
            }
            // The ring has room when there is nothing to lend.
            self.close_frame_for_shm(port);
            if let Kind::Shm(shm) = &mut self.kind {
                let allowed = self.messages.allowed(message, offset, bytes.len());
                return shm.push_piece((message, offset), &bytes[..allowed]);
            }
        }
        self.add_copied(port, now, (message, offset), bytes.len(), fill)
    }

    fn close_frame_for_shm(&mut self, port: &mut Port) {
        if matches!(self.kind, Kind::Shm(_)) {
            self.close_frame(port);
        }
    }

    fn add_copied(
        &mut self,
        port: &mut Port,
        now: Nanos,
        (message, offset): (u32, u64),
        len: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> usize {
        let len = self.messages.allowed(message, offset, len);
        let mut done = 0;
        while done < len {
            let added =
                self.add_frames(port, now, (message, offset + done as u64), len - done, |at, room| {
                    fill(done + at, room);
                });
            if added > 0 {
                done += added;
                continue;
            }
            let Some(take) = self.make_room(port, message, offset + done as u64, len - done) else { break };
            let open = self.open.as_mut().expect("opened above");
            let frame = &mut port.device.arena().payload_mut(open.slot)[..open.capacity];
            fill(done, &mut frame[open.used..open.used + take]);
            // Only now do the bytes belong to the message: a program that panics while it fills leaves none.
            open.used += take;
            if let Some((_, head)) = open.tail {
                record::write::set_len(&mut frame[head..], open.used - head - LONG_LEN);
            }
            done += take;
            if self.has_long_train() {
                self.transmit(port, now);
                port.flush();
                self.note_timer(port, now);
            }
        }
        done
    }

    /// Adds whole frames of a long piece over a link, each with a record of its own, and returns how many
    /// bytes; none while another frame is open. They leave in trains.
    #[inline]
    fn add_frames(
        &mut self,
        port: &mut Port,
        now: Nanos,
        (message, offset): (u32, u64),
        len: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> usize {
        if !matches!(self.kind, Kind::Link)
            || self.open.as_ref().is_some_and(|open| open.used < open.capacity)
        {
            return 0;
        }
        let capacity = self.capacity(port);
        let take = capacity - LONG_LEN;
        if len < take || !self.link.has_room() {
            return 0;
        }
        // Now, for the program may panic while it fills.
        self.note_timer(port, now);
        self.mark_dirty(port);
        // Freeing slots flushes: now, before there is a train that it would tear.
        self.link.free_acknowledged(port);
        let Coupled { channel, port, untagged } =
            &mut Coupled { channel: self, port, untagged: Untagged::NONE };
        if let Some(full) = channel.open.take() {
            channel.link.send_in_train(port, now, (full.slot, full.used), untagged);
        }
        let mut train = channel.train_len(port, capacity);
        let (mut done, mut room) = (0, 0);
        while len - done >= take {
            if room == 0 {
                room = channel.link.room().min(port.may_take_at_once(channel.unacknowledged()));
            }
            let Some(slot) = (room > 0).then(|| port.take_slot()).flatten() else { break };
            room -= 1;
            // A program that panics while it fills leaves an empty frame, which the next message uses.
            let behind = channel.link.pushed_to();
            let class = Class::Messages;
            channel.open = Some(OpenFrame { slot, used: 0, capacity, tail: None, behind, class });
            let room = &mut port.device.arena().payload_mut(slot)[..capacity];
            record::write::more(room, message, offset + done as u64, take);
            fill(done, &mut room[LONG_LEN..]);
            channel.open = None;
            done += take;
            channel.link.send_in_train(port, now, (slot, capacity), untagged);
            // A short rest goes along.
            let waiting = port.waiting_frames() + untagged.len();
            if waiting * capacity >= train && len - done >= train / 2 {
                channel.link.end_train(port, untagged);
                port.flush();
                train = channel.train_len(port, capacity);
            }
        }
        done
    }

    /// Bytes that leave together (N-30). The first trains are short, because a receiver that has nothing to
    /// do can begin with them while the others are written; the more is on its way, the longer they get.
    #[inline]
    fn train_len(&self, port: &Port, capacity: usize) -> usize {
        let on_its_way = self.link.link().map_or(0, tautline_link::Link::unacknowledged);
        (on_its_way.saturating_sub(port.waiting_frames()) * capacity).clamp(FIRST_TRAIN, TRAIN)
    }

    /// Makes room for up to `want` more bytes of a message at the end of the open frame, or of a new one;
    /// returns for how many.
    #[inline]
    fn make_room(&mut self, port: &mut Port, message: u32, offset: u64, want: usize) -> Option<usize> {
        let tail = self.open.as_ref().filter(|open| open.used < open.capacity).and_then(|open| open.tail);
        let continues = tail.is_some_and(|(of, _)| of == message);
        if !continues {
            self.open_frame(port, LONG_LEN + 1, Class::Messages).ok()?;
        }
        let open = self.open.as_mut().expect("there is one now");
        if !continues {
            let room = &mut port.device.arena().payload_mut(open.slot)[..open.capacity];
            let head = open.used;
            open.used += record::write::more(&mut room[head..], message, offset, 0);
            open.tail = Some((message, head));
        }
        Some(want.min(open.capacity - open.used))
    }

    /// Lends bytes of a message to the peer instead of copying them, part by part; a message of which nothing
    /// has left may be lent as a whole. Returns how many; none if this channel cannot lend now.
    fn add_lent(
        &mut self,
        port: &mut Port,
        (message, offset): (u32, u64),
        len: usize,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> Option<usize> {
        self.shm()?;
        if len <= MAX_WHOLE
            && let Some(handler) = self.unbegun(port, message, len)
        {
            let lent = self.shm_mut()?.lend_whole(handler, len, fill)?;
            if lent > 0 {
                self.discard_frame(port);
            }
            return Some(lent);
        }
        self.close_frame(port);
        let allowed = self.messages.allowed(message, offset, len);
        self.shm_mut()?.lend_parts((message, offset), allowed, fill)
    }

    /// The handler of a message of `len` bytes whose beginning is still in the open frame: it can be sent in
    /// another way. (A handler of short messages gets no message that does not fit a frame.)
    fn unbegun(&self, port: &Port, message: u32, len: usize) -> Option<u16> {
        let open = self.open.as_ref().filter(|open| open.tail == Some((message, 0)))?;
        if self.messages.is_windowed(message) {
            return None;
        }
        match Records::new(&port.device.arena_ref().payload(open.slot)[..open.used], 0).next() {
            Some(Ok(Record::First { handler, total, data: [], .. })) if total == len as u64 => {
                (len > self.short_limit(port)).then_some(handler)
            }
            _ => None,
        }
    }

    /// Gives a message up: the receiver is told that it will not be completed (M-6). Refused for want of
    /// room: try again.
    pub(crate) fn abort(&mut self, port: &mut Port, message: u32) -> Result<(), SendError> {
        self.open_frame(port, LONG_LEN, Class::Messages)?;
        self.messages.end(message);
        let open = self.open.as_mut().expect("opened above");
        let room = &mut port.device.arena().payload_mut(open.slot)[open.used..open.capacity];
        open.used += record::write::abort(room, message);
        open.tail = None;
        Ok(())
    }

    /// Lets the peer send up to `limit` bytes of a message (M-5). False if that must be tried again.
    pub(crate) fn grant_window(&mut self, port: &mut Port, message: u32, limit: u64) -> bool {
        match &mut self.kind {
            Kind::Shm(shm) => return shm.push_window(message, limit),
            // The sender is this node.
            Kind::Loopback(_) => {
                self.messages.widen(message, limit);
                port.activity += 1;
                return true;
            }
            Kind::Link => {}
        }
        let mut bytes = [0; LONG_LEN];
        record::write::window(&mut bytes, message, limit);
        self.push_control(port, &bytes, true)
    }
}

/// A channel to which a train is being added. The frames that wait for their tags get them at its end, also
/// if the program panics.
struct Coupled<'a> {
    channel: &'a mut Channel,
    port: &'a mut Port,
    untagged: Untagged,
}

impl Drop for Coupled<'_> {
    #[inline]
    fn drop(&mut self) {
        self.channel.link.end_train(self.port, &mut self.untagged);
    }
}
