//! The queues against plain lists: random sequences of all operations.

mod bounds;

use std::collections::VecDeque;
use std::sync::Arc;

use tautline_device::shm::{LINE_FRAME, LINE_WORDS};
use tautline_wire::memory::ExtentRef;
use tautline_wire::record::RecordHead as _;
use tautline_wire::tags::{Envelope, TagRecord};

use super::matching::{Key, Matcher, Pattern, Posted, Waiting};
use super::peers::Answer;
use super::{Buffer, Failure, Mode, ReceiveId, Tags};
use crate::limits::{MAX_ENVELOPES, TAG_CREDIT, TAG_OVERHEAD};
use crate::testing::{NothingLent, Rng};
use crate::{Down, PeerId, Rank};

/// The queues as MPI describes them.
#[derive(Default)]
struct Model {
    posted: VecDeque<(Pattern, u32, Posted)>,
    waiting: VecDeque<(Key, u32, Waiting)>,
}

fn random_key(rng: &mut Rng, few: u64) -> Key {
    let [context, source, tag] = [2, few, few].map(|n| rng.below(n) as u32);
    Key { context, source, tag }
}

fn random_pattern(rng: &mut Rng, few: u64) -> Pattern {
    let Key { context, source, tag } = random_key(rng, few);
    let wild = rng.below(8);
    Pattern {
        context,
        source: (wild != 0 && wild != 2).then_some(source),
        tag: (wild != 1 && wild != 2).then_some(tag),
    }
}

/// E-1, E-2: receives and messages are matched as by two plain lists, whatever is posted, cancelled, probed
/// and taken in between.
#[test]
fn matching_equals_two_lists() {
    for seed in 1..=40 {
        let mut rng = Rng(seed);
        let mut model = Model::default();
        let mut matcher = Matcher::<u32, u32>::new(seed);
        // Few keys make long lists, many keys make many; arrivals or receives prevail in turns.
        let few = [2, 5, 300][seed as usize % 3];
        for step in 0..6_000_u32 {
            let bias = u64::from(step / 1_500 % 2);
            match rng.below(10 + 2 * bias) {
                0..=3 => receive(&mut model, &mut matcher, random_pattern(&mut rng, few), step),
                8 => {
                    let pattern = random_pattern(&mut rng, few);
                    let oldest = model.waiting.iter().find(|it| pattern.takes(it.0));
                    let found = matcher.find(&pattern).map(|it| matcher.message(it));
                    assert_eq!(found, oldest.map(|it| (it.0, it.1)), "seed {seed}, step {step}");
                    let older = model.posted.iter().any(|it| it.0.context == pattern.context);
                    assert_eq!(matcher.takes_next(&pattern), !older && oldest.is_none());
                }
                9 if !model.posted.is_empty() => {
                    let at = rng.below(model.posted.len() as u64) as usize;
                    let (_, receive, posted) = model.posted.remove(at).unwrap();
                    assert_eq!(matcher.cancel(posted), receive, "seed {seed}, step {step}");
                }
                9 => {}
                _ => arrive(&mut model, &mut matcher, random_key(&mut rng, few), step),
            }
            assert_eq!(matcher.len(), (model.posted.len(), model.waiting.len()));
        }
        // What is left comes out in order.
        for context in 0..2 {
            let all = Pattern { context, source: None, tag: None };
            while let Some(waiting) = matcher.find(&all) {
                let oldest = model.waiting.iter().position(|it| it.0.context == context).unwrap();
                let (key, message, _) = model.waiting.remove(oldest).unwrap();
                assert_eq!(matcher.take(waiting), (key, message));
            }
        }
        assert!(model.waiting.is_empty());
    }
}

fn receive(model: &mut Model, matcher: &mut Matcher<u32, u32>, pattern: Pattern, number: u32) {
    match model.waiting.iter().position(|it| pattern.takes(it.0)) {
        Some(at) => {
            let (key, message, waiting) = model.waiting.remove(at).unwrap();
            assert_eq!(matcher.find(&pattern), Some(waiting));
            assert_eq!(matcher.take(waiting), (key, message));
        }
        None => {
            assert_eq!(matcher.find(&pattern), None);
            let posted = matcher.post(pattern, number);
            model.posted.push_back((pattern, number, posted));
        }
    }
}

