//! Opening: attaching the program to the interface and binding sockets, in the best mode that works.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::attach_point::AttachPoint;
use super::bind::{FrameMemory, bind, bind_queues, divide, no_socket, options, share};
use super::config::{Mode, XdpConfig};
use super::headers::Framing;
use super::neighbour;
use super::program::{self, DROP_CAUSES, Steering, Target};
use super::retry::{ANSWER_TIMEOUTS, RetryLimits, with_pauses};
use super::shared::{self, Attached, JoinError, PendingRequests, Terms};
use super::unavailable::{Unavailable, system, unloaded};
use crate::sys::bpf::{self, CounterMap, QueueMap};
use crate::sys::netlink::Netlink;
use crate::sys::{Errno, Layout, Queues, Umem, caps, request};
use crate::udp;

/// The result of opening.
pub(super) struct Opened {
    pub attached: Attached,
    pub queues: Queues,
    pub memory: FrameMemory,
    /// The numbers of the queues.
    pub numbers: Vec<u32>,
    pub failed_modes: FailedModes,
}

/// Returns the modes to try, best first.
///
/// On veth generic mode is the faster one. But there a frame that the other end of the pair sent names no
/// queue: all frames count as of the first queue, so only one of several ranks that divide the queues would
/// receive by its ring. Native mode knows the sender's queue.
fn modes(config: &XdpConfig, point: &AttachPoint) -> &'static [Mode] {
    match config.mode {
        Mode::Auto if point.driver == "veth" && is_divided(config, point) => &[Mode::Native, Mode::Generic],
        Mode::Auto if point.driver == "veth" => &[Mode::Generic, Mode::Native],
        Mode::Auto => &[Mode::ZeroCopy, Mode::Native, Mode::Generic],
        Mode::ZeroCopy => &[Mode::ZeroCopy],
        Mode::Native => &[Mode::Native],
        Mode::Generic => &[Mode::Generic],
    }
}

/// Whether several ranks each have a part of the queues.
pub(super) fn is_divided(config: &XdpConfig, point: &AttachPoint) -> bool {
    config.sharers > 1 && point.lower.queues > 1
}

/// Modes that were tried and did not work, and why.
type FailedModes = Vec<(Mode, String)>;

/// Requests a share of a program that another process has attached to an interface.
type Join<'a> = dyn FnMut(u32, Terms) -> Result<Attached, JoinError> + 'a;

