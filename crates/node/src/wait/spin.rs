//! Waiting: spin, park, or first the one and then the other (N-7, N-31).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tautline_link::Nanos;

use crate::Waiting;

/// A poll loop that was interrupted for longer than this lost its core to a thread that computes. Where ranks
/// outnumber the cores it is this for each rank on a core, since all of them may have had a turn.
const INTERRUPTED: Nanos = 200_000;
/// The least and the most that it is there: ranks that have messages to copy keep a core for some time, and a
/// thread that computes for several milliseconds.
const CROWDED_INTERRUPTED: (Nanos, Nanos) = (1_000_000, 3_000_000);
/// How long waiters keep to parking after that. A thread that computes takes its next turn within several
/// milliseconds of polling.
const PAUSES: Pauses = Pauses { least: 1_000_000, most: 1_000_000_000, apart: 20_000_000 };
/// The same where ranks outnumber the cores: most waits are for ranks that want this core, too.
const CROWDED_PAUSES: Pauses = Pauses { least: 1_000_000, most: 64_000_000, apart: 1_000_000_000 };
/// A thread that offered its core for less than this was alone on it.
const ALONE: Nanos = 1_500;
/// What a turn costs the waiter itself if others ran in between.
const OWN_TURN: Nanos = 500;
/// After so many waits in a row in which polling alone was in vain, the core is offered at once.
const VAIN: u32 = 4;
/// Where ranks outnumber the cores, the core is offered after so long: for a peer that runs, time to answer.
const CROWDED_SPIN: Nanos = 300;
/// How much longer the core is offered there: to be woken costs more than the turns of a few others.
const CROWDED_OFFERS: Nanos = 10;
/// One wait of so many tries again what polling alone finds.
const RETRY: u32 = 32;
/// Offers after polling alone was in vain, to learn whether others want the core.
const PROBES: Nanos = 4;

/// How often a rank offers its core, or looks again, before it waits by polling its lane.
const OFFERS: u32 = 64;

/// How long waiters keep to parking when they have lost their core.
struct Pauses {
    least: Nanos,
    /// If it keeps happening.
    most: Nanos,
    /// A pause this long after the last one is the first again.
    apart: Nanos,
}

/// What to do in the next turn of a waiting loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Spin,
    /// Offer the core to other threads.
    Yield,
    Park,
}

/// Remembers, across waits, that the cores are shared.
#[derive(Debug)]
pub(crate) struct SpinBackoff {
    /// Waits park until then.
    park_until: AtomicU64,
    /// How long the last pause was; zero if the core came back soon since.
    pause: AtomicU64,
    /// Waits in a row in which polling alone was in vain.
    vain: AtomicU32,
    /// Ranks outnumber the cores.
    crowded: bool,
    /// A longer interruption shows that somebody computes.
    interrupted: Nanos,
}

impl SpinBackoff {
    /// For a host on which `ranks` of the job share `cores`.
    pub(crate) fn new(ranks: usize, cores: usize) -> SpinBackoff {
        let crowded = ranks > cores;
        let (least, most) = if crowded { CROWDED_INTERRUPTED } else { (INTERRUPTED, INTERRUPTED) };
        SpinBackoff {
            park_until: AtomicU64::new(0),
            pause: AtomicU64::new(0),
            vain: AtomicU32::new(0),
            crowded,
            interrupted: (INTERRUPTED * ranks.div_ceil(cores.max(1)) as Nanos).clamp(least, most),
        }
    }

    /// Waits for a short time for what local ranks write to memory, without polling: true if `done` returns
    /// true. Where ranks outnumber the cores, or polling alone was in vain lately, each of them may need a turn
    /// on this core, so it is offered; not for a while if a thread that computes took it (N-31).
    pub(crate) fn wait_shortly(
        &self,
        mut now: impl FnMut() -> Nanos,
        mut offer: impl FnMut(),
        mut done: impl FnMut() -> bool,
    ) -> bool {
        if !self.crowded && !self.is_vain() {
            let found = (0..OFFERS).any(|_| {
                std::hint::spin_loop();
                done()
            });
            if found {
                self.note(false);
            }
            return found;
        }
        let mut last = now();
        if self.is_pausing(last) {
            return false;
        }
        let mut shared = false;
        for _ in 0..OFFERS {
            offer();
            let (found, back) = (done(), now());
            let away = back.saturating_sub(last);
            if away > self.interrupted {
                self.back_off(back, if self.crowded { &CROWDED_PAUSES } else { &PAUSES });
                return found;
            }
            shared |= away > ALONE;
            if found {
                if self.crowded {
                    self.forget_pause();
                } else {
                    self.note(shared);
                }
                return true;
            }
            last = back;
        }
        false
    }

