//! `tautline run` leaves no process behind, however deep, stubborn or busy the processes are that its ranks
//! started.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{PATIENCE, RunningJob, as_program, kill, launcher_of, tautline, until};
use tautline::Endpoint;
use tautline::node::device::shm::discovery_dir;

/// In the environment of everything that a job starts: so a test finds processes without knowing them.
const MARK: &str = "TAUTLINE_TEST_MARK";

/// Three generations below the rank, each of which lives on by itself and ignores SIGTERM. The last one
/// writes to the FIFO `$1`, and the rank goes on.
const GENERATIONS: &str = r#"
    trap "" TERM
    sh -c 'sh -c "sh -c \"echo ready > $1; exec sleep 1000\" & exec sleep 1000" & exec sleep 1000' &
    read ready < $1
"#;

/// A process that starts another one every few milliseconds, and leaves the terminal's session.
const SPAWNER: &str = r#"
    trap "" TERM
    setsid sh -c 'echo ready > $1; while :; do sleep 1000 & sleep 0.01; done' &
    read ready < $1
"#;

/// A job of one rank that runs `script`, which finds a FIFO in `$1`.
struct Job {
    mark: String,
    /// Goes when the job has ended.
    folder: common::Folder,
    launcher: Child,
}

impl Job {
    fn start(name: &str, script: &str) -> Job {
        Job::start_with_grace(name, "0.1", script)
    }

    fn start_with_grace(name: &str, grace: &str, script: &str) -> Job {
        let folder = common::folder(name);
        let fifo = folder.join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let mark = folder.to_str().unwrap().to_owned();
        // The scripts within the script name the FIFO too, at every depth.
        let script = script.replace("$1", fifo.to_str().unwrap());
        let mut command = tautline();
        command.args(["run", "-n", "1", "--grace", grace, "sh", "-c", &script]).env(MARK, &mark);
        let launcher = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Job { mark, folder, launcher }
    }

    /// Waits for the launcher; checks its exit code, and that nothing of the job is left.
    fn ends_with(mut self, code: i32) {
        let status = self.launcher.wait().unwrap();
        let left = marked(&self.mark);
        // They may keep what is read here open.
        end_marked(&self.mark);
        let mut said = String::new();
        self.launcher.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(status.code(), Some(code), "{said}");
        assert!(left.is_empty(), "left behind: {left:?}; {said}");
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        end_marked(&self.mark);
        let _ = self.launcher.wait();
    }
}

