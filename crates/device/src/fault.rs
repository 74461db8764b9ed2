//! A wrapper that adds faults to a device: seeded loss, duplication, reordering, corruption and delay.
//!
//! The same seed and the same frames give the same faults. Sending and receiving draw from separate streams,
//! so that their interleaving does not matter.

mod held;

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::wrap::forward;
use crate::{Datagram, DeviceEvent, RouteId, RxBatch, SlotId};
use held::{Due, Held, Moment};

/// The faults of one direction. Shares are between 0 and 1; the default has no faults.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Faults {
    /// Share of frames that are lost.
    pub loss: f64,
    /// Share of frames that arrive twice.
    pub duplicate: f64,
    /// Share of frames that are held back, each until up to `reorder_by` later ones have overtaken it.
    pub reorder: f64,
    /// The most frames that overtake a frame.
    pub reorder_by: u32,
    /// Share of frames that are corrupted: up to `corrupt_bits` bits are flipped, or sometimes the end is cut
    /// off.
    pub corrupt: f64,
    /// The most bits that are flipped; 0 counts as 1.
    pub corrupt_bits: u32,
    /// How long every frame is delayed.
    pub delay: Delay,
}

impl Faults {
    /// Returns no faults, as `change` changes them.
    pub fn with(change: impl FnOnce(&mut Faults)) -> Faults {
        let mut faults = Faults::default();
        change(&mut faults);
        faults
    }
}

/// How long frames are delayed; drawn for each frame, so that a range also reorders them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delay {
    /// Not at all.
    #[default]
    None,
    /// For a number of polls (calls of `flush` or `recv`), from a closed range.
    Polls(u32, u32),
    /// For a time from a closed range, by the wrapper's clock.
    Time(Duration, Duration),
}

/// The faults that were applied in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultCounters {
    /// All frames.
    pub frames: u64,
    /// Lost frames.
    pub lost: u64,
    /// Duplicated frames.
    pub duplicated: u64,
    /// Frames held back for others to overtake.
    pub reordered: u64,
    /// Corrupted frames.
    pub corrupted: u64,
    /// Delayed frames.
    pub delayed: u64,
    /// Frames left alone because there was no slot for a copy, or nothing to corrupt.
    pub spared: u64,
}

/// The most received frames that are held; further ones pass.
const INCOMING_MAX: usize = 4_096;
/// Share of corrupted frames that are truncated instead of flipped.
const CUT_SHARE: f64 = 0.125;

/// The clock of a [`Fault`].
type Clock = Box<dyn FnMut() -> Duration + Send>;

/// A device with faults. Frames that it holds do not make [`Datagram::fd`] readable: keep polling.
pub struct Fault<D> {
    inner: D,
    clock: Clock,
    sending: Direction,
    receiving: Direction,
    /// Frames to send later, in slots of the device's arena.
    outgoing: Held<(RouteId, SlotId, Range<usize>)>,
    /// Frames to deliver later.
    incoming: Held<(Option<SocketAddr>, Vec<u8>)>,
    /// Slots to give back after the next flush.
    used_slots: Vec<SlotId>,
    polls: u64,
    /// A delay is by time.
    timed: bool,
}

struct Direction {
    faults: Faults,
    random: Random,
    counters: FaultCounters,
}

/// What happens to one frame.
struct Outcome {
    lost: bool,
    twice: bool,
    /// The frame is corrupted, in a way that this number determines.
    damage: Option<u64>,
    due: Option<Due>,
}

impl<D: Datagram> Fault<D> {
    /// Wraps a device; `send` applies to outgoing frames, `receive` to incoming ones.
    pub fn new(inner: D, seed: u64, send: Faults, receive: Faults) -> Fault<D> {
        let start = Instant::now();
        Fault::with_clock(inner, seed, send, receive, Box::new(move || start.elapsed()))
    }

    /// Wraps a device, with a clock that may be virtual.
    pub fn with_clock(inner: D, seed: u64, send: Faults, receive: Faults, clock: Clock) -> Fault<D> {
        let direction = |faults, stream| Direction {
            faults,
            random: Random(seed ^ stream),
            counters: FaultCounters::default(),
        };
        Fault {
            inner,
            clock,
            sending: direction(send, 0),
            receiving: direction(receive, 0x5851_f42d_4c95_7f2d),
            outgoing: Held::default(),
            incoming: Held::default(),
            used_slots: Vec::new(),
            polls: 0,
            timed: is_timed(&send) || is_timed(&receive),
        }
    }

