//! A peer is killed after every instruction of its operations on shared memory. The survivor never hangs,
//! never sees a torn frame, and nothing is leaked.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::print_stdout)]

mod shm_pair;
mod tracee;

use shm_pair::{TempDir, accept, dial, frame, segments, until};
use tautline_device::shm::{Extent, InlineFrame, Listener, ReturnStatus, Shm};
use tautline_device::{Channel, PushError};
use tracee::{Stop, Tracee, may_trace, pause};

/// What the child does instruction by instruction, what it does before, and what the survivor finds.
struct Operation {
    name: &'static str,
    /// Frames that the survivor sends first.
    sent: usize,
    /// The survivor announces that it sleeps, so that the child must ring.
    asleep: bool,
    before: fn(&mut Shm),
    stepped: fn(&mut Shm),
    /// Lengths of the frames that the child sends: before, and while it is stepped.
    whole: &'static [usize],
    last: Option<usize>,
    /// A further check, given whether the last frame arrived.
    after: fn(&mut Shm, bool),
}

fn push(shm: &mut Shm, number: usize, len: usize) {
    let bytes = frame(number, len);
    shm.push(&bytes[..8], &bytes[8..]).unwrap();
}

fn two_frames(shm: &mut Shm) {
    push(shm, 0, 40);
    push(shm, 1, 300);
    shm.flush();
}

fn nothing(_: &mut Shm) {}

fn take(shm: &mut Shm) {
    let mut out = [0; 16];
    let len = shm.peek().expect("a frame is there");
    shm.take(&mut out[..len]);
    std::hint::black_box(out);
}

fn take_inline(shm: &mut Shm) {
    let mut frames = [InlineFrame::EMPTY; 2];
    let (count, _) = shm.pop_inline(&mut frames, usize::MAX, |_| true);
    assert_eq!(count, 1, "a frame is there");
    std::hint::black_box(frames);
}

/// Takes all but one of the frames after which the receiver publishes its progress.
fn take_127(shm: &mut Shm) {
    (0..127).for_each(|_| take(shm));
}

const BASE: Operation = Operation {
    name: "",
    sent: 0,
    asleep: true,
    before: two_frames,
    stepped: nothing,
    whole: &[40, 300],
    last: None,
    after: |_, _| {},
};

/// The bytes are prepared beforehand: the library is stepped, not the test.
fn push_16(shm: &mut Shm) {
    let _ = std::hint::black_box(shm.push(&F16.0, &F16.1));
    shm.flush();
}

fn push_300(shm: &mut Shm) {
    let _ = std::hint::black_box(shm.push(&F300.0, &F300.1));
    shm.flush();
}

fn push_line(shm: &mut Shm) {
    std::hint::black_box(shm.push_line(&LINE_16, 16));
}

fn push_words(shm: &mut Shm) {
    std::hint::black_box(shm.push_words([LINE_16[0]], &F16.1));
}

fn push_long(shm: &mut Shm) {
    std::hint::black_box(shm.push_long([u64::from_le_bytes(F300.0)], &F300.1));
}

fn push_lines(shm: &mut Shm) {
    std::hint::black_box(shm.push_long([u64::from_le_bytes(F150.0)], &F150.1));
}

const fn third_frame<const N: usize>(from: usize) -> [u8; N] {
    let mut bytes = [0; N];
    let mut i = 0;
    while i < N {
        bytes[i] = ((from + i) * 31 + 2 * 97 + 5) as u8;
        i += 1;
    }
    bytes
}

static F16: ([u8; 8], [u8; 8]) = (third_frame(0), third_frame(8));
static F150: ([u8; 8], [u8; 142]) = (third_frame(0), third_frame(8));
static F300: ([u8; 8], [u8; 292]) = (third_frame(0), third_frame(8));
/// The first frame, as a line.
static LINE_0: [u64; 7] =
    [u64::from_le_bytes(first_frame(0)), u64::from_le_bytes(first_frame(8)), 0, 0, 0, 0, 0];

