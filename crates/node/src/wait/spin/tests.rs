//! Tests of waits.

use super::*;

const SPIN: Duration = Duration::from_micros(20);

/// Two ranks on two cores.
fn backoff() -> SpinBackoff {
    SpinBackoff::new(2, 2)
}

/// The turns of a wait in which each takes as long as `takes` says, until it parks.
fn turns(spinner: &mut Spinner<'_>, mut now: Nanos, takes: impl Fn(Turn) -> Nanos) -> Vec<Turn> {
    let mut turns = vec![spinner.turn(now)];
    while let Some(turn) = turns.last().copied().filter(|turn| *turn != Turn::Park) {
        now += takes(turn);
        if turn == Turn::Yield {
            spinner.offered(now);
        }
        turns.push(spinner.turn(now));
    }
    turns
}

/// The turn after an offer of the core that ends at `now`.
fn back(spinner: &mut Spinner<'_>, now: Nanos) -> Turn {
    spinner.offered(now);
    spinner.turn(now)
}

fn count(turns: &[Turn], turn: Turn) -> usize {
    turns.iter().filter(|one| **one == turn).count()
}

/// N-7: each policy does what its name says.
#[test]
fn policies() {
    let backoff = backoff();
    assert_eq!(Spinner::new(Waiting::Park, SPIN, 0, &backoff).turn(1), Turn::Park);
    let mut both = Spinner::new(Waiting::SpinThenPark, SPIN, 0, &backoff);
    assert_eq!(both.turn(10_000), Turn::Spin);
    assert_eq!(turns(&mut both, 20_000, |_| 500), [[Turn::Yield; 4].as_slice(), &[Turn::Park]].concat());
    both.slept(1_000_000);
    both.something_came(1_000_400);
    assert_eq!(both.turn(1_000_500), Turn::Spin);
    let mut spin = Spinner::new(Waiting::Spin, SPIN, 0, &backoff);
    for i in 1..1000 {
        assert_eq!(spin.turn(i * 10_000), Turn::Spin);
    }
}

/// N-7: where polling alone is in vain and others take the core whenever it is offered, it is offered at
/// once; when nobody takes it any more, waits spin again.
#[test]
fn crowded_waiters_offer_the_core_at_once() {
    let backoff = backoff();
    let wait = |takes: Nanos| {
        let mut spinner = Spinner::new(Waiting::SpinThenPark, SPIN, 0, &backoff);
        turns(&mut spinner, 100, |turn| if turn == Turn::Yield { takes } else { 1_000 })
    };
    for _ in 0..VAIN {
        let turns = wait(30_000);
        assert_eq!((count(&turns, Turn::Spin), count(&turns, Turn::Yield)), (20, 4), "{turns:?}");
    }
    let turns = wait(30_000);
    assert_eq!((count(&turns, Turn::Spin), count(&turns, Turn::Yield)), (0, 40), "{turns:?}");
    // It is tried again now and then.
    let spun = (0..2 * RETRY).filter(|_| count(&wait(30_000), Turn::Spin) > 0).count();
    assert_eq!(spun, 2);
    // A message arrives while nobody else wants the core: polling is enough.
    let mut spinner = Spinner::new(Waiting::SpinThenPark, SPIN, 0, &backoff);
    assert_eq!([spinner.turn(100), back(&mut spinner, 600)], [Turn::Yield; 2]);
    drop(spinner);
    assert!(count(&wait(500), Turn::Spin) > 0);
}

/// N-31: the more ranks share a core, the less a wait offers it.
#[test]
fn many_ranks_offer_the_core_for_less_time() {
    for (ranks, offers) in [(3, 400), (8, 400), (9, 320), (16, 200), (64, 50)] {
        let crowd = SpinBackoff::new(ranks, 2);
        let mut spinner = Spinner::new(Waiting::SpinThenPark, SPIN, 0, &crowd);
        let turns = turns(&mut spinner, 0, |turn| if turn == Turn::Yield { 2_000 } else { 100 });
        // The last of them ends the time.
        assert_eq!(count(&turns, Turn::Yield), offers, "{ranks} ranks");
    }
}

