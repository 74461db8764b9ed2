//! What the threads of a node share: its interface, and how they sleep and wake.

use std::sync::atomic::{AtomicBool, Ordering};

use tautline_link::Nanos;
use tautline_mem::{ForkGuard, Owned};

use crate::descriptors::Descriptors;
use crate::interface::Interface;
use crate::presence::Presence;
use crate::wait::Manners;
use crate::{Clock, Config, Rank};

/// How long the watchdog sleeps at most.
const LONGEST_SLEEP: Nanos = 100_000_000;
/// As above, while peers on this host may reach for memory: nobody rings for a program that computes.
const NEAR_SERVICE: Nanos = 1_000_000;

/// Whoever may touch the interface now.
pub(crate) type Guard<'a> = tautline_mem::Owner<'a, Interface>;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) interface: Owned<Interface>,
    pub(crate) clock: Clock,
    pub(crate) presence: Presence,
    pub(crate) fork: ForkGuard,
    pub(crate) descriptors: Option<Descriptors>,
    pub(crate) armed: AtomicBool,
    /// [`crate::Waker::wake`] was called, and nobody has waited since.
    pub(crate) signal: AtomicBool,
    pub(crate) manners: Manners,
    pub(crate) config: Config,
    pub(crate) rank: Rank,
    pub(crate) size: u32,
}

impl Shared {
    /// Becomes the interface's owner. Nothing of the program's runs meanwhile, so the wait is short.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_> {
        self.interface.own()
    }

    /// The program is here: the time, read under the lock, so that it never runs backwards for the links.
    #[inline]
    pub(crate) fn arrive(&self, interface: &mut Interface) -> Nanos {
        let now = self.clock.now();
        self.presence.polled();
        if now >= interface.next_deadline && interface.is_deaf(now) {
            interface.catch_up(now);
        }
        now
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// One poll on the program's behalf.
    pub(crate) fn stand_in_poll(&self) {
        let ready = {
            let mut interface = self.lock();
            interface.counters.watchdog_polls += 1;
            let before = interface.activity;
            interface.absent = true;
            let received = interface.poll(self.clock.now());
            interface.absent = false;
            interface.hold_in_place();
            interface.stood_in |= received > 0;
            received > 0 || interface.activity != before || interface.has_ready()
        };
        if ready {
            // The program may be on its way to sleep, and what woke us will not wake it: be it a slot to take, or an
            // acknowledgement that makes room to send.
            self.ring();
        }
    }

    /// Sleeps until a frame comes or a timer is due.
    pub(crate) fn sleep_on_device(&self) {
        let Some(descriptors) = &self.descriptors else { return };
        let most = if self.lock().serves_near() { NEAR_SERVICE } else { LONGEST_SLEEP };
        descriptors.sleep_on_device(self.time_left(Some(self.clock.now() + most)));
    }

    /// Makes the program look again, from whatever thread.
    pub(crate) fn ring(&self) {
        // A forked child shares the bell with its parent, and has nothing to tell it.
        if let Some(descriptors) = self.descriptors.as_ref().filter(|_| self.fork.is_mine()) {
            descriptors.ring();
        }
    }

    /// Before a sleep: what wakes may have changed.
    pub(crate) fn renew(&self, interface: &mut Interface) {
        if let Some(descriptors) = self.descriptors.as_ref().filter(|_| interface.other_fds)
            && let Err(error) = descriptors.renew(&*interface.device)
        {
            tracing::warn!(%error, "cannot watch the device");
        } else {
            interface.other_fds = false;
        }
    }

    /// Time until the next deadline of the interface, or `until`.
    pub(crate) fn time_left(&self, until: Option<Nanos>) -> Option<Nanos> {
        let deadline = {
            let mut interface = self.lock();
            self.renew(&mut interface);
            interface.next_deadline()
        };
        let at = deadline.into_iter().chain(until).min()?;
        Some(at.saturating_sub(self.clock.now()))
    }

    /// Sleeps until something may have happened.
    pub(crate) fn park(&self, until: Option<Nanos>) {
        let Some(descriptors) = &self.descriptors else { return };
        let left = self.time_left(until);
        if !self.lock().say_asleep() {
            return;
        }
        if descriptors.sleep(left) {
            descriptors.silence();
        }
        let mut interface = self.lock();
        interface.say_awake();
        interface.look_soon();
    }
}
