//! Sending: whole messages, messages piece by piece, batches.

use super::Endpoint;
use crate::membership::Key;
use crate::wait::Guard;
use crate::{MessageId, Rank, SendError};

impl Endpoint {
    /// Gives a name the key by which this node sends to it; the same name gives the same key.
    pub fn key(&self, name: &str) -> Result<Key, SendError> {
        self.with(|lane| {
            if let Some(key) = lane.names.find(name) {
                return key;
            }
            let key = lane.names.insert(name);
            lane.peers.iter_mut().for_each(|peer| peer.handlers.add_key(key, name));
            key
        })
    }

    /// Messages to this handler are not reported when the node closes (N-24): for messages of a library whose
    /// calls report failures themselves.
    pub fn leave_unreported(&self, key: Key) -> Result<(), SendError> {
        self.with(|lane| lane.names.leave_unreported(key))
    }

    /// The name that has a key.
    pub fn key_name(&self, key: Key) -> Option<String> {
        self.with(|lane| lane.names.name(key).map(str::to_owned)).ok().flatten()
    }

    /// Starts to open a channel to a peer, without waiting for it.
    pub fn connect(&self, peer: Rank) -> Result<(), SendError> {
        let (mut lane, now) = self.enter()?;
        if lane.port.closed {
            // A new channel would replace the one that is to answer the peer's close (L-18).
            return Err(SendError::Closed);
        }
        if !lane.add_peer(peer) {
            return Err(SendError::NoSuchPeer(peer));
        }
        if peer != lane.rank {
            lane.connect(now, peer);
            lane.service(now);
        }
        Ok(())
    }

    /// Sends a whole message if it fits one frame; false, with nothing sent, if it does not. Never blocks.
    // Always inlined: the short path is little more than its checks.
    #[inline(always)]
    pub fn try_send(&self, peer: Rank, key: Key, data: &[u8]) -> Result<bool, SendError> {
        let mut lane = self.lock()?;
        if lane.send_direct(peer, key, data) {
            self.shared.polls.polled();
            return Ok(true);
        }
        // A call, so that the short path does not pay for its registers.
        self.try_send_slow(lane, (peer, key), data)
    }

    #[inline(never)]
    fn try_send_slow(
        &self,
        mut lane: Guard<'_>,
        (peer, key): (Rank, Key),
        data: &[u8],
    ) -> Result<bool, SendError> {
        let now = self.shared.clock.now();
        self.shared.polls.polled();
        if lane.send_at_once(now, peer, key, data) {
            return Ok(true);
        }
        // A program that only tries makes the progress that it waits for.
        let handler =
            lane.handler(now, peer, key, data.len() as u64).inspect_err(|_| lane.make_progress(now, peer))?;
        let (to, port) = lane.channel(peer);
        if data.len() > to.channel.short_limit(port) {
            return Ok(false);
        }
        to.channel.write_short(port, handler, data).inspect_err(|_| lane.make_progress(now, peer))?;
        lane.send_now(now, peer);
        Ok(true)
    }

    /// Whether nothing but extraction makes room for messages to a peer: it is this lane itself.
    pub fn waits_for_extraction(&self, peer: Rank) -> Result<bool, SendError> {
        self.with(|lane| lane.waits_for_extraction(peer))
    }

    /// Begins a message of `total` bytes. Never blocks.
    pub fn try_begin(&self, peer: Rank, key: Key, total: u64) -> Result<MessageId, SendError> {
        let (mut lane, now) = self.enter()?;
        let handler = lane.handler(now, peer, key, total).inspect_err(|_| lane.make_progress(now, peer))?;
        let own_window = lane.config.link.message_window;
        let (to, port) = lane.channel(peer);
        let begun = to.channel.begin(port, handler, total, own_window);
        let id = to.id();
        Ok(id.message(begun.inspect_err(|_| lane.make_progress(now, peer))?))
    }

    /// Adds to a message as many bytes of a piece as there is room for now. `fill` writes them in place and
    /// is told how far the piece has come; it runs under the owner word and must not call the endpoint.
    /// Returns how many bytes, zero if there is no room at all. Never blocks.
    #[inline]
    pub fn try_add(
        &self,
        to: MessageId,
        offset: u64,
        len: usize,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<usize, SendError> {
        let (mut lane, now) = self.enter()?;
        lane.check(to.peer)?;
        let (peer, port) = lane.channel(to.peer.rank);
        let added = peer.channel.add(port, now, (to.number, offset), len, fill);
        if added < len {
            lane.local.poll.poll_slowly_soon();
            lane.send_now(now, to.peer.rank);
        }
        Ok(added)
    }

    /// As [`Endpoint::try_add`], with bytes that are there already.
    #[inline]
    pub fn try_piece(&self, to: MessageId, offset: u64, bytes: &[u8]) -> Result<usize, SendError> {
        let (mut lane, now) = self.enter()?;
        lane.check(to.peer)?;
        let (peer, port) = lane.channel(to.peer.rank);
        let added = peer.channel.add_bytes(port, now, (to.number, offset), bytes);
        if added < bytes.len() {
            lane.local.poll.poll_slowly_soon();
            lane.send_now(now, to.peer.rank);
        }
        Ok(added)
    }

    /// Ends a message: it leaves, unless a batch is open.
    #[inline]
    pub fn end(&self, to: MessageId) -> Result<(), SendError> {
        let (mut lane, now) = self.enter()?;
        if let Err(gone) = lane.check(to.peer) {
            // M-11: a peer that has the message may close without waiting for this call.
            return if lane.had_left(to.peer) { Ok(()) } else { Err(gone) };
        }
        lane.peers.member_mut(to.peer.rank).channel.messages.end(to.number);
        lane.send_now(now, to.peer.rank);
        Ok(())
    }

    /// Gives a message up (M-6); its receiver is told as soon as there is room. Never blocks.
    pub fn abort(&self, to: MessageId) -> Result<(), SendError> {
        let (mut lane, now) = self.enter()?;
        lane.give_up(to);
        lane.service(now);
        Ok(())
    }

    /// Lets a peer send up to `limit` bytes of a message; false if that must be tried again.
    pub fn grant_window(&self, message: MessageId, limit: u64) -> Result<bool, SendError> {
        let (mut lane, now) = self.enter()?;
        if lane.check(message.peer).is_err() {
            return Ok(true);
        }
        let (peer, port) = lane.channel(message.peer.rank);
        let granted = peer.channel.grant_window(port, message.number, limit);
        lane.send_now(now, message.peer.rank);
        Ok(granted)
    }

    /// Opens a batch of this thread: its messages leave when a frame is full or its outermost batch is
    /// closed. Other threads of the lane are not affected, but what they send may take the batch's frames
    /// along.
    pub fn open_batch(&self) -> Result<(), SendError> {
        self.with(|lane| lane.port.batch_depth += 1)
    }

    /// Closes a batch of this thread.
    pub fn close_batch(&self) -> Result<(), SendError> {
        let (mut lane, now) = self.enter()?;
        lane.port.batch_depth = lane.port.batch_depth.saturating_sub(1);
        if lane.port.batch_depth == 0 {
            lane.end_batch(now);
        }
        Ok(())
    }

    /// The longest message that [`Endpoint::try_send`] takes for a peer now.
    pub fn short_limit(&self, peer: Rank) -> usize {
        let limit = self.with(|lane| {
            if lane.add_peer(peer) { lane.peers.member(peer).channel.short_limit(&lane.port) } else { 0 }
        });
        limit.unwrap_or(0)
    }
}
