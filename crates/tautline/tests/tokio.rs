//! Under tokio: a driver extracts, and no wake-up of a handler or of a task is lost (N-6).
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use crate::common::sleeps::driver_sleeps;
use crate::common::{Limit, config, job_beside_an_absent_rank, jobs, join, run_over};
use tautline::rpc::{CallError, Rpc};
use tautline::{AsyncEndpoint, Builder, Config, DeviceName, Endpoint, Error, Job, SendError};
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

/// Drives an endpoint on a runtime of its own until `work` is done. Afterwards its driver sleeps.
fn drive<F: Future<Output = ()>>(builder: Builder, job: Job, work: impl FnOnce(AsyncEndpoint) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ep = join(builder.config(quiet()), job);
    let tasks = tokio::task::LocalSet::new();
    let main = async |ep: AsyncEndpoint| {
        let polled = || ep.counters().device.receive_calls;
        work(ep.clone()).await;
        driver_sleeps(polled).await;
    };
    tasks.block_on(&runtime, tautline::tokio::run(ep, main)).unwrap();
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
            let over = Cell::new(Some(over));
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
                        let answer = ep.call::<_, u64>(1, "wait", &number).await;
                        assert_eq!(answer.unwrap(), number + 1);
                    }
                    ep.send(1, "over", b"").await.unwrap();
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
                    let answer = ep.call::<_, u64>(ep.rank(), "wait", &number).await;
                    assert_eq!(answer.unwrap(), number + 1);
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
                    ep.send(other, "data", &[0; 1000]).await.unwrap();
                }
                total.wait_for(|n| *n == MESSAGES).await.unwrap();
            });
        });
    }
}

/// What a future returns if it is done now.
async fn poll_once<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    std::future::poll_fn(|context| match Pin::new(&mut *future).poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// A driver that sleeps ends when the endpoint is closed or its last clone is dropped, and does not keep it
/// open. Futures that wait fail then.
#[test]
fn drivers_end_with_their_endpoint() {
    let _limit = Limit::seconds(60);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for close in [true, false] {
        let rpc = Rpc::new();
        let builder = Endpoint::builder()
            .with(&rpc)
            .with(rpc.serve("never", |_, (): ()| std::future::pending::<Result<(), ()>>()));
        let ep = join(builder.config(quiet()), jobs(1).remove(0));
        tokio::task::LocalSet::new().block_on(&runtime, async {
            // Another driver continues where one was dropped; a second one beside it is an error.
            let mut former = Box::pin(tautline::tokio::drive(&ep));
            assert!(poll_once(&mut former).await.is_none());
            drop(former);
            let driver = tokio::task::spawn_local(tautline::tokio::drive(&ep));
            tokio::task::yield_now().await;
            assert!(matches!(tautline::tokio::drive(&ep).await, Err(Error::Other(_))));
            let tasks = ep.to_async();
            let waits = tokio::task::spawn_local(async move { tasks.call::<_, ()>(0, "never", &()).await });
            // The driver sleeps, and the service waits.
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(!driver.is_finished() && !waits.is_finished());
            let after = ep.to_async();
            if close {
                ep.close().unwrap();
            } else {
                drop(ep);
            }
            driver.await.unwrap().unwrap();
            let ended = waits.await.unwrap();
            assert!(matches!(ended, Err(CallError::Endpoint(Error::Send(SendError::Closed)))), "{ended:?}");
            assert!(after.send(0, "never", b"").await.is_err());
        });
    }
}

/// `run` returns what the program returns, closes the endpoint, and accepts one that was closed before.
#[test]
fn run_closes_the_endpoint() {
    let _limit = Limit::seconds(60);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ep = join(Endpoint::builder(), jobs(1).remove(0));
    let other = ep.clone();
    assert_eq!(runtime.block_on(tautline::tokio::run(ep, async |ep| ep.size())).unwrap(), 1);
    assert!(matches!(other.extract(0), Err(Error::Send(SendError::Closed))));
    let ep = join(Endpoint::builder(), jobs(1).remove(0));
    let clone = ep.clone();
    let closed = runtime.block_on(tautline::tokio::run(ep, async |_| {
        tokio::task::yield_now().await;
        clone.close().unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        "closed"
    }));
    assert_eq!(closed.unwrap(), "closed");
}

/// The deadline of a call bounds connecting, and the runtime runs other tasks meanwhile: each that is ready
/// when a call begins has run when it ends. Rank 1 never joins, and connecting takes an hour: without the
/// deadline this would not end.
#[test]
fn a_deadline_does_not_stop_the_runtime() {
    let _limit = Limit::seconds(60);
    for device in [None, Some(DeviceName::Udp), Some(DeviceName::Shm)] {
        let (job, absent) = job_beside_an_absent_rank(device);
        let rpc = Rpc::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let slow = config(|c| {
            c.watchdog = None;
            c.connect_timeout = Duration::from_secs(3600);
        });
        let ep = join(Endpoint::builder().with(&rpc).config(slow), job);
        let blocking = ep.clone();
        let tasks = tokio::task::LocalSet::new();
        let done = tasks.block_on(
            &runtime,
            tautline::tokio::run(ep, async |ep| {
                let ran = Rc::new(Cell::new(0));
                let spawn = || {
                    let ran = ran.clone();
                    tokio::task::spawn_local(async move { ran.set(ran.get() + 1) })
                };
                let limit = Some(Duration::from_millis(50));
                let first = spawn();
                let late = ep.call_timeout::<_, u64>(1, "add", &1u64, limit).await;
                assert!(matches!(late, Err(CallError::DeadlinePassed)), "{late:?}");
                assert_eq!(ran.get(), 1, "no other task has run");
                // A call with a deadline that was made without `to_async` does not block either.
                let second = spawn();
                let late = rpc.call_timeout::<_, u64>(&blocking, 1, "add", &1u64, limit).unwrap().await;
                assert!(matches!(late, Err(CallError::DeadlinePassed)), "{late:?}");
                assert_eq!(ran.get(), 2, "no other task has run");
                first.await.unwrap();
                second.await.unwrap();
            }),
        );
        done.unwrap();
        drop(absent);
    }
}
