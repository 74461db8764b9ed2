//! The watchdog: protocol progress while the program computes (N-5, N-6). It never runs a handler.

use std::sync::Arc;
use std::time::Duration;

use super::shared::Shared;

/// So many looks in a row that found the program at work make the next ones rarer.
const BUSY_LOOKS: u32 = 16;

/// Starts the watchdog's thread; it ends when the node is closed.
pub(crate) fn start(shared: Arc<Shared>, tick: Duration) -> std::io::Result<std::thread::JoinHandle<()>> {
    shared.polls.set_alarm(tick);
    std::thread::Builder::new()
        .name("tautline-watchdog".into())
        .stack_size(256 * 1024)
        .spawn(move || watch(&shared, tick))
}

fn watch(shared: &Shared, tick: Duration) {
    let polls = &shared.polls;
    let mut busy = 0;
    loop {
        polls.await_alarm();
        if polls.is_closing() {
            return;
        }
        if polls.is_parked() {
            // Its leaving sets the alarm again.
            continue;
        }
        if polls.has_moved() {
            busy += 1;
        } else {
            busy = 0;
            poll_until_back(shared, polls.polls(), tick);
        }
        polls.set_alarm(if busy < BUSY_LOOKS { tick } else { 2 * tick });
    }
}

/// Whether the program has neither polled since `before` nor parked inside the library.
fn is_away(shared: &Shared, before: u64) -> bool {
    shared.polls.polls() == before && !shared.polls.is_parked() && !shared.polls.is_closing()
}

/// Looks after the network until the program is back.
fn poll_until_back(shared: &Shared, before: u64, tick: Duration) {
    while is_away(shared, before) {
        shared.poll_as_watchdog();
        shared.sleep_on_device();
        if shared.is_armed() {
            // The program waits on our descriptor in a loop of its own; it gets the first chance.
            std::thread::sleep(tick);
        }
    }
}
