//! Tripsets.

use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use tautline_node::memory::{Report, SetId, Wakeup, WireId};

use super::fire_counter::FireCounter;
use super::tripwire::{CLOSED, Tripwire};
use crate::core::Core;
use crate::error::{Error, Result};

/// Why a tripset that is over is never ready again.
const TOO_FEW: &str = "too few of the set's tripwires are left";

/// A group of tripwires, ready when a given number of them have fired. Each counts once until the set is
/// ready; then all counts start again.
///
/// It does not keep its tripwires: those that are dropped, or whose aperture is closed, leave it. When fewer
/// are left than it needs, waiting for it is [`Error::Disarmed`].
#[derive(Debug)]
pub struct Tripset {
    id: SetId,
    fires: FireCounter,
}

impl Tripset {
    pub(super) fn new(core: Rc<Core>, wires: &[&Tripwire], need: usize, tag: Option<u64>) -> Result<Tripset> {
        let members: Vec<WireId> = wires.iter().map(|wire| wire.id()).collect();
        if members.iter().collect::<HashSet<_>>().len() < members.len() {
            return Err(Error::other("a tripwire is named twice in one set, where it would count once"));
        }
        if need == 0 || need > members.len() {
            let why = format!("a set of {} tripwires cannot wait for {need} of them", members.len());
            return Err(Error::other(why));
        }
        if wires.iter().any(|wire| wire.is_over()) {
            return Err(Error::Disarmed(CLOSED));
        }
        let report = if tag.is_some() { Report::Once } else { Report::Poll };
        let made = core.node.make_set(&members, need, report, tag.unwrap_or(0))?;
        let (id, cell) = made.ok_or(Error::TooMany("tripsets"))?;
        Ok(Tripset { id, fires: FireCounter::new(core, cell, Wakeup::Set(id), TOO_FEW) })
    }

    /// The number of this set in events.
    pub fn id(&self) -> SetId {
        self.id
    }

    /// How often it was ready since the last call of this or of a wait.
    pub fn take(&mut self) -> u64 {
        self.fires.take()
    }

    /// Extracts and waits until it is ready; returns how often it was. The errors are those of
    /// [`Tripwire::wait`]. Not in handlers: use [`Tripset::ready`] there.
    pub fn wait(&mut self) -> Result<u64> {
        self.fires.wait(None)
    }

    /// As [`Tripset::wait`], for at most `timeout`; zero if it was not ready. The loss of a peer is no error.
    pub fn wait_for(&mut self, timeout: Duration) -> Result<u64> {
        self.fires.wait(Some(timeout))
    }

    /// Waits until it is ready; returns how often it was. The errors are those of [`Tripwire::fired`].
    pub async fn ready(&mut self) -> Result<u64> {
        self.fires.fired().await
    }
}

impl Drop for Tripset {
    fn drop(&mut self) {
        let _ = self.fires.core().node.dissolve_set(self.id);
    }
}
