//! Members in a simulated network: what a death and a join cost, and what remains after partitions, crashes,
//! restarts and pauses.
#![allow(clippy::print_stdout)]

mod world;

use tautline_members::Notice;
use world::{BOUND, World};

/// Enough for a fact to reach everyone.
const SPREAD: u64 = BOUND / 20;

fn logarithm(n: usize) -> u64 {
    u64::from(n.next_power_of_two().ilog2())
}

/// B-4: at most 4·⌈log₂ n⌉ messages for each member, sent and received, and everyone is told once.
#[test]
fn a_change_costs_each_member_few_messages() {
    for n in [10, 33, 100, 257, 1_000, 3_000, 10_000] {
        let mut world = World::new(7, n, true);
        world.run_for(2 * BOUND);
        let start = world.most_messages();
        assert!(start <= 4, "{n} members: {start} messages to begin");
        let victim = n as u32 / 3;
        let most = [
            changed(&mut world, n - 1, Notice::Died(victim), |world| world.crash(victim)),
            changed(&mut world, n - 1, Notice::Started(victim), |world| world.start(victim)),
            changed(&mut world, n, Notice::Joined(n as u32), |world| world.start(n as u32)),
            changed(&mut world, n, Notice::Left(0), |world| world.leave(0)),
        ];
        println!("{n} members: (death, restart, join, leave) cost at most {most:?} messages");
        assert!(most.iter().all(|most| *most <= 4 * logarithm(n)), "{n} members: {most:?}");
    }
}

/// The most messages of any member for a change of which as many members are told.
fn changed(world: &mut World, told: usize, notice: Notice, change: impl FnOnce(&mut World)) -> u64 {
    world.reset_counts();
    change(world);
    world.run_for(3 * BOUND);
    let notices = world.take_notices();
    let heard = notices.iter().filter(|(_, heard)| *heard == notice).count();
    assert_eq!((heard, notices.len()), (told, told), "{notice:?}");
    world.most_messages()
}

/// B-6, B-8, B-10: whatever happened, two bounds after the last fault all members agree on who is alive, in
/// which incarnation.
#[test]
fn members_agree_after_faults() {
    let seeds = std::env::var("TAUTLINE_SEEDS").map_or(400, |text| text.parse().expect("a number of seeds"));
    let mut fenced = 0;
    // One seed, with everything that happens.
    let one = std::env::var("TAUTLINE_SEED").ok().map(|text| text.parse::<u64>().expect("a seed"));
    for seed in one.map_or(0..seeds, |seed| seed..seed + 1) {
        let mut world = World::new(seed, 2 + (seed % 37) as usize, seed % 3 != 0);
        world.traces = one.is_some();
        world.run_with_faults(12);
        world.heal();
        world.run_for(2 * BOUND);
        world.check_agreement(seed);
        let notices = world.take_notices();
        fenced += notices.iter().filter(|(_, notice)| matches!(notice, Notice::Fenced { .. })).count();
    }
    // Members were wrongly declared dead, and told.
    assert!(one.is_some() || fenced > seeds as usize, "{fenced}");
}

/// B-2, B-5, B-7, B-9, B-11: a partition of many is noticed by its neighbours, and heals by itself.
#[test]
fn halves_of_a_job_find_each_other() {
    for n in [2_u32, 3, 64, 300] {
        let mut world = World::new(1, n as usize, true);
        world.run_for(BOUND);
        world.split(|rank| rank < n / 2);
        world.run_for(8 * BOUND);
        world.take_notices();
        world.heal();
        world.run_for(BOUND + SPREAD);
        world.check_agreement(u64::from(n));
        let fenced =
            world.take_notices().into_iter().filter(|(_, notice)| matches!(notice, Notice::Fenced { .. }));
        assert_eq!(fenced.count(), n as usize, "each half had declared the other one dead");
    }
}

/// B-2: members that take no part are watched by those that do.
#[test]
fn members_that_take_no_part_are_watched() {
    let mut world = World::new(3, 40, true);
    world.exclude(|rank| rank % 4 != 1);
    world.run_for(6 * BOUND);
    world.take_notices();
    for victim in [2, 5, 39] {
        world.crash(victim);
        world.run_for(2 * BOUND + SPREAD);
        let notices = world.take_notices();
        assert!(notices.iter().all(|(_, notice)| *notice == Notice::Died(victim)), "{notices:?}");
        let taking_part = (0..40).filter(|rank| rank % 4 == 1 && world.is_running(*rank)).count();
        assert_eq!(notices.len(), taking_part, "rank {victim}");
    }
}

/// B-12: a member that was never started is not reported as dead, and joins late without ado.
#[test]
fn late_members_are_not_dead() {
    let mut world = World::unstarted(5, 12);
    for rank in [0, 1, 2, 5, 6, 11] {
        world.start(rank);
    }
    world.run_for(5 * BOUND);
    world.start(3);
    world.run_for(5 * BOUND);
    assert_eq!(world.take_notices(), []);
    world.crash(3);
    world.run_for(2 * BOUND);
    let notices = world.take_notices();
    assert!(
        notices.len() == 6 && notices.iter().all(|(_, notice)| *notice == Notice::Died(3)),
        "{notices:?}"
    );
}
