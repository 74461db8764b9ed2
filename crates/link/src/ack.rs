//! What the peer's acknowledgements mean: freed slots, round-trip samples, evidence of loss, credit (L-5 … L-9, L-12).

use tautline_wire::{Header, Seq, seq::widen};

use crate::link::SENT_TIMES;
use crate::recovery::{REORDER_MAX, REORDER_MIN};
use crate::{Link, Nanos};

impl Link {
    #[inline]
    pub(crate) fn handle_ack(&mut self, now: Nanos, header: &Header, sack: Option<&[u8]>) {
        let in_flight = self.tx.in_flight;
        let mut acked = 0;
        // L-7: what was never sent cannot have arrived.
        let advance = header.ack.distance(self.tx.base);
        if advance > 0 && advance <= self.tx.next.distance(self.tx.base) {
            acked += self.acknowledge_until(header.ack);
        }
        if let Some(bits) = sack {
            acked += self.acknowledge_ahead(header.ack, bits);
        }
        // Credit never shrinks, and never exceeds what a sane peer grants (L-12).
        let fresh = header.credit.distance(self.tx.credit);
        if fresh > 0 && header.credit.distance(header.ack) <= tautline_wire::handshake::MAX_CREDIT as i32 {
            self.tx.grant(header.credit);
            self.clocks.progress = now;
        }
        self.handle_echo(now, header);
        if acked > 0 {
            self.clocks.progress = now;
            self.clocks.backoff = 0;
            let frame = self.path.max_frame() as u32;
            self.congestion.on_ack(acked, in_flight, frame);
        }
        if header.repeats != self.peer_repeats {
            self.learn_reordering(header.repeats);
        }
        self.find_losses(now);
    }

    /// Everything before `ack` has arrived; returns the bytes that this freed.
    #[inline]
    fn acknowledge_until(&mut self, ack: Seq) -> u32 {
        let mut acked = 0;
        while self.tx.base != ack {
            if let Some((token, cost)) = self.tx.acknowledge(self.tx.base) {
                self.freed.push(token);
                acked += cost;
            }
            self.tx.slots.pop_front();
            self.tx.base = self.tx.base.next();
        }
        acked
    }

    #[cold]
    fn acknowledge_ahead(&mut self, ack: Seq, bits: &[u8]) -> u32 {
        let mut acked = 0;
        for (i, byte) in bits.iter().enumerate() {
            for j in (0..8).filter(|j| byte & (1 << j) != 0) {
                let seq = ack.ahead(1 + 8 * i as u32 + j);
                let known = !seq.before(self.tx.base) && seq.before(self.tx.next);
                if let Some((token, cost)) = known.then(|| self.tx.acknowledge(seq)).flatten() {
                    self.freed.push(token);
                    acked += cost;
                }
            }
        }
        acked
    }

    #[inline]
    fn handle_echo(&mut self, now: Nanos, header: &Header) {
        if header.echo == 0 && self.largest_echo == 0 {
            return;
        }
        let packet = widen(header.echo, self.next_packet);
        if packet <= self.largest_echo || packet >= self.next_packet {
            return;
        }
        self.largest_echo = packet;
        if self.next_packet - packet <= SENT_TIMES as u64 {
            let sent = self.sent_times[packet as usize % SENT_TIMES];
            let rtt = now.saturating_sub(sent).saturating_sub(u64::from(header.residence_ns)).max(1);
            self.rtt.sample(rtt);
            self.congestion.on_delay(rtt, self.rtt.shortest(), packet, self.next_packet);
        }
        if self.path.on_echo(packet) {
            self.events.push_back(crate::Event::PathChanged(self.path.max_frame()));
        }
    }

    #[inline]
    fn find_losses(&mut self, now: Nanos) {
        let Some(front) = self.tx.slots.front() else { return };
        let overtaken = front.packet != 0 && front.packet + self.reorder <= self.largest_echo;
        if overtaken || self.tx.slots.len() > 1 && front.resent {
            self.find_losses_slowly(now);
        }
    }

    #[cold]
    fn find_losses_slowly(&mut self, now: Nanos) {
        let before = self.tx.lost.len();
        let rules = self.config.recovery.rules();
        if let Some(packet) = rules.on_evidence(&mut self.tx, self.largest_echo, self.reorder) {
            self.counters.losses_by_evidence += self.tx.lost.len().saturating_sub(before) as u64;
            self.congestion.on_loss(packet, self.next_packet);
            self.find_black_hole(now, false);
        }
    }

    /// The peer received slots that it had: some of our losses were none. Let more packets overtake (L-9).
    #[cold]
    fn learn_reordering(&mut self, repeats: u32) {
        if repeats.wrapping_sub(self.peer_repeats) as i32 > 0 {
            self.peer_repeats = repeats;
            self.reorder = (self.reorder * 2).clamp(REORDER_MIN, REORDER_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Fresh, JobKey, Outcome, Peering, Who};
    use tautline_wire::{Handshake, Kind};

    fn live_link() -> Peering {
        let who = |me, peer| Who {
            key: JobKey::new([1; 32]),
            me,
            peer,
            endpoint: 0,
            peer_endpoint: 0,
            max_frame: 1472,
        };
        let mut a = Peering::new(who(0, 1), Config::default());
        let mut b = Peering::new(who(1, 0), Config::default());
        a.connect(1, Fresh { epoch: 77, channel: 1 });
        let hello = Handshake::parse(&a.poll_hello(1).unwrap()).unwrap();
        let Outcome::Reply(welcome) = b.handle_handshake(1, &hello, Fresh { epoch: 88, channel: 2 }) else {
            panic!("the hello is answered")
        };
        a.handle_handshake(1, &Handshake::parse(&welcome).unwrap(), Fresh { epoch: 99, channel: 3 });
        a
    }

    /// L-7: slots and packets that were never sent cannot be acknowledged, and credit beyond reason is no credit.
    #[test]
    fn what_was_never_sent() {
        let mut peering = live_link();
        let link = peering.link_mut().unwrap();
        let start = link.tx.base;
        for token in 0..4 {
            link.push(token, 100);
        }
        link.poll_transmit(2).unwrap();
        link.poll_transmit(2).unwrap();
        let credit = link.tx.credit;
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
            repeats: 0,
            tag: 0,
        };
        link.handle_ack(3, &header, Some(&[0xff; 8]));
        assert_eq!((link.poll_freed(), link.tx.base, link.tx.credit), (None, start, credit));
        assert_eq!((link.largest_echo, link.round_trip()), (0, None));
        link.handle_ack(3, &Header { ack: start.ahead(2), echo: 2, ..header }, None);
        assert_eq!((link.tx.base, link.largest_echo), (start.ahead(2), 2));
    }
}
