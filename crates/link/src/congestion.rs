//! The congestion window: how many bytes may be in flight (L-13). It grows while acknowledgements arrive
//! (L-28) and shrinks on loss and delay, at most once per round trip (L-29).

use crate::{Config, Nanos};

/// The smallest window: a few frames, so that later frames can show that an earlier one was lost.
const MIN_WINDOW: u32 = 8 * 1024;

#[derive(Clone, Debug)]
pub(crate) struct Congestion {
    window: u32,
    max_window: u32,
    slow_start: bool,
    /// The window is not reduced again for packets before this one.
    reduced_at: u64,
    acked: u32,
    enabled: bool,
    delay_target: Nanos,
}

impl Congestion {
    pub(crate) fn new(config: &Config, peer_buffer: u32) -> Congestion {
        // L-14: without congestion control, this is the window.
        let max_window = peer_buffer.max(MIN_WINDOW);
        Congestion {
            window: if config.congestion { config.window_initial.min(max_window) } else { max_window },
            max_window,
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

    /// Grows the window: `bytes` were acknowledged, and `in_flight` were in flight before that.
    #[inline]
    pub(crate) fn on_ack(&mut self, bytes: u32, in_flight: u32, frame: u32) {
        // A window that is not used shows nothing about the path.
        if !self.enabled || self.window == self.max_window || in_flight < self.window / 2 {
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
        self.window = self.window.saturating_add(growth).min(self.max_window);
    }

    /// Shrinks the window if the round trip of `packet` took too long; `next` is the next packet number.
    #[inline]
    pub(crate) fn on_delay(&mut self, rtt: Nanos, shortest: Nanos, packet: u64, next: u64) {
        let target = shortest + self.delay_target;
        if self.enabled && rtt > target && packet > self.reduced_at {
            // In proportion to the excess, to 0.6 at the least.
            let excess = (rtt - target) * 100 / rtt;
            self.reduce(100 - (excess * 2 / 5).min(40) as u32, next);
        }
    }

    /// Shrinks the window because `packet` was lost; `next` is the next packet number.
    pub(crate) fn on_loss(&mut self, packet: u64, next: u64) {
        if self.enabled && packet > self.reduced_at {
            self.reduce(70, next);
        }
    }

    /// Shrinks the window because the timer expired twice in a row.
    pub(crate) fn on_timeout(&mut self, next: u64) {
        if self.enabled {
            self.reduce(50, next);
        }
    }

    fn reduce(&mut self, percent: u32, next: u64) {
        self.window = (u64::from(self.window) * u64::from(percent) / 100).max(u64::from(MIN_WINDOW)) as u32;
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

    /// L-13, L-28: the window grows only while it is used, and at most to the peer's buffer.
    #[test]
    fn window_grows_while_used() {
        let mut c = fresh();
        c.on_ack(10_000, 1_000, 1_500);
        assert_eq!(c.window(), 32 * 1024);
        for _ in 0..100 {
            c.on_ack(30_000, c.window(), 1_500);
        }
        assert_eq!(c.window(), 200_000);
    }

    /// L-29: one reduction per round trip, for loss and for delay, never below the minimum.
    #[test]
    fn window_shrinks_once_per_round_trip() {
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
        assert_eq!(c.window(), MIN_WINDOW);
    }

    /// L-14: without congestion control, the window is always the peer's buffer.
    #[test]
    fn fixed_window_without_congestion_control() {
        let mut c = Congestion::new(&Config { congestion: false, ..Config::default() }, 200_000);
        c.on_loss(5, 10);
        c.on_timeout(11);
        c.on_delay(1_000_000_000, 10, 12, 13);
        assert_eq!(c.window(), 200_000);
    }
}
