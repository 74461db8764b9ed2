//! Puts of the program's own bytes, straight from where they are.

use tautline_link::Nanos;
use tautline_wire::memory::{Memory as Message, PART_HEAD, PUT_HEAD, Target, put_words};

use super::slab::Name;
use super::tables::{Cookie, Hint};
use crate::lane::Lane;
use crate::limits::{ASK_EVERY, MAX_UNANSWERED};
use crate::{PeerId, Rank, SendError};

/// Bytes of a part of a put to a peer on this host: it copies them out while the next ones are copied in.
const NEAR_PART: usize = 16 << 10;

/// How far a put of the program's own bytes has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    pub(crate) id: Option<u32>,
    pub(crate) sent: usize,
    pub(crate) incarnation: u32,
    /// What was learnt of the number under which the owner knows the cookie: a hint for the next put with this cookie.
    pub hint: Hint,
}

impl Progress {
    /// Whether part of it has been sent.
    pub fn is_begun(&self) -> bool {
        self.id.is_some()
    }

    /// Of a put that has not begun.
    pub fn with_hint(hint: Hint) -> Progress {
        Progress { hint, ..Progress::default() }
    }
}

impl Lane {
    /// Sends the next part of a put of which `left` bytes are to be sent, as many of them as go together; `fill` writes them. How many; nothing for want of room.
    #[inline]
    pub(crate) fn emit_part(
        &mut self,
        rank: Rank,
        (first, target, flags): (bool, Target, u8),
        (cookie, whole, left): (&Cookie, u64, u64),
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<usize> {
        let mut fill = Some(fill);
        if let Some(most) = self.writer(rank).lend_limit(whole, left) {
            let len = cookie.part(target.at, most, left);
            let filled = |room: &mut [u8]| {
                if let Some(fill) = fill.take() {
                    fill(room);
                }
            };
            if let Some(sent) = self.writer(rank).lend_part((target, left - len as u64, flags), len, filled) {
                return sent.then_some(len);
            }
        }
        let len = cookie.part(target.at, self.writer(rank).part_limit(PART_HEAD, left), left);
        let message = part(first, target, left - len as u64);
        self.writer(rank).write_with(&message, flags, len, fill?).then_some(len)
    }

    /// Puts the program's own bytes, as many as there is room for; true if that is all of them. The first time it takes a number.
    #[inline]
    pub(crate) fn put_bytes(
        &mut self,
        now: Nanos,
        (cookie, at): (&Cookie, u64),
        bytes: &[u8],
        op: Option<Name>,
        progress: &mut Progress,
    ) -> Result<bool, SendError> {
        let rank = cookie.owner;
        let bytes = &bytes[..within(at, bytes.len())];
        self.reach(now, rank)?;
        if progress.id.is_none() {
            let memory = &self.peers.member(rank).memory;
            if memory.half.is_some() || !memory.queue.is_empty() {
                self.service(now);
                return Err(SendError::WouldBlock);
            }
            if PUT_HEAD + bytes.len() <= self.writer(rank).record_limit() {
                return self.put_whole(now, (cookie, at), bytes, op, progress).map(|()| true);
            }
            progress.incarnation = self.peers.member(rank).incarnation;
        } else {
            self.check(PeerId::new(rank, progress.incarnation))?;
        }
        self.put_parts(now, (cookie, at), bytes.len(), op, progress, |sent, room| {
            room.copy_from_slice(&bytes[sent..sent + room.len()]);
        })
    }

    /// As [`Lane::put_bytes`], with bytes that `fill` writes straight to where they are sent from: it is given how far the put has come, and room. What is
    /// refused for want of room is asked for again.
    pub(crate) fn put_filled(
        &mut self,
        now: Nanos,
        (cookie, at): (&Cookie, u64),
        len: usize,
        progress: &mut Progress,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<bool, SendError> {
        let rank = cookie.owner;
        let len = within(at, len);
        self.reach(now, rank)?;
        if progress.id.is_none() {
            let memory = &self.peers.member(rank).memory;
            if memory.half.is_some() || !memory.queue.is_empty() {
                self.service(now);
                return Err(SendError::WouldBlock);
            }
            progress.incarnation = self.peers.member(rank).incarnation;
        } else {
            self.check(PeerId::new(rank, progress.incarnation))?;
        }
        self.put_parts(now, (cookie, at), len, None, progress, fill)
    }

    /// A whole put to a peer on this host, as one frame, and if it is small as one line: all that happens to most of them. False, with
    /// nothing done, if it takes more than that.
    #[inline]
    pub(crate) fn put_inline(&mut self, cookie: &Cookie, at: u64, bytes: &[u8], hint: Hint) -> bool {
        const HEAD: usize = PUT_HEAD;
        let rank = cookie.owner;
        if self.port.closed || HEAD + bytes.len() > NEAR_PART {
            return false;
        }
        let Some(peer) = self.peers.get_mut(rank) else { return false };
        let memory = &mut peer.memory;
        let id = memory.sent.wrapping_add(1);
        let Some(handle) = memory.hinted(peer.incarnation, cookie, hint) else { return false };
        let clear = memory.half.is_none()
            && memory.queue.is_empty()
            && id.wrapping_sub(memory.asked) < ASK_EVERY
            && memory.sent.wrapping_sub(memory.done) < MAX_UNANSWERED;
        if !clear {
            return false;
        }
        let target = Target { handle, id, at };
        let head = put_words(target, 0, bytes.len());
        let sent =
            crate::channel::ChannelWriter::new(&mut peer.channel, &mut self.port).push_put(head, bytes);
        memory.sent = if sent { id } else { memory.sent };
        sent
    }

    /// Bytes of the longest put that goes in one record.
    pub(crate) fn put_limit(&mut self, rank: Rank) -> usize {
        self.writer(rank).record_limit() - PUT_HEAD
    }

    #[inline]
    fn put_whole(
        &mut self,
        now: Nanos,
        (cookie, at): (&Cookie, u64),
        bytes: &[u8],
        op: Option<Name>,
        progress: &mut Progress,
    ) -> Result<(), SendError> {
        let rank = cookie.owner;
        let blocked = |it: &mut Lane| {
            it.service(now);
            Err(SendError::WouldBlock)
        };
        let Some((id, flags)) = self.next_request(rank, self.asks(op)) else { return blocked(self) };
        let Some(handle) = self.show(cookie, progress.hint) else { return blocked(self) };
        progress.hint = self.hint_of(cookie, handle);
        let message = Message::Put(Target { handle, id, at }, &[]);
        if self.writer(rank).write_now(now, &message, flags, bytes) {
            self.began(rank, (id, flags), op.map(|op| (op, 0)), false);
            return Ok(());
        }
        if !self.writer(rank).write(&message, flags, bytes) {
            return blocked(self);
        }
        self.began(rank, (id, flags), op.map(|op| (op, 0)), false);
        self.send_now(now, rank);
        Ok(())
    }

    fn put_parts(
        &mut self,
        now: Nanos,
        (cookie, at): (&Cookie, u64),
        whole: usize,
        op: Option<Name>,
        progress: &mut Progress,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<bool, SendError> {
        let rank = cookie.owner;
        loop {
            let first = progress.id.is_none();
            let next = match progress.id {
                Some(id) => Some((id, self.flags_of(rank, id))),
                None => self.next_request(rank, self.asks(op)),
            };
            let shown = next.and_then(|next| Some((next, self.show(cookie, progress.hint)?)));
            let sent = progress.sent;
            let Some(((id, flags), handle)) = shown else { break };
            progress.hint = self.hint_of(cookie, handle);
            let target = Target { handle, id, at: at + sent as u64 };
            let left = (whole - sent) as u64;
            let part = self.emit_part(rank, (first, target, flags), (cookie, whole as u64, left), |room| {
                fill(sent, room);
            });
            let Some(len) = part else { break };
            if first {
                self.began(rank, (id, flags), op.map(|op| (op, 0)), false);
                (progress.id, self.peers.member_mut(rank).memory.half) = (Some(id), Some(id));
            }
            progress.sent += len;
            if progress.sent == whole {
                self.peers.member_mut(rank).memory.half = None;
                // Others may have waited for their turn.
                self.port.activity += 1;
                self.send_now(now, rank);
                return Ok(true);
            }
            if self.peers.member(rank).channel.has_long_train() {
                self.service(now);
            }
        }
        self.send_now(now, rank);
        Ok(false)
    }

    /// A put that was begun piece by piece is not continued: the owner drops it when the next request comes.
    pub(crate) fn abandon_put(&mut self, rank: Rank, progress: &Progress) {
        // Any bytes make a cookie: its owner may be nobody.
        let Some(peer) = self.peers.get_mut(rank) else { return };
        if peer.incarnation == progress.incarnation && progress.id.is_some() {
            let memory = &mut peer.memory;
            memory.half = None;
            if Some(memory.asked) == progress.id {
                // The owner never tells of its end; it has to be asked again.
                memory.asked = memory.asked.wrapping_sub(1);
            }
            self.port.activity += 1;
            if !peer.memory.queue.is_empty() {
                self.mark_busy(rank);
            }
        }
    }
}

/// Bytes of a put that are worth sending: none if their places cannot be counted; no owner has such, and it will say so.
fn within(at: u64, len: usize) -> usize {
    if at.checked_add(len as u64).is_some() { len } else { 0 }
}

/// A put's record: all of it, or a part.
#[inline]
pub(crate) fn part(first: bool, target: Target, rest: u64) -> Message<'static> {
    if first && rest == 0 { Message::Put(target, &[]) } else { Message::Part(target, rest, &[]) }
}
