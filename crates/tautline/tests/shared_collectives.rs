//! Collectives through memory that all members of a group share.

use std::time::Duration;

use crate::common::{config, draw, jobs, join, run_over};
use tautline::group::{Algorithm, Call, Choice, Choices, Group, Kind, MAX_SHARED_BYTES, Reduction, Sum};
use tautline::tags::Request;
use tautline::{DeviceName, Endpoint, Error, Job, Waiting};
use tautline_model::{add, addition, compose, composition, content, folded};

/// Calls after which members have agreed on sharing memory.
const CALLS: usize = 5;
/// Frames that a member may send to each other one during 200 calls through memory, for what came before.
const MOST_FRAMES: u64 = 3;

pub(crate) fn enter(job: Job) -> (Endpoint, Group) {
    let ep = join(Endpoint::builder().config(config(|_| {})), job);
    let world = ep.world().unwrap();
    (ep, world)
}

/// A group like another one that uses shared memory wherever it can.
fn sharing(group: &Group) -> Group {
    let kinds = Kind::ALL.into_iter().filter(|kind| kind.algorithms().contains(&Algorithm::Shared));
    let lines = kinds.map(|kind| Choice {
        kind,
        bytes: usize::MAX,
        members: usize::MAX,
        algorithm: Algorithm::Shared,
    });
    group.with_choices(Choices::with(lines)).unwrap()
}

/// Connects all pairs of members, so that nobody has to dial a lost member to learn of its loss.
pub(crate) fn connect_all(group: &Group) {
    let lens = vec![1; group.size()];
    let call = Call::AllToAllVaried { send: lens.clone(), receive: lens };
    group.run(&call, &vec![0; group.size()]).unwrap();
}

pub(crate) fn warm_up(group: &Group) {
    (0..CALLS).for_each(|_| group.barrier().unwrap());
}

/// The `number`th call of a sequence that is the same at all members, this member's input, and the output
/// of a serial model.
pub(crate) fn nth(n: usize, me: usize, number: usize) -> (Call, Vec<u8>, Vec<u8>) {
    let mut seed = number as u64;
    // Few are as long as can be: their models take much longer than they do.
    let long = [MAX_SHARED_BYTES, 4_096];
    let len = match draw(&mut seed, 25) {
        0 => long[draw(&mut seed, 2) as usize],
        at => [2, 8, 300, 1_000][at as usize % 4],
    };
    let root = draw(&mut seed, n as u64) as usize;
    let commutes = draw(&mut seed, 2) == 0;
    let with = if commutes { addition() } else { composition() };
    let reduced = || folded(0..n, number, len, if commutes { add } else { compose });
    let at_root = |bytes: Vec<u8>| if me == root { bytes } else { Vec::new() };
    let gathered = |lens: &[usize]| {
        let parts = lens.iter().enumerate().flat_map(|(member, len)| content(member, number, *len));
        parts.collect::<Vec<u8>>()
    };
    // Of whole elements, which have two bytes.
    let varied: Vec<usize> = (0..n).map(|member| (member * 7 + number) % 5 * (len / 8) * 2).collect();
    match draw(&mut seed, 8) {
        0 => (Call::Barrier, vec![], vec![]),
        1 => {
            let bytes = content(root, number, len);
            (Call::Broadcast { root, len }, at_root(bytes.clone()), bytes)
        }
        2 => (Call::Reduce { root, len, with }, content(me, number, len), at_root(reduced())),
        3 => (Call::AllReduce { len, with }, content(me, number, len), reduced()),
        4 => (Call::AllGather { len }, content(me, number, len), gathered(&vec![len; n])),
        5 => {
            let (input, output) = (content(me, number, varied[me]), gathered(&varied));
            (Call::AllGatherVaried { lens: varied }, input, output)
        }
        6 => {
            let part = |from: usize, to: usize| content(from, number * 100 + to, len / n);
            let input = (0..n).flat_map(|to| part(me, to)).collect();
            let output = (0..n).flat_map(|from| part(from, me)).collect();
            (Call::AllToAll { len: len / n }, input, output)
        }
        _ => {
            let all: usize = varied.iter().sum();
            let skip: usize = varied[..me].iter().sum();
            let reduced = folded(0..n, number, all, if commutes { add } else { compose });
            let output = reduced[skip..skip + varied[me]].to_vec();
            (Call::ReduceScatter { lens: varied, with }, content(me, number, all), output)
        }
    }
}

