//! The records of peers, which are served as soon as their frame is due (E-4).

use tautline_device::shm::{LINE_FRAME, LINE_WORDS};
use tautline_wire::memory::ExtentRef;
use tautline_wire::record::Records;
use tautline_wire::tags::{ANNOUNCED, Envelope, TagRecord, whole_message};

use super::buffer::{LINE_DATA, Room};
use super::matching::Key;
use super::peers::{Arriving, Into};
use super::receives::{ReceiveState, copy_frame};
use super::requests::{SendState, Status};
use super::{Message, STORED, Stored, Tags};
use crate::PeerId;
use crate::limits::{MAX_ENVELOPES, TAG_CREDIT};
use crate::memory::{LentParts, Name};

/// Bytes of a message, wherever they are.
#[derive(Clone, Copy)]
enum Bytes<'a> {
    Here(&'a [u8]),
    Lent(ExtentRef),
}

impl Bytes<'_> {
    fn len(&self) -> usize {
        match self {
            Bytes::Here(bytes) => bytes.len(),
            Bytes::Lent(extent) => extent.len as usize,
        }
    }

    /// Copies the bytes from `at` on.
    fn copy(&self, lent: &mut impl LentParts, at: usize, out: &mut [u8]) {
        match self {
            Bytes::Here(bytes) => out.copy_from_slice(&bytes[at..at + out.len()]),
            Bytes::Lent(extent) => {
                let (at, len) = (extent.at + at as u64, out.len() as u32);
                lent.read_part(ExtentRef { at, len, ..*extent }, out);
            }
        }
    }
}

impl Tags {
    /// Handles the records of a frame; `lent` has the parts that the peer lends. False if no correct peer
    /// sends it.
    #[inline]
    pub(crate) fn handle_records(&mut self, from: PeerId, lent: &mut impl LentParts, bytes: &[u8]) -> bool {
        Records::new(bytes, 0).all(|record| {
            let Ok(record) = record else { return false };
            match TagRecord::parse(&record) {
                Ok(TagRecord::Eager { context, tag, data }) => self.handle_eager(from, (context, tag), data),
                Ok(record) => self.handle_other(from, lent, &record),
                Err(_) => false,
            }
        })
    }

    /// Returns whether a whole message has matched the last receive of its context since the last call:
    /// whoever waits for it may take those behind it from the ring (E-15).
    #[inline]
    pub(crate) fn take_last_matched(&mut self) -> bool {
        std::mem::take(&mut self.last_matched)
    }

    /// As [`Tags::handle_records`], with a frame of `len` bytes that came in a line.
    #[inline]
    pub(crate) fn handle_words(
        &mut self,
        from: PeerId,
        lent: &mut impl LentParts,
        len: usize,
        words: &[u64; LINE_WORDS],
    ) -> bool {
        let mut bytes = [0; LINE_FRAME];
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        self.handle_records(from, lent, &bytes[..len])
    }

    fn handle_other(&mut self, from: PeerId, lent: &mut impl LentParts, record: &TagRecord<'_>) -> bool {
        match *record {
            TagRecord::Eager { context, tag, data } => self.handle_eager(from, (context, tag), data),
            TagRecord::Envelope(envelope) if envelope.bytes_follow => self.handle_begun(from, &envelope),
            TagRecord::Envelope(envelope) => self.handle_envelope(from, &envelope),
            TagRecord::Data { to, at, data } => self.handle_bytes(from, lent, (to, at), Bytes::Here(data)),
            TagRecord::LoanedData { to, at, extent } => {
                if !lent.is_sound(extent) {
                    return false;
                }
                let good = self.handle_bytes(from, lent, (to, at), Bytes::Lent(extent));
                lent.return_part(extent);
                good
            }
            TagRecord::Accept { id, to, len } => self.handle_accept(from, id, to, len),
            TagRecord::Matched { id } => self.handle_matched(from, id),
            TagRecord::Credit { bytes } => self.handle_credit(from, bytes),
            TagRecord::Fence { first, last, all: false } => self.handle_fence(from.rank, first..=last),
            TagRecord::Fence { first, last, all: true } => self.handle_revocation(from.rank, first..=last),
        }
    }

