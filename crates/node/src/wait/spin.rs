//! Waiting: spin, park, or first the one and then the other (N-7, N-31).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tautline_link::Nanos;

use crate::Waiting;

/// A poll loop that was interrupted for longer than this lost its core to a thread that computes. Where ranks
/// outnumber the cores it is this for each rank on a core, since all of them may have had a turn.
const INTERRUPTED: Nanos = 200_000;
/// The least and the most that it is there: ranks that have messages to copy keep a core for some time. If
/// their turns counted as those of a thread that computes, a collective of many ranks would make them sleep,
/// which takes far longer than the turns (docs/decisions/0004).
const CROWDED_INTERRUPTED: (Nanos, Nanos) = (1_000_000, 20_000_000);
/// For so long after a channel with a local peer came up, ranks that outnumber the cores are busy with more
/// of them, and with memory that they use for the first time: their turns are long, and nobody computes.
const CONNECTING: Nanos = 100_000_000;
/// How long waiters keep to parking after that. A thread that computes takes its next turn within several
/// milliseconds of polling.
const PAUSES: Pauses = Pauses { least: 1_000_000, most: 1_000_000_000, apart: 20_000_000, share: 4 };
/// The same where ranks outnumber the cores: most waits are for ranks that want this core, too.
const CROWDED_PAUSES: Pauses = Pauses { least: 1_000_000, most: 64_000_000, apart: 1_000_000_000, share: 0 };
/// Nobody took the core if it came back in less than this many times the shortest offer, within these bounds.
/// Two switches and what runs between them take some six times as long as an offer that nobody takes.
const ALONE: u32 = 3;
const ALONE_BOUNDS: (u32, u32) = (600, 1_500);
/// What a turn costs the waiter itself if others ran in between.
const OWN_TURN: Nanos = 500;
/// After so many waits in a row in which polling alone was in vain, the core is offered at once.
const VAIN: u32 = 4;
/// Where ranks outnumber the cores, the core is offered after so long: for a peer that runs, time to answer.
const CROWDED_SPIN: Nanos = 300;
/// How much longer the core is offered there, with up to so many ranks on a core: to be woken costs more than
/// the turns of a few others. More that wait in vain would keep the core from those that do not.
const CROWDED_OFFERS: (Nanos, Nanos) = (10, 4);
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
    /// A pause is at least so many times as long as the core was away, so that what a thread that computes
    /// takes by the next interruption is a small part of the time.
    share: Nanos,
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
    /// The shortest offer of the core so far, in nanoseconds, which nobody took; an estimate at first.
    shortest_offer: AtomicU32,
    /// Ranks outnumber the cores.
    crowded: bool,
    /// Other ranks of the job are on this host, and may need this core.
    offers: bool,
    /// The ranks on a core.
    per_core: Nanos,
    /// A longer interruption shows that somebody computes.
    interrupted: Nanos,
    /// Until then an interruption does not, where ranks outnumber the cores.
    connecting_until: AtomicU64,
}

impl SpinBackoff {
    /// For a host on which `ranks` of the job share `cores`.
    pub(crate) fn new(ranks: usize, cores: usize) -> SpinBackoff {
        let crowded = ranks > cores;
        let (least, most) = if crowded { CROWDED_INTERRUPTED } else { (INTERRUPTED, INTERRUPTED) };
        let per_core = ranks.div_ceil(cores.max(1)) as Nanos;
        SpinBackoff {
            park_until: AtomicU64::new(0),
            pause: AtomicU64::new(0),
            vain: AtomicU32::new(0),
            shortest_offer: AtomicU32::new(ALONE_BOUNDS.1 / ALONE),
            crowded,
            offers: ranks > 1,
            per_core,
            interrupted: (INTERRUPTED * per_core).clamp(least, most),
            connecting_until: AtomicU64::new(0),
        }
    }

    /// Waits for a short time for what local ranks write to memory, without polling: true if `done` returns
    /// true. Where ranks outnumber the cores, or polling alone was in vain lately, each of them may need a
    /// turn on this core, so it is offered; not for a while if a thread that computes took it (N-31).
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
            let back = now();
            let (found, away) = (done(), back.saturating_sub(last));
            if self.is_interruption(back, away) {
                self.back_off(back, away, self.pauses());
                return found;
            }
            shared |= self.was_taken(away);
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

