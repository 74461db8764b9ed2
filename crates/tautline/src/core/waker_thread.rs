//! A thread that waits for the network in the place of futures on other threads.
//!
//! It starts with the first future that waits, sleeps as any thread does that waits on the node (N-19), and
//! ends when nobody has waited for a while. So a future is woken by whoever polls and finds something: the
//! endpoint's thread, the watchdog, another sender, or this thread itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

use tautline_node::Endpoint;

use crate::Undelivered;

/// How long the thread stays when nobody waits.
const LINGER: Duration = Duration::from_secs(1);

/// Something that has still to be sent.
pub(super) struct Job {
    /// Called until it returns true.
    pub(super) run: Box<dyn FnMut(&Endpoint) -> bool + Send>,
    /// What it sends; none if nobody misses it.
    pub(super) sends: Option<Undelivered>,
}

/// Those who wait for activity of the node.
#[derive(Default)]
pub(super) struct WakerThread {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    wakers: BTreeMap<u64, Waker>,
    jobs: Vec<Job>,
    /// Jobs that are being run.
    running_jobs: usize,
    /// The least activity that anybody of them has seen.
    seen: Option<u64>,
    /// The last number given to an [`Entry`].
    last: u64,
    thread: Option<JoinHandle<()>>,
    running: bool,
    /// The endpoint's thread, or this task, waits for the last job.
    closing: bool,
    closer: Option<Waker>,
    closed: bool,
}

/// The place of a future in the list. Zero: it is not there.
#[derive(Default)]
pub(super) struct Entry(u64);

impl State {
    fn is_empty(&self) -> bool {
        self.wakers.is_empty() && self.jobs.is_empty()
    }

    fn note(&mut self, seen: u64) {
        self.seen = Some(self.seen.map_or(seen, |least| least.min(seen)));
    }
}

impl WakerThread {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes `waker` when the node's activity is no longer `seen`. False if it is not any more: try again.
    pub(super) fn register(
        self: &Arc<WakerThread>,
        entry: &mut Entry,
        seen: u64,
        waker: &Waker,
        node: &Endpoint,
    ) -> bool {
        {
            let mut state = self.lock();
            if state.closed {
                return false;
            }
            if entry.0 == 0 {
                state.last += 1;
                entry.0 = state.last;
            }
            state.wakers.insert(entry.0, waker.clone());
            state.note(seen);
            self.start(&mut state, node);
        }
        // The thread may wait for a later activity than `seen`. It does not if this is still the present one.
        if node.activity().is_ok_and(|now| now == seen) {
            return true;
        }
        self.remove(entry);
        false
    }

    /// Leaves the list.
    pub(super) fn remove(&self, entry: &Entry) {
        if entry.0 != 0 {
            self.lock().wakers.remove(&entry.0);
        }
    }

    /// Calls `job`, which blocked when the activity was `seen`, until it returns true.
    pub(super) fn post(self: &Arc<WakerThread>, seen: u64, job: Job, node: &Endpoint) {
        let mut state = self.lock();
        if !state.closed {
            state.jobs.push(job);
            state.note(seen);
            self.start(&mut state, node);
            drop(state);
            // The thread may wait for a later activity than `seen`; see above.
            if node.activity().is_ok_and(|now| now != seen) {
                self.run_due(node);
            }
        }
    }

    /// Starts the thread, or wakes it.
    fn start(self: &Arc<WakerThread>, state: &mut State, node: &Endpoint) {
        if state.running {
            return self.changed.notify_one();
        }
        let (this, node) = (self.clone(), node.clone());
        let thread = std::thread::Builder::new().name("tautline-handles".into());
        match thread.spawn(move || this.run(&node)) {
            Ok(thread) => (state.thread, state.running) = (Some(thread), true),
            // Without the thread, everybody tries again at once.
            Err(_) => std::mem::take(&mut state.wakers).into_values().for_each(Waker::wake),
        }
    }

    fn run(self: &Arc<WakerThread>, node: &Endpoint) {
        while let Some(seen) = self.next() {
            if node.sleep_until_activity(seen, None).is_err() {
                return;
            }
            self.run_due(node);
        }
    }

    /// Waits until somebody waits, and returns the activity that they have seen; none if the thread is to
    /// end.
    fn next(&self) -> Option<u64> {
        let state = self.lock();
        let idle = |state: &mut State| state.is_empty() && !state.closed;
        let waited = self.changed.wait_timeout_while(state, LINGER, idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.is_empty() || state.closed {
            state.running = false;
            return None;
        }
        Some(state.seen.unwrap_or(u64::MAX))
    }

    /// Wakes everybody, and runs all jobs.
    fn run_due(self: &Arc<WakerThread>, node: &Endpoint) {
        let (wakers, mut jobs) = {
            let mut state = self.lock();
            state.seen = None;
            state.running_jobs += state.jobs.len();
            (std::mem::take(&mut state.wakers), std::mem::take(&mut state.jobs))
        };
        wakers.into_values().for_each(Waker::wake);
        if jobs.is_empty() {
            return;
        }
        // Read before the attempts: later activity is reason to try again.
        let (seen, all) = (node.activity(), jobs.len());
        jobs.retain_mut(|job| seen.is_ok() && !(job.run)(node));
        let mut state = self.lock();
        state.running_jobs -= all;
        if state.closing {
            self.changed.notify_all();
            node.waker().wake();
            state.closer.take().into_iter().for_each(Waker::wake);
        }
        let Ok(seen) = seen else { return };
        if !jobs.is_empty() && !state.closed {
            jobs.append(&mut state.jobs);
            state.jobs = jobs;
            state.note(seen);
            // Another thread may have run the jobs, and this one found none and ended.
            self.start(&mut state, node);
        }
    }

    /// Whether any job is not done.
    pub(super) fn has_jobs(&self) -> bool {
        let state = self.lock();
        !state.jobs.is_empty() || state.running_jobs > 0
    }

    /// From now on the end of a job wakes the endpoint's thread, and `closer`.
    pub(super) fn set_closing(&self, closer: Option<&Waker>) {
        let mut state = self.lock();
        (state.closing, state.closer) = (true, closer.cloned());
    }

    /// The node is about to be closed, which is activity: nobody waits from now on. Returns what has not been
    /// sent.
    pub(super) fn set_closed(&self) -> Vec<Undelivered> {
        let mut state = self.lock();
        state.closing = true;
        // Jobs never wait.
        let running = |state: &mut State| state.running_jobs > 0;
        let mut state = self.changed.wait_while(state, running).unwrap_or_else(PoisonError::into_inner);
        state.closed = true;
        let mut unsent = Vec::new();
        state.jobs.iter().filter_map(|job| job.sends.clone()).for_each(|it| it.merge_into(&mut unsent));
        unsent
    }

    /// The node is closed: wakes everybody, and ends the thread.
    pub(super) fn end(&self) {
        let (wakers, thread) = {
            let mut state = self.lock();
            state.closed = true;
            state.jobs.clear();
            (std::mem::take(&mut state.wakers), state.thread.take())
        };
        self.changed.notify_one();
        wakers.into_values().for_each(Waker::wake);
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}
