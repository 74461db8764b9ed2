//! Jobs on many hosts: one agent per host, started through ssh from the same binary (J-16, J-17).
//!
//! The control connection of each agent is ssh's standard input and output. It carries the key, the
//! addresses, input and output, signals, and how processes ended; ssh authenticates and encrypts it.

mod added;
mod agent;
mod connection;
mod control;
mod joins;
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
use super::outcome::{Outcome, Phase, RankEnd};
use super::supervised::Launcher;
use super::{JobPlan, RunArgs, watch};
use crate::sys::{self, poll_until, readable};
use connection::Connection;
pub use connection::Connector;
use control::{CHUNK, FromAgent, Prepare, RankPlan, SILENCE, Start, ToAgent, Variables};
use joins::Joins;
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
    /// Somebody asks for further ranks. Dropped when the request was read.
    Asked(Sender<()>),
}

/// Stands for the launcher's own events.
const HERE: usize = usize::MAX;

/// Starts the job on the hosts and waits for its end.
pub fn run(
    args: &RunArgs,
    plan: &JobPlan,
    hosts: &[Host],
    connector: &Connector,
    launcher: Launcher,
) -> Result<ExitCode> {
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
    let Launcher { number, signals: caught, .. } = launcher;
    std::thread::spawn(move || watch_signals(caught, &signals));
    let used: Vec<_> = hosts.iter().zip(placed).filter(|(_, (_, count))| *count > 0).collect();
    let mut job = Job {
        args,
        plan,
        connector,
        connections: Vec::new(),
        ranks: Vec::new(),
        members: Vec::new(),
        key: random_key()?,
        events,
        sender: sender.clone(),
        agent,
    };
    for (host, (first, count)) in used {
        job.open(&host.name)?;
        job.ranks.last_mut().expect("it is open").extend(first..first + count);
    }
    let Some(members) = job.prepare()? else { return Ok(ExitCode::from(130)) };
    job.members = members;
    let output = Output::new(args, plan.size())?;
    job.start();
    let joins = Joins::open(&job, number)?;
    let (taken, acknowledged) = mpsc::channel();
    std::thread::spawn(move || read_input(&sender, &acknowledged));
    let outcome =
        Outcome::new(plan.size(), args.grace, args.keep_going, args.timeout).with_restarts(args.restarts());
    Ok(Watch::new(job, outcome, output, joins, taken).until_done())
}

/// The hosts of a job.
struct Job<'a> {
    args: &'a RunArgs,
    plan: &'a JobPlan,
    connector: &'a Connector,
    connections: Vec<Connection>,
    /// The ranks of each host.
    ranks: Vec<Vec<usize>>,
    members: Members,
    key: JobKey,
    events: Receiver<(usize, Event)>,
    sender: SyncSender<(usize, Event)>,
    agent: PathBuf,
}

/// Addresses and a host's number, by rank.
type Members = Vec<(Vec<std::net::SocketAddr>, u64)>;

