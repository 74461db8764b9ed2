//! Requests of peers against a model of memory with tripwires, forged requests, and protocol violations.
//!
//! `TAUTLINE_FORGERIES=100000000 cargo test --release -p tautline-node forged` is the long run.

mod channel;
mod fake;
mod forged;
mod model;
mod sets;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use tautline_wire::record::RecordHead;

use tautline_mem::ApertureMemory;
use tautline_wire::memory::{
    Atomic, COMPLETION_REQUESTED, ExtentRef, MemoryRecord as Message, Refusal, Target,
};

use super::answers::{Answer, DataAnswer};
use super::cookie::CookieKey;
use super::*;
use crate::testing::{FakeWriter, NothingLent, Rng};
use forged::Forged;

/// The memory of rank 0, whose peers 1 and 2 have no channels to write to. Their records are made here.
struct Node {
    memory: RefCell<Memory>,
    secrets: Cell<u8>,
}

fn node() -> Node {
    let mut memory = Memory::new(0, 77);
    for rank in 0..3 {
        memory.peer_up(PeerId::new(rank, 1));
    }
    Node { memory: RefCell::new(memory), secrets: Cell::new(0) }
}

impl Node {
    fn with<T>(&self, f: impl FnOnce(&mut Memory) -> T) -> T {
        f(&mut self.memory.borrow_mut())
    }

    fn open_aperture(&self, memory: Arc<ApertureMemory>) -> Option<ApertureId> {
        self.with(|it| it.open_aperture(memory))
    }

    fn close_aperture(&self, aperture: ApertureId) {
        self.with(|it| it.close_aperture(aperture));
    }

    fn grant_cookie(
        &self,
        aperture: ApertureId,
        range: (u64, u64),
        rights: Rights,
        expires: Option<u64>,
    ) -> Option<Cookie> {
        self.secrets.set(self.secrets.get().wrapping_add(1));
        let secret = [self.secrets.get(); 16];
        self.with(|it| it.grant_cookie(aperture, range, (rights, expires.unwrap_or(u64::MAX)), secret))
    }

    fn revoke_cookie(&self, aperture: ApertureId, cookie: &Cookie) -> bool {
        self.with(|it| it.revoke_cookie(aperture, cookie))
    }

    fn arm_wire(&self, aperture: ApertureId, trip: Trip) -> Option<(WireId, Arc<WireCell>)> {
        self.with(|it| it.arm(aperture, trip))
    }

    fn rearm_wire(&self, wire: WireId) -> bool {
        self.with(|it| it.rearm(wire))
    }

    fn disarm_wire(&self, wire: WireId) -> bool {
        self.with(|it| it.disarm(wire))
    }

    fn make_set(
        &self,
        wires: &[WireId],
        need: usize,
        report: Report,
        tag: u64,
    ) -> Option<(SetId, Arc<WireCell>)> {
        self.with(|it| it.make_set(wires, need, report, tag))
    }

    fn dissolve_set(&self, set: SetId) -> bool {
        self.with(|it| it.dissolve_set(set))
    }

    fn poll_memory_event(&self) -> Option<MemoryEvent> {
        self.with(Memory::poll_event)
    }

    fn memory_counters(&self) -> MemoryCounters {
        self.with(|it| it.counters())
    }

    /// Handles a frame of one record. False if it violates the protocol.
    fn handle(&self, rank: Rank, message: &Message<'_>, flags: u8, data: &[u8]) -> bool {
        let mut frame = vec![0; message.head_len()];
        message.write(&mut frame, flags, data.len());
        frame.extend_from_slice(data);
        self.with(|it| it.handle_records(PeerId::new(rank, 1), &mut NothingLent, &frame))
    }
}

/// A peer, which numbers its requests.
struct Peer {
    rank: u32,
    id: u32,
}

impl Peer {
    fn say(&self, ep: &Node, message: &Message<'_>, flags: u8, data: &[u8]) {
        assert!(ep.handle(self.rank, message, flags, data), "{message:?}");
    }

    fn open(&self, ep: &Node, handle: u32, CookieKey { id: cookie, epoch, secret }: CookieKey) {
        self.say(ep, &Message::Open { handle, cookie, incarnation: epoch, secret }, 0, &[]);
    }

