//! Jobs that ranks join while they run: the program, and what it says.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tautline::{Down, Endpoint, Error, Event, RefuseReason, Short};

use super::{PATIENCE, RunningJob, as_program, is_running, kill, read_line, until};

/// How many ranks there are in the end.
const ALL: usize = 5;

/// The program: some ranks begin, some join through the command, and rank 0 adds one. Each greets all others.
pub fn greet_whoever_joins() {
    let heard = Rc::new(RefCell::new(BTreeSet::new()));
    let hears = heard.clone();
    let builder = Endpoint::builder().watch_members();
    let ep = builder.on_short("greet", move |m: Short<'_>| {
        hears.borrow_mut().insert(m.from());
    });
    let ep = ep.join().unwrap();
    say(&format!("\nrank {} begins\n", ep.rank()));
    let mut known: BTreeSet<u32> = (0..ep.size()).filter(|rank| *rank != ep.rank()).collect();
    known.iter().for_each(|rank| ep.send(*rank, "greet", b"").unwrap());
    let mut shared = BTreeSet::new();
    let mut spawned = ep.rank() != 0;
    while heard.borrow().len() < ALL - 1 || known.len() < ALL - 1 {
        ep.wait(None).unwrap();
        ep.extract(usize::MAX).unwrap();
        while let Some(event) = ep.poll_event() {
            match event {
                Event::MemberJoined { member } => {
                    assert!(known.insert(member));
                    ep.send(member, "greet", b"").unwrap();
                }
                Event::Transport { peer, device: "shm", .. } => drop(shared.insert(peer)),
                _ => {}
            }
        }
        if !spawned && heard.borrow().len() == ALL - 2 {
            spawned = true;
            let program = std::env::current_exe().unwrap();
            let options = ["greet_whoever_joins", "--exact", "--ignored", "--test-threads=1"];
            let last = ALL as u32 - 1;
            assert_eq!(ep.spawn(1, &program, options).unwrap(), last..last + 1);
            let error = ep.spawn(1, "/no/such/program", options).unwrap_err().to_string();
            assert!(error.contains("/no/such/program"), "{error}");
        }
    }
    say(&format!("\nrank {} heard {:?}, local {}\n", ep.rank(), heard.borrow(), shared.len()));
    ep.close().unwrap();
}

/// A program that is told of nobody who joins.
pub fn ignore_whoever_joins() {
    let ep = Endpoint::builder().on_short("greet", |_: Short<'_>| {}).join().unwrap();
    say(&format!("\nrank {} begins\n", ep.rank()));
    loop {
        ep.wait(None).unwrap();
        ep.extract(usize::MAX).unwrap();
    }
}

/// A program that joins those, and says why they refuse it.
pub fn be_refused() {
    let ep = Endpoint::builder().join().unwrap();
    for rank in 0..ep.rank() {
        let error = ep.send(rank, "greet", b"").unwrap_err();
        let unknown = |why| matches!(why, Down::Refused(RefuseReason::UnknownRank));
        assert!(matches!(error, Error::PeerGone(to, why) if to == rank && unknown(why)), "{error}");
        say(&format!("\nrefused: {error}\n"));
    }
    ep.close().unwrap();
}

fn say(text: &str) {
    std::io::stdout().write_all(text.as_bytes()).unwrap();
}

fn lines(text: &str) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().filter(|line| line.contains("heard")).map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Starts the program by `job`, and has the others but one join by the command that `join` makes of the job's
/// number. All hear all; `local` says with how many each shares memory.
pub fn check_joins(mut job: Command, join: impl FnOnce(u32) -> Command, local: [usize; ALL]) {
    let job = as_program(job.stdout(Stdio::piped()), "greet_whoever_joins").spawn().unwrap();
    let mut join = join(job.id());
    let RunningJob(job) = &mut RunningJob(job);
    let joining = join.get_args().skip_while(|word| *word != "-n").nth(1).unwrap().to_str().unwrap();
    let joining: usize = joining.parse().unwrap();
    let begin = ALL - 1 - joining;
    let mut out = BufReader::new(job.stdout.take().unwrap());
    for _ in 0..begin {
        let mut line = String::new();
        while !line.contains("begins") {
            line.clear();
            assert!(out.read_line(&mut line).unwrap() > 0, "the job has ended");
        }
    }
    let joined = as_program(&mut join, "greet_whoever_joins").output().unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(job.wait().unwrap().success(), "{rest}");
    assert!(joined.status.success(), "{joined:?}");
    let line = |rank: usize| {
        let others: BTreeSet<_> = (0..ALL).filter(|other| *other != rank).collect();
        format!("rank {rank} heard {others:?}, local {}", local[rank])
    };
    let by_command = begin..ALL - 1;
    let expected: Vec<_> = by_command.clone().map(line).collect();
    assert_eq!(lines(&String::from_utf8_lossy(&joined.stdout)), expected);
    let expected: Vec<_> = (0..ALL).filter(|rank| !by_command.contains(rank)).map(line).collect();
    assert_eq!(lines(&rest), expected);
}

/// The program of a rank that joins late: it waits until it is told of rank 1, which had ended before.
pub fn wait_for_an_end() {
    let ep = Endpoint::builder().watch_members().join().unwrap();
    let (mut down, begin) = (None, Instant::now());
    while down.is_none() {
        assert!(begin.elapsed() < PATIENCE, "nothing was told");
        ep.wait(Some(Duration::from_secs(1))).unwrap();
        down = std::iter::from_fn(|| ep.poll_event()).find_map(|event| {
            if let Event::PeerDown { peer, why, .. } = event { Some((peer, why)) } else { None }
        });
    }
    assert_eq!(down, Some((1, Down::Reported)));
    ep.close().unwrap();
}

/// N-26: a rank that joins `job` after rank 1 has ended is told of it.
pub fn check_ends_are_told(mut job: Command, join: impl FnOnce(u32) -> Command) {
    job.args(["--keep-going", "-n", "1", "sh", "-c", "echo up; exec sleep 1000"]);
    job.args([":", "-n", "1", "sh", "-c", "echo $$; exit 3"]);
    job.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let RunningJob(job) = &mut RunningJob(job.spawn().unwrap());
    let output = job.stdout.as_mut().unwrap();
    let lines = [read_line(output), read_line(output)];
    let [rank_1] = lines.iter().filter(|line| *line != "up").collect::<Vec<_>>()[..] else {
        panic!("{lines:?}")
    };
    until(PATIENCE, || !is_running(rank_1));
    let joined = as_program(&mut join(job.id()), "wait_for_an_end").output().unwrap();
    assert!(joined.status.success(), "{joined:?}");
    kill(job.id(), "INT");
    assert_eq!(job.wait().unwrap().code(), Some(130));
}
