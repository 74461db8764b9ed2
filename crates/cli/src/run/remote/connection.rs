//! A connection to the agent of a host: ssh, and the threads that read and write it.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Event;
use super::control::{self, ALIVE_EVERY, FromAgent, ToAgent};
use crate::run::slurm;

/// For how long ssh may take to end when the agent is done.
const SSH_END: Duration = Duration::from_secs(5);
/// Lines of ssh's own messages that are kept to explain a failure.
const MESSAGES: usize = 4;

/// How the launcher reaches hosts.
#[derive(Clone, Debug)]
pub enum Connector {
    /// With this command, and the host's name and a script as arguments.
    Ssh(String),
    /// With `srun`, inside an allocation.
    Slurm,
}

impl Connector {
    /// The command that runs a script on a host.
    fn on_host(&self, name: &str, script: &str) -> Result<Command> {
        let Connector::Ssh(ssh) = self else { return Ok(slurm::on_host(name, script)) };
        let mut words = ssh.split_whitespace();
        let Some(program) = words.next() else {
            bail!("--ssh names no command\nleave it out, or give one such as: --ssh 'ssh -p 2222'");
        };
        let mut command = Command::new(program);
        command.args(words).args([name, script]);
        Ok(command)
    }

    /// A command that shows whether a host can be reached.
    fn check(&self, name: &str) -> String {
        match self {
            Connector::Ssh(ssh) => format!("check that this works without a password: {ssh} {name} true"),
            Connector::Slurm => format!("check that this works: srun --overlap --nodelist={name} true"),
        }
    }
}

/// The agent of one host.
pub struct Connection {
    pub name: String,
    connector: Connector,
    ssh: Child,
    /// To the thread that writes; none when nothing more is to be said.
    to: Option<Sender<ToAgent>>,
    /// When the agent was heard last.
    heard: Arc<Mutex<Instant>>,
    messages: Arc<Mutex<Messages>>,
}

/// What ssh itself, or the agent, writes to standard error.
#[derive(Default)]
struct Messages {
    last: Vec<String>,
    /// The job runs: messages are shown as they come.
    shown: bool,
}

impl Connection {
    /// Starts the agent of a host; `host` is its number in events.
    pub fn open(
        host: usize,
        name: &str,
        connector: &Connector,
        agent: &Path,
        events: SyncSender<(usize, Event)>,
    ) -> Result<Connection> {
        let mut command = connector.on_host(name, &format!("exec {} __agent", quoted(agent)?))?;
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // An interrupt of the terminal is for the launcher, which tells the agents.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {program}\nis it installed? the reason was"))?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (to, orders) = mpsc::channel();
        let connection = Connection {
            name: name.to_owned(),
            connector: connector.clone(),
            ssh: child,
            to: Some(to),
            heard: Arc::new(Mutex::new(Instant::now())),
            messages: Arc::default(),
        };
        if let (Some(stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) {
            std::thread::spawn(move || write_orders(stdin, &orders));
            let heard = connection.heard.clone();
            std::thread::spawn(move || read_agent(host, stdout, &heard, &events));
            let (name, messages) = (name.to_owned(), connection.messages.clone());
            std::thread::spawn(move || read_messages(&name, stderr, &messages));
        }
        Ok(connection)
    }

    /// Says something to the agent. If it is gone, an event says so.
    pub fn say(&self, order: ToAgent) {
        if let Some(to) = &self.to {
            let _ = to.send(order);
        }
    }

    /// What to check if the host does not answer.
    pub fn advice(&self) -> String {
        self.connector.check(&self.name)
    }

    /// The host has not answered in time.
    pub fn no_answer(&self, within: Duration) -> String {
        let (name, within, advice) = (&self.name, within.as_secs(), self.advice());
        format!("the host {name} did not answer within {within} s\n{advice}")
    }

    /// Checks the first line of the agent: it must be of this version.
    pub fn check_greeting(&self, line: &str) -> Result<(), String> {
        if line == control::greeting() {
            return Ok(());
        }
        let (name, other) = (&self.name, line.trim_start_matches(control::GREETING));
        Err(format!(
            "the host {name} has tautline{other}, and this is {}\ninstall the same version there, or name its path: --agent PATH",
            env!("CARGO_PKG_VERSION")
        ))
    }

    /// For how long the agent has said nothing.
    pub fn silent_for(&self) -> Duration {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// From now on, messages of ssh are shown.
    pub fn show_messages(&self) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).shown = true;
    }

