//! Groups of ranks and their collectives, against serial models.

use std::cell::RefCell;

use crate::common::network_faults::FaultsMet;
use crate::common::{config, draw, join, run_over};
use tautline::group::{Algorithm, Call, Choice, Choices, Collective, Group, Kind, Max, Sum};
use tautline::node::device::fault::Faults;
use tautline::{DeviceName, Endpoint, Error, Event, HostId, Job};
use tautline_model::{Case, addition, cases, composition};

fn enter(job: Job) -> (Endpoint, Group) {
    let ep = join(Endpoint::builder().config(config(|_| {})), job);
    let world = ep.world().unwrap();
    (ep, world)
}

/// The tables that lead to every algorithm.
fn tables() -> Vec<Choices> {
    let everywhere = |kind, algorithm| Choice { kind, bytes: usize::MAX, members: usize::MAX, algorithm };
    [
        [Algorithm::Binomial, Algorithm::Binomial, Algorithm::Bruck, Algorithm::RecursiveDoubling],
        [Algorithm::ScatterAllGather, Algorithm::Linear, Algorithm::Ring, Algorithm::HalvingDoubling],
        [Algorithm::Binomial, Algorithm::Linear, Algorithm::Ring, Algorithm::Ring],
    ]
    .into_iter()
    .map(|[broadcast, tree, gather, reduce]| {
        Choices::with([
            everywhere(Kind::Broadcast, broadcast),
            everywhere(Kind::Gather, tree),
            everywhere(Kind::Scatter, tree),
            everywhere(Kind::AllGather, gather),
            everywhere(Kind::AllReduce, reduce),
        ])
    })
    .collect()
}

fn check_all(group: &Group, lens: &[usize]) {
    for &len in lens {
        for (call, input, output) in cases(group.size(), group.member(), len) {
            let got = group.run(&call, &input).unwrap();
            assert!(got == output, "{call:?} of {len} at {} of {}", group.member(), group.size());
        }
    }
}

/// G-4, G-5: every collective and every algorithm equals its serial model, for 1 to 17 members and counts
/// that nothing divides.
#[test]
fn collectives_equal_their_models() {
    for n in 1..=17 {
        run_over(DeviceName::Shm, n, |job| {
            let (ep, world) = enter(job);
            check_all(&world, &[0, 1, 13]);
            for table in tables() {
                let group = world.with_choices(table).unwrap();
                check_all(&group, &[0, 3, 61]);
            }
            world.barrier().unwrap();
            ep.close().unwrap();
        });
    }
}

/// The same on a network that loses, repeats and reorders frames.
#[test]
fn collectives_under_faults_equal_their_models() {
    let faults = Faults::with(|faults| {
        (faults.loss, faults.duplicate, faults.reorder, faults.reorder_by) = (0.02, 0.05, 0.1, 4);
    });
    let met = FaultsMet::default();
    for n in 1..=17 {
        run_over(DeviceName::Udp, n, |job| {
            let seed = u64::from(job.rank) + 1;
            let config = config(|config| config.fault = Some((seed, faults)));
            let ep = join(Endpoint::builder().config(config), job);
            let world = ep.world().unwrap();
            check_all(&world, &[0, 13]);
            let tables = tables();
            let group = world.with_choices(tables[n % tables.len()].clone()).unwrap();
            check_all(&group, &[if n < 6 { 3_001 } else { 61 }]);
            world.barrier().unwrap();
            met.add(&ep);
            ep.close().unwrap();
        });
    }
    met.check();
}

/// The same over datagrams, and with messages of which only the envelope is sent at first.
#[test]
fn long_collectives_equal_their_models() {
    for (device, n) in
        [(DeviceName::Shm, 2), (DeviceName::Shm, 5), (DeviceName::Udp, 3), (DeviceName::Udp, 4)]
    {
        run_over(device, n, |job| {
            let (ep, world) = enter(job);
            check_all(&world, &[5, 70_001]);
            for table in tables() {
                let group = world.with_choices(table).unwrap();
                check_all(&group, &[30_011]);
            }
            world.barrier().unwrap();
            ep.close().unwrap();
        });
    }
}

