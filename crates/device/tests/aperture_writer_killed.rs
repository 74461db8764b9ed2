//! A process is killed after every instruction of a store into an aperture that it has mapped, or of a put
//! through shared memory. A reader, then or meanwhile, finds each word of eight bytes with its old or its new
//! value, and nothing else changed.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::print_stdout)]

mod shm_pair;
mod tracee;

use std::sync::Mutex;

use shm_pair::{TempDir, accept, dial, until};
use tautline_device::Channel;
use tautline_device::shm::{Listener, Shm};
use tautline_mem::ApertureMemory;
use tautline_wire::memory::{MemoryRecord, PUT_HEAD, Target};
use tautline_wire::record::{RecordHead as _, Records};
use tracee::{Stop, Tracee, may_trace, pause};

/// One test at a time, because each waits for its own children.
static ALONE: Mutex<()> = Mutex::new(());

/// Bytes of the aperture.
const LEN: usize = 4096;

/// Returns the old contents, or the new ones.
const fn bytes<const N: usize>(salt: usize) -> [u8; N] {
    let mut bytes = [0; N];
    let mut i = 0;
    while i < N {
        bytes[i] = (i * 29 + salt) as u8;
        i += 1;
    }
    bytes
}

static OLD: [u8; LEN] = bytes(1);
/// Differs from the old contents in every byte.
static NEW: [u8; LEN] = bytes(130);

/// A store of `NEW[at..at + len]` at the same offset.
struct Store {
    name: &'static str,
    at: usize,
    len: usize,
    store: fn(&ApertureMemory, usize, usize),
}

fn write_word(memory: &ApertureMemory, at: usize, _: usize) {
    let word = u64::from_le_bytes(NEW[at..at + 8].try_into().expect("eight bytes"));
    let _ = std::hint::black_box(memory.write_u64(at, word));
}

fn write(memory: &ApertureMemory, at: usize, len: usize) {
    let _ = std::hint::black_box(memory.write(at, &NEW[at..at + len]));
}

fn swap_word(memory: &ApertureMemory, at: usize, _: usize) {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let _ = std::hint::black_box(memory.compare_exchange(at, word(&OLD), word(&NEW)));
}

/// A store that tears, for comparison: no aperture is written like this.
fn write_halves(memory: &ApertureMemory, at: usize, _: usize) {
    let _ = std::hint::black_box(memory.write(at, &NEW[at..at + 4]));
    let _ = std::hint::black_box(memory.write(at + 4, &NEW[at + 4..at + 8]));
}

const STORES: &[Store] = &[
    Store { name: "a word", at: 64, len: 8, store: write_word },
    Store { name: "a word, as bytes", at: 72, len: 8, store: write },
    Store { name: "a word that is compared", at: 80, len: 8, store: swap_word },
    Store { name: "some bytes of a word", at: 90, len: 3, store: write },
    Store { name: "bytes of two words", at: 100, len: 8, store: write },
    Store { name: "many words and a few bytes", at: 203, len: 1001, store: write },
];

/// Returns the old and the new value of the word at an offset.
fn before_and_after(at: usize, store: &Store) -> (u64, u64) {
    let mut after = OLD;
    after[store.at..store.at + store.len].copy_from_slice(&NEW[store.at..store.at + store.len]);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    (word(&OLD), word(&after))
}

/// Returns how many words have a new value; all others must have the old one. If not, returns where one is
/// torn.
fn stored(memory: &ApertureMemory, store: &Store) -> Result<usize, usize> {
    let mut count = 0;
    for at in (0..LEN).step_by(8) {
        let word = memory.read_u64(at).unwrap();
        let (old, new) = before_and_after(at, store);
        if word != old && word != new {
            return Err(at);
        }
        count += usize::from(word == new && new != old);
    }
    Ok(count)
}

/// Kills a child after `steps` instructions of a store. Returns whether the store was over, and what is found
/// then. The memory is also checked between the instructions.
fn kill_after(store: &Store, steps: usize) -> (bool, Result<usize, usize>) {
    let memory = ApertureMemory::allocate(LEN).unwrap();
    memory.write(0, &OLD).unwrap();
    let fd = memory.fd().expect("it is allocated").try_clone_to_owned().unwrap();
    let mut child = Tracee::fork(|| {
        let mapped = ApertureMemory::attach(fd, LEN).unwrap();
        pause();
        (store.store)(&mapped, store.at, store.len);
        pause();
    });
    child.go();
    assert_eq!(child.await_stop(), Stop::Paused, "{}", store.name);
    let (mut over, mut seen) = (false, Ok(0));
    for _ in 0..steps {
        over = match child.step() {
            Stop::Step => false,
            Stop::Paused => true,
            other => panic!("{}: {other:?}", store.name),
        };
        // A check of the whole memory after every instruction of every run would take too long.
        if steps.is_multiple_of(16) || store.len <= 8 {
            let now = stored(&memory, store);
            if now.is_err() {
                return (over, now);
            }
            assert!(now >= seen, "{}: a word has its old value again", store.name);
            seen = now;
        }
        if over {
            break;
        }
    }
    child.kill();
    child.reap();
    (over, stored(&memory, store))
}

