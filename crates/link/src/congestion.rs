//! The congestion window: bytes that may be in flight (L-13). Grows while acknowledgements come, shrinks on loss and on
//! delay, at most once per round trip.

use crate::{Config, Nanos};

/// The window never falls below this many bytes: a few frames, so that evidence of loss can arise.
const FLOOR: u32 = 8 * 1024;

#[derive(Clone, Debug)]
pub(crate) struct Congestion {
    window: u32,
    ceiling: u32,
    slow_start: bool,
    /// No second reduction before the packet after this one is acknowledged.
    reduced_at: u64,
    acked: u32,
    enabled: bool,
    delay_target: Nanos,
}

impl Congestion {
    pub(crate) fn new(config: &Config, peer_buffer: u32) -> Congestion {
        // L-14: without congestion control, this is the window.
        let ceiling = peer_buffer.max(FLOOR);
        Congestion {
            window: if config.congestion { config.window_initial.min(ceiling) } else { ceiling },
            ceiling,
            slow_start: true,
            reduced_at: 0,
            acked: 0,
            enabled: config.congestion,
            delay_target: config.delay_target,
        }
    }

    #[inline]
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// `bytes` were acknowledged while `in_flight` (before that) were under way.
    #[inline]
    pub(crate) fn on_ack(&mut self, bytes: u32, in_flight: u32, frame: u32) {
        // A window that is not used says nothing about the path.
        if !self.enabled || self.window == self.ceiling || in_flight < self.window / 2 {
            return;
        }
        let growth = if self.slow_start {
            bytes
        } else {
            self.acked += bytes;
            if self.acked < self.window {
                return;
            }
            self.acked = 0;
            frame
        };
        self.window = self.window.saturating_add(growth).min(self.ceiling);
    }

    /// A round trip took `rtt`, the shortest known is `shortest`; `packet` was its packet, `next` is the next one.
    #[inline]
    pub(crate) fn on_delay(&mut self, rtt: Nanos, shortest: Nanos, packet: u64, next: u64) {
        let target = shortest + self.delay_target;
        if self.enabled && rtt > target && packet > self.reduced_at {
            // Proportional to the excess, at most to six tenths.
            let excess = (rtt - target) * 100 / rtt;
            self.reduce(100 - (excess * 2 / 5).min(40) as u32, next);
        }
    }

    /// Evidence of loss of `packet`; `next` is the next packet number.
    pub(crate) fn on_loss(&mut self, packet: u64, next: u64) {
        if self.enabled && packet > self.reduced_at {
            self.reduce(70, next);
        }
    }

    /// The timer expired with nothing heard.
    pub(crate) fn on_timeout(&mut self, next: u64) {
        if self.enabled {
            self.reduce(50, next);
        }
    }

    fn reduce(&mut self, percent: u32, next: u64) {
        self.window = (u64::from(self.window) * u64::from(percent) / 100).max(u64::from(FLOOR)) as u32;
        self.slow_start = false;
        self.reduced_at = next;
        self.acked = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> Congestion {
        Congestion::new(&Config { window_initial: 32 * 1024, ..Config::default() }, 200_000)
    }

    /// L-13: the window grows only while it is used, to the peer's buffer at most.
    #[test]
    fn grows_when_used() {
        let mut c = fresh();
        c.on_ack(10_000, 1_000, 1_500);
        assert_eq!(c.window(), 32 * 1024);
        for _ in 0..100 {
            c.on_ack(30_000, c.window(), 1_500);
        }
        assert_eq!(c.window(), 200_000);
    }

    /// L-13: one reduction per round trip, for loss and for delay, never below the floor.
    #[test]
    fn reduces_once_per_round_trip() {
        let mut c = fresh();
        c.on_loss(5, 10);
        let once = c.window();
        assert!(once < 32 * 1024);
        c.on_loss(6, 11);
        c.on_delay(1_000_000_000, 10, 7, 12);
        assert_eq!(c.window(), once);
        c.on_delay(1_000_000_000, 10, 11, 20);
        assert!(c.window() < once);
        for i in 0..100 {
            c.on_timeout(i);
        }
        assert_eq!(c.window(), FLOOR);
    }

    /// L-14: switched off, the peer's buffer is the window, whatever happens.
    #[test]
    fn switched_off() {
        let mut c = Congestion::new(&Config { congestion: false, ..Config::default() }, 200_000);
        c.on_loss(5, 10);
        c.on_timeout(11);
        c.on_delay(1_000_000_000, 10, 12, 13);
        assert_eq!(c.window(), 200_000);
    }
}
