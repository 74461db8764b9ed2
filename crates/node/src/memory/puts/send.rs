//! The requester's half of a put: the program's bytes, straight from where they are.

use tautline_link::Nanos;
use tautline_wire::memory::{MemoryRecord as Message, PART_HEAD, PUT_HEAD, Target, put_head};
use tautline_wire::record::Class;

use super::super::Memory;
use super::super::cookie::Cookie;
use super::super::ids::Ticket;
use super::super::operations::Completion;
use super::super::shown::Hint;
use super::super::writer::RecordWriter;
use crate::{PeerId, Rank};

/// How much of a put of the program's own bytes has been sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    id: Option<u32>,
    sent: usize,
    incarnation: u32,
    /// What is known of the owner's handle for the cookie: a hint for the next put with this cookie.
    pub hint: Hint,
}

impl Progress {
    /// Returns whether part of it has been sent.
    pub fn is_begun(&self) -> bool {
        self.id.is_some()
    }

    /// Creates the progress of a put that has not begun.
    pub fn with_hint(hint: Hint) -> Progress {
        Progress { hint, ..Progress::default() }
    }

    /// Returns the incarnation of `owner` with which it was begun. It can continue with no other.
    pub(crate) fn begun_with(&self, owner: Rank) -> Option<PeerId> {
        self.id.map(|_| PeerId::new(owner, self.incarnation))
    }
}

/// What became of an attempt to put bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutStatus {
    /// All of it has left.
    Sent,
    /// All of it is written, and may lie in a frame that is not closed.
    Written,
    /// There is no room for the next part. What was written may lie in a frame that is not closed.
    NoRoom,
    /// Enough frames wait to leave; the caller lets them leave and tries again.
    Paused,
    /// Nothing is written: it must wait for other requests, for answers or for room.
    Blocked,
}

/// The next part of a put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Whether none was sent before.
    pub(crate) first: bool,
    pub(crate) target: Target,
    pub(crate) flags: u8,
    /// Bytes of the put.
    pub(crate) whole: u64,
    /// Bytes that remain, this part included.
    pub(crate) left: u64,
}

/// Writes the next part of a put, as many bytes as go together, which `fill` writes. Returns how many;
/// None for want of room.
#[inline]
pub(crate) fn write_part(
    writer: &mut impl RecordWriter,
    cookie: &Cookie,
    Part { first, target, flags, whole, left }: Part,
    fill: impl FnOnce(&mut [u8]),
) -> Option<usize> {
    let mut fill = Some(fill);
    if let Some(limit) = writer.lend_limit(whole, left) {
        let len = cookie.part(target.at, limit, left);
        let fill = |room: &mut [u8]| {
            if let Some(fill) = fill.take() {
                fill(room);
            }
        };
        if let Some(lent) = writer.lend_part(
            (len, flags),
            |extent| Message::LoanedPart(target, left - len as u64, extent),
            fill,
        ) {
            return lent.then_some(len);
        }
    }
    let len = cookie.part(target.at, writer.part_limit(Class::Memory, PART_HEAD, left), left);
    let rest = left - len as u64;
    let message =
        if first && rest == 0 { Message::Put(target, &[]) } else { Message::Part(target, rest, &[]) };
    writer.write_with(&message, flags, len, fill?).then_some(len)
}

/// Returns how many bytes of a put are worth sending: none if their places overflow. No aperture has such
/// places, so the owner refuses the put.
fn countable(at: u64, len: usize) -> usize {
    if at.checked_add(len as u64).is_some() { len } else { 0 }
}

impl Memory {
    /// Puts the program's own bytes, as many as there is room for. The first time it takes a number. The lane
    /// has checked that the owner can be reached, in the incarnation of [`Progress::begun_with`].
    #[inline]
    pub(crate) fn put_bytes(
        &mut self,
        writer: &mut impl RecordWriter,
        now: Nanos,
        (cookie, at): (&Cookie, u64),
        bytes: &[u8],
        ticket: Option<Ticket>,
        progress: &mut Progress,
    ) -> PutStatus {
        let bytes = &bytes[..countable(at, bytes.len())];
        if progress.id.is_none() && PUT_HEAD + bytes.len() <= writer.record_limit() {
            return self.put_whole(writer, now, (cookie, at), bytes, ticket, progress);
        }
        self.put_parts(writer, (cookie, at), bytes.len(), ticket, progress, |sent, room| {
            room.copy_from_slice(&bytes[sent..sent + room.len()]);
        })
    }

