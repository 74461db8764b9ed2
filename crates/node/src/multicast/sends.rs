//! Sends of multicasts: a message's way into the window of its root, and on to the children.

use std::sync::Arc;

use tautline_wire::multicast::{MulticastRecord, PACKET_HEAD};
use tautline_wire::record::Class;

use super::grants::{Grant, Word};
use super::stream::{Data, OVERHEAD, Packet};
use super::{Multicast, MulticastSendId};
use crate::limits::MAX_MULTICAST;
use crate::memory::{Name, RecordWriter};
use crate::tags::Failure;
use crate::{Rank, SendError};

const TOO_MANY: SendError = SendError::TooMany("multicast sends whose ends nobody has taken");

const TOO_LONG: SendError = SendError::TooMany("bytes in a multicast, which has at most 64 MiB,");
const _: () = assert!(MAX_MULTICAST == 64 << 20);

/// Bytes that a message's packets have at the root; records are as long as the channels allow.
const PACKET: u64 = 16 << 10;

/// Bytes that one peer gets in one turn.
const QUANTUM: usize = 64 << 10;

/// A send.
#[derive(Debug)]
pub(super) struct Send {
    data: Arc<Vec<u8>>,
    /// Bytes that are in the window, or were.
    sent: usize,
    done: Option<Result<(), Failure>>,
    detached: bool,
}

impl Multicast {
    /// Begins to send a message to all other members of a group. It ends when all of it is in the window.
    pub(crate) fn send(&mut self, id: u32, data: Arc<Vec<u8>>) -> Result<MulticastSendId, SendError> {
        if data.len() as u64 > MAX_MULTICAST {
            return Err(TOO_LONG);
        }
        let send = Send { data, sent: 0, done: None, detached: false };
        let name = self.sends.insert(send).ok_or(TOO_MANY)?;
        match self.why_failed(id) {
            Some(why) => self.end_send(name, Err(why)),
            None => {
                if let Some(group) = self.groups.get_mut(&id) {
                    group.sends.push_back(name);
                }
                self.advance_sends(id);
            }
        }
        Ok(MulticastSendId(name))
    }

    /// Returns whether a send has ended.
    #[inline]
    pub(crate) fn is_sent(&self, id: MulticastSendId) -> bool {
        self.sends.get(id.0).is_none_or(|send| send.done.is_some())
    }

    /// Takes the result of a send that has ended.
    pub(crate) fn take_sent(&mut self, id: MulticastSendId) -> Option<Result<(), Failure>> {
        let result = self.sends.get(id.0)?.done?;
        self.sends.remove(id.0);
        Some(result)
    }

    /// Forgets a send; it goes on.
    pub(crate) fn forget_send(&mut self, id: MulticastSendId) {
        if self.take_sent(id).is_none()
            && let Some(send) = self.sends.get_mut(id.0)
        {
            send.detached = true;
        }
    }

    pub(super) fn end_send(&mut self, name: Name, result: Result<(), Failure>) {
        self.activity += 1;
        let Some(send) = self.sends.get_mut(name) else { return };
        if send.detached {
            self.sends.remove(name);
        } else if send.done.is_none() {
            send.done = Some(result);
        }
    }

