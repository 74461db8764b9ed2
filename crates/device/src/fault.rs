//! A wrapper that makes a device worse: seeded loss, repetition, disorder, damage and delay.
//!
//! The same seed and the same frames give the same faults; sending and receiving draw from streams of their own, so
//! that how they interleave does not matter.

mod held;

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::wrap::pass_on;
use crate::{Datagram, DeviceEvent, RouteId, RxBatch, SlotId};
use held::{Due, Held, Moment};

/// What goes wrong in one direction. Shares are between 0 and 1; the default is that nothing does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Share of frames that vanish.
    pub loss: f64,
    /// Share of frames that come twice.
    pub duplicate: f64,
    /// Share of frames that are held back, each until up to `reorder_by` later ones have passed it.
    pub reorder: f64,
    /// How many frames may pass a frame that is held back.
    pub reorder_by: u32,
    /// Share of frames that are damaged: up to `corrupt_bits` bits flipped, or now and then the end cut off.
    pub corrupt: f64,
    /// How many bits at most are flipped; 0 is taken as 1.
    pub corrupt_bits: u32,
    /// How long every frame is held.
    pub delay: Delay,
}

/// How long frames are held; drawn anew for each, so that a range also changes their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delay {
    /// Not at all.
    #[default]
    None,
    /// For so many polls (calls of `flush` or `recv`), both ends included.
    Polls(u32, u32),
    /// For so long, both ends included, by the clock that the wrapper was given.
    Time(Duration, Duration),
}

/// What was done to the frames of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Frames looked at.
    pub frames: u64,
    /// Vanished.
    pub lost: u64,
    /// Came twice.
    pub duplicated: u64,
    /// Held back for others to pass.
    pub reordered: u64,
    /// Damaged.
    pub corrupted: u64,
    /// Delayed.
    pub delayed: u64,
    /// Left alone because there was no slot to copy them into, or nothing to damage.
    pub spared: u64,
}

/// Received frames that are held at most; more are let through.
const INCOMING_MAX: usize = 4_096;
/// Share of damaged frames that are cut short instead of flipped.
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
    /// Frames to hand on later.
    incoming: Held<(Option<SocketAddr>, Vec<u8>)>,
    /// Slots to give back after the next flush.
    leaving: Vec<SlotId>,
    polls: u64,
    /// Some delay is, or was, a matter of time.
    timed: bool,
}

struct Direction {
    faults: Faults,
    random: Random,
    did: FaultCounters,
}

/// What to do with one frame.
struct Fate {
    lost: bool,
    twice: bool,
    /// Damaged, in the way that this number says.
    wound: Option<u64>,
    due: Option<Due>,
}

impl<D: Datagram> Fault<D> {
    /// Wraps a device; `send` happens to what leaves, `receive` to what arrives.
    pub fn new(inner: D, seed: u64, send: Faults, receive: Faults) -> Fault<D> {
        let begun = Instant::now();
        Fault::with_clock(inner, seed, send, receive, Box::new(move || begun.elapsed()))
    }

    /// The same by another clock, which may be a virtual one.
    pub fn with_clock(inner: D, seed: u64, send: Faults, receive: Faults, clock: Clock) -> Fault<D> {
        let direction = |faults, stream| Direction {
            faults,
            random: Random(seed ^ stream),
            did: FaultCounters::default(),
        };
        Fault {
            inner,
            clock,
            sending: direction(send, 0),
            receiving: direction(receive, 0x5851_f42d_4c95_7f2d),
            outgoing: Held::default(),
            incoming: Held::default(),
            leaving: Vec::new(),
            polls: 0,
            timed: is_timed(&send) || is_timed(&receive),
        }
    }

    /// What was done to what leaves, and to what arrives.
    pub fn did(&self) -> (FaultCounters, FaultCounters) {
        (self.sending.did, self.receiving.did)
    }

    fn moment(&mut self, sending: bool) -> Moment {
        let direction = if sending { &self.sending } else { &self.receiving };
        let now = if self.timed { (self.clock)() } else { Duration::ZERO };
        Moment { frames: direction.did.frames, polls: self.polls, now }
    }