    /// Remembers a wait in which polling alone was in vain, or would have been enough.
    #[inline]
    fn note(&self, in_vain: bool) {
        if in_vain {
            // Several threads may wait: an estimate that loses some of them is good enough.
            self.vain.store(self.vain.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        } else if self.vain.load(Ordering::Relaxed) != 0 {
            self.vain.store(0, Ordering::Relaxed);
        }
    }

    /// Whether ranks outnumber the cores.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// Whether waits keep to parking.
    pub(crate) fn is_pausing(&self, now: Nanos) -> bool {
        now < self.park_until.load(Ordering::Relaxed)
    }

    /// The core was taken away: waits park for a while, for longer if that happened lately.
    #[cold]
    fn back_off(&self, now: Nanos, pauses: &Pauses) {
        let before = self.pause.load(Ordering::Relaxed);
        let lately = now < self.park_until.load(Ordering::Relaxed) + pauses.apart;
        let pause = if lately { (2 * before).clamp(pauses.least, pauses.most) } else { pauses.least };
        self.pause.store(pause, Ordering::Relaxed);
        self.park_until.store(now + pause, Ordering::Relaxed);
    }

    /// The next pause is a first one.
    #[inline]
    fn forget_pause(&self) {
        if self.pause.load(Ordering::Relaxed) > 0 {
            self.pause.store(0, Ordering::Relaxed);
        }
    }

    /// Whether polling alone has been in vain lately.
    fn is_vain(&self) -> bool {
        let vain = self.vain.load(Ordering::Relaxed);
        vain >= VAIN && !vain.is_multiple_of(RETRY)
    }
}

/// How far a wait has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Spinning,
    /// Nobody else wanted the core so far.
    Offering,
    /// Others ran when it was offered.
    Sharing,
    Parking,
    /// It was woken, and has found nothing yet.
    Woken,
}

/// One wait.
pub(crate) struct Spinner<'a> {
    policy: Waiting,
    spin: Nanos,
    /// How long it polls without offering the core.
    alone: Nanos,
    start: Nanos,
    last: Nanos,
    stage: Stage,
    /// There was a turn: what ends a wait at once, or right after a sleep, says nothing about polling.
    turned: bool,
    /// What is left of the waiter's own time for offers.
    offers: Nanos,
    backoff: &'a SpinBackoff,
}

