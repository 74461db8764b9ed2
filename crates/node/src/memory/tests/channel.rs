//! Memory over channels that lack room, refuse to lend, or end: two nodes and a writer whose room each test
//! sets.

use super::fake::FakeLent;
use super::*;
use crate::testing::Lending;
use tautline_mem::ring::LINE_DATA_WORDS;
use tautline_wire::record::RecordHead;

const REQUESTER: PeerId = PeerId::new(0, 1);
const OWNER: PeerId = PeerId::new(1, 1);
/// Bytes of the owner's aperture.
const SIZE: u64 = 4096;

/// A requester of rank 0, and an owner of rank 1 with an aperture.
struct Pair {
    requester: Memory,
    owner: Memory,
    memory: Arc<ApertureMemory>,
    aperture: ApertureId,
    cookie: Cookie,
}

impl Pair {
    fn new() -> Pair {
        Pair::with_expiry(u64::MAX)
    }

    fn with_expiry(expires: Nanos) -> Pair {
        let (mut requester, mut owner) = (Memory::new(0, 5), Memory::new(1, 6));
        requester.peer_up(OWNER);
        owner.peer_up(REQUESTER);
        let memory = Arc::new(ApertureMemory::adopt(vec![0; SIZE as usize]).unwrap());
        let aperture = owner.open_aperture(memory.clone()).unwrap();
        let cookie = owner.grant_cookie(aperture, (0, SIZE), (Rights::ALL, expires), [9; 16]).unwrap();
        Pair { requester, owner, memory, aperture, cookie }
    }

    fn arm(&mut self, start: u64, len: u64) -> Arc<WireCell> {
        let trip = Trip {
            start,
            len,
            on: Access::WRITE,
            condition: None,
            once: false,
            report: Report::Poll,
            tag: 0,
        };
        self.owner.arm(self.aperture, trip).unwrap().1
    }

    fn put(&mut self, writer: &mut FakeWriter, at: u64, bytes: &[u8], progress: &mut Progress) -> PutStatus {
        self.requester.put_bytes(writer, 0, (&self.cookie, at), bytes, None, progress)
    }

    /// Lets the owner handle what the requester wrote. False if that violates the protocol.
    fn deliver(&mut self, writer: &mut FakeWriter) -> bool {
        let mut lent = FakeLent { parts: &writer.lent, returned: Vec::new() };
        let lent_frames = writer.lent.len();
        let good =
            writer.frames.drain(..).all(|frame| self.owner.handle_records(REQUESTER, &mut lent, &frame));
        assert!(!good || lent.returned.len() == lent_frames, "every part is returned");
        writer.lent.clear();
        good
    }

    /// Gives both sides turns with room for one record each, until nothing waits.
    fn run(&mut self) {
        for _ in 0..10_000 {
            if !self.requester.is_busy() && !self.owner.is_busy() {
                return;
            }
            let mut writer = FakeWriter::new(1);
            pump(&mut self.requester, &mut writer);
            assert!(self.deliver(&mut writer));
            let mut writer = FakeWriter::new(1);
            pump(&mut self.owner, &mut writer);
            for frame in &writer.frames {
                assert!(self.requester.handle_records(OWNER, &mut NothingLent, frame));
            }
        }
        panic!("it does not end");
    }

    fn submit(&mut self, at: u64, operation: Operation) -> Ticket {
        self.requester.submit(&self.cookie, &[(at, operation)], Completion::Polled, None).unwrap()
    }

    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(at, &mut bytes).unwrap();
        bytes
    }
}

/// Gives the only busy peer its turn.
fn pump(memory: &mut Memory, writer: &mut FakeWriter) {
    assert!(memory.start_round() <= 1);
    if let Some(rank) = memory.next_busy() {
        memory.pump_peer(rank, writer);
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + 1) as u8).collect()
}

