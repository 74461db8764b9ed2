//! Rank 1 sends a text as a stream of bytes, and rank 0 sends it back in capitals.
//!
//! Start with `tautline run -n 2 target/release/examples/stream`.
#![allow(clippy::print_stdout)]

use std::cell::RefCell;
use std::rc::Rc;

use tautline::memory::Cookie;
use tautline::{Endpoint, Short, stream};

fn main() -> tautline::Result<()> {
    let given = Rc::new(RefCell::new(None));
    let got = given.clone();
    let ep = Endpoint::builder()
        .on_short("write here", move |m: Short<'_>| *got.borrow_mut() = m.data().try_into().ok())
        .join()?;
    if ep.rank() < 2 && ep.size() > 1 {
        let (mut reader, cookie) = stream::pair(&ep, 4096)?;
        ep.send(1 - ep.rank(), "write here", &cookie.to_bytes())?;
        ep.run_until(|| given.borrow().is_some())?;
        let cookie = Cookie::from_bytes(given.borrow().as_ref().expect("the cookie has arrived"));
        let mut writer = stream::Writer::new(&ep, &cookie)?;
        if ep.rank() == 1 {
            writer.write_all(b"tripwires need no help of the sender's\n")?;
            // One direction is closed; the other stays open.
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
