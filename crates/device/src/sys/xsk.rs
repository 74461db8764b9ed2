//! AF_XDP sockets: their options, their four rings, their doorbells.

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::last_errno;
use super::umem::{Chunk, ReceivedChunk, Umem, prefetch_line};
use super::xsk_ring::Ring;

/// From `linux/if_xdp.h` of Linux 6.17: the most frames that one `sendto` takes from the ring in copy mode.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
/// From `asm-generic/socket.h`; not in `libc` for every target.
const SO_PREFER_BUSY_POLL: libc::c_int = 69;
const SO_BUSY_POLL_BUDGET: libc::c_int = 70;
/// From `linux/if_xdp.h` of Linux 6.11: metadata in front of frames, its flag in a descriptor, and the flag
/// for checksums.
const XDP_UMEM_TX_METADATA_LEN: u32 = 1 << 2;
const XDP_TX_METADATA: u32 = 1 << 1;
const XDP_TXMD_FLAGS_CHECKSUM: u64 = 1 << 1;
/// Bytes of metadata: flags, where a checksum begins and where it is stored, and fields that we do not use.
pub(crate) const TX_METADATA_LEN: usize = 24;

/// The options of a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XskOptions {
    pub ifindex: u32,
    pub queue: u32,
    /// Require zero copy, or require copies.
    pub zero_copy: bool,
    /// Frames may lie in several chunks.
    pub multi_buffer: bool,
    /// Frames may have metadata in front of them, if the system supports it. No frame may then begin at the
    /// start of a chunk.
    pub tx_metadata: bool,
    /// Entries of the rx and fill rings, and of the tx and completion rings: powers of two.
    pub rx: u32,
    pub tx: u32,
}

/// A bound socket.
#[derive(Debug)]
pub(crate) struct Xsk {
    fd: OwnedFd,
    umem: Arc<Umem>,
    fill: Ring<u64>,
    completion: Ring<u64>,
    rx: Ring<libc::xdp_desc>,
    tx: Ring<libc::xdp_desc>,
    /// Where the next frame will lie, and its number.
    next: (u64, u32),
    tx_metadata: bool,
}

/// The space that the kernel keeps free in front of a frame (`XDP_PACKET_HEADROOM`).
const HEADROOM: u64 = 256;

/// What the kernel counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct XskStatistics {
    /// Frames dropped for lack of a chunk or of a ring entry.
    pub overflows: u64,
}

impl Xsk {
    /// Opens a socket on one queue of an interface. A socket that shares the memory of another one, on
    /// another queue of the same interface, has the same mode.
    pub(crate) fn open(
        umem: &Arc<Umem>,
        options: XskOptions,
        shares: Option<BorrowedFd<'_>>,
    ) -> Result<Xsk, Errno> {
        // SAFETY: the call takes no pointers; the returned descriptor is ours alone.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: new from the kernel, and owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut tx_metadata = false;
        if shares.is_none() {
            let reg = UmemReg {
                addr: umem.address(),
                len: umem.len() as u64,
                chunk_size: umem.chunk_len() as u32,
                headroom: 0,
                flags: 0,
                tx_metadata_len: 0,
            };
            let with_metadata =
                UmemReg { flags: XDP_UMEM_TX_METADATA_LEN, tx_metadata_len: TX_METADATA_LEN as u32, ..reg };
            tx_metadata =
                options.tx_metadata && set(&fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &with_metadata).is_ok();
            if !tx_metadata {
                set(&fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &reg)?;
            }
        }
        set(&fd, libc::SOL_XDP, libc::XDP_UMEM_FILL_RING, &options.rx)?;
        set(&fd, libc::SOL_XDP, libc::XDP_UMEM_COMPLETION_RING, &options.tx)?;
        set(&fd, libc::SOL_XDP, libc::XDP_RX_RING, &options.rx)?;
        set(&fd, libc::SOL_XDP, libc::XDP_TX_RING, &options.tx)?;
        // Kernels before 6.17 take 32 frames at a time, and are kicked again.
        let _ = set(&fd, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &options.tx);
        // Allows many frames in the kernel at once. It is refused without the privilege, which only slows
        // large bursts.
        let _ = set(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &(4 << 20));
        let at: libc::xdp_mmap_offsets = get(&fd, libc::XDP_MMAP_OFFSETS)?;
        let fill = Ring::map(&fd, at.fr, options.rx, libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t)?;
        let completion =
            Ring::map(&fd, at.cr, options.tx, libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t)?;
        let rx = Ring::map(&fd, at.rx, options.rx, libc::XDP_PGOFF_RX_RING)?;
        let tx = Ring::map(&fd, at.tx, options.tx, libc::XDP_PGOFF_TX_RING)?;
        let socket =
            Xsk { fd, umem: umem.clone(), fill, completion, rx, tx, next: (0, u32::MAX), tx_metadata };
        socket.bind(options, shares)?;
        Ok(socket)
    }

