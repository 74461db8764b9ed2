//! Opening: the interface, the memory, the program, the socket; and a sentence for each way in which it can fail.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::bind::{Memory, bind, bind_queues, divide, options, refused, share};
use super::config::{Mode, XdpConfig};
use super::headers::Framing;
use super::neighbour::{self, GROUPS, Link};
use super::program::{self, DROPS, Machine, Steering};
use super::retry::{PAUSE, RetryLimits};
use super::shared::{self, Alone, Attached, Terms};
use crate::sys::bpf::{self, Addressee, CounterMap, QueueMap, WordMap};
use crate::sys::netlink::Netlink;
use crate::sys::{Errno, Layout, Queues, Umem, caps, request};
use crate::udp;

/// Why AF_XDP cannot be used, in words for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// Privileges are missing; their names.
    Privileges(Vec<&'static str>),
    /// The same, because this process gave them up.
    PrivilegesDropped,
    /// They are there, and do not count; why.
    PrivilegesIneffective(String),
    /// Another program is attached to the interface: its number, and what is known about it.
    Occupied {
        /// The interface.
        interface: String,
        /// The program's number.
        program: u32,
        /// Its name and whose it is, as far as that can be found out.
        owner: String,
    },
    /// The address belongs to no interface that could be used.
    Interface(String),
    /// The memory could not be had, or not be pinned.
    Memory(String),
    /// Every queue is taken.
    Queues(String),
    /// No mode works; what was tried, and what the system said.
    Modes(Vec<(Mode, String)>),
    /// The system refused something that it must give.
    System(String),
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unavailable::Privileges(missing) => {
                let list = missing.join(",");
                write!(
                    f,
                    "this process lacks {list}; to grant: sudo setcap cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock=ep PROGRAM (the last one only lets memory be pinned beyond RLIMIT_MEMLOCK)"
                )
            }
            Unavailable::PrivilegesDropped => f.write_str(
                "this process gave up its privileges when it had opened the interface, as it was told to, and cannot open it again",
            ),
            Unavailable::Occupied { interface, program, owner } => {
                write!(
                    f,
                    "another XDP program is attached to {interface}: number {program}, {owner}; to use the interface, end what holds the program, or if nothing does: ip link set dev {interface} xdp off"
                )
            }
            Unavailable::Interface(why)
            | Unavailable::Memory(why)
            | Unavailable::Queues(why)
            | Unavailable::PrivilegesIneffective(why)
            | Unavailable::System(why) => f.write_str(why),
            Unavailable::Modes(tried) => {
                f.write_str("no mode works here:")?;
                tried.iter().try_for_each(|(mode, why)| write!(f, " {}: {why};", mode.name()))
            }
        }
    }
}

impl std::error::Error for Unavailable {}

impl Unavailable {
    /// With the processes that are in the way. Not from the start: they are searched for among all that there are.
    pub(super) fn with_holders(self) -> Unavailable {
        match self {
            Unavailable::Occupied { interface, program, owner } => {
                let holders = holders(program);
                let held = if holders.is_empty() {
                    owner
                } else {
                    format!("{owner}; held by {}", holders.join(", "))
                };
                Unavailable::Occupied { interface, program, owner: held }
            }
            other => other,
        }
    }

    /// As a process is told that had what it lacks, and gave it up.
    pub(super) fn after_giving_up(self, gave_up: bool) -> Unavailable {
        match self {
            Unavailable::Privileges(_) if gave_up => Unavailable::PrivilegesDropped,
            other => other,
        }
    }

    /// Whether no other mode can help.
    fn is_final(&self) -> bool {
        matches!(
            self,
            Unavailable::Occupied { .. }
                | Unavailable::Queues(_)
                | Unavailable::Memory(_)
                | Unavailable::Privileges(_)
                | Unavailable::PrivilegesDropped
                | Unavailable::PrivilegesIneffective(_)
        )
    }
}

impl From<Unavailable> for io::Error {
    fn from(refusal: Unavailable) -> io::Error {
        let kind = match refusal {
            Unavailable::Privileges(_)
            | Unavailable::PrivilegesDropped
            | Unavailable::PrivilegesIneffective(_) => io::ErrorKind::PermissionDenied,
            Unavailable::Occupied { .. } | Unavailable::Queues(_) => io::ErrorKind::ResourceBusy,
            _ => io::ErrorKind::Unsupported,
        };
        io::Error::new(kind, refusal)
    }
}

