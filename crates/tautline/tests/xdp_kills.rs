//! Processes on AF_XDP that are killed at random moments while two others, of which one shares their
//! interface, go on.
#![allow(clippy::print_stdout)]

#[path = "../../device/tests/spaces/mod.rs"]
mod spaces;

use std::cell::{Cell, RefCell};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use spaces::{Shape, Spaces, spaces};
use tautline::node::link::{Death, JobKey};
use tautline::{Config, DeviceName, Down, Endpoint, Event, Job, Member, Short, job_file};

const SURVIVOR: u32 = 0;
const VICTIM: u32 = 1;
/// Shares the victim's interface, and is never killed.
const BYSTANDER: u32 = 2;
/// Each test of the real bound has a virtual clock; this one only needs to end.
const SILENCE: u64 = 1_000_000_000;
/// The same for the bystander: its peer makes no call while it waits for the end of a victim, whose sockets
/// the kernel closes first, and has no watchdog.
const LONG_SILENCE: u64 = 30_000_000_000;
const PATIENCE: Duration = Duration::from_secs(20);

fn config(change: impl FnOnce(&mut Config)) -> Config {
    Config::with(|config| {
        config.device = Some(DeviceName::Xdp);
        config.link.silence = SILENCE;
        change(config);
    })
}

fn members(spaces: &Spaces) -> Vec<Member> {
    [(0, 7_300), (1, 7_300), (1, 7_301)]
        .map(|(side, port)| Member::new(SocketAddr::new(spaces.addr(side, false), port)))
        .to_vec()
}

fn key() -> JobKey {
    JobKey::new([9; 32])
}

/// The words of a message: which process sends it, its number, and how many its sender has received.
fn words(words: [u64; 3]) -> [u8; 24] {
    zerocopy::transmute!(words.map(u64::to_le))
}

fn read(data: &[u8]) -> [u64; 3] {
    let data: [u8; 24] = data.try_into().expect("three words");
    let words: [u64; 3] = zerocopy::transmute!(data);
    words.map(u64::from_le)
}

/// Not a test by itself: sends to the survivor until it is killed, and checks what it receives.
#[test]
fn killed_member() {
    let Ok(generation) = std::env::var("TAUTLINE_XDP_GENERATION") else { return };
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let generation: u64 = generation.parse().unwrap();
    let job = job_file::read(&PathBuf::from(std::env::var("TAUTLINE_XDP_JOB").unwrap())).unwrap();
    let received = Rc::new(Cell::new(0));
    let count = received.clone();
    let silence = if job.rank == BYSTANDER { LONG_SILENCE } else { SILENCE };
    let builder = Endpoint::builder().config(config(|c| c.link.silence = silence));
    let builder = builder.on_short("number", move |short: Short<'_>| {
        // H-3: what was meant for its predecessor does not reach it.
        assert_eq!(read(short.data())[1], count.get(), "in order, from the first one on");
        count.set(count.get() + 1);
    });
    let ep = builder.join_job(job).unwrap();
    ep.connect(SURVIVOR).unwrap();
    let mut number = 0;
    loop {
        while ep.try_send(SURVIVOR, "number", &words([generation, number, received.get()])).is_ok() {
            number += 1;
            if number % 16 == 0 {
                break;
            }
        }
        ep.extract(usize::MAX).unwrap();
        if let Some(failure) = ep.poll_failure() {
            panic!("{failure:?}");
        }
        ep.wait(Some(Duration::from_micros(500))).unwrap();
    }
}

/// A member in a process of its own; killed when dropped.
struct Process {
    child: Child,
    job: PathBuf,
}

impl Process {
    fn start(spaces: &Spaces, rank: u32, generation: u64) -> Process {
        let text = job_file::describe(rank, &key(), &members(spaces), None, None, None);
        let job = std::env::temp_dir().join(format!("{}-{rank}.job", spaces.names[1]));
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&job).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let child = Command::new("ip")
            .args(["netns", "exec", &spaces.names[1]])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "killed_member", "--nocapture", "--test-threads=2"])
            .env("TAUTLINE_XDP_GENERATION", generation.to_string())
            .env("TAUTLINE_XDP_JOB", &job)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Process { child, job }
    }

    /// Kills it. It must not have ended by itself.
    fn kill(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            let mut said = String::new();
            self.child.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
            panic!("it ended by itself: {status}: {said}");
        }
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.job);
    }
}

/// What the survivor has received of a peer.
#[derive(Clone, Copy, Default)]
struct Received {
    generation: u64,
    /// Messages of this generation.
    count: u64,
    /// How many of ours the peer had received when it sent its last one.
    acknowledged: u64,
}

/// Rank 0, in this process.
struct Survivor {
    ep: Endpoint,
    received: Rc<RefCell<[Received; 3]>>,
    /// The number of the next message to each peer.
    next: [u64; 3],
    up: [bool; 3],
    transport: [&'static str; 3],
    deaths: u64,
}

impl Survivor {
    fn join(spaces: &Spaces) -> Survivor {
        let received = Rc::new(RefCell::new([Received::default(); 3]));
        let noted = received.clone();
        // Without a watchdog only our own calls change what we know of our peers, so that `next` is exact.
        let builder = Endpoint::builder().config(config(|c| c.watchdog = None));
        let builder = builder.on_short("number", move |short: Short<'_>| {
            let [generation, number, acknowledged] = read(short.data());
            let from = &mut noted.borrow_mut()[short.from() as usize];
            if generation != from.generation {
                assert!(generation > from.generation, "a message of a former incarnation");
                *from = Received { generation, ..Received::default() };
            }
            assert_eq!(number, from.count, "from rank {}, once and in order", short.from());
            (from.count, from.acknowledged) = (number + 1, acknowledged);
        });
        let ep = builder.join_job(Job::new(SURVIVOR, key(), members(spaces))).unwrap();
        Survivor { ep, received, next: [0; 3], up: [false; 3], transport: [""; 3], deaths: 0 }
    }

