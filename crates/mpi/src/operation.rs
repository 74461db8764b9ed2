//! Operations under way: sends, receives, collectives and those of the program.

use std::sync::{Arc, Mutex};

use tautline::group::{Collective, Persistent};
use tautline::tags::{Receive, Request as _, RequestId, Send};

use crate::buffered::Buffered;
use crate::constants::{ERR_PROC_ABORTED, ERR_TRUNCATE, SUCCESS};
use crate::datatype::Message;
use crate::error::{Error, Result};
use crate::foreign::Status;
use crate::grequest::General;
use crate::network;
use crate::objects::{Communicator, lock};
use crate::trace;
use crate::waiting::Search;

/// How an operation ended.
#[derive(Clone, Debug)]
pub struct Completion {
    /// What the program is told; its error is that of `error`.
    pub status: Status,
    /// Why it failed, if it did.
    pub error: Option<Error>,
}

impl Completion {
    /// The end of an operation that received nothing: a send, or a collective.
    pub const EMPTY: Completion = Completion { status: Status::EMPTY, error: None };

    /// The end of an operation that succeeded.
    pub fn with(status: Status) -> Completion {
        Completion { status, error: None }
    }

    /// The end of an operation that failed.
    pub fn failed(error: Error, status: Status) -> Completion {
        Completion { status: Status { error: error.code, ..status }, error: Some(error) }
    }

    /// The result of an operation that has no status.
    pub fn of(result: Result<()>) -> Completion {
        match result {
            Ok(()) => Completion::EMPTY,
            Err(error) => Completion::failed(error, Status::EMPTY),
        }
    }
}

/// An operation under way.
pub enum Operation {
    /// A send.
    Send(Send),
    /// A receive.
    Receive(Receiving),
    /// A send and a receive that the program started together, as far as they have not ended, and the end of
    /// the receive.
    Both(Option<Send>, Option<Receiving>, Option<Completion>),
    /// A collective, and what is done with its output.
    Collective(Option<Collective>, Finish),
    /// A persistent collective that was started.
    Persistent(Arc<Mutex<Persistent>>, Finish),
    /// Waits for buffered sends, and why one of those that have ended failed.
    Flush(Vec<Arc<Buffered>>, Option<Error>),
    /// One that the program itself completes.
    General(Arc<General>),
    /// One that has ended.
    Ended(Completion),
}

impl Operation {
    /// How it ended, if it has; it must not be polled again then. `search` is for lost ranks that the
    /// operation does not wait for by name.
    pub fn poll(&mut self, search: Search) -> Option<Completion> {
        match self {
            Operation::Send(send) => poll_send(send),
            Operation::Receive(receiving) => receiving.poll(search),
            Operation::Both(send, receiving, received) => {
                if let Some(completion) = send.as_mut().and_then(poll_send) {
                    *send = None;
                    if completion.error.is_some() {
                        return Some(completion);
                    }
                }
                if let Some(completion) = receiving.as_mut().and_then(|receiving| receiving.poll(search)) {
                    *receiving = None;
                    // Nobody may be left to take what is sent.
                    if is_loss(completion.error.as_ref()) {
                        return Some(completion);
                    }
                    *received = Some(completion);
                }
                if send.is_none() { received.take() } else { None }
            }
            Operation::Collective(collective, finish) => {
                let output = collective.take_if(|collective| collective.test())?.wait();
                Some(finished(output, finish))
            }
            Operation::Persistent(persistent, finish) => {
                let mut persistent = lock(persistent);
                let output = if persistent.test() { persistent.wait() } else { return None };
                Some(finished(output, finish))
            }
            Operation::Flush(sends, failed) => {
                sends.retain(|send| {
                    let ended = send.poll();
                    *failed = failed.take().or_else(|| ended.clone()?.err());
                    ended.is_none()
                });
                sends.is_empty().then(|| Completion::of(failed.take().map_or(Ok(()), Err)))
            }
            Operation::General(general) => general.poll(),
            Operation::Ended(completion) => Some(completion.clone()),
        }
    }

