//! What found no room to be sent: kept per peer, in order, and tried again by every extraction before which
//! the network was active. Nobody waits for it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use tautline_node::MessageId;

use super::Core;
use crate::waiters::Waiters;
use crate::{Rank, Result, Undelivered};

/// Called until it returns true. It must not hold a clone of the endpoint.
type Run = Box<dyn FnMut(&Rc<Core>) -> bool>;

/// Something that has still to be sent.
struct Job {
    run: Run,
    /// Bytes of the message; none if nobody misses it.
    bytes: Option<u64>,
}

type Jobs = BTreeMap<Rank, VecDeque<Job>>;

/// What one endpoint has still to send.
#[derive(Default)]
pub(crate) struct Outbox {
    jobs: RefCell<Jobs>,
    /// There are jobs: every extraction reads this.
    any: Cell<bool>,
    /// Jobs are being run; those that they add wait for the next run.
    running: Cell<bool>,
    /// Wait until there are no jobs.
    pub(crate) emptied: Waiters,
    /// Window grants that found no slot.
    grants: RefCell<Vec<WindowGrant>>,
}

/// Permission for the sender of a message to send up to `limit` bytes of it (M-5).
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowGrant {
    pub(crate) message: MessageId,
    pub(crate) limit: u64,
}

impl Outbox {
    /// Whether there are no jobs.
    #[inline]
    pub(crate) fn has_no_jobs(&self) -> bool {
        !self.any.get()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.has_no_jobs() && self.grants.borrow().is_empty()
    }

    /// Runs all jobs, each peer's in order, up to the first that is not done.
    #[cold]
    pub(crate) fn run(&self, core: &Rc<Core>) {
        if self.running.replace(true) {
            return;
        }
        let mut jobs = self.jobs.take();
        // Read before the attempts: later activity is reason to try again.
        match core.node.activity() {
            Ok(seen) => core.waits.tried(seen),
            Err(_) => jobs.clear(),
        }
        jobs.retain(|_, queue| {
            while queue.front_mut().is_some_and(|job| (job.run)(core)) {
                queue.pop_front();
            }
            !queue.is_empty()
        });
        for (peer, mut added) in self.jobs.take() {
            jobs.entry(peer).or_default().append(&mut added);
        }
        self.any.set(!jobs.is_empty());
        *self.jobs.borrow_mut() = jobs;
        self.running.set(false);
        if self.has_no_jobs() {
            self.emptied.wake();
        }
    }

    /// Messages that have not been sent, or not whole.
    pub(super) fn unsent(&self) -> Vec<Undelivered> {
        let jobs = self.jobs.borrow();
        let mut unsent = Vec::new();
        for (peer, queue) in &*jobs {
            let (messages, bytes) = (queue.iter().filter_map(|job| job.bytes))
                .fold((0, 0), |(messages, bytes), more| (messages + 1, bytes + more));
            Undelivered::new(*peer, messages, bytes).merge_into(&mut unsent);
        }
        unsent
    }

    /// Drops all jobs: the endpoint is closed.
    pub(super) fn clear(&self) {
        // Taken out first: dropping a job may run code of the program.
        drop(self.jobs.take());
        self.any.set(false);
    }

    /// Whether jobs for a peer wait. Not while jobs run.
    pub(crate) fn has_jobs_for(&self, peer: Rank) -> bool {
        self.jobs.borrow().contains_key(&peer)
    }

    /// Keeps a window grant that found no slot.
    pub(crate) fn push_grant(&self, grant: WindowGrant) {
        self.grants.borrow_mut().push(grant);
    }

    /// Takes the window grants that found no slot.
    #[inline]
    pub(crate) fn take_grants(&self) -> Vec<WindowGrant> {
        if self.grants.borrow().is_empty() { Vec::new() } else { self.grants.take() }
    }
}

impl Core {
    /// Runs a job for a peer as soon as all jobs before it are done, and again until it returns true. `bytes`
    /// is the length of the message that it sends; none if nobody misses it.
    #[cold]
    pub(crate) fn post(
        self: &Rc<Core>,
        peer: Rank,
        bytes: Option<u64>,
        job: impl FnMut(&Rc<Core>) -> bool + 'static,
    ) {
        let job = Job { run: Box::new(job), bytes };
        self.outbox.jobs.borrow_mut().entry(peer).or_default().push_back(job);
        self.outbox.any.set(true);
        self.outbox.run(self);
    }
}

/// Whether an attempt succeeded or failed for good, and so need not be repeated.
pub(crate) fn is_settled<T>(result: &Result<T>) -> bool {
    !matches!(result, Err(error) if error.is_would_block())
}
