//! Members with several addresses (J-28): processes in two network namespaces that two veth pairs join.
#![allow(clippy::print_stdout)]

#[path = "../../device/tests/spaces/mod.rs"]
mod spaces;

use std::cell::Cell;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use spaces::{Shape, Spaces, ip, spaces};
use tautline::node::link::JobKey;
use tautline::{Address, Builder, DeviceName, Endpoint, Event, Member, Rank, Short, job_file};

/// Messages of each rank, of each of its lanes.
const MESSAGES: u64 = 500;
const JOB: &str = "TAUTLINE_TEST_ADDRESSES_JOB";

/// Checks the numbers of messages, and counts them.
fn counting(count: &Rc<Cell<u64>>) -> Builder {
    let count = count.clone();
    Endpoint::builder().on_short("number", move |short: Short<'_>| {
        assert_eq!(short.data(), count.get().to_le_bytes(), "in order, each once");
        count.set(count.get() + 1);
    })
}

/// Sends numbers to a peer, and takes as many.
fn exchange(ep: &Endpoint, peer: Rank, count: &Cell<u64>) {
    for number in 0..MESSAGES {
        ep.send(peer, "number", &number.to_le_bytes()).unwrap();
        ep.extract(usize::MAX).unwrap();
    }
    ep.run_until(|| count.get() == MESSAGES).unwrap();
}

/// Not a test by itself: a rank that exchanges messages with the other, by two lanes, and says which way they
/// went.
#[test]
fn addresses_member() {
    let Ok(job) = std::env::var(JOB) else { return };
    let count = Rc::new(Cell::new(0));
    let ep = counting(&count).join_job(job_file::read(&PathBuf::from(job)).unwrap()).unwrap();
    println!("\nJOINED");
    let (other, lanes) = (1 - ep.rank(), ep.lanes());
    if ep.rank() == 1 {
        // Rank 0 dials.
        ep.run_until(|| count.get() > 0).unwrap();
    }
    std::thread::scope(|scope| {
        let further = scope.spawn(move || {
            let count = Rc::new(Cell::new(0));
            let lane = lanes.open(counting(&count)).unwrap();
            exchange(&lane, Address::new(other, 1).into(), &count);
            lane.close().unwrap();
            count.get()
        });
        exchange(&ep, other, &count);
        println!("\nCOUNTED {} {}", count.get(), further.join().unwrap());
    });
    while let Some(event) = ep.poll_event() {
        if let Event::Transport { peer, device, reason } = event {
            println!("\nWAY {peer} {device} {reason}");
        }
    }
    ep.barrier().unwrap();
    ep.close().unwrap();
}

/// A running rank; killed when dropped.
struct Running {
    child: Child,
    job: PathBuf,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Running {
    fn start(spaces: &Spaces, rank: usize, device: &str, security: &str) -> Running {
        let job = std::env::temp_dir().join(format!("{}-addresses.job", spaces.names[rank]));
        let members = [1, 2].map(|host| {
            let addrs = [9, 10].map(|net| format!("10.211.{net}.{host}:7400").parse().unwrap());
            Member::at(&addrs).unwrap()
        });
        let security = Some(security.parse().unwrap());
        let device: Option<DeviceName> = Some(device.parse().unwrap());
        let text = job_file::describe(rank as u32, &JobKey::new([9; 32]), &members, security, device, None);
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&job).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let mut child = Command::new("ip")
            .args(["netns", "exec", &spaces.names[rank]])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "addresses_member", "--nocapture", "--test-threads=2"])
            .env(JOB, &job)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Running { child, job, lines }
    }

    /// Reads until a line that begins so.
    fn until(&mut self, start: &str) -> String {
        let found = self.lines.by_ref().map_while(Result::ok).find(|line| line.starts_with(start));
        found.unwrap_or_else(|| panic!("the rank ended without {start}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.job);
    }
}

/// Both exchange all messages by both lanes. Returns which way each says that those of lane 0 went.
fn ways(spaces: &Spaces, device: &str, security: &str) -> [String; 2] {
    let mut second = Running::start(spaces, 1, device, security);
    second.until("JOINED");
    let mut ranks = [Running::start(spaces, 0, device, security), second];
    [0, 1].map(|rank: usize| {
        assert_eq!(ranks[rank].until("COUNTED"), format!("COUNTED {MESSAGES} {MESSAGES}"));
        ranks[rank].until(&format!("WAY {} ", 1 - rank))
    })
}

/// J-28: the first address is used where it works. Without the first link, also if only one side knows that
/// it is down, all messages of all lanes come by the second. AF_XDP is on the first interface.
#[test]
fn the_second_address_is_taken_if_the_first_is_not_reached() {
    const NAME: &str = "the_second_address_is_taken_if_the_first_is_not_reached";
    let Some(spaces) = spaces(NAME, Shape { acquainted: false, ..Shape::default() }) else { return };
    let [a, b] = &spaces.names;
    ip(&format!("-n {a} link add w0 type veth peer name w0 netns {b}")).unwrap();
    for (host, name) in [(1, a), (2, b)] {
        ip(&format!("-n {name} link set w0 up")).unwrap();
        ip(&format!("-n {name} addr add 10.211.10.{host}/24 dev w0")).unwrap();
    }
    let check = |(device, security): (&str, &str), used: usize, what: &str| {
        for (rank, way) in ways(&spaces, device, security).iter().enumerate() {
            let (net, host) = ([9, 10][used - 1], 2 - rank);
            let address = format!("at 10.211.{net}.{host}:7400, its address {used} of 2");
            assert!(way.ends_with(&address), "{what}, rank {rank}: {way}");
        }
    };
    check(("udp", "fabric"), 1, "both links are up");
    for (side, what) in [(a, "the dialling side's first link is down"), (b, "the other's is")] {
        ip(&format!("-n {side} link set v0 down")).unwrap();
        for how in [("udp", "fabric"), ("udp", "sealed"), ("xdp", "fabric")] {
            check(how, 2, what);
        }
        ip(&format!("-n {side} link set v0 up")).unwrap();
    }
    // Hellos go out by the first link, and no answer comes back by it.
    ip(&format!("-n {b} addr del 10.211.9.2/24 dev v0")).unwrap();
    check(("udp", "fabric"), 2, "the other side has lost its first address");
}
