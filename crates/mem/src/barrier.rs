//! A barrier that only one side pays for (S-4, S-14).
//!
//! Two sides each write one word and then read the other's. Without a barrier in between, both may miss the
//! other's write. The side that does this all the time uses [`Barrier::light`], which costs nothing. The side
//! that does it rarely uses [`Barrier::heavy`], which makes the kernel interrupt every core that runs a
//! registered process and issue the barrier there. Where the kernel cannot do that, both sides pay.

#[cfg(not(loom))]
use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

use crate::sync::{Ordering, fence};

/// The barriers that this process and its peers can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier {
    #[cfg(not(loom))]
    heavy: Option<MembarrierCommand>,
}

impl Barrier {
    /// Returns a barrier between processes; both must have called this before either relies on it.
    #[cfg(not(loom))]
    pub fn between_processes() -> Barrier {
        Barrier::new(
            MembarrierQuery::REGISTER_GLOBAL_EXPEDITED | MembarrierQuery::GLOBAL_EXPEDITED,
            MembarrierCommand::RegisterGlobalExpedited,
            MembarrierCommand::GlobalExpedited,
        )
    }

    /// Returns a barrier between the threads of this process.
    #[cfg(not(loom))]
    pub fn between_threads() -> Barrier {
        Barrier::new(
            MembarrierQuery::REGISTER_PRIVATE_EXPEDITED | MembarrierQuery::PRIVATE_EXPEDITED,
            MembarrierCommand::RegisterPrivateExpedited,
            MembarrierCommand::PrivateExpedited,
        )
    }

    #[cfg(not(loom))]
    fn new(needs: MembarrierQuery, register: MembarrierCommand, command: MembarrierCommand) -> Barrier {
        let works = membarrier_query().contains(needs) && membarrier(register).is_ok();
        Barrier { heavy: works.then_some(command) }
    }

    /// Returns a barrier that both sides pay for.
    pub fn symmetric() -> Barrier {
        #[cfg(not(loom))]
        return Barrier { heavy: None };
        #[cfg(loom)]
        return Barrier {};
    }

    /// Whether only the rare side pays.
    #[inline]
    pub fn is_asymmetric(self) -> bool {
        #[cfg(not(loom))]
        return self.heavy.is_some();
        #[cfg(loom)]
        return false;
    }

    /// Orders memory accesses on the frequent side.
    #[inline(always)]
    pub fn light(self) {
        if self.is_asymmetric() {
            // The compiler must keep the order; the other side makes the processor keep it.
            std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// Orders memory accesses on the rare side.
    pub fn heavy(self) {
        fence(Ordering::SeqCst);
        #[cfg(not(loom))]
        if let Some(command) = self.heavy {
            // The command was registered, so the kernel does not refuse it. If it did, only a doorbell would
            // be delayed.
            let _ = membarrier(command);
        }
    }
}
