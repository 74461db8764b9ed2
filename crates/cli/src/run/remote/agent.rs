//! The agent: starts and watches the processes of its host for a launcher elsewhere, and ends all of them
//! when the launcher says so or is lost (J-17).

use std::io::{self, Read, Write};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tautline::node::link::JobKey;
use tautline::{DeviceName, HostId, Member, Security};
use tautline_launch::{announced, host_id, parse_key};

use super::control::{self, CHUNK, FromAgent, Prepare, SILENCE, Start, Stream, ToAgent};
use super::outbox::Outbox;
use crate::run::alive::Alive;
use crate::run::notices::Notices;
use crate::run::process::{Common, ListenerCleanup, Process, Ranks};
use crate::run::record::Record;
use crate::run::{enter, leftovers, limits, lookup};
use crate::sys::{self, poll_until, readable};

/// What the agent waits for.
enum Event {
    Said(ToAgent),
    /// The launcher is gone.
    Lost,
    /// Processes have ended. Dropped when they were waited for.
    Ended(Sender<()>),
    /// All output of the processes has been read.
    OutputEnded,
    InputTaken,
}

/// The processes of this host, and how to tell the launcher of them.
struct Agent {
    crew: Crew,
    ranks: Ranks,
    /// Through which each process is told of others.
    notices: Vec<Notices>,
    /// The live processes, counted on this host.
    alive: Alive,
    outbox: Arc<Outbox>,
    events: Receiver<Event>,
    /// For threads that tell of something.
    sender: Sender<Event>,
    /// Threads that forward output.
    readers: Vec<JoinHandle<()>>,
    /// To the thread that writes to rank 0; none if its input has ended.
    input: Option<Sender<Vec<u8>>>,
    grace: Duration,
    /// When SIGKILL follows SIGTERM.
    kill_at: Option<Instant>,
    lost: bool,
    /// Processes may be started again.
    restarts: bool,
    /// All output of the processes has been read.
    output_ended: bool,
}

/// What was checked and bound before the start.
struct Prepared {
    plan: Prepare,
    files: Vec<PathBuf>,
    sockets: Vec<UdpSocket>,
    security: Option<Security>,
    device: Option<DeviceName>,
}

/// What it takes to start the processes of this host, also again.
struct Crew {
    prepared: Prepared,
    key: JobKey,
    members: Vec<Member>,
}

impl Crew {
    /// Starts a process, counted on this host.
    fn start(&self, index: usize) -> Result<(Child, Notices)> {
        let Prepared { plan, files, sockets, security, device } = &self.prepared;
        let rank = &plan.ranks[index];
        let (security, device) = (*security, *device);
        let env = &plan.env;
        let common = Common { key: &self.key, security, device, env, bind: plan.bind, control: None };
        common.start(Process {
            rank: rank.rank,
            index,
            program: &files[index],
            arguments: &rank.words[1..],
            members: &self.members,
            joined: 0,
            place: None,
            socket: &sockets[index],
            stdin: if rank.rank == 0 { Stdio::piped() } else { Stdio::null() },
            stdout: Stdio::piped(),
            stderr: Stdio::piped(),
        })
    }

    /// The rank of a process, and back.
    fn rank(&self, index: usize) -> u32 {
        self.prepared.plan.ranks[index].rank as u32
    }

    fn index(&self, rank: u32) -> Option<usize> {
        self.prepared.plan.ranks.iter().position(|plan| plan.rank == rank as usize)
    }
}

/// Serves one job, and notes in the record what a supervisor would have to unlink. What goes wrong before the
/// start is told to the launcher.
pub fn serve_job(record: Record) -> Result<ExitCode> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{}", control::greeting())?;
    stdout.flush()?;
    let outbox = Outbox::start(stdout);
    let (sender, events) = mpsc::channel();
    let reader = sender.clone();
    std::thread::spawn(move || read_launcher(&reader));
    let watched = sender.clone();
    std::thread::spawn(move || watch_signals(&watched));
    let served = serve(&outbox, sender, events, record);
    if let Err(error) = &served {
        outbox.push(FromAgent::Refused(format!("{error:#}")));
    }
    outbox.finish(SILENCE);
    Ok(ExitCode::SUCCESS)
}

