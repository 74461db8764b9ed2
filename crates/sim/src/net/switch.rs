//! A network of one switch, and processors that take their time: the model behind [`crate::cluster`].

use crate::Nanos;

/// What a network of one switch is made of. Every node has a cable of its own to the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkModel {
    /// Megabits per second of each cable, in each direction.
    pub mbps: u64,
    /// Nanoseconds from the last bit on the sender's cable to the first on the receiver's, without queues.
    pub latency_ns: Nanos,
    /// Bytes that may wait at the switch for one receiver's cable; more are dropped.
    pub queue_bytes: u64,
    /// Processor time of a node for each frame that it sends.
    pub send_ns: Nanos,
    /// Processor time of a node for each frame that it receives.
    pub receive_ns: Nanos,
    /// From the arrival of a frame at an idle node until the node runs.
    pub wake_ns: Nanos,
}

impl Default for NetworkModel {
    /// Cables of 10 Gb/s, a shallow switch, and a kernel's UDP.
    fn default() -> NetworkModel {
        NetworkModel {
            mbps: 10_000,
            latency_ns: 5_000,
            queue_bytes: 1 << 20,
            send_ns: 1_000,
            receive_ns: 1_000,
            wake_ns: 3_000,
        }
    }
}

/// One node's processor and cable.
#[derive(Clone, Copy, Debug, Default)]
struct Card {
    /// The processor is busy until then.
    processor: Nanos,
    /// The cable to the switch carries frames until then.
    out: Nanos,
    /// The cable from the switch carries frames until then.
    back: Nanos,
}

#[derive(Debug)]
pub(super) struct Switch {
    model: NetworkModel,
    cards: Vec<Card>,
}

impl Switch {
    pub(super) fn new(model: NetworkModel, nodes: u32) -> Switch {
        Switch { model, cards: vec![Card::default(); nodes as usize] }
    }

    pub(super) fn begin_run(&mut self, now: Nanos, node: u32) {
        let card = &mut self.cards[node as usize];
        card.processor = card.processor.max(now);
    }

    pub(super) fn received(&mut self, node: u32) {
        self.cards[node as usize].processor += self.model.receive_ns;
    }

    pub(super) fn busy_until(&self, node: u32) -> Nanos {
        self.cards[node as usize].processor
    }

    /// A frame leaves with this many bytes on the wire. Returns when it arrives; none if it is dropped.
    pub(super) fn pass(&mut self, from: u32, to: u32, bytes: u64) -> Option<Nanos> {
        let NetworkModel { mbps, latency_ns, queue_bytes, send_ns, .. } = self.model;
        let time = (bytes * 8_000).div_ceil(mbps);
        let card = &mut self.cards[from as usize];
        card.processor += send_ns;
        card.out = card.out.max(card.processor) + time;
        let here = card.out + latency_ns;
        let back = &mut self.cards[to as usize].back;
        // It is forwarded as it comes in, unless others wait.
        let start = (*back).max(here - time.min(here));
        if (start + time).saturating_sub(here) * mbps / 8_000 > queue_bytes {
            return None;
        }
        *back = start + time;
        Some(*back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: NetworkModel = NetworkModel {
        mbps: 8_000,
        latency_ns: 500,
        queue_bytes: 2_000,
        send_ns: 100,
        receive_ns: 50,
        wake_ns: 0,
    };

    /// An idle network takes processor time, the time on the wire once, and its latency.
    #[test]
    fn idle() {
        let mut switch = Switch::new(MODEL, 3);
        switch.begin_run(10_000, 0);
        assert_eq!(switch.pass(0, 1, 1_000), Some(10_000 + 100 + 1_000 + 500));
        assert_eq!(switch.busy_until(0), 10_100);
        switch.received(1);
        assert_eq!(switch.busy_until(1), 50);
    }

    /// Frames of one sender follow each other on its cable; those of two senders on the receiver's, where
    /// they wait and are dropped.
    #[test]
    fn queues() {
        let mut switch = Switch::new(MODEL, 5);
        assert_eq!([0, 0].map(|from| switch.pass(from, 4, 1_000)), [Some(1_600), Some(2_600)]);
        assert_eq!(switch.pass(1, 4, 1_000), Some(3_600));
        assert_eq!(switch.pass(2, 4, 1_000), None);
        assert_eq!(switch.pass(3, 2, 1_000), Some(1_600));
    }
}
