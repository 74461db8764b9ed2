//! Rank 0 takes work out of a queue that rank 1 fills.
//!
//! Start with `tautline run -n 2 target/release/examples/queue`.
#![allow(clippy::print_stdout)]

use std::cell::RefCell;
use std::rc::Rc;

use tautline::memory::Cookie;
use tautline::{Endpoint, Short, queue};

fn main() -> tautline::Result<()> {
    let given = Rc::new(RefCell::new(None));
    let got = given.clone();
    let ep = Endpoint::builder()
        .on_short("fill this", move |m: Short<'_>| *got.borrow_mut() = m.data().try_into().ok())
        .join()?;
    if ep.rank() == 0 {
        // Small on purpose: the sender has to wait for room.
        let (mut jobs, cookie) = queue::pair(&ep, 1024)?;
        ep.send(1, "fill this", &cookie.to_bytes())?;
        let (mut entries, mut bytes) = (0, 0);
        while let Some(job) = jobs.pop()? {
            entries += 1;
            bytes += job.len();
        }
        println!("took {entries} entries with {bytes} bytes");
    } else if ep.rank() == 1 {
        ep.run_until(|| given.borrow().is_some())?;
        let cookie = Cookie::from_bytes(given.borrow().as_ref().expect("the cookie has arrived"));
        let mut jobs = queue::Sender::new(&ep, &cookie)?;
        for i in 0..1000u32 {
            jobs.push_pieces(&[&i.to_le_bytes(), &vec![7; i as usize % 100]])?;
        }
        jobs.end()?;
    }
    ep.close()
}