    /// As [`Memory::put_bytes`], with bytes that `fill` writes to where they are sent from. It is given the
    /// number of bytes that were sent, and room. It is called again for bytes for which there was no room.
    pub(crate) fn put_filled(
        &mut self,
        writer: &mut impl RecordWriter,
        (cookie, at): (&Cookie, u64),
        len: usize,
        progress: &mut Progress,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> PutStatus {
        self.put_parts(writer, (cookie, at), countable(at, len), None, progress, fill)
    }

    /// Puts bytes as one plain record whose head and data `push` sends; false if it could not. This is all
    /// that most puts to a peer on this host need. False, with nothing done, if the put needs more.
    #[inline(always)]
    pub(crate) fn put_inline(
        &mut self,
        (cookie, at): (&Cookie, u64),
        bytes: &[u8],
        hint: Hint,
        push: impl FnOnce([u64; PUT_HEAD / 8], &[u8]) -> bool,
    ) -> bool {
        let Some(peer) = self.peers.get_mut(cookie.owner) else { return false };
        let requests = &mut peer.requests;
        let Some(handle) = requests.cookies.hinted(peer.id.incarnation, cookie, hint) else { return false };
        let Some(id) = requests.next_plain() else { return false };
        let sent = push(put_head(Target { handle, id, at }, 0, bytes.len()), bytes);
        requests.sent = if sent { id } else { requests.sent };
        sent
    }

    #[inline]
    fn put_whole(
        &mut self,
        writer: &mut impl RecordWriter,
        now: Nanos,
        (cookie, at): (&Cookie, u64),
        bytes: &[u8],
        ticket: Option<Ticket>,
        progress: &mut Progress,
    ) -> PutStatus {
        let op = ticket.map(|ticket| ticket.0);
        let Some(peer) = self.peers.get_mut(cookie.owner) else { return PutStatus::Blocked };
        let (requests, incarnation) = (&mut peer.requests, peer.id.incarnation);
        if requests.must_wait() {
            return PutStatus::Blocked;
        }
        let Some((id, flags)) = requests.next(self.operations.asks(op)) else { return PutStatus::Blocked };
        let shown = requests.cookies.show(incarnation, cookie, progress.hint, writer);
        let Some(handle) = shown else { return PutStatus::Blocked };
        progress.hint = requests.cookies.hint_of(incarnation, handle);
        let message = Message::Put(Target { handle, id, at }, &[]);
        let status = if writer.write_now(now, &message, flags, bytes) {
            PutStatus::Sent
        } else if writer.write(&message, flags, bytes) {
            PutStatus::Written
        } else {
            return PutStatus::Blocked;
        };
        requests.note_begun((id, flags), op.map(|op| (op, 0)), false);
        status
    }

    fn put_parts(
        &mut self,
        writer: &mut impl RecordWriter,
        (cookie, at): (&Cookie, u64),
        whole: usize,
        ticket: Option<Ticket>,
        progress: &mut Progress,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> PutStatus {
        let op = ticket.map(|ticket| ticket.0);
        let Some(peer) = self.peers.get_mut(cookie.owner) else { return PutStatus::Blocked };
        let (requests, incarnation) = (&mut peer.requests, peer.id.incarnation);
        if progress.id.is_none() {
            if requests.must_wait() {
                return PutStatus::Blocked;
            }
            progress.incarnation = incarnation;
        }
        loop {
            let first = progress.id.is_none();
            let next = match progress.id {
                Some(id) => Some((id, requests.flags_of(id))),
                None => requests.next(self.operations.asks(op)),
            };
            let Some((id, flags)) = next else { return PutStatus::NoRoom };
            let shown = requests.cookies.show(incarnation, cookie, progress.hint, writer);
            let Some(handle) = shown else { return PutStatus::NoRoom };
            progress.hint = requests.cookies.hint_of(incarnation, handle);
            let sent = progress.sent;
            let target = Target { handle, id, at: at + sent as u64 };
            let (left, whole_len) = ((whole - sent) as u64, whole as u64);
            let part = Part { first, target, flags, whole: whole_len, left };
            let written = write_part(writer, cookie, part, |room| fill(sent, room));
            let Some(len) = written else { return PutStatus::NoRoom };
            if first {
                requests.note_begun((id, flags), op.map(|op| (op, 0)), false);
                (progress.id, requests.unfinished_put) = (Some(id), Some(id));
            }
            progress.sent += len;
            if progress.sent == whole {
                requests.unfinished_put = None;
                // Other requests may have waited for its end.
                self.activity += 1;
                return PutStatus::Written;
            }
            if writer.has_full_train() {
                return PutStatus::Paused;
            }
        }
    }

    /// Returns the operation of puts that end together, of which `left` remain, the next one included; a new
    /// one if there is no `ticket` yet. None if there are too many operations.
    pub(crate) fn operation_of_puts(&mut self, ticket: Option<Ticket>, left: usize) -> Option<Ticket> {
        let op = match ticket {
            Some(ticket) => ticket.0,
            None => self.operations.start(left, Completion::Polled)?,
        };
        self.operations.set_asks(op, left == 1);
        Some(Ticket(op))
    }

    /// Gives up a put that was begun in parts. The owner drops it when the next request arrives.
    pub(crate) fn abandon_put(&mut self, owner: Rank, progress: &Progress) {
        let Some(peer) = self.peers.get_mut(owner) else { return };
        if peer.id.incarnation != progress.incarnation || progress.id.is_none() {
            return;
        }
        let requests = &mut peer.requests;
        requests.unfinished_put = None;
        if Some(requests.asked) == progress.id {
            // The owner never reports its end, so another report is needed.
            requests.asked = requests.asked.wrapping_sub(1);
        }
        self.activity += 1;
        if !requests.queue.is_empty() {
            self.mark_busy(owner);
        }
    }
}
