//! What waits to be written to the launcher, in order, by a thread of its own.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::control::{self, ALIVE_EVERY, FromAgent};

/// Output that waits, at most: beyond it the processes wait.
const OUTPUT_MAX: usize = 1 << 20;

/// A queue of messages. Output is bounded; messages of the agent itself are few, and never wait.
#[derive(Default)]
pub struct Outbox {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<FromAgent>,
    output_bytes: usize,
    /// A message is being written.
    writing: bool,
    /// Nobody reads any more.
    broken: bool,
}

fn output_of(message: &FromAgent) -> usize {
    if let FromAgent::Output { bytes, .. } = message { bytes.len() } else { 0 }
}

impl Outbox {
    /// An outbox whose messages are written to `to`.
    pub fn start(mut to: impl Write + Send + 'static) -> Arc<Outbox> {
        let outbox = Arc::new(Outbox::default());
        let writer = outbox.clone();
        std::thread::spawn(move || {
            while let Some(message) = writer.next() {
                let written = control::write(&mut to, &message);
                writer.written(written.is_ok());
            }
        });
        outbox
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message.
    pub fn push(&self, message: FromAgent) {
        let mut queue = self.lock();
        queue.output_bytes += output_of(&message);
        queue.messages.push_back(message);
        self.changed.notify_all();
    }

    /// Queues output when there is room for it.
    pub fn push_bounded(&self, message: FromAgent) {
        let full = |queue: &mut Queue| queue.output_bytes >= OUTPUT_MAX && !queue.broken;
        drop(self.changed.wait_while(self.lock(), full));
        self.push(message);
    }

    /// The next message to write; one that says that this side is there, if there is no other for a while.
    fn next(&self) -> Option<FromAgent> {
        let idle = |queue: &mut Queue| queue.messages.is_empty() && !queue.broken;
        let waited = self.changed.wait_timeout_while(self.lock(), ALIVE_EVERY, idle);
        let mut queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        if queue.broken {
            return None;
        }
        queue.writing = true;
        let message = queue.messages.pop_front().unwrap_or(FromAgent::Alive);
        queue.output_bytes -= output_of(&message);
        Some(message)
    }

    fn written(&self, well: bool) {
        let mut queue = self.lock();
        queue.writing = false;
        queue.broken |= !well;
        self.changed.notify_all();
    }

    /// Waits until all messages are written, or nobody reads them, for at most `time`.
    pub fn finish(&self, time: Duration) {
        let until = Instant::now() + time;
        let busy = |queue: &mut Queue| (!queue.messages.is_empty() || queue.writing) && !queue.broken;
        drop(self.changed.wait_timeout_while(self.lock(), until - Instant::now(), busy));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(len: usize) -> FromAgent {
        FromAgent::Output { rank: 0, stream: control::Stream::Out, bytes: vec![7; len] }
    }

    #[test]
    fn messages_are_written_in_order() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let outbox = Outbox::start(writer);
        // More than the bound, so that some of it waits.
        let pushing = {
            let outbox = outbox.clone();
            std::thread::spawn(move || {
                (0..100).for_each(|_| outbox.push_bounded(output(32 << 10)));
                outbox.push(FromAgent::Done { left: Vec::new() });
            })
        };
        let mut bytes = 0;
        loop {
            match control::read(&mut reader).unwrap().unwrap() {
                FromAgent::Done { .. } => break,
                message => bytes += output_of(&message),
            }
        }
        pushing.join().unwrap();
        assert_eq!(bytes, 100 * (32 << 10));
        outbox.finish(Duration::from_secs(60));
    }

    #[test]
    fn a_reader_that_is_gone_holds_up_nobody() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let outbox = Outbox::start(writer);
        (0..100).for_each(|_| outbox.push_bounded(output(32 << 10)));
        outbox.finish(Duration::from_secs(60));
    }
}
