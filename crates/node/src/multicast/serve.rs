//! The records of peers, which are served as soon as their frame is due.

use tautline_device::shm::{LINE_FRAME, LINE_WORDS};
use tautline_wire::multicast::{MulticastRecord, Stream as StreamId};
use tautline_wire::record::Records;

use super::grants::Word;
use super::stream::{Data, OVERHEAD, Packet};
use super::{Group, Multicast};
use crate::limits::MAX_MULTICAST;
use crate::tags::Failure;
use crate::{Down, PeerId, Rank};

/// What a packet says of its bytes.
#[derive(Clone, Copy, Debug)]
struct Head {
    /// Their position.
    at: u64,
    /// They end a message.
    last: bool,
    /// All positions so far are to be acknowledged.
    flush: bool,
}

/// Answers that may wait for a peer when it is told that a group has failed.
const MAX_REFUSALS: usize = 4096;

impl Multicast {
    /// Handles the records of a frame. False if no correct peer sends it.
    pub(crate) fn handle_records(&mut self, from: PeerId, bytes: &[u8]) -> bool {
        let peer = self.peer(from.rank);
        if !peer.up {
            // The channel is there: something came through it.
            (peer.up, peer.id) = (true, Some(from));
        }
        Records::new(bytes, 0).all(|record| {
            let Ok(record) = record else { return false };
            MulticastRecord::parse(&record).is_ok_and(|record| self.handle(from.rank, &record))
        })
    }

    /// As [`Multicast::handle_records`], with a frame of `len` bytes that came in a line.
    pub(crate) fn handle_words(&mut self, from: PeerId, len: usize, words: &[u64; LINE_WORDS]) -> bool {
        let mut bytes = [0; LINE_FRAME];
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        self.handle_records(from, &bytes[..len])
    }

    fn handle(&mut self, from: Rank, record: &MulticastRecord<'_>) -> bool {
        let id = match *record {
            MulticastRecord::Failed { group, gone, why } => {
                let Some(Group { members, .. }) = self.groups.get(&group) else { return true };
                // The sender may have another group of this number, now or formerly.
                if members.contains(&from) {
                    let gone = if members.contains(&gone) { gone } else { from };
                    self.fail(group, Failure::PeerGone(gone, Down::from_byte(why)));
                }
                return true;
            }
            MulticastRecord::Packet { stream, .. }
            | MulticastRecord::Ack { stream, .. }
            | MulticastRecord::Request(stream)
            | MulticastRecord::Grant(stream)
            | MulticastRecord::Recall(stream)
            | MulticastRecord::Release(stream) => stream,
        };
        let Some(group) = self.groups.get(&id.group) else {
            // this member has closed the group.
            let is_answered = matches!(record, MulticastRecord::Packet { .. } | MulticastRecord::Request(_));
            let former = self.former.iter().find(|(former, ..)| *former == id.group);
            let (gone, why) = former.map_or((self.own, Down::Closed), |(_, gone, why)| (*gone, *why));
            return !is_answered || self.refuse(from, id.group, gone, why.to_byte());
        };
        if let Some(why) = group.failed {
            // It may have been told before it took part.
            if let Failure::PeerGone(gone, why) = why
                && matches!(record, MulticastRecord::Packet { .. } | MulticastRecord::Request(_))
            {
                return self.refuse(from, id.group, gone, why.to_byte());
            }
            return true;
        }
        let Some(rank) = group.members.get(id.root as usize).copied() else { return false };
        let (is_first, by_first) = (group.me == 0, from == group.members[0]);
        match *record {
            MulticastRecord::Packet { at, last, flush, data, .. } => {
                self.handle_packet(from, id, Head { at, last, flush }, data)
            }
            MulticastRecord::Ack { to, .. } => self.handle_ack(from, id, to),
            MulticastRecord::Request(_) => {
                let request = |keeper: &mut super::grants::Keeper, limit, tell: &mut dyn FnMut(u32, Word)| {
                    keeper.request(id.root, limit, tell)
                };
                is_first && rank == from && self.keep_grants(id.group, request)
            }
            MulticastRecord::Release(_) => {
                let release =
                    |keeper: &mut super::grants::Keeper, _: usize, tell: &mut dyn FnMut(u32, Word)| {
                        keeper.release(id.root, tell)
                    };
                is_first && rank == from && self.keep_grants(id.group, release)
            }
            MulticastRecord::Grant(_) => {
                by_first && id.root == group.me && self.handle_word(id.group, Word::Grant)
            }
            MulticastRecord::Recall(_) => {
                by_first && id.root == group.me && self.handle_word(id.group, Word::Recall)
            }
            MulticastRecord::Failed { .. } => true,
        }
    }