fn local(bytes: Vec<u8>) -> Local {
    let len = bytes.len() as u64;
    Local { memory: Arc::new(ApertureMemory::adopt(bytes).unwrap()), aperture: None, at: 0, len }
}

/// A-5, T-5: a put for which the channel has room for one record at a time, or fewer, arrives once and fires
/// once.
#[test]
fn a_put_in_parts_survives_want_of_room_before_each_record() {
    let mut pair = Pair::new();
    let cell = pair.arm(0, SIZE);
    let bytes = pattern(1000);
    let mut progress = Progress::default();
    let (mut turns, mut written) = (0, false);
    while !written {
        assert_eq!(pair.put(&mut FakeWriter::new(0), 8, &bytes, &mut progress), PutStatus::NoRoom);
        let mut writer = FakeWriter::new(1);
        written = match pair.put(&mut writer, 8, &bytes, &mut progress) {
            PutStatus::NoRoom => false,
            status => status == PutStatus::Written,
        };
        assert_eq!((writer.frames.len(), cell.fires()), (1, 0));
        assert!(pair.deliver(&mut writer));
        turns += 1;
    }
    // The cookie, and parts of 96 bytes.
    assert_eq!((turns, cell.fires()), (1 + 1000_usize.div_ceil(96), 1));
    assert_eq!(pair.bytes(8, 1000), bytes);
    assert_eq!(pair.owner.counters().puts, 1);
}

/// A put that goes in one record is written or not. Nothing of one for which there is no room remains.
#[test]
fn a_whole_put_is_blocked_for_want_of_room() {
    let mut pair = Pair::new();
    let mut progress = Progress::default();
    assert_eq!(pair.put(&mut FakeWriter::new(0), 0, &[1; 8], &mut progress), PutStatus::Blocked);
    // There is room for the cookie, and then for the put.
    let mut writer = FakeWriter::new(1);
    assert_eq!(pair.put(&mut writer, 0, &[1; 8], &mut progress), PutStatus::Blocked);
    assert!(!progress.is_begun());
    writer.room = 1;
    assert_eq!(pair.put(&mut writer, 0, &[1; 8], &mut progress), PutStatus::Written);
    writer.room = 1;
    writer.express = true;
    assert_eq!(pair.put(&mut writer, 8, &[2; 8], &mut progress), PutStatus::Sent);
    assert_eq!(writer.frames.len(), 3);
    assert!(pair.deliver(&mut writer));
    assert_eq!(pair.bytes(0, 16), [[1; 8], [2; 8]].concat());
}

/// N-3: a put pauses when enough frames wait to leave, and then continues.
#[test]
fn a_put_pauses_at_a_full_train() {
    let mut pair = Pair::new();
    let bytes = pattern(1000);
    let (mut writer, mut progress) = (FakeWriter::new(100), Progress::default());
    writer.train = 4;
    let mut pauses = 0;
    while pair.put(&mut writer, 0, &bytes, &mut progress) == PutStatus::Paused {
        assert!(writer.frames.len() >= 4);
        assert!(pair.deliver(&mut writer));
        pauses += 1;
    }
    assert!(pair.deliver(&mut writer));
    assert_eq!((pauses, pair.bytes(0, 1000)), (2, bytes));
}

/// S-24: parts are lent if the channel can; if it never can they are copied, and if it cannot now they wait.
#[test]
fn a_part_that_cannot_be_lent_is_copied_or_waits() {
    for lending in [Lending::Possible, Lending::Impossible, Lending::NoRoom] {
        let mut pair = Pair::new();
        let cell = pair.arm(0, SIZE);
        let bytes = pattern(1000);
        let (mut writer, mut progress) = (FakeWriter::new(100), Progress::default());
        writer.lending = Some(lending);
        let status = pair.put(&mut writer, 0, &bytes, &mut progress);
        if lending == Lending::NoRoom {
            assert_eq!((status, progress.is_begun()), (PutStatus::NoRoom, false));
            writer.lending = Some(Lending::Possible);
            assert_eq!(pair.put(&mut writer, 0, &bytes, &mut progress), PutStatus::Written);
        } else {
            assert_eq!(status, PutStatus::Written);
        }
        assert_eq!(writer.lent.is_empty(), lending == Lending::Impossible);
        assert!(pair.deliver(&mut writer));
        assert_eq!((pair.bytes(0, 1000), cell.fires()), (bytes, 1), "{lending:?}");
    }
}

