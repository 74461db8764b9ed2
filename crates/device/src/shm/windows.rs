//! Windows of messages, which never wait behind frames (S-28).

use std::sync::Arc;

use tautline_mem::Segment;
use tautline_mem::ring::Corrupt;
use tautline_mem::windows::{WindowReceiver, WindowSender, windows_size};

use super::{RETURNS_LEN, RING_LEN, Shm, Side};

/// The most windows on their way in one direction.
pub const MAX_WINDOWS: usize = 64;
/// Bytes of the ring of windows, for each direction.
pub(super) const WINDOWS_LEN: usize = windows_size(MAX_WINDOWS);

/// Both directions' windows.
#[derive(Debug)]
pub(super) struct Windows {
    granted: WindowReceiver,
    grants: WindowSender,
}

impl Windows {
    pub(super) fn new(segment: &Arc<Segment>, side: Side) -> Windows {
        let first = 2 * RING_LEN + 2 * RETURNS_LEN;
        let (ours, peers) = match side {
            Side::Caller => (first, first + WINDOWS_LEN),
            Side::Callee => (first + WINDOWS_LEN, first),
        };
        Windows {
            granted: WindowReceiver::new(segment.clone(), ours, MAX_WINDOWS),
            grants: WindowSender::new(segment.clone(), peers, MAX_WINDOWS),
        }
    }
}

impl Shm {
    /// Grants the other side up to `limit` bytes of a message, and wakes it if it sleeps. Returns false if
    /// there is no room.
    pub fn push_window(&mut self, message: u32, limit: u64) -> bool {
        match self.windows.grants.send(message, limit) {
            Ok(true) => {
                self.wake_if_asleep();
                true
            }
            Ok(false) => false,
            Err(Corrupt) => self.set_corrupt(),
        }
    }

    /// Whether there is room for a window.
    pub fn has_window_room(&mut self) -> bool {
        match self.windows.grants.has_room() {
            Ok(room) => room,
            Err(Corrupt) => self.set_corrupt(),
        }
    }

    /// Whether the other side has granted a window that was not taken yet.
    pub fn has_windows(&self) -> bool {
        !self.windows.granted.is_empty()
    }

    /// Takes the next window that the other side granted: a message, which need not exist, and its limit.
    /// Wakes the other side if that published room that it may be waiting for.
    pub fn take_window(&mut self) -> Option<(u32, u64)> {
        let published = self.windows.granted.published();
        let window = self.windows.granted.take();
        if self.windows.granted.published() != published {
            self.wake_if_asleep();
        }
        window
    }
}