    /// Returns the faults applied to outgoing and to incoming frames.
    pub fn fault_counters(&self) -> (FaultCounters, FaultCounters) {
        (self.sending.counters, self.receiving.counters)
    }

    fn moment(&mut self, sending: bool) -> Moment {
        let direction = if sending { &self.sending } else { &self.receiving };
        let now = if self.timed { (self.clock)() } else { Duration::ZERO };
        Moment { frames: direction.counters.frames, polls: self.polls, now }
    }

    /// Copies a frame into a slot of its own, corrupted if needed; `None` if there is no slot, or so many are
    /// held that the program might find none.
    fn copy_out(
        &mut self,
        slot: SlotId,
        range: Range<usize>,
        damage: Option<u64>,
    ) -> Option<(SlotId, Range<usize>)> {
        if self.outgoing.len() + self.used_slots.len() >= self.inner.arena_ref().capacity() / 2 {
            return None;
        }
        let copy = self.inner.arena().take()?;
        let mut bytes = self.inner.arena_ref().bytes(slot, range.clone()).to_vec();
        if let Some(damage) = damage {
            let len = self.sending.corrupt(&mut bytes, damage);
            bytes.truncate(len);
        }
        let (head, payload) = self.inner.arena().split_mut(copy);
        let in_head = head.len().saturating_sub(range.start).min(bytes.len());
        let start = range.start.min(head.len());
        head[start..start + in_head].copy_from_slice(&bytes[..in_head]);
        let at = range.start.saturating_sub(head.len());
        payload[at..at + bytes.len() - in_head].copy_from_slice(&bytes[in_head..]);
        Some((copy, range.start..range.start + bytes.len()))
    }

    /// Sends held frames that are due.
    fn release_outgoing(&mut self) {
        if self.outgoing.is_empty() {
            return;
        }
        let moment = self.moment(true);
        while let Some((route, slot, range)) = self.outgoing.take_due(moment) {
            self.inner.send(route, slot, range);
            self.used_slots.push(slot);
        }
    }

    fn give_back(&mut self) {
        for slot in self.used_slots.drain(..) {
            self.inner.arena().give(slot);
        }
    }

    /// Applies the faults to received frames.
    fn apply_faults(&mut self, batch: &mut RxBatch) {
        let mut kept = 0;
        for index in 0..batch.frames.len() {
            let mut frame = batch.frames[index];
            self.receiving.counters.frames += 1;
            let moment = self.moment(false);
            let outcome = self.receiving.draw(moment);
            if outcome.lost {
                self.receiving.counters.lost += 1;
                continue;
            }
            if let Some(damage) = outcome.damage {
                frame.len = self.receiving.corrupt(batch.bytes_mut(frame), damage) as u32;
            }
            let copy = || (batch.source(frame), batch.bytes(frame).to_vec());
            if outcome.twice && self.incoming.len() < INCOMING_MAX {
                self.receiving.counters.duplicated += 1;
                self.incoming.hold(Due::NOW, copy());
            }
            match outcome.due {
                Some(due) if self.incoming.len() < INCOMING_MAX => {
                    self.incoming.hold(due, copy());
                    continue;
                }
                Some(_) => self.receiving.counters.spared += 1,
                None => {}
            }
            batch.frames[kept] = frame;
            kept += 1;
        }
        batch.frames.truncate(kept);
    }

    /// Delivers held frames that are due, while there are buffers for them.
    fn release_incoming(&mut self, batch: &mut RxBatch) {
        if self.incoming.is_empty() {
            return;
        }
        let moment = self.moment(false);
        while batch.has_room() {
            let Some((from, bytes)) = self.incoming.take_due(moment) else { return };
            batch.push_from(from, &bytes);
        }
    }
}

impl<D: Datagram> Datagram for Fault<D> {
    forward!();

    fn want_sources(&mut self, wanted: bool) {
        self.inner.want_sources(wanted);
    }

    fn route(&mut self, to: SocketAddr) -> io::Result<RouteId> {
        self.inner.route(to)
    }

