//! The agent: starts and watches the processes of its host for a launcher elsewhere, and ends all of them
//! when the launcher says so or is lost (J-17).

use std::cell::Cell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ExitCode, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tautline::node::link::JobKey;
use tautline::{DeviceName, HostId, Member, Security};
use tautline_launch::{announced, host_id, parse_key};

use super::added::Adding;
use super::control::{self, Add, CHUNK, FromAgent, Prepare, SILENCE, Start, Stream, ToAgent};
use super::outbox::Outbox;
use crate::run::alive::Alive;
use crate::run::control::Control;
use crate::run::notices::{Notice, Notices};
use crate::run::process::{Common, ListenerCleanup, Place, Process, Ranks};
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
    /// Somebody asks for further ranks. Dropped when the request was read.
    Asked(Sender<()>),
    /// All output of the processes has been read.
    OutputEnded,
    InputTaken,
}

/// The processes of this host, and how to tell the launcher of them.
pub(super) struct Agent {
    pub(super) crew: Crew,
    pub(super) ranks: Ranks,
    /// Through which each process is told of others.
    pub(super) notices: Vec<Notices>,
    /// The live processes, counted on this host.
    pub(super) alive: Alive,
    pub(super) outbox: Arc<Outbox>,
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
    pub(super) restarts: bool,
    /// All output of the processes has been read.
    output_ended: bool,
    /// What is prepared to join the job.
    pub(super) adding: Option<Adding>,
    /// No process is left, and none is started any more.
    pub(super) ending: bool,
    /// Where processes of this host ask for further ranks.
    pub(super) control: Option<Control>,
    /// For the supervisor.
    pub(super) record: Record,
    /// How many ranks have joined the job.
    pub(super) joined: Rc<Cell<u32>>,
}

/// What was checked and bound before the start.
pub(super) struct Prepared {
    pub(super) plan: Prepare,
    pub(super) files: Vec<PathBuf>,
    /// None of a process that will not be started again.
    pub(super) sockets: Vec<Option<UdpSocket>>,
    /// The addresses of those that are there when the job begins.
    addrs: Vec<Vec<SocketAddr>>,
    security: Option<Security>,
    device: Option<DeviceName>,
}

/// What it takes to start the processes of this host, also again.
pub(super) struct Crew {
    pub(super) prepared: Prepared,
    /// What those joined with that joined the running job, by their index.
    pub(super) added: HashMap<usize, Rc<Add>>,
    key: JobKey,
    pub(super) members: Vec<Member>,
    /// How many of the members joined the running job.
    pub(super) joined: u32,
    /// Where processes ask for further ranks.
    control: Option<PathBuf>,
    /// What has become of the ranks of the job that have ended, for processes that are started later.
    ended: BTreeMap<usize, Notice>,
}

impl Crew {
    /// Starts a process, counted on this host.
    fn start(&self, index: usize) -> Result<(Child, Notices)> {
        let Prepared { plan, files, sockets, security, device, .. } = &self.prepared;
        let rank = &plan.ranks[index];
        let (security, device) = (*security, *device);
        let (env, control) = (&plan.env, self.control.as_deref());
        let common = Common { key: &self.key, security, device, env, bind: plan.bind, control };
        let socket = sockets[index].as_ref().context("its socket is closed")?;
        let place = self.added.get(&index);
        let (child, mut notices) = common.start(Process {
            rank: rank.rank,
            index,
            program: &files[index],
            arguments: &rank.words[1..],
            members: &self.members,
            joined: self.joined,
            place: place.map(|add| Place { dir: &add.dir, env: None, given: &add.env }),
            socket,
            stdin: if rank.rank == 0 { Stdio::piped() } else { Stdio::null() },
            stdout: Stdio::piped(),
            stderr: Stdio::piped(),
        })?;
        notices.tell_all(self.ended.iter().map(|(rank, notice)| (*rank, *notice)));
        Ok((child, notices))
    }

    /// The rank of a process, and back.
    fn rank(&self, index: usize) -> u32 {
        self.prepared.plan.ranks[index].rank as u32
    }