/// The interface that an address is on, and the one below it that frames really come by.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The interface with the address: what routes lead to.
    pub upper: Link,
    /// The interface that the program is attached to; the same unless the other is a VLAN on it.
    pub lower: Link,
    pub driver: String,
}

/// Where an address is.
pub(super) fn find(
    netlink: &mut Netlink,
    local: SocketAddr,
    vlan: Option<u16>,
) -> Result<Place, Unavailable> {
    let ip = local.ip();
    let refuse = |why: String| Err(Unavailable::Interface(why));
    if ip.is_unspecified() {
        return refuse(
            "bound to no particular address: name the address of the interface that shall be used".into(),
        );
    }
    if ip.is_loopback() {
        return refuse("loopback carries no frames that AF_XDP could take".into());
    }
    let failed = |e: io::Error| Unavailable::System(format!("the kernel's tables cannot be read: {e}"));
    let mut at = neighbour::interfaces_of(netlink, ip).map_err(failed)?;
    at.retain(|index| neighbour::scope(local).is_none_or(|scope| scope == *index));
    let Some(&index) = at.first() else {
        let there =
            neighbour::scope(local).map_or(String::new(), |scope| format!(" at the interface {scope}"));
        return refuse(format!("no interface has the address {ip}{there}"));
    };
    let upper = neighbour::link(netlink, index).map_err(failed)?;
    let mut upper = upper;
    let mut lower = match (upper.vlan, upper.below) {
        (Some(_), Some(below)) => neighbour::link(netlink, below).map_err(failed)?,
        _ => upper.clone(),
    };
    if lower.mac == [0; 6] {
        return refuse(format!("{} is no Ethernet interface", lower.name));
    }
    upper.vlan = vlan.or(upper.vlan);
    let driver = neighbour::driver(&lower);
    // There may be room for more queues than are in use.
    lower.queues = lower.queues.min(neighbour::queues(&lower));
    Ok(Place { upper, lower, driver })
}

/// What came of opening.
pub(super) struct Opened {
    pub attached: Attached,
    pub queues: Queues,
    pub memory: Memory,
    /// The queues' numbers.
    pub numbers: Vec<u32>,
    pub passed_over: PassedOver,
}

/// The modes to be tried, best first. On veth generic mode is the faster one, and there a frame that another end of a pair sent names no queue: all of
/// them count as of the first, so that of several ranks which divide the queues only one would hear by its ring. Native mode knows the sender's queue.
fn order(config: &XdpConfig, place: &Place) -> &'static [Mode] {
    match config.mode {
        Mode::Auto if place.driver == "veth" && is_divided(config, place) => &[Mode::Native, Mode::Generic],
        Mode::Auto if place.driver == "veth" => &[Mode::Generic, Mode::Native],
        Mode::Auto => &[Mode::ZeroCopy, Mode::Native, Mode::Generic],
        Mode::ZeroCopy => &[Mode::ZeroCopy],
        Mode::Native => &[Mode::Native],
        Mode::Generic => &[Mode::Generic],
    }
}

/// Whether several ranks have a part of the queues each.
pub(super) fn is_divided(config: &XdpConfig, place: &Place) -> bool {
    config.sharers > 1 && place.lower.queues > 1
}

/// Modes that were tried in vain, and why.
type PassedOver = Vec<(Mode, String)>;

/// Attaches the program in the best mode in which `then` works, too.
fn in_best_mode<T>(
    what: (&XdpConfig, &Place, SocketAddr),
    limits: RetryLimits,
    mut then: impl FnMut(&mut Attached) -> Result<T, Unavailable>,
) -> Result<(Attached, T, PassedOver), Unavailable> {
    let mut passed_over = Vec::new();
    for &mode in order(what.0, what.1) {
        let tried = attach(what, mode, limits)
            .and_then(|mut attached| then(&mut attached).map(|bound| (attached, bound)));
        match tried {
            Ok((attached, bound)) => return Ok((attached, bound, passed_over)),
            Err(refusal) if refusal.is_final() => return Err(refusal),
            Err(refusal) => passed_over.push((mode, refusal.to_string())),
        }
    }
    Err(Unavailable::Modes(passed_over))
}

