//! What handles cost on this machine. Calls from another thread, through a handle and through a channel to
//! the endpoint's thread with a waker; sends of two threads at once, through handles and behind a mutex. The
//! rounds are interleaved, and the medians compared. Two endpoints in two threads of one process.
//!
//! `cargo run --release -p tautline --example handle_rate [shm|udp] [rounds] [which] [calls in flight]`
#![allow(clippy::print_stdout)]

use std::collections::VecDeque;
use std::future::Future;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use tautline::node::link::JobKey;
use tautline::rpc::{Call, Rpc};
use tautline::{DeviceName, Endpoint, Error, Handle, Job, Member, Result, Short};

const CALLS: usize = 200_000;
const SENDS: usize = 400_000;
const SENDERS: usize = 2;

fn main() -> Result<()> {
    let device = std::env::args().nth(1);
    let rounds = std::env::args().nth(2).and_then(|rounds| rounds.parse().ok()).unwrap_or(11);
    for name in [DeviceName::Shm, DeviceName::Udp] {
        if device.as_ref().is_none_or(|wanted| wanted == name.name()) {
            println!("{}", name.name());
            pair(name, rounds)?;
        }
    }
    Ok(())
}

fn pair(device: DeviceName, rounds: usize) -> Result<()> {
    let sockets: Vec<_> = (0..2)
        .map(|_| UdpSocket::bind("127.0.0.1:0"))
        .collect::<std::io::Result<_>>()
        .map_err(Error::other)?;
    let members: Vec<_> = sockets
        .iter()
        .map(|s| Ok(Member::new(s.local_addr()?)))
        .collect::<std::io::Result<_>>()
        .map_err(Error::other)?;
    let job = |(rank, socket)| {
        let job = Job::new(rank as u32, JobKey::new([7; 32]), members.clone());
        job.with_device(device).with_socket(socket)
    };
    let mut jobs: Vec<Job> = sockets.into_iter().enumerate().map(job).collect();
    let (server, client) = (jobs.pop().expect("two"), jobs.pop().expect("two"));
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(server));
        let measured = measure(client, rounds);
        server.join().expect("it does not panic").and(measured)
    })
}

fn join(job: Job) -> Result<(Endpoint, Rpc)> {
    let rpc = Rpc::new();
    let builder = Endpoint::builder()
        .with(&rpc)
        .with(rpc.serve_raw("echo", |_, request, answer| answer.extend_from_slice(request)))
        .on_short("data", |_: Short<'_>| {});
    Ok((builder.join_job(job)?, rpc))
}

/// Serves until the client has closed.
fn serve(job: Job) -> Result<()> {
    let (ep, _rpc) = join(job)?;
    let _ = ep.run_until(|| false);
    ep.close()
}

fn measure(job: Job, rounds: usize) -> Result<()> {
    let (ep, rpc) = join(job)?;
    ep.send(1, "data", b"")?;
    let only: Option<usize> = std::env::args().nth(3).and_then(|which| which.parse().ok());
    let mutex = Mutex::new(());
    let mut rates = [const { Vec::new() }; 4];
    for round in 0..4 * rounds {
        let which = only.unwrap_or(round % 4);
        rates[which].push(match which {
            0 => calls_through_handle(&ep)?,
            1 => calls_through_channel(&ep, &rpc)?,
            2 => sends(&ep, |handle| handle.send(1, "data", &[7; 16]))?,
            _ => sends(&ep, |handle| {
                let _guard = mutex.lock().expect("nobody panics");
                handle.send(1, "data", &[7; 16])
            })?,
        });
    }
    let median = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN)
    });
    let names =
        ["calls, handle", "calls, channel and waker", "sends of two threads", "the same, behind a mutex"];
    for (name, rate) in names.iter().zip(median) {
        println!("  {name:26} {:7.3} M/s", rate / 1e6);
    }
    println!(
        "  calls: {:.2} times the channel; sends: {:.2} times the mutex",
        median[0] / median[1],
        median[2] / median[3]
    );
    ep.close()
}

