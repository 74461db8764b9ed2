//! Whether the UDP socket or the netlink socket is worth a system call: a filter on each socket counts its
//! packets in a word that this process has mapped.

use std::os::fd::{AsFd, BorrowedFd};

use super::program;
use super::unavailable::{Unavailable, system, unloaded};
use crate::sys::bpf::{self, WordMap};
use crate::sys::request::is_readable;

/// The word that counts datagrams for the socket that owns the port.
const UDP_WORD: usize = 0;
/// The word that counts changes of the kernel's tables, and requests of other processes.
const EVENT_WORD: usize = 1;

/// Polls of a socket after its word last changed. The word is incremented shortly before the packet can be
/// read, so a single poll might be too early.
const POLLS: u32 = 64;
/// Receives after which both sockets are polled regardless of their words, in case a packet took longer than
/// [`POLLS`].
const FORCED_POLL: u32 = 1 << 16;

/// What is known of packets for the sockets.
#[derive(Debug)]
pub(super) struct Arrivals {
    words: WordMap,
    udp_seen: u64,
    events_seen: u64,
    /// Polls that are still due.
    udp_polls: u32,
    event_polls: u32,
    /// Receives so far.
    pub receives: u32,
    /// The UDP socket had its turn, so the rings have the next one.
    udp_had_turn: bool,
}

impl Arrivals {
    /// Makes the UDP socket and the netlink socket count their packets.
    pub(super) fn new(udp: BorrowedFd<'_>, netlink: BorrowedFd<'_>) -> Result<Arrivals, Unavailable> {
        let words = WordMap::new(2).map_err(|e| system("a map of words", e))?;
        let mut arrivals = Arrivals {
            words,
            udp_seen: 0,
            events_seen: 0,
            udp_polls: 0,
            event_polls: 0,
            receives: 0,
            udp_had_turn: false,
        };
        arrivals.attach(UDP_WORD, udp)?;
        // What arrived before the filter was not counted.
        arrivals.udp_polls = if is_readable(udp) { POLLS } else { 0 };
        arrivals.add_event_source(netlink)?;
        Ok(arrivals)
    }

    /// Makes another socket count among events.
    pub(super) fn add_event_source(&mut self, socket: BorrowedFd<'_>) -> Result<(), Unavailable> {
        self.attach(EVENT_WORD, socket)?;
        if is_readable(socket) {
            self.event_polls = POLLS;
        }
        Ok(())
    }

    fn attach(&self, word: usize, socket: BorrowedFd<'_>) -> Result<(), Unavailable> {
        let code = program::arrival_counter(self.words.raw(), word as u32);
        let filter = bpf::load(bpf::PROG_SOCKET_FILTER, &code, 0, "tautline_count")
            .map_err(|refused| unloaded("a filter", &refused))?;
        bpf::attach_filter(filter.as_fd(), socket).map_err(|e| system("to attach a filter", e))
    }

    /// Whether neither socket has to be polled.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        (self.udp_polls | self.event_polls) == 0
            && self.words.get(UDP_WORD) == self.udp_seen
            && self.words.get(EVENT_WORD) == self.events_seen
    }

    /// Whether events are to be polled now.
    #[inline]
    pub(super) fn has_events(&mut self) -> bool {
        let word = self.words.get(EVENT_WORD);
        if word == self.events_seen && self.event_polls == 0 {
            return false;
        }
        self.event_polls = if word == self.events_seen { self.event_polls - 1 } else { POLLS };
        self.events_seen = word;
        true
    }

    /// Counts a receive. Returns whether the UDP socket is to be polled now; `ring_has_frames` lets the rings
    /// take turns with it.
    #[inline]
    pub(super) fn has_datagrams(&mut self, ring_has_frames: impl FnOnce() -> bool) -> bool {
        let word = self.words.get(UDP_WORD);
        self.receives += 1;
        if word != self.udp_seen {
            (self.udp_seen, self.udp_polls) = (word, POLLS);
        } else if self.receives >= FORCED_POLL {
            (self.receives, self.udp_polls) = (0, self.udp_polls.max(1));
            self.event_polls = self.event_polls.max(1);
        }
        let due = self.udp_polls > 0 && (!self.udp_had_turn || !ring_has_frames());
        self.udp_had_turn = due;
        due
    }

    /// Notes whether a poll of the UDP socket found anything; if not, it was no turn.
    #[inline]
    pub(super) fn note_datagrams(&mut self, any: bool) {
        self.udp_had_turn = any;
        self.udp_polls = if any { POLLS } else { self.udp_polls.saturating_sub(1) };
    }
}