fn serve(outbox: &Arc<Outbox>, sender: Sender<Event>, events: Receiver<Event>, record: Record) -> Result<()> {
    let Some(ToAgent::Prepare(plan)) = next_order(&events) else { return Ok(()) };
    let prepared = prepare(*plan)?;
    let addrs = prepared.sockets.iter().map(UdpSocket::local_addr).collect::<Result<_, _>>()?;
    outbox.push(FromAgent::Prepared { addrs, host: host_id()?.0 });
    let Some(ToAgent::Start(start)) = next_order(&events) else { return Ok(()) };
    let (mut agent, listeners) = Agent::start(prepared, &start, outbox, sender, events, record)?;
    let left = agent.watch();
    drop(listeners);
    outbox.push(FromAgent::Done { left });
    Ok(())
}

/// What the launcher says next; none if it is gone or wants nothing more.
fn next_order(events: &Receiver<Event>) -> Option<ToAgent> {
    loop {
        match events.recv_timeout(SILENCE) {
            Ok(Event::Said(ToAgent::Alive)) => {}
            Ok(Event::Said(order)) => return Some(order),
            _ => return None,
        }
    }
}

/// Passes on what the launcher says, until it is lost.
fn read_launcher(events: &Sender<Event>) {
    let mut stdin = io::stdin().lock();
    while let Ok(Some(said)) = control::read(&mut stdin) {
        if events.send(Event::Said(said)).is_err() {
            return;
        }
    }
    let _ = events.send(Event::Lost);
}

/// A signal to the agent ends its processes as the loss of the launcher does.
fn watch_signals(events: &Sender<Event>) {
    let Ok(mut signals) = sys::Signals::catch() else { return };
    loop {
        let mut fds: Vec<_> = signals.fds().map(readable).collect();
        let polled = poll_until(&mut fds, None);
        drop(fds);
        if polled.is_err() || signals.take().is_some() && events.send(Event::Lost).is_err() {
            return;
        }
    }
}

/// Checks everything that can be checked before something is started.
fn prepare(plan: Prepare) -> Result<Prepared> {
    enter(&plan.wdir)?;
    let found = plan.ranks.iter().map(|rank| match rank.words.first() {
        Some(program) => lookup::find(program),
        None => bail!("rank {} has no program", rank.rank),
    });
    let files = found.collect::<Result<Vec<_>>>()?;
    limits::check_ranks(plan.size)?;
    let ip = address(&plan)?;
    let bound = plan.ranks.iter().map(|_| UdpSocket::bind((ip, 0))).collect::<Result<Vec<_>, _>>();
    let sockets = bound.with_context(|| format!("cannot bind UDP sockets on {ip}\nthe reason was"))?;
    let security = plan.security.as_deref().map(str::parse).transpose().map_err(anyhow::Error::msg)?;
    let device = plan.device.as_deref().map(str::parse).transpose().map_err(anyhow::Error::msg)?;
    Ok(Prepared { plan, files, sockets, security, device })
}

/// The address that was asked for, or the one that ssh connected to, or that of the default route.
fn address(plan: &Prepare) -> Result<IpAddr> {
    if plan.interface.is_some() {
        return Ok(announced(plan.interface.as_deref())?);
    }
    let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
    let reached = connection.split_whitespace().nth(2).and_then(|ip| ip.parse().ok());
    let usable = reached.filter(|ip: &IpAddr| !(plan.several_hosts && ip.is_loopback()));
    usable.map_or_else(|| Ok(announced(None)?), Ok)
}

