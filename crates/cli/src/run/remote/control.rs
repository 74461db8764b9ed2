//! The control connection between the launcher and an agent, over the standard input and output of ssh.
//!
//! The agent first writes a line with its version. Then both sides write frames: the length in four bytes,
//! little-endian, the kind in one, and the body. Either side writes an empty frame of the kind `ALIVE` when
//! it has written nothing for a second; a side that has heard nothing for ten seconds gives the other up
//! (J-17).

use std::ffi::OsString;
use std::io::{self, BufRead, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::run::notices::Notice;

/// Begins the first line of an agent.
pub const GREETING: &str = "tautline-agent";
/// How often a side says that it is there.
pub const ALIVE_EVERY: Duration = Duration::from_secs(1);
/// For how long a side may say nothing.
pub const SILENCE: Duration = Duration::from_secs(10);

/// Longer than the list of members of the largest job.
const FRAME_MAX: usize = 16 << 20;
/// The largest piece of input or output in a frame.
pub const CHUNK: usize = 32 << 10;
/// Shell start-up files may print before the agent does.
const PREAMBLE_MAX: u64 = 64 << 10;

/// Variables of an environment.
pub type Variables = Vec<(OsString, OsString)>;

/// A process that the agent is to start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RankPlan {
    pub rank: usize,
    /// The program and its arguments.
    pub words: Vec<OsString>,
}

/// What the agent checks before anything is started, and keeps for the start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Prepare {
    pub ranks: Vec<RankPlan>,
    /// Processes of the whole job.
    pub size: usize,
    pub wdir: PathBuf,
    pub env: Variables,
    pub interface: Option<String>,
    /// Members on other hosts must reach this one.
    pub several_hosts: bool,
    pub bind: bool,
    pub grace: Duration,
    pub security: Option<String>,
    pub device: Option<String>,
    /// Processes may be started again: the agent stays until it is told that none will be.
    pub restarts: bool,
}

/// What the launcher tells the agents when all are prepared.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    /// In hexadecimal digits.
    pub key: String,
    /// Addresses and hosts, by rank.
    pub members: Vec<(Vec<SocketAddr>, u64)>,
    /// How many of them joined the running job.
    pub joined: u32,
}

/// Processes that are to join the running job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Add {
    /// The number of the request, which the answer repeats.
    pub request: u64,
    /// Their ranks.
    pub ranks: std::ops::Range<usize>,
    /// The program and its arguments.
    pub words: Vec<OsString>,
    pub dir: PathBuf,
    /// Variables beside those of the job.
    pub env: Variables,
}

/// What the launcher says.
#[derive(Debug)]
pub enum ToAgent {
    Alive,
    Prepare(Box<Prepare>),
    Start(Start),
    /// Standard input for rank 0; an empty piece is its end. The next piece follows when this one was taken.
    Input(Vec<u8>),
    /// Send this signal to all processes.
    Signal(i32),
    /// Tell all processes but itself what has become of a rank.
    Notice(u32, Notice),
    /// Start this rank again.
    Restart(u32),
    /// No process of this host will be started again.
    NoRestart,
    /// Prepare the start of processes that join the job.
    Add(Box<Add>),
    /// A process joins the job, the next one, at these addresses and on this host: tell all others.
    Joined(Vec<SocketAddr>, u64),
    /// Start what was prepared for the request of this number, or forget it.
    StartAdded(u64, bool),
    /// Send a signal to one process.
    SignalRank(u32, i32),
    /// The answer to a request: the first rank and how many there are, or why there are none.
    Answer(u64, Result<(usize, usize), String>),
}

/// Where output came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    Out,
    Err,
}

