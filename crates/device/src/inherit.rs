//! Descriptors that a launcher passed on purpose.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

static TAKEN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Takes over an inherited descriptor (J-4) by its number, and sets it to be closed on `exec`. Each number
/// can be taken once.
pub fn take(number: RawFd) -> io::Result<OwnedFd> {
    let mut taken = TAKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if number < 3 || taken.contains(&number) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not an inherited descriptor"));
    }
    // SAFETY: F_GETFD only checks that the descriptor exists.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor exists, the launcher passed it for us to own, and the list above prevents a
    // second owner.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    taken.push(number);
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::IntoRawFd;

    /// J-4: a descriptor is taken once and closed on exec from then on; invalid numbers are refused.
    #[test]
    fn descriptors_are_taken_once() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let number = OwnedFd::from(reader).into_raw_fd();
        let fd = take(number).unwrap();
        assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        assert!(take(number).is_err());
        for wrong in [-1, 0, 2, 100_000] {
            assert!(take(wrong).is_err(), "{wrong}");
        }
    }
}
