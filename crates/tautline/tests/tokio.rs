//! Under tokio: one task drives the endpoint, and no wake-up of a handler or of another task is lost (N-6).
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::future::Future;
use std::os::fd::AsFd;
use std::time::Duration;

use common::{config, join, run_over};
use tautline::rpc::Rpc;
use tautline::{Builder, Config, DeviceName, Endpoint, Job};
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

const ROUNDS: u64 = 100;
const DEVICES: [DeviceName; 2] = [DeviceName::Shm, DeviceName::Udp];

/// Nothing but the descriptor wakes the program: there is no watchdog, and the next heartbeat is far away.
fn quiet() -> Config {
    config(|c| {
        c.watchdog = None;
        c.link.silence = 600_000_000_000;
    })
}

/// Extracts for ever; the runtime waits for the descriptor. As in the example.
async fn serve(ep: &Endpoint) {
    // SAFETY: the descriptor is borrowed from `ep`, which keeps it open for longer than the registration.
    let descriptor = unsafe { AsyncFd::register(ep.as_fd()) }.unwrap();
    loop {
        ep.extract(usize::MAX).unwrap();
        if ep.arm().unwrap() {
            descriptor.readable().await.unwrap().clear_ready();
        } else {
            tokio::task::yield_now().await;
        }
    }
}

/// Drives an endpoint on a runtime of its own until `work` is done.
fn drive<F: Future<Output = ()>>(builder: Builder, job: Job, work: impl FnOnce(Endpoint) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ep = join(builder.config(quiet()), job);
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async {
        tokio::select! {
            () = serve(&ep) => {}
            () = work(ep.clone()) => {}
        }
    });
    ep.close().unwrap();
}

/// Waits in the runtime, as a service may: for a timer, or for another task of its thread.
async fn wait_in_runtime(number: u64) {
    if number.is_multiple_of(2) {
        tokio::time::sleep(Duration::from_micros(500)).await;
    } else {
        let (done, wait) = oneshot::channel();
        tokio::task::spawn_local(async move {
            tokio::task::yield_now().await;
            done.send(()).unwrap();
        });
        wait.await.unwrap();
    }
}

/// N-6: a service that the runtime wakes, after the endpoint was armed, is polled.
#[test]
fn services_that_wait_in_the_runtime() {
    for device in DEVICES {
        run_over(device, 2, |job| {
            let rpc = Rpc::new();
            let (over, ended) = oneshot::channel::<()>();
            let over = std::cell::Cell::new(Some(over));
            let builder = Endpoint::builder()
                .with(&rpc)
                .with(rpc.serve("wait", |_, number: u64| async move {
                    wait_in_runtime(number).await;
                    Ok::<u64, String>(number + 1)
                }))
                .on_short("over", move |_| drop(over.take()));
            drive(builder, job, |ep| async move {
                if ep.rank() == 0 {
                    for number in 0..ROUNDS {
                        let call = rpc.call::<_, u64>(&ep, 1, "wait", &number).unwrap();
                        assert_eq!(call.await.unwrap(), number + 1);
                    }
                    ep.send_async(1, "over", b"").await.unwrap();
                }
                // The sender's own end of the channel is dropped with the endpoint only.
                if ep.rank() == 1 {
                    let _ = ended.await;
                }
            });
        });
    }
}

/// N-6: a task that calls a service of its own node, or sends, while the driver sleeps in the runtime.
#[test]
fn calls_to_oneself() {
    for device in DEVICES {
        run_over(device, 2, |job| {
            let rpc = Rpc::new();
            let builder =
                Endpoint::builder().with(&rpc).with(rpc.serve("wait", |_, number: u64| async move {
                    wait_in_runtime(number).await;
                    Ok::<u64, String>(number + 1)
                }));
            drive(builder, job, |ep| async move {
                for number in 0..ROUNDS {
                    tokio::time::sleep(Duration::from_micros(100)).await;
                    let call = rpc.call::<_, u64>(&ep, ep.rank(), "wait", &number).unwrap();
                    assert_eq!(call.await.unwrap(), number + 1);
                }
            });
        });
    }
}

/// N-6: a task that waits for room, which a peer makes while the driver sleeps in the runtime.
#[test]
fn sends_that_wait_for_room() {
    const MESSAGES: u64 = 3_000;
    for device in DEVICES {
        run_over(device, 2, |job| {
            let (count, total) = tokio::sync::watch::channel(0u64);
            let builder = Endpoint::builder().on_short("data", move |_| count.send_modify(|n| *n += 1));
            drive(builder, job, |ep| async move {
                let other = 1 - ep.rank();
                let mut total = total;
                for _ in 0..MESSAGES {
                    ep.send_async(other, "data", &[0; 1000]).await.unwrap();
                }
                total.wait_for(|n| *n == MESSAGES).await.unwrap();
            });
        });
    }
}