    /// Adds what it waits for.
    pub fn waits_for(&self, ids: &mut Vec<RequestId>) {
        match self {
            Operation::Send(send) => ids.push(send.id()),
            Operation::Receive(receiving) => ids.push(receiving.receive.id()),
            Operation::Both(send, receiving, _) => {
                ids.extend(send.iter().map(tautline::tags::Request::id));
                ids.extend(receiving.iter().map(|receiving| receiving.receive.id()));
            }
            Operation::Flush(sends, _) => sends.iter().for_each(|send| send.waits_for(ids)),
            // What collectives wait for is known to those below.
            Operation::Collective(..) | Operation::Persistent(..) => {}
            Operation::General(_) | Operation::Ended(_) => {}
        }
    }

    /// Whether something is put into the program's memory when it ends.
    pub fn arrives(&self) -> bool {
        !matches!(
            self,
            Operation::Send(_) | Operation::Flush(..) | Operation::General(_) | Operation::Ended(_)
        )
    }

    /// `MPI_Cancel`: only receives that no message has matched, and operations of the program, are cancelled.
    pub fn cancel(&mut self) -> Result<()> {
        let Operation::Receive(_) = self else {
            return match self {
                Operation::General(general) => general.cancel(),
                _ => Ok(()),
            };
        };
        let cancelled = Completion::with(Status { cancelled: true, ..Status::EMPTY });
        if let Operation::Receive(receiving) = std::mem::replace(self, Operation::Ended(cancelled)) {
            let Receiving { receive, comm, any, into, room } = receiving;
            if let Err(receive) = receive.cancel() {
                *self = Operation::Receive(Receiving { receive, comm, any, into, room });
            }
        }
        Ok(())
    }
}

/// Whether an operation failed because a rank is gone.
pub fn is_loss(error: Option<&Error>) -> bool {
    error.is_some_and(|error| error.code == ERR_PROC_ABORTED)
}

/// What is done with the output of a collective.
pub type Finish = Arc<dyn Fn(&[u8]) -> Result<()> + std::marker::Send + Sync>;

fn finished(output: tautline::Result<Vec<u8>>, finish: &Finish) -> Completion {
    Completion::of(output.map_err(network::failure).and_then(|output| finish(&output)))
}

/// The end of a send, if it has ended.
pub fn poll_send(send: &mut Send) -> Option<Completion> {
    match send.poll() {
        Ok(None) => None,
        Ok(Some(Ok(()))) => Some(Completion::EMPTY),
        Ok(Some(Err(error))) | Err(error) => Some(Completion::of(Err(network::failure(error)))),
    }
}

/// A receive.
pub struct Receiving {
    pub receive: Receive,
    pub comm: Arc<Communicator>,
    /// Whether it takes messages of any source.
    pub any: bool,
    /// Where the bytes go in the end, unless the receive puts them there itself.
    pub into: Option<Message>,
    /// The bytes that there is room for.
    pub room: u64,
}

impl Receiving {
    fn poll(&mut self, search: Search) -> Option<Completion> {
        // What a lost rank has sent is there before its loss is known.
        let lost = if self.any { self.comm.lost_peer(search) } else { None };
        let (result, bytes) = match self.receive.poll() {
            Ok(Some(ended)) => ended,
            Ok(None) => return lost.map(|error| Completion::of(Err(error))),
            Err(error) => return Some(Completion::of(Err(network::failure(error)))),
        };
        Some(match result {
            Ok(found) => {
                trace::received(found.source, found.len);
                if let Some(into) = &self.into {
                    // SAFETY: the program leaves the memory alone until the receive is complete.
                    unsafe { into.unpack(0, &bytes[..found.len.min(bytes.len() as u64) as usize]) };
                }
                Completion::with(self.comm.status(&found))
            }
            Err(error) => Receiving::failed(&self.comm, self.room, error),
        })
    }

    /// The end of a receive that failed; it had room for so many bytes.
    pub fn failed(comm: &Communicator, room: u64, error: tautline::Error) -> Completion {
        let tautline::Error::Truncated(found) = error else {
            return Completion::of(Err(network::failure(error)));
        };
        let text = format!("the message has {} bytes, the receive has room for {room}", found.len);
        let status = Status { bytes: room, ..comm.status(&found) };
        Completion::failed(Error::new(ERR_TRUNCATE, text), status)
    }
}

impl Communicator {
    /// What the program is told of a message.
    pub fn status(&self, found: &tautline::tags::Status) -> Status {
        let source = self.peers().rank_of(found.source).map_or(-1, |rank| rank as i32);
        Status { source, tag: found.tag.cast_signed(), error: SUCCESS, bytes: found.len, cancelled: false }
    }
}
