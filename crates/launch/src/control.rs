//! Asking a running launcher to start further processes of its job (J-22): the request and the answers, on a
//! socket that only the job's user can reach.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tautline_node::Rank;

/// What is to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// How many processes.
    pub count: u32,
    /// They end when the connection does, and their ends are told on it.
    pub attached: bool,
    /// The directory that they run in.
    pub dir: PathBuf,
    /// The hosts that they run on, as `tautline run --hosts` names them; empty if the launcher may choose.
    pub hosts: String,
    /// The program as it was named: a path, or a name that each host finds in its PATH.
    pub program: OsString,
    /// Its file on the host of who asks, if it is there.
    pub file: Option<PathBuf>,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables that were given for it, which it has on every host.
    pub given: Vec<(OsString, OsString)>,
    /// The environment of who asks, which it has on the same host.
    pub env: Vec<(OsString, OsString)>,
}

const HEADER: &str = concat!("tautline-control 1 ", env!("CARGO_PKG_VERSION"));
/// The longest request: what the kernel takes as arguments and environment of a program.
pub const MAX_REQUEST: usize = 6 << 20;

impl Request {
    /// A request of this process: its directory, and its environment without what concerns its own job.
    pub fn from_here(count: u32, program: OsString, arguments: Vec<OsString>) -> io::Result<Request> {
        let own = |name: &OsStr| name == crate::JOB_FD || name == crate::JOB_FILE;
        let env = std::env::vars_os().filter(|(name, _)| !own(name)).collect();
        let (dir, hosts) = (std::env::current_dir()?, String::new());
        let (attached, file, given) = (false, None, Vec::new());
        Ok(Request { count, attached, dir, hosts, program, file, arguments, given, env })
    }

    /// The bytes to send: their number, then fields that end with a zero.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        let mut field = |text: &[u8]| {
            bytes.extend_from_slice(text);
            bytes.push(0);
        };
        field(HEADER.as_bytes());
        field(self.count.to_string().as_bytes());
        field(if self.attached { b"attached" } else { b"detached" });
        field(self.dir.as_os_str().as_bytes());
        field(self.hosts.as_bytes());
        field(self.program.as_bytes());
        field(self.file.as_deref().unwrap_or(Path::new("")).as_os_str().as_bytes());
        field(self.arguments.len().to_string().as_bytes());
        self.arguments.iter().for_each(|argument| field(argument.as_bytes()));
        field(self.given.len().to_string().as_bytes());
        for (name, value) in self.given.iter().chain(&self.env) {
            field(&[name.as_bytes(), b"=", value.as_bytes()].concat());
        }
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// How many bytes a request has whose beginning this is; nothing if it cannot be told yet.
    pub fn length(bytes: &[u8]) -> Option<usize> {
        let length = u32::from_le_bytes(bytes.get(..4)?.try_into().expect("four bytes"));
        Some(4 + length as usize)
    }

    /// Reads what `encode` wrote, or says what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Request, String> {
        let cut = || "the request is not complete".to_owned();
        let whole = Some(bytes).filter(|bytes| Request::length(bytes) == Some(bytes.len()));
        let body = whole
            .and_then(|bytes| bytes.get(4..))
            .and_then(|body| body.strip_suffix(&[0]))
            .ok_or_else(cut)?;
        let mut fields = body.split(|byte| *byte == 0);
        let header = fields.next().unwrap_or_default();
        if header != HEADER.as_bytes() {
            let theirs = String::from_utf8_lossy(header).chars().take(60).collect::<String>();
            return Err(format!(
                "the launcher has \"{HEADER}\", and was asked by \"{theirs}\"; use one version"
            ));
        }
        let mut next = || fields.next().ok_or_else(cut);
        let number = |text: &[u8]| std::str::from_utf8(text).ok().and_then(|text| text.parse::<u32>().ok());
        let count = number(next()?).ok_or_else(cut)?;
        let attached = next()? == b"attached";
        let dir = PathBuf::from(OsString::from_vec(next()?.to_vec()));
        let hosts = String::from_utf8(next()?.to_vec()).map_err(|_| cut())?;
        let program = OsString::from_vec(next()?.to_vec());
        let file = Some(next()?).filter(|file| !file.is_empty());
        let file = file.map(|file| PathBuf::from(OsString::from_vec(file.to_vec())));
        let arguments = number(next()?).ok_or_else(cut)?;
        let arguments = (0..arguments).map(|_| Ok(OsString::from_vec(next()?.to_vec())));
        let arguments = arguments.collect::<Result<Vec<_>, String>>()?;
        let given = number(next()?).ok_or_else(cut)? as usize;
        let variable = |field: &[u8]| {
            let at = field.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
            let (name, value) = (field[..at].to_vec(), field[at + 1..].to_vec());
            Some((OsString::from_vec(name), OsString::from_vec(value)))
        };
        let mut given_and_env: Vec<_> = fields.filter_map(variable).collect();
        let env = given_and_env.split_off(given.min(given_and_env.len()));
        let given = given_and_env;
        Ok(Request { count, attached, dir, hosts, program, file, arguments, given, env })
    }
}

