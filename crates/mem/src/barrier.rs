//! A barrier that only one side pays for (S-4).
//!
//! Two sides each write one word and then look at the other's. Without a barrier between, both may miss what the other wrote. The side that does this
//! all the time uses [`Barrier::light`], which costs nothing; the side that does it rarely uses [`Barrier::heavy`], which makes the kernel
//! interrupt every core that runs a registered process and issue the barrier there. Where the kernel cannot, both pay.

#[cfg(not(loom))]
use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

use crate::sync::{Ordering, fence};

/// Which barriers this process and those that it talks to can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier {
    #[cfg(not(loom))]
    heavy: Option<MembarrierCommand>,
}

impl Barrier {
    /// Between processes; both must have asked for it before either relies on it.
    #[cfg(not(loom))]
    pub fn between_processes() -> Barrier {
        Barrier::new(
            MembarrierQuery::REGISTER_GLOBAL_EXPEDITED | MembarrierQuery::GLOBAL_EXPEDITED,
            MembarrierCommand::RegisterGlobalExpedited,
            MembarrierCommand::GlobalExpedited,
        )
    }

    /// Between the threads of this process.
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

    /// Both sides pay.
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

    /// For the side that does it all the time.
    #[inline(always)]
    pub fn light(self) {
        if self.is_asymmetric() {
            // The compiler must keep the order; the processor is made to by the other side.
            std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// For the side that does it rarely.
    pub fn heavy(self) {
        fence(Ordering::SeqCst);
        #[cfg(not(loom))]
        if let Some(command) = self.heavy {
            // It was registered, so nothing can refuse it; if something did, waiting for the next ring would be all that is lost.
            let _ = membarrier(command);
        }
    }
}
