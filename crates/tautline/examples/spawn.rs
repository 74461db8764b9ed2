//! A job that grows while it runs: rank 0 starts workers, sends each a number to square when it has joined,
//! and is told when it ends. `tautline run -n 1 spawn`
#![allow(clippy::print_stdout)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tautline::{Down, Endpoint, Event, Message, Result};

const WORKERS: u32 = 3;
/// The argument that makes the program a worker.
const WORKER: &str = "worker";

fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some(WORKER) { work() } else { lead() }
}

/// Squares one number, and ends.
fn work() -> Result<()> {
    let ep = Endpoint::builder()
        .on("square", |mut msg: Message| async move {
            let number: u64 = msg.read().await?;
            let (ep, leader) = (msg.endpoint().clone(), msg.from());
            ep.send(leader, "result", &(number * number).to_le_bytes()).await
        })
        .join()?;
    ep.serve(1)?;
    ep.close()
}

fn lead() -> Result<()> {
    let results = Rc::new(RefCell::new(BTreeMap::new()));
    let found = results.clone();
    let ep = Endpoint::builder()
        // Without it, this process is told of nobody, and may start nobody.
        .watch_members()
        .on("result", move |mut msg: Message| {
            let found = found.clone();
            async move {
                let square: u64 = msg.read().await?;
                found.borrow_mut().insert(msg.from(), square);
                Ok(())
            }
        })
        .join()?;
    let program = std::env::current_exe().map_err(tautline::Error::other)?;
    let workers = ep.spawn(WORKERS, &program, [WORKER])?;
    println!("started ranks {} to {}", workers.start, workers.end - 1);
    let mut left = 0;
    while left < WORKERS || results.borrow().len() < WORKERS as usize {
        ep.wait(None)?;
        ep.extract(usize::MAX)?;
        while let Some(event) = ep.poll_event() {
            match event {
                // It can be reached from now on.
                Event::MemberJoined { member } => {
                    ep.send(member, "square", &u64::from(member).to_le_bytes())?;
                }
                Event::PeerDown { why: Down::Closed, .. } => left += 1,
                Event::PeerDown { peer, why, .. } => return Err(tautline::Error::PeerGone(peer, why)),
                _ => {}
            }
        }
    }
    for (rank, square) in results.borrow().iter() {
        println!("rank {rank} says: {square}");
    }
    println!("all have ended");
    ep.close()
}
