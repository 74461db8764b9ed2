//! `tautline run` as a user sees it: exit codes, the key's secrecy, and nothing left behind.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use common::{PATIENCE, as_program, is_running, kill, launcher_of, read_line, tautline, until};
use tautline::{Endpoint, Short};

#[test]
fn success_exits_with_zero() {
    let out = tautline().args(["run", "-n", "3", "true"]).output().unwrap();
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
}

#[test]
fn the_first_failure_is_the_exit_code() {
    // Only one rank exits; the others would wait for long.
    let script = r#"grep -q "^rank 1$" /proc/self/fd/$TAUTLINE_JOB_FD && exit 7; exec sleep 1000"#;
    let out = tautline().args(["run", "-n", "3", "--grace", "0.1", "sh", "-c", script]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(7), "{text}");
    assert!(text.contains("the first to fail") && text.contains("ended by tautline"), "{text}");
}

#[test]
fn a_signal_is_128_and_its_number() {
    let out = tautline().args(["run", "-n", "1", "sh", "-c", "kill -9 $$"]).output().unwrap();
    assert_eq!(out.status.code(), Some(137));
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed() {
    let script = r#"grep -q "^rank 0$" /proc/self/fd/$TAUTLINE_JOB_FD && exit 3; trap "" TERM; while :; do sleep 1; done"#;
    let out = tautline().args(["run", "-n", "2", "--grace", "0.1", "sh", "-c", script]).output().unwrap();
    assert_eq!(out.status.code(), Some(3));
}

#[test]
fn mistakes_are_explained_in_two_lines() {
    for (args, word) in [
        (&["run", "-n", "0", "true"][..], "-n 1 or more"),
        (&["run", "-n", "1000000", "true"], "smaller -n"),
        (&["run", "-n", "2", "no-such-program"], "give its path"),
        (&["run", "-n", "2", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")], "chmod +x"),
    ] {
        let out = tautline().args(args).output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{text}");
        assert!(text.contains(word) && text.lines().count() == 2, "{text}");
    }
}

/// J-1: the key is in the description, and nowhere that `ps` shows.
#[test]
fn the_key_is_not_in_arguments_or_environment() {
    let script = r#"
        key=$(sed -n "s/^key //p" /proc/self/fd/$TAUTLINE_JOB_FD)
        test ${#key} = 64 || exit 10
        for pid in $$ $PPID; do
            grep -q "$key" /proc/$pid/cmdline && exit 11
            grep -q "$key" /proc/$pid/environ && exit 12
        done
        exit 0"#;
    let out = tautline().args(["run", "-n", "2", "sh", "-c", script]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Each rank gets its socket and its description, and no other rank's.
#[test]
fn a_rank_inherits_only_its_own_descriptors() {
    let script = r#"ls -l /proc/self/fd | grep -c -e socket: -e memfd:"#;
    let out = tautline()
        .args(["run", "-n", "3", "--tag", "sh", "-c", script])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] 2", "[1] 2", "[2] 2"]);
}

/// A job of two ranks that sleep, and their process numbers.
fn two_sleeping_ranks() -> (Child, [String; 2]) {
    let mut child = tautline()
        .args(["run", "-n", "2", "--grace", "0.2", "sh", "-c", "echo $$; exec sleep 1000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let pids = [read_line(&mut stdout), read_line(&mut stdout)];
    (child, pids)
}

#[test]
fn an_interrupt_ends_the_job() {
    let (mut child, pids) = two_sleeping_ranks();
    kill(child.id(), "INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(pids.iter().all(|pid| !is_running(pid)));
}

/// J-6, J-25: whether the launcher is killed, its supervisor, or both at once.
#[test]
fn ranks_end_with_a_killed_launcher() {
    for victims in [&["supervisor"][..], &["launcher"], &["supervisor", "launcher"]] {
        let (mut child, pids) = two_sleeping_ranks();
        let launcher = launcher_of(child.id());
        let numbers = victims.iter().map(|victim| if *victim == "launcher" { launcher } else { child.id() });
        let numbers: Vec<_> = numbers.map(|number| number.to_string()).collect();
        assert!(Command::new("kill").arg("-KILL").args(numbers).status().unwrap().success());
        let status = child.wait().unwrap();
        let expected = if victims.contains(&"supervisor") { (None, Some(9)) } else { (Some(137), None) };
        assert_eq!((status.code(), status.signal()), expected, "{victims:?}");
        until(PATIENCE, || pids.iter().chain([&launcher.to_string()]).all(|pid| !is_running(pid)));
    }
}

/// A rank's own children are ended when the rank is gone.
#[test]
fn orphans_of_ranks_are_ended() {
    let mut child = tautline()
        .args(["run", "-n", "1", "--grace", "0.2", "sh", "-c", "sleep 1000 & echo $!; exit 4"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let orphan = read_line(&mut child.stdout.take().unwrap());
    assert_eq!(child.wait().unwrap().code(), Some(4));
    assert!(!is_running(&orphan));
}

/// Contradictory options are refused: only datagrams can have faults or captures.
#[test]
fn shared_memory_has_no_faults() {
    let out = tautline()
        .args(["run", "-n", "2", "--device", "shm", "--fault", "loss=5%", "true"])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("leave out --device shm"));
}

/// N-14: AF_XDP reaches other hosts only: a message says, once, what is used instead, and the job runs.
#[test]
fn ranks_on_one_host_do_not_use_xdp() {
    for (more, word) in [(&[][..], "share memory"), (&["--fault", "loss=1%"][..], "use udp")] {
        let out = tautline()
            .args(["run", "-n", "2", "--device", "xdp,mode=native"])
            .args(more)
            .arg("true")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{said}");
        assert_eq!(said.matches("xdp reaches other hosts only").count(), 1, "{said}");
        assert!(said.contains(word), "{said}");
    }
}

/// Output that cannot be forwarded is a failure, and reported; a reader that closes early is no failure.
#[test]
fn lost_output_is_reported() {
    let run = |out: Stdio| {
        let mut child = tautline();
        child.args(["run", "-n", "2", "--tag", "echo", "hi"]).stdout(out).stderr(Stdio::piped());
        child.spawn().unwrap().wait_with_output().unwrap()
    };
    let full = run(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into());
    assert_eq!(full.status.code(), Some(1));
    let said = String::from_utf8_lossy(&full.stderr);
    assert!(said.contains("output of the ranks was lost"), "{said}");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(run(writer.into()).status.code(), Some(0));
}

/// Started by the test below: joins, and starts a program of its own.
#[test]
#[ignore = "a program for other tests"]
fn program_parent() {
    let endpoint = Endpoint::builder().join().unwrap();
    let out = std::process::Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(!text.contains("memfd:") && !text.contains("socket:"), "{text}");
    assert!(Endpoint::builder().join().is_err(), "the job is handed over once");
    endpoint.close().unwrap();
}

/// J-4: a descriptor that a rank has taken over is closed to the programs that it starts, and is taken once.
#[test]
fn descriptors_are_not_inherited_twice() {
    let mut command = tautline();
    let out = as_program(command.args(["run", "-n", "2"]), "program_parent").output().unwrap();
    assert!(
        out.status.success(),
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
}

/// Started by the tests below as the ranks of a job.
#[test]
#[ignore = "a program for other tests"]
fn program_ring() {
    let count = std::rc::Rc::new(std::cell::Cell::new(0_u64));
    let seen = count.clone();
    let endpoint = Endpoint::builder()
        .on_short("number", move |message: Short<'_>| {
            assert_eq!(message.data(), seen.get().to_le_bytes());
            seen.set(seen.get() + 1);
        })
        .join()
        .unwrap();
    let next = (endpoint.rank() + 1) % endpoint.size();
    for number in 0..500_u64 {
        endpoint.send(next, "number", &number.to_le_bytes()).unwrap();
        endpoint.extract(usize::MAX).unwrap();
    }
    endpoint.run_until(|| count.get() == 500).unwrap();
    endpoint.close().unwrap();
}

fn ring(options: &[&str]) {
    let mut command = tautline();
    command.args(["run", "-n", "3"]).args(options);
    let out = as_program(&mut command, "program_ring").output().unwrap();
    assert!(
        out.status.success(),
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn messages_pass_around_a_ring_in_every_mode() {
    for mode in ["fabric", "sealed", "open"] {
        ring(&["--security", mode]);
    }
    ring(&["--ipv6"]);
}

#[test]
fn messages_survive_injected_faults() {
    ring(&["--fault", "loss=5%,dup=2%,reorder=5%,corrupt=1%,delay=0us-200us,seed=3"]);
}

#[test]
fn each_pair_has_a_capture() {
    let folder = common::folder("captures");
    ring(&["--pcap", folder.to_str().unwrap()]);
    for pair in ["0-1", "0-2", "1-2"] {
        let file = std::fs::read(folder.join(format!("ranks-{pair}.pcap"))).unwrap();
        assert!(file.len() > 1000, "{} bytes", file.len());
    }
}

#[test]
fn options_after_the_program_belong_to_it() {
    let out = tautline().args(["run", "-n", "1", "echo", "--tag", "-n", "2"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout), "--tag -n 2\n");
}

/// A program of jobs.
#[test]
#[ignore = "a program of jobs"]
fn die_once() {
    common::jobs::die_once();
}

/// J-20, N-26: a rank that dies is started again and rejoins; a rank without a channel to it is told.
#[test]
fn a_rank_is_started_again() {
    let folder = common::folder("restart");
    let lives = folder.join("lives");
    for device in ["shm", "udp"] {
        let mut command = tautline();
        command.args(["run", "-n", "3", "--restart", "--device", device]).env(common::jobs::LIVES, &lives);
        common::jobs::check_restart(&mut command, &lives);
    }
    let output =
        tautline().args(["run", "-n", "1", "--restart=2", "sh", "-c", "echo x; exit 3"]).output().unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(3), &b"x\nx\nx\n"[..]), "{output:?}");
}
