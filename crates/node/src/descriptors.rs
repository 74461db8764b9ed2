//! What the kernel can wake a node by: the device, other threads, and time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use tautline_device::Datagram;
use tautline_link::Nanos;

#[derive(Debug)]
pub(crate) struct Descriptors {
    device: OwnedFd,
    /// What else the device wakes by: at most two.
    more: Vec<OwnedFd>,
    bell: OwnedFd,
    timer: OwnedFd,
    /// Somebody on this host knocks, answers or dies.
    door: Option<OwnedFd>,
    all: OwnedFd,
    /// The device is in `all`. Not from the start: a socket that is in an epoll set costs every sender a call into it.
    watched: AtomicBool,
}

impl Descriptors {
    /// `None` for a device that has no descriptor.
    pub(crate) fn new(device: &dyn Datagram) -> io::Result<Option<Descriptors>> {
        let Some(fd) = device.fd() else { return Ok(None) };
        let more = device
            .more_fds()
            .into_iter()
            .flatten()
            .map(|fd| fd.try_clone_to_owned())
            .collect::<Result<_, _>>()?;
        let device = fd.try_clone_to_owned()?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let descriptors =
            Descriptors { device, more, bell, timer, door: None, all, watched: AtomicBool::new(false) };
        descriptors.watch(descriptors.bell.as_fd())?;
        descriptors.watch(descriptors.timer.as_fd())?;
        Ok(Some(descriptors))
    }

    fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.all, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
    }

    /// What others ring.
    pub(crate) fn bell(&self) -> io::Result<OwnedFd> {
        self.bell.try_clone()
    }

    /// Wakes this node when something happens at its door, too.
    pub(crate) fn add_door(&mut self, door: BorrowedFd<'_>) -> io::Result<()> {
        self.watch(door)?;
        self.door = Some(door.try_clone_to_owned()?);
        Ok(())
    }

    /// The one descriptor for loops of the program's own.
    pub(crate) fn all(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }

    /// Prepares [`Descriptors::all`] for a sleep that shall end in `left` at the latest.
    pub(crate) fn arm(&self, left: Option<Nanos>) -> io::Result<()> {
        if !self.watched.swap(true, Ordering::Relaxed) {
            self.watch(self.device.as_fd())?;
            for more in &self.more {
                self.watch(more.as_fd())?;
            }
        }
        // Zero would disarm: at least a nanosecond.
        let value = left.map_or(timespec(0), |left| timespec(left.max(1)));
        let spec = Itimerspec { it_interval: timespec(0), it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec)?;
        Ok(())
    }

    /// Makes whoever sleeps look again.
    pub(crate) fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Forgets that it rang.
    pub(crate) fn silence(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    /// What else the device wakes by, to poll; the device itself where there is nothing.
    fn more(&self) -> [PollFd<'_>; 2] {
        [0, 1].map(|i| PollFd::new(self.more.get(i).unwrap_or(&self.device), PollFlags::IN))
    }

    /// Sleeps until a frame comes or `left` is over.
    pub(crate) fn sleep_on_device(&self, left: Option<Nanos>) {
        let door = self.door.as_ref().unwrap_or(&self.device);
        let [first, second] = self.more();
        let mut fds =
            [PollFd::new(&self.device, PollFlags::IN), PollFd::new(door, PollFlags::IN), first, second];
        let _ = poll(&mut fds[..2 + self.more.len()], left.map(timespec).as_ref());
    }

    /// Sleeps until a frame comes, somebody rings, or `left` is over. True if somebody rang.
    pub(crate) fn sleep(&self, left: Option<Nanos>) -> bool {
        let door = self.door.as_ref().unwrap_or(&self.device);
        let [first, second] = self.more();
        let mut fds = [
            PollFd::new(&self.device, PollFlags::IN),
            PollFd::new(&self.bell, PollFlags::IN),
            PollFd::new(door, PollFlags::IN),
            first,
            second,
        ];
        let _ = poll(&mut fds[..3 + self.more.len()], left.map(timespec).as_ref());
        fds[1].revents().contains(PollFlags::IN)
    }
}

pub(crate) fn timespec(nanos: Nanos) -> Timespec {
    Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 }
}
