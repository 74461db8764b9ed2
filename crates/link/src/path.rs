//! The path's frame limit (L-20, L-21): what the device says, lowered when large frames vanish, raised again by probes.

use tautline_wire::frame::MIN_FRAME;

use crate::{MILLI, Nanos};

/// A lowered limit is probed this often.
const PROBE_INTERVAL: Nanos = 2_000 * MILLI;

#[derive(Clone, Debug)]
pub(crate) struct Path {
    device_limit: usize,
    max_frame: usize,
    /// The largest that the limit ever was.
    widest: usize,
    probe_at: Nanos,
    /// The probe under way: packet number and size.
    probe: Option<(u64, usize)>,
}

impl Path {
    pub(crate) fn new(now: Nanos, limit: usize) -> Path {
        Path { device_limit: limit, max_frame: limit, widest: limit, probe_at: now, probe: None }
    }

    #[inline]
    pub(crate) fn max_frame(&self) -> usize {
        self.max_frame
    }

    #[inline]
    pub(crate) fn widest(&self) -> usize {
        self.widest
    }

    /// True if the limit in force changed.
    pub(crate) fn set_device_limit(&mut self, now: Nanos, limit: usize) -> bool {
        let before = self.max_frame;
        // After a black hole a higher limit must prove itself first.
        if self.max_frame == self.device_limit || limit < self.max_frame {
            self.max_frame = limit;
            self.widest = self.widest.max(limit);
        }
        self.device_limit = limit;
        self.probe_at = now;
        before != self.max_frame
    }

    /// Large frames vanish: falls back to what every path carries. True if that lowered anything.
    pub(crate) fn black_hole(&mut self, now: Nanos) -> bool {
        let lower = self.max_frame > MIN_FRAME;
        self.max_frame = self.max_frame.min(MIN_FRAME);
        self.probe_at = now + PROBE_INTERVAL;
        self.probe = None;
        lower
    }

    /// When the next probe is due, if the limit is lowered.
    pub(crate) fn probe_deadline(&self) -> Option<Nanos> {
        (self.max_frame < self.device_limit).then_some(self.probe_at)
    }

    /// The size of the probe to be sent now as `packet`, if one is due.
    pub(crate) fn take_probe(&mut self, now: Nanos, packet: u64) -> Option<usize> {
        if self.probe_deadline()? > now {
            return None;
        }
        self.probe_at = now + PROBE_INTERVAL;
        self.probe = Some((packet, self.device_limit));
        Some(self.device_limit)
    }

    /// The peer echoed `packet`; true if that proves a higher limit.
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
    fn falls_and_rises() {
        let mut path = Path::new(0, 8192);
        assert!(path.take_probe(10, 1).is_none());
        assert!(path.black_hole(10));
        assert!(!path.black_hole(10));
        assert_eq!(path.max_frame(), MIN_FRAME);
        assert!(path.take_probe(10, 5).is_none());
        let at = path.probe_deadline().unwrap();
        assert_eq!(path.take_probe(at, 6), Some(8192));
        assert!(!path.on_echo(5));
        assert!(path.on_echo(6));
        assert_eq!(path.max_frame(), 8192);
    }

    /// L-20: the device's word is law downwards at once, upwards unless a black hole was seen.
    #[test]
    fn follows_the_device() {
        let mut path = Path::new(0, 8192);
        assert!(path.set_device_limit(0, 1472));
        assert!(path.set_device_limit(0, 8192));
        assert_eq!(path.max_frame(), 8192);
        path.black_hole(0);
        assert!(!path.set_device_limit(0, 9000));
        assert_eq!(path.max_frame(), MIN_FRAME);
    }
}
