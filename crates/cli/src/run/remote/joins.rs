//! Ranks that join a running job on several hosts (J-26).
//!
//! The launcher carries out one request after the other. It has the agents of all hosts concerned prepare
//! what they are to start, also those of hosts that the job has not used yet. When all are prepared, every
//! agent is told of the new ranks, and then theirs start. If one host cannot, nothing is started.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use rustix::process::Signal;
use tautline_launch::control::Request;

use super::control::{Add, RankPlan, ToAgent};
use super::{Event, HERE, HostState, Job, Members, PREPARE_WITHIN, Watch};
use crate::run::control::Control;
use crate::run::hosts;
use crate::run::local::check_size;
use crate::run::outcome::Phase;
use crate::sys;

/// What has been asked for, and by whom.
pub(super) struct Joins {
    control: Option<Control>,
    waiting: VecDeque<Asked>,
    /// The request that is carried out.
    current: Option<Joining>,
    /// How many were carried out.
    begun: u64,
    /// Ranks whose ends are told to who asked for them.
    attached: HashMap<usize, Attached>,
}

struct Asked {
    by: Asker,
    request: Request,
    streams: Option<[OwnedFd; 2]>,
    /// How often it may still be carried out again.
    tries: u32,
}

/// How often a request is carried out again because the processes of a host have just ended.
const TRIES: u32 = 3;

/// Who waits for the answer, by the number of the request.
enum Asker {
    /// A process on this host.
    Here(u64),
    /// A process on the host of this number.
    On(usize, u64),
}

struct Joining {
    /// Tells answers of agents from those to former requests.
    number: u64,
    asked: Asked,
    /// In the order of their ranks.
    parts: Vec<Part>,
    /// When all must be prepared.
    until: Instant,
}

/// The ranks that join on one host.
struct Part {
    host: usize,
    ranks: Range<usize>,
    /// Where they will be; none before the agent is prepared.
    members: Option<Members>,
}

/// A rank whose end is told when its output is complete.
#[derive(Default)]
struct Attached {
    code: Option<u8>,
    output_ended: bool,
}

impl Joins {
    /// Opens the socket on which the job is asked, under the number that the launcher has for users.
    pub(super) fn open(job: &Job<'_>, launcher: u32) -> Result<Joins> {
        let control = Control::open(launcher);
        if let Some(control) = &control {
            let (fd, events) = (control.fd().try_clone_to_owned()?, job.sender.clone());
            sys::notice(fd, move |handled| events.send((HERE, Event::Asked(handled))).is_ok());
        }
        Ok(Joins { control, waiting: VecDeque::new(), current: None, begun: 0, attached: HashMap::new() })
    }

    /// Whether an agent answers the request that is carried out, and not a former one.
    pub(super) fn is_current(&self, request: u64) -> bool {
        self.current.as_ref().is_some_and(|joining| joining.number == request)
    }

    /// Whether a host prepares ranks that join.
    pub(super) fn concerns(&self, host: usize) -> bool {
        self.current.iter().flat_map(|joining| &joining.parts).any(|part| part.host == host)
    }

    /// A rank has ended.
    pub(super) fn rank_ended(&mut self, rank: usize, code: u8) {
        if let Some(attached) = self.attached.get_mut(&rank) {
            attached.code = Some(code);
            self.tell_end(rank);
        }
    }

    fn tell_end(&mut self, rank: usize) {
        if let Some(Attached { code: Some(code), output_ended: true }) = self.attached.get(&rank)
            && let Some(control) = &mut self.control
        {
            control.rank_ended(rank, *code);
            self.attached.remove(&rank);
        }
    }
}

