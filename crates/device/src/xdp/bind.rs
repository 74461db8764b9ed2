//! Dividing the memory, and binding sockets to queues.

use std::sync::Arc;

use super::attach_point::AttachPoint;
use super::config::{Mode, XdpConfig};
use super::features::features;
use super::retry::{RetryLimits, with_pauses};
use super::shared::Attached;
use super::unavailable::{Unavailable, system};
use crate::sys::{Chunk, Errno, Layout, Queues, Umem, XskOptions, caps};
use crate::{Arena, HEADROOM};

/// The memory of frames, and how it is divided.
pub(super) struct FrameMemory {
    pub layout: Layout,
    pub umem: Arc<Umem>,
    pub arena: Arena,
    pub copies: Arena,
    pub chunks: Vec<Chunk>,
}

/// The space that the kernel keeps free in front of a received frame.
const RX_HEADROOM: usize = 256;
/// The Ethernet header with a VLAN tag.
const ETHERNET_MAX: usize = 18;
/// Slots for copies.
const COPIES: usize = 64;
/// The fewest chunks that a device works with.
const CHUNKS_MIN: u32 = 128;

/// Divides the memory; chunks are half a page if whole frames fit.
pub(super) fn divide(payload: usize, mtu: usize, slots: usize, chunks: u32) -> Layout {
    let (slot, frame) = (HEADROOM + payload, RX_HEADROOM + ETHERNET_MAX + mtu);
    let chunk = if slot.max(frame) <= 2_048 { 2_048 } else { 4_096 };
    Layout { chunk, slot_chunks: slot.div_ceil(chunk), slots, copies: COPIES, chunks: chunks as usize }
}

impl FrameMemory {
    pub(super) fn new(layout: Layout, payload: usize) -> Result<FrameMemory, Unavailable> {
        let failed =
            |e| Unavailable::Memory(format!("cannot allocate {} bytes of memory: {e}", layout.len()));
        let (umem, [arena, copies], chunks) = Umem::new(layout, payload).map_err(failed)?;
        Ok(FrameMemory { layout, umem, arena, copies, chunks })
    }

    /// Whether a received frame may need several chunks.
    pub(super) fn is_split(layout: Layout, mtu: usize) -> bool {
        RX_HEADROOM + ETHERNET_MAX + mtu > layout.chunk || layout.slot_chunks > 1
    }
}

/// The most queues that one device takes.
const QUEUES_MAX: u32 = 32;
/// With more queues than this, each queue gets fewer chunks.
const QUEUES_FULL: u32 = 4;

/// Returns how many of an interface's queues this device takes.
pub(super) fn share(config: &XdpConfig, queues: u32) -> u32 {
    (queues / config.sharers.max(1)).clamp(1, QUEUES_MAX)
}

/// Returns the chunks of each queue if the device takes `share` queues.
fn chunks_per_queue(config: &XdpConfig, share: u32) -> u32 {
    let divisor = (share / QUEUES_FULL).max(1).next_power_of_two();
    (config.rx_chunks / divisor).max(CHUNKS_MIN)
}

/// Returns the bytes that are pinned for an interface with these queues and this MTU: usually, and at least.
pub(super) fn pinned(config: &XdpConfig, queues: u32, mtu: usize, payload: usize) -> (usize, usize) {
    let share = share(config, queues);
    let of = |chunks: u32| divide(payload, mtu, config.udp.tx_slots, chunks).len();
    (of(chunks_per_queue(config, share) * share), of(CHUNKS_MIN))
}

/// Binds sockets to free queues, with as much memory as may be pinned.
pub(super) fn bind(
    config: &XdpConfig,
    point: &AttachPoint,
    attached: &Attached,
    payload: usize,
) -> Result<(Queues, FrameMemory, Vec<u32>), Unavailable> {
    let mut share = share(config, point.lower.queues);
    let mut chunks = chunks_per_queue(config, share);
    loop {
        let layout = divide(payload, point.lower.mtu, config.udp.tx_slots, chunks * share);
        let memory = FrameMemory::new(layout, payload)?;
        let options = options(config, point, attached.terms.mode, layout, chunks);
        match bind_queues(config, point, options, &memory.umem, (share, attached.joined), RetryLimits::OPEN) {
            Ok((queues, numbers)) => return Ok((queues, memory, numbers)),
            Err(Errno::NOBUFS | Errno::NOMEM | Errno::PERM) if chunks > CHUNKS_MIN => chunks /= 2,
            // Frames of a queue without a socket of ours arrive through the UDP socket.
            Err(Errno::NOBUFS | Errno::NOMEM | Errno::PERM) if share > 1 => share /= 2,
            Err(errno) => {
                let usual = pinned(config, point.lower.queues, point.lower.mtu, payload).0;
                return Err(no_socket(point, (usual, memory.umem.len()), errno));
            }
        }
    }
}