/// S-2, S-24: a lent part that is refused is returned unread, and one that does not lie in lent memory is a
/// violation.
#[test]
fn a_lent_part_is_checked_before_it_is_read() {
    let mut pair = Pair::new();
    let (mut writer, mut progress) = (FakeWriter::new(100), Progress::default());
    writer.lending = Some(Lending::Possible);
    assert_eq!(pair.put(&mut writer, SIZE - 8, &pattern(256), &mut progress), PutStatus::Written);
    // The owner refuses it, and it is returned nevertheless.
    assert!(pair.deliver(&mut writer));
    assert_eq!((pair.owner.counters().refused, pair.bytes(4088, 8)), (1, vec![0; 8]));
    let target = Target { handle: 0, id: 2, at: 0 };
    let message = Message::LoanedPart(target, 0, ExtentRef { number: 0, len: 8, at: 0 });
    let mut frame = vec![0; message.head_len()];
    message.write(&mut frame, 0, 0);
    writer.frames.push(frame);
    assert!(!pair.deliver(&mut writer));
}

/// every kind of request and answer completes if the channels have room for one record
/// at a time.
#[test]
fn requests_and_answers_survive_want_of_room() {
    let mut pair = Pair::new();
    let destination = local(vec![0; 500]);
    let into = destination.memory.clone();
    let tickets = [
        pair.submit(0, Operation::Put(local(pattern(500)))),
        pair.submit(8, Operation::Atomic(Atomic::Add(0))),
        pair.submit(0, Operation::Fence),
        pair.submit(0, Operation::Get(destination)),
        pair.submit(0, Operation::Notice { len: 8, value: 4 }),
        pair.submit(0, Operation::Flush),
    ];
    // A put of the program's own bytes does not overtake them.
    let mut progress = Progress::default();
    assert_eq!(pair.put(&mut FakeWriter::new(9), 0, &[7], &mut progress), PutStatus::Blocked);
    pump(&mut pair.requester, &mut FakeWriter::without_room());
    assert!(pair.requester.is_busy() && !pair.requester.has_more());
    pair.run();
    let word = u64::from_le_bytes(pattern(16)[8..].try_into().unwrap());
    let results = tickets.map(|ticket| pair.requester.poll_operation(ticket, false));
    assert_eq!(results, [0, word, 0, 0, 0, 0].map(|value| Some(Ok(value))));
    let mut got = vec![0; 500];
    into.read(0, &mut got).unwrap();
    assert_eq!(got, pattern(500));
    let notice = MemoryEvent::Notice { peer: 0, aperture: pair.aperture, at: 0, len: 8, value: 4 };
    assert_eq!(pair.owner.poll_event(), Some(notice));
}

/// a peer's turn ends with its budget, and what it wrote is flushed.
#[test]
fn a_turn_ends_with_its_budget() {
    let mut pair = Pair::new();
    let operation = Operation::Put(local(pattern(4096)));
    let tickets: Vec<_> = (0..30).map(|_| pair.submit(0, operation.clone())).collect();
    let mut writer = FakeWriter::new(usize::MAX);
    assert_eq!((pair.requester.start_round(), pair.requester.next_busy()), (1, Some(1)));
    let pumped = pair.requester.pump_peer(1, &mut writer);
    assert!(pumped.sent_anything && pumped.more && pair.requester.has_more());
    assert_eq!(writer.flushes, 1);
    let sent: usize = writer.frames.iter().map(Vec::len).sum();
    assert!(sent > 30_000 && sent < 61_000, "{sent}");
    assert!(pair.deliver(&mut writer));
    pair.run();
    assert!(tickets.iter().all(|it| pair.requester.poll_operation(*it, false) == Some(Ok(0))));
}

