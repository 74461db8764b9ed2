//! What it costs to move a buffer, by the ways that there are (a plain copy is [`copies`](super::copies)).
//! Nobody rewrites or reads the bytes: only the moving is measured.

use std::hint::black_box;
use std::io;

use crate::cpu::{Measured, Stopwatch};
use crate::transport::{Setup, Side};

/// How a buffer is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Copied past the caches, by non-temporal stores.
    NonTemporal,
    /// Copied to a slot, and from there to its place: two copies, both by one process.
    Slot,
    /// Copied out of the other process by the kernel (`process_vm_readv`).
    Readv,
    /// Copied once, with its pages pinned before and released after.
    Pinned,
}

impl Transfer {
    /// Every way that this processor has.
    #[must_use]
    pub fn all() -> Vec<Transfer> {
        let past_caches = cfg!(target_arch = "x86_64").then_some(Transfer::NonTemporal);
        past_caches.into_iter().chain([Transfer::Slot, Transfer::Readv, Transfer::Pinned]).collect()
    }
}

/// Side A moves a buffer of `bytes` bytes `count` times; side B waits, and lends its memory where that is
/// needed.
///
/// # Errors
/// Whatever the system reports: a limit of pinned memory, for instance, or that one process may not read the
/// memory of another.
pub fn transfers(setup: &mut Setup<'_>, how: Transfer, bytes: usize, count: u64) -> io::Result<Measured> {
    let source: Vec<u64> = (1..=bytes.div_ceil(8) as u64).collect();
    let mut place = vec![0_u64; bytes.div_ceil(8)];
    let mut slot = vec![0_u64; bytes.div_ceil(8)];
    let theirs = Theirs::exchange(setup, &source)?;
    let mut once = || -> io::Result<()> {
        match how {
            Transfer::NonTemporal => past_caches(black_box(&source), &mut place),
            Transfer::Slot => {
                slot.copy_from_slice(black_box(&source));
                place.copy_from_slice(black_box(&slot));
            }
            Transfer::Readv => theirs.read(&mut place, bytes)?,
            Transfer::Pinned => pinned(&source, || place.copy_from_slice(black_box(&source)))?,
        }
        black_box(&mut place);
        Ok(())
    };
    let mut watch = Stopwatch::start();
    let mut done = Ok(());
    if setup.side == Side::A {
        done = once();
        watch = Stopwatch::start();
        if done.is_ok() {
            done = (0..count).try_for_each(|_| once());
        }
    }
    let measured = watch.stop(count, count * bytes as u64, 0);
    // The other side's memory stays until here, whatever happened.
    setup.barrier()?;
    done?;
    // Both sides fill their buffers in the same way.
    if setup.side == Side::A && count > 0 && place[..bytes / 8] != source[..bytes / 8] {
        return Err(io::Error::other("other bytes arrived than were to be moved"));
    }
    Ok(measured)
}

/// Where the other process has its buffer.
struct Theirs {
    process: i32,
    at: u64,
}

impl Theirs {
    fn exchange(setup: &mut Setup<'_>, buffer: &[u64]) -> io::Result<Theirs> {
        let mut ours = [0; 12];
        ours[..4].copy_from_slice(&std::process::id().to_le_bytes());
        ours[4..].copy_from_slice(&(buffer.as_ptr() as u64).to_le_bytes());
        let theirs = setup.exchange(&ours)?;
        let process = i32::from_le_bytes(std::array::from_fn(|i| theirs[i]));
        let at = u64::from_le_bytes(std::array::from_fn(|i| theirs[4 + i]));
        // Where only named processes may read this one, the other is named. Elsewhere this fails, and is not
        // needed.
        // SAFETY: this option takes a number and touches no memory.
        let _ = unsafe { libc::prctl(libc::PR_SET_PTRACER, process as libc::c_ulong) };
        setup.barrier()?;
        Ok(Theirs { process, at })
    }

    fn read(&self, place: &mut [u64], bytes: usize) -> io::Result<()> {
        let local = libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len: bytes.min(8 * place.len()) };
        let remote = libc::iovec { iov_base: self.at as *mut libc::c_void, iov_len: local.iov_len };
        // SAFETY: the local piece is within `place`, which is borrowed mutably. The remote one lies in the
        // other process, where the kernel checks it.
        let got =
            unsafe { libc::process_vm_readv(self.process, &raw const local, 1, &raw const remote, 1, 0) };
        match got {
            got if got == local.iov_len as isize => Ok(()),
            got if got < 0 => Err(io::Error::last_os_error()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Pins a buffer's pages while something is done.
fn pinned(buffer: &[u64], run: impl FnOnce()) -> io::Result<()> {
    let (at, len) = (buffer.as_ptr().cast_mut().cast(), size_of_val(buffer));
    // SAFETY: these pages are mapped; pinning changes nothing that the program sees.
    unsafe { rustix::mm::mlock(at, len)? };
    run();
    // SAFETY: as above.
    unsafe { rustix::mm::munlock(at, len)? };
    Ok(())
}

#[cfg(target_arch = "x86_64")]
fn past_caches(from: &[u64], to: &mut [u64]) {
    for (from, to) in from.iter().zip(to) {
        // SAFETY: `to` is a mutable reference, aligned to eight bytes, and every x86-64 has this instruction.
        unsafe { core::arch::x86_64::_mm_stream_si64(std::ptr::from_mut(to).cast(), *from as i64) };
    }
    // SAFETY: every x86-64 has this instruction.
    unsafe { core::arch::x86_64::_mm_sfence() };
}

#[cfg(not(target_arch = "x86_64"))]
fn past_caches(from: &[u64], to: &mut [u64]) {
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};
    use std::os::unix::net::UnixStream;

    #[test]
    fn stores_past_the_caches_arrive() {
        let from: Vec<u64> = (0..100).collect();
        let mut to = vec![0; 100];
        past_caches(&from, &mut to);
        assert_eq!(from, to);
    }

    #[test]
    fn every_way_moves_every_byte() {
        for how in Transfer::all() {
            let (mut a, mut b) = UnixStream::pair().unwrap();
            let run = |side, control: &mut UnixStream| {
                let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
                let mut setup = Setup { side, control, local, remote: local, blocking: false, rcvbuf: None };
                transfers(&mut setup, how, 4096, 3)
            };
            let moved = std::thread::scope(|scope| {
                let other = scope.spawn(move || run(Side::B, &mut b));
                let moved = run(Side::A, &mut a).unwrap();
                other.join().unwrap().unwrap();
                moved
            });
            assert_eq!((moved.messages, moved.bytes), (3, 3 * 4096), "{how:?}");
        }
    }
}
