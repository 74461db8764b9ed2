//! A large message without a copy: the sender fills memory that the receiver reads in place.
//!
//! `tautline run -n 2 target/release/examples/loan`
#![allow(clippy::print_stdout)]

use std::cell::Cell;
use std::rc::Rc;

use tautline::{Borrowed, Endpoint};

/// Numbers in one message: 8 MiB of them.
const NUMBERS: usize = 1 << 20;

fn main() -> tautline::Result<()> {
    let total = Rc::new(Cell::new(0u64));
    let sum = total.clone();
    let ep = Endpoint::builder()
        .on_loan("sum", move |message: Borrowed| {
            // Read in place, part by part. Dropping the message returns the memory.
            message.for_each_part(|part| {
                for number in part.as_chunks::<8>().0 {
                    sum.set(sum.get() + u64::from_le_bytes(*number));
                }
            });
            println!(
                "{} bytes, {}",
                message.len(),
                if message.is_shared() { "not copied on the way" } else { "copied" }
            );
        })
        .join()?;
    if ep.rank() == 0 {
        for peer in 1..ep.size() {
            let mut loan = ep.loan(peer, 8 * NUMBERS)?;
            for (number, place) in loan.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *place = (number as u64).to_le_bytes();
            }
            loan.send("sum")?;
        }
    } else {
        ep.serve(1)?;
        let expected = (0..NUMBERS as u64).sum::<u64>();
        println!("rank {}: the sum is {}, as expected: {}", ep.rank(), total.get(), total.get() == expected);
    }
    ep.close()
}
