//! What the kernel can wake a node by: the device, other threads, and time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use tautline_device::Datagram;
use tautline_link::Nanos;

#[derive(Debug)]
pub(crate) struct Descriptors {
    /// Readable when the device has frames.
    device: Mutex<Arc<[OwnedFd]>>,
    bell: OwnedFd,
    /// Wakes the program that sleeps on `all`. Threads that sleep inside the library do not hear it, and so
    /// cannot silence it before the program has.
    driver: OwnedFd,
    timer: OwnedFd,
    /// Readable when a process on this host dials, answers or dies.
    local: OnceLock<OwnedFd>,
    all: OwnedFd,
    /// The device's are in `all`. Not from the start: a socket that is in an epoll set costs every sender a
    /// call into it.
    watched: AtomicBool,
}

impl Descriptors {
    /// `None` for a device that has no descriptor.
    pub(crate) fn new(device: &dyn Datagram) -> io::Result<Option<Descriptors>> {
        if device.fd().is_none() {
            return Ok(None);
        }
        let device = Mutex::new(of_device(device)?);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let driver = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (local, watched) = (OnceLock::new(), AtomicBool::new(false));
        let descriptors = Descriptors { device, bell, driver, timer, local, all, watched };
        descriptors.watch(descriptors.bell.as_fd())?;
        descriptors.watch(descriptors.driver.as_fd())?;
        descriptors.watch(descriptors.timer.as_fd())?;
        Ok(Some(descriptors))
    }

    fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.all, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
    }

    /// Replaces the device's descriptors. A thread that sleeps on the old ones is woken, and sleeps on the
    /// new ones next time.
    pub(crate) fn renew(&self, device: &dyn Datagram) -> io::Result<()> {
        let fresh = of_device(device)?;
        let old = std::mem::replace(&mut *self.lock(), fresh);
        if self.watched.swap(false, Ordering::Relaxed) {
            for fd in &*old {
                // The next `arm` adds one again that both have.
                let _ = epoll::delete(&self.all, fd);
            }
        }
        self.ring();
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Arc<[OwnedFd]>> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of the doorbell, for others to ring.
    pub(crate) fn bell(&self) -> io::Result<OwnedFd> {
        self.bell.try_clone()
    }

    /// A copy of the doorbell of the program that sleeps on [`Descriptors::all`].
    pub(crate) fn driver_bell(&self) -> io::Result<OwnedFd> {
        self.driver.try_clone()
    }

    /// Wakes this node for processes on its host, too.
    pub(crate) fn add_local(&self, local: BorrowedFd<'_>) -> io::Result<()> {
        if self.local.get().is_none() {
            let copy = local.try_clone_to_owned()?;
            self.watch(local)?;
            let _ = self.local.set(copy);
        }
        Ok(())
    }

    /// The one descriptor, for event loops of the program.
    pub(crate) fn all(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }

    /// Prepares [`Descriptors::all`] for a sleep of at most `left`.
    pub(crate) fn arm(&self, left: Option<Nanos>) -> io::Result<()> {
        if !self.watched.swap(true, Ordering::Relaxed) {
            let device = self.lock().clone();
            device.iter().try_for_each(|fd| self.watch(fd.as_fd()))?;
        }
        // Zero would disarm: at least a nanosecond.
        let value = left.map_or(timespec(0), |left| timespec(left.max(1)));
        let spec = Itimerspec { it_interval: timespec(0), it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec)?;
        Ok(())
    }

    /// Rings the doorbell: wakes the thread that sleeps.
    pub(crate) fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Wakes the program that sleeps on [`Descriptors::all`].
    pub(crate) fn ring_driver(&self) {
        let _ = rustix::io::write(&self.driver, &1u64.to_ne_bytes());
    }

    /// For the program that is about to sleep on [`Descriptors::all`]: resets both doorbells.
    pub(crate) fn silence_all(&self) {
        self.silence();
        let _ = rustix::io::read(&self.driver, &mut [0; 8]);
    }

    /// Resets the doorbell.
    pub(crate) fn silence(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    /// The device's descriptors.
    pub(crate) fn device(&self) -> Arc<[OwnedFd]> {
        self.lock().clone()
    }

    /// Readable when a process on this host dials, answers or dies.
    pub(crate) fn local(&self) -> Option<&OwnedFd> {
        self.local.get()
    }

    /// Sleeps until a frame comes, the doorbell rings, or `left` is over. True if the doorbell rang.
    pub(crate) fn sleep(&self, left: Option<Nanos>) -> bool {
        let device = self.lock().clone();
        poll_all(std::iter::once(&self.bell).chain(&*device).chain(self.local()), left)
    }
}

/// Descriptors that are polled without an allocation: more than a device has, with doorbell and discovery.
const SOURCES: usize = 64;

/// Sleeps until one of them is readable; true if the first one is.
pub(crate) fn poll_all<'a>(mut fds: impl Iterator<Item = &'a OwnedFd>, left: Option<Nanos>) -> bool {
    let Some(first) = fds.next() else { return false };
    let mut count = 1;
    let mut some: [PollFd<'a>; SOURCES] = std::array::from_fn(|i| {
        let fd = if i == 0 { None } else { fds.next() };
        count += usize::from(fd.is_some());
        PollFd::new(fd.unwrap_or(first), PollFlags::IN)
    });
    let left = left.map(timespec);
    let Some(next) = fds.next() else {
        let _ = poll(&mut some[..count], left.as_ref());
        return some[0].revents().contains(PollFlags::IN);
    };
    let rest = std::iter::once(next).chain(fds).map(|fd| PollFd::new(fd, PollFlags::IN));
    let mut all: Vec<PollFd<'a>> = some.into_iter().chain(rest).collect();
    let _ = poll(&mut all, left.as_ref());
    all[0].revents().contains(PollFlags::IN)
}

/// Copies of a device's descriptors.
fn of_device(device: &dyn Datagram) -> io::Result<Arc<[OwnedFd]>> {
    device.fd().into_iter().chain(device.more_fds()).map(|fd| fd.try_clone_to_owned()).collect()
}

pub(crate) fn timespec(nanos: Nanos) -> Timespec {
    Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use super::*;

    /// A doorbell that nobody has rung.
    fn bell() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
    }

    /// N-6, N-8: a frame, a ring, or a process on this host that dies ends the sleep of a node, which has no
    /// other limit.
    #[test]
    fn every_descriptor_ends_a_sleep() {
        for readable in 0..4 {
            let sources = [(); 4].map(|()| bell());
            rustix::io::write(&sources[readable], &1_u64.to_ne_bytes()).unwrap();
            let [own, first, second, local] = sources;
            let descriptors = Descriptors {
                device: Mutex::new(Arc::new([first, second])),
                bell: own,
                driver: bell(),
                timer: bell(),
                local: OnceLock::from(local),
                all: bell(),
                watched: AtomicBool::new(false),
            };
            let (done, ended) = mpsc::channel();
            std::thread::spawn(move || done.send(descriptors.sleep(None)));
            let rung = ended.recv_timeout(Duration::from_secs(60));
            assert_eq!(rung, Ok(readable == 0), "descriptor {readable} is readable");
        }
    }
}