const fn first_frame<const N: usize>(from: usize) -> [u8; N] {
    let mut bytes = [0; N];
    let mut i = 0;
    while i < N {
        bytes[i] = ((from + i) * 31 + 5) as u8;
        i += 1;
    }
    bytes
}

static LINE_16: [u64; 7] =
    [u64::from_le_bytes(third_frame(0)), u64::from_le_bytes(third_frame(8)), 0, 0, 0, 0, 0];

const OPERATIONS: &[Operation] = &[
    Operation { name: "send 16 bytes to a sleeper", stepped: push_16, last: Some(16), ..BASE },
    Operation { name: "send 16 bytes", asleep: false, stepped: push_16, last: Some(16), ..BASE },
    Operation { name: "send 300 bytes to a sleeper", stepped: push_300, last: Some(300), ..BASE },
    Operation { name: "send a line", stepped: push_line, last: Some(16), ..BASE },
    Operation { name: "send words", stepped: push_words, last: Some(16), ..BASE },
    Operation { name: "send several lines of words", stepped: push_lines, last: Some(150), ..BASE },
    Operation { name: "send 300 bytes as words", stepped: push_long, last: Some(300), ..BASE },
    Operation { name: "receive 16 bytes", sent: 1, stepped: take, ..BASE },
    Operation { name: "receive lines", sent: 1, stepped: take_inline, ..BASE },
    Operation {
        name: "receive, and publish it",
        sent: 128,
        before: take_127,
        stepped: take,
        whole: &[],
        ..BASE
    },
    Operation { name: "fall asleep and wake", sent: 1, stepped: sleep, ..BASE },
    Operation { name: "close", stepped: Shm::close, ..BASE },
    Operation { name: "take a loan", before: two_frames, stepped: loan, ..BASE },
    Operation {
        name: "lend to a sleeper",
        before: fill_loan,
        stepped: lend,
        whole: &[],
        last: Some(16),
        after: read_loan,
        ..BASE
    },
    Operation {
        name: "return a loan to a sleeper",
        sent: 1,
        stepped: give_back,
        after: check_returned_loan,
        ..BASE
    },
];

/// Bytes of a loan.
const LENT: usize = 5_000;

thread_local! {
    static EXTENT: std::cell::RefCell<Option<Extent>> = const { std::cell::RefCell::new(None) };
}

fn loan(shm: &mut Shm) {
    let extent = shm.loan(LENT).expect("nothing is lent");
    shm.cancel_loan(extent);
}

fn fill_loan(shm: &mut Shm) {
    let mut extent = shm.loan(LENT).expect("nothing is lent");
    extent.copy_from_slice(&frame(3, LENT));
    assert_eq!(extent.location(), (0, 0, LENT as u64));
    EXTENT.set(Some(extent));
}

fn lend(shm: &mut Shm) {
    if let Some(extent) = EXTENT.take() {
        std::hint::black_box(shm.push_line(&LINE_0, 16));
        shm.commit_loan(extent);
    }
}

/// S-8, S-19: a loan that a dead process has committed can be read.
fn read_loan(shm: &mut Shm, sent: bool) {
    let view = shm.view().expect("the other side lends").clone();
    let mut got = vec![0; LENT];
    view.copy_out(0, &mut got);
    assert!(!sent || got == frame(3, LENT), "torn");
}

fn give_back(shm: &mut Shm) {
    shm.return_loan(0, ReturnStatus::Read);
}

/// S-8: a loan that a dead process has not returned stays lent, which is no error; it ends with the channel.
fn check_returned_loan(shm: &mut Shm, _: bool) {
    let whole = 2 * tautline_device::shm::POOL_UNIT;
    let back = shm.has_returns();
    let extent = shm.loan(whole);
    assert_eq!(extent.is_ok(), back, "{extent:?}");
}

fn sleep(shm: &mut Shm) {
    shm.announce_sleep();
    shm.barrier();
    shm.announce_wake();
}

