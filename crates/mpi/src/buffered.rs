//! Buffered sends that have not ended, and who may wait for them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tautline::tags::{Request as _, RequestId, Send};

use crate::constants as c;
use crate::error::{Error, Result, ensure};
use crate::handle::Comm;
use crate::objects::lock;
use crate::operation::poll_send;

/// What a buffer is attached to: a communicator, or the process.
pub type Owner = Option<Comm>;

enum Progress {
    UnderWay(Send),
    Ended(Result<()>),
}

/// A buffered send. Several calls may wait for its end.
pub struct Buffered {
    owner: Owner,
    progress: Mutex<Progress>,
}

impl Buffered {
    /// How it ended, if it has.
    pub fn poll(&self) -> Option<Result<()>> {
        let mut progress = lock(&self.progress);
        let ended = match &mut *progress {
            Progress::UnderWay(send) => poll_send(send)?.error.map_or(Ok(()), Err),
            Progress::Ended(ended) => return Some(ended.clone()),
        };
        *progress = Progress::Ended(ended.clone());
        Some(ended)
    }

    /// Adds what it waits for.
    pub fn waits_for(&self, ids: &mut Vec<RequestId>) {
        if let Progress::UnderWay(send) = &*lock(&self.progress) {
            ids.push(send.id());
        }
    }
}

/// Buffered sends that have not ended.
static SENDS: Mutex<Vec<Arc<Buffered>>> = Mutex::new(Vec::new());

/// The buffers that are attached: their addresses and sizes.
static BUFFERS: Mutex<BTreeMap<Owner, (usize, i64)>> = Mutex::new(BTreeMap::new());

/// Keeps a send over a communicator until it has ended.
pub fn add(send: Send, comm: Comm) {
    let owner = lock(&BUFFERS).contains_key(&Some(comm)).then_some(comm);
    let mut sends = lock(&SENDS);
    sends.retain(|send| send.poll().is_none());
    sends.push(Arc::new(Buffered { owner, progress: Mutex::new(Progress::UnderWay(send)) }));
}

/// The sends under way that use the buffer of `owner`.
pub fn of(owner: Owner) -> Vec<Arc<Buffered>> {
    lock(&SENDS).iter().filter(|send| send.owner == owner).map(Arc::clone).collect()
}

/// All sends under way.
pub fn all() -> Vec<Arc<Buffered>> {
    lock(&SENDS).clone()
}

/// Attaches a buffer.
pub fn attach(to: Owner, at: usize, size: i64) -> Result<()> {
    let mut buffers = lock(&BUFFERS);
    ensure(!buffers.contains_key(&to), c::ERR_BUFFER, || "a buffer is attached already".to_owned())?;
    buffers.insert(to, (at, size));
    Ok(())
}

/// Detaches a buffer: its address and size.
pub fn detach(from: Owner) -> Result<(usize, i64)> {
    let none = || Error::new(c::ERR_BUFFER, "no buffer is attached");
    lock(&BUFFERS).remove(&from).ok_or_else(none)
}