impl Agent {
    fn start(
        prepared: Prepared,
        start: &Start,
        outbox: &Arc<Outbox>,
        sender: Sender<Event>,
        events: Receiver<Event>,
        mut record: Record,
    ) -> Result<(Agent, ListenerCleanup)> {
        let key: JobKey = parse_key(&start.key).context("the launcher sent no valid key")?;
        let members: Vec<Member> =
            start.members.iter().map(|(addr, host)| Member::new(*addr).on_host(HostId(*host))).collect();
        leftovers::adopt()?;
        let listeners =
            ListenerCleanup { key: key.clone(), members: members.clone(), joined: Default::default() };
        record.write(&listeners)?;
        let (grace, restarts) = (prepared.plan.grace, prepared.plan.restarts);
        let mut agent = Agent {
            crew: Crew { prepared, key, members },
            ranks: Ranks(Vec::new()),
            notices: Vec::new(),
            alive: Alive::new()?,
            outbox: outbox.clone(),
            events,
            sender,
            readers: Vec::new(),
            input: None,
            grace,
            kill_at: None,
            lost: false,
            restarts,
            output_ended: false,
        };
        notice_ends(agent.alive.fd().try_clone_to_owned()?, agent.sender.clone());
        for index in 0..agent.crew.prepared.plan.ranks.len() {
            let (mut child, notices) = agent.crew.start(index)?;
            // At once: an end is in its place among others only if it comes after this.
            let added = agent.alive.add(index, child.id());
            agent.follow(index, &mut child);
            agent.notices.push(notices);
            agent.ranks.0.push(child);
            added?;
        }
        if !restarts {
            // Frames to a rank that has ended are refused at once, and not stored for nobody.
            agent.crew.prepared.sockets.clear();
        }
        Ok((agent, listeners))
    }

    /// Forwards what a process writes, and what it is to read.
    fn follow(&mut self, index: usize, child: &mut Child) {
        let rank = self.crew.rank(index);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        self.readers.extend(stdout.map(|from| forward(&self.outbox, rank, Stream::Out, from)));
        self.readers.extend(stderr.map(|from| forward(&self.outbox, rank, Stream::Err, from)));
        if let Some(to) = child.stdin.take() {
            self.input = Some(write_input(to, self.sender.clone()));
        }
    }

    fn start_again(&mut self, rank: u32) {
        let Some(index) = self.crew.index(rank).filter(|index| !self.alive.has(*index) && !self.lost) else {
            return;
        };
        let started = self.crew.start(index).and_then(|(mut child, notices)| {
            let added = self.alive.add(index, child.id());
            self.follow(index, &mut child);
            self.ranks.0[index] = child;
            self.notices[index] = notices;
            added
        });
        if let Err(error) = started {
            report!("tautline: rank {rank} could not be started again: {error:#}");
            // As if it had been started and had failed at once.
            self.outbox.push(FromAgent::Exited { rank, status: 126 << 8 });
        }
    }