/// N-31: where ranks outnumber the cores, a short wait offers the core until a thread that computes takes
/// it; then not for a while, longer each time, until offers are answered by ranks again.
#[test]
fn short_waits_offer_the_core_to_ranks() {
    let crowd = SpinBackoff::new(4, 2);
    let time = std::cell::Cell::new(0);
    let wait = |takes: Nanos, found_after: u32| {
        let offers = std::cell::Cell::new(0);
        let offer = || {
            offers.set(offers.get() + 1);
            time.set(time.get() + takes);
        };
        let found = crowd.wait_shortly(|| time.get(), offer, || offers.get() == found_after);
        (found, offers.get())
    };
    assert_eq!(wait(2_000, 3), (true, 3));
    assert_eq!(wait(2_000, u32::MAX), (false, OFFERS));
    let (least, long) = (CROWDED_PAUSES.least, CROWDED_INTERRUPTED.0 + 1);
    for pause in [least, 2 * least, 4 * least] {
        assert_eq!(wait(long, u32::MAX), (false, 1));
        time.set(time.get() + pause - 1);
        assert_eq!(wait(2_000, 1), (false, 0), "it is not offered for {pause} ns");
        time.set(time.get() + 1);
    }
    assert_eq!(wait(2_000, 1), (true, 1));
    assert_eq!(wait(long, 1), (true, 1));
    time.set(time.get() + least);
    assert_eq!(wait(2_000, 1), (true, 1), "the pause is the shortest again");
    // With a core for each rank nobody needs this one.
    let mut looks = 0;
    let found = backoff().wait_shortly(
        || unreachable!(),
        || unreachable!(),
        || {
            looks += 1;
            looks == 5
        },
    );
    assert!(found && looks == 5);
}

/// N-31: two ranks on one of two cores offer it to each other in short waits, too, until nobody takes it.
#[test]
fn short_waits_offer_a_core_that_others_take() {
    let backoff = backoff();
    let time = std::cell::Cell::new(0);
    let wait = |takes: Nanos, found_after: u32| {
        let (offers, looks) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        let offer = || {
            offers.set(offers.get() + 1);
            time.set(time.get() + takes);
        };
        let found = backoff.wait_shortly(
            || time.get(),
            offer,
            || {
                looks.set(looks.get() + 1);
                looks.get() == found_after
            },
        );
        (found, offers.get())
    };
    for _ in 0..VAIN {
        assert_eq!(wait(2_000, u32::MAX), (false, 0));
        let mut spinner = Spinner::new(Waiting::SpinThenPark, SPIN, time.get(), &backoff);
        turns(&mut spinner, time.get() + 100, |_| 2_000);
    }
    assert_eq!(wait(2_000, 2), (true, 2));
    // It is tried again now and then whether polling alone is enough.
    let offers: Vec<u32> = (0..2 * RETRY).map(|_| wait(2_000, 2).1).collect();
    let tried = offers.iter().position(|offers| *offers == 0).expect("polling alone is tried");
    assert!(tried as u32 == RETRY - VAIN - 1, "after {tried} waits");
    assert!(offers[tried..].iter().all(|offers| *offers == 0), "looking found it: no more offers");
    for _ in 0..VAIN {
        let mut spinner = Spinner::new(Waiting::SpinThenPark, SPIN, time.get(), &backoff);
        turns(&mut spinner, time.get() + 100, |_| 2_000);
    }
    // Nobody else wants the core.
    assert_eq!(wait(500, 3), (true, 3));
    assert_eq!(wait(500, 3), (true, 0));
    // Whoever keeps it computes.
    for _ in 0..VAIN {
        let mut spinner = Spinner::new(Waiting::SpinThenPark, SPIN, time.get(), &backoff);
        turns(&mut spinner, time.get() + 100, |_| 2_000);
    }
    assert_eq!(wait(INTERRUPTED + 1, u32::MAX), (false, 1));
    assert_eq!(wait(2_000, 1), (false, 0), "it is not offered for a while");
}