    fn send(&mut self, route: RouteId, slot: SlotId, range: Range<usize>) {
        self.sending.counters.frames += 1;
        let moment = self.moment(true);
        let outcome = self.sending.draw(moment);
        if outcome.lost {
            self.sending.counters.lost += 1;
            return;
        }
        let (mut slot, mut range, mut ours) = (slot, range, false);
        if outcome.damage.is_some() || outcome.due.is_some() {
            match self.copy_out(slot, range.clone(), outcome.damage) {
                Some(copy) => ((slot, range), ours) = (copy, true),
                None => self.sending.counters.spared += 1,
            }
        }
        if outcome.twice {
            self.sending.counters.duplicated += 1;
            self.inner.send(route, slot, range.clone());
        }
        match outcome.due {
            Some(due) if ours => self.outgoing.hold(due, (route, slot, range)),
            _ => {
                self.inner.send(route, slot, range);
                if ours {
                    self.used_slots.push(slot);
                }
            }
        }
    }

    fn flush(&mut self) {
        self.polls += 1;
        self.release_outgoing();
        self.inner.flush();
        self.give_back();
    }

    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<usize> {
        self.polls += 1;
        if !self.outgoing.is_empty() {
            self.release_outgoing();
            if !self.used_slots.is_empty() {
                self.inner.flush();
                self.give_back();
            }
        }
        self.inner.recv(batch)?;
        self.apply_faults(batch);
        self.release_incoming(batch);
        Ok(batch.frames.len())
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.inner.poll_event()
    }
}

impl Direction {
    /// Draws what happens to a frame. Always draws the same number of values, so that one fault's share does
    /// not change another's pattern.
    fn draw(&mut self, moment: Moment) -> Outcome {
        let faults = self.faults;
        let lost = self.random.chance(faults.loss);
        let twice = self.random.chance(faults.duplicate);
        let damage = (self.random.chance(faults.corrupt), self.random.next());
        let reordered = self.random.chance(faults.reorder);
        let overtakers = u64::from(self.random.between(1, faults.reorder_by.max(1)));
        let (part, whole) = (self.random.next(), u64::MAX);
        let mut due = match faults.delay {
            Delay::None => None,
            Delay::Polls(from, to) => {
                let span = u64::from(to.saturating_sub(from)) + 1;
                Some(Due::at_poll(moment.polls + u64::from(from) + part % span))
            }
            Delay::Time(from, to) => {
                let share = part as f64 / whole as f64;
                Some(Due::at_time(moment.now + from + to.saturating_sub(from).mul_f64(share)))
            }
        };
        if !lost {
            self.counters.delayed += u64::from(due.is_some());
            if due.is_none() && reordered && faults.reorder_by > 0 {
                self.counters.reordered += 1;
                due = Some(Due::after(moment, overtakers));
            }
        }
        Outcome { lost, twice, damage: damage.0.then_some(damage.1), due }
    }

    /// Corrupts a frame in place; returns its new length.
    fn corrupt(&mut self, bytes: &mut [u8], damage: u64) -> usize {
        if bytes.is_empty() {
            self.counters.spared += 1;
            return 0;
        }
        self.counters.corrupted += 1;
        let mut random = Random(damage);
        if bytes.len() > 1 && random.chance(CUT_SHARE) {
            return 1 + (random.next() % (bytes.len() as u64 - 1)) as usize;
        }
        let bits = bytes.len() as u64 * 8;
        let flips = u64::from(random.between(1, self.faults.corrupt_bits.max(1))).min(bits);
        // One flip in each stretch, so that no flip undoes another.
        let stretch = bits / flips;
        for flip in 0..flips {
            let bit = flip * stretch + random.next() % stretch;
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        bytes.len()
    }
}

fn is_timed(faults: &Faults) -> bool {
    matches!(faults.delay, Delay::Time(..))
}

/// SplitMix64: small, good enough, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn chance(&mut self, share: f64) -> bool {
        ((self.next() >> 11) as f64) < share * (1_u64 << 53) as f64
    }

    /// Returns a number from a closed range.
    fn between(&mut self, from: u32, to: u32) -> u32 {
        from + (self.next() % (u64::from(to - from) + 1)) as u32
    }
}