impl<'a> Spinner<'a> {
    pub(crate) fn new(policy: Waiting, spin: Duration, now: Nanos, backoff: &'a SpinBackoff) -> Spinner<'a> {
        let spin = spin.as_nanos() as Nanos;
        let (stage, alone, offers) = match (backoff.crowded, backoff.is_vain()) {
            (true, _) => (Stage::Spinning, CROWDED_SPIN.min(spin), CROWDED_OFFERS * spin),
            (false, true) => (Stage::Offering, 0, spin),
            (false, false) => (Stage::Spinning, spin, (PROBES * OWN_TURN).min(spin)),
        };
        Spinner { policy, alone, spin, start: now, last: now, stage, turned: false, offers, backoff }
    }

    /// Decides the next turn; `now` is the time after a poll that found nothing.
    pub(crate) fn turn(&mut self, now: Nanos) -> Turn {
        if self.stage == Stage::Woken {
            return Turn::Park;
        }
        let away = now.saturating_sub(self.last);
        self.last = now;
        self.turned = true;
        match self.policy {
            Waiting::Park => Turn::Park,
            Waiting::SpinThenPark => self.spin_then_park(now, away),
            Waiting::Spin => {
                self.note_interruption(now, away);
                if self.backoff.is_pausing(now) { Turn::Park } else { Turn::Spin }
            }
        }
    }

    /// The wait ends; `now` is the time of its last poll. What came while another thread had the core does
    /// not make up for its loss.
    #[inline]
    pub(crate) fn ended(&mut self, now: Nanos) {
        if self.turned && self.policy != Waiting::Park {
            self.note_interruption(now, now.saturating_sub(self.last));
        }
    }

    /// Polls were `away` apart.
    #[inline]
    fn note_interruption(&mut self, now: Nanos, away: Nanos) {
        if away > self.backoff.interrupted {
            let crowded = self.backoff.crowded && self.policy == Waiting::SpinThenPark;
            self.backoff.back_off(now, if crowded { &CROWDED_PAUSES } else { &PAUSES });
            self.stage = Stage::Parking;
        }
    }

    fn spin_then_park(&mut self, now: Nanos, away: Nanos) -> Turn {
        self.note_interruption(now, away);
        match self.stage {
            Stage::Parking | Stage::Woken => return Turn::Park,
            Stage::Spinning if now.saturating_sub(self.start) < self.alone => return Turn::Spin,
            Stage::Spinning => self.stage = Stage::Offering,
            Stage::Offering | Stage::Sharing if away > ALONE => {
                self.stage = Stage::Sharing;
                self.offers = self.offers.saturating_sub(OWN_TURN);
            }
            Stage::Offering | Stage::Sharing => self.offers = self.offers.saturating_sub(away),
        }
        if self.offers == 0 || self.backoff.is_pausing(now) {
            self.stage = Stage::Parking;
            return Turn::Park;
        }
        Turn::Yield
    }

    /// Whether the core is offered after each poll.
    #[inline]
    pub(crate) fn is_offering(&self) -> bool {
        matches!(self.stage, Stage::Offering | Stage::Sharing) && self.policy == Waiting::SpinThenPark
    }

    /// The time asleep does not count as an interruption. A wait that spins before it parks sleeps again
    /// after the next poll, unless that shows [`Spinner::something_came`].
    pub(crate) fn slept(&mut self, now: Nanos) {
        self.last = now;
        if self.policy == Waiting::SpinThenPark {
            self.begin_again(now);
            self.stage = Stage::Woken;
        }
    }

    /// Something came while the wait slept, though not what it waits for: more may follow soon.
    pub(crate) fn something_came(&mut self, now: Nanos) {
        if self.stage == Stage::Woken {
            self.begin_again(now);
        }
    }

    fn begin_again(&mut self, now: Nanos) {
        *self = Spinner::new(self.policy, Duration::from_nanos(self.spin), now, self.backoff);
    }

    /// Remembers whether polling alone would have been enough.
    fn note(&self) {
        if self.backoff.crowded && self.stage != Stage::Parking {
            self.backoff.forget_pause();
        }
        self.backoff.note(!matches!(self.stage, Stage::Spinning | Stage::Offering));
    }
}

impl Drop for Spinner<'_> {
    fn drop(&mut self) {
        if self.turned && self.policy == Waiting::SpinThenPark {
            self.note();
        }
    }
}

#[cfg(test)]
mod tests {
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
            turns.push(spinner.turn(now));
        }
        turns
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
        assert_eq!([spinner.turn(100), spinner.turn(600)], [Turn::Yield; 2]);
        drop(spinner);
        assert!(count(&wait(500), Turn::Spin) > 0);
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

    /// N-31: two ranks on one of two cores offer it to each other, also in short waits, until nobody takes it.
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
        assert_eq!(spinner.turn(now), Turn::Park);
        for length in [PAUSES.least, 2 * PAUSES.least] {
            spinner.slept(now + length / 2);
            spinner.something_came(now + length / 2);
            let turns = turns(&mut spinner, now + length / 2, |_| 1_000);
            assert_eq!(count(&turns, Turn::Yield), 0, "{turns:?}");
            now += length;
            spinner.slept(now);
            spinner.something_came(now);
            assert_eq!(spinner.turn(now + 20_000), Turn::Yield);
            now += 20_001 + INTERRUPTED;
            assert_eq!(spinner.turn(now), Turn::Park);
        }
    }

    /// N-31: where ranks outnumber the cores, all others may have had a turn. Pauses are short there, and one
    /// that follows waits for other ranks is as short as the first.
    #[test]
    fn crowded_waiters_pause_for_a_short_time() {
        for (ranks, long) in [(4, 1_000_000), (8, 1_000_000), (16, 1_600_000), (64, 3_000_000)] {
            let crowd = SpinBackoff::new(ranks, 2);
            let mut now = 0;
            let mut interrupt = |pauses: &[Nanos]| {
                for pause in pauses {
                    let mut spinner = Spinner::new(Waiting::SpinThenPark, SPIN, now, &crowd);
                    assert_eq!(spinner.turn(now + CROWDED_SPIN - 1), Turn::Spin);
                    assert_eq!(
                        [spinner.turn(now + 2_000), spinner.turn(now + 2_000 + long)],
                        [Turn::Yield; 2]
                    );
                    assert_eq!(spinner.turn(now + 2_001 + 2 * long), Turn::Park, "{ranks} ranks");
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
            assert_eq!([spinner.turn(now + 2_000), spinner.turn(now + 5_000)], [Turn::Yield; 2]);
            drop(spinner);
            interrupt(&[least]);
        }
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
}
