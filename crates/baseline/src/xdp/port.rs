//! An interface that we send frames by and take frames from.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use super::Mode;
use super::frame::{End, HEADER, PAYLOAD_MAX, header};
use super::interface;
use super::program::Steering;
use super::rings::{CHUNK, Frames, Ring};
use crate::transport::{Setup, SpinLimit};

/// Frames to receive into, and to send from.
const INCOMING: u32 = 1024;
const OUTGOING: u32 = 512;
/// Twice as many as there are frames: the kernel delivers frames before it reports that it has taken them.
const FILL: u32 = 2 * INCOMING;
/// What the kernel sends for one system call.
pub(super) const BATCH: u64 = 32;

/// The one queue of a veth interface.
const QUEUE: u32 = 0;

const QUEUE_TIME: Duration = Duration::from_secs(2);

// From linux/if_xdp.h.
const RX_AT: u64 = 0;
const TX_AT: u64 = 0x8000_0000;
const FILL_AT: u64 = 0x1_0000_0000;
const COMPLETION_AT: u64 = 0x1_8000_0000;

/// One side of the path. Fields are dropped in this order: first nothing arrives any more, then the frames
/// may go.
pub(super) struct Port {
    steering: Steering,
    socket: OwnedFd,
    fill: Ring<u64>,
    completion: Ring<u64>,
    rx: Ring<libc::xdp_desc>,
    tx: Ring<libc::xdp_desc>,
    frames: Frames,
    /// Frames to send from that are free.
    free: Vec<u64>,
    header: [u8; HEADER],
    /// Bytes of the payload that we send.
    bytes: usize,
    busy: bool,
    unsent: bool,
}

impl Port {
    /// Opens one side that sends `bytes` bytes in each frame; the other side must do the same at the same
    /// time.
    pub(super) fn open(setup: &mut Setup<'_>, mode: Mode, bytes: usize) -> io::Result<Self> {
        if bytes > PAYLOAD_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a message of more than one frame"));
        }
        let (IpAddr::V4(address), IpAddr::V4(remote)) = (setup.local, setup.remote) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "bare AF_XDP is measured over IPv4"));
        };
        let interface = interface::with_address(address)?;
        // Nobody else in this namespace gets the port while we hold it.
        let holder = std::net::UdpSocket::bind((address, 0))?;
        let ours = End { mac: interface.mac, address, port: holder.local_addr()?.port() };
        let mut card = [0; 8];
        card[..6].copy_from_slice(&ours.mac);
        card[6..].copy_from_slice(&ours.port.to_be_bytes());
        let theirs = setup.exchange(&card)?;
        let mac = std::array::from_fn(|i| theirs[i]);
        let theirs = End { mac, address: remote, port: u16::from_be_bytes([theirs[6], theirs[7]]) };
        let frames = Frames::new((INCOMING + OUTGOING) as usize)?;
        let socket = socket(&frames)?;
        let places = sockopt::xdp_mmap_offsets(&socket)?;
        let mut port = Self {
            fill: Ring::map(&socket, FILL, &places.fr, FILL_AT)?,
            completion: Ring::map(&socket, OUTGOING, &places.cr, COMPLETION_AT)?,
            rx: Ring::map(&socket, INCOMING, &places.rx, RX_AT)?,
            tx: Ring::map(&socket, OUTGOING, &places.tx, TX_AT)?,
            free: (0..OUTGOING).map(|i| u64::from(INCOMING + i) * CHUNK as u64).collect(),
            header: header(&ours, &theirs, bytes),
            bytes,
            busy: mode.busy,
            unsent: false,
            frames,
            socket,
            steering: Steering::load(ours.port)?,
        };
        for i in 0..INCOMING {
            port.fill.put(u64::from(i) * CHUNK as u64);
        }
        port.fill.publish();
        if mode.busy {
            busy_polling(&port.socket)?;
        }
        bind(&port.socket, interface.index)?;
        port.steering.send_to(QUEUE, &port.socket)?;
        port.steering.attach(interface.index, mode.attach)?;
        setup.barrier()?;
        Ok(port)
    }

    /// Puts one frame into the ring, to leave with the next [`kick`](Self::kick); false if none is free.
    #[inline]
    pub(super) fn queue(&mut self, write: impl FnOnce(&mut [u8])) -> bool {
        if self.free.is_empty() || !self.tx.has_room() {
            self.reap();
        }
        if !self.tx.has_room() {
            return false;
        }
        let Some(at) = self.free.pop() else { return false };
        let len = HEADER + self.bytes;
        // SAFETY: the frame is free, and so ours.
        let frame = unsafe { self.frames.bytes(at, len) };
        frame[..HEADER].copy_from_slice(&self.header);
        write(&mut frame[HEADER..]);
        self.tx.put(libc::xdp_desc { addr: at, len: len as u32, options: 0 });
        self.unsent = true;
        true
    }

    /// Has the kernel send what is in the ring.
    #[inline]
    pub(super) fn kick(&mut self) -> io::Result<()> {
        if !self.unsent {
            return Ok(());
        }
        self.tx.publish();
        let mut spin_limit = SpinLimit::new();
        loop {
            match rustix::net::send(&self.socket, &[], SendFlags::DONTWAIT) {
                Ok(_) => break,
                // The ring holds more than one call sends, or the interface is full for the moment.
                Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => spin_limit.spin()?,
                Err(e) => return Err(e.into()),
            }
        }
        self.unsent = false;
        self.reap();
        Ok(())
    }

    fn reap(&mut self) {
        while let Some(at) = self.completion.take() {
            self.free.push(at);
        }
        self.completion.give_back();
    }

    /// Sends one frame at once.
    pub(super) fn send(&mut self, write: impl FnOnce(&mut [u8])) -> io::Result<()> {
        let mut spin_limit = SpinLimit::new();
        while self.free.is_empty() || !self.tx.has_room() {
            self.reap();
            spin_limit.spin()?;
        }
        self.queue(write);
        self.kick()
    }

    /// Calls `each` with the payload of every frame that has arrived, and returns how many there were.
    #[inline]
    pub(super) fn poll(&mut self, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<usize> {
        if self.busy {
            match rustix::net::recv(&self.socket, &mut [0_u8; 0][..], RecvFlags::DONTWAIT) {
                Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::INTR | Errno::OPNOTSUPP) => {}
                Err(e) => return Err(e.into()),
            }
        }
        let mut count = 0;
        while let Some(came) = self.rx.take() {
            // SAFETY: the kernel has given us this frame, and gets it back below.
            let frame = unsafe { self.frames.bytes(came.addr, came.len as usize) };
            let done = each(frame.get(HEADER..).unwrap_or_default());
            self.fill.put(came.addr & !(CHUNK as u64 - 1));
            count += 1;
            done?;
        }
        if count > 0 {
            self.rx.give_back();
            self.fill.publish();
        }
        Ok(count)
    }

    /// Waits for one frame.
    #[inline]
    pub(super) fn wait(&mut self, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut spin_limit = SpinLimit::new();
        while self.poll(&mut each)? == 0 {
            spin_limit.spin()?;
        }
        Ok(())
    }
}