    /// Tells a member that a group has failed, once for all of its records that wait for an answer. False if
    /// it has sent records of more groups than a correct peer has.
    fn refuse(&mut self, from: Rank, group: u32, gone: Rank, why: u8) -> bool {
        let record = MulticastRecord::Failed { group, gone, why };
        let answers = &self.peer(from).answers;
        if answers.contains(&record) {
            return true;
        }
        if answers.len() >= MAX_REFUSALS {
            return false;
        }
        self.answer(from, record);
        true
    }

    /// Handles bytes of a root: they are given to the program, if it waits for them, and kept for the
    /// children. False if they do not come from the parent, in order and within the window.
    fn handle_packet(
        &mut self,
        from: Rank,
        id: StreamId,
        Head { at, last, flush }: Head,
        data: &[u8],
    ) -> bool {
        let Some(group) = self.groups.get_mut(&id.group) else { return true };
        if id.root == group.me {
            return false;
        }
        let (window, roots) = (group.options.window, group.options.roots.min(group.members.len()));
        let stream = group.stream(id.root);
        // this must be the next packet of the parent, within the window; only a flush is empty.
        if stream.parent != Some(from) || stream.end != at {
            return false;
        }
        let end = at + data.len() as u64 + if last { OVERHEAD } else { 0 };
        let (was_settled, empty) = (stream.acked == stream.end, data.is_empty() && !last);
        let begun = stream.begun + data.len() as u64;
        if end - stream.acked > window || empty != flush || begun > MAX_MULTICAST {
            return false;
        }
        stream.begun = if last { 0 } else { begun };
        if was_settled && end > at {
            group.active += 1;
            // there is room for that many roots.
            if group.active > roots {
                return false;
            }
        }
        let is_leaf = group.stream(id.root).children.is_empty();
        let taken = !flush && self.deliver_now(id.group, id.root, data, last);
        let kept = if taken && is_leaf { Vec::new() } else { self.copy(data) };
        let Some(stream) = self.groups.get_mut(&id.group).and_then(|it| it.streams.get_mut(&id.root)) else {
            return true;
        };
        let taken = taken || flush && stream.untaken().is_none();
        if taken && is_leaf {
            stream.pass(end, flush);
        } else {
            let dropped = stream.push(Packet { data: Data::Own(kept), at, last, flush }, taken);
            if let Some(Packet { data: Data::Own(bytes), .. }) = dropped {
                self.spare.put(bytes);
            }
        }
        self.queue_children(id.group, id.root);
        if last && !taken {
            // It is whole now.
            self.deliver_stored(id.group, id.root);
        }
        self.acknowledge(id.group, id.root);
        true
    }

    pub(super) fn copy(&mut self, data: &[u8]) -> Vec<u8> {
        let mut bytes = self.spare.take(data.len());
        bytes.extend_from_slice(data);
        bytes
    }

    /// Tells the parent what this member and all below it have taken: at every quarter of the window, and
    /// where the root asks for it.
    pub(super) fn acknowledge(&mut self, id: u32, root: u32) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let (quarter, stream_id) = (group.options.window / 4, group.id_of(root));
        let Some(stream) = group.streams.get_mut(&root) else { return };
        let (settled, acked) = (stream.settled(), stream.acked);
        let wanted = settled / quarter > acked / quarter || acked < stream.flush && settled >= stream.flush;
        let Some(parent) = stream.parent.filter(|_| settled > acked && wanted) else { return };
        stream.acked = settled;
        if settled == stream.end {
            group.active -= 1;
        }
        self.answer(parent, MulticastRecord::Ack { stream: stream_id, to: settled });
    }

    /// Handles the news that a child and all below it have taken what was sent before a position. False if
    /// nothing was sent to it up to there.
    fn handle_ack(&mut self, from: Rank, id: StreamId, to: u64) -> bool {
        let Some(group) = self.groups.get_mut(&id.group) else { return true };
        let is_root = id.root == group.me;
        let Some(stream) = group.streams.get_mut(&id.root) else { return false };
        let Some(at) = stream.children.iter().position(|child| child.rank == from) else { return false };
        let sent =
            stream.unsent(at).map_or(stream.end, |packet| packet.at) + stream.children[at].offset as u64;
        let child = &mut stream.children[at];
        if to <= child.acked || to > sent {
            return false;
        }
        child.acked = to;
        if is_root {
            self.activity += 1;
            self.advance_sends(id.group);
        } else {
            self.acknowledge(id.group, id.root);
        }
        true
    }
}
