//! What a rank is told of the others, on a pipe that it inherits (N-26).

use std::io::{PipeReader, PipeWriter, Write};
use std::net::SocketAddr;

use anyhow::Result;
use rustix::io::ioctl_fionbio;
use tautline::node::join_addresses;

/// What has become of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It failed, or was killed, or its host was lost.
    Died,
    /// It ended with 0.
    Left,
    /// It was started again.
    Started,
}

impl Notice {
    /// All of them, in the order of their codes on the control connection.
    pub const ALL: [Notice; 3] = [Notice::Died, Notice::Left, Notice::Started];

    fn word(self) -> &'static str {
        match self {
            Notice::Died => "died",
            Notice::Left => "left",
            Notice::Started => "started",
        }
    }
}

/// The launcher's end of the pipe; closed when the rank has closed its own, because it wants no notices.
#[derive(Debug)]
pub struct Notices(Option<PipeWriter>);

impl Notices {
    /// The launcher's end, and the rank's.
    pub fn new() -> Result<(Notices, PipeReader)> {
        let (reader, writer) = std::io::pipe()?;
        // A rank that does not read must not hold up the launcher.
        ioctl_fionbio(&writer, true)?;
        Ok((Notices(Some(writer)), reader))
    }

    /// Tells the rank what has become of another one. A rank that has not read thousands of notices is not
    /// told of more: the pipe is closed, so that it can know.
    pub fn tell(&mut self, rank: usize, notice: Notice) {
        self.write(&format!("{} {rank}\n", notice.word()));
    }

    /// Tells a rank that has just been started what has become of others before.
    pub fn tell_all(&mut self, ended: impl IntoIterator<Item = (usize, Notice)>) {
        ended.into_iter().for_each(|(rank, notice)| self.tell(rank, notice));
    }

    /// Tells the rank that another one has joined the job, and where it is: its addresses, and the number of
    /// its host in a job on several (J-23).
    pub fn tell_joined(&mut self, rank: usize, addrs: &[SocketAddr], host: Option<u64>) {
        let host = host.map_or(String::new(), |host| format!(" {host:016x}"));
        let addrs = join_addresses(addrs.iter().copied());
        self.write(&format!("joined {rank} {addrs}{host}\n"));
    }

    fn write(&mut self, line: &str) {
        // One write, which is shorter than what a pipe takes at once.
        if self.0.as_mut().is_some_and(|pipe| pipe.write_all(line.as_bytes()).is_err()) {
            self.0 = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// N-26: notices are lines; a reader that is slow or gone holds up nobody.
    #[test]
    fn notices_are_lines() {
        let (mut notices, mut reader) = Notices::new().unwrap();
        for (rank, notice) in (7..).zip(Notice::ALL) {
            notices.tell(rank, notice);
        }
        let mut bytes = [0; 64];
        let n = reader.read(&mut bytes).unwrap();
        assert_eq!(&bytes[..n], b"died 7\nleft 8\nstarted 9\n");
        let addrs = ["127.0.0.1:7000", "127.0.0.2:7000"].map(|addr| addr.parse().unwrap());
        notices.tell_joined(10, &addrs[..1], None);
        notices.tell_joined(10, &addrs, Some(0xab));
        let mut text = [0; 128];
        let n = reader.read(&mut text).unwrap();
        assert_eq!(
            &text[..n],
            b"joined 10 127.0.0.1:7000\njoined 10 127.0.0.1:7000,127.0.0.2:7000 00000000000000ab\n"
        );
        (0..100_000).for_each(|rank| notices.tell(rank, Notice::Died));
        assert!(notices.0.is_none());
        let (mut notices, reader) = Notices::new().unwrap();
        drop(reader);
        notices.tell(1, Notice::Died);
        assert!(notices.0.is_none());
    }
}
