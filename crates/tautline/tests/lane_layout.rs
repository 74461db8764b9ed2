//! Lanes do not disturb each other: while one exchanges messages, nothing is written to the memory of
//! another, or of what they have in common. An allocator that knows who allocated what says where that is.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{config, join, run_over};
use tautline::{Address, Builder, DeviceName, Endpoint, Short};

/// Allocations that are live at once, at most; more would make the table slow.
const PLACES: usize = 1 << 16;
/// A place of the table whose allocation was freed.
const FREED: usize = 1;
const LINE: usize = 64;
const MESSAGES: u64 = 1_000;

/// Who allocates, from now on: a thread says so.
#[derive(Clone, Copy, PartialEq)]
enum Label {
    Other = 0,
    /// Lane 0, with the node.
    First = 1,
    /// The lane that exchanges messages.
    Second = 2,
}

thread_local! {
    static LABEL: Cell<Label> = const { Cell::new(Label::Other) };
}

struct Allocation {
    at: AtomicUsize,
    len: AtomicUsize,
    label: AtomicUsize,
}

static TABLE: [Allocation; PLACES] =
    [const { Allocation { at: AtomicUsize::new(0), len: AtomicUsize::new(0), label: AtomicUsize::new(0) } };
        PLACES];

/// The places where an allocation may be noted.
fn places(at: usize) -> impl Iterator<Item = &'static Allocation> {
    let first = (at >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    (0..PLACES).map(move |i| &TABLE[(first + i) % PLACES])
}

fn note(at: *mut u8, len: usize) {
    let label = LABEL.try_with(Cell::get).unwrap_or(Label::Other);
    if at.is_null() || label == Label::Other {
        return;
    }
    let free = |place: &&Allocation| {
        [0, FREED].iter().any(|free| {
            place.at.compare_exchange(*free, at as usize, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    };
    let place = places(at as usize).find(free).expect("the table has room");
    place.len.store(len, Ordering::Relaxed);
    place.label.store(label as usize, Ordering::Release);
}

fn forget(at: *mut u8) {
    let mut until_end = places(at as usize).take_while(|place| place.at.load(Ordering::Acquire) != 0);
    if let Some(place) = until_end.find(|place| place.at.load(Ordering::Acquire) == at as usize) {
        place.at.store(FREED, Ordering::Release);
    }
}

struct Labelling;

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Labelling {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this same method.
        let at = unsafe { System.alloc(layout) };
        note(at, layout.size());
        at
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        forget(at);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        forget(at);
        // SAFETY: as above.
        let at = unsafe { System.realloc(at, layout, size) };
        note(at, size);
        at
    }
}

#[global_allocator]
static LABELLING: Labelling = Labelling;

/// The live allocations of a label: where, and how long.
fn live(label: Label) -> Vec<(usize, usize)> {
    let entries = TABLE.iter().filter(|place| {
        place.at.load(Ordering::Acquire) > FREED && place.label.load(Ordering::Acquire) == label as usize
    });
    entries.map(|place| (place.at.load(Ordering::Acquire), place.len.load(Ordering::Relaxed))).collect()
}

fn lines(allocations: &[(usize, usize)]) -> BTreeSet<usize> {
    let of = |&(at, len): &(usize, usize)| at / LINE..(at + len.max(1)).div_ceil(LINE);
    allocations.iter().flat_map(of).collect()
}

/// The allocations of a label, and their bytes. Their threads stand still.
struct Snapshot {
    allocations: Vec<(usize, usize)>,
    bytes: Vec<Vec<u8>>,
}

impl Snapshot {
    fn take(label: Label) -> Snapshot {
        let allocations = live(label);
        Snapshot { bytes: allocations.iter().map(copy).collect(), allocations }
    }

    /// Those that have been written to since; none of them was freed.
    fn changed(&self) -> Vec<(usize, usize)> {
        let all = self.allocations.iter().zip(&self.bytes);
        all.filter(|(allocation, bytes)| copy(allocation) != **bytes)
            .map(|(allocation, _)| *allocation)
            .collect()
    }
}

fn copy(&(at, len): &(usize, usize)) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: the allocation is live and so long, and its owner waits at a barrier; statics always are. Bytes
    // that were never written are copied, too, and compared only with themselves.
    unsafe { std::ptr::copy_nonoverlapping(at as *const u8, bytes.as_mut_ptr(), len) };
    bytes
}

/// The writable memory of the program itself, where its statics are, but for the table of allocations.
fn statics() -> Vec<Range<usize>> {
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let table = TABLE.as_ptr_range();
    let table = table.start as usize..table.end as usize;
    let (mut found, mut last) = (Vec::new(), 0);
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (start, end) = words[0].split_once('-').unwrap();
        let [start, end] = [start, end].map(|number| usize::from_str_radix(number, 16).unwrap());
        // Statics that are zero at first are behind the file, and have no name.
        if !line.ends_with(program) && (words.len() > 5 || start != last) {
            continue;
        }
        last = end;
        if words[1] == "rw-p" {
            found.extend([start..end.min(table.start), start.max(table.end)..end]);
        }
    }
    found.retain(|range| !range.is_empty());
    assert!(found.iter().map(ExactSizeIterator::len).sum::<usize>() > 1_000, "{found:x?}");
    found
}

