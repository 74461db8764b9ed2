//! A Slurm cluster of the test's own: its hosts are network namespaces.

use std::process::{Child, Command, Stdio};

use super::jobs::{clean, has, hold_namespace};
use super::{Folder, PATIENCE, folder, until};

/// Debian's plugin for PMIx loads libpmix.so, not libpmix.so.2.
pub const NO_PMIX: &str = "libpmix.so (libpmix-dev), which srun --mpi=pmix loads, is not installed";

/// What a cluster lacks here, if it lacks anything.
pub fn lacks() -> Option<&'static str> {
    let missing = ["srun", "slurmctld", "slurmd", "munged"].iter().any(|program| !has(program));
    let lacks = tautline_skips::lacks_namespaces();
    lacks.or(missing.then_some("slurmctld (slurm-wlm) or munged (munge) is not installed"))
}

/// Two Slurm nodes, and the controller, in network namespaces of their own on one bridge.
pub struct Slurm {
    folder: Folder,
    /// What is to be ended, the last one first.
    processes: Vec<Child>,
}

impl Slurm {
    pub fn new(name: &str) -> Slurm {
        let mut slurm = Slurm { folder: folder(name), processes: Vec::new() };
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

    /// A program in the namespace of the controller.
    pub fn controller(&self, program: &str) -> Command {
        self.command(self.processes[0].id(), program)
    }

    pub fn has_pmix(&self) -> bool {
        let known = self.controller("srun").arg("--mpi=list").output().unwrap();
        String::from_utf8([known.stdout, known.stderr].concat()).unwrap().contains("pmix")
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
    }
}