    /// Handles a whole message.
    #[inline]
    fn handle_eager(&mut self, from: PeerId, (context, tag): (u32, u32), data: &[u8]) -> bool {
        let len = data.len() as u64;
        // E-5: no correct peer exceeds its credit.
        if !self.peers.get_mut(from.rank).is_some_and(|peer| peer.charge(len)) {
            return false;
        }
        let key = Key { context, source: from.rank, tag };
        let Some(name) = self.arrive(key) else { return self.store_whole(from, key, data) };
        self.last_matched = !self.matcher.has_posted(context);
        if let Some(receive) = self.receives.get_mut(name) {
            receive.buffer.write(0, data);
            let status = Status { source: from.rank, tag, len };
            receive.state = ReceiveState::Filling { from, status, want: len, got: len };
        }
        self.matched(from, len, None);
        self.note_received(name, 0);
        true
    }

    #[inline(never)]
    fn store_whole(&mut self, from: PeerId, key: Key, bytes: &[u8]) -> bool {
        let mut data = self.spare.take(bytes.len());
        data.extend_from_slice(bytes);
        let total = bytes.len() as u64;
        self.keep_stored(key, Stored { from, data, total, report: None }).is_some()
    }

    /// Handles a frame of `len` bytes, which is longer than a line and starts with `words`, if it is a whole
    /// message: its bytes are copied once, to the receive's memory or to that of messages that wait. `take`
    /// takes the frame out of the ring, and copies as many of the bytes behind the words as it is given room
    /// for. Some(false) if no correct peer sends it; None, with nothing done, if it is something else.
    #[inline]
    pub(crate) fn place_long(
        &mut self,
        from: PeerId,
        (len, words): (usize, &[u64; LINE_WORDS]),
        take: impl FnOnce(&mut [u8]),
    ) -> Option<bool> {
        let (context, tag, bytes) = whole_message([words[0], words[1]], len)?;
        let peer = self.peers.get_mut(from.rank)?;
        // What exceeds the credit is for the usual way to judge.
        if bytes <= LINE_DATA || !peer.has_credit_for(bytes as u64) {
            return None;
        }
        peer.charge(bytes as u64);
        let (key, total) = (Key { context, source: from.rank, tag }, bytes as u64);
        let Some(name) = self.arrive(key) else {
            let mut data = self.spare.take(bytes);
            data.resize(bytes, 0);
            copy_frame(&mut data, bytes, words, take);
            return Some(self.keep_stored(key, Stored { from, data, total, report: None }).is_some());
        };
        self.last_matched = !self.matcher.has_posted(context);
        let Some(receive) = self.receives.get_mut(name) else { return Some(false) };
        if let Some(out) = receive.buffer.as_piece() {
            copy_frame(out, bytes, words, take);
        } else {
            let mut data = vec![0; bytes];
            copy_frame(&mut data, bytes, words, take);
            receive.buffer.write(0, &data);
        }
        let status = Status { source: from.rank, tag, len: total };
        receive.state = ReceiveState::Filling { from, status, want: total, got: total };
        self.matched(from, total, None);
        self.note_received(name, 0);
        Some(true)
    }

    /// Queues a message that no receive takes. Returns the number of the stored message.
    fn keep_stored(&mut self, key: Key, stored: Stored) -> Option<u32> {
        let total = stored.total;
        let at = self.store(stored)?;
        self.matcher.keep(key, Message::new(total, at | STORED));
        // Whoever probes looks again.
        self.activity += 1;
        Some(at)
    }

    /// Handles an envelope whose bytes follow.
    fn handle_begun(&mut self, from: PeerId, envelope: &Envelope) -> bool {
        let Envelope { context, tag, id, total, report, .. } = *envelope;
        let Some(peer) = self.peers.get_mut(from.rank) else { return false };
        if !peer.charge(total) || peer.arriving.is_some() {
            return false;
        }
        let key = Key { context, source: from.rank, tag };
        let report = report.then_some(id);
        let into = match self.arrive(key) {
            Some(name) => {
                if let Some(receive) = self.receives.get_mut(name) {
                    let status = Status { source: from.rank, tag, len: total };
                    receive.state = ReceiveState::Filling { from, status, want: total, got: 0 };
                }
                self.matched(from, total, report);
                self.note_received(name, 0);
                Into::Receive(name)
            }
            None => {
                // No more than its credit, which was checked above.
                let data = self.spare.take(total as usize);
                let Some(at) = self.keep_stored(key, Stored { from, data, total, report }) else {
                    return false;
                };
                Into::Stored(at)
            }
        };
        if total > 0
            && let Some(peer) = self.peers.get_mut(from.rank)
        {
            peer.arriving = Some(Arriving { into, total, got: 0 });
        }
        true
    }