impl Watch<'_> {
    /// Takes requests of processes on this host, and ends what belongs to those that are gone.
    pub(super) fn take_requests(&mut self) {
        let Some(mut control) = self.joins.control.take() else { return };
        for rank in control.poll().into_iter().flatten() {
            self.end_rank(rank);
        }
        while let Some((id, request, streams)) = control.next_request() {
            match request {
                Ok(request) => self.joins.waiting.push_back(Asked {
                    by: Asker::Here(id),
                    request,
                    streams,
                    tries: TRIES,
                }),
                Err(error) => drop(control.answer(id, Err(error))),
            }
        }
        self.joins.control = Some(control);
        self.next_join();
    }

    /// A process on another host has asked its agent.
    pub(super) fn agent_asked(&mut self, host: usize, id: u64, request: &[u8]) {
        let by = Asker::On(host, id);
        match Request::decode(request) {
            Ok(request) => self.joins.waiting.push_back(Asked { by, request, streams: None, tries: TRIES }),
            Err(why) => drop(self.answer(&by, Err(anyhow!(why)))),
        }
        self.next_join();
    }

    /// Ends a rank that nobody wants any more.
    fn end_rank(&mut self, rank: usize) {
        self.signal_rank(rank, Signal::TERM);
        self.outcome.rank_unwanted(rank);
    }

    pub(super) fn signal_rank(&self, rank: usize, signal: Signal) {
        let host = self.job.ranks.iter().position(|ranks| ranks.contains(&rank));
        if let Some(host) = host.filter(|host| self.is_running(*host)) {
            self.job.connections[host].say(ToAgent::SignalRank(rank as u32, signal.as_raw()));
        }
    }

    /// Answers who has asked. False if nobody waits for it any more.
    fn answer(&mut self, to: &Asker, answer: Result<Range<usize>>) -> bool {
        match to {
            Asker::Here(id) => self.joins.control.as_mut().is_some_and(|control| control.answer(*id, answer)),
            Asker::On(host, id) => {
                let answer = answer.map(|ranks| (ranks.start, ranks.len()));
                let answer = answer.map_err(|error| format!("{error:#}"));
                self.job.connections[*host].say(ToAgent::Answer(*id, answer));
                true
            }
        }
    }

    /// Begins to carry out the next request, if none is being carried out.
    fn next_join(&mut self) {
        while self.joins.current.is_none() {
            let Some(asked) = self.joins.waiting.pop_front() else { return };
            match self.place(&asked.request) {
                Ok(parts) => {
                    let until = Instant::now() + PREPARE_WITHIN;
                    self.joins.begun += 1;
                    self.joins.current = Some(Joining { number: self.joins.begun, asked, parts, until });
                    self.prepare_running_hosts();
                }
                Err(error) => drop(self.answer(&asked.by, Err(error))),
            }
        }
    }

    /// Says which hosts take which ranks, and starts agents where there are none.
    fn place(&mut self, request: &Request) -> Result<Vec<Part>> {
        let (mut next, count) = (self.job.members.len(), request.count as usize);
        if self.outcome.phase != Phase::Running {
            bail!("the job is ending");
        }
        check_size(next, count)?;
        let mut parts = Vec::new();
        let mut add = |host, count| {
            parts.push(Part { host, ranks: next..next + count, members: None });
            next += count;
        };
        if request.hosts.is_empty() {
            let counts = self.balance(count);
            counts.into_iter().filter(|(_, count)| *count > 0).for_each(|(host, count)| add(host, count));
            return Ok(parts);
        }
        let named = hosts::parse_list(&request.hosts)?;
        for (host, (_, count)) in named.iter().zip(hosts::place(&named, None, count)?) {
            let is_it =
                |number: &usize| self.is_running(*number) && self.job.connections[*number].name == host.name;
            let found = (0..self.hosts.len()).find(is_it);
            if count > 0 {
                add(found.map_or_else(|| self.open_host(&host.name), Ok)?, count);
            }
        }
        Ok(parts)
    }

    /// How many ranks each running host takes, so that those with the fewest take the most.
    fn balance(&self, count: usize) -> Vec<(usize, usize)> {
        let live = |host: &usize| {
            self.job.ranks[*host].iter().filter(|rank| self.outcome.is_running(**rank)).count()
        };
        let running: Vec<_> = (0..self.hosts.len()).filter(|host| self.is_running(*host)).collect();
        let loads: Vec<_> = running.iter().map(live).collect();
        running.into_iter().zip(shares(&loads, count)).collect()
    }

    fn open_host(&mut self, name: &str) -> Result<usize> {
        self.job.open(name)?;
        self.hosts.push(HostState::Opening);
        Ok(self.hosts.len() - 1)
    }

    /// Has the agents that serve the job prepare their parts. The others do when they have greeted.
    fn prepare_running_hosts(&self) {
        let Some(Joining { number, asked, parts, .. }) = &self.joins.current else { return };
        for part in parts.iter().filter(|part| self.is_running(part.host)) {
            let Request { dir, given, .. } = &asked.request;
            let words = words(&asked.request);
            let (request, ranks) = (*number, part.ranks.clone());
            let add = Add { request, ranks, words, dir: dir.clone(), env: given.clone() };
            self.job.connections[part.host].say(ToAgent::Add(Box::new(add)));
        }
    }

    /// The agent of a host that the job has not used yet has answered.
    pub(super) fn join_greeted(&mut self, host: usize, line: &str) {
        let Some(Joining { asked, parts, .. }) = &self.joins.current else { return };
        let Some(part) = parts.iter().find(|part| part.host == host) else { return };
        if let Err(why) = self.job.connections[host].check_greeting(line) {
            return self.fail_join(&why);
        }
        let plan = |rank| RankPlan { rank, words: words(&asked.request) };
        let size = parts.last().map_or(0, |part| part.ranks.end);
        let env = [&self.job.plan.env[..], &asked.request.given].concat();
        let ranks = part.ranks.clone().map(plan).collect();
        let prepare = self.job.prepare_for(ranks, size, asked.request.dir.clone(), env);
        self.job.connections[host].say(ToAgent::Prepare(Box::new(prepare)));
    }

    /// An agent is prepared.
    pub(super) fn join_prepared(&mut self, host: usize, addrs: Vec<Vec<SocketAddr>>, id: u64) {
        let Some(Joining { parts, .. }) = &mut self.joins.current else { return };
        let Some(part) = parts.iter_mut().find(|part| part.host == host) else { return };
        if addrs.len() == part.ranks.len() {
            part.members = Some(addrs.into_iter().map(|addrs| (addrs, id)).collect());
        }
        if parts.iter().all(|part| part.members.is_some()) {
            match self.start_joining() {
                Ok(()) => self.next_join(),
                Err(error) => self.fail_join(&format!("{error:#}")),
            }
        }
    }

    /// An agent cannot start its part.
    pub(super) fn join_refused(&mut self, host: usize, why: &str) {
        if self.joins.concerns(host) {
            self.fail_join(&format!("on the host {}: {why}", self.job.connections[host].name));
        }
    }

    /// All agents are prepared: starts the ranks.
    fn start_joining(&mut self) -> Result<()> {
        let Some(Joining { parts, .. }) = &self.joins.current else { return Ok(()) };
        if self.outcome.phase != Phase::Running {
            bail!("the job is ending");
        }
        let mut members = self.job.members.clone();
        members.extend(parts.iter().filter_map(|part| part.members.as_ref()).flatten().cloned());
        // A member has addresses of one version.
        let mut firsts = members.iter().filter_map(|(addrs, _)| addrs.first());
        let version = firsts.next().is_some_and(SocketAddr::is_ipv4);
        if let Some(addr) = firsts.find(|addr| addr.is_ipv4() != version) {
            bail!(
                "the members of the job cannot reach {}: it is of another IP version\nrun the job with --interface",
                addr.ip()
            );
        }
        for part in parts {
            self.job.ranks[part.host].extend(part.ranks.clone());
        }
        let checked = self.job.check_hosts(&members).and_then(|()| self.job.check_addresses(&members));
        if let Err(error) = checked {
            for part in parts {
                self.job.ranks[part.host].retain(|rank| !part.ranks.contains(rank));
            }
            return Err(error);
        }
        let Some(Joining { number, asked, parts, .. }) = self.joins.current.take() else { return Ok(()) };
        let first = self.job.members.len();
        for (addrs, host) in &members[first..] {
            self.running().for_each(|connection| connection.say(ToAgent::Joined(addrs.clone(), *host)));
        }
        self.job.members = members;
        self.follow(first..self.job.members.len(), &asked, asked.streams.as_ref());
        for part in &parts {
            if self.is_running(part.host) {
                self.job.connections[part.host].say(ToAgent::StartAdded(number, true));
            } else {
                self.hosts[part.host] = HostState::Running;
                self.job.start_on(part.host);
                for (rank, notice) in self.outcome.ended() {
                    self.job.connections[part.host].say(ToAgent::Notice(rank as u32, notice));
                }
            }
        }
        let ranks = first..self.job.members.len();
        if !self.answer(&asked.by, Ok(ranks.clone())) && asked.request.attached {
            ranks.for_each(|rank| self.end_rank(rank));
        }
        Ok(())
    }

    /// Watches ranks that are about to be started.
    fn follow(&mut self, ranks: Range<usize>, asked: &Asked, streams: Option<&[OwnedFd; 2]>) {
        let copied = streams.and_then(|[out, err]| {
            Some(Rc::new([File::from(out.try_clone().ok()?), File::from(err.try_clone().ok()?)]))
        });
        for rank in ranks {
            self.outcome.add_rank();
            if let Err(error) = self.output.add(rank as u32, copied.clone()) {
                report!("tautline: {error:#}");
                self.outcome.incomplete = true;
            }
            if asked.request.attached {
                self.joins.attached.insert(rank, Attached::default());
            }
        }
    }

    /// All output of a rank has arrived.
    pub(super) fn output_ended(&mut self, rank: usize) {
        if let Some(attached) = self.joins.attached.get_mut(&rank) {
            attached.output_ended = true;
            self.output.close(rank as u32);
            self.joins.tell_end(rank);
        }
    }

    /// The request cannot be carried out: nothing of it is left, and the next one begins.
    pub(super) fn fail_join(&mut self, why: &str) {
        let Some(Joining { number, asked, parts, .. }) = self.joins.current.take() else { return };
        self.forget_parts(number, &parts);
        self.answer(&asked.by, Err(anyhow!(why.to_owned())));
        self.next_join();
    }

    /// The processes of a host that was to take ranks have just ended, and its agent with them. The request
    /// is carried out again: by a new agent on that host if it names the host, by any hosts otherwise.
    pub(super) fn host_gone(&mut self, host: usize) {
        if !self.joins.concerns(host) {
            return;
        }
        match self.joins.current.take_if(|joining| joining.asked.tries > 0) {
            Some(Joining { number, mut asked, parts, .. }) => {
                self.forget_parts(number, &parts);
                asked.tries -= 1;
                self.joins.waiting.push_front(asked);
                self.next_join();
            }
            None => {
                let name = &self.job.connections[host].name;
                self.fail_join(&format!("the processes on the host {name} have just ended\nask again"));
            }
        }
    }

    /// Has all hosts forget what they have prepared.
    fn forget_parts(&mut self, number: u64, parts: &[Part]) {
        for part in parts {
            match self.hosts[part.host] {
                HostState::Opening => {
                    self.hosts[part.host] = HostState::Done;
                    self.job.connections[part.host].abandon();
                }
                HostState::Running => {
                    self.job.connections[part.host].say(ToAgent::StartAdded(number, false));
                }
                HostState::Done => {}
            }
        }
    }

    /// Fails a request that a host has not answered in time.
    pub(super) fn give_up_late_join(&mut self) {
        let late = self.joins.current.as_ref().filter(|joining| Instant::now() >= joining.until);
        let missing = late.and_then(|joining| joining.parts.iter().find(|part| part.members.is_none()));
        if let Some(host) = missing.map(|part| part.host) {
            self.fail_join(&self.job.connections[host].no_answer(PREPARE_WITHIN));
        }
    }

    /// The job is over: nobody joins any more.
    pub(super) fn end_joins(&mut self) {
        self.joins.waiting.clear();
        self.fail_join("the job has ended");
        self.joins.control = None;
    }
}

/// The program and its arguments.
fn words(request: &Request) -> Vec<std::ffi::OsString> {
    std::iter::once(&request.program).chain(&request.arguments).cloned().collect()
}

/// How `count` ranks are divided among hosts that run this many: each rank goes where the fewest run.
fn shares(loads: &[usize], count: usize) -> Vec<usize> {
    let mut loads: Vec<_> = loads.iter().map(|load| (*load, 0)).collect();
    for _ in 0..count {
        if let Some((load, share)) = loads.iter_mut().min_by_key(|(load, _)| *load) {
            (*load, *share) = (*load + 1, *share + 1);
        }
    }
    loads.into_iter().map(|(_, share)| share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_go_where_the_fewest_run() {
        assert_eq!(shares(&[3, 1, 1], 1), [0, 1, 0]);
        assert_eq!(shares(&[3, 1, 1], 5), [1, 2, 2]);
        assert_eq!(shares(&[0], 4), [4]);
        assert!(shares(&[], 4).is_empty());
    }
}
