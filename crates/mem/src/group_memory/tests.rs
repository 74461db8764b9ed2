use super::*;

const SECRET: [u8; 16] = [7; 16];

fn members(count: usize) -> Vec<GroupMemory> {
    let mut first = GroupMemory::create(count, &SECRET).unwrap();
    let attach = |me: usize| {
        let fd = first.fd().try_clone_to_owned().unwrap();
        GroupMemory::attach(fd, (me, count), &SECRET).unwrap()
    };
    let others: Vec<_> = (1..count).map(attach).collect();
    first.close_fd();
    std::iter::once(first).chain(others).collect()
}

fn wait(memory: &GroupMemory, awaited: Awaited) {
    while !memory.is_done(awaited) {
        std::thread::yield_now();
    }
}

/// G-14: memory of another size or with another secret is refused.
#[test]
fn other_memory_is_refused() {
    let first = GroupMemory::create(4, &SECRET).unwrap();
    let fd = || first.fd().try_clone_to_owned().unwrap();
    assert!(GroupMemory::attach(fd(), (1, 5), &SECRET).unwrap_err().to_string().contains("wrong size"));
    let other = GroupMemory::attach(fd(), (1, 4), &[8; 16]).unwrap_err().to_string();
    assert!(other.contains("another group"), "{other}");
    assert!(GroupMemory::attach(fd(), (3, 4), &SECRET).is_ok());
}

/// G-15, G-16: in hundreds of operations of all kinds, drawn alike at all members, each member reads
/// what the others wrote in the same operation, whoever is ahead.
#[test]
fn operations_do_not_mix() {
    const OPERATIONS: u64 = 500;
    for n in [2, 3, 5, 9] {
        std::thread::scope(|scope| {
            for memory in members(n) {
                scope.spawn(move || (0..OPERATIONS).for_each(|at| operate(&memory, at)));
            }
        });
    }
}

/// G-16: a member that is ahead has no room before the others have left the operation whose bytes it
/// overwrites.
#[test]
fn nobody_overwrites_what_others_may_read() {
    let all = members(2);
    for at in 0..ROUNDS - 1 {
        assert!(all[0].has_room(at), "operation {at}");
        all[0].enter(at, 1);
        all[0].leave(at);
    }
    for at in ROUNDS - 1..3 * ROUNDS {
        assert!(!all[0].has_room(at), "operation {at}");
        all[1].enter(at + 1 - ROUNDS, 1);
        assert!(all[0].has_room(at), "operation {at}");
        all[0].enter(at, 1);
    }
}

fn bytes_of(operation: u64, member: usize) -> [u8; 100] {
    [(operation * 31 + member as u64 * 7) as u8; 100]
}

/// One operation of a member; what it does depends on the number only.
fn operate(memory: &GroupMemory, at: u64) {
    let (me, n) = (memory.me(), memory.members());
    let root = at as usize % n;
    let mut got = [0; 100];
    wait(memory, Awaited::Turn(at));
    wait(memory, Awaited::Room(at));
    match at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 62 {
        // All read from all.
        0 => {
            memory.contribute(at, &bytes_of(at, me));
            memory.enter(at, 1);
            wait(memory, Awaited::Entered(at));
            assert_eq!(memory.has_all(at), Ok(true));
            for member in 0..n {
                memory.read(at, member, 0, &mut got);
                assert_eq!(got, bytes_of(at, member));
            }
        }
        // One of them computes for all.
        1 => {
            memory.contribute(at, &bytes_of(at, me));
            memory.enter(at, 2);
            while !memory.has_result(at).unwrap() {
                wait(memory, Awaited::Result(at));
                if memory.has_all(at).unwrap() && memory.claim(at).unwrap() {
                    memory.read(at, root, 0, &mut got);
                    memory.publish(at, &got);
                }
            }
            memory.result(at, &mut got);
            assert_eq!(got, bytes_of(at, root));
        }
        // The root writes, and runs ahead.
        2 => {
            if me == root {
                memory.publish(at, &bytes_of(at, me));
            }
            memory.enter(at, 3);
            if me != root {
                wait(memory, Awaited::From(at, root as u32));
                memory.result(at, &mut got);
                assert_eq!(got, bytes_of(at, root));
            }
        }
        // The root reads, and the others run ahead.
        _ => {
            memory.contribute(at, &bytes_of(at, me));
            memory.enter(at, 4);
            if me == root {
                wait(memory, Awaited::Operands(at));
                assert_eq!(memory.has_all(at), Ok(true));
                for member in 0..n {
                    memory.read(at, member, 0, &mut got);
                    assert_eq!(got, bytes_of(at, member));
                }
            }
        }
    }
    memory.leave(at);
}