/// a put, a cached word and the rest of an answer are refused once the cookie has expired.
#[test]
fn nothing_is_accessed_after_expiry() {
    let mut pair = Pair::with_expiry(100);
    let cell = pair.arm(0, 8);
    let mut progress = Progress::default();
    let mut writer = FakeWriter::new(100);
    assert_eq!(pair.put(&mut writer, 0, &[1; 8], &mut progress), PutStatus::Written);
    assert!(pair.deliver(&mut writer));
    // The third put of the same word is served from the cache.
    for _ in 0..3 {
        assert!(put_words_inline(&mut pair, 0, 2, progress.hint));
    }
    assert_eq!((cell.fires(), pair.owner.wants_time()), (4, true));
    let destination = local(vec![0; 4096]);
    let ticket = pair.submit(0, Operation::Get(destination));
    let mut writer = FakeWriter::new(1);
    pump(&mut pair.requester, &mut writer);
    assert!(pair.deliver(&mut writer));
    let mut answers = FakeWriter::new(1);
    pump(&mut pair.owner, &mut answers);
    assert_eq!(answers.frames.len(), 1);
    assert!(pair.requester.handle_records(OWNER, &mut NothingLent, &answers.frames[0]));
    pair.owner.set_time(100);
    assert!(!pair.owner.wants_time());
    pair.run();
    let expired = Some(Err(Failure::Refused(Refusal::Expired)));
    assert_eq!(pair.requester.poll_operation(ticket, false), expired);
    assert!(put_words_inline(&mut pair, 0, 3, progress.hint));
    assert_eq!((cell.fires(), pair.bytes(0, 8)), (4, 2_u64.to_le_bytes().to_vec()));
    pair.run();
    let refused = MemoryEvent::Refused { peer: 1, why: Refusal::Expired };
    assert_eq!(pair.requester.poll_event(), Some(refused));
}

/// Puts a word as the words of a small frame, and lets the owner handle it. False if that violates the
/// protocol.
fn put_words_inline(pair: &mut Pair, at: u64, word: u64, hint: Hint) -> bool {
    let mut words = [0; LINE_DATA_WORDS];
    let sent = pair.requester.put_inline((&pair.cookie, at), &word.to_le_bytes(), hint, |head, bytes| {
        words[..3].copy_from_slice(&head);
        words[3] = u64::from_le_bytes(bytes.try_into().unwrap());
        true
    });
    assert!(sent);
    pair.owner.handle_words(REQUESTER, &mut NothingLent, 32, &words)
}

/// A put of one record on the fast path does nothing if it has no hint, must wait, or cannot be pushed.
#[test]
fn an_inline_put_is_all_or_nothing() {
    let mut pair = Pair::new();
    let cookie = pair.cookie;
    let never = |_: [u64; 3], _: &[u8]| -> bool { panic!("nothing is pushed") };
    assert!(!pair.requester.put_inline((&cookie, 0), &[1; 8], Hint::default(), never));
    let (mut writer, mut progress) = (FakeWriter::new(9), Progress::default());
    assert_eq!(pair.put(&mut writer, 0, &[1; 8], &mut progress), PutStatus::Written);
    assert!(!pair.requester.put_inline((&cookie, 0), &[1; 8], progress.hint, |_, _| false));
    assert!(pair.deliver(&mut writer));
    // The number of the put that could not be pushed is used again.
    assert!(put_words_inline(&mut pair, 0, 5, progress.hint));
    pair.submit(0, Operation::Flush);
    assert!(!pair.requester.put_inline((&cookie, 0), &[1; 8], progress.hint, never));
    // Another channel has other handles.
    pair.requester.peer_down(1, Failure::Closed);
    pair.requester.peer_up(PeerId::new(1, 2));
    assert!(!pair.requester.put_inline((&cookie, 0), &[1; 8], progress.hint, never));
}