    fn target(&mut self, handle: u32, at: u64) -> Target {
        self.id = self.id.wrapping_add(1);
        Target { handle, id: self.id, at }
    }

    /// Takes the only answer that waits.
    fn answer(&self, ep: &Node) -> Option<Answer> {
        ep.with(|it| {
            let answers = &mut it.peers.get_mut(self.rank).unwrap().served.answers;
            let answer = answers.pop();
            assert!(answers.is_empty());
            answer
        })
    }
}

/// One tripwire of the model.
struct Modelled {
    id: WireId,
    cell: Arc<WireCell>,
    trip: Trip,
    armed: bool,
    fires: u64,
    events: u64,
}

impl Modelled {
    /// Accesses `start..end` as part of an access that ends at `whole`, and after which `memory` is as given.
    fn access(&mut self, on: Access, (start, end, whole): (u64, u64, u64), memory: &[u8]) {
        let hit = self.armed && self.trip.on.0 & on.0 != 0;
        let watched = self.trip.start + self.trip.len;
        if !hit || start >= watched || end <= self.trip.start || start == end || end < watched.min(whole) {
            return;
        }
        if let Some(Condition { at, width, test }) = self.trip.condition {
            let mut word = [0; 8];
            word[..usize::from(width)]
                .copy_from_slice(&memory[at as usize..at as usize + usize::from(width)]);
            let value = u64::from_le_bytes(word);
            let holds = match test {
                Test::Equal(it) => value == it,
                Test::NotEqual(it) => value != it,
                Test::AtLeast(it) => value >= it,
                Test::Masked(mask, it) => value & mask == it & mask,
            };
            if !holds {
                return;
            }
        }
        self.fires += 1;
        self.events += 1;
        self.armed &= !self.trip.once;
    }
}

const LEN: u64 = 4096;

fn random_trip(rng: &mut Rng) -> Trip {
    let start = rng.below(LEN);
    let longest = 1 << rng.below(13);
    let len = 1 + rng.below((LEN - start).min(longest));
    let width = [1, 2, 4, 8][rng.below(4) as usize];
    let at = rng.below(LEN / u64::from(width)) * u64::from(width);
    let value = rng.below(4);
    let test = [Test::Equal(value), Test::NotEqual(value), Test::AtLeast(value), Test::Masked(3, value)]
        [rng.below(4) as usize];
    Trip {
        start,
        len,
        on: Access(1 + rng.below(7) as u8),
        condition: (rng.below(2) == 0).then_some(Condition { at, width, test }),
        once: rng.below(4) == 0,
        report: [Report::Poll, Report::Once, Report::Each][rng.below(3) as usize],
        tag: rng.next(),
    }
}

/// T-1, T-2, T-4, T-5, T-7: memory, tripwires and events equal those of a model after random
/// requests.
#[test]
fn memory_tripwires_and_events_match_a_model() {
    for seed in 1..=20 {
        let ep = node();
        let mut rng = Rng(seed);
        let memory = Arc::new(ApertureMemory::adopt(vec![0; LEN as usize]).unwrap());
        let aperture = ep.open_aperture(memory.clone()).unwrap();
        let mut model = vec![0u8; LEN as usize];
        let mut peers: Vec<Peer> = (1..3).map(|rank| Peer { rank, id: 0 }).collect();
        // Each peer has two cookies: for the whole aperture and for its second half.
        for peer in &peers {
            for (handle, start) in [(0, 0), (1, LEN / 2)] {
                let cookie = ep.grant_cookie(aperture, (start, LEN - start), Rights::ALL, None).unwrap();
                peer.open(&ep, handle, cookie.key());
            }
        }
        let mut wires: Vec<Modelled> = Vec::new();
        for step in 0..4_000 {
            match rng.below(13) {
                0 if wires.len() < 40 => {
                    let trip = random_trip(&mut rng);
                    let (id, cell) = ep.arm_wire(aperture, trip).unwrap();
                    wires.push(Modelled { id, cell, trip, armed: true, fires: 0, events: 0 });
                }
                1 if !wires.is_empty() => {
                    let wire = wires.swap_remove(rng.below(wires.len() as u64) as usize);
                    assert!(ep.disarm_wire(wire.id));
                }
                2 if !wires.is_empty() => {
                    let at = rng.below(wires.len() as u64) as usize;
                    assert!(ep.rearm_wire(wires[at].id));
                    wires[at].armed = true;
                }
                3 => read_events(&ep, &mut wires),
                4 => model::operate(&ep, &mut rng, aperture, (&memory, &mut model), &mut wires),
                _ => access(&ep, &mut rng, &mut peers, (&memory, &mut model), &mut wires),
            }
            for wire in &wires {
                assert_eq!(wire.cell.fires(), wire.fires, "seed {seed}, step {step}: {:?}", wire.trip);
            }
        }
        let mut got = vec![0; LEN as usize];
        memory.read(0, &mut got).unwrap();
        assert!(got == model, "seed {seed}");
        read_events(&ep, &mut wires);
    }
}

