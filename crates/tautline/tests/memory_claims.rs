//! A member of the job that claims memory: it begins messages of which it sends next to nothing, answers
//! calls that nobody made, and sends more than this rank keeps. Decided by a counting allocator.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use common::{Limit, await_event, jobs, join};
use tautline::node::Endpoint as Node;
use tautline::node::limits::MAX_BEGUN;
use tautline::node::link::Death;
use tautline::rpc::Rpc;
use tautline::{
    Borrowed, Builder, Config, DeviceName, Down, Endpoint, Event, Job, Message, PeerState, SendError,
};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// Longer requests are counted and refused: the test is to fail, not the machine.
const REFUSED: usize = 1 << 30;

/// Counts an allocation; false if it is refused.
fn count(size: usize) -> bool {
    LARGEST.fetch_max(size, Ordering::Relaxed);
    if size > REFUSED {
        return false;
    }
    let live = LIVE.fetch_add(size, Ordering::Relaxed) + size;
    PEAK.fetch_max(live, Ordering::Relaxed);
    true
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract, or fails.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !count(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps the contract of this same method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !count(size) {
            return std::ptr::null_mut();
        }
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const MIB: usize = 1 << 20;
const CLAIM: u64 = 16 << 30;
const DEVICES: [DeviceName; 2] = [DeviceName::Udp, DeviceName::Shm];

/// The allocator counts for the whole process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The hostile member: a node without the layer that sends correctly.
struct Attacker(Node);

impl Attacker {
    fn join(job: Job) -> Attacker {
        let config = Config::with(|config| config.single_copy = Some(MIB));
        Attacker(Node::join(job, config, Vec::new()).unwrap())
    }

    /// Repeats `attempt` until there is room.
    fn until_room<T>(&self, mut attempt: impl FnMut() -> Result<T, SendError>) -> Result<T, SendError> {
        loop {
            match attempt() {
                Err(SendError::WouldBlock) => {
                    let seen = self.0.activity()?;
                    self.0.wait_for_activity(seen, Some(Duration::from_millis(1)))?;
                }
                result => return result,
            }
        }
    }

    /// Begins a message of `total` bytes, and sends the first ones.
    fn begin(&self, handler: &str, total: u64, first: &[u8]) -> Result<(), SendError> {
        let key = self.0.key(handler)?;
        let id = self.until_room(|| self.0.try_begin(0, key, total))?;
        let mut sent = 0;
        while sent < first.len() {
            sent += self.until_room(|| match self.0.try_piece(id, sent as u64, &first[sent..])? {
                0 => Err(SendError::WouldBlock),
                added => Ok(added),
            })?;
        }
        Ok(())
    }
}

/// Runs `attack` as rank 1 while rank 0 extracts, until rank 0 has received all of it or ended the channel.
/// Returns by how much memory grew meanwhile, at most, the largest request to the allocator, and the failures
/// of handlers.
fn attacked(
    device: DeviceName,
    builder: Builder,
    attack: impl FnOnce(&Attacker) + Send + 'static,
) -> (usize, usize, Vec<String>) {
    let _limit = Limit::seconds(120);
    let mut all = jobs(2);
    all.iter_mut().for_each(|job| job.device = Some(device));
    let hostile = all.pop().unwrap();
    let overs = Rc::new(Cell::new(0));
    let count = overs.clone();
    let ep = join(builder.on_short("over", move |_| count.set(count.get() + 1)), all.pop().unwrap());
    let (go_on, wait) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let attacker = Attacker::join(hostile);
        let key = attacker.0.key("over").unwrap();
        attacker.until_room(|| attacker.0.try_send(0, key, b"")).unwrap();
        wait.recv().unwrap();
        attack(&attacker);
        let _ = attacker.until_room(|| attacker.0.try_send(0, key, b""));
        // Until the other side has seen it.
        let _ = wait.recv();
    });
    ep.serve(1).unwrap();
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    LARGEST.store(0, Ordering::Relaxed);
    go_on.send(()).unwrap();
    while overs.get() < 2 && ep.peer_state(1) == Some(PeerState::Up) {
        ep.extract(usize::MAX).unwrap();
        ep.wait(Some(Duration::from_millis(1))).unwrap();
    }
    ep.extract(usize::MAX).unwrap();
    drop(go_on);
    let grown = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    let largest = LARGEST.load(Ordering::Relaxed);
    let failures = std::iter::from_fn(|| ep.poll_failure()).map(|failure| failure.reason).collect();
    thread.join().unwrap();
    (grown, largest, failures)
}

