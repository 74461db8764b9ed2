//! Receives: posting, probing, claiming and cancelling, and a message's way into its receive.

use tautline_device::shm::LINE_WORDS;
use tautline_wire::tags::{EAGER_HEAD, whole_message};

use super::buffer::{LINE_DATA, Room, write_words};
use super::matching::{Key, Pattern, Posted};
use super::peers::{Answer, Into};
use super::requests::{Ended, Failure, Status};
use super::{Buffer, ClaimId, Message, ReceiveId, STORED, Stored, Tags};
use crate::memory::Name;
use crate::{PeerId, Rank, SendError};

const TOO_MANY: SendError = SendError::TooMany("receives whose results nobody has taken");

/// Of so many receives one is posted, whatever comes next.
const POSTED_EVERY: u32 = 16;

/// A receive.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) buffer: Buffer,
    pub(super) state: ReceiveState,
    /// Nobody waits for it: it is removed when it ends.
    pub(super) detached: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ReceiveState {
    /// No message has matched.
    Posted { posted: Posted, source: Option<Rank> },
    /// A message has matched, of which `got` of `want` bytes are here.
    Filling { from: PeerId, status: Status, want: u64, got: u64 },
    /// It has ended.
    Done(Result<Status, Failure>),
}

impl Tags {
    /// Begins a receive: it takes the oldest message that matches, or else the first that arrives (E-1, E-2).
    pub(crate) fn receive(&mut self, pattern: Pattern, buffer: &mut Buffer) -> Result<ReceiveId, SendError> {
        // Replaced below; a receive must have a name before it is posted or matched.
        let name = self.add_receive(buffer)?;
        if let Some(waiting) = self.matcher.find(&pattern) {
            let (key, message) = self.matcher.take(waiting);
            let from = self.sender(key.source);
            self.begin(name, from, key, message);
            return Ok(ReceiveId(name));
        }
        let ended = pattern.source.and_then(|source| self.why_ended(source, pattern.context));
        if let Some(why) = ended.or_else(|| self.why_revoked(pattern.context)) {
            self.end_receive(name, Err(why));
            return Ok(ReceiveId(name));
        }
        let posted = self.matcher.post(pattern, name);
        if let Some(receive) = self.receives.get_mut(name) {
            receive.state = ReceiveState::Posted { posted, source: pattern.source };
        }
        Ok(ReceiveId(name))
    }

    /// Whether a message that arrives next and that a pattern takes need not be posted for: nothing is in
    /// the queues that comes before either (E-15). Every [`POSTED_EVERY`]th time it is not so, that other
    /// rings have their turns.
    #[inline(always)]
    pub(crate) fn may_take(&mut self, pattern: &Pattern) -> bool {
        self.direct = self.direct.wrapping_add(1);
        !self.direct.is_multiple_of(POSTED_EVERY)
            && (!self.is_restricted || self.is_open(pattern))
            && self.matcher.takes_next(pattern)
    }

    /// Whether messages that a pattern takes are received at all: its context is neither revoked nor fenced.
    #[cold]
    #[inline(never)]
    fn is_open(&self, pattern: &Pattern) -> bool {
        let fenced = pattern.source.and_then(|source| self.why_fenced(source, pattern.context));
        fenced.or_else(|| self.why_revoked(pattern.context)).is_none()
    }

    /// Receives a frame of `len` bytes that came in a line into `room`, if it is a whole message that the
    /// pattern takes. `word` reads a word of the line, each of which is read once. Only after
    /// [`Tags::may_take`].
    #[inline(always)]
    pub(crate) fn take_line(
        &mut self,
        from: PeerId,
        (pattern, room): (&Pattern, &mut impl Room),
        len: usize,
        word: impl Fn(usize) -> u64,
    ) -> Option<Result<Status, Failure>> {
        let (context, tag, bytes) = whole_message([word(0), word(1)], len)?;
        if bytes > LINE_DATA {
            return None;
        }
        self.take_whole(from, pattern, (context, tag), bytes as u64)?;
        room.write_words(bytes, |at| word(EAGER_HEAD / 8 + at));
        Some(in_room(Status { source: from.rank, tag, len: bytes as u64 }, room.len()))
    }

