//! The watchdog: protocol progress while the program computes (N-5, N-6). It never runs a handler.

use std::sync::Arc;
use std::time::Duration;

use crate::shared::Shared;

/// So many looks in a row that found the program at work make the next ones rarer.
const BUSY_LOOKS: u32 = 16;

/// Starts the watchdog's thread; it ends when the node is closed.
pub(crate) fn start(shared: Arc<Shared>, tick: Duration) -> std::io::Result<std::thread::JoinHandle<()>> {
    shared.presence.set_alarm(tick);
    std::thread::Builder::new()
        .name("tautline-watchdog".into())
        .stack_size(256 * 1024)
        .spawn(move || watch(&shared, tick))
}

fn watch(shared: &Shared, tick: Duration) {
    let presence = &shared.presence;
    let mut busy = 0;
    loop {
        presence.await_alarm();
        if presence.is_closing() {
            return;
        }
        if presence.is_parked() {
            // Its leaving sets the alarm again.
            continue;
        }
        if presence.has_moved() {
            busy += 1;
        } else {
            busy = 0;
            stand_in(shared, presence.polls(), tick);
        }
        presence.set_alarm(if busy < BUSY_LOOKS { tick } else { 2 * tick });
    }
}

/// Whether the program has neither polled since `before` nor parked inside the library.
fn absent(shared: &Shared, before: u64) -> bool {
    shared.presence.polls() == before && !shared.presence.is_parked() && !shared.presence.is_closing()
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
