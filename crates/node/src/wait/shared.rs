//! What the threads of a node share: its lane, and how they sleep and wake.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tautline_link::Nanos;
use tautline_mem::{ForkGuard, Owned, Turns};

use super::activity::PollActivity;
use super::descriptors::Descriptors;
use super::spin::SpinBackoff;
use crate::lane::Lane;
use crate::{Clock, Config, Rank};

/// The longest sleep of the watchdog.
const LONGEST_SLEEP: Nanos = 100_000_000;
/// The longest time that a polling program may leave its device unpolled.
const DEVICE_NEGLECTED: Nanos = 10_000_000;

/// The present owner of the lane.
pub(crate) type Guard<'a> = tautline_mem::Owner<'a, Lane>;

/// A lane, and what its threads and its watchdog share. No cache line holds parts of two lanes; processors
/// fetch lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Shared {
    pub(crate) lane: Owned<Lane>,
    pub(crate) clock: Clock,
    pub(crate) polls: PollActivity,
    /// Flagged while the program may sleep on the descriptor.
    pub(crate) fork: ForkGuard,
    pub(crate) descriptors: Option<Descriptors>,
    /// Which of the threads that wait sleeps on the descriptors.
    pub(crate) turns: Turns,
    /// [`crate::Waker::wake`] was called, and nobody has waited since.
    pub(crate) signal: AtomicBool,
    pub(crate) backoff: SpinBackoff,
    pub(crate) config: Config,
    pub(crate) rank: Rank,
    /// The number of the lane.
    pub(crate) number: Rank,
    pub(crate) size: u32,
}

impl Shared {
    /// Takes the owner word. Its holders run no code of the program, so the wait is short.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_> {
        self.lane.own(Lane::enter_thread)
    }

    /// Takes the owner word for the watchdog, which leaves it to the program's threads who is favoured.
    fn lock_as_guest(&self) -> Guard<'_> {
        self.lane.own_as_guest()
    }

    /// Notes that the program polls, and returns the time. It is read under the owner word, so that it never
    /// runs backwards for the links.
    #[inline]
    pub(crate) fn arrive(&self, lane: &mut Lane) -> Nanos {
        let now = self.clock.now();
        self.polls.polled();
        if lane.local.poll.asleep {
            // The program computed, and its peers were told to ring.
            lane.wake_up();
        }
        if now >= lane.port.next_deadline && lane.is_behind(now) {
            lane.catch_up(now);
        }
        now
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.fork.is_flagged()
    }

    /// Polls in the program's place.
    pub(crate) fn poll_as_watchdog(&self) {
        let ready = {
            let mut lane = self.lock_as_guest();
            lane.counters.watchdog_polls += 1;
            if lane.local.poll.asleep {
                lane.wake_up();
            }
            let before = lane.activity();
            lane.status.watchdog_polls = true;
            let received = lane.poll(self.clock.now());
            lane.status.watchdog_polls = false;
            lane.inbox.hold();
            lane.status.watchdog_polled |= received > 0;
            received > 0 || lane.activity() != before || lane.has_ready()
        };
        if ready {
            // The program may be about to sleep, and what was received here will not wake it: a slot to take,
            // or an acknowledgement that makes room to send.
            self.ring();
        }
    }

    /// A program that polls little but the rings of its local peers polls the device next, so that remote
    /// peers can connect (N-18).
    pub(crate) fn poll_device_soon(&self) {
        let mut lane = self.lock_as_guest();
        if self.clock.now().saturating_sub(lane.status.received_at) >= DEVICE_NEGLECTED {
            lane.local.poll.poll_device_next();
        }
    }

    /// How long the watchdog may sleep until it polls again in the program's place, if nothing happens.
    pub(crate) fn watchdog_sleep(&self) -> Nanos {
        let mut lane = self.lock_as_guest();
        let now = self.clock.now();
        if lane.has_own_frames() || lane.serves_local() && !lane.announce_computing(now) {
            return 0;
        }
        let until = lane.look_again(now).into_iter().chain([now + LONGEST_SLEEP]).min();
        self.time_left(&mut lane, until).unwrap_or(LONGEST_SLEEP)
    }

    /// Wakes the program, from any thread.
    pub(crate) fn ring(&self) {
        // A forked child shares the doorbell with its parent and must not ring it.
        if let Some(descriptors) = self.descriptors.as_ref().filter(|_| self.fork.is_mine()) {
            descriptors.ring();
            if self.is_armed() {
                descriptors.ring_driver();
            }
        }
    }

    /// Wakes the program that sleeps on the descriptor of an event loop of its own.
    pub(crate) fn ring_driver(&self) {
        if let Some(descriptors) = self.descriptors.as_ref().filter(|_| self.fork.is_mine()) {
            descriptors.ring_driver();
        }
    }

    /// Before a sleep: watches the descriptors that the device and the listener have now.
    pub(crate) fn renew(&self, lane: &mut Lane) {
        let changed = std::mem::take(&mut lane.status.descriptors_changed);
        let Some(descriptors) = self.descriptors.as_ref().filter(|_| changed) else { return };
        let local = lane.local.discovery.as_ref().map_or(Ok(()), |found| descriptors.add_local(found.fd()));
        if let Err(error) = local.and_then(|()| descriptors.renew(&*lane.port.device)) {
            tracing::warn!(%error, "cannot watch the device or the listener");
            lane.status.descriptors_changed = true;
        }
    }

    /// Returns the time until the lane's next deadline, or `until`, whichever is first.
    fn time_left(&self, lane: &mut Lane, until: Option<Nanos>) -> Option<Nanos> {
        self.renew(lane);
        let deadline = lane.next_deadline();
        let at = deadline.into_iter().chain(until).min()?;
        Some(at.saturating_sub(self.clock.now()))
    }

    /// Sleeps until something may have happened since the turn was `turn` and the lane's activity `seen`. Of
    /// several threads one sleeps on the descriptors, and wakes the others when it wakes (N-19).
    pub(crate) fn park(&self, (turn, seen): (u64, u64), until: Option<Nanos>) {
        let Some(descriptors) = &self.descriptors else { return };
        let mut lane = self.lock();
        lane.counters.sleeps += 1;
        let now = self.clock.now();
        if lane.activity() != seen || !lane.announce_sleep(now) {
            return;
        }
        let until = until.into_iter().chain(lane.look_again(now)).min();
        let left = self.time_left(&mut lane, until);
        lane.status.sleepers += 1;
        drop(lane);
        self.turns.wait(turn, left.map(Duration::from_nanos), || {
            if descriptors.sleep(left) {
                descriptors.silence();
            }
            // Here, before the turn ends: a ring that another thread took would not wake the one that it was
            // for.
            self.lock().take_rings();
        });
        let mut lane = self.lock();
        lane.status.sleepers -= 1;
        lane.announce_wake();
        lane.poll_all_soon();
    }
}
