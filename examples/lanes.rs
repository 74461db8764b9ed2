//! A server with a thread per core: each thread of rank 0 drives a lane of its own, and answers calls by
//! itself. The other ranks ask how many lanes there are, and spread over them. `tautline run -n 5 lanes`
#![allow(clippy::print_stdout)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use tautline::rpc::Rpc;
use tautline::{Address, Builder, Endpoint, PeerState, Result, Waker};

const CALLS: u64 = 1_000;

/// What each lane serves. Handlers belong to their lane's thread.
fn service(rpc: &Rpc, lanes: u16) -> Builder {
    Endpoint::builder()
        .with(rpc)
        .with(rpc.serve("lanes", move |_, (): ()| async move { Ok::<u16, String>(lanes) }))
        .with(rpc.serve("square", |_, number: u64| async move { Ok::<u64, String>(number * number) }))
}

/// Answers calls until all is over.
fn serve(lane: &Endpoint, is_over: impl Fn() -> bool) -> Result<()> {
    loop {
        lane.extract(usize::MAX)?;
        // After the extraction, which is when things change, and before the wait.
        if is_over() {
            return Ok(());
        }
        lane.wait(None)?;
    }
}

fn main() -> Result<()> {
    let lanes = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(8)) as u16;
    let rpc = Rpc::new();
    let ep = service(&rpc, lanes).join()?;
    if ep.rank() > 0 {
        let lanes: u16 = rpc.call(&ep, 0, "lanes", &())?.wait()?;
        let server = Address::new(0, ep.rank() as u16 % lanes);
        let mut sum = 0;
        for number in 0..CALLS {
            sum += rpc.call::<_, u64>(&ep, server.into(), "square", &number)?.wait()?;
        }
        println!("{server} squared {CALLS} numbers, and their sum is {sum}");
        return ep.close();
    }
    let (over, opener) = (AtomicBool::new(false), ep.lanes());
    let (tell, wakers) = std::sync::mpsc::channel::<Waker>();
    let drive = |tell: Sender<Waker>| -> Result<()> {
        let lane = opener.open(service(&Rpc::new(), lanes))?;
        let _ = tell.send(lane.waker());
        drop(tell);
        serve(&lane, || over.load(Ordering::Acquire))?;
        lane.close()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..lanes)
            .map(|_| {
                let tell = tell.clone();
                scope.spawn(|| drive(tell))
            })
            .collect();
        drop(tell);
        // Lane 0 serves, too, until every client has come and gone.
        let gone = |peer| matches!(ep.peer_state(peer), Some(PeerState::Down(_)));
        let served = serve(&ep, || (1..ep.size()).all(gone));
        over.store(true, Ordering::Release);
        wakers.iter().for_each(|waker| waker.wake());
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics")).and(served)
    })?;
    ep.close()
}