/// The methods that take slices of values, in place where they say so.
#[test]
fn typed_collectives() {
    run_over(DeviceName::Shm, 3, |job| {
        let (ep, world) = enter(job);
        let me = world.member();
        let mut values = [me as f64, 1.0];
        world.all_reduce(&mut values, Sum).unwrap();
        assert_eq!(values, [3.0, 3.0]);
        let mut greatest = [me as i32 - 5];
        world.reduce(1, &mut greatest, Max).unwrap();
        assert_eq!(greatest, [if me == 1 { -3 } else { me as i32 - 5 }]);
        let mut text = if me == 2 { *b"root" } else { [0; 4] };
        world.broadcast(2, &mut text).unwrap();
        assert_eq!(&text, b"root");
        let mut all = [0_u16; 6];
        world.all_gather(&[me as u16, 7], &mut all).unwrap();
        assert_eq!(all, [0, 7, 1, 7, 2, 7]);
        let mut at_root = if me == 0 { vec![0_u64; 3] } else { vec![] };
        world.gather(0, &[me as u64], &mut at_root).unwrap();
        assert!(me != 0 || at_root == [0, 1, 2]);
        let mut own = [0_u64];
        world.scatter(0, &at_root, &mut own).unwrap();
        assert_eq!(own, [me as u64]);
        let mut swapped = [0_u8; 3];
        world.all_to_all(&[10 * me as u8, 10 * me as u8 + 1, 10 * me as u8 + 2], &mut swapped).unwrap();
        assert_eq!(swapped, [me as u8, 10 + me as u8, 20 + me as u8]);
        let mut prefix = [1_u32 << me];
        world.scan(&mut prefix, Sum).unwrap();
        assert_eq!(prefix, [(2 << me) - 1]);
        let mut before = [1_u32 << me];
        world.exclusive_scan(&mut before, |a: u32, b: u32| a | b).unwrap();
        assert_eq!(before, [if me == 0 { 1 } else { (1 << me) - 1 }]);
        let mut part = vec![0_i64; me];
        world.reduce_scatter(&[1, 2, 3], &mut part, &[0, 1, 2], Sum).unwrap();
        assert_eq!(part, [vec![], vec![3], vec![6, 9]][me]);
        // To the next member one value, and two to the one before.
        let (next, last) = ((me + 1) % 3, (me + 2) % 3);
        let sent = [next as u32, 10 + last as u32, 20 + last as u32];
        let mut received = [0; 3];
        let sources = [(next, 2), (last, 1)];
        world.neighbour_all_to_all(&sent, &[(next, 1), (last, 2)], &mut received, &sources).unwrap();
        assert_eq!(received, [10 + me as u32, 20 + me as u32, me as u32]);
        let mut from = [0_u16];
        world.neighbour_gather(&[me as u16], &[next], &mut from, &[(last, 1)]).unwrap();
        assert_eq!(from, [last as u16]);
        world.barrier().unwrap();
        ep.close().unwrap();
    });
}