fn arrive(model: &mut Model, matcher: &mut Matcher<u32, u32>, key: Key, number: u32) {
    match model.posted.iter().position(|it| it.0.takes(key)) {
        Some(at) => assert_eq!(matcher.arrive(key), model.posted.remove(at).map(|it| it.1)),
        None => {
            assert_eq!(matcher.arrive(key), None);
            let waiting = matcher.keep(key, number);
            model.waiting.push_back((key, number, waiting));
        }
    }
}

/// E-9: an envelope that waits costs at most 64 B, tables included, whether all have one key or each has one
/// of its own.
#[test]
fn envelopes_cost_64_bytes() {
    for distinct in [false, true] {
        let mut matcher = Matcher::<u32, [u32; 3]>::new(7);
        for number in 0..200_000_u32 {
            let key = if distinct { number } else { 1 };
            matcher.keep(Key { context: key, source: key, tag: key }, [0; 3]);
            let cost = matcher.message_memory() / (number as usize + 1);
            assert!(number < 10_000 || cost <= 64, "{cost} B for each of {number} messages");
        }
    }
}

const PEER: PeerId = PeerId::new(1, 1);

/// Posts a receive of eight bytes with tag 3.
fn post(tags: &mut Tags, context: u32, source: Option<Rank>) -> ReceiveId {
    let pattern = Pattern { context, source, tag: Some(3) };
    tags.receive(pattern, &mut Buffer::Whole(vec![0; 8])).unwrap()
}

fn with_peer() -> Tags {
    let mut tags = Tags::new(7, 1 << 16);
    tags.set_used();
    tags.peer_up(PEER);
    tags
}

/// N-27: nothing but its incarnation is kept of a peer that no message went to or came from.
#[test]
fn peers_without_messages_are_not_entered() {
    let mut tags = with_peer();
    let pattern = Pattern { context: 0, source: Some(1), tag: None };
    let receive = tags.receive(pattern, &mut Buffer::Whole(Vec::new())).unwrap();
    tags.add_peer(1);
    assert!(tags.peers.get(1).is_none() && !tags.is_busy());
    // Its end is noticed all the same.
    tags.peer_up(PeerId::new(1, 2));
    assert_eq!(tags.peers.id(1), Some(PeerId::new(1, 2)));
    assert!(matches!(tags.take_received(receive), Some((Err(Failure::PeerGone(1, _)), _))));
    let record = TagRecord::Eager { context: 0, tag: 3, data: &[] };
    let mut bytes = vec![0; record.head_len()];
    record.write(&mut bytes, 0, 0);
    assert!(tags.handle_records(PeerId::new(1, 2), &mut NothingLent, &bytes));
    assert_eq!(tags.peers.get(1).unwrap().charged, TAG_OVERHEAD);
    // A send that waits for a channel is sent through it.
    tags.peer_down(1, Failure::Closed);
    tags.add_peer(2);
    tags.send((2, 0, 0), Mode::Standard, Buffer::Whole(Vec::new()), 0).unwrap();
    tags.peer_up(PeerId::new(2, 1));
    assert!(tags.is_busy() && tags.peers.get(2).unwrap().queue.len() == 1);
}

/// Handles a record of the peer; whether a correct peer may have sent it.
fn is_accepted(tags: &mut Tags, record: &TagRecord<'_>, data: &[u8]) -> bool {
    let mut bytes = vec![0; record.head_len()];
    let head = record.write(&mut bytes, 0, data.len());
    bytes.truncate(head);
    bytes.extend_from_slice(data);
    tags.handle_records(PEER, &mut NothingLent, &bytes)
}

/// E-5: a peer that exceeds its credit is disconnected, and stores no more than that.
#[test]
fn credit_is_enforced() {
    let data = vec![1; 10_000];
    let allowed = TAG_CREDIT / (data.len() as u64 + TAG_OVERHEAD);
    let mut tags = with_peer();
    let record = TagRecord::Eager { context: 0, tag: 3, data: &data };
    let accepted = (0..=allowed).take_while(|_| is_accepted(&mut tags, &record, &data)).count();
    assert_eq!(accepted as u64, allowed);
    // One envelope whose bytes follow counts as much as they do.
    let mut tags = with_peer();
    let begun = |total| {
        TagRecord::Envelope(Envelope { context: 0, tag: 3, id: 1, total, bytes_follow: true, report: false })
    };
    assert!(!is_accepted(&mut tags, &begun(TAG_CREDIT), &[]));
    assert!(!is_accepted(&mut with_peer(), &begun(u64::MAX), &[]));
    assert!(is_accepted(&mut with_peer(), &begun(TAG_CREDIT - TAG_OVERHEAD), &[]));
}