    /// Whether somebody computes who has kept the core for so long.
    #[inline]
    fn is_interruption(&self, now: Nanos, away: Nanos) -> bool {
        away > self.interrupted && !(self.crowded && self.is_connecting(now))
    }

    /// Whether a channel with a local peer came up lately.
    #[inline]
    pub(crate) fn is_connecting(&self, now: Nanos) -> bool {
        now < self.connecting_until.load(Ordering::Relaxed)
    }

    /// When the newest channel with a local peer came up, if there was one.
    #[inline]
    pub(crate) fn connected(&self, at: Option<Nanos>) {
        let until = at.map_or(0, |at| at.saturating_add(CONNECTING));
        if self.connecting_until.load(Ordering::Relaxed) != until {
            self.connecting_until.store(until, Ordering::Relaxed);
        }
    }

    /// Whether another thread ran while the core was offered for so long.
    #[inline]
    fn was_taken(&self, offered: Nanos) -> bool {
        let (offered, shortest) = (offered.min(Nanos::from(u32::MAX)) as u32, &self.shortest_offer);
        let so_far = shortest.load(Ordering::Relaxed);
        if offered < so_far {
            shortest.store(offered, Ordering::Relaxed);
            return false;
        }
        offered > (ALONE * so_far).clamp(ALONE_BOUNDS.0, ALONE_BOUNDS.1)
    }

    /// How long waits that offer the core keep to parking when it was taken away.
    fn pauses(&self) -> &'static Pauses {
        if self.crowded { &CROWDED_PAUSES } else { &PAUSES }
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

    /// How much of its own time a wait offers the core where ranks outnumber the cores.
    fn crowded_offers(&self, spin: Nanos) -> Nanos {
        let (offers, ranks) = CROWDED_OFFERS;
        spin.saturating_mul(offers * ranks) / self.per_core.max(ranks)
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

    /// The core was `away`: waits park for a while, for longer if that happened lately.
    #[cold]
    fn back_off(&self, now: Nanos, away: Nanos, pauses: &Pauses) {
        let before = self.pause.load(Ordering::Relaxed);
        let lately = now < self.park_until.load(Ordering::Relaxed) + pauses.apart;
        let doubled = if lately { 2 * before } else { 0 };
        let pause = doubled.max(away.saturating_mul(pauses.share)).clamp(pauses.least, pauses.most);
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

    /// Whether polling alone has been in vain lately, and offers of the core may help.
    fn is_vain(&self) -> bool {
        let vain = self.vain.load(Ordering::Relaxed);
        self.offers && vain >= VAIN && !vain.is_multiple_of(RETRY)
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
    /// Another thread took the core when it was offered in the last turn.
    taken: bool,
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
            (true, _) => (Stage::Spinning, CROWDED_SPIN.min(spin), backoff.crowded_offers(spin)),
            (false, true) => (Stage::Offering, 0, spin),
            (false, false) if backoff.offers => (Stage::Spinning, spin, (PROBES * OWN_TURN).min(spin)),
            (false, false) => (Stage::Spinning, spin, 0),
        };
        let (start, last, taken, turned) = (now, now, false, false);
        Spinner { policy, alone, spin, start, last, stage, taken, turned, offers, backoff }
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

    /// The core was offered after the last turn, and has come back; `now` is the time before the next poll.
    #[inline]
    pub(crate) fn offered(&mut self, now: Nanos) {
        self.taken = self.backoff.was_taken(now.saturating_sub(self.last));
        // Whatever comes now, polling alone was in vain.
        if self.taken && self.stage == Stage::Offering {
            self.stage = Stage::Sharing;
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
        if self.backoff.is_interruption(now, away) {
            let offers = self.policy == Waiting::SpinThenPark;
            self.backoff.back_off(now, away, if offers { self.backoff.pauses() } else { &PAUSES });
            self.stage = Stage::Parking;
        }
    }

    fn spin_then_park(&mut self, now: Nanos, away: Nanos) -> Turn {
        self.note_interruption(now, away);
        match self.stage {
            Stage::Parking | Stage::Woken => return Turn::Park,
            Stage::Spinning if now.saturating_sub(self.start) < self.alone => return Turn::Spin,
            Stage::Spinning => self.stage = Stage::Offering,
            Stage::Offering | Stage::Sharing if self.taken => {
                self.taken = false;
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
mod tests;