impl Job<'_> {
    /// Starts the agent of a host, the next one.
    fn open(&mut self, name: &str) -> Result<()> {
        let number = self.connections.len();
        let opened = Connection::open(number, name, self.connector, &self.agent, self.sender.clone())?;
        self.connections.push(opened);
        self.ranks.push(Vec::new());
        Ok(())
    }

    /// Has all hosts checked before anything is started. All that is wrong is reported at once. None if the
    /// user has interrupted it.
    fn prepare(&mut self) -> Result<Option<Members>> {
        let until = Instant::now() + PREPARE_WITHIN;
        let wdir = self.args.wdir.clone().map_or_else(std::env::current_dir, Ok)?;
        let mut members: Vec<Option<Members>> = vec![None; self.connections.len()];
        let mut wrong: Vec<Option<String>> = vec![None; self.connections.len()];
        while let Some(missing) =
            (0..members.len()).find(|host| members[*host].is_none() && wrong[*host].is_none())
        {
            let left = until.saturating_duration_since(Instant::now());
            let Ok((host, event)) = self.events.recv_timeout(left) else {
                wrong[missing] = Some(self.connections[missing].no_answer(PREPARE_WITHIN));
                continue;
            };
            match event {
                Event::Signal(_) => return Ok(None),
                Event::Greeted(line) => match self.connections[host].check_greeting(&line) {
                    Ok(()) => {
                        let prepare = self.orders(host, wdir.clone());
                        self.connections[host].say(ToAgent::Prepare(Box::new(prepare)));
                    }
                    Err(why) => wrong[host] = Some(why),
                },
                Event::Said(FromAgent::Prepared { addrs, host: id })
                    if addrs.len() == self.ranks[host].len() =>
                {
                    members[host] = Some(addrs.into_iter().map(|addrs| (addrs, id)).collect());
                }
                Event::Said(FromAgent::Refused(why)) => {
                    wrong[host] = Some(format!("on the host {}: {why}", self.connections[host].name));
                }
                Event::Lost if wrong[host].is_none() => {
                    wrong[host] = Some(self.connections[host].explain(&self.agent));
                }
                Event::Said(_) | Event::Lost | Event::Input(_) | Event::Asked(_) => {}
            }
        }
        let wrong: Vec<_> = wrong.into_iter().flatten().collect();
        if !wrong.is_empty() {
            bail!("{}", wrong.join("\n"));
        }
        let members: Members = members.into_iter().flatten().flatten().collect();
        self.check_hosts(&members)?;
        self.check_addresses(&members)?;
        Ok(Some(members))
    }

    /// What the agent of a host is to prepare when the job begins.
    fn orders(&self, host: usize, wdir: PathBuf) -> Prepare {
        let programs: Vec<_> = self.plan.programs().collect();
        let ranks = self.ranks[host].iter();
        let ranks =
            ranks.map(|rank| RankPlan { rank: *rank, words: programs[*rank].words.clone() }).collect();
        self.prepare_for(ranks, self.plan.size(), wdir, self.plan.env.clone())
    }

    fn prepare_for(&self, ranks: Vec<RankPlan>, size: usize, wdir: PathBuf, env: Variables) -> Prepare {
        let args = self.args;
        Prepare {
            ranks,
            size,
            wdir,
            env,
            interface: args.interface.clone(),
            several_hosts: self.connections.len() > 1,
            bind: args.binds(),
            grace: args.grace,
            security: args.security.map(|security| security.name().to_owned()),
            device: args.device.map(|device| device.to_string()),
            restarts: args.restart.is_some(),
        }
    }

    /// Two names of one host are a mistake: its ranks would be bound to the same cores.
    fn check_hosts(&self, members: &Members) -> Result<()> {
        let mut seen: Vec<(u64, &str)> = Vec::new();
        for (connection, ranks) in self.connections.iter().zip(&self.ranks) {
            let Some(host) = ranks.first().map(|rank| members[*rank].1) else { continue };
            // A host whose agent has ended, and that ranks join on again, is there twice under its name.
            let same = |(seen, name): &&(u64, &str)| *seen == host && *name != connection.name;
            if let Some((_, other)) = seen.iter().find(same) {
                bail!(
                    "{other} and {name} are the same host\nname it once, with the number of its processes: {other}:4",
                    name = connection.name
                );
            }
            seen.push((host, &connection.name));
        }
        Ok(())
    }

    /// Other hosts cannot reach a loopback address.
    fn check_addresses(&self, members: &Members) -> Result<()> {
        for (connection, ranks) in self.connections.iter().zip(&self.ranks) {
            let Some((addrs, host)) = ranks.first().map(|rank| &members[*rank]) else { continue };
            let loopback = addrs.iter().find(|addr| addr.ip().is_loopback());
            if let Some(addr) = loopback
                && members.iter().any(|(_, other)| other != host)
            {
                bail!(
                    "the host {} announces the address {}, which others cannot reach\nname one of its interfaces: --interface",
                    connection.name,
                    addr.ip()
                );
            }
        }
        Ok(())
    }

    /// Has all agents start their processes.
    fn start(&self) {
        (0..self.connections.len()).for_each(|host| self.start_on(host));
    }

    fn start_on(&self, host: usize) {
        let (members, connection) = (self.members.clone(), &self.connections[host]);
        let joined = (members.len() - self.plan.size()) as u32;
        connection.show_messages();
        connection.say(ToAgent::Start(Start { key: encode_key(&self.key), members, joined }));
    }
}

/// Where a host is in its part of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostState {
    /// Its agent prepares the start of ranks that join.
    Opening,
    Running,
    /// It has no process any more, or was lost.
    Done,
}

/// A running job on many hosts.
struct Watch<'a> {
    job: Job<'a>,
    outcome: Outcome,
    output: Output,
    joins: Joins,
    hosts: Vec<HostState>,
    /// Tells the thread that reads standard input that a piece was taken.
    input_taken: Sender<()>,
}