/// The message for memory that may not be pinned: the present limit, and what to set it to.
pub(super) fn limit_too_low(limit: Option<u64>, usual: usize, least: usize) -> String {
    let kib = |bytes: usize| bytes.div_ceil(1_024);
    let now = limit.map_or_else(|| "unlimited".to_owned(), |bytes| format!("{} KiB", bytes / 1_024));
    format!(
        "{} KiB of memory cannot be pinned: RLIMIT_MEMLOCK is {now}, for all processes of this user together; set it to {} KiB or more (ulimit -l {}, or memlock in limits.conf), or grant cap_ipc_lock, which lifts the limit",
        kib(least),
        kib(usual),
        kib(usual),
    )
}

pub(super) fn options(
    config: &XdpConfig,
    point: &AttachPoint,
    mode: Mode,
    layout: Layout,
    chunks: u32,
) -> XskOptions {
    XskOptions {
        ifindex: point.lower.index,
        queue: 0,
        zero_copy: mode == Mode::ZeroCopy,
        multi_buffer: FrameMemory::is_split(layout, point.lower.mtu),
        // Every chunk would need room for metadata, and only the first chunk of a slot has it.
        tx_metadata: layout.slot_chunks == 1
            && config.checksum_offload.unwrap_or_else(|| offers_checksums(point)),
        rx: chunks,
        tx: config.tx_ring,
    }
}

/// Whether checksums are left to the card. In copy mode the kernel would compute them for a card that cannot,
/// or leave them partial on a virtual interface.
fn offers_checksums(point: &AttachPoint) -> bool {
    features(point.lower.index).is_some_and(|has| has.checksum)
}

/// The error for a socket that could not be bound; `usual` and `least` are the bytes that were to be pinned.
pub(super) fn no_socket(point: &AttachPoint, (usual, least): (usize, usize), errno: Errno) -> Unavailable {
    match errno {
        Errno::NOBUFS | Errno::NOMEM | Errno::PERM => {
            Unavailable::Memory(format!("{} ({errno})", limit_too_low(caps::memlock_limit(), usual, least)))
        }
        Errno::BUSY => Unavailable::Queues(format!(
            "each of the {} queue(s) of {} is taken by another process",
            point.lower.queues, point.lower.name
        )),
        errno => system("a socket", errno),
    }
}

/// Binds sockets to up to `share` queues, starting with the first free one. Waits for queues that are not
/// released yet; for a shorter time if other processes share the interface (`joined`), because they may have
/// the queue.
pub(super) fn bind_queues(
    config: &XdpConfig,
    point: &AttachPoint,
    options: XskOptions,
    umem: &Arc<Umem>,
    (share, joined): (u32, bool),
    limits: RetryLimits,
) -> Result<(Queues, Vec<u32>), Errno> {
    let mut last = point.lower.queues.max(config.queue + 1);
    let (mut taken, mut all): (Option<(Queues, Vec<u32>)>, bool) = (None, false);
    for _ in with_pauses(if joined { limits.attempts } else { limits.release_attempts }) {
        for queue in config.queue..last {
            let options = XskOptions { queue, ..options };
            let bound = match &mut taken {
                Some((_, numbers)) if numbers.contains(&queue) => continue,
                Some((queues, numbers)) => queues.add(umem, options).map(|()| numbers.push(queue)),
                None => Queues::open(umem, options).map(|queues| taken = Some((queues, vec![queue]))),
            };
            match bound {
                Ok(()) | Err(Errno::BUSY) => {}
                Err(errno) if taken.is_none() && (errno != Errno::INVAL || queue == config.queue) => {
                    return Err(errno);
                }
                // An interface may report more queues than it uses.
                Err(_) => {
                    last = queue;
                    break;
                }
            }
            if taken.as_ref().is_some_and(|(_, numbers)| numbers.len() == share as usize) {
                break;
            }
        }
        let wanted = share.min(last - config.queue) as usize;
        if taken.as_ref().is_some_and(|(_, numbers)| numbers.len() >= wanted) {
            all = true;
            break;
        }
    }
    taken.filter(|_| all || joined || limits.accept_fewer).ok_or(Errno::BUSY)
}