/// Whether a call can go through memory: a barrier, or one that moves bytes.
fn has_bytes(call: &Call) -> bool {
    match call {
        Call::AllGatherVaried { lens } | Call::ReduceScatter { lens, .. } => lens.iter().sum::<usize>() > 0,
        Call::AllToAll { len } => *len > 0,
        _ => true,
    }
}

/// Frames that this rank has sent, through shared memory and over links.
fn frames_sent(ep: &Endpoint) -> u64 {
    let counters = ep.counters();
    counters.local.frames_sent + counters.links.frames_sent
}

/// G-14 … G-16, G-19: collectives drawn at random equal their serial models, for 2 to 17 members, blocking,
/// and started several at once and waited for in an order that differs from member to member.
#[test]
fn short_collectives_go_through_memory() {
    for n in [2, 3, 4, 7, 8, 17] {
        run_over(DeviceName::Shm, n, |job| {
            let (ep, first) = enter(job);
            let world = sharing(&first);
            let me = world.member();
            assert_eq!(world.shares_memory(), None);
            warm_up(&world);
            assert_eq!(world.shares_memory(), Some(true));
            let before = frames_sent(&ep);
            for number in 0..200 {
                let (call, input, output) = nth(n, me, number);
                // The started ones below include those without bytes, which go by messages (G-16).
                if has_bytes(&call) {
                    assert!(world.run(&call, &input).unwrap() == output, "{number}: {call:?} at {me} of {n}");
                }
            }
            let sent = frames_sent(&ep) - before;
            assert!(
                sent <= MOST_FRAMES * (n as u64 - 1),
                "{sent} frames for calls through memory, at {me} of {n}"
            );
            for round in 0..20 {
                let numbers = round * 10..(round + 1) * 10;
                let mut started: Vec<_> = numbers
                    .map(|number| {
                        let (call, input, output) = nth(n, me, number);
                        (world.start(&call, input).unwrap(), output)
                    })
                    .collect();
                let mut seed = (round * n + me) as u64;
                while !started.is_empty() {
                    let at = draw(&mut seed, started.len() as u64) as usize;
                    let (collective, output) = started.swap_remove(at);
                    assert!(collective.wait().unwrap() == output, "at {me} of {n}");
                }
                // Blocking ones among those that were started and dropped.
                let (call, input, _) = nth(n, me, round);
                drop(world.start(&call, input).unwrap());
                let (call, input, output) = nth(n, me, round + 1);
                assert!(world.run(&call, &input).unwrap() == output, "at {me} of {n}");
            }
            world.barrier().unwrap();
            ep.close().unwrap();
        });
    }
}

/// G-14: a group of which a member does not share memory uses messages, and all members know.
#[test]
fn a_member_without_shared_memory() {
    run_over(DeviceName::Udp, 3, |job| {
        let (ep, first) = enter(job);
        let world = sharing(&first);
        warm_up(&world);
        assert_eq!(world.shares_memory(), Some(false));
        for number in 0..50 {
            let (call, input, output) = nth(3, world.member(), number);
            assert!(world.run(&call, &input).unwrap() == output, "{call:?}");
        }
        world.barrier().unwrap();
        ep.close().unwrap();
    });
}

/// A table without shared memory is obeyed.
#[test]
fn tables_choose_messages() {
    run_over(DeviceName::Shm, 3, |job| {
        let (ep, world) = enter(job);
        let everywhere = |kind, algorithm| Choice { kind, bytes: usize::MAX, members: usize::MAX, algorithm };
        let by_messages = Choices::with([
            everywhere(Kind::Barrier, Algorithm::Dissemination),
            everywhere(Kind::AllReduce, Algorithm::RecursiveDoubling),
        ]);
        let group = world.with_choices(by_messages).unwrap();
        for _ in 0..20 {
            group.barrier().unwrap();
            let mut sum = [1];
            group.all_reduce(&mut sum, Sum).unwrap();
            assert_eq!(sum, [3]);
        }
        assert_eq!(group.shares_memory(), None);
        world.barrier().unwrap();
        ep.close().unwrap();
    });
}