/// E-8: a peer that announces more messages than it may is disconnected.
#[test]
fn the_number_of_envelopes_is_enforced() {
    let mut tags = with_peer();
    let envelope = |id| {
        TagRecord::Envelope(Envelope { context: 0, tag: id, id, total: 9, bytes_follow: false, report: true })
    };
    let accepted = (0..=MAX_ENVELOPES).take_while(|id| is_accepted(&mut tags, &envelope(*id), &[])).count();
    assert_eq!(accepted as u32, MAX_ENVELOPES);
}

/// E-3: bytes that nobody asked for, answers to nothing, and loans of a peer that cannot lend end the
/// channel.
#[test]
fn stray_records_are_refused() {
    let extent = ExtentRef { number: 0, len: 8, at: 0 };
    for record in [
        TagRecord::Data { to: 0, at: 0, data: &[] },
        TagRecord::Data { to: u64::MAX, at: 0, data: &[] },
        TagRecord::LoanedData { to: 0, at: 0, extent },
        TagRecord::Accept { id: 7, to: 1, len: 1 },
        TagRecord::Matched { id: 7 },
        TagRecord::Credit { bytes: 1 },
    ] {
        let data: &[u8] = if let TagRecord::Data { .. } = record { &[1; 8] } else { &[] };
        assert!(!is_accepted(&mut with_peer(), &record, data), "{record:?}");
    }
}

/// E-13, E-14: what waits from a fenced peer is dropped, and what arrives; its credit is returned, and it is
/// told. Receives from it and sends to it fail; other contexts and receives from any peer go on.
#[test]
fn fenced_messages_are_dropped() {
    let mut tags = with_peer();
    let eager = |context, tag| TagRecord::Eager { context, tag, data: &[] };
    let envelope = |id, bytes_follow| {
        TagRecord::Envelope(Envelope { context: 5, tag: 3, id, total: 8, bytes_follow, report: false })
    };
    let posted = post(&mut tags, 4, Some(1));
    assert!(is_accepted(&mut tags, &eager(5, 3), &[1; 8]));
    assert!(is_accepted(&mut tags, &envelope(7, false), &[]));
    let queued = tags.send((1, 6, 3), Mode::Standard, Buffer::Whole(vec![1; 8]), 8).unwrap();
    tags.fence(1, 4..=6);
    assert_eq!(tags.waiting(), (0, 0));
    let gone = Failure::PeerGone(1, Down::Excluded);
    assert_eq!(tags.take_received(posted).unwrap().0, Err(gone));
    assert_eq!(tags.take_sent(queued).unwrap().0, Err(gone));
    let told = Answer::Fence { first: 4, last: 6, all: false };
    let answers = |tags: &mut Tags| std::mem::take(&mut tags.peers.get_mut(1).unwrap().answers);
    let first = answers(&mut tags);
    assert!(first[0] == told && matches!(first[1], Answer::Accept { id: 7, len: 0, .. }), "{first:?}");
    // A receive of any peer does not take what arrives, whole or in parts.
    let any = post(&mut tags, 5, None);
    assert!(is_accepted(&mut tags, &eager(5, 3), &[2; 8]));
    assert!(is_accepted(&mut tags, &envelope(8, true), &[]));
    assert!(is_accepted(&mut tags, &TagRecord::Data { to: 0, at: 0, data: &[] }, &[2; 8]));
    assert!(is_accepted(&mut tags, &envelope(9, false), &[]));
    assert!(!tags.is_received(any));
    assert_eq!(tags.peers.get(1).unwrap().charged, tags.peers.get(1).unwrap().returned);
    let again = answers(&mut tags);
    assert_eq!(again.iter().filter(|answer| **answer == told).count(), 1, "{again:?}");
    // New ones fail, and other contexts do not.
    let late = post(&mut tags, 4, Some(1));
    assert_eq!(tags.take_received(late).unwrap().0, Err(gone));
    let other = post(&mut tags, 7, Some(1));
    assert!(is_accepted(&mut tags, &eager(7, 3), &[3; 8]));
    assert_eq!(tags.take_received(other).unwrap().1, Buffer::Whole(vec![3; 8]));
    // At the other side: a send that was announced fails when it is matched. Too many fences are refused.
    let mut tags = with_peer();
    let fence = |first| TagRecord::Fence { first, last: first, all: false };
    assert!(is_accepted(&mut tags, &fence(1), &[]) && is_accepted(&mut tags, &fence(1), &[]));
    let late = post(&mut tags, 1, Some(1));
    assert_eq!(tags.take_received(late).unwrap().0, Err(Failure::Excluded(1)));
    let accepted = (2..).take_while(|first| is_accepted(&mut tags, &fence(*first), &[])).count();
    assert!((1_000..10_000).contains(&accepted), "{accepted}");
}

