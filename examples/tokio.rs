//! With tokio: one task drives the endpoint, others do the work. Each rank greets all others once.
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

/// Greets all peers, and waits for their greetings.
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

/// Extracts for ever. The runtime waits for the descriptor.
async fn serve(ep: &Endpoint) -> Result<()> {
    // SAFETY: the descriptor is borrowed from `ep`, which keeps it open for longer than the registration.
    let descriptor = unsafe { AsyncFd::register(ep.as_fd()) }.map_err(std::io::Error::from)?;
    loop {
        ep.extract(usize::MAX)?;
        if ep.arm()? {
            descriptor.readable().await?.clear_ready();
        } else {
            // There is more, but other tasks are to run, too.
            tokio::task::yield_now().await;
        }
    }
}
