//! Two nodes that send each other cookies and words.

use std::cell::RefCell;
use std::rc::Rc;

use tautline::memory::{Cookie, Failure, Refusal};
use tautline::{Endpoint, Error, Job, Remote, Short};

use super::join;

/// A node of two, and what the other one sent it.
pub struct Pair {
    pub ep: Endpoint,
    pub mail: Rc<RefCell<Vec<Vec<u8>>>>,
}

impl Pair {
    pub fn join(job: Job) -> Pair {
        let mail = Rc::new(RefCell::new(Vec::new()));
        let inbox = mail.clone();
        let builder = Endpoint::builder()
            .on_short("mail", move |m: Short<'_>| inbox.borrow_mut().push(m.data().to_vec()));
        Pair { ep: join(builder, job), mail }
    }

    pub fn other(&self) -> u32 {
        1 - self.ep.rank()
    }

    pub fn give(&self, cookie: &Cookie) {
        self.ep.send(self.other(), "mail", &cookie.to_bytes()).unwrap();
    }

    pub fn say(&self, text: &str) {
        self.ep.send(self.other(), "mail", text.as_bytes()).unwrap();
    }

    pub fn receive(&self) -> Vec<u8> {
        self.ep.run_until(|| !self.mail.borrow().is_empty()).unwrap();
        self.mail.borrow_mut().remove(0)
    }

    pub fn take_cookie(&self) -> Remote {
        let bytes = self.receive();
        self.ep.remote(&Cookie::from_bytes(bytes.as_slice().try_into().unwrap()))
    }

    /// Closes when both sides have come to the end.
    pub fn close(self) {
        self.say("over");
        self.receive();
        self.ep.close().unwrap();
    }
}

/// Why an operation was refused.
pub fn refused(result: Result<u64, Error>) -> Refusal {
    match result {
        Err(Error::Operation(Failure::Refused(why))) => why,
        other => panic!("not refused: {other:?}"),
    }
}