/// S-3, S-6: a peer that dies after any instruction of sending or receiving has sent the whole frame, or
/// nothing.
#[test]
fn killed_at_every_instruction() {
    if !may_trace() {
        return tautline_skips::skip(
            "killed_at_every_instruction",
            "this process may not trace its children",
        );
    }
    let before = segments();
    for operation in OPERATIONS {
        let dir = TempDir::new("step");
        let listener = Listener::bind(&dir.listener_path()).unwrap();
        let (mut kills, mut first_seen) = (0, None);
        loop {
            let (over, seen) = kill_after(operation, &dir, &listener, kills);
            if seen && first_seen.is_none() {
                first_seen = Some(kills);
            }
            assert!(
                seen || first_seen.is_none(),
                "{}: the frame arrived after fewer than {kills} steps",
                operation.name
            );
            if over {
                break;
            }
            kills += 1;
        }
        assert_eq!(first_seen.is_some(), operation.last.is_some(), "{}", operation.name);
        assert!(kills > 5, "{}: it was stepped", operation.name);
        println!("{}: {kills} kills, the frame arrives after {first_seen:?} instructions", operation.name);
    }
    assert_eq!(segments(), before, "mappings and descriptors of segments");
}

/// Kills a child after `steps` instructions. Returns whether the operation was over, and whether its frame
/// arrived.
fn kill_after(operation: &Operation, dir: &TempDir, listener: &Listener, steps: usize) -> (bool, bool) {
    let path = dir.listener_path();
    let mut child = Tracee::fork(|| {
        let mut shm = dial(&path);
        pause();
        (operation.before)(&mut shm);
        pause();
        (operation.stepped)(&mut shm);
        pause();
    });
    child.go();
    let mut shm = accept(listener);
    assert_eq!(child.await_stop(), Stop::Paused, "{}", operation.name);
    (0..operation.sent).for_each(|i| push(&mut shm, i, 16));
    if operation.name.starts_with("return a loan") {
        let extent = shm.loan(LENT).expect("nothing is lent");
        assert_eq!(extent.location().0, 0);
        shm.commit_loan(extent);
    }
    child.go();
    assert_eq!(child.await_stop(), Stop::Paused, "{}", operation.name);
    if operation.asleep {
        shm.announce_sleep();
    }
    let over = (0..steps).any(|_| match child.step() {
        Stop::Step => false,
        Stop::Paused => true,
        other => panic!("{}: {other:?} after {steps} steps", operation.name),
    });
    assert!(!shm.is_dead(), "a stopped process is not dead");
    child.kill();
    let seen = examine(&mut shm, operation);
    child.reap();
    (over, seen)
}

/// Checks what the survivor finds. Returns whether the last frame arrived.
fn examine(shm: &mut Shm, operation: &Operation) -> bool {
    until("the death", || shm.is_dead().then_some(()));
    let mut out = vec![0; shm.max_frame()];
    let mut pop = |shm: &mut Shm| shm.pop(&mut out).map(|len| out[..len].to_vec());
    for (i, len) in operation.whole.iter().enumerate() {
        assert!(!shm.is_finished());
        assert_eq!(pop(shm), Some(frame(i, *len)), "{}: frame {i}", operation.name);
    }
    let last = pop(shm);
    if let Some(last) = &last {
        assert_eq!(Some(last.len()), operation.last, "{}", operation.name);
        assert_eq!(*last, frame(operation.whole.len(), last.len()), "{}: torn", operation.name);
    }
    assert_eq!(pop(shm), None, "{}: nothing else", operation.name);
    (operation.after)(shm, last.is_some());
    assert!(shm.is_finished() && !shm.is_corrupt(), "{}", operation.name);
    let refused = (0..2_000).find_map(|i| shm.push(&frame(i, 16), &frame(i, 300)).err());
    assert_eq!(refused, Some(PushError::Full), "{}", operation.name);
    shm.flush();
    assert!(!shm.has_room() && shm.room() == 0 && !shm.is_corrupt());
    shm.close();
    last.is_some()
}
