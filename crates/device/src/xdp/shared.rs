//! One program for several processes of one user: a process that comes later gets the maps, and a share of
//! the link, from one that is already there (D-15, D-29, D-30).
//!
//! Every process that uses the program has a request socket in the discovery directory, named after network
//! namespace, interface and its first queue; each of them answers requests. The kernel detaches the program
//! when the last one closes the link (D-19).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::config::Mode;
use crate::shm;
use crate::sys::Errno;
use crate::sys::bpf::{Addressee, CounterMap, QueueMap};
use crate::sys::request::{self, Received, RequestSocket};

/// What the program was made for: all processes that share it must agree on this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub mode: Mode,
    pub ip: IpAddr,
    pub vlan: Option<u16>,
    pub any_shape: bool,
    pub raw: bool,
    /// The number of queues that the maps have room for.
    pub queues: u32,
}

/// The program on its interface, and its maps. When it is dropped, or the process dies, the kernel detaches
/// the program, unless another process shares it.
#[derive(Debug)]
pub(super) struct Attached {
    /// Our share of the link; none once it was detached.
    pub link: Option<OwnedFd>,
    pub sockets: QueueMap,
    pub ports: QueueMap,
    pub drops: CounterMap,
    pub terms: Terms,
    /// The program was attached by another process.
    pub joined: bool,
    /// The socket for requests of other processes, or why it could not be opened; none before and after its
    /// use.
    pub requests: Option<Result<RequestSocket, String>>,
}

/// A request. The layout of maps and terms belongs to the number in it.
const REQUEST: &[u8] = b"tautline-xdp 3";
/// Bytes of an answer.
const ANSWER: usize = 28;
/// The most requests that are answered in one poll.
const REQUESTS_MAX: usize = 16;

/// Returns the path of the request socket of the process that has this queue. Only this user can create files
/// in the directory.
fn request_path(interface: u32, queue: u32) -> io::Result<PathBuf> {
    let dir = shm::discovery_dir();
    shm::prepare_dir(&dir)?;
    Ok(dir.join(format!("xdp-{}-{interface}-{queue}", request::network()?)))
}

