//! Sends: a queue for each peer, credit, and bytes that were asked for (E-5 … E-8).

use tautline_link::Nanos;
use tautline_wire::record::Class;
use tautline_wire::tags::{ANNOUNCED, DATA_HEAD, EAGER_HEAD, Envelope, TagRecord, message_head};

use super::peers::{PeerTags, charge};
use super::requests::{Ended, Send, SendState};
use super::{Buffer, Mode, SendId, Tags};
use crate::limits::MAX_ENVELOPES;
use crate::memory::{Name, RecordWriter, Slab};
use crate::{Rank, SendError};

/// Bytes that one peer is sent before the next peer's turn.
const QUANTUM: usize = 60_000;

/// Copies bytes of a message, from a position on.
type Read<'a> = &'a mut dyn FnMut(u64, &mut [u8]);

/// What became of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Everything was written, or nothing is left to do.
    All,
    /// The turn is over.
    More,
    /// It waits: for room, for credit, for its turn, or for a receive.
    Blocked,
}

impl Tags {
    /// Sends a short message at once, if nothing is in the way. False, with nothing done, otherwise.
    #[inline(always)]
    pub(crate) fn send_at_once(
        &mut self,
        writer: &mut impl RecordWriter,
        now: impl FnOnce() -> Nanos,
        to: (Rank, u32, u32),
        bytes: &[u8],
    ) -> bool {
        let (rank, context, tag) = to;
        if self.is_restricted && self.is_fenced(rank, context) {
            return false;
        }
        // The first message goes the long way, which enters the peer.
        let Some(peer) = self.peers.used_mut(rank) else { return false };
        let len = bytes.len() as u64;
        if !peer.up || !peer.queue.is_empty() || peer.credit < charge(len) || len > self.eager_limit {
            return false;
        }
        if writer.write_line(message_head(context, tag, bytes.len()), bytes) {
            peer.credit -= charge(len);
            return true;
        }
        write_record(peer, writer, now, to, bytes)
    }

    #[cold]
    #[inline(never)]
    fn is_fenced(&self, rank: Rank, context: u32) -> bool {
        self.why_fenced(rank, context).is_some()
    }

    /// Queues a send; [`Buffer::Absent`] if its `len` bytes are with the caller, who sends them by
    /// [`Tags::push`].
    pub(crate) fn send(
        &mut self,
        (rank, context, tag): (Rank, u32, u32),
        mode: Mode,
        data: Buffer,
        len: u64,
    ) -> Result<SendId, SendError> {
        let (synchronous, state) = (mode == Mode::Synchronous, SendState::Queued);
        let send = Send { to: rank, context, tag, data, len, synchronous, state, detached: false };
        let too_many = SendError::TooMany("sends whose ends nobody has taken");
        let name = self.sends.insert(send).ok_or(too_many)?;
        let fenced = self.why_fenced(rank, context);
        self.peers.add(rank);
        match self.peers.ended(rank).or(fenced) {
            Some(why) => self.end_send(name, Err(why)),
            None => {
                self.peers.get_mut(rank).into_iter().for_each(|peer| peer.queue.push_back(name));
                self.mark_busy(rank);
            }
        }
        Ok(SendId(name))
    }

    /// Returns whether a send has ended.
    #[inline]
    pub(crate) fn is_sent(&self, id: SendId) -> bool {
        self.sends.get(id.0).is_none_or(|send| matches!(send.state, SendState::Done(_)))
    }

    /// Takes the result of a send that has ended, and its bytes.
    #[inline]
    pub(crate) fn take_sent(&mut self, id: SendId) -> Option<Ended<()>> {
        let SendState::Done(result) = self.sends.get(id.0)?.state else { return None };
        Some((result, self.sends.remove(id.0)?.data))
    }

    /// Forgets a send; it goes on.
    pub(crate) fn forget_send(&mut self, id: SendId) {
        if self.take_sent(id).is_none()
            && let Some(send) = self.sends.get_mut(id.0)
        {
            send.detached = true;
        }
    }

