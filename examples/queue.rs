//! Rank 0 takes work out of a queue that rank 1 fills.
//!
//! `tautline run -n 2 target/release/examples/queue`
#![allow(clippy::print_stdout)]

use std::cell::RefCell;
use std::rc::Rc;

use tautline::{Endpoint, queue};

fn main() -> tautline::Result<()> {
    let accepted = Rc::new(RefCell::new(None));
    let slot = accepted.clone();
    let ep = Endpoint::builder()
        .with(queue::on_offer("jobs", move |_, sender| *slot.borrow_mut() = Some(sender)))
        .join()?;
    if ep.rank() == 0 {
        // Small on purpose: the sender has to wait for room.
        let mut jobs = queue::offer(&ep, 1, "jobs", 1024)?;
        let (mut entries, mut bytes) = (0, 0);
        while let Some(job) = jobs.pop()? {
            entries += 1;
            bytes += job.len();
        }
        println!("took {entries} entries with {bytes} bytes");
    } else if ep.rank() == 1 {
        ep.run_until(|| accepted.borrow().is_some())?;
        let mut jobs = accepted.take().expect("it was accepted");
        for i in 0..1000u32 {
            jobs.push_pieces(&[&i.to_le_bytes(), &vec![7; i as usize % 100]])?;
        }
        jobs.end()?;
    }
    ep.close()
}