impl Terms {
    fn write(self) -> [u8; ANSWER] {
        let mut bytes = [0; ANSWER];
        bytes[0] = match self.mode {
            Mode::Auto => 0,
            Mode::ZeroCopy => 1,
            Mode::Native => 2,
            Mode::Generic => 3,
        };
        bytes[1] = u8::from(self.ip.is_ipv6()) | u8::from(self.any_shape) << 1 | u8::from(self.raw) << 2;
        bytes[2..4].copy_from_slice(&self.vlan.map_or(0, |tag| tag + 1).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.queues.to_le_bytes());
        match self.ip {
            IpAddr::V4(ip) => bytes[8..12].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes[8..24].copy_from_slice(&ip.octets()),
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Terms> {
        let bytes: &[u8; ANSWER] = bytes.try_into().ok()?;
        let mode = [Mode::Auto, Mode::ZeroCopy, Mode::Native, Mode::Generic].get(bytes[0] as usize)?;
        let ip = if bytes[1] & 1 == 0 {
            IpAddr::V4(Ipv4Addr::from(*bytes[8..].first_chunk::<4>()?))
        } else {
            IpAddr::V6(Ipv6Addr::from(*bytes[8..].first_chunk::<16>()?))
        };
        Some(Terms {
            mode: *mode,
            ip,
            vlan: u16::from_le_bytes([bytes[2], bytes[3]]).checked_sub(1),
            any_shape: bytes[1] & 2 != 0,
            raw: bytes[1] & 4 != 0,
            queues: u32::from_le_bytes(*bytes[4..].first_chunk()?),
        })
    }

    /// Returns why a process that wants `wanted` cannot share a program made for these terms.
    fn conflict(self, wanted: Terms) -> Option<String> {
        let mode = wanted.mode;
        if mode != Mode::Auto && mode != self.mode {
            return Some(format!("it is in {} mode", self.mode.name()));
        }
        if wanted.ip != self.ip {
            return Some(format!("it is for {}", self.ip));
        }
        if wanted.vlan != self.vlan || wanted.raw != self.raw || wanted.any_shape != self.any_shape {
            return Some("it is for another framing".to_owned());
        }
        None
    }
}

/// Why no program could be shared.
pub(super) enum JoinError {
    /// No process listens.
    NoPeer,
    /// A process listens, but did not answer in time.
    NoAnswer,
    /// A process answered, but its program cannot be shared.
    Incompatible(String),
}

/// Requests a share from the processes that may have the program attached, waiting up to `each` for every
/// answer and up to `total` altogether.
pub(super) fn join(
    interface: u32,
    wanted: Terms,
    (each, total): (Duration, Duration),
) -> Result<Attached, JoinError> {
    let until = Instant::now() + total;
    let mut bytes = [0; ANSWER + 1];
    let mut result = JoinError::NoPeer;
    for queue in 0..wanted.queues {
        let Some(socket) = send_request(interface, queue, &mut result)? else { continue };
        let timeout = each.min(until.saturating_duration_since(Instant::now()));
        match request::await_answer(&socket, &mut bytes, timeout) {
            Ok(answer) => {
                if let Some(attached) = share_of(answer, &bytes, wanted)? {
                    return Ok(attached);
                }
            }
            Err(_) => result = JoinError::NoAnswer,
        }
    }
    Err(result)
}

/// Requests that were sent and may be answered until the next attempt: so nobody waits for an answer (D-4).
#[derive(Debug, Default)]
pub(super) struct PendingRequests(Vec<OwnedFd>);

impl PendingRequests {
    /// Takes a share that was granted since the last call; otherwise requests one anew.
    pub(super) fn poll(&mut self, interface: u32, wanted: Terms) -> Result<Attached, JoinError> {
        let mut bytes = [0; ANSWER + 1];
        for socket in std::mem::take(&mut self.0) {
            if let Ok(Some(answer)) = request::receive(socket.as_fd(), &mut bytes)
                && let Some(attached) = share_of(answer, &bytes, wanted)?
            {
                return Ok(attached);
            }
        }
        let mut result = JoinError::NoPeer;
        for queue in 0..wanted.queues {
            self.0.extend(send_request(interface, queue, &mut result)?);
        }
        Err(if self.0.is_empty() { result } else { JoinError::NoAnswer })
    }
}

/// Sends a request to the process that has a queue; none if there is no such process. A process that cannot
/// be asked now is noted in `result`.
fn send_request(interface: u32, queue: u32, result: &mut JoinError) -> Result<Option<OwnedFd>, JoinError> {
    match request_path(interface, queue).and_then(|path| request::request(&path, REQUEST)) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Ok(None),
            io::ErrorKind::PermissionDenied => Err(JoinError::Incompatible(error.to_string())),
            _ => {
                *result = JoinError::NoAnswer;
                Ok(None)
            }
        },
    }
}

/// The share that an answer grants; none if it is not from a process of this user, or malformed.
fn share_of(answer: Received, bytes: &[u8], wanted: Terms) -> Result<Option<Attached>, JoinError> {
    if answer.uid != request::user() {
        return Ok(None);
    }
    let Some(terms) = Terms::read(&bytes[..answer.len]) else { return Ok(None) };
    if let Some(why) = terms.conflict(wanted) {
        return Err(JoinError::Incompatible(why));
    }
    let Ok([link, sockets, ports, drops]) = <[OwnedFd; 4]>::try_from(answer.fds) else { return Ok(None) };
    Ok(Some(Attached {
        link: Some(link),
        sockets: QueueMap::of(sockets),
        ports: QueueMap::of(ports),
        drops: CounterMap::of(drops),
        terms,
        joined: true,
        requests: None,
    }))
}