    /// Copies a frame into a slot of its own, damaged if need be; `None` if there is no slot, or if we hold so many
    /// that the program might find none.
    fn copy_out(
        &mut self,
        slot: SlotId,
        range: Range<usize>,
        wound: Option<u64>,
    ) -> Option<(SlotId, Range<usize>)> {
        if self.outgoing.len() + self.leaving.len() >= self.inner.arena_ref().capacity() / 2 {
            return None;
        }
        let copy = self.inner.arena().take()?;
        let mut bytes = self.inner.arena_ref().bytes(slot, range.clone()).to_vec();
        if let Some(wound) = wound {
            let len = self.sending.damage(&mut bytes, wound);
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

    /// Sends what was held and is due.
    fn release_outgoing(&mut self) {
        if self.outgoing.is_empty() {
            return;
        }
        let moment = self.moment(true);
        while let Some((route, slot, range)) = self.outgoing.take_due(moment) {
            self.inner.send(route, slot, range);
            self.leaving.push(slot);
        }
    }

    fn give_back(&mut self) {
        for slot in self.leaving.drain(..) {
            self.inner.arena().give(slot);
        }
    }

    /// Applies the faults to what arrived.
    fn spoil(&mut self, batch: &mut RxBatch) {
        let mut kept = 0;
        for index in 0..batch.frames.len() {
            let mut frame = batch.frames[index];
            self.receiving.did.frames += 1;
            let moment = self.moment(false);
            let fate = self.receiving.draw(moment);
            if fate.lost {
                self.receiving.did.lost += 1;
                continue;
            }
            if let Some(wound) = fate.wound {
                frame.len = self.receiving.damage(batch.bytes_mut(frame), wound) as u32;
            }
            let copy = || (batch.source(frame), batch.bytes(frame).to_vec());
            if fate.twice && self.incoming.len() < INCOMING_MAX {
                self.receiving.did.duplicated += 1;
                self.incoming.hold(Due::NOW, copy());
            }
            match fate.due {
                Some(due) if self.incoming.len() < INCOMING_MAX => {
                    self.incoming.hold(due, copy());
                    continue;
                }
                Some(_) => self.receiving.did.spared += 1,
                None => {}
            }
            batch.frames[kept] = frame;
            kept += 1;
        }
        batch.frames.truncate(kept);
    }

    /// Hands on what was held and is due, while there are buffers for it.
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
    pass_on!();

    fn want_sources(&mut self, wanted: bool) {
        self.inner.want_sources(wanted);
    }

    fn route(&mut self, to: SocketAddr) -> io::Result<RouteId> {
        self.inner.route(to)
    }

    fn send(&mut self, route: RouteId, slot: SlotId, range: Range<usize>) {
        self.sending.did.frames += 1;
        let moment = self.moment(true);
        let fate = self.sending.draw(moment);
        if fate.lost {
            self.sending.did.lost += 1;
            return;
        }
        let (mut slot, mut range, mut ours) = (slot, range, false);
        if fate.wound.is_some() || fate.due.is_some() {
            match self.copy_out(slot, range.clone(), fate.wound) {
                Some(copy) => ((slot, range), ours) = (copy, true),
                None => self.sending.did.spared += 1,
            }
        }
        if fate.twice {
            self.sending.did.duplicated += 1;
            self.inner.send(route, slot, range.clone());
        }
        match fate.due {
            Some(due) if ours => self.outgoing.hold(due, (route, slot, range)),
            _ => {
                self.inner.send(route, slot, range);
                if ours {
                    self.leaving.push(slot);
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
            if !self.leaving.is_empty() {
                self.inner.flush();
                self.give_back();
            }
        }
        self.inner.recv(batch)?;
        self.spoil(batch);
        self.release_incoming(batch);
        Ok(batch.frames.len())
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.inner.poll_event()
    }
}

impl Direction {
    /// Always draws the same number of values, so that one fault's share does not change another's pattern.
    fn draw(&mut self, moment: Moment) -> Fate {
        let faults = self.faults;
        let lost = self.random.chance(faults.loss);
        let twice = self.random.chance(faults.duplicate);
        let wound = (self.random.chance(faults.corrupt), self.random.next());
        let back = self.random.chance(faults.reorder);
        let passers = u64::from(self.random.between(1, faults.reorder_by.max(1)));
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
            self.did.delayed += u64::from(due.is_some());
            if due.is_none() && back && faults.reorder_by > 0 {
                self.did.reordered += 1;
                due = Some(Due::after(moment, passers));
            }
        }
        Fate { lost, twice, wound: wound.0.then_some(wound.1), due }
    }

    /// Damages a frame in place; returns how long it is now.
    fn damage(&mut self, bytes: &mut [u8], wound: u64) -> usize {
        if bytes.is_empty() {
            self.did.spared += 1;
            return 0;
        }
        self.did.corrupted += 1;
        let mut random = Random(wound);
        if bytes.len() > 1 && random.chance(CUT_SHARE) {
            return 1 + (random.next() % (bytes.len() as u64 - 1)) as usize;
        }
        let bits = bytes.len() as u64 * 8;
        let flips = u64::from(random.between(1, self.faults.corrupt_bits.max(1))).min(bits);
        // One in each stretch, so that no flip undoes another.
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

    /// Both ends included.
    fn between(&mut self, from: u32, to: u32) -> u32 {
        from + (self.next() % (u64::from(to - from) + 1)) as u32
    }
}
