//! Channels over AF_XDP: two processes in two network namespaces, while transports and interfaces change.
#![allow(clippy::print_stdout)]

#[path = "../../device/tests/spaces/mod.rs"]
mod spaces;

use std::cell::Cell;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use spaces::{Shape, Spaces, ip, spaces};
use tautline::node::device::Transport;
use tautline::node::device::xdp::Framing;
use tautline::node::link::JobKey;
use tautline::{Config, DeviceName, Down, Endpoint, Event, Job, Member, Short, Waiting, job_file};

fn key() -> JobKey {
    JobKey::new([9; 32])
}

/// Messages of one run.
const MESSAGES: u64 = 20_000;
/// Changes of transport during one run.
const CHANGES: u64 = 100;
/// Ping-pongs of one run.
const PING_PONGS: u64 = 2_000;

/// The content of the message with a number; its size varies up to most of a frame.
fn message(number: u64) -> Vec<u8> {
    let narrow = std::env::var("TAUTLINE_XDP_ROLE").is_ok_and(|role| role == "narrow");
    let len = 8 + (number * 37 % if narrow { 400 } else { 1_000 }) as usize;
    let mut bytes: Vec<u8> = (0..len).map(|i| (i as u64 * 31 + number * 7) as u8).collect();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn config(role: &str, device: DeviceName) -> Config {
    let mut config = Config::with(|config| config.device = Some(device));
    if role == "parked" || role == "removed" {
        config.waiting = Waiting::Park;
    }
    if role.starts_with("raw") {
        config.xdp_framing = Framing::Raw;
    }
    // An interface that is replaced is no death.
    config.link.silence = 10_000_000_000;
    config
}

/// Not a test by itself: half of the ranks send, each to one of the other half, which checks everything.
#[test]
fn xdp_member() {
    let Ok(role) = std::env::var("TAUTLINE_XDP_ROLE") else { return };
    let device: DeviceName = std::env::var("TAUTLINE_XDP_DEVICE").unwrap().parse().unwrap();
    let job = job_file::read(&PathBuf::from(std::env::var("TAUTLINE_XDP_JOB").unwrap())).unwrap();
    let seen = Rc::new(Cell::new(0));
    let count = seen.clone();
    let mut config = config(&role, device);
    config.xdp_drop_privileges = role == "raw and poor" && job.rank == 1;
    let builder = Endpoint::builder().config(config).on_short("number", move |short: Short<'_>| {
        let number = count.get();
        assert!(short.data() == message(number), "message {number}, in order and unaltered");
        count.set(number + 1);
    });
    let endpoint = builder.join_job(job).unwrap();
    std::fs::write(opened(&PathBuf::from(std::env::var("TAUTLINE_XDP_JOB").unwrap())), "").unwrap();
    let transports = std::cell::RefCell::new(Vec::new());
    let note = |endpoint: &Endpoint| {
        let mut transports = transports.borrow_mut();
        while let Some(event) = endpoint.poll_event() {
            match event {
                Event::Device(choice) => {
                    println!("DEVICE {} {:?}\n{}", choice.device, choice.passed_over, choice.details);
                }
                Event::Transport { device, reason, .. } => transports.push((device, reason)),
                // In good order, which the sender may do before the receiver has handled its last messages.
                Event::PeerDown { why: Down::Closed, .. } => println!("LEFT"),
                Event::PeerDown { why, .. } => println!("DOWN {why}"),
                _ => {}
            }
        }
        transports.len()
    };
    if role == "parked" {
        ping_pong(&endpoint, &seen);
        println!("TIMEOUTS {}", endpoint.counters().links.timeouts);
        println!("ALL {MESSAGES}");
    } else if endpoint.rank() < endpoint.size() / 2 {
        let to = endpoint.rank() + endpoint.size() / 2;
        for number in 0..MESSAGES {
            if role == "changes" && number % (MESSAGES / CHANGES) == 0 {
                let transport =
                    [Transport::Udp, Transport::Xdp][(number / (MESSAGES / CHANGES)) as usize % 2];
                endpoint.node().prefer_transport(to, Some(transport)).unwrap();
            }
            endpoint.send(to, "number", &message(number)).unwrap();
            note(&endpoint);
            if role == "removed" && number == MESSAGES / 2 {
                wait_for_return(&endpoint, || {
                    note(&endpoint);
                    let transports = transports.borrow();
                    transports.iter().any(|(device, _)| *device == "udp")
                        && transports.last().is_some_and(|(device, _)| *device == "xdp")
                });
            }
            if role.starts_with("raw and") && number == MESSAGES / 2 {
                let last = if role == "raw and poor" { "takes no raw frames" } else { "is known" };
                wait_for_reasons(&endpoint, &transports, &note, ("gone", last));
            }
            if role == "shared" && number == MESSAGES / 2 {
                wait_for_return(&endpoint, || sign().exists());
            }
        }
        println!("TRANSPORTS {}", note(&endpoint));
    } else {
        endpoint.run_until(|| seen.get() == MESSAGES).unwrap();
        note(&endpoint);
        if role == "raw and poor" {
            // A process that gave up its privileges is not told how to get them.
            wait_for_reasons(&endpoint, &transports, &note, ("gone", "gave up its privileges"));
        }
        println!("ALL {}", seen.get());
    }
    let last = transports.borrow().last().cloned();
    println!("LAST {last:?}");
    println!("COUNTERS {:?}", endpoint.counters().device);
    endpoint.close().unwrap();
    println!("CLOSED");
    std::io::stdout().flush().unwrap();
}

