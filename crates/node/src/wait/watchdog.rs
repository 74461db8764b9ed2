//! The watchdog: protocol progress while the program computes (N-5, N-6). It never runs a handler.

use std::sync::Arc;
use std::time::Duration;

use super::shared::Shared;

/// After this many checks in a row that found the program polling, the checks become rarer. Once in as many
/// checks the watchdog makes sure that the program polls the device, too.
const BUSY_CHECKS: u32 = 16;

/// Starts the watchdog's thread; it ends when the node is closed.
pub(crate) fn start(shared: Arc<Shared>, tick: Duration) -> std::io::Result<std::thread::JoinHandle<()>> {
    shared.polls.arm_timer(tick);
    std::thread::Builder::new()
        .name("tautline-watchdog".into())
        .stack_size(256 * 1024)
        .spawn(move || watch(&shared, tick))
}

fn watch(shared: &Shared, tick: Duration) {
    let polls = &shared.polls;
    let mut busy = 0u32;
    loop {
        polls.await_timer();
        if polls.is_closing() {
            return;
        }
        if polls.is_parked() {
            // The program arms the timer again when it leaves.
            continue;
        }
        if polls.has_moved() {
            busy += 1;
            if busy.is_multiple_of(BUSY_CHECKS) {
                shared.poll_device_soon();
            }
        } else {
            busy = 0;
            poll_until_back(shared, polls.polls(), tick);
        }
        polls.arm_timer(if busy < BUSY_CHECKS { tick } else { 2 * tick });
    }
}

/// Returns whether the program has neither polled since `before` nor parked inside the library.
fn is_away(shared: &Shared, before: u64) -> bool {
    shared.polls.polls() == before && !shared.polls.is_parked() && !shared.polls.is_closing()
}

/// Polls until the program does again.
fn poll_until_back(shared: &Shared, before: u64, tick: Duration) {
    while is_away(shared, before) {
        shared.poll_as_watchdog();
        shared.sleep_on_device();
        if shared.is_armed() {
            // The program waits on the endpoint's descriptor in a loop of its own; it gets the first chance.
            std::thread::sleep(tick);
        }
    }
}