/// Attaches the program and binds sockets, in the best mode that works.
pub(super) fn open(
    config: &XdpConfig,
    place: &Place,
    local: SocketAddr,
    payload: usize,
) -> Result<Opened, Unavailable> {
    let (attached, (queues, memory, numbers), passed_over) =
        in_best_mode((config, place, local), RetryLimits::LONG, |attached| {
            let bound = bind(config, place, attached, payload)?;
            work_for(attached, place, local.port(), &bound.0, &bound.2)?;
            Ok(bound)
        })?;
    Ok(Opened { attached, queues, memory, numbers, passed_over })
}

/// Does the same once more on an interface that has come back, with memory that is there.
pub(super) fn reopen(
    config: &XdpConfig,
    place: &Place,
    local: SocketAddr,
    (umem, layout, each): (&Arc<Umem>, Layout, u32),
    limits: RetryLimits,
) -> Result<(Attached, Queues, Vec<u32>), Unavailable> {
    let (attached, (queues, numbers), _) = in_best_mode((config, place, local), limits, |attached| {
        let options = options(config, place, attached.terms.mode, layout, each);
        let share = share(config, place.lower.queues).min(layout.chunks as u32 / each);
        let (queues, numbers) = bind_queues(config, place, options, umem, (share, attached.joined), limits)
            .map_err(|e| refused(place, (umem.len(), umem.len()), e))?;
        work_for(attached, place, local.port(), &queues, &numbers)?;
        Ok((queues, numbers))
    })?;
    Ok((attached, queues, numbers))
}

/// Makes the program send frames for our port to our sockets, and lets others ask for a part in it.
fn work_for(
    attached: &mut Attached,
    place: &Place,
    port: u16,
    queues: &Queues,
    numbers: &[u32],
) -> Result<(), Unavailable> {
    let mac = place.upper.mac;
    for (&number, socket) in numbers.iter().zip(queues.fds()) {
        attached.ports.set_addressee(number, Addressee { mac, port }).map_err(|e| system("the port", e))?;
        attached.sockets.set_socket(number, socket).map_err(|e| system("the socket", e))?;
    }
    attached.open_door(place.lower.index, numbers[0]);
    Ok(())
}

pub(super) fn system(what: &str, errno: Errno) -> Unavailable {
    Unavailable::System(format!("the system refused {what}: {errno}"))
}

/// Whether this process may do all this, by its privileges, and they count.
pub(super) fn allowed() -> Result<(), Unavailable> {
    let missing = caps::missing();
    if !missing.is_empty() {
        return Err(Unavailable::Privileges(missing));
    }
    match QueueMap::ports(1) {
        Err(Errno::PERM) if caps::is_enclosed() => Err(Unavailable::PrivilegesIneffective(
            "the privileges of this process do not count in this user namespace: maps of bpf can only be made outside of all; start it there, as root or with setcap".into(),
        )),
        Err(Errno::PERM) => Err(Unavailable::PrivilegesIneffective(
            "this process has the privileges, and the system refuses a map of bpf all the same: a policy forbids it (seccomp, lockdown, before Linux 5.11 RLIMIT_MEMLOCK)".into(),
        )),
        _ => Ok(()),
    }
}

