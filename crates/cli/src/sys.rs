//! What several subcommands need of the system: signals as a descriptor, descriptors that a child inherits,
//! our own executable.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::Signal;
use tautline::node::device::inherit;

/// The signals that are caught.
const CAUGHT: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// Signals that end the process, as a descriptor that becomes readable.
#[derive(Debug)]
pub struct Signals {
    streams: Vec<(Signal, UnixStream)>,
}

impl Signals {
    /// Catches these signals: they no longer end the process.
    pub fn catch() -> io::Result<Signals> {
        let mut streams = Vec::new();
        for signal in CAUGHT {
            let (ours, theirs) = UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            signal_hook::low_level::pipe::register(signal.as_raw(), theirs)?;
            streams.push((signal, ours));
        }
        Ok(Signals { streams })
    }

    /// Lets the next child inherit the descriptors: it then gets the signals that this process is sent.
    pub fn inherited(&self) -> io::Result<Vec<Inherited<'_>>> {
        self.streams.iter().map(|(_, stream)| Inherited::new(stream)).collect()
    }

    /// Takes over the descriptors of the parent. Signals to this process itself are ignored: the terminal
    /// sends them to both.
    pub fn take_over(numbers: &[i32]) -> io::Result<Signals> {
        let mut streams = Vec::new();
        for (signal, number) in CAUGHT.into_iter().zip(numbers) {
            // Not by its disposition, which programs that are started here would inherit.
            signal_hook::flag::register(signal.as_raw(), Arc::default())?;
            streams.push((signal, UnixStream::from(inherit::take(*number)?)));
        }
        Ok(Signals { streams })
    }

    /// Returns the descriptors to poll.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.streams.iter().map(|(_, stream)| stream.as_fd())
    }

    /// Returns a signal that arrived since the last call; SIGTERM once if the parent, whose signals they are,
    /// has ended.
    pub fn take(&mut self) -> Option<Signal> {
        let mut bytes = [0; 64];
        let taken = self.streams.iter_mut().find_map(|(signal, stream)| match stream.read(&mut bytes) {
            Ok(0) => Some(None),
            Ok(_) => Some(Some(*signal)),
            Err(_) => None,
        })?;
        if taken.is_none() {
            self.streams.clear();
        }
        taken.or(Some(Signal::TERM))
    }
}

/// Tells, from a thread, whenever a descriptor is readable, until `tell` returns false. What it is given is
/// dropped when that was handled; then the descriptor is looked at again.
pub fn notice(fd: OwnedFd, tell: impl Fn(Sender<()>) -> bool + Send + 'static) {
    std::thread::spawn(move || {
        while poll_until(&mut [readable(fd.as_fd())], None).is_ok() {
            let (handled, until) = mpsc::channel();
            if !tell(handled) {
                return;
            }
            // It fails, because nothing is sent.
            let _ = until.recv();
        }
    });
}

/// Waits until one of the descriptors is readable; false if `until` passed first.
pub fn poll_until(fds: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        match poll(fds, left.map(timespec).as_ref()) {
            Ok(n) => return Ok(n > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Polls a descriptor for reading.
pub fn readable<'a>(fd: BorrowedFd<'a>) -> PollFd<'a> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

fn timespec(time: Duration) -> Timespec {
    // Rounded up, so that a wait does not end early.
    let time = time + Duration::from_micros(1);
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}

/// A descriptor that the next program started inherits, until this is dropped.
pub struct Inherited<'a>(BorrowedFd<'a>);

impl<'a> Inherited<'a> {
    /// Lets the next child inherit the descriptor. Nobody else may start programs meanwhile.
    pub fn new(fd: &'a impl AsFd) -> io::Result<Inherited<'a>> {
        fcntl_setfd(fd, FdFlags::empty())?;
        Ok(Inherited(fd.as_fd()))
    }

    /// The number of the descriptor, here and in the child.
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

impl Drop for Inherited<'_> {
    fn drop(&mut self) {
        let _ = fcntl_setfd(self.0, FdFlags::CLOEXEC);
    }
}

/// The file of this program.
pub const THIS_PROGRAM: &str = "/proc/self/exe";

/// This program, to be started again, even if its file was replaced or removed meanwhile.
pub fn this_program() -> Command {
    let mut command = Command::new(THIS_PROGRAM);
    command.arg0("tautline");
    command
}

/// Makes this process end with its `parent`; false if that is gone already.
pub fn end_with(parent: i32) -> io::Result<bool> {
    end_with_signal(parent, Signal::KILL)
}

/// The same with a signal that this process may catch.
pub fn end_with_signal(parent: i32, signal: Signal) -> io::Result<bool> {
    rustix::process::set_parent_process_death_signal(Some(signal))?;
    Ok(rustix::process::getppid().is_some_and(|pid| pid.as_raw_pid() == parent))
}
