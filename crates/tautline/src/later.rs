//! What finds no room is sent later: kept per peer, in order, and tried again whenever the endpoint extracts and something has happened. Nobody waits for it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use tautline_node::MessageId;

use crate::core::Core;
use crate::endpoint::Handler;
use crate::{Rank, Result, SendError};

/// Something to be tried until it says that it is over. It keeps no hold on the endpoint.
type Job = Box<dyn FnMut(&Rc<Core>) -> bool>;

/// What one endpoint has to send.
#[derive(Default)]
pub(crate) struct Outbox {
    jobs: RefCell<BTreeMap<Rank, VecDeque<Job>>>,
    /// There are some: looked at in every extraction.
    any: Cell<bool>,
}

impl Outbox {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.get()
    }

    /// Tries all that waits, each peer's in order.
    #[cold]
    pub(crate) fn run(&self, core: &Rc<Core>) {
        let mut jobs = self.jobs.borrow_mut();
        // What happens from now on is reason to try again.
        match core.node.activity() {
            Ok(seen) => core.tried(seen),
            Err(_) => jobs.clear(),
        }
        jobs.retain(|_, queue| {
            while queue.front_mut().is_some_and(|job| job(core)) {
                queue.pop_front();
            }
            !queue.is_empty()
        });
        self.any.set(!jobs.is_empty());
    }
}

/// Does something for a peer as soon as it can be done, behind what waits already.
#[cold]
pub(crate) fn add(core: &Rc<Core>, peer: Rank, job: impl FnMut(&Rc<Core>) -> bool + 'static) {
    core.outbox.jobs.borrow_mut().entry(peer).or_default().push_back(Box::new(job));
    core.outbox.run(core);
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
    begun: Option<MessageId>,
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
                let len = self.bytes.len() as u64;
                *self.begun.insert(core.node.try_begin(self.peer, self.handler.0, len)?)
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

    /// Another handler is to get it, of which nothing has gone yet.
    pub(crate) fn redirect(&mut self, handler: Handler) {
        (self.handler, self.begun, self.sent) = (handler, None, 0);
    }

    /// Nobody wants it any more.
    pub(crate) fn give_up(&self, core: &Core) {
        if let Some(to) = self.begun {
            let _ = core.node.abort(to);
        }
    }
}
