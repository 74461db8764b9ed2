//! With tokio: a driver extracts, and tasks do the work. Each rank greets all others once.
#![allow(clippy::print_stdout)]

use tautline::{AsyncEndpoint, Endpoint, Message};
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
    // Extracts while `talk` runs, and closes the endpoint afterwards.
    tautline::tokio::run(ep, async |ep| talk(&ep, greetings).await).await?
}

/// Greets all peers, and waits for their greetings.
async fn talk(ep: &AsyncEndpoint, mut greetings: mpsc::UnboundedReceiver<(u32, Vec<u8>)>) -> Result<()> {
    for peer in (0..ep.size()).filter(|peer| *peer != ep.rank()) {
        ep.send(peer, "greet", b"hello from tokio").await?;
    }
    for _ in 1..ep.size() {
        let (from, text) = greetings.recv().await.ok_or("the endpoint is gone")?;
        println!("rank {from} says: {}", String::from_utf8_lossy(&text));
    }
    Ok(())
}
