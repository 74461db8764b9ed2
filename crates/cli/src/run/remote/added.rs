//! The agent's part when ranks join the running job (J-26, J-27): it prepares and starts those of its host,
//! tells its processes of those elsewhere, and passes on what they ask for.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context, Result, anyhow, bail};
use tautline_launch::host_id;

use super::agent::{Agent, addresses, bind, member};
use super::control::{Add, FromAgent, RankPlan};
use crate::run::process::kill_all;
use crate::run::{limits, lookup};

/// Processes that are prepared, and not started.
pub(super) struct Adding {
    add: Add,
    file: PathBuf,
    sockets: Vec<std::net::UdpSocket>,
}

impl Agent {
    /// Checks what can be checked before processes join, and tells the launcher where they will be.
    pub(super) fn prepare_added(&mut self, add: Add) {
        if self.ending {
            // The launcher is about to learn it, and asks another agent.
            return;
        }
        let request = add.request;
        let prepared = || -> Result<(Adding, Vec<Vec<SocketAddr>>, u64)> {
            if !add.dir.is_dir() {
                bail!("there is no directory {}\ngive another one: --wdir DIR", add.dir.display());
            }
            let program = add.words.first().context("there is no program")?;
            let file = lookup::find_in(&add.dir, program)?;
            limits::check_ranks(add.ranks.end)?;
            let bound = bind(&addresses(&self.crew.prepared.plan)?, add.ranks.len())?;
            let (sockets, addrs) = bound.into_iter().unzip();
            Ok((Adding { add, file, sockets }, addrs, host_id()?.0))
        };
        match prepared() {
            Ok((adding, addrs, host)) => {
                self.adding = Some(adding);
                self.outbox.push(FromAgent::Added { request, addrs, host });
            }
            Err(error) => self.outbox.push(FromAgent::NotAdded(request, format!("{error:#}"))),
        }
    }

    /// A process joins the job, with the next rank.
    pub(super) fn rank_joined(&mut self, addrs: &[SocketAddr], host: u64) {
        let rank = self.crew.members.len();
        let Ok(member) = member(addrs, host) else { return };
        self.crew.members.push(member);
        self.crew.joined += 1;
        self.joined.set(self.crew.joined);
        // Only the supervisor of an agent that was killed needs it.
        let _ = self.record.write_joined(self.crew.joined);
        for (index, notices) in self.notices.iter_mut().enumerate() {
            if self.alive.has(index) {
                notices.tell_joined(rank, addrs, Some(host));
            }
        }
    }

    /// Starts what was prepared, or forgets it.
    pub(super) fn start_added(&mut self, request: u64, start: bool) {
        let prepared = self.adding.take_if(|adding| adding.add.request == request);
        let Some(Adding { add, file, sockets }) = prepared.filter(|_| start && !self.ending) else { return };
        let add = Rc::new(add);
        for (rank, socket) in add.ranks.clone().zip(sockets) {
            let prepared = &mut self.crew.prepared;
            let index = prepared.plan.ranks.len();
            prepared.plan.ranks.push(RankPlan { rank, words: add.words.clone() });
            prepared.files.push(file.clone());
            prepared.sockets.push(Some(socket));
            self.crew.added.insert(index, add.clone());
            if let Err(error) = self.start_process(index) {
                report!("tautline: rank {rank} could not be started: {error:#}");
                self.forget_added(index, rank..add.ranks.end);
                return;
            }
        }
    }

    /// Ranks could not be started: as if they had been, and had failed at once.
    fn forget_added(&mut self, index: usize, ranks: std::ops::Range<usize>) {
        let prepared = &mut self.crew.prepared;
        prepared.plan.ranks.truncate(index);
        prepared.files.truncate(index);
        prepared.sockets.truncate(index);
        self.crew.added.remove(&index);
        kill_all(&mut self.ranks.0[index..]);
        self.ranks.0.truncate(index);
        self.notices.truncate(index);
        for rank in ranks {
            self.outbox.push(FromAgent::Exited { rank: rank as u32, status: 126 << 8 });
            self.outbox.push(FromAgent::OutputEnded(rank as u32));
        }
    }

    /// Passes on to the launcher what processes of this host ask for.
    pub(super) fn pass_on_requests(&mut self) {
        let Some(control) = &mut self.control else { return };
        // Nobody is attached, so that nobody's end matters.
        control.poll();
        while let Some((id, request, _)) = control.next_request() {
            match request {
                Ok(request) if request.attached => {
                    let why = "this is an agent of a job elsewhere\nrun tautline run --join on the host of its \
                               tautline run";
                    control.answer(id, Err(anyhow!(why)));
                }
                Ok(request) => self.outbox.push(FromAgent::Asked(id, request.encode())),
                Err(error) => drop(control.answer(id, Err(error))),
            }
        }
    }

    /// The launcher has answered a request.
    pub(super) fn answer(&mut self, id: u64, answer: Result<(usize, usize), String>) {
        if let Some(control) = &mut self.control {
            control.answer(id, answer.map(|(first, count)| first..first + count).map_err(|why| anyhow!(why)));
        }
    }
}
