//! What was sent to a peer, and had not been delivered when the node closed (N-9).

use std::collections::BTreeSet;

use tautline_wire::memory;
use tautline_wire::multicast;
use tautline_wire::record::{Record, Records};
use tautline_wire::tags;

use crate::{Address, Down, Rank};

/// What was sent to one peer, and what the peer had not acknowledged when the node closed.
///
/// The peer may have received it all the same: an acknowledgement may have been lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Undelivered {
    /// The peer: its rank, or the number of one of its lanes.
    pub peer: Rank,
    /// Messages, and operations on the peer's memory, of which at least a part is not acknowledged.
    pub messages: u64,
    /// Bytes of them that are not acknowledged.
    pub bytes: u64,
    /// Why the peer is gone; none if it was only too slow.
    pub why: Option<Down>,
}

impl Undelivered {
    /// Messages and bytes that a peer has not acknowledged.
    pub fn new(peer: Rank, messages: u64, bytes: u64) -> Undelivered {
        Undelivered { peer, messages, bytes, why: None }
    }

    /// Adds what is for the same peer to one entry of `list`, or a new entry.
    pub fn merge_into(self, list: &mut Vec<Undelivered>) {
        if self.messages == 0 && self.bytes == 0 {
            return;
        }
        match list.iter_mut().find(|entry| entry.peer == self.peer) {
            Some(entry) => {
                entry.messages += self.messages;
                entry.bytes += self.bytes;
                entry.why = entry.why.or(self.why);
            }
            None => list.push(self),
        }
    }

    /// Counts the records of slots that a peer has not acknowledged, in the order in which they were sent.
    /// Control records do not count, nor do messages to handlers that are not `reported`: nobody misses them
    /// (N-24).
    pub(crate) fn count<'a>(
        peer: Rank,
        slots: impl Iterator<Item = &'a [u8]>,
        reported: impl Fn(u16) -> bool,
    ) -> Undelivered {
        let (mut whole, mut bytes, mut parts) = (0, 0, BTreeSet::new());
        let mut skipped = BTreeSet::new();
        for record in slots.flat_map(|slot| Records::new(slot, 0)).flatten() {
            match record {
                Record::Short { handler, .. } if !reported(handler) => {}
                Record::First { handler, message, .. } if !reported(handler) => {
                    skipped.insert(message);
                }
                Record::More { message, .. } if skipped.contains(&message) => {}
                Record::Short { data, .. } => {
                    whole += 1;
                    bytes += data.len() as u64;
                }
                Record::First { message, data, .. } | Record::More { message, data, .. } => {
                    parts.insert(message);
                    bytes += data.len() as u64;
                }
                Record::Memory { kind, body, .. } => {
                    let (changes, begins) = memory::changes(kind);
                    whole += u64::from(begins);
                    bytes += if changes { body.len() as u64 } else { 0 };
                }
                Record::Tag { kind, flags, body } => {
                    let (carries, begins) = tags::carries(kind, flags);
                    whole += u64::from(begins);
                    bytes += if carries { body.len() as u64 } else { 0 };
                }
                Record::Multicast { kind, flags, body } => {
                    let (carries, ends) = multicast::carries(kind, flags);
                    whole += u64::from(ends);
                    bytes += if carries { body.len() as u64 } else { 0 };
                }
                _ => {}
            }
        }
        Undelivered::new(peer, whole + parts.len() as u64, bytes)
    }
}

impl std::fmt::Display for Undelivered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Undelivered { peer, messages, bytes, why } = self;
        let plural = if *messages == 1 { "" } else { "s" };
        write!(f, "{messages} message{plural} ({bytes} bytes) to {}", Address::from(*peer))?;
        why.map_or(Ok(()), |why| write!(f, ", which is gone: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use tautline_wire::record::write;

    use super::*;

    /// N-9, N-24: messages are counted once, however many slots hold parts of them, and control records are
    /// not.
    #[test]
    fn records_are_counted() {
        let mut slot = vec![0; 256];
        let mut at = write::short(&mut slot, 1, 3) + 3;
        at += write::first(&mut slot[at..], 1, 7, 100, 10) + 10;
        slot.truncate(at);
        let mut more = vec![0; 24 + 20];
        write::more(&mut more, 7, 10, 20);
        let mut window = vec![0; 24];
        write::window(&mut window, 9, 1000);
        let slots = [&slot[..], &more, &window];
        let counted = Undelivered::count(3, slots.into_iter(), |_| true);
        assert_eq!(counted, Undelivered::new(3, 2, 33));
        assert_eq!(counted.to_string(), "2 messages (33 bytes) to rank 3");
        assert_eq!(Undelivered::new(3, 1, 9).to_string(), "1 message (9 bytes) to rank 3");
        let mut list = Vec::new();
        Undelivered::count(3, [&window[..]].into_iter(), |_| true).merge_into(&mut list);
        Undelivered::count(3, slots.into_iter(), |handler| handler != 1).merge_into(&mut list);
        assert_eq!(list, []);
        counted.clone().merge_into(&mut list);
        Undelivered { why: Some(Down::Exited), ..Undelivered::new(3, 1, 1) }.merge_into(&mut list);
        assert_eq!(list, [Undelivered { why: Some(Down::Exited), ..Undelivered::new(3, 3, 34) }]);
    }
}