    fn bind(&self, options: XskOptions, shares: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let mode = if options.zero_copy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY };
        let sg = if options.multi_buffer { libc::XDP_USE_SG } else { 0 };
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: match shares {
                None => mode | sg | libc::XDP_USE_NEED_WAKEUP,
                Some(_) => libc::XDP_SHARED_UMEM,
            },
            sxdp_ifindex: options.ifindex,
            sxdp_queue_id: options.queue,
            sxdp_shared_umem_fd: shares.map_or(0, |fd| fd.as_raw_fd() as u32),
        };
        // SAFETY: the pointer is to a live sockaddr_xdp of the length given; the kernel only reads it.
        let done = unsafe {
            libc::bind(
                self.fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_xdp>() as u32,
            )
        };
        if done == 0 { Ok(()) } else { Err(last_errno()) }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether the kernel reports zero copy.
    pub(crate) fn is_zero_copy(&self) -> bool {
        get::<libc::xdp_options>(&self.fd, libc::XDP_OPTIONS)
            .is_ok_and(|options| options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    /// Makes the caller of [`Xsk::wake_rx`] poll the card, or the kernel again.
    pub(crate) fn prefer_busy_poll(&self, prefer: bool, time_us: u32, budget: u32) -> Result<(), Errno> {
        set(&self.fd, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, &u32::from(prefer))?;
        set(&self.fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &time_us)?;
        set(&self.fd, libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, &budget)
    }

    /// Gives a chunk to the kernel, which sees it after the next [`Xsk::submit_chunks`]. There are never more
    /// chunks than entries.
    #[inline]
    #[expect(clippy::needless_pass_by_value, reason = "the token is used up: the chunk is the kernel's now")]
    pub(crate) fn fill(&mut self, chunk: Chunk) {
        let address = self.umem.address_of(&chunk);
        self.fill.write(address);
    }

    #[inline]
    pub(crate) fn submit_chunks(&mut self) {
        self.fill.submit();
    }

    /// Whether the driver waits for a wake-up to use new chunks.
    #[inline]
    pub(crate) fn needs_rx_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }

    /// Wakes the driver's receive side, or polls the card on the caller's behalf.
    pub(crate) fn wake_rx(&self) {
        let nothing: &mut [u8] = &mut [];
        let _ = rustix::net::recv(&self.fd, nothing, RecvFlags::DONTWAIT);
    }

    /// Takes the next frame, or part of one. An address outside of all chunks is skipped; the kernel never
    /// sends one.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<ReceivedChunk> {
        loop {
            let desc = self.rx.read()?;
            if let Some(chunk) = self.umem.chunk_at(desc.addr) {
                let begin = self.umem.address_of(&chunk);
                let room = begin + self.umem.chunk_len() as u64 - desc.addr;
                return Some(ReceivedChunk {
                    chunk,
                    start: desc.addr as usize,
                    len: u64::from(desc.len).min(room) as usize,
                    more: desc.options & libc::XDP_PKT_CONTD != 0,
                });
            }
        }
    }

    /// Whether a frame has arrived, by reading memory.
    ///
    /// The kernel uses chunks in the order in which it got them, so the position of the next frame is known
    /// beforehand. Its cache lines are prefetched together with its descriptor, not after it. A wrong guess
    /// only wastes a prefetch.
    #[inline]
    pub(crate) fn has_frames(&mut self) -> bool {
        if self.rx.known() > 0 {
            return true;
        }
        if self.rx.available() == 0 {
            if self.next.1 != self.rx.ours {
                self.next = (self.fill.at(self.rx.ours) + HEADROOM, self.rx.ours);
            }
            return false;
        }
        prefetch_line(self.rx.entry(self.rx.ours).as_ptr().cast());
        self.umem.prefetch(self.next.0);
        true
    }

    /// Lets the kernel reuse the entries of frames that were taken.
    #[inline]
    pub(crate) fn release_taken(&mut self) {
        self.rx.release();
    }

    /// Whether `descriptors` descriptors can be pushed now.
    #[inline]
    pub(crate) fn has_room(&mut self, descriptors: u32) -> bool {
        self.tx.has_room(descriptors)
    }

    /// Pushes a descriptor for bytes at `address`; the kernel sees it after the next [`Xsk::submit`]. There
    /// must be room.
    #[inline]
    pub(crate) fn push(&mut self, address: u64, len: u32, more: bool, metadata: bool) {
        debug_assert!(!metadata || self.tx_metadata);
        let options = if more { libc::XDP_PKT_CONTD } else { 0 } | if metadata { XDP_TX_METADATA } else { 0 };
        self.tx.write(libc::xdp_desc { addr: address, len, options });
    }

    /// Whether frames may have metadata in front of them.
    pub(crate) fn has_tx_metadata(&self) -> bool {
        self.tx_metadata
    }

    #[inline]
    pub(crate) fn submit(&mut self) {
        self.tx.submit();
    }

    /// Returns the number of descriptors that the kernel has not taken yet.
    #[inline]
    pub(crate) fn untaken(&mut self) -> u32 {
        self.tx.untaken()
    }

    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.tx.needs_wakeup()
    }

    /// Rings the doorbell: makes the kernel send what was submitted.
    #[inline]
    pub(crate) fn kick(&self) -> Result<(), Errno> {
        // Through rustix, which avoids the cancellation points of the C library.
        rustix::net::send(&self.fd, &[], SendFlags::DONTWAIT).map(drop)
    }

    /// Returns the next address whose bytes the kernel no longer reads.
    #[inline]
    pub(crate) fn completed(&mut self) -> Option<u64> {
        self.completion.read()
    }

    #[inline]
    pub(crate) fn release_completed(&mut self) {
        self.completion.release();
    }

    pub(crate) fn statistics(&self) -> XskStatistics {
        get::<Statistics>(&self.fd, libc::XDP_STATISTICS).map_or(XskStatistics::default(), |s| {
            XskStatistics { overflows: s.rx_dropped + s.rx_ring_full + s.rx_fill_ring_empty_descs }
        })
    }
}

