//! The socket on which a running job is asked for further ranks (J-22). Only its user can reach it. Launchers
//! have one, and agents, which pass on what they are asked.

use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use rustix::event::epoll;
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

/// Where an agent is asked, by its process number.
pub fn agent_path(agent: u32) -> PathBuf {
    discovery_dir().join(format!("agent-{agent}"))
}

/// The jobs of this user on this host that can be joined, by their launchers' process numbers. Sockets that
/// killed launchers and agents left are unlinked.
pub fn running_jobs() -> Vec<u32> {
    let mut jobs = Vec::new();
    for entry in std::fs::read_dir(discovery_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some((of, number)) = name.to_str().and_then(|name| name.split_once('-')) else { continue };
        let (Ok(number), true) = (number.parse::<u32>(), ["job", "agent"].contains(&of)) else { continue };
        match UnixStream::connect(entry.path()) {
            Ok(_) if of == "job" => jobs.push(number),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let _ = std::fs::remove_file(entry.path());
            }
            _ => {}
        }
    }
    jobs.sort_unstable();
    jobs
}

/// The side that is asked.
pub struct Control {
    listener: UnixListener,
    /// An epoll of the listener and the clients.
    watch: OwnedFd,
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
        let opened = Control::bind(socket_path(launcher));
        if let Err(error) = &opened {
            report!("tautline: nobody can join this job: {error}");
        }
        opened.ok()
    }

    /// Opens the socket of an agent.
    pub fn open_for_agent() -> io::Result<Control> {
        Control::bind(agent_path(std::process::id()))
    }

    fn bind(path: PathBuf) -> io::Result<Control> {
        prepare_dir(&discovery_dir())?;
        running_jobs();
        // It gets its name when it accepts connections, so that no process takes it for that of a killed one.
        // If this process is killed before, ranks that sweep the directory unlink the temporary name.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = discovery_dir().join(format!(".{}.{name}", std::process::id()));
        // Of a former process with this number, if it is there.
        let _ = std::fs::remove_file(&temporary);
        let (listener, watch) =
            (UnixListener::bind(&temporary)?, epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let mut control = Control { listener, watch, path: temporary, clients: Vec::new(), next_id: 0 };
        epoll::add(&control.watch, &control.listener, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        std::fs::set_permissions(&control.path, std::fs::Permissions::from_mode(0o600))?;
        control.listener.set_nonblocking(true)?;
        std::fs::rename(&control.path, &path)?;
        control.path = path;
        Ok(control)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor to poll: readable if there is something for [`Control::poll`] to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Accepts connections and reads from them. Returns the ranks whose connections are gone.
    pub fn poll(&mut self) -> Vec<Range<usize>> {
        while let Ok((stream, _)) = self.listener.accept() {
            let same_user = socket_peercred(&stream).is_ok_and(|peer| peer.uid == rustix::process::geteuid());
            let watched = || {
                let event = epoll::EventData::new_u64(0);
                epoll::add(&self.watch, &stream, event, epoll::EventFlags::IN).is_ok()
            };
            let taken = same_user && self.clients.len() < CLIENTS_MAX;
            if taken && stream.set_nonblocking(true).is_ok() && watched() {
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

    /// Says which ranks were started, or why none was. False if nobody waits for the answer any more.
    pub fn answer(&mut self, id: u64, answer: Result<Range<usize>>) -> bool {
        let Some(client) = self.clients.iter_mut().find(|client| client.id == id) else { return false };
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
        true
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