    /// As [`Tags::take_line`], with a frame that is longer than a line and starts with `words`. `take` takes
    /// it out of the ring, and copies as many of the bytes behind these words as it is given room for.
    #[inline]
    pub(crate) fn take_frame(
        &mut self,
        from: PeerId,
        (pattern, room): (&Pattern, &mut impl Room),
        (len, words): (usize, &[u64; LINE_WORDS]),
        take: impl FnOnce(&mut [u8]),
    ) -> Option<Result<Status, Failure>> {
        let out = room.as_piece()?;
        let (context, tag, bytes) = whole_message([words[0], words[1]], len)?;
        self.take_whole(from, pattern, (context, tag), bytes as u64)?;
        copy_frame(out, bytes, words, take);
        Some(in_room(Status { source: from.rank, tag, len: bytes as u64 }, room.len()))
    }

    /// Charges a whole message, if the pattern takes it. None, with nothing done, otherwise.
    #[inline(always)]
    fn take_whole(
        &mut self,
        from: PeerId,
        pattern: &Pattern,
        (context, tag): (u32, u32),
        len: u64,
    ) -> Option<()> {
        let key = Key { context, source: from.rank, tag };
        let Some(peer) = self.peers.used_mut(from.rank) else {
            // The next one is taken.
            self.peers.get_mut(from.rank);
            return None;
        };
        // What exceeds the credit is for the usual way to judge.
        if !pattern.takes(key) || !peer.has_credit_for(len) {
            return None;
        }
        if peer.charge(len) && peer.give_credit(len) {
            self.mark_busy(from.rank);
        }
        Some(())
    }

    /// Takes the buffer, and leaves it if there is an error.
    fn add_receive(&mut self, buffer: &mut Buffer) -> Result<Name, SendError> {
        let state = ReceiveState::Done(Err(Failure::Closed));
        let empty = Receive { buffer: Buffer::Absent, state, detached: false };
        let name = self.receives.insert(empty).ok_or(TOO_MANY)?;
        if let Some(receive) = self.receives.get_mut(name) {
            std::mem::swap(&mut receive.buffer, buffer);
        }
        Ok(name)
    }

    /// The incarnation of a peer that there is a channel to, or was last.
    fn sender(&self, rank: Rank) -> PeerId {
        self.peers.id(rank).unwrap_or(PeerId::new(rank, 0))
    }

    /// Returns what the next receive of a pattern would take, if it is here.
    pub(crate) fn probe(&self, pattern: &Pattern) -> Option<Status> {
        let (key, message) = self.matcher.message(self.matcher.find(pattern)?);
        Some(Status { source: key.source, tag: key.tag, len: message.len() })
    }

    /// Takes the message that [`Tags::probe`] returns out of the queue, for one receive.
    pub(crate) fn claim(&mut self, pattern: &Pattern) -> Option<(ClaimId, Status)> {
        let status = self.probe(pattern)?;
        let from = self.sender(status.source);
        let (key, message) = self.matcher.message(self.matcher.find(pattern)?);
        let name = self.claimed.insert((key, message, from))?;
        self.matcher.take(self.matcher.find(pattern)?);
        Some((ClaimId(name), status))
    }

    /// Receives a message that was claimed.
    pub(crate) fn receive_claimed(
        &mut self,
        claim: ClaimId,
        mut buffer: Buffer,
    ) -> Result<ReceiveId, SendError> {
        let name = self.add_receive(&mut buffer)?;
        if let Some((key, message, from)) = self.claimed.remove(claim.0) {
            self.begin(name, from, key, message);
        }
        Ok(ReceiveId(name))
    }