/// a wrong number is a violation on every path of a put: records, words, cached words, long frames and
/// parts.
#[test]
fn wrong_numbering_is_a_violation() {
    let words_of = |id: u32, len: usize| {
        let mut words = [0; LINE_DATA_WORDS];
        let target = Target { handle: 0, id, at: 0 };
        words[..3].copy_from_slice(&tautline_wire::memory::put_head(target, 0, len));
        words
    };
    for (path, wrong) in [(0, 5), (1, 5), (2, 5), (3, 5), (4, 5), (0, 3), (1, 3), (2, 3), (3, 3), (4, 3)] {
        let mut pair = Pair::new();
        let cell = pair.arm(0, 8);
        let (mut writer, mut progress) = (FakeWriter::new(9), Progress::default());
        assert_eq!(pair.put(&mut writer, 0, &[1; 8], &mut progress), PutStatus::Written);
        assert!(pair.deliver(&mut writer));
        assert!(put_words_inline(&mut pair, 0, 2, progress.hint));
        assert!(put_words_inline(&mut pair, 0, 2, progress.hint));
        assert_eq!(cell.fires(), 3);
        let target = Target { handle: 0, id: wrong, at: 0 };
        let node = &mut pair.owner;
        let good = match path {
            0 => node.handle_words(REQUESTER, &mut NothingLent, 32, &words_of(wrong, 8)),
            1 => node.handle_words(REQUESTER, &mut NothingLent, 40, &words_of(wrong, 16)),
            2 => node.place_long(REQUESTER, &words_of(wrong, 100), 124, |_, _| {}).unwrap(),
            _ => {
                let part = Message::Part(target, 8, &[]);
                let message = if path == 3 { part } else { Message::Put(target, &[]) };
                let mut frame = vec![0; message.head_len() + 8];
                message.write(&mut frame, 0, 8);
                node.handle_records(REQUESTER, &mut NothingLent, &frame)
            }
        };
        assert!(!good, "path {path}, number {wrong}");
        assert_eq!(cell.fires(), 3, "path {path}, number {wrong}");
    }
}

/// a long frame is placed from the ring if it is a whole put to an aligned place that is allowed, and
/// only then.
#[test]
fn a_long_put_is_placed_from_the_ring() {
    let mut pair = Pair::new();
    let cell = pair.arm(64, 8);
    let (mut writer, mut progress) = (FakeWriter::new(9), Progress::default());
    assert_eq!(pair.put(&mut writer, 0, &[], &mut progress), PutStatus::Written);
    assert!(pair.deliver(&mut writer));
    let bytes = pattern(100);
    let frame = |at: u64, id: u32| {
        let mut words = [0; LINE_DATA_WORDS];
        let target = Target { handle: 0, id, at };
        words[..3].copy_from_slice(&tautline_wire::memory::put_head(
            target,
            COMPLETION_REQUESTED,
            bytes.len(),
        ));
        for (word, part) in words[3..].iter_mut().zip(bytes.chunks(8)) {
            *word = u64::from_le_bytes(part.try_into().unwrap());
        }
        words
    };
    let rest = &bytes[8 * (LINE_DATA_WORDS - 3)..];
    let never = |_: &ApertureMemory, _: usize| panic!("nothing is taken");
    for unfit in [frame(4, 2), frame(SIZE - 8, 2)] {
        assert_eq!(pair.owner.place_long(REQUESTER, &unfit, 124, never), None);
    }
    let placed = pair.owner.place_long(REQUESTER, &frame(8, 2), 124, |to, at| to.write(at, rest).unwrap());
    assert_eq!((placed, pair.bytes(8, 100), cell.fires()), (Some(true), bytes.clone(), 1));
    assert!(pair.owner.is_busy());
}

