//! Puts of the program's own bytes, straight from where they are.

use tautline_device::Channel as _;
use tautline_device::shm::{LINE_FRAME, LINE_WORDS, Shm};
use tautline_link::Nanos;
use tautline_wire::memory::{Memory as Message, PART_HEAD, PUT_HEAD, Target};

use super::slab::Name;
use super::tables::Cookie;
use crate::interface::Interface;
use crate::limits::{ASK_EVERY, MAX_UNANSWERED};
use crate::{Rank, SendError};

/// Bytes of a part of a put to a peer on this host: it copies them out while the next ones are copied in.
const NEAR_PART: usize = 16 << 10;
/// A slot with less room than this is not worth beginning a part in.
const LEAST_PART: usize = 256;

/// How far a put of the program's own bytes has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    pub(crate) id: Option<u32>,
    pub(crate) sent: usize,
    pub(crate) incarnation: u32,
    /// The number under which the owner knows the cookie: a hint for the next put.
    pub hint: u32,
}

impl Progress {
    /// Whether part of it has been sent.
    pub fn is_begun(&self) -> bool {
        self.id.is_some()
    }

    /// Of a put that has not begun.
    pub fn with_hint(hint: u32) -> Progress {
        Progress { hint, ..Progress::default() }
    }
}

impl Interface {
    /// How many of `left` bytes the next part of a put shall have.
    #[inline]
    pub(crate) fn part_len(&self, rank: Rank, left: u64) -> usize {
        let peer = &self.peers[rank as usize];
        let most = if peer.near.is_some() && self.batch_depth == 0 {
            NEAR_PART
        } else {
            let fresh = self.capacity(peer) - PART_HEAD;
            let open = peer.open.as_ref().filter(|open| open.memory);
            let here = open.map_or(0, |open| (open.capacity - open.used).saturating_sub(PART_HEAD));
            if here >= LEAST_PART || here as u64 >= left { here } else { fresh }
        };
        (most as u64).min(left) as usize
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
            let memory = &self.peers[rank as usize].memory;
            if memory.half.is_some() || !memory.queue.is_empty() {
                self.service(now);
                return Err(SendError::WouldBlock);
            }
            if PUT_HEAD + bytes.len() <= self.whole_limit(rank) {
                return self.put_whole(now, (cookie, at), bytes, op, progress).map(|()| true);
            }
            progress.incarnation = self.peers[rank as usize].incarnation;
        } else {
            self.check(rank, progress.incarnation)?;
        }
        self.put_parts(now, (cookie, at), bytes.len(), op, progress, |it, message, flags, (sent, len)| {
            it.emit(rank, message, flags, &bytes[sent..sent + len])
        })
    }

    /// As [`Interface::put_bytes`], with bytes that `fill` writes straight to where they are sent from: it is given how far the put has come, and room. What is
    /// refused for want of room is asked for again.
    pub(crate) fn put_filled(
        &mut self,
        now: Nanos,
        (cookie, at): (&Cookie, u64),
        len: usize,
        progress: &mut Progress,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<bool, SendError> {
        let rank = cookie.owner;
        let len = within(at, len);
        self.reach(now, rank)?;
        if progress.id.is_none() {
            let memory = &self.peers[rank as usize].memory;
            if memory.half.is_some() || !memory.queue.is_empty() {
                self.service(now);
                return Err(SendError::WouldBlock);
            }
            progress.incarnation = self.peers[rank as usize].incarnation;
        } else {
            self.check(rank, progress.incarnation)?;
        }
        self.put_parts(now, (cookie, at), len, None, progress, |it, message, flags, (sent, len)| {
            it.emit_with(rank, message, flags, len, |room| fill(sent, room))
        })
    }

    /// A whole put to a peer on this host, as one frame, and if it is small as one line: all that happens to most of them. False, with
    /// nothing done, if it takes more than that.
    #[inline]
    pub(crate) fn near_put(&mut self, cookie: &Cookie, at: u64, bytes: &[u8], hint: u32) -> bool {
        const HEAD: usize = PUT_HEAD;
        let rank = cookie.owner;
        if self.batch_depth > 0 || self.closed || HEAD + bytes.len() > NEAR_PART {
            return false;
        }
        let Some(peer) = self.peers.get_mut(rank as usize) else { return false };
        let memory = &mut peer.memory;
        let id = memory.sent.wrapping_add(1);
        let Some(near) = &mut peer.near else { return false };
        let clear = peer.open.is_none()
            && memory.half.is_none()
            && memory.queue.is_empty()
            && memory.opened.get(hint as usize) == Some(&cookie.key())
            && id.wrapping_sub(memory.asked) < ASK_EVERY
            && memory.sent.wrapping_sub(memory.done) < MAX_UNANSWERED;
        if !clear {
            return false;
        }
        let target = Target { handle: hint, id, at };
        if HEAD + bytes.len() > LINE_FRAME {
            let sent = push_put(&mut near.shm, target, bytes);
            memory.sent = if sent { id } else { memory.sent };
            return sent;
        }
        let mut line = [0; LINE_FRAME];
        Message::Put(target, &[]).write(&mut line, 0, bytes.len());
        line[HEAD..HEAD + bytes.len()].copy_from_slice(bytes);
        let mut words = [0; LINE_WORDS];
        for (word, bytes) in words.iter_mut().zip(line.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        if !near.shm.push_line(&words, HEAD + bytes.len()) {
            return false;
        }
        memory.sent = id;
        true
    }

    /// Bytes of the longest put, head and all, that goes in one record.
    fn whole_limit(&self, rank: Rank) -> usize {
        let peer = &self.peers[rank as usize];
        if peer.near.is_some() && self.batch_depth == 0 { NEAR_PART } else { self.capacity(peer) }
    }

    /// Bytes of the longest put that goes in one record.
    pub(crate) fn put_limit(&self, rank: Rank) -> usize {
        self.whole_limit(rank) - PUT_HEAD
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
        let blocked = |it: &mut Interface| {
            it.service(now);
            Err(SendError::WouldBlock)
        };
        let Some((id, flags)) = self.next_request(rank, self.asks(op)) else { return blocked(self) };
        let Some(handle) = self.show(cookie, progress.hint) else { return blocked(self) };
        progress.hint = handle;
        let message = Message::Put(Target { handle, id, at }, &[]);
        if self.express_memory(now, rank, &message, flags, bytes) {
            self.began(rank, (id, flags), op.map(|op| (op, 0)), false);
            return Ok(());
        }
        if !self.emit(rank, &message, flags, bytes) {
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
        len: usize,
        op: Option<Name>,
        progress: &mut Progress,
        mut emit: impl FnMut(&mut Interface, &Message<'_>, u8, (usize, usize)) -> bool,
    ) -> Result<bool, SendError> {
        let whole = len;
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
            progress.hint = handle;
            let len = self.part_len(rank, (whole - sent) as u64);
            let rest = (whole - sent - len) as u64;
            let target = Target { handle, id, at: at + sent as u64 };
            if !emit(self, &part(first, target, rest), flags, (sent, len)) {
                break;
            }
            if first {
                self.began(rank, (id, flags), op.map(|op| (op, 0)), false);
                (progress.id, self.peers[rank as usize].memory.half) = (Some(id), Some(id));
            }
            progress.sent += len;
            if rest == 0 {
                self.peers[rank as usize].memory.half = None;
                // Others may have waited for their turn.
                self.activity += 1;
                self.send_now(now, rank);
                return Ok(true);
            }
            if self.train_is_long(rank) {
                self.service(now);
            }
        }
        self.send_now(now, rank);
        Ok(false)
    }

    /// A put that was begun piece by piece is not continued: the owner drops it when the next request comes.
    pub(crate) fn abandon_put(&mut self, rank: Rank, progress: &Progress) {
        // Any bytes make a cookie: its owner may be nobody.
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        if peer.incarnation == progress.incarnation && progress.id.is_some() {
            peer.memory.half = None;
            self.activity += 1;
            if !peer.memory.queue.is_empty() {
                self.mark_busy(rank);
            }
        }
    }
}

/// A whole put that is longer than a line. False for want of room.
#[inline(never)]
fn push_put(shm: &mut Shm, target: Target, bytes: &[u8]) -> bool {
    let mut head = [0; PUT_HEAD];
    Message::Put(target, &[]).write(&mut head, 0, bytes.len());
    let sent = shm.push(&head, bytes).is_ok();
    shm.flush();
    sent
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