/// A launcher that has started what it was asked to.
#[derive(Debug)]
pub struct Started {
    /// The ranks of the processes.
    pub ranks: Range<Rank>,
    lines: BufReader<UnixStream>,
}

/// Why nothing was started.
#[derive(Debug)]
pub enum ControlError {
    /// There is no such launcher, or its job has ended.
    Gone(io::Error),
    /// It refused, for this reason.
    Refused(String),
}

impl std::fmt::Display for ControlError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ControlError::Gone(error) => write!(f, "the launcher of the job cannot be asked: {error}"),
            ControlError::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ControlError {}

/// Asks the launcher at `path`. The processes write to these descriptors, for output and errors, or to where
/// those of the job do.
pub fn ask(
    path: &Path,
    request: &Request,
    streams: Option<[BorrowedFd<'_>; 2]>,
) -> Result<Started, ControlError> {
    let gone = ControlError::Gone;
    let stream = UnixStream::connect(path).map_err(gone)?;
    let bytes = request.encode();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(streams) = &streams {
        control.push(SendAncillaryMessage::ScmRights(streams));
    }
    let first = [IoSlice::new(&bytes)];
    let sent = sendmsg(stream.as_fd(), &first, &mut control, SendFlags::NOSIGNAL);
    let sent = sent.map_err(|error| gone(error.into()))?;
    io::Write::write_all(&mut &stream, &bytes[sent..]).map_err(gone)?;
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    lines.read_line(&mut line).map_err(gone)?;
    match line.trim_end().split_once(' ') {
        Some(("ranks", range)) => {
            let numbers = range.split_once(' ').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
            let (start, count): (Rank, u32) =
                numbers.ok_or_else(|| gone(io::ErrorKind::InvalidData.into()))?;
            Ok(Started { ranks: start..start + count, lines })
        }
        Some(("error", why)) => Err(ControlError::Refused(why.replace("; ", "\n"))),
        _ => Err(gone(io::ErrorKind::UnexpectedEof.into())),
    }
}

impl Started {
    /// Waits for the end of one of the processes: its rank and exit code; nothing if the launcher has ended.
    pub fn next_end(&mut self) -> Option<(Rank, u8)> {
        let mut line = String::new();
        self.lines.read_line(&mut line).ok()?;
        let (rank, code) = line.trim_end().strip_prefix("ended ")?.split_once(' ')?;
        Some((rank.parse().ok()?, code.parse().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// J-22: a request reads back as written, and anything else is an error.
    #[test]
    fn requests_round_trip() {
        let request = Request {
            count: 3,
            attached: true,
            dir: "/a b".into(),
            hosts: "a,b:2".into(),
            program: "prog".into(),
            file: Some("/bin/prog".into()),
            arguments: vec!["".into(), "x=y".into()],
            given: vec![("C".into(), "3".into())],
            env: vec![("A".into(), "1=2".into()), ("B".into(), "".into())],
        };
        let bytes = request.encode();
        assert_eq!(Request::length(&bytes), Some(bytes.len()));
        assert_eq!(Request::decode(&bytes), Ok(request));
        let other = [&19_u32.to_le_bytes()[..], b"tautline-control 9\0"].concat();
        assert!(Request::decode(&other).unwrap_err().contains("use one version"));
        assert!((0..bytes.len()).all(|length| Request::decode(&bytes[..length]).is_err()));
    }
}
