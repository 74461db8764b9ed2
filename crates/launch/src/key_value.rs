//! What launchers have in common: a space of keys and values that all processes of a job share.

use std::io;

use tautline_node::Rank;

/// A launcher's key-value space, as one process of the job sees it.
pub(crate) trait KeyValueSpace {
    /// Publishes a value, for all processes to see after the next fence.
    fn put(&mut self, key: &str, value: &str) -> io::Result<()>;

    /// Waits until all processes have called this as often.
    fn fence(&mut self) -> io::Result<()>;

    /// Returns a value that the process of rank `from` published.
    fn get(&mut self, from: Rank, key: &str) -> io::Result<String>;

    /// Tells the launcher that this process needs the space no more, so that its end is no failure.
    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// A process that its launcher has admitted.
pub(crate) struct Admitted {
    pub(crate) rank: Rank,
    pub(crate) size: u32,
    pub(crate) space: Box<dyn KeyValueSpace>,
}

/// An answer of the launcher that is not what was asked for.
pub(crate) fn unexpected(asked: &str, answer: &str) -> io::Error {
    let start: String = answer.trim_end().chars().take(120).collect();
    io::Error::new(io::ErrorKind::InvalidData, format!("\"{asked}\" was answered with \"{start}\""))
}
