//! `tautline run --hosts`: a job on two hosts through ssh. The hosts are network namespaces.

mod common;

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::hosts::{Hosts, MARK, lacks_hosts, marked, parent_of};
use common::jobs::{LIVES, check_restart, expected, lines, run, said};
use common::joins::{check_ends_are_told, check_joins};
use common::{
    PATIENCE, RunningJob, as_program, children_of, cores_allowed, is_running, kill, launcher_of, read_line,
    until,
};

/// The program of the jobs.
#[test]
#[ignore = "a program of jobs"]
fn greet_all() {
    common::jobs::greet_all();
}

/// A program of jobs.
#[test]
#[ignore = "a program of jobs"]
fn die_once() {
    common::jobs::die_once();
}

/// A program of jobs.
#[test]
#[ignore = "a program of jobs"]
fn greet_whoever_joins() {
    common::joins::greet_whoever_joins();
}

/// A program of the jobs.
#[test]
#[ignore = "a program of jobs"]
fn wait_for_an_end() {
    common::joins::wait_for_an_end();
}

/// J-16, J-17: one set of hosts for all that can be seen with them, because they take a while to start.
#[test]
fn on_two_hosts() {
    if let Some(why) = lacks_hosts() {
        return tautline_skips::skip("on_two_hosts", why);
    }
    let hosts = Hosts::new("two-hosts");
    the_program_runs(&hosts);
    options_reach_the_hosts(&hosts);
    mistakes_are_named_before_anything_starts(&hosts);
    failures_end_the_job(&hosts);
    nothing_survives_the_launcher_or_an_agent(&hosts);
    an_interrupt_ends_the_job(&hosts);
    bindings_and_interfaces(&hosts);
    members_have_several_addresses(&hosts);
    a_program_that_one_host_lacks_is_named(&hosts);
    ranks_join_on_the_hosts(&hosts);
    joined_ranks_belong_to_the_command(&hosts);
    late_answers_are_not_taken_for_those_to_other_requests(&hosts);
    output_that_nobody_reads_ends_the_job(&hosts);
    ranks_join_on_a_host_whose_processes_end(&hosts);
    // N-26: on a host of the job, and on one that it has not used.
    for (list, at) in [("a:2", "a"), ("a,b", "b"), ("a:2", "b")] {
        let join = |job: u32| hosts.tautline(&["--join", &job.to_string(), "--hosts", at]);
        check_ends_are_told(hosts.tautline(&["--hosts", list]), join);
    }
    // J-20: on the host of rank 0 and on the other.
    for list in ["a:2,b", "a,b:2"] {
        let lives = format!("{LIVES}={}", hosts.folder.join("lives").display());
        check_restart(
            &mut hosts.tautline(&["-n", "3", "--hosts", list, "--restart", "--env", &lives]),
            &hosts.folder.join("lives"),
        );
    }
}

/// J-26: a request is carried out though the agent that it goes to ends before it answers, with the last
/// process of its host or killed.
fn ranks_join_on_a_host_whose_processes_end(hosts: &Hosts) {
    for signal in ["CONT", "KILL"] {
        let mut job = hosts.tautline(&["--hosts", "a,b", "--keep-going"]);
        job.args(["-n", "1", "sh", "-c", "echo up; exec sleep 1000"]);
        job.args([":", "-n", "1", "sh", "-c", "echo $$; exec sleep 1000"]);
        job.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let RunningJob(job) = &mut RunningJob(job.spawn().unwrap());
        let output = job.stdout.as_mut().unwrap();
        let lines = [read_line(output), read_line(output)];
        let rank: u32 = lines.iter().find_map(|line| line.parse().ok()).unwrap();
        let agent = parent_of(rank).unwrap();
        kill(agent, "STOP");
        kill(rank, "KILL");
        let mut join = hosts.tautline(&["--join", &job.id().to_string(), "--hosts", "b"]);
        join.args(["sh", "-c", "echo joined"]).stdin(Stdio::null());
        let join = join.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // For the request to be on its way to the agent. If it is not, a new agent takes it all the same.
        std::thread::sleep(Duration::from_millis(500));
        kill(agent, signal);
        let joined = join.wait_with_output().unwrap();
        assert!(joined.status.success() && joined.stdout == b"joined\n", "{signal}: {joined:?}");
        kill(job.id(), "INT");
        assert_eq!(job.wait().unwrap().code(), Some(130));
    }
}