    /// Serves until no process is left; returns those that could not be ended.
    fn watch(&mut self) -> Vec<i32> {
        let mut heard = Instant::now();
        while !self.alive.is_empty() || self.restarts && !self.lost {
            let until = self.kill_at.map_or(heard + SILENCE, |kill| kill.min(heard + SILENCE));
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(event) => {
                    if matches!(event, Event::Said(_)) {
                        heard = Instant::now();
                    }
                    self.handle(event);
                }
                Err(RecvTimeoutError::Timeout) if self.kill_at.is_some_and(|at| Instant::now() >= at) => {
                    self.kill_at = None;
                    self.alive.signal_all(Signal::KILL);
                }
                Err(_) if Instant::now() >= heard + SILENCE => {
                    heard = Instant::now();
                    self.launcher_lost();
                }
                Err(_) => {}
            }
        }
        let left = leftovers::end_all(self.grace, |time| self.is_killed_within(time));
        // Whoever is left may keep the output open.
        if left.is_empty() {
            self.await_output();
        }
        left.iter().map(|pid| pid.as_raw_pid()).collect()
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Said(ToAgent::Signal(number)) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    self.alive.signal_all(signal);
                }
            }
            Event::Said(ToAgent::Input(bytes)) => match &self.input {
                Some(_) if bytes.is_empty() => self.input = None,
                Some(input) => drop(input.send(bytes)),
                None => self.outbox.push(FromAgent::InputTaken),
            },
            Event::Said(ToAgent::Notice(rank, notice)) => {
                let own = self.crew.index(rank);
                for (index, notices) in self.notices.iter_mut().enumerate() {
                    if own != Some(index) && self.alive.has(index) {
                        notices.tell(rank as usize, notice);
                    }
                }
            }
            Event::Said(ToAgent::Restart(rank)) => self.start_again(rank),
            Event::Said(ToAgent::NoRestart) => self.restarts = false,
            Event::Said(_) => {}
            Event::OutputEnded => self.output_ended = true,
            Event::InputTaken => self.outbox.push(FromAgent::InputTaken),
            Event::Lost => self.launcher_lost(),
            Event::Ended(_handled) => self.reap(),
        }
    }

    /// Nobody wants the processes any more.
    fn launcher_lost(&mut self) {
        if !self.lost {
            self.lost = true;
            self.kill_at = Some(Instant::now() + self.grace);
            self.alive.signal_all(Signal::TERM);
        }
    }

    /// Tells of processes that have ended, in the order in which they did.
    fn reap(&mut self) {
        for index in self.alive.ended().unwrap_or_default() {
            if let Ok(Some(status)) = self.ranks.0[index].try_wait() {
                self.alive.remove(index);
                let rank = self.crew.rank(index);
                self.outbox.push(FromAgent::Exited { rank, status: status.into_raw() });
            }
        }
    }

    /// Sleeps; true if what is left is to be killed at once.
    fn is_killed_within(&mut self, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Event::Said(ToAgent::Signal(number))) if number == Signal::KILL.as_raw() => return true,
                Ok(event) => self.handle(event),
                Err(_) => return false,
            }
        }
    }

    /// Waits until all that the processes have written is on its way. Nobody can write any more, so that this
    /// takes only as long as the launcher takes to read.
    fn await_output(&mut self) {
        let (readers, sender) = (std::mem::take(&mut self.readers), self.sender.clone());
        std::thread::spawn(move || {
            readers.into_iter().for_each(|reader| drop(reader.join()));
            let _ = sender.send(Event::OutputEnded);
        });
        while !self.lost && !self.output_ended {
            match self.events.recv_timeout(SILENCE) {
                Ok(event) => self.handle(event),
                Err(_) => return,
            }
        }
    }
}

/// Forwards what a process writes.
fn forward(
    outbox: &Arc<Outbox>,
    rank: u32,
    stream: Stream,
    mut from: impl Read + Send + 'static,
) -> JoinHandle<()> {
    let outbox = outbox.clone();
    std::thread::spawn(move || {
        let mut bytes = vec![0; CHUNK];
        while let Ok(n) = from.read(&mut bytes)
            && n > 0
        {
            outbox.push_bounded(FromAgent::Output { rank, stream, bytes: bytes[..n].to_vec() });
        }
    })
}

/// Writes standard input to rank 0, and tells when a piece was taken. If rank 0 does not read any more, the
/// input goes nowhere.
fn write_input(mut to: impl Write + Send + 'static, events: Sender<Event>) -> Sender<Vec<u8>> {
    let (sender, pieces) = mpsc::channel::<Vec<u8>>();
    std::thread::spawn(move || {
        while let Ok(piece) = pieces.recv() {
            let _ = to.write_all(&piece).and_then(|()| to.flush());
            if events.send(Event::InputTaken).is_err() {
                return;
            }
        }
    });
    sender
}

/// Tells whenever processes have ended; `ends` is readable as long as one of them was not waited for.
fn notice_ends(ends: OwnedFd, events: Sender<Event>) {
    std::thread::spawn(move || {
        while poll_until(&mut [readable(ends.as_fd())], None).is_ok() {
            let (handled, until) = mpsc::channel();
            if events.send(Event::Ended(handled)).is_err() {
                return;
            }
            // It fails, because nothing is sent.
            let _ = until.recv();
        }
    });
}
