//! What `link` and `node` cost per small frame, without the kernel: two nodes in one thread, on a wire made
//! of memory. Scenarios `shm`: two nodes that share memory, which takes no link; with `-threads` while a
//! second thread uses them, too, and with `-lanes` when the thread drives two lanes of each in turn.
//!
//! `icount SCENARIO N` sends and receives N frames, in turns. `cargo xtask icount` counts the instructions of
//! two different N and divides the difference. `icount SCENARIO N time` prints nanoseconds per frame.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod wire;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use tautline_node::link::JobKey;
use tautline_node::wire::Security;
use tautline_node::{
    Address, Clock, Config, Delivery, DeviceName, Endpoint, Environment, FastPoll, FrameBatch, Job, Key,
    Member, PeerState, Rank,
};

struct Pair {
    time: Arc<AtomicU64>,
    ends: [Endpoint; 2],
    keys: [Key; 2],
    /// What each addresses the other by.
    peers: [Rank; 2],
}

fn pair(security: Security) -> Pair {
    let addrs: [SocketAddr; 2] = ["10.0.0.1:1".parse().unwrap(), "10.0.0.2:1".parse().unwrap()];
    let time = Arc::new(AtomicU64::new(0));
    let mut rank = 0;
    let ends = wire::wires(addrs).map(|wire| {
        let job = Job::new(rank, JobKey::new([1; 32]), addrs.map(Member::new).to_vec());
        let mut config = Config::default();
        config.link.security = security;
        rank += 1;
        let clock = Clock::Virtual(time.clone());
        let names = vec![("ping".to_owned(), true)];
        let environment = Environment::new(Box::new(wire), clock, [rank as u8; 32]);
        Endpoint::over(&job, config, environment, names).unwrap()
    });
    let keys = [0, 1].map(|rank: usize| ends[rank].key("ping").unwrap());
    let pair = Pair { time, ends, keys, peers: [1, 0] };
    pair.ends[0].connect(1).unwrap();
    while pair.ends.iter().zip([1, 0]).any(|(end, peer)| end.peer_state(peer) != Some(PeerState::Up)) {
        pair.time.fetch_add(1000, Ordering::Relaxed);
        pair.ends.iter().for_each(|end| drop(end.progress()));
    }
    pair
}

/// Two nodes that share memory, both in this thread.
fn shm() -> Pair {
    let sockets = [0, 1].map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    let members: Vec<Member> = sockets.iter().map(|s| Member::new(s.local_addr().unwrap())).collect();
    let mut rank = 0;
    let ends = sockets.map(|socket| {
        let job = Job::new(rank, JobKey::new([1; 32]), members.clone())
            .with_device(DeviceName::Shm)
            .with_socket(socket);
        rank += 1;
        let config = Config::with(|config| config.watchdog = None);
        Endpoint::join(job, config, vec![("ping".to_owned(), true)]).unwrap()
    });
    let keys = [0, 1].map(|rank: usize| ends[rank].key("ping").unwrap());
    let pair = Pair { time: Arc::default(), ends, keys, peers: [1, 0] };
    pair.ends[0].connect(1).unwrap();
    while pair.ends.iter().zip([1, 0]).any(|(end, peer)| end.peer_state(peer) != Some(PeerState::Up)) {
        pair.ends.iter().for_each(|end| drop(end.progress()));
    }
    pair
}

/// A second lane of each node, with a channel between the two.
fn second_lanes(pair: &Pair) -> Pair {
    let ends = [0, 1].map(|end: usize| pair.ends[end].lanes().open(vec![("ping".to_owned(), true)]).unwrap());
    let keys = [0, 1].map(|end: usize| ends[end].key("ping").unwrap());
    let peers = [1, 0].map(|end: usize| Address::new(end as Rank, ends[end].lane()).into());
    let lanes = Pair { time: Arc::default(), ends, keys, peers };
    lanes.ends[0].connect(peers[0]).unwrap();
    while lanes.ends.iter().zip(peers).any(|(end, peer)| end.peer_state(peer) != Some(PeerState::Up)) {
        pair.ends.iter().chain(&lanes.ends).for_each(|end| drop(end.progress()));
    }
    lanes
}