/// A file that exists when the child with that job file has joined.
fn opened(job: &std::path::Path) -> PathBuf {
    job.with_extension("open")
}

/// A file that exists when the test has done its part.
fn sign() -> PathBuf {
    PathBuf::from(std::env::var("TAUTLINE_XDP_SIGN").unwrap())
}

/// Waits for that file, for at most half a minute.
fn wait_for_return(endpoint: &Endpoint, is_back: impl Fn() -> bool) {
    println!("HALF");
    let until = Instant::now() + Duration::from_secs(30);
    while !is_back() {
        assert!(Instant::now() < until, "it takes too long");
        endpoint.node().poll_for(Duration::from_millis(20)).unwrap();
    }
}

/// Waits until a transport with the first reason was reported, and the last one has the second.
fn wait_for_reasons(
    endpoint: &Endpoint,
    transports: &std::cell::RefCell<Vec<(&'static str, String)>>,
    note: &impl Fn(&Endpoint) -> usize,
    (some, last): (&str, &str),
) {
    wait_for_return(endpoint, || {
        note(endpoint);
        let transports = transports.borrow();
        transports.iter().any(|(_, why)| why.contains(some))
            && transports.last().is_some_and(|(_, why)| why.contains(last))
    });
}

/// Ping-pong of parked processes, half of it on each transport: every wake-up counts.
fn ping_pong(endpoint: &Endpoint, seen: &Cell<u64>) {
    let (me, other) = (endpoint.rank(), 1 - endpoint.rank());
    for number in 0..PING_PONGS {
        if number == PING_PONGS / 2 {
            endpoint.node().prefer_transport(other, Some(Transport::Udp)).unwrap();
        }
        if me == 0 {
            endpoint.send(other, "number", &message(number)).unwrap();
        }
        endpoint.run_until(|| seen.get() == number + 1).unwrap();
        if me == 1 {
            endpoint.send(other, "number", &message(number)).unwrap();
        }
    }
}

struct Running {
    child: Child,
    job: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.job);
        let _ = std::fs::remove_file(opened(&self.job));
    }
}

fn start(spaces: &Spaces, rank: usize, role: &str, device: &str) -> Running {
    start_of(spaces, (rank, 1), role, device)
}

/// Starts a rank of a job with `each` ranks at each side.
fn start_of(spaces: &Spaces, (rank, each): (usize, usize), role: &str, device: &str) -> Running {
    let side = rank / each;
    let addr = |rank: usize| SocketAddr::new(spaces.addr(rank / each, false), 7_300 + (rank % each) as u16);
    let members: Vec<_> = (0..2 * each).map(|rank| Member::new(addr(rank))).collect();
    let text = job_file::describe(rank as u32, &key(), &members, None, None, None);
    let job = std::env::temp_dir().join(format!("{}-{rank}.job", spaces.names[side]));
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&job).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let child = Command::new("ip")
        .args(["netns", "exec", &spaces.names[side]])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "xdp_member", "--nocapture", "--test-threads=2"])
        .env("TAUTLINE_XDP_ROLE", role)
        .env("TAUTLINE_XDP_DEVICE", device)
        .env("TAUTLINE_XDP_JOB", &job)
        .env("TAUTLINE_XDP_SIGN", sign_of(spaces))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    Running { child, job }
}

fn sign_of(spaces: &Spaces) -> PathBuf {
    std::env::temp_dir().join(format!("{}.sign", spaces.names[0]))
}

/// Waits for the end of a child and returns its output.
fn finish(mut member: Running, what: &str) -> String {
    let until = Instant::now() + Duration::from_secs(60);
    while member.child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "{what} takes too long");
        std::thread::sleep(Duration::from_millis(5));
    }
    let read = |pipe: &mut dyn std::io::Read| {
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        text
    };
    let said = read(member.child.stdout.as_mut().unwrap());
    let errors = read(member.child.stderr.as_mut().unwrap());
    assert!(said.contains("CLOSED"), "{what}: {said}{errors}");
    said
}

