//! The notices that requesters send, and their owner must get once each.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use tautline::Cookie;

/// Where a notice points to: the first byte, and how many there are.
type Place = (u64, u64);

/// The cookie that a notice was sent with, and its value.
type Sent = ([u8; Cookie::LEN], u64);

/// Notices that their owner has not got yet.
#[derive(Clone, Default)]
pub(super) struct Notices(Rc<RefCell<HashMap<Sent, Place>>>);

impl Notices {
    /// A notice is about to be sent.
    pub(super) fn send(&self, cookie: &Cookie, value: u64, place: Place) {
        self.0.borrow_mut().insert((cookie.to_bytes(), value), place);
    }

    /// The owner has got a notice for the region with this cookie.
    pub(super) fn receive(&self, cookie: &Cookie, value: u64, place: Place) -> Result<(), String> {
        match self.0.borrow_mut().remove(&(cookie.to_bytes(), value)) {
            Some(sent) if sent == place => Ok(()),
            Some(sent) => Err(format!("notice {value} is for {place:?}, and should be for {sent:?}")),
            None => Err(format!("notice {value} came twice, or was never sent")),
        }
    }

    /// All notices of a region have completed: none may be missing.
    pub(super) fn finish(&self, cookie: &Cookie) -> Result<(), String> {
        let waiting = self.0.borrow();
        match waiting.keys().find(|(region, _)| *region == cookie.to_bytes()) {
            Some((_, value)) => Err(format!("notice {value} never came")),
            None => Ok(()),
        }
    }
}
