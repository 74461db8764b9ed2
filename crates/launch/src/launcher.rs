//! The connection with the launcher that started this process, for programs that need it after they have
//! joined: to have the launcher end the whole job, and to ask what it knows of the job (J-29, J-30).
//!
//! By default a process finalizes the launcher's protocol as soon as it has joined (J-12): launchers end all
//! processes when one ends that has not.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, fstat};
use rustix::io::ioctl_fionread;
use tautline_node::Rank;

use crate::JOB_FD;
use crate::key_value::KeyValueSpace;

/// Names the numbers of processes of the programs of a job, in the order of the ranks, as in `1,3`.
pub const PROGRAMS: &str = "TAUTLINE_PROGRAMS";

/// How long a launcher may take to read what an aborting process has written.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// Whether the next join keeps its connection.
static KEEP: AtomicBool = AtomicBool::new(false);
/// The connection.
static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

/// A connection, and what the launcher said.
struct Kept {
    space: Box<dyn KeyValueSpace>,
    program: Option<u32>,
    universe: Option<u32>,
}

/// Has the join that follows keep the connection, until [`release`]. The launcher then takes an end of this
/// process without that for a failure.
pub fn keep() {
    KEEP.store(true, Ordering::Relaxed);
}

/// Tells the launcher that the end of this process is no failure. Does nothing if no connection was kept.
pub fn release() -> io::Result<()> {
    let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner).take();
    kept.map_or(Ok(()), |kept| kept.space.finish())
}

/// Asks the launcher to end all processes of the job, with this exit code. Does nothing if no connection was
/// kept: `tautline run` ends the others when a process fails.
pub fn abort(code: i32) -> io::Result<()> {
    // Another thread that leaves the job at this moment, and is stuck, must not hold this one up.
    let Ok(mut kept) = KEPT.try_lock() else { return Ok(()) };
    let Some(kept) = &mut *kept else { return Ok(()) };
    await_readers();
    kept.space.abort(code)
}

/// Waits until what this process has written to pipes is read: hydra drops what it has not read when a job is
/// aborted.
fn await_readers() {
    let until = Instant::now() + READ_WITHIN;
    let is_unread = |stream: BorrowedFd<'_>| {
        let is_pipe = fstat(stream).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo);
        is_pipe && ioctl_fionread(stream).is_ok_and(|bytes| bytes > 0)
    };
    let (output, errors) = (io::stdout(), io::stderr());
    while (is_unread(output.as_fd()) || is_unread(errors.as_fd())) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Which of the programs of its job this process, of this rank, runs: 0 is the first one. None if the
/// launcher says nothing about it.
pub fn program_index(rank: Rank) -> Option<u32> {
    if let Some(kept) = &*KEPT.lock().unwrap_or_else(PoisonError::into_inner) {
        return kept.program;
    }
    std::env::var_os(JOB_FD)?;
    index_of(rank, &std::env::var(PROGRAMS).ok()?)
}

/// How many processes the launcher could start, as it says itself.
pub fn universe_size() -> Option<u32> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.universe
}

/// The program of a rank, of programs with these numbers of processes. Ranks that joined later have none.
fn index_of(rank: Rank, counts: &str) -> Option<u32> {
    let mut next = 0_u32;
    (0..).zip(counts.split(',')).find_map(|(index, count)| match count.parse::<u32>() {
        Ok(count) => {
            next = next.saturating_add(count);
            (rank < next).then_some(Some(index))
        }
        Err(_) => Some(None),
    })?
}

/// Keeps the connection if that was asked for, or ends it.
pub(crate) fn keep_or_finish(mut space: Box<dyn KeyValueSpace>) -> io::Result<()> {
    if !KEEP.swap(false, Ordering::Relaxed) {
        return space.finish();
    }
    let (program, universe) = (space.program_index(), space.universe_size());
    *KEPT.lock().unwrap_or_else(PoisonError::into_inner) = Some(Kept { space, program, universe });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// J-30: programs follow each other in the order of the ranks.
    #[test]
    fn programs_are_counted() {
        let indices = |counts: &str| (0..5).map(|rank| index_of(rank, counts)).collect::<Vec<_>>();
        assert_eq!(indices("1,3"), [Some(0), Some(1), Some(1), Some(1), None]);
        assert_eq!(indices("0,2"), [Some(1), Some(1), None, None, None]);
        assert_eq!(indices("1,x,4"), [Some(0), None, None, None, None]);
        assert_eq!(indices(""), [None; 5]);
    }
}
