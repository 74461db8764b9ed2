//! The same load under every executor: 10,000 calls with timers, oneshots and cancellations, on tokio
//! (current-thread, and multi-threaded with a `LocalSet`), on the executor and reactor of smol, and in a bare
//! loop. There is no watchdog, and no heartbeat is due: a lost wake-up is a test that does not end (N-6).
//!
//! Lateness is counted in turns of the driver, each of which extracts at least once: between the wake-up of a
//! task or a handler and its next poll there are few of them.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::ThreadId;
use std::time::Duration;

use crate::common::sleeps::driver_sleeps;
use crate::common::{config, join, run_over};
use tautline::rpc::{CallError, Rpc};
use tautline::{AsyncEndpoint, Builder, Config, DeviceName, Endpoint, Job, Short};

const WORKERS: u64 = 100;
const CALLS_OF_A_WORKER: u64 = 100;
/// Turns of the driver, at most, between a wake-up on the endpoint's own thread and the poll that it causes.
/// A `LocalSet` takes wake-ups from other threads, such as those of its driver, once in 31 polls of tasks.
const MOST_TURNS: u64 = 16;

type Local<T> = Pin<Box<dyn Future<Output = T>>>;

/// What the load needs of an executor.
trait Executor {
    fn sleep(&self, time: Duration) -> Local<()>;
    fn spawn(&self, task: Local<()>);
}

/// Turns of a driver, and the greatest lateness.
#[derive(Default)]
struct Turns {
    now: AtomicU64,
    most: AtomicU64,
    resumed: AtomicU64,
}

impl Turns {
    fn next(&self) {
        self.now.fetch_add(1, Ordering::SeqCst);
    }

    fn now(&self) -> u64 {
        self.now.load(Ordering::SeqCst)
    }

    fn report(&self, executor: &str) {
        let (now, most) = (self.now(), self.most.load(Ordering::SeqCst));
        let resumed = self.resumed.load(Ordering::SeqCst);
        println!("{executor}: {now} turns, {resumed} wake-ups, at most {most} turns late");
        assert!(resumed >= CALLS_OF_A_WORKER, "{executor}: {resumed} wake-ups");
        assert!(most <= MOST_TURNS, "{executor}: a wake-up was {most} turns late");
    }
}

/// Polls a driver, and counts its turns.
async fn counted<T>(turns: Arc<Turns>, driver: impl Future<Output = T>) -> T {
    let mut driver = pin!(driver);
    poll_fn(|context| {
        turns.next();
        driver.as_mut().poll(context)
    })
    .await
}

/// Notes at which turn a future was woken, and wakes its task.
struct Noted {
    task: Waker,
    turns: Arc<Turns>,
    home: ThreadId,
    /// The turn of the first wake-up plus one; zero before it.
    at: AtomicU64,
}

impl Wake for Noted {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Another thread may be interrupted between the note and the wake-up, for any number of turns.
        if std::thread::current().id() == self.home {
            let _ = self.at.compare_exchange(0, self.turns.now() + 1, Ordering::SeqCst, Ordering::SeqCst);
        }
        self.task.wake_by_ref();
    }
}

/// Awaits a future, and counts the turns between each wake-up and the poll that follows.
async fn watched<T>(turns: Arc<Turns>, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut last: Option<Arc<Noted>> = None;
    poll_fn(|context| {
        let woken = last.as_ref().map_or(0, |noted| noted.at.load(Ordering::SeqCst));
        if woken > 0 {
            turns.most.fetch_max(turns.now() - (woken - 1), Ordering::SeqCst);
            turns.resumed.fetch_add(1, Ordering::SeqCst);
        }
        let (task, home) = (context.waker().clone(), std::thread::current().id());
        let noted = Arc::new(Noted { task, turns: turns.clone(), home, at: AtomicU64::new(0) });
        last = Some(noted.clone());
        future.as_mut().poll(&mut Context::from_waker(&noted.into()))
    })
    .await
}

async fn yield_once() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A value that one task of the thread gives to another.
fn oneshot<T: 'static>() -> (impl FnOnce(T), impl Future<Output = T>) {
    let state: Rc<RefCell<(Option<T>, Option<Waker>)>> = Rc::default();
    let sender = state.clone();
    let send = move |value| {
        sender.borrow_mut().0 = Some(value);
        if let Some(waker) = sender.borrow_mut().1.take() {
            waker.wake();
        }
    };
    let receive = poll_fn(move |context| {
        let mut state = state.borrow_mut();
        state.1 = Some(context.waker().clone());
        state.0.take().map_or(Poll::Pending, Poll::Ready)
    });
    (send, receive)
}

/// The first of two futures; the other one is dropped.
async fn first<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|context| match one.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(value),
        Poll::Pending => other.as_mut().poll(context),
    })
    .await
}