    /// Sends bytes that are with the caller, as far as it is their turn and there is room. [`Sent::All`] if
    /// the send has ended.
    pub(crate) fn push(
        &mut self,
        writer: &mut impl RecordWriter,
        SendId(name): SendId,
        mut read: impl FnMut(u64, &mut [u8]),
    ) -> Sent {
        let Some(send) = self.sends.get(name) else { return Sent::All };
        let rank = send.to;
        let mut budget = QUANTUM;
        let sent = match send.state {
            SendState::Done(_) => return Sent::All,
            SendState::Accepted { .. } => {
                let Some(send) = self.sends.get_mut(name) else { return Sent::All };
                push_accepted(writer, send, &mut budget, &mut read)
            }
            SendState::Queued | SendState::Eager { .. } => {
                let Tags { sends, peers, eager_limit, .. } = self;
                let Some(peer) = peers.get_mut(rank).filter(|peer| peer.up) else { return Sent::Blocked };
                if peer.queue.front() != Some(&name) {
                    return Sent::Blocked;
                }
                begin(writer, sends, (peer, *eager_limit), name, &mut budget, Some(&mut read))
            }
            SendState::Announced { .. } => return Sent::Blocked,
        };
        if budget < QUANTUM {
            writer.flush();
        }
        if sent == Sent::All {
            self.settle(name, rank);
            let ended = self.is_sent(SendId(name));
            return if ended { Sent::All } else { Sent::Blocked };
        }
        sent
    }

    /// A send has done all that it can do now: it leaves the queue, and has ended unless it waits for the
    /// peer.
    fn settle(&mut self, name: Name, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(rank) {
            if peer.queue.front() == Some(&name) {
                peer.queue.pop_front();
            }
            // Those that had to wait for it try again.
            self.activity += 1;
            self.mark_busy(rank);
        }
        let state = self.sends.get(name).map(|send| send.state);
        if let Some(SendState::Accepted { .. } | SendState::Eager { .. }) = state {
            self.end_send(name, Ok(()));
        }
    }

