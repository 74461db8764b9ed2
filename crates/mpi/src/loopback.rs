//! Messages of a process to itself: the fabric of a job of one rank.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::constants::{ERR_RANK, ERR_TRUNCATE, SUCCESS};
use crate::datatype::Message;
use crate::error::{Error, Result};
use crate::fabric::{Completion, Envelope, Extracted, Fabric, Mode, Pattern, Ticket};

/// A waiting thread looks again after this time: it may have to notice what no other thread tells it.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A message that no receive has matched.
struct Unexpected {
    envelope: Envelope,
    bytes: Vec<u8>,
    /// Of a synchronous send.
    sender: Option<Arc<Ticket>>,
}

struct Posted {
    pattern: Pattern,
    into: Message,
    ticket: Arc<Ticket>,
}

#[derive(Default)]
struct Queues {
    unexpected: VecDeque<Unexpected>,
    posted: VecDeque<Posted>,
    extracted: Vec<(u64, Unexpected)>,
    next_number: u64,
}

/// The fabric of a job of one rank.
#[derive(Default)]
pub struct Loopback {
    queues: Mutex<Queues>,
    changed: Condvar,
}

impl Loopback {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts a message into the memory of its receive, and completes both sides.
///
/// # Safety
///
/// The program does not use the memory of `into` meanwhile.
unsafe fn deliver(envelope: Envelope, bytes: &[u8], into: &Message, receiver: &Ticket) {
    // SAFETY: as promised by the caller.
    let taken = unsafe { into.unpack(0, bytes) };
    let error = if taken < bytes.len() { ERR_TRUNCATE } else { SUCCESS };
    let completion = Completion { envelope: Some(envelope), bytes: taken as u64, error, cancelled: false };
    receiver.complete(completion);
}

impl Fabric for Loopback {
    fn rank(&self) -> u32 {
        0
    }

    fn size(&self) -> u32 {
        1
    }

    unsafe fn send(&self, to: u32, envelope: Envelope, mode: Mode, data: Message) -> Result<Arc<Ticket>> {
        if to != 0 {
            return Err(Error::new(ERR_RANK, format!("a job of one has no rank {to}")));
        }
        let ticket = Arc::new(Ticket::default());
        // SAFETY: as promised by the caller.
        let bytes = unsafe { data.to_vec() };
        let mut queues = self.queues();
        match queues.posted.iter().position(|posted| posted.pattern.matches(&envelope)) {
            Some(index) => {
                if let Some(posted) = queues.posted.remove(index) {
                    // SAFETY: the receive was posted with that promise.
                    unsafe { deliver(envelope, &bytes, &posted.into, &posted.ticket) };
                }
                ticket.complete(Completion::SENT);
            }
            None => {
                let sender = (mode == Mode::Synchronous).then(|| Arc::clone(&ticket));
                if sender.is_none() {
                    ticket.complete(Completion::SENT);
                }
                queues.unexpected.push_back(Unexpected { envelope, bytes, sender });
            }
        }
        self.changed.notify_all();
        Ok(ticket)
    }

    unsafe fn receive(&self, pattern: Pattern, into: Message) -> Result<Arc<Ticket>> {
        let ticket = Arc::new(Ticket::default());
        let mut queues = self.queues();
        let first = queues.unexpected.iter().position(|message| pattern.matches(&message.envelope));
        match first.and_then(|index| queues.unexpected.remove(index)) {
            Some(message) => {
                // SAFETY: as promised by the caller.
                unsafe { deliver(message.envelope, &message.bytes, &into, &ticket) };
                message.sender.iter().for_each(|sender| sender.complete(Completion::SENT));
                self.changed.notify_all();
            }
            None => queues.posted.push_back(Posted { pattern, into, ticket: Arc::clone(&ticket) }),
        }
        Ok(ticket)
    }

    fn probe(&self, pattern: Pattern) -> Option<(Envelope, u64)> {
        let queues = self.queues();
        let message = queues.unexpected.iter().find(|message| pattern.matches(&message.envelope))?;
        Some((message.envelope, message.bytes.len() as u64))
    }