/// E-17: a revoked group's messages end at all members, whoever sends and receives, and those that know tell
/// those to whom they have a channel. Other contexts go on.
#[test]
fn revoked_groups_exchange_no_messages() {
    let mut tags = with_peer();
    let eager = |context| TagRecord::Eager { context, tag: 3, data: &[] };
    let revoked = |context| TagRecord::Fence { first: context, last: context, all: true };
    let told = Answer::Fence { first: 5, last: 5, all: true };
    let answers = |tags: &mut Tags, peer| std::mem::take(&mut tags.peers.get_mut(peer).unwrap().answers);
    let members: Arc<[Rank]> = [0, 1, 2].into();
    tags.add_group(5, members.clone());
    let (any, other) = (post(&mut tags, 5, None), post(&mut tags, 6, None));
    let named = post(&mut tags, 5, Some(2));
    let envelope = Envelope { context: 5, tag: 4, id: 7, total: 8, bytes_follow: false, report: true };
    assert!(is_accepted(&mut tags, &TagRecord::Envelope(envelope), &[]));
    let queued = tags.send((1, 5, 3), Mode::Standard, Buffer::Whole(vec![1; 8]), 8).unwrap();
    assert!(is_accepted(&mut tags, &revoked(5), &[]));
    for id in [any, named] {
        assert_eq!(tags.take_received(id).unwrap().0, Err(Failure::Revoked));
    }
    assert_eq!(tags.take_sent(queued).unwrap().0, Err(Failure::Revoked));
    let first = answers(&mut tags, 1);
    assert!(matches!(first[0], Answer::Accept { id: 7, len: 0, .. }), "{first:?}");
    assert_eq!(
        first.iter().skip(1).collect::<Vec<_>>(),
        [&told],
        "once, and the sender of the message ends it"
    );
    assert!(is_accepted(&mut tags, &revoked(5), &[]) && answers(&mut tags, 1).is_empty());
    // A member is told as soon as there is a channel.
    tags.peer_up(PeerId::new(2, 1));
    assert_eq!(answers(&mut tags, 2), [told]);
    tags.peer_up(PeerId::new(3, 1));
    assert!(answers(&mut tags, 3).is_empty(), "no member");
    // Whatever begins later fails, or is dropped; other contexts go on.
    for source in [None, Some(1), Some(2)] {
        let late = post(&mut tags, 5, source);
        assert_eq!(tags.take_received(late).unwrap().0, Err(Failure::Revoked));
    }
    let late = tags.send((1, 5, 3), Mode::Standard, Buffer::Whole(vec![1; 8]), 8).unwrap();
    assert_eq!(tags.take_sent(late).unwrap().0, Err(Failure::Revoked));
    assert!(is_accepted(&mut tags, &eager(5), &[1; 8]) && tags.waiting() == (1, 0));
    assert!(is_accepted(&mut tags, &eager(6), &[2; 8]));
    assert_eq!(tags.take_received(other).unwrap().1, Buffer::Whole(vec![2; 8]));
    // A group that is made later, and one in which the peer is no member.
    assert!(is_accepted(&mut tags, &revoked(8), &[]) && is_accepted(&mut tags, &revoked(9), &[]));
    tags.add_group(8, members);
    tags.add_group(9, [0, 2].into());
    assert_eq!(tags.why_revoked(8), Some(Failure::Revoked));
    assert_eq!((tags.why_revoked(9), tags.why_revoked(6)), (None, None));
    assert!(is_accepted(&mut tags, &revoked(9), &[]));
    assert_eq!(tags.why_revoked(9), None);
    assert!(tags.remove_group(8) && !tags.remove_group(9));
    // Several at once are refused.
    assert!(!is_accepted(&mut with_peer(), &TagRecord::Fence { first: 1, last: 2, all: true }, &[]));
}