/// G-18: members that wait for one that computes sleep, and are rung for, also those without a channel to the
/// one that they wait for.
#[test]
fn members_that_wait_sleep() {
    const ROUNDS: u64 = 20;
    run_over(DeviceName::Shm, 9, |job| {
        // How long others would poll first depends on the load of the machine.
        let config = config(|config| config.waiting = Waiting::Park);
        let ep = join(Endpoint::builder().config(config), job);
        let world = ep.world().unwrap();
        warm_up(&world);
        let counts = || (ep.counters().sleeps, ep.counters().local.rings);
        let before = counts();
        for round in 0..ROUNDS {
            if world.member() as u64 == round % 9 {
                std::thread::sleep(Duration::from_millis(5));
            }
            world.barrier().unwrap();
            let mut sum = [world.member() as u64];
            world.all_reduce(&mut sum, Sum).unwrap();
            assert_eq!(sum, [36]);
        }
        let after = counts();
        let mut all = [after.0 - before.0, after.1 - before.1];
        world.all_reduce(&mut all, Sum).unwrap();
        assert!(all[0] >= ROUNDS && all[1] >= ROUNDS, "sleeps and rings of all members: {all:?}");
        world.barrier().unwrap();
        ep.close().unwrap();
    });
}

/// G-17: members whose calls differ get an error, and so do those that wait for them.
#[test]
fn calls_that_differ() {
    run_over(DeviceName::Shm, 3, |job| {
        let (ep, world) = enter(job);
        warm_up(&world);
        let group = world.duplicate().unwrap();
        warm_up(&group);
        let len = if group.member() == 1 { 16 } else { 8 };
        let error = group.run(&Call::AllReduce { len, with: addition() }, &vec![1; len]).unwrap_err();
        assert!(matches!(&error, Error::Other(_)), "{error:?}");
        let said = error.to_string();
        assert!(said.contains("different lengths") || said.contains("failed at"), "{said}");
        assert!(group.barrier().is_err(), "the group has failed");
        world.barrier().unwrap();
        ep.close().unwrap();
    });
}

/// G-20: a member that closes after its last collective fails nobody who is still in it.
#[test]
fn members_leave_at_once() {
    for n in [2, 5, 8] {
        for _ in 0..10 {
            run_over(DeviceName::Shm, n, |job| {
                let (ep, world) = enter(job);
                warm_up(&world);
                if world.member() % 3 == 1 {
                    std::thread::sleep(Duration::from_millis(2));
                }
                let mut sum = [1_u32];
                world.all_reduce(&mut sum, Sum).unwrap();
                assert_eq!(sum, [n as u32]);
                world.barrier().unwrap();
                ep.close().unwrap();
            });
        }
    }
}

/// G-20: in 40 runs a random member leaves at a random collective, some of them in the middle of it. Each
/// other member gets right results, and then errors that name the one that was lost; the members that are
/// left agree, and their group shares memory again.
#[test]
fn a_member_is_lost() {
    for run in 0..40_u64 {
        let mut seed = run + 1_000;
        let n = 2 + draw(&mut seed, 8) as usize;
        let (victim, last) = (draw(&mut seed, n as u64) as usize, draw(&mut seed, 30) as usize);
        let half = draw(&mut seed, 2) == 1;
        run_over(DeviceName::Shm, n, |job| {
            let (ep, first) = enter(job);
            let world = sharing(&first);
            warm_up(&world);
            assert_eq!(world.shares_memory(), Some(true));
            let me = world.member();
            let mut failed = false;
            for number in 0..40 {
                let (call, input, output) = nth(n, me, number);
                if me == victim && number == last {
                    if half {
                        drop(world.start(&call, input));
                    }
                    return ep.close().unwrap();
                }
                match world.run(&call, &input) {
                    Ok(got) => assert!(!failed && got == output, "run {run}: {call:?}"),
                    Err(Error::PeerGone(rank, _)) if rank == victim as u32 => failed = true,
                    Err(error) => panic!("run {run}, {number} at {me}: {error:?}"),
                }
            }
            assert!(failed, "run {run}: nobody told member {me}");
            if n > 2 {
                assert_eq!(world.agree(1).unwrap(), (1, vec![victim]));
                let rest = world.shrink().unwrap();
                warm_up(&rest);
                assert_eq!(rest.shares_memory(), Some(true));
            }
            ep.close().unwrap();
        });
    }
}

