//! What the compiler can check of a node's types, and what forked and closed nodes answer.

use tautline_node::{Endpoint, Waker};

fn send<T: Send>() {}
fn sync<T: Sync>() {}

/// A node's endpoint and waker go to any thread.
#[test]
fn threads() {
    send::<Endpoint>();
    sync::<Endpoint>();
    send::<Waker>();
    sync::<Waker>();
}
