//! Handlers, and what has arrived for them.

use std::cell::RefCell;

use tautline_node::{Delivery, FrameBatch};

use super::handlers::Registered;
use super::open_messages::OpenMessages;

/// The receiving side of an endpoint. Handlers run from [`crate::core::Extract::extract`] alone.
pub(crate) struct Inbox {
    /// Names of the handlers, in the same order.
    pub(super) names: Vec<String>,
    pub(super) handlers: Vec<Registered>,
    pub(super) open: RefCell<OpenMessages>,
    /// Reused by every extraction. A handler that reads in place holds it while it runs.
    pub(super) delivery: RefCell<Option<Box<Delivery>>>,
    /// Reused by every extraction for frames from peers on this host.
    pub(super) frames: RefCell<FrameBatch>,
}

impl Inbox {
    /// `handlers` with their names.
    pub(crate) fn new(handlers: Vec<(String, Registered)>) -> Inbox {
        let (names, handlers) = handlers.into_iter().unzip();
        Inbox {
            names,
            handlers,
            open: RefCell::default(),
            delivery: RefCell::new(Some(Box::default())),
            frames: RefCell::default(),
        }
    }
}
