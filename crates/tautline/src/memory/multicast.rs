//! Memory of which every member of a group has a copy (R-9, R-10).

use std::rc::Rc;
use std::sync::Arc;

use super::{Access, Aperture, ApertureMemory, Completion, Cookie, Remote, Rights, Tripwire};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::group::Group;

/// Memory of which every member of a group has a copy, in an aperture of its own. Made by
/// [`Group::multicast_memory`].
///
/// Puts of one member take effect in order, at each member. Those of different members are not ordered: give
/// each a part of the memory, or let one of them write.
#[derive(Debug)]
pub struct MulticastMemory {
    core: Rc<Core>,
    own: Arc<ApertureMemory>,
    /// The other members, and their copies.
    copies: Vec<(usize, Remote)>,
    len: u64,
}

impl Group {
    /// Lets all members write to an aperture of each. A collective. Puts go to the same place of all of them,
    /// and are served while programs compute; tripwires on the aperture fire as for other puts.
    ///
    /// ```no_run
    /// use tautline::Endpoint;
    ///
    /// fn main() -> tautline::Result<()> {
    ///     let ep = Endpoint::builder().join()?;
    ///     let world = ep.world()?;
    ///     let copy = ep.aperture(4096)?;
    ///     let memory = world.multicast_memory(&copy)?;
    ///     if world.member() == 0 {
    ///         let mut put = memory.put(0, b"state".to_vec())?;
    ///         // A majority has it, this member included; the others get it later.
    ///         put.wait(world.size() / 2)?;
    ///     }
    ///     world.barrier()?;
    ///     ep.close()
    /// }
    /// ```
    pub fn multicast_memory(&self, aperture: &Aperture) -> Result<MulticastMemory> {
        let cookie = aperture.cookie(.., Rights::WRITE)?.to_bytes();
        let mut all = vec![0; Cookie::LEN * self.size()];
        self.all_gather(&cookie, &mut all)?;
        let cookies = all.as_chunks().0.iter().map(Cookie::from_bytes).enumerate();
        let core = aperture.core().clone();
        let copies = cookies.filter(|(member, _)| *member != self.member());
        let copies: Vec<_> =
            copies.map(|(member, cookie)| (member, Remote::new(core.clone(), cookie))).collect();
        let lens = copies.iter().map(|(_, remote)| remote.cookie().len());
        let len = lens.fold(aperture.len(), u64::min);
        Ok(MulticastMemory { core, own: aperture.memory().clone(), copies, len })
    }
}

impl MulticastMemory {
    /// Bytes of the shortest copy.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the shortest copy has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts bytes at the same place of every copy, that of this member included. Never waits. At members that
    /// are lost it fails, and goes on at the others.
    pub fn put(&self, at: u64, bytes: Vec<u8>) -> Result<MulticastPut> {
        let len = bytes.len() as u64;
        if len == 0 || at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::OutOfRange);
        }
        self.own.write(at as usize, &bytes).map_err(|_| Error::OutOfRange)?;
        // The operations read from here. The tripwire counts those that were confirmed, of this put alone.
        let memory = ApertureMemory::adopt(bytes).map_err(|_| Error::OutOfRange)?;
        let from = Aperture::open(self.core.clone(), memory)?;
        let confirmed = from.tripwire(..).on(Access::COMPLETE).arm()?;
        let (mut waiting, mut failed) = (Vec::with_capacity(self.copies.len()), Vec::new());
        for (member, copy) in &self.copies {
            match copy.put_from(at, &from, ..) {
                Ok(completion) => waiting.push((*member, completion)),
                Err(error) => failed.push((*member, error)),
            }
        }
        let (core, others) = (self.core.clone(), self.copies.len());
        Ok(MulticastPut { core, confirmed, others, waiting, failed, _from: from })
    }
}

/// A put to the memory of all members. Dropped, it goes on.
#[derive(Debug)]
#[must_use = "the put goes on without it, but nobody learns whether it failed"]
pub struct MulticastPut {
    core: Rc<Core>,
    /// Fires when the bytes are in place at a member.
    confirmed: Tripwire,
    /// Members that the put goes to.
    others: usize,
    waiting: Vec<(usize, Completion)>,
    failed: Vec<(usize, Error)>,
    _from: Aperture,
}

impl MulticastPut {
    /// How many other members have the bytes. Costs a load.
    #[inline]
    pub fn acknowledged(&self) -> usize {
        self.confirmed.fires() as usize
    }

    /// Extracts and waits until `count` other members have the bytes. An error if so many have failed that
    /// there will never be as many. May be called again, with other counts. Not in handlers.
    pub fn wait(&mut self, count: usize) -> Result<()> {
        self.core.check_not_in_handler()?;
        let mut seen = None;
        loop {
            let acknowledged = self.acknowledged();
            if acknowledged >= count {
                return Ok(());
            }
            if seen.replace(acknowledged) == Some(acknowledged) {
                // The end of what still goes on wakes this thread.
                self.find_failures();
                if self.acknowledged() + self.waiting.len() < count {
                    return Err(self.too_few(count));
                }
                self.core.sleep(None)?;
            }
            self.core.extract(usize::MAX)?;
        }
    }

    /// The members at which the put has failed so far, and why.
    pub fn failed(&mut self) -> &[(usize, Error)] {
        self.find_failures();
        &self.failed
    }

    fn find_failures(&mut self) {
        let failed = &mut self.failed;
        self.waiting.retain_mut(|(member, completion)| match completion.poll_result(true) {
            None => true,
            Some(Ok(_)) => false,
            Some(Err(error)) => {
                failed.push((*member, error));
                false
            }
        });
    }

    #[cold]
    fn too_few(&self, count: usize) -> Error {
        let mut text = format!("{count} of {} members cannot acknowledge the put any more", self.others);
        if let Some((member, error)) = self.failed.first() {
            text += &format!("; it failed at {}, first at member {member}: {error}", self.failed.len());
        }
        Error::other(text)
    }
}
