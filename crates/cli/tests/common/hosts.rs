//! Hosts for tests: network namespaces with an sshd each, of the test's own.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use super::jobs::{clean, has, hold_namespace, run};
use super::{Folder, PATIENCE, folder, tautline, until};

/// Two network namespaces on one link, with an sshd each. They live as long as the processes in them.
pub struct Hosts {
    pub folder: Folder,
    /// A process that holds each namespace, and its sshd.
    pub processes: Vec<Child>,
}

impl Hosts {
    pub fn new(name: &str) -> Hosts {
        let mut hosts = Hosts { folder: folder(name), processes: Vec::new() };
        for _ in 0..2 {
            hosts.processes.push(hold_namespace());
        }
        let [a, b] = [0, 1].map(|host: usize| hosts.processes[host].id().to_string());
        let setup = format!(
            "set -e; a='nsenter --net=/proc/{a}/ns/net'; b='nsenter --net=/proc/{b}/ns/net'
             $a ip link add e0 type veth peer name e0 netns {b}
             $a ip address add 10.214.0.1/24 dev e0; $b ip address add 10.214.0.2/24 dev e0
             $a ip address add 10.214.1.1/24 dev e0; $b ip address add 10.214.1.2/24 dev e0
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
        // The first value of an option counts. That of a host which is there includes the time that its sshd
        // takes to answer.
        let client = format!(
            "Host a\nHostName 10.214.0.1\nHost b\nHostName 10.214.0.2\nHost a2\nHostName 10.214.0.1\n\
             Host gone\nHostName 10.214.0.9\nConnectTimeout 2\nHost *\n\
             IdentityFile {folder}/key\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known\n\
             StrictHostKeyChecking no\nBatchMode yes\nConnectTimeout 30\nConnectionAttempts 1\nLogLevel ERROR\n"
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
    pub fn tautline(&self, options: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.processes[0].id()));
        command.arg(tautline().get_program()).arg("run");
        command.args(["--ssh", &format!("ssh -F {}/ssh", self.folder.display())]).args(options);
        clean(&mut command);
        command
    }

    /// Runs `ip` on a host.
    pub fn ip(&self, host: usize, words: &[&str]) {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.processes[host].id())).arg("ip");
        assert!(command.args(words).status().unwrap().success(), "{words:?}");
    }

    /// Cuts the link between the hosts, or connects them again.
    pub fn set_link(&self, state: &str) {
        self.ip(1, &["link", "set", "e0", state]);
        let ssh = format!("ssh -F {}/ssh", self.folder.display());
        until(PATIENCE, || state == "down" || self.ssh(&ssh, "b"));
    }

    pub fn run(&self, options: &[&str]) -> Output {
        run(&mut self.tautline(options))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Why this machine has no hosts for the tests.
pub fn lacks_hosts() -> Option<&'static str> {
    tautline_skips::lacks_namespaces()
        .or((!has("sshd") || !has("ssh")).then_some("sshd (openssh-server) is not installed"))
}

/// Marks the processes of a job.
pub const MARK: &str = "TAUTLINE_TEST_HOSTS_MARK";

/// Processes that run with the mark.
pub fn marked(mark: &str) -> Vec<(u32, String)> {
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
pub fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}
