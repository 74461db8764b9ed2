//! Collectives of members in threads that fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, Result};
use crate::group::tests::jobs::run;
use crate::group::{Call, Group, Reduction};

type Barriers = fn(&Group) -> Result<()>;

/// The ways to wait for a barrier.
const WAITS: [Barriers; 4] = [
    Group::barrier,
    |group| group.start(&Call::Barrier, Vec::new())?.wait().map(drop),
    |group| {
        let started = group.start(&Call::Barrier, Vec::new())?;
        while !started.test() {}
        started.wait().map(drop)
    },
    |group| {
        let started = group.start(&Call::Barrier, Vec::new())?;
        while !group.0.failures.any() {
            group.progress();
        }
        started.wait().map(drop)
    },
];

/// G-22: however a member waits, by messages or until memory is shared, it learns that another one is lost
/// from which it receives later. Those from which it receives first compute.
#[test]
fn losses_of_later_senders_are_seen() {
    for before in [0, 4] {
        for wait in WAITS {
            let (ready, over) = (Barrier::new(4), Barrier::new(3));
            run(4, |world| {
                let group = world.duplicate().unwrap();
                for _ in 0..before {
                    group.barrier().unwrap();
                }
                assert_eq!(group.shares_memory(), None, "that is decided later");
                ready.wait();
                match group.member() {
                    0 => {
                        let failed = wait(&group);
                        over.wait();
                        assert!(matches!(failed, Err(Error::PeerGone(2, _))), "{failed:?}");
                    }
                    // It closes.
                    2 => {}
                    _ => drop(over.wait()),
                }
            });
        }
    }
}

/// G-6: an operation of the program that panics fails the collective at all members, by messages, in memory
/// and in one that was started.
#[test]
fn operations_that_panic_fail_everywhere() {
    for (memory, started) in [(false, false), (false, true), (true, false), (true, true)] {
        let (panics, over) = (AtomicUsize::new(0), Barrier::new(3));
        run(3, |world| {
            let group = world.duplicate().unwrap();
            if memory {
                while group.shares_memory().is_none() {
                    group.barrier().unwrap();
                }
                assert_eq!(group.shares_memory(), Some(true));
            }
            let with = Reduction::new(1, true, |_, _| panic!("an operation"));
            let call = Call::AllReduce { len: 8, with };
            let result = catch_unwind(AssertUnwindSafe(|| match started {
                true => group.start(&call, vec![1; 8])?.wait(),
                false => group.run(&call, &[1; 8]),
            }));
            match result {
                Err(_) => drop(panics.fetch_add(1, Ordering::Relaxed)),
                Ok(result) => assert!(result.is_err(), "{result:?}"),
            }
            assert!(group.barrier().is_err());
            over.wait();
            assert!(panics.load(Ordering::Relaxed) > 0);
            assert_eq!(world.agree(1).unwrap(), (1, vec![]), "other groups are not concerned");
        });
    }
}