impl Attached {
    /// Opens the socket for requests of other processes.
    pub(super) fn accept_requests(&mut self, interface: u32, queue: u32) {
        let opened = request_path(interface, queue).and_then(|path| {
            shm::unlink_stale_listeners_if_due(&shm::discovery_dir());
            RequestSocket::bind(&path)
        });
        self.requests = Some(opened.map_err(|error| error.to_string()));
    }

    /// Gives up the link and closes the request socket.
    ///
    /// A link survives while its interface is moved to another namespace and back, but the sockets do not:
    /// our own program would then take our frames, and our own request socket would be asked for a share.
    pub(super) fn detach(&mut self) {
        (self.link, self.requests) = (None, None);
    }

    pub(super) fn requests_fd(&self) -> Option<BorrowedFd<'_>> {
        self.requests.as_ref()?.as_ref().ok().map(RequestSocket::fd)
    }

    /// Tells the program the hardware address and port of frames for us.
    pub(super) fn set_addressee(&self, numbers: &[u32], to: Addressee) -> Result<(), Errno> {
        numbers.iter().try_for_each(|number| self.ports.set_addressee(*number, to))
    }

    /// Returns why no other process can share the program.
    pub(super) fn requests_error(&self) -> Option<&str> {
        self.requests.as_ref()?.as_ref().err().map(String::as_str)
    }

    /// Answers requests of processes of this user.
    pub(super) fn answer_requests(&self) {
        let (Some(socket), Some(link)) = (self.requests_fd(), &self.link) else { return };
        let mut bytes = [0; REQUEST.len() + 1];
        for _ in 0..REQUESTS_MAX {
            match request::receive(socket, &mut bytes) {
                Ok(None) => return,
                Ok(Some(asked)) if asked.uid == request::user() && &bytes[..asked.len] == REQUEST => {
                    if let Some(to) = asked.fds.first() {
                        let fds = [link.as_fd(), self.sockets.fd(), self.ports.fd(), self.drops.fd()];
                        // The requesting process may have exited.
                        let _ = request::send(to.as_fd(), &self.terms.write(), &fds);
                    }
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_round_trip() {
        for (ip, vlan) in [("10.1.2.3", None), ("fd00::7", Some(0)), ("10.0.0.1", Some(4_095))] {
            for mode in [Mode::ZeroCopy, Mode::Native, Mode::Generic] {
                for (any_shape, raw) in [(false, false), (true, false), (false, true)] {
                    let terms = Terms { mode, ip: ip.parse().unwrap(), vlan, any_shape, raw, queues: 63 };
                    assert_eq!(Terms::read(&terms.write()), Some(terms));
                }
            }
        }
        let mut bytes = [0; ANSWER];
        assert!(Terms::read(&bytes[1..]).is_none(), "truncated");
        bytes[0] = 4;
        assert!(Terms::read(&bytes).is_none(), "an unknown mode");
    }

    /// D-30: a program that cannot be shared is refused with what differs.
    #[test]
    fn conflicting_terms_are_named() {
        let here = Terms {
            mode: Mode::Generic,
            ip: "10.1.2.3".parse().unwrap(),
            vlan: None,
            any_shape: false,
            raw: false,
            queues: 4,
        };
        assert_eq!(here.conflict(here), None);
        assert_eq!(here.conflict(Terms { mode: Mode::Auto, ..here }), None);
        let why = |wanted: Terms| here.conflict(wanted).unwrap();
        assert!(why(Terms { mode: Mode::Native, ..here }).contains("generic"));
        assert!(why(Terms { ip: "10.1.2.4".parse().unwrap(), ..here }).contains("10.1.2.3"));
        assert!(why(Terms { vlan: Some(5), ..here }).contains("framing"));
        assert!(why(Terms { raw: true, ..here }).contains("framing"));
    }
}