    fn extract(&self, pattern: Pattern) -> Option<Extracted> {
        let mut queues = self.queues();
        let index = queues.unexpected.iter().position(|message| pattern.matches(&message.envelope))?;
        let message = queues.unexpected.remove(index)?;
        let number = queues.next_number;
        queues.next_number += 1;
        let extracted = Extracted { number, envelope: message.envelope, bytes: message.bytes.len() as u64 };
        queues.extracted.push((number, message));
        Some(extracted)
    }

    unsafe fn receive_extracted(&self, message: Extracted, into: Message) -> Result<Arc<Ticket>> {
        let ticket = Arc::new(Ticket::default());
        let mut queues = self.queues();
        if let Some(index) = queues.extracted.iter().position(|(number, _)| *number == message.number) {
            let (_, message) = queues.extracted.swap_remove(index);
            // SAFETY: as promised by the caller.
            unsafe { deliver(message.envelope, &message.bytes, &into, &ticket) };
            message.sender.iter().for_each(|sender| sender.complete(Completion::SENT));
            self.changed.notify_all();
        }
        Ok(ticket)
    }

    fn cancel(&self, ticket: &Arc<Ticket>) -> bool {
        let mut queues = self.queues();
        let before = queues.posted.len();
        queues.posted.retain(|posted| !Arc::ptr_eq(&posted.ticket, ticket));
        let found = queues.posted.len() < before;
        if found {
            ticket.complete(Completion { cancelled: true, ..Completion::SENT });
            self.changed.notify_all();
        }
        found
    }

    fn progress(&self) {}

    fn wait(&self) {
        let queues = self.queues();
        // Whoever changes something does so under the lock; the time bounds what happened before it was
        // taken.
        drop(self.changed.wait_timeout(queues, LOOK_AGAIN));
    }

    fn abort(&self, code: c_int) -> ! {
        std::process::exit(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constants::INT;
    use crate::datatype::Type;

    fn message(values: &mut [i32]) -> Message {
        let int = Arc::new(Type::predefined(INT).unwrap());
        Message::new(values.as_mut_ptr().cast(), values.len() as i64, &int).unwrap()
    }

    fn envelope(tag: c_int) -> Envelope {
        Envelope { context: 1, source: 0, tag }
    }

    const ANY: Pattern = Pattern { context: 1, source: None, tag: None };

    #[test]
    fn messages_are_matched_in_order_by_context_and_tag() {
        let fabric = Loopback::default();
        let (mut one, mut two, mut into) = ([1], [2], [0]);
        // SAFETY: the arrays outlive the operations.
        unsafe {
            fabric.send(0, envelope(7), Mode::Standard, message(&mut one)).unwrap();
            fabric.send(0, envelope(8), Mode::Standard, message(&mut two)).unwrap();
            assert_eq!(fabric.probe(Pattern { context: 2, ..ANY }), None);
            assert_eq!(fabric.probe(ANY), Some((envelope(7), 4)));
            let ticket = fabric.receive(Pattern { tag: Some(8), ..ANY }, message(&mut into)).unwrap();
            assert_eq!(ticket.done().unwrap().envelope, Some(envelope(8)));
            assert_eq!(into, [2]);
            fabric.receive(ANY, message(&mut into)).unwrap();
            assert_eq!(into, [1]);
        }
    }

    #[test]
    fn a_synchronous_send_waits_for_its_receive_and_a_posted_receive_can_be_cancelled() {
        let fabric = Loopback::default();
        let (mut one, mut into) = ([5, 6], [0]);
        // SAFETY: the arrays outlive the operations.
        unsafe {
            let sent = fabric.send(0, envelope(7), Mode::Synchronous, message(&mut one)).unwrap();
            assert_eq!(sent.done(), None);
            let received = fabric.receive(ANY, message(&mut into)).unwrap();
            assert_eq!(sent.done(), Some(Completion::SENT));
            let done = received.done().unwrap();
            assert_eq!((done.bytes, done.error, into), (4, ERR_TRUNCATE, [5]));
            assert!(!fabric.cancel(&received));
            let posted = fabric.receive(ANY, message(&mut into)).unwrap();
            assert!(fabric.cancel(&posted) && posted.done().unwrap().cancelled);
        }
    }
}