/// G-17: other calls, and words that no member writes, are errors; whoever waits is told.
#[test]
fn corruption_and_other_calls_are_detected() {
    let all = members(3);
    all[0].enter(0, 5);
    all[1].enter(0, 5);
    assert_eq!(all[0].has_all(0), Ok(false));
    all[2].enter(0, 6);
    assert_eq!(all[0].has_all(0), Err(GroupFault::OtherCall));
    assert!(all[0].is_done(Awaited::Entered(0)));
    all[2].word_of(2, 0).store(u64::MAX, Ordering::Relaxed);
    assert_eq!(all[0].has_all(0), Err(GroupFault::Corrupt));
    all[2].word_of(0, 0).store(0, Ordering::Relaxed);
    assert_eq!(all[0].has_all(0), Err(GroupFault::Corrupt), "this member's own word");
    for (word, claimed) in [
        (2 << SIGNATURE_BITS, Err(GroupFault::Corrupt)),
        (1 << SIGNATURE_BITS | 3, Err(GroupFault::Corrupt)),
        (1 << SIGNATURE_BITS, Err(GroupFault::Corrupt)),
        (1 << SIGNATURE_BITS | 2, Ok(false)),
        (0, Ok(true)),
    ] {
        all[1].claim_word(0).store(word, Ordering::Relaxed);
        assert_eq!(all[0].claim(0), claimed, "{word:x}");
    }
    all[1].segment.word(all[1].round(0)).store(2, Ordering::Relaxed);
    assert_eq!(all[0].has_result(0), Err(GroupFault::Corrupt));
    assert!(all[0].is_done(Awaited::Published(0)) && all[0].is_done(Awaited::Result(0)));
    all[1].mask(Asleep::ForAll).store(u64::MAX, Ordering::Relaxed);
    assert_eq!(all[0].asleep(Asleep::ForAll), 0b111, "no other bits");
}

/// G-17: what must have been there, since others have gone on, was overwritten.
#[test]
fn lost_words_are_detected() {
    let all = members(3);
    let awaited = [Awaited::Entered(0), Awaited::Result(0), Awaited::Published(0), Awaited::From(0, 1)];
    let overwritten = || awaited.map(|awaited| all[0].is_overwritten(awaited));
    all.iter().take(2).for_each(|memory| memory.enter(0, 1));
    assert_eq!(overwritten(), [false; 4], "the third may be late");
    all[2].enter(0, 1);
    all[1].enter(1, 1);
    assert_eq!(overwritten(), [false, true, true, true], "there is no result");
    all[1].publish(0, &[1]);
    assert_eq!(overwritten(), [false; 4]);
    all[1].word_of(2, 0).store(0, Ordering::Relaxed);
    assert_eq!(overwritten(), [true, false, false, false], "the third had entered");
    let forged = members(3);
    forged[1].claim_word(0).store(1 << SIGNATURE_BITS, Ordering::Relaxed);
    assert!(forged[0].is_overwritten(Awaited::Published(0)), "claimed in this member's name");
    assert!(!forged[1].is_overwritten(Awaited::Published(0)));
}

/// G-20: a member that is gone is needed by those who wait for it, and by no others.
#[test]
fn members_are_needed_until_they_have_entered() {
    let all = members(3);
    all[0].enter(0, 1);
    for awaited in [Awaited::Entered(0), Awaited::Operands(0), Awaited::Result(0), Awaited::From(0, 1)] {
        assert!(all[0].needs(awaited, 1), "{awaited:?}");
    }
    assert!(!all[0].needs(Awaited::From(0, 2), 1) && !all[0].needs(Awaited::Turn(1), 1));
    assert!(!all[0].needs(Awaited::Room(2), 1) && all[0].needs(Awaited::Room(3), 1));
    all[1].enter(0, 1);
    for awaited in [Awaited::Entered(0), Awaited::Operands(0), Awaited::Result(0), Awaited::Room(3)] {
        assert!(!all[0].needs(awaited, 1), "{awaited:?}");
    }
    assert_eq!(all[1].claim(0), Ok(true));
    assert!(all[0].needs(Awaited::Published(0), 1) && !all[0].needs(Awaited::Published(0), 0));
}

/// G-18: one of those who may ring does, once per sleep.
#[test]
fn sleepers_are_rung_for_once() {
    let all = members(64);
    all[63].announce_sleep(Awaited::Entered(0));
    all[5].announce_sleep(Awaited::Room(4));
    all[6].announce_sleep(Awaited::Turn(4));
    assert_eq!(all[0].asleep(Asleep::ForAll), 1 << 63);
    assert_eq!(all[0].asleep(Asleep::ForAny), 1 << 5);
    assert!(all[0].take_asleep(Asleep::ForAll, 63) && !all[1].take_asleep(Asleep::ForAll, 63));
    all[5].announce_wake();
    assert_eq!(all[0].asleep(Asleep::ForAny), 0);
}

/// G-15: the last numbers of operations fit the words.
#[test]
fn the_last_operations() {
    let [a, b] = <[GroupMemory; 2]>::try_from(members(2)).unwrap();
    let first = MAX_GROUP_OPERATIONS - 3;
    for at in first - ROUNDS..first {
        a.enter(at, 0);
        b.enter(at, 0);
    }
    for at in first..MAX_GROUP_OPERATIONS {
        a.enter(at, u16::MAX);
        assert_eq!(a.has_all(at), Ok(false));
        b.enter(at, u16::MAX);
        assert!(a.has_all(at) == Ok(true) && b.has_all(at) == Ok(true) && a.has_room(at));
        assert!(b.claim(at) == Ok(true) && a.claim(at) == Ok(false));
        assert!(a.needs(Awaited::Published(at), 1) && !a.needs(Awaited::Published(at), 0));
        b.publish(at, &[3; 8]);
        assert_eq!(a.has_result(at), Ok(true));
        assert!(!a.is_overwritten(Awaited::Published(at)));
        a.leave(at);
        assert_eq!(a.turn(), at + 1);
    }
}
