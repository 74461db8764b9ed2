//! A forked child that is run by single instructions, or from one system call to the next, and killed.
#![allow(dead_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

/// Why a child stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It called [`pause`].
    Paused,
    /// It executed one instruction.
    Step,
    /// It enters or leaves a system call.
    Call,
    /// It exited, with this status.
    Ended(i32),
    /// Another signal.
    Signal(i32),
}

/// Stops the calling child until it is continued.
pub fn pause() {
    // SAFETY: sends a signal to this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
}

/// A traced child; killed and reaped when dropped.
pub struct Tracee {
    pid: libc::pid_t,
    reaped: bool,
}

impl Tracee {
    /// Forks; the child stops once before `work`, and exits after it.
    pub fn fork(work: impl FnOnce()) -> Tracee {
        // SAFETY: the child makes system calls and allocates, which glibc allows, and leaves by _exit.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
        if pid == 0 {
            // SAFETY: system calls that concern only this process.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<()>(), null_mut::<()>()) != 0 {
                    libc::_exit(77);
                }
            }
            pause();
            let good = catch_unwind(AssertUnwindSafe(work)).is_ok();
            // SAFETY: exits at once, without the parent's destructors.
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

    /// Continues the child.
    pub fn go(&self) {
        self.ptrace(libc::PTRACE_CONT, 0);
    }

    /// Executes one instruction.
    pub fn step(&mut self) -> Stop {
        self.ptrace(libc::PTRACE_SINGLESTEP, 0);
        self.await_stop()
    }

    /// Continues the child to the next entry or exit of a system call.
    pub fn next_call(&mut self) -> Stop {
        self.ptrace(libc::PTRACE_SYSCALL, 0);
        self.await_stop()
    }

    /// Waits until it stops.
    pub fn await_stop(&mut self) -> Stop {
        let mut status = 0;
        // SAFETY: the status is written to a local variable.
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

    /// Sends SIGKILL. The child is a zombie until it is reaped.
    pub fn kill(&self) {
        // SAFETY: the child is ours and was not reaped, so the id is its own.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }

    /// Waits until the child has died, without reaping it.
    pub fn await_death(&self) {
        // SAFETY: the zeroed value is valid, and is only written to.
        let mut info = unsafe { std::mem::zeroed() };
        let pid = self.pid as libc::id_t;
        // SAFETY: as above; WNOWAIT does not reap the child.
        unsafe {
            libc::waitid(libc::P_PID, pid, &raw mut info, libc::WEXITED | libc::WNOWAIT | libc::__WALL)
        };
    }

    /// Reaps the child.
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

/// Whether this process may trace its children.
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
