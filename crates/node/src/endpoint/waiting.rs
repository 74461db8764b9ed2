//! Waiting for what comes: by the configured policy, or on a descriptor (N-5, N-6).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tautline_link::Nanos;

use super::Endpoint;
use crate::SendError;
use crate::lane::Lane;
use crate::wait::{PollActivity, Shared, Spinner, Turn};

/// Polls for each read of the clock where ranks outnumber the cores.
const CROWDED_SPINS: u32 = 2;
/// Pauses between two polls of a lane that other threads use.
const SHARED_PAUSE: u32 = 16;

impl Endpoint {
    /// Polls and waits, by the configured policy, until there may be something for the program to do (true)
    /// or `timeout` has passed (false). An error if the lane is closed meanwhile.
    pub fn wait(&self, timeout: Option<Duration>, wanted: WaitFor) -> Result<bool, SendError> {
        let signal = &self.shared.signal;
        let mut closed = false;
        let mut ready = |lane: &Lane| {
            // By another thread: the program knows of its own closing.
            closed = lane.port.closed;
            closed
                || lane.has_ready()
                || signal.load(Ordering::Acquire)
                || wanted.activity.is_some_and(|seen| lane.activity() != seen)
        };
        let waited = match wanted.memory {
            None => self.wait_until(timeout, |lane| ready(lane)),
            Some(seen) => self.wait_until(timeout, |lane| {
                if lane.memory.wants_time() {
                    lane.memory.set_time(self.now());
                }
                lane.poll_served();
                lane.memory.served() != seen || ready(lane)
            }),
        }?;
        if closed { Err(SendError::Closed) } else { Ok(waited) }
    }

    /// Waits until [`Endpoint::activity`] is no longer `seen` (true) or `timeout` has passed (false); frames
    /// that wait to be taken are no reason to return.
    pub fn wait_for_activity(&self, seen: u64, timeout: Option<Duration>) -> Result<bool, SendError> {
        self.wait_until(timeout, |lane| lane.port.closed || lane.activity() != seen)
    }

    /// As [`Endpoint::wait_for_activity`], whatever the configured policy: sleeps at once, and never spins.
    /// For threads that wait beside the one that drives the node. False if `timeout` has passed.
    pub fn sleep_until_activity(&self, seen: u64, timeout: Option<Duration>) -> Result<bool, SendError> {
        self.wait_by(crate::Waiting::Park, timeout, |lane| lane.activity() != seen)
    }

    /// Polls for `time`, by the configured policy, whatever arrives.
    pub fn poll_for(&self, time: Duration) -> Result<(), SendError> {
        self.wait_until(Some(time), |_| false).map(|_| ())
    }

    /// Forgets that [`Waker::wake`] was called. What its callers did before that call is seen after this one.
    #[inline]
    pub fn clear_signal(&self) {
        if self.shared.signal.load(Ordering::Acquire) {
            self.shared.signal.swap(false, Ordering::SeqCst);
        }
    }

    /// Polls and waits until `done` returns true (true) or `timeout` has passed (false). `done` is code of
    /// this crate: it runs under the owner word.
    pub(crate) fn wait_until(
        &self,
        timeout: Option<Duration>,
        done: impl FnMut(&mut Lane) -> bool,
    ) -> Result<bool, SendError> {
        self.wait_by(self.shared.config.waiting, timeout, done)
    }

    /// How often a program that waits polls before it reads the clock.
    #[inline]
    fn spins(&self, waiting: crate::Waiting, lane: &mut Lane) -> u32 {
        match waiting {
            crate::Waiting::SpinThenPark if self.shared.backoff.is_crowded() => CROWDED_SPINS,
            crate::Waiting::Park => 1,
            _ => lane.spins(),
        }
    }

    /// The same at the beginning of a wait.
    #[inline]
    pub(super) fn first_spins(&self, lane: &mut Lane) -> u32 {
        if self.shared.lane.is_shared() { 1 } else { self.spins(self.shared.config.waiting, lane) }
    }