/// G-20: the root of a reduction learns that a member is lost, though everybody else has gone on and nobody
/// waits for that member.
#[test]
fn only_the_root_waits() {
    for victim in 1..9 {
        run_over(DeviceName::Shm, 9, |job| {
            let (ep, first) = enter(job);
            let world = sharing(&first);
            warm_up(&world);
            let call = Call::Reduce { root: 0, len: 8, with: addition() };
            if world.member() == victim {
                return ep.close().unwrap();
            }
            let result = world.run(&call, &[1; 8]);
            if world.member() > 0 {
                result.unwrap();
                // They wait for no collective until the root has failed.
                world.tags().receive(0, 5, &mut vec![]).unwrap();
            } else {
                assert!(
                    matches!(result, Err(Error::PeerGone(rank, _)) if rank == victim as u32),
                    "{result:?}"
                );
                for rank in (1..9).filter(|rank| *rank != victim as u32) {
                    world.tags().send(rank, 5, &[]).unwrap();
                }
            }
            assert!(world.barrier().is_err());
            ep.close().unwrap();
        });
    }
}

/// G-20: a member that waits for one which is no neighbour of it learns that that one is lost, though all
/// neighbours of the lost one are lost as well. These had entered, so nobody needs them.
#[test]
fn all_neighbours_of_the_lost_are_lost() {
    let together = std::sync::Barrier::new(6);
    run_over(DeviceName::Shm, 6, |job| {
        let (ep, world) = enter(job);
        warm_up(&world);
        let me = world.member();
        // Members 0 and 3 are at distance 3.
        let barrier = (me != 0).then(|| world.start(&Call::Barrier, vec![]).unwrap());
        together.wait();
        match barrier.filter(|_| me == 3) {
            Some(barrier) => {
                let result = barrier.wait();
                assert!(matches!(result, Err(Error::PeerGone(0, _))), "{result:?}");
                ep.close().unwrap();
            }
            None => ep.close().unwrap(),
        }
    });
}

/// G-20: the root of broadcasts, which waits only for room in the memory, learns that a member is lost which
/// is no neighbour, though all others wait for the root.
#[test]
fn a_root_without_room_learns_of_a_loss() {
    run_over(DeviceName::Shm, 8, |job| {
        let (ep, first) = enter(job);
        let world = sharing(&first);
        warm_up(&world);
        if world.member() == 3 {
            return ep.close().unwrap();
        }
        let failed = (0..20).find_map(|number| world.broadcast(0, &mut [number]).err());
        assert!(matches!(failed, Some(Error::PeerGone(3, _))), "{failed:?}");
        ep.close().unwrap();
    });
}

/// G-5: functions of reductions get memory that is aligned as allocations are, whatever the length.
#[test]
fn operands_are_aligned() {
    run_over(DeviceName::Shm, 3, |job| {
        let (ep, first) = enter(job);
        let world = sharing(&first);
        warm_up(&world);
        let with = Reduction::new(16, true, |lower, upper| {
            assert!(lower.as_ptr().addr() % 16 == 0 && upper.as_ptr().addr() % 16 == 0);
            add(lower, upper);
        });
        for len in [16, 64, 256, 272, MAX_SHARED_BYTES] {
            let call = Call::AllReduce { len, with: with.clone() };
            assert_eq!(world.run(&call, &vec![2; len]).unwrap(), vec![6; len]);
        }
        world.barrier().unwrap();
        ep.close().unwrap();
    });
}

/// G-19: a member that never has to wait polls its lane all the same.
#[test]
fn members_that_never_wait_poll() {
    let mut jobs = jobs(2);
    jobs.iter_mut().for_each(|job| job.device = Some(DeviceName::Shm));
    // Nobody polls for them.
    let alone = |job| {
        let ep = join(Endpoint::builder().config(config(|config| config.watchdog = None)), job);
        let world = ep.world().unwrap();
        (ep, world)
    };
    let ends: Vec<(Endpoint, Group)> = jobs.into_iter().map(alone).collect();
    let [first, last] = [&ends[0].1, &ends[1].1];
    for _ in 0..CALLS {
        let both = [first, last].map(|group| group.start(&Call::Barrier, vec![]).unwrap());
        while both.iter().filter(|barrier| barrier.test()).count() < 2 {}
    }
    assert_eq!(last.shares_memory(), Some(true));
    let receive = last.tags().start_receive(0, 9, vec![0]).unwrap();
    let send = first.tags().start_send_synchronous(1, 9, vec![7]).unwrap();
    let calls = (0..100_000).take_while(|_| {
        let barrier = first.start(&Call::Barrier, vec![]).unwrap();
        last.barrier().unwrap();
        assert!(barrier.test());
        !send.test().unwrap()
    });
    assert!(calls.count() < 100_000, "the last member never took the message");
    assert_eq!(receive.wait().unwrap().1, [7]);
    ends.into_iter().for_each(|(ep, _)| ep.close().unwrap());
}

