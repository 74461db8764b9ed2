//! Handles the acknowledgement, credit and echo of a received frame: frees slots, takes round-trip samples,
//! finds losses (L-5 … L-9, L-12).

use tautline_wire::handshake::MAX_CREDIT;
use tautline_wire::{Header, Seq};

use super::Sender;
use crate::Nanos;
use crate::report::{Event, Reports};

impl Sender {
    #[inline]
    pub(crate) fn handle_ack(
        &mut self,
        now: Nanos,
        header: &Header,
        sack: Option<&[u8]>,
        reports: &mut Reports,
    ) {
        let in_flight = self.queue.in_flight();
        let mut acked = 0;
        // L-7: slots that were never sent cannot be acknowledged.
        let advance = header.ack.distance(self.queue.base());
        if advance > 0 && advance <= self.queue.next().distance(self.queue.base()) {
            acked += self.queue.acknowledge_until(header.ack);
        }
        if let Some(bits) = sack {
            acked += self.acknowledge_ahead(header.ack, bits);
        }
        // Credit never shrinks, and never exceeds the largest that may be granted (L-12).
        let fresh = header.credit.distance(self.queue.credit());
        if fresh > 0 && header.credit.distance(header.ack) <= MAX_CREDIT as i32 {
            self.queue.grant(header.credit);
            self.timer.restart(now);
        }
        self.handle_echo(now, header, reports);
        if acked > 0 {
            self.timer.on_progress(now);
            let frame = self.path.max_frame() as u32;
            self.congestion.on_ack(acked, in_flight, frame);
        }
        self.reorder.on_duplicates(header.duplicates);
        self.find_losses(now, reports);
    }

    #[cold]
    fn acknowledge_ahead(&mut self, ack: Seq, bits: &[u8]) -> u32 {
        let mut acked = 0;
        for (i, byte) in bits.iter().enumerate() {
            for j in (0..8).filter(|j| byte & (1 << j) != 0) {
                let seq = ack.ahead(1 + 8 * i as u32 + j);
                if !seq.before(self.queue.base()) && seq.before(self.queue.next()) {
                    acked += self.queue.acknowledge(seq);
                }
            }
        }
        acked
    }

    #[inline]
    fn handle_echo(&mut self, now: Nanos, header: &Header, reports: &mut Reports) {
        let Some(packet) = self.packets.accept_echo(header.echo) else { return };
        if let Some(sent) = self.packets.sent_at(packet) {
            let rtt = now.saturating_sub(sent).saturating_sub(u64::from(header.residence_ns)).max(1);
            self.rtt.sample(rtt);
            self.congestion.on_delay(rtt, self.rtt.shortest(), packet, self.packets.next());
        }
        if self.path.on_echo(packet) {
            reports.events.push_back(Event::PathChanged(self.path.max_frame()));
        }
    }

    /// Marks slots as lost that later packets have overtaken (L-9).
    #[inline]
    pub(crate) fn find_losses(&mut self, now: Nanos, reports: &mut Reports) {
        let Some(front) = self.queue.front() else { return };
        let overtaken =
            front.packet != 0 && front.packet + self.reorder.packets() <= self.packets.largest_echo();
        if overtaken || self.queue.len() > 1 && front.resent {
            self.find_losses_slowly(now, reports);
        }
    }

    #[cold]
    fn find_losses_slowly(&mut self, now: Nanos, reports: &mut Reports) {
        let before = self.queue.lost_len();
        let (largest, threshold) = (self.packets.largest_echo(), self.reorder.packets());
        if let Some(packet) = self.policy.rules().on_evidence(&mut self.queue, largest, threshold) {
            reports.counters.losses_by_evidence += self.queue.lost_len().saturating_sub(before) as u64;
            self.congestion.on_loss(packet, self.packets.next());
            self.on_front_lost(now, false, reports);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::queue::SendQueue;
    use tautline_wire::Kind;

    /// L-7: acknowledgements of slots and packets that were never sent, and excessive credit, are ignored.
    #[test]
    fn false_acknowledgements_are_ignored() {
        let start = Seq(77);
        let config = Config::default();
        let mut sender = Sender::new(1, &config, SendQueue::new(start, 256), 200_000, 1472);
        let mut reports = Reports::default();
        for token in 0..4 {
            sender.queue.push(token, 100);
        }
        for _ in 0..2 {
            let seq = sender.next_unsent(&mut reports.counters).unwrap();
            let packet = sender.take_packet(2, &mut reports.counters);
            sender.charge(2, seq, packet);
        }
        let credit = sender.queue.credit();
        let header = Header {
            kind: Kind::Data,
            flags: 0,
            ext_len: 0,
            channel: 1,
            packet: 1,
            slot: Seq(0),
            ack: start.ahead(3),
            credit: start.ahead(1 << 20),
            echo: 500,
            residence_ns: 0,
            duplicates: 0,
            tag: 0,
        };
        sender.handle_ack(3, &header, Some(&[0xff; 8]), &mut reports);
        let queue = &mut sender.queue;
        assert_eq!((queue.poll_freed(), queue.base(), queue.credit()), (None, start, credit));
        assert_eq!((sender.packets.largest_echo(), sender.rtt.smoothed()), (0, None));
        let header = Header { ack: start.ahead(2), echo: 2, ..header };
        sender.handle_ack(3, &header, None, &mut reports);
        assert_eq!((sender.queue.base(), sender.packets.largest_echo()), (start.ahead(2), 2));
    }
}