/// The statics of the program, and their bytes.
struct Statics(Vec<(Range<usize>, Vec<u8>)>);

impl Statics {
    fn take() -> Statics {
        let copies = statics().into_iter().map(|range| (range.clone(), copy(&(range.start, range.len()))));
        Statics(copies.collect())
    }

    /// The addresses of words that were written to since.
    fn changed(&self) -> Vec<usize> {
        let of = |(range, before): &(Range<usize>, Vec<u8>)| {
            let after = copy(&(range.start, range.len()));
            let words = before.chunks(8).zip(after.chunks(8)).enumerate();
            let changed = words.filter(|(_, (before, after))| before != after);
            changed.map(|(word, _)| range.start + 8 * word).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of).collect()
    }
}

/// The messages that a handler has got, in a line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Count(Cell<u64>);

fn counting(got: &Rc<Count>) -> Builder {
    let got = got.clone();
    Endpoint::builder()
        .config(config(|config| {
            config.watchdog = None;
            config.link.silence = 600_000_000_000;
        }))
        .on_short("message", move |_: Short<'_>| got.0.set(got.0.get() + 1))
}

/// Sends messages to and fro; `sent` were sent before.
fn exchange(ep: &Endpoint, peer: Address, got: &Count, sent: u64) {
    let handler = ep.handler("message").unwrap();
    for due in sent + 1..=sent + MESSAGES {
        ep.send(peer.into(), handler, &[7; 16]).unwrap();
        ep.run_until(|| got.0.get() >= due).unwrap();
    }
}

/// Of lane 0, and of what lanes have in common, nothing changed; lane 1 wrote to lines of its own.
fn assert_others_unchanged(before: &[Snapshot; 2], statics: &Statics) {
    let written = statics.changed();
    assert!(written.is_empty(), "statics that lanes write to: {written:x?}");
    let [of_first, of_second] = before.each_ref().map(Snapshot::changed);
    let lens: Vec<usize> = of_first.iter().map(|(_, len)| *len).collect();
    assert!(lens.is_empty(), "written by another lane: allocations of {lens:?} bytes");
    // The queues of the lane, its table of peers, and itself.
    assert!(of_second.len() >= 3, "{} allocations were written to", of_second.len());
    let others = lines(&before[0].allocations);
    assert!(others.len() > 100, "lane 0 has {} lines", others.len());
    let common: Vec<_> =
        of_second.iter().filter(|written| !lines(&[**written]).is_disjoint(&others)).collect();
    assert!(common.is_empty(), "lane 1 writes to lines of lane 0: {common:x?}");
}

/// N-21: no cache line is written by two lanes per message. Lane 0 stands still while lane 1 exchanges
/// messages with another process's: neither it nor anything of the node changes, nor any static, and no line
/// holds memory of both.
#[test]
fn lanes_write_to_no_common_line() {
    for device in [DeviceName::Shm, DeviceName::Udp] {
        run_over(device, 2, |job| {
            let first = job.rank == 0;
            LABEL.set(if first { Label::First } else { Label::Other });
            let ep = join(counting(&Rc::default()), job);
            let peer = Address::new(1 - ep.rank(), 1);
            let (lanes, step, met) = (ep.lanes(), Barrier::new(2), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    LABEL.set(if first { Label::Second } else { Label::Other });
                    let got = Rc::default();
                    let lane = lanes.open(counting(&got)).unwrap();
                    exchange(&lane, peer, &got, 0);
                    met.store(true, Ordering::Release);
                    step.wait();
                    step.wait();
                    exchange(&lane, peer, &got, MESSAGES);
                    step.wait();
                    step.wait();
                    // The other process's thread does not end before this one was looked at: that changes
                    // statics of the standard library.
                    exchange(&lane, peer, &got, 2 * MESSAGES);
                    lane.close().unwrap();
                });
                // Lane 0 tells the other lane's peer where that is.
                while !met.load(Ordering::Acquire) {
                    ep.extract(usize::MAX).unwrap();
                    std::thread::yield_now();
                }
                LABEL.set(Label::Other);
                step.wait();
                let before = [Label::First, Label::Second].map(Snapshot::take);
                let statics = Statics::take();
                step.wait();
                step.wait();
                let checked = catch_unwind(AssertUnwindSafe(|| {
                    if first {
                        assert_others_unchanged(&before, &statics);
                    }
                }));
                // The other thread waits here: a failure must not leave it waiting.
                step.wait();
                checked.unwrap_or_else(|failure| resume_unwind(failure));
            });
            ep.close().unwrap();
        });
    }
}
