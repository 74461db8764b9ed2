//! What many senders to one receiver cost: the goodput of all of them beside that of one, the frames that
//! were lost, and the time of single messages while all send one at a time. Rank 0 receives. As processes:
//!
//! `cargo build --release -p tautline --example incast`
//! `tautline run --device udp -n 33 target/release/examples/incast [--json]`
#![allow(clippy::print_stdout)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use tautline::group::{Group, Sum};
use tautline::{Endpoint, Error, Event, Result, Short};

/// Messages of a stream, of all senders together.
const STREAM: u64 = 64_000;
/// Messages that each sender sends one at a time.
const SINGLE: usize = 300;
const LEN: usize = 1_024;
const ROUNDS: usize = 5;

/// What rank 0 has received, and what the others were answered.
struct Side {
    ep: Endpoint,
    world: Group,
    received: Rc<Cell<u64>>,
    asked: Rc<RefCell<Vec<u32>>>,
    answered: Rc<Cell<usize>>,
}

fn main() -> Result<()> {
    let side = Side::join()?;
    if side.ep.size() < 3 {
        return Err(Error::other("it takes three ranks at least: tautline run -n 33"));
    }
    // Everybody has a channel to rank 0 before anything is measured.
    side.stream(side.senders())?;
    let mut ratios = Vec::new();
    let (mut one, mut all) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        one.push(side.stream(1)?);
        all.push(side.stream(side.senders())?);
        ratios.push(all[all.len() - 1] / one[one.len() - 1]);
    }
    let frames = side.frames()?;
    let times = side.single_messages()?;
    let deaths = side.deaths()?;
    if side.ep.rank() == 0 {
        side.report([one, all, ratios], frames, &times, deaths);
    }
    side.ep.close()
}

impl Side {
    fn join() -> Result<Side> {
        let (received, answered) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let asked = Rc::new(RefCell::new(Vec::new()));
        let (count, askers, answers) = (received.clone(), asked.clone(), answered.clone());
        let ep = Endpoint::builder()
            .on_short("stream", move |msg: Short<'_>| {
                count.set(count.get() + u64::from(msg.data().len() == LEN));
            })
            .on_short("single", move |msg: Short<'_>| askers.borrow_mut().push(msg.from()))
            .on_short("answer", move |_: Short<'_>| answers.set(answers.get() + 1))
            .join()?;
        let world = ep.world()?;
        Ok(Side { ep, world, received, asked, answered })
    }

    fn senders(&self) -> u64 {
        u64::from(self.ep.size()) - 1
    }

    /// The first `senders` ranks behind rank 0 send a stream to it. Its goodput in GB/s, at rank 0.
    fn stream(&self, senders: u64) -> Result<f64> {
        let each = STREAM / senders;
        self.world.barrier()?;
        let start = Instant::now();
        let rank = u64::from(self.ep.rank());
        if rank == 0 {
            self.received.set(0);
            self.ep.run_until(|| self.received.get() == each * senders)?;
        } else if rank <= senders {
            let message = [rank as u8; LEN];
            for _ in 0..each {
                self.ep.send(0, "stream", &message)?;
            }
        }
        let elapsed = start.elapsed();
        self.world.barrier()?;
        Ok((each * senders * LEN as u64) as f64 / elapsed.as_nanos() as f64)
    }

    /// The slots that all ranks have sent for the first time, and again.
    fn frames(&self) -> Result<[u64; 2]> {
        let links = self.ep.counters().links;
        let mut frames = [links.slots_sent, links.slots_resent];
        self.world.all_reduce(&mut frames, Sum)?;
        Ok(frames)
    }

    /// All ranks but 0 send single messages, each after the answer to the one before. The times until their
    /// answers, in order, at rank 0.
    fn single_messages(&self) -> Result<Vec<u64>> {
        self.world.barrier()?;
        let mut times = vec![0; SINGLE];
        if self.ep.rank() == 0 {
            let mut answered = 0;
            while answered < self.senders() as usize * SINGLE {
                self.ep.run_until(|| !self.asked.borrow().is_empty())?;
                for peer in self.asked.take() {
                    self.ep.send(peer, "answer", &[])?;
                    answered += 1;
                }
            }
        } else {
            let message = [1; LEN];
            for (i, time) in times.iter_mut().enumerate() {
                let start = Instant::now();
                self.ep.send(0, "single", &message)?;
                self.ep.run_until(|| self.answered.get() > i)?;
                *time = start.elapsed().as_nanos() as u64;
            }
        }
        let mut all = vec![0; SINGLE * self.world.size()];
        self.world.gather(0, &times, &mut all)?;
        let mut all = all.split_off(SINGLE);
        all.sort_unstable();
        Ok(all)
    }

    /// How many peers all ranks together were told to be dead.
    fn deaths(&self) -> Result<u64> {
        let events = std::iter::from_fn(|| self.ep.poll_event());
        let mut deaths = [events.filter(|event| matches!(event, Event::PeerDown { .. })).count() as u64];
        self.world.all_reduce(&mut deaths, Sum)?;
        Ok(deaths[0])
    }

    fn report(
        &self,
        [mut one, mut all, mut ratios]: [Vec<f64>; 3],
        [sent, resent]: [u64; 2],
        times: &[u64],
        deaths: u64,
    ) {
        for rates in [&mut one, &mut all, &mut ratios] {
            rates.sort_by(f64::total_cmp);
        }
        let (senders, middle) = (self.senders(), ROUNDS / 2);
        let turn = senders as f64 * LEN as f64 / one[middle];
        let (p50, p99) = (times[times.len() / 2] as f64, times[times.len() * 99 / 100] as f64);
        let lost = resent as f64 / sent.max(1) as f64;
        let (one, all) = (one[middle], all[middle]);
        let [low, ratio, high] = [0, middle, ROUNDS - 1].map(|at| ratios[at]);
        if std::env::args().any(|arg| arg == "--json") {
            print!("{{\"senders\":{senders},\"one_gb_s\":{one:.3},\"all_gb_s\":{all:.3},");
            print!("\"ratio\":{ratio:.3},\"ratio_low\":{low:.3},\"ratio_high\":{high:.3},");
            print!("\"slots\":{sent},\"resent\":{resent},\"deaths\":{deaths},");
            println!("\"p50_ns\":{p50},\"p99_ns\":{p99},\"turn_ns\":{turn:.0}}}");
            return;
        }
        println!("messages of {LEN} bytes, medians of {ROUNDS} rounds");
        println!("one sender          {one:.2} GB/s");
        println!("{senders} senders  {all:.2} GB/s, {ratio:.2} of one ({low:.2} to {high:.2})");
        println!("sent again          {resent} of {sent} slots, {:.3} %", 100.0 * lost);
        println!("one at a time       p50 {:.0} µs, p99 {:.0} µs", p50 / 1e3, p99 / 1e3);
        println!("                    {:.1} and {:.1} times a turn of all senders", p50 / turn, p99 / turn);
        println!("peers reported dead {deaths}");
    }
}
