//! Whether programs that drive an endpoint by its descriptor sleep. Decided by counts.

use std::future::poll_fn;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

use tautline::Endpoint;
use tokio::io::unix::AsyncFd;

/// How often a rank to which nothing comes may fail to arm.
const VAIN: u64 = 10_000;
/// How often [`driver_sleeps`] gives the driver a turn.
const TURNS: u64 = 2_000;

/// The attempts of a rank to sleep on its descriptor.
#[derive(Default)]
pub struct Arms {
    tried: AtomicU64,
    armed: AtomicU64,
    asleep: AtomicBool,
}

impl Arms {
    /// Prepares to sleep. The caller sleeps if this is true, and says [`Arms::awake`] afterwards.
    pub fn arm(&self, ep: &Endpoint) -> bool {
        let armed = ep.arm().unwrap();
        self.armed.fetch_add(u64::from(armed), Ordering::SeqCst);
        self.asleep.store(armed, Ordering::SeqCst);
        self.tried.fetch_add(1, Ordering::SeqCst);
        armed
    }

    pub fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// How often it was ready to sleep.
    pub fn count(&self) -> u64 {
        self.armed.load(Ordering::SeqCst)
    }

    /// Called by the peer: waits until the rank is ready to sleep, or has tried too often.
    pub fn until_asleep(&self) {
        let tried = self.tried.load(Ordering::SeqCst);
        while !self.asleep.load(Ordering::SeqCst) && self.tried.load(Ordering::SeqCst) - tried < VAIN {
            std::thread::yield_now();
        }
    }
}

/// Extracts for ever; the runtime waits for the descriptor.
pub async fn extract_in_runtime(ep: &Endpoint) {
    // SAFETY: the descriptor is borrowed from `ep`, which keeps it open for longer than the registration.
    let descriptor = unsafe { AsyncFd::register(ep.as_fd()) }.unwrap();
    loop {
        ep.extract(usize::MAX).unwrap();
        if ep.arm().unwrap() {
            descriptor.readable().await.unwrap().clear_ready();
        } else {
            tokio::task::yield_now().await;
        }
    }
}

/// Fails unless the driver that shares this task's thread sleeps while nothing arrives. `turns` counts what
/// the driver does whenever it does not sleep; one that never sleeps does it each time that this task lets it
/// run.
pub async fn driver_sleeps(turns: impl Fn() -> u64) {
    let before = turns();
    for _ in 0..TURNS {
        let mut yielded = false;
        poll_fn(|context| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
    let made = turns() - before;
    println!("{made} turns of a driver that sleeps");
    // Some are for frames that were under way.
    assert!(made <= TURNS / 4, "the driver does not sleep: {made} of {TURNS} turns");
}
