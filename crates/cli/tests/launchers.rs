//! Jobs under launchers that people have: the same program with the same output under each. The hosts of
//! Slurm are network namespaces.

mod common;

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use common::jobs::{clean, expected, has, hold_namespace, lines, run, said};
use common::{PATIENCE, as_program, folder, until};

/// The program of the jobs.
#[test]
#[ignore = "a program of jobs"]
fn greet_all() {
    common::jobs::greet_all();
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

/// J-12, J-13, J-18: under Open MPI's mpirun; without the library of PMIx, the error says what to install.
#[test]
fn under_openmpi() {
    let missing = (!has("mpirun.openmpi")).then_some("mpirun.openmpi (openmpi-bin) is not installed");
    if let Some(why) = missing.or((!has_pmix()).then_some("libpmix.so.2 (libpmix2) is not installed")) {
        return tautline_skips::skip("under_openmpi", why);
    }
    let mpirun = |n: &str| {
        let mut command = Command::new("mpirun.openmpi");
        command.args(["--allow-run-as-root", "--oversubscribe", "-np", n]);
        command
    };
    let output = run(as_program(&mut mpirun("4"), "greet_all"));
    assert_eq!(said(&output), expected(4));
    assert_eq!(lines(&output, "local "), ["local 3"; 4], "{output:?}");
    if let Some(why) = tautline_skips::lacks_namespaces() {
        return tautline_skips::skip("under_openmpi", why);
    }
    let hide = "for f in $(ldconfig -p | sed -n 's/.*libpmix.so.2.* => //p'); do \
                mount -t tmpfs none $(dirname $(readlink -f $f)); done; exec \"$@\"";
    let mut command = mpirun("2");
    let output = run(as_program(command.args(["unshare", "--mount", "sh", "-c", hide, "sh"]), "greet_all"));
    let text = String::from_utf8([&output.stdout[..], &output.stderr].concat()).unwrap();
    assert!(!output.status.success() && text.contains("install the package"), "{text}");
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
        // Two hosts have the same name and the same files: addresses, ports and directories tell them apart.
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
TmpFS={folder}/spool-%n
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

    fn has_pmix(&self) -> bool {
        let known = self.command(self.processes[0].id(), "srun").arg("--mpi=list").output().unwrap();
        String::from_utf8([known.stdout, known.stderr].concat()).unwrap().contains("pmix")
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

/// Whether a library that programs load is installed.
fn has_pmix() -> bool {
    let known = Command::new("ldconfig").arg("-p").output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&known).contains("libpmix.so.2")
}

/// J-12, J-13, J-18: under Slurm with PMI-2 and with PMIx, on two hosts; J-15: without it, the error says
/// what to do.
#[test]
fn under_slurm() {
    let missing = ["srun", "slurmctld", "slurmd", "munged"].iter().any(|program| !has(program));
    let lacks = tautline_skips::lacks_namespaces();
    if let Some(why) = lacks.or(missing.then_some("slurmctld (slurm-wlm) or munged (munge) is not installed"))
    {
        return tautline_skips::skip("under_slurm", why);
    }
    let slurm = Slurm::new();
    for mpi in ["--mpi=pmi2", "--mpi=pmix"] {
        // Debian's plugin for PMIx loads libpmix.so, not libpmix.so.2.
        if mpi == "--mpi=pmix" && !slurm.has_pmix() {
            tautline_skips::skip(
                "under_slurm",
                "libpmix.so (libpmix-dev), which srun --mpi=pmix loads, is not installed",
            );
            continue;
        }
        let output = slurm.srun(&[mpi, "-N2", "-n4"]);
        assert_eq!(said(&output), expected(4), "{mpi}");
        assert_eq!(lines(&output, "local "), ["local 1"; 4], "{mpi}");
    }
    // J-21: our own launcher inside an allocation.
    let mut command = slurm.command(slurm.processes[0].id(), "salloc");
    command.args(["--quiet", "-N2", "-n4", env!("CARGO_BIN_EXE_tautline"), "run"]);
    let output = run(as_program(&mut command, "greet_all"));
    assert_eq!(said(&output), expected(4));
    assert_eq!(lines(&output, "local "), ["local 1"; 4]);
    let output = slurm.srun(&["--mpi=none", "-N2", "-n2"]);
    let text = String::from_utf8([&output.stdout[..], &output.stderr].concat()).unwrap();
    assert!(!output.status.success() && text.contains("use srun --mpi=pmi2 or srun --mpi=pmix"), "{text}");
}