impl<'a> Watch<'a> {
    fn new(
        job: Job<'a>,
        outcome: Outcome,
        output: Output,
        joins: Joins,
        input_taken: Sender<()>,
    ) -> Watch<'a> {
        let hosts = vec![HostState::Running; job.connections.len()];
        Watch { job, outcome, output, joins, hosts, input_taken }
    }

    fn is_running(&self, host: usize) -> bool {
        self.hosts[host] == HostState::Running
    }

    /// The hosts that run processes of the job.
    fn running(&self) -> impl Iterator<Item = &Connection> {
        let connections = self.job.connections.iter().zip(&self.hosts);
        connections.filter(|(_, state)| **state == HostState::Running).map(|(connection, _)| connection)
    }

    /// Waits until no host has a process of the job, and returns the launcher's own exit code.
    fn until_done(mut self) -> ExitCode {
        while self.hosts.contains(&HostState::Running) {
            let now = Instant::now();
            let until = self.outcome.next_due().map_or(now + TICK, |due| due.min(now + TICK));
            match self.job.events.recv_timeout(until.saturating_duration_since(now)) {
                Ok((host, event)) => self.handle(host, event),
                Err(RecvTimeoutError::Timeout) => self.look_for_silence(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if self.outcome.due.is_some_and(|due| Instant::now() >= due) {
                let sent = self.outcome.time_passed();
                self.signal_all(sent);
            }
            for rank in self.outcome.overdue_ranks() {
                self.signal_rank(rank, Signal::KILL);
            }
            self.give_up_late_join();
        }
        self.end_joins();
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
            Event::Lost if self.hosts[host] == HostState::Opening => {
                let why = self.job.connections[host].explain(&self.job.agent);
                self.fail_join(&why);
            }
            Event::Lost => self.host_lost(host, "the connection was lost"),
            Event::Greeted(line) => self.join_greeted(host, &line),
            Event::Asked(_handled) => self.take_requests(),
        }
    }

    fn handle_agent(&mut self, host: usize, said: FromAgent) {
        match said {
            FromAgent::Output { rank, stream, bytes } => {
                self.output.write(rank, stream, &bytes);
                if self.output.is_unread() && self.outcome.phase == Phase::Running {
                    let sent = self.outcome.interrupt(Signal::PIPE);
                    self.signal_all(sent);
                }
            }
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
                self.host_done(host, "its host ended all its processes before it was started");
            }
            FromAgent::Prepared { addrs, host: id } => self.join_prepared(host, addrs, id),
            FromAgent::Added { request, addrs, host: id } => {
                if self.joins.is_current(request) {
                    self.join_prepared(host, addrs, id);
                }
            }
            FromAgent::Refused(why) if self.hosts[host] == HostState::Running => self.host_lost(host, &why),
            FromAgent::Refused(why) => self.join_refused(host, &why),
            FromAgent::NotAdded(request, why) => {
                if self.joins.is_current(request) {
                    self.join_refused(host, &why);
                }
            }
            FromAgent::Asked(id, request) => self.agent_asked(host, id, &request),
            FromAgent::OutputEnded(rank) => self.output_ended(rank as usize),
            FromAgent::Alive => {}
        }
    }

    fn rank_ended(&mut self, host: usize, rank: usize, end: RankEnd) {
        self.tell_all(rank, end.notice());
        if self.is_running(host) && self.outcome.restarts(rank, &end) {
            self.job.connections[host].say(ToAgent::Restart(rank as u32));
            return self.tell_all(rank, Notice::Started);
        }
        let code = end.code();
        let sent = self.outcome.rank_ended(rank, end);
        self.signal_all(sent);
        self.joins.rank_ended(rank, code);
        if !self.job.ranks[host].iter().any(|rank| self.outcome.is_running(*rank)) {
            self.job.connections[host].say(ToAgent::NoRestart);
        }
    }

    fn tell_all(&self, rank: usize, notice: Notice) {
        for connection in self.running() {
            connection.say(ToAgent::Notice(rank as u32, notice));
        }
    }

    /// Only when no event waits: what was said meanwhile has been heard.
    fn look_for_silence(&mut self) {
        for host in 0..self.hosts.len() {
            if self.is_running(host) && self.job.connections[host].silent_for() > SILENCE {
                self.host_lost(host, &format!("nothing was heard of it for {} s", SILENCE.as_secs()));
            }
        }
    }

    fn host_lost(&mut self, host: usize, why: &str) {
        if !self.is_running(host) {
            return;
        }
        self.job.connections[host].abandon();
        let name = &self.job.connections[host].name;
        self.host_done(host, &format!("its host {name} was lost: {why}"));
    }

    /// A host has no process of the job any more. Those that have not been reported ended for this reason.
    fn host_done(&mut self, host: usize, why: &str) {
        self.hosts[host] = HostState::Done;
        for rank in self.job.ranks[host].clone() {
            if self.outcome.is_running(rank) {
                self.rank_ended(host, rank, RankEnd::Lost(why.to_owned()));
            }
            self.output_ended(rank);
        }
        self.host_gone(host);
    }

    fn signal_all(&self, signal: Option<Signal>) {
        let Some(signal) = signal else { return };
        for connection in self.running() {
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