/// Attaches the program in the best mode in which `then` works, too.
fn in_best_mode<T>(
    what: (&XdpConfig, &AttachPoint, SocketAddr),
    (limits, join): (RetryLimits, &mut Join<'_>),
    mut then: impl FnMut(&mut Attached) -> Result<T, Unavailable>,
) -> Result<(Attached, T, FailedModes), Unavailable> {
    let mut failed = Vec::new();
    for &mode in modes(what.0, what.1) {
        let tried = attach(what, mode, limits, join)
            .and_then(|mut attached| then(&mut attached).map(|bound| (attached, bound)));
        match tried {
            Ok((attached, bound)) => return Ok((attached, bound, failed)),
            Err(why) if why.is_final() => return Err(why),
            Err(why) => failed.push((mode, why.to_string())),
        }
    }
    Err(Unavailable::Modes(failed))
}

/// Attaches the program and binds sockets, in the best mode that works.
pub(super) fn open(
    config: &XdpConfig,
    point: &AttachPoint,
    local: SocketAddr,
    payload: usize,
) -> Result<Opened, Unavailable> {
    let mut join = |interface, terms| shared::join(interface, terms, ANSWER_TIMEOUTS);
    let (attached, (queues, memory, numbers), failed_modes) =
        in_best_mode((config, point, local), (RetryLimits::OPEN, &mut join), |attached| {
            let bound = bind(config, point, attached, payload)?;
            steer_to(config, attached, (point, local.port()), &bound.0, &bound.2)?;
            Ok(bound)
        })?;
    Ok(Opened { attached, queues, memory, numbers, failed_modes })
}

/// Does the same on an interface that came back, with existing memory, and without waiting (D-4).
pub(super) fn reopen(
    config: &XdpConfig,
    point: &AttachPoint,
    local: SocketAddr,
    (umem, layout, chunks_per_queue): (&Arc<Umem>, Layout, u32),
    (limits, requests): (RetryLimits, &mut PendingRequests),
) -> Result<(Attached, Queues, Vec<u32>), Unavailable> {
    let mut join = |interface, terms| requests.poll(interface, terms);
    let how = (limits, &mut join as &mut Join<'_>);
    let (attached, (queues, numbers), _) = in_best_mode((config, point, local), how, |attached| {
        let options = options(config, point, attached.terms.mode, layout, chunks_per_queue);
        let share = share(config, point.lower.queues).min(layout.chunks as u32 / chunks_per_queue);
        let (queues, numbers) = bind_queues(config, point, options, umem, (share, attached.joined), limits)
            .map_err(|e| no_socket(point, (umem.len(), umem.len()), e))?;
        steer_to(config, attached, (point, local.port()), &queues, &numbers)?;
        Ok((queues, numbers))
    })?;
    Ok((attached, queues, numbers))
}

/// Makes the program redirect frames for our port to our sockets, and lets other processes request a share of
/// it.
fn steer_to(
    config: &XdpConfig,
    attached: &mut Attached,
    (point, port): (&AttachPoint, u16),
    queues: &Queues,
    numbers: &[u32],
) -> Result<(), Unavailable> {
    let to = config.addressee(point.upper.mac, port);
    for (&number, socket) in numbers.iter().zip(queues.fds()) {
        attached.ports.set_addressee(number, to).map_err(|e| system("the port", e))?;
        attached.sockets.set_socket(number, socket).map_err(|e| system("the socket", e))?;
    }
    attached.accept_requests(point.lower.index, numbers[0]);
    Ok(())
}

/// Checks that this process has the privileges, and that they have an effect.
pub(super) fn check_privileges() -> Result<(), Unavailable> {
    let missing = caps::missing();
    if !missing.is_empty() {
        return Err(Unavailable::Privileges(missing));
    }
    match QueueMap::ports(1) {
        Err(Errno::PERM) if caps::is_in_user_namespace() => Err(Unavailable::PrivilegesIneffective(
            "the privileges of this process have no effect in this user namespace: BPF maps can only be created in the initial one; start the process there, as root or with setcap".into(),
        )),
        Err(Errno::PERM) => Err(Unavailable::PrivilegesIneffective(
            "this process has the privileges, but the system refuses to create a BPF map: a policy forbids it (seccomp, lockdown, or before Linux 5.11 RLIMIT_MEMLOCK)".into(),
        )),
        _ => Ok(()),
    }
}

fn attach(
    (config, point, local): (&XdpConfig, &AttachPoint, SocketAddr),
    mode: Mode,
    limits: RetryLimits,
    join: &mut Join<'_>,
) -> Result<Attached, Unavailable> {
    check_privileges()?;
    let terms = Terms {
        mode,
        ip: local.ip(),
        vlan: point.upper.vlan,
        any_shape: config.any_shape,
        raw: config.framing == Framing::Raw,
        queues: point.lower.queues,
    };
    let sockets = QueueMap::sockets(terms.queues).map_err(|e| system("a map of sockets", e))?;
    let ports = QueueMap::ports(terms.queues).map_err(|e| system("a map of ports", e))?;
    let drops = CounterMap::new(DROP_CAUSES * terms.queues).map_err(|e| system("a map of counters", e))?;
    let program = load((config, point, local), &terms, (&sockets, &ports, &drops))?;
    let flags = flags_of(mode);
    let (mut refused, mut requests) = (Errno::BUSY, limits.requests);
    for _ in with_pauses(limits.attempts) {
        match bpf::attach(program.as_fd(), point.lower.index, flags) {
            Ok(link) => {
                let link = Some(link);
                return Ok(Attached { link, sockets, ports, drops, terms, joined: false, requests: None });
            }
            Err(errno @ (Errno::BUSY | Errno::EXIST)) => refused = errno,
            Err(errno) => return Err(system("to attach the steering program", errno)),
        }
        match join(point.lower.index, Terms { mode: config.mode, ..terms }) {
            Ok(attached) => return Ok(attached),
            Err(JoinError::Incompatible(why)) => return Err(occupied(point, refused, Some(&why))),
            Err(JoinError::NoAnswer) => {
                requests -= 1;
                if requests == 0 {
                    return Err(occupied(point, refused, Some("its process does not answer")));
                }
            }
            Err(JoinError::NoPeer) => {}
        }
        // Another program stays. Ours may belong to a process that is exiting, or be gone by now.
        if occupant(point).is_some_and(|(_, info)| !info.is_ok_and(|info| info.name == PROGRAM)) {
            break;
        }
    }
    Err(occupied(point, refused, None))
}

fn flags_of(mode: Mode) -> u32 {
    if mode == Mode::Generic { bpf::XDP_GENERIC } else { bpf::XDP_DRIVER }
}

/// Loads the program, with these maps.
fn load(
    (config, point, local): (&XdpConfig, &AttachPoint, SocketAddr),
    terms: &Terms,
    (sockets, ports, drops): (&QueueMap, &QueueMap, &CounterMap),
) -> Result<OwnedFd, Unavailable> {
    let mode = terms.mode;
    let steering = Steering {
        ip: terms.ip,
        vlan: terms.vlan,
        any_shape: terms.any_shape,
        pass_partial_checksums: mode == Mode::Generic,
        raw: terms.raw,
        sockets: sockets.raw(),
        ports: ports.raw(),
        drops: drops.raw(),
    };
    let code = program::steering(&steering, Target::Kernel);
    bpf::load(bpf::PROG_XDP, &code, fragment_flag(config, point, mode, local), PROGRAM)
        .map_err(|refused| unloaded("the steering program", &refused))
}

/// Attaches the program again after it was detached. The maps stay, and with them all sockets. Of
/// several processes that share the program, one attaches it and gives the others a share.
pub(super) fn reattach(
    (config, point, local): (&XdpConfig, &AttachPoint, SocketAddr),
    attached: &Attached,
    requests: &mut PendingRequests,
) -> Result<OwnedFd, Unavailable> {
    check_privileges()?;
    let maps = (&attached.sockets, &attached.ports, &attached.drops);
    let program = load((config, point, local), &attached.terms, maps)?;
    match bpf::attach(program.as_fd(), point.lower.index, flags_of(attached.terms.mode)) {
        Ok(link) => Ok(link),
        Err(errno @ (Errno::BUSY | Errno::EXIST)) => {
            match requests.poll(point.lower.index, attached.terms) {
                // A process that has not noticed the loss answers with the detached link.
                Ok(Attached { link: Some(link), .. }) if bpf::is_attached(link.as_fd()) => Ok(link),
                Err(JoinError::Incompatible(why)) => Err(occupied(point, errno, Some(&why))),
                _ => Err(occupied(point, errno, None)),
            }
        }
        Err(errno) => Err(system("to attach the steering program", errno)),
    }
}

/// Returns the flag that declares support for frames in several fragments, if it is wanted.
///
/// In generic mode the kernel then copies each frame before the program sees it, where it would otherwise
/// only make room in front of it; so the flag is set only if such frames can arrive. In the driver it costs
/// nothing, and without it the MTU could not be raised.
fn fragment_flag(config: &XdpConfig, point: &AttachPoint, mode: Mode, local: SocketAddr) -> u32 {
    let payload = config.udp.slot_payload.unwrap_or_else(|| udp::slot_payload(local.ip()));
    let layout = divide(payload, point.lower.mtu, config.udp.tx_slots, config.rx_chunks);
    if mode == Mode::Generic && !FrameMemory::is_split(layout, point.lower.mtu) {
        0
    } else {
        bpf::F_HAS_FRAGS
    }
}

/// The program's name in the kernel's tables.
const PROGRAM: &str = "tautline";

/// Returns the attached program and the kernel's information about it.
fn occupant(point: &AttachPoint) -> Option<(u32, Result<bpf::ProgramInfo, Errno>)> {
    let now = Netlink::open(0).ok().and_then(|mut n| neighbour::link(&mut n, point.lower.index).ok())?;
    let program = *now.programs.first()?;
    Some((program, bpf::program_info(program)))
}

/// The error for an interface with another program; `unshared` says why that cannot be shared.
fn occupied(point: &AttachPoint, errno: Errno, unshared: Option<&str>) -> Unavailable {
    let Some((program, info)) = occupant(point) else {
        return system("to attach the steering program", errno);
    };
    let name = owner(info);
    let owner = match unshared {
        Some(why) => format!("{name}; it cannot be shared: {why}"),
        None => name,
    };
    Unavailable::Occupied { interface: point.lower.name.clone(), program, owner }
}

/// Describes an attached program: that it can be shared, or why the interface cannot be used.
pub(super) fn describe_occupant(interface: &str, program: u32) -> Result<String, String> {
    let info = bpf::program_info(program);
    let ours = matches!(&info, Ok(info) if info.name == PROGRAM && info.uid == request::user());
    let occupied =
        Unavailable::Occupied { interface: interface.to_owned(), program, owner: owner(info) }.with_holders();
    match &occupied {
        Unavailable::Occupied { owner, .. } if ours => Ok(format!(
            "an XDP program is attached that processes of this user share if they agree on address, framing and mode and a queue is free: id {program}, {owner}"
        )),
        _ => Err(occupied.to_string()),
    }
}

/// The name and user of a program, as far as the kernel tells.
fn owner(info: Result<bpf::ProgramInfo, Errno>) -> String {
    match info {
        Ok(info) => format!("\"{}\" of user {}", info.name, info.uid),
        Err(errno) => format!("name unknown ({errno})"),
    }
}