/// Ctrl-C: every process is asked to end, and killed if it does not.
fn an_interrupt_ends_the_job(hosts: &Hosts) {
    // Those that answer get as long as that takes.
    for (answer, said, grace) in [("echo asked; exit 0", 2, "60"), ("", 0, "0.5")] {
        let mark = format!("{}-interrupt-{said}", std::process::id());
        let variable = format!("{MARK}={mark}");
        let script = format!("trap '{answer}' TERM; echo up; while :; do sleep 0.05; done");
        let mut command =
            hosts.tautline(&["--hosts", "a,b", "--grace", grace, "--env", &variable, "sh", "-c", &script]);
        let mut job =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let output = job.stdout.as_mut().unwrap();
        assert_eq!((read_line(output).as_str(), read_line(output).as_str()), ("up", "up"));
        kill(job.id(), "INT");
        let output = job.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{output:?}");
        assert_eq!(lines(&output, "asked").len(), said, "{output:?}");
        assert_eq!(marked(&mark), []);
    }
}

fn bindings_and_interfaces(hosts: &Hosts) {
    let bound = |to: &str| {
        let output =
            hosts.run(&["--hosts", "a:2", "--bind", to, "grep", "Cpus_allowed_list", "/proc/self/status"]);
        lines(&output, "Cpus_allowed_list").join(" ").replace("Cpus_allowed_list:", "")
    };
    let cores: Vec<_> = bound("core").split_whitespace().map(|core| core.parse::<u32>().unwrap()).collect();
    assert_eq!(cores.len(), 2);
    let several = cores_allowed() > 1;
    assert_eq!(cores[0] != cores[1], several, "{cores:?}");
    if !several {
        tautline_skips::skip("on_two_hosts", "to see bindings, it needs two cores (in part)");
    }
    assert!(!several || bound("none").split_whitespace().all(|cores| cores.parse::<u32>().is_err()));
    let script = "grep ^member /proc/self/fd/$TAUTLINE_JOB_FD";
    for (network, address) in [("10.214.1.0/24", "10.214.1"), ("10.214.0.0/24", "10.214.0")] {
        let output = hosts.run(&["--hosts", "a,b", "--interface", network, "sh", "-c", script]);
        let members = lines(&output, "member");
        let expected = [format!("member 0 {address}.1:"), format!("member 1 {address}.2:")];
        let right = |start: &String| members.iter().filter(|member| member.starts_with(start)).count() == 2;
        assert!(members.len() == 4 && expected.iter().all(right), "{members:?}");
    }
}

/// J-28: hosts announce the addresses of all networks that are named. Those of the first are of no use here,
/// to ranks that begin and to those that join: no answer comes back.
fn members_have_several_addresses(hosts: &Hosts) {
    let both = ["--interface", "10.214.1.0/24,10.214.0.0/24"];
    let script = "grep ^member /proc/self/fd/$TAUTLINE_JOB_FD";
    let output = hosts.run(&[&both[..], &["--hosts", "a,b", "sh", "-c", script]].concat());
    let members = lines(&output, "member");
    assert_eq!(members.len(), 4, "{output:?}");
    for member in members {
        let words: Vec<_> = member.split([' ', ':', ',']).collect();
        let host = words[1].parse::<u32>().unwrap() + 1;
        assert_eq!([words[2], words[4]], [format!("10.214.1.{host}"), format!("10.214.0.{host}")]);
        assert_eq!(words[3], words[5], "one port");
    }
    let route = |change: &str| hosts.ip(1, &["route", change, "unreachable", "10.214.1.1"]);
    route("add");
    let greet = run(as_program(&mut hosts.tautline(&[&both[..], &["--hosts", "a,b"]].concat()), "greet_all"));
    assert_eq!(said(&greet), expected(2));
    let job = hosts.tautline(&[&both[..], &["-n", "2", "--hosts", "b,a"]].concat());
    check_joins(job, |job| hosts.tautline(&["--join", &job.to_string(), "-n", "2"]), [2, 1, 2, 1, 2]);
    route("del");
}

