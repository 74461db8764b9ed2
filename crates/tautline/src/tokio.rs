//! A driver for tokio (feature `tokio`): it extracts, arms and sleeps in the right order, so that a program
//! writes no loop of its own.
//!
//! An endpoint belongs to its thread. So the driver and the tasks that use the endpoint run on that thread:
//! on a current-thread runtime, or in a `LocalSet` on a multi-threaded one.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::task::yield_now;

use crate::async_endpoint::AsyncEndpoint;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::waiters::Waiter;

/// Drives an endpoint: extracts, and lets the runtime wait for more. It ends when the endpoint is closed, and
/// does not keep it open. Other tasks of the thread may use the endpoint meanwhile.
///
/// Needs a runtime with I/O enabled. The future is not `Send`: select it beside the program's own, or spawn
/// it with `spawn_local`. An endpoint has one driver at a time; a second one fails. If the driver is dropped,
/// nothing is lost, and another one can continue. One runtime can drive 100 lanes of a node: the kernel
/// limits how often a file is reached through nested epoll descriptors, and all lanes watch one listener.
///
/// ```no_run
/// use tautline::Endpoint;
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> tautline::Result<()> {
///     let ep = Endpoint::builder().on_short("greet", |_| {}).join()?;
///     let tasks = tokio::task::LocalSet::new();
///     tasks.spawn_local(tautline::tokio::drive(&ep));
///     let (me, task) = (ep.rank(), ep.to_async());
///     tasks.run_until(async move { task.send(me, "greet", b"hello").await }).await?;
///     ep.close()
/// }
/// ```
pub fn drive(ep: &Endpoint) -> impl Future<Output = Result<()>> + use<> {
    let ep = ep.to_async();
    async move { drive_until_closed(ep).await }
}

/// Drives an endpoint while `main` runs, and closes it afterwards. Returns what `main` returned. `main` gets
/// the endpoint for tasks, and may spawn others with `spawn_local` if it runs in a `LocalSet`. If driving
/// fails, `main` is dropped.
///
/// ```no_run
/// use tautline::Endpoint;
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> tautline::Result<()> {
///     let ep = Endpoint::builder().on_short("greet", |_| {}).join()?;
///     tautline::tokio::run(ep, async |ep| ep.send(ep.rank(), "greet", b"hello").await).await?
/// }
/// ```
pub async fn run<T>(ep: Endpoint, main: impl AsyncFnOnce(AsyncEndpoint) -> T) -> Result<T> {
    let mut driver = Driver { drive: Some(Box::pin(drive(&ep))) };
    let done = driver.run(main(ep.to_async())).await?;
    // Not if the program has closed a clone already.
    if !ep.core.is_closed() {
        driver.run(ep.to_async().close()).await??;
    }
    Ok(done)
}

/// Drives an endpoint while futures run, until it is closed.
struct Driver<F> {
    drive: Option<Pin<Box<F>>>,
}

impl<F: Future<Output = Result<()>>> Driver<F> {
    /// Runs a future. If driving fails, the future is dropped.
    async fn run<T>(&mut self, future: impl Future<Output = T>) -> Result<T> {
        let mut future = pin!(future);
        poll_fn(|context| {
            if let Poll::Ready(done) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(done));
            }
            if let Some(driver) = &mut self.drive
                && let Poll::Ready(ended) = driver.as_mut().poll(context)
            {
                // The endpoint was closed; what is left to do fails, or needs no endpoint.
                self.drive = None;
                if let Err(error) = ended {
                    return Poll::Ready(Err(error));
                }
            }
            Poll::Pending
        })
        .await
    }
}

async fn drive_until_closed(ep: AsyncEndpoint) -> Result<()> {
    // Deprecated because the descriptor could be closed while it is registered. This one cannot: what is
    // registered holds the endpoint. The constructor that replaces it is an unsafe function, and this crate
    // has no unsafe code.
    #[allow(deprecated)]
    let descriptor = AsyncFd::with_interest(Descriptor(ep), Interest::READABLE).map_err(Error::other)?;
    let endpoint = descriptor.get_ref().0.plain();
    let sleep = Sleep { descriptor: &descriptor, waiter: Waiter::default() };
    loop {
        if endpoint.core.is_closed() {
            return Ok(());
        }
        endpoint.extract(usize::MAX)?;
        // A handler may have dropped the last clone.
        if endpoint.core.is_closed() {
            return Ok(());
        }
        if endpoint.arm()? {
            poll_fn(|context| sleep.poll(context)).await.map_err(Error::other)?;
        } else {
            // There is more to extract, but other tasks are to run, too.
            yield_now().await;
        }
    }
}

/// What the runtime waits for: the endpoint's descriptor, which is open as long as this exists.
struct Descriptor(AsyncEndpoint);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.node().as_fd().as_raw_fd()
    }
}

/// How a driver sleeps. It leaves the list of drivers when this is dropped.
struct Sleep<'a> {
    descriptor: &'a AsyncFd<Descriptor>,
    waiter: Waiter,
}

impl Sleep<'_> {
    /// Ready when the descriptor is readable, or the endpoint is closed.
    fn poll(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let core = self.descriptor.get_ref().0.core();
        if core.is_closed() {
            return Poll::Ready(Ok(()));
        }
        core.waits.drivers.register(&self.waiter, context);
        match self.descriptor.poll_read_ready(context) {
            Poll::Ready(Ok(mut ready)) => {
                // The next extraction looks at everything, and arming silences what it has seen.
                ready.clear_ready();
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        self.descriptor.get_ref().0.core().waits.drivers.remove(&self.waiter);
    }
}
