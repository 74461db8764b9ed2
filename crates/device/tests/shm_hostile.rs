//! A peer that tries to stop this process through what both share: its doorbell, its memory, its descriptors.
#![allow(clippy::print_stdout)]

mod shm_pair;

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use rustix::net::{SendFlags, send};
use shm_pair::{TempDir, pair, until};
use tautline_device::Channel;
use tautline_device::shm::{Listener, Shm};

/// Far longer than anything here takes, unless it never ends.
const FOREVER: Duration = Duration::from_secs(30);

/// Calls a function on a thread of its own, and returns its result; fails if it never returns.
fn returns<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = channel();
    std::thread::spawn(move || drop(done.send(call())));
    match result.recv_timeout(FOREVER) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => panic!("{what}: stopped for ever"),
        Err(RecvTimeoutError::Disconnected) => panic!("{what}: panicked"),
    }
}

/// The peer, and the process that it wants to stop.
fn connected() -> (TempDir, Shm, Shm) {
    let dir = TempDir::new("hostile");
    let path = dir.listener_path();
    let listener = Listener::bind(&path).unwrap();
    let (peer, victim) = pair(&listener, &path);
    (dir, peer, victim)
}

/// S-31: a peer that never takes a ring, and has made its end blocking, does not stop whoever rings; the ring
/// that says that there is something to take remains.
#[test]
fn rings_that_nobody_takes_do_not_block() {
    let (_dir, mut peer, mut victim) = connected();
    rustix::io::ioctl_fionbio(peer.liveness_fds()[1], false).unwrap();
    let rings = returns("a ring", move || {
        let mut out = vec![0; peer.max_frame()];
        for _ in 0..20_000 {
            peer.announce_sleep();
            peer.barrier();
            victim.push(b"wake up", b"").unwrap();
            victim.flush();
            assert_eq!(peer.pop(&mut out), Some(7));
        }
        peer.take_ring();
        assert!(!peer.is_dead() && !victim.is_dead());
        victim.counts()[2]
    });
    assert_eq!(rings, 20_000);
}

/// S-31: rings without number neither stop the one that they are for nor hide the end of the connection.
#[test]
fn a_flood_of_rings_hides_no_end() {
    let (_dir, peer, victim) = connected();
    let socket = peer.liveness_fds()[1].try_clone_to_owned().unwrap();
    drop(peer);
    let mut flooded = 0;
    while send(&socket, &[0; 9], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok() {
        flooded += 1;
    }
    assert!(flooded > 16, "{flooded} rings");
    assert!(!victim.is_dead(), "there are rings before the end");
    drop(socket);
    until("the end", || victim.is_dead().then_some(()));
}

/// S-31: a ring is taken once, and wakes for one sleep only.
#[test]
fn a_ring_is_taken_once() {
    let (_dir, mut peer, mut victim) = connected();
    let readable = |shm: &Shm| {
        let socket = shm.liveness_fds()[1];
        let mut fds = [rustix::event::PollFd::new(&socket, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    };
    for _ in 0..3 {
        victim.announce_sleep();
        victim.barrier();
        assert!(!readable(&victim));
        peer.push(b"wake up", b"").unwrap();
        peer.flush();
        assert!(readable(&victim));
        victim.announce_wake();
        assert!(!readable(&victim));
    }
}

/// A page whose faults wait until the descriptor is closed.
fn page_that_never_comes() -> Option<(OwnedFd, u64)> {
    const UFFDIO_API: u64 = 0xc018_aa3f;
    const UFFDIO_REGISTER: u64 = 0xc020_aa00;
    // SAFETY: a new descriptor and a new mapping, which nothing refers to; the kernel reads and writes the
    // two arrays, which are as long as it expects.
    unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK);
        if fd < 0 {
            return None;
        }
        let fd = OwnedFd::from_raw_fd(fd as i32);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        let (mut api, mut register) = ([0xaa_u64, 0, 0], [at as u64, 4096, 1, 0]);
        let made = libc::ioctl(fd.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) == 0
            && libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER, register.as_mut_ptr()) == 0;
        made.then_some((fd, at as u64))
    }
}

/// S-32: a peer whose memory never answers stops neither the one that establishes the channel, nor anything
/// that it does with the channel afterwards.
#[test]
fn memory_that_never_answers_does_not_block() {
    let Some((fault, page)) = page_that_never_comes() else {
        return tautline_skips::skip(
            "memory_that_never_answers_does_not_block",
            "no userfaultfd for this user",
        );
    };
    let (_dir, peer, mut victim) = connected();
    let (victim, probe) = returns("a probe", move || {
        let probe = victim.probe_peer_memory(page, 7).unwrap();
        let thread = std::thread::spawn(move || probe.run());
        victim.push(b"goes on", b"").unwrap();
        victim.flush();
        (victim, thread)
    });
    assert!(victim.peer_memory().is_none() && !peer.peer_may_read());
    drop((fault, victim));
    probe.join().unwrap();
    assert!(!peer.peer_may_read(), "the word was another one");
}

/// S-1: a descriptor that is no sealed memory is refused, whatever it is, and nobody waits for it.
#[test]
fn descriptors_that_are_no_memory_are_refused() {
    let (_reader, mut full) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&full, true).unwrap();
    while full.write(&[0; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&full, false).unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    for fd in [full.as_fd().try_clone_to_owned().unwrap(), OwnedFd::from(file)] {
        let refused = returns("a descriptor", move || tautline_mem::Segment::attach(fd, 4096).unwrap_err());
        assert!(refused.to_string().contains("not sealed"), "{refused}");
    }
}
