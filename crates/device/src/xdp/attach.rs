//! Opening: the interface, the memory, the program, the socket; and a sentence for each way in which it can fail.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::config::{Mode, XdpConfig};
use super::headers::Framing;
use super::neighbour::{self, GROUPS, Link};
use super::program::{self, DROPS, Machine, Steering};
use crate::sys::bpf::{self, CounterMap, SocketMap, WordMap};
use crate::sys::netlink::Netlink;
use crate::sys::{Chunk, Errno, Layout, Umem, Xsk, XskOptions, caps};
use crate::{Arena, HEADROOM};

/// Why AF_XDP cannot be used, in words for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Privileges are missing; their names.
    Privileges(Vec<&'static str>),
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
    /// No mode works; what was tried, and what the system said.
    Modes(Vec<(Mode, String)>),
    /// The system refused something that it must give.
    System(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Privileges(missing) => {
                let list = missing.join(",");
                write!(
                    f,
                    "this process lacks {list}; to grant: sudo setcap cap_net_raw,cap_net_admin,cap_bpf=ep PROGRAM"
                )
            }
            Refusal::Occupied { interface, program, owner } => {
                write!(f, "another XDP program is attached to {interface}: number {program}, {owner}")
            }
            Refusal::Interface(why) | Refusal::Memory(why) | Refusal::System(why) => f.write_str(why),
            Refusal::Modes(tried) => {
                f.write_str("no mode works here:")?;
                tried.iter().try_for_each(|(mode, why)| write!(f, " {}: {why};", mode.name()))
            }
        }
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> io::Error {
        let kind = match refusal {
            Refusal::Privileges(_) => io::ErrorKind::PermissionDenied,
            Refusal::Occupied { .. } => io::ErrorKind::ResourceBusy,
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
pub(super) fn find(netlink: &mut Netlink, ip: IpAddr, vlan: Option<u16>) -> Result<Place, Refusal> {
    let refuse = |why: String| Err(Refusal::Interface(why));
    if ip.is_unspecified() {
        return refuse(
            "bound to no particular address: name the address of the interface that shall be used".into(),
        );
    }
    if ip.is_loopback() {
        return refuse("loopback carries no frames that AF_XDP could take".into());
    }
    let failed = |e: io::Error| Refusal::System(format!("the kernel's tables cannot be read: {e}"));
    let Some(index) = neighbour::interface_of(netlink, ip).map_err(failed)? else {
        return refuse(format!("no interface has the address {ip}"));
    };
    let upper = neighbour::link(netlink, index).map_err(failed)?;
    let mut upper = upper;
    let lower = match (upper.vlan, upper.below) {
        (Some(_), Some(below)) => neighbour::link(netlink, below).map_err(failed)?,
        _ => upper.clone(),
    };
    if lower.mac == [0; 6] {
        return refuse(format!("{} is no Ethernet interface", lower.name));
    }
    upper.vlan = vlan.or(upper.vlan);
    let driver = neighbour::driver(&lower);
    Ok(Place { upper, lower, driver })
}

/// Memory, and how it is divided.
pub(super) struct Memory {
    pub layout: Layout,
    pub umem: Arc<Umem>,
    pub arena: Arena,
    pub copies: Arena,
    pub chunks: Vec<Chunk>,
}

/// Chunks of half a page, if whole frames fit: what the kernel keeps free in front of a received frame.
const RX_HEADROOM: usize = 256;
/// Ethernet and a tag.
const ETHERNET_MAX: usize = 18;
/// Slots for copies.
const COPIES: usize = 64;
/// Fewer chunks than this are of no use.
const CHUNKS_MIN: u32 = 128;

pub(super) fn divide(payload: usize, mtu: usize, slots: usize, chunks: u32) -> Layout {
    let (slot, frame) = (HEADROOM + payload, RX_HEADROOM + ETHERNET_MAX + mtu);
    let chunk = if slot.max(frame) <= 2_048 { 2_048 } else { 4_096 };
    Layout { chunk, slot_chunks: slot.div_ceil(chunk), slots, copies: COPIES, chunks: chunks as usize }
}

impl Memory {
    pub(super) fn new(layout: Layout, payload: usize) -> Result<Memory, Refusal> {
        let failed = |e| Refusal::Memory(format!("{} bytes of memory cannot be had: {e}", layout.len()));
        let (umem, [arena, copies], chunks) = Umem::new(layout, payload).map_err(failed)?;
        Ok(Memory { layout, umem, arena, copies, chunks })
    }

    /// Whether a received frame may need several chunks.
    pub(super) fn is_split(layout: Layout, mtu: usize) -> bool {
        RX_HEADROOM + ETHERNET_MAX + mtu > layout.chunk || layout.slot_chunks > 1
    }
}

/// The program on its interface. Dropping it, or dying, takes the program away: the kernel sees to that.
#[derive(Debug)]
pub(super) struct Attached {
    _link: OwnedFd,
    pub sockets: SocketMap,
    pub drops: CounterMap,
}

/// What came of opening.
pub(super) struct Opened {
    pub attached: Attached,
    pub xsk: Xsk,
    pub memory: Memory,
    pub queue: u32,
    pub mode: Mode,
    /// Modes that were tried before, and why they failed.
    pub passed_over: Vec<(Mode, String)>,
}

/// The modes to be tried, best first.
fn order(mode: Mode, driver: &str) -> &'static [Mode] {
    match mode {
        Mode::Auto if driver == "veth" => &[Mode::Generic, Mode::Native],
        Mode::Auto => &[Mode::ZeroCopy, Mode::Native, Mode::Generic],
        Mode::ZeroCopy => &[Mode::ZeroCopy],
        Mode::Native => &[Mode::Native],
        Mode::Generic => &[Mode::Generic],
    }
}

/// Attaches the program and binds a socket, in the best mode that works.
pub(super) fn open(
    config: &XdpConfig,
    place: &Place,
    local: SocketAddr,
    payload: usize,
) -> Result<Opened, Refusal> {
    let missing = caps::missing();
    if !missing.is_empty() {
        return Err(Refusal::Privileges(missing));
    }
    let mut passed_over = Vec::new();
    for &mode in order(config.mode, &place.driver) {
        let tried = attach(config, place, local, mode).and_then(|attached| {
            let (xsk, memory, queue) = bind(config, place, mode, payload)?;
            attached.sockets.set(queue, xsk.fd()).map_err(|e| system("the socket", e))?;
            Ok((attached, xsk, memory, queue))
        });
        match tried {
            Ok((attached, xsk, memory, queue)) => {
                return Ok(Opened { attached, xsk, memory, queue, mode, passed_over });
            }
            Err(refusal @ (Refusal::Occupied { .. } | Refusal::Memory(_) | Refusal::Privileges(_))) => {
                return Err(refusal);
            }
            Err(refusal) => passed_over.push((mode, refusal.to_string())),
        }
    }
    Err(Refusal::Modes(passed_over))
}

fn system(what: &str, errno: Errno) -> Refusal {
    Refusal::System(format!("the system refused {what}: {errno}"))
}

/// A former device lets go of its queue a moment after it was closed, and of its program when children that it was just starting have
/// closed what they inherited; so often and so long is waited for that.
const BUSY_WAITS: u32 = 100;
const BUSY_WAIT: Duration = Duration::from_millis(2);

fn attach(config: &XdpConfig, place: &Place, local: SocketAddr, mode: Mode) -> Result<Attached, Refusal> {
    let sockets = SocketMap::new(place.lower.queues).map_err(|e| system("a map of sockets", e))?;
    let drops = CounterMap::new(DROPS).map_err(|e| system("a map of counters", e))?;
    let steering = Steering {
        ip: local.ip(),
        port: local.port(),
        vlan: place.upper.vlan,
        any_shape: config.any_shape,
        pass_unfinished: mode == Mode::Generic,
        raw: config.framing == Framing::Raw,
        sockets: sockets.raw(),
        drops: drops.raw(),
    };
    let code = program::steering(&steering, Machine::Kernel);
    let program = bpf::load(bpf::PROG_XDP, &code, bpf::F_HAS_FRAGS, PROGRAM).map_err(|(errno, said)| {
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason given");
        Refusal::System(format!("the system refused the steering program: {errno} ({last})"))
    })?;
    let flags = if mode == Mode::Generic { bpf::XDP_GENERIC } else { bpf::XDP_DRIVER };
    let mut refused = Errno::BUSY;
    for _ in 0..BUSY_WAITS {
        match bpf::attach(program.as_fd(), place.lower.index, flags) {
            Ok(link) => return Ok(Attached { _link: link, sockets, drops }),
            Err(errno @ (Errno::BUSY | Errno::EXIST)) => refused = errno,
            Err(errno) => return Err(system("to attach the steering program", errno)),
        }
        // Somebody else's program stays; ours may be on its way out, or gone by now.
        if occupant(place).is_some_and(|(_, info)| !info.is_ok_and(|info| info.name == PROGRAM)) {
            break;
        }
        std::thread::sleep(BUSY_WAIT);
    }
    Err(occupied(place, refused))
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
fn occupied(place: &Place, errno: Errno) -> Refusal {
    let Some((program, info)) = occupant(place) else {
        return system("to attach the steering program", errno);
    };
    let name = match info {
        Ok(info) => format!("\"{}\" of user {}", info.name, info.uid),
        Err(errno) => format!("its name is not told to us ({errno})"),
    };
    let holders = holders(program);
    let owner = if holders.is_empty() { name } else { format!("{name}, held by {}", holders.join(", ")) };
    Refusal::Occupied { interface: place.lower.name.clone(), program, owner }
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

/// Binds a socket to the first queue that is free, with as much memory as may be pinned.
fn bind(
    config: &XdpConfig,
    place: &Place,
    mode: Mode,
    payload: usize,
) -> Result<(Xsk, Memory, u32), Refusal> {
    let mtu = place.lower.mtu;
    let mut chunks = config.rx_chunks;
    loop {
        let layout = divide(payload, mtu, config.udp.tx_slots, chunks);
        let memory = Memory::new(layout, payload)?;
        let options = XskOptions {
            ifindex: place.lower.index,
            queue: 0,
            zero_copy: mode == Mode::ZeroCopy,
            multi_buffer: Memory::is_split(layout, mtu),
            rx: chunks,
            tx: config.tx_ring,
        };
        match bind_queue(config, place, options, &memory) {
            Ok((xsk, queue)) => return Ok((xsk, memory, queue)),
            Err(Errno::NOBUFS | Errno::NOMEM | Errno::PERM) if chunks > CHUNKS_MIN => chunks /= 2,
            Err(errno @ (Errno::NOBUFS | Errno::NOMEM | Errno::PERM)) => {
                return Err(Refusal::Memory(format!(
                    "{} bytes cannot be pinned ({errno}): RLIMIT_MEMLOCK is too small; ulimit -l shows it, limits.conf or CAP_IPC_LOCK raises it",
                    layout.len()
                )));
            }
            Err(Errno::BUSY) => {
                return Err(Refusal::System(format!("every queue of {} is taken", place.lower.name)));
            }
            Err(errno) => return Err(system(&format!("a socket in {} mode", mode.name()), errno)),
        }
    }
}

fn bind_queue(
    config: &XdpConfig,
    place: &Place,
    options: XskOptions,
    memory: &Memory,
) -> Result<(Xsk, u32), Errno> {
    for _ in 0..BUSY_WAITS {
        for queue in config.queue..place.lower.queues.max(config.queue + 1) {
            match Xsk::open(&memory.umem, XskOptions { queue, ..options }) {
                Ok(xsk) => return Ok((xsk, queue)),
                Err(Errno::BUSY) => {}
                // Interfaces may have room for more queues than they use.
                Err(Errno::INVAL) if queue > config.queue => break,
                Err(errno) => return Err(errno),
            }
        }
        std::thread::sleep(BUSY_WAIT);
    }
    Err(Errno::BUSY)
}

/// Words that tell of mail: for the socket that owns the port, and of news from the kernel's tables.
pub(super) const MAIL_UDP: usize = 0;
pub(super) const MAIL_NEWS: usize = 1;

/// Makes sockets tell of what arrives for them by a word in memory.
pub(super) fn watch(udp: std::os::fd::BorrowedFd<'_>, news: &Netlink) -> Result<WordMap, Refusal> {
    let words = WordMap::new(2).map_err(|e| system("a map of words", e))?;
    for (word, socket) in [(MAIL_UDP, udp), (MAIL_NEWS, news.fd())] {
        let code = program::mail(words.raw(), word as u32);
        let filter =
            bpf::load(bpf::PROG_SOCKET_FILTER, &code, 0, "tautline_mail").map_err(|(errno, said)| {
                Refusal::System(format!("the system refused a filter: {errno} {said}"))
            })?;
        bpf::attach_filter(filter.as_fd(), socket).map_err(|e| system("to attach a filter", e))?;
    }
    Ok(words)
}

/// A socket that hears what changes in the kernel's tables, and one to ask.
pub(super) fn tables() -> Result<(Netlink, Netlink), Refusal> {
    let failed = |e| system("to tell what changes", e);
    Ok((Netlink::open(GROUPS).map_err(failed)?, Netlink::open(0).map_err(failed)?))
}