    /// Asks that all that this member has sent be acknowledged.
    pub(crate) fn flush(&mut self, id: u32) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let me = group.me;
        let stream = group.stream(me);
        if stream.settled() < stream.end && stream.flush < stream.end {
            let data = Data::Own(Vec::new());
            let flush = Packet { data, at: stream.end, last: false, flush: true };
            stream.push(flush, false);
            self.queue_children(id, me);
        }
    }

    /// Returns whether all members have taken all that this member has sent, or the group has failed.
    pub(crate) fn is_settled(&self, id: u32) -> bool {
        let Some(group) = self.groups.get(&id).filter(|group| group.failed.is_none()) else { return true };
        let stream = group.streams.get(&group.me);
        group.sends.is_empty() && stream.is_none_or(|stream| stream.settled() == stream.end)
    }

    /// Puts as much of this member's messages into the window as fits, if it may be a root.
    pub(super) fn advance_sends(&mut self, id: u32) {
        loop {
            let Some(group) = self.groups.get_mut(&id).filter(|group| group.failed.is_none()) else { return };
            let me = group.me;
            let Some(&name) = group.sends.front() else { break };
            let Some(send) = self.sends.get_mut(name) else {
                group.sends.pop_front();
                continue;
            };
            match group.grant {
                Grant::Always | Grant::Held => {}
                // The message that it is sending is finished first.
                Grant::Recalled if send.sent > 0 => {}
                Grant::No => {
                    group.grant = Grant::Asked;
                    self.request_grant(id);
                    continue;
                }
                Grant::Asked | Grant::Recalled => break,
            }
            let (window, len) = (group.options.window, send.data.len());
            let part = (len - send.sent).min(PACKET.min(window / 4) as usize);
            let last = send.sent + part == len;
            let stream = group.stream(me);
            let charge = part as u64 + if last { OVERHEAD } else { 0 };
            if stream.end + charge - stream.settled() > window {
                break;
            }
            let data = Data::Shared(send.data.clone(), send.sent..send.sent + part);
            let packet = Packet { data, at: stream.end, last, flush: false };
            stream.push(packet, false);
            send.sent += part;
            if last {
                group.sends.pop_front();
                self.end_send(name, Ok(()));
            }
            self.queue_children(id, me);
        }
        self.settle_grant(id);
    }

    /// Asks the first member to be a root.
    fn request_grant(&mut self, id: u32) {
        let Some(group) = self.groups.get(&id) else { return };
        let stream = group.id_of(group.me);
        if group.me == 0 {
            self.keep_grants(id, |keeper, limit, tell| keeper.request(0, limit, tell));
        } else {
            let first = group.members[0];
            self.answer(first, MulticastRecord::Request(stream));
        }
    }

    /// Stops being a root, if that is wanted, once all members have taken everything.
    pub(super) fn settle_grant(&mut self, id: u32) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        if group.grant != Grant::Recalled || group.failed.is_some() {
            return;
        }
        let me = group.me;
        let unfinished = group.sends.front().and_then(|name| self.sends.get(*name));
        if unfinished.is_some_and(|send| send.sent > 0) {
            return;
        }
        let stream = group.stream(me);
        if stream.settled() < stream.end {
            return self.flush(id);
        }
        group.grant = Grant::No;
        let (record, first, again) =
            (MulticastRecord::Release(group.id_of(me)), group.members[0], !group.sends.is_empty());
        if me == 0 {
            self.keep_grants(id, |keeper, _, tell| keeper.release(0, tell));
        } else {
            self.answer(first, record);
        }
        if again {
            self.advance_sends(id);
        }
    }

    /// Does something with the grants of a group, whose first member this is, and tells those concerned.
    /// Returns what it returns.
    pub(super) fn keep_grants(
        &mut self,
        id: u32,
        change: impl FnOnce(&mut super::grants::Keeper, usize, &mut dyn FnMut(u32, Word)) -> bool,
    ) -> bool {
        let Some(group) = self.groups.get_mut(&id) else { return false };
        let mut told = Vec::new();
        let good = change(&mut group.keeper, group.options.roots, &mut |root, word| told.push((root, word)));
        for (root, word) in told {
            let Some(group) = self.groups.get(&id) else { break };
            let (stream, rank) = (group.id_of(root), group.members[root as usize]);
            match word {
                _ if root == 0 => {
                    self.handle_word(id, word);
                }
                Word::Grant => self.answer(rank, MulticastRecord::Grant(stream)),
                Word::Recall => self.answer(rank, MulticastRecord::Recall(stream)),
            }
        }
        good
    }

    /// Handles what the first member says. False if it makes no sense.
    pub(super) fn handle_word(&mut self, id: u32, word: Word) -> bool {
        let Some(group) = self.groups.get_mut(&id) else { return true };
        group.grant = match (word, group.grant) {
            (Word::Grant, Grant::Asked) => Grant::Held,
            (Word::Recall, Grant::Held) => Grant::Recalled,
            _ => return false,
        };
        self.advance_sends(id);
        true
    }

    /// Gives each child for which a stream has something its turn.
    pub(super) fn queue_children(&mut self, id: u32, root: u32) {
        let Multicast { groups, peers, busy, unreached, .. } = self;
        let Some(stream) = groups.get_mut(&id).and_then(|group| group.streams.get_mut(&root)) else { return };
        for at in 0..stream.children.len() {
            if stream.children[at].queued || !stream.has_unsent(at) {
                continue;
            }
            let child = &mut stream.children[at];
            child.queued = true;
            let peer = peers.get_or_insert_with(child.rank, Box::default);
            peer.streams.push_back((id, root));
            if !std::mem::replace(&mut peer.busy, true) {
                if peer.up { busy.push_back(child.rank) } else { unreached.push_back(child.rank) }
            }
        }
    }

    /// Sends a peer what waits, as far as its turn and the room go: answers, then packets of one stream after
    /// the other.
    pub(crate) fn pump_peer(&mut self, rank: Rank, writer: &mut impl RecordWriter) {
        if !self.peers.get(rank).is_some_and(|peer| peer.up) {
            return;
        }
        let mut budget = QUANTUM;
        self.more |= self.pump(rank, &mut budget, writer);
        if budget < QUANTUM {
            // It leaves, whatever batch the program has open.
            writer.flush();
        }
        self.mark_busy(rank);
    }

    /// True if the turn is over and more could be sent.
    fn pump(&mut self, rank: Rank, budget: &mut usize, writer: &mut impl RecordWriter) -> bool {
        while let Some(record) = self.peer(rank).answers.front().copied() {
            if !writer.write(&record, 0, &[]) {
                return false;
            }
            *budget = budget.saturating_sub(PACKET_HEAD);
            self.peer(rank).answers.pop_front();
        }
        while let Some((id, root)) = self.peer(rank).streams.front().copied() {
            if *budget == 0 {
                // The next stream has its turn first.
                self.peer(rank).streams.rotate_left(1);
                return true;
            }
            match self.pump_stream(rank, (id, root), budget, writer) {
                Some(true) => {
                    self.peer(rank).streams.pop_front();
                }
                Some(false) => continue,
                None => return false,
            }
        }
        false
    }

    /// Forwards packets of a stream. Some(true) if that was all, Some(false) if the turn is over, None for
    /// want of room.
    fn pump_stream(
        &mut self,
        rank: Rank,
        (id, root): (u32, u32),
        budget: &mut usize,
        writer: &mut impl RecordWriter,
    ) -> Option<bool> {
        let Multicast { groups, spare, .. } = self;
        let Some(group) = groups.get_mut(&id) else { return Some(true) };
        let stream_id = group.id_of(root);
        let Some(stream) = group.streams.get_mut(&root) else { return Some(true) };
        let Some(at) = stream.children.iter().position(|child| child.rank == rank) else { return Some(true) };
        while let Some(packet) = stream.unsent(at) {
            if *budget == 0 {
                return Some(false);
            }
            let (bytes, offset) = (packet.data.bytes(), stream.children[at].offset);
            let left = bytes.len() - offset;
            let part = left.min(writer.part_limit(Class::Multicast, PACKET_HEAD, left as u64));
            let whole = part == left;
            let record = MulticastRecord::Packet {
                stream: stream_id,
                at: packet.at + offset as u64,
                last: packet.last && whole,
                flush: packet.flush,
                data: &[],
            };
            if !writer.write(&record, 0, &bytes[offset..offset + part]) {
                return None;
            }
            *budget = budget.saturating_sub(PACKET_HEAD + part);
            let child = &mut stream.children[at];
            if whole {
                (child.next, child.offset) = (child.next + 1, 0);
                while let Some(Packet { data: Data::Own(bytes), .. }) = stream.trim() {
                    spare.put(bytes);
                }
            } else {
                child.offset += part;
            }
        }
        stream.children[at].queued = false;
        Some(true)
    }
}
