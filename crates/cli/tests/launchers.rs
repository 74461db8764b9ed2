//! `tautline run --hosts`: a job on two hosts through ssh, and under other launchers the same program with
//! the same output. The hosts are network namespaces with an sshd each, of this test's own.

mod common;

use std::cell::Cell;
use std::collections::HashSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::rc::Rc;

use common::{PATIENCE, as_program, folder, kill, read_line, tautline, until};
use tautline::{Endpoint, Event, Short};

/// The program of the jobs: every rank greets every other, and says how many it has heard.
#[test]
#[ignore = "a program of jobs"]
fn greet_all() {
    let heard = Rc::new(Cell::new(0));
    let count = heard.clone();
    let ep =
        Endpoint::builder().on_short("greet", move |_: Short<'_>| count.set(count.get() + 1)).join().unwrap();
    for peer in (0..ep.size()).filter(|peer| *peer != ep.rank()) {
        ep.send(peer, "greet", b"").unwrap();
    }
    ep.run_until(|| heard.get() + 1 == ep.size()).unwrap();
    let mut shared = HashSet::new();
    while let Some(event) = ep.poll_event() {
        if let Event::Transport { peer, device: "shm", .. } = event {
            shared.insert(peer);
        }
    }
    let local = shared.len();
    let line = format!("\nrank {} of {} heard {} others\nlocal {local}\n", ep.rank(), ep.size(), heard.get());
    std::io::stdout().write_all(line.as_bytes()).unwrap();
    ep.barrier().unwrap();
    ep.close().unwrap();
}

/// What the program says, in order of rank.
fn said(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{output:?}");
    lines(output, "rank ")
}

fn lines(output: &Output, start: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines: Vec<_> = text.lines().filter(|line| line.starts_with(start)).map(str::to_owned).collect();
    lines.sort();
    lines
}

fn expected(n: u32) -> Vec<String> {
    (0..n).map(|rank| format!("rank {rank} of {n} heard {} others", n - 1)).collect()
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/sbin".into()]).any(|folder| folder.join(program).is_file())
}

/// A command without the variables of a launcher under which the tests may run.
fn clean(command: &mut Command) -> &mut Command {
    ["TAUTLINE_JOB_FD", "TAUTLINE_JOB_FILE", "PMI_FD", "PMI_JOBID", "SLURM_STEP_NUM_TASKS"]
        .iter()
        .fold(command, |c, name| c.env_remove(name))
}

fn run(command: &mut Command) -> Output {
    clean(command).stdin(Stdio::null()).output().unwrap()
}

/// J-15: started alone, the program is a job of one.
#[test]
fn alone() {
    let mut command = Command::new("env");
    assert_eq!(said(&run(as_program(&mut command, "greet_all"))), expected(1));
}

/// J-12, J-13: under hydra, the launcher of MPICH.
#[test]
fn under_hydra() {
    if !has("mpiexec.hydra") {
        return tautline_skips::skip("under_hydra", "mpiexec.hydra (mpich) is not installed");
    }
    let output = run(as_program(Command::new("mpiexec.hydra").args(["-n", "4"]), "greet_all"));
    assert_eq!(said(&output), expected(4));
    assert_eq!(lines(&output, "local "), ["local 3"; 4], "{output:?}");
}

/// J-13: with a key file, whose mode is checked.
#[test]
fn a_key_file_under_hydra() {
    if !has("mpiexec.hydra") {
        return tautline_skips::skip("a_key_file_under_hydra", "mpiexec.hydra (mpich) is not installed");
    }
    let folder = folder("key-file");
    let file = folder.join("key");
    std::fs::write(&file, "0123456789abcdef".repeat(4)).unwrap();
    let start = |mode: &str| {
        assert!(Command::new("chmod").arg(mode).arg(&file).status().unwrap().success());
        let mut command = Command::new("mpiexec.hydra");
        command.args(["-n", "2"]).env("TAUTLINE_KEY_FILE", &file);
        run(as_program(&mut command, "greet_all"))
    };
    assert_eq!(said(&start("600")), expected(2));
    let refused = start("644");
    let text = String::from_utf8([&refused.stdout[..], &refused.stderr].concat()).unwrap();
    assert!(!refused.status.success() && text.contains("chmod 600"), "{refused:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// J-9, J-10: with a static list of members, the same file for all.
#[test]
fn a_static_list() {
    let folder = folder("static-list");
    let file = folder.join("job");
    // Ports that were free a moment ago; each is bound by its rank.
    let sockets: Vec<_> = (0..3).map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let mut text = format!("tautline-job 1\nkey {}\nrank $TEST_RANK\n", "ab".repeat(32));
    for (rank, socket) in sockets.iter().enumerate() {
        text += &format!("member {rank} 127.0.0.1:{}\n", socket.local_addr().unwrap().port());
    }
    drop(sockets);
    std::fs::write(&file, text).unwrap();
    assert!(Command::new("chmod").arg("600").arg(&file).status().unwrap().success());
    let start = |rank: u32| {
        let mut command = Command::new("env");
        as_program(&mut command, "greet_all");
        clean(&mut command).env("TAUTLINE_JOB_FILE", &file).env("TEST_RANK", format!("pod-{rank}"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let started: Vec<Child> = (0..3).map(start).collect();
    let all: Vec<_> =
        started.into_iter().flat_map(|child| said(&child.wait_with_output().unwrap())).collect();
    assert_eq!(all, expected(3));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A process in a network namespace of its own, which lives as long.
fn hold_namespace() -> Child {
    let mut holder = Command::new("unshare");
    holder.args(["--net", "sh", "-c", "echo up; exec sleep 1000"]).stdout(Stdio::piped());
    let mut holder = holder.spawn().unwrap();
    assert_eq!(read_line(holder.stdout.as_mut().unwrap()), "up");
    holder
}

/// Two network namespaces on one link, with an sshd each. They live as long as the processes in them.
struct Hosts {
    folder: PathBuf,
    /// A process that holds each namespace, and its sshd.
    processes: Vec<Child>,
}

impl Hosts {
    fn new(name: &str) -> Hosts {
        let mut hosts = Hosts { folder: folder(name), processes: Vec::new() };
        for _ in 0..2 {
            hosts.processes.push(hold_namespace());
        }
        let [a, b] = [0, 1].map(|host: usize| hosts.processes[host].id().to_string());
        let setup = format!(
            "set -e; a='nsenter --net=/proc/{a}/ns/net'; b='nsenter --net=/proc/{b}/ns/net'
             $a ip link add e0 type veth peer name e0 netns {b}
             $a ip address add 10.214.0.1/24 dev e0; $b ip address add 10.214.0.2/24 dev e0
             for n in \"$a\" \"$b\"; do $n ip link set lo up; $n ip link set e0 up; done
             cd {folder}; ssh-keygen -q -t ed25519 -N '' -f key; cp key.pub authorized; mkdir -p /run/sshd",
            folder = hosts.folder.display()
        );
        let done = Command::new("sh").args(["-c", &setup]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        for (host, holder) in [(1, a), (2, b)] {
            hosts.start_sshd(host, &holder);
        }
        hosts
    }

    fn start_sshd(&mut self, host: u32, holder: &str) {
        let folder = self.folder.display().to_string();
        let configuration = self.folder.join(format!("sshd{host}"));
        let text = format!(
            "ListenAddress 10.214.0.{host}\nPort 22\nHostKey {folder}/key\nAuthorizedKeysFile {folder}/authorized\n\
             StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n"
        );
        std::fs::write(&configuration, text).unwrap();
        let mut sshd = Command::new("nsenter");
        sshd.arg(format!("--net=/proc/{holder}/ns/net")).args(["/usr/sbin/sshd", "-D", "-e", "-f"]);
        sshd.arg(&configuration).stderr(Stdio::null());
        self.processes.push(sshd.spawn().unwrap());
        let client = format!(
            "Host a\nHostName 10.214.0.1\nHost b\nHostName 10.214.0.2\nHost gone\nHostName 10.214.0.9\nHost *\n\
             IdentityFile {folder}/key\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known\n\
             StrictHostKeyChecking no\nBatchMode yes\nConnectTimeout 2\nConnectionAttempts 1\nLogLevel ERROR\n"
        );
        std::fs::write(self.folder.join("ssh"), client).unwrap();
        until(PATIENCE, || self.ssh(&format!("ssh -F {folder}/ssh"), if host == 1 { "a" } else { "b" }));
    }

    /// Whether a host can be reached from the first.
    fn ssh(&self, ssh: &str, host: &str) -> bool {
        let line = format!("{} {ssh} {host} true", self.nsenter());
        Command::new("sh").args(["-c", &line]).stderr(Stdio::null()).status().unwrap().success()
    }

    fn nsenter(&self) -> String {
        format!("nsenter --net=/proc/{}/ns/net", self.processes[0].id())
    }

    /// `tautline run` on the first host, with these options.
    fn tautline(&self, options: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.processes[0].id()));
        command.arg(tautline().get_program()).arg("run");
        command.args(["--ssh", &format!("ssh -F {}/ssh", self.folder.display())]).args(options);
        clean(&mut command);
        command
    }

    fn run(&self, options: &[&str]) -> Output {
        run(&mut self.tautline(options))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Why this machine has no hosts for the tests.
fn lacks_hosts() -> Option<&'static str> {
    tautline_skips::lacks_namespaces()
        .or((!has("sshd") || !has("ssh")).then_some("sshd (openssh-server) is not installed"))
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

/// Marks the processes of a job.
const MARK: &str = "TAUTLINE_TEST_HOSTS_MARK";

/// Processes that run with the mark.
fn marked(mark: &str) -> Vec<(u32, String)> {
    let line = format!("{MARK}={mark}");
    let look = |pid: u32| {
        let folder = Path::new("/proc").join(pid.to_string());
        let environment = std::fs::read(folder.join("environ")).ok()?;
        environment.split(|b| *b == 0).find(|entry| *entry == line.as_bytes())?;
        Some((pid, std::fs::read_to_string(folder.join("comm")).ok()?.trim().to_owned()))
    };
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    numbers.filter_map(|entry| look(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// The parent of a process, while there is one of that number.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// J-17: whichever process of the control connections is killed, no rank survives on any host.
fn nothing_survives_the_launcher_or_an_agent(hosts: &Hosts) {
    for victim in ["tautline", "ssh", "agent"] {
        let mark = format!("{}-{victim}", std::process::id());
        let variable = format!("{MARK}={mark}");
        let script = "echo up; exec sleep 1000";
        let mut command =
            hosts.tautline(&["--hosts", "a,b", "--grace", "0.1", "--env", &variable, "sh", "-c", script]);
        let mut job =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let output = job.stdout.as_mut().unwrap();
        assert_eq!((read_line(output).as_str(), read_line(output).as_str()), ("up", "up"));
        let ranks = marked(&mark);
        assert_eq!(ranks.len(), 2, "{ranks:?}");
        let ssh = || {
            let numbers = std::fs::read_dir("/proc").unwrap().flatten();
            let mut numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            numbers.find(|pid| parent_of(*pid) == Some(job.id())).expect("the launcher has a child: ssh")
        };
        match victim {
            "tautline" => kill(job.id(), "KILL"),
            "ssh" => kill(ssh(), "KILL"),
            _ => kill(parent_of(ranks[0].0).unwrap(), "KILL"),
        }
        let status = job.wait().unwrap();
        assert!(!status.success(), "{victim}: {status:?}");
        until(PATIENCE, || marked(&mark).is_empty());
    }
}

/// Two Slurm nodes, and the controller, in network namespaces of their own on one bridge.
struct Slurm {
    folder: PathBuf,
    /// What is to be ended, the last one first.
    processes: Vec<Child>,
}

impl Slurm {
    fn new() -> Slurm {
        let mut slurm = Slurm { folder: folder("slurm"), processes: Vec::new() };
        for _ in 0..3 {
            slurm.processes.push(hold_namespace());
        }
        let [c, a, b] = [0, 1, 2].map(|space: usize| slurm.processes[space].id());
        let folder = slurm.folder.display().to_string();
        // Two hosts have the same name: only addresses and ports tell them apart.
        let setup = format!(
            "set -e; within() {{ space=$1; shift; nsenter --net=/proc/$space/ns/net \"$@\"; }}
             within {c} ip link add br0 type bridge; within {c} ip address add 10.215.0.254/24 dev br0
             within {c} ip link set br0 up; within {c} ip link set lo up
             n=1; for pid in {a} {b}; do
               within {c} ip link add v$n type veth peer name e0 netns $pid; within {c} ip link set v$n master br0 up
               within $pid ip address add 10.215.0.$n/24 dev e0; within $pid ip link set e0 up; within $pid ip link set lo up
               n=$((n + 1)); done
             cd {folder}; mkdir state spool-n1 spool-n2 munge; chmod 711 .; chmod 700 munge
             head -c 128 /dev/urandom >munge/key; chmod 600 munge/key; host=$(hostname -s)
             cat >slurm.conf <<END
ClusterName=tautline
SlurmctldHost=$host(10.215.0.254)
SlurmctldPort=17000
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
ReturnToService=2
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
NodeName=n1 NodeHostname=$host NodeAddr=10.215.0.1 Port=17001 CPUs=2
NodeName=n2 NodeHostname=$host NodeAddr=10.215.0.2 Port=17002 CPUs=2
PartitionName=all Nodes=n1,n2 Default=YES OverSubscribe=YES
END"
        );
        let done = Command::new("sh").args(["-c", &setup]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        let munge = ["key-file=key", "socket=socket", "pid-file=pid", "log-file=log", "seed-file=seed"]
            .map(|option| option.replacen('=', &format!("={folder}/munge/"), 1))
            .map(|option| format!("--{option}"));
        let options: Vec<&str> = munge.iter().map(String::as_str).collect();
        slurm.start(c, "munged", &[&["--foreground", "--force"], &options[..]].concat());
        until(PATIENCE, || slurm.folder.join("munge/socket").exists());
        slurm.start(c, "slurmctld", &["-D"]);
        slurm.start(a, "slurmd", &["-D", "-N", "n1"]);
        slurm.start(b, "slurmd", &["-D", "-N", "n2"]);
        until(PATIENCE, || {
            let idle = slurm.command(c, "sinfo").args(["-h", "-o", "%t %D"]).output().unwrap();
            idle.stdout == b"idle 2\n"
        });
        slurm
    }

    /// A program in the namespace of a process.
    fn command(&self, space: u32, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{space}/ns/net")).arg(program);
        command.env("SLURM_CONF", self.folder.join("slurm.conf")).stdin(Stdio::null());
        clean(&mut command);
        command
    }

    fn start(&mut self, space: u32, program: &str, options: &[&str]) {
        let mut command = self.command(space, program);
        command.args(options).stdout(Stdio::null()).stderr(Stdio::null());
        self.processes.push(command.spawn().unwrap());
    }

    fn srun(&self, options: &[&str]) -> Output {
        let mut command = self.command(self.processes[0].id(), "srun");
        run(as_program(command.args(options), "greet_all"))
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().skip(3).rev() {
            // Slurm's daemons end what they have started when they are asked to end.
            let _ = Command::new("kill").arg(process.id().to_string()).status();
            let _ = process.wait();
        }
        for holder in &mut self.processes[..3] {
            let _ = holder.kill();
            let _ = holder.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// J-12, J-13: under Slurm with PMI-2, on two hosts; J-15: without it, the error says what to do.
#[test]
fn under_slurm() {
    let missing = ["srun", "slurmctld", "slurmd", "munged"].iter().any(|program| !has(program));
    let lacks = tautline_skips::lacks_namespaces();
    if let Some(why) = lacks.or(missing.then_some("slurmctld (slurm-wlm) or munged (munge) is not installed"))
    {
        return tautline_skips::skip("under_slurm", why);
    }
    let slurm = Slurm::new();
    let output = slurm.srun(&["--mpi=pmi2", "-N2", "-n4"]);
    assert_eq!(said(&output), expected(4));
    assert_eq!(lines(&output, "local "), ["local 1"; 4]);
    let output = slurm.srun(&["--mpi=none", "-N2", "-n2"]);
    let text = String::from_utf8([&output.stdout[..], &output.stderr].concat()).unwrap();
    assert!(!output.status.success() && text.contains("use srun --mpi=pmi2"), "{text}");
}
