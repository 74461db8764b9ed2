//! Frames that are held, and until when.

use std::collections::VecDeque;
use std::time::Duration;

/// The most polls that a frame waits for others to overtake it: there may be no others.
const WAIT_POLLS: u64 = 64;

/// The present position of one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Frames of this direction so far.
    pub(super) frames: u64,
    pub(super) polls: u64,
    pub(super) now: Duration,
}

/// When a held frame is released: when any of these is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    frames: u64,
    polls: u64,
    time: Duration,
}

impl Due {
    pub(super) const NOW: Due = Due { frames: 0, polls: 0, time: Duration::ZERO };
    const NEVER: Due = Due { frames: u64::MAX, polls: u64::MAX, time: Duration::MAX };

    pub(super) fn at_poll(polls: u64) -> Due {
        Due { polls, ..Due::NEVER }
    }

    pub(super) fn at_time(time: Duration) -> Due {
        Due { time, ..Due::NEVER }
    }

    /// Returns when `overtakers` later frames have passed.
    pub(super) fn after(moment: Moment, overtakers: u64) -> Due {
        Due { frames: moment.frames + overtakers, polls: moment.polls + WAIT_POLLS, ..Due::NEVER }
    }

    fn reached(self, moment: Moment) -> bool {
        self.frames <= moment.frames || self.polls <= moment.polls || self.time <= moment.now
    }
}

/// Held frames, oldest first.
#[derive(Debug)]
pub(super) struct Held<T>(VecDeque<(Due, T)>);

impl<T> Default for Held<T> {
    fn default() -> Held<T> {
        Held(VecDeque::new())
    }
}

impl<T> Held<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn hold(&mut self, due: Due, frame: T) {
        self.0.push_back((due, frame));
    }

    /// Takes the oldest frame that is due.
    pub(super) fn take_due(&mut self, moment: Moment) -> Option<T> {
        let index = self.0.iter().position(|(due, _)| due.reached(moment))?;
        self.0.remove(index).map(|(_, frame)| frame)
    }
}