    /// Returns whether any peer has something that waits to be sent.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    /// Returns whether a turn of the last round ended with its budget, so that another round should follow at
    /// once.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.more
    }

    /// Returns whether messages are still to be sent: what waits for room, for a channel that is being
    /// opened, or for a receive (E-18).
    pub(crate) fn has_unsent(&self) -> bool {
        let waits = |rank: &Rank| self.peers.get(*rank).is_some_and(PeerTags::has_waiting);
        self.busy.iter().any(waits) || self.unsent_sends().next().is_some()
    }

    /// Returns the messages that have not been sent, or not whole: to whom, and how many of their bytes.
    /// Those of collectives and notices do not count: they report failures themselves (E-18, N-24).
    pub(crate) fn unsent(&self) -> impl Iterator<Item = (Rank, u64)> {
        let sends = self.unsent_sends().filter(|send| !is_internal(send.context));
        sends.map(|send| (send.to, send.len - send.state.sent()))
    }

    /// The sends that go on by themselves and have bytes that have not been sent. A message of a collective
    /// that nobody receives is not waited for: the collective has failed.
    fn unsent_sends(&self) -> impl Iterator<Item = &Send> {
        let all = self.sends.names().filter_map(|name| self.sends.get(name));
        all.filter(|send| match send.state {
            _ if send.data == Buffer::Absent => false,
            SendState::Queued | SendState::Eager { .. } | SendState::Accepted { .. } => true,
            SendState::Announced { eager } => !eager && !is_internal(send.context),
            SendState::Done(_) => false,
        })
    }

    /// Starts a round of service: as many calls of [`Tags::next_busy`] and [`Tags::pump_peer`] as this
    /// returns.
    pub(crate) fn start_round(&mut self) -> usize {
        self.more = false;
        self.busy.len()
    }

    /// Returns the peer whose turn it is.
    pub(crate) fn next_busy(&mut self) -> Option<Rank> {
        let rank = self.busy.pop_front()?;
        if let Some(peer) = self.peers.get_mut(rank) {
            peer.busy = false;
        }
        Some(rank)
    }

    /// Sends a peer what waits, as far as its turn and the room go: answers, then messages that begin, then
    /// bytes that were asked for.
    pub(crate) fn pump_peer(&mut self, rank: Rank, writer: &mut impl RecordWriter) {
        if !self.peers.is_up(rank) {
            return;
        }
        let mut budget = QUANTUM;
        let sent = self.pump(rank, &mut budget, writer);
        if budget < QUANTUM {
            // It leaves, whatever batch the program has open.
            writer.flush();
            self.activity += 1;
        }
        self.more |= sent == Sent::More;
        self.mark_busy(rank);
    }

    fn pump(&mut self, rank: Rank, budget: &mut usize, writer: &mut impl RecordWriter) -> Sent {
        if !self.pump_answers(rank, budget, writer) {
            return Sent::Blocked;
        }
        let begun = self.pump_queue(rank, budget, writer);
        if begun == Sent::More {
            return Sent::More;
        }
        match (begun, self.pump_accepted(rank, budget, writer)) {
            (_, Sent::More) => Sent::More,
            (Sent::All, Sent::All) => Sent::All,
            _ => Sent::Blocked,
        }
    }

    /// Sends answers and credit. False for want of room.
    fn pump_answers(&mut self, rank: Rank, budget: &mut usize, writer: &mut impl RecordWriter) -> bool {
        let Some(peer) = self.peers.get_mut(rank) else { return true };
        while let Some(answer) = peer.answers.front() {
            if !writer.write(&answer.record(), 0, &[]) {
                return false;
            }
            peer.answers.pop_front();
            *budget = budget.saturating_sub(DATA_HEAD);
        }
        if peer.owes_credit() {
            let bytes = peer.returned;
            if !writer.write(&TagRecord::Credit { bytes }, 0, &[]) {
                return false;
            }
            (peer.charged, peer.returned) = (peer.charged - bytes, 0);
            *budget = budget.saturating_sub(DATA_HEAD);
        }
        true
    }

    /// Begins the messages of a peer's queue, in order.
    fn pump_queue(&mut self, rank: Rank, budget: &mut usize, writer: &mut impl RecordWriter) -> Sent {
        loop {
            let Tags { sends, peers, eager_limit, .. } = self;
            let Some(peer) = peers.get_mut(rank) else { return Sent::All };
            let Some(&name) = peer.queue.front() else { return Sent::All };
            if *budget == 0 {
                return Sent::More;
            }
            match begin(writer, sends, (peer, *eager_limit), name, budget, None) {
                Sent::All => self.settle(name, rank),
                sent => return sent,
            }
        }
    }

    /// Sends bytes that were asked for, of one message after the other in turns.
    fn pump_accepted(&mut self, rank: Rank, budget: &mut usize, writer: &mut impl RecordWriter) -> Sent {
        loop {
            let Some(peer) = self.peers.get_mut(rank) else { return Sent::All };
            let Some(name) = peer.accepted.pop_front() else { return Sent::All };
            let Some(send) = self.sends.get_mut(name) else { continue };
            let mut data = std::mem::replace(&mut send.data, Buffer::Absent);
            let sent = push_accepted(writer, send, budget, &mut |at, out| data.read(at, out));
            send.data = data;
            match sent {
                Sent::All => self.settle(name, rank),
                Sent::More => {
                    peer.accepted.push_back(name);
                    return sent;
                }
                Sent::Blocked => {
                    peer.accepted.push_front(name);
                    return sent;
                }
            }
        }
    }
}

/// Whether a context is one that groups use for themselves (G-1).
fn is_internal(context: u32) -> bool {
    context >> 31 == 1 && context & 3 != 0
}

/// Sends a message at once that is longer than a line, or to a channel that has no lines.
#[inline(never)]
fn write_record(
    peer: &mut PeerTags,
    writer: &mut impl RecordWriter,
    now: impl FnOnce() -> Nanos,
    (_, context, tag): (Rank, u32, u32),
    bytes: &[u8],
) -> bool {
    if EAGER_HEAD + bytes.len() > writer.record_limit() {
        return false;
    }
    let record = TagRecord::Eager { context, tag, data: &[] };
    let written = if let Some(written) = writer.write_long(message_head(context, tag, bytes.len()), bytes) {
        written
    } else if writer.is_immediate() {
        writer.write(&record, 0, bytes)
    } else {
        let written = writer.write_now(now(), &record, 0, bytes);
        // In a frame that others may share, it leaves only when that is closed; nobody else may do so.
        let shared = !written && writer.write(&record, 0, bytes);
        if shared {
            writer.flush();
        }
        written || shared
    };
    if written {
        peer.credit -= charge(bytes.len() as u64);
    }
    written
}