/// N-7: a wait that finds something after its core was taken away has lost it nevertheless.
#[test]
fn what_came_meanwhile_does_not_excuse_an_interruption() {
    for (policy, spin) in [(Waiting::SpinThenPark, 20_000), (Waiting::Spin, 100)] {
        for (away, pauses) in [(INTERRUPTED, false), (INTERRUPTED + 1, true)] {
            let backoff = backoff();
            let mut spinner = Spinner::new(policy, SPIN, 0, &backoff);
            assert_ne!(spinner.turn(spin), Turn::Park);
            spinner.ended(spin + away);
            drop(spinner);
            assert_eq!(backoff.is_pausing(spin + away), pauses, "{policy:?} {away}");
        }
    }
    // Whoever slept has not lost its core.
    let backoff = backoff();
    let mut spinner = Spinner::new(Waiting::SpinThenPark, SPIN, 0, &backoff);
    turns(&mut spinner, 100, |_| 500);
    spinner.slept(1_000_000);
    spinner.ended(1_000_000 + 2 * INTERRUPTED);
    drop(spinner);
    assert!(!backoff.is_pausing(1_000_000));
}

/// N-7: a wait that is woken for nothing sleeps again after one poll, and says nothing about polling.
#[test]
fn who_is_woken_for_nothing_sleeps_again() {
    let backoff = backoff();
    let mut spinner = Spinner::new(Waiting::SpinThenPark, SPIN, 0, &backoff);
    turns(&mut spinner, 100, |_| 500);
    for second in 1..=10 * Nanos::from(VAIN) {
        let now = second * 1_000_000_000;
        spinner.slept(now);
        assert_eq!(spinner.turn(now + 10 * INTERRUPTED), Turn::Park);
    }
    drop(spinner);
    assert!(!backoff.is_vain() && !backoff.is_pausing(0));
    // It does not spin either where ranks outnumber the cores.
    let crowd = SpinBackoff::new(64, 2);
    let mut spinner = Spinner::new(Waiting::SpinThenPark, SPIN, 0, &crowd);
    turns(&mut spinner, 100, |_| 500);
    spinner.slept(1_000_000_000);
    assert_eq!(spinner.turn(1_000_000_100), Turn::Park);
    spinner.slept(2_000_000_000);
    spinner.something_came(2_000_000_100);
    assert_eq!(spinner.turn(2_000_000_200), Turn::Spin);
}

/// N-7: what an offer costs that nobody takes is learnt, and longer ones were taken.
#[test]
fn offers_that_others_take_are_recognized() {
    let taken = |costs: &[Nanos], then: Nanos| {
        let backoff = backoff();
        costs.iter().for_each(|cost| assert!(!backoff.was_taken(*cost)));
        backoff.was_taken(then)
    };
    // Before anything is known.
    assert!(!taken(&[], 1_500) && taken(&[], 1_501));
    // Two switches take some six times as long as an offer that nobody takes.
    assert!(!taken(&[300, 200, 250], 600) && taken(&[300, 200], 1_200));
    assert!(!taken(&[20], 600) && taken(&[20], 601));
    assert!(!taken(&[450], 1_300) && taken(&[450], 2_700));
}

/// N-7: polling alone was in vain if what a wait is for comes as soon as another thread has run.
#[test]
fn what_comes_after_an_offer_was_not_found_by_polling() {
    for (away, in_vain) in [(400, false), (1_600, true)] {
        let backoff = backoff();
        for _ in 0..VAIN {
            assert!(!backoff.is_vain());
            let mut spinner = Spinner::new(Waiting::SpinThenPark, SPIN, 0, &backoff);
            assert_eq!([spinner.turn(100), spinner.turn(20_000)], [Turn::Spin, Turn::Yield]);
            spinner.offered(20_000 + away);
            spinner.ended(20_100 + away);
        }
        assert_eq!(backoff.is_vain(), in_vain);
    }
}

