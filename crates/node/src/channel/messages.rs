//! Messages of one channel, in the direction to the peer, that are begun and not ended (M-3, M-5, M-10).

use std::collections::HashMap;

use crate::SendError;
use crate::limits::MAX_BEGUN;

/// The messages that this side has begun on a channel.
#[derive(Debug, Default)]
pub(crate) struct OutgoingMessages {
    next: u32,
    open: u32,
    /// Limits of messages that are longer than the peer's first window.
    windows: HashMap<u32, u64>,
}

impl OutgoingMessages {
    /// Whether another message may be begun.
    pub(super) fn check_limit(&self) -> Result<(), SendError> {
        if self.open == MAX_BEGUN {
            return Err(SendError::TooMany("messages to this rank that are begun and not ended; end one"));
        }
        Ok(())
    }

    /// Numbers a message of `total` bytes, of which `first_window` may be sent before the peer grants more.
    pub(super) fn begin(&mut self, total: u64, first_window: u64) -> u32 {
        self.open += 1;
        let number = self.next;
        self.next = number.wrapping_add(1);
        if total > first_window {
            self.windows.insert(number, first_window);
        }
        number
    }

    /// How many of `len` bytes from `offset` on the peer's window allows now.
    #[inline]
    pub(super) fn allowed(&self, message: u32, offset: u64, len: usize) -> usize {
        match self.windows.get(&message) {
            Some(limit) => (len as u64).min(limit.saturating_sub(offset)) as usize,
            None => len,
        }
    }

    /// Whether the message is longer than the peer's first window.
    pub(super) fn is_windowed(&self, message: u32) -> bool {
        self.windows.contains_key(&message)
    }

    /// Whether a message is longer than the peer's first window.
    pub(super) fn has_windows(&self) -> bool {
        !self.windows.is_empty()
    }

    /// The peer lets this side send up to `limit` bytes of a message.
    pub(crate) fn widen(&mut self, message: u32, limit: u64) {
        if let Some(window) = self.windows.get_mut(&message) {
            *window = limit.max(*window);
        }
    }

    /// The message has ended or was given up.
    pub(crate) fn end(&mut self, message: u32) {
        self.windows.remove(&message);
        self.open = self.open.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// M-5: a message longer than the first window stops at it, and goes on when the window is widened.
    #[test]
    fn windows_limit_long_messages_only() {
        let mut messages = OutgoingMessages::default();
        let (short, long) = (messages.begin(100, 100), messages.begin(101, 100));
        assert_eq!((short, long), (0, 1));
        assert_eq!(messages.allowed(short, 0, 500), 500);
        assert_eq!((messages.allowed(long, 0, 500), messages.allowed(long, 100, 1)), (100, 0));
        messages.widen(long, 101);
        messages.widen(long, 50);
        assert_eq!(messages.allowed(long, 100, 10), 1, "a window never shrinks");
        messages.widen(short, 7);
        assert!(!messages.is_windowed(short) && messages.is_windowed(long) && messages.has_windows());
        messages.end(long);
        messages.widen(long, u64::MAX);
        assert!(!messages.is_windowed(long) && !messages.has_windows());
    }

    /// M-10: no more than 65,536 messages are begun at once; ending one makes room.
    #[test]
    fn begun_messages_are_bounded() {
        let mut messages = OutgoingMessages::default();
        for _ in 0..MAX_BEGUN {
            messages.check_limit().unwrap();
            messages.begin(1, 100);
        }
        assert!(matches!(messages.check_limit(), Err(SendError::TooMany(_))));
        messages.end(3);
        messages.check_limit().unwrap();
    }
}
