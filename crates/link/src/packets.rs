//! Packet numbers of the frames sent (L-2): when each was sent, and which the peer has echoed.

use tautline_wire::seq::widen;

use crate::Nanos;

/// Packets whose sending times are kept, at most.
const SENT_TIMES: usize = 2048;
/// The same of a link that is idle, or has been opened just now.
const FEW_TIMES: usize = 8;

#[derive(Debug)]
pub(crate) struct SentPackets {
    next: u64,
    /// A ring, addressed by packet number. It grows while more packets are sent than are echoed.
    times: Box<[Nanos]>,
    /// The first packet that the ring has no room for unless a later one is echoed.
    room_to: u64,
    largest_echo: u64,
}

impl SentPackets {
    pub(crate) fn new() -> SentPackets {
        SentPackets { next: 1, times: ring(FEW_TIMES), room_to: 1 + FEW_TIMES as u64, largest_echo: 0 }
    }

    /// Assigns the next packet number.
    #[inline]
    pub(crate) fn take(&mut self, now: Nanos) -> u64 {
        let packet = self.next;
        self.next += 1;
        if packet == self.room_to {
            self.make_room(packet);
        }
        let at = self.place(packet);
        self.times[at] = now;
        packet
    }

    #[inline]
    fn place(&self, packet: u64) -> usize {
        packet as usize & (self.times.len() - 1)
    }

    /// Makes room for the time of a packet: times of packets that were echoed are overwritten, or the ring
    /// grows. A ring of full size overwrites the oldest.
    #[cold]
    fn make_room(&mut self, packet: u64) {
        let unechoed = (packet - self.largest_echo) as usize;
        if unechoed > self.times.len() / 2 && self.times.len() < SENT_TIMES {
            self.resize((unechoed * 4).next_power_of_two().min(SENT_TIMES), packet);
        }
        let len = self.times.len() as u64;
        self.room_to = packet + if len == SENT_TIMES as u64 { len } else { len - unechoed as u64 };
    }

    /// Changes the size of the ring; keeps the times of the packets before `packet` that it has room for.
    fn resize(&mut self, size: usize, packet: u64) {
        let mut times = ring(size);
        let kept = self.times.len().min(size - 1) as u64;
        for number in packet.saturating_sub(kept)..packet {
            times[number as usize & (size - 1)] = self.times[self.place(number)];
        }
        self.times = times;
    }

    /// Gives memory back: the link is idle, and a few packets at most are not echoed.
    pub(crate) fn shrink(&mut self) {
        if self.times.len() > FEW_TIMES && self.next - self.largest_echo <= FEW_TIMES as u64 / 2 {
            self.resize(FEW_TIMES, self.next);
            self.room_to = self.largest_echo + 1 + FEW_TIMES as u64 / 2;
        }
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
        let known = self.next - packet <= self.times.len() as u64;
        known.then(|| self.times[self.place(packet)])
    }
}

fn ring(size: usize) -> Box<[Nanos]> {
    debug_assert!(size.is_power_of_two());
    vec![0; size].into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of every packet from the oldest that was not echoed on is known, as long as they are no more
    /// than the ring holds at most; an idle link needs few.
    #[test]
    fn times_are_known_until_the_echo() {
        let mut packets = SentPackets::new();
        let known = |packets: &SentPackets| {
            let first = (packets.largest_echo + 1).max(packets.next.saturating_sub(SENT_TIMES as u64));
            assert!((first..packets.next).all(|packet| packets.sent_at(packet) == Some(10 * packet)));
        };
        for (sent, echo) in [(5, 3), (9, 9), (40, 12), (1_000, 1_000), (1_300, 1_100), (6_000, 5_999)] {
            while packets.next <= sent {
                let packet = packets.next;
                packets.take(10 * packet);
                known(&packets);
            }
            assert_eq!(packets.accept_echo(echo as u32), Some(echo));
            known(&packets);
            packets.shrink();
            known(&packets);
        }
        assert_eq!(packets.times.len(), FEW_TIMES);
        // Steady traffic with few packets in flight needs no more.
        for _ in 0..1_000 {
            let packet = packets.take(0);
            packets.accept_echo(packet as u32);
        }
        assert_eq!(packets.times.len(), FEW_TIMES);
    }
}
