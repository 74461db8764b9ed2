//! What memory operations cost on this machine: a put with a tripwire compared with a message, puts of all
//! sizes compared with messages, and matching against 1 to 100,000 tripwires. Two endpoints in two threads.
//!
//! `cargo run --release -p tautline --example memory_cost [shm|udp]`
#![allow(clippy::print_stdout)]

use std::cell::{Cell, RefCell};
use std::net::UdpSocket;
use std::rc::Rc;
use std::time::Instant;

use tautline::memory::{Access, Cookie, Rights};
use tautline::node::link::JobKey;
use tautline::{
    Aperture, Config, DeviceName, Endpoint, Job, Member, Message, Remote, Short, Tripwire, Waiting,
};

const ROUNDS: usize = 5;

fn main() -> tautline::Result<()> {
    let device = std::env::args().nth(1);
    for name in [DeviceName::Shm, DeviceName::Udp] {
        if device.as_ref().is_none_or(|wanted| wanted == name.name()) {
            println!("{}", name.name());
            pair(name)?;
        }
    }
    matching()
}

fn jobs(device: DeviceName) -> std::io::Result<Vec<Job>> {
    let sockets: Vec<UdpSocket> = (0..2).map(|_| UdpSocket::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    let members: Vec<Member> =
        sockets.iter().map(|s| Ok(Member::new(s.local_addr()?))).collect::<std::io::Result<_>>()?;
    let key = JobKey::new([7; 32]);
    Ok(sockets
        .into_iter()
        .enumerate()
        .map(|(rank, socket)| {
            Job::new(rank as u32, key.clone(), members.clone()).with_device(device).with_socket(socket)
        })
        .collect())
}

fn pair(device: DeviceName) -> tautline::Result<()> {
    let mut jobs = jobs(device).map_err(tautline::Error::other)?;
    let (b, a) = (jobs.pop().expect("two"), jobs.pop().expect("two"));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| Side::join(b).and_then(Side::run));
        let one = Side::join(a).and_then(Side::run);
        other.join().expect("it does not panic").and(one)
    })
}

const SIZES: [usize; 6] = [64, 512, 1024, 4096, 65_536, 1 << 20];
const APERTURE: usize = 4 << 20;

/// One endpoint with an aperture, and access to the other's.
struct Side {
    ep: Endpoint,
    peer: u32,
    arrived: Rc<Cell<u64>>,
    barriers: Rc<Cell<u64>>,
    passed: Cell<u64>,
    aperture: Aperture,
    remote: Remote,
    wire: RefCell<Tripwire>,
}