/// Handlers of every kind that keep messages whole.
fn collectors() -> Builder {
    let rpc = Rpc::new();
    Endpoint::builder()
        .with(&rpc)
        .with(rpc.serve_bytes("service", |_, request: Vec<u8>| async move { Ok(request) }))
        .with(rpc.serve_bytes_deferred("deferred", |replier, request| replier.answer(&request)))
        .on("stream", |mut message: Message| async move { message.read_to_end().await.map(drop) })
        .on_loan("loan", |_: Borrowed| {})
}

/// M-18: a message that claims 16 GiB costs what has arrived of it, whatever handler it is for: 29,020 of
/// them, one byte each, cost less than 3 KiB each. Neither does one reserve more that claims 512 KiB, which
/// is no more than the receiver keeps.
#[test]
fn begun_messages_reserve_nothing() {
    const BEGUN: usize = 29_020;
    const MODEST: usize = 512 << 10;
    let _alone = alone();
    let handlers = [
        "tautline.rpc.answer.long",
        "stream",
        "loan",
        "service",
        "deferred",
        "tautline.exchange",
        "tautline.round",
    ];
    for (i, handler) in handlers.into_iter().enumerate() {
        // A peer that barriers and exchanges in this way soon breaks a rule.
        let begun = if i < 5 { BEGUN } else { 1000 };
        let (grown, largest, _) = attacked(DEVICES[i % 2], collectors(), move |attacker| {
            for _ in 0..begun {
                attacker.begin(handler, CLAIM, b"x").unwrap();
            }
        });
        assert!(largest <= 16 * MIB, "{handler}: {largest} bytes were requested at once");
        println!("{handler}: {begun} messages cost {grown} bytes");
        assert!(grown <= 3 * 1024 * begun, "{handler}: {begun} messages cost {grown} bytes");
        let (grown, ..) = attacked(DEVICES[i % 2], collectors(), move |attacker| {
            for _ in 0..1000 {
                attacker.begin(handler, MODEST as u64, b"x").unwrap();
            }
        });
        println!("{handler}: 1000 claims of 512 KiB cost {grown} bytes");
        assert!(grown <= 1000 * 4096, "{handler}: 1000 claims of 512 KiB cost {grown} bytes");
    }
}

/// M-20: an answer that nobody waits for is dropped as it arrives. 64 MiB of it are not kept.
#[test]
fn answers_that_nobody_asked_for_are_dropped() {
    let _alone = alone();
    for device in DEVICES {
        let (grown, _, failures) = attacked(device, collectors(), |attacker| {
            attacker.begin("tautline.rpc.answer.long", 64 * MIB as u64, &vec![7; 64 * MIB]).unwrap();
        });
        // The attacker's own copy is in here, too.
        assert!(grown <= (64 + 16) * MIB, "{device}: memory grew by {grown} bytes");
        assert!(failures.is_empty(), "{failures:?}");
    }
}

/// Handlers that keep messages whole, and one that takes nothing, with low limits.
fn limited() -> Builder {
    let config = Config::with(|config| {
        (config.max_whole, config.max_held) = (MIB as u64, 4 * MIB as u64);
        (config.link.message_window, config.local_window) = (256 << 10, 256 << 10);
        config.single_copy = Some(MIB);
    });
    collectors().config(config).on("waits", |message: Message| async move {
        let _message = message;
        std::future::pending().await
    })
}

/// M-19: a message that is longer than may be kept whole is refused before anything of it is kept.
#[test]
fn long_messages_are_not_kept_whole() {
    let _alone = alone();
    for device in DEVICES {
        for handler in ["stream", "loan", "tautline.exchange"] {
            let (_, largest, failures) = attacked(device, limited(), move |attacker| {
                attacker.begin(handler, MIB as u64, &[7; MIB]).unwrap();
                attacker.begin(handler, MIB as u64 + 1, &[7; MIB + 1]).unwrap();
            });
            assert!(
                largest <= MIB + (MIB >> 2),
                "{device} {handler}: {largest} bytes were requested at once"
            );
            let refused = |text: &&String| text.contains("1048577 bytes") && text.contains("max_whole");
            let expected = usize::from(handler != "tautline.exchange");
            assert_eq!(failures.iter().filter(refused).count(), expected, "{device} {handler}: {failures:?}");
        }
    }
}