/// N-7: a wait that ends right after a sleep says nothing about polling.
#[test]
fn what_ends_a_sleep_is_not_found_by_polling() {
    let backoff = backoff();
    for _ in 0..VAIN {
        let mut spinner = Spinner::new(Waiting::SpinThenPark, SPIN, 0, &backoff);
        turns(&mut spinner, 100, |_| 5_000);
        spinner.slept(1_000_000);
    }
    assert!(backoff.is_vain());
}

/// N-7: whoever keeps an offered core computes. Then waiters sleep, for longer each time.
#[test]
fn no_core_is_offered_to_those_who_compute() {
    let backoff = backoff();
    let mut spinner = Spinner::new(Waiting::SpinThenPark, SPIN, 0, &backoff);
    assert_eq!(spinner.turn(20_000), Turn::Yield);
    let mut now = 20_001 + INTERRUPTED;
    assert_eq!(back(&mut spinner, now), Turn::Park);
    for length in [PAUSES.least, 2 * PAUSES.least] {
        spinner.slept(now + length / 2);
        spinner.something_came(now + length / 2);
        let turns = turns(&mut spinner, now + length / 2, |_| 1_000);
        assert_eq!(count(&turns, Turn::Yield), 0, "{turns:?}");
        now += length;
        spinner.slept(now);
        spinner.something_came(now);
        // Polling alone may have been in vain, and is left out then.
        let turn = match spinner.turn(now + 100) {
            Turn::Spin => spinner.turn(now + 20_000),
            turn => turn,
        };
        assert_eq!(turn, Turn::Yield);
        now += 20_001 + INTERRUPTED;
        assert_eq!(back(&mut spinner, now), Turn::Park);
    }
}

/// N-31: where ranks outnumber the cores, all others may have had a turn. Pauses are short there, and one
/// that follows waits for other ranks is as short as the first.
#[test]
fn crowded_waiters_pause_for_a_short_time() {
    for (ranks, long) in [(4, 1_000_000), (8, 1_000_000), (16, 1_600_000), (64, 6_400_000)] {
        let crowd = SpinBackoff::new(ranks, 2);
        let mut now = 0;
        let mut interrupt = |pauses: &[Nanos]| {
            for pause in pauses {
                let mut spinner = Spinner::new(Waiting::SpinThenPark, SPIN, now, &crowd);
                assert_eq!(spinner.turn(now + CROWDED_SPIN - 1), Turn::Spin);
                let offered = [spinner.turn(now + 2_000), back(&mut spinner, now + 2_000 + long)];
                assert_eq!(offered, [Turn::Yield; 2]);
                assert_eq!(back(&mut spinner, now + 2_001 + 2 * long), Turn::Park, "{ranks} ranks");
                now += 2_001 + 2 * long + pause - 1 - CROWDED_SPIN;
                spinner.slept(now);
                spinner.something_came(now);
                assert_eq!(spinner.turn(now), Turn::Spin);
                assert_eq!(spinner.turn(now + CROWDED_SPIN), Turn::Park, "{pause} ns have not passed");
                now += CROWDED_SPIN + 1;
            }
            now
        };
        let least = CROWDED_PAUSES.least;
        let now = interrupt(&[least, 2 * least, 4 * least]);
        let mut spinner = Spinner::new(Waiting::SpinThenPark, SPIN, now, &crowd);
        assert_eq!([spinner.turn(now + 2_000), back(&mut spinner, now + 5_000)], [Turn::Yield; 2]);
        drop(spinner);
        interrupt(&[least]);
    }
}