/// G-24: an event names each algorithm when it is first used among as many members, and [`Group::algorithm`]
/// at any time; both follow the table, what an operation allows, and where the members turn out to be.
#[test]
fn algorithms_are_told() {
    const SHARED: [&str; 7] =
        ["barrier", "broadcast", "all-gather", "reduce", "all-reduce", "all-to-all", "reduce-scatter"];
    let told = |ep: &Endpoint| {
        ep.progress().unwrap();
        let events = std::iter::from_fn(|| ep.poll_event());
        let told = events.filter_map(|event| match event {
            Event::Algorithm { collective, algorithm, members, bytes } => {
                Some((collective, algorithm, members, bytes))
            }
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    for (device, afterwards) in [(DeviceName::Shm, "shared"), (DeviceName::Udp, "dissemination")] {
        run_over(device, 3, |job| {
            let mut job = job;
            if device == DeviceName::Udp {
                // Members that do not know of each other's host exchange messages.
                let members = job.members.iter().zip(1..);
                job.members = members.map(|(member, host)| member.clone().on_host(HostId(host))).collect();
            }
            let (ep, world) = enter(job);
            let heard = RefCell::new(Vec::new());
            let told = |ep: &Endpoint| {
                let told = told(ep);
                heard.borrow_mut().extend_from_slice(&told);
                told
            };
            assert_eq!(told(&ep), []);
            for _ in 0..2 {
                world.barrier().unwrap();
                world.all_reduce(&mut [1_u64; 100], Sum).unwrap();
            }
            let first = [("barrier", "dissemination", 3, 0), ("all-reduce", "recursive-doubling", 3, 800)];
            assert_eq!(told(&ep), first);
            // The members agree on where they are in the fifth call, and in the sixth everybody knows.
            (0..2).for_each(|_| world.barrier().unwrap());
            let more = [("barrier", afterwards, 3, 0)];
            assert_eq!(told(&ep), more[..usize::from(afterwards == "shared")]);
            assert_eq!(world.algorithm(&Call::Barrier).unwrap().name(), afterwards);
            // Other numbers of members are told of anew, other groups of as many are not.
            let two = world.subset(&[0, 2]).unwrap();
            told(&ep);
            world.duplicate().unwrap().barrier().unwrap();
            assert!(told(&ep).iter().all(|(name, ..)| *name != "barrier"));
            if let Some(two) = two {
                two.barrier().unwrap();
                assert_eq!(told(&ep), [("barrier", "dissemination", 2, 0)]);
            }
            // A ring is for operations that commute.
            let (kind, bytes, members) = (Kind::AllReduce, usize::MAX, usize::MAX);
            let line = Choice { kind, bytes, members, algorithm: Algorithm::Ring };
            let ring = world.with_choices(Choices::with([line])).unwrap();
            for (with, algorithm) in
                [(addition(), Algorithm::Ring), (composition(), Algorithm::RecursiveDoubling)]
            {
                let call = Call::AllReduce { len: 1 << 10, with };
                assert_eq!(ring.algorithm(&call), Some(algorithm));
            }
            assert_eq!(ring.algorithm(&Call::Scan { len: 8, with: addition() }), None);
            all_kinds_through_memory(&world, device == DeviceName::Shm);
            told(&ep);
            let kinds = Kind::ALL.into_iter().map(Kind::name);
            let through_memory = |kind: &&str| {
                heard.borrow().iter().any(|(name, algorithm, members, _)| {
                    (*name, *algorithm, *members) == (*kind, "shared", 3)
                })
            };
            let expected = if device == DeviceName::Shm { &SHARED[..] } else { &[] };
            assert_eq!(kinds.filter(through_memory).collect::<Vec<_>>(), expected);
            world.barrier().unwrap();
            ep.close().unwrap();
        });
    }
}

/// Every kind of collective that can go through shared memory does, if the members share it and the table
/// says so.
fn all_kinds_through_memory(world: &Group, shared: bool) {
    let kinds = Kind::ALL.into_iter().filter(|kind| kind.algorithms().contains(&Algorithm::Shared));
    let (bytes, members, algorithm) = (usize::MAX, usize::MAX, Algorithm::Shared);
    let lines = kinds.map(|kind| Choice { kind, bytes, members, algorithm });
    let group = world.with_choices(Choices::with(lines)).unwrap();
    (0..5).for_each(|_| group.barrier().unwrap());
    let (me, with, lens) = (group.member(), addition(), vec![8; 3]);
    let calls = [
        (Call::Broadcast { root: 1, len: 8 }, if me == 1 { 8 } else { 0 }),
        (Call::Reduce { root: 1, len: 8, with: with.clone() }, 8),
        (Call::AllReduce { len: 8, with: with.clone() }, 8),
        (Call::AllGather { len: 8 }, 8),
        (Call::AllGatherVaried { lens: lens.clone() }, 8),
        (Call::AllToAll { len: 8 }, 24),
        (Call::ReduceScatter { lens, with }, 24),
    ];
    for (call, input) in calls {
        group.run(&call, &vec![0; input]).unwrap();
        assert_eq!(group.algorithm(&call) == Some(Algorithm::Shared), shared, "{call:?}");
    }
    assert_eq!(group.algorithm(&Call::Barrier) == Some(Algorithm::Shared), shared);
}

/// G-5: values that are in their place already, and those that are replaced.
#[test]
fn typed_collectives_in_place() {
    run_over(DeviceName::Shm, 3, |job| {
        let (ep, world) = enter(job);
        let me = world.member();
        let mut all = [9_u16; 6];
        all[2 * me..][..2].copy_from_slice(&[me as u16, 7]);
        world.all_gather_in_place(&mut all).unwrap();
        assert_eq!(all, [0, 7, 1, 7, 2, 7]);
        let mut varied = [9_u32; 3];
        varied[[0, 0, 1][me]..][..me].fill(me as u32);
        world.all_gather_varied_in_place(&mut varied, &[0, 1, 2]).unwrap();
        assert_eq!(varied, [1, 2, 2]);
        let mut swapped = [0, 1, 2].map(|to| 10 * me as u8 + to);
        world.all_to_all_in_place(&mut swapped).unwrap();
        assert_eq!(swapped, [me as u8, 10 + me as u8, 20 + me as u8]);
        let mut gathered = if me == 1 { vec![0_i64, -1, 0] } else { vec![-(me as i64)] };
        world.gather_in_place(1, &mut gathered).unwrap();
        assert_eq!(gathered, [vec![0], vec![0, -1, -2], vec![-2]][me]);
        let mut scattered = if me == 2 { vec![5_u8, 6, 7] } else { vec![0] };
        world.scatter_in_place(2, &mut scattered).unwrap();
        assert_eq!(scattered, [vec![5], vec![6], vec![5, 6, 7]][me]);
        let lens = [2, 0, 1];
        let mut gathered = if me == 0 { vec![5_u8, 6, 9] } else { vec![7; lens[me]] };
        world.gather_varied_in_place(0, &mut gathered, &lens).unwrap();
        assert_eq!(gathered, [vec![5, 6, 7], vec![], vec![7]][me]);
        let mut scattered = if me == 0 { vec![5_u16, 6, 9] } else { vec![0; lens[me]] };
        world.scatter_varied_in_place(0, &mut scattered, &lens).unwrap();
        assert_eq!(scattered, [vec![5, 6, 9], vec![], vec![9]][me]);
        // As many from each as for it: the sum of both numbers.
        let lens = [me, me + 1, me + 2];
        let mut swapped: Vec<u32> =
            (0..3).flat_map(|to| vec![10 * me as u32 + to; lens[to as usize]]).collect();
        world.all_to_all_varied_in_place(&mut swapped, &lens).unwrap();
        let theirs = (0..3).flat_map(|from| vec![10 * from + me as u32; lens[from as usize]]);
        assert_eq!(swapped, theirs.collect::<Vec<u32>>());
        let mut reduced = [1_u64, 10, 100].map(|value| value * (me as u64 + 1));
        world.reduce_scatter_in_place(&mut reduced, &[1, 2, 0], Sum).unwrap();
        assert_eq!(reduced, [[6, 10, 100], [60, 600, 200], [3, 30, 300]][me]);
        // Lengths that do not fit are refused before anything is sent.
        assert!(world.gather_varied_in_place(me, &mut [0_u8; 1], &[1, 1, 1]).is_err() || me == 0);
        assert!(world.all_to_all_varied_in_place(&mut [0_u8; 1], &[1, 1, 1]).is_err());
        assert!(world.reduce_scatter_in_place(&mut [0_u8; 1], &[1, 1, 1], Sum).is_err());
        let odd = world.all_gather_in_place(&mut [0_u8; 4]).unwrap_err().to_string();
        assert_eq!(odd, "4 values cannot be divided among 3 members");
        assert!(world.all_gather_varied_in_place(&mut [0_u8; 1], &[1, 1, 1]).is_err());
        // Nor do those that add up to a small number modulo 2^64.
        for lens in
            [[usize::MAX, 1, 1], [1, usize::MAX, 1], [usize::MAX, usize::MAX, 3], [1 << 61, 1 << 61, 1]]
        {
            assert!(world.all_gather_varied_in_place(&mut [0_u64; 1], &lens).is_err(), "{lens:?}");
            let error = world.all_gather_varied(&[0_u64; 1], &mut [0_u64; 1], &lens).unwrap_err().to_string();
            assert!(error.contains("more bytes than memory has"), "{error}");
            assert!(world.all_to_all_varied(&[0_u64; 1], &lens, &mut [0_u64; 1], &[0, 0, 1]).is_err());
            let sources = lens.map(|len| (0, len));
            assert!(world.neighbour_gather(&[0_u64], &[0], &mut [0_u64; 1], &sources).is_err());
        }
        world.barrier().unwrap();
        ep.close().unwrap();
    });
}

/// G-3: many collectives of several groups under way at once end in any order; a persistent one can be
/// started again and again, in another order than others; one that is dropped goes on.
#[test]
fn several_collectives_at_once() {
    for device in [DeviceName::Shm, DeviceName::Udp] {
        run_over(device, 4, |job| {
            let (ep, world) = enter(job);
            let other = world.duplicate().unwrap();
            let (n, me) = (world.size(), world.member());
            for round in 0..5 {
                let mut started = Vec::new();
                for len in [0, 3, 20_000] {
                    for group in [&world, &other] {
                        for (call, input, output) in cases(n, me, len) {
                            started.push((group.start(&call, input).unwrap(), output, call));
                        }
                    }
                }
                // Each member waits in an order of its own, and leaves some to others.
                let count = started.len();
                let first = (me * 7 + round) % count;
                started.rotate_left(first);
                for (index, (collective, output, call)) in started.into_iter().enumerate() {
                    if index % 5 == 4 {
                        continue;
                    }
                    assert!(collective.wait().unwrap() == output, "{call:?}");
                }
            }
            let sum = Call::AllReduce { len: 4, with: addition() };
            let mut persistent = [world.prepare(&sum).unwrap(), world.prepare(&sum).unwrap()];
            for round in 0..20_u8 {
                let order = if (me + round as usize).is_multiple_of(2) { [0, 1] } else { [1, 0] };
                for which in order {
                    persistent[which].start(vec![round + me as u8, which as u8, 0, 1]).unwrap();
                }
                for (which, it) in persistent.iter_mut().enumerate() {
                    while !it.test() {}
                    assert_eq!(it.wait().unwrap(), [4 * round + 6, 4 * which as u8, 0, 4]);
                }
            }
            world.barrier().unwrap();
            other.barrier().unwrap();
            ep.close().unwrap();
        });
    }
}

/// G-1, G-2: groups of groups have the right members in the right order, and messages of their own.
#[test]
fn split_and_create() {
    run_over(DeviceName::Shm, 6, |job| {
        let (ep, world) = enter(job);
        let me = world.member();
        for _ in 0..3 {
            let colour = (me != 5).then_some(me as u32 % 2);
            let half = world.split(colour, -(me as i64)).unwrap();
            let expected: [&[u32]; 2] = [&[4, 2, 0], &[3, 1]];
            match &half {
                Some(half) => assert_eq!(half.ranks(), expected[me % 2]),
                None => assert_eq!(me, 5),
            }
            if let Some(half) = half {
                let mut ranks = vec![0; half.size()];
                half.all_gather(&[me as u32], &mut ranks).unwrap();
                assert_eq!(ranks, half.ranks());
            }
            let some = world.subset(&[5, 0, 3]).unwrap();
            assert_eq!(
                some.map(|group| group.ranks().to_vec()),
                [0, 3, 5].contains(&me).then(|| vec![5, 0, 3])
            );
            if me % 2 == 1 {
                let odd = Group::create(&ep.tags(0), &[3, 5, 1], 8).unwrap();
                let mut sum = [me as u8];
                odd.all_reduce(&mut sum, Sum).unwrap();
                assert_eq!(sum, [9]);
                let chosen = Group::with_id(&ep.tags(0), &[1, 3, 5], 77).unwrap();
                chosen.broadcast(0, &mut sum).unwrap();
            }
        }
        // Tagged messages of two groups with the same members never meet.
        let other = world.duplicate().unwrap();
        if me == 0 {
            other.tags().send(1, 1, b"other").unwrap();
            world.tags().send(1, 1, b"world").unwrap();
        } else if me == 1 {
            let mut bytes = vec![0; 5];
            world.tags().receive(0, 1, &mut bytes).unwrap();
            assert_eq!(bytes, b"world");
            other.tags().receive(0, 1, &mut bytes).unwrap();
            assert_eq!(bytes, b"other");
        }
        world.barrier().unwrap();
        ep.close().unwrap();
    });
}

/// G-1: creations through different groups do not meet, even between the same ranks and with the same tag.
#[test]
fn creations_through_different_groups() {
    run_over(DeviceName::Shm, 2, |job| {
        let (ep, world) = enter(job);
        let other = world.duplicate().unwrap();
        let create = |through: &Group| through.create_within(&[0, 1], 5).unwrap();
        // The ids of the first member are there in one order, and the other one asks for them in another.
        let (one, two) = if world.member() == 0 {
            let one = create(&world);
            (one, create(&other))
        } else {
            let two = create(&other);
            (create(&world), two)
        };
        let mut bytes = vec![0; 3];
        for (group, text) in [(&one, b"one"), (&two, b"two")] {
            if world.member() == 0 {
                group.tags().send(1, 1, text).unwrap();
            } else {
                group.tags().receive(0, 1, &mut bytes).unwrap();
                assert_eq!(bytes, text);
            }
        }
        world.barrier().unwrap();
        ep.close().unwrap();
    });
}

/// Calls that make no sense are refused with what is wrong, and nothing is sent.
#[test]
fn bad_calls_are_refused() {
    run_over(DeviceName::Shm, 2, |job| {
        let (ep, world) = enter(job);
        let refused = |call: Call, input: &[u8], what: &str| {
            let error = world.run(&call, input).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        };
        refused(Call::Broadcast { root: 2, len: 1 }, b"", "has no member 2");
        refused(Call::AllGatherVaried { lens: vec![1] }, b"x", "1 lengths for 2 members");
        refused(Call::AllReduce { len: 3, with: composition() }, b"abc", "3 bytes are not whole elements");
        refused(Call::AllGather { len: 3 }, b"ab", "has 2 bytes, and its call says 3");
        let error = world.run_into(&Call::AllGather { len: 1 }, b"a", &mut [0; 3]).unwrap_err().to_string();
        assert!(error.contains("room for 3 bytes, not 2"), "{error}");
        let create = |ranks: &[u32]| Group::create(&ep.tags(0), ranks, 0).unwrap_err().to_string();
        assert!(create(&[0, 1, 0]).contains("rank 0 is in the list of members twice"));
        assert!(create(&[ep.rank(), 2]).contains("cannot have rank 2"));
        assert!(create(&[1 - ep.rank()]).contains("not a member"));
        world.barrier().unwrap();
        ep.close().unwrap();
    });
}

/// G-6, G-7, G-9, G-11: in 50 runs a random member leaves at a random collective. Each other member gets
/// right results, and then errors; tagged messages go on; the members that are left agree, and their group
/// works.
#[test]
fn a_member_is_lost_in_a_collective() {
    for run in 0..50_u64 {
        let mut seed = run;
        let n = 2 + draw(&mut seed, 6) as usize;
        let victim = draw(&mut seed, n as u64) as usize;
        let (last, half) = (draw(&mut seed, 40) as usize, draw(&mut seed, 2) == 1);
        let device = if run % 5 == 4 { DeviceName::Udp } else { DeviceName::Shm };
        run_over(device, n, |job| {
            let (ep, world) = enter(job);
            let me = world.member();
            let calls: Vec<Case> = [1, 3_000].into_iter().flat_map(|len| cases(n, me, len)).collect();
            let mut failed = false;
            for (number, (call, input, output)) in calls.iter().enumerate() {
                if me == victim && number == last {
                    if half {
                        // It takes part, and does not wait for the end.
                        drop(world.start(call, input.clone()));
                    }
                    return ep.close().unwrap();
                }
                match world.run(call, input) {
                    Ok(got) => assert!(!failed && got == *output, "run {run}: {call:?}"),
                    Err(error) => {
                        assert!(
                            matches!(error, Error::PeerGone(rank, _) if rank == victim as u32),
                            "{error:?}"
                        );
                        failed = true;
                    }
                }
            }
            if n == 2 {
                return ep.close().unwrap();
            }
            // Everybody needs everybody.
            assert!(world.run(&Call::AllGather { len: 1 }, &[1]).is_err());
            // The members that are left, in a ring.
            let left: Vec<u32> = (0..n as u32).filter(|rank| *rank != victim as u32).collect();
            let at = left.iter().position(|rank| *rank == me as u32).unwrap();
            let (next, previous) = (left[(at + 1) % left.len()], left[(at + left.len() - 1) % left.len()]);
            let mut bytes = vec![0];
            world.tags().send(next, 5, &[at as u8]).unwrap();
            world.tags().receive(previous, 5, &mut bytes).unwrap();
            assert_eq!(usize::from(bytes[0]), (at + left.len() - 1) % left.len());
            let (value, lost) = world.agree(u64::MAX ^ 1 << me).unwrap();
            assert_eq!(lost, [victim]);
            assert_eq!(value, left.iter().fold(u64::MAX, |value, rank| value ^ 1 << rank));
            let rest = world.shrink().unwrap();
            assert_eq!(rest.ranks(), left);
            check_all(&rest, &[7]);
            rest.barrier().unwrap();
            ep.close().unwrap();
        });
    }
}

/// G-22: a member that waits for one that computes learns of the loss of another one that it needs later.
#[test]
fn a_loss_ends_the_wait_for_another_member() {
    let failed = std::sync::Barrier::new(2);
    run_over(DeviceName::Udp, 3, |job| {
        let (ep, world) = enter(job);
        world.barrier().unwrap();
        match world.member() {
            // Rank 0 waits for rank 2 first, then for rank 1.
            0 => {
                for run in [
                    world.barrier(),
                    world.start(&Call::Barrier, Vec::new()).and_then(Collective::wait).map(drop),
                ] {
                    assert!(matches!(run, Err(Error::PeerGone(1, _))), "{run:?}");
                }
                failed.wait();
            }
            1 => {}
            _ => drop(failed.wait()),
        }
        ep.close().unwrap();
    });
}

/// G-8, G-10: a group that one member revokes fails at all, also at members that wait for others; the members
/// then agree, and make a new group.
#[test]
fn revoked_groups_fail_everywhere() {
    run_over(DeviceName::Shm, 5, |job| {
        let (ep, world) = enter(job);
        let group = world.duplicate().unwrap();
        if group.member() == 3 {
            // The others wait for this member in a collective that it never calls.
            group.revoke();
            assert!(matches!(group.barrier(), Err(Error::Revoked)));
        } else {
            assert!(matches!(group.barrier(), Err(Error::Revoked)));
        }
        assert!(matches!(group.all_reduce(&mut [1_u8], Sum), Err(Error::Revoked)));
        let mut persistent = group.prepare(&Call::Barrier).unwrap();
        assert!(matches!(persistent.start(Vec::new()), Err(Error::Revoked)));
        for round in 0..20 {
            assert_eq!(group.agree(round).unwrap(), (round, vec![]));
        }
        let again = group.shrink().unwrap();
        assert_eq!(again.ranks(), world.ranks());
        check_all(&again, &[5]);
        world.barrier().unwrap();
        ep.close().unwrap();
    });
}