/// Makes one access of a random peer.
fn access(
    ep: &Node,
    rng: &mut Rng,
    peers: &mut [Peer],
    (memory, model): (&ApertureMemory, &mut Vec<u8>),
    wires: &mut [Modelled],
) {
    let which = rng.below(2) as usize;
    let peer = &mut peers[which];
    let handle = rng.below(2) as u32;
    let base = if handle == 0 { 0 } else { LEN / 2 };
    let most = LEN - base;
    match rng.below(4) {
        0 | 1 => {
            let at = rng.below(most);
            let len = rng.below(most - at).min(1 << rng.below(12));
            let data: Vec<u8> = (0..len).map(|_| rng.below(5) as u8).collect();
            let mut target = peer.target(handle, at);
            // As one record or in parts. A tripwire sees the memory as it is after the part that completes
            // its range (T-5).
            let (whole, mut rest) = (base + at + len, data.as_slice());
            loop {
                let cut = rest.len() > 8 && rng.below(3) > 0;
                let most = if cut { 1 + rng.below(rest.len() as u64 - 1) as usize } else { rest.len() };
                let (part, more) = rest.split_at(most);
                let message = match part.len() == data.len() {
                    true => Message::Put(target, &[]),
                    false => Message::Part(target, more.len() as u64, &[]),
                };
                peer.say(ep, &message, if cut { 0 } else { COMPLETION_REQUESTED }, part);
                let start = base + target.at;
                let end = start + part.len() as u64;
                model[start as usize..end as usize].copy_from_slice(part);
                wires.iter_mut().for_each(|wire| wire.access(Access::WRITE, (start, end, whole), model));
                (target.at, rest) = (target.at + part.len() as u64, more);
                if !cut {
                    break;
                }
            }
            assert!(matches!(peer.answer(ep), Some(Answer::Done { .. })));
        }
        2 => {
            let at = rng.below(most / 8) * 8;
            let (a, b) = (rng.below(4), rng.below(4));
            let place = (base + at) as usize;
            let old = u64::from_le_bytes(model[place..place + 8].try_into().unwrap());
            let (atomic, new) = match rng.below(3) {
                0 => (Atomic::Swap(a), a),
                1 => (Atomic::Add(a), old.wrapping_add(a)),
                _ => (Atomic::CompareSwap(a, b), if old == a { b } else { old }),
            };
            let target = peer.target(handle, at);
            peer.say(ep, &Message::Atomic(target, atomic), 0, &[]);
            assert!(matches!(peer.answer(ep), Some(Answer::Value { value, .. }) if value == old));
            model[place..place + 8].copy_from_slice(&new.to_le_bytes());
            let both = Access::WRITE.or(Access::READ);
            let range = (base + at, base + at + 8, base + at + 8);
            wires.iter_mut().for_each(|wire| wire.access(both, range, model));
        }
        _ => {
            let at = rng.below(most);
            let len = rng.below(most - at + 1);
            let target = peer.target(handle, at);
            peer.say(ep, &Message::Get(target, len), 0, &[]);
            let (start, end) = (base + at, base + at + len);
            let answer = model::answer_get(ep, peer.rank, target.id);
            assert!(answer == model[start as usize..end as usize], "{len} bytes from {start} on");
            wires.iter_mut().for_each(|wire| wire.access(Access::READ, (start, end, end), model));
        }
    }
    let word = rng.below(LEN / 8) * 8;
    let place = word as usize;
    assert_eq!(memory.read_u64(place), Ok(u64::from_le_bytes(model[place..place + 8].try_into().unwrap())));
}