#[track_caller]
fn run(test: &str, role: &str, devices: [&str; 2], meanwhile: impl FnOnce(&Spaces)) -> Option<[String; 2]> {
    let spaces = spaces(test, Shape { acquainted: role != "changes", ..Shape::default() })?;
    Some(run_in(&spaces, role, devices, meanwhile))
}

fn run_in(spaces: &Spaces, role: &str, devices: [&str; 2], meanwhile: impl FnOnce(&Spaces)) -> [String; 2] {
    let second = start(spaces, 1, role, devices[1]);
    let first = start(spaces, 0, role, devices[0]);
    until_open([&first, &second]);
    meanwhile(spaces);
    let said = [finish(first, "the sender"), finish(second, "the receiver")];
    assert!(said[1].contains(&format!("ALL {MESSAGES}")), "{}", said[1]);
    assert!(!said.iter().any(|said| said.contains("DOWN it")), "nobody died: {said:?}");
    assert!(spaces.is_left_alone(), "no program is left");
    let _ = std::fs::remove_file(sign_of(spaces));
    said
}

/// Waits until all have opened their devices.
fn until_open<'a>(ranks: impl IntoIterator<Item = &'a Running>) {
    let until = Instant::now() + Duration::from_secs(20);
    for running in ranks {
        while !opened(&running.job).exists() {
            assert!(Instant::now() < until, "they do not all open it");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The number behind a word.
fn number(said: &str, word: &str) -> u64 {
    let line =
        said.lines().find_map(|line| line.strip_prefix(word)).unwrap_or_else(|| panic!("{word}: {said}"));
    line.trim().parse().unwrap()
}

/// D-13, D-24: a hundred changes of transport under load lose no message and reorder none; each is an event.
#[test]
fn transport_changes_under_load() {
    let Some(said) = run("transport_changes_under_load", "changes", ["xdp", "xdp"], |_| {}) else { return };
    assert!(said.iter().all(|said| said.contains("DEVICE xdp")), "{said:?}");
    assert!(number(&said[0], "TRANSPORTS ") >= CHANGES - 1, "{}", said[0]);
    println!("{}", said[0]);
}

/// N-6: parked nodes are woken by the ring and by the socket; no wake-up is lost.
#[test]
fn parked_nodes_are_woken() {
    if let Some(said) = run("parked_nodes_are_woken", "parked", ["xdp", "xdp"], |_| {}) {
        // A node that is not woken by a frame is woken by a timer, its own or that of its peer.
        for said in &said {
            let timeouts = number(said, "TIMEOUTS ");
            assert!(timeouts < PING_PONGS / 4, "{timeouts} timeouts in {PING_PONGS} ping-pongs");
        }
    }
}

/// An xdp node and a udp node can talk.
#[test]
fn an_xdp_node_and_a_udp_node() {
    for devices in [["xdp", "udp"], ["udp", "xdp"]] {
        let Some(said) = run("an_xdp_node_and_a_udp_node", "plain", devices, |_| {}) else { return };
        println!("{}{}", said[0], said[1]);
    }
}

/// L-20: an interface with a small MTU carries smaller frames, over both devices.
#[test]
fn a_small_mtu() {
    let Some(spaces) = spaces("a_small_mtu", Shape::default()) else { return };
    for side in 0..2 {
        ip(&format!("-n {} link set v0 mtu 540", spaces.names[side])).unwrap();
    }
    for devices in [["xdp", "xdp"], ["udp", "udp"], ["udp", "xdp"]] {
        let said = run_in(&spaces, "narrow", devices, |_| {});
        assert!(said[0].contains(&format!("DEVICE {}", devices[0])), "{}", said[0]);
        println!("{}{}", said[0], said[1]);
    }
}

/// L-20: an interface whose MTU is too small for any frame is refused, with its MTU and what to do.
#[test]
fn too_small_an_mtu() {
    let Some(spaces) = spaces("too_small_an_mtu", Shape::default()) else { return };
    ip(&format!("-n {} link set v0 mtu 539", spaces.names[0])).unwrap();
    spaces.enter(0);
    // A port each: a child that another test starts has the first one's socket until it executes its program.
    for (device, port) in [(DeviceName::Xdp, 7_300), (DeviceName::Udp, 7_301)] {
        let members = (0..2).map(|side| Member::new(SocketAddr::new(spaces.addr(side, false), port)));
        let job = Job::new(0, key(), members.collect());
        let config = Config::with(|config| config.device = Some(device));
        let refused = Endpoint::builder().config(config).join_job(job).unwrap_err().to_string();
        for word in ["10.211.9.1", "MTU of 539", "need 540", "ip link set"] {
            assert!(refused.contains(word), "{word}: {refused}");
        }
    }
}

/// D-20, D-21: with raw framing a rank on UDP is reached through the socket, both ways; its peer reports why.
#[test]
fn a_rank_without_raw_frames() {
    for devices in [["xdp", "udp"], ["udp", "xdp"], ["xdp", "xdp"]] {
        let Some(said) = run("a_rank_without_raw_frames", "raw", devices, |_| {}) else { return };
        for side in (0..2).filter(|side| devices[*side] == "xdp") {
            assert!(said[side].contains("raw Ethernet framing"), "{}", said[side]);
            let (transport, why) = match devices[1 - side] {
                "udp" => ("udp", "takes no raw frames"),
                _ => ("xdp", "the neighbour is known"),
            };
            let last = said[side].lines().find(|line| line.starts_with("LAST")).unwrap();
            assert!(last.contains(transport) && last.contains(why), "{last}");
        }
    }
}

/// D-26: the interface is removed and created again under load; the device opens it again and reports it, and
/// no message is lost or reordered.
#[test]
fn the_interface_comes_back_under_load() {
    let said = run("the_interface_comes_back_under_load", "removed", ["xdp", "xdp"], |spaces| {
        std::thread::sleep(Duration::from_millis(300));
        spaces.rejoin().unwrap();
    });
    if let Some(said) = said {
        assert!(said[0].contains("LAST Some((\"xdp\""), "{}", said[0]);
        println!("{}{}", said[0], said[1]);
    }
}

/// D-22: a receiver that loses its interface, and with it the program that takes raw frames, is sent none
/// until it has opened the new one; never again if it may not. No message is lost or reordered, and no peer
/// is taken for dead.
#[test]
fn raw_frames_only_to_their_receivers() {
    for role in ["raw and poor", "raw and removed"] {
        let said = run("raw_frames_only_to_their_receivers", role, ["xdp", "xdp"], |spaces| {
            std::thread::sleep(Duration::from_millis(300));
            spaces.rejoin().unwrap();
        });
        // In the middle the sender waits until it uses the socket, or raw frames again.
        let Some(said) = said else { return };
        assert!(role != "raw and poor" || said[0].contains("LAST Some((\"udp\""), "{}", said[0]);
    }
}

/// D-15: two ranks of a job at each side share their interface: each has queues of its own, and no message is
/// lost or reordered.
#[test]
fn ranks_share_an_interface() {
    const EACH: usize = 2;
    let shape = Shape { queues: Some(4), ..Shape::default() };
    let Some(spaces) = spaces("ranks_share_an_interface", shape) else { return };
    let ranks: Vec<_> =
        (0..2 * EACH).rev().map(|rank| (rank, start_of(&spaces, (rank, EACH), "shared", "xdp"))).collect();
    // Nobody finishes before all are there.
    until_open(ranks.iter().map(|(_, running)| running));
    std::fs::write(sign_of(&spaces), "").unwrap();
    let mut shared = 0;
    for (rank, running) in ranks {
        let said = finish(running, &format!("rank {rank}"));
        assert!(said.contains("DEVICE xdp"), "rank {rank}: {said}");
        assert!(rank < EACH || said.contains(&format!("ALL {MESSAGES}")), "rank {rank}: {said}");
        assert!(said.contains("queue 0+1 of 4") || said.contains("queue 2+3 of 4"), "rank {rank}: {said}");
        shared += usize::from(said.contains("the program of another process"));
        println!("{said}");
    }
    let _ = std::fs::remove_file(sign_of(&spaces));
    assert_eq!(shared, 2, "one at each side came later");
    assert!(spaces.is_left_alone(), "no program is left");
}

/// Not a test by itself: a child of [`too_few_files`].
#[test]
fn limited_files_member() {
    if std::env::var("TAUTLINE_XDP_ROLE").is_ok_and(|role| role == "poor") {
        let job = Job::new(0, key(), vec![Member::new("127.0.0.1:0".parse().unwrap())]);
        println!("{:?}", Endpoint::builder().join_job(job).map(drop).map_err(|e| e.to_string()));
    }
}

/// A process that may open too few files gets an error that says so, and what to do; never anything else.
#[test]
fn too_few_files() {
    let me = std::env::current_exe().unwrap();
    let joins = |files: u32| {
        let ran = Command::new("sh")
            .args([
                "-c",
                &format!(
                    "ulimit -n {files}; exec \"$0\" --exact limited_files_member --nocapture --test-threads=1"
                ),
            ])
            .arg(&me)
            .env("TAUTLINE_XDP_ROLE", "poor")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        let explained = said.contains(&format!("may have {files} open")) && said.contains("ulimit -n 256");
        assert!(
            said.contains("Ok(())") || explained,
            "{files} files: {said}{}",
            String::from_utf8_lossy(&ran.stderr)
        );
        explained
    };
    assert!((4..24).filter(|files| joins(*files)).count() > 0, "some are too few");
    assert!(!joins(64));
}