/// What an agent says.
#[derive(Debug)]
pub enum FromAgent {
    Alive,
    /// The sockets of the processes are bound to these addresses, on the host of this number.
    Prepared {
        addrs: Vec<Vec<SocketAddr>>,
        host: u64,
    },
    /// Something is wrong on this host; nothing was started.
    Refused(String),
    Output {
        rank: u32,
        stream: Stream,
        bytes: Vec<u8>,
    },
    InputTaken,
    /// A process has ended, with this status of `wait`.
    Exited {
        rank: u32,
        status: i32,
    },
    /// No process is left but these.
    Done {
        left: Vec<i32>,
    },
    /// What the request of this number asks for can be started, at these addresses.
    Added {
        request: u64,
        addrs: Vec<Vec<SocketAddr>>,
        host: u64,
    },
    /// It cannot.
    NotAdded(u64, String),
    /// A process of this host has asked for further ranks: the number of the request, and the request.
    Asked(u64, Vec<u8>),
    /// A process has ended, and all that it has started, or they have closed their output.
    OutputEnded(u32),
}

/// A message that is written to the connection.
pub trait Message: Sized {
    /// Its kind and body.
    fn encode(&self) -> (u8, Vec<u8>);
    /// Reads a message of this kind; none if it makes no sense.
    fn decode(kind: u8, body: Vec<u8>) -> Option<Self>;
}

const ALIVE: u8 = 0;

impl Message for ToAgent {
    fn encode(&self) -> (u8, Vec<u8>) {
        match self {
            ToAgent::Alive => (ALIVE, Vec::new()),
            ToAgent::Prepare(prepare) => (1, json(prepare)),
            ToAgent::Start(start) => (2, json(start)),
            ToAgent::Input(bytes) => (3, bytes.clone()),
            ToAgent::Signal(signal) => (4, signal.to_le_bytes().to_vec()),
            ToAgent::Notice(rank, notice) => (5, [&rank.to_le_bytes()[..], &[*notice as u8]].concat()),
            ToAgent::Restart(rank) => (6, rank.to_le_bytes().to_vec()),
            ToAgent::NoRestart => (7, Vec::new()),
            ToAgent::Add(add) => (8, json(add)),
            ToAgent::Joined(addrs, host) => (9, json(&(addrs, host))),
            ToAgent::StartAdded(request, start) => (10, json(&(request, start))),
            ToAgent::SignalRank(rank, signal) => (11, json(&(rank, signal))),
            ToAgent::Answer(id, answer) => (12, json(&(id, answer))),
        }
    }

    fn decode(kind: u8, body: Vec<u8>) -> Option<ToAgent> {
        Some(match kind {
            ALIVE => ToAgent::Alive,
            1 => ToAgent::Prepare(serde_json::from_slice(&body).ok()?),
            2 => ToAgent::Start(serde_json::from_slice(&body).ok()?),
            3 => ToAgent::Input(body),
            4 => ToAgent::Signal(i32::from_le_bytes(body.try_into().ok()?)),
            5 => {
                let (rank, notice) = body.split_first_chunk()?;
                let notice = Notice::ALL.get(usize::from(*notice.first()?))?;
                ToAgent::Notice(u32::from_le_bytes(*rank), *notice)
            }
            6 => ToAgent::Restart(u32::from_le_bytes(body.try_into().ok()?)),
            7 => ToAgent::NoRestart,
            8 => ToAgent::Add(serde_json::from_slice(&body).ok()?),
            9 => {
                let (addrs, host) = serde_json::from_slice(&body).ok()?;
                ToAgent::Joined(addrs, host)
            }
            10 => {
                let (request, start) = serde_json::from_slice(&body).ok()?;
                ToAgent::StartAdded(request, start)
            }
            11 => {
                let (rank, signal) = serde_json::from_slice(&body).ok()?;
                ToAgent::SignalRank(rank, signal)
            }
            12 => {
                let (id, answer) = serde_json::from_slice(&body).ok()?;
                ToAgent::Answer(id, answer)
            }
            _ => return None,
        })
    }
}