/// A socket with frames and rings, not yet bound.
fn socket(frames: &Frames) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let umem = XdpUmemReg {
        addr: frames.address(),
        len: frames.len() as u64,
        chunk_size: CHUNK as u32,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(&socket, umem).map_err(|e| match e {
        Errno::NOBUFS => io::Error::other("frames of AF_XDP are locked memory: raise RLIMIT_MEMLOCK"),
        e => e.into(),
    })?;
    sockopt::set_xdp_umem_fill_ring_size(&socket, FILL)?;
    sockopt::set_xdp_umem_completion_ring_size(&socket, OUTGOING)?;
    sockopt::set_xdp_rx_ring_size(&socket, INCOMING)?;
    sockopt::set_xdp_tx_ring_size(&socket, OUTGOING)?;
    Ok(socket)
}

/// Takes the queue. The kernel releases a queue some time after its last owner has closed it.
fn bind(socket: &OwnedFd, interface: u32) -> io::Result<()> {
    let flags = SocketAddrXdpFlags::XDP_COPY | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    let address = SocketAddrXdp::new(flags, interface, QUEUE);
    let since = Instant::now();
    loop {
        match rustix::net::bind(socket, &address) {
            Err(Errno::BUSY) if since.elapsed() < QUEUE_TIME => std::thread::sleep(Duration::from_millis(1)),
            result => return Ok(result?),
        }
    }
}

/// Requests that our own calls drive the interface, for up to 20 µs and 64 frames each.
fn busy_polling(socket: &OwnedFd) -> io::Result<()> {
    for (option, value) in
        [(libc::SO_PREFER_BUSY_POLL, 1), (libc::SO_BUSY_POLL, 20), (libc::SO_BUSY_POLL_BUDGET, 64)]
    {
        let value: libc::c_int = value;
        let len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the option takes an int, which is there.
        let set = unsafe {
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const value).cast(), len)
        };
        if set != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