impl Side {
    fn join(job: Job) -> tautline::Result<Side> {
        let arrived = Rc::new(Cell::new(0));
        let (short, long) = (arrived.clone(), arrived.clone());
        let given = Rc::new(Cell::new(None));
        let got = given.clone();
        let place = Rc::new(RefCell::new(vec![0; APERTURE]));
        let barriers = Rc::new(Cell::new(0));
        let barrier = barriers.clone();
        let ep = Endpoint::builder()
            .on_short("barrier", move |_: Short<'_>| barrier.set(barrier.get() + 1))
            .on_short("word", move |m: Short<'_>| {
                std::hint::black_box(m.data());
                short.set(short.get() + 1);
            })
            .on("bulk", move |mut m: Message| {
                let (long, place) = (long.clone(), place.clone());
                async move {
                    let len = m.len() as usize;
                    let mut bytes = std::mem::take(&mut *place.borrow_mut());
                    m.read_into(&mut bytes[..len]).await?;
                    *place.borrow_mut() = bytes;
                    long.set(long.get() + 1);
                    Ok(())
                }
            })
            .on_short("cookie", move |m: Short<'_>| {
                got.set(m.data().try_into().ok().map(Cookie::from_bytes));
            })
            .config(Config::with(|config| config.waiting = Waiting::Spin))
            .join_job(job)?;
        let peer = 1 - ep.rank();
        let aperture = ep.aperture(APERTURE)?;
        let wire = RefCell::new(aperture.tripwire(..8).arm()?);
        ep.send(peer, "cookie", &aperture.cookie(.., Rights::ALL)?.to_bytes())?;
        ep.run_until(|| given.get().is_some())?;
        let remote = ep.remote(&given.get().expect("it came"));
        Ok(Side { ep, peer, arrived, barriers, passed: Cell::new(0), aperture, remote, wire })
    }

    fn run(self) -> tautline::Result<()> {
        let count = if self.ep.node().config().device == Some(DeviceName::Udp) { 20_000 } else { 100_000 };
        let (mut messages, mut puts, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let message = self.words_by_message(count)?;
            let put = self.words_by_put(count)?;
            messages.push(message);
            puts.push(put);
            ratios.push(put / message);
        }
        self.say(format_args!(
            "  8 B one way: message {:.0} ns, put and tripwire {:.0} ns, ratio {:.2}",
            median(messages),
            median(puts),
            median(ratios)
        ));
        for bytes in SIZES {
            let count = (64 << 20) / bytes.max(2048);
            let (mut messages, mut puts, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                let message = self.bulk_by_message(bytes, count)?;
                let put = self.bulk_by_put(bytes, count)?;
                messages.push(message);
                puts.push(put);
                ratios.push(put / message);
            }
            self.say(format_args!(
                "  {bytes} B: message {:.2} GB/s, put {:.2} GB/s, ratio {:.2}",
                median(messages),
                median(puts),
                median(ratios)
            ));
        }
        self.barrier()?;
        self.ep.close()
    }

    fn say(&self, text: std::fmt::Arguments<'_>) {
        if self.ep.rank() == 0 {
            println!("{text}");
        }
    }

    /// Waits until both sides are here and nothing is in progress.
    fn barrier(&self) -> tautline::Result<()> {
        for round in 0..2 {
            let before = self.passed.replace(self.passed.get() + 1);
            self.ep.send(self.peer, "barrier", &[0; 8])?;
            self.ep.run_until(|| self.barriers.get() > before)?;
            if round == 0 {
                self.arrived.set(0);
            }
        }
        Ok(())
    }

    fn words_by_message(&self, count: u64) -> tautline::Result<f64> {
        let word = self.ep.handler("word")?;
        self.barrier()?;
        let start = Instant::now();
        for i in 1..=count {
            if self.ep.rank() == 0 {
                self.ep.send(self.peer, word, &i.to_le_bytes())?;
            }
            self.ep.run_until(|| self.arrived.get() >= i)?;
            if self.ep.rank() == 1 {
                self.ep.send(self.peer, word, &i.to_le_bytes())?;
            }
        }
        Ok(start.elapsed().as_nanos() as f64 / count as f64 / 2.0)
    }

    fn words_by_put(&self, count: u64) -> tautline::Result<f64> {
        let mut wire = self.wire.borrow_mut();
        self.barrier()?;
        wire.take();
        self.barrier()?;
        let start = Instant::now();
        for i in 1..=count {
            if self.ep.rank() == 0 {
                self.remote.put(0, &i.to_le_bytes())?;
            }
            wire.wait()?;
            if self.aperture.read_u64(0)? != i {
                return Err(tautline::Error::other("the word is not the one that was put"));
            }
            if self.ep.rank() == 1 {
                self.remote.put(0, &i.to_le_bytes())?;
            }
        }
        Ok(start.elapsed().as_nanos() as f64 / count as f64 / 2.0)
    }

    fn bulk_by_message(&self, bytes: usize, count: usize) -> tautline::Result<f64> {
        let name = self.ep.handler("bulk")?;
        self.barrier()?;
        let start = Instant::now();
        if self.ep.rank() == 0 {
            let mut data = vec![1; bytes];
            for i in 0..count {
                data.fill(i as u8);
                self.ep.send(self.peer, name, &data)?;
            }
            self.ep.run_until(|| self.arrived.get() >= 1)?;
        } else {
            self.ep.run_until(|| self.arrived.get() >= count as u64)?;
            self.ep.send(self.peer, "word", &[0; 8])?;
        }
        Ok((bytes * count) as f64 / start.elapsed().as_nanos() as f64)
    }

    fn bulk_by_put(&self, bytes: usize, count: usize) -> tautline::Result<f64> {
        let mut wire = self.aperture.tripwire(APERTURE as u64 - 1..).arm()?;
        self.barrier()?;
        let start = Instant::now();
        if self.ep.rank() == 0 {
            let mut data = vec![1; bytes];
            for i in 0..count {
                data.fill(i as u8);
                self.remote.put(((i * bytes) % (APERTURE / 2)).next_multiple_of(8) as u64, &data)?;
            }
            self.remote.put(APERTURE as u64 - 1, &[1])?;
            self.ep.run_until(|| self.arrived.get() >= 1)?;
        } else {
            wire.wait()?;
            self.ep.send(self.peer, "word", &[0; 8])?;
        }
        Ok((bytes * count) as f64 / start.elapsed().as_nanos() as f64)
    }
}

/// A node puts to itself, at random offsets of an aperture with more and more tripwires.
fn matching() -> tautline::Result<()> {
    println!(
        "tripwires: cost of a batched put of 8 B to oneself, at random offsets of 8 MiB that they watch for reads: \
         all are matched, none fires"
    );
    for (sort, step, len) in
        [("disjoint, 8 B each", 80u64, 8u64), ("overlapping by half, 160 B each", 80, 160)]
    {
        let mut first = 0.0;
        for wires in [1u64, 10, 100, 1_000, 10_000, 100_000] {
            let ns = match_cost(wires, step, len)?;
            first = if wires == 1 { ns } else { first };
            println!("  {sort}: {wires:>6} wires {ns:.0} ns, {:.2} times that of one", ns / first);
        }
    }
    Ok(())
}

fn match_cost(wires: u64, step: u64, len: u64) -> tautline::Result<f64> {
    const PLACE: u64 = 8 << 20;
    let socket = UdpSocket::bind("127.0.0.1:0").map_err(tautline::Error::other)?;
    let members = vec![Member::new(socket.local_addr().map_err(tautline::Error::other)?)];
    let job = Job::new(0, JobKey::new([7; 32]), members).with_socket(socket);
    let ep = Endpoint::builder().join_job(job)?;
    let aperture = ep.aperture(PLACE as usize + 4096)?;
    let mut armed = vec![aperture.tripwire(PLACE + 4095..).arm()?];
    for i in 0..wires {
        armed.push(aperture.tripwire(i * step..i * step + len).on(Access::READ).arm()?);
    }
    let remote = ep.remote(&aperture.cookie(.., Rights::ALL)?);
    let mut costs = Vec::new();
    let mut state = 1u64;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..200 {
            {
                let _together = ep.batch();
                for _ in 0..100 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let at = (state >> 33) % 100_000 * step;
                    remote.put(at, &state.to_le_bytes())?;
                }
            }
            ep.extract(usize::MAX)?;
        }
        costs.push(start.elapsed().as_nanos() as f64 / 20_000.0);
    }
    if armed.iter().any(|wire| wire.fires() > 0) {
        return Err(tautline::Error::other("a tripwire fired that should not have"));
    }
    ep.close()?;
    Ok(median(costs))
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}
