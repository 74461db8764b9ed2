//! Jobs on many hosts: one agent per host, started through ssh from the same binary (J-16, J-17).
//!
//! The control connection of each agent is ssh's standard input and output. It carries the key, the
//! addresses, input and output, signals, and how processes ended; ssh authenticates and encrypts it.

mod agent;
mod connection;
mod control;
mod outbox;
mod output;
mod supervisor;

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tautline::node::link::JobKey;
use tautline_launch::{encode_key, random_key};

use super::hosts::{self, Host};
use super::notices::Notice;
use super::outcome::{Outcome, RankEnd};
use super::{JobPlan, RunArgs, watch};
use crate::sys::{self, poll_until, readable};
use connection::Connection;
pub use connection::Connector;
use control::{CHUNK, FromAgent, Prepare, RankPlan, SILENCE, Start, ToAgent};
use output::Output;
pub use supervisor::{AgentArgs, agent};

/// For how long the agents may take until they are prepared.
const PREPARE_WITHIN: Duration = Duration::from_secs(60);
/// How often the launcher looks whether the agents are still heard.
const TICK: Duration = Duration::from_millis(500);
/// Events that wait; beyond it the hosts' output waits.
const EVENTS: usize = 64;

/// What the launcher waits for; of the host of a number, unless it is its own.
enum Event {
    /// The first line of an agent.
    Greeted(String),
    Said(FromAgent),
    /// The connection has ended.
    Lost,
    /// A signal to the launcher.
    Signal(Signal),
    /// A piece of standard input; an empty one is its end.
    Input(Vec<u8>),
}

/// Stands for the launcher's own events.
const HERE: usize = usize::MAX;

/// Starts the job on the hosts and waits for its end.
pub fn run(args: &RunArgs, plan: &JobPlan, hosts: &[Host], connector: &Connector) -> Result<ExitCode> {
    if args.is_relayed() || args.ipv6 {
        bail!("--fault, --pcap and --ipv6 are for jobs on this host\nleave them out, or leave out the hosts");
    }
    if args.ppn == Some(0) {
        bail!("--ppn 0 leaves no process on any host\ngive at least 1");
    }
    let placed = hosts::place(hosts, args.ppn, plan.size())?;
    let agent = match &args.agent {
        Some(path) => path.clone(),
        None => {
            std::env::current_exe().context("cannot find the path of this program\ngive it: --agent PATH")?
        }
    };
    let (sender, events) = mpsc::sync_channel(EVENTS);
    let signals = sender.clone();
    let caught = sys::Signals::catch()?;
    std::thread::spawn(move || watch_signals(caught, &signals));
    let used: Vec<_> = hosts.iter().zip(placed).filter(|(_, (_, count))| *count > 0).collect();
    let mut job = Job { connections: Vec::new(), ranks: Vec::new(), events, agent };
    let opened = used.iter().enumerate().try_for_each(|(number, (host, (first, count)))| {
        job.ranks.push(*first..first + count);
        let opened = Connection::open(number, &host.name, connector, &job.agent, sender.clone())?;
        job.connections.push(opened);
        Ok::<_, anyhow::Error>(())
    });
    opened?;
    let Some(members) = job.prepare(args, plan)? else { return Ok(ExitCode::from(130)) };
    let output = Output::new(args, plan.size())?;
    let key = random_key()?;
    job.start(&key, members);
    let (taken, acknowledged) = mpsc::channel();
    std::thread::spawn(move || read_input(&sender, &acknowledged));
    let outcome =
        Outcome::new(plan.size(), args.grace, args.keep_going, args.timeout).with_restarts(args.restarts());
    Ok(Watch::new(job, outcome, output, taken).until_done())
}

/// The hosts of a job.
struct Job {
    connections: Vec<Connection>,
    /// The ranks of each host.
    ranks: Vec<std::ops::Range<usize>>,
    events: Receiver<(usize, Event)>,
    agent: PathBuf,
}

/// An address and a host's number, by rank.
type Members = Vec<(std::net::SocketAddr, u64)>;

