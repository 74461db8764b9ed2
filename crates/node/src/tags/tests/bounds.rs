//! What peers and messages leave behind is bounded, and in nobody's way.

use tautline_wire::tags::{Envelope, TagRecord};

use super::{PEER, is_accepted, with_peer};
use crate::limits::TAG_OVERHEAD;
use crate::memory::Slab;
use crate::tags::matching::Pattern;
use crate::tags::peers::Answer;
use crate::tags::{Buffer, Failure, Tags};
use crate::testing::FakeWriter;
use crate::{Down, PeerId};

fn stored_memory(tags: &Tags) -> usize {
    let all = tags.stored.names().filter_map(|name| tags.stored.get(name));
    all.map(|stored| stored.data.capacity()).sum()
}

/// E-5: a message that waits takes no more memory than its sender was charged, whatever was received before
/// it.
#[test]
fn short_messages_take_no_long_buffers() {
    let mut tags = with_peer();
    let mut writer = FakeWriter::new(1 << 20);
    let pattern = |tag| Pattern { context: 0, source: Some(1), tag: Some(tag) };
    let mut charged = 0;
    for round in 0..100 {
        for len in [4_096, 3_000, 700, 100] {
            let data = vec![7; len];
            for _ in 0..16 {
                assert!(is_accepted(&mut tags, &TagRecord::Eager { context: 0, tag: 1, data: &[] }, &data));
            }
        }
        while tags.probe(&pattern(1)).is_some() {
            let id = tags.receive(pattern(1), &mut Buffer::Whole(vec![0; 4_096])).unwrap();
            assert!(tags.take_received(id).is_some());
        }
        for len in [1, 1, 1, 20, 50, 90] {
            let data = vec![9; len];
            for _ in 0..10 {
                assert!(is_accepted(&mut tags, &TagRecord::Eager { context: 0, tag: 2, data: &[] }, &data));
                charged += len + TAG_OVERHEAD as usize;
            }
        }
        tags.pump_peer(PEER.rank, &mut writer);
        let memory = stored_memory(&tags);
        assert!(memory <= charged, "round {round}: {memory} bytes for messages charged {charged}");
    }
}

/// E-11: a claimed message can be dropped when there is no place for a receive. Its sender gets its credit,
/// or learns that nothing more is wanted.
#[test]
fn claims_are_dropped_without_a_place() {
    let mut tags = with_peer();
    let envelope = |id, total, bytes_follow| {
        TagRecord::Envelope(Envelope { context: 0, tag: id, id, total, bytes_follow, report: true })
    };
    assert!(is_accepted(&mut tags, &TagRecord::Eager { context: 0, tag: 1, data: &[] }, &[1; 8]));
    assert!(is_accepted(&mut tags, &envelope(2, 100_000, false), &[]));
    assert!(is_accepted(&mut tags, &envelope(3, 16, true), &[]));
    assert!(is_accepted(&mut tags, &TagRecord::Data { to: 0, at: 0, data: &[] }, &[1; 8]));
    tags.receives = Slab::new(0);
    for tag in 1..=3 {
        let pattern = Pattern { context: 0, source: Some(1), tag: Some(tag) };
        let (claim, _) = tags.claim(&pattern).unwrap();
        assert!(tags.receive_claimed(claim, Buffer::Whole(Vec::new())).is_err(), "no place");
        tags.drop_claimed(claim);
    }
    assert!(is_accepted(&mut tags, &TagRecord::Data { to: 0, at: 8, data: &[] }, &[1; 8]), "the rest of it");
    assert_eq!((tags.stored.names().count(), tags.claimed.names().count()), (0, 0));
    let peer = tags.peers.get(1).unwrap();
    assert_eq!((peer.charged, peer.envelopes), (peer.returned, 0));
    assert!(peer.arriving.is_none());
    let answers: Vec<_> = peer.answers.iter().copied().collect();
    assert_eq!(answers, [Answer::Accept { id: 2, to: 0, len: 0 }, Answer::Matched { id: 3 }]);
}

/// E-15: closed contexts do not keep the program from taking messages of other ones from the ring.
#[test]
fn fences_leave_other_contexts_alone() {
    let mut tags = with_peer();
    let takes = |tags: &mut Tags, context| {
        let pattern = Pattern { context, source: Some(1), tag: None };
        (0..100).filter(|_| tags.may_take(&pattern)).count()
    };
    tags.fence(1, 4..=6);
    tags.add_group(8, [0, 1].into());
    tags.add_group(12, [0, 1].into());
    tags.revoke(8);
    assert_eq!([4, 6, 8].map(|context| takes(&mut tags, context)), [0; 3]);
    assert!([3, 7, 12].map(|context| takes(&mut tags, context)).iter().all(|count| *count > 90));
}

/// E-17: of the revocations of groups that are not known here, the last ones of each peer are kept, until it
/// is lost.
#[test]
fn early_revocations_are_bounded() {
    let mut tags = with_peer();
    let revoked = |context| TagRecord::Fence { first: context, last: context, all: true };
    for context in 0..10_000 {
        assert!(is_accepted(&mut tags, &revoked(context), &[]), "{context}");
    }
    let is_revoked = |tags: &mut Tags, context| {
        tags.add_group(context, [0, 1].into());
        tags.why_revoked(context) == Some(Failure::Revoked)
    };
    assert!(!is_revoked(&mut tags, 0) && !is_revoked(&mut tags, 5_000));
    assert!(is_revoked(&mut tags, 6_000) && is_revoked(&mut tags, 9_999));
    tags.peer_down(1, Failure::PeerGone(1, Down::Exited));
    tags.peer_up(PeerId::new(1, 2));
    assert!(!is_revoked(&mut tags, 9_998), "it was lost meanwhile");
}