impl Message for FromAgent {
    fn encode(&self) -> (u8, Vec<u8>) {
        match self {
            FromAgent::Alive => (ALIVE, Vec::new()),
            FromAgent::Prepared { addrs, host } => (1, json(&(addrs, host))),
            FromAgent::Refused(why) => (2, why.clone().into_bytes()),
            FromAgent::Output { rank, stream, bytes } => {
                let kind = if *stream == Stream::Out { 3 } else { 4 };
                (kind, [&rank.to_le_bytes()[..], bytes].concat())
            }
            FromAgent::InputTaken => (5, Vec::new()),
            FromAgent::Exited { rank, status } => (6, json(&(rank, status))),
            FromAgent::Done { left } => (7, json(left)),
            FromAgent::Added { request, addrs, host } => (8, json(&(request, addrs, host))),
            FromAgent::NotAdded(request, why) => (9, json(&(request, why))),
            FromAgent::Asked(id, request) => (10, [&id.to_le_bytes()[..], request].concat()),
            FromAgent::OutputEnded(rank) => (11, rank.to_le_bytes().to_vec()),
        }
    }

    fn decode(kind: u8, mut body: Vec<u8>) -> Option<FromAgent> {
        Some(match kind {
            ALIVE => FromAgent::Alive,
            1 => {
                let (addrs, host) = serde_json::from_slice(&body).ok()?;
                FromAgent::Prepared { addrs, host }
            }
            2 => FromAgent::Refused(String::from_utf8_lossy(&body).into_owned()),
            3 | 4 => {
                let rank = u32::from_le_bytes(*body.first_chunk()?);
                body.drain(..4);
                let stream = if kind == 3 { Stream::Out } else { Stream::Err };
                FromAgent::Output { rank, stream, bytes: body }
            }
            5 => FromAgent::InputTaken,
            6 => {
                let (rank, status) = serde_json::from_slice(&body).ok()?;
                FromAgent::Exited { rank, status }
            }
            7 => FromAgent::Done { left: serde_json::from_slice(&body).ok()? },
            8 => {
                let (request, addrs, host) = serde_json::from_slice(&body).ok()?;
                FromAgent::Added { request, addrs, host }
            }
            9 => {
                let (request, why) = serde_json::from_slice(&body).ok()?;
                FromAgent::NotAdded(request, why)
            }
            10 => {
                let id = u64::from_le_bytes(*body.first_chunk()?);
                body.drain(..8);
                FromAgent::Asked(id, body)
            }
            11 => FromAgent::OutputEnded(u32::from_le_bytes(body.try_into().ok()?)),
            _ => return None,
        })
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("numbers, texts and lists have a form in JSON")
}

/// Writes a message.
pub fn write(to: &mut impl Write, message: &impl Message) -> io::Result<()> {
    let (kind, body) = message.encode();
    let mut frame = Vec::with_capacity(5 + body.len());
    frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
    frame.push(kind);
    frame.extend_from_slice(&body);
    to.write_all(&frame)?;
    to.flush()
}

/// Reads a message; none at the end of the connection.
pub fn read<M: Message>(from: &mut impl Read) -> io::Result<Option<M>> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut head = [0; 5];
    match from.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let len = u32::from_le_bytes(*head.first_chunk().expect("five bytes")) as usize;
    if len > FRAME_MAX {
        return Err(invalid("a frame of the control connection is too long"));
    }
    let mut body = Vec::new();
    from.take(len as u64).read_to_end(&mut body)?;
    if body.len() < len {
        return Ok(None);
    }
    M::decode(head[4], body)
        .map(Some)
        .ok_or_else(|| invalid("a frame of the control connection makes no sense"))
}

/// The first line of an agent of this build.
pub fn greeting() -> String {
    format!("{GREETING} {}", env!("CARGO_PKG_VERSION"))
}

