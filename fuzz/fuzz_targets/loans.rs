//! Two nodes share memory, and bytes of it are overwritten while loans, long messages and puts go through it:
//! channels end, and are opened again. Nothing may panic or reach outside.
#![no_main]

mod nodes;

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use libfuzzer_sys::fuzz_target;
use nodes::{Pair, Program};
use tautline::memory::Rights;
use tautline::{Borrowed, Endpoint, Message, Short};

/// The memory that this process shares with itself.
fn segments() -> Vec<File> {
    let Ok(links) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let paths = links.flatten().map(|entry| entry.path());
    let ours = paths.filter(|path| {
        std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("memfd:tautline "))
    });
    ours.filter_map(|path| File::options().read(true).write(true).open(path).ok()).collect()
}

fuzz_target!(|data: &[u8]| {
    tautline_device::shm::keep_descriptors();
    let kept: Rc<RefCell<Vec<Borrowed>>> = Rc::default();
    let build = |_| {
        let keep = kept.clone();
        Endpoint::builder()
            .on("long", |mut message: Message| async move {
                let _ = message.read_to_end().await?;
                Ok(())
            })
            .on_loan("lent", |message: Borrowed| message.for_each_part(|_| {}))
            .on_loan("kept", move |message: Borrowed| keep.borrow_mut().push(message))
            .on_short("short", |_: Short<'_>| {})
    };
    let mut program = Program::new(data);
    let mut pair = Pair::new(build, true);
    let aperture = pair.ends[1].aperture(64 << 10).unwrap();
    let cookie = aperture.cookie(.., Rights::ALL).unwrap();
    let mut memory = segments();
    let bytes = vec![7; 60_000];
    while let Some(op) = program.byte() {
        let len = program.small() * 200;
        let peer = &pair.ends[usize::from(op >> 7)];
        let to = 1 - peer.rank();
        match op % 10 {
            0 => drop(peer.try_loan(to, len).map(|loan| loan.try_send("lent").is_ok())),
            1 => drop(peer.try_loan(to, len).map(|loan| loan.try_send("kept").is_ok())),
            2 => drop(peer.try_loan(to, len).map(|loan| loan.try_send("long").is_ok())),
            3 => drop(peer.try_send(to, "long", &bytes[..len])),
            4 => drop(peer.try_send(to, "short", &bytes[..program.small()])),
            5 => drop(pair.ends[0].remote(&cookie).try_put(program.small() as u64 * 8, &bytes[..len])),
            6 => {
                for loan in kept.borrow_mut().drain(..) {
                    loan.for_each_part(|_| {});
                }
            }
            7 | 8 => {
                // Words near the start of a ring and of its lines, where what was just written is.
                let Some(file) = memory.get(program.small() % memory.len().max(1)) else { continue };
                let size = file.metadata().map_or(0, |metadata| metadata.len());
                let ring = (size.saturating_sub(4_224) / 2) * u64::from(program.small() as u8 & 1);
                let at = match program.small() % 3 {
                    0 => ring + 8 * (program.small() as u64 % 32),
                    1 => ring + 256 + 8 * (program.small() as u64),
                    _ => program.word() % size.max(1),
                };
                let word = if op % 10 == 7 { program.small() as u64 } else { program.word() };
                let _ = file.write_at(&word.to_le_bytes()[..1 + program.small() % 8], at);
            }
            _ => {
                pair.advance(1 + program.small() as u64 * 100_000);
                if program.small() % 8 == 0 {
                    // A channel that ended is opened again, with other memory.
                    let _ = pair.ends[0].connect(1);
                    memory = segments();
                }
            }
        }
    }
    (0..4).for_each(|_| pair.advance(1_000_000));
    for loan in kept.borrow_mut().drain(..) {
        loan.for_each_part(|_| {});
    }
});