    fn received(&self, peer: u32) -> Received {
        self.received.borrow()[peer as usize]
    }

    fn turn(&mut self) {
        self.ep.extract(usize::MAX).unwrap();
        if let Some(failure) = self.ep.poll_failure() {
            panic!("{failure:?}");
        }
        while let Some(event) = self.ep.poll_event() {
            match event {
                Event::Transport { peer, device, .. } => self.transport[peer as usize] = device,
                Event::PeerUp { peer, .. } => {
                    assert!(!self.up[peer as usize], "the end of rank {peer} was not reported");
                    (self.up[peer as usize], self.next[peer as usize]) = (true, 0);
                }
                Event::PeerDown { peer, why, .. } => {
                    assert_eq!(peer, VICTIM, "{why}");
                    assert!(matches!(why, Down::Died(Death::Silence | Death::Restarted)), "{why}");
                    (self.up[peer as usize], self.deaths) = (false, self.deaths + 1);
                }
                _ => {}
            }
        }
        for peer in [VICTIM, BYSTANDER] {
            let at = peer as usize;
            if self.up[at] && self.ep.try_send(peer, "number", &words([0, self.next[at], 0])).is_ok() {
                self.next[at] += 1;
            }
        }
        self.ep.wait(Some(Duration::from_micros(200))).unwrap();
    }

    fn until(&mut self, what: &str, condition: impl Fn(&Survivor) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !condition(self) {
            let [_, victim, bystander] = *self.received.borrow();
            assert!(
                Instant::now() < until,
                "{what}: victim {} of {}, bystander {}, {} deaths, {:?}",
                victim.count,
                victim.generation,
                bystander.count,
                self.deaths,
                self.transport
            );
            self.turn();
        }
    }

    /// Goes on for that long.
    fn turn_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.turn();
        }
    }

    /// Waits until so many more messages have gone both ways between us and the bystander.
    fn until_bystander_goes_on(&mut self, more: u64) {
        let before = self.received(BYSTANDER);
        let enough = |now: Received| {
            now.count >= before.count + more && now.acknowledged >= before.acknowledged + more / 4
        };
        self.until("the bystander goes on", |it| enough(it.received(BYSTANDER)));
    }
}

/// N-4, N-8, D-15, D-19: a process on AF_XDP is killed again and again, also while it starts. Its peer
/// reports each death, talks with each successor over AF_XDP, and receives nothing twice, late or out of
/// order. A process that shares the interface of the killed one goes on, and no program is left.
/// `TAUTLINE_KILLS` says how often; only those count of which a message had come.
#[test]
fn killed_peers_are_replaced() {
    let kills = tautline_skips::number("TAUTLINE_KILLS", 12);
    let seed = tautline_skips::number(tautline_skips::SEED, RandomState::new().hash_one(0));
    println!("TAUTLINE_SEED={seed}");
    let drawn = Cell::new(0_u64);
    let random = |below: u64| {
        let mut hasher = DefaultHasher::new();
        (seed, drawn.replace(drawn.get() + 1)).hash(&mut hasher);
        hasher.finish() % below
    };
    let shape = Shape { queues: Some(4), ..Shape::default() };
    let Some(spaces) = spaces("killed_peers_are_replaced", shape) else { return };
    spaces.enter(0);
    let mut survivor = Survivor::join(&spaces);
    // The first victim opens the interface, and the bystander joins it there.
    let mut first = Process::start(&spaces, VICTIM, 1);
    survivor.until("the first message", |it| it.received(VICTIM).count > 0);
    let mut bystander = Process::start(&spaces, BYSTANDER, 1);
    survivor.until_bystander_goes_on(20);
    first.kill();
    let (mut killed, mut attempts, mut messages) = (0, 0, survivor.received(VICTIM).count);
    survivor.until("the first death", |it| it.deaths == 1);
    while killed < kills {
        let round = attempts;
        attempts += 1;
        let generation = round + 2;
        let mut victim = Process::start(&spaces, VICTIM, generation);
        if round % 4 == 3 {
            // While it starts and opens its device. The three others count, so that this ends.
            survivor.turn_for(Duration::from_micros(random(80_000)));
            victim.kill();
            // It may have been up, or only begun to be.
            survivor.until("nobody is there", |it| !it.up[VICTIM as usize]);
            let received = survivor.received(VICTIM);
            if received.generation == generation {
                (killed, messages) = (killed + 1, messages + received.count);
            }
            survivor.until_bystander_goes_on(20);
            continue;
        }
        let least = 1 + random(100);
        survivor.until("messages both ways", |it| {
            let now = it.received(VICTIM);
            now.generation == generation && now.count >= least && now.acknowledged > 0
        });
        assert_eq!(survivor.transport, ["", "xdp", "xdp"], "round {round}");
        survivor.turn_for(Duration::from_micros(random(3_000)));
        let deaths = survivor.deaths;
        victim.kill();
        drop(victim);
        // Every other time its successor is there before its death is noticed: the next round starts it.
        if round % 2 == 0 {
            survivor.until("the death", |it| it.deaths > deaths);
        }
        survivor.until_bystander_goes_on(20);
        killed += 1;
        messages += survivor.received(VICTIM).count;
    }
    println!("{messages} messages of the killed; {} of {attempts} could not talk before", attempts - killed);
    assert!(messages >= killed, "{messages} messages of {killed}");
    bystander.kill();
    drop(survivor);
    assert!(spaces.is_left_alone(), "no program is left");
    tautline_skips::did(killed);
}