/// Services that have begun and not ended, and who waits until there are none and the caller is done.
#[derive(Default)]
struct InProgress {
    count: Cell<u64>,
    cancelled: Cell<u64>,
    over: Cell<bool>,
    waiter: RefCell<Option<Waker>>,
}

impl InProgress {
    fn changed(&self) {
        if self.over.get()
            && self.count.get() == 0
            && let Some(waker) = self.waiter.borrow_mut().take()
        {
            waker.wake();
        }
    }

    async fn ended(&self) {
        poll_fn(|context| {
            *self.waiter.borrow_mut() = Some(context.waker().clone());
            if self.over.get() && self.count.get() == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// A service that runs until it is dropped.
struct Running(Rc<InProgress>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        self.0.cancelled.set(self.0.cancelled.get() + 1);
        self.0.changed();
    }
}

/// One side of the load.
struct Side {
    executor: Rc<dyn Executor>,
    turns: Arc<Turns>,
    services: Rc<InProgress>,
}

impl Side {
    fn new(executor: Rc<dyn Executor>) -> Side {
        Side { executor, turns: Arc::default(), services: Rc::default() }
    }

    fn builder(&self) -> Builder {
        let rpc = Rpc::new();
        let (executor, turns, services) = (self.executor.clone(), self.turns.clone(), self.services.clone());
        let over = self.services.clone();
        let service = move |_, number: u64| {
            let (executor, turns, services) = (executor.clone(), turns.clone(), services.clone());
            async move {
                match number % 5 {
                    0 => {}
                    1 => watched(turns, executor.sleep(Duration::from_micros(100))).await,
                    2 => {
                        let (send, receive) = oneshot();
                        executor.spawn(Box::pin(async move {
                            yield_once().await;
                            send(());
                        }));
                        watched(turns, receive).await;
                    }
                    _ => {
                        services.count.set(services.count.get() + 1);
                        let _running = Running(services);
                        std::future::pending::<()>().await;
                    }
                }
                Ok::<u64, String>(number + 1)
            }
        };
        Endpoint::builder().config(quiet()).with(&rpc).with(rpc.serve("work", service)).on_short(
            "over",
            move |_: Short<'_>| {
                over.over.set(true);
                over.changed();
            },
        )
    }

    /// Rank 0 calls, rank 1 serves until rank 0 is done and every call has ended.
    async fn run(&self, ep: AsyncEndpoint) {
        if ep.rank() == 1 {
            return self.services.ended().await;
        }
        let (send, all_done) = oneshot();
        let send = Rc::new(Cell::new(Some(send)));
        let left = Rc::new(Cell::new(WORKERS));
        for worker in 0..WORKERS {
            let (send, left) = (send.clone(), left.clone());
            let (ep, executor, turns) = (ep.clone(), self.executor.clone(), self.turns.clone());
            self.executor.spawn(Box::pin(async move {
                for number in worker * CALLS_OF_A_WORKER..(worker + 1) * CALLS_OF_A_WORKER {
                    call(&ep, &*executor, &turns, number).await;
                }
                left.set(left.get() - 1);
                if left.get() == 0 {
                    send.take().expect("there is one last worker")(());
                }
            }));
        }
        all_done.await;
        ep.send(1, "over", b"").await.unwrap();
    }
}

async fn call(ep: &AsyncEndpoint, executor: &dyn Executor, turns: &Arc<Turns>, number: u64) {
    match number % 5 {
        3 => {
            let limit = Some(Duration::from_millis(1));
            let late = ep.call_timeout::<_, u64>(1, "work", &number, limit).await;
            assert!(matches!(late, Err(CallError::DeadlinePassed)), "{late:?}");
        }
        4 => {
            let answer = async { Some(ep.call::<_, u64>(1, "work", &number).await) };
            let sleep = async {
                executor.sleep(Duration::from_micros(300)).await;
                None
            };
            assert!(first(answer, sleep).await.is_none(), "it has no answer");
        }
        _ => {
            let answer = watched(turns.clone(), ep.call::<_, u64>(1, "work", &number)).await;
            assert_eq!(answer.unwrap(), number + 1);
        }
    }
}

/// Nothing but the descriptor wakes the program: there is no watchdog, and the next heartbeat is far away.
fn quiet() -> Config {
    config(|c| {
        c.watchdog = None;
        c.link.silence = 600_000_000_000;
    })
}

/// Runs the load under an executor, over shared memory and UDP.
fn load(name: &str, executor: impl Fn(Job) -> (Side, Endpoint) + Send + Sync) {
    for device in [DeviceName::Shm, DeviceName::Udp] {
        run_over(device, 2, |job| {
            let (side, ep) = executor(job);
            assert_eq!(ep.poll_failure(), None);
            side.turns.report(&format!("{name}, {device:?}, rank {}", ep.rank()));
            if ep.rank() == 1 {
                assert!(side.services.cancelled.get() > 0, "no service was cancelled");
            }
            ep.close().unwrap();
        });
    }
}

struct Tokio;

impl Executor for Tokio {
    fn sleep(&self, time: Duration) -> Local<()> {
        Box::pin(tokio::time::sleep(time))
    }

    fn spawn(&self, task: Local<()>) {
        tokio::task::spawn_local(task);
    }
}

/// Drives an endpoint beside the load, in a `LocalSet` of a runtime.
fn on_tokio(runtime: &tokio::runtime::Runtime, job: Job) -> (Side, Endpoint) {
    let side = Side::new(Rc::new(Tokio));
    let ep = join(side.builder(), job);
    tokio::task::LocalSet::new().block_on(runtime, async {
        let driver = tokio::task::spawn_local(counted(side.turns.clone(), tautline::tokio::drive(&ep)));
        side.run(ep.to_async()).await;
        driver_sleeps(|| side.turns.now()).await;
        driver.abort();
    });
    (side, ep)
}

#[test]
fn tokio_current_thread() {
    load("tokio, one thread", |job| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        on_tokio(&runtime, job)
    });
}

#[test]
fn tokio_local_set_of_many_threads() {
    load("tokio, two threads", |job| {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        on_tokio(&runtime.worker_threads(2).enable_all().build().unwrap(), job)
    });
}

struct Smol(Rc<async_executor::LocalExecutor<'static>>);

impl Executor for Smol {
    fn sleep(&self, time: Duration) -> Local<()> {
        Box::pin(async move {
            async_io::Timer::after(time).await;
        })
    }

    fn spawn(&self, task: Local<()>) {
        self.0.spawn(task).detach();
    }
}

/// A driver of the program's own, as [`Endpoint::arm`] describes it.
async fn drive_with_smol(ep: Endpoint, turns: Arc<Turns>) {
    let descriptor = async_io::Async::new(ep.as_fd().try_clone_to_owned().unwrap()).unwrap();
    loop {
        turns.next();
        ep.extract(usize::MAX).unwrap();
        if ep.arm().unwrap() {
            descriptor.readable().await.unwrap();
        } else {
            yield_once().await;
        }
    }
}

#[test]
fn smol() {
    load("smol", |job| {
        let tasks = Rc::new(async_executor::LocalExecutor::new());
        let side = Side::new(Rc::new(Smol(tasks.clone())));
        let ep = join(side.builder(), job);
        let driver = tasks.spawn(drive_with_smol(ep.clone(), side.turns.clone()));
        async_io::block_on(tasks.run(async {
            side.run(ep.to_async()).await;
            driver_sleeps(|| side.turns.now()).await;
        }));
        drop(driver);
        (side, ep)
    });
}

/// Tasks of a bare loop: all of them are polled whenever one is woken.
#[derive(Default)]
struct Bare {
    tasks: RefCell<Vec<Local<()>>>,
    waker: RefCell<Option<Waker>>,
}

impl Executor for Bare {
    fn sleep(&self, time: Duration) -> Local<()> {
        Box::pin(async move {
            async_io::Timer::after(time).await;
        })
    }

    fn spawn(&self, task: Local<()>) {
        self.tasks.borrow_mut().push(task);
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

impl Bare {
    fn poll(&self, context: &mut Context<'_>) {
        *self.waker.borrow_mut() = Some(context.waker().clone());
        // Tasks that these spawn are polled in the next round.
        let mut tasks = self.tasks.take();
        tasks.retain_mut(|task| task.as_mut().poll(context).is_pending());
        self.tasks.borrow_mut().append(&mut tasks);
    }
}

struct Woken {
    flag: AtomicBool,
    endpoint: tautline::Waker,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.flag.store(true, Ordering::SeqCst);
        self.endpoint.wake();
    }
}

/// Polls a future, extracts and waits, until the future is done.
fn block_on<T>(ep: &Endpoint, turns: &Turns, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let woken = Arc::new(Woken { flag: AtomicBool::new(true), endpoint: ep.waker() });
    let waker = Waker::from(woken.clone());
    loop {
        if woken.flag.swap(false, Ordering::SeqCst)
            && let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker))
        {
            return done;
        }
        turns.next();
        ep.extract(usize::MAX).unwrap();
        if !woken.flag.load(Ordering::SeqCst) {
            ep.wait(None).unwrap();
        }
    }
}

#[test]
fn a_bare_loop() {
    load("a bare loop", |job| {
        let tasks = Rc::new(Bare::default());
        let side = Side::new(tasks.clone());
        let ep = join(side.builder(), job);
        let mut main = Box::pin(side.run(ep.to_async()));
        block_on(
            &ep,
            &side.turns,
            poll_fn(|context| {
                tasks.poll(context);
                main.as_mut().poll(context)
            }),
        );
        drop(main);
        (side, ep)
    });
}
