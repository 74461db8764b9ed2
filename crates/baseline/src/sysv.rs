//! The System V message queue: one queue with two types of message, one for each direction. A message longer
//! than the system's limit is sent in pieces, whose lengths both sides know.

use std::io;
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::transport::{Kind, Setup, Side, SpinLimit, Transport};

/// The usual limit of a message.
const PIECE: usize = 8192;

/// A message as the kernel expects it.
#[repr(C)]
struct Message {
    direction: libc::c_long,
    bytes: [u8; PIECE],
}

/// One side of a queue.
pub(crate) struct SysV {
    queue: libc::c_int,
    direction: libc::c_long,
    message: Box<Message>,
    flags: libc::c_int,
    /// On the side that made the queue.
    _remover: Option<Remover>,
}

impl SysV {
    /// Side A makes the queue and sends its number.
    pub(crate) fn open(setup: &mut Setup<'_>) -> io::Result<Self> {
        let (queue, remover) = match setup.side {
            Side::A => {
                // SAFETY: no pointers are involved.
                let queue = check(unsafe { libc::msgget(libc::IPC_PRIVATE, 0o600) })?;
                let remover = Remover::start(queue)?;
                setup.exchange(&queue.to_le_bytes())?;
                (queue, Some(remover))
            }
            Side::B => (libc::c_int::from_le_bytes(setup.exchange(&[0; 4])?), None),
        };
        let message = Box::new(Message { direction: 0, bytes: [0; PIECE] });
        let flags = if setup.blocking { 0 } else { libc::IPC_NOWAIT };
        let direction = if setup.side == Side::A { 1 } else { 2 };
        Ok(Self { queue, direction, message, flags, _remover: remover })
    }

    fn send_piece(&mut self, piece: &[u8]) -> io::Result<()> {
        self.message.direction = self.direction;
        self.message.bytes[..piece.len()].copy_from_slice(piece);
        let message = &raw const *self.message;
        again(|| {
            // SAFETY: the message begins with its type, and `piece.len()` bytes of it are there, as just
            // copied.
            check(unsafe { libc::msgsnd(self.queue, message.cast(), piece.len(), self.flags) })
        })
        .map(drop)
    }

    fn receive_piece(&mut self, piece: &mut [u8]) -> io::Result<()> {
        let message = &raw mut *self.message;
        let (direction, len) = (3 - self.direction, piece.len());
        let got = again(|| {
            // SAFETY: the message has room for its type and for `PIECE` bytes, which `len` does not exceed.
            let got = unsafe { libc::msgrcv(self.queue, message.cast(), len, direction, self.flags) };
            check(got as libc::c_int)
        })?;
        if got as usize != len {
            return Err(io::Error::other(format!(
                "a piece of {got} bytes arrived where {len} were expected"
            )));
        }
        piece.copy_from_slice(&self.message.bytes[..len]);
        Ok(())
    }
}

impl Transport for SysV {
    fn name(&self) -> &'static str {
        Kind::SysV.name()
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return self.send_piece(bytes);
        }
        bytes.chunks(PIECE).try_for_each(|piece| self.send_piece(piece))
    }

    fn recv(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            self.receive_piece(buf)?;
        }
        buf.chunks_mut(PIECE).try_for_each(|piece| self.receive_piece(piece))?;
        Ok(buf.len())
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Repeats a call while there is no room, or no message.
fn again(mut call: impl FnMut() -> io::Result<libc::c_int>) -> io::Result<libc::c_int> {
    let mut spin_limit = SpinLimit::new();
    loop {
        match call() {
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::ENOMSG)) => spin_limit.spin()?,
            result => return result,
        }
    }
}

/// A process that removes the queue when ours has closed its pipe, or is gone: nothing else would.
struct Remover {
    pipe: Option<OwnedFd>,
    process: libc::pid_t,
}

impl Remover {
    fn start(queue: libc::c_int) -> io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        // SAFETY: the child makes system calls only, and touches neither heap nor locks.
        let process = unsafe { libc::fork() };
        if process != 0 {
            if process < 0 {
                let error = io::Error::last_os_error();
                remove(queue);
                return Err(error);
            }
            return Ok(Self { pipe: Some(writer), process });
        }
        drop(writer);
        let _ = rustix::io::read(&reader, &mut [0_u8; 1]);
        remove(queue);
        // SAFETY: ends the child at once, without running any code of the parent.
        unsafe { libc::_exit(0) }
    }
}

fn remove(queue: libc::c_int) {
    // SAFETY: for this command the kernel does not use the pointer.
    let _ = unsafe { libc::msgctl(queue, libc::IPC_RMID, std::ptr::null_mut()) };
}

impl Drop for Remover {
    fn drop(&mut self) {
        self.pipe = None;
        // SAFETY: the status may be null; the child is ours and nobody else waits for it.
        let _ = unsafe { libc::waitpid(self.process, std::ptr::null_mut(), 0) };
    }
}
