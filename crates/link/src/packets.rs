//! Packet numbers of the frames sent (L-2): when each was sent, and which the peer has echoed.

use tautline_wire::seq::widen;

use crate::Nanos;

/// Packets whose sending times are kept.
const SENT_TIMES: usize = 2048;

#[derive(Debug)]
pub(crate) struct SentPackets {
    next: u64,
    /// A ring, addressed by packet number.
    times: Box<[Nanos]>,
    largest_echo: u64,
}

impl SentPackets {
    pub(crate) fn new() -> SentPackets {
        SentPackets { next: 1, times: vec![0; SENT_TIMES].into_boxed_slice(), largest_echo: 0 }
    }

    /// Assigns the next packet number.
    #[inline]
    pub(crate) fn take(&mut self, now: Nanos) -> u64 {
        let packet = self.next;
        self.next += 1;
        self.times[packet as usize % SENT_TIMES] = now;
        packet
    }

    /// Returns the number that the next packet will have.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the largest packet number that the peer has echoed; zero before the first echo.
    #[inline]
    pub(crate) fn largest_echo(&self) -> u64 {
        self.largest_echo
    }

    /// Records an echo and returns its packet number, unless it is old or of a packet never sent (L-7).
    #[inline]
    pub(crate) fn accept_echo(&mut self, echo: u32) -> Option<u64> {
        if echo == 0 && self.largest_echo == 0 {
            return None;
        }
        let packet = widen(echo, self.next);
        if packet <= self.largest_echo || packet >= self.next {
            return None;
        }
        self.largest_echo = packet;
        Some(packet)
    }

    /// Returns when a packet was sent, if that is still known.
    #[inline]
    pub(crate) fn sent_at(&self, packet: u64) -> Option<Nanos> {
        let known = self.next - packet <= SENT_TIMES as u64;
        known.then(|| self.times[packet as usize % SENT_TIMES])
    }
}
