use super::*;
use crate::sync::{Mutex, thread};

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(run);
}

fn pair() -> [GroupMemory; 2] {
    let segment = Arc::new(Segment::create(len(2)).unwrap());
    [0, 1].map(|me| GroupMemory::over(segment.clone(), me, 2))
}

/// G-18: a member that announced its sleep, looked again and found that not all have entered is rung for
/// by the one that enters last.
#[test]
fn loom_no_entry_is_slept_through() {
    model(|| {
        let [a, b] = pair();
        let bell = Arc::new(Mutex::new(false));
        let rung = bell.clone();
        let thread = thread::spawn(move || {
            b.enter(0, 1);
            if b.has_all(0).unwrap() && b.asleep(Asleep::ForAll) != 0 && b.take_asleep(Asleep::ForAll, 0) {
                *rung.lock().unwrap() = true;
            }
        });
        a.enter(0, 1);
        a.announce_sleep(Awaited::Entered(0));
        let sleeps = !a.is_done(Awaited::Entered(0));
        thread.join().unwrap();
        assert!(!sleeps || *bell.lock().unwrap(), "asleep, and all have entered");
    });
}

/// G-15, G-16: what a member reads in an operation was written in it, also when slots are used again.
#[test]
fn loom_operations_do_not_mix() {
    model(|| {
        let [a, b] = pair();
        let run = |memory: GroupMemory| {
            for at in 0..3_u64 {
                while !memory.has_room(at) {
                    thread::yield_now();
                }
                memory.contribute(at, &[at as u8 + 1; 8]);
                memory.enter(at, 1);
                while !memory.has_all(at).unwrap() {
                    thread::yield_now();
                }
                let mut got = [0; 8];
                memory.read(at, 1 - memory.me(), 0, &mut got);
                assert_eq!(got, [at as u8 + 1; 8]);
                memory.leave(at);
            }
        };
        let thread = thread::spawn(move || run(b));
        run(a);
        thread.join().unwrap();
    });
}

/// G-15: of two members one computes the result, and the other one reads it.
#[test]
fn loom_one_member_computes() {
    model(|| {
        let [a, b] = pair();
        let run = |memory: GroupMemory| {
            memory.contribute(0, &[3; 8]);
            memory.enter(0, 1);
            let mut computed = false;
            while !memory.has_result(0).unwrap() {
                if memory.has_all(0).unwrap() && memory.claim(0).unwrap() {
                    let mut got = [0; 8];
                    memory.read(0, 1 - memory.me(), 0, &mut got);
                    assert_eq!(got, [3; 8]);
                    memory.publish(0, &[9; 8]);
                    computed = true;
                } else {
                    thread::yield_now();
                }
            }
            let mut got = [0; 8];
            memory.result(0, &mut got);
            assert_eq!(got, [9; 8]);
            computed
        };
        let thread = thread::spawn(move || run(b));
        let first = run(a);
        assert!(first != thread.join().unwrap(), "one of them");
    });
}