    pub(super) fn index(&self, rank: u32) -> Option<usize> {
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
    let addrs = prepared.addrs.clone();
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
    limits::check_ranks(plan.size)?;
    enter(&plan.wdir)?;
    let mut found = HashMap::new();
    let mut files = Vec::with_capacity(plan.ranks.len());
    for rank in &plan.ranks {
        let Some(program) = rank.words.first() else { bail!("rank {} has no program", rank.rank) };
        files.push(match found.entry(program) {
            Entry::Occupied(file) => PathBuf::clone(file.get()),
            Entry::Vacant(place) => place.insert(lookup::find(program)?).clone(),
        });
    }
    let (sockets, addrs): (Vec<_>, _) = bind(&addresses(&plan)?, plan.ranks.len())?.into_iter().unzip();
    let sockets = sockets.into_iter().map(Some).collect();
    let security = plan.security.as_deref().map(str::parse).transpose().map_err(anyhow::Error::msg)?;
    let device = plan.device.as_deref().map(str::parse).transpose().map_err(anyhow::Error::msg)?;
    Ok(Prepared { plan, files, sockets, addrs, security, device })
}

/// Sockets for this many processes, with their addresses.
pub(super) fn bind(ips: &[IpAddr], count: usize) -> Result<Vec<(UdpSocket, Vec<SocketAddr>)>> {
    let bound = tautline_launch::bind(ips, count);
    bound.with_context(|| format!("cannot bind UDP sockets on {}\nthe reason was", ips[0]))
}

/// The addresses that were asked for, or the one that ssh connected to, or that of the default route.
pub(super) fn addresses(plan: &Prepare) -> Result<Vec<IpAddr>> {
    if plan.interface.is_some() {
        return Ok(announced(plan.interface.as_deref())?);
    }
    let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
    let reached = connection.split_whitespace().nth(2).and_then(|ip| ip.parse().ok());
    let usable = reached.filter(|ip: &IpAddr| !(plan.several_hosts && ip.is_loopback()));
    usable.map_or_else(|| Ok(announced(None)?), |ip| Ok(vec![ip]))
}

/// A member at these addresses, on this host.
pub(super) fn member(addrs: &[SocketAddr], host: u64) -> Result<Member> {
    let member =
        Member::at(addrs).map_err(anyhow::Error::msg).context("the launcher sent no valid member")?;
    Ok(member.on_host(HostId(host)))
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
        let members = start.members.iter().map(|(addrs, host)| member(addrs, *host));
        let members = members.collect::<Result<Vec<_>>>()?;
        leftovers::adopt()?;
        let first = members.len().saturating_sub(start.joined as usize);
        let joined = Rc::new(Cell::new(start.joined));
        let listeners =
            ListenerCleanup { key: key.clone(), members: members[..first].to_vec(), joined: joined.clone() };
        record.write(&listeners)?;
        record.write_joined(start.joined)?;
        let (grace, restarts) = (prepared.plan.grace, prepared.plan.restarts);
        let control = Control::open_for_agent();
        if let Err(error) = &control {
            report!("tautline: processes cannot ask for further ranks: {error}");
        }
        let control = control.ok();
        let path = control.as_ref().map(|control| control.path().to_owned());
        let added = HashMap::new();
        let mut agent = Agent {
            crew: Crew {
                prepared,
                added,
                key,
                members,
                joined: start.joined,
                control: path,
                ended: BTreeMap::new(),
            },
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
            adding: None,
            ending: false,
            control,
            record,
            joined,
        };
        let (ended, asked) = (agent.sender.clone(), agent.sender.clone());
        let ends = agent.alive.fd().try_clone_to_owned()?;
        sys::notice(ends, move |handled| ended.send(Event::Ended(handled)).is_ok());
        if let Some(control) = &agent.control {
            let fd = control.fd().try_clone_to_owned()?;
            sys::notice(fd, move |handled| asked.send(Event::Asked(handled)).is_ok());
        }
        for index in 0..agent.crew.prepared.plan.ranks.len() {
            agent.start_process(index)?;
        }
        Ok((agent, listeners))
    }

    /// Starts a process for the first time, the next one of this host.
    pub(super) fn start_process(&mut self, index: usize) -> Result<()> {
        let (mut child, notices) = self.crew.start(index)?;
        // At once: an end is in its place among others only if it comes after this.
        let added = self.alive.add(index, child.id());
        self.follow(index, &mut child);
        self.notices.push(notices);
        self.ranks.0.push(child);
        if !self.restarts {
            // Frames to a rank that has ended are refused at once, and not stored for nobody.
            self.crew.prepared.sockets[index] = None;
        }
        added
    }

    /// Forwards what a process writes, and what it is to read.
    fn follow(&mut self, index: usize, child: &mut Child) {
        let rank = self.crew.rank(index);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let to = Arc::new(RankOutput { outbox: self.outbox.clone(), rank });
        self.readers.extend(stdout.map(|from| forward(to.clone(), Stream::Out, from)));
        self.readers.extend(stderr.map(|from| forward(to.clone(), Stream::Err, from)));
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
        while self.is_needed() {
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
        // Nobody asks any more.
        self.control = None;
        self.ending = true;
        let left = leftovers::end_all(self.grace, |time| self.is_killed_within(time));
        // Whoever is left may keep the output open.
        if left.is_empty() {
            self.await_output();
        }
        left.iter().map(|pid| pid.as_raw_pid()).collect()
    }

    /// Whether a process lives, or the launcher may still have one started.
    fn is_needed(&self) -> bool {
        !self.alive.is_empty() || !self.lost && (self.restarts || self.adding.is_some())
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
                match notice {
                    Notice::Started => self.crew.ended.remove(&(rank as usize)),
                    Notice::Died | Notice::Left => self.crew.ended.insert(rank as usize, notice),
                };
                for (index, notices) in self.notices.iter_mut().enumerate() {
                    if own != Some(index) && self.alive.has(index) {
                        notices.tell(rank as usize, notice);
                    }
                }
            }
            Event::Said(ToAgent::Restart(rank)) => self.start_again(rank),
            Event::Said(ToAgent::NoRestart) => self.restarts = false,
            Event::Said(ToAgent::Add(add)) => self.prepare_added(*add),
            Event::Said(ToAgent::Joined(addrs, host)) => self.rank_joined(&addrs, host),
            Event::Said(ToAgent::StartAdded(request, start)) => self.start_added(request, start),
            Event::Said(ToAgent::SignalRank(rank, number)) => {
                if let (Some(index), Some(signal)) = (self.crew.index(rank), Signal::from_named_raw(number)) {
                    self.alive.signal(index, signal);
                }
            }
            Event::Said(ToAgent::Answer(id, answer)) => self.answer(id, answer),
            Event::Said(_) => {}
            Event::Asked(_handled) => self.pass_on_requests(),
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

/// Where the output of a process goes. Dropped when all of it is there.
struct RankOutput {
    outbox: Arc<Outbox>,
    rank: u32,
}

impl Drop for RankOutput {
    fn drop(&mut self) {
        self.outbox.push(FromAgent::OutputEnded(self.rank));
    }
}

/// Forwards what a process writes.
fn forward(to: Arc<RankOutput>, stream: Stream, mut from: impl Read + Send + 'static) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let (outbox, rank) = (&to.outbox, to.rank);
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
