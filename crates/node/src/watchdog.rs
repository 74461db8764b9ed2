//! The watchdog: protocol progress while the program computes (N-5, N-6). It never runs a handler.

use std::sync::Arc;
use std::time::Duration;

use tautline_mem::Duty;

use crate::endpoint::Shared;

/// Starts the watchdog's thread; it ends when the node is closed.
pub(crate) fn start(shared: Arc<Shared>, tick: Duration) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name("tautline-watchdog".into()).stack_size(256 * 1024).spawn(move || {
        while shared.presence.await_duty() == Duty::Watch {
            let before = shared.presence.polls();
            std::thread::sleep(tick);
            if absent(&shared, before) {
                stand_in(&shared, before, tick);
            }
        }
    })
}

/// Whether the program has neither polled since `before` nor parked inside the library.
fn absent(shared: &Shared, before: u64) -> bool {
    shared.presence.polls() == before && !shared.presence.is_parked() && !shared.is_closing()
}

/// Looks after the network until the program is back.
fn stand_in(shared: &Shared, before: u64, tick: Duration) {
    while absent(shared, before) {
        shared.stand_in_poll();
        shared.sleep_on_device();
        if shared.is_armed() {
            // The program waits on our descriptor in a loop of its own; it gets the first chance.
            std::thread::sleep(tick);
        }
    }
}