/// M-19: unfinished messages of one peer, whether a handler collects them or takes nothing, cost no more than
/// the limit; those beyond it fail. The next message is received as ever.
#[test]
fn unfinished_messages_of_a_peer_are_limited() {
    let _alone = alone();
    for device in DEVICES {
        for (handler, begun, sent) in
            [("stream", 64, MIB - 1), ("loan", 64, MIB - 1), ("waits", 400, 200 << 10)]
        {
            let (grown, _, failures) = attacked(device, limited(), move |attacker| {
                let bytes = vec![7; sent];
                for _ in 0..begun {
                    attacker.begin(handler, MIB as u64, &bytes).unwrap();
                }
                attacker.begin("stream", 1000, &[7; 1000]).unwrap();
            });
            // Vectors that grow are up to twice as long as their content, for a moment three times. The rest
            // is what devices hold of both members.
            assert!(grown <= (3 * 4 + 12) * MIB, "{device} {handler}: {grown} bytes");
            let failed = failures.iter().filter(|text| text.contains("max_held")).count();
            let kept = 4 * MIB / sent;
            let expected = if handler == "waits" { 0 } else { begun - kept };
            assert!(failed >= expected, "{device} {handler}: {failed} of {expected}; {failures:?}");
        }
    }
}

/// M-19, S-9: so are bytes that the peer lets this process copy out of its own memory.
#[test]
fn offered_messages_are_limited() {
    const LEN: usize = 64 * MIB;
    let _alone = alone();
    let (grown, _, failures) = attacked(DeviceName::Shm, limited(), |attacker| {
        let bytes = vec![7; LEN];
        for handler in ["stream", "loan"] {
            let key = attacker.0.key(handler).unwrap();
            // Whether the victim can read it is found out by a thread.
            let offer = (0..5_000).find_map(|_| {
                let offer = attacker.until_room(|| attacker.0.try_offer(0, key, &bytes)).unwrap();
                if offer.is_none() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                offer
            });
            let Some(offer) = offer else {
                return tautline_skips::skip(
                    "offered_messages_are_limited",
                    "the system forbids process_vm_readv",
                );
            };
            let _ = attacker.until_room(|| attacker.0.poll_offer(&offer)).unwrap();
        }
    });
    // The attacker's own copy is in here, too.
    assert!(grown <= LEN + 24 * MIB, "{grown} bytes");
    assert!(failures.iter().all(|text| text.contains("max_whole")), "{failures:?}");
}

/// M-10: a peer that has begun as many messages as it may is a peer like any other; with one more it is
/// disconnected.
#[test]
fn too_many_begun_messages_disconnect_the_peer() {
    let _alone = alone();
    let _limit = Limit::seconds(240);
    for device in DEVICES {
        let mut all = jobs(2);
        all.iter_mut().for_each(|job| job.device = Some(device));
        let hostile = all.pop().unwrap();
        let builder = Endpoint::builder()
            .on("data", |mut msg: Message| async move { msg.skip(msg.remaining()).await })
            .on_short("over", |_| {});
        let ep = join(builder, all.pop().unwrap());
        let (go_on, wait) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let attacker = Attacker::join(hostile);
            let [data, over] = ["data", "over"].map(|name| attacker.0.key(name).unwrap());
            // Only the node that begins it believes that it has ended.
            let begin = || {
                let id = attacker.until_room(|| attacker.0.try_begin(0, data, 100_000))?;
                attacker.0.end(id)
            };
            (0..MAX_BEGUN).for_each(|_| begin().unwrap());
            attacker.until_room(|| attacker.0.try_send(0, over, b"")).unwrap();
            wait.recv().unwrap();
            begin().unwrap();
            wait.recv().unwrap();
        });
        ep.serve(1).unwrap();
        assert_eq!(ep.peer_state(1), Some(PeerState::Up), "{device:?}");
        go_on.send(()).unwrap();
        let down = await_event(&ep, |event| matches!(event, Event::PeerDown { peer: 1, .. }));
        assert!(
            matches!(down, Event::PeerDown { why: Down::Died(Death::Violation), .. }),
            "{device:?}: {down:?}"
        );
        go_on.send(()).unwrap();
        thread.join().unwrap();
    }
}
