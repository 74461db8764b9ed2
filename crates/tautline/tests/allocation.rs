//! No allocation per message, checked by a counting allocator.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{join, run};
use tautline::{Config, Endpoint, Message, Short};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of this same method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const WARM_UP: u64 = 5000;
const MESSAGES: u64 = 30_000;
/// Buffers of waiting frames grow, each once, to the largest frame that waited in them. [`grow`] causes that
/// for most, but its moment depends on the scheduler. So one allocation per so many messages is allowed.
const APART: u64 = 500;
/// Slots of credit that each side has.
const CREDIT: u64 = 512;
/// There are as many buffers as both sides have credit. If nothing allocates for messages, some try stays
/// within one per [`APART`] before there were more allocations than that, whatever the scheduler does.
const BUFFERS: u64 = 2 * CREDIT;
/// Messages that one side sends while the other does not extract: more than its credit.
const AHEAD: u64 = CREDIT * 3 / 2;
/// How long nothing is sent once the credit is used up.
const QUIET: Duration = Duration::from_millis(60);

/// M-4: after a warm-up neither side allocates per message: neither for plain nor for `async` handlers, nor
/// for messages of several frames, sent whole or in pieces, one at a time or in bulk.
#[test]
fn no_allocation_per_message() {
    assert_eq!(u64::from(Config::default().link.credit_slots), CREDIT);
    let kinds = [("short", 16usize), ("stream", 16), ("stream", 150_000), ("stream", 700_000)];
    let (barrier, sent, allocated) = (Barrier::new(2), AtomicU64::new(0), AtomicU64::new(0));
    run(2, |job| {
        let builder = Endpoint::builder().on_short("short", |_: Short<'_>| {}).on(
            "stream",
            |mut msg: Message| async move {
                let mut place = [0; 4096];
                while msg.remaining() > 0 {
                    let part = (msg.remaining() as usize).min(place.len());
                    msg.read_into(&mut place[..part]).await?;
                }
                Ok(())
            },
        );
        let ep = join(builder, job);
        for (name, size) in kinds {
            let rounds = if size > 1000 { 50 } else { 1 };
            let name = ep.handler(name).unwrap();
            let bytes = vec![0; size];
            grow(&ep, name, &bytes, (&barrier, &sent));
            exchange(&ep, name, &bytes, WARM_UP / rounds);
            let (mut sum, mut tries, messages) = (0, 0, MESSAGES / rounds);
            loop {
                barrier.wait();
                let before = ALLOCATIONS.load(Ordering::SeqCst);
                barrier.wait();
                exchange(&ep, name, &bytes, messages);
                barrier.wait();
                // Both ranks are to agree on whether to go on.
                if ep.rank() == 0 {
                    allocated.store(ALLOCATIONS.load(Ordering::SeqCst) - before, Ordering::SeqCst);
                }
                barrier.wait();
                let allocated = allocated.load(Ordering::SeqCst);
                (sum, tries) = (sum + allocated, tries + 1);
                assert!(sum <= BUFFERS, "{sum} in {tries} times {messages} messages of {size} bytes");
                if allocated <= messages / APART {
                    break;
                }
            }
            println!("{sum} allocations in {tries} times {messages} messages of {size} bytes");
        }
        ep.close().unwrap();
    });
}

/// Each side leaves as many frames unextracted as its peer's credit allows.
fn grow(ep: &Endpoint, name: tautline::Handler, bytes: &[u8], (barrier, sent): (&Barrier, &AtomicU64)) {
    // A few long messages have as many frames.
    let messages = if bytes.len() > 1000 { 60_000_000 / bytes.len() as u64 } else { AHEAD };
    for sender in 0..2 {
        barrier.wait();
        let start = ep.handled();
        if ep.rank() == sender {
            for _ in 0..messages {
                ep.send(1 - sender, name, bytes).unwrap();
                sent.fetch_add(1, Ordering::SeqCst);
            }
            ep.run_until(|| ep.handled() > start).unwrap();
        } else {
            let mut before = u64::MAX;
            while before != sent.load(Ordering::SeqCst) {
                before = sent.load(Ordering::SeqCst);
                std::thread::sleep(QUIET);
            }
            ep.run_until(|| ep.handled() - start == messages).unwrap();
            ep.send(sender, name, bytes).unwrap();
        }
    }
    barrier.wait();
}

/// Exchanges half of the messages one by one as ping-pong, and the other half in bulk, as far ahead as flow
/// control allows.
fn exchange(ep: &Endpoint, name: tautline::Handler, bytes: &[u8], messages: u64) {
    let (other, start) = (1 - ep.rank(), ep.handled());
    for i in 0..messages / 2 {
        if ep.rank() == 0 {
            ep.send(other, name, bytes).unwrap();
        }
        ep.run_until(|| ep.handled() - start > i).unwrap();
        if ep.rank() == 1 {
            ep.send(other, name, bytes).unwrap();
        }
    }
    if ep.rank() == 0 {
        for _ in 0..messages / 2 {
            let mut out = ep.begin(other, name, bytes.len() as u64).unwrap();
            bytes.chunks(5000).for_each(|part| out.piece(part).unwrap());
            out.end().unwrap();
        }
        ep.run_until(|| ep.handled() - start > messages / 2).unwrap();
    } else {
        ep.run_until(|| ep.handled() - start == messages / 2 * 2).unwrap();
        ep.send(other, name, bytes).unwrap();
    }
}
