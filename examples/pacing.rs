//! The receiver paces the network: rank 1 extracts at most 64 KiB at a time and pauses in between. Rank 0
//! sends as fast as it can, and is held back by what rank 1 has not extracted.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use tautline::{Endpoint, Short};

const MESSAGES: u64 = 20_000;
const BYTES: usize = 1024;

fn main() -> tautline::Result<()> {
    let ep = Endpoint::builder().on_short("work", |_: Short<'_>| {}).join()?;
    match ep.rank() {
        0 => send(&ep)?,
        1 => receive(&ep)?,
        _ => {}
    }
    ep.close()
}

fn send(ep: &Endpoint) -> tautline::Result<()> {
    let start = Instant::now();
    let (mut free, mut held) = (0, 0);
    for _ in 0..MESSAGES {
        match ep.try_send(1, "work", &[7; BYTES]) {
            Ok(()) => free += 1,
            Err(error) if error.is_would_block() => {
                // Waits until there is room: rank 1 has extracted something.
                ep.send(1, "work", &[7; BYTES])?;
                held += 1;
            }
            Err(error) => return Err(error),
        }
    }
    println!("sent {MESSAGES} messages in {:?}: {free} at once, held back {held} times", start.elapsed());
    Ok(())
}

fn receive(ep: &Endpoint) -> tautline::Result<()> {
    let mut rests = 0;
    while ep.handled() < MESSAGES {
        if ep.extract(64 * 1024)? > 0 {
            std::thread::sleep(Duration::from_millis(1));
            rests += 1;
        } else {
            ep.wait(None)?;
        }
    }
    println!("took {} messages in {rests} portions", ep.handled());
    Ok(())
}
