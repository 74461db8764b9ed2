//! Rank 0 divides, and all others call it.
//!
//! `tautline run -n 3 target/release/examples/rpc`
#![allow(clippy::print_stdout)]

use tautline::Endpoint;
use tautline::rpc::Rpc;

fn main() -> tautline::Result<()> {
    let rpc = Rpc::new();
    let ep = Endpoint::builder()
        .with(&rpc)
        .with(rpc.serve("divide", |_, (a, b): (u64, u64)| async move {
            let whole = a.checked_div(b).ok_or("division by zero".to_owned())?;
            Ok::<_, String>((whole, a - whole * b))
        }))
        .with(rpc.serve_raw("shout", |from, request, answer| {
            answer.extend_from_slice(format!("rank {from}: ").as_bytes());
            answer.extend(request.iter().map(u8::to_ascii_uppercase));
        }))
        .join()?;
    if ep.rank() == 0 {
        ep.serve(3 * (u64::from(ep.size()) - 1))?;
    } else {
        let (whole, rest): (u64, u64) = rpc.call(&ep, 0, "divide", &(17u64, 5u64))?.wait()?;
        println!("17 / 5 = {whole}, rest {rest}");
        match rpc.call::<_, (u64, u64)>(&ep, 0, "divide", &(1u64, 0u64))?.wait() {
            Err(error) => println!("1 / 0: {}", error.service::<String>().unwrap_or_default()),
            Ok(_) => println!("1 / 0 is a number"),
        }
        let answer = rpc.call_raw(&ep, 0, "shout", b"hello")?.wait()?;
        println!("{}", String::from_utf8_lossy(&answer));
    }
    ep.close()
}