/// a part that arrives ahead of a gap is placed at once if its put has begun; it fires when its turn
/// comes.
#[test]
fn a_part_ahead_of_a_gap_is_placed_and_settled_later() {
    let mut pair = Pair::new();
    let cell = pair.arm(0, SIZE);
    let bytes = pattern(280);
    let (mut writer, mut progress) = (FakeWriter::new(9), Progress::default());
    assert_eq!(pair.put(&mut writer, 0, &bytes, &mut progress), PutStatus::Written);
    let last = writer.frames.pop().unwrap();
    assert!(pair.owner.place_ahead(REQUESTER, &last).is_none());
    let middle = writer.frames.pop().unwrap();
    assert!(pair.deliver(&mut writer));
    let placed = pair.owner.place_ahead(REQUESTER, &last).unwrap();
    assert_eq!((cell.fires(), pair.bytes(192, 88)), (0, bytes[192..].to_vec()));
    assert!(pair.owner.handle_records(REQUESTER, &mut NothingLent, &middle));
    assert!(pair.owner.settle_placed(REQUESTER, placed));
    assert_eq!((cell.fires(), pair.bytes(0, 280)), (1, bytes));
    assert_eq!(pair.owner.counters().placed_ahead, 1);
}

/// everything that was asked of a peer ends once with its channel, and what would follow is not tried.
#[test]
fn requests_end_with_their_channel() {
    let mut pair = Pair::new();
    let sent = pair.submit(0, Operation::Flush);
    pump(&mut pair.requester, &mut FakeWriter::new(1));
    let queued = pair.submit(0, Operation::Atomic(Atomic::Swap(1)));
    let next = [(0, Operation::Flush)];
    let follows = pair.requester.submit(&pair.cookie, &next, Completion::Event(3), Some(queued)).unwrap();
    let why = Failure::PeerGone(1, Down::Closed);
    pair.requester.peer_down(1, why);
    for ticket in [sent, queued] {
        assert_eq!(pair.requester.poll_operation(ticket, false), Some(Err(why)));
    }
    let result = Err(Failure::Before);
    let event = MemoryEvent::Completed { ticket: follows, tag: 3, result };
    assert_eq!((pair.requester.poll_event(), pair.requester.poll_event()), (Some(event), None));
    // The first reason stays, until there is another channel.
    pair.requester.peer_down(1, Failure::Closed);
    let late = pair.submit(0, Operation::Flush);
    assert_eq!(pair.requester.poll_operation(late, false), Some(Err(why)));
    pair.requester.peer_up(PeerId::new(1, 2));
    let live = pair.submit(0, Operation::Flush);
    assert_eq!(pair.requester.poll_operation(live, false), None);
    // Nor is a request lost that waits when another channel starts.
    pair.requester.peer_up(PeerId::new(1, 3));
    assert!(matches!(pair.requester.poll_operation(live, false), Some(Err(Failure::PeerGone(1, _)))));
    assert!(!pair.requester.is_used());
}

/// A put that is given up in the middle lets others pass, and the owner is asked anew for the report that it
/// does not send.
#[test]
fn an_abandoned_put_lets_others_pass() {
    let mut pair = Pair::new();
    let mut progress = Progress::default();
    let mut writer = FakeWriter::new(2);
    let ticket = pair.requester.operation_of_puts(None, 1).unwrap();
    let put = (&pair.cookie, 0);
    let status = pair.requester.put_bytes(&mut writer, 0, put, &pattern(500), Some(ticket), &mut progress);
    assert_eq!((status, progress.begun_with(1)), (PutStatus::NoRoom, Some(OWNER)));
    let flush = pair.submit(0, Operation::Fence);
    pump(&mut pair.requester, &mut FakeWriter::without_room());
    pair.requester.abandon_put(1, &progress);
    assert!(pair.deliver(&mut writer));
    pair.run();
    assert_eq!(pair.requester.poll_operation(flush, false), Some(Ok(0)));
}
