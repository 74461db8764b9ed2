//! Rank 0 greets all others. Start with `tautline run -n 2 target/release/examples/hello`.
#![allow(clippy::print_stdout)]

use tautline::{Endpoint, Message};

fn main() -> tautline::Result<()> {
    let ep = Endpoint::builder()
        .on("greet", |mut msg: Message| async move {
            let text = msg.read_to_end().await?;
            println!("rank {} says: {}", msg.from(), String::from_utf8_lossy(&text));
            Ok(())
        })
        .join()?;
    if ep.rank() == 0 {
        for peer in 1..ep.size() {
            ep.send(peer, "greet", b"hello")?;
        }
    } else {
        ep.serve(1)?;
    }
    ep.close()
}
