//! One program for several processes of one user: who comes later gets the maps, and a part in the link, from whoever is there (D-15).
//!
//! Every process that uses the program has a door, where doors of shared memory are, named after network namespace, interface and its first queue; any of them lets others in.
//! The link is gone when the last of them is.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::config::Mode;
use crate::shm;
use crate::sys::Errno;
use crate::sys::bpf::{Addressee, CounterMap, QueueMap};
use crate::sys::request::{self, RequestSocket};

/// What the program was made for: what all who share it must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub mode: Mode,
    pub ip: IpAddr,
    pub vlan: Option<u16>,
    pub any_shape: bool,
    pub raw: bool,
    /// Queues that the maps have room for.
    pub queues: u32,
}

/// The program on its interface, and its maps. Dropping it, or dying, takes the program away, unless another process shares it: the kernel
/// sees to that.
#[derive(Debug)]
pub(super) struct Attached {
    /// Part in the link; none once it was let go of.
    pub link: Option<OwnedFd>,
    pub sockets: QueueMap,
    pub ports: QueueMap,
    pub drops: CounterMap,
    pub terms: Terms,
    /// Another process was here first.
    pub joined: bool,
    /// Where others ask, or why there is no such place; neither yet, or no more.
    pub door: Option<Result<RequestSocket, String>>,
}

/// What a question says: the layout of maps and terms belongs to this number.
const QUESTION: &[u8] = b"tautline-xdp 2";
/// Bytes of an answer.
const ANSWER: usize = 28;
/// Questions answered at a time.
const AT_A_TIME: usize = 16;

/// The door of whoever has that queue. Nobody else can put one there: the folder is this user's alone.
fn listener_path(interface: u32, queue: u32) -> io::Result<PathBuf> {
    let place = shm::discovery_dir();
    shm::prepare_dir(&place)?;
    Ok(place.join(format!("xdp-{}-{interface}-{queue}", request::network()?)))
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

    /// Why a process that wants `wanted` cannot share a program made for these.
    fn differs(self, wanted: Terms) -> Option<String> {
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

/// Why there is nothing to share.
pub(super) enum Alone {
    /// Nobody is there.
    Nobody,
    /// Somebody is, and does not answer.
    Silent,
    /// Somebody is, but.
    Unfit(String),
}

/// Asks those who may be there already for a part in their program. Each is waited for as long as `each` says, and all of them together as
/// long as `all` does.
pub(super) fn join(
    interface: u32,
    wanted: Terms,
    (each, all): (Duration, Duration),
) -> Result<Attached, Alone> {
    let until = Instant::now() + all;
    let mut bytes = [0; ANSWER + 1];
    let mut alone = Alone::Nobody;
    for queue in 0..wanted.queues {
        let wait = each.min(until.saturating_duration_since(Instant::now()));
        let asked =
            listener_path(interface, queue).and_then(|door| request::ask(&door, QUESTION, &mut bytes, wait));
        let answer = match asked {
            Ok(answer) => answer,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) =>
            {
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(Alone::Unfit(error.to_string()));
            }
            Err(_) => {
                alone = Alone::Silent;
                continue;
            }
        };
        if answer.uid != request::user() {
            continue;
        }
        let Some(terms) = Terms::read(&bytes[..answer.len]) else { continue };
        if let Some(why) = terms.differs(wanted) {
            return Err(Alone::Unfit(why));
        }
        let Ok([link, sockets, ports, drops]) = <[OwnedFd; 4]>::try_from(answer.fds) else { continue };
        return Ok(Attached {
            link: Some(link),
            sockets: QueueMap::of(sockets),
            ports: QueueMap::of(ports),
            drops: CounterMap::of(drops),
            terms,
            joined: true,
            door: None,
        });
    }
    Err(alone)
}

impl Attached {
    /// Lets others ask from now on.
    pub(super) fn open_door(&mut self, interface: u32, queue: u32) {
        let opened = listener_path(interface, queue).and_then(|door| {
            shm::unlink_stale_listeners_if_due(&shm::discovery_dir());
            RequestSocket::open(&door)
        });
        self.door = Some(opened.map_err(|error| error.to_string()));
    }

    /// Lets go of the link, and closes the door. The link survives a journey of its interface through other namespaces, where sockets do not:
    /// held on to, our own program would take our frames, and our own door would be asked for a part in it.
    pub(super) fn let_go(&mut self) {
        (self.link, self.door) = (None, None);
    }

    pub(super) fn door(&self) -> Option<BorrowedFd<'_>> {
        self.door.as_ref()?.as_ref().ok().map(RequestSocket::fd)
    }

    /// Tells the program that frames for us are addressed otherwise.
    pub(super) fn readdress(&self, numbers: &[u32], to: Addressee) -> Result<(), Errno> {
        numbers.iter().try_for_each(|number| self.ports.set_addressee(*number, to))
    }

    /// Why others cannot ask.
    pub(super) fn no_door(&self) -> Option<&str> {
        self.door.as_ref()?.as_ref().err().map(String::as_str)
    }

    /// Lets in whoever asks and is of this user.
    pub(super) fn answer(&self) {
        let (Some(door), Some(link)) = (self.door(), &self.link) else { return };
        let mut bytes = [0; QUESTION.len() + 1];
        for _ in 0..AT_A_TIME {
            match request::receive(door, &mut bytes) {
                Ok(None) => return,
                Ok(Some(asked)) if asked.uid == request::user() && &bytes[..asked.len] == QUESTION => {
                    if let Some(to) = asked.fds.first() {
                        let fds = [link.as_fd(), self.sockets.fd(), self.ports.fd(), self.drops.fd()];
                        // Whoever asked may be gone.
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
    fn terms_are_read_as_they_were_written() {
        for (ip, vlan) in [("10.1.2.3", None), ("fd00::7", Some(0)), ("10.0.0.1", Some(4_095))] {
            for mode in [Mode::ZeroCopy, Mode::Native, Mode::Generic] {
                for (any_shape, raw) in [(false, false), (true, false), (false, true)] {
                    let terms = Terms { mode, ip: ip.parse().unwrap(), vlan, any_shape, raw, queues: 63 };
                    assert_eq!(Terms::read(&terms.write()), Some(terms));
                }
            }
        }
        let mut bytes = [0; ANSWER];
        assert!(Terms::read(&bytes[1..]).is_none(), "cut short");
        bytes[0] = 4;
        assert!(Terms::read(&bytes).is_none(), "a mode that there is not");
    }

    #[test]
    fn who_wants_something_else_is_told_what() {
        let here = Terms {
            mode: Mode::Generic,
            ip: "10.1.2.3".parse().unwrap(),
            vlan: None,
            any_shape: false,
            raw: false,
            queues: 4,
        };
        assert_eq!(here.differs(here), None);
        assert_eq!(here.differs(Terms { mode: Mode::Auto, ..here }), None);
        let why = |wanted: Terms| here.differs(wanted).unwrap();
        assert!(why(Terms { mode: Mode::Native, ..here }).contains("generic"));
        assert!(why(Terms { ip: "10.1.2.4".parse().unwrap(), ..here }).contains("10.1.2.3"));
        assert!(why(Terms { vlan: Some(5), ..here }).contains("framing"));
        assert!(why(Terms { raw: true, ..here }).contains("framing"));
    }
}
