//! Deadlines: acknowledgements, the retransmission timer, heartbeats, death (L-10, L-15 … L-17).

use super::{Link, State};
use crate::{Death, MICRO, Nanos};

impl Link {
    /// Returns when [`Link::handle_timeout`] must be called at the latest.
    pub fn next_deadline(&self) -> Option<Nanos> {
        let ack = self.receiver.ack.deadline();
        match self.state {
            State::Dead => return None,
            State::PeerClosed if self.repeats_reply() => {
                return Some(ack.min(self.timer_at()).min(self.reply_until));
            }
            State::Closed | State::PeerClosed => return (ack != Nanos::MAX).then_some(ack),
            State::Open | State::Closing => {}
        }
        let liveness = &self.liveness;
        let mut at = ack.min(liveness.heartbeat_at(&self.config)).min(liveness.death_at(&self.config));
        if self.timer_runs() {
            at = at.min(self.timer_at());
        }
        if let Some(probe) = self.sender.path.probe_deadline() {
            at = at.min(probe);
        }
        Some(at)
    }

    /// Handles what is due. [`Link::poll_transmit`] returns the frames that result.
    pub fn handle_timeout(&mut self, now: Nanos) {
        if !matches!(self.state, State::Open | State::Closing) {
            if self.repeats_reply() {
                self.repeat_reply(now);
            }
            return;
        }
        if self.liveness.advance(now, &self.config, self.slots()) {
            self.kill(Death::Silence);
            return;
        }
        if self.timer_runs() && now >= self.timer_at() {
            self.close_due |= self.state == State::Closing;
            self.request_due |= self.sender.on_timeout(now, &mut self.reports);
        }
        if now >= self.liveness.heartbeat_at(&self.config) {
            self.request_due = true;
            self.liveness.on_request(now);
            // Nothing was received for a while.
            self.rest();
        }
    }

    /// Sends the reply to a close again, unless it was repeated for long enough (L-18).
    #[cold]
    fn repeat_reply(&mut self, now: Nanos) {
        if now >= self.reply_until {
            self.reply_until = 0;
        } else if now >= self.timer_at() {
            self.close_due = true;
            self.sender.on_timeout(now, &mut self.reports);
        }
    }

    /// Returns whether the retransmission timer runs: it does while anything is unanswered (L-10).
    fn timer_runs(&self) -> bool {
        self.sender.queue.has_in_flight()
            || self.sender.queue.unsent() > 0
            || !self.liveness.is_confirmed()
            || self.state == State::Closing
    }

    fn timer_at(&self) -> Nanos {
        let peer_ack_delay = u64::from(self.peer.ack_delay_us) * MICRO;
        self.sender.timer_at(&self.config, peer_ack_delay)
    }
}
