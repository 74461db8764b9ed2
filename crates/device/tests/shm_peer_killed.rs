//! A peer that is killed after every single instruction of what it does with shared memory, and at every system call of coming and
//! going. The survivor never hangs, never sees a torn frame, and is left with nothing.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::print_stdout)]

mod shm_pair;
mod tracee;

use std::os::fd::AsFd;
use std::sync::Mutex;

use shm_pair::{TempDir, accept, answer_incoming, bell, dial, frame, hello, prove, segments, until};
use tautline_device::shm::{
    Dial, Extent, Incoming, InlineFrame, Listener, ReturnStatus, Shm, unlink_stale_listeners,
};
use tautline_device::{Channel, PushError};
use tracee::{Stop, Tracee, may_trace, pause};

/// One at a time: they count what this process has mapped.
static ALONE: Mutex<()> = Mutex::new(());

/// What the child does, instruction by instruction, with what it did before, and what the survivor then finds.
struct Operation {
    name: &'static str,
    /// Frames that the survivor sends first.
    sent: usize,
    /// The survivor says that it sleeps, so that it has to be rung for.
    asleep: bool,
    before: fn(&mut Shm),
    stepped: fn(&mut Shm),
    /// Lengths of the frames that the child sends: before, and while it is stepped.
    whole: &'static [usize],
    last: Option<usize>,
    /// What else is to be so, given whether the last frame is there.
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

/// All but one of the frames after which the receiver says what it has consumed.
fn nearly_a_quarter(shm: &mut Shm) {
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

/// The bytes to send are ready beforehand: what is stepped is the library, not the test.
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

const fn made<const N: usize>(from: usize) -> [u8; N] {
    let mut bytes = [0; N];
    let mut i = 0;
    while i < N {
        bytes[i] = ((from + i) * 31 + 2 * 97 + 5) as u8;
        i += 1;
    }
    bytes
}

static F16: ([u8; 8], [u8; 8]) = (made(0), made(8));
static F150: ([u8; 8], [u8; 142]) = (made(0), made(8));
static F300: ([u8; 8], [u8; 292]) = (made(0), made(8));
/// As the first frame.
static LINE_0: [u64; 7] = [u64::from_le_bytes(zeroth(0)), u64::from_le_bytes(zeroth(8)), 0, 0, 0, 0, 0];

const fn zeroth<const N: usize>(from: usize) -> [u8; N] {
    let mut bytes = [0; N];
    let mut i = 0;
    while i < N {
        bytes[i] = ((from + i) * 31 + 5) as u8;
        i += 1;
    }
    bytes
}

static LINE_16: [u64; 7] = [u64::from_le_bytes(made(0)), u64::from_le_bytes(made(8)), 0, 0, 0, 0, 0];

const OPERATIONS: &[Operation] = &[
    Operation { name: "send 16 bytes to a sleeper", stepped: push_16, last: Some(16), ..BASE },
    Operation { name: "send 16 bytes", asleep: false, stepped: push_16, last: Some(16), ..BASE },
    Operation { name: "send 300 bytes to a sleeper", stepped: push_300, last: Some(300), ..BASE },
    Operation { name: "send a line", stepped: push_line, last: Some(16), ..BASE },
    Operation { name: "send a line from where it is", stepped: push_words, last: Some(16), ..BASE },
    Operation {
        name: "send several lines from where they are",
        stepped: push_lines,
        last: Some(150),
        ..BASE
    },
    Operation { name: "send 300 bytes from where they are", stepped: push_long, last: Some(300), ..BASE },
    Operation { name: "receive 16 bytes", sent: 1, stepped: take, ..BASE },
    Operation { name: "receive lines", sent: 1, stepped: take_inline, ..BASE },
    Operation {
        name: "receive, and say so",
        sent: 128,
        before: nearly_a_quarter,
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
    Operation { name: "give back to a sleeper", sent: 1, stepped: give_back, after: loan_comes_back, ..BASE },
];

/// Bytes of what is lent.
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

/// S-8, S-19: what the dead have lent whole can be read.
fn read_loan(shm: &mut Shm, told: bool) {
    let view = shm.view().expect("the other side lends").clone();
    let mut got = vec![0; LENT];
    view.copy_out(0, &mut got);
    assert!(!told || got == frame(3, LENT), "torn");
}

fn give_back(shm: &mut Shm) {
    shm.return_loan(0, ReturnStatus::Read);
}

/// S-8: what the dead have not given back stays away, which is no error; it goes with the channel.
fn loan_comes_back(shm: &mut Shm, _: bool) {
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

/// S-3, S-6, S-11: a peer that dies after any instruction of sending and receiving has sent a frame whole or
/// not at all.
#[test]
fn killed_at_every_instruction() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !may_trace() {
        return println!("SKIPPED killed_at_every_instruction: this process may not trace its children");
    }
    let before = segments();
    for operation in OPERATIONS {
        let dir = TempDir::new("step");
        let listener = Listener::bind(&dir.listener()).unwrap();
        let (mut kills, mut first_seen) = (0, None);
        loop {
            let (over, seen) = kill_after(operation, &dir, &listener, kills);
            if seen && first_seen.is_none() {
                first_seen = Some(kills);
            }
            assert!(seen || first_seen.is_none(), "{}: there before step {kills}, not then", operation.name);
            if over {
                break;
            }
            kills += 1;
        }
        assert_eq!(first_seen.is_some(), operation.last.is_some(), "{}", operation.name);
        assert!(kills > 5, "{}: it was stepped", operation.name);
        println!("{}: {kills} kills, the frame is there after {first_seen:?} instructions", operation.name);
    }
    assert_eq!(segments(), before, "mappings and descriptors of segments");
}

/// Kills a child after `steps` instructions. Returns whether the operation was over by then, and whether its frame is there.
fn kill_after(operation: &Operation, dir: &TempDir, listener: &Listener, steps: usize) -> (bool, bool) {
    let path = dir.listener();
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
    if operation.name.starts_with("give back") {
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

/// What the survivor finds; whether the last frame is there.
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

/// The half of a meeting that stays: nothing in it waits, and whatever it is told, it goes on.
enum Survivor {
    Listening { listener: Listener, incoming: Option<Incoming>, shm: Option<Shm> },
    Dialing { dial: Option<Dial>, shm: Option<Shm> },
}

impl Survivor {
    /// Does whatever can be done now.
    fn turn(&mut self, dir: &TempDir) {
        match self {
            Survivor::Listening { listener, incoming, shm } => {
                if let Ok(Some(next)) = listener.accept() {
                    *incoming = Some(next);
                }
                match incoming.as_ref().map(|v| v.poll_greeting(prove)) {
                    Some(Ok(Some((_, handover)))) => {
                        let incoming = incoming.take().expect("it spoke");
                        *shm = answer_incoming(incoming, handover).ok();
                    }
                    Some(Err(_)) => *incoming = None,
                    Some(Ok(None)) | None => {}
                }
                Survivor::exchange(shm);
            }
            Survivor::Dialing { dial, shm } => {
                if dial.is_none() && shm.is_none() {
                    *dial = Dial::new(&dir.listener(), bell().as_fd(), hello).ok();
                }
                match dial.as_ref().map(|c| c.poll_greeting(prove)) {
                    Some(Ok(Some((_, bell)))) => {
                        *shm = Some(dial.take().expect("it knocked").establish(bell, true));
                    }
                    Some(Err(_)) => *dial = None,
                    Some(Ok(None)) | None => {}
                }
                Survivor::exchange(shm);
            }
        }
    }

    fn exchange(shm: &mut Option<Shm>) {
        let Some(shm) = shm else { return };
        let _ = shm.push(&frame(7, 100), &[]);
        shm.flush();
        let mut out = vec![0; shm.max_frame()];
        while let Some(len) = shm.pop(&mut out) {
            assert_eq!(out[..len], frame(7, 100), "torn");
        }
        assert!(!shm.is_corrupt());
    }

    /// The other process is dead: that shows wherever one can see it.
    fn check(self) {
        let (incoming, dial, shm) = match self {
            Survivor::Listening { listener, incoming, shm } => {
                // Whoever knocked and died is turned away without a wait.
                while let Ok(Some(incoming)) = listener.accept() {
                    if let Ok(None) = incoming.poll_greeting(prove) {
                        panic!("a dead visitor is not gone");
                    }
                }
                (incoming, None, shm)
            }
            Survivor::Dialing { dial, shm } => (None, dial, shm),
        };
        assert!(
            !incoming.is_some_and(|v| matches!(v.poll_greeting(prove), Ok(None))),
            "a dead visitor is not gone"
        );
        assert!(!dial.is_some_and(|c| matches!(c.poll_greeting(prove), Ok(None))), "a dead host is not gone");
        if let Some(shm) = shm {
            until("the death", || shm.is_dead().then_some(()));
            Survivor::exchange(&mut Some(shm));
        }
    }
}

/// What a child does that comes and goes.
#[derive(Clone, Copy, Debug)]
enum Role {
    Dialer,
    Listener,
    /// Its peer closes, it cleans up after it, and sweeps dead doors away.
    Cleaner,
}

/// Comes, exchanges frames, and goes in good order.
fn run(role: Role, dir: &TempDir) {
    let exchange = |mut shm: Shm| {
        let _ = shm.push(&frame(7, 100), &[]);
        shm.flush();
        let mut out = vec![0; shm.max_frame()];
        while shm.pop(&mut out).is_some() {}
        shm.close();
    };
    match role {
        Role::Dialer => {
            let Ok(dial) = Dial::new(&dir.listener(), bell().as_fd(), hello) else { return };
            for _ in 0..1_000 {
                match dial.poll_greeting(prove) {
                    Ok(Some((_, bell))) => return exchange(dial.establish(bell, true)),
                    Ok(None) => {}
                    Err(_) => return,
                }
            }
        }
        Role::Listener => {
            let listener = Listener::bind(&dir.listener()).unwrap();
            let incoming = until("a visitor", || listener.accept().unwrap());
            let (_, handover) = until("a greeting", || incoming.poll_greeting(prove).unwrap());
            exchange(answer_incoming(incoming, handover).unwrap());
        }
        Role::Cleaner => {
            let listener = Listener::bind(&dir.listener()).unwrap();
            let mut ends = shm_pair::pair(&listener, &dir.listener());
            ends.0.close();
            drop(ends.0);
            assert!(ends.1.is_finished() && ends.1.is_dead());
            drop(ends.1);
            unlink_stale_listeners(&dir.0);
        }
    }
}

/// A door that nobody is behind any more.
fn leave_a_stale_listener(dir: &TempDir) {
    let listener = Listener::bind(&tautline_device::shm::listener_path(&dir.0, 1, 9)).unwrap();
    // The file outlives the socket as it does when a process is killed.
    let path = tautline_device::shm::listener_path(&dir.0, 1, 8);
    std::fs::hard_link(tautline_device::shm::listener_path(&dir.0, 1, 9), path).unwrap();
    drop(listener);
}

/// Runs the child up to its `stops`-th stop at a system call and then `steps` instructions further, and kills it. True if it was over.
fn kill_at(kind: Role, stops: usize, steps: usize) -> bool {
    let dir = TempDir::new("call");
    let mut survivor = match kind {
        Role::Dialer => Survivor::Listening {
            listener: Listener::bind(&dir.listener()).unwrap(),
            incoming: None,
            shm: None,
        },
        Role::Listener | Role::Cleaner => Survivor::Dialing { dial: None, shm: None },
    };
    let cleaner = matches!(kind, Role::Cleaner);
    if cleaner {
        leave_a_stale_listener(&dir);
    }
    let mut child = Tracee::fork(|| {
        pause();
        run(kind, &dir);
        pause();
    });
    child.go();
    assert_eq!(child.await_stop(), Stop::Paused);
    let mut over = false;
    for _ in 0..stops {
        over = match child.next_call() {
            Stop::Call => false,
            Stop::Paused => true,
            other => panic!("{kind:?}: {other:?} at stop {stops}"),
        };
        if over {
            break;
        }
        if !cleaner {
            survivor.turn(&dir);
        }
    }
    for _ in 0..if over { 0 } else { steps } {
        if child.step() != Stop::Step {
            break;
        }
    }
    child.kill();
    child.await_death();
    if !cleaner {
        survivor.turn(&dir);
    }
    survivor.check();
    // Its name is free again, reaped or not.
    let listener = Listener::bind(&dir.listener()).unwrap();
    drop(shm_pair::pair(&listener, &dir.listener()));
    unlink_stale_listeners(&dir.0);
    assert!(!tautline_device::shm::listener_path(&dir.0, 1, 8).exists(), "swept");
    child.reap();
    over
}

/// S-1, S-5, S-6: a peer that dies at any system call of knocking, letting in, leaving or cleaning up leaves nobody waiting, its name can be
/// taken again, and its memory is gone.
#[test]
fn killed_at_every_system_call() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !may_trace() {
        return println!("SKIPPED killed_at_every_system_call: this process may not trace its children");
    }
    let before = segments();
    for kind in [Role::Dialer, Role::Listener, Role::Cleaner] {
        let mut stops = 0;
        while !kill_at(kind, stops, 0) {
            stops += 1;
        }
        assert!(stops > 20, "{kind:?} was traced");
        // And at instructions between them, some of very many.
        let samples: usize = std::env::var("TAUTLINE_STEPS").map_or(60, |n| n.parse().unwrap());
        for i in 0..samples {
            kill_at(kind, i * 7 % stops, 1 + i * 37 % 211);
        }
        println!("{kind:?}: {stops} kills at system calls, {samples} between them");
    }
    assert_eq!(segments(), before, "mappings and descriptors of segments");
}
