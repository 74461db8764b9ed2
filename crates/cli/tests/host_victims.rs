//! Jobs on two hosts in which a random process is killed, or a host's link is cut, at a random moment:
//! everyone ends, and nothing is left on any host.

#![allow(clippy::print_stdout)]

mod common;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use common::hosts::{Hosts, MARK, lacks_hosts, marked, parent_of};
use common::{PATIENCE, as_program, kill, until, write_program};
use tautline::{Endpoint, Event, Short};

/// Jobs, unless the long run asks for more.
const JOBS: u64 = 30;
/// Jobs that run at the same time, each on hosts of its own.
const WORKERS: u64 = 6;
/// Ranks of a job at its start.
const RANKS: u32 = 4;
/// The longest time until the death, from the start of the job or, every other time, from when all of its
/// ranks have heard of each other.
const MOMENT_MS: u64 = 800;

/// The program of the jobs: every rank sends to every other, also to those that join, until it is ended. With
/// `TAUTLINE_TEST_LEAVE` set it ends by itself when it is told of a death. With a path in `TAUTLINE_TEST_UP`,
/// it creates a file there, named by its rank, when it has heard of every rank of the start.
#[test]
#[ignore = "a program of jobs"]
fn chatter() {
    let leaves = std::env::var_os("TAUTLINE_TEST_LEAVE").is_some();
    let up = std::env::var("TAUTLINE_TEST_UP");
    let heard = Rc::new(RefCell::new(BTreeSet::new()));
    let hearing = heard.clone();
    let builder = Endpoint::builder().watch_members().on_short("word", move |word: Short<'_>| {
        hearing.borrow_mut().insert(word.from());
    });
    let ep = builder.join().unwrap();
    let handle = ep.handle();
    let (mut size, mut told) = (ep.size(), false);
    loop {
        if !told && heard.borrow().len() as u32 + 1 >= RANKS {
            told = true;
            up.iter().for_each(|up| std::fs::write(format!("{up}{}", ep.rank()), "").unwrap());
        }
        for peer in (0..size).filter(|peer| *peer != ep.rank()) {
            // Peers may be gone, or slow.
            let _ = handle.try_send(peer, "word", b"word");
        }
        let _ = ep.extract(usize::MAX);
        while let Some(event) = ep.poll_event() {
            match event {
                Event::PeerDown { .. } if leaves => std::process::exit(0),
                Event::MemberJoined { member } => size = size.max(member + 1),
                _ => {}
            }
        }
        let _ = ep.wait(Some(Duration::from_millis(5)));
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Victim {
    Rank,
    Agent,
    Supervisor,
    Ssh,
    Launcher,
    Link,
}

const VICTIMS: [Victim; 6] =
    [Victim::Rank, Victim::Agent, Victim::Supervisor, Victim::Ssh, Victim::Launcher, Victim::Link];

/// Numbers that follow from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// J-17, J-19: whoever dies, and whenever.
#[test]
fn random_victims() {
    if let Some(why) = lacks_hosts() {
        return tautline_skips::skip("random_victims", why);
    }
    let jobs = tautline_skips::number("TAUTLINE_TEST_JOBS", JOBS);
    let first = tautline_skips::number(tautline_skips::SEED, 0) * jobs;
    let work = |worker: u64| {
        let hosts = Hosts::new(&format!("victims-{worker}"));
        mark_agents(&hosts);
        let mine = (worker..jobs).step_by(WORKERS as usize);
        mine.map(|job| one_job(&hosts, first + job, job)).collect::<Vec<bool>>()
    };
    let up: Vec<bool> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|worker| scope.spawn(move || work(worker))).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let (done, up) = (up.len() as u64, up.iter().filter(|up| **up).count() as u64);
    println!("{up} of {done} jobs were up when somebody died");
    assert_eq!(jobs, done);
    assert!(up >= jobs / 2, "{up} of {done} jobs were up when somebody died");
    tautline_skips::did(done);
}

/// A program for `--agent`: each host has its own directory of listeners, and all processes have the mark.
fn mark_agents(hosts: &Hosts) {
    let folder = hosts.folder.display();
    let script = format!(
        "#!/bin/sh\nexport {MARK}=$(cat {folder}/mark)\nset -- $SSH_CONNECTION\nlisteners={folder}/listeners-$3\n\
         mkdir -p -m 700 $listeners /tmp/tautline-0\n\
         exec unshare --mount sh -c 'mount --bind '$listeners' /tmp/tautline-0; exec {tautline} __agent'\n",
        tautline = env!("CARGO_BIN_EXE_tautline")
    );
    write_program(&hosts.folder.join("agent"), &script);
}