/// T-6: the events in the queue report all fires since the last call, and no others.
fn read_events(ep: &Node, wires: &mut [Modelled]) {
    while let Some(event) = ep.poll_memory_event() {
        let MemoryEvent::Tripwire { wire, tag, fires } = event else { panic!("{event:?}") };
        let wire =
            wires.iter_mut().find(|it| it.id == wire).expect("no event of a tripwire that is disarmed");
        assert_eq!(tag, wire.trip.tag);
        assert!(fires > 0 && (wire.trip.report == Report::Once || fires == 1));
        wire.events -= fires;
    }
    for wire in wires {
        let left = if wire.trip.report == Report::Poll { std::mem::take(&mut wire.events) } else { 0 };
        assert_eq!(wire.events, 0, "{:?}, {left}", wire.trip);
    }
}

/// forged, stale, expired, revoked, out-of-range and overreaching requests are refused and
/// counted, and touch nothing.
#[test]
fn forged_requests_touch_nothing() {
    const DEFAULT: u64 = 200_000;
    let count = tautline_skips::number("TAUTLINE_FORGERIES", DEFAULT);
    let ep = node();
    let mut rng = Rng(0x5eed + tautline_skips::number(tautline_skips::SEED, 0));
    let memory = Arc::new(ApertureMemory::adopt(vec![0x55; 64]).unwrap());
    let aperture = ep.open_aperture(memory.clone()).unwrap();
    let all =
        Trip { start: 0, len: 64, on: Access(7), condition: None, once: false, report: Report::Once, tag: 0 };
    let (_, cell) = ep.arm_wire(aperture, all).unwrap();
    let grant = |rights, life| ep.grant_cookie(aperture, (8, 32), rights, life).unwrap();
    let (good, reading, writing) =
        (grant(Rights::ALL, None), grant(Rights::READ, None), grant(Rights::WRITE, None));
    let expired = grant(Rights::ALL, Some(0));
    let revoked = grant(Rights::ALL, None);
    ep.with(|it| it.set_time(1));
    let mut peer = Peer { rank: 1, id: 0 };
    for (handle, cookie) in [good, reading, writing, expired, revoked].iter().enumerate() {
        peer.open(&ep, handle as u32, cookie.key());
    }
    assert!(ep.revoke_cookie(aperture, &revoked));
    for done in 0..count {
        let (handle, at, len, what) = match rng.below(9) {
            0 => (0, 33 + rng.below(u64::MAX - 60), rng.below(9), *rng.any(&Forged::ALL)),
            1 => (0, rng.below(33), 33 + rng.below(u64::MAX / 2), *rng.any(&Forged::WITH_LENGTH)),
            // Across the end, from the last bytes that are allowed on.
            2 => {
                let what = *rng.any(&Forged::ALL);
                let at = if what == Forged::Atomic { 25 + rng.below(8) } else { 17 + rng.below(16) };
                (0, at, 33 - at + rng.below(at - 16), what)
            }
            3 => (1, rng.below(24), rng.below(8), *rng.any(&Forged::BUT_GET)),
            4 => (2, rng.below(24), rng.below(8), *rng.any(&[Forged::Get, Forged::Atomic])),
            5 => (3 + rng.below(2) as u32, rng.below(24), rng.below(8), *rng.any(&Forged::ALL)),
            // A handle that was never given, or that was given for a forged cookie.
            6 => (6 + rng.next() as u32 % 1000, rng.below(24), rng.below(8), *rng.any(&Forged::ALL)),
            _ => {
                let CookieKey { mut id, mut epoch, mut secret } = good.key();
                match rng.below(4) {
                    0 => id = id.wrapping_add(1 + rng.below(1 << 20) as u32),
                    1 => epoch ^= 1 << rng.below(64),
                    2 => secret[rng.below(16) as usize] ^= 1 << rng.below(8),
                    _ => secret.iter_mut().for_each(|byte| *byte = rng.next() as u8),
                }
                peer.open(&ep, 5, CookieKey { id, epoch, secret });
                (5, rng.below(24), rng.below(8), *rng.any(&Forged::ALL))
            }
        };
        what.request(&ep, &mut peer, &mut rng, (handle, at, len));
        assert!(matches!(peer.answer(&ep), Some(Answer::Failed { .. })), "{handle} {at} {len} {what:?}");
        if done % 64 == 0 || done + 1 == count {
            for word in (0..64).step_by(8) {
                assert_eq!(memory.read_u64(word), Ok(0x5555_5555_5555_5555));
            }
            assert_eq!((cell.fires(), ep.memory_counters().refused), (0, done + 1));
            assert_eq!(ep.poll_memory_event(), None);
        }
    }
    // The valid cookie still gives access.
    let target = peer.target(0, 0);
    peer.say(&ep, &Message::Put(target, &[]), 0, &[1]);
    assert_eq!((cell.fires(), ep.memory_counters().puts), (1, 1));
    tautline_skips::did(ep.memory_counters().refused);
}