fn attach(
    (config, place, local): (&XdpConfig, &Place, SocketAddr),
    mode: Mode,
    limits: RetryLimits,
) -> Result<Attached, Unavailable> {
    allowed()?;
    let terms = Terms {
        mode,
        ip: local.ip(),
        vlan: place.upper.vlan,
        any_shape: config.any_shape,
        raw: config.framing == Framing::Raw,
        queues: place.lower.queues,
    };
    let sockets = QueueMap::sockets(terms.queues).map_err(|e| system("a map of sockets", e))?;
    let ports = QueueMap::ports(terms.queues).map_err(|e| system("a map of ports", e))?;
    let drops = CounterMap::new(DROPS * terms.queues).map_err(|e| system("a map of counters", e))?;
    let program = load((config, place, local), &terms, (&sockets, &ports, &drops))?;
    let flags = flags_of(mode);
    let (mut refused, mut asks) = (Errno::BUSY, limits.asks);
    for _ in 0..limits.waits {
        match bpf::attach(program.as_fd(), place.lower.index, flags) {
            Ok(link) => {
                let link = Some(link);
                return Ok(Attached { link, sockets, ports, drops, terms, joined: false, door: None });
            }
            Err(errno @ (Errno::BUSY | Errno::EXIST)) => refused = errno,
            Err(errno) => return Err(system("to attach the steering program", errno)),
        }
        let waits = (limits.answer, limits.answers);
        match shared::join(place.lower.index, Terms { mode: config.mode, ..terms }, waits) {
            Ok(attached) => return Ok(attached),
            Err(Alone::Unfit(why)) => return Err(occupied(place, refused, Some(&why))),
            Err(Alone::Silent) => {
                asks -= 1;
                if asks == 0 {
                    return Err(occupied(place, refused, Some("it does not answer")));
                }
            }
            Err(Alone::Nobody) => {}
        }
        // Somebody else's program stays; ours may be on its way out, or gone by now.
        if occupant(place).is_some_and(|(_, info)| !info.is_ok_and(|info| info.name == PROGRAM)) {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    Err(occupied(place, refused, None))
}

fn flags_of(mode: Mode) -> u32 {
    if mode == Mode::Generic { bpf::XDP_GENERIC } else { bpf::XDP_DRIVER }
}

/// Makes the program, with these maps.
fn load(
    (config, place, local): (&XdpConfig, &Place, SocketAddr),
    terms: &Terms,
    (sockets, ports, drops): (&QueueMap, &QueueMap, &CounterMap),
) -> Result<OwnedFd, Unavailable> {
    let mode = terms.mode;
    let steering = Steering {
        ip: terms.ip,
        vlan: terms.vlan,
        any_shape: terms.any_shape,
        pass_unfinished: mode == Mode::Generic,
        raw: terms.raw,
        sockets: sockets.raw(),
        ports: ports.raw(),
        drops: drops.raw(),
    };
    let code = program::steering(&steering, Machine::Kernel);
    bpf::load(bpf::PROG_XDP, &code, parts(config, place, mode, local), PROGRAM)
        .map_err(|refused| unloaded("the steering program", &refused))
}

/// A program was refused: what the system said, and what the verifier, if it was that.
fn unloaded(what: &str, (errno, said): &(Errno, String)) -> Unavailable {
    let said = if said.is_empty() { String::new() } else { format!(" ({said})") };
    Unavailable::System(format!("the system refused {what}: {errno}{said}"))
}

/// Attaches the program again, which somebody has detached. The maps are the same, and so all sockets are in them; of several processes one attaches it,
/// and gives the others a part.
pub(super) fn again(
    (config, place, local): (&XdpConfig, &Place, SocketAddr),
    attached: &Attached,
) -> Result<OwnedFd, Unavailable> {
    allowed()?;
    let maps = (&attached.sockets, &attached.ports, &attached.drops);
    let program = load((config, place, local), &attached.terms, maps)?;
    match bpf::attach(program.as_fd(), place.lower.index, flags_of(attached.terms.mode)) {
        Ok(link) => Ok(link),
        Err(errno @ (Errno::BUSY | Errno::EXIST)) => {
            let waits = (RetryLimits::SHORT.answer, RetryLimits::SHORT.answers);
            match shared::join(place.lower.index, attached.terms, waits) {
                // Whoever has not noticed yet gives what it had.
                Ok(Attached { link: Some(link), .. }) if bpf::is_attached(link.as_fd()) => Ok(link),
                Err(Alone::Unfit(why)) => Err(occupied(place, errno, Some(&why))),
                _ => Err(occupied(place, errno, None)),
            }
        }
        Err(errno) => Err(system("to attach the steering program", errno)),
    }
}

/// Whether the program says that it knows frames in several parts. Behind the driver the kernel then makes each frame anew before the program sees it, where it would only make room in
/// front of it; so the program says so only if there are such frames. In the driver it costs nothing, and without it the MTU could not grow.
fn parts(config: &XdpConfig, place: &Place, mode: Mode, local: SocketAddr) -> u32 {
    let payload = config.udp.slot_payload.unwrap_or_else(|| udp::slot_payload(local.ip()));
    let layout = divide(payload, place.lower.mtu, config.udp.tx_slots, config.rx_chunks);
    if mode == Mode::Generic && !Memory::is_split(layout, place.lower.mtu) { 0 } else { bpf::F_HAS_FRAGS }
}

/// The program's name in the kernel's tables.
const PROGRAM: &str = "tautline";

/// The program that is attached, and what the kernel tells about it.
fn occupant(place: &Place) -> Option<(u32, Result<bpf::ProgramInfo, Errno>)> {
    let now = Netlink::open(0).ok().and_then(|mut n| neighbour::link(&mut n, place.lower.index).ok())?;
    let program = *now.programs.first()?;
    Some((program, bpf::program_info(program)))
}

/// Who was there first.
fn occupied(place: &Place, errno: Errno, unshared: Option<&str>) -> Unavailable {
    let Some((program, info)) = occupant(place) else {
        return system("to attach the steering program", errno);
    };
    let name = owner(info);
    let owner = match unshared {
        Some(why) => format!("{name}; it cannot be shared: {why}"),
        None => name,
    };
    Unavailable::Occupied { interface: place.lower.name.clone(), program, owner }
}

/// What is known of a program that is attached to an interface, by number: that it may be shared, or why the interface cannot be used.
pub(super) fn occupant_of(interface: &str, program: u32) -> Result<String, String> {
    let info = bpf::program_info(program);
    let ours = matches!(&info, Ok(info) if info.name == PROGRAM && info.uid == request::user());
    let refusal =
        Unavailable::Occupied { interface: interface.to_owned(), program, owner: owner(info) }.with_holders();
    match &refusal {
        Unavailable::Occupied { owner, .. } if ours => Ok(format!(
            "an XDP program is attached, which processes of this user share if they agree on address, framing and mode and a queue is free: number {program}, {owner}"
        )),
        _ => Err(refusal.to_string()),
    }
}

/// Whose a program is, as far as the kernel tells.
fn owner(info: Result<bpf::ProgramInfo, Errno>) -> String {
    match info {
        Ok(info) => format!("\"{}\" of user {}", info.name, info.uid),
        Err(errno) => format!("its name is not told to us ({errno})"),
    }
}

/// Processes looked at in search of a program's owner, and descriptors of each.
const LOOK_AT: usize = 4_096;

/// Processes that hold a program, or a link with it: as far as we may look into them.
fn holders(program: u32) -> Vec<String> {
    let line = format!("prog_id:\t{program}");
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers = processes.flatten().filter(|p| p.file_name().to_string_lossy().parse::<u32>().is_ok());
    numbers
        .take(LOOK_AT)
        .filter(|process| {
            let descriptors =
                std::fs::read_dir(process.path().join("fdinfo")).into_iter().flatten().flatten();
            descriptors.take(LOOK_AT).any(|descriptor| {
                std::fs::read_to_string(descriptor.path())
                    .is_ok_and(|text| text.lines().any(|l| l.trim_end() == line))
            })
        })
        .map(|process| {
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            format!("process {} ({})", process.file_name().to_string_lossy(), name.trim())
        })
        .collect()
}

/// Words that tell of mail: for the socket that owns the port, and of news from the kernel's tables.
pub(super) const MAIL_UDP: usize = 0;
pub(super) const MAIL_NEWS: usize = 1;

/// Makes the socket and the tables tell of what arrives for them by a word in memory.
pub(super) fn watch(udp: BorrowedFd<'_>, news: &Netlink) -> Result<WordMap, Unavailable> {
    let words = WordMap::new(2).map_err(|e| system("a map of words", e))?;
    watch_socket(&words, MAIL_UDP, udp)?;
    watch_socket(&words, MAIL_NEWS, news.fd())?;
    Ok(words)
}

/// Makes one more tell by that word.
pub(super) fn watch_socket(words: &WordMap, word: usize, socket: BorrowedFd<'_>) -> Result<(), Unavailable> {
    let code = program::mail(words.raw(), word as u32);
    let filter = bpf::load(bpf::PROG_SOCKET_FILTER, &code, 0, "tautline_mail")
        .map_err(|refused| unloaded("a filter", &refused))?;
    bpf::attach_filter(filter.as_fd(), socket).map_err(|e| system("to attach a filter", e))
}

/// A socket that hears what changes in the kernel's tables, and one to ask.
pub(super) fn tables() -> Result<(Netlink, Netlink), Unavailable> {
    let failed = |e| system("to tell what changes", e);
    Ok((Netlink::open(GROUPS).map_err(failed)?, Netlink::open(0).map_err(failed)?))
}