/// E-5, E-8, E-9: a million messages that nobody receives cost the credit of their sender, and 64 bytes for
/// each envelope. Then all of them are received, in order and unaltered.
#[test]
fn a_million_unexpected_messages_are_bounded() {
    const FLOOD: u32 = 1_000_000;
    let mut tags = with_peer();
    let eager = (TAG_CREDIT / (4 + TAG_OVERHEAD)) as u32;
    for number in 0..FLOOD {
        let (tag, id) = (number % 3, number);
        let (record, data) = if number < eager {
            (TagRecord::Eager { context: 0, tag, data: &[] }, &number.to_le_bytes()[..])
        } else {
            let (bytes_follow, report) = (false, true);
            let envelope = Envelope { context: 0, tag, id, total: 4, bytes_follow, report };
            (TagRecord::Envelope(envelope), &[][..])
        };
        assert!(is_accepted(&mut tags, &record, data), "message {number}");
    }
    assert_eq!(tags.waiting(), (0, FLOOD as usize));
    assert!(tags.matcher.message_memory() <= 64 * FLOOD as usize, "{}", tags.matcher.message_memory());
    let stored = |tags: &Tags| {
        let names: Vec<_> = tags.stored.names().collect();
        names.into_iter().filter_map(|name| tags.stored.get(name)).map(|it| it.data.capacity()).sum::<usize>()
    };
    assert!(stored(&tags) as u64 <= TAG_CREDIT, "{} B stored", stored(&tags));
    for number in 0..FLOOD {
        // The oldest, whatever its tag, or the oldest of its tag: the same, if nothing was lost.
        let tag = (number % 2 == 0).then_some(number % 3);
        let pattern = Pattern { context: 0, source: Some(1), tag };
        let id = tags.receive(pattern, &mut Buffer::Whole(vec![0; 4])).unwrap();
        if number >= eager {
            let answer = tags.peers.get_mut(1).unwrap().answers.pop_front();
            let Some(Answer::Accept { id: asked, to, len: 4 }) = answer else { panic!("{answer:?}") };
            assert_eq!(asked, number);
            let data = TagRecord::Data { to, at: 0, data: &[] };
            assert!(is_accepted(&mut tags, &data, &number.to_le_bytes()));
        }
        let (result, buffer) = tags.take_received(id).unwrap();
        assert_eq!((result.unwrap().tag, buffer), (number % 3, Buffer::Whole(number.to_le_bytes().to_vec())));
    }
    assert_eq!((tags.waiting(), stored(&tags)), ((0, 0), 0));
}

