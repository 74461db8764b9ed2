//! Files with a key in them (J-2).

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use tautline_node::JoinError;
use tautline_node::limits::MAX_JOB_FILE;
use tautline_node::link::{JobKey, erase};

use crate::hex;

/// Opens a file that must belong to this process's user and be readable by nobody else.
pub(crate) fn open(path: &Path) -> Result<File, JoinError> {
    let unreadable = |why: String| JoinError::Unreadable(format!("{}: {why}", path.display()));
    // What was opened is checked, not what the path names; opening a FIFO must not wait for a writer.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(nonblocking)
        .open(path)
        .map_err(|e| unreadable(e.to_string()))?;
    let meta = file.metadata().map_err(|e| unreadable(e.to_string()))?;
    if !meta.is_file() {
        return Err(unreadable("not a regular file".into()));
    }
    let user = rustix::process::geteuid().as_raw();
    if meta.uid() != user {
        return Err(unreadable(format!(
            "it belongs to user {}, who knows the key and can change it, and this process runs as user {user}; run: chown {user} {}",
            meta.uid(),
            path.display()
        )));
    }
    if meta.mode() & 0o077 != 0 {
        return Err(unreadable(format!(
            "mode {:04o} lets others read the key; run: chmod 600 {}",
            meta.mode() & 0o7777,
            path.display()
        )));
    }
    Ok(file)
}

/// Reads a file, hands its text to `parse`, and erases the text, which has the key in it (H-17).
pub(crate) fn read_and_erase<T>(file: File, parse: impl FnOnce(&str) -> T) -> io::Result<T> {
    // With room for all of it, so that no part is copied and left behind.
    let mut text = String::new();
    text.try_reserve_exact(MAX_JOB_FILE + 64).map_err(|_| {
        let why = "no memory is left to read it; raise the limit, for example: ulimit -v 100000";
        io::Error::new(io::ErrorKind::OutOfMemory, why)
    })?;
    let read = file.take(MAX_JOB_FILE as u64).read_to_string(&mut text);
    let parsed = parse(&text);
    let mut bytes = text.into_bytes();
    erase(&mut bytes);
    read.map(|_| parsed)
}

/// Reads a file that has only a key in it.
pub(crate) fn read_key(path: &Path) -> Result<JobKey, JoinError> {
    let key = read_and_erase(open(path)?, |text| parse_key(text.trim()))
        .map_err(|e| JoinError::Unreadable(format!("{}: {e}", path.display())))?;
    key.ok_or_else(|| JoinError::Nonsense(format!("{}: {NO_KEY}", path.display())))
}

/// What a key must be. The key itself never appears in an error.
pub(crate) const NO_KEY: &str = "the key is not 64 hexadecimal digits";

/// A key of 64 hexadecimal digits.
pub fn parse_key(text: &str) -> Option<JobKey> {
    hex::decode(text).map(JobKey::new)
}

/// The key as 64 hexadecimal digits, to be passed on where nobody else reads it.
pub fn encode_key(key: &JobKey) -> String {
    hex::encode(key.bytes())
}
