//! Rank 0 opens memory to all others, and is told of exactly the accesses that it waits for.
//!
//! `tautline run -n 3 target/release/examples/tripwire`
#![allow(clippy::print_stdout)]

use std::cell::RefCell;
use std::rc::Rc;

use tautline::memory::{Cookie, Rights, Test};
use tautline::{Endpoint, Short};

fn main() -> tautline::Result<()> {
    let given = Rc::new(RefCell::new(None));
    let got = given.clone();
    let ep = Endpoint::builder()
        .on_short("cookie", move |m: Short<'_>| *got.borrow_mut() = m.data().try_into().ok())
        .join()?;
    let others = u64::from(ep.size()) - 1;
    if ep.rank() == 0 {
        let aperture = ep.aperture(4096)?;
        // Every other rank adds to this word; rank 0 waits until all have.
        let mut all = aperture.tripwire(0..8).when(Test::AtLeast(others)).once().arm()?;
        let cookie = aperture.cookie(.., Rights::ALL)?;
        for peer in 1..ep.size() {
            ep.send(peer, "cookie", &cookie.to_bytes())?;
        }
        if others > 0 {
            all.wait()?;
        }
        let mut line = [0; 8];
        for rank in 1..u64::from(ep.size()) {
            aperture.read(rank * 64, &mut line)?;
            println!("rank {rank} put {}", u64::from_le_bytes(line));
        }
    } else {
        ep.run_until(|| given.borrow().is_some())?;
        let cookie = Cookie::from_bytes(given.borrow().as_ref().expect("it came"));
        let remote = ep.remote(&cookie);
        let rank = u64::from(ep.rank());
        // The program of rank 0 does nothing for this. Operations take effect in order.
        remote.put(rank * 64, &(rank * rank).to_le_bytes())?;
        remote.fetch_add(0, 1)?.wait()?;
    }
    ep.close()
}