/// E-15: a line is taken only if it is a message that the receive takes and that the sender has credit for;
/// then it costs credit as any other.
#[test]
fn a_line_is_taken_or_left_to_the_queues() {
    let (peer, context, tag) = (PeerId::new(3, 0), 5, 6);
    let line = |data: &[u8]| {
        let mut bytes = [0; tautline_device::shm::LINE_FRAME];
        let head = TagRecord::Eager { context, tag, data }.write(&mut bytes, 0, data.len());
        bytes[head..head + data.len()].copy_from_slice(data);
        let mut words = [0; tautline_device::shm::LINE_WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        (head + data.len(), words)
    };
    let pattern = Pattern { context, source: Some(3), tag: None };
    let mut tags = Tags::new(1, 1 << 16);
    tags.peer_up(peer);
    let mut buffer = Buffer::Whole(vec![0; 8]);
    let (len, words) = line(b"12345678");
    let other = Pattern { tag: Some(7), ..pattern };
    assert_eq!(tags.take_line(peer, (&other, &mut buffer), len, |at| words[at]), None);
    let status = super::Status { source: 3, tag, len: 8 };
    assert_eq!(tags.take_line(peer, (&pattern, &mut buffer), len, |at| words[at]), Some(Ok(status)));
    assert_eq!(buffer, Buffer::Whole(b"12345678".to_vec()));
    // Longer than the buffer: the first bytes are there.
    let (len, words) = line(b"abcdefghi");
    let truncated = Failure::Truncated(super::Status { len: 9, ..status });
    assert_eq!(tags.take_line(peer, (&pattern, &mut buffer), len, |at| words[at]), Some(Err(truncated)));
    assert_eq!(buffer, Buffer::Whole(b"abcdefgh".to_vec()));

    // A receive that is posted, or a message that it would take, is older than what comes next.
    let takes = |tags: &mut Tags| (0..100).filter(|_| tags.may_take(&pattern)).count();
    assert_eq!(takes(&mut tags), 94, "some receives are posted so that all rings are polled");
    let elsewhere = Pattern { context: context + 1, ..pattern };
    tags.receive(elsewhere, &mut Buffer::Whole(Vec::new())).unwrap();
    assert!(takes(&mut tags) > 0, "a receive of another context is in nobody's way");
    let id = tags.receive(other, &mut Buffer::Whole(Vec::new())).unwrap();
    assert_eq!(takes(&mut tags), 0);
    tags.cancel_receive(id).unwrap();
    let (len, words) = line(b"");
    assert!(takes(&mut tags) > 0 && tags.handle_words(peer, &mut NothingLent, len, &words));
    assert_eq!(takes(&mut tags), 0);

    // Without credit it is for the usual way to end the channel.
    let peer_tags = tags.peers.get_mut(3).unwrap();
    assert_eq!(peer_tags.returned, 8 + 9 + 2 * TAG_OVERHEAD, "what was taken is to be returned");
    peer_tags.charged = TAG_CREDIT - TAG_OVERHEAD + 1;
    assert_eq!(tags.take_line(peer, (&pattern, &mut buffer), len, |at| words[at]), None);
}

/// A message in a frame longer than a line: its length, its first words, and what is behind them.
fn long_frame((context, tag): (u32, u32), data: &[u8]) -> (usize, [u64; LINE_WORDS], Vec<u8>) {
    let mut bytes = vec![0; 16 + data.len()];
    let head = TagRecord::Eager { context, tag, data }.write(&mut bytes, 0, data.len());
    bytes[head..].copy_from_slice(data);
    let rest = bytes.split_off(LINE_FRAME);
    let mut words = [0; LINE_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    (LINE_FRAME + rest.len(), words, rest)
}

/// E-15, E-5: a frame longer than a line is taken as a line is, with its first bytes if there is room for no
/// more; if it is not, or for a buffer in several pieces, it is still in the ring.
#[test]
fn a_long_frame_is_taken_or_left_to_the_queues() {
    let (peer, context, tag) = (PeerId::new(3, 0), 5, 6);
    let data: Vec<u8> = (0..100).collect();
    let (len, words, rest) = long_frame((context, tag), &data);
    let pattern = Pattern { context, source: Some(3), tag: Some(tag) };
    let mut tags = Tags::new(1, 1 << 16);
    tags.peer_up(peer);
    // What a receive returns, and how many bytes were taken from the ring, if any were.
    let take = |tags: &mut Tags, pattern: &Pattern, buffer: &mut Buffer, len: usize| {
        let mut taken = None;
        let result = tags.take_frame(peer, (pattern, buffer), (len, &words), |out| {
            out.copy_from_slice(&rest[..out.len()]);
            taken = Some(out.len());
        });
        (result, taken)
    };
    let status = super::Status { source: 3, tag, len: 100 };
    take(&mut tags, &pattern, &mut Buffer::Whole(Vec::new()), len);
    for room in [0, 1, 39, 40, 41, 99, 100, 120] {
        let mut buffer = Buffer::Whole(vec![0xee; room]);
        let (result, taken) = take(&mut tags, &pattern, &mut buffer, len);
        let truncated = if room < 100 { Err(Failure::Truncated(status)) } else { Ok(status) };
        assert_eq!((result, taken), (Some(truncated), Some(room.min(100).saturating_sub(40))));
        let mut wanted = vec![0xee; room];
        wanted[..room.min(100)].copy_from_slice(&data[..room.min(100)]);
        assert_eq!(buffer, Buffer::Whole(wanted));
    }
    let returned = tags.peers.get_mut(3).unwrap().returned;
    assert_eq!(returned, 8 * (100 + TAG_OVERHEAD), "what was taken is to be returned");
    let mut whole = Buffer::Whole(vec![0; 100]);
    let other = Pattern { tag: Some(7), ..pattern };
    assert_eq!(take(&mut tags, &other, &mut whole, len), (None, None));
    assert_eq!(take(&mut tags, &pattern, &mut whole, len + 8), (None, None), "another record follows");
    let mut pieces = Buffer::Pieces(vec![vec![0; 50]; 2]);
    assert_eq!(take(&mut tags, &pattern, &mut pieces, len), (None, None));
    let peer_tags = tags.peers.get_mut(3).unwrap();
    peer_tags.charged = TAG_CREDIT - TAG_OVERHEAD - 99;
    assert_eq!(take(&mut tags, &pattern, &mut whole, len), (None, None), "beyond the credit");
}

/// E-1, E-2, E-5: a frame longer than a line goes to the receive that is posted, or waits for one, with the
/// same result as any other; if it is no message, or exceeds the credit, it is still in the ring.
#[test]
fn a_long_frame_is_placed() {
    let (peer, context, tag) = (PeerId::new(3, 0), 5, 6);
    let data: Vec<u8> = (0..100).collect();
    let (len, words, rest) = long_frame((context, tag), &data);
    let pattern = Pattern { context, source: None, tag: None };
    let mut tags = Tags::new(1, 1 << 16);
    tags.peer_up(peer);
    let mut taken = 0;
    let mut place = |tags: &mut Tags, len: usize| {
        let placed = tags.place_long(peer, (len, &words), |out| {
            out.copy_from_slice(&rest[..out.len()]);
            taken += 1;
        });
        (placed, taken)
    };
    let status = super::Status { source: 3, tag, len: 100 };
    let mut count = 0;
    for posted_first in [true, false] {
        let pieces = Buffer::Pieces(vec![vec![0; 30], vec![0; 80]]);
        for mut buffer in [Buffer::Whole(vec![0; 110]), Buffer::Whole(vec![0; 60]), pieces] {
            let room = buffer.len();
            let early = posted_first.then(|| tags.receive(pattern, &mut buffer).unwrap());
            count += 1;
            assert_eq!(place(&mut tags, len), (Some(true), count));
            let id = early.unwrap_or_else(|| tags.receive(pattern, &mut buffer).unwrap());
            let (result, mut back) = tags.take_received(id).unwrap();
            assert_eq!(result, if room < 100 { Err(Failure::Truncated(status)) } else { Ok(status) });
            let mut got = vec![0; room.min(100) as usize];
            back.read(0, &mut got);
            assert_eq!(got, data[..got.len()]);
        }
    }
    assert_eq!(tags.waiting(), (0, 0));
    let peer_tags = tags.peers.get_mut(3).unwrap();
    assert_eq!(peer_tags.returned, 6 * (100 + TAG_OVERHEAD), "what was matched is to be returned");
    assert_eq!(place(&mut tags, len + 8), (None, 6), "another record follows");
    tags.peers.get_mut(3).unwrap().charged = TAG_CREDIT - TAG_OVERHEAD - 99;
    assert_eq!(place(&mut tags, len), (None, 6), "beyond the credit");
    assert_eq!(tags.waiting(), (0, 0));
}

/// E-15: what is behind a message stays in the ring if it matched the only receive of its context, and only
/// then.
#[test]
fn the_last_posted_receive_leaves_the_rest_in_the_ring() {
    let peer = PeerId::new(3, 0);
    let post = |tags: &mut Tags, context| {
        let pattern = Pattern { context, source: Some(3), tag: None };
        tags.receive(pattern, &mut Buffer::Whole(vec![0; 100])).unwrap();
    };
    let arrive = |tags: &mut Tags, context, data: &[u8]| {
        let mut bytes = vec![0; 16 + data.len()];
        let head = TagRecord::Eager { context, tag: 6, data }.write(&mut bytes, 0, data.len());
        bytes[head..].copy_from_slice(data);
        if data.len() <= 40 {
            assert!(tags.handle_records(peer, &mut NothingLent, &bytes));
        } else {
            let (len, words, rest) = long_frame((context, 6), data);
            let placed = tags.place_long(peer, (len, &words), |out| out.copy_from_slice(&rest[..out.len()]));
            assert_eq!(placed, Some(true));
        }
        tags.take_last_matched()
    };
    for data in [&[7; 8][..], &[7; 100]] {
        let mut tags = Tags::new(1, 1 << 16);
        tags.peer_up(peer);
        // A receive of another context says nothing.
        post(&mut tags, 9);
        post(&mut tags, 5);
        post(&mut tags, 5);
        assert_eq!([0; 3].map(|_| arrive(&mut tags, 5, data)), [false, true, false]);
        assert!(arrive(&mut tags, 9, data) && !tags.take_last_matched());
    }
}
