//! Threads that send while the endpoint's own thread handles messages. `tautline run -n 2 handle`
#![allow(clippy::print_stdout)]

use std::cell::Cell;
use std::rc::Rc;

use tautline::{Endpoint, Short};

const THREADS: u32 = 4;

fn main() -> tautline::Result<()> {
    let sum = Rc::new(Cell::new(0));
    let total = sum.clone();
    let ep = Endpoint::builder()
        .on_short("number", move |m: Short<'_>| total.set(total.get() + u32::from(m.data()[0])))
        .join()?;
    let peers: Vec<u32> = (0..ep.size()).filter(|peer| *peer != ep.rank()).collect();
    let handle = ep.handle();
    std::thread::scope(|scope| {
        for number in 1..=THREADS {
            let (handle, peers) = (handle.clone(), &peers);
            scope.spawn(move || {
                for peer in peers {
                    handle.send(*peer, "number", &[number as u8]).expect("the peer is there");
                }
            });
        }
        // The handlers run here meanwhile, and share an `Rc` with this thread.
        ep.serve(u64::from(THREADS) * peers.len() as u64)
    })?;
    println!("rank {}: the sum is {}", ep.rank(), sum.get());
    ep.close()
}
