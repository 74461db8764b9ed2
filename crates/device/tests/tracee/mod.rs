//! A forked child that is run instruction by instruction, or from one system call to the next, and killed.
#![allow(dead_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

/// Why a child stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It called [`pause`].
    Paused,
    /// One instruction is over.
    Step,
    /// It is about to make a system call, or has made it.
    Call,
    /// It ended, with this status.
    Ended(i32),
    /// Some other signal.
    Signal(i32),
}

/// Stops the calling child until it is told to go on.
pub fn pause() {
    // SAFETY: sends a signal to this very process.
    unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
}

/// A child under control; killed and reaped when dropped.
pub struct Tracee {
    pid: libc::pid_t,
    reaped: bool,
}

impl Tracee {
    /// Forks; the child stops once before `work`, and ends after it.
    pub fn fork(work: impl FnOnce()) -> Tracee {
        // SAFETY: the child makes system calls and allocates, which glibc allows it, and leaves by _exit.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
        if pid == 0 {
            // SAFETY: plain system calls about this process.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<()>(), null_mut::<()>()) != 0 {
                    libc::_exit(77);
                }
            }
            pause();
            let good = catch_unwind(AssertUnwindSafe(work)).is_ok();
            // SAFETY: leaves at once, without the parent's destructors.
            unsafe { libc::_exit(if good { 0 } else { 101 }) }
        }
        let mut child = Tracee { pid, reaped: false };
        let first = child.await_stop();
        assert!(matches!(first, Stop::Paused | Stop::Ended(77)), "{first:?}");
        let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD;
        child.ptrace(libc::PTRACE_SETOPTIONS, options);
        child
    }

    fn ptrace(&self, request: libc::c_uint, data: i32) -> bool {
        // SAFETY: the requests used here read and write no memory of this process.
        unsafe { libc::ptrace(request, self.pid, null_mut::<()>(), data as usize as *mut ()) == 0 }
    }

    /// Lets it run.
    pub fn go(&self) {
        self.ptrace(libc::PTRACE_CONT, 0);
    }

    /// Lets it run one instruction.
    pub fn step(&mut self) -> Stop {
        self.ptrace(libc::PTRACE_SINGLESTEP, 0);
        self.await_stop()
    }

    /// Lets it run to where the next system call begins or ends.
    pub fn next_call(&mut self) -> Stop {
        self.ptrace(libc::PTRACE_SYSCALL, 0);
        self.await_stop()
    }

    /// Waits until it stops.
    pub fn await_stop(&mut self) -> Stop {
        let mut status = 0;
        // SAFETY: the status is written to a variable of ours.
        let got = unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) };
        assert_eq!(got, self.pid, "waitpid: {}", std::io::Error::last_os_error());
        if !libc::WIFSTOPPED(status) {
            self.reaped = true;
            return Stop::Ended(libc::WEXITSTATUS(status));
        }
        match libc::WSTOPSIG(status) {
            libc::SIGSTOP => Stop::Paused,
            libc::SIGTRAP => Stop::Step,
            signal if signal == libc::SIGTRAP | 0x80 => Stop::Call,
            other => Stop::Signal(other),
        }
    }

    /// `kill -9`. It is a zombie then, until it is reaped.
    pub fn kill(&self) {
        // SAFETY: the child is ours and was not reaped, so the number is its own.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }

    /// Waits until it has died, and leaves the zombie there.
    pub fn await_death(&self) {
        // SAFETY: the zeroed value is a valid one, and is only written to.
        let mut info = unsafe { std::mem::zeroed() };
        let pid = self.pid as libc::id_t;
        // SAFETY: as above; WNOWAIT leaves the child where it is.
        unsafe {
            libc::waitid(libc::P_PID, pid, &raw mut info, libc::WEXITED | libc::WNOWAIT | libc::__WALL)
        };
    }

    /// Takes note of its end.
    pub fn reap(&mut self) {
        while !self.reaped {
            self.await_stop();
        }
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill();
            self.reap();
        }
    }
}

/// Whether this process may trace children of its own.
pub fn may_trace() -> bool {
    let mut child = Tracee::fork(pause);
    if child.reaped {
        return false;
    }
    child.go();
    let works = child.await_stop() == Stop::Paused && child.step() == Stop::Step;
    child.kill();
    child.reap();
    works
}