/// Extracts while `work` runs on another thread, and returns its rate.
fn beside(ep: &Endpoint, work: impl FnOnce() -> Result<f64> + Send) -> Result<f64> {
    let (over, waker) = (AtomicBool::new(false), ep.waker());
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let result = work();
            over.store(true, Ordering::SeqCst);
            waker.wake();
            result
        });
        ep.run_until(|| over.load(Ordering::SeqCst))?;
        worker.join().expect("it does not panic")
    })
}

/// Calls in flight at once.
fn in_flight() -> usize {
    std::env::args().nth(4).and_then(|calls| calls.parse().ok()).unwrap_or(256)
}

fn rate(count: usize, start: Instant) -> f64 {
    count as f64 / start.elapsed().as_secs_f64()
}

fn calls_through_handle(ep: &Endpoint) -> Result<f64> {
    let (handle, in_flight) = (ep.handle(), in_flight());
    beside(ep, move || {
        let echo = handle.handler("echo")?;
        let start = Instant::now();
        let mut calls = VecDeque::with_capacity(in_flight);
        for number in 0..CALLS + in_flight {
            if calls.len() == in_flight || number >= CALLS {
                let (call, sent): (tautline::rpc::HandleCall, usize) = calls.pop_front().expect("in flight");
                call.wait_with(|answer| assert_eq!(answer, sent.to_le_bytes()))?;
            }
            if number < CALLS {
                calls.push_back((handle.call_raw(1, echo, &number.to_le_bytes())?, number));
            }
        }
        Ok(rate(CALLS, start))
    })
}

/// As a program does without handles: requests go to the endpoint's thread by a channel, and it is woken.
fn calls_through_channel(ep: &Endpoint, rpc: &Rpc) -> Result<f64> {
    let (requests, to_call) = mpsc::channel::<usize>();
    let (answers, answered) = mpsc::channel::<usize>();
    let (waker, in_flight) = (ep.waker(), in_flight());
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let start = Instant::now();
            for number in 0..CALLS + in_flight {
                if number >= in_flight {
                    assert_eq!(answered.recv().expect("an answer"), number - in_flight);
                }
                if number < CALLS {
                    requests.send(number).expect("the endpoint's thread");
                    waker.wake();
                }
            }
            rate(CALLS, start)
        });
        let echo = ep.handler("echo")?;
        let mut context = Context::from_waker(Waker::noop());
        let (mut calls, mut done) = (VecDeque::<Call>::new(), 0);
        while done < CALLS {
            ep.extract(usize::MAX)?;
            while let Ok(number) = to_call.try_recv() {
                calls.push_back(rpc.call_raw(ep, 1, echo, &number.to_le_bytes())?);
            }
            let before = done;
            while let Some(call) = calls.front_mut()
                && let Poll::Ready(answer) = Pin::new(call).poll(&mut context)
            {
                let answer = answer?.try_into().expect("eight bytes");
                calls.pop_front();
                answers.send(usize::from_le_bytes(answer)).expect("the caller");
                done += 1;
            }
            if done == before {
                ep.wait(None)?;
            }
        }
        Ok(worker.join().expect("it does not panic"))
    })
}

/// Two threads send at once; their rates together.
fn sends(ep: &Endpoint, send: impl Fn(&Handle) -> Result<()> + Send + Sync) -> Result<f64> {
    let handle = ep.handle();
    beside(ep, move || {
        let begin = Barrier::new(SENDERS + 1);
        std::thread::scope(|scope| {
            let work = || {
                begin.wait();
                (0..SENDS / SENDERS).try_for_each(|_| send(&handle))
            };
            let threads: Vec<_> = (0..SENDERS).map(|_| scope.spawn(work)).collect();
            begin.wait();
            let start = Instant::now();
            threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))?;
            Ok(rate(SENDS, start))
        })
    })
}