/// True if the job was up when somebody died: all of its ranks had heard of each other.
fn one_job(hosts: &Hosts, seed: u64, job: u64) -> bool {
    let mut random = Random(seed);
    // Each kind in turn, so that none is missing, and at each worker.
    let victim = VICTIMS[(job + job / WORKERS) as usize % VICTIMS.len()];
    let keeps_going = random.below(2) == 1;
    let grows = random.below(2) == 1;
    let moment = Duration::from_millis(random.below(MOMENT_MS));
    let waits = job.is_multiple_of(2);
    let what = format!(
        "seed {seed}: {victim:?} after {moment:?}, keeps going: {keeps_going}, grows: {grows}, waits: {waits}"
    );
    let mark = format!("{}-{job}", std::process::id());
    std::fs::write(hosts.folder.join("mark"), &mark).unwrap();
    let mut launcher = start(hosts, keeps_going, &mark);
    let up = || (0..RANKS).all(|rank| Path::new(&format!("{}{rank}", up_file(hosts, &mark))).exists());
    if waits {
        until(PATIENCE, up);
    }
    std::thread::sleep(moment / 2);
    // It is refused if the job has not begun, or ends.
    let mut join = grows.then(|| join(hosts, &launcher, &mark));
    std::thread::sleep(moment / 2);
    let was_up = up();
    if victim == Victim::Link {
        hosts.set_link("down");
    } else {
        let mut pid = None;
        until(PATIENCE, || {
            pid = find(victim, &launcher, &mark, &mut random);
            pid.is_some()
        });
        kill(pid.unwrap_or_else(|| panic!("{what}")), "KILL");
    }
    let status = ended(&mut launcher, &what);
    assert!(!status.success(), "{what}: {status:?}");
    if let Some(join) = &mut join {
        ended(join, &what);
    }
    until_nothing_is_left(hosts, &mark, &what);
    if victim == Victim::Link {
        hosts.set_link("up");
    }
    was_up
}

/// Where the ranks of a job say that it is up.
fn up_file(hosts: &Hosts, mark: &str) -> String {
    format!("{}/up-{mark}-", hosts.folder.display())
}

/// Waits for a launcher, or for a command that joins its job. A launcher gives a host 60 s to answer, if the
/// link is cut while ssh connects.
fn ended(launcher: &mut Child, what: &str) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = launcher.try_wait().unwrap() {
            return status;
        }
        assert!(begin.elapsed() < 3 * PATIENCE, "{what}: a launcher did not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn start(hosts: &Hosts, keeps_going: bool, mark: &str) -> Child {
    let agent = hosts.folder.join("agent");
    let agent = agent.to_str().unwrap();
    let up = format!("TAUTLINE_TEST_UP={}", up_file(hosts, mark));
    let mut options = vec!["-n", "4", "--hosts", "a:2,b:2", "--grace", "0.2", "--agent", agent, "--env", &up];
    if keeps_going {
        options.extend(["--keep-going", "--env", "TAUTLINE_TEST_LEAVE=1"]);
    }
    let mut command = hosts.tautline(&options);
    as_program(&mut command, "chatter").env(MARK, mark);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Has two more ranks join the job.
fn join(hosts: &Hosts, launcher: &Child, mark: &str) -> Child {
    let mut command = hosts.tautline(&["-n", "2", "--join", &launcher.id().to_string()]);
    as_program(&mut command, "chatter").env(MARK, mark);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// The number of a process of this kind, once there is one.
fn find(victim: Victim, launcher: &Child, mark: &str, random: &mut Random) -> Option<u32> {
    let all = marked(mark);
    let agents: Vec<_> = all.iter().filter(|(pid, _)| arguments(*pid).contains("--supervisor")).collect();
    let is_agent = |pid: &u32| agents.iter().any(|(agent, _)| agent == pid);
    let children = |of: u32| all.iter().map(|(pid, _)| *pid).filter(move |pid| parent_of(*pid) == Some(of));
    let candidates: Vec<u32> = match victim {
        // Its supervisor, which is the process that the test has started, or the launcher itself.
        Victim::Launcher => std::iter::once(launcher.id()).chain(children(launcher.id())).collect(),
        Victim::Ssh => children(launcher.id()).flat_map(children).collect(),
        Victim::Agent => agents.iter().map(|(pid, _)| *pid).collect(),
        Victim::Supervisor => agents.iter().filter_map(|(pid, _)| parent_of(*pid)).collect(),
        Victim::Rank | Victim::Link => all
            .iter()
            .map(|(pid, _)| *pid)
            .filter(|pid| parent_of(*pid).is_some_and(|p| is_agent(&p)))
            .collect(),
    };
    let at = random.below(candidates.len().max(1) as u64) as usize;
    candidates.get(at).copied()
}

fn arguments(pid: u32) -> String {
    String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).into_owned()
}

/// No process, no listener's file, no socket.
fn until_nothing_is_left(hosts: &Hosts, mark: &str, what: &str) {
    let listeners = |host: u32| entries(&hosts.folder.join(format!("listeners-10.214.0.{host}")));
    let left = || {
        let sockets = [0, 1].map(|host: usize| udp_sockets(hosts.processes[host].id()));
        (marked(mark), listeners(1), listeners(2), sockets)
    };
    let begin = Instant::now();
    while left() != (Vec::new(), Vec::new(), Vec::new(), [0, 0]) {
        assert!(begin.elapsed() < PATIENCE, "{what}: left: {:?}", left());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What there is in a directory of listeners, but for the mark that the directory keeps.
fn entries(folder: &Path) -> Vec<String> {
    let found = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = found.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name != ".swept").collect()
}

/// How many UDP sockets there are in the namespace of a process.
fn udp_sockets(holder: u32) -> usize {
    let table = std::fs::read_to_string(format!("/proc/{holder}/net/udp")).unwrap();
    table.lines().skip(1).count()
}