/// Begins or continues the first message of a peer's queue. [`Sent::All`] if it can leave the queue. `read`
/// has the bytes if they are with the caller.
fn begin(
    writer: &mut impl RecordWriter,
    sends: &mut Slab<Send>,
    (peer, eager_limit): (&mut PeerTags, u64),
    name: Name,
    budget: &mut usize,
    read: Option<Read<'_>>,
) -> Sent {
    let Some(send) = sends.get_mut(name) else { return Sent::All };
    let (len, context, tag, id) = (send.len, send.context, send.tag, name.index);
    let is_eager = matches!(send.state, SendState::Eager { .. });
    if !is_eager && (len > eager_limit || peer.credit < charge(len)) {
        // E-7: only the envelope goes.
        let envelope = Envelope { context, tag, id, total: len, bytes_follow: false, report: true };
        if peer.announced >= MAX_ENVELOPES || !writer.write(&TagRecord::Envelope(envelope), 0, &[]) {
            return Sent::Blocked;
        }
        *budget = budget.saturating_sub(DATA_HEAD);
        peer.announced += 1;
        send.state = SendState::Announced { eager: false };
        return Sent::All;
    }
    if read.is_none() && send.data == Buffer::Absent {
        // The caller, who has the bytes, sends them.
        return Sent::Blocked;
    }
    let mut data = std::mem::replace(&mut send.data, Buffer::Absent);
    let mut from_buffer = |at: u64, out: &mut [u8]| data.read(at, out);
    let read: Read<'_> = match read {
        Some(read) => read,
        None => &mut from_buffer,
    };
    let sent = push_eager(writer, send, (peer, id), budget, read);
    send.data = data;
    sent
}

/// Sends an eager message, or the rest of it.
fn push_eager(
    writer: &mut impl RecordWriter,
    send: &mut Send,
    (peer, id): (&mut PeerTags, u32),
    budget: &mut usize,
    read: Read<'_>,
) -> Sent {
    let (len, context, tag) = (send.len, send.context, send.tag);
    if matches!(send.state, SendState::Queued) {
        if !send.synchronous && EAGER_HEAD as u64 + len <= writer.record_limit() as u64 {
            let record = TagRecord::Eager { context, tag, data: &[] };
            if !writer.write_with(&record, 0, len as usize, |out| read(0, out)) {
                return Sent::Blocked;
            }
            peer.credit -= charge(len);
            *budget = budget.saturating_sub(EAGER_HEAD + len as usize);
            send.state = SendState::Eager { sent: len };
            return Sent::All;
        }
        let report = send.synchronous;
        let envelope = Envelope { context, tag, id, total: len, bytes_follow: true, report };
        if !writer.write(&TagRecord::Envelope(envelope), 0, &[]) {
            return Sent::Blocked;
        }
        peer.credit -= charge(len);
        *budget = budget.saturating_sub(DATA_HEAD);
        send.state = SendState::Eager { sent: 0 };
    }
    let SendState::Eager { sent } = &mut send.state else { return Sent::All };
    let pushed = push_bytes(writer, (ANNOUNCED, len), sent, budget, read);
    if pushed == Sent::All && send.synchronous {
        send.state = SendState::Announced { eager: true };
    }
    pushed
}

/// Sends bytes that a receive has asked for.
fn push_accepted(
    writer: &mut impl RecordWriter,
    send: &mut Send,
    budget: &mut usize,
    read: Read<'_>,
) -> Sent {
    let SendState::Accepted { to, len, sent } = &mut send.state else { return Sent::All };
    push_bytes(writer, (*to, *len), sent, budget, read)
}

/// Sends the bytes of a message from `sent` on, lent or copied, as far as the turn and the room go.
fn push_bytes(
    writer: &mut impl RecordWriter,
    (to, len): (u64, u64),
    sent: &mut u64,
    budget: &mut usize,
    read: Read<'_>,
) -> Sent {
    while *sent < len {
        if *budget == 0 {
            return Sent::More;
        }
        let (at, left) = (*sent, len - *sent);
        let lent = writer.lend_limit(len, left).and_then(|limit| {
            let part = left.min(limit as u64) as usize;
            let record = |extent| TagRecord::LoanedData { to, at, extent };
            Some((writer.lend_part((part, 0), record, |out| read(at, out))?, part))
        });
        let (written, part) = lent.unwrap_or_else(|| {
            let part = left.min(writer.part_limit(Class::Tags, DATA_HEAD, left) as u64) as usize;
            let record = TagRecord::Data { to, at, data: &[] };
            (writer.write_with(&record, 0, part, |out| read(at, out)), part)
        });
        if !written {
            return Sent::Blocked;
        }
        *sent += part as u64;
        *budget = budget.saturating_sub(DATA_HEAD + part);
    }
    Sent::All
}
