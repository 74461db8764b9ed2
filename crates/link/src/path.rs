//! The path's frame limit (L-20, L-21): set by the device, lowered by black holes, raised by probes.

use tautline_wire::Seq;
use tautline_wire::ext::{EXT_HEADER, MAX_SACK_BYTES};
use tautline_wire::frame::{BASE_FRAME, HEADER_LEN};

use crate::queue::Slot;
use crate::seal::SEAL_LEN;
use crate::{MILLI, Nanos};

/// A lowered limit is probed this often.
const PROBE_INTERVAL: Nanos = 2_000 * MILLI;
/// A large slot that is lost this often in a row while later frames arrive shows a black hole (L-21): by the
/// timer, and in total.
const BLACK_HOLE_TIMEOUTS: u32 = 4;
const BLACK_HOLE_LOSSES: u32 = 8;
/// The most bytes that a frame has beside its slot.
const OVERHEAD: usize = HEADER_LEN + EXT_HEADER + MAX_SACK_BYTES + SEAL_LEN;

#[derive(Clone, Debug)]
pub(crate) struct Path {
    device_limit: usize,
    max_frame: usize,
    /// The largest limit so far.
    widest: usize,
    probe_at: Nanos,
    /// The probe under way: packet number and size.
    probe: Option<(u64, usize)>,
    stuck: Option<Stuck>,
    /// A small frame is to be sent behind the retransmission of a large slot.
    small_probe: bool,
}

/// How often in a row the oldest slot was lost while later frames arrived.
#[derive(Clone, Copy, Debug)]
struct Stuck {
    seq: Seq,
    timeouts: u32,
    losses: u32,
}

impl Path {
    pub(crate) fn new(now: Nanos, limit: usize) -> Path {
        Path {
            device_limit: limit,
            max_frame: limit,
            widest: limit,
            probe_at: now,
            probe: None,
            stuck: None,
            small_probe: false,
        }
    }

    #[inline]
    pub(crate) fn max_frame(&self) -> usize {
        self.max_frame
    }

    #[inline]
    pub(crate) fn widest(&self) -> usize {
        self.widest
    }

    /// Sets the device's limit. Returns whether the limit in force changed.
    pub(crate) fn set_device_limit(&mut self, now: Nanos, limit: usize) -> bool {
        let before = self.max_frame;
        // After a black hole a probe must confirm a higher limit first.
        if self.max_frame == self.device_limit || limit < self.max_frame {
            self.max_frame = limit;
            self.widest = self.widest.max(limit);
        }
        self.device_limit = limit;
        self.probe_at = now;
        before != self.max_frame
    }

    /// Records that the oldest slot is lost, or seems to be; `overtaken` says whether a later packet arrived.
    /// A large slot vanishes because of its size only if smaller frames arrive. If none does, the peer is
    /// silent or the path is down, which may be temporary. Returns whether the limit was lowered.
    #[cold]
    pub(crate) fn on_front_lost(
        &mut self,
        now: Nanos,
        (seq, slot): (Seq, &Slot),
        overtaken: bool,
        by_timer: bool,
    ) -> bool {
        if slot.len as usize + OVERHEAD <= BASE_FRAME {
            return false;
        }
        // A small frame behind it shows which of the two is the case (L-30).
        self.small_probe = by_timer;
        if !overtaken {
            return false;
        }
        let before = self.stuck.filter(|stuck| stuck.seq == seq);
        let (timeouts, losses) = before.map_or((0, 0), |stuck| (stuck.timeouts, stuck.losses));
        let stuck = Stuck { seq, timeouts: timeouts + u32::from(by_timer), losses: losses + 1 };
        self.stuck = Some(stuck);
        let black_hole = stuck.timeouts >= BLACK_HOLE_TIMEOUTS || stuck.losses >= BLACK_HOLE_LOSSES;
        black_hole && self.lower(now)
    }

    #[inline]
    pub(crate) fn wants_small_probe(&self) -> bool {
        self.small_probe
    }

    /// Returns whether a small probe is to be sent, and counts it as sent.
    pub(crate) fn take_small_probe(&mut self) -> bool {
        std::mem::take(&mut self.small_probe)
    }

    /// Lowers the limit to what every path carries. Returns whether it was higher.
    fn lower(&mut self, now: Nanos) -> bool {
        let lowered = self.max_frame > BASE_FRAME;
        self.max_frame = self.max_frame.min(BASE_FRAME);
        self.probe_at = now + PROBE_INTERVAL;
        self.probe = None;
        lowered
    }

    /// Returns when the next probe is due, if the limit is lowered.
    pub(crate) fn probe_deadline(&self) -> Option<Nanos> {
        (self.max_frame < self.device_limit).then_some(self.probe_at)
    }

    /// Returns the size of the probe to send now as `packet`, if one is due.
    pub(crate) fn take_probe(&mut self, now: Nanos, packet: u64) -> Option<usize> {
        if self.probe_deadline()? > now {
            return None;
        }
        self.probe_at = now + PROBE_INTERVAL;
        self.probe = Some((packet, self.device_limit));
        Some(self.device_limit)
    }

    /// Handles an echo of `packet`. Returns whether it raised the limit.
    pub(crate) fn on_echo(&mut self, packet: u64) -> bool {
        match self.probe {
            Some((probe, size)) if probe == packet => {
                self.probe = None;
                let raised = size > self.max_frame;
                self.max_frame = size.max(self.max_frame);
                self.widest = self.widest.max(size);
                raised
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L-21: a black hole lowers the limit, an echoed probe raises it again, and nothing else does.
    #[test]
    fn black_holes_lower_and_probes_raise_the_limit() {
        let mut path = Path::new(0, 8192);
        assert!(path.take_probe(10, 1).is_none());
        assert!(path.lower(10));
        assert!(!path.lower(10));
        assert_eq!(path.max_frame(), BASE_FRAME);
        assert!(path.take_probe(10, 5).is_none());
        let at = path.probe_deadline().unwrap();
        assert_eq!(path.take_probe(at, 6), Some(8192));
        assert!(!path.on_echo(5));
        assert!(path.on_echo(6));
        assert_eq!(path.max_frame(), 8192);
    }

    /// L-20: a lower limit of the device applies at once, and a higher one unless a black hole was found.
    #[test]
    fn the_device_sets_the_limit() {
        let mut path = Path::new(0, 8192);
        assert!(path.set_device_limit(0, 1472));
        assert!(path.set_device_limit(0, 8192));
        assert_eq!(path.max_frame(), 8192);
        path.lower(0);
        assert!(!path.set_device_limit(0, 9000));
        assert_eq!(path.max_frame(), BASE_FRAME);
    }
}
