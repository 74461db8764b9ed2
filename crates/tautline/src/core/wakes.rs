//! Wake-ups of handlers and of the program, from any thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

/// Handlers that were woken, and whether the program was.
pub(crate) struct Wakes {
    woken: Mutex<Vec<WokenSlot>>,
    /// Whether `woken` has entries: every poll reads this.
    any: AtomicBool,
    /// The program was woken by [`crate::Waker::wake`].
    program: AtomicBool,
    /// The endpoint's thread.
    home: ThreadId,
    bell: tautline_node::Waker,
}

impl Wakes {
    pub(super) fn new(bell: tautline_node::Waker) -> Arc<Wakes> {
        Arc::new(Wakes {
            woken: Mutex::new(Vec::new()),
            any: AtomicBool::new(false),
            program: AtomicBool::new(false),
            home: std::thread::current().id(),
            bell,
        })
    }

    /// Takes the handlers that were woken.
    pub(crate) fn take(&self) -> Vec<WokenSlot> {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *woken)
    }

    /// Whether handlers were woken.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        // Set under the lock before the bell rings: a wake-up that this load misses rings the bell.
        self.any.load(Ordering::Acquire)
    }

    /// Whether the calling thread is the endpoint's.
    pub(super) fn is_home(&self) -> bool {
        std::thread::current().id() == self.home
    }

    /// Wakes whoever sleeps on the node: there is something to extract that no peer rings for.
    pub(super) fn ring(&self) {
        self.bell.wake();
    }

    /// Wakes the program.
    pub(crate) fn wake_program(&self) {
        self.program.store(true, Ordering::Release);
        self.bell.wake();
    }

    #[inline]
    pub(crate) fn is_program_woken(&self) -> bool {
        self.program.load(Ordering::Acquire)
    }

    /// Whether the program was woken since the last call.
    pub(crate) fn take_program_woken(&self) -> bool {
        self.is_program_woken() && self.program.swap(false, Ordering::AcqRel)
    }
}

/// A slot of a handler, queued at most once.
#[derive(Clone)]
pub(crate) struct WokenSlot {
    pub(crate) handler: usize,
    pub(crate) slot: usize,
    queued: Arc<AtomicBool>,
}

impl WokenSlot {
    /// The slot is about to be polled: a wake-up from now on queues it again.
    pub(crate) fn polled(&self) {
        self.queued.store(false, Ordering::SeqCst);
    }
}

/// Wakes one slot of a handler. Made once per slot, and used for every message that runs there.
pub(crate) struct SlotWaker {
    which: WokenSlot,
    wakes: Arc<Wakes>,
}

impl SlotWaker {
    pub(crate) fn new(handler: usize, slot: usize, wakes: Arc<Wakes>) -> SlotWaker {
        SlotWaker { which: WokenSlot { handler, slot, queued: Arc::default() }, wakes }
    }
}

impl std::task::Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.which.queued.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut woken = self.wakes.woken.lock().unwrap_or_else(PoisonError::into_inner);
        woken.push(self.which.clone());
        self.wakes.any.store(true, Ordering::Release);
        drop(woken);
        // The endpoint's own thread checks `any` before it sleeps, unless it sleeps in a runtime already and
        // runs another task; another thread must ring.
        if std::thread::current().id() == self.wakes.home {
            self.wakes.bell.wake_if_armed();
        } else {
            self.wakes.bell.wake();
        }
    }
}
