//! Messages that are begun, continued and ended (M-3, M-6).

use tautline_link::Nanos;
use tautline_wire::record::{self, LONG_LEN};

use crate::interface::Interface;
use crate::limits::MAX_BEGUN;
use crate::{MessageId, PeerId, PeerState, Rank, SendError};

/// Bytes that are worth a system call of their own.
const TRAIN: usize = 60_000;

impl Interface {
    /// The beginning of a message (M-3); returns its number.
    pub(crate) fn begin(&mut self, rank: Rank, handler: u16, total: u64) -> Result<u32, SendError> {
        if self.peers[rank as usize].begun == MAX_BEGUN {
            return Err(SendError::TooMany("messages to this rank that are begun and not ended; end one"));
        }
        self.open_slot(rank, LONG_LEN + usize::from(total > 0))?;
        let peer = &mut self.peers[rank as usize];
        peer.begun += 1;
        let message = peer.next_message;
        peer.next_message = message.wrapping_add(1);
        let first_window = peer.peering.link().map_or(u64::MAX, |l| u64::from(l.peer().message_window));
        let first_window = peer.near.as_ref().map_or(first_window, |near| near.window.into());
        let first_window =
            if rank == self.rank { u64::from(self.config.link.message_window) } else { first_window };
        if total > first_window {
            peer.windows.insert(message, first_window);
        }
        let open = peer.open.as_mut().expect("opened above");
        let at = open.used;
        let room = &mut self.device.arena().payload_mut(open.slot)[at..open.capacity];
        open.used += record::write::first(room, handler, message, total, 0);
        open.tail = Some((message, at));
        Ok(message)
    }

    /// Adds as many of a piece's `len` bytes as there is room for and returns how many; zero means: wait. `fill` writes
    /// them in place: it is given how far the piece has come, and room.
    #[inline]
    pub(crate) fn add_with(
        &mut self,
        now: Nanos,
        rank: Rank,
        message: u32,
        offset: u64,
        len: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> usize {
        let mut len = len;
        if let Some(limit) = self.peers[rank as usize].windows.get(&message) {
            len = len.min(limit.saturating_sub(offset) as usize);
        }
        let mut done = 0;
        while done < len {
            let Some((at, room)) = self.grow(rank, message, offset + done as u64, len - done) else { break };
            let slot = self.peers[rank as usize].open.as_ref().expect("grown above").slot;
            fill(done, &mut self.device.arena().payload_mut(slot)[at..at + room]);
            done += room;
            if self.train_is_long(rank) {
                self.service(now);
            }
        }
        done
    }

    /// Enough slots wait for one system call's worth of frames.
    #[inline]
    pub(crate) fn train_is_long(&self, rank: Rank) -> bool {
        let peer = &self.peers[rank as usize];
        let capacity = peer.open.as_ref().map_or(1, |o| o.capacity);
        peer.peering.link().is_some_and(|l| l.waiting() >= (TRAIN / capacity).clamp(1, 64))
    }

    /// Whether a message begun with `incarnation` of a peer can still go on.
    #[inline]
    pub fn check(&self, PeerId { rank, incarnation }: PeerId) -> Result<(), SendError> {
        let peer = self.peers.get(rank as usize).ok_or(SendError::NoSuchPeer(rank))?;
        match peer.state {
            _ if self.closed => Err(SendError::Closed),
            PeerState::Up if peer.incarnation == incarnation => Ok(()),
            PeerState::Down(why) => Err(SendError::PeerGone(rank, why)),
            _ => Err(SendError::PeerGone(rank, crate::Down::Died(tautline_link::Death::Restarted))),
        }
    }

    /// Whether a peer closed after all that was written for it had left: it may have taken it.
    pub(crate) fn had_left(&self, PeerId { rank, incarnation }: PeerId) -> bool {
        let closed = PeerState::Down(crate::Down::Closed);
        self.peers.get(rank as usize).is_some_and(|peer| {
            (peer.state, peer.incarnation) == (closed, incarnation) && peer.all_left && !self.closed
        })
    }

    /// The message has ended; its window is of no more interest.
    pub(crate) fn forget(&mut self, rank: Rank, message: u32) {
        let peer = &mut self.peers[rank as usize];
        peer.windows.remove(&message);
        peer.begun = peer.begun.saturating_sub(1);
    }

    /// Makes room for up to `want` more bytes of a message in the open slot, or in a new one; returns where and how much.
    #[inline]
    fn grow(&mut self, rank: Rank, message: u32, offset: u64, want: usize) -> Option<(usize, usize)> {
        let tail =
            self.peers[rank as usize].open.as_ref().filter(|o| o.used < o.capacity).and_then(|o| o.tail);
        let continues = tail.is_some_and(|(m, _)| m == message);
        if !continues {
            self.open_slot(rank, LONG_LEN + 1).ok()?;
        }
        let open = self.peers[rank as usize].open.as_mut().expect("there is one now");
        let room = &mut self.device.arena().payload_mut(open.slot)[..open.capacity];
        let head = match open.tail {
            Some((m, head)) if m == message && continues => head,
            _ => {
                let head = open.used;
                open.used += record::write::more(&mut room[head..], message, offset, 0);
                open.tail = Some((message, head));
                head
            }
        };
        let at = open.used;
        let take = want.min(open.capacity - at);
        open.used += take;
        record::write::set_len(&mut room[head..], open.used - head - LONG_LEN);
        Some((at, take))
    }

    /// The message will not be completed (M-6). Refused for want of room: try again.
    pub(crate) fn abort(&mut self, rank: Rank, message: u32) -> Result<(), SendError> {
        self.open_slot(rank, LONG_LEN)?;
        self.forget(rank, message);
        let open = self.peers[rank as usize].open.as_mut().expect("opened above");
        let room = &mut self.device.arena().payload_mut(open.slot)[open.used..open.capacity];
        open.used += record::write::abort(room, message);
        open.tail = None;
        Ok(())
    }

    /// Gives a message up; its receiver is told now or, if there is no room, as soon as there is (M-6).
    pub(crate) fn give_up(&mut self, to: MessageId) {
        self.aborts.push_back(to);
        self.retry_aborts();
    }

    #[cold]
    pub(crate) fn retry_aborts(&mut self) {
        for _ in 0..self.aborts.len() {
            let Some(to) = self.aborts.pop_front() else { break };
            if self.check(to.peer).is_err() {
                continue;
            }
            let rank = to.peer.rank;
            match self.abort(rank, to.number) {
                Err(_) => self.aborts.push_back(to),
                Ok(()) if self.batch_depth == 0 && (rank == self.rank || self.is_local(rank)) => {
                    self.close_slot(rank);
                }
                Ok(()) => self.mark_dirty(rank),
            }
        }
    }

    /// Lets the peer send up to `limit` bytes of a message (M-5). False if that must be tried again.
    pub(crate) fn grant_window(&mut self, rank: Rank, message: u32, limit: u64) -> bool {
        let mut bytes = [0; LONG_LEN];
        record::write::window(&mut bytes, message, limit);
        self.push_control(rank, &bytes, true)
    }
}
