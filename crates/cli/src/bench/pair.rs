//! Two pinned processes and the streams to them. A side that dies, hangs or fails is an error here, never a
//! hang.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum as _;

use super::case::{Case, Outcome, Reply};
use super::netns;
use super::side::Fault;
use crate::sys::{self, Inherited, Signals, poll_until, readable};

/// No case takes longer than this.
const CASE_TIME: Duration = Duration::from_secs(60);

/// How long one side may still report after the other has failed.
const FAILURE_TIME: Duration = Duration::from_millis(300);

/// Where the two processes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    Loopback,
    /// Each in a network namespace of its own, with veth pairs of this MTU in between.
    Veth {
        mtu: u16,
    },
}

impl Path {
    pub fn name(self) -> &'static str {
        match self {
            Path::Loopback => "loopback",
            Path::Veth { mtu: 9000 } => "veth-9000",
            Path::Veth { .. } => "veth-1500",
        }
    }

    /// Whether a network lies between the two.
    pub fn is_veth(self) -> bool {
        self != Path::Loopback
    }

    /// As people read it.
    pub fn describe(self) -> String {
        match self {
            Path::Loopback => "on one host, over loopback and shared memory".into(),
            Path::Veth { mtu } => format!("between two hosts (network namespaces), veth, MTU {mtu}"),
        }
    }
}

/// The two processes, side A first.
pub struct Pair {
    sides: [One; 2],
}

struct One {
    child: Child,
    stream: UnixStream,
    /// The bytes of the next reply that have arrived.
    received: Vec<u8>,
}

impl Drop for One {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Pair {
    /// Starts both, each on its core.
    pub fn start(
        path: Path,
        cores: [usize; 2],
        sabotage: Option<Fault>,
        signals: &mut Signals,
    ) -> Result<Pair> {
        let (a, b) = UnixStream::pair()?;
        let side = |name, core, end| One::start(name, path, [core, cores[0]], sabotage, end);
        let mut pair = Pair { sides: [side("a", cores[0], &a)?, side("b", cores[1], &b)?] };
        for reply in pair.collect(signals)? {
            if reply != Reply::Ready {
                bail!("a process of the measurement did not start: {reply:?}");
            }
        }
        if let Path::Veth { mtu } = path {
            netns::connect(pair.sides[0].child.id(), pair.sides[1].child.id(), mtu)?;
        }
        Ok(pair)
    }

    /// Returns the process numbers of the two, whose namespaces others may share.
    pub fn processes(&self) -> [u32; 2] {
        [self.sides[0].child.id(), self.sides[1].child.id()]
    }

    /// Has both sides run a case. After an error the pair cannot be used any more.
    pub fn run(&mut self, case: &Case, signals: &mut Signals) -> Result<[Outcome; 2]> {
        let mut line = serde_json::to_vec(case)?;
        line.push(b'\n');
        for side in &mut self.sides {
            side.stream.write_all(&line).context("a process of the measurement is gone")?;
        }
        let replies = self.collect(signals)?;
        let failures: Vec<_> = replies
            .iter()
            .filter_map(|reply| match reply {
                Reply::Failed(why) => Some(why.as_str()),
                _ => None,
            })
            .collect();
        if !failures.is_empty() {
            bail!("{}", failures.join("; the other side: "));
        }
        match replies[..] {
            [Reply::Done(a), Reply::Done(b)] => Ok([a, b]),
            _ => bail!("the two sides are out of step"),
        }
    }

    /// Collects one reply of each side. After a failure the other side gets a moment to report too.
    fn collect(&mut self, signals: &mut Signals) -> Result<Vec<Reply>> {
        let mut until = Instant::now() + CASE_TIME;
        let mut replies = [None, None];
        loop {
            for (side, reply) in self.sides.iter_mut().zip(&mut replies) {
                if reply.is_none() {
                    *reply = side.next_answer()?;
                    if matches!(reply, Some(Reply::Failed(_))) {
                        until = until.min(Instant::now() + FAILURE_TIME);
                    }
                }
            }
            if replies.iter().all(Option::is_some) {
                return Ok(replies.into_iter().flatten().collect());
            }
            let mut fds: Vec<_> = signals.fds().map(readable).collect();
            let waiting = self.sides.iter().zip(&replies).filter(|(_, reply)| reply.is_none());
            fds.extend(waiting.map(|(side, _)| readable(side.stream.as_fd())));
            let received = poll_until(&mut fds, Some(until))?;
            drop(fds);
            if let Some(signal) = signals.take() {
                return Err(Interrupted(signal.as_raw()).into());
            }
            if !received {
                let failed = replies.into_iter().flatten().find(|reply| matches!(reply, Reply::Failed(_)));
                return failed
                    .map(|reply| vec![reply])
                    .with_context(|| format!("no answer within {} s", CASE_TIME.as_secs()));
            }
        }
    }
}

impl One {
    fn start(
        side: &str,
        path: Path,
        cores: [usize; 2],
        sabotage: Option<Fault>,
        other: &UnixStream,
    ) -> Result<One> {
        let (ours, theirs) = UnixStream::pair()?;
        let (orders, other) = (Inherited::new(&theirs)?, Inherited::new(other)?);
        let mut command = match path {
            Path::Loopback => sys::this_program(),
            Path::Veth { .. } => netns::this_program_in_namespace()?,
        };
        command.args(["__side", side, &std::process::id().to_string()]);
        command.args(cores.map(|core| core.to_string()));
        command.args([orders.number().to_string(), other.number().to_string()]);
        if path.is_veth() {
            command.arg("--veth");
        }
        if let Some(fault) = sabotage.and_then(|fault| fault.to_possible_value()) {
            command.args(["--sabotage", fault.get_name()]);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start a process to measure with")?;
        ours.set_nonblocking(true)?;
        Ok(One { child, stream: ours, received: Vec::new() })
    }

    /// Returns the next reply, if all of it has arrived.
    fn next_answer(&mut self) -> Result<Option<Reply>> {
        let mut bytes = [0; 4096];
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => {
                    let how = self.child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
                    bail!("a process of the measurement ended: {how}");
                }
                Ok(n) => self.received.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// A signal ended the measurement.
#[derive(Debug)]
pub struct Interrupted(pub i32);

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "interrupted by signal {}; nothing was left behind", self.0)
    }
}

impl std::error::Error for Interrupted {}