/// N-31: ranks that have just connected to one of their host keep a core for long, and do not compute.
#[test]
fn new_channels_make_long_turns() {
    let crowd = SpinBackoff::new(64, 2);
    let lose_core_at = |now: Nanos| {
        let mut spinner = Spinner::new(Waiting::SpinThenPark, SPIN, now, &crowd);
        assert_eq!(spinner.turn(now + 2_000), Turn::Yield);
        back(&mut spinner, now + 30_000_000)
    };
    crowd.connected(Some(1_000));
    assert_eq!(lose_core_at(2_000), Turn::Yield);
    crowd.connected(Some(50_000_000));
    assert_eq!(lose_core_at(100_000_000), Turn::Yield);
    assert_eq!(lose_core_at(50_000_000 + CONNECTING), Turn::Park);
    // Where each rank has a core, nobody else should be there.
    let backoff = backoff();
    backoff.connected(Some(1_000));
    let mut spinner = Spinner::new(Waiting::SpinThenPark, SPIN, 2_000, &backoff);
    assert_eq!(spinner.turn(2_100 + INTERRUPTED), Turn::Park);
}

/// N-7: a spinning waiter that loses its core parks for a while, longer each time, and then spins again.
#[test]
fn a_spinning_waiter_backs_off() {
    let backoff = backoff();
    let mut spin = Spinner::new(Waiting::Spin, SPIN, 0, &backoff);
    assert_eq!(spin.turn(INTERRUPTED + 1), Turn::Park);
    let mut now = INTERRUPTED + 1 + PAUSES.least;
    spin.slept(now);
    assert_eq!(spin.turn(now), Turn::Spin);
    now += INTERRUPTED + 1;
    assert_eq!(spin.turn(now), Turn::Park);
    now += PAUSES.least;
    spin.slept(now);
    assert_eq!(spin.turn(now), Turn::Park, "the second time takes longer");
    now += PAUSES.least;
    for _ in 0..3 {
        // Long after that it is the first time again.
        now += PAUSES.apart;
        spin.slept(now);
        assert_eq!(spin.turn(now + INTERRUPTED + 1), Turn::Park);
        now += INTERRUPTED + 1 + PAUSES.least;
        spin.slept(now);
        assert_eq!(spin.turn(now), Turn::Spin);
    }
}

/// N-7: a rank with no other one on its host offers its core to nobody, however often it polled in vain.
#[test]
fn who_is_alone_offers_no_core() {
    let alone = SpinBackoff::new(1, 2);
    for _ in 0..2 * VAIN {
        let mut spinner = Spinner::new(Waiting::SpinThenPark, SPIN, 0, &alone);
        let turns = turns(&mut spinner, 100, |_| 1_000);
        assert_eq!((count(&turns, Turn::Spin), count(&turns, Turn::Yield)), (20, 0), "{turns:?}");
    }
    // So do short waits.
    assert!(!alone.wait_shortly(|| unreachable!(), || unreachable!(), || false));
}

/// N-7: the longer the core was away, the longer is the first pause.
#[test]
fn pauses_are_several_times_as_long_as_interruptions() {
    for (away, pause) in [(250_000, PAUSES.least), (3_000_000, 12_000_000), (400_000_000, PAUSES.most)] {
        for policy in [Waiting::Spin, Waiting::SpinThenPark] {
            let backoff = backoff();
            let mut spinner = Spinner::new(policy, SPIN, 0, &backoff);
            assert_eq!(spinner.turn(away), Turn::Park);
            assert!(backoff.is_pausing(away + pause - 1) && !backoff.is_pausing(away + pause), "{away}");
        }
    }
    // Where ranks outnumber the cores it may have been theirs.
    let crowd = SpinBackoff::new(4, 2);
    let mut spinner = Spinner::new(Waiting::SpinThenPark, SPIN, 0, &crowd);
    assert_eq!(spinner.turn(400_000_000), Turn::Park);
    assert!(!crowd.is_pausing(400_000_000 + CROWDED_PAUSES.least));
}