/// a process that dies after any instruction of a store leaves no torn word, and no reader sees one
/// meanwhile.
#[test]
fn killed_while_storing() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !may_trace() {
        return tautline_skips::skip("killed_while_storing", "this process may not trace its children");
    }
    for store in STORES {
        let changes = |at: &usize| {
            let (old, new) = before_and_after(*at, store);
            old != new
        };
        let all = (0..LEN).step_by(8).filter(changes).count();
        let (mut kills, mut last) = (0, 0);
        loop {
            let (over, found) = kill_after(store, kills);
            let now = found.unwrap_or_else(|at| panic!("{}: the word at {at} is torn", store.name));
            assert!(now >= last, "{}: {now} words after {kills} instructions, {last} before", store.name);
            last = now;
            if over {
                break;
            }
            kills += 1;
        }
        assert_eq!(last, all, "{}", store.name);
        assert!(kills > 3, "{}: it was stepped", store.name);
        println!("{}: {kills} kills, {all} words", store.name);
    }
    // The check detects a torn word.
    let halves = Store { name: "a word in two halves", at: 64, len: 8, store: write_halves };
    let torn = (0..1000).map(|kills| kill_after(&halves, kills)).take_while(|(over, _)| !over);
    assert!(torn.into_iter().any(|(_, found)| found == Err(64)));
}

/// Returns a put of eight bytes, as a line of the shared ring.
fn put() -> ([u64; 7], usize) {
    let mut line = [0; 56];
    let target = Target { handle: 1, id: 1, at: 64 };
    let head = MemoryRecord::Put(target, &[]).write(&mut line, 0, 8);
    assert_eq!(head, PUT_HEAD);
    line[head..head + 8].copy_from_slice(&NEW[64..72]);
    let mut words = [0; 7];
    for (word, bytes) in words.iter_mut().zip(line.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    (words, head + 8)
}

/// Serves a put, as the owner of the memory does. Returns whether there was one.
fn serve(shm: &mut Shm, memory: &ApertureMemory) -> bool {
    let mut out = vec![0; shm.max_frame()];
    let Some(len) = shm.pop(&mut out) else { return false };
    let record = Records::new(&out[..len], 0).next().expect("a record").expect("a whole one");
    let Ok(MemoryRecord::Put(target, data)) = MemoryRecord::parse(&record) else { panic!("not the put") };
    assert_eq!(target, Target { handle: 1, id: 1, at: 64 });
    memory.write(target.at as usize, data).unwrap();
    true
}

/// A-1, S-3: a process that dies after any instruction of a put through shared memory has put the whole word,
/// or nothing.
#[test]
fn killed_while_putting() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !may_trace() {
        return tautline_skips::skip("killed_while_putting", "this process may not trace its children");
    }
    let (line, len) = put();
    let store = Store { name: "a put", at: 64, len: 8, store: write };
    for asleep in [false, true] {
        let dir = TempDir::new("put");
        let listener = Listener::bind(&dir.listener_path()).unwrap();
        let (mut kills, mut first) = (0, None);
        loop {
            let path = dir.listener_path();
            let mut child = Tracee::fork(|| {
                let mut shm = dial(&path);
                pause();
                std::hint::black_box(shm.push_line(&line, len));
                pause();
            });
            child.go();
            let mut shm = accept(&listener);
            assert_eq!(child.await_stop(), Stop::Paused);
            if asleep {
                shm.announce_sleep();
            }
            let over = (0..kills).any(|_| match child.step() {
                Stop::Step => false,
                Stop::Paused => true,
                other => panic!("{other:?}"),
            });
            child.kill();
            until("the death", || shm.is_dead().then_some(()));
            let memory = ApertureMemory::allocate(LEN).unwrap();
            memory.write(0, &OLD).unwrap();
            let came = serve(&mut shm, &memory);
            assert_eq!(stored(&memory, &store), Ok(usize::from(came)));
            assert!(!serve(&mut shm, &memory) && shm.is_finished() && !shm.is_corrupt());
            assert!(came || first.is_none(), "the put had arrived after fewer than {kills} instructions");
            if came {
                first.get_or_insert(kills);
            }
            child.reap();
            if over {
                break;
            }
            kills += 1;
        }
        assert!(first.is_some() && kills > 5, "it was stepped");
        println!("a put: {kills} kills, it arrives after {first:?} instructions");
    }
}
