//! What finds no room is sent later: kept per peer, in order, and tried again whenever the endpoint extracts and something has happened. Nobody waits for it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::core::Core;
use crate::endpoint::Handler;
use crate::{Rank, Result, SendError};

/// Something to be tried until it says that it is over. It keeps no hold on the endpoint.
type Job = Box<dyn FnMut(&Rc<Core>) -> bool>;

/// What one endpoint has to send.
struct Outbox {
    core: Weak<Core>,
    jobs: RefCell<BTreeMap<Rank, VecDeque<Job>>>,
    /// The endpoint will call when it may be worth trying again.
    listed: Cell<bool>,
    waker: Waker,
}

thread_local! {
    /// Of all endpoints of this thread, by where they are; as long as an outbox points there, nothing else can be.
    static OUTBOXES: RefCell<HashMap<usize, Rc<Outbox>>> = RefCell::default();
}

struct Again(usize);

impl Wake for Again {
    fn wake(self: Arc<Self>) {
        let found = OUTBOXES.try_with(|all| all.borrow().get(&self.0).cloned());
        if let Ok(Some(outbox)) = found {
            outbox.listed.set(false);
            outbox.run();
        }
    }
}

impl Outbox {
    fn of(core: &Rc<Core>) -> Option<Rc<Outbox>> {
        let place = Rc::as_ptr(core) as usize;
        let find = |all: &RefCell<HashMap<usize, Rc<Outbox>>>| {
            let mut all = all.borrow_mut();
            // Those of endpoints that are no more go with the next that is asked for.
            all.retain(|_, outbox| outbox.core.strong_count() > 0);
            let make = || {
                Rc::new(Outbox {
                    core: Rc::downgrade(core),
                    jobs: RefCell::default(),
                    listed: Cell::new(false),
                    waker: Arc::new(Again(place)).into(),
                })
            };
            all.entry(place).or_insert_with(make).clone()
        };
        OUTBOXES.try_with(find).ok()
    }

    fn run(&self) {
        let Some(core) = self.core.upgrade() else { return };
        // What happens from now on is reason to try again.
        let Ok(seen) = core.node.with(|i| i.activity()) else { return self.jobs.borrow_mut().clear() };
        let mut jobs = self.jobs.borrow_mut();
        jobs.retain(|_, queue| {
            while queue.front_mut().is_some_and(|job| job(&core)) {
                queue.pop_front();
            }
            !queue.is_empty()
        });
        if !jobs.is_empty() {
            core.tried(seen);
            if !self.listed.replace(true) {
                core.blocked.borrow_mut().push(self.waker.clone());
            }
        }
    }
}

/// Does something for a peer as soon as it can be done, behind what waits already.
#[cold]
pub(crate) fn add(core: &Rc<Core>, peer: Rank, job: impl FnMut(&Rc<Core>) -> bool + 'static) {
    if let Some(outbox) = Outbox::of(core) {
        outbox.jobs.borrow_mut().entry(peer).or_default().push_back(Box::new(job));
        outbox.run();
    }
}

/// Whether something was done, well or not, and need not be tried again.
pub(crate) fn is_over<T>(result: &Result<T>) -> bool {
    !matches!(result, Err(error) if error.is_would_block())
}

/// A whole message of any length, as far as it has gone.
pub(crate) struct Parcel {
    peer: Rank,
    handler: Handler,
    bytes: Vec<u8>,
    begun: Option<(Rank, u32, u32)>,
    sent: usize,
}

impl Parcel {
    pub(crate) fn new(peer: Rank, handler: Handler, bytes: Vec<u8>) -> Parcel {
        Parcel { peer, handler, bytes, begun: None, sent: 0 }
    }

    /// Sends what there is room for; would block unless that is all.
    pub(crate) fn go_on(&mut self, core: &Core) -> Result<()> {
        let to = match self.begun {
            Some(to) => to,
            None if core.node.try_send(self.peer, self.handler.0, &self.bytes)? => return Ok(()),
            None => {
                let (life, message) =
                    core.node.try_begin(self.peer, self.handler.0, self.bytes.len() as u64)?;
                *self.begun.insert((self.peer, life, message))
            }
        };
        while self.sent < self.bytes.len() {
            match core.node.try_piece(to, self.sent as u64, &self.bytes[self.sent..])? {
                0 => return Err(SendError::WouldBlock.into()),
                added => self.sent += added,
            }
        }
        Ok(core.node.end(to)?)
    }

    /// Nobody wants it any more.
    pub(crate) fn give_up(&self, core: &Core) {
        if let Some(to) = self.begun {
            let _ = core.node.abort(to);
        }
    }
}