    /// Drops a message that was claimed. It needs no place for a receive.
    pub(crate) fn drop_claimed(&mut self, claim: ClaimId) {
        if let Some((_, message, from)) = self.claimed.remove(claim.0) {
            self.drop_message(from, message);
        }
    }

    /// Drops a message that no receive takes, as if one had matched it.
    fn drop_message(&mut self, from: PeerId, message: Message) {
        if message.place & STORED == 0 {
            if self.is_lost(from).is_none()
                && let Some(peer) = self.peers.get_mut(from.rank)
            {
                peer.envelopes = peer.envelopes.saturating_sub(1);
                self.answer(from.rank, Answer::Accept { id: message.place, to: 0, len: 0 });
            }
            return;
        }
        let at = message.place & !STORED;
        let Some(Stored { from, data, total, report }) = self.free_stored(at) else { return };
        if let Some(peer) = self.peers.get_mut(from.rank).filter(|peer| peer.id == from)
            && let Some(arriving) = &mut peer.arriving
            && arriving.into == Into::Stored(at)
        {
            arriving.into = Into::Nothing;
        }
        self.spare.put(data);
        self.matched(from, total, report);
    }

    /// Returns whether a receive has ended.
    #[inline]
    pub(crate) fn is_received(&self, id: ReceiveId) -> bool {
        self.receives.get(id.0).is_none_or(|receive| matches!(receive.state, ReceiveState::Done(_)))
    }

    /// Takes the result of a receive that has ended.
    #[inline]
    pub(crate) fn take_received(&mut self, id: ReceiveId) -> Option<Ended<Status>> {
        let ReceiveState::Done(result) = self.receives.get(id.0)?.state else { return None };
        Some((result, self.receives.remove(id.0)?.buffer))
    }

    /// Cancels a receive that no message has matched, and returns its buffer (E-11).
    pub(crate) fn cancel_receive(&mut self, id: ReceiveId) -> Option<Buffer> {
        let ReceiveState::Posted { posted, .. } = self.receives.get(id.0)?.state else { return None };
        self.matcher.cancel(posted);
        Some(self.receives.remove(id.0)?.buffer)
    }

    /// The last loss of a peer, unless another one has been up since or it was forgotten.
    #[inline]
    pub(crate) fn last_loss(&self) -> Option<Failure> {
        self.last_loss
    }

    /// Others are left.
    pub(crate) fn forget_loss(&mut self) {
        self.last_loss = None;
    }

    /// Ends a receive that waits for a message of any source: nobody is left to send one.
    pub(crate) fn end_unmatched(&mut self, id: ReceiveId, why: Failure) {
        if let Some(ReceiveState::Posted { posted, source: None }) =
            self.receives.get(id.0).map(|receive| receive.state)
        {
            self.matcher.cancel(posted);
            self.end_receive(id.0, Err(why));
        }
    }

    /// Forgets a receive: cancels it or, if a message has matched, drops what is still to come of it (E-11).
    pub(crate) fn forget_receive(&mut self, id: ReceiveId) {
        if self.cancel_receive(id).is_some() || self.take_received(id).is_some() {
            return;
        }
        if let Some(receive) = self.receives.get_mut(id.0) {
            (receive.buffer, receive.detached) = (Buffer::Absent, true);
        }
    }

    /// A message of a former incarnation of its sender never comes.
    fn is_lost(&self, from: PeerId) -> Option<Failure> {
        let id = self.peers.id(from.rank)?;
        let restarted = crate::Down::Died(tautline_link::Death::Restarted);
        match self.peers.ended(from.rank) {
            None if id == from => None,
            ended => Some(ended.unwrap_or(Failure::PeerGone(from.rank, restarted))),
        }
    }

