//! Memory of another process, opened by the number of its descriptor.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

/// What the kernel calls the memory of a [`crate::Segment`].
const NAME: &[u8] = b"/memfd:tautline (deleted)";

/// Opens memory that another process of this user has allocated, given the number of its descriptor there.
/// Whatever that number refers to by now, this does not wait, and opens no device.
///
/// # Errors
/// If there is no such process or descriptor, or it is no memory of ours. Its seals are checked when it is
/// mapped.
pub fn open_memory_of(process: u32, number: u32, writable: bool) -> io::Result<OwnedFd> {
    let none = Mode::empty();
    // This only refers to the file. Opening it would let its driver, or whoever serves it, take its time.
    let path = format!("/proc/{process}/fd/{number}");
    let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, none)?;
    let own = format!("/proc/self/fd/{}", place.as_raw_fd());
    if rustix::fs::readlink(own.as_str(), Vec::new())?.to_bytes() != NAME {
        return Err(not_memory());
    }
    let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    // A file may have that name, too, and may be a FIFO.
    let memory = rustix::fs::open(own, access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC, none)?;
    if rustix::fs::fcntl_get_seals(&memory).is_err() { Err(not_memory()) } else { Ok(memory) }
}

fn not_memory() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "this is no memory of an aperture")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    use crate::Segment;

    /// memory is opened, with the access that was asked for; nothing else is.
    #[test]
    fn only_memory_is_opened() {
        let segment = Segment::create(4096).unwrap();
        let (me, number) = (std::process::id(), segment.fd().as_raw_fd() as u32);
        segment.copy_in(0, b"here");
        let other = Segment::attach(open_memory_of(me, number, true).unwrap(), 4096).unwrap();
        let mut got = [0; 4];
        other.copy_out(0, &mut got);
        assert_eq!(&got, b"here");
        let read_only = open_memory_of(me, number, false).unwrap();
        assert!(rustix::io::write(&read_only, b"no").is_err());
        let (reader, writer) = std::io::pipe().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        for fd in [reader.as_fd(), writer.as_fd(), null.as_fd()] {
            let refused = open_memory_of(me, fd.as_raw_fd() as u32, false).unwrap_err();
            assert!(refused.to_string().contains("no memory"), "{refused}");
        }
        assert!(open_memory_of(me, 1 << 30, false).is_err());
    }
}