/// G-21: a thread that sleeps in a collective advances what another thread starts meanwhile and never waits
/// for, by messages and through memory.
#[test]
fn a_waiting_thread_advances_what_others_start() {
    let by_messages = Kind::ALL.map(|kind| {
        let algorithm = kind.algorithms()[0];
        Choice { kind, bytes: usize::MAX, members: usize::MAX, algorithm }
    });
    for shared in [false, true] {
        // The others come when all was started: nothing that they send is there before.
        let begun = std::sync::Barrier::new(4);
        run_over(DeviceName::Shm, 4, |job| {
            let (ep, world) = enter(job);
            let like = |group: &Group| match shared {
                true => sharing(group),
                false => group.with_choices(Choices::with(by_messages)).unwrap(),
            };
            let groups = [like(&world), like(&world)];
            groups.iter().for_each(warm_up);
            let me = world.member();
            let call = Call::AllGather { len: 8 };
            for round in 0..5 {
                if me == 0 {
                    std::thread::scope(|scope| {
                        let before = ep.counters().sleeps;
                        scope.spawn(|| groups[1].barrier().unwrap());
                        while ep.counters().sleeps == before {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        // It looks again after 50 ms, and then sleeps until it is told.
                        std::thread::sleep(Duration::from_millis(100));
                        // The first one is in the way of the second.
                        drop(groups[0].start(&call, content(0, round, 8)).unwrap());
                        drop(groups[0].start(&call, content(0, round, 8)).unwrap());
                        begun.wait();
                    });
                } else {
                    begun.wait();
                    let all: Vec<u8> = (0..4).flat_map(|member| content(member, round, 8)).collect();
                    assert_eq!(groups[0].run(&call, &content(me, round, 8)).unwrap(), all);
                    assert_eq!(groups[0].run(&call, &content(me, round, 8)).unwrap(), all);
                    groups[1].barrier().unwrap();
                }
            }
            world.barrier().unwrap();
            ep.close().unwrap();
        });
    }
}

/// G-19, G-20: two threads of each member use two groups, and advance each other's started collectives. When
/// a member is lost, all calls of both threads end.
#[test]
fn threads_learn_of_a_loss() {
    for run in 0..12_u64 {
        let mut seed = run + 7_000;
        let (n, victim) = (3 + draw(&mut seed, 4) as usize, draw(&mut seed, 3) as usize);
        let last = draw(&mut seed, 60) as usize;
        // Nobody else leaves before all have heard of the loss.
        let heard = std::sync::Barrier::new(n - 1);
        run_over(DeviceName::Shm, n, |job| {
            let (ep, first) = enter(job);
            connect_all(&first);
            let groups = [sharing(&first), sharing(&first)];
            groups.iter().for_each(warm_up);
            let me = first.member();
            std::thread::scope(|scope| {
                for group in &groups {
                    scope.spawn(move || {
                        for number in 0..100 {
                            if me == victim && number == last {
                                return;
                            }
                            let (call, input, _) = nth(n, me, number);
                            let started = group.start(&call, input).unwrap();
                            let (call, input, output) = nth(n, me, number + 1);
                            match group.run(&call, &input) {
                                Ok(got) => assert!(got == output, "run {run}: {call:?}"),
                                Err(Error::PeerGone(rank, _)) if rank == victim as u32 => return,
                                Err(error) => panic!("run {run}, {number} at {me}: {error:?}"),
                            }
                            if number % 2 == 0 {
                                drop(started);
                            } else if let Err(error) = started.wait() {
                                assert!(matches!(error, Error::PeerGone(rank, _) if rank == victim as u32));
                                return;
                            }
                        }
                        panic!("run {run}: nobody told member {me}");
                    });
                }
            });
            if me != victim {
                heard.wait();
            }
            ep.close().unwrap();
        });
    }
}