/// Returns metadata that requests a checksum over the frame from `start` on, to be stored at `offset` from
/// there.
#[inline]
pub(crate) fn checksum_request(start: u16, offset: u16) -> [u8; TX_METADATA_LEN] {
    let mut tx_metadata = [0; TX_METADATA_LEN];
    tx_metadata[..8].copy_from_slice(&XDP_TXMD_FLAGS_CHECKSUM.to_ne_bytes());
    tx_metadata[8..10].copy_from_slice(&start.to_ne_bytes());
    tx_metadata[10..12].copy_from_slice(&offset.to_ne_bytes());
    tx_metadata
}

/// `xdp_umem_reg` of Linux 6.8; older kernels accept its beginning.
#[repr(C)]
struct UmemReg {
    addr: u64,
    len: u64,
    chunk_size: u32,
    headroom: u32,
    flags: u32,
    tx_metadata_len: u32,
}

/// `xdp_statistics` of Linux 5.9.
#[repr(C)]
struct Statistics {
    rx_dropped: u64,
    rx_invalid_descs: u64,
    tx_invalid_descs: u64,
    rx_ring_full: u64,
    rx_fill_ring_empty_descs: u64,
    tx_ring_empty_descs: u64,
}

fn set<T>(fd: &OwnedFd, level: libc::c_int, name: libc::c_int, value: &T) -> Result<(), Errno> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointer is to a live value of the length given; the kernel only reads it.
    let done = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, ptr::from_ref(value).cast(), len) };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Types for which any bytes are valid, so that `get` may be used.
trait Plain: Sized {}
impl Plain for libc::xdp_mmap_offsets {}
impl Plain for libc::xdp_options {}
impl Plain for Statistics {}

fn get<T: Plain>(fd: &OwnedFd, name: libc::c_int) -> Result<T, Errno> {
    // SAFETY: integers only, for which zero is valid.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to the value, which has as many.
    let done = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_XDP, name, (&raw mut value).cast(), &raw mut len)
    };
    if done == 0 { Ok(value) } else { Err(last_errno()) }
}
