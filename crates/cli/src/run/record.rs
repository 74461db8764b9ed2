//! What a supervisor has to unlink after the process that it supervises.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::rc::Rc;

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use tautline::node::device::inherit;
use tautline::node::link::erase;
use tautline_launch::job_file;

use super::process::ListenerCleanup;
use crate::sys::Inherited;

/// Begins a line that says how many ranks have joined since. In a description it is a comment.
const JOINED: &str = "# joined ";

/// The name of the memory, for those who look at descriptors.
const NAME: &str = "tautline-record";

/// The job's description, in memory that a launcher or agent and its supervisor share.
#[derive(Debug)]
pub struct Record(File);

impl Record {
    pub fn new() -> io::Result<Record> {
        Ok(Record(memfd_create(NAME, MemfdFlags::CLOEXEC)?.into()))
    }

    /// Whether this descriptor of the process is that of a record.
    pub fn is_at(number: i32) -> bool {
        let name = std::fs::read_link(format!("/proc/self/fd/{number}"));
        name.is_ok_and(|name| name.to_string_lossy().starts_with(&format!("/memfd:{NAME}")))
    }

    /// Lets the next child inherit it.
    pub fn inherited(&self) -> io::Result<Inherited<'_>> {
        Inherited::new(&self.0)
    }

    /// Takes over the one that this process has inherited.
    pub fn take(number: i32) -> io::Result<Record> {
        Ok(Record(inherit::take(number)?.into()))
    }

    /// Leaves the description of a job whose ranks are about to be started.
    pub fn write(&mut self, job: &ListenerCleanup) -> Result<()> {
        let mut text = job_file::describe(0, &job.key, &job.members, None, None, None).into_bytes();
        let written = self.0.write_all(&text);
        erase(&mut text);
        written.context("cannot note the job for the supervisor\nis there memory left? the reason was")
    }

    /// Notes that further ranks are about to be started, so that this many have joined in all.
    pub fn write_joined(&mut self, joined: u32) -> Result<()> {
        let written = self.0.write_all(format!("{JOINED}{joined}\n").as_bytes());
        written
            .context("cannot note ranks that join for the supervisor\nis there memory left? the reason was")
    }

    /// Unlinks the listeners of the job, if one was started.
    pub fn clean_up(mut self) {
        drop(self.read());
    }

    fn read(&mut self) -> Option<ListenerCleanup> {
        let len = self.0.metadata().ok()?.len() as usize;
        // With room for all of it, so that no part of the key is copied and left behind.
        let mut text = String::with_capacity(len + 1);
        self.0.rewind().ok()?;
        self.0.read_to_string(&mut text).ok()?;
        let joined = text.lines().filter_map(|line| line.strip_prefix(JOINED)?.parse().ok()).next_back();
        let joined = Rc::new(Cell::new(joined.unwrap_or(0)));
        let job = job_file::parse(&text).ok();
        erase(&mut text.into_bytes());
        job.map(|job| ListenerCleanup { key: job.key, members: job.members.to_vec(), joined })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use tautline::Member;
    use tautline::node::link::JobKey;

    use super::*;

    /// What was written is read back, with the last number of ranks that joined.
    #[test]
    fn records_read_back() {
        let mut record = Record::new().unwrap();
        assert!(record.read().is_none());
        assert!(Record::is_at(record.0.as_raw_fd()) && !Record::is_at(2));
        let mut record = Record::new().unwrap();
        let members = vec![Member::new("127.0.0.1:7000".parse().unwrap())];
        let joined = Rc::<Cell<u32>>::default();
        record.write(&ListenerCleanup { key: JobKey::new([7; 32]), members, joined }).unwrap();
        for expected in [0, 2, 11] {
            let read = record.read().unwrap();
            assert_eq!((read.members.len(), read.joined.get()), (1, expected));
            record.write_joined(if expected == 0 { 2 } else { 11 }).unwrap();
        }
    }
}
