//! Every rank greets every other, and rank 0 prints how many each has heard. The output is the same whatever
//! started the processes. With `--how` rank 0 also says which launcher that was, and over what each rank
//! reached the others.
#![allow(clippy::print_stdout)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tautline::{Endpoint, Event, Short};

fn main() -> tautline::Result<()> {
    let how = std::env::args().any(|arg| arg == "--how");
    let heard = Rc::new(Cell::new(0));
    let lines = Rc::new(RefCell::new(Vec::new()));
    let (count, collected) = (heard.clone(), lines.clone());
    let ep = Endpoint::builder()
        .on_short("greet", move |_: Short<'_>| count.set(count.get() + 1))
        .on_short("tell", move |m: Short<'_>| {
            collected.borrow_mut().push((m.from(), String::from_utf8_lossy(m.data()).into_owned()));
        })
        .join()?;
    let (rank, size) = (ep.rank(), ep.size());
    for peer in (0..size).filter(|peer| *peer != rank) {
        ep.send(peer, "greet", b"")?;
    }
    ep.run_until(|| heard.get() + 1 == size)?;
    let mut line = format!("rank {rank} of {size} heard {} others", heard.get());
    if how {
        line += &describe(&ep);
    }
    if rank == 0 {
        lines.borrow_mut().push((0, line));
        ep.run_until(|| lines.borrow().len() as u32 == size)?;
        lines.borrow_mut().sort();
        lines.borrow().iter().for_each(|(_, line)| println!("{line}"));
    } else {
        ep.send(0, "tell", line.as_bytes())?;
    }
    ep.barrier()?;
    ep.close()
}

/// The launcher, and the transport to each peer.
fn describe(ep: &Endpoint) -> String {
    let (mut launcher, mut own, mut transports) = ("", "", Vec::new());
    while let Some(event) = ep.poll_event() {
        match event {
            Event::Launcher(found) => launcher = found.name,
            Event::Device(choice) => own = choice.device,
            // Without a word of another, it is the device that was opened.
            Event::PeerUp { peer, .. } if transports.iter().all(|(known, _)| *known != peer) => {
                transports.push((peer, own));
            }
            Event::Transport { peer, device, .. } => {
                transports.retain(|(known, _)| *known != peer);
                transports.push((peer, device));
            }
            _ => {}
        }
    }
    transports.sort_unstable();
    let transports: Vec<_> = transports.iter().map(|(peer, device)| format!("{peer} {device}")).collect();
    format!(" ({launcher}; {})", transports.join(", "))
}
