//! What launchers have in common: a space of keys and values that all processes of a job share.

use std::io;

use tautline_node::Rank;

/// A launcher's key-value space, as one process of the job sees it.
pub(crate) trait KeyValueSpace: Send {
    /// Publishes a value, for all processes to see after the next fence.
    fn put(&mut self, key: &str, value: &str) -> io::Result<()>;

    /// Waits until all processes have called this as often.
    fn fence(&mut self) -> io::Result<()>;

    /// Returns a value that the process of rank `from` published.
    fn get(&mut self, from: Rank, key: &str) -> io::Result<String>;

    /// Tells the launcher that this process needs the space no more, so that its end is no failure.
    fn finish(self: Box<Self>) -> io::Result<()>;

    /// Asks the launcher to end all processes of the job with this code. It may end this one before this
    /// returns.
    fn abort(&mut self, code: i32) -> io::Result<()>;

    /// Which of the programs of the job this process runs, if the launcher says it.
    fn program_index(&mut self) -> Option<u32>;

    /// How many processes the launcher could start, if it says it.
    fn universe_size(&mut self) -> Option<u32>;
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
