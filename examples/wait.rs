//! A program's own loop, without a runtime: extract, read events, do something else, sleep. Every rank sends
//! a word around the ring of ranks, and closes when its own word has come back.
#![allow(clippy::print_stdout)]

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tautline::{Endpoint, Event, Short};

fn main() -> tautline::Result<()> {
    let home = Rc::new(Cell::new(false));
    let came_home = home.clone();
    let ep = Endpoint::builder()
        .on_short("ring", move |msg: Short<'_>| {
            let ep = msg.endpoint();
            if msg.data() == ep.rank().to_le_bytes() {
                return came_home.set(true);
            }
            // A handler may send, but neither wait nor extract. These few words always find room.
            ep.try_send((ep.rank() + 1) % ep.size(), "ring", msg.data()).expect("the ring is whole");
        })
        .join()?;
    ep.send((ep.rank() + 1) % ep.size(), "ring", &ep.rank().to_le_bytes())?;
    let mut rounds = 0;
    while !home.get() || ep.handled() < u64::from(ep.size()) {
        ep.extract(usize::MAX)?;
        while let Some(event) = ep.poll_event() {
            if let Event::Device(choice) = event {
                println!("rank {} uses {}: {}", ep.rank(), choice.device, choice.reason);
            }
        }
        rounds += 1;
        // Sleeps until something arrives, but not longer than until the program's next task.
        ep.wait(Some(Duration::from_millis(10)))?;
    }
    println!("rank {}: the word came home after {rounds} rounds of the loop", ep.rank());
    ep.close()
}
