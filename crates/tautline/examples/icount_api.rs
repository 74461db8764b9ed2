//! What a message, a put that a polled tripwire notices, and a frame of a long message cost a program: two
//! endpoints in one thread, on a wire made of memory (`-wire`, or `-open` without tags) or with shared memory
//! (`-shm`). `tag-8`: a message of eight bytes with a tag, through shared memory. `barrier-shm` and
//! `reduce-shm`: a barrier and an all-reduce of eight bytes, of both ends.
//!
//! `icount_api SCENARIO N` sends and receives N times eight bytes, in turns; `train`: N frames of 1,472 bytes
//! one way, in messages of 64 KiB. `cargo xtask icount` counts the
//! instructions of two different N and divides the difference. `icount_api SCENARIO N time` prints
//! nanoseconds.
//!
//! Only names of the public API that have not changed for long are used here: the same source must compile in
//! an older tree that this one is compared with (`cargo xtask icount --against`).
#![allow(clippy::print_stdout, clippy::print_stderr)]

#[path = "../../node/examples/wire/mod.rs"]
mod wire;

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::net::{SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tautline::group::{Call, Reduction, Sum};
use tautline::memory::Rights;
use tautline::node::link::JobKey;
use tautline::{
    Aperture, Builder, Clock, Config, DeviceName, Endpoint, Environment, Handler, Job, Member, Message,
    PeerState, Remote, Result, Security, Short, Tripwire,
};

const USAGE: &str = "usage: icount_api short-wire|short-shm|async-wire|async-shm|put-wire|put-shm|train-wire|train-open|\
                     tag-8|barrier-shm|reduce-shm N [time]";

/// The bytes of a long message, and the frames that it takes.
const LONG: usize = 64 << 10;
const LONG_FRAMES: u64 = 47;

/// Polls until what was sent must have arrived.
const POLLS_MAX: u32 = 16;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let kind = args.get(1).and_then(|scenario| scenario.split_once('-'));
    let count = args.get(2).and_then(|count| count.parse::<u64>().ok());
    let (Some((kind, device)), Some(count)) = (kind, count) else { return usage() };
    let pair = match device {
        "wire" => Pair::over_wire(Security::Fabric),
        "open" => Pair::over_wire(Security::Open),
        "shm" | "8" => Pair::over_shm(),
        _ => return usage(),
    };
    let start = Instant::now();
    match kind {
        "short" => pair.messages("short", count),
        "async" => pair.messages("async", count),
        "put" => pair.puts(count),
        "tag" => pair.tagged(count),
        "barrier" => pair.collectives(&Call::Barrier, &[], count),
        "reduce" => pair.collectives(
            &Call::AllReduce { len: 8, with: Reduction::of::<u64, _>(Sum) },
            &1_u64.to_le_bytes(),
            count,
        ),
        "train" => pair.trains(count / LONG_FRAMES),
        _ => return usage(),
    }
    .expect("a pair that nothing disturbs has no errors");
    if args.get(3).is_some() {
        println!("{:.1} ns each, sent and received", start.elapsed().as_nanos() as f64 / count as f64);
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::FAILURE
}

struct Pair {
    time: Arc<AtomicU64>,
    ends: [Endpoint; 2],
    /// Messages that either end's handlers have read.
    arrived: Rc<Cell<u64>>,
}

impl Pair {
    fn over_wire(security: Security) -> Pair {
        let addrs: [SocketAddr; 2] = [([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 1).into()];
        let members = addrs.map(Member::new);
        let (time, arrived, mut rank) = (Arc::default(), Rc::default(), 0);
        let ends = wire::wires(addrs).map(|wire| {
            let job = job(rank, &members, None, None);
            rank += 1;
            let clock = Clock::Virtual(Arc::clone(&time));
            let environment = Environment::new(Box::new(wire), clock, [rank as u8; 32]);
            builder(&arrived, security).join_in(&job, environment).expect("it joins")
        });
        Pair { time, ends, arrived }.connected()
    }

    fn over_shm() -> Pair {
        let sockets = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").expect("a socket on loopback"));
        let members = [0, 1].map(|end: usize| Member::new(sockets[end].local_addr().expect("it is bound")));
        let (arrived, mut rank) = (Rc::default(), 0);
        let ends = sockets.map(|socket| {
            let job = job(rank, &members, Some(DeviceName::Shm), Some(socket));
            rank += 1;
            builder(&arrived, Security::Fabric).join_job(job).expect("it joins")
        });
        Pair { time: Arc::default(), ends, arrived }.connected()
    }

    fn connected(self) -> Pair {
        self.ends[0].connect(1).expect("there is a rank 1");
        while self.ends.iter().zip([1, 0]).any(|(end, peer)| end.peer_state(peer) != Some(PeerState::Up)) {
            self.tick();
            self.ends.iter().for_each(|end| drop(end.extract(usize::MAX)));
        }
        self
    }

    /// Advances the clock of the ends on a wire by a microsecond.
    fn tick(&self) {
        self.time.fetch_add(1000, Ordering::Relaxed);
    }

    fn messages(&self, handler: &str, count: u64) -> Result<()> {
        let handlers: [Handler; 2] = [self.ends[0].handler(handler)?, self.ends[1].handler(handler)?];
        for i in 1..=count {
            let from = (i % 2) as usize;
            // A program's messages have all lengths: no code is to be made for this one.
            let bytes = i.to_le_bytes();
            self.ends[from].try_send(1 - from as u32, handlers[from], black_box(&bytes[..]))?;
            self.poll(1 - from, || self.arrived.get() == i)?;
        }
        Ok(())
    }

    fn tagged(&self, count: u64) -> Result<()> {
        let tags = [self.ends[0].tags(0), self.ends[1].tags(0)];
        let mut buffer = vec![0; 8];
        for i in 1..=count {
            let from = (i % 2) as usize;
            let bytes = i.to_le_bytes();
            tags[from].send(1 - from as u32, 7, black_box(&bytes[..]))?;
            tags[1 - from].receive(from as u32, 7, &mut buffer)?;
            assert_eq!(buffer, bytes);
        }
        Ok(())
    }

    /// The first end starts each collective and is asked for its end, the second one waits for it.
    fn collectives(&self, call: &Call, input: &[u8], count: u64) -> Result<()> {
        let groups = [self.ends[0].world()?, self.ends[1].world()?];
        // Groups agree on sharing memory in their first calls.
        for _ in 0..8 {
            let both = [groups[0].start(call, input.to_vec())?, groups[1].start(call, input.to_vec())?];
            while both.iter().filter(|collective| collective.test()).count() < 2 {}
        }
        for _ in 0..count {
            let first = groups[0].start(call, input.to_vec())?;
            black_box(groups[1].run(call, black_box(input))?);
            assert!(first.test());
            black_box(first.wait()?);
        }
        Ok(())
    }

    fn trains(&self, count: u64) -> Result<()> {
        let long = self.ends[0].handler("long")?;
        let mut bytes = vec![7; LONG];
        for i in 1..=count {
            bytes[..8].copy_from_slice(&i.to_le_bytes());
            let mut out = self.ends[0].try_begin(1, long, LONG as u64)?;
            let mut sent = 0;
            while sent < LONG {
                match out.try_piece(&bytes[sent..]) {
                    Ok(added) => sent += added,
                    Err(error) => assert!(error.is_would_block(), "{error}"),
                }
                if sent < LONG {
                    self.tick();
                    self.ends[1].extract(usize::MAX)?;
                    self.ends[0].extract(usize::MAX)?;
                }
            }
            out.end()?;
            for _ in 0..POLLS_MAX {
                self.tick();
                self.ends[1].extract(usize::MAX)?;
                self.ends[0].extract(usize::MAX)?;
                if self.arrived.get() == i {
                    break;
                }
            }
            assert_eq!(self.arrived.get(), i, "nothing has arrived after {POLLS_MAX} polls");
        }
        Ok(())
    }

    fn puts(&self, count: u64) -> Result<()> {
        let apertures: [Aperture; 2] = [self.ends[0].aperture(4096)?, self.ends[1].aperture(4096)?];
        let mut tripwires: [Tripwire; 2] =
            [apertures[0].tripwire(..8).arm()?, apertures[1].tripwire(..8).arm()?];
        // The aperture of the one is the remote memory of the other.
        let remote = |end: usize| Ok(self.ends[1 - end].remote(&apertures[end].cookie(.., Rights::ALL)?));
        let remotes: Result<[Remote; 2]> = remote(1).and_then(|first| Ok([first, remote(0)?]));
        let remotes = remotes?;
        for i in 1..=count {
            let from = (i % 2) as usize;
            let bytes = i.to_le_bytes();
            remotes[from].try_put(0, black_box(&bytes[..]))?;
            let tripwire = &mut tripwires[1 - from];
            self.poll(1 - from, || tripwire.take() > 0)?;
            assert_eq!(apertures[1 - from].read_u64(0)?, i);
        }
        Ok(())
    }

    /// Polls one end until something has arrived.
    fn poll(&self, end: usize, mut arrived: impl FnMut() -> bool) -> Result<()> {
        for _ in 0..POLLS_MAX {
            self.tick();
            self.ends[end].extract(usize::MAX)?;
            if arrived() {
                return Ok(());
            }
        }
        panic!("nothing has arrived after {POLLS_MAX} polls");
    }
}

/// An endpoint with all kinds of handlers. Without a watchdog: its polls would be counted, too.
fn builder(arrived: &Rc<Cell<u64>>, security: Security) -> Builder {
    let (short, stream, long) = (arrived.clone(), arrived.clone(), arrived.clone());
    let place = Rc::new(RefCell::new(vec![0; LONG]));
    let mut config = Config::default();
    config.link.security = security;
    config.watchdog = None;
    Endpoint::builder()
        .config(config)
        .on_short("short", move |message: Short<'_>| {
            std::hint::black_box(message.data());
            short.set(short.get() + 1);
        })
        .on("async", move |mut message: Message| {
            let stream = stream.clone();
            async move {
                let mut bytes = [0; 8];
                message.read_into(&mut bytes).await?;
                std::hint::black_box(bytes);
                stream.set(stream.get() + 1);
                Ok(())
            }
        })
        .on("long", move |mut message: Message| {
            let (place, long) = (place.clone(), long.clone());
            async move {
                let mut bytes = place.take();
                message.read_into(&mut bytes).await?;
                place.replace(bytes);
                long.set(long.get() + 1);
                Ok(())
            }
        })
}

fn job(rank: u32, members: &[Member], device: Option<DeviceName>, socket: Option<UdpSocket>) -> Job {
    let mut job = Job::new(rank, JobKey::new([1; 32]), members.to_vec());
    job.device = device;
    job.socket = socket.map(Into::into);
    job
}