/// Ends what a failed test would leave.
fn end_marked(mark: &str) {
    for _ in 0..100 {
        let left = marked(mark);
        if left.is_empty() {
            return;
        }
        let numbers = left.iter().map(ToString::to_string);
        let _ = Command::new("kill").arg("-KILL").args(numbers).stderr(Stdio::null()).status();
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// The processes that were started with the mark and still run; a zombie has no environment.
fn marked(mark: &str) -> Vec<u32> {
    let line = format!("{MARK}={mark}");
    let has_mark = |pid: &u32| {
        let environment = std::fs::read(Path::new("/proc").join(pid.to_string()).join("environ"));
        environment.is_ok_and(|bytes| bytes.split(|b| *b == 0).any(|entry| entry == line.as_bytes()))
    };
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(has_mark).collect()
}

/// J-6: after a normal end.
#[test]
fn three_generations_are_ended() {
    Job::start("generations", &format!("{GENERATIONS} exit 0")).ends_with(0);
}

/// J-6: after a failure, by a process that starts others all the time.
#[test]
fn a_process_that_starts_others_is_ended() {
    Job::start("spawner", &format!("{SPAWNER} exit 4")).ends_with(4);
}

/// J-6: after a normal end, what is left is asked to end, and has the grace time for it.
#[test]
fn leftovers_are_asked_to_end() {
    // The trap takes longer than it takes to send SIGKILL after SIGTERM.
    let script = r#"
        sh -c 'trap "i=0; while [ \$i -lt 50000 ]; do i=\$((i+1)); done; echo asked > $1.asked; exit" TERM
               echo ready > $1; while :; do sleep 0.01; done' &
        read ready < $1; exit 0
    "#;
    let mut job = Job::start_with_grace("asked", "86400", script);
    job.launcher.wait().unwrap();
    assert_eq!(std::fs::read_to_string(job.folder.join("fifo.asked")).unwrap_or_default(), "asked\n");
    job.ends_with(0);
}

/// J-6: on a request to end, which the ranks and all that they started ignore.
#[test]
fn an_interrupt_ends_every_generation() {
    let mut job = Job::start("interrupt", &format!("{GENERATIONS} echo up; while :; do sleep 1; done"));
    assert_eq!(common::read_line(job.launcher.stdout.as_mut().unwrap()), "up");
    kill(job.launcher.id(), "INT");
    job.ends_with(130);
}

/// J-25: the process that the user started is killed. Its launcher ends everything.
#[test]
fn a_killed_supervisor_leaves_nothing() {
    let mut job = Job::start("supervisor", &format!("{GENERATIONS} echo up; while :; do sleep 1; done"));
    assert_eq!(common::read_line(job.launcher.stdout.as_mut().unwrap()), "up");
    kill(job.launcher.id(), "KILL");
    until(PATIENCE, || marked(&job.mark).is_empty());
}

/// J-25: a launcher that begins when its supervisor is gone starts nothing. One that has only inherited the
/// variable of another one is none of that.
#[test]
fn a_launcher_without_its_supervisor_starts_nothing() {
    // As a supervisor leaves it: inherited, and under this name.
    let record = rustix::fs::memfd_create("tautline-record", rustix::fs::MemfdFlags::empty()).unwrap();
    let run = |descriptor: i32| {
        let mut command = tautline();
        command.args(["run", "-n", "1", "--", "echo", "up"]);
        // No process of these tests is a child of the first one.
        command.env("TAUTLINE_SUPERVISOR", format!("1 {descriptor} {descriptor} {descriptor}"));
        command.output().unwrap()
    };
    let alone = run(record.as_raw_fd());
    let error = String::from_utf8_lossy(&alone.stderr);
    assert!(!alone.status.success() && alone.stdout.is_empty(), "{alone:?}");
    assert!(error.contains("was killed before the job began"), "{error}");
    let below = run(999);
    assert!(below.status.success() && below.stdout == b"up\n", "{below:?}");
}

/// J-25: the launcher is killed. Its supervisor ends everything, and unlinks what it can.
#[test]
fn a_killed_launcher_leaves_nothing() {
    let mut job = Job::start("launcher", &format!("{GENERATIONS} echo up; while :; do sleep 1; done"));
    assert_eq!(common::read_line(job.launcher.stdout.as_mut().unwrap()), "up");
    kill(launcher_of(job.launcher.id()), "KILL");
    job.ends_with(137);
}

/// The program of the job below: it says where it listens for other processes of its host.
#[test]
#[ignore = "a program of these tests"]
fn listen() {
    let ep = Endpoint::builder().join().unwrap();
    // A listener is bound to a name with the number of its process, and then renamed.
    let start = format!("{}/.{}.", discovery_dir().display(), std::process::id());
    let name = || {
        let table = std::fs::read_to_string("/proc/self/net/unix").unwrap();
        let mut paths = table.lines().filter_map(|line| line.split_whitespace().nth(7));
        paths.find_map(|path| Some(path.strip_prefix(&start)?.to_owned()))
    };
    // The table of sockets is no snapshot: it may lack one while others come and go.
    let name = (0..1_000).find_map(|_| name()).unwrap();
    let line = format!("\nlistens at {}\n", discovery_dir().join(name).display());
    std::io::stdout().write_all(line.as_bytes()).unwrap();
    loop {
        // Whatever comes: it is killed.
        let _ = ep.wait(None);
    }
}

/// J-25: the launcher is killed, and with it ranks that have listeners. The supervisor unlinks those.
#[test]
fn a_killed_launcher_leaves_no_listener() {
    let mut command = tautline();
    command.args(["run", "-n", "2", "--grace", "0.1"]).stdout(Stdio::piped());
    let RunningJob(job) = &mut RunningJob(as_program(&mut command, "listen").spawn().unwrap());
    let lines = BufReader::new(job.stdout.take().unwrap()).lines().map_while(Result::ok);
    let listeners = lines.filter_map(|line| Some(PathBuf::from(line.strip_prefix("listens at ")?)));
    let listeners: Vec<_> = listeners.take(2).collect();
    assert!(listeners.len() == 2 && listeners.iter().all(|path| path.exists()), "{listeners:?}");
    kill(launcher_of(job.id()), "KILL");
    assert_eq!(job.wait().unwrap().code(), Some(137));
    assert!(!listeners.iter().any(|path| path.exists()), "one of {listeners:?} is left");
}

/// J-6: a second request ends everything at once, whatever the grace is.
#[test]
fn a_second_interrupt_does_not_wait_for_grace() {
    let script = r#"trap "" TERM; sleep 1000 & echo up"#;
    let mut job = Job::start_with_grace("second-interrupt", "86400", script);
    assert_eq!(common::read_line(job.launcher.stdout.as_mut().unwrap()), "up");
    // Signals of one kind that arrive together are one; so they are repeated until the end.
    until(PATIENCE, || {
        let ended = job.launcher.try_wait().unwrap().is_some();
        if !ended {
            kill(job.launcher.id(), "INT");
        }
        ended
    });
    job.ends_with(130);
}