impl Job {
    /// Has all hosts checked before anything is started. All that is wrong is reported at once. None if the
    /// user has interrupted it.
    fn prepare(&mut self, args: &RunArgs, plan: &JobPlan) -> Result<Option<Members>> {
        let until = Instant::now() + PREPARE_WITHIN;
        let wdir = args.wdir.clone().map_or_else(std::env::current_dir, Ok)?;
        let mut members: Vec<Option<Members>> = vec![None; self.connections.len()];
        let mut wrong: Vec<Option<String>> = vec![None; self.connections.len()];
        while let Some(missing) =
            (0..members.len()).find(|host| members[*host].is_none() && wrong[*host].is_none())
        {
            let left = until.saturating_duration_since(Instant::now());
            let Ok((host, event)) = self.events.recv_timeout(left) else {
                let connection = &self.connections[missing];
                wrong[missing] = Some(format!(
                    "the host {} did not answer within {} s\n{}",
                    connection.name,
                    PREPARE_WITHIN.as_secs(),
                    connection.advice()
                ));
                continue;
            };
            match event {
                Event::Signal(_) => return Ok(None),
                Event::Greeted(line) if line == control::greeting() => {
                    let prepare = self.orders(host, args, plan, wdir.clone());
                    self.connections[host].say(ToAgent::Prepare(Box::new(prepare)));
                }
                Event::Greeted(line) => {
                    let (name, other) =
                        (&self.connections[host].name, line.trim_start_matches(control::GREETING));
                    wrong[host] = Some(format!(
                        "the host {name} has tautline{other}, and this is {}\ninstall the same version there, or name its path: --agent PATH",
                        env!("CARGO_PKG_VERSION")
                    ));
                }
                Event::Said(FromAgent::Prepared { addrs, host: id })
                    if addrs.len() == self.ranks[host].len() =>
                {
                    members[host] = Some(addrs.into_iter().map(|addr| (addr, id)).collect());
                }
                Event::Said(FromAgent::Refused(why)) => {
                    wrong[host] = Some(format!("on the host {}: {why}", self.connections[host].name));
                }
                Event::Lost if wrong[host].is_none() => {
                    wrong[host] = Some(self.connections[host].explain(&self.agent));
                }
                Event::Said(_) | Event::Lost | Event::Input(_) => {}
            }
        }
        let wrong: Vec<_> = wrong.into_iter().flatten().collect();
        if !wrong.is_empty() {
            bail!("{}", wrong.join("\n"));
        }
        let members: Members = members.into_iter().flatten().flatten().collect();
        self.check_addresses(&members)?;
        Ok(Some(members))
    }

    fn orders(&self, host: usize, args: &RunArgs, plan: &JobPlan, wdir: PathBuf) -> Prepare {
        let ranks = self.ranks[host].clone();
        let programs = plan.programs().enumerate().skip(ranks.start).take(ranks.len());
        Prepare {
            ranks: programs.map(|(rank, program)| RankPlan { rank, words: program.words.clone() }).collect(),
            size: plan.size(),
            wdir,
            env: plan.env.clone(),
            interface: args.interface.clone(),
            several_hosts: self.connections.len() > 1,
            bind: args.binds(),
            grace: args.grace,
            security: args.security.map(|security| security.name().to_owned()),
            device: args.device.map(|device| device.to_string()),
            restarts: args.restart.is_some(),
        }
    }

    /// Other hosts cannot reach a loopback address.
    fn check_addresses(&self, members: &Members) -> Result<()> {
        for (connection, ranks) in self.connections.iter().zip(&self.ranks) {
            let (addr, host) = members[ranks.start];
            if addr.ip().is_loopback() && members.iter().any(|(_, other)| *other != host) {
                bail!(
                    "the host {} has only the address {}, which others cannot reach\nname one of its interfaces: --interface",
                    connection.name,
                    addr.ip()
                );
            }
        }
        Ok(())
    }

    fn start(&self, key: &JobKey, members: Members) {
        let start = Start { key: encode_key(key), members };
        for connection in &self.connections {
            connection.show_messages();
            connection.say(ToAgent::Start(start.clone()));
        }
    }
}

/// A running job on many hosts.
struct Watch {
    job: Job,
    outcome: Outcome,
    output: Output,
    /// Hosts that have no process any more, or were lost.
    done: Vec<bool>,
    /// Tells the thread that reads standard input that a piece was taken.
    input_taken: Sender<()>,
}

impl Watch {
    fn new(job: Job, outcome: Outcome, output: Output, input_taken: Sender<()>) -> Watch {
        let done = vec![false; job.connections.len()];
        Watch { job, outcome, output, done, input_taken }
    }

