//! Waits for the memory that members of a group share (G-18, G-19): the lane looks at it whenever it polls,
//! and says there that it sleeps.

use std::sync::Arc;

use tautline_link::Nanos;
use tautline_mem::{Awaited, GroupMemory};

/// A member that sleeps looks at the memory again after so long, in case that another process has
/// overwritten what would have woken it.
const LOOK_AGAIN: Nanos = 100_000_000;

/// A member that never has to wait polls its lane all the same: in every so many operations it looks at the
/// clock, and polls if it has not done so for this long.
const CLOCK_EVERY: u32 = 8;
pub(crate) const POLL_AFTER: Nanos = 100_000;

/// A wait, until it is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupWaitId {
    place: u32,
    /// Places are used again.
    serial: u32,
}

#[derive(Debug)]
struct Wait {
    memory: Arc<GroupMemory>,
    awaited: Awaited,
    serial: u32,
    done: bool,
}

/// The waits of a lane.
#[derive(Debug, Default)]
pub(crate) struct GroupWaits {
    waits: Vec<Option<Wait>>,
    /// Waits that are not done.
    pending: usize,
    serial: u32,
    /// Changes whenever a wait is done.
    activity: u64,
    /// Changes whenever a wait that is not done is forgotten, and when a thread has started a collective.
    changes: u64,
    /// Members were told that this lane sleeps.
    asleep: bool,
    /// Operations that members of this lane have entered.
    entered: u32,
}

impl GroupWaits {
    /// Waits for something.
    pub(crate) fn add(&mut self, memory: Arc<GroupMemory>, awaited: Awaited) -> GroupWaitId {
        self.serial = self.serial.wrapping_add(1);
        let wait = Wait { memory, awaited, serial: self.serial, done: false };
        let place = self.waits.iter().position(Option::is_none).unwrap_or(self.waits.len());
        if place == self.waits.len() {
            self.waits.push(None);
        }
        self.waits[place] = Some(wait);
        self.pending += 1;
        GroupWaitId { place: place as u32, serial: self.serial }
    }

    /// Counts an operation. Returns whether to look at the clock in it.
    #[inline]
    pub(crate) fn count_entry(&mut self) -> bool {
        self.entered = self.entered.wrapping_add(1);
        self.entered.is_multiple_of(CLOCK_EVERY)
    }

    /// Forgets a wait.
    pub(crate) fn remove(&mut self, id: GroupWaitId) {
        let place = self.waits.get_mut(id.place as usize);
        let wait = place.and_then(|place| place.take_if(|wait| wait.serial == id.serial));
        if wait.is_some_and(|wait| !wait.done) {
            self.pending -= 1;
            // Another thread may sleep until it is done.
            self.changes += 1;
        }
    }

    /// A thread has started a collective, which threads that wait are to advance.
    pub(crate) fn note_started(&mut self) {
        self.changes += 1;
    }

    /// Whether a wait is done. One that was forgotten is.
    pub(crate) fn is_done(&self, id: GroupWaitId) -> bool {
        let wait = self.waits.get(id.place as usize).and_then(Option::as_ref);
        let wait = wait.filter(|wait| wait.serial == id.serial);
        wait.is_none_or(|wait| wait.done || wait.memory.is_done(wait.awaited))
    }

    /// Looks at the memory of all waits that are not done. Returns whether one of them is now.
    #[inline(always)]
    pub(crate) fn poll(&mut self) -> bool {
        self.pending > 0 && self.poll_pending()
    }

    #[inline(never)]
    fn poll_pending(&mut self) -> bool {
        let before = self.activity;
        for wait in self.waits.iter_mut().flatten() {
            if !wait.done && wait.memory.is_done(wait.awaited) {
                wait.done = true;
                self.pending -= 1;
                self.activity += 1;
            }
        }
        self.activity != before
    }

    /// Changes whenever a wait is done.
    #[inline]
    pub(crate) fn activity(&self) -> u64 {
        self.activity
    }

    /// Changes whenever a wait that is not done is forgotten, and when a thread has started a collective.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Tells the members of all groups that this lane sleeps; then they are looked at once more. Returns
    /// whether a wait is done, so that the lane must not sleep.
    pub(crate) fn announce_sleep(&mut self) -> bool {
        if self.pending == 0 {
            return false;
        }
        let mut overwritten = false;
        for wait in self.waits.iter_mut().flatten().filter(|wait| !wait.done) {
            wait.memory.announce_sleep(wait.awaited);
            if wait.memory.is_overwritten(wait.awaited) {
                wait.done = true;
                self.pending -= 1;
                self.activity += 1;
                overwritten = true;
            }
        }
        self.asleep = true;
        self.poll() || overwritten
    }

    /// Tells them that it is awake.
    #[inline]
    pub(crate) fn announce_wake(&mut self) {
        if std::mem::take(&mut self.asleep) {
            self.waits.iter().flatten().for_each(|wait| wait.memory.announce_wake());
        }
    }

    /// When a lane that sleeps looks at the memory again.
    pub(crate) fn look_again(&self, now: Nanos) -> Option<Nanos> {
        (self.pending > 0).then_some(now + LOOK_AGAIN)
    }
}

#[cfg(test)]
mod tests {
    use tautline_mem::Asleep;

    use super::*;

    fn pair() -> [Arc<GroupMemory>; 2] {
        let first = GroupMemory::create(2, &[1; 16]).unwrap();
        let fd = first.fd().try_clone_to_owned().unwrap();
        [first, GroupMemory::attach(fd, (1, 2), &[1; 16]).unwrap()].map(Arc::new)
    }

    /// G-19: a wait is done once its condition holds, counts as activity once, and may be forgotten at any
    /// time; a forgotten one is done.
    #[test]
    fn waits_end_once() {
        let [a, b] = pair();
        let mut waits = GroupWaits::default();
        a.enter(0, 1);
        let first = waits.add(a.clone(), Awaited::Entered(0));
        let second = waits.add(a.clone(), Awaited::Turn(1));
        assert!(!waits.poll() && !waits.is_done(first) && waits.look_again(5).is_some());
        b.enter(0, 1);
        assert!(waits.is_done(first), "before any poll");
        assert!(waits.poll() && !waits.poll());
        assert_eq!(waits.activity(), 1);
        waits.remove(second);
        assert_eq!((waits.activity(), waits.changes()), (1, 1), "whoever waits for it looks again");
        assert!(waits.is_done(second) && waits.look_again(5).is_none());
        waits.remove(first);
        let third = waits.add(a.clone(), Awaited::Turn(1));
        assert!(!waits.is_done(third) && waits.is_done(first), "the place is used again");
        waits.remove(first);
        assert!(!waits.is_done(third));
    }

    /// G-18: a lane that sleeps says so in the memory of its groups, unless a wait is done by then.
    #[test]
    fn sleep_is_announced() {
        let [a, b] = pair();
        let mut waits = GroupWaits::default();
        assert!(!waits.announce_sleep(), "there is nothing to wait for");
        a.enter(0, 1);
        let wait = waits.add(a.clone(), Awaited::Entered(0));
        assert!(!waits.announce_sleep());
        assert_eq!(b.asleep(Asleep::ForAll), 1);
        waits.announce_wake();
        assert_eq!(b.asleep(Asleep::ForAll), 0);
        b.enter(0, 1);
        assert!(waits.announce_sleep(), "it must not sleep");
        waits.announce_wake();
        waits.remove(wait);
        assert!(!waits.announce_sleep());
        assert_eq!(b.asleep(Asleep::ForAll), 0);
    }
}
