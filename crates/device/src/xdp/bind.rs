//! Memory and queues: how the one is divided, and which of the others are had.

use std::sync::Arc;

use super::attach::{Place, Unavailable, system};
use super::config::{Mode, XdpConfig};
use super::features::features;
use super::retry::{PAUSE, RetryLimits};
use super::shared::Attached;
use crate::sys::{Chunk, Errno, Layout, Queues, Umem, XskOptions, locked};
use crate::{Arena, HEADROOM};

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
    pub(super) fn new(layout: Layout, payload: usize) -> Result<Memory, Unavailable> {
        let failed = |e| Unavailable::Memory(format!("{} bytes of memory cannot be had: {e}", layout.len()));
        let (umem, [arena, copies], chunks) = Umem::new(layout, payload).map_err(failed)?;
        Ok(Memory { layout, umem, arena, copies, chunks })
    }

    /// Whether a received frame may need several chunks.
    pub(super) fn is_split(layout: Layout, mtu: usize) -> bool {
        RX_HEADROOM + ETHERNET_MAX + mtu > layout.chunk || layout.slot_chunks > 1
    }
}

/// The most queues that one device takes.
const QUEUES_MAX: u32 = 32;
/// Memory for so many queues is had without making each queue's smaller.
const QUEUES_FULL: u32 = 4;

/// How many queues are ours, of an interface that has so many.
pub(super) fn share(config: &XdpConfig, queues: u32) -> u32 {
    (queues / config.sharers.max(1)).clamp(1, QUEUES_MAX)
}

/// Chunks of each queue, when so many are ours.
fn chunks_of_each(config: &XdpConfig, share: u32) -> u32 {
    let less = (share / QUEUES_FULL).max(1).next_power_of_two();
    (config.rx_chunks / less).max(CHUNKS_MIN)
}

/// Bytes that are pinned for an interface with so many queues and this MTU: usually, and at least.
pub(super) fn pinned(config: &XdpConfig, queues: u32, mtu: usize, payload: usize) -> (usize, usize) {
    let share = share(config, queues);
    let of = |chunks: u32| divide(payload, mtu, config.udp.tx_slots, chunks).len();
    (of(chunks_of_each(config, share) * share), of(CHUNKS_MIN))
}

/// Binds sockets to queues that are free, with as much memory as may be pinned.
pub(super) fn bind(
    config: &XdpConfig,
    place: &Place,
    attached: &Attached,
    payload: usize,
) -> Result<(Queues, Memory, Vec<u32>), Unavailable> {
    let mut share = share(config, place.lower.queues);
    let mut chunks = chunks_of_each(config, share);
    loop {
        let layout = divide(payload, place.lower.mtu, config.udp.tx_slots, chunks * share);
        let memory = Memory::new(layout, payload)?;
        let options = options(config, place, attached.terms.mode, layout, chunks);
        match bind_queues(config, place, options, &memory.umem, (share, attached.joined), RetryLimits::LONG) {
            Ok((queues, numbers)) => return Ok((queues, memory, numbers)),
            Err(Errno::NOBUFS | Errno::NOMEM | Errno::PERM) if chunks > CHUNKS_MIN => chunks /= 2,
            // A queue less is heard through the socket; no memory, and none is.
            Err(Errno::NOBUFS | Errno::NOMEM | Errno::PERM) if share > 1 => share /= 2,
            Err(errno) => {
                let usual = pinned(config, place.lower.queues, place.lower.mtu, payload).0;
                return Err(refused(place, (usual, memory.umem.len()), errno));
            }
        }
    }
}

/// What to do when not so many bytes may be pinned.
pub(super) fn too_little(limit: Option<u64>, usual: usize, least: usize) -> String {
    let kib = |bytes: usize| bytes.div_ceil(1_024);
    let now = limit.map_or_else(|| "not limited".to_owned(), |bytes| format!("{} KiB", bytes / 1_024));
    format!(
        "{} KiB of memory cannot be pinned: RLIMIT_MEMLOCK is {now} for all that this user's processes pin; set it to {} KiB or more (ulimit -l {}, or memlock in limits.conf), or grant cap_ipc_lock, for which it does not count",
        kib(least),
        kib(usual),
        kib(usual),
    )
}

pub(super) fn options(
    config: &XdpConfig,
    place: &Place,
    mode: Mode,
    layout: Layout,
    chunks: u32,
) -> XskOptions {
    XskOptions {
        ifindex: place.lower.index,
        queue: 0,
        zero_copy: mode == Mode::ZeroCopy,
        multi_buffer: Memory::is_split(layout, place.lower.mtu),
        // Every chunk needs room for orders then, and only the first one of a slot has it.
        orders: layout.slot_chunks == 1 && config.checksum_offload.unwrap_or_else(|| card_adds(place)),
        rx: chunks,
        tx: config.tx_ring,
    }
}

/// Whether checksums are left to the card. Where frames are copied the kernel would do it for a card that cannot, or leave them unfinished on an interface that is none.
fn card_adds(place: &Place) -> bool {
    features(place.lower.index).is_some_and(|has| has.checksum)
}

/// Why there is no socket, where so many bytes were to be pinned usually, and at least.
pub(super) fn refused(place: &Place, (usual, least): (usize, usize), errno: Errno) -> Unavailable {
    match errno {
        Errno::NOBUFS | Errno::NOMEM | Errno::PERM => {
            Unavailable::Memory(format!("{} ({errno})", too_little(locked::limit(), usual, least)))
        }
        Errno::BUSY => Unavailable::Queues(format!(
            "each of the {} queue(s) of {} is taken by another process",
            place.lower.queues, place.lower.name
        )),
        errno => system("a socket", errno),
    }
}

/// Takes up to so many queues, from the first one that is free on. One that is not yet let go of is waited for, not so long by whoever shares the
/// interface with others (`joined`), who may have it.
pub(super) fn bind_queues(
    config: &XdpConfig,
    place: &Place,
    options: XskOptions,
    umem: &Arc<Umem>,
    (share, joined): (u32, bool),
    limits: RetryLimits,
) -> Result<(Queues, Vec<u32>), Errno> {
    let mut last = place.lower.queues.max(config.queue + 1);
    let (mut taken, mut all): (Option<(Queues, Vec<u32>)>, bool) = (None, false);
    for _ in 0..if joined { limits.waits } else { limits.release_waits } {
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
                // Interfaces may have room for more queues than they use.
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
        std::thread::sleep(PAUSE);
    }
    taken.filter(|_| all || joined || limits.fewer).ok_or(Errno::BUSY)
}