/// Sends one message from one side and takes it at the other.
fn pass_shm(pair: &Pair, from: usize, taken: &mut FrameBatch, delivery: &mut Delivery) {
    assert!(pair.ends[from].try_send(pair.peers[from], pair.keys[from], &[1; 8]).unwrap());
    let to = &pair.ends[1 - from];
    if to.take_frames(1, taken).unwrap() == FastPoll::SlowPath {
        // Everything else has its turn.
        to.take(0, delivery).unwrap();
        to.take(usize::MAX, delivery).unwrap();
        let count = delivery.items().len();
        to.give_back(delivery, count).unwrap();
    }
    std::hint::black_box(taken);
}

/// Sends `count` messages from one side and takes them at the other.
fn pass(pair: &Pair, from: usize, count: usize, delivery: &mut Delivery) {
    if count > 1 {
        pair.ends[from].open_batch().unwrap();
    }
    for i in 0..count as u64 {
        assert!(pair.ends[from].try_send(1 - from as u32, pair.keys[from], &i.to_le_bytes()).unwrap());
    }
    if count > 1 {
        pair.ends[from].close_batch().unwrap();
    }
    pair.time.fetch_add(1000, Ordering::Relaxed);
    let to = &pair.ends[1 - from];
    to.take(usize::MAX, delivery).unwrap();
    assert_eq!(delivery.items().len(), 1);
    std::hint::black_box(delivery.bytes(0));
    to.give_back(delivery, 1).unwrap();
}

/// Passes messages by a second thread while this one uses the nodes now and then: often enough that they
/// never favour the second one.
fn pass_by_turns(pair: &Pair, frames: u64) {
    const TURN: u64 = 200;
    let (to_main, from_worker) = mpsc::channel();
    let (to_worker, from_main) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut taken, mut delivery) = (FrameBatch::default(), Delivery::default());
            for i in 1..=frames / 2 {
                pass_shm(pair, 0, &mut taken, &mut delivery);
                pass_shm(pair, 1, &mut taken, &mut delivery);
                if i % TURN == 0 {
                    to_main.send(()).unwrap();
                    from_main.recv().unwrap();
                }
            }
        });
        let (mut taken, mut delivery) = (FrameBatch::default(), Delivery::default());
        while from_worker.recv().is_ok() {
            pass_shm(pair, 0, &mut taken, &mut delivery);
            pass_shm(pair, 1, &mut taken, &mut delivery);
            to_worker.send(()).unwrap();
        }
    });
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let usage = "usage: icount open|fabric|sealed|batch|shm|shm-threads|shm-lanes N [time]";
    let (security, count) = match args.get(1).map(String::as_str) {
        Some("open") => (Security::Open, 1),
        Some("fabric") => (Security::Fabric, 1),
        Some("sealed") => (Security::Sealed, 1),
        Some("batch") => (Security::Fabric, 64),
        Some("shm" | "shm-threads" | "shm-lanes") => (Security::Fabric, 0),
        _ => return eprintln!("{usage}"),
    };
    let Some(frames) = args.get(2).and_then(|n| n.parse::<u64>().ok()) else { return eprintln!("{usage}") };
    let pair = if count == 0 { shm() } else { pair(security) };
    let mut delivery = Delivery::default();
    let mut taken = FrameBatch::default();
    let lanes = match args[1].as_str() {
        "shm-lanes" => vec![second_lanes(&pair)],
        _ => Vec::new(),
    };
    let lanes: Vec<&Pair> = std::iter::once(&pair).chain(&lanes).collect();
    let start = std::time::Instant::now();
    if args[1] == "shm-threads" {
        pass_by_turns(&pair, frames);
    } else if count == 0 {
        for pair in lanes.iter().cycle().take(frames as usize / 2) {
            pass_shm(pair, 0, &mut taken, &mut delivery);
            pass_shm(pair, 1, &mut taken, &mut delivery);
        }
    }
    for _ in 0..if count == 0 { 0 } else { frames / 2 } {
        pass(&pair, 0, count, &mut delivery);
        pass(&pair, 1, count, &mut delivery);
    }
    if args.get(3).is_some() {
        println!("{:.1} ns per frame, sent and received", start.elapsed().as_nanos() as f64 / frames as f64);
    }
}
