//! What a sender through shared memory waits for: room, loans that come back, windows of its messages. A poll
//! that finds it counts it as activity, so that the sender tries again.

use tautline_device::shm::{MAX_WINDOWS, Shm};

use super::{OutgoingMessages, Port};

/// A send found no room.
const ROOM: u8 = 1;
/// A loan found no room.
const RETURNS: u8 = 2;
/// A message is longer than the peer's first window (S-29).
const WINDOWS: u8 = 4;
/// A window found no room.
const WINDOW_ROOM: u8 = 8;

/// What one side of a channel waits for. Polls look for nothing else.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    /// [`ROOM`] and the like: one word, because every poll reads it.
    what: u8,
    /// Loans that had come back when one found no room.
    returned: u64,
}

impl Awaited {
    #[inline]
    fn has(&self, what: u8) -> bool {
        self.what & what != 0
    }

    /// A sender has looked for room for a frame.
    #[inline]
    pub(super) fn note_room(&mut self, found: bool) {
        self.what |= ROOM * u8::from(!found);
    }

    /// Room for a frame is no longer waited for. Returns whether it was.
    #[inline]
    pub(super) fn take_room(&mut self) -> bool {
        let waited = self.has(ROOM);
        self.what &= !ROOM;
        waited
    }

    /// Room for a window was looked for.
    pub(super) fn note_window_room(&mut self, found: bool) {
        self.what |= WINDOW_ROOM * u8::from(!found);
    }

    /// A message is longer than the peer's first window.
    pub(super) fn want_windows(&mut self) {
        self.what |= WINDOWS;
    }

    /// Loans are waited for that come back after the first `returned`.
    #[inline]
    pub(super) fn want_returns(&mut self, returned: u64) {
        if !self.has(RETURNS) {
            self.what |= RETURNS;
            self.returned = returned;
        }
    }

    /// Whether nothing is waited for.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.what == 0
    }

    /// Whether something of it is there.
    #[inline]
    pub(super) fn is_there(&self, shm: &mut Shm) -> bool {
        self.what != 0 && self.look(shm)
    }

    #[inline(never)]
    fn look(&self, shm: &mut Shm) -> bool {
        self.has(ROOM) && shm.has_room()
            || self.has(RETURNS) && shm.has_returned_since(self.returned)
            || self.has(WINDOWS) && shm.has_windows()
            || self.has(WINDOW_ROOM) && shm.has_window_room()
    }

    /// Turns what is there into activity; windows go to their `messages`. Returns whether windows are waited
    /// for.
    #[inline]
    pub(super) fn take(&mut self, shm: &mut Shm, port: &mut Port, messages: &mut OutgoingMessages) -> bool {
        self.what != 0 && self.take_each(shm, port, messages)
    }

    #[inline(never)]
    fn take_each(&mut self, shm: &mut Shm, port: &mut Port, messages: &mut OutgoingMessages) -> bool {
        let mut found = 0;
        if self.has(ROOM) && shm.has_room() {
            found |= ROOM;
        }
        if self.has(RETURNS) && shm.has_returned_since(self.returned) {
            found |= RETURNS;
        }
        if self.has(WINDOW_ROOM) && shm.has_window_room() {
            found |= WINDOW_ROOM;
        }
        self.what &= !found;
        port.activity += u64::from(found != 0);
        if self.has(WINDOWS) {
            // No more than the ring holds: a hostile peer could go on for ever.
            for _ in 0..MAX_WINDOWS {
                let Some((message, limit)) = shm.take_window() else { break };
                messages.widen(message, limit);
                port.activity += 1;
            }
            if !messages.has_windows() {
                self.what &= !WINDOWS;
            }
        }
        self.has(WINDOWS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use rustix::event::{EventfdFlags, eventfd};
    use tautline_device::shm::{Contribution, LanePages, PairEnd};
    use tautline_device::udp::{Udp, UdpConfig};

    fn end() -> PairEnd {
        let fd = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let number = LanePages::create().unwrap().take_number().unwrap();
        PairEnd { process: fd(), own: Contribution { pool: None, number } }
    }

    fn port() -> Port {
        let device = Udp::open(UdpConfig::with(|config| config.tx_slots = 16)).unwrap();
        Port::new(Box::new(device), &crate::Config::default(), 2)
    }

    /// S-29: windows are taken only while a message is longer than the first one; they widen that message,
    /// and no other; those of messages that do not exist are dropped.
    #[test]
    fn windows_are_taken_for_long_messages() {
        let (mut a, mut b) = Shm::pair(end(), end()).unwrap();
        let (mut awaited, mut messages, mut port) = (Awaited::default(), OutgoingMessages::default(), port());
        let short = messages.begin(100, 100);
        assert!(b.push_window(short, 1_000) && !awaited.is_there(&mut a));
        assert!(!awaited.take(&mut a, &mut port, &mut messages) && a.has_windows());
        let long = messages.begin(1_000, 100);
        awaited.want_windows();
        assert!(b.push_window(long, 300) && b.push_window(77, u64::MAX) && b.push_window(long, 200));
        assert!(awaited.is_there(&mut a));
        assert!(awaited.take(&mut a, &mut port, &mut messages));
        assert!(!awaited.is_there(&mut a) && !a.has_windows() && port.activity > 0);
        assert_eq!((messages.allowed(long, 0, 1_000), messages.allowed(77, 0, 9)), (300, 9));
        messages.end(long);
        assert!(!awaited.take(&mut a, &mut port, &mut messages), "none is longer now");
    }

    /// S-28: a side that found no room for a window learns of room.
    #[test]
    fn room_for_windows_is_awaited() {
        let (mut a, mut b) = Shm::pair(end(), end()).unwrap();
        let mut messages = OutgoingMessages::default();
        let (mut granter, mut sender) = (Awaited::default(), Awaited::default());
        let long = messages.begin(1 << 40, 100);
        sender.want_windows();
        let granted = (1..).take_while(|limit| b.push_window(long, 100 + limit)).count();
        assert_eq!(granted, MAX_WINDOWS);
        granter.note_window_room(false);
        assert!(!granter.is_there(&mut b));
        let mut port = port();
        sender.take(&mut a, &mut port, &mut messages);
        assert_eq!(messages.allowed(long, 0, 1 << 20), 100 + granted);
        assert!(granter.is_there(&mut b));
        let before = port.activity;
        granter.take(&mut b, &mut port, &mut OutgoingMessages::default());
        assert!(port.activity > before && !granter.is_there(&mut b));
    }
}