/// Reads up to the line with which an agent begins, and returns the line; none if the connection ends before.
pub fn read_greeting(from: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut preamble = from.take(PREAMBLE_MAX);
    let mut line = Vec::new();
    loop {
        line.clear();
        if preamble.read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&line);
        if let Some(at) = text.find(GREETING) {
            return Ok(Some(text[at..].trim_end().to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_back_as_written() {
        let mut bytes = Vec::new();
        let sent = [
            FromAgent::Prepared {
                addrs: vec![["10.0.0.1:7000", "10.1.0.1:7000"].map(|addr| addr.parse().unwrap()).to_vec()],
                host: u64::MAX,
            },
            FromAgent::Output { rank: 7, stream: Stream::Err, bytes: vec![0, 255] },
            FromAgent::Exited { rank: 1, status: -1 },
            FromAgent::Done { left: vec![3] },
            FromAgent::Added { request: 3, addrs: vec![vec!["[::1]:7".parse().unwrap()]], host: 9 },
            FromAgent::NotAdded(u64::MAX, "why".into()),
            FromAgent::Asked(7, vec![0, 1]),
            FromAgent::OutputEnded(u32::MAX),
            FromAgent::Alive,
        ];
        sent.iter().for_each(|message| write(&mut bytes, message).unwrap());
        let mut from = &bytes[..];
        for message in &sent {
            let read: FromAgent = read(&mut from).unwrap().unwrap();
            assert_eq!(format!("{read:?}"), format!("{message:?}"));
        }
        assert!(read::<FromAgent>(&mut from).unwrap().is_none());
        let words = vec!["a".into(), "b".into()];
        let add =
            Add { request: 7, ranks: 3..5, words, dir: "/".into(), env: vec![("A".into(), "1".into())] };
        for order in [
            ToAgent::Add(Box::new(add)),
            ToAgent::Joined(vec!["10.0.0.1:7000".parse().unwrap()], 1),
            ToAgent::StartAdded(7, true),
            ToAgent::StartAdded(u64::MAX, false),
            ToAgent::SignalRank(7, 15),
            ToAgent::Answer(1, Ok((2, 3))),
            ToAgent::Answer(1, Err("why".into())),
        ] {
            let mut bytes = Vec::new();
            write(&mut bytes, &order).unwrap();
            let read: ToAgent = read(&mut &bytes[..]).unwrap().unwrap();
            assert_eq!(format!("{read:?}"), format!("{order:?}"));
        }
        for notice in Notice::ALL {
            let mut bytes = Vec::new();
            write(&mut bytes, &ToAgent::Notice(7, notice)).unwrap();
            let read: ToAgent = read(&mut &bytes[..]).unwrap().unwrap();
            assert!(matches!(read, ToAgent::Notice(7, same) if same == notice), "{read:?}");
        }
        assert!(read::<FromAgent>(&mut &bytes[..bytes.len() - 2]).unwrap().is_some());
    }

    #[test]
    fn nonsense_is_an_error() {
        for bytes in
            [&[255, 255, 255, 255, 0][..], &[0, 0, 0, 0, 99], &[1, 0, 0, 0, 1, b'x'], &[2, 0, 0, 0, 3, 1, 2]]
        {
            assert!(read::<FromAgent>(&mut { bytes }).is_err(), "{bytes:?}");
            assert!(read::<ToAgent>(&mut { bytes }).is_err() || bytes[4] == 3, "{bytes:?}");
        }
        assert!(read::<ToAgent>(&mut &[5, 0, 0, 0, 5, 1, 0, 0, 0, 9][..]).is_err(), "no such notice");
        assert!(read::<ToAgent>(&mut &[9, 0, 0, 0, 3, 1][..]).unwrap().is_none(), "cut off");
    }

    #[test]
    fn greetings_are_found_after_other_output() {
        let mut from = &b"welcome\n\xff\ntautline-agent 1.2\nrest"[..];
        assert_eq!(read_greeting(&mut from).unwrap().as_deref(), Some("tautline-agent 1.2"));
        assert_eq!(from, b"rest");
        assert_eq!(read_greeting(&mut &b"bash: tautline: not found\n"[..]).unwrap(), None);
    }
}