/// J-22, J-23, J-26, J-27: through the command, and through the agent of another host than the launcher's.
/// Two join, one on each host, or on the host that is named, which the job has not used yet.
fn ranks_join_on_the_hosts(hosts: &Hosts) {
    for (list, further, local) in
        [("b,a", &["-n", "2"][..], [2, 1, 2, 1, 2]), ("a:2", &["-n", "2", "--hosts", "b"], [2, 2, 1, 1, 2])]
    {
        let job = hosts.tautline(&["-n", "2", "--hosts", list]);
        check_joins(job, |job| hosts.tautline(&[&["--join", &job.to_string()], further].concat()), local);
    }
}

/// J-24, J-26: output, exit code, directory and environment are those of the command; a rank ends with it;
/// and what cannot be started is named, and leaves the job as it was.
fn joined_ranks_belong_to_the_command(hosts: &Hosts) {
    let mut job = hosts.tautline(&["--hosts", "a", "--keep-going", "sh", "-c", "echo up; exec sleep 1000"]);
    let mut job = job.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(read_line(job.stdout.as_mut().unwrap()), "up");
    let number = job.id().to_string();
    let join = |host: &str, program: &[&str]| {
        let options = ["--join", &number, "--hosts", host, "--env", "WORD=here", "--wdir", "/"];
        let mut command = hosts.tautline(&[&options[..], program].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    // The second time the agent of that host has ended.
    for host in ["a", "b", "b"] {
        let ended = join(host, &["sh", "-c", "echo $WORD; pwd; exit 7"]).output().unwrap();
        assert_eq!((ended.status.code(), &*ended.stdout), (Some(7), &b"here\n/\n"[..]), "{ended:?}");
    }
    for (host, program, word) in [
        ("gone", "true", "the host gone cannot be reached"),
        ("a,gone", "true", "the host gone cannot be reached"),
        ("b", "/no/such/program", "on the host b: cannot start /no/such/program"),
        ("a", "/no/such/program", "on the host a: cannot start /no/such/program"),
        ("a:0", "true", "0 processes"),
    ] {
        let refused = join(host, &[program]).output().unwrap();
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(2) && text.contains(word), "{text}");
    }
    let mut command = join("a,b", &["sh", "-c", "echo $$; exec sleep 1000"]).spawn().unwrap();
    let output = command.stdout.as_mut().unwrap();
    let ranks = [read_line(output), read_line(output)];
    command.kill().unwrap();
    command.wait().unwrap();
    until(PATIENCE, || ranks.iter().all(|rank| !is_running(rank)));
    assert!(job.try_wait().unwrap().is_none());
    kill(job.id(), "INT");
    assert_eq!(job.wait().unwrap().code(), Some(130));
}

/// J-26: a host answers a request when it has been given up, and another one is being carried out.
fn late_answers_are_not_taken_for_those_to_other_requests(hosts: &Hosts) {
    let mut job = hosts.tautline(&["--hosts", "a", "--keep-going", "sh", "-c", "echo $$; exec sleep 1000"]);
    job.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let RunningJob(job) = &mut RunningJob(job.spawn().unwrap());
    let rank: u32 = read_line(job.stdout.as_mut().unwrap()).parse().unwrap();
    let agent = parent_of(rank).unwrap();
    let join = |host: &str, program: &[&str]| {
        let number = job.id().to_string();
        let mut command = hosts.tautline(&[&["--join", &number, "--hosts", host], program].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    kill(agent, "STOP");
    let refused = join("a,gone", &["true"]).wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("gone cannot be reached"), "{refused:?}");
    // The port in the description, and that of the socket.
    let program = r#"d=$(cat /proc/$$/fd/$TAUTLINE_JOB_FD); s=$(echo "$d" | sed -n 's/^socket //p')
        told=$(echo "$d" | sed -n 's/^member 1 [^:]*:\([0-9]*\).*/\1/p')
        inode=$(readlink /proc/$$/fd/$s | tr -dc 0-9)
        real=$(sed -n "s/^ *[0-9]*: [0-9A-F]*:\([0-9A-F]*\) .* $inode .*/\1/p" /proc/net/udp)
        echo $told $((0x$real))"#;
    let joined = join("a", &["sh", "-c", program]);
    kill(agent, "CONT");
    let joined = joined.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&joined.stdout);
    let (told, real) = text.trim().split_once(' ').unwrap_or_else(|| panic!("{joined:?}"));
    assert!(!told.is_empty() && told == real, "{joined:?}");
    kill(job.id(), "INT");
    assert_eq!(job.wait().unwrap().code(), Some(130));
}

/// A reader that has gone ends the job, as it ends a single program.
fn output_that_nobody_reads_ends_the_job(hosts: &Hosts) {
    for options in [&["--hosts", "a,b"][..], &["--hosts", "a,b", "--tag"]] {
        let mut job = hosts.tautline(&[options, &["--grace", "0.2", "yes"]].concat());
        job.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let RunningJob(job) = &mut RunningJob(job.spawn().unwrap());
        read_line(job.stdout.as_mut().unwrap());
        drop(job.stdout.take());
        assert_eq!(job.wait().unwrap().code(), Some(141));
    }
}

/// The hosts share their files, but for a directory that one of them hides.
fn a_program_that_one_host_lacks_is_named(hosts: &Hosts) {
    let folder = hosts.folder.join("programs");
    std::fs::create_dir(&folder).unwrap();
    let (program, agent, started) =
        (folder.join("program"), hosts.folder.join("hiding"), hosts.folder.join("started"));
    let hide = format!(
        "#!/bin/sh\ncase $SSH_CONNECTION in *10.214.0.2*) mount='mount -t tmpfs none {}';; esac\n\
         exec unshare --mount sh -c \"${{mount:-:}}; exec {} __agent\"\n",
        folder.display(),
        env!("CARGO_BIN_EXE_tautline")
    );
    for (path, text) in [(&program, &format!("#!/bin/sh\ntouch {}\n", started.display())), (&agent, &hide)] {
        std::fs::write(path, text).unwrap();
        assert!(Command::new("chmod").arg("755").arg(path).status().unwrap().success());
    }
    let agent = agent.to_str().unwrap();
    let output = hosts.run(&["--hosts", "a,b", "--agent", agent, program.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("on the host b: cannot start") && !text.contains("on the host a"), "{text}");
    assert!(!started.exists());
}

/// J-11: shared memory within the hosts, datagrams between them, although they share their files.
fn the_program_runs(hosts: &Hosts) {
    let output = run(as_program(&mut hosts.tautline(&["-n", "5", "--hosts", "a:2,b"]), "greet_all"));
    assert_eq!(said(&output), expected(5));
    assert_eq!(lines(&output, "local "), ["local 1", "local 1", "local 2", "local 2", "local 2"]);
}

fn options_reach_the_hosts(hosts: &Hosts) {
    let script = r#"echo "$X $(pwd) $(cat)""#;
    let mut command =
        hosts.tautline(&["--hosts", "a,b", "--tag", "--env", "X=y z", "--wdir", "/", "sh", "-c", script]);
    let mut job = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    job.stdin.take().unwrap().write_all(b"input").unwrap();
    let output = job.wait_with_output().unwrap();
    assert_eq!(lines(&output, "["), ["[0] y z / input", "[1] y z / "], "{output:?}");
    // More input than all buffers on the way hold; it ends for rank 0 when it ends here.
    let mut command = hosts.tautline(&["--hosts", "b,a", "--tag", "sh", "-c", "sleep 0.2; wc -c"]);
    let mut job = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    job.stdin.take().unwrap().write_all(&vec![b'x'; 3 << 20]).unwrap();
    let output = job.wait_with_output().unwrap();
    assert_eq!(lines(&output, "["), ["[0] 3145728", "[1] 0"], "{output:?}");
    let folder = hosts.folder.join("output");
    let output = hosts.run(&[
        "--hosts",
        "a",
        "--output",
        folder.to_str().unwrap(),
        "-n",
        "1",
        "echo",
        "x",
        ":",
        "-n",
        "1",
        "echo",
        "y",
    ]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    let read = |rank: u32| std::fs::read_to_string(folder.join(format!("rank-{rank}.txt"))).unwrap();
    assert_eq!((read(0).as_str(), read(1).as_str()), ("x\n", "y\n"));
}

fn mistakes_are_named_before_anything_starts(hosts: &Hosts) {
    let started = hosts.folder.join("started");
    let touch = started.to_str().unwrap();
    let other = hosts.folder.join("other");
    std::fs::write(&other, "#!/bin/sh\necho tautline-agent 0.0.1\ncat\n").unwrap();
    assert!(Command::new("chmod").arg("755").arg(&other).status().unwrap().success());
    for (options, words) in [
        (
            &["--hosts", "a,gone", "touch", touch][..],
            &["the host gone cannot be reached", "ssh gone true"][..],
        ),
        (
            &["--hosts", "a,b", "--agent", "/no/agent", "touch", touch],
            &["the host a has no program /no/agent", "the host b"],
        ),
        (
            &["--hosts", "a,b", "--agent", other.to_str().unwrap(), "touch", touch],
            &["the host a has tautline 0.0.1, and this is"],
        ),
        (
            &["--hosts", "a,b", "-n", "1", "touch", touch, ":", "-n", "1", "/no/such"],
            &["on the host b: cannot start /no/such"],
        ),
        (&["--hosts", "no-such-user@a", "touch", touch], &["the host no-such-user@a cannot be reached"]),
        (&["--hosts", "a:0,b", "touch", touch], &["the host a has 0 processes"]),
        (&["--hosts", "a,a2", "touch", touch], &["a and a2 are the same host", "name it once"]),
        (&["--hostfile", "/bin/sh", "touch", touch], &["cannot read the host file /bin/sh"]),
        (&["--hosts", "a,b", "--wdir", "/no/such", "touch", touch], &["on the host a: cannot enter"]),
        (&["--hosts", "a,b", "--interface", "no7", "touch", touch], &["on the host a:", "no7", "10.214.0.1"]),
    ] {
        let output = hosts.run(options);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {text}");
        assert!(words.iter().all(|word| text.contains(word)), "{options:?}: {text}");
        assert!(!started.exists(), "{options:?}");
    }
}

fn failures_end_the_job(hosts: &Hosts) {
    let output = hosts.run(&[
        "--hosts", "a,b", "--grace", "0.1", "-n", "1", "sleep", "1000", ":", "-n", "1", "sh", "-c", "exit 7",
    ]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{text}");
    assert!(text.contains("the first to fail") && text.contains("ended by tautline"), "{text}");
    let output = hosts.run(&[
        "--hosts",
        "a,b",
        "--keep-going",
        "-n",
        "1",
        "sh",
        "-c",
        "exit 7",
        ":",
        "-n",
        "1",
        "echo",
        "on",
    ]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(7), &b"on\n"[..]), "{output:?}");
    let output = hosts.run(&["--hosts", "a,b", "--grace", "0.1", "--timeout", "0.1", "sleep", "1000"]);
    assert_eq!(output.status.code(), Some(124), "{output:?}");
}

/// J-17, J-19: whichever process of the control connections is killed, no rank survives on any host.
fn nothing_survives_the_launcher_or_an_agent(hosts: &Hosts) {
    for victim in ["supervisor", "launcher", "ssh", "agent"] {
        let mark = format!("{}-{victim}", std::process::id());
        let variable = format!("{MARK}={mark}");
        let script = "echo up; exec sleep 1000";
        let mut command =
            hosts.tautline(&["--hosts", "a,b", "--grace", "0.1", "--env", &variable, "sh", "-c", script]);
        let mut job =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let output = job.stdout.as_mut().unwrap();
        assert_eq!((read_line(output).as_str(), read_line(output).as_str()), ("up", "up"));
        // While a process becomes another program, its environment seems empty.
        let mut ranks = Vec::new();
        until(PATIENCE, || {
            ranks = marked(&mark);
            ranks.len() == 2
        });
        let launcher = launcher_of(job.id());
        match victim {
            "supervisor" => kill(job.id(), "KILL"),
            "launcher" => kill(launcher, "KILL"),
            "ssh" => kill(children_of(launcher)[0], "KILL"),
            _ => kill(parent_of(ranks[0].0).unwrap(), "KILL"),
        }
        let status = job.wait().unwrap();
        assert!(!status.success(), "{victim}: {status:?}");
        until(PATIENCE, || marked(&mark).is_empty());
        // J-25: nor the socket on which the job was asked for ranks.
        let user = rustix::process::geteuid().as_raw();
        let socket = std::path::PathBuf::from(format!("/tmp/tautline-{user}/job-{}", job.id()));
        until(PATIENCE, || !socket.exists());
    }
}