/// T-9: when too many events that peers send unasked wait, further ones are dropped, counted, and reported at
/// their place. Fires of tripwires are never lost.
#[test]
fn dropped_memory_events_are_counted_and_reported() {
    let ep = node();
    let memory = Arc::new(ApertureMemory::adopt(vec![0; 64]).unwrap());
    let aperture = ep.open_aperture(memory).unwrap();
    let each = Trip {
        start: 0,
        len: 8,
        on: Access::WRITE,
        condition: None,
        once: false,
        report: Report::Each,
        tag: 5,
    };
    ep.arm_wire(aperture, each).unwrap();
    let cookie = ep.grant_cookie(aperture, (0, 64), Rights::ALL, None).unwrap();
    let mut peer = Peer { rank: 1, id: 0 };
    peer.open(&ep, 0, cookie.key());
    let most = crate::limits::MAX_NOTICES as u64;
    for value in 0..most + 10 {
        let target = peer.target(0, 0);
        peer.say(&ep, &Message::Notice { target, len: 0, value }, 0, &[]);
    }
    for _ in 0..7 {
        let target = peer.target(0, 0);
        peer.say(&ep, &Message::Put(target, &[]), 0, &[1]);
    }
    let events: Vec<_> = std::iter::from_fn(|| ep.poll_memory_event()).collect();
    assert_eq!(events.len() as u64, most + 2);
    assert!(matches!(events[most as usize], MemoryEvent::Lost { events: 10 }));
    assert!(matches!(events[most as usize + 1], MemoryEvent::Tripwire { tag: 5, fires: 7, .. }));
    assert_eq!(ep.memory_counters().events_lost, 10);
}

/// a peer violates the protocol if it has too many requests unanswered, or numbers its requests
/// wrongly.
#[test]
fn protocol_violations_are_detected() {
    let ep = node();
    let bad = |message: &Message<'_>| !ep.handle(1, message, 0, &[]);
    assert!(bad(&Message::Flush { id: 2 }));
    assert!(bad(&Message::Done { id: 77 }));
    assert!(bad(&Message::Value { id: 1, value: 0 }));
    assert!(bad(&Message::Data { id: 1, at: 0, data: &[] }));
    assert!(bad(&Message::Failed { id: 1, why: Refusal::Forged }));
    assert!(bad(&Message::Open { handle: 9, cookie: 0, incarnation: 0, secret: [0; 16] }));
    // S-24: parts are lent only through shared memory.
    let piece = ExtentRef { number: 0, len: 8, at: 0 };
    assert!(bad(&Message::LoanedPart(Peer { rank: 1, id: 0 }.target(0, 0), 0, piece)));
    let ep = node();
    let mut peer = Peer { rank: 1, id: 0 };
    let asked = (0..10_000u32).find(|_| {
        let target = peer.target(0, 0);
        !ep.handle(1, &Message::Get(target, 1), 0, &[])
    });
    assert_eq!(asked, Some(2 * crate::limits::MAX_UNANSWERED));
}

