//! Under tokio: one task serves the endpoint, the others do other work. Each rank greets all others once.
//!
//! Start with `tautline run -n 2 target/release/examples/tokio`.
#![allow(clippy::print_stdout)]

use std::os::fd::AsFd;

use tautline::{Endpoint, Message};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let (greeted, greetings) = mpsc::unbounded_channel();
    let ep = Endpoint::builder()
        .on("greet", move |mut msg: Message| {
            let greeted = greeted.clone();
            async move {
                let text = msg.read_to_end().await?;
                let _ = greeted.send((msg.from(), text));
                Ok(())
            }
        })
        .join()?;
    tokio::select! {
        ended = serve(&ep) => ended?,
        ended = talk(&ep, greetings) => ended?,
    }
    ep.close()?;
    Ok(())
}

/// Greets all other ranks, and waits for their greetings.
async fn talk(ep: &Endpoint, mut greetings: mpsc::UnboundedReceiver<(u32, Vec<u8>)>) -> Result<()> {
    for peer in (0..ep.size()).filter(|peer| *peer != ep.rank()) {
        ep.send_async(peer, "greet", b"hello from tokio").await?;
    }
    for _ in 1..ep.size() {
        let (from, text) = greetings.recv().await.ok_or("the endpoint is gone")?;
        println!("rank {from} says: {}", String::from_utf8_lossy(&text));
    }
    Ok(())
}

/// Serves the endpoint for ever. The descriptor tells the runtime when to poll again.
async fn serve(ep: &Endpoint) -> Result<()> {
    // SAFETY: the descriptor is borrowed from `ep`, which keeps it open for longer than this registration
    // lives.
    let descriptor = unsafe { AsyncFd::register(ep.as_fd()) }.map_err(std::io::Error::from)?;
    loop {
        ep.extract(usize::MAX)?;
        if ep.arm()? {
            descriptor.readable().await?.clear_ready();
        } else {
            // There is more, but the other tasks get their turn first.
            tokio::task::yield_now().await;
        }
    }
}