    /// Handles an envelope whose bytes wait until they are asked for (E-7).
    fn handle_envelope(&mut self, from: PeerId, envelope: &Envelope) -> bool {
        let Envelope { context, tag, id, total, .. } = *envelope;
        let key = Key { context, source: from.rank, tag };
        if id & STORED != 0 {
            return false;
        }
        if let Some(name) = self.arrive(key) {
            self.accept(name, from, Status { source: from.rank, tag, len: total }, id);
            return true;
        }
        let Some(peer) = self.peers.get_mut(from.rank) else { return false };
        peer.envelopes += 1;
        if peer.envelopes > MAX_ENVELOPES {
            return false;
        }
        self.matcher.keep(key, Message::new(total, id));
        self.activity += 1;
        true
    }

    /// Handles bytes of a message. False if they are not the next ones of a message of this peer.
    fn handle_bytes(
        &mut self,
        from: PeerId,
        lent: &mut impl LentParts,
        (to, at): (u64, u64),
        bytes: Bytes<'_>,
    ) -> bool {
        let len = bytes.len() as u64;
        if to != ANNOUNCED {
            return self.handle_asked(from, lent, (Name::from_u64(to), at), bytes);
        }
        let Some(peer) = self.peers.get_mut(from.rank) else { return false };
        let Some(arriving) = &mut peer.arriving else { return false };
        if arriving.got != at || len == 0 || len > arriving.total - arriving.got {
            return false;
        }
        arriving.got += len;
        let into = arriving.into;
        if arriving.got == arriving.total {
            peer.arriving = None;
        }
        match into {
            Into::Receive(name) => {
                if let Some(receive) = self.receives.get_mut(name) {
                    receive.buffer.write_with(at, bytes.len(), |done, out| bytes.copy(lent, done, out));
                }
                self.note_received(name, len);
            }
            Into::Nothing => {}
            Into::Stored(number) => {
                if let Some((_, stored)) = self.stored.at_mut(number) {
                    let end = stored.data.len() + bytes.len();
                    stored.data.resize(end, 0);
                    bytes.copy(lent, 0, &mut stored.data[at as usize..]);
                }
            }
        }
        true
    }

    /// Handles bytes that a receive has asked for.
    fn handle_asked(
        &mut self,
        from: PeerId,
        lent: &mut impl LentParts,
        (name, at): (Name, u64),
        bytes: Bytes<'_>,
    ) -> bool {
        let len = bytes.len() as u64;
        let Some(receive) = self.receives.get_mut(name) else { return false };
        let ReceiveState::Filling { from: sender, want, got, .. } = receive.state else { return false };
        if sender != from || got != at || len == 0 || len > want - got {
            return false;
        }
        receive.buffer.write_with(at, bytes.len(), |done, out| bytes.copy(lent, done, out));
        self.note_received(name, len);
        true
    }

    /// Handles the news that a message was matched, and how many of its bytes are wanted.
    fn handle_accept(&mut self, from: PeerId, id: u32, to: u64, len: u64) -> bool {
        let Some((name, send)) = self.sends.at_mut(id) else { return false };
        let announced = matches!(send.state, SendState::Announced { eager: false });
        if send.to != from.rank || !announced || len > send.len {
            return false;
        }
        send.state = SendState::Accepted { to, len, sent: 0 };
        // If the bytes are with the caller, so is the rest of the work.
        let borrowed = send.data == super::Buffer::Absent;
        let Some(peer) = self.peers.get_mut(from.rank) else { return false };
        peer.announced -= 1;
        if len == 0 {
            let result = self.matched_result(name);
            self.end_send(name, result);
        } else if !borrowed {
            peer.accepted.push_back(name);
        }
        self.activity += 1;
        self.mark_busy(from.rank);
        true
    }

    /// Handles the news that a message whose bytes have been sent was matched.
    fn handle_matched(&mut self, from: PeerId, id: u32) -> bool {
        let Some((name, send)) = self.sends.at_mut(id) else { return false };
        if send.to != from.rank || !send.synchronous {
            return false;
        }
        match send.state {
            // Matched before its last bytes were sent.
            SendState::Eager { .. } => send.synchronous = false,
            SendState::Announced { eager: true } => {
                let result = self.matched_result(name);
                self.end_send(name, result);
            }
            _ => return false,
        }
        true
    }

    fn handle_credit(&mut self, from: PeerId, bytes: u64) -> bool {
        let Some(peer) = self.peers.get_mut(from.rank) else { return false };
        peer.credit = peer.credit.saturating_add(bytes);
        self.activity += 1;
        let good = peer.credit <= TAG_CREDIT;
        self.mark_busy(from.rank);
        good
    }
}
