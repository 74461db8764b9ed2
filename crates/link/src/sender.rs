//! The sending half of a link: chooses the next slot by credit, congestion window and recovery.
//! Acknowledgements are handled in `ack`.

mod ack;

use tautline_wire::Seq;

use crate::congestion::Congestion;
use crate::packets::SentPackets;
use crate::path::Path;
use crate::queue::{Fragmenting, SendQueue};
use crate::recovery::ReorderThreshold;
use crate::report::{Counters, Event, Reports};
use crate::retransmit::RetransmitTimer;
use crate::rtt::Rtt;
use crate::{Config, Nanos, RecoveryPolicy, Token};

/// What to send before any unsent slot.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Repair {
    /// A lost slot.
    Slot(Seq),
    /// The rest of a slot of which fragments have been sent.
    Fragment(Fragmenting),
}

#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) queue: SendQueue,
    pub(crate) packets: SentPackets,
    pub(crate) rtt: Rtt,
    pub(crate) congestion: Congestion,
    pub(crate) path: Path,
    pub(crate) timer: RetransmitTimer,
    policy: RecoveryPolicy,
    reorder: ReorderThreshold,
}

impl Sender {
    pub(crate) fn new(
        now: Nanos,
        config: &Config,
        queue: SendQueue,
        peer_buffer: u32,
        limit: usize,
    ) -> Sender {
        // The first slot number is drawn anew for each link (L-1).
        let seed = config.timer_seed(queue.base().0);
        Sender {
            queue,
            packets: SentPackets::new(),
            rtt: Rtt::default(),
            congestion: Congestion::new(config, peer_buffer),
            path: Path::new(now, limit),
            timer: RetransmitTimer::new(now, seed),
            policy: config.recovery,
            reorder: ReorderThreshold::new(),
        }
    }

    /// Gives memory back that an idle link does not need.
    pub(crate) fn shrink(&mut self) {
        self.queue.shrink();
        self.packets.shrink();
    }

    #[inline]
    fn window_is_open(&self) -> bool {
        self.queue.in_flight() < self.congestion.window()
    }

    /// Returns whether congestion window and credit allow a further slot.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.window_is_open() && self.queue.has_credit()
    }

    /// Returns the next unsent slot, if window and credit allow it, and counts it as sent.
    #[inline]
    pub(crate) fn next_unsent(&mut self, counters: &mut Counters) -> Option<Seq> {
        if self.queue.unsent() == 0 || !self.window_is_open() {
            return None;
        }
        if !self.queue.has_credit() && !self.queue.has_reserved_credit() {
            counters.credit_stalls += 1;
            return None;
        }
        counters.slots_sent += 1;
        Some(self.queue.take_next())
    }

    /// Returns whether fragments or lost slots are to be sent.
    #[inline]
    pub(crate) fn has_repairs(&self) -> bool {
        self.queue.is_fragmenting() || self.queue.has_lost()
    }

    /// Returns the next fragment or lost slot to send, if the window allows it.
    #[cold]
    pub(crate) fn next_repair(&mut self, counters: &mut Counters) -> Option<Repair> {
        if let Some(rest) = self.queue.take_fragmenting() {
            // The whole slot has been charged to the window, which therefore does not delay the rest.
            return Some(Repair::Fragment(rest));
        }
        if !(self.timer.has_probes() || self.window_is_open()) {
            return None;
        }
        let seq = self.queue.take_lost()?;
        counters.slots_resent += 1;
        self.queue.slot_mut(seq).resent = true;
        Some(Repair::Slot(seq))
    }

    /// Returns the peer's count of duplicate slots.
    #[inline]
    pub(crate) fn peer_duplicates(&self) -> u32 {
        self.reorder.peer_duplicates()
    }

    /// Charges a slot that is sent now as `packet` to the window. Returns its token and length.
    #[inline]
    pub(crate) fn charge(&mut self, now: Nanos, seq: Seq, packet: u64) -> (Token, u32) {
        if !self.queue.has_in_flight() {
            self.timer.restart(now);
        }
        self.queue.mark_in_flight(seq, packet)
    }

    /// Adds a slot that is sent now as `packet`, and charges it to the window. The queue is idle.
    #[inline]
    pub(crate) fn send_pushed(&mut self, now: Nanos, (token, len): (Token, u32), packet: u64) -> Seq {
        if !self.queue.has_in_flight() {
            self.timer.restart(now);
        }
        self.queue.push_in_flight(token, len, packet)
    }

    /// Assigns a packet number to a frame.
    #[inline]
    pub(crate) fn take_packet(&mut self, now: Nanos, counters: &mut Counters) -> u64 {
        counters.frames_sent += 1;
        self.packets.take(now)
    }

    /// Returns when the retransmission timer expires, given how long the peer may delay an acknowledgement.
    pub(crate) fn timer_at(&self, config: &Config, peer_ack_delay: Nanos) -> Nanos {
        let mut timeout = self.rtt.timeout(config, peer_ack_delay);
        if config.spread_timers && !self.queue.has_in_flight() && self.queue.unsent() > 0 {
            // L-39: many may wait for credit, and it is rarely lost.
            timeout = timeout.max(config.rto_initial);
        }
        self.timer.deadline(timeout, config.rto_max)
    }

    /// Handles the expiry of the retransmission timer. Returns whether to request an acknowledgement, because
    /// nothing is in flight that could be resent.
    #[cold]
    pub(crate) fn on_timeout(&mut self, now: Nanos, reports: &mut Reports) -> bool {
        reports.counters.timeouts += 1;
        let expirations = self.timer.on_expiry(now);
        if !self.queue.has_in_flight() {
            // There is no credit, or no answer yet to the first frame: a request is the cheapest probe.
            self.timer.set_probes(u32::from(self.queue.has_lost()));
            return true;
        }
        self.on_front_lost(now, true, reports);
        self.policy.rules().on_timeout(&mut self.queue);
        self.reorder.on_timeout();
        self.timer.set_probes(1);
        if expirations > 1 {
            self.congestion.on_timeout(self.packets.next());
        }
        false
    }

    /// Checks whether the oldest slot was lost in a black hole (L-21).
    #[cold]
    fn on_front_lost(&mut self, now: Nanos, by_timer: bool, reports: &mut Reports) {
        let Some(front) = self.queue.front() else { return };
        let overtaken = self.packets.largest_echo() > front.packet;
        if self.path.on_front_lost(now, (self.queue.base(), front), overtaken, by_timer) {
            reports.counters.black_holes += 1;
            reports.events.push_back(Event::PathChanged(self.path.max_frame()));
        }
    }
}
