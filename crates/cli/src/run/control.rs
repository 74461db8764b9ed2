//! The socket on which a running job is asked for further ranks (J-22). Only its user can reach it.

use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tautline::node::device::shm::{discovery_dir, prepare_dir};
use tautline_launch::control::{MAX_REQUEST, Request};

/// Connections that have not ended; further ones are closed.
const CLIENTS_MAX: usize = 64;

/// Where the job of a launcher is asked, by the launcher's process number.
pub fn socket_path(launcher: u32) -> PathBuf {
    discovery_dir().join(format!("job-{launcher}"))
}

/// The jobs of this user on this host that can be joined, by their launchers' process numbers. Sockets that
/// killed launchers left are unlinked.
pub fn running_jobs() -> Vec<u32> {
    let mut jobs: Vec<u32> = std::fs::read_dir(discovery_dir())
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("job-")?.parse().ok())
        .filter(|job| match UnixStream::connect(socket_path(*job)) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let _ = std::fs::remove_file(socket_path(*job));
                false
            }
            connected => connected.is_ok(),
        })
        .collect();
    jobs.sort_unstable();
    jobs
}

/// The launcher's side.
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
    clients: Vec<Client>,
    next_id: u64,
}

struct Client {
    id: u64,
    stream: UnixStream,
    bytes: Vec<u8>,
    streams: Vec<OwnedFd>,
    state: State,
}

enum State {
    /// The request has not arrived whole.
    Asking,
    /// It is being carried out.
    Asked { attached: bool },
    /// These ranks end with the connection, and their ends are told.
    Attached { ranks: Range<usize>, left: usize },
    /// The connection is over.
    Over,
}

impl Control {
    /// Opens the socket, under the number that the launcher has for users. Without one the job runs, and
    /// cannot be joined; that is reported.
    pub fn open(launcher: u32) -> Option<Control> {
        let opened = Control::bind(launcher);
        if let Err(error) = &opened {
            report!("tautline: nobody can join this job: {error}");
        }
        opened.ok()
    }

    fn bind(launcher: u32) -> io::Result<Control> {
        prepare_dir(&discovery_dir())?;
        running_jobs();
        // It gets its name when it accepts connections, so that no process takes it for that of a killed one.
        // If this process is killed before, ranks that sweep the directory unlink the temporary name.
        let temporary = discovery_dir().join(format!(".{}.job-{launcher}", std::process::id()));
        // Of a former process with this number, if it is there.
        let _ = std::fs::remove_file(&temporary);
        let listener = UnixListener::bind(&temporary)?;
        let mut control = Control { listener, path: temporary, clients: Vec::new(), next_id: 0 };
        std::fs::set_permissions(&control.path, std::fs::Permissions::from_mode(0o600))?;
        control.listener.set_nonblocking(true)?;
        let path = socket_path(launcher);
        std::fs::rename(&control.path, &path)?;
        control.path = path;
        Ok(control)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptors to poll.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.listener.as_fd()).chain(self.clients.iter().map(|client| client.stream.as_fd()))
    }

    /// Accepts connections and reads from them. Returns the ranks whose connections are gone.
    pub fn poll(&mut self) -> Vec<Range<usize>> {
        while let Ok((stream, _)) = self.listener.accept() {
            let same_user = socket_peercred(&stream).is_ok_and(|peer| peer.uid == rustix::process::geteuid());
            if same_user && self.clients.len() < CLIENTS_MAX && stream.set_nonblocking(true).is_ok() {
                let (id, bytes, streams) = (self.next_id, Vec::new(), Vec::new());
                self.clients.push(Client { id, stream, bytes, streams, state: State::Asking });
                self.next_id += 1;
            }
        }
        let gone = self.clients.iter_mut().filter_map(Client::poll).collect();
        self.clients.retain(|client| !matches!(client.state, State::Over));
        gone
    }

    /// The next request that has arrived whole, with its number, and where the output is to go.
    pub fn next_request(&mut self) -> Option<(u64, Result<Request>, Option<[OwnedFd; 2]>)> {
        let is_whole = |client: &&mut Client| {
            matches!(client.state, State::Asking)
                && Request::length(&client.bytes).is_some_and(|length| client.bytes.len() >= length)
        };
        let client = self.clients.iter_mut().find(is_whole)?;
        let request = Request::decode(&client.bytes).map_err(|why| anyhow!(why));
        client.state = State::Asked { attached: request.as_ref().is_ok_and(|request| request.attached) };
        client.bytes = Vec::new();
        let streams = std::mem::take(&mut client.streams).try_into().ok();
        Some((client.id, request, streams))
    }

    /// Says which ranks were started, or why none was.
    pub fn answer(&mut self, id: u64, answer: Result<Range<usize>>) {
        let Some(client) = self.clients.iter_mut().find(|client| client.id == id) else { return };
        let attached = matches!(client.state, State::Asked { attached: true });
        match answer {
            Ok(ranks) => {
                client.say(&format!("ranks {} {}\n", ranks.start, ranks.len()));
                let left = ranks.len();
                client.state = if attached { State::Attached { ranks, left } } else { State::Over };
            }
            Err(error) => {
                let why = format!("{error:#}").replace('\n', "; ");
                client.say(&format!("error {why}\n"));
                client.state = State::Over;
            }
        }
        self.clients.retain(|client| !matches!(client.state, State::Over));
    }

    /// Tells who asked for a rank that it has ended (J-24).
    pub fn rank_ended(&mut self, rank: usize, code: u8) {
        for client in &mut self.clients {
            if let State::Attached { ranks, left } = &mut client.state
                && ranks.contains(&rank)
            {
                *left -= 1;
                let over = *left == 0;
                client.say(&format!("ended {rank} {code}\n"));
                if over {
                    client.state = State::Over;
                }
            }
        }
        self.clients.retain(|client| !matches!(client.state, State::Over));
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Client {
    /// Reads what there is. Returns the ranks of this connection if it is gone.
    fn poll(&mut self) -> Option<Range<usize>> {
        loop {
            match self.receive() {
                Ok(0) => break,
                Ok(_) if self.is_too_long() => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => break,
            }
        }
        match std::mem::replace(&mut self.state, State::Over) {
            State::Attached { ranks, .. } => Some(ranks),
            // A client that has sent its request may have closed its side already.
            State::Asking if Request::length(&self.bytes) == Some(self.bytes.len()) => {
                self.state = State::Asking;
                None
            }
            _ => None,
        }
    }

    fn is_too_long(&self) -> bool {
        let whole = Request::length(&self.bytes).unwrap_or(0);
        whole > MAX_REQUEST || whole > 0 && self.bytes.len() > whole || self.streams.len() > 2
    }

    fn receive(&mut self) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 16 << 10];
        let into = &mut [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(&self.stream, into, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.streams.extend(fds);
            }
        }
        self.bytes.extend_from_slice(&bytes[..received]);
        Ok(received)
    }

    /// A client that does not read loses the answer: the launcher waits for nobody.
    fn say(&mut self, line: &str) {
        let _ = self.stream.write_all(line.as_bytes());
    }
}
