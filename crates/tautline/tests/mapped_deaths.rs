//! Processes that have mapped each other's memory, killed and restarted.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::Cell;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::rc::Rc;
use std::time::Duration;

use crate::common::launch::{Launcher, again, is_member};
use crate::common::victim::{await_up, until};
use crate::common::{Limit, join};
use tautline::memory::{MapCookie, Rights};
use tautline::{DeviceName, Endpoint, Error, Short};

/// A builder that receives cookies for mappings.
fn taker() -> (tautline::Builder, Rc<Cell<Option<MapCookie>>>) {
    let taken = Rc::new(Cell::new(None));
    let inbox = taken.clone();
    let builder = Endpoint::builder()
        .on_short("map", move |m: Short<'_>| inbox.set(m.data().try_into().ok().map(MapCookie::from_bytes)));
    (builder, taken)
}

/// Not a test by itself: maps what it is given, writes there that it has, and shares memory of its own, until
/// it is killed.
#[test]
fn mapping_member() {
    if !is_member("mapped_deaths::mapping_member") {
        return;
    }
    let (builder, taken) = taker();
    let ep = builder.join().unwrap();
    ep.connect(0).unwrap();
    let own = ep.aperture(64).unwrap();
    let share = own.share(Rights::ALL).unwrap();
    ep.run_until(|| taken.get().is_some()).unwrap();
    let mapped = ep.map(&taken.take().expect("it came")).unwrap();
    mapped.write_u64(0, u64::from(std::process::id())).unwrap();
    ep.send(0, "map", &share.cookie().to_bytes()).unwrap();
    ep.run_until(|| false).unwrap();
}

/// mappings of a killed process do not count, also when its rank is restarted; memory that it had
/// shared fails for everybody who has mapped it.
#[test]
fn a_mapper_is_killed() {
    let _limit = Limit::seconds(60);
    let launcher = Launcher::over(DeviceName::Shm, 2);
    let (builder, taken) = taker();
    let ep = join(builder, launcher.job(0));
    let aperture = ep.aperture(64).unwrap();
    let first = aperture.share(Rights::ALL).unwrap();
    let mut mappings = Vec::new();
    for round in 0..3 {
        let mut member = launcher.start(1, again("mapped_deaths::mapping_member"));
        await_up(&ep, 1);
        let own = aperture.share(Rights::ALL).unwrap();
        let share = if round == 0 { &first } else { &own };
        ep.send(1, "map", &share.cookie().to_bytes()).unwrap();
        let process = u64::from(member.id().as_raw_nonzero().get().cast_unsigned());
        until(&ep, || taken.get().is_some() && aperture.read_u64(0).unwrap() == process);
        assert_eq!(share.mapped_by(), [1]);
        // The new process does not hold the share of the former one.
        assert_eq!(first.mapped_by(), if round == 0 { &[1][..] } else { &[] });
        share.revoke();
        assert!(!share.is_over(), "it is still mapped");
        let theirs = ep.map(&taken.take().expect("it came")).unwrap();
        theirs.write_u64(8, 5).unwrap();
        member.kill();
        // Nothing is extracted: the watchdog notices it.
        while !share.is_over() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let error = loop {
            match theirs.write_u64(8, 6) {
                Ok(()) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::PeerGone(1, _)), "{error}");
        assert!(first.is_over());
        mappings.push(theirs);
    }
    assert!(mappings.iter().all(|theirs| matches!(theirs.read_u64(8), Err(Error::PeerGone(1, _)))));
    ep.close().unwrap();
}

/// a share that names a FIFO instead of memory is refused, and nobody waits for the FIFO's other end.
#[test]
fn a_share_that_names_a_fifo_is_refused() {
    let _limit = Limit::seconds(60);
    let dir = std::env::temp_dir().join(format!("tautline-fifo-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    // A name that looks like that of memory does not help, either.
    for name in ["fifo", "memfd:tautline (deleted)"] {
        let path = dir.join(name);
        let c_path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the path is a string that ends with zero, and lives until the call returns.
        assert_eq!(unsafe { libc::mkfifo(c_path.as_ptr(), 0o600) }, 0);
        let fifo = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        let ep = taker().0.join_job(crate::common::jobs(1).remove(0)).unwrap();
        let aperture = ep.aperture(64).unwrap();
        let share = aperture.share(Rights::READ).unwrap();
        let mut cookie = share.cookie().to_bytes();
        assert!(ep.map(&MapCookie::from_bytes(&cookie)).is_ok());
        let number = |at: usize| u32::from_le_bytes(cookie[at..at + 4].try_into().unwrap());
        let page = File::options().write(true).open(format!("/proc/self/fd/{}", number(12))).unwrap();
        page.write_at(&fifo.metadata().unwrap().ino().to_le_bytes(), 24).unwrap();
        cookie[8..12].copy_from_slice(&fifo.as_raw_fd().to_le_bytes());
        let refused = ep.map(&MapCookie::from_bytes(&cookie)).unwrap_err();
        assert!(refused.to_string().contains("no memory of an aperture"), "{refused}");
        std::fs::remove_file(&path).unwrap();
    }
    std::fs::remove_dir(&dir).unwrap();
}
