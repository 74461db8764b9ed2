//! A pool of threads answers calls: rank 0 counts primes for the others. The endpoint's thread only hands the
//! requests over, and the pool's threads answer by themselves. `tautline run -n 3 pool`
#![allow(clippy::print_stdout)]

use std::sync::{Arc, Mutex, mpsc};

use tautline::rpc::{Rpc, TypedReplier};
use tautline::{Endpoint, PeerState};

type Request = (TypedReplier<u64, String>, u64);

/// How many primes there are below `limit`.
fn count_primes(limit: u64) -> Result<u64, String> {
    if limit > 1_000_000 {
        return Err("that takes too long".to_owned());
    }
    let is_prime = |n: &u64| (2..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    Ok((2..limit).filter(is_prime).count() as u64)
}

fn main() -> tautline::Result<()> {
    let (requests, queue) = mpsc::channel::<Request>();
    let queue = Arc::new(Mutex::new(queue));
    let pool: Vec<_> = (0..4)
        .map(|_| {
            let queue = queue.clone();
            std::thread::spawn(move || {
                let next = || queue.lock().expect("no thread panics").recv();
                while let Ok((replier, limit)) = next() {
                    replier.answer(&count_primes(limit));
                }
            })
        })
        .collect();
    let rpc = Rpc::new();
    let service = rpc.serve_deferred("primes", move |replier, limit| {
        requests.send((replier, limit)).expect("the pool runs as long as the service");
    });
    let ep = Endpoint::builder().with(&rpc).with(service).join()?;
    if ep.rank() == 0 {
        let gone = |peer| matches!(ep.peer_state(peer), Some(PeerState::Down(_)));
        // The last caller's end also ends the wait.
        let _ = ep.run_until(|| (1..ep.size()).all(gone));
    } else {
        let limits = [10u64, 1_000, 100_000, 10_000_000];
        let call = |limit| rpc.call::<_, u64>(&ep, 0, "primes", limit);
        let calls = limits.iter().map(call).collect::<Result<Vec<_>, _>>()?;
        for (limit, call) in limits.iter().zip(calls) {
            match call.wait() {
                Ok(count) => println!("{count} primes below {limit}"),
                Err(error) => println!("{limit}: {}", error.service::<String>().unwrap_or_default()),
            }
        }
    }
    // The service is dropped with the endpoint, and then the pool ends.
    ep.close()?;
    pool.into_iter().for_each(|thread| thread.join().expect("no thread panics"));
    Ok(())
}
