//! Rank 1 sends a text as a stream of bytes, and rank 0 sends it back in capitals.
//!
//! `tautline run -n 2 target/release/examples/stream`
#![allow(clippy::print_stdout)]

use std::cell::RefCell;
use std::rc::Rc;

use tautline::{Endpoint, stream};

fn main() -> tautline::Result<()> {
    let accepted = Rc::new(RefCell::new(None));
    let slot = accepted.clone();
    let ep = Endpoint::builder()
        .with(stream::on_offer("text", move |_, writer| *slot.borrow_mut() = Some(writer)))
        .join()?;
    if ep.rank() < 2 && ep.size() > 1 {
        let mut reader = stream::offer(&ep, 1 - ep.rank(), "text", 4096)?;
        ep.run_until(|| accepted.borrow().is_some())?;
        let mut writer = accepted.take().expect("it was accepted");
        if ep.rank() == 1 {
            writer.write_all(b"tripwires need no help of the sender's\n")?;
            // Closes one half; the other one stays open.
            writer.close()?;
        }
        let mut part = [0; 16];
        loop {
            let len = reader.read(&mut part)?;
            if len == 0 {
                break;
            }
            if ep.rank() == 0 {
                writer.write_all(&part[..len].to_ascii_uppercase())?;
            } else {
                print!("{}", String::from_utf8_lossy(&part[..len]));
            }
        }
        writer.close()?;
    }
    ep.close()
}