    /// Gives a message that waited to a receive.
    fn begin(&mut self, name: Name, from: PeerId, key: Key, message: Message) {
        let status = Status { source: key.source, tag: key.tag, len: message.len() };
        if message.place & STORED != 0 {
            return self.begin_stored(name, status, message.place & !STORED);
        }
        if let Some(why) = self.is_lost(from) {
            return self.end_receive(name, Err(why));
        }
        if let Some(peer) = self.peers.get_mut(from.rank) {
            peer.envelopes = peer.envelopes.saturating_sub(1);
        }
        self.accept(name, from, status, message.place);
    }

    /// Asks for the bytes of a message, as many as there is room for (E-7).
    pub(super) fn accept(&mut self, name: Name, from: PeerId, status: Status, id: u32) {
        let Some(receive) = self.receives.get_mut(name) else { return };
        let want = status.len.min(receive.buffer.len());
        receive.state = ReceiveState::Filling { from, status, want, got: 0 };
        self.answer(from.rank, Answer::Accept { id, to: name.to_u64(), len: want });
        self.note_received(name, 0);
    }

    pub(super) fn answer(&mut self, rank: Rank, answer: Answer) {
        if let Some(peer) = self.peers.get_mut(rank) {
            peer.answers.push_back(answer);
            self.mark_busy(rank);
        }
    }

    /// Gives a message that is here, or on its way, to a receive.
    fn begin_stored(&mut self, name: Name, status: Status, at: u32) {
        let Some(Stored { from, data, total, report }) = self.free_stored(at) else {
            return self.end_receive(name, Err(Failure::Closed));
        };
        let got = data.len() as u64;
        if let Some(receive) = self.receives.get_mut(name) {
            receive.buffer.write(0, &data);
            receive.state = ReceiveState::Filling { from, status, want: total, got };
        }
        self.spare.put(data);
        self.matched(from, total, report);
        if got < total
            && let Some(peer) = self.peers.get_mut(from.rank).filter(|peer| peer.id == from)
            && let Some(arriving) = &mut peer.arriving
        {
            arriving.into = Into::Receive(name);
        }
        self.note_received(name, 0);
    }

    /// A message whose bytes need not be asked for was matched: its credit is returned (E-6).
    #[inline]
    pub(super) fn matched(&mut self, from: PeerId, total: u64, report: Option<u32>) {
        let Some(peer) = self.peers.used_mut(from.rank).filter(|peer| peer.id == from && peer.up) else {
            return;
        };
        let tell = peer.give_credit(total);
        if let Some(id) = report {
            self.answer(from.rank, Answer::Matched { id });
        } else if tell {
            self.mark_busy(from.rank);
        }
    }

    /// Notes that `more` bytes of a message are in their receive's buffer. If these were all, the receive
    /// ends.
    #[inline]
    pub(super) fn note_received(&mut self, name: Name, more: u64) {
        let Some(receive) = self.receives.get_mut(name) else { return };
        let ReceiveState::Filling { status, want, got, .. } = &mut receive.state else { return };
        *got += more;
        if *got == *want {
            let result = in_room(*status, receive.buffer.len());
            self.end_receive(name, result);
        }
    }
}

/// How a receive with so much room ends.
#[inline(always)]
fn in_room(status: Status, room: u64) -> Result<Status, Failure> {
    if status.len > room { Err(Failure::Truncated(status)) } else { Ok(status) }
}

/// Copies a message of `len` bytes that came in a frame with these first words; `take` takes the frame out of
/// the ring and copies what follows them. Bytes for which there is no room are dropped.
#[inline]
pub(super) fn copy_frame(
    out: &mut [u8],
    len: usize,
    words: &[u64; LINE_WORDS],
    take: impl FnOnce(&mut [u8]),
) {
    let len = len.min(out.len());
    let (first, rest) = out[..len].split_at_mut(len.min(LINE_DATA));
    write_words(first, first.len(), |at| words[EAGER_HEAD / 8 + at]);
    take(rest);
}