/// puts and answers that do not fit one record are cut at the ends of words.
#[test]
fn parts_end_with_words() {
    use super::cookie::whole_words;
    for place in 0..16_u64 {
        for most in 8..40 {
            let len = whole_words(place, most, 1_000);
            assert!(
                len <= most && len + 8 > most && (place + len as u64).is_multiple_of(8),
                "{place} {most}"
            );
            assert_eq!(whole_words(place, most, most as u64), most);
        }
    }
    assert_eq!(whole_words(u64::MAX, 100, u64::MAX), 97);
}

/// An answer waits for room, `end` ends its cookie, and the answer says why it stops.
fn assert_stops(expires: Option<u64>, end: impl FnOnce(&Node, ApertureId, &Cookie), why: Refusal) {
    let ep = node();
    let memory = Arc::new(ApertureMemory::adopt(vec![0; 64]).unwrap());
    let aperture = ep.open_aperture(memory).unwrap();
    let cookie = ep.grant_cookie(aperture, (0, 64), Rights::ALL, expires).unwrap();
    let mut peer = Peer { rank: 1, id: 0 };
    peer.open(&ep, 0, cookie.key());
    let target = peer.target(0, 0);
    peer.say(&ep, &Message::Get(target, 64), 0, &[]);
    let pump = || assert!(!ep.with(|it| it.pump_answers(1, &mut 1000, &mut FakeWriter::without_room())));
    pump();
    assert_eq!(ep.memory_counters().refused, 0);
    end(&ep, aperture, &cookie);
    pump();
    let answer = peer.answer(&ep);
    assert!(matches!(&answer, Some(Answer::Failed { id: 1, why: told }) if *told == why), "{answer:?}");
    assert_eq!(ep.memory_counters().refused, 1);
}

/// an answer stops when its cookie expires.
#[test]
fn an_answer_stops_when_its_cookie_expires() {
    assert_stops(Some(1 << 50), |ep, _, _| ep.with(|it| it.set_time(u64::MAX - 1)), Refusal::Expired);
}

/// an answer stops when its cookie is revoked.
#[test]
fn an_answer_stops_when_its_cookie_is_revoked() {
    assert_stops(None, |ep, aperture, cookie| assert!(ep.revoke_cookie(aperture, cookie)), Refusal::Revoked);
}

/// closing an aperture releases its memory although answers wait that would read it. Answers of other
/// apertures stay.
#[test]
fn closing_an_aperture_releases_its_memory() {
    let ep = node();
    let mut peers = [Peer { rank: 1, id: 0 }, Peer { rank: 2, id: 0 }];
    let memories = [0, 1].map(|_| Arc::new(ApertureMemory::adopt(vec![0; 64]).unwrap()));
    let apertures = memories.each_ref().map(|memory| ep.open_aperture(memory.clone()).unwrap());
    for peer in &mut peers {
        for (handle, aperture) in apertures.iter().enumerate() {
            let cookie = ep.grant_cookie(*aperture, (0, 64), Rights::ALL, None).unwrap();
            peer.open(&ep, handle as u32, cookie.key());
            let target = peer.target(handle as u32, 0);
            peer.say(&ep, &Message::Get(target, 64), 0, &[]);
        }
    }
    ep.close_aperture(apertures[0]);
    assert_eq!(Arc::strong_count(&memories[0]), 1);
    assert_eq!(ep.memory_counters().refused, 2);
    for peer in peers {
        let pop = || ep.with(|it| it.peers.get_mut(peer.rank).unwrap().served.answers.pop());
        let answers = [pop(), pop(), pop()];
        let [refused, other, None] = &answers else { panic!("{answers:?}") };
        assert!(matches!(refused, Some(Answer::Failed { id: 1, why: Refusal::Revoked })), "{refused:?}");
        assert!(matches!(other, Some(Answer::Data(DataAnswer { id: 2, .. }))), "{other:?}");
    }
}
