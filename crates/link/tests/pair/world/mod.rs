//! A simulated world: two peerings, a faulty pipe each way, a virtual clock, and the checks that hold for
//! every run. A seed determines everything. The crate `tautline-sim` simulates many nodes.

mod pipe;
mod side;
mod stream;

pub use pipe::{Faults, Pipe};
pub use side::{Consume, Load, Side, params};
pub use stream::Stream;

pub use tautline_link::Nanos;
use tautline_link::{Config, Death, Event, Link};
use tautline_wire::{Handshake, Kind};

pub const MICRO: Nanos = 1_000;
pub const MILLI: Nanos = 1_000_000;
pub const SECOND: Nanos = 1_000_000_000;

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub fn chance(&mut self, permille: u32) -> bool {
        self.below(1000) < u64::from(permille)
    }
}

/// Two sides, the lower rank first, and a pipe each way: `pipes[i]` carries the frames of side `i`.
pub struct World {
    pub now: Nanos,
    pub rng: Rng,
    pub sides: [Side; 2],
    pub pipes: [Pipe; 2],
}

impl World {
    pub fn new(seed: u64, config: &Config) -> World {
        World::with(seed, [config.clone(), config.clone()])
    }

    pub fn with(seed: u64, configs: [Config; 2]) -> World {
        let mut rng = Rng(seed);
        let [first, second] = configs;
        let sides = [Side::new(0, first, rng.next()), Side::new(1, second, rng.next())];
        World { now: SECOND, rng, sides, pipes: [Pipe::default(), Pipe::default()] }
    }

    /// Makes a world whose link is open and confirmed on both sides.
    pub fn open(seed: u64, config: &Config) -> World {
        let mut world = World::new(seed, config);
        world.sides[0].connect(world.now);
        assert!(world.run_until_true(SECOND, World::is_open), "the link did not open within a second");
        world
    }

    pub fn is_open(&self) -> bool {
        self.sides.iter().all(|s| s.peering.link().is_some_and(|l| l.is_open() && l.is_confirmed()))
    }

    pub fn link(&mut self, side: usize) -> &mut Link {
        self.sides[side].peering.link_mut().expect("a live link")
    }

    pub fn set_faults(&mut self, faults: &Faults) {
        for pipe in &mut self.pipes {
            pipe.faults = faults.clone();
        }
    }

    /// Restarts a side: a new incarnation replaces it. Frames to it stay in the pipe.
    pub fn restart(&mut self, side: usize) {
        let config = self.sides[side].config.clone();
        let mut restarted = Side::new(side, config, self.rng.next());
        std::mem::swap(&mut restarted.streams, &mut self.sides[side].streams);
        self.sides[side] = restarted;
    }

    /// Runs for `time`.
    pub fn run(&mut self, time: Nanos) {
        let end = self.now + time;
        self.run_until_true(time, |_| false);
        self.now = end;
    }

    /// Runs until `done`, for at most `time`. Returns whether it was done.
    pub fn run_until_true(&mut self, time: Nanos, done: impl Fn(&World) -> bool) -> bool {
        let end = self.now + time;
        let mut spins = 0;
        loop {
            self.step();
            if done(self) {
                return true;
            }
            let Some(next) = self.next_time() else { return false };
            if next > end {
                return false;
            }
            spins = if next > self.now { 0 } else { spins + 1 };
            assert!(spins < 100, "a deadline stays in the past");
            self.now = next.max(self.now);
        }
    }

    fn next_time(&self) -> Option<Nanos> {
        let mut times = Vec::new();
        for (i, side) in self.sides.iter().enumerate() {
            let arrival = self.pipes[1 - i].next_arrival();
            let own = side.next_deadline(self.now);
            let wake = [arrival, own].into_iter().flatten().min();
            times.extend(wake.map(|at| at.max(side.awake_at())));
        }
        times.into_iter().min()
    }

    /// Does everything that is due now, on both sides.
    fn step(&mut self) {
        for i in 0..2 {
            if self.now < self.sides[i].awake_at() {
                continue;
            }
            while let Some(frame) = self.pipes[1 - i].pop(self.now) {
                self.deliver(i, frame);
            }
            self.pump(i);
        }
    }

    /// Delivers a frame to a side.
    pub fn deliver(&mut self, to: usize, mut frame: Vec<u8>) {
        let (a, b) = self.sides.split_at_mut(1);
        let (side, other) = if to == 0 { (&mut a[0], &mut b[0]) } else { (&mut b[0], &mut a[0]) };
        match Kind::of(&frame) {
            Ok(Kind::Data | Kind::Close) => side.handle_frame(self.now, &mut frame, other),
            Ok(_) => {
                let Ok(handshake) = Handshake::parse(&frame) else { return };
                if let Some(reply) = side.handle_handshake(self.now, &frame, &handshake) {
                    self.pipes[to].push(self.now, reply.to_vec(), &mut self.rng);
                }
            }
            Err(_) => {}
        }
    }

    fn pump(&mut self, i: usize) {
        let side = &mut self.sides[i];
        let mut frames = Vec::new();
        side.pump(self.now, &mut frames);
        for frame in frames {
            self.pipes[i].push(self.now, frame, &mut self.rng);
        }
    }

    /// Returns whether all slots of both sides have been delivered and freed.
    pub fn is_settled(&self) -> bool {
        self.sides.iter().all(|s| {
            s.load.left == 0
                && s.streams.iter().all(|t| t.delivered == t.slots.len() && t.slots.iter().all(|s| s.freed))
        })
    }

    /// Returns how many slots have been delivered, both ways.
    pub fn delivered(&self) -> usize {
        self.sides.iter().flat_map(|s| &s.streams).map(|t| t.delivered).sum()
    }

    pub fn deaths(&self) -> Vec<(usize, Nanos, Death)> {
        let death = |(side, (at, event)): (usize, &(Nanos, Event))| match event {
            Event::Died(why) => Some((side, *at, *why)),
            _ => None,
        };
        let events = self.sides.iter().enumerate();
        events.flat_map(|(i, s)| s.events.iter().map(move |e| (i, e))).filter_map(death).collect()
    }

    /// Returns the state of the world, for messages of failed tests.
    pub fn report(&self) -> String {
        let mut text = format!("at {} ms\n", self.now / MILLI);
        for (side, pipe) in self.sides.iter().zip(&self.pipes) {
            let stream = side.streams.last().map(|t| (t.delivered, t.slots.len()));
            let link = side.peering.link();
            text += &format!(
                "side {}: {:?} delivered of pushed, {} left, {:?}, unsent {:?}, window {:?}, {:?}\n  {:?}\n",
                side.rank,
                stream,
                side.load.left,
                side.events,
                link.map(Link::unsent),
                link.map(Link::congestion_window),
                link.map(|l| *l.counters()),
                pipe.faults,
            );
        }
        text
    }
}