    fn wait_by(
        &self,
        waiting: crate::Waiting,
        timeout: Option<Duration>,
        mut done: impl FnMut(&mut Lane) -> bool,
    ) -> Result<bool, SendError> {
        let config = &self.shared.config;
        let mut times: Option<(Option<Nanos>, Spinner<'_>)> = None;
        let mut parked = None;
        // The lane's activity before the last sleep.
        let mut asleep_since = None;
        loop {
            // Before `done` is called: what has woken another thread since, this one must not sleep through.
            let turn = self.shared.turns.current();
            let (now, seen) = {
                if !self.shared.fork.is_mine_unflagged() && !self.wake_driver() {
                    return Err(SendError::Forked);
                }
                // Other threads need the lane, too: it is held for one poll at a time.
                let shared = self.shared.lane.is_shared();
                let mut lane = self.shared.lock();
                // Polling shared memory costs less than reading the clock.
                let offering = times.as_ref().is_some_and(|(_, spinner)| spinner.is_offering());
                let spins = if shared || offering { 1 } else { self.spins(waiting, &mut lane) };
                for _ in 1..spins {
                    if done(&mut lane) {
                        return Ok(true);
                    }
                    if !lane.may_spin() {
                        break;
                    }
                    std::hint::spin_loop();
                }
                let now = self.shared.arrive(&mut lane);
                let found = done(&mut lane) || {
                    // A program that waits inside a batch may wait for an answer to what is in it.
                    lane.flush_batch(now);
                    lane.poll_deferred(now);
                    done(&mut lane)
                };
                if found {
                    if let Some((_, spinner)) = &mut times {
                        spinner.ended(now);
                    }
                    return Ok(true);
                }
                // It was not what the caller waits for, so nothing need wait for the caller.
                if !lane.port.dirty().is_empty() {
                    lane.service(now);
                }
                self.shared.backoff.connected(lane.local.connected_at);
                (now, lane.activity())
            };
            let (until, spinner) = times.get_or_insert_with(|| {
                let until =
                    timeout.map(|t| now.saturating_add(Nanos::try_from(t.as_nanos()).unwrap_or(Nanos::MAX)));
                (until, Spinner::new(waiting, config.spin, now, &self.shared.backoff))
            });
            if until.is_some_and(|at| now >= at) {
                spinner.ended(now);
                return Ok(false);
            }
            if asleep_since.take().is_some_and(|before| before != seen) {
                spinner.something_came(now);
            }
            match spinner.turn(now) {
                Turn::Spin if self.shared.lane.is_shared() => {
                    (0..SHARED_PAUSE).for_each(|_| std::hint::spin_loop());
                }
                Turn::Spin => std::hint::spin_loop(),
                Turn::Yield => {
                    std::thread::yield_now();
                    spinner.offered(self.now());
                }
                Turn::Park => {
                    parked.get_or_insert_with(|| Parked::new(&self.shared.polls));
                    self.shared.park((turn, seen), *until);
                    spinner.slept(self.now());
                    asleep_since = Some(seen);
                }
            }
        }
    }

    /// Prepares to sleep on the descriptor of [`AsFd`]: false if there is something to do first, or
    /// [`Endpoint::activity`] is no longer `blocked_since`. Look again after every wake-up; a wake-up for
    /// nothing is possible, a lost one is not (N-6). Any other call while the endpoint is armed makes the
    /// descriptor readable.
    pub fn arm(&self, blocked_since: Option<u64>) -> Result<bool, SendError> {
        if self.shared.is_armed() {
            self.disarm();
        }
        let (mut lane, now) = self.enter()?;
        if let Some(descriptors) = &self.shared.descriptors {
            descriptors.silence_all();
        }
        // Frames that make no slot ready may still make room to send, so they count, too.
        let came = std::mem::take(&mut lane.status.watchdog_polled) | (lane.poll(now) > 0);
        let moved = blocked_since.is_some_and(|seen| lane.activity() != seen);
        if came || moved || lane.has_ready() || !lane.announce_sleep(now) {
            return Ok(false);
        }
        lane.poll_all_soon();
        self.shared.renew(&mut lane);
        let deadline = lane.next_deadline().into_iter().chain(lane.look_again(now)).min();
        // Under the owner word: a thread that polls after this one counts it among the sleepers.
        lane.set_armed(true);
        self.shared.fork.set_flag(true);
        drop(lane);
        if let Some(descriptors) = &self.shared.descriptors
            && let Err(error) = descriptors.arm(deadline.map(|at| at.saturating_sub(now)))
        {
            tracing::warn!(%error, "cannot prepare to sleep");
            self.disarm();
            return Ok(false);
        }
        Ok(true)
    }

    /// Something that makes this endpoint look again, from any thread.
    pub fn waker(&self) -> Waker {
        Waker(self.shared.clone())
    }
}

/// The program waits inside the library, and looks after the network itself. The watchdog is woken only when
/// it leaves: not for every heartbeat that is answered meanwhile.
struct Parked<'a>(&'a PollActivity);

impl Parked<'_> {
    fn new(polls: &PollActivity) -> Parked<'_> {
        polls.park();
        Parked(polls)
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.unpark();
    }
}

impl AsFd for Endpoint {
    /// The one descriptor that becomes readable when something may have happened (after [`Endpoint::arm`]).
    ///
    /// # Panics
    /// On a simulated node, which has none.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.descriptors.as_ref().expect("a simulated node has no descriptor").all()
    }
}

/// What [`Endpoint::wait`] returns for, beside frames, events and [`Waker::wake`].
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitFor {
    /// [`Endpoint::activity`] is no longer this.
    pub activity: Option<u64>,
    /// [`Endpoint::memory_activity`] is no longer this. Whoever waits for it serves memory at once.
    pub memory: Option<u64>,
}

/// Makes an endpoint look again, from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Shared>);

impl Waker {
    /// As [`Waker::wake`], for the thread that drives the endpoint: nobody is woken unless the endpoint is
    /// armed.
    pub fn wake_if_armed(&self) {
        if self.0.is_armed() {
            self.wake();
        }
    }

    /// Wakes whoever waits in [`Endpoint::wait`] or on the endpoint's descriptor.
    pub fn wake(&self) {
        self.0.signal.store(true, Ordering::SeqCst);
        self.0.ring();
    }
}
