//! A cluster whose channels are idle: what they cost in frames, and when a death is noticed.

use tautline::Down;

use super::{Cluster, HEAD, Nanos, Run, lock};

/// A cluster whose nodes have sent what they had to send.
pub struct Idle {
    run: Run,
    crashed: Vec<u32>,
}

impl std::fmt::Debug for Idle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Idle").field("cluster", &self.run.cluster).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Runs it to its end, and keeps it.
    ///
    /// # Errors
    /// As [`Cluster::run`].
    pub fn into_idle(self) -> Result<Idle, String> {
        let mut run = self.start()?;
        run.until_done(|_| {})?;
        run.report()?;
        Ok(Idle { run, crashed: Vec::new() })
    }
}

impl Idle {
    /// Lets time pass.
    ///
    /// # Errors
    /// If a promise was broken.
    pub fn pass(&mut self, time: Nanos) -> Result<(), String> {
        let end = self.now() + time;
        while self.now() < end {
            self.run.step()?;
        }
        Ok(())
    }

    /// The virtual time.
    pub fn now(&self) -> Nanos {
        lock(&self.run.net).now()
    }

    /// Frames that all nodes have sent.
    pub fn frames(&self) -> u64 {
        lock(&self.run.net).counters.sent
    }

    /// Deaths that all nodes have reported, and when the newest one was.
    pub fn deaths(&self) -> (u64, Nanos) {
        (self.run.deaths, self.run.last_death.1)
    }

    /// A node crashes.
    pub fn crash(&mut self, node: u32) {
        lock(&self.run.net).unplug(node);
        self.crashed.push(node);
    }

    /// All other nodes that live are told that a node has ended (N-26).
    ///
    /// # Panics
    /// If a node is closed.
    pub fn tell(&mut self, ended: u32) {
        let now = self.now();
        for (rank, node) in (0..).zip(&self.run.nodes) {
            if rank != ended && !self.crashed.contains(&rank) {
                node.ep.node().members().ended(ended, Down::Reported).expect("the node is open");
                lock(&self.run.net).wake(rank, now);
            }
        }
    }

    /// A node sends to another one, which is not to receive it.
    ///
    /// # Panics
    /// If it cannot.
    pub fn send(&mut self, from: u32, to: u32) {
        let node = &mut self.run.nodes[from as usize];
        node.ep.try_send(to, "step", &[0; HEAD]).expect("there is a channel with room");
        let now = self.now();
        lock(&self.run.net).wake(from, now);
    }
}
