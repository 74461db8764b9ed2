//! Collectives of members on several hosts: in two levels, where those of a host share memory.

use crate::common::{draw, jobs, run_jobs};
use crate::shared_collectives::{connect_all, enter, nth, warm_up};
use tautline::group::{Algorithm, Call, Choice, Choices, Group, Kind, Sum};
use tautline::{Error, HostId, Job};
use tautline_model::addition;

/// Jobs of members on these hosts, for all that they can tell.
fn jobs_on(hosts: &[u64]) -> Vec<Job> {
    let mut all = jobs(hosts.len());
    for job in &mut all {
        let members = job.members.iter().zip(hosts);
        job.members = members.map(|(member, host)| member.clone().on_host(HostId(*host))).collect();
    }
    all
}

/// A group like another one that goes in two levels wherever it can.
fn in_levels(group: &Group) -> Group {
    let kinds = Kind::ALL.into_iter().filter(|kind| kind.algorithms().contains(&Algorithm::Hosts));
    let line = |kind| Choice { kind, bytes: usize::MAX, members: usize::MAX, algorithm: Algorithm::Hosts };
    group.with_choices(Choices::with(kinds.map(line))).unwrap()
}

/// G-23: collectives drawn at random equal their serial models, wherever the members are, blocking, and
/// started several at once and waited for in an order that differs from member to member.
#[test]
fn collectives_in_two_levels() {
    for hosts in [&[1, 1, 2][..], &[1, 2, 1, 2], &[5, 5, 5, 5, 9, 9, 9, 9], &[3, 1, 1, 2, 1, 2, 1, 1, 1]] {
        let n = hosts.len();
        let mut different = hosts.to_vec();
        different.sort_unstable();
        different.dedup();
        run_jobs(jobs_on(hosts), |job| {
            let (ep, first) = enter(job);
            let world = in_levels(&first);
            let me = world.member();
            assert_eq!((world.shares_memory(), world.hosts()), (None, None));
            warm_up(&world);
            assert_eq!((world.shares_memory(), world.hosts()), (Some(true), Some(different.len())));
            for number in 0..200 {
                let (call, input, output) = nth(n, me, number);
                assert!(world.run(&call, &input).unwrap() == output, "{number}: {call:?} at {me} of {n}");
            }
            for round in 0..10 {
                let started = (round * 10..(round + 1) * 10).map(|number| {
                    let (call, input, output) = nth(n, me, number);
                    (world.start(&call, input).unwrap(), output)
                });
                let mut started: Vec<_> = started.collect();
                let mut seed = (round * n + me) as u64;
                while !started.is_empty() {
                    let at = draw(&mut seed, started.len() as u64) as usize;
                    let (collective, output) = started.swap_remove(at);
                    assert!(collective.wait().unwrap() == output, "at {me} of {n}");
                }
            }
            world.barrier().unwrap();
            ep.close().unwrap();
        });
    }
}

/// G-23: the default table has barriers and all-reduces go in two levels: only heads exchange messages with
/// other hosts.
#[test]
fn only_heads_send_to_other_hosts() {
    run_jobs(jobs_on(&[1, 1, 1, 1, 2, 2, 2, 2]), |job| {
        let (ep, world) = enter(job);
        warm_up(&world);
        assert_eq!(world.hosts(), Some(2));
        let before = ep.counters().links.slots_sent;
        for _ in 0..100 {
            world.barrier().unwrap();
            let mut sum = [1_u64];
            world.all_reduce(&mut sum, Sum).unwrap();
            assert_eq!(sum, [8]);
        }
        let sent = ep.counters().links.slots_sent - before;
        let mut all = vec![0; 8];
        world.all_gather(&[sent], &mut all).unwrap();
        let heads = [all[0], all[4]];
        assert!(heads.iter().all(|sent| *sent >= 200), "{all:?}");
        assert!(all.iter().sum::<u64>() == heads.iter().sum::<u64>(), "others have sent messages: {all:?}");
        world.barrier().unwrap();
        ep.close().unwrap();
    });
}

/// G-23: where no two members are on one host, there is one level.
#[test]
fn members_on_hosts_of_their_own() {
    run_jobs(jobs_on(&[1, 2, 3]), |job| {
        let (ep, first) = enter(job);
        let world = in_levels(&first);
        warm_up(&world);
        assert_eq!((world.shares_memory(), world.hosts()), (Some(false), None));
        for number in 0..50 {
            let (call, input, output) = nth(3, world.member(), number);
            assert!(world.run(&call, &input).unwrap() == output, "{call:?}");
        }
        world.barrier().unwrap();
        ep.close().unwrap();
    });
}

/// G-4, G-17: members whose calls differ get an error, on whatever host, and so do those that wait for them;
/// by messages, too.
#[test]
fn calls_that_differ_in_two_levels() {
    let line =
        |algorithm| Choice { kind: Kind::AllReduce, bytes: usize::MAX, members: usize::MAX, algorithm };
    for (other, by) in
        (0..4).flat_map(|other| [(other, Algorithm::Hosts), (other, Algorithm::RecursiveDoubling)])
    {
        run_jobs(jobs_on(&[1, 1, 2, 2]), |job| {
            let (ep, world) = enter(job);
            warm_up(&world);
            let group = world.with_choices(Choices::with([line(by)])).unwrap();
            warm_up(&group);
            let len = if group.member() == other { 16 } else { 8 };
            let error = group.run(&Call::AllReduce { len, with: addition() }, &vec![1; len]).unwrap_err();
            let said = error.to_string();
            assert!(said.contains("different lengths") || said.contains("failed at"), "{said}");
            assert!(group.barrier().is_err(), "the group has failed");
            world.barrier().unwrap();
            ep.close().unwrap();
        });
    }
}

/// G-20, G-23: in 40 runs a random member leaves at a random collective, some of them in the middle of it.
/// Each other member gets right results, and then errors that name the one that was lost.
#[test]
fn a_member_of_several_hosts_is_lost() {
    for run in 0..40_u64 {
        let mut seed = run + 2_000;
        let n = 3 + draw(&mut seed, 6) as usize;
        let hosts: Vec<u64> = (0..n).map(|member| if member < 2 { 1 } else { draw(&mut seed, 3) }).collect();
        let (victim, last) = (draw(&mut seed, n as u64) as usize, draw(&mut seed, 30) as usize);
        let half = draw(&mut seed, 2) == 1;
        run_jobs(jobs_on(&hosts), |job| {
            let (ep, first) = enter(job);
            let world = in_levels(&first);
            connect_all(&world);
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
            assert_eq!(world.agree(1).unwrap(), (1, vec![victim]));
            let rest = world.shrink().unwrap();
            let mut sum = [1_u32];
            rest.all_reduce(&mut sum, Sum).unwrap();
            assert_eq!(sum, [n as u32 - 1]);
            ep.close().unwrap();
        });
    }
}