    /// Waits until no host has a process of the job, and returns the launcher's own exit code.
    fn until_done(mut self) -> ExitCode {
        while self.done.contains(&false) {
            let now = Instant::now();
            let until = self.outcome.due.map_or(now + TICK, |due| due.min(now + TICK));
            match self.job.events.recv_timeout(until.saturating_duration_since(now)) {
                Ok((host, event)) => self.handle(host, event),
                Err(RecvTimeoutError::Timeout) => self.look_for_silence(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if self.outcome.due.is_some_and(|due| Instant::now() >= due) {
                let sent = self.outcome.time_passed();
                self.signal_all(sent);
            }
        }
        for connection in &mut self.job.connections {
            connection.end();
        }
        let passed_on = self.output.finish();
        self.outcome.report();
        if let Err(error) = passed_on {
            report!("tautline: output of the ranks was lost: {error}\n  is there space where it goes?");
            self.outcome.incomplete = true;
        }
        self.outcome.exit_code()
    }

    fn handle(&mut self, host: usize, event: Event) {
        match event {
            Event::Signal(signal) => {
                let sent = self.outcome.interrupt(signal);
                self.signal_all(sent);
            }
            // Rank 0 is on the first host.
            Event::Input(bytes) => self.job.connections[0].say(ToAgent::Input(bytes)),
            Event::Said(said) => self.handle_agent(host, said),
            Event::Lost => self.host_lost(host, "the connection was lost"),
            Event::Greeted(_) => {}
        }
    }

    fn handle_agent(&mut self, host: usize, said: FromAgent) {
        match said {
            FromAgent::Output { rank, stream, bytes } => self.output.write(rank, stream, &bytes),
            FromAgent::InputTaken => drop(self.input_taken.send(())),
            FromAgent::Exited { rank, status } => {
                let rank = rank as usize;
                if self.job.ranks[host].contains(&rank) && self.outcome.is_running(rank) {
                    self.rank_ended(host, rank, RankEnd::Status(ExitStatus::from_raw(status)));
                }
            }
            FromAgent::Done { left } => {
                if !left.is_empty() {
                    let numbers: Vec<_> = left.iter().map(ToString::to_string).collect();
                    let place = format!(" on the host {}", self.job.connections[host].name);
                    watch::report_left(&place, &numbers.join(", "));
                    self.outcome.incomplete = true;
                }
                self.done[host] = true;
            }
            FromAgent::Refused(why) => self.host_lost(host, &why),
            FromAgent::Alive | FromAgent::Prepared { .. } => {}
        }
    }

    fn rank_ended(&mut self, host: usize, rank: usize, end: RankEnd) {
        self.tell_all(rank, end.notice());
        if !self.done[host] && self.outcome.restarts(rank, &end) {
            self.job.connections[host].say(ToAgent::Restart(rank as u32));
            return self.tell_all(rank, Notice::Started);
        }
        let sent = self.outcome.rank_ended(rank, end);
        self.signal_all(sent);
        if !self.job.ranks[host].clone().any(|rank| self.outcome.is_running(rank)) {
            self.job.connections[host].say(ToAgent::NoRestart);
        }
    }

    fn tell_all(&self, rank: usize, notice: Notice) {
        for connection in &self.job.connections {
            connection.say(ToAgent::Notice(rank as u32, notice));
        }
    }

    /// Only when no event waits: what was said meanwhile has been heard.
    fn look_for_silence(&mut self) {
        for host in 0..self.done.len() {
            if !self.done[host] && self.job.connections[host].silent_for() > SILENCE {
                self.host_lost(host, &format!("nothing was heard of it for {} s", SILENCE.as_secs()));
            }
        }
    }

    fn host_lost(&mut self, host: usize, why: &str) {
        if std::mem::replace(&mut self.done[host], true) {
            return;
        }
        self.job.connections[host].abandon();
        let name = self.job.connections[host].name.clone();
        for rank in self.job.ranks[host].clone() {
            if self.outcome.is_running(rank) {
                self.rank_ended(host, rank, RankEnd::Lost(format!("its host {name} was lost: {why}")));
            }
        }
    }

    fn signal_all(&self, signal: Option<Signal>) {
        let Some(signal) = signal else { return };
        for connection in &self.job.connections {
            connection.say(ToAgent::Signal(signal.as_raw()));
        }
    }
}

fn watch_signals(mut signals: sys::Signals, events: &SyncSender<(usize, Event)>) {
    loop {
        let mut fds: Vec<_> = signals.fds().map(readable).collect();
        let polled = poll_until(&mut fds, None);
        drop(fds);
        let sent = signals.take().map(|signal| events.send((HERE, Event::Signal(signal))));
        if polled.is_err() || sent.is_some_and(|sent| sent.is_err()) {
            return;
        }
    }
}

/// Reads standard input, a piece at a time: the next when the one before was taken.
fn read_input(events: &SyncSender<(usize, Event)>, taken: &Receiver<()>) {
    let mut stdin = std::io::stdin().lock();
    loop {
        let mut piece = vec![0; CHUNK];
        let len = stdin.read(&mut piece).unwrap_or(0);
        piece.truncate(len);
        if events.send((HERE, Event::Input(piece))).is_err() || len == 0 || taken.recv().is_err() {
            return;
        }
    }
}