    /// Why the agent did not answer, with what to do.
    pub fn explain(&mut self, agent: &Path) -> String {
        let status = self.end();
        // The thread that reads them ends soon after ssh.
        let until = Instant::now() + Duration::from_millis(500);
        while Arc::strong_count(&self.messages) > 1 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let said = self.messages.lock().unwrap_or_else(PoisonError::into_inner).last.join("; ");
        let (name, agent) = (&self.name, agent.display());
        match status.and_then(|status| status.code()) {
            Some(255) => format!("the host {name} cannot be reached: {said}\n{}", self.advice()),
            Some(126 | 127) => format!(
                "the host {name} has no program {agent}: {said}\ninstall tautline there, or name its path: --agent PATH"
            ),
            _ => format!(
                "the agent on the host {name} ended at once: {said}\n{}, and run there: {agent} doctor",
                self.advice()
            ),
        }
    }

    /// Closes the connection and waits for ssh; kills it if it does not end.
    pub fn end(&mut self) -> Option<ExitStatus> {
        self.to = None;
        let until = Instant::now() + SSH_END;
        loop {
            match self.ssh.try_wait() {
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
                Ok(None) => {
                    let _ = self.ssh.kill();
                    return self.ssh.wait().ok();
                }
                ended => return ended.ok().flatten(),
            }
        }
    }

    /// Gives the connection up.
    pub fn abandon(&mut self) {
        let _ = self.ssh.kill();
        self.end();
    }
}

impl Drop for Connection {
    /// The agent ends its processes when the connection is closed.
    fn drop(&mut self) {
        self.end();
    }
}

/// A path as a word of the remote shell.
fn quoted(path: &Path) -> Result<String> {
    let text = path.to_str().context("the path of tautline is not UTF-8\ngive another one: --agent PATH")?;
    Ok(format!("'{}'", text.replace('\'', r"'\''")))
}

fn write_orders(mut stdin: ChildStdin, orders: &Receiver<ToAgent>) {
    loop {
        let order = match orders.recv_timeout(ALIVE_EVERY) {
            Ok(order) => order,
            Err(RecvTimeoutError::Timeout) => ToAgent::Alive,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if control::write(&mut stdin, &order).is_err() {
            return;
        }
    }
}

fn read_agent(host: usize, stdout: ChildStdout, heard: &Mutex<Instant>, events: &SyncSender<(usize, Event)>) {
    let mut stdout = BufReader::new(stdout);
    let hear = || *heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    let tell = |event| events.send((host, event)).is_ok();
    let greeting = control::read_greeting(&mut stdout).ok().flatten();
    if greeting.is_some_and(|line| tell(Event::Greeted(line))) {
        while let Ok(Some(said)) = control::read::<FromAgent>(&mut stdout) {
            hear();
            if !matches!(said, FromAgent::Alive) && !tell(Event::Said(said)) {
                return;
            }
            // The launcher may have taken its time with what was said before.
            hear();
        }
    }
    tell(Event::Lost);
}

fn read_messages(name: &str, stderr: impl Read, messages: &Mutex<Messages>) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        let mut messages = messages.lock().unwrap_or_else(PoisonError::into_inner);
        if messages.shown {
            report!("{name}: {line}");
        }
        if messages.last.len() == MESSAGES {
            messages.last.remove(0);
        }
        messages.last.push(line.trim().to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_one_word_of_a_shell() {
        let path = Path::new("/tmp/it's $HOME; x/tautline");
        let script = format!("printf %s {}", quoted(path).unwrap());
        let out = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout), path.to_str().unwrap());
    }
}
