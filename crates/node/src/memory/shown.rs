//! Cookies that a peer has been shown: on a channel they go by short numbers, their handles.

use std::collections::HashMap;

use tautline_wire::memory::{MAX_HEAD, MemoryRecord as Message};

use super::cookie::{Cookie, CookieKey};
use super::writer::RecordWriter;
use crate::limits::MAX_HANDLES;

/// Which of all handles ever given on a channel stands for a cookie. It is valid while the channel lasts and
/// its number has not been given again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// Zero belongs to no channel.
    incarnation: u32,
    turn: u32,
}

/// The cookies that the owner of the memory knows by a handle.
#[derive(Debug, Default)]
pub(crate) struct ShownCookies {
    keys: Vec<CookieKey>,
    handles: HashMap<CookieKey, u32>,
    /// The number of handles ever given.
    next: u32,
}

impl ShownCookies {
    /// Returns the handle of a cookie, which was learnt for this cookie, if it is still valid.
    #[inline]
    pub(crate) fn hinted(&self, incarnation: u32, cookie: &Cookie, hint: Hint) -> Option<u32> {
        let age = self.next.wrapping_sub(hint.turn).wrapping_sub(1);
        let good = hint.incarnation == incarnation && age < MAX_HANDLES as u32;
        let handle = hint.turn % MAX_HANDLES as u32;
        debug_assert!(!good || self.keys[handle as usize] == cookie.key(), "a hint of another cookie");
        good.then_some(handle)
    }

    /// Returns what to remember of the handle of a cookie.
    pub(crate) fn hint_of(&self, incarnation: u32, handle: u32) -> Hint {
        let newest = self.next.wrapping_sub(1);
        // The last of the handles given so far that has this number.
        let back = newest.wrapping_sub(handle) % MAX_HANDLES as u32;
        Hint { incarnation, turn: newest.wrapping_sub(back) }
    }

    /// Returns the handle of a cookie, after showing it to the owner if it has none. None for want of room.
    #[inline]
    pub(crate) fn show(
        &mut self,
        incarnation: u32,
        cookie: &Cookie,
        hint: Hint,
        writer: &mut impl RecordWriter,
    ) -> Option<u32> {
        let known =
            self.hinted(incarnation, cookie, hint).or_else(|| self.handles.get(&cookie.key()).copied());
        match known {
            Some(handle) => Some(handle),
            None => self.show_new(cookie, writer),
        }
    }

    #[cold]
    fn show_new(&mut self, cookie: &Cookie, writer: &mut impl RecordWriter) -> Option<u32> {
        if !writer.has_room(MAX_HEAD) {
            return None;
        }
        let handle = self.new_handle(cookie);
        let CookieKey { id, epoch, secret } = cookie.key();
        // The room was checked above.
        writer
            .write(&Message::Open { handle, cookie: id, incarnation: epoch, secret }, 0, &[])
            .then_some(handle)
    }

    /// Gives a cookie a handle; it replaces the oldest if there are too many.
    fn new_handle(&mut self, cookie: &Cookie) -> u32 {
        let handle = self.next as usize % MAX_HANDLES;
        self.next = self.next.wrapping_add(1);
        if handle < self.keys.len() {
            let old = std::mem::replace(&mut self.keys[handle], cookie.key());
            self.handles.remove(&old);
        } else {
            self.keys.push(cookie.key());
        }
        self.handles.insert(cookie.key(), handle as u32);
        handle as u32
    }
}
