//! The watchdog: protocol progress while the program computes (N-5, N-6). It never runs a handler.

use std::sync::Arc;
use std::time::Duration;

use tautline_mem::Duty;

use crate::endpoint::Shared;

/// After so many looks that found the program parked and still, the watchdog sleeps until it is woken.
const STILL_LOOKS: u32 = 4;
/// So many looks in a row that found the program at work make the next ones rarer.
const BUSY_LOOKS: u32 = 16;

/// Starts the watchdog's thread; it ends when the node is closed.
pub(crate) fn start(shared: Arc<Shared>, tick: Duration) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new()
        .name("tautline-watchdog".into())
        .stack_size(256 * 1024)
        .spawn(move || watch(&shared, tick))
}

fn watch(shared: &Shared, tick: Duration) {
    let (mut still, mut busy) = (0, 0);
    loop {
        let before = shared.presence.polls();
        let pause = if busy < BUSY_LOOKS { tick } else { 2 * tick };
        let duty = if still < STILL_LOOKS {
            shared.presence.rest(pause)
        } else {
            still = 0;
            shared.presence.await_duty()
        };
        if duty == Duty::Leave {
            return;
        }
        if shared.presence.polls() != before {
            (still, busy) = (0, busy + 1);
        } else if shared.presence.is_parked() {
            still += 1;
        } else {
            (still, busy) = (0, 0);
            stand_in(shared, before, tick);
        }
    }
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
