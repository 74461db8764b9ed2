//! Time: the retransmission timer, heartbeats, death (L-10, L-15 … L-17).

use tautline_wire::ext::{EXT_HEADER, MAX_SACK_BYTES};
use tautline_wire::frame::{HEADER_LEN, MIN_FRAME};

use crate::link::State;
use crate::{Death, Event, Link, Nanos};

/// The timer's interval stops doubling here.
const MAX_BACKOFF: u32 = 6;
/// A large slot that vanishes this often in a row, while what was sent after it arrives, shows a black hole (L-21): found by the timer, and
/// in any way.
const BLACK_HOLE_AFTER: u32 = 4;
const BLACK_HOLE_AMONG: u32 = 8;

impl Link {
    /// When [`Link::handle_timeout`] must be called at the latest.
    pub fn next_deadline(&self) -> Option<Nanos> {
        let ack = self.rx.ack_deadline();
        match self.state {
            State::Dead => return None,
            State::Closed | State::PeerClosed => return (ack != Nanos::MAX).then_some(ack),
            State::Open | State::Closing => {}
        }
        let mut at = ack.min(self.heartbeat_at()).min(self.clocks.heard + self.config.silence);
        if self.timer_runs() {
            at = at.min(self.timer_at());
        }
        if let Some(probe) = self.path.probe_deadline() {
            at = at.min(probe);
        }
        Some(at)
    }

    /// Does what is due; frames that follow from it come from [`Link::poll_transmit`].
    pub fn handle_timeout(&mut self, now: Nanos) {
        if !matches!(self.state, State::Open | State::Closing) {
            return;
        }
        let half = self.config.silence / 2;
        if now.saturating_sub(self.clocks.tick) > half {
            // L-16: we were not listening; what the peer said meanwhile may still be on its way to us.
            self.clocks.heard = self.clocks.heard.max(now - half);
        }
        self.clocks.tick = now;
        if now.saturating_sub(self.clocks.heard) >= self.config.silence {
            self.kill(Death::Silence);
            return;
        }
        if self.timer_runs() && now >= self.timer_at() {
            self.expire(now);
        }
        if now >= self.heartbeat_at() {
            self.clocks.ask = true;
            self.clocks.asked = now;
        }
    }

    /// The retransmission timer runs while we wait for an answer of any kind (L-10).
    fn timer_runs(&self) -> bool {
        self.tx.flying() || self.tx.waiting() > 0 || !self.clocks.confirmed || self.state == State::Closing
    }

    fn timer_at(&self) -> Nanos {
        let peer_delay = u64::from(self.peer.ack_delay_us) * crate::MICRO;
        let timeout = self.rtt.timeout(&self.config, peer_delay);
        self.clocks.progress + (timeout << self.clocks.backoff).min(self.config.rto_max.max(timeout))
    }

    /// L-17: when nothing was heard for a while, ask; while there is no answer, ask eight times as often: of many questions one gets through where a third of all frames is lost.
    fn heartbeat_at(&self) -> Nanos {
        let interval = self.config.heartbeat(self.higher);
        let due = self.clocks.heard + interval;
        // The lower rank asks; it asks all its peers at the same moments, so that a node with many of them seldom wakes.
        let due = if self.higher { due } else { due - due % (interval / 2).max(1) };
        due.max(self.clocks.asked + interval / 8)
    }

    #[cold]
    fn expire(&mut self, now: Nanos) {
        self.counters.timeouts += 1;
        self.clocks.progress = now;
        self.clocks.backoff = (self.clocks.backoff + 1).min(MAX_BACKOFF);
        self.clocks.close_due |= self.state == State::Closing;
        if !self.tx.flying() {
            // Blocked for want of credit, or not yet answered at all: a question costs least.
            self.clocks.ask = true;
            self.clocks.probes = u32::from(!self.tx.lost.is_empty());
            return;
        }
        self.find_black_hole(now, true);
        self.config.recovery.rules().on_timeout(&mut self.tx);
        // Evidence came too late: let fewer packets overtake again (L-9), or losses wait for the timer ever after.
        self.reorder = (self.reorder / 2).max(crate::recovery::REORDER_MIN);
        self.clocks.probes = 1;
        if self.clocks.backoff > 1 {
            self.congestion.on_timeout(self.next_packet);
        }
    }

    /// The oldest slot is lost, or seems to be. If it is large, it vanishes for its length only where smaller frames arrive: when
    /// nothing does, the peer is silent, or the path is cut, and both may be over in a moment.
    #[cold]
    pub(crate) fn find_black_hole(&mut self, now: Nanos, by_timer: bool) {
        // With all that may be around it, the slot makes a frame that not every path carries.
        let around = HEADER_LEN + EXT_HEADER + MAX_SACK_BYTES + crate::SEAL_LEN;
        let large = |len: u32| len as usize + around > MIN_FRAME;
        let Some(front) = self.tx.slots.front().filter(|slot| large(slot.len)) else { return };
        // A small frame goes after it, to show which of the two it is.
        self.clocks.witness = by_timer;
        if self.largest_echo <= front.packet {
            return;
        }
        let base = self.tx.base;
        let (timers, losses) =
            self.clocks.stuck.filter(|stuck| stuck.0 == base).map_or((0, 0), |s| (s.1, s.2));
        let (timers, losses) = (timers + u32::from(by_timer), losses + 1);
        self.clocks.stuck = Some((base, timers, losses));
        let hole = timers >= BLACK_HOLE_AFTER || losses >= BLACK_HOLE_AMONG;
        if hole && self.path.black_hole(now) {
            self.counters.black_holes += 1;
            self.events.push_back(Event::PathChanged(self.path.max_frame()));
        }
    }
}
