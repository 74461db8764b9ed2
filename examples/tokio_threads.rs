//! Calls from tasks of tokio's multi-threaded runtime. The endpoint is driven by the main thread; the tasks
//! use a handle. `tautline run -n 2 tokio_threads`
#![allow(clippy::print_stdout)]

use tautline::rpc::Rpc;
use tautline::{AsyncHandle, Endpoint, PeerState};

/// Squares numbers, each in a task of its own, and adds them up.
async fn sum_of_squares(handle: AsyncHandle) -> tautline::Result<u64> {
    let call = |number: u64| {
        let handle = handle.clone();
        tokio::spawn(async move { handle.call::<_, u64>(0, "square", &number).await })
    };
    let tasks: Vec<_> = (1..=100).map(call).collect();
    let mut sum = 0;
    for task in tasks {
        sum += task.await.expect("no task panics")?;
    }
    Ok(sum)
}

fn main() -> tautline::Result<()> {
    let rpc = Rpc::new();
    let ep = Endpoint::builder()
        .with(&rpc)
        .with(rpc.serve("square", |_, number: u64| async move { Ok::<u64, String>(number * number) }))
        .join()?;
    if ep.rank() == 0 {
        let gone = |peer| matches!(ep.peer_state(peer), Some(PeerState::Down(_)));
        let _ = ep.run_until(|| (1..ep.size()).all(gone));
    } else {
        let (handle, waker) = (ep.handle().to_async(), ep.waker());
        let (tell, result) = std::sync::mpsc::channel();
        let runtime = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().build().expect("a runtime");
            let _ = tell.send(runtime.block_on(sum_of_squares(handle)));
            waker.wake();
        });
        // Answers arrive while this thread extracts.
        let mut sum = None;
        ep.run_until(|| {
            sum = result.try_recv().ok();
            sum.is_some()
        })?;
        println!("the sum is {}", sum.expect("it was sent")?);
        runtime.join().expect("it does not panic");
    }
    ep.close()
}
